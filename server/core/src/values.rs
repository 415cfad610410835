//! The store of values: shards that a snapshot shares with the table.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ids::LockName;
use crate::sessions::SHARDS;
use crate::value::Value;

pub(crate) type ValueShard = BTreeMap<LockName, Value>;

/// All values, by lock, in [`SHARDS`] shards behind `Arc`s.
///
/// A freeze clones the `Arc`s; the first write to a shard afterwards copies that shard alone, and
/// only references to its values.
#[derive(Clone, Debug)]
pub(crate) struct Values {
    /// Invariant: `SHARDS` long; a value lies in the shard of its lock's name.
    shards: Vec<Arc<ValueShard>>,
}

/// The shard of a lock's value: by a checksum of the name, the same on every replica.
pub(crate) fn shard_of(lock: &LockName) -> usize {
    crc32fast::hash(lock.as_str().as_bytes()) as usize % SHARDS
}

impl Values {
    pub(crate) fn new() -> Self {
        Self { shards: vec![Arc::default(); SHARDS] }
    }

    /// Stores a value, or removes the present one; returns the one that was there.
    pub(crate) fn set(&mut self, lock: &LockName, value: Option<Value>) -> Option<Value> {
        let shard = self.shards.get_mut(shard_of(lock)).map(Arc::make_mut)?;
        match value {
            Some(value) => shard.insert(lock.clone(), value),
            None => shard.remove(lock),
        }
    }

    /// All values, by shard and in it by name: the same order on every replica.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&LockName, &Value)> {
        self.shards.iter().flat_map(|shard| shard.iter())
    }

    pub(crate) fn freeze(&self) -> Vec<Arc<ValueShard>> {
        self.shards.clone()
    }
}
