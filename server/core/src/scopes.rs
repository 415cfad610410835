//! The scopes, the scope of a name, and the locks to look at when a scope is resumed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use borsh::{BorshDeserialize, BorshSerialize};

use crate::ids::{LockName, ScopePrefix};

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
