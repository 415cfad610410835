//! What the server reads out of the table: never more than it asks for.

use std::ops::Bound;

use crate::LockTable;
use crate::answer::Grant;
use crate::ids::{FencingToken, Label, LockName, RequestId, SessionId};
use crate::limits::Limits;
use crate::lock::Lock;
use crate::session::{Record, State};
use crate::table::Counts;

/// An open session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionView<'a> {
    /// Its id.
    pub session: SessionId,
    /// Its lease, milliseconds.
    pub ttl_ms: u64,
    /// What it calls itself; proves nothing.
    pub label: &'a Label,
    /// SHA-256 of its secret. Compare in constant time.
    pub secret_hash: &'a [u8; 32],
    /// When it was opened: the leader's wall clock, Unix milliseconds. For people.
    pub opened_ms: u64,
    /// Requests below it are confirmed as done.
    pub done_below: RequestId,
    /// How many requests are kept for it: waiting, held, finished and not confirmed.
    pub requests: u64,
}

/// A request of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestView<'a> {
    /// Its id.
    pub request: RequestId,
    /// The lock it asked for; `None` if it was cancelled before it was seen.
    pub lock: Option<&'a LockName>,
    /// How far it came.
    pub state: RequestState,
}

/// How far a request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestState {
    /// It waits.
    Waiting {
        /// How many stand before it; 0 is next.
        place: u64,
        /// Since when: the leader's wall clock, Unix milliseconds. For people.
        since_ms: u64,
    },
    /// It holds.
    Held {
        /// Under this grant.
        token: FencingToken,
        /// Since when: the leader's wall clock, Unix milliseconds. For people.
        since_ms: u64,
    },
    /// It would not wait, and the lock was held.
    Denied {
        /// By this session.
        holder: SessionId,
        /// Under this grant.
        token: FencingToken,
    },
    /// It is over: cancelled, or its grant was given back.
    Ended,
}

/// A lock that is held or waited for.
#[derive(Clone, Copy, Debug)]
pub struct LockView<'a> {
    /// Its name.
    pub name: &'a LockName,
    /// Who holds it. `None` only while the fencing tokens are used up.
    pub holder: Option<HolderView<'a>>,
    /// How many wait for it.
    pub waiting: u64,
    table: &'a LockTable,
    lock: &'a Lock,
}

/// Who holds a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HolderView<'a> {
    /// The session, the request and the token.
    pub grant: Grant,
    /// What the session calls itself; proves nothing.
    pub label: &'a Label,
    /// Since when: the leader's wall clock, Unix milliseconds. For people.
    pub since_ms: u64,
}

/// Who waits for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaiterView<'a> {
    /// The session.
    pub session: SessionId,
    /// Its request.
    pub request: RequestId,
    /// What the session calls itself; proves nothing.
    pub label: &'a Label,
    /// Since when: the leader's wall clock, Unix milliseconds. For people.
    pub since_ms: u64,
}

impl<'a> LockView<'a> {
    /// Who waits, from the next in line on. Costs only what is taken.
    pub fn waiters(&self) -> impl Iterator<Item = WaiterView<'a>> + use<'a> {
        let table = self.table;
        self.lock.queue.iter().filter_map(move |(_, (session, request))| {
            let found = table.sessions.get(session)?;
            let Record::Asked { state: State::Waiting { since_ms, .. }, .. } =
                found.records.get(&request)?
            else {
                return None;
            };
            Some(WaiterView { session, request, label: &found.label, since_ms: *since_ms })
        })
    }
}

impl LockTable {
    /// An open session; `None` if it was never opened or has ended. O(log n).
    pub fn session(&self, session: SessionId) -> Option<SessionView<'_>> {
        let found = self.sessions.get(session)?;
        Some(SessionView {
            session,
            ttl_ms: found.ttl_ms,
            label: &found.label,
            secret_hash: &found.secret_hash,
            opened_ms: found.opened_ms,
            done_below: found.done_below,
            requests: found.records.len() as u64,
        })
    }

    /// All open sessions with their leases in milliseconds, in no order to rely on.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionId, u64)> {
        self.sessions.iter().map(|(id, session)| (id, session.ttl_ms))
    }

    /// What is kept of a session's requests, by id; nothing for an unknown session.
    pub fn requests(&self, session: SessionId) -> impl Iterator<Item = RequestView<'_>> {
        self.sessions.get(session).into_iter().flat_map(move |found| {
            found.records.iter().map(move |(&request, record)| self.view(request, record))
        })
    }

    fn view<'a>(&self, request: RequestId, record: &'a Record) -> RequestView<'a> {
        let Record::Asked { lock, state, .. } = record else {
            return RequestView { request, lock: None, state: RequestState::Ended };
        };
        let state = match *state {
            State::Waiting { ticket, since_ms } => {
                let place = self.locks.get(lock).map_or(0, |lock| lock.queue.place(ticket));
                RequestState::Waiting { place, since_ms }
            }
            State::Held { token, since_ms } => RequestState::Held { token, since_ms },
            State::Denied { holder, token } => RequestState::Denied { holder, token },
            State::Ended => RequestState::Ended,
        };
        RequestView { request, lock: Some(lock), state }
    }

    /// A lock, if it is held or waited for. O(log n).
    pub fn lock(&self, name: &LockName) -> Option<LockView<'_>> {
        let (name, lock) = self.locks.get_key_value(name)?;
        Some(self.lock_view(name, lock))
    }

    fn lock_view<'a>(&'a self, name: &'a LockName, lock: &'a Lock) -> LockView<'a> {
        let holder = lock.holder.and_then(|grant| self.holder_view(grant));
        LockView { name, holder, waiting: lock.queue.len(), table: self, lock }
    }

    fn holder_view(&self, grant: Grant) -> Option<HolderView<'_>> {
        let found = self.sessions.get(grant.session)?;
        let Record::Asked { state: State::Held { since_ms, .. }, .. } =
            found.records.get(&grant.request)?
        else {
            return None;
        };
        Some(HolderView { grant, label: &found.label, since_ms: *since_ms })
    }

    /// At most `limit` locks whose names begin with `prefix`, in the order of their names, from
    /// the first after `after` on: one page of a listing. O(log n + limit).
    pub fn locks_after(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: usize,
    ) -> impl Iterator<Item = LockView<'_>> {
        let from = match after {
            Some(name) if name.as_str() >= prefix => Bound::Excluded(name.as_str()),
            Some(_) | None => Bound::Included(prefix),
        };
        self.locks
            .range::<str, _>((from, Bound::Unbounded))
            .take_while(move |(name, _)| name.as_str().starts_with(prefix))
            .take(limit)
            .map(|(name, lock)| self.lock_view(name, lock))
    }

    /// Every waiter of a lock with its place, in one pass over the queue: for telling many of them
    /// how they moved.
    pub fn queue_places(
        &self,
        name: &LockName,
    ) -> impl Iterator<Item = (SessionId, RequestId, u64)> {
        let queue = self.locks.get(name).into_iter().flat_map(|lock| lock.queue.iter());
        (0..).zip(queue).map(|(place, (_, (session, request)))| (session, request, place))
    }

    /// How much is in the table. O(1).
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The limits in force.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The largest wall-clock stamp of a batch so far, Unix milliseconds; never decreases (I8).
    pub fn stamp_ms(&self) -> u64 {
        self.stamp_ms
    }

    /// The numbers given out so far.
    pub fn counters(&self) -> crate::Counters {
        self.counters
    }
}
