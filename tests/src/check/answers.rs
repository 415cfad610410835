//! I12, I10, I5: the answers to one request agree with each other, a waiter leaves only for a
//! stated reason, and no request of an ended session is granted.

use super::story::{Answer, Request, Story};
use super::{Violation, at, violation};
use crate::history::Permits;

pub(super) fn check(story: &Story, violations: &mut Vec<Violation>) {
    for request in &story.requests {
        same_answer(story, request, violations);
        leaves_for_a_reason(story, request, violations);
        alive(story, request, violations);
    }
}

/// I12: one request is granted at most once, under one token; its names become fewer only when its
/// client gives some back; and it is not also denied.
fn same_answer(story: &Story, request: &Request, violations: &mut Vec<Violation>) {
    let Some(grant) = &request.granted else { return };
    for (told_ns, answer) in &request.answers {
        let given_back = |name: &String| {
            let hold = story.hold(request.client, grant.token, name);
            hold.and_then(|hold| hold.over).is_some_and(|(at_ns, _)| at_ns <= *told_ns)
        };
        let differs = match answer {
            Answer::Granted { token, names } => {
                *token != grant.token
                    || !names.is_subset(&grant.names)
                    || !grant.names.difference(names).all(given_back)
            }
            Answer::Denied => true,
            _ => false,
        };
        if differs {
            let message = format!(
                "request {} of {} for {} was answered with token {} and also {answer:?}",
                request.number,
                request.client,
                request.names(),
                grant.token
            );
            violations.push(violation(12, message));
        }
    }
}

/// I10: a committed waiter leaves only by grant, its own cancel or limit, its session's end, or because a limit was lowered below
/// what it asks for.
fn leaves_for_a_reason(story: &Story, request: &Request, violations: &mut Vec<Violation>) {
    let (Some(queued), None) = (request.queued, &request.granted) else { return };
    for (told_ns, answer) in request.answers.iter().filter(|(told, _)| *told >= queued.at_ns) {
        let fits = match answer {
            Answer::Queued | Answer::Granted { .. } | Answer::Unknown => true,
            Answer::Denied => request.limit_ns.is_some_and(|limit| limit <= *told_ns),
            Answer::Refused(reason) if reason == "permits" => {
                is_above_limit(story, request, *told_ns)
            }
            Answer::Refused(_) | Answer::Cancelled => {
                request.cancel_ns.is_some_and(|cancel| cancel <= *told_ns)
            }
            Answer::SessionLost => session_may_be_over(story, request, *told_ns),
        };
        if !fits {
            let message = format!(
                "request {} of {} waited for {} and was told {answer:?} at {} without cause",
                request.number,
                request.client,
                request.names(),
                at(*told_ns)
            );
            violations.push(violation(10, message));
        }
    }
}

/// Whether an operator may have set a limit below the permits that it asks for.
fn is_above_limit(story: &Story, request: &Request, now_ns: u64) -> bool {
    request.items.iter().any(|(name, asked)| {
        let Some(Permits { count, limit: 0 }) = asked.permits else { return false };
        let mut limits = story.facts.orders.limits(name, request.called_ns, now_ns);
        limits.any(|limit| limit < count)
    })
}

/// Whether the session may have ended by `now_ns`: its client closed it, an answer reported its
/// end, or its lease is no longer known to be certain.
fn session_may_be_over(story: &Story, request: &Request, now_ns: u64) -> bool {
    story.facts.took_from(request.client, now_ns)
        || story.clients.get(&request.client).is_none_or(|client| {
            client.closed_ns.is_some()
                || client.ended_ns.is_some()
                || client.leases.certain_until(now_ns).is_none_or(|until| until <= now_ns)
        })
}

/// I5: no grant after the client learned that its session is over.
fn alive(story: &Story, request: &Request, violations: &mut Vec<Violation>) {
    let ended = story.clients.get(&request.client).and_then(|client| client.ended_ns);
    let (Some(ended), Some(grant)) = (ended, &request.granted) else { return };
    if grant.at_ns > ended {
        let message = format!(
            "{} was granted {} at {}, after its session had ended at {}",
            request.client,
            request.names(),
            at(grant.at_ns),
            at(ended)
        );
        violations.push(violation(5, message));
    }
}
