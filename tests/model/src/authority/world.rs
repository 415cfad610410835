//! What may happen, one step at a time.

use stateright::{Model, Property};

use super::client::{Fallback, KeepAlive, Native};
use super::row::{Cas, Mode, Operation, Row};
use super::server::{Server, Term, Unsettled};
use super::state::{PLACES, State};
use super::time::Durations;
use super::{EXCLUSIVE, IN_ORDER, Rule};

/// How large the model is.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// How long things last.
    pub durations: Durations,
    /// Servers: 1 or 2. Only of two can one be deposed without knowing it.
    pub servers: usize,
    /// Clients of the native store: 1 or 2.
    pub natives: usize,
    /// Clients that fall back on Cassandra: 1 or 2.
    pub fallbacks: usize,
    /// How many operations that were given up may be under way at a time, up to 2.
    pub late: usize,
    /// The last epoch of the row.
    pub epochs: u8,
    /// The last beat of an epoch.
    pub beats: u8,
    /// How many grants of an epoch there are, and how many in Cassandra.
    pub grants: u8,
    /// What was before.
    pub start: Start,
}

/// What was before the first step.
#[derive(Clone, Copy, Debug)]
pub enum Start {
    /// The scope is native in its first epoch, as the core is.
    Native,
    /// So is the row; the servers were restored, with the core at this epoch.
    RestoredBesideNative(u8),
    /// Cassandra serves in the second epoch; the servers were restored, with the core at this one.
    RestoredBesideCassandra(u8),
}

/// The model.
#[derive(Clone, Copy, Debug)]
pub struct World {
    /// How large it is.
    pub bounds: Bounds,
    /// The rule that does not hold in it.
    pub without: Option<Rule>,
}

/// Who asks Cassandra.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Who {
    Server(usize),
    Client(usize),
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it; see `World::next_state`")]
pub enum Action {
    Tick,
    TickSuspended { server: usize },
    Read(Who),
    Bump { server: usize },
    Raise { server: usize },
    Drain { server: usize },
    Return { server: usize },
    TakeOver { client: usize },
    CarryOut(Who),
    ReadStale(Who),
    Answer(Who),
    GiveUp(Who),
    LeaveBehind(Who),
    CarryOutLate { which: usize },
    LoseLate { which: usize },
    Elect { server: usize },
    Stop { server: usize },
    ProposeRaise { server: usize },
    CommitRaise,
    Grant { native: usize },
    Receive { native: usize },
    Release { native: usize },
    KeepAlive { native: usize },
    Acknowledge { native: usize, server: usize },
    Cover { native: usize },
    Acquire { client: usize },
    EndHold { client: usize },
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let native = Row { epoch: 1, ..Row::default() };
        let cassandra = Row { mode: Mode::Cassandra, epoch: 2, beat: 0 };
        vec![match self.bounds.start {
            Start::Native => State::native(),
            Start::RestoredBesideNative(epoch) => State::restored(native, epoch),
            Start::RestoredBesideCassandra(epoch) => State::restored(cassandra, epoch),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if !self.is_exclusive(state) || !self.is_in_order(state) {
            return;
        }
        actions.push(Action::Tick);
        for server in 0..self.bounds.servers {
            self.actions_of_server(state, server, actions);
        }
        for native in 0..self.bounds.natives {
            self.actions_of_native(state, native, actions);
        }
        for client in 0..self.bounds.fallbacks {
            self.actions_of_fallback(state, client, actions);
        }
        for which in (0..PLACES).filter(|which| state.late[*which].is_some()) {
            actions.extend([Action::CarryOutLate { which }, Action::LoseLate { which }]);
        }
        if state.core.raise.is_some() {
            actions.push(Action::CommitRaise);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Tick => self.tick(&mut state, None),
            Action::TickSuspended { server } => self.tick(&mut state, Some(server)),
            Action::Read(who) => *state.operation(who) = Operation::read(),
            Action::Bump { server } => state.ask(server, Row::bumped),
            Action::Raise { server } | Action::Return { server } => {
                self.ask_for(&mut state, server, Mode::Native);
            }
            Action::Drain { server } => self.ask_for(&mut state, server, Mode::Draining),
            Action::TakeOver { client } => state.fallbacks[client].take_over(),
            Action::CarryOut(who) => self.carry_out(&mut state, who),
            Action::ReadStale(who) => {
                let seen = Some(state.stale);
                if let Operation::Read { seen: answer, .. } = state.operation(who) {
                    *answer = seen;
                }
            }
            Action::Answer(who) => self.answer(&mut state, who),
            Action::GiveUp(who) => self.give_up(&mut state, who),
            Action::LeaveBehind(who) => {
                if let Operation::Cas { cas, .. } = *state.operation(who) {
                    state.put_late(cas);
                }
                self.give_up(&mut state, who);
            }
            Action::CarryOutLate { which } => {
                if let Some(cas) = state.take_late(which) {
                    self.compare_and_set(&mut state, cas);
                }
            }
            Action::LoseLate { which } => drop(state.take_late(which)),
            Action::Elect { server } => state.elect(server),
            Action::Stop { server } => state.servers[server] = Server::default(),
            Action::ProposeRaise { server } => {
                state.core.raise = state.servers[server].due.map(|due| due.epoch);
            }
            Action::CommitRaise => state.commit_raise(),
            Action::Grant { native } => state.grant(native),
            Action::Receive { native } => {
                let native = &mut state.natives[native];
                native.guard = native.granted.take();
            }
            Action::Release { native } => state.release(native),
            Action::KeepAlive { native } => {
                state.natives[native].keep_alive = KeepAlive::Sent { age: 0 };
            }
            Action::Acknowledge { native, server } => {
                let from_receipt = self.lacks(Rule::CoverFromSendTime);
                state.answer_keep_alive(native, server, from_receipt);
            }
            Action::Cover { native } => {
                let native = &mut state.natives[native];
                if let KeepAlive::Answered(cover) = std::mem::take(&mut native.keep_alive) {
                    native.cover(cover);
                }
            }
            Action::Acquire { client } => state.acquire(client),
            Action::EndHold { client } => state.end_hold(client),
        }
        let highest = state.safe(self.lacks(Rule::CoverOfOwnEpoch)).max();
        state.highest = state.highest.max(highest.unwrap_or_default());
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSIVE, |world: &World, state| world.is_exclusive(state)),
            Property::always(IN_ORDER, |world: &World, state| world.is_in_order(state)),
        ]
    }
}

/// What may be done next.
impl World {
    pub(crate) fn lacks(&self, rule: Rule) -> bool {
        self.without == Some(rule)
    }

    /// Whether at most one hold is safe.
    pub(crate) fn is_exclusive(&self, state: &State) -> bool {
        state.safe(self.lacks(Rule::CoverOfOwnEpoch)).nth(1).is_none()
    }

    /// Whether no safe hold is older than one that was safe.
    pub(crate) fn is_in_order(&self, state: &State) -> bool {
        state.safe(self.lacks(Rule::CoverOfOwnEpoch)).all(|token| token >= state.highest)
    }

    fn actions_of_server(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
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
    fn next_epoch(&self, state: &State, row: Row) -> u8 {
        if !self.lacks(Rule::AboveTheCore) {
            row.epoch.max(state.core.epoch) + 1
        } else if row.mode == Mode::Native {
            state.core.epoch
        } else {
            row.epoch + 1
        }
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

    fn actions_of_native(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
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

    fn actions_of_fallback(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
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
    fn may_enter(&self, client: &Fallback) -> bool {
        let drains = self.lacks(Rule::NoEntryWhileDraining) && client.sees(Mode::Draining);
        client.sees(Mode::Cassandra) || drains
    }

    fn may_take_over(&self, client: &Fallback) -> bool {
        let from_draining = client.sees(Mode::Draining) && !self.lacks(Rule::TakeOverFromDraining);
        let room = client.view.is_some_and(|row| row.epoch < self.bounds.epochs);
        room && client.wait == 0 && (client.sees(Mode::Native) || from_draining)
    }
}

/// What comes of it.
impl World {
    fn tick(&self, state: &mut State, suspended: Option<usize>) {
        let longest = self.bounds.durations.longest();
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
    fn ask_for(&self, state: &mut State, server: usize, mode: Mode) {
        let core = *state;
        state.ask(server, |row| Row { mode, epoch: self.next_epoch(&core, row), beat: 0 });
    }

    fn carry_out(&self, state: &mut State, who: Who) {
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
        let Row { mode, epoch, beat } = state.row;
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

    /// The answer comes in. Who hears that nothing was applied has to read.
    fn answer(&self, state: &mut State, who: Who) {
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
        let Durations { authority, .. } = self.bounds.durations;
        let wait = if self.lacks(Rule::AnyLeaderWaits) { 0 } else { self.return_wait(age) };
        let server = &mut state.servers[at];
        server.learn(row, state.core.epoch, wait);
        if let Some(bump) = server.unsettled.take().filter(|bump| bump.to == row) {
            let from_read = self.lacks(Rule::ReadGivesNoAuthority);
            let age = if from_read { age } else { bump.age };
            server.authority = Term::right(row.epoch, authority.saturating_sub(age));
        }
    }

    fn leader_wrote(&self, state: &mut State, at: usize, cas: Cas, age: u8) {
        let Durations { authority, .. } = self.bounds.durations;
        let server = &mut state.servers[at];
        server.learn(cas.to, state.core.epoch, self.return_wait(age));
        if cas.is_bump() {
            let age = if self.lacks(Rule::AuthorityFromBumpStart) { 0 } else { age };
            let left = authority.saturating_sub(age);
            server.authority = Term::right(cas.to.epoch, left);
        }
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
    fn give_up(&self, state: &mut State, who: Who) {
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

impl State {
    fn operation(&mut self, who: Who) -> &mut Operation {
        match who {
            Who::Server(at) => &mut self.servers[at].operation,
            Who::Client(at) => &mut self.fallbacks[at].operation,
        }
    }

    /// The leader asks for a change of the row that it knows.
    fn ask(&mut self, server: usize, change: impl FnOnce(Row) -> Row) {
        let server = &mut self.servers[server];
        if let Some(row) = server.view {
            server.operation = Operation::cas(row, change(row));
            server.may_write_once = false;
        }
    }
}

impl Fallback {
    fn take_over(&mut self) {
        if let Some(row) = self.view {
            let to = Row { mode: Mode::Cassandra, epoch: row.epoch + 1, beat: 0 };
            self.operation = Operation::cas(row, to);
        }
    }
}
