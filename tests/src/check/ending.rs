//! I32, I31: every call ends, within its own limit, and in a run that was healed nobody is
//! forgotten.

use super::story::{Hold, Over, Request, Story};
use super::{Options, Violation, at, violation};

pub(super) fn check(story: &Story, options: Options, violations: &mut Vec<Violation>) {
    let grace_ns = u64::try_from(options.grace.as_nanos()).unwrap_or(u64::MAX);
    for request in &story.requests {
        late(request, grace_ns, violations);
        forgotten(story, request, violations);
    }
    for hold in &story.holds {
        release_without_answer(story, hold, violations);
    }
}

/// I32: a call with a limit ends by then, whatever is broken.
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

/// I31: after healing, a request without an answer belongs to a client that is no more.
fn forgotten(story: &Story, request: &Request, violations: &mut Vec<Violation>) {
    if request.ended_ns.is_some() || is_gone(story, request.client) || story.healed_ns.is_none() {
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
        && story.healed_ns.is_some()
    {
        let message = format!(
            "the release of token {} of {} for {} was never answered",
            hold.token, hold.client, hold.name
        );
        violations.push(violation(32, message));
    }
}

/// Whether nothing more can be expected of the client.
fn is_gone(story: &Story, client: crate::history::ClientId) -> bool {
    story.clients.get(&client).is_some_and(|client| {
        client.killed_ns.is_some() || client.closed_ns.is_some() || client.ended_ns.is_some()
    })
}
