//! How long a hold lasts at least and at most (DESIGN §16, I38).
//!
//! The table knows no time, so the leader counts from the grant, and tells it by commands. A hold that has lasted its
//! longest is closed, as from outside: its client is told, and gives it up ([`LockTable::end_long_hold`]). A hold that ends
//! before it has lasted its least, whoever ends it, leaves its locks *closed*: nobody holds them, and nobody is granted
//! them, until the leader opens them ([`LockTable::open_lock`]). The table closes them after every such hold; if the time
//! has passed, the leader opens them at once.
//!
//! # Invariants
//!
//! - A closed lock has no holder, and lies in no scope: the other store that may serve it would not know of it.
//! - It counts as a value without bytes, towards the quota of who held it, so that quotas and
//!   [`Limits::max_value_bytes`](crate::Limits) bound how many there are.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_mutants::mutant;

use crate::access::Identity;
use crate::answer::{Answer, Grant, Outcome};
use crate::event::Event;
use crate::ids::{FencingToken, Label, LockName, RequestId, SessionId};
use crate::lock_set::{LockSet, Mode};
use crate::quota::{Quantity, Usage};
use crate::release::Ending;
use crate::session::Session;
use crate::terms::Terms;
use crate::value::kept_cost;
use crate::{LockTable, Rejection};

/// Longest that either bound may be, milliseconds: a day.
///
/// Source: DESIGN §16.
pub const HOLD_BOUND_MAX_MS: u32 = 86_400_000;

/// Why a hold that has lasted its most is closed, for people; an operator gives another reason.
pub const MAX_HOLD_REASON: &str = "it was held for as long as its max_hold allows";

/// A lock that is closed since its last hold ended.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct ClosedLock {
    /// The grant that ended.
    pub token: FencingToken,
    /// How long it was to last at least, milliseconds.
    pub hold_at_least_ms: u32,
    /// Since when it is closed: the leader's wall clock, Unix milliseconds. For people.
    pub since_ms: u64,
    /// The label of the session that held it.
    pub label: Label,
    /// The identity that held it.
    pub identity: Identity,
}

impl Session {
    /// What becomes of the locks of a hold of this session when it ends; `None`: they are free.
    pub(crate) fn closes(&self, request: RequestId, token: FencingToken) -> Option<ClosedLock> {
        let hold_at_least_ms = self.said.get(request)?.hold_at_least_ms;
        let identity = self.caller.identity.clone();
        let closed = ClosedLock {
            token,
            hold_at_least_ms,
            since_ms: 0,
            label: self.label.clone(),
            identity,
        };
        (hold_at_least_ms > 0 && !mutant!(HoldAtLeastIgnored)).then_some(closed)
    }
}

/// A hold with bounds, as the leader that counts them knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundHold {
    /// The holder.
    pub session: SessionId,
    /// The grant.
    pub token: FencingToken,
    /// As in [`Terms`].
    pub max_hold_ms: u32,
    /// As in [`Terms`].
    pub hold_at_least_ms: u32,
}

impl LockTable {
    /// The bounds that the request of a grant named; `None` if it named none, or the table keeps nothing of it.
    pub fn bounds_of(&self, grant: Grant) -> Option<BoundHold> {
        let Grant { session, request, token } = grant;
        let Terms { max_hold_ms, hold_at_least_ms, .. } =
            *self.sessions.get(&session)?.said.get(request).filter(|terms| terms.binds())?;
        Some(BoundHold { session, token, max_hold_ms, hold_at_least_ms })
    }

    /// The holds with bounds of the sessions in one part, of [`LEASE_PARTS`](crate::LEASE_PARTS).
    pub fn bound_holds_in(&self, part: usize) -> impl Iterator<Item = BoundHold> {
        self.sessions.shard(part).flat_map(move |(&session, found)| {
            let holds = found.holds.iter().filter(|_| found.said.owned().is_some());
            holds.filter_map(move |(&token, &request)| {
                self.bounds_of(Grant { session, request, token })
            })
        })
    }

    /// The closed locks in one part, of as many.
    pub fn closed_locks_in(&self, part: usize) -> impl Iterator<Item = (&LockName, &ClosedLock)> {
        self.closed_locks.shard(part)
    }

    /// Checks the bounds of a new request, that there is room to close its locks, and that its session has released what its
    /// holds left behind that lasted too long. Requests that come before its hold ends may take that room.
    ///
    /// # Errors
    ///
    /// [`Rejection::HoldBoundTooLong`], [`Rejection::HoldBoundsCross`], [`Rejection::TooManyRequests`],
    /// [`Rejection::HoldAtLeastShared`], [`Rejection::HoldBoundsInScope`], [`Rejection::TooManyValueBytes`],
    /// [`Rejection::TableFull`], [`Rejection::OverQuota`].
    pub(crate) fn check_hold_bounds(
        &self,
        session: SessionId,
        lock_set: &LockSet,
        terms: &Terms,
    ) -> Result<(), Rejection> {
        let Terms { max_hold_ms, hold_at_least_ms, .. } = *terms;
        let longest_ms = max_hold_ms.max(hold_at_least_ms);
        if longest_ms == 0 {
            return Ok(());
        }
        if longest_ms > HOLD_BOUND_MAX_MS {
            return Err(Rejection::HoldBoundTooLong {
                asked_ms: longest_ms,
                max_ms: HOLD_BOUND_MAX_MS,
            });
        }
        if max_hold_ms > 0 && max_hold_ms < hold_at_least_ms {
            return Err(Rejection::HoldBoundsCross { max_hold_ms, hold_at_least_ms });
        }
        let found = self.open(session)?;
        if max_hold_ms > 0 && !mutant!(ClosedHoldsNotCounted) {
            let limit = self.limits.max_requests_per_session;
            found.may_leave_another_closed(session, limit)?;
        }
        let mut cost = 0_u64;
        for (name, mode) in lock_set.iter() {
            if self.scopes.of(name).is_some() {
                return Err(Rejection::HoldBoundsInScope { lock: name.clone() });
            }
            if hold_at_least_ms > 0 {
                if mode != Mode::Exclusive {
                    return Err(Rejection::HoldAtLeastShared { lock: name.clone() });
                }
                cost = cost.saturating_add(kept_cost(name));
                self.check_room_for_kept(cost)?;
                self.check_quota(&found.caller.identity, Quantity::ValueBytes, cost)?;
            }
        }
        Ok(())
    }

    /// Closes the locks of a hold that ends, if it was to last a while at least. The caller takes its holder from them.
    pub(crate) fn close_locks(&mut self, ending: &Ending, events: &mut Vec<Event>) {
        let Ending { lock_set, part, closes: Some(closed), .. } = ending else { return };
        for (name, _) in lock_set.iter_part(*part) {
            let identity = self.usages.kept(closed.identity.clone());
            let since_ms = self.stamp_ms;
            self.keep_closed(name, ClosedLock { since_ms, identity, ..closed.clone() });
            let ClosedLock { token, hold_at_least_ms, .. } = *closed;
            events.push(Event::LockClosed { lock: name.clone(), token, hold_at_least_ms });
        }
    }

    /// Stores a closed lock, and counts it.
    pub(crate) fn keep_closed(&mut self, name: &LockName, closed: ClosedLock) {
        self.lock_or_new(name);
        let name = self.kept_name(name).unwrap_or_else(|| name.clone());
        let cost = kept_cost(&name);
        self.counts.value_bytes = self.counts.value_bytes.saturating_add(cost);
        self.counts.table_bytes = self.counts.table_bytes.saturating_add(cost);
        self.usages.change(&closed.identity, Usage::default(), Usage::of_value(cost));
        self.closed_count += 1;
        self.closed_locks.insert(name, closed);
    }

    fn drop_closed(&mut self, name: &LockName) {
        let Some(closed) = self.closed_locks.remove(name) else { return };
        self.closed_count -= 1;
        let cost = kept_cost(name);
        self.counts.value_bytes = self.counts.value_bytes.saturating_sub(cost);
        self.counts.table_bytes = self.counts.table_bytes.saturating_sub(cost);
        self.usages.change(&closed.identity, Usage::of_value(cost), Usage::default());
    }

    /// The time that a closed lock had to stay closed has passed at the leader: grants it to who waits. A second copy
    /// changes nothing.
    ///
    /// It names the grant and no tenure: time that has passed since a leader saw the grant has passed for good.
    ///
    /// # Errors
    ///
    /// [`Rejection::NotClosed`]: the state is unchanged.
    pub(crate) fn open_lock(
        &mut self,
        lock: &LockName,
        token: FencingToken,
        events: &mut Vec<Event>,
    ) -> Outcome {
        if self.closed_locks.get(lock).is_none_or(|closed| closed.token != token) {
            return Err(Rejection::NotClosed { lock: lock.clone(), token });
        }
        self.drop_closed(lock);
        events.push(Event::LockOpened { lock: lock.clone(), token });
        self.pass_on([lock], events);
        Ok(Answer::LockOpened)
    }

    /// A hold has lasted its longest at the leader: closes it, as from outside. A second copy changes nothing.
    ///
    /// # Errors
    ///
    /// [`Rejection::UnknownSession`], [`Rejection::NotHolder`]; the state is unchanged.
    pub(crate) fn end_long_hold(
        &mut self,
        session: SessionId,
        token: FencingToken,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let (request, ..) = self.open(session)?.held_under(session, token)?;
        let grant = Grant { session, request, token };
        let reason = Label::parse(MAX_HOLD_REASON).unwrap_or_default();
        self.close_hold(grant, &reason, events)?;
        Ok(Answer::HoldsClosed { holds: vec![grant] })
    }

    /// Whether nobody is granted a lock because its last hold has not lasted its least.
    pub(crate) fn is_closed(&self, name: &LockName) -> bool {
        self.closed_count > 0 && self.closed_locks.get(name).is_some()
    }

    /// The place of the closed lock that keeps a request from being granted, as of one that is frozen.
    pub(crate) fn closed_in_the_way(&self, lock_set: &LockSet) -> Option<usize> {
        lock_set.first_in_the_way(|name| self.is_closed(name))
    }
}
