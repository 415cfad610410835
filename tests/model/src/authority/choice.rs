//! What may be done next. Everything may also be left undone: so any process may pause for any time
//! between any two of its steps.

use super::client::{Fallback, KeepAlive, Native};
use super::row::{Mode, Operation, Row};
use super::state::State;
use super::{Action, Rule, Who, World};

impl World {
    pub(crate) fn actions_of_server(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let server = &state.servers[at];
        if self.lacks(Rule::SuspendedTimeCounts) {
            actions.push(Action::TickSuspended { server: at });
        }
        if !server.leads || state.leader != at {
            actions.push(Action::Elect { server: at });
        }
        if !server.leads {
            return;
        }
        actions.push(Action::Stop { server: at });
        let due = server.due.filter(|due| due.left == 0);
        if due.is_some_and(|due| state.leader == at && state.core.raise != Some(due.epoch)) {
            actions.push(Action::ProposeRaise { server: at });
        }
        self.actions_with_operation(state, Who::Server(at), server.operation, actions);
        if server.operation == Operation::None {
            actions.push(Action::Read(Who::Server(at)));
            self.writes_of_leader(state, at, actions);
        }
    }

    fn writes_of_leader(&self, state: &State, server: usize, actions: &mut Vec<Action>) {
        let Some(row) = state.servers[server].view else { return };
        let confirmed = state.leader == server || state.servers[server].may_write_once;
        if !confirmed && !self.lacks(Rule::RoundBeforeWrite) {
            return;
        }
        let room = self.next_epoch(state, row) <= self.bounds.epochs;
        match row.mode {
            Mode::Native if row.epoch < state.core.epoch => {
                if room && !self.lacks(Rule::RowIsRaised) {
                    actions.push(Action::Raise { server });
                }
            }
            Mode::Native if row.beat < self.bounds.beats => actions.push(Action::Bump { server }),
            Mode::Cassandra if room => actions.push(Action::Drain { server }),
            Mode::Draining if room => actions.push(Action::Return { server }),
            Mode::Native | Mode::Cassandra | Mode::Draining => {}
        }
    }

    /// The epoch a leader writes next.
    pub(crate) fn next_epoch(&self, state: &State, row: Row) -> u8 {
        if !self.lacks(Rule::AboveTheCore) {
            row.epoch.max(state.core.epoch) + 1
        } else if row.mode == Mode::Native {
            state.core.epoch
        } else {
            row.epoch + 1
        }
    }

    /// Whether W is the longer one in the row that a bump of this leader is to leave.
    pub(crate) fn leaves_a_longer_w(&self, state: &State, at: usize) -> bool {
        let server = &state.servers[at];
        let was = server.view.is_some_and(|row| row.longer);
        if self.longer_of(at).is_some() {
            return was || !self.lacks(Rule::RowWCoversAuthority);
        }
        let may_shorten = server.alone == Some(0) || self.lacks(Rule::ShorterWWaits);
        was && !may_shorten
    }

    fn actions_with_operation(
        &self,
        state: &State,
        who: Who,
        operation: Operation,
        actions: &mut Vec<Action>,
    ) {
        if operation == Operation::None {
            return;
        }
        actions.push(Action::GiveUp(who));
        if operation.is_carried_out() {
            actions.push(Action::Answer(who));
            return;
        }
        actions.push(Action::CarryOut(who));
        let is_read = matches!(operation, Operation::Read { .. });
        if is_read && self.lacks(Rule::SerialRead) {
            actions.push(Action::ReadStale(who));
        }
        if !is_read && state.late.iter().flatten().count() < self.bounds.late {
            actions.push(Action::LeaveBehind(who));
        }
    }

    pub(crate) fn actions_of_native(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let native = &state.natives[at];
        let Native { granted, guard, .. } = native;
        if state.core.holder.is_none() && state.servers[state.leader].leads {
            let next = state.core.token.drawn_in(state.core.epoch);
            if next.number <= self.bounds.grants {
                actions.push(Action::Grant { native: at });
            }
        }
        if granted.is_some() {
            actions.push(Action::Receive { native: at });
        }
        if granted.is_some() || guard.is_some() || state.core.holder == Some(at) {
            actions.push(Action::Release { native: at });
        }
        if native.keep_alive != (KeepAlive::Sent { age: 0 }) {
            actions.push(Action::KeepAlive { native: at });
        }
        match native.keep_alive {
            KeepAlive::None => {}
            KeepAlive::Sent { .. } => {
                for server in 0..self.bounds.servers {
                    if state.servers[server].leads && state.servers[server].has_authority() {
                        actions.push(Action::Acknowledge { native: at, server });
                    }
                }
            }
            KeepAlive::Answered(_) => actions.push(Action::Cover { native: at }),
        }
    }

    pub(crate) fn actions_of_fallback(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let client = &state.fallbacks[at];
        self.actions_with_operation(state, Who::Client(at), client.operation, actions);
        if client.hold.is_some() {
            actions.push(Action::EndHold { client: at });
        } else if state.lease.holder.is_none() && self.may_enter(client) {
            let epoch = client.view.unwrap_or_default().epoch;
            if state.lease.fence.drawn_in(epoch).number <= self.bounds.grants {
                actions.push(Action::Acquire { client: at });
            }
        }
        if client.operation == Operation::None {
            actions.push(Action::Read(Who::Client(at)));
            if self.may_take_over(client) {
                actions.push(Action::TakeOver { client: at });
            }
        }
    }

    /// Whether the row was read as one under which new holds begin. How long ago, the hold minds.
    pub(crate) fn may_enter(&self, client: &Fallback) -> bool {
        let drains = self.lacks(Rule::NoEntryWhileDraining) && client.sees(Mode::Draining);
        client.sees(Mode::Cassandra) || drains
    }

    fn may_take_over(&self, client: &Fallback) -> bool {
        let from_draining = client.sees(Mode::Draining) && !self.lacks(Rule::TakeOverFromDraining);
        let room = client.view.is_some_and(|row| row.epoch < self.bounds.epochs);
        room && client.wait == 0 && (client.sees(Mode::Native) || from_draining)
    }
}
