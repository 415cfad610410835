//! The stores of sessions and of values: shards that a snapshot shares with the table.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ids::{LockName, SessionId};

/// Number of shards of a store. Part of the snapshot's order, so part of its version.
const SHARDS: usize = 1_024;

/// A map in [`SHARDS`] shards behind `Arc`s.
///
/// A clone clones the `Arc`s; the first write to a shard afterwards copies that shard alone, and of
/// values only references.
#[derive(Clone, Debug)]
pub(crate) struct Shards<K, V> {
    /// Invariant: `SHARDS` long; an entry lies in the shard of its key.
    shards: Vec<Arc<BTreeMap<K, V>>>,
}

/// A key of a store.
pub(crate) trait Sharded: Clone + Ord {
    /// The number of its shard, the same on every replica.
    fn shard(&self) -> usize;
}

/// Ids rise by one, so their remainders spread evenly.
impl Sharded for SessionId {
    fn shard(&self) -> usize {
        // The remainder is below SHARDS, so it fits any usize.
        usize::try_from(self.get() % SHARDS as u64).unwrap_or(0)
    }
}

impl Sharded for LockName {
    fn shard(&self) -> usize {
        crc32fast::hash(self.as_str().as_bytes()) as usize % SHARDS
    }
}

impl<K: Sharded, V: Clone> Shards<K, V> {
    pub(crate) fn new() -> Self {
        Self { shards: vec![Arc::default(); SHARDS] }
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.shards.get(key.shard())?.get(key)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.shard_mut(key)?.get_mut(key)
    }

    /// Puts an entry in its place, and returns the one that was there.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.shard_mut(&key)?.insert(key, value)
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        self.get(key)?;
        self.shard_mut(key)?.remove(key)
    }

    /// All entries, by shard and in it by key: the same order on every replica.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.shards.iter().flat_map(|shard| shard.iter())
    }

    fn shard_mut(&mut self, key: &K) -> Option<&mut BTreeMap<K, V>> {
        self.shards.get_mut(key.shard()).map(Arc::make_mut)
    }
}
