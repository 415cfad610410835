//! The limit of a lock that is held by permits (DESIGN §16): up to so many permits of it are held together.
//!
//! The first request for permits of a lock brings the limit along. It lasts for as long as anybody holds permits of
//! the lock or waits for some, and another limit in a later request is refused. [`Deed::SetLimit`](crate::Deed::SetLimit) keeps a
//! limit for good, and changes the one in force; then a request need not name it.
//!
//! # Invariants
//!
//! - No grant makes the holders of a lock have more permits than the limit in force (I2). A limit that is lowered ends
//!   nothing: the table grants nothing more until enough of them are given back.
//! - Order is strict (I9): a request for many permits at the head of a queue keeps those for few behind it.
//! - A request for more than the limit in force never comes to the head of a queue to stay there: it is refused when its
//!   turn comes ([`LockTable::is_above_limit`]). One behind it waits no longer for it (I15).
//!
//! A waiter is refused at its turn, and not when the limit is lowered, because any number may wait; and if the limit
//! is raised again before, it has lost nothing.

use std::num::NonZeroU32;

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_mutants::mutant;

use crate::access::{Caller, Identity};
use crate::acquire::Denial;
use crate::answer::{Answer, Outcome};
use crate::event::Event;
use crate::ids::{LockName, RequestId, SessionId};
use crate::lock_set::{LockSet, Mode};
use crate::quota::Usage;
use crate::rank::Rank;
use crate::session::State;
use crate::value::kept_cost;
use crate::{LockTable, Rejection};

/// A limit that was set for good. It counts as a value without bytes.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(crate) struct KeptLimit {
    pub(crate) permits: NonZeroU32,
    /// Whether it goes once nobody holds permits of the lock or waits for some: it was removed.
    pub(crate) goes: bool,
    /// The identity that set it, towards whose quota it counts.
    pub(crate) owner: Identity,
}

impl LockTable {
    /// Checks the permits that a new request asks for.
    ///
    /// # Errors
    ///
    /// [`Rejection::PermitsInScope`], [`Rejection::NoLimit`], [`Rejection::LimitDiffers`],
    /// [`Rejection::PermitsOutOfRange`].
    pub(crate) fn check_permits(&self, lock_set: &LockSet) -> Result<(), Rejection> {
        let permits = lock_set.iter().filter_map(|(name, mode)| match mode {
            Mode::Permits { count, limit } => Some((name, count, limit)),
            Mode::Exclusive | Mode::Shared => None,
        });
        for (name, count, asked) in permits {
            self.check_no_scope(name)?;
            let lock = || name.clone();
            let limit = match (self.limit_of(name), asked) {
                (_, 0) if self.kept_limits.get(name).is_none() => {
                    return Err(Rejection::NoLimit { lock: lock() });
                }
                (Some(limit), 1..) if asked != limit => {
                    return Err(Rejection::LimitDiffers { lock: lock(), limit, asked });
                }
                (limit, _) => limit.unwrap_or(asked),
            };
            if !(1..=limit).contains(&count) {
                return Err(Rejection::PermitsOutOfRange { lock: lock(), permits: count, limit });
            }
        }
        Ok(())
    }

    /// No other store knows permits: a scope may be served by one.
    fn check_no_scope(&self, name: &LockName) -> Result<(), Rejection> {
        match self.scopes.of(name) {
            Some(_) => Err(Rejection::PermitsInScope { lock: name.clone() }),
            None => Ok(()),
        }
    }

    /// The limit of a lock's permits, if one is in force.
    pub(crate) fn limit_of(&self, name: &LockName) -> Option<u32> {
        self.locks.get(name)?.limit.map(NonZeroU32::get)
    }

    /// Sets the limit of a lock for good, or removes it: then it goes once nobody holds permits of the
    /// lock or waits for some.
    ///
    /// # Errors
    ///
    /// [`Rejection::PermitsInScope`], [`Rejection::TooManyValueBytes`], [`Rejection::TableFull`],
    /// [`Rejection::OverQuota`]: the state is unchanged.
    pub(crate) fn set_limit(
        &mut self,
        caller: &Caller,
        (name, limit): (&LockName, Option<NonZeroU32>),
        events: &mut Vec<Event>,
    ) -> Outcome {
        if let Some(permits) = limit {
            self.check_no_scope(name)?;
            self.check_room_for_limit(caller, name)?;
            let owner = self.usages.kept(caller.identity.clone());
            self.keep_limit(name, KeptLimit { permits, goes: false, owner });
            self.spoil_checks_of(name);
        } else if let Some(kept) = self.kept_limits.get_mut(name) {
            kept.goes = true;
            self.drop_limit(name);
        }
        self.pass_on([name], events);
        Ok(Answer::LimitSet)
    }

    fn check_room_for_limit(&self, caller: &Caller, name: &LockName) -> Result<(), Rejection> {
        let before = self.kept_limits.get(name);
        if before.is_none() {
            self.check_room_to_keep(name)?;
        }
        match before {
            Some(before) if before.owner == caller.identity => Ok(()),
            Some(_) | None => self.check_quota_to_keep(name, &caller.identity),
        }
    }

    /// Stores a limit in both its places, and counts it.
    pub(crate) fn keep_limit(&mut self, name: &LockName, kept: KeptLimit) {
        self.forget_limit(name);
        self.lock_or_new(name).limit = Some(kept.permits);
        let name = &self.kept_name(name).unwrap_or_else(|| name.clone());
        let cost = kept_cost(name);
        self.counts.value_bytes = self.counts.value_bytes.saturating_add(cost);
        self.counts.table_bytes = self.counts.table_bytes.saturating_add(cost);
        self.usages.change(&kept.owner, Usage::default(), Usage::of_value(cost));
        self.kept_limits.insert(name.clone(), kept);
    }

    fn forget_limit(&mut self, name: &LockName) {
        if let Some(before) = self.kept_limits.remove(name) {
            let cost = kept_cost(name);
            self.counts.value_bytes = self.counts.value_bytes.saturating_sub(cost);
            self.counts.table_bytes = self.counts.table_bytes.saturating_sub(cost);
            self.usages.change(&before.owner, Usage::of_value(cost), Usage::default());
        }
    }

    /// Removes the limit of a lock of which nobody holds permits or waits for some, unless it was set for good.
    pub(crate) fn drop_limit(&mut self, name: &LockName) {
        let Some(lock) = self.locks.get_mut(name) else { return };
        if lock.permit_requests > 0 || mutant!(LimitOutlivesHolders) {
            return;
        }
        if self.kept_limits.get(name).is_none_or(|kept| kept.goes) {
            lock.limit = None;
            self.forget_limit(name);
        }
    }

    /// Whether a request in that mode could never be granted that lock under the limit in force.
    pub(crate) fn is_above_limit(&self, name: &LockName, mode: Mode) -> bool {
        let Mode::Permits { count, .. } = mode else { return false };
        self.limit_of(name).is_some_and(|limit| count > limit) && !mutant!(AboveLimitWaits)
    }

    /// Refuses a waiter that asks for more permits of a lock than its limit; `at` is its place in the request. The caller looks at its queues.
    pub(crate) fn refuse_above_limit(
        &mut self,
        (session, request, rank): (SessionId, RequestId, Rank),
        (lock_set, at): (&LockSet, usize),
        events: &mut Vec<Event>,
    ) {
        let limit = lock_set.get(at).and_then(|(name, _)| self.limit_of(name)).unwrap_or(0);
        let denial = Denial::AboveLimit { at: u8::try_from(at).unwrap_or(u8::MAX), limit };
        self.charge_for(session);
        self.leave_queues(lock_set, rank);
        let (items, rejection) = (lock_set.items(), denial.rejection(lock_set));
        events.push(Event::Denied { session, request, items: items.clone(), rejection });
        events.push(Event::Left { session, request, items });
        self.change_session(session, |found| found.finish(request, State::Denied(denial)));
    }
}
