//! Reads of the table for the server: each looks only at what it returns.

use std::ops::Bound;

use crate::access::{Caller, NamePrefix, Rules};
use crate::answer::Grant;
use crate::freeze::Freeze;
use crate::hold_bounds::{BoundHold, ClosedLock};
use crate::holders::Holder;
use crate::ids::{FencingToken, Label, LockName, RequestId, ScopePrefix, SessionId};
use crate::limits::Limits;
use crate::lock::Lock;
use crate::lock_set::{Items, Mode};
use crate::queue::Waiter;
use crate::scope::ScopeState;
use crate::session::{Record, Session, State};
use crate::shards::SHARDS;
use crate::table::Counts;
use crate::terms::Terms;
use crate::value::Value;
use crate::{Command, LockTable, Rejection};

/// An open session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionView<'a> {
    /// Its id.
    pub session: SessionId,
    /// Its lease, milliseconds.
    pub ttl_ms: u64,
    /// Its own name for itself; proves nothing.
    pub label: &'a Label,
    /// Who opened it.
    pub caller: &'a Caller,
    /// SHA-256 of its secret. Compare in constant time.
    pub secret_hash: &'a [u8; 32],
    /// When it was opened: the leader's wall clock, Unix milliseconds. For people.
    pub opened_ms: u64,
    /// Requests below it are confirmed as done.
    pub done_below: RequestId,
    /// How many of its requests the table keeps: waiting, held, finished and not confirmed.
    pub requests: u64,
    /// Whether it stands for an owner in another store, whose name is its label. No client can
    /// renew it.
    pub imported: bool,
    /// Why it was revoked: it is ending, and nothing renews it.
    pub revoked: Option<&'a Label>,
}

/// How many parts [`LockTable::leases_in`] has; their numbers begin with 0.
pub const LEASE_PARTS: usize = SHARDS;

/// A session as the leader's leases know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseView {
    /// The session.
    pub session: SessionId,
    /// Its lease, milliseconds.
    pub ttl_ms: u64,
    /// Whether it was revoked.
    pub is_revoked: bool,
    /// Its closed holds that are not over.
    pub closed: Vec<FencingToken>,
}

/// A request of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestView {
    /// Its id.
    pub request: RequestId,
    /// The locks that it asked for; none if it set a value, or was cancelled before it was seen.
    pub items: Items,
    /// Its state.
    pub state: RequestState,
    /// What it says besides.
    pub terms: Terms,
}

/// The state of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestState {
    /// It waits.
    Waiting {
        /// How many requests stand before it; 0 is next. As in
        /// [`Event::Queued`](crate::Event::Queued).
        place: u64,
        /// Since when: the leader's wall clock, Unix milliseconds. For people.
        since_ms: u64,
    },
    /// It holds.
    Held {
        /// Under this grant.
        token: FencingToken,
        /// The locks that it still holds: the granted ones, less those given back. Their values:
        /// [`LockTable::values_of`].
        items: Items,
        /// Since when: the leader's wall clock, Unix milliseconds. For people.
        since_ms: u64,
        /// Whether it is ending from outside: the client must not rely on it.
        is_ending: bool,
    },
    /// It would not wait, or claimed what was not imported.
    Denied {
        /// The answer that it got.
        rejection: Rejection,
    },
    /// It set, cleared or confirmed a value.
    Wrote,
    /// It is over: cancelled, or its grant was given back.
    Ended,
}

/// A lock that is held, waited for, closed, carries a value, or has a limit of permits.
#[derive(Clone, Copy, Debug)]
pub struct LockView<'a> {
    /// Its name.
    pub name: &'a LockName,
    /// How many hold it.
    pub held_by: u64,
    /// How many wait for it.
    pub waiting: u64,
    /// The value it carries.
    pub value: Option<&'a Value>,
    /// Up to how many of its permits are held together, if it has such a limit.
    pub limit: Option<LimitView>,
    /// Why nobody is granted it although nobody holds it: its last hold was to last longer.
    pub closed: Option<&'a ClosedLock>,
    table: &'a LockTable,
    lock: &'a Lock,
}

/// The limit of a lock's permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitView {
    /// The limit in force.
    pub permits: u32,
    /// How many are held; more than the limit only if it was lowered since.
    pub used: u64,
    /// Whether it was set for good; otherwise it goes once nobody holds permits or waits
    /// for some.
    pub for_good: bool,
}

/// A holder of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HolderView<'a> {
    /// The session, the request and the token.
    pub grant: Grant,
    /// The mode of the hold.
    pub mode: Mode,
    /// The session's own name for itself; proves nothing.
    pub label: &'a Label,
    /// Since when: the leader's wall clock, Unix milliseconds. For people.
    pub since_ms: u64,
    /// Whether the session stands for an owner in another store, whose name is its label.
    pub imported: bool,
    /// Whether it is ending from outside (DESIGN §14): it is a holder until its client has given it up
    /// or its deadline has passed, and relies on nothing.
    pub is_ending: bool,
    /// Who opened the session.
    pub caller: &'a Caller,
    /// What its request says for people; proves nothing.
    pub note: &'a str,
    /// How long it lasts at least and at most, if it is bound.
    pub bounds: Option<BoundHold>,
}

/// A scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScopeView<'a> {
    /// Its prefix.
    pub scope: &'a ScopePrefix,
    /// Its epoch, and whether it is suspended.
    pub state: ScopeState,
}

/// A waiter for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaiterView<'a> {
    /// The session.
    pub session: SessionId,
    /// Its request.
    pub request: RequestId,
    /// The mode that it asks for.
    pub mode: Mode,
    /// The session's own name for itself; proves nothing.
    pub label: &'a Label,
    /// Since when: the leader's wall clock, Unix milliseconds. For people.
    pub since_ms: u64,
    /// Whether the session stands for an owner in another store, whose name is its label.
    pub imported: bool,
    /// Who opened the session.
    pub caller: &'a Caller,
    /// What its request says for people; proves nothing.
    pub note: &'a str,
    /// So much earlier than it came it counts as having come, milliseconds.
    pub head_start_ms: u32,
}

impl<'a> LockView<'a> {
    /// The scope that it lies in.
    pub fn scope(&self) -> Option<ScopeView<'a>> {
        self.table.scope_of(self.name)
    }

    /// The freeze over it, by its prefix, if nothing of it is granted for that.
    pub fn frozen(&self) -> Option<(&'a NamePrefix, &'a Freeze)> {
        self.table.freeze_over(self.name)
    }

    /// The holders, in the order of their grants. Costs only what the caller takes.
    pub fn holders(&self) -> impl Iterator<Item = HolderView<'a>> + use<'a> {
        self.holders_after(None)
    }

    /// The holders granted after that token, in the order of their grants: one page of many. O(log n)
    /// to begin.
    pub fn holders_after(
        &self,
        token: Option<FencingToken>,
    ) -> impl Iterator<Item = HolderView<'a>> + use<'a> {
        let table = self.table;
        self.lock.holders.after(token).filter_map(move |holder| table.holder_view(holder))
    }

    /// The waiters, from the next in line on. Costs only what the caller takes.
    pub fn waiters(&self) -> impl Iterator<Item = WaiterView<'a>> + use<'a> {
        let table = self.table;
        self.lock.queue.iter().filter_map(move |(_, Waiter { session, request, mode, .. })| {
            let found = table.sessions.get(&session)?;
            let Record::Asked { state: State::Waiting { since_ms, .. }, .. } =
                found.records.get(&request)?
            else {
                return None;
            };
            let Session { label, imported, caller, .. } = found;
            let (since_ms, imported) = (*since_ms, *imported);
            let (note, head_start_ms) =
                (found.said.note(request), found.said.head_start_ms(request));
            Some(WaiterView {
                session,
                request,
                mode,
                label,
                since_ms,
                imported,
                caller,
                note,
                head_start_ms,
            })
        })
    }
}

impl Session {
    fn shown(&self, session: SessionId) -> SessionView<'_> {
        SessionView {
            session,
            ttl_ms: self.ttl_ms,
            label: &self.label,
            caller: &self.caller,
            secret_hash: &self.secret_hash,
            opened_ms: self.opened_ms,
            done_below: self.done_below,
            requests: self.records.len() as u64,
            imported: self.imported,
            revoked: self.cut.revoked.as_ref(),
        }
    }
}

/// A request without locks.
fn bare(request: RequestId, state: RequestState) -> RequestView {
    RequestView { request, items: Items::from_iter([]), state, terms: Terms::default() }
}

impl LockTable {
    /// An open session; `None` if it was never opened or has ended. O(log n).
    pub fn session(&self, session: SessionId) -> Option<SessionView<'_>> {
        self.shown_session(session).map(|found| found.shown(session))
    }

    /// What a request says for people, as long as the table keeps it; empty if it says nothing.
    pub fn note_of(&self, session: SessionId, request: RequestId) -> Label {
        let found = self.sessions.get(&session);
        let terms = found.and_then(|found| found.said.get(request));
        terms.map(|terms| terms.note.clone()).unwrap_or_default()
    }

    /// All open sessions, in no particular order.
    pub fn sessions(&self) -> impl Iterator<Item = SessionView<'_>> {
        let open = self.sessions.iter().filter(|&(&session, _)| !self.is_over(session));
        open.map(|(&session, found)| found.shown(session))
    }

    /// A session that is not over.
    fn shown_session(&self, session: SessionId) -> Option<&Session> {
        self.sessions.get(&session).filter(|_| !self.is_over(session))
    }

    /// The open sessions after one, in an order that stays as long as they do; all of them after `None`.
    pub fn sessions_after<'a>(
        &'a self,
        after: Option<&'a SessionId>,
    ) -> impl Iterator<Item = SessionView<'a>> {
        let open = self.sessions.after(after).filter(|&(&session, _)| !self.is_over(session));
        open.map(|(&session, found)| found.shown(session))
    }

    /// Who may do what.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The leases of the open sessions, by parts: every session is in the same one of [`LEASE_PARTS`]
    /// parts for as long as it is open. So a leader need not read all of them under one lock.
    pub fn leases_in(&self, part: usize) -> impl Iterator<Item = LeaseView> {
        let open = self.sessions.shard(part).filter(|&(&session, _)| !self.is_over(session));
        open.map(|(&session, found)| LeaseView {
            session,
            ttl_ms: found.ttl_ms,
            is_revoked: found.cut.revoked.is_some(),
            closed: found
                .holds
                .keys()
                .filter(|token| found.cut.closed.contains(**token))
                .copied()
                .collect(),
        })
    }

    /// The closed holds that a client has to be told of with each answer that renews its session, and
    /// why each was closed; none for an unknown session. O(log n).
    pub fn closed_holds(&self, session: SessionId) -> impl Iterator<Item = (FencingToken, &Label)> {
        let closed =
            self.shown_session(session).into_iter().flat_map(|found| found.cut.closed.iter());
        closed.map(|(token, closed)| (token, &closed.reason))
    }

    /// The tokens under which a session holds something, in rising order; none for an unknown session.
    /// O(log n).
    pub fn tokens_held(&self, session: SessionId) -> impl Iterator<Item = FencingToken> {
        self.shown_session(session).into_iter().flat_map(|found| found.holds.keys().copied())
    }

    /// The kept requests of a session, by id; none for an unknown session.
    pub fn requests(&self, session: SessionId) -> impl Iterator<Item = RequestView> {
        self.shown_session(session).into_iter().flat_map(move |found| {
            let all = found.records.iter();
            all.map(move |(&request, record)| self.view(session, request, record))
        })
    }

    /// In how many steps a session can give back all that it has: one for each lock that it holds,
    /// one for each other request that the table keeps. 0 for an unknown session. O(its requests).
    pub fn steps_to_free(&self, session: SessionId) -> u64 {
        let steps = |record: &Record| match record {
            Record::Asked { state: State::Held { part, .. }, .. } => part.len().into(),
            Record::Asked { .. } | Record::Wrote { .. } | Record::Spent => 1,
        };
        let session = self.shown_session(session);
        session.map_or(0, |found| found.records.values().map(steps).sum())
    }

    /// Whether the table has what a command gives back or ends for its session: the session, the request, the hold.
    /// False for a command that frees nothing of one session. O(log n).
    pub fn shows_what_is_freed(&self, command: &Command) -> bool {
        let found = |session| self.shown_session(session);
        match command {
            Command::CloseSession { session } => found(*session).is_some(),
            Command::Cancel { session, request, .. } => {
                found(*session).is_some_and(|found| found.records.contains_key(request))
            }
            Command::Release { session, token, .. }
            | Command::ReleaseLost { session, token, .. } => {
                found(*session).is_some_and(|found| found.holds.contains_key(token))
            }
            _ => false,
        }
    }

    /// One request; `None` if the table keeps nothing of it. O(log n) for each of its locks.
    pub fn request(&self, session: SessionId, request: RequestId) -> Option<RequestView> {
        let found = self.shown_session(session)?;
        Some(self.view(session, request, found.records.get(&request)?))
    }

    fn view(&self, of: SessionId, request: RequestId, record: &Record) -> RequestView {
        let (lock_set, state) = match record {
            Record::Asked { lock_set, state } => (lock_set, state),
            Record::Wrote { .. } => return bare(request, RequestState::Wrote),
            Record::Spent => return bare(request, RequestState::Ended),
        };
        let state = match *state {
            State::Waiting { rank, since_ms } => {
                RequestState::Waiting { place: self.place(lock_set, rank), since_ms }
            }
            State::Held { token, since_ms, part } => {
                let is_ending = !self.is_relied_on((of, token), lock_set);
                let items = lock_set.items_of(part);
                RequestState::Held { token, items, since_ms, is_ending }
            }
            State::Denied(denial) => RequestState::Denied { rejection: denial.rejection(lock_set) },
            State::Ended => RequestState::Ended,
        };
        RequestView { request, items: lock_set.items(), state, terms: self.said_by(of, request) }
    }

    /// A lock, if it is held, waited for, or carries a value. O(log n).
    pub fn lock(&self, name: &LockName) -> Option<LockView<'_>> {
        let (name, lock) = self.locks.get_key_value(name)?;
        Some(self.lock_view(name, lock))
    }

    fn lock_view<'a>(&'a self, name: &'a LockName, lock: &'a Lock) -> LockView<'a> {
        let (held_by, waiting) = (lock.holders.len() as u64, lock.queue.len());
        let limit = lock.limit.map(|permits| LimitView {
            permits: permits.get(),
            used: lock.holders.used(),
            for_good: self.kept_limits.get(name).is_some_and(|kept| !kept.goes),
        });
        let value = lock.value.as_ref();
        let closed = if self.closed_count > 0 { self.closed_locks.get(name) } else { None };
        LockView { name, held_by, waiting, value, limit, closed, table: self, lock }
    }

    fn holder_view(&self, Holder { grant, mode }: Holder) -> Option<HolderView<'_>> {
        let found = self.sessions.get(&grant.session)?;
        let Record::Asked { state: State::Held { since_ms, .. }, lock_set } =
            found.records.get(&grant.request)?
        else {
            return None;
        };
        let Session { label, imported, caller, .. } = found;
        let (since_ms, imported) = (*since_ms, *imported);
        let is_ending = !self.is_relied_on((grant.session, grant.token), lock_set);
        let note = found.said.note(grant.request);
        let bounds = self.bounds_of(grant);
        Some(HolderView { grant, mode, label, since_ms, imported, is_ending, caller, note, bounds })
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

    /// The locks that are waited for and how many requests wait for each, in the order of their names, from
    /// the first after `after` on. O(log n) for each.
    pub fn queues_after(&self, after: Option<&LockName>) -> impl Iterator<Item = (&LockName, u64)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let awaited = self.awaited.range::<LockName, _>((from, Bound::Unbounded));
        awaited.map(|name| (name, self.locks.get(name).map_or(0, |lock| lock.queue.len())))
    }

    /// How much is in the table. O(1).
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Every scope, in the order of their prefixes; at most [`SCOPES_MAX`](crate::SCOPES_MAX).
    pub fn scopes(&self) -> impl Iterator<Item = ScopeView<'_>> {
        self.scopes.iter().map(|(scope, state)| ScopeView { scope, state })
    }

    /// The scope of that prefix.
    pub fn scope(&self, scope: &ScopePrefix) -> Option<ScopeState> {
        self.scopes.get(scope)
    }

    /// The scope that a name lies in. O(log n) in the number of scopes.
    pub fn scope_of(&self, name: &LockName) -> Option<ScopeView<'_>> {
        let (scope, state) = self.scopes.of(name)?;
        Some(ScopeView { scope, state })
    }

    /// The limits in force.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// How many bytes the table may take, as [`Counts::table_bytes`] counts them; `None` before the
    /// first [`Command::LimitTable`](crate::Command::LimitTable).
    pub fn max_table_bytes(&self) -> Option<u64> {
        self.max_table_bytes
    }

    /// The largest wall-clock stamp of a batch so far, Unix milliseconds; never decreases (I8).
    pub fn stamp_ms(&self) -> u64 {
        self.stamp_ms
    }

    /// What has passed at the leaders since the first batch that said so, milliseconds: the time by which queues are in
    /// order (DESIGN §16). Never decreases.
    pub fn age_ms(&self) -> u64 {
        self.age_ms
    }

    /// The highest version of any command applied so far. Every member knew it when it was proposed
    /// (I29), and a member that no longer knows it cannot follow this log: so a leader may propose
    /// it again without asking the members.
    pub fn applied_version(&self) -> u16 {
        self.applied_version
    }

    /// The numbers given out so far.
    pub fn counters(&self) -> crate::Counters {
        self.counters
    }
}
