//! Things that exist as long as somebody uses them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Below so many entries nothing is looked through.
const FEW: usize = 64;

/// One value for each key, shared by all who ask for it while one of them keeps it.
pub struct Shared<K, V> {
    entries: Mutex<Entries<K, V>>,
}

struct Entries<K, V> {
    by_key: BTreeMap<K, Weak<V>>,
    /// With so many entries those that nobody uses are removed: twice as many as were in use the last time, so that a call costs the same
    /// however many there are.
    clean_at: usize,
}

impl<K, V> Default for Shared<K, V> {
    fn default() -> Self {
        Self { entries: Mutex::new(Entries { by_key: BTreeMap::new(), clean_at: FEW }) }
    }
}

impl<K: Ord, V: Default> Shared<K, V> {
    /// The value of this key: the one that somebody has, or else a new one.
    pub fn get(&self, key: K) -> Arc<V> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = entries.by_key.get(&key).and_then(Weak::upgrade) {
            return value;
        }
        if entries.by_key.len() >= entries.clean_at {
            entries.by_key.retain(|_, value| value.strong_count() > 0);
            entries.clean_at = FEW.max(entries.by_key.len().saturating_mul(2));
        }
        let value = Arc::default();
        entries.by_key.insert(key, Arc::downgrade(&value));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_shared_while_somebody_has_it_and_forgotten_afterwards() {
        let shared = Shared::<u32, Mutex<u32>>::default();
        let first = shared.get(1);
        *first.lock().unwrap() = 7;
        assert!(Arc::ptr_eq(&first, &shared.get(1)));
        assert!(!Arc::ptr_eq(&first, &shared.get(2)));

        drop(first);
        assert_eq!(*shared.get(1).lock().unwrap(), 0);
        for key in 0..10_000 {
            shared.get(key);
        }
        let entries = shared.entries.lock().unwrap();
        assert!(entries.by_key.len() <= FEW, "{}", entries.by_key.len());
    }
}
