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
//! - Every hold in a scope has a token of its epoch, but for those that a later epoch has ended and that
//!   have not had their turn (`work.rs`). So a request asks for locks of one scope, or for locks of none:
//!   one token has one epoch.
//! - A scope begins with the cluster's epoch and leaves the cluster with one above its own: tokens
//!   of its names rise through both (I3).

use std::collections::BTreeMap;
use std::ops::Bound;

use borsh::{BorshDeserialize, BorshSerialize};

use crate::answer::{Answer, Outcome};
use crate::event::{Event, LossCause};
use crate::ids::{FencingToken, LockName, ScopePrefix, SessionId};
use crate::lock::Lock;
use crate::lock_set::{LockSet, Part};
use crate::release::Ending;
use crate::work::Sweep;
use crate::{Grant, LockTable, Rejection};

/// Awaited locks of a scope that are looked at together, the smallest ticket first.
const LOOKS_AT_ONCE: usize = 256;
/// So many holds of a session are passed over in one step.
const TOKENS_A_STEP: u64 = 16;

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
#[derive(Clone, Debug, Default)]
pub(crate) struct Scopes(BTreeMap<ScopePrefix, ScopeState>);

impl Scopes {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// In the order of their prefixes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&ScopePrefix, ScopeState)> {
        self.0.iter().map(|(prefix, state)| (prefix, *state))
    }

    pub(crate) fn get(&self, prefix: &ScopePrefix) -> Option<ScopeState> {
        self.0.get(prefix).copied()
    }

    /// The scope that a name lies in.
    pub(crate) fn of(&self, name: &LockName) -> Option<(&ScopePrefix, ScopeState)> {
        let not_above = (Bound::Unbounded, Bound::Included(name.as_str()));
        let (prefix, state) = self.0.range::<str, _>(not_above).next_back()?;
        prefix.contains(name).then_some((prefix, *state))
    }

    /// Adds a scope, or changes its state.
    pub(crate) fn put(&mut self, prefix: ScopePrefix, state: ScopeState) {
        self.0.insert(prefix, state);
    }

    /// Removes a scope, and returns its state.
    pub(crate) fn remove(&mut self, prefix: &ScopePrefix) -> Option<ScopeState> {
        self.0.remove(prefix)
    }

    /// Whether the name's scope is suspended: resuming it looks at the lock if it has a queue.
    pub(crate) fn is_suspended(&self, name: &LockName) -> bool {
        self.of(name).is_some_and(|(_, state)| state.suspended)
    }
}

impl LockTable {
    /// Makes the names of that prefix a scope. Holds and waits of them go on. A second copy changes
    /// nothing. Looks at every lock of the scope, within a limit of work in as many copies of the command
    /// as that takes (`scope_check.rs`).
    ///
    /// # Errors
    ///
    /// [`Rejection::ScopesOverlap`], [`Rejection::TooManyScopes`], [`Rejection::EpochTooHigh`],
    /// [`Rejection::ScopeCutsRequest`], [`Rejection::HeldInOtherEpoch`], [`Rejection::ScopeHasFreeze`]: the state is unchanged.
    /// [`Rejection::Unfinished`]: the next copy goes on with the look.
    pub(crate) fn set_scope(&mut self, scope: &ScopePrefix, events: &mut Vec<Event>) -> Outcome {
        let now = self.scopes.get(scope);
        if now.is_some() {
            return Ok(Answer::Scope { now });
        }
        self.check_no_freeze_in(scope)?;
        if !self.may_become_scope(scope)? {
            return Err(Rejection::Unfinished { scope: scope.clone() });
        }
        let now = ScopeState { epoch: self.counters.epoch, suspended: true, fresh: true };
        Ok(self.change_scope(scope, now, events))
    }

    /// Removes a scope, so that its names are like all others; grants the waiters that can be
    /// granted.
    ///
    /// # Errors
    ///
    /// [`Rejection::UnknownScope`]; [`Rejection::Unfinished`] while holds of an earlier epoch have not had
    /// their turn: nobody would know any more that they are over. The state is unchanged.
    pub(crate) fn remove_scope(&mut self, scope: &ScopePrefix, events: &mut Vec<Event>) -> Outcome {
        if self.work.pending().sweeps.contains_key(scope) {
            return Err(Rejection::Unfinished { scope: scope.clone() });
        }
        let Some(was) = self.scopes.remove(scope) else {
            return Err(Rejection::UnknownScope { scope: scope.clone() });
        };
        // A token allows for this epoch: a scope's epochs end far below its maximum.
        self.counters.epoch = self.counters.epoch.max(was.epoch.saturating_add(1));
        self.restored.forget_scope(scope);
        events.push(Event::ScopeChanged { scope: scope.clone(), now: None });
        self.look_at_scope(scope, events);
        Ok(Answer::Scope { now: None })
    }

    /// Grants nothing in the scope from here on. A second copy changes nothing.
    ///
    /// # Errors
    ///
    /// [`Rejection::UnknownScope`]: the state is unchanged.
    pub(crate) fn suspend(&mut self, scope: &ScopePrefix, events: &mut Vec<Event>) -> Outcome {
        let was = self.known_scope(scope)?;
        self.stop_looking_at(scope);
        Ok(self.change_scope(scope, ScopeState { suspended: true, ..was }, events))
    }

    /// Grants again, first to those who wait already, the smallest ticket first; within a limit of work,
    /// the smallest of a few hundred locks at a time. A second copy changes nothing.
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
        if was.suspended {
            self.look_at_scope(scope, events);
        }
        Ok(answer)
    }

    /// Ends every hold of the scope as lost, in the order of their tokens, and suspends the scope
    /// in a later epoch. Looks at every lock of the scope: within a limit of work later commands end most
    /// holds, those of one session together, and each is over in the meantime
    /// ([`LockTable::is_outdated`]).
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
        self.restored.forget_scope(scope);
        self.stop_looking_at(scope);
        if self.work.is_limited() {
            let sweep = Sweep { below: epoch, after: None };
            self.work.pending_mut().sweeps.insert(scope.clone(), sweep);
            self.sweep_further(events);
        } else {
            for ending in self.holds_in(scope) {
                self.end_outdated(&ending, events);
            }
        }
        Ok(answer)
    }

    fn end_outdated(&mut self, ending: &Ending, events: &mut Vec<Event>) {
        let Grant { session, request, token } = ending.grant;
        self.charge_for(session);
        self.change_session(session, |found| found.give_back(request, token, Part::default()));
        self.lose(ending, LossCause::EpochRaised, events);
    }

    /// Ends holds of earlier epochs, as far as the command goes: at the next lock that has one, all those
    /// of its holder's session, which then is copied once if a snapshot shares it.
    pub(crate) fn sweep_further(&mut self, events: &mut Vec<Event>) {
        while !self.work.is_spent() {
            let first = self.work.pending().sweeps.first_key_value();
            let Some((scope, sweep)) = first.map(|(scope, sweep)| (scope.clone(), sweep.clone()))
            else {
                return;
            };
            let most = self.work.looks_left();
            let (mut looked, mut after, mut holder) = (0, None, None);
            let locks = self.locks_in(&scope, sweep.after.as_ref());
            for (name, lock) in locks.take(most) {
                looked += 1;
                let first = lock.holders.first().map(|holder| holder.grant);
                holder = first.filter(|grant| grant.token.epoch() < u64::from(sweep.below));
                if holder.is_some() {
                    break;
                }
                after = Some(name);
            }
            let after = after.cloned().or(sweep.after);
            self.work.charge(looked as u64);
            let sweeps = &mut self.work.pending_mut().sweeps;
            if holder.is_none() && looked < most {
                sweeps.remove(&scope);
                continue;
            }
            sweeps.insert(scope.clone(), Sweep { after, ..sweep });
            if let Some(grant) = holder {
                self.end_outdated_of(grant.session, &scope, sweep.below, events);
            }
        }
    }

    /// Ends the holds of a session in a scope under tokens of earlier epochs, as far as the command goes;
    /// at least one.
    fn end_outdated_of(
        &mut self,
        session: SessionId,
        scope: &ScopePrefix,
        below: u16,
        events: &mut Vec<Event>,
    ) {
        let Some(found) = self.sessions.get(&session) else { return };
        self.work.charge(found.holds.len() as u64 / TOKENS_A_STEP);
        let outdated = found.holds.iter().filter(|(token, _)| token.epoch() < u64::from(below));
        let in_scope = outdated.filter_map(|(&token, &request)| {
            let (lock_set, part) = found.records.get(&request)?.held()?;
            let is_in = lock_set.get(0).is_some_and(|(name, _)| scope.contains(name));
            let grant = Grant { session, request, token };
            is_in.then(|| Ending { grant, lock_set: lock_set.clone(), part, closes: None })
        });
        let endings: Vec<Ending> = in_scope.take(self.work.looks_left()).collect();
        for (at, ending) in endings.iter().enumerate() {
            if at > 0 && self.work.is_spent() {
                return;
            }
            self.end_outdated(ending, events);
        }
    }

    /// Looks at every awaited lock of a prefix that may grant again, as far as the command goes.
    fn look_at_scope(&mut self, scope: &ScopePrefix, events: &mut Vec<Event>) {
        if self.work.is_limited() {
            self.work.pending_mut().looks.insert(scope.clone(), None);
            self.look_further(events);
        } else {
            let names: Vec<LockName> = self.awaited_in(scope, None).cloned().collect();
            self.pass_on(&names, events);
        }
    }

    /// Looks at awaited locks that earlier commands have left, as far as the command goes.
    pub(crate) fn look_further(&mut self, events: &mut Vec<Event>) {
        while !self.work.is_spent() {
            let first = self.work.pending().looks.first_key_value();
            let Some((scope, after)) = first.map(|(scope, after)| (scope.clone(), after.clone()))
            else {
                return;
            };
            let looks = self.looks_at_once();
            let names: Vec<LockName> =
                self.awaited_in(&scope, after.as_ref()).take(looks).cloned().collect();
            let pending = &mut self.work.pending_mut().looks;
            match names.last() {
                Some(last) if names.len() == looks => {
                    pending.insert(scope, Some(last.clone()));
                }
                Some(_) | None => drop(pending.remove(&scope)),
            }
            self.pass_on(&names, events);
        }
    }

    /// A suspended scope grants nothing; resuming it begins from the first lock.
    fn stop_looking_at(&mut self, scope: &ScopePrefix) {
        if self.work.pending().looks.contains_key(scope) {
            self.work.pending_mut().looks.remove(scope);
        }
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

    /// Every hold in a scope, in the order of their tokens.
    fn holds_in(&self, scope: &ScopePrefix) -> Vec<Ending> {
        let held = self.locks_in(scope, None).flat_map(|(_, lock)| lock.holders.iter());
        let grants: BTreeMap<FencingToken, Grant> =
            held.map(|holder| (holder.grant.token, holder.grant)).collect();
        let whole = |grant: Grant| {
            let found = self.sessions.get(&grant.session)?;
            let (lock_set, part) = found.records.get(&grant.request)?.held()?;
            Some(Ending { grant, lock_set: lock_set.clone(), part, closes: None })
        };
        grants.into_values().filter_map(whole).collect()
    }

    /// The locks of a scope behind that one, or all of them.
    pub(crate) fn locks_in<'a>(
        &'a self,
        scope: &'a ScopePrefix,
        after: Option<&'a LockName>,
    ) -> impl Iterator<Item = (&'a LockName, &'a Lock)> {
        let locks = self.locks.range::<str, _>((begin(scope, after), Bound::Unbounded));
        locks.take_while(|(name, _)| scope.contains(name))
    }

    /// The locks of a scope with a queue behind that one, or all of them.
    fn awaited_in<'a>(
        &'a self,
        scope: &'a ScopePrefix,
        after: Option<&'a LockName>,
    ) -> impl Iterator<Item = &'a LockName> {
        let awaited = self.awaited.range::<str, _>((begin(scope, after), Bound::Unbounded));
        awaited.take_while(|name| scope.contains(name))
    }

    /// The locks with a queue behind that one, or all of them.
    pub(crate) fn awaited_after<'a>(
        &'a self,
        after: Option<&'a LockName>,
    ) -> impl Iterator<Item = &'a LockName> {
        let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.awaited.range::<LockName, _>((begin, Bound::Unbounded))
    }

    /// How many awaited locks the command may look at together.
    pub(crate) fn looks_at_once(&self) -> usize {
        self.work.looks_left().min(LOOKS_AT_ONCE)
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

/// Where the names of a scope begin, or go on behind one of them.
fn begin<'a>(scope: &'a ScopePrefix, after: Option<&'a LockName>) -> Bound<&'a str> {
    after.map_or(Bound::Included(scope.as_str()), |name| Bound::Excluded(name.as_str()))
}

pub(crate) fn check_epoch(epoch: u16) -> Result<(), Rejection> {
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
    fn only_a_name_in_a_suspended_scope_is_suspended() {
        let mut scopes = scopes(&["s/", "t/"], true);
        scopes.put(prefix("t/"), ScopeState { epoch: 1, suspended: false, fresh: false });
        assert!(scopes.is_suspended(&name("s/1")));
        assert!(!scopes.is_suspended(&name("t/1")) && !scopes.is_suspended(&name("u")));
        assert_eq!(scopes.remove(&prefix("s/")).map(|was| was.suspended), Some(true));
        assert!(!scopes.is_suspended(&name("s/1")));
    }
}
