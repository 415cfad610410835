//! I19, I4: what was acknowledged, and not ended by its own client, is in every later state of its
//! session.

use std::collections::BTreeMap;

use super::story::{Request, State, Story};
use super::{Violation, at, violation};
use crate::history::{ClientId, KeptState};

pub(super) fn check(story: &Story, violations: &mut Vec<Violation>) {
    let mut by_client: BTreeMap<ClientId, Vec<&Request>> = BTreeMap::new();
    for request in &story.requests {
        by_client.entry(request.client).or_default().push(request);
    }
    for state in &story.states {
        for request in by_client.get(&state.client).into_iter().flatten() {
            if let Some(message) = missing(story, state, request) {
                violations.push(violation(19, message));
            }
        }
    }
}

/// What is wrong with how `state` shows `request`, if anything.
fn missing(story: &Story, state: &State, request: &Request) -> Option<String> {
    let before = |at_ns: Option<u64>| at_ns.is_some_and(|at_ns| at_ns < state.at_ns);
    if ended_by_its_client(story, state, request) {
        return None;
    }
    let shown = state.kept.get(&request.number).map(|kept| kept.state);
    let granted = request.granted.filter(|grant| before(Some(grant.at_ns)));
    let right = match granted {
        Some(grant) => shown == Some(KeptState::Granted(grant.token)),
        None if before(request.queued.map(|queued| queued.at_ns)) => {
            matches!(shown, Some(KeptState::Queued | KeptState::Granted(_)))
        }
        None => true,
    };
    (!right).then(|| {
        format!(
            "{}: request {} of {} was acknowledged ({}), and the state at {} shows {shown:?} (next request {})",
            request.name,
            request.number,
            request.client,
            granted.map_or("waiting".into(), |grant| format!("token {}", grant.token)),
            at(state.at_ns),
            state.next_request,
        )
    })
}

/// Whether the client itself had begun to end the request, or its call was answered otherwise.
fn ended_by_its_client(story: &Story, state: &State, request: &Request) -> bool {
    let before = |at_ns: Option<u64>| at_ns.is_some_and(|at_ns| at_ns < state.at_ns);
    let given_up = story
        .hold_of(request)
        .and_then(|hold| hold.over)
        .is_some_and(|(at_ns, _)| at_ns < state.at_ns);
    let limit = request.granted.is_none() && before(request.limit_ns);
    let closed = story.clients.get(&state.client).and_then(|client| client.closed_ns);
    before(request.cancel_ns) || given_up || limit || before(closed)
}
