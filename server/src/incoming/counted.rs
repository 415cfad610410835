//! How many connections each identity has to this node: what its quota limits (DESIGN §14).
//!
//! A connection counts for every identity that makes a call on it, from its first such call to its end: a bearer
//! token says with each call who it is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use holdfast_core::Identity;

/// The connections of a node by identity. Cheap to clone; clones are the same.
#[derive(Clone, Debug, Default)]
pub struct ConnectionCounts(Arc<Mutex<BTreeMap<Identity, u64>>>);

impl ConnectionCounts {
    /// How many connections an identity has.
    pub fn of(&self, identity: &Identity) -> u64 {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.get(identity).copied().unwrap_or(0)
    }

    /// Adds one, if `limit` allows it.
    fn add(&self, identity: &Identity, limit: Option<u64>) -> bool {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(identity.clone()).or_default();
        let allowed = limit.is_none_or(|limit| *count < limit);
        if allowed {
            *count += 1;
        } else if *count == 0 {
            counts.remove(identity);
        }
        allowed
    }

    fn remove(&self, identity: &Identity) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(identity) {
            *count -= 1;
            if *count == 0 {
                counts.remove(identity);
            }
        }
    }
}

/// For whom a connection counts.
#[derive(Debug, Default)]
pub struct Counted(Mutex<Callers>);

#[derive(Debug, Default)]
struct Callers {
    identities: BTreeSet<Identity>,
    counts: Option<ConnectionCounts>,
}

impl Counted {
    /// Notes that `identity` makes a call on this connection. `false`: it has as many connections as
    /// `limit` allows, without this one.
    pub fn note(&self, identity: &Identity, limit: Option<u64>, counts: &ConnectionCounts) -> bool {
        let mut callers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if callers.identities.contains(identity) {
            return true;
        }
        let allowed = counts.add(identity, limit);
        if allowed {
            callers.identities.insert(identity.clone());
            callers.counts = Some(counts.clone());
        }
        allowed
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let callers = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(counts) = &callers.counts {
            callers.identities.iter().for_each(|identity| counts.remove(identity));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(text: &str) -> Identity {
        Identity::parse(text).unwrap()
    }

    #[test]
    fn a_connection_counts_once_for_each_of_its_callers_until_it_ends() {
        let counts = ConnectionCounts::default();
        let (app, ci) = (identity("cn:app"), identity("token:ci"));
        let (first, second) = (Counted::default(), Counted::default());

        for _ in 0..2 {
            assert!(first.note(&app, Some(1), &counts));
            assert!(first.note(&ci, None, &counts));
        }
        assert!(!second.note(&app, Some(1), &counts), "it is the second one");
        assert!(second.note(&app, Some(2), &counts));
        assert_eq!((counts.of(&app), counts.of(&ci)), (2, 1));

        drop(first);
        assert_eq!((counts.of(&app), counts.of(&ci)), (1, 0));
        drop(second);
        assert!(counts.0.lock().unwrap().is_empty());
    }

    #[test]
    fn who_may_have_none_leaves_nothing_behind() {
        let counts = ConnectionCounts::default();
        assert!(!Counted::default().note(&identity("cn:app"), Some(0), &counts));
        assert!(counts.0.lock().unwrap().is_empty());
    }
}
