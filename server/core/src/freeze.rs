//! Freezes: prefixes of names of which nothing is granted while somebody looks into something (DESIGN §16, I38).
//!
//! Queues fill as usual, and holds stay: they are released, and expire. A request for several names needs all of them free of
//! freezes; one for any of several is granted those that are. When the last freeze over a name is lifted, its queue is
//! looked at.
//!
//! Names in a scope are never frozen: the other store that may serve it would go on granting. So no freeze lies inside of a
//! scope, and one that covers a scope leaves it out; an operator suspends the scope itself.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_mutants::mutant;

use crate::access::{Caller, Identity, NamePrefix};
use crate::answer::{Answer, Outcome};
use crate::event::Event;
use crate::ids::{Label, LockName, ScopePrefix};
use crate::lock_set::LockSet;
use crate::{LockTable, Rejection};

/// Most freezes at once.
///
/// Source: DESIGN §16.
pub const FREEZES_MAX: usize = 1_000;

/// A freeze.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Freeze {
    /// For those who wait.
    pub message: Label,
    /// Who froze it.
    pub by: Identity,
    /// When: the leader's wall clock, Unix milliseconds. For people.
    pub since_ms: u64,
}

/// All freezes, by their prefixes. They may cover each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(crate) struct Freezes(BTreeMap<NamePrefix, Freeze>);

impl Freezes {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&NamePrefix, &Freeze)> {
        self.0.iter()
    }

    /// The freeze with the longest prefix that a name begins with. O(log n) for each prefix that it nearly begins with.
    fn over(&self, name: &str) -> Option<(&NamePrefix, &Freeze)> {
        let mut begin = name;
        loop {
            let not_above = (Bound::Unbounded, Bound::Included(begin));
            let (prefix, freeze) = self.0.range::<str, _>(not_above).next_back()?;
            if prefix.covers(name) {
                return Some((prefix, freeze));
            }
            // One that the name begins with is no longer than what both begin with.
            begin = common(begin, prefix.as_str());
        }
    }
}

/// What both texts begin with.
fn common<'a>(one: &'a str, other: &str) -> &'a str {
    let differ = one.char_indices().zip(other.chars()).find(|((_, a), b)| a != b);
    let end = differ.map_or(one.len().min(other.len()), |((at, _), _)| at);
    one.get(..end).unwrap_or_default()
}

impl LockTable {
    /// The freeze over a name, if nothing of it is granted for that.
    pub fn freeze_over(&self, name: &LockName) -> Option<(&NamePrefix, &Freeze)> {
        if self.freezes.len() == 0 || self.scopes.of(name).is_some() || mutant!(FrozenIsGranted) {
            return None;
        }
        self.freezes.over(name.as_str())
    }

    pub(crate) fn is_frozen(&self, name: &LockName) -> bool {
        self.freeze_over(name).is_some()
    }

    /// The place of the frozen lock that keeps a request from being granted: the first of them, if too few are left.
    pub(crate) fn frozen_in_the_way(&self, lock_set: &LockSet) -> Option<usize> {
        lock_set.first_in_the_way(|name| self.is_frozen(name))
    }

    /// Every freeze, in the order of their prefixes; at most [`FREEZES_MAX`].
    pub fn freezes(&self) -> impl Iterator<Item = (&NamePrefix, &Freeze)> {
        self.freezes.iter()
    }

    /// Grants nothing of the names of that prefix from here on. A second copy changes nothing; another message takes the
    /// place of the one before.
    ///
    /// # Errors
    ///
    /// [`Rejection::FreezeInScope`], [`Rejection::TooManyFreezes`]: the state is unchanged.
    pub(crate) fn freeze_names(
        &mut self,
        caller: &Caller,
        (prefix, message): (&NamePrefix, &Label),
        events: &mut Vec<Event>,
    ) -> Outcome {
        let inside = |scope: &&ScopePrefix| prefix.as_str().starts_with(scope.as_str());
        if let Some(scope) = self.scopes.iter().map(|(scope, _)| scope).find(inside) {
            return Err(Rejection::FreezeInScope { scope: scope.clone() });
        }
        let by = caller.identity.clone();
        let before = self.freezes.0.get(prefix);
        if before.is_some_and(|before| before.message == *message && before.by == by) {
            return Ok(Answer::FreezesSet);
        }
        if before.is_none() && self.freezes.len() >= FREEZES_MAX {
            return Err(Rejection::TooManyFreezes { max: FREEZES_MAX as u64 });
        }
        let freeze = Freeze { message: message.clone(), by, since_ms: self.stamp_ms };
        Arc::make_mut(&mut self.freezes).0.insert(prefix.clone(), freeze);
        events.push(Event::FreezeChanged { prefix: prefix.clone(), frozen: true });
        Ok(Answer::FreezesSet)
    }

    /// Lifts a freeze, and grants to those who wait and are under no other, as far as the command goes.
    ///
    /// # Errors
    ///
    /// [`Rejection::NotFrozen`]: the state is unchanged.
    pub(crate) fn thaw(&mut self, prefix: &NamePrefix, events: &mut Vec<Event>) -> Outcome {
        if !self.freezes.0.contains_key(prefix) {
            return Err(Rejection::NotFrozen { prefix: prefix.clone() });
        }
        Arc::make_mut(&mut self.freezes).0.remove(prefix);
        events.push(Event::FreezeChanged { prefix: prefix.clone(), frozen: false });
        if mutant!(ThawLooksAtNothing) {
            return Ok(Answer::FreezesSet);
        }
        if self.work.is_limited() {
            self.work.pending_mut().thaws.insert(prefix.clone(), None);
            self.thaw_further(events);
        } else {
            let names: Vec<LockName> = self.awaited_below(prefix, None).cloned().collect();
            self.pass_on(&names, events);
        }
        Ok(Answer::FreezesSet)
    }

    /// Looks at awaited locks whose freeze was lifted, as far as the command goes.
    pub(crate) fn thaw_further(&mut self, events: &mut Vec<Event>) {
        while !self.work.is_spent() {
            let first = self.work.pending().thaws.first_key_value();
            let Some((prefix, after)) =
                first.map(|(prefix, after)| (prefix.clone(), after.clone()))
            else {
                return;
            };
            let looks = self.looks_at_once();
            let names: Vec<LockName> =
                self.awaited_below(&prefix, after.as_ref()).take(looks).cloned().collect();
            let thaws = &mut self.work.pending_mut().thaws;
            match names.last() {
                Some(last) if names.len() == looks => {
                    thaws.insert(prefix, Some(last.clone()));
                }
                Some(_) | None => drop(thaws.remove(&prefix)),
            }
            self.pass_on(&names, events);
        }
    }

    /// The awaited locks whose names begin with a prefix, behind that one, or all of them.
    fn awaited_below<'a>(
        &'a self,
        prefix: &'a NamePrefix,
        after: Option<&'a LockName>,
    ) -> impl Iterator<Item = &'a LockName> {
        let begin =
            after.map_or(Bound::Included(prefix.as_str()), |name| Bound::Excluded(name.as_str()));
        let awaited = self.awaited.range::<str, _>((begin, Bound::Unbounded));
        awaited.take_while(|name| prefix.covers(name.as_str()))
    }

    /// Whether no freeze lies inside of a prefix that is to become a scope.
    ///
    /// # Errors
    ///
    /// [`Rejection::ScopeHasFreeze`].
    pub(crate) fn check_no_freeze_in(&self, scope: &ScopePrefix) -> Result<(), Rejection> {
        let mut inside = self.freezes.iter().map(|(prefix, _)| prefix);
        match inside.find(|prefix| prefix.as_str().starts_with(scope.as_str())) {
            Some(prefix) => {
                let (scope, prefix) = (scope.clone(), prefix.clone());
                Err(Rejection::ScopeHasFreeze { scope, prefix })
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn freezes(prefixes: &[&str]) -> Freezes {
        let freeze = Freeze { message: Label::default(), by: Identity::default(), since_ms: 0 };
        let prefix = |text: &&str| NamePrefix::parse(text).expect("a prefix");
        Freezes(prefixes.iter().map(|text| (prefix(text), freeze.clone())).collect())
    }

    #[test]
    fn the_longest_prefix_that_a_name_begins_with_is_found() {
        let some = freezes(&["a", "a/b", "a/b/", "a/bc", "a/d", "é/", "z"]);
        let over = |name: &str| some.over(name).map(|(prefix, _)| prefix.as_str());
        for (name, prefix) in [
            ("a", Some("a")),
            ("a/b", Some("a/b")),
            ("a/b/1", Some("a/b/")),
            ("a/bb", Some("a/b")),
            ("a/bd", Some("a/b")),
            ("a/c", Some("a")),
            ("a/e", Some("a")),
            ("ab", Some("a")),
            ("b", None),
            ("é/1", Some("é/")),
            ("é", None),
            ("è/1", None),
            ("y", None),
            ("zz", Some("z")),
        ] {
            assert_eq!(over(name), prefix, "{name}");
        }
        let all = freezes(&["", "b"]);
        assert_eq!(all.over("a").map(|(prefix, _)| prefix.as_str()), Some(""));
        assert_eq!(all.over("c").map(|(prefix, _)| prefix.as_str()), Some(""));
        assert!(freezes(&[]).over("a").is_none());
    }
}
