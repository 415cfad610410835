//! Whether the scope is served again, once nothing goes wrong any more: by the servers when one
//! leads undisturbed, and by Cassandra when none does.

use stateright::Model;

use super::super::client::KeepAlive;
use super::super::row::{Mode, Operation};
use super::super::state::PLACES;
use super::super::{Action, Bounds, Rule, State, Who, World};

/// More steps than either way takes.
const PATIENCE: usize = 80;

/// Whether both ways lead to a safe hold.
pub(super) fn is_served(world: &World, state: &State) -> bool {
    if !world.is_exclusive(state) || !world.is_in_order(state) {
        return true; // It is found to be bad by itself.
    }
    let Bounds { epochs, .. } = world.bounds;
    let bounds = Bounds { epochs: epochs + 6, beats: 200, grants: 200, ..world.bounds };
    let world = World { bounds, ..*world };
    leads_to(&world, *state, next_of_servers, |state| is_safe_natively(&world, state))
        && leads_to(&world, *state, |state| next_of_client(&world, state), is_safe_in_cassandra)
}

/// Whether the steps that `next` chooses are possible and come to where it is `served`.
fn leads_to(
    world: &World,
    mut state: State,
    next: impl Fn(&State) -> Option<Action>,
    served: impl Fn(&State) -> bool,
) -> bool {
    let mut possible = Vec::new();
    for _ in 0..PATIENCE {
        if served(&state) {
            return true;
        }
        possible.clear();
        world.actions(&state, &mut possible);
        let Some(action) = next(&state).filter(|action| possible.contains(action)) else {
            return false;
        };
        state = world.next_state(&state, action).unwrap_or(state);
    }
    false
}

fn is_safe_natively(world: &World, state: &State) -> bool {
    let guard = state.natives[0].guard.filter(|token| token.epoch == state.core.epoch);
    guard.is_some_and(|token| {
        state.safe(world.lacks(Rule::CoverOfOwnEpoch)).any(|safe| safe == token)
    })
}

fn is_safe_in_cassandra(state: &State) -> bool {
    let client = &state.fallbacks[0];
    client.hold.is_some() && client.left > 0
}

/// What was given up comes in.
fn late(state: &State) -> Option<Action> {
    let which = (0..PLACES).find(|which| state.late[*which].is_some());
    which.map(|which| Action::CarryOutLate { which })
}

fn deposed(state: &State) -> Option<usize> {
    (0..PLACES).find(|at| state.servers[*at].leads && *at != state.leader)
}

/// Reads, if it has to, and bumps, if it may.
fn next_of_deposed(world: &World, state: &State) -> Option<Action> {
    let at = deposed(state)?;
    let (server, who) = (&state.servers[at], Who::Server(at));
    let mut possible = Vec::new();
    world.actions(state, &mut possible);
    goes_on(who, server.operation)
        .or_else(|| (server.view != Some(state.row)).then_some(Action::Read(who)))
        .or(Some(Action::Bump { server: at }))
        .filter(|action| possible.contains(action))
}

fn goes_on(who: Who, operation: Operation) -> Option<Action> {
    match operation {
        Operation::None => None,
        one if one.is_carried_out() => Some(Action::Answer(who)),
        _ => Some(Action::CarryOut(who)),
    }
}

/// The next step of a leader, and of native client 0.
fn next_of_servers(state: &State) -> Option<Action> {
    let at = state.leader;
    let server = &state.servers[at];
    if !server.leads {
        return Some(Action::Elect { server: at });
    }
    let due = server.due.filter(|due| due.left == 0 && state.core.raise != Some(due.epoch));
    late(state)
        .or_else(|| deposed(state).map(|server| Action::Stop { server }))
        .or_else(|| goes_on(Who::Server(at), server.operation))
        .or_else(|| due.map(|_| Action::ProposeRaise { server: at }))
        .or_else(|| state.core.raise.map(|_| Action::CommitRaise))
        .or_else(|| next_of_leader(state, at))
        .or_else(|| Some(next_of_native(state, at)))
}

/// None once it has authority of the core's epoch.
fn next_of_leader(state: &State, at: usize) -> Option<Action> {
    let server = &state.servers[at];
    let Some(row) = server.view else { return Some(Action::Read(Who::Server(at))) };
    match row.mode {
        Mode::Cassandra => Some(Action::Drain { server: at }),
        Mode::Draining => Some(Action::Return { server: at }),
        Mode::Native if row.epoch < state.core.epoch => Some(Action::Raise { server: at }),
        Mode::Native if server.due.is_some() => Some(Action::Tick),
        Mode::Native if server.authority.epoch == state.core.epoch => None,
        Mode::Native => Some(Action::Bump { server: at }),
    }
}

fn next_of_native(state: &State, server: usize) -> Action {
    let native = &state.natives[0];
    let current = native.guard.is_some_and(|token| token.epoch == state.core.epoch);
    if let Some(native) = state.core.holder.filter(|holder| *holder != 0 || !current) {
        let granted = native == 0 && state.natives[0].granted.is_some();
        return if granted { Action::Receive { native } } else { Action::Release { native } };
    }
    match native.keep_alive {
        _ if !current => Action::Grant { native: 0 },
        KeepAlive::Sent { age: 0 } => Action::Acknowledge { native: 0, server },
        KeepAlive::Answered(cover) if cover.left > 0 && cover.epoch == state.core.epoch => {
            Action::Cover { native: 0 }
        }
        _ => Action::KeepAlive { native: 0 },
    }
}

/// The next step of fallback client 0, when no server has a quorum: the leader dies, and the one that was
/// deposed is not told, and bumps as long as he may, always just before the client takes over.
fn next_of_client(world: &World, state: &State) -> Option<Action> {
    let client = &state.fallbacks[0];
    let dies = state.servers[state.leader].leads.then_some(Action::Stop { server: state.leader });
    let who = Who::Client(0);
    let taken_over = client.wait == 0 && client.view == Some(state.row);
    let bumps = || next_of_deposed(world, state).filter(|_| taken_over);
    let first = late(state).or(dies).or_else(|| goes_on(who, client.operation)).or_else(bumps);
    first.or_else(|| {
        let Some(row) = client.view.filter(|row| *row == state.row) else {
            return Some(Action::Read(who));
        };
        if row.mode != Mode::Cassandra {
            let waits = client.wait > 0;
            return Some(if waits { Action::Tick } else { Action::TakeOver { client: 0 } });
        }
        match state.lease.holder {
            Some(0) => Some(Action::Read(who)),
            Some(other) => Some(Action::EndHold { client: other }),
            None if client.left == 0 => Some(Action::Read(who)),
            None => Some(Action::Acquire { client: 0 }),
        }
    })
}
