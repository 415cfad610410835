//! I32, I31: every call ends within its own limit, no client of a healed run is forgotten, and
//! keepalives are answered while no fault is active.

use super::story::{Hold, Over, Request, Story};
use super::{Options, Violation, at, violation};
use crate::history::LostCause;

pub(super) fn check(story: &Story, options: Options, violations: &mut Vec<Violation>) {
    let grace_ns = u64::try_from(options.grace.as_nanos()).unwrap_or(u64::MAX);
    for request in &story.requests {
        late(request, grace_ns, violations);
        forgotten(story, request, violations);
    }
    for hold in &story.holds {
        release_without_answer(story, hold, violations);
        keepalive_without_answer(story, options, hold, violations);
    }
}

/// I31: a live client keeps its lease while no fault is active and everything has settled.
fn keepalive_without_answer(
    story: &Story,
    options: Options,
    hold: &Hold,
    violations: &mut Vec<Violation>,
) {
    let Some((told_ns, Over::Told(LostCause::Deadline))) = hold.over else { return };
    let Some(ttl_ns) = story.clients.get(&hold.client).and_then(|client| client.ttl_ns) else {
        return;
    };
    let settled = options.settle.saturating_add(options.grace).as_nanos();
    let settled_ns = u64::try_from(settled).unwrap_or(u64::MAX).saturating_add(ttl_ns);
    let from_ns = told_ns.saturating_sub(settled_ns);
    if told_ns > settled_ns && story.facts.healthy_between(from_ns, told_ns) {
        let message = format!(
            "{}: token {} of {} passed its safe deadline at {}, with nothing broken since {}",
            hold.name,
            hold.token,
            hold.client,
            at(told_ns),
            at(from_ns)
        );
        violations.push(violation(31, message));
    }
}

/// I32: a call with a limit ends by then, whatever fault is active.
fn late(request: &Request, grace_ns: u64, violations: &mut Vec<Violation>) {
    let (Some(limit), Some(ended)) = (request.limit_ns, request.ended_ns) else { return };
    if ended > limit.saturating_add(grace_ns) {
        let message = format!(
            "request {} of {} for {} should have ended by {} and ended at {}",
            request.number,
            request.client,
            request.names(),
            at(limit),
            at(ended)
        );
        violations.push(violation(32, message));
    }
}

/// I31: after healing, only requests of clients that are gone may lack an answer.
fn forgotten(story: &Story, request: &Request, violations: &mut Vec<Violation>) {
    if request.ended_ns.is_some()
        || is_gone(story, request.client)
        || story.facts.healed_ns().is_none()
    {
        return;
    }
    let invariant = if request.limit_ns.is_some() || !request.wait { 32 } else { 31 };
    let message = format!(
        "request {} of {} for {}, asked at {}, never ended",
        request.number,
        request.client,
        request.names(),
        at(request.called_ns)
    );
    violations.push(violation(invariant, message));
}

/// I32: a release is answered, if only with "unknown".
fn release_without_answer(story: &Story, hold: &Hold, violations: &mut Vec<Violation>) {
    let asked = hold.releases > 0 && matches!(hold.over, Some((_, Over::GivenUp)));
    if asked
        && hold.release_told.is_none()
        && !is_gone(story, hold.client)
        && story.facts.healed_ns().is_some()
    {
        let message = format!(
            "the release of token {} of {} for {} was never answered",
            hold.token, hold.client, hold.name
        );
        violations.push(violation(32, message));
    }
}

/// Whether no further record can be expected of the client.
fn is_gone(story: &Story, client: crate::history::ClientId) -> bool {
    story.clients.get(&client).is_some_and(|client| {
        client.killed_ns.is_some() || client.closed_ns.is_some() || client.ended_ns.is_some()
    })
}
