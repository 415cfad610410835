//! What comes of what was done.

use super::row::{Cas, Mode, Operation, Row};
use super::server::{Term, Unsettled};
use super::state::State;
use super::time::Durations;
use super::{Rule, Who, World};

impl World {
    pub(crate) fn tick(&self, state: &mut State, suspended: Option<usize>) {
        let longest = self.longest();
        for (at, server) in state.servers.iter_mut().enumerate() {
            server.grow_older(longest, suspended == Some(at));
        }
        let from_receipt = self.lacks(Rule::CoverFromSendTime);
        for native in &mut state.natives {
            native.grow_older(longest, from_receipt);
        }
        for client in &mut state.fallbacks {
            client.grow_older(longest);
        }
    }

    /// The leader asks for the row to be in `mode`, in the next epoch.
    pub(crate) fn ask_for(&self, state: &mut State, server: usize, mode: Mode) {
        let core = *state;
        state.ask(server, |row| Row { mode, epoch: self.next_epoch(&core, row), beat: 0, ..row });
    }

    pub(crate) fn carry_out(&self, state: &mut State, who: Who) {
        let row = state.row;
        match *state.operation(who) {
            Operation::None => {}
            Operation::Read { age, .. } => {
                *state.operation(who) = Operation::Read { age, seen: Some(row) };
            }
            Operation::Cas { age, cas, .. } => {
                let applied = Some(self.compare_and_set(state, cas));
                *state.operation(who) = Operation::Cas { age, cas, applied };
            }
        }
    }

    fn compare_and_set(&self, state: &mut State, cas: Cas) -> bool {
        let Row { mode, epoch, beat, .. } = state.row;
        let any_epoch = self.lacks(Rule::EpochCompared);
        let any_beat = self.lacks(Rule::BeatCompared) && cas.is_take_over();
        let applies = mode == cas.from.mode
            && (epoch == cas.from.epoch || any_epoch)
            && (beat == cas.from.beat || any_beat);
        if applies {
            state.write(cas.to, self.lacks(Rule::SerialRead));
        }
        applies
    }

    pub(crate) fn carry_out_late(&self, state: &mut State, which: usize) {
        if let Some(cas) = state.take_late(which) {
            self.compare_and_set(state, cas);
        }
    }

    /// The answer comes in. An asker that learns that nothing was applied has to read.
    pub(crate) fn answer(&self, state: &mut State, who: Who) {
        let operation = std::mem::take(state.operation(who));
        match (who, operation) {
            (Who::Server(at), Operation::Read { age, seen: Some(row) }) => {
                self.leader_reads(state, at, row, age);
            }
            (Who::Server(at), Operation::Cas { age, cas, applied: Some(true) }) => {
                self.leader_wrote(state, at, cas, age);
            }
            (Who::Server(at), _) => state.servers[at].view = None,
            (Who::Client(at), Operation::Read { age, seen: Some(row) }) => {
                self.client_reads(state, at, row, age);
            }
            (Who::Client(at), _) => state.fallbacks[at].view = None,
        }
    }

    fn leader_reads(&self, state: &mut State, at: usize, row: Row, age: u8) {
        let authority = self.authority_of(at);
        let wait = if self.lacks(Rule::AnyLeaderWaits) { 0 } else { self.return_wait(age) };
        let server = &mut state.servers[at];
        server.learn(row, state.core.epoch, wait);
        if !self.lacks(Rule::ShorterWAlone) {
            server.alone = None;
        }
        if let Some(bump) = server.unsettled.take().filter(|bump| bump.to == row) {
            let from_read = self.lacks(Rule::ReadGivesNoAuthority);
            let age = if from_read { age } else { bump.age };
            server.authority = Term::right(row.epoch, authority.saturating_sub(age));
        }
    }

    fn leader_wrote(&self, state: &mut State, at: usize, cas: Cas, age: u8) {
        let authority = self.authority_of(at);
        let found_longer = cas.to.longer && self.longer_of(at).is_none();
        let alone = self.bounds.longer.filter(|_| found_longer).map(|longer| longer.take_over);
        let server = &mut state.servers[at];
        server.learn(cas.to, state.core.epoch, self.return_wait(age));
        if cas.is_bump() {
            let age = if self.lacks(Rule::AuthorityFromBumpStart) { 0 } else { age };
            let left = authority.saturating_sub(age);
            server.authority = Term::right(cas.to.epoch, left);
            server.alone = alone.map(|wait| server.alone.unwrap_or(wait));
        }
    }

    /// By its own settings.
    fn authority_of(&self, server: usize) -> u8 {
        let Durations { authority, .. } = self.bounds.durations;
        self.longer_of(server).map_or(authority, |longer| longer.authority)
    }

    /// How long a leader waits that learned of the row by what it asked `age` ticks ago.
    fn return_wait(&self, age: u8) -> u8 {
        let Durations { back, .. } = self.bounds.durations;
        match self.without {
            Some(Rule::ReturnWaits) => 0,
            Some(Rule::ReturnWaitsToTheEnd) => back.saturating_sub(1),
            Some(Rule::ReturnWaitFromEnd) => back.saturating_sub(age),
            _ => back,
        }
    }

    fn client_reads(&self, state: &mut State, at: usize, row: Row, age: u8) {
        let Durations { take_over, hold, .. } = self.bounds.durations;
        let take_over = match self.bounds.longer {
            Some(longer) if row.longer => longer.take_over,
            _ => take_over,
        };
        let extends = |epoch| {
            row.extends(epoch) || (self.lacks(Rule::ReadOfOwnEpoch) && row.mode != Mode::Native)
        };
        let held = state.fallbacks[at].hold;
        if held.is_some_and(|token| !extends(token.epoch)) {
            state.end_hold(at);
        }
        let hold_age = if self.lacks(Rule::HoldFromReadStart) { 0 } else { age };
        let wait_age = if self.lacks(Rule::WaitFromReadEnd) { age } else { 0 };
        let waits = match row.mode {
            Mode::Native => !self.lacks(Rule::TakeOverWaits),
            Mode::Cassandra => false,
            Mode::Draining => !self.lacks(Rule::DrainTakeOverWaits),
        };
        let client = &mut state.fallbacks[at];
        client.view = Some(row);
        client.wait = if waits { take_over.saturating_sub(wait_age) } else { 0 };
        let holds = client.hold.is_some() || self.may_enter(client);
        client.left = if holds { hold.saturating_sub(hold_age) } else { 0 };
    }

    /// No answer: whoever would gain from it acts as if nothing had been applied, and reads.
    pub(crate) fn give_up(&self, state: &mut State, who: Who) {
        let Operation::Cas { age, cas, .. } = std::mem::take(state.operation(who)) else { return };
        match who {
            Who::Server(at) => {
                let bump = cas.is_bump() && self.lacks(Rule::UnknownBumpFails);
                let back = cas.is_return() && self.lacks(Rule::UnknownReturnFails);
                if bump || back {
                    return self.leader_wrote(state, at, cas, age);
                }
                let server = &mut state.servers[at];
                server.view = None;
                if cas.is_bump() && self.lacks_settling() {
                    server.unsettled = Some(Unsettled { to: cas.to, age });
                }
            }
            Who::Client(at) if self.lacks(Rule::UnknownTakeOverFails) => {
                self.client_reads(state, at, cas.to, age);
            }
            Who::Client(at) => state.fallbacks[at].view = None,
        }
    }

    fn lacks_settling(&self) -> bool {
        self.lacks(Rule::ReadSettlesNoBump) || self.lacks(Rule::ReadGivesNoAuthority)
    }
}
