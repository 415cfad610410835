//! The log's I/O behind one trait, so that sled can be replaced and a simulator needs no disk.

use std::io;

use super::record::{LogId, Record, StoredVote};

/// A change to the stored log. Changes take effect in the order they were submitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Adds records after the last one.
    Append(Vec<Record>),
    /// Replaces the vote.
    Vote(StoredVote),
    /// Removes every record after this index; `None` removes every record.
    TruncateAfter(Option<u64>),
    /// Marks everything up to and including this record as no longer needed. May lie beyond the
    /// last record: the log then continues after it.
    Purge(LogId),
}

/// Called once when the outcome is known: `Ok` after the operation is on stable storage, `Err` if
/// it will never be known to be. Called from any thread, possibly before the submitting call
/// returns; it must not block and must not change the log.
pub type Done = Box<dyn FnOnce(io::Result<()>) + Send>;

/// The storage of the log. One conformance suite holds for every implementation
/// (`server/replication/tests/storage_conformance.rs`).
///
/// # Promises
///
/// - Operations take effect in the order of `submit`, and after a crash the storage holds the
///   effect of some prefix of them that includes every acknowledged one (I19).
/// - `done` runs with `Ok` only after the operation and all before it are durable. Acknowledgements
///   come in order.
/// - After the first failure nothing is acknowledged.
pub trait LogIo: Send + Sync + 'static {
    /// Queues `operation`; `done` is called once. Returns at once, unless the queue exceeds the
    /// implementation's documented bound; then it waits until the disk has caught up.
    fn submit(&self, operation: Operation, done: Done);
}
