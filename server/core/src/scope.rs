//! Scopes: names whose authority may lie in another store for a while (DESIGN §10), and the effect
//! on their locks.
//!
//! The table knows nothing of authority. Commands suspend a scope, and the table grants nothing in
//! it; or resume it; or raise its epoch, because clients may have held its locks in the other
//! store, and the table ends every earlier hold. Safety needs none of this: a client relies on a
//! hold only for as long as authority of its token's epoch covers it.
//!
//! # Invariants
//!
//! - Every hold in a scope has a token of its epoch. So a request asks for locks of one scope, or
//!   for locks of none: one token has one epoch.
//! - A scope begins with the cluster's epoch and leaves the cluster with one above its own: tokens
//!   of its names rise through both (I3).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use borsh::{BorshDeserialize, BorshSerialize};

use crate::answer::{Answer, Outcome};
use crate::event::{Event, LossCause};
use crate::ids::{FencingToken, LockName, RequestId, ScopePrefix, SessionId};
use crate::lock::Lock;
use crate::lock_set::{LockSet, Part};
use crate::release::Ending;
use crate::session::{Record, State};
use crate::{Grant, LockTable, Rejection};

/// Most scopes at once.
///
/// Source: the answer to every keepalive lists them all, and each has a task and a row of its own.
pub const SCOPES_MAX: usize = 16;
/// The last epoch of a scope. The epochs above it, up to
/// [`FencingToken::EPOCH_MAX`](crate::FencingToken), are left for a cluster that is restored, and
/// for an operator to find a way out.
///
/// Source: DESIGN §10.
pub const SCOPE_EPOCH_MAX: u16 = 32_000;

/// The state of a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct ScopeState {
    /// Upper part of every token granted in it; at most [`SCOPE_EPOCH_MAX`].
    pub epoch: u16,
    /// Whether the table grants nothing in it.
    pub suspended: bool,
    /// It was never resumed, and its epoch never raised: no leader has had authority over it yet.
    /// So there may be no row for it in Cassandra; a scope that is not fresh has one.
    pub fresh: bool,
}

/// All scopes, by their prefixes.
///
/// # Invariants
///
/// - No two overlap: so the last prefix that is not above a name is the only one it can begin with.
/// - Only a suspended scope has locks put off.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scopes(BTreeMap<ScopePrefix, Scope>);

#[derive(Clone, Debug)]
struct Scope {
    state: ScopeState,
    /// Locks whose queues the table did not look at because the scope is suspended. After a restore
    /// these are all locks with waiters: extra ones change nothing, so this is not stored.
    put_off: BTreeSet<LockName>,
}

impl Scopes {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// In the order of their prefixes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&ScopePrefix, ScopeState)> {
        self.0.iter().map(|(prefix, scope)| (prefix, scope.state))
    }

    pub(crate) fn get(&self, prefix: &ScopePrefix) -> Option<ScopeState> {
        self.0.get(prefix).map(|scope| scope.state)
    }

    /// The scope that a name lies in.
    pub(crate) fn of(&self, name: &LockName) -> Option<(&ScopePrefix, ScopeState)> {
        let not_above = (Bound::Unbounded, Bound::Included(name.as_str()));
        let (prefix, scope) = self.0.range::<str, _>(not_above).next_back()?;
        prefix.contains(name).then_some((prefix, scope.state))
    }

    /// Adds a scope, or changes its state; the locks put off stay.
    pub(crate) fn put(&mut self, prefix: ScopePrefix, state: ScopeState) {
        let put_off = BTreeSet::new();
        self.0.entry(prefix).or_insert(Scope { state, put_off }).state = state;
    }

    /// Removes a scope, and returns its state and the locks put off in it.
    pub(crate) fn remove(
        &mut self,
        prefix: &ScopePrefix,
    ) -> Option<(ScopeState, BTreeSet<LockName>)> {
        let Scope { state, put_off } = self.0.remove(prefix)?;
        Some((state, put_off))
    }

    /// Whether the name's scope is suspended; if so, `resume` will look at the lock.
    pub(crate) fn put_off(&mut self, name: &LockName) -> bool {
        let Some(scope) = self.suspended_of(name) else { return false };
        scope.put_off.insert(name.clone());
        true
    }

    /// The lock has left the table.
    pub(crate) fn forget(&mut self, name: &LockName) {
        if let Some(scope) = self.suspended_of(name) {
            scope.put_off.remove(name);
        }
    }

    /// Takes the locks put off in a scope, and leaves none.
    pub(crate) fn take_put_off(&mut self, prefix: &ScopePrefix) -> BTreeSet<LockName> {
        self.0.get_mut(prefix).map(|scope| std::mem::take(&mut scope.put_off)).unwrap_or_default()
    }

    /// All locks put off.
    pub(crate) fn all_put_off(&self) -> impl Iterator<Item = (&ScopePrefix, &LockName)> {
        let of = |(prefix, scope)| {
            let Scope { put_off, .. }: &Scope = scope;
            put_off.iter().map(move |name| (prefix, name))
        };
        self.0.iter().flat_map(of)
    }

    pub(crate) fn is_put_off(&self, name: &LockName) -> bool {
        let found = self.of(name).and_then(|(prefix, _)| self.0.get(prefix));
        found.is_some_and(|scope| scope.put_off.contains(name))
    }

    fn suspended_of(&mut self, name: &LockName) -> Option<&mut Scope> {
        let (prefix, _) = self.of(name).filter(|(_, state)| state.suspended)?;
        let prefix = prefix.clone();
        self.0.get_mut(&prefix)
    }
}

impl LockTable {
    /// Makes the names of that prefix a scope. Holds and waits of them go on. A second copy changes
    /// nothing. Looks at every lock of the scope.
    ///
    /// # Errors
    ///
    /// [`Rejection::ScopesOverlap`], [`Rejection::TooManyScopes`], [`Rejection::EpochTooHigh`],
    /// [`Rejection::ScopeCutsRequest`], [`Rejection::HeldInOtherEpoch`]: the state is unchanged.
    pub(crate) fn set_scope(&mut self, scope: &ScopePrefix, events: &mut Vec<Event>) -> Outcome {
        let now = self.scopes.get(scope);
        if now.is_some() {
            return Ok(Answer::Scope { now });
        }
        self.may_become_scope(scope)?;
        let now = ScopeState { epoch: self.counters.epoch, suspended: true, fresh: true };
        Ok(self.change_scope(scope, now, events))
    }

    /// Removes a scope, so that its names are like all others; grants the waiters that can be
    /// granted.
    ///
    /// # Errors
    ///
    /// [`Rejection::UnknownScope`]: the state is unchanged.
    pub(crate) fn remove_scope(&mut self, scope: &ScopePrefix, events: &mut Vec<Event>) -> Outcome {
        let Some((was, put_off)) = self.scopes.remove(scope) else {
            return Err(Rejection::UnknownScope { scope: scope.clone() });
        };
        // A token allows for this epoch: a scope's epochs end far below its maximum.
        self.counters.epoch = self.counters.epoch.max(was.epoch.saturating_add(1));
        events.push(Event::ScopeChanged { scope: scope.clone(), now: None });
        self.pass_on(&put_off, events);
        Ok(Answer::Scope { now: None })
    }

    /// Grants nothing in the scope from here on. A second copy changes nothing.
    ///
    /// # Errors
    ///
    /// [`Rejection::UnknownScope`]: the state is unchanged.
    pub(crate) fn suspend(&mut self, scope: &ScopePrefix, events: &mut Vec<Event>) -> Outcome {
        let was = self.known_scope(scope)?;
        Ok(self.change_scope(scope, ScopeState { suspended: true, ..was }, events))
    }

    /// Grants again, first to the waiters put off, the smallest ticket first. A second copy changes
    /// nothing.
    ///
    /// # Errors
    ///
    /// [`Rejection::UnknownScope`], [`Rejection::OtherEpoch`]: the state is unchanged.
    pub(crate) fn resume(
        &mut self,
        scope: &ScopePrefix,
        epoch: u16,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let was = self.known_scope(scope)?;
        if was.epoch != epoch {
            return Err(Rejection::OtherEpoch { scope: scope.clone(), epoch, now: was.epoch });
        }
        let now = ScopeState { epoch, suspended: false, fresh: false };
        let answer = self.change_scope(scope, now, events);
        let put_off = self.scopes.take_put_off(scope);
        self.pass_on(&put_off, events);
        Ok(answer)
    }

    /// Ends every hold of the scope as lost, in the order of their tokens, and suspends the scope
    /// in a later epoch. Looks at every lock of the scope.
    ///
    /// # Errors
    ///
    /// [`Rejection::UnknownScope`], [`Rejection::EpochNotAbove`], [`Rejection::EpochTooHigh`]: the
    /// state is unchanged. So a second copy is refused, and ends nothing.
    pub(crate) fn raise_epoch(
        &mut self,
        scope: &ScopePrefix,
        epoch: u16,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let was = self.known_scope(scope)?;
        if epoch <= was.epoch {
            return Err(Rejection::EpochNotAbove { scope: scope.clone(), epoch, now: was.epoch });
        }
        check_epoch(epoch)?;
        let now = ScopeState { epoch, suspended: true, fresh: false };
        let answer = self.change_scope(scope, now, events);
        for ending in self.holds_in(scope) {
            let Grant { session, request, token } = ending.grant;
            let none = Part::default();
            self.change_session(session, |found| found.give_back(request, token, none));
            self.lose(&ending, LossCause::EpochRaised, events);
        }
        Ok(answer)
    }

    fn known_scope(&self, scope: &ScopePrefix) -> Result<ScopeState, Rejection> {
        let known = self.scopes.get(scope);
        known.ok_or_else(|| Rejection::UnknownScope { scope: scope.clone() })
    }

    fn change_scope(
        &mut self,
        scope: &ScopePrefix,
        now: ScopeState,
        events: &mut Vec<Event>,
    ) -> Answer {
        if self.scopes.get(scope) != Some(now) {
            self.scopes.put(scope.clone(), now);
            events.push(Event::ScopeChanged { scope: scope.clone(), now: Some(now) });
        }
        Answer::Scope { now: Some(now) }
    }

    fn may_become_scope(&self, scope: &ScopePrefix) -> Result<(), Rejection> {
        if let Some((other, _)) = self.scopes.iter().find(|(other, _)| other.overlaps(scope)) {
            let (scope, other) = (scope.clone(), other.clone());
            return Err(Rejection::ScopesOverlap { scope, other });
        }
        if self.scopes.len() >= SCOPES_MAX {
            return Err(Rejection::TooManyScopes { max: SCOPES_MAX as u64 });
        }
        check_epoch(self.counters.epoch)?;
        for (name, lock) in self.locks_in(scope) {
            self.fits_into_scope(scope, name, lock)?;
        }
        Ok(())
    }

    /// Whether the present holds and waits of a lock are possible in a scope.
    fn fits_into_scope(
        &self,
        scope: &ScopePrefix,
        name: &LockName,
        lock: &Lock,
    ) -> Result<(), Rejection> {
        let epoch = self.counters.epoch;
        for holder in lock.holders.iter() {
            let Grant { session, request, token } = holder.grant;
            self.is_within(scope, (session, request), name)?;
            if token.epoch() != u64::from(epoch) {
                let (scope, lock) = (scope.clone(), name.clone());
                return Err(Rejection::HeldInOtherEpoch { scope, lock, token, epoch });
            }
        }
        let mut waiters = lock.queue.iter();
        waiters.try_for_each(|(_, waiter)| {
            self.is_within(scope, (waiter.session, waiter.request), name)
        })
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

    /// Every hold in a scope, in the order of their tokens.
    fn holds_in(&self, scope: &ScopePrefix) -> Vec<Ending> {
        let held = self.locks_in(scope).flat_map(|(_, lock)| lock.holders.iter());
        let grants: BTreeMap<FencingToken, Grant> =
            held.map(|holder| (holder.grant.token, holder.grant)).collect();
        let whole = |grant: Grant| {
            let found = self.sessions.get(&grant.session)?;
            let (lock_set, part) = found.records.get(&grant.request)?.held()?;
            Some(Ending { grant, lock_set: lock_set.clone(), part })
        };
        grants.into_values().filter_map(whole).collect()
    }

    fn locks_in(&self, scope: &ScopePrefix) -> impl Iterator<Item = (&LockName, &Lock)> {
        let from = (Bound::Included(scope.as_str()), Bound::Unbounded);
        let from = self.locks.range::<str, _>(from);
        from.take_while(|(name, _)| scope.contains(name))
    }

    /// After a restore: resuming a suspended scope looks at every lock in it that has waiters.
    pub(crate) fn restore_put_off(&mut self) {
        let scopes: Vec<ScopePrefix> = self.scopes.iter().map(|(scope, _)| scope.clone()).collect();
        for scope in scopes {
            let waited_for = self.locks_in(&scope).filter(|(_, lock)| !lock.queue.is_empty());
            let names: Vec<LockName> = waited_for.map(|(name, _)| name.clone()).collect();
            for name in names {
                self.scopes.put_off(&name);
            }
        }
    }

    /// The scope of a request: that of each of its locks.
    fn scope_of_wish(&self, lock_set: &LockSet) -> Option<(&ScopePrefix, ScopeState)> {
        self.scopes.of(lock_set.get(0)?.0)
    }

    /// The epoch of a token for the request.
    pub(crate) fn epoch_of(&self, lock_set: &LockSet) -> u16 {
        self.scope_of_wish(lock_set).map_or(self.counters.epoch, |(_, state)| state.epoch)
    }

    /// Whether the scope of a request is suspended, so that the request cannot be granted, held
    /// locks or not.
    pub(crate) fn is_suspended(&self, lock_set: &LockSet) -> bool {
        self.scope_of_wish(lock_set).is_some_and(|(_, state)| state.suspended)
    }

    pub(crate) fn tokens_exhausted(&self, lock_set: &LockSet) -> Rejection {
        Rejection::TokensExhausted { epoch: self.epoch_of(lock_set) }
    }

    /// Whether all its locks have the same epoch, so that one token can serve for them.
    ///
    /// # Errors
    ///
    /// [`Rejection::SeveralScopes`].
    pub(crate) fn check_one_scope(&self, lock_set: &LockSet) -> Result<(), Rejection> {
        let scope = |name| self.scopes.of(name).map(|(scope, _)| scope);
        let mut names = lock_set.iter().map(|(name, _)| name);
        let Some(first) = names.next() else { return Ok(()) };
        match names.find(|other| scope(other) != scope(first)) {
            Some(second) => {
                let (first, second) = (first.clone(), second.clone());
                Err(Rejection::SeveralScopes { first, second })
            }
            None => Ok(()),
        }
    }
}

fn check_epoch(epoch: u16) -> Result<(), Rejection> {
    if epoch > SCOPE_EPOCH_MAX {
        return Err(Rejection::EpochTooHigh { epoch, max: SCOPE_EPOCH_MAX });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> ScopePrefix {
        ScopePrefix::parse(text).expect("a prefix")
    }

    fn name(text: &str) -> LockName {
        LockName::parse(text).expect("a name")
    }

    fn scopes(prefixes: &[&str], suspended: bool) -> Scopes {
        let mut scopes = Scopes::default();
        for text in prefixes {
            scopes.put(prefix(text), ScopeState { epoch: 1, suspended, fresh: true });
        }
        scopes
    }

    #[test]
    fn a_name_lies_in_the_one_scope_whose_prefix_it_begins_with() {
        let scopes = scopes(&["b/", "bz", "é", "a"], false);
        let of = |text: &str| scopes.of(&name(text)).map(|(prefix, _)| prefix.as_str());
        assert_eq!(
            [of("a"), of("ab"), of("b/"), of("b/1")],
            [Some("a"), Some("a"), Some("b/"), Some("b/")]
        );
        assert_eq!([of("bz"), of("bzz"), of("é1")], [Some("bz"), Some("bz"), Some("é")]);
        assert_eq!([of("b"), of("b0"), of("by"), of("c"), of("A"), of("z")], [None; 6]);
    }

    #[test]
    fn only_what_is_in_a_suspended_scope_is_put_off_and_what_has_left_is_forgotten() {
        let mut scopes = scopes(&["s/", "t/"], true);
        scopes.put(prefix("t/"), ScopeState { epoch: 1, suspended: false, fresh: false });
        assert!(scopes.put_off(&name("s/1")) && scopes.put_off(&name("s/2")));
        assert!(!scopes.put_off(&name("t/1")) && !scopes.put_off(&name("u")));
        scopes.forget(&name("s/1"));
        assert_eq!(scopes.take_put_off(&prefix("s/")), [name("s/2")].into());
        assert!(scopes.take_put_off(&prefix("s/")).is_empty());
    }
}
