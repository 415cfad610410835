//! A lock table with as much in it as wanted, and short ways to say commands. What a command of the
//! core looks like is said here only.
#![allow(dead_code, reason = "each bench uses its part")]
#![expect(clippy::panic, reason = "what does not come about here makes the bench worthless")]

use holdfast_core::{
    Acquired, Answer, Applied, Batch, Command, Event, FencingToken, Item, Label, Limits, LockName,
    LockTable, LogIndex, Need, RequestId, SessionId, Tenure, ValueChange,
};

/// The tenure of everything here.
pub(crate) const TENURE: Tenure = Tenure::new(1);
/// Requests of one session of a crowd.
const REQUESTS: u64 = 1_000;

/// A table, and its log so far.
pub(crate) struct Played {
    pub(crate) table: LockTable,
    index: u64,
}

impl Played {
    /// An empty table without limits that would be in the way.
    pub(crate) fn new() -> Self {
        let mut played = Self { table: LockTable::new(), index: 0 };
        let limits = Limits {
            max_sessions: 10_000_000,
            max_requests_per_session: 1_000_000,
            max_waiters_per_lock: 10_000_000,
            ..Limits::default()
        };
        played.apply(Command::Configure { limits });
        played
    }

    /// A table in which `number` locks are held, by sessions with a thousand each.
    pub(crate) fn with_locks(number: u64) -> Self {
        let mut played = Self::new();
        played.crowd(number, |lock| format!("held/{lock:07}"));
        played
    }

    /// A table in which one lock is held and `number` requests wait for it.
    pub(crate) fn with_waiters(number: u64) -> Self {
        let mut played = Self::new();
        played.crowd(number + 1, |_| "wanted".to_owned());
        played
    }

    /// Acquires so many locks, by sessions with a thousand requests each.
    fn crowd(&mut self, number: u64, name: impl Fn(u64) -> String) {
        let mut session = None;
        for at in 0..number {
            let own = match session {
                Some(own) if at % REQUESTS != 0 => own,
                _ => *session.insert(self.open()),
            };
            self.apply(acquire(own, at % REQUESTS, 0, &name(at), true));
        }
    }

    /// Opens a session.
    pub(crate) fn open(&mut self) -> SessionId {
        opened(&self.apply(open()))
    }

    /// Acquires a lock that is free.
    pub(crate) fn hold(&mut self, session: SessionId, request: u64, name: &str) -> FencingToken {
        match self.apply(acquire(session, request, request, name, true)).outcome {
            Ok(Answer::Acquired { state: Acquired::Granted { token, .. }, .. }) => token,
            other => panic!("{name} was not granted: {other:?}"),
        }
    }

    /// Applies one command as an entry of its own.
    pub(crate) fn apply(&mut self, command: Command) -> Applied {
        self.apply_batch(&batch(command))
    }

    /// Applies an entry of one command.
    pub(crate) fn apply_batch(&mut self, batch: &Batch) -> Applied {
        self.index += 1;
        let mut applied = Vec::with_capacity(1);
        let done = self.table.apply_batch(LogIndex::new(self.index), TENURE, batch, &mut applied);
        match (done, applied.pop()) {
            (Ok(()), Some(applied)) => applied,
            (done, _) => panic!("the entry was not applied: {done:?}"),
        }
    }
}

/// An entry of one command.
pub(crate) fn batch(command: Command) -> Batch {
    Batch { stamp_ms: 1_000, commands: vec![command], ..Batch::default() }
}

pub(crate) fn open() -> Command {
    let label = Label::parse("bench").unwrap_or_else(|error| panic!("{error}"));
    Command::OpenSession { ttl_ms: 10_000, label, secret_hash: [7; 32] }
}

/// `done_below`: what the session has confirmed; 0 is nothing.
pub(crate) fn acquire(
    session: SessionId,
    request: u64,
    done_below: u64,
    name: &str,
    wait: bool,
) -> Command {
    Command::Acquire {
        session,
        done_below: RequestId::new(done_below),
        request: RequestId::new(request + 1),
        items: vec![Item::exclusive(lock(name))],
        need: Need::All,
        wait,
    }
}

pub(crate) fn cancel(session: SessionId, request: u64) -> Command {
    let request = RequestId::new(request + 1);
    Command::Cancel { session, done_below: request, request }
}

pub(crate) fn release(session: SessionId, done_below: u64, token: FencingToken) -> Command {
    let done_below = RequestId::new(done_below);
    Command::Release { session, done_below, token, locks: Vec::new() }
}

pub(crate) fn set_value(
    session: SessionId,
    request: u64,
    token: FencingToken,
    name: &str,
) -> Command {
    Command::SetValue {
        session,
        done_below: RequestId::new(request),
        request: RequestId::new(request + 1),
        token,
        lock: lock(name),
        change: ValueChange::Set(vec![7; 256]),
    }
}

fn lock(name: &str) -> LockName {
    LockName::parse(name).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Which session was opened.
pub(crate) fn opened(applied: &Applied) -> SessionId {
    match applied.outcome {
        Ok(Answer::SessionOpened { session }) => session,
        _ => panic!("no session was opened: {applied:?}"),
    }
}

/// The session and request that were granted something in what happened.
pub(crate) fn granted(applied: &Applied) -> (SessionId, RequestId, FencingToken) {
    let grants = applied.events.iter().find_map(|event| match event {
        Event::Granted { session, request, token, .. } => Some((*session, *request, *token)),
        _ => None,
    });
    grants.unwrap_or_else(|| panic!("nobody was granted anything: {applied:?}"))
}
