//! I4, I19: what was acknowledged, and not ended by its own client, is in every later state of its
//! session, under the acknowledged token (I4) and at all (a place: I4, a hold: I19). What was
//! released, with an acknowledgement, is in none.

use std::collections::BTreeMap;

use super::bounds::may_be_too_long;
use super::story::{Grant, Hold, ReleaseTold, Request, State, Story};
use super::{Violation, at, violation};
use crate::history::{ClientId, KeptState};

pub(super) fn check(story: &Story, violations: &mut Vec<Violation>) {
    let mut by_client: BTreeMap<ClientId, Vec<&Request>> = BTreeMap::new();
    for request in &story.requests {
        by_client.entry(request.client).or_default().push(request);
    }
    for state in &story.states {
        for request in by_client.get(&state.client).into_iter().flatten() {
            if let Some((invariant, how)) = wrong(story, state, request) {
                let message = format!(
                    "{}: request {} of {} {how}, and the state at {} shows {:?} (next request {})",
                    request.names(),
                    request.number,
                    request.client,
                    at(state.at_ns),
                    shown(state, request),
                    state.next_request,
                );
                violations.push(violation(invariant, message));
            }
        }
    }
}

fn shown<'a>(state: &'a State, request: &Request) -> Option<&'a KeptState> {
    state.kept.get(&request.number).map(|kept| &kept.state)
}

/// What is wrong with how `state` shows `request`, if anything.
fn wrong(story: &Story, state: &State, request: &Request) -> Option<(u8, String)> {
    let granted = request.granted.as_ref().filter(|grant| grant.at_ns < state.at_ns);
    if let Some(grant) = granted {
        return wrong_hold(story, state, request, grant);
    }
    let waits = request.queued.is_some_and(|queued| queued.at_ns < state.at_ns);
    let kept = matches!(shown(state, request), Some(KeptState::Queued | KeptState::Granted { .. }));
    (waits && !kept && !may_be_ended(story, state, request))
        .then(|| (4, "was acknowledged as waiting".into()))
}

fn wrong_hold(
    story: &Story,
    state: &State,
    request: &Request,
    grant: &Grant,
) -> Option<(u8, String)> {
    let (token, names) = match shown(state, request) {
        Some(KeptState::Granted { token, names }) => (Some(*token), names.as_slice()),
        _ => (None, &[][..]),
    };
    let ended = may_be_ended(story, state, request);
    let too_long = |hold: &Hold| may_be_too_long(story, hold, state.at_ns);
    for hold in story.holds_of(request.client, grant.token) {
        let there = token == Some(grant.token) && names.contains(&hold.name);
        let given_up = ended || too_long(hold) || before(state, hold.over.map(|(at_ns, _)| at_ns));
        if !there && !given_up {
            let invariant = if token.is_some_and(|shown| shown != grant.token) { 4 } else { 19 };
            let how = format!("was granted {} under token {}", hold.name, grant.token);
            return Some((invariant, how));
        }
        if there && given_back(state, hold) {
            return Some((19, format!("gave back {}, acknowledged", hold.name)));
        }
    }
    None
}

fn given_back(state: &State, hold: &Hold) -> bool {
    matches!(hold.release_told, Some((told, ReleaseTold::Released)) if told < state.at_ns)
}

fn before(state: &State, at_ns: Option<u64>) -> bool {
    at_ns.is_some_and(|at_ns| at_ns < state.at_ns)
}

/// Whether the client itself had begun to end the request, its call got another answer, or an operator
/// may have ended it.
fn may_be_ended(story: &Story, state: &State, request: &Request) -> bool {
    let limit = request.granted.is_none() && before(state, request.limit_ns);
    let closed = story.clients.get(&state.client).and_then(|client| client.closed_ns);
    let taken = story.facts.took_from(state.client, state.at_ns);
    before(state, request.cancel_ns) || limit || taken || before(state, closed)
}
