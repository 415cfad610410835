//! A lock table with as much in it as wanted, and short ways to say commands. What a command of the
//! core looks like is said here only.
#![allow(dead_code, reason = "each bench uses its part")]
#![expect(clippy::panic, reason = "what does not come about here makes the bench worthless")]

use holdfast_core::{
    Acquired, Answer, Applied, Ask, Batch, Command, Event, FencingToken, HEAD_START_MAX_MS, Item,
    Label, Limits, LockName, LockTable, LogIndex, Mode, Need, RequestId, SessionId, Tenure, Terms,
    ValueChange,
};

/// The tenure of everything here.
pub(crate) const TENURE: Tenure = Tenure::new(1);
/// The limit of the semaphore that everybody wants.
pub(crate) const PERMITS: u32 = 4;
/// Requests of one session of a crowd.
const REQUESTS: u64 = 1_000;

/// Head starts of any length up to the longest, in no order, the same in every run.
#[derive(Default)]
pub(crate) struct HeadStarts(u64);

impl HeadStarts {
    pub(crate) fn next(&mut self) -> u32 {
        // Knuth's multiplier: the upper bits of the product go through all values in no order.
        self.0 = self.0.wrapping_add(1);
        let mixed = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        u32::try_from(mixed % HEAD_START_MAX_MS).unwrap_or(0)
    }
}

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
        played.crowd(number, |own, request, lock| {
            acquire(own, request, 0, &format!("held/{lock:07}"), true)
        });
        played
    }

    /// A table in which one lock is held and `number` requests wait for it.
    pub(crate) fn with_waiters(number: u64) -> Self {
        let mut played = Self::new();
        played.crowd(number + 1, |own, request, _| acquire(own, request, 0, "wanted", true));
        played
    }

    /// A table in which the permits of a semaphore are held and `number` requests wait for one of them, with head
    /// starts of any length.
    pub(crate) fn with_ranked_waiters(number: u64) -> Self {
        let mut played = Self::new();
        let mut head_starts = HeadStarts::default();
        played.crowd(number + u64::from(PERMITS), |own, request, _| {
            acquire_permit(own, request, 0, "wanted", head_starts.next())
        });
        played
    }

    /// Makes so many requests, by sessions with a thousand each.
    fn crowd(&mut self, number: u64, mut ask: impl FnMut(SessionId, u64, u64) -> Command) {
        let mut session = None;
        for at in 0..number {
            let own = match session {
                Some(own) if at % REQUESTS != 0 => own,
                _ => *session.insert(self.open()),
            };
            self.apply(ask(own, at % REQUESTS, at));
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

/// A request for one of four permits, with a head start.
pub(crate) fn acquire_permit(
    session: SessionId,
    request: u64,
    done_below: u64,
    name: &str,
    head_start_ms: u32,
) -> Command {
    Command::AcquireOn(Ask {
        session,
        done_below: RequestId::new(done_below),
        request: RequestId::new(request + 1),
        items: vec![Item { lock: lock(name), mode: Mode::Permits { count: 1, limit: PERMITS } }],
        need: Need::All,
        wait: true,
        terms: Terms { head_start_ms, ..Terms::default() },
    })
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
