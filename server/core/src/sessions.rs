//! The store of sessions: shards that a snapshot shares with the table.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ids::SessionId;
use crate::session::Session;

/// Number of shards, of sessions as of values. Part of the snapshot's order, so part of its version.
pub(crate) const SHARDS: usize = 1_024;

pub(crate) type Shard = BTreeMap<SessionId, Session>;

/// All open sessions, by id, in [`SHARDS`] shards behind `Arc`s.
///
/// A freeze clones the `Arc`s; the first write to a shard afterwards copies that shard alone. Ids
/// rise by one, so their remainders spread evenly.
#[derive(Clone, Debug)]
pub(crate) struct Sessions {
    /// Invariant: `SHARDS` long; a session lies in the shard of its remainder.
    shards: Vec<Arc<Shard>>,
}

/// The shard of a session.
pub(crate) fn shard_of(session: SessionId) -> usize {
    // The remainder is below SHARDS, so it fits any usize.
    usize::try_from(session.get() % SHARDS as u64).unwrap_or(0)
}

impl Sessions {
    pub(crate) fn new() -> Self {
        Self { shards: vec![Arc::default(); SHARDS] }
    }

    pub(crate) fn get(&self, session: SessionId) -> Option<&Session> {
        self.shards.get(shard_of(session))?.get(&session)
    }

    pub(crate) fn get_mut(&mut self, session: SessionId) -> Option<&mut Session> {
        self.shard_mut(session)?.get_mut(&session)
    }

    /// Puts a session in its place, and returns the one that was there.
    pub(crate) fn insert(&mut self, session: SessionId, record: Session) -> Option<Session> {
        self.shard_mut(session)?.insert(session, record)
    }

    pub(crate) fn remove(&mut self, session: SessionId) -> Option<Session> {
        self.get(session)?;
        self.shard_mut(session)?.remove(&session)
    }

    /// All sessions, by shard and in it by id: the same order on every replica.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.shards.iter().flat_map(|shard| shard.iter().map(|(&id, session)| (id, session)))
    }

    pub(crate) fn freeze(&self) -> Vec<Arc<Shard>> {
        self.shards.clone()
    }

    fn shard_mut(&mut self, session: SessionId) -> Option<&mut Shard> {
        self.shards.get_mut(shard_of(session)).map(Arc::make_mut)
    }
}
