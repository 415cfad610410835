//! Changes of values that are under way. Their ids come from the same sequence as those of
//! acquires.

use std::sync::Arc;

use holdfast_runtime::Instant;

use super::{Done, Key, Requests};
use crate::FencingToken;
use crate::value;

/// A change of the value of a held lock.
pub(in crate::session) struct Change {
    /// The request that holds the lock.
    pub(in crate::session) of: Key,
    pub(in crate::session) token: FencingToken,
    pub(in crate::session) name: Arc<str>,
    pub(in crate::session) what: value::Change,
    /// Its id in this session; `None` while it was never sent.
    pub(in crate::session) id: Option<u64>,
    pub(in crate::session) asked: Instant,
    /// How often it was sent under that id.
    pub(in crate::session) sent: u32,
    /// Receives the outcome.
    pub(in crate::session) done: Done,
}

impl Requests {
    pub(in crate::session) fn insert_change(&mut self, change: Change) -> Key {
        let key = self.next_key();
        self.changes.insert(key, change);
        key
    }

    pub(in crate::session) fn change(&self, key: Key) -> Option<&Change> {
        self.changes.get(&key)
    }

    pub(in crate::session) fn change_with_id(&self, id: u64) -> Option<Key> {
        self.by_id.get(&id).copied().filter(|key| self.changes.contains_key(key))
    }

    pub(in crate::session) fn change_keys(&self) -> Vec<Key> {
        self.changes.keys().copied().collect()
    }

    /// The change's id; assigns one if it has none.
    pub(in crate::session) fn id_of_change(&mut self, key: Key) -> Option<u64> {
        if self.changes.get(&key)?.id.is_none() {
            let id = self.give_id(key);
            self.changes.get_mut(&key)?.id = Some(id);
        }
        self.changes.get(&key)?.id
    }

    /// Records that the change is sent once more.
    pub(in crate::session) fn change_is_sent(&mut self, key: Key) {
        if let Some(change) = self.changes.get_mut(&key) {
            change.sent = change.sent.saturating_add(1);
        }
    }

    /// Records that the server refused the last copy without a check.
    pub(in crate::session) fn change_did_nothing(&mut self, key: Key) {
        if let Some(change) = self.changes.get_mut(&key) {
            change.sent = change.sent.saturating_sub(1);
        }
    }

    /// Removes the id of a change that will be sent under a new one. Returns the old id.
    pub(in crate::session) fn renumber_change(&mut self, key: Key) -> Option<u64> {
        let change = self.changes.get_mut(&key)?;
        change.sent = 0;
        let id = change.id.take()?;
        self.drop_id(id);
        Some(id)
    }

    /// Removes a change. The client does not send it again, so its id counts as answered: a late
    /// copy is below `done_below` and changes nothing.
    pub(in crate::session) fn remove_change(&mut self, key: Key) -> Option<Change> {
        let change = self.changes.remove(&key)?;
        if let Some(id) = change.id {
            self.drop_id(id);
        }
        Some(change)
    }

    /// Removes the changes made under one hold.
    pub(in crate::session) fn remove_changes_of(&mut self, of: Key) -> Vec<Change> {
        let keys: Vec<_> =
            self.changes.iter().filter(|(_, one)| one.of == of).map(|(key, _)| *key).collect();
        keys.into_iter().filter_map(|key| self.remove_change(key)).collect()
    }
}
