//! The stores of sessions and of values: shards that a snapshot shares with the table.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::ids::{LockName, SessionId};

/// Number of shards of a store. Part of the snapshot's order, so part of its version.
pub(crate) const SHARDS: usize = 1_024;

/// A map in [`SHARDS`] shards behind `Arc`s, with each value behind another.
///
/// A clone clones the `Arc`s of the shards. The first write to a shard afterwards copies that shard
/// alone, and only references to its values; the first write to a value copies that value. So right
/// after a snapshot was begun a write costs little more than otherwise, although a session may have
/// a thousand requests and a shard of a large table thousands of sessions.
#[derive(Clone, Debug)]
pub(crate) struct Shards<K, V> {
    /// Invariant: `SHARDS` long; an entry lies in the shard of its key.
    shards: Vec<Arc<BTreeMap<K, Arc<V>>>>,
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

impl<K: Sharded, V> Shards<K, V> {
    /// The entries that come after a key in the order of [`Shards::iter`]; all of them if it is
    /// `None`. The key itself need not be there.
    pub(crate) fn after<'a>(&'a self, key: Option<&'a K>) -> impl Iterator<Item = (&'a K, &'a V)> {
        let first = key.map_or(0, Sharded::shard);
        let shards = self.shards.iter().enumerate().skip(first);
        let entries = shards.flat_map(move |(at, shard)| {
            let from = match key {
                Some(key) if at == first => Bound::Excluded(key),
                Some(_) | None => Bound::Unbounded,
            };
            shard.range::<K, _>((from, Bound::Unbounded))
        });
        entries.map(|(key, value)| (key, &**value))
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
        self.shards.get(key.shard())?.get(key).map(Arc::as_ref)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.shard_mut(key)?.get_mut(key).map(Arc::make_mut)
    }

    /// Puts an entry in its place, and returns the one that was there.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.shard_mut(&key)?.insert(key, Arc::new(value)).map(Arc::unwrap_or_clone)
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        self.get(key)?;
        self.shard_mut(key)?.remove(key).map(Arc::unwrap_or_clone)
    }

    /// All entries, by shard and in it by key: the same order on every replica.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.shards.iter().flat_map(|shard| shard.iter()).map(|(key, value)| (key, &**value))
    }

    /// The entries of one shard, by key; none if there is no such shard.
    pub(crate) fn shard(&self, number: usize) -> impl Iterator<Item = (&K, &V)> {
        let shard = self.shards.get(number).into_iter();
        shard.flat_map(|shard| shard.iter()).map(|(key, value)| (key, &**value))
    }

    /// Frees the map shard by shard, one with each step. Each step returns what it has freed: `weigh`
    /// of each value, and 0 for a shard that another map shares.
    pub(crate) fn dismantle(self, weigh: fn(&V) -> usize) -> impl Iterator<Item = usize> {
        self.shards.into_iter().map(move |shard| {
            let last = Arc::into_inner(shard).unwrap_or_default();
            last.values().map(|value| weigh(value)).sum()
        })
    }

    fn shard_mut(&mut self, key: &K) -> Option<&mut BTreeMap<K, Arc<V>>> {
        self.shards.get_mut(key.shard()).map(Arc::make_mut)
    }
}

/// Frees a map, some entries with each step, which returns their number.
pub(crate) fn piece_by_piece<K, V>(map: BTreeMap<K, V>) -> impl Iterator<Item = usize> {
    const PIECE: usize = 512;
    let mut entries = map.into_iter();
    let next = move || Some(entries.by_ref().take(PIECE).count());
    std::iter::from_fn(next).take_while(|freed| *freed > 0)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static COPIES: Cell<u64> = const { Cell::new(0) };
    }

    struct Large(u64);

    impl Clone for Large {
        fn clone(&self) -> Self {
            COPIES.set(COPIES.get() + 1);
            Self(self.0)
        }
    }

    /// SC4: a frozen table shares everything with the running one, and a grant waits for the copy of
    /// what it writes to.
    #[test]
    fn a_write_beside_a_frozen_copy_copies_one_value_and_not_its_neighbours() {
        let mut map = Shards::new();
        // In one shard.
        let id = |number: u64| SessionId::new(1 + number * SHARDS as u64);
        for number in 0..100 {
            map.insert(id(number), Large(number));
        }
        let frozen = map.clone();

        for _ in 0..3 {
            map.get_mut(&id(7)).unwrap().0 += 1;
        }

        assert_eq!(COPIES.get(), 1);
        assert_eq!((map.get(&id(7)).unwrap().0, frozen.get(&id(7)).unwrap().0), (10, 7));
        assert!(map.remove(&id(8)).is_some() && frozen.get(&id(8)).is_some());
        assert_eq!((map.iter().count(), frozen.iter().count()), (99, 100));
    }

    #[test]
    fn a_map_is_freed_shard_by_shard_and_what_is_shared_stays() {
        let mut map = Shards::new();
        for number in 0..5_000 {
            map.insert(SessionId::new(number), Large(number));
        }
        let shared = map.clone();
        map.insert(SessionId::new(0), Large(0));

        let freed: Vec<usize> = shared.dismantle(|_| 1).collect();

        // Of the shared map only the shard that was written to since was its own.
        assert_eq!((freed.len(), freed.iter().sum::<usize>()), (SHARDS, 5));
        assert!(map.dismantle(|_| 1).all(|freed| freed == 4 || freed == 5));
    }

    #[test]
    fn a_large_map_is_freed_in_pieces() {
        let map: BTreeMap<u64, u64> = (0..1_300).map(|number| (number, number)).collect();

        assert_eq!(piece_by_piece(map).collect::<Vec<_>>(), [512, 512, 276]);
    }
}
