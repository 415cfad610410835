//! What may happen, one step at a time.

use stateright::{Model, Property};

use super::client::KeepAlive;
use super::row::{Mode, Operation, Row};
use super::server::Server;
use super::state::{PLACES, State};
use super::time::{Durations, Longer};
use super::{EXCLUSIVE, IN_ORDER, Rule};

/// How large the model is.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// How long things last.
    pub durations: Durations,
    /// The W of server 1, if that has another one in its settings than server 0. Clients have none.
    pub longer: Option<Longer>,
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

/// A process that asks Cassandra.
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
        let cassandra = Row { mode: Mode::Cassandra, epoch: 2, ..Row::default() };
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
            Action::Bump { server } => {
                let longer = self.leaves_a_longer_w(&state, server);
                state.ask(server, |row| Row { longer, ..row.bumped() });
            }
            Action::Raise { server } | Action::Return { server } => {
                self.ask_for(&mut state, server, Mode::Native);
            }
            Action::Drain { server } => self.ask_for(&mut state, server, Mode::Draining),
            Action::TakeOver { client } => state.fallbacks[client].take_over(),
            Action::CarryOut(who) => self.carry_out(&mut state, who),
            Action::ReadStale(who) => state.read_stale(who),
            Action::Answer(who) => self.answer(&mut state, who),
            Action::GiveUp(who) => self.give_up(&mut state, who),
            Action::LeaveBehind(who) => {
                state.leave_behind(who);
                self.give_up(&mut state, who);
            }
            Action::CarryOutLate { which } => self.carry_out_late(&mut state, which),
            Action::LoseLate { which } => drop(state.take_late(which)),
            Action::Elect { server } => state.elect(server),
            Action::Stop { server } => state.servers[server] = Server::default(),
            Action::ProposeRaise { server } => {
                state.core.raise = state.servers[server].due.map(|due| due.epoch);
            }
            Action::CommitRaise => state.commit_raise(),
            Action::Grant { native } => state.grant(native),
            Action::Receive { native } => state.natives[native].receive(),
            Action::Release { native } => state.release(native),
            Action::KeepAlive { native } => {
                state.natives[native].keep_alive = KeepAlive::Sent { age: 0 };
            }
            Action::Acknowledge { native, server } => {
                let from_receipt = self.lacks(Rule::CoverFromSendTime);
                state.answer_keep_alive(native, server, from_receipt);
            }
            Action::Cover { native } => state.natives[native].cover(),
            Action::Acquire { client } => state.acquire(client, self.lacks(Rule::ReadOfHeld)),
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

impl World {
    /// The W of a server's settings, if that is the longer one.
    pub(crate) fn longer_of(&self, server: usize) -> Option<Longer> {
        self.bounds.longer.filter(|_| server == 1)
    }

    /// The longest that anything lasts.
    pub(crate) fn longest(&self) -> u8 {
        let longest = self.bounds.durations.longest();
        self.bounds.longer.map_or(longest, |longer| longest.max(longer.take_over))
    }

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
}
