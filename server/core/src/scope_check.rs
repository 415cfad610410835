//! Whether a prefix may become a scope: a look at every lock whose name begins with it.
//!
//! Within a limit of work one command looks at a part of them, and the next copy of it goes on. What was
//! looked at stays fit for the scope meanwhile, or the look begins anew:
//!
//! - A new request with a lock inside the prefix and another one outside ends the look
//!   ([`LockTable::spoil_checks`]).
//! - A new hold has a token of the cluster's epoch. If that has risen, the look begins anew.
//! - Whatever else happens to holds and waits only makes them fewer.

use std::ops::Bound;

use crate::acquire::Wish;
use crate::answer::Grant;
use crate::holders::Holder;
use crate::ids::{FencingToken, LockName, RequestId, ScopePrefix, SessionId, Ticket};
use crate::lock::Lock;
use crate::lock_set::LockSet;
use crate::queue::Waiter;
use crate::scope::{SCOPES_MAX, check_epoch};
use crate::session::{Record, State};
use crate::terms::Terms;
use crate::work::Checked;
use crate::{LockTable, Rejection};

impl LockTable {
    /// Looks at the locks of a prefix, as far as the command goes; `false` if some are left, and the next
    /// copy of the command goes on.
    ///
    /// # Errors
    ///
    /// Those of [`LockTable::set_scope`].
    pub(crate) fn may_become_scope(&mut self, scope: &ScopePrefix) -> Result<bool, Rejection> {
        if let Some((other, _)) = self.scopes.iter().find(|(other, _)| other.overlaps(scope)) {
            let (scope, other) = (scope.clone(), other.clone());
            return Err(Rejection::ScopesOverlap { scope, other });
        }
        if self.scopes.len() >= SCOPES_MAX {
            return Err(Rejection::TooManyScopes { max: SCOPES_MAX as u64 });
        }
        check_epoch(self.counters.epoch)?;
        // What removed scopes have left is bounded with the scopes.
        let looks = self.work.pending().looks.keys();
        let removed = looks.filter(|prefix| self.scopes.get(prefix).is_none()).count();
        if self.scopes.len() + removed >= SCOPES_MAX {
            return Ok(false);
        }
        let begun = self.take_check(scope);
        let looks = self.work.looks_left();
        let mut left = looks;
        let stopped = self.look_through(scope, begun.as_ref(), &mut left);
        self.work.charge((looks - left) as u64);
        let Some(checked) = stopped? else { return Ok(true) };
        let checks = &mut self.work.pending_mut().checks;
        if checks.len() >= SCOPES_MAX {
            // Of a caller that did not come back.
            checks.pop_first();
        }
        checks.insert(scope.clone(), checked);
        Ok(false)
    }

    /// A new request may not lie in one scope if a prefix that is looked at becomes one, or be for permits, or have
    /// a head start or bounds of its hold: the look ends.
    pub(crate) fn spoil_checks(&mut self, Wish { lock_set, terms }: &Wish) {
        let says_more = terms.head_start_ms > 0 || terms.binds();
        let is_plain = !says_more && matches!(lock_set, LockSet::One { .. });
        if self.work.pending().checks.is_empty() || is_plain {
            return;
        }
        let is_wrong = |scope: &ScopePrefix| {
            let inside = || lock_set.iter().filter(|(name, _)| scope.contains(name));
            let is_cut = (1..lock_set.len()).contains(&inside().count());
            is_cut || inside().any(|(_, mode)| says_more || mode.is_permits())
        };
        self.work.pending_mut().checks.retain(|scope, _| !is_wrong(scope));
    }

    /// A lock that gets a limit may not lie in a scope: looks at its prefix end.
    pub(crate) fn spoil_checks_of(&mut self, name: &LockName) {
        if !self.work.pending().checks.is_empty() {
            self.work.pending_mut().checks.retain(|scope, _| !scope.contains(name));
        }
    }

    /// Takes up a look that was begun in this epoch.
    fn take_check(&mut self, scope: &ScopePrefix) -> Option<Checked> {
        self.work.pending().checks.get(scope)?;
        let begun = self.work.pending_mut().checks.remove(scope);
        begun.filter(|checked| checked.epoch == self.counters.epoch)
    }

    /// Looks at `left` holds, waits and locks at most, from where the last command stopped. Returns where
    /// it stops itself; `None` if nothing is left.
    fn look_through(
        &self,
        scope: &ScopePrefix,
        begun: Option<&Checked>,
        left: &mut usize,
    ) -> Result<Option<Checked>, Rejection> {
        let epoch = self.counters.epoch;
        let from = begun.map_or(scope.as_str(), |checked| checked.lock.as_str());
        let locks = self.locks.range::<str, _>((Bound::Included(from), Bound::Unbounded));
        for (name, lock) in locks.take_while(|(name, _)| scope.contains(name)) {
            let begun = begun.filter(|checked| checked.lock == *name);
            let none = (FencingToken::from_raw(0), Ticket::new(0));
            let passed = begun.map_or(none, |checked| (checked.token, checked.ticket));
            if let Some((token, ticket)) = self.look_at_one(scope, (name, lock), passed, left)? {
                return Ok(Some(Checked { epoch, lock: name.clone(), token, ticket }));
            }
        }
        Ok(None)
    }

    /// Looks at the holders and waiters of a lock above these numbers. Returns where it stops.
    fn look_at_one(
        &self,
        scope: &ScopePrefix,
        (name, lock): (&LockName, &Lock),
        (mut token, mut ticket): (FencingToken, Ticket),
        left: &mut usize,
    ) -> Result<Option<(FencingToken, Ticket)>, Rejection> {
        if self.is_closed(name) {
            return Err(Rejection::ScopeHasHoldBounds { scope: scope.clone(), lock: name.clone() });
        }
        if lock.limit.is_some() {
            return Err(Rejection::ScopeHasLimit { scope: scope.clone(), lock: name.clone() });
        }
        for holder in lock.holders.after(Some(token)) {
            if *left == 0 {
                return Ok(Some((token, ticket)));
            }
            *left -= 1;
            self.check_hold(scope, holder, name)?;
            token = holder.grant.token;
        }
        for (at, waiter) in lock.queue.after(ticket) {
            if *left == 0 {
                return Ok(Some((token, ticket)));
            }
            *left -= 1;
            self.is_within(scope, (waiter.session, waiter.request), name)?;
            self.check_wait(scope, waiter, name)?;
            ticket = at.ticket;
        }
        if *left == 0 {
            return Ok(Some((token, ticket)));
        }
        *left -= 1;
        Ok(None)
    }

    /// Whether a present wait is possible in a scope: without a head start, so that the order of ranks is that of tickets.
    fn check_wait(
        &self,
        scope: &ScopePrefix,
        Waiter { session, request, .. }: Waiter,
        name: &LockName,
    ) -> Result<(), Rejection> {
        let found = self.sessions.get(&session);
        self.check_unbound(scope, (session, request), name)?;
        if found.is_none_or(|found| found.said.head_start_ms(request) == 0) {
            return Ok(());
        }
        let (scope, lock) = (scope.clone(), name.clone());
        Err(Rejection::ScopeHasHeadStart { scope, session, lock })
    }

    /// Whether a request has no bounds of its hold.
    fn check_unbound(
        &self,
        scope: &ScopePrefix,
        (session, request): (SessionId, RequestId),
        name: &LockName,
    ) -> Result<(), Rejection> {
        let said = self.sessions.get(&session).and_then(|found| found.said.get(request));
        if said.is_some_and(Terms::binds) {
            let (scope, lock) = (scope.clone(), name.clone());
            return Err(Rejection::ScopeHasHoldBounds { scope, lock });
        }
        Ok(())
    }

    /// Whether a present hold is possible in a scope.
    fn check_hold(
        &self,
        scope: &ScopePrefix,
        holder: Holder,
        name: &LockName,
    ) -> Result<(), Rejection> {
        let epoch = self.counters.epoch;
        let Grant { session, request, token } = holder.grant;
        self.is_within(scope, (session, request), name)?;
        self.check_unbound(scope, (session, request), name)?;
        if token.epoch() != u64::from(epoch) {
            let (scope, lock) = (scope.clone(), name.clone());
            return Err(Rejection::HeldInOtherEpoch { scope, lock, token, epoch });
        }
        Ok(())
    }

    /// Whether all locks that a request still waits for or holds lie in the scope, as `lock` does.
    fn is_within(
        &self,
        scope: &ScopePrefix,
        (session, request): (SessionId, RequestId),
        lock: &LockName,
    ) -> Result<(), Rejection> {
        let record = self.sessions.get(&session).and_then(|found| found.records.get(&request));
        let (lock_set, part) = match record {
            Some(Record::Asked { lock_set, state: State::Held { part, .. } }) => (lock_set, *part),
            Some(Record::Asked { lock_set, .. }) => (lock_set, lock_set.whole()),
            Some(Record::Wrote { .. } | Record::Spent) | None => return Ok(()),
        };
        if lock_set.iter_part(part).all(|(name, _)| scope.contains(name)) {
            return Ok(());
        }
        let (scope, lock) = (scope.clone(), lock.clone());
        Err(Rejection::ScopeCutsRequest { scope, session, lock })
    }
}
