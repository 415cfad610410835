//! The log as the Raft adapter sees it: reads from memory, writes through [`LogIo`], so that sled can
//! be replaced and a simulator needs no disk.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use holdfast_mutants::mutant;

use super::mirror::{LogMirror, Misuse};
use super::record::{LogId, Record, StoredVote};
use super::snapshot::Snapshots;

/// A change to the stored log. Changes take effect in the order they were submitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Adds records after the last one.
    Append(Vec<Record>),
    /// Replaces the vote.
    Vote(StoredVote),
    /// Removes every record after this one; `None` removes every record.
    TruncateAfter(Option<LogId>),
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

/// The replicated log of this node. Cheap to share; every method may be called from any thread.
///
/// A change is visible to readers as soon as the call that made it returns; it is durable when its
/// `done` is called with `Ok`. No reader ever touches the disk.
///
/// Lock order: `order`, then `mirror`. `order` keeps the order in the mirror and the order of
/// [`LogIo::submit`] the same; `mirror` alone is taken by readers, so a callback that runs inside
/// `submit` may read the log, but must not change it.
pub struct LogStore {
    order: Mutex<()>,
    mirror: Mutex<LogMirror>,
    io: Arc<dyn LogIo>,
    /// A purge must stay below the newest of these; `None` where no snapshots are kept
    /// (simulations, suites).
    snapshots: Option<Arc<Snapshots>>,
}

impl LogStore {
    /// A log over `io`, which holds `recovered`. Purges are not checked against snapshots (I30):
    /// that is for the caller, or for [`Store`](super::Store).
    pub fn new(recovered: LogMirror, io: Arc<dyn LogIo>) -> Self {
        Self { order: Mutex::new(()), mirror: Mutex::new(recovered), io, snapshots: None }
    }

    /// As [`new`](Self::new), but refuses to purge above the newest good snapshot (I30).
    pub(super) fn below_snapshots(mut self, snapshots: Arc<Snapshots>) -> Self {
        self.snapshots = Some(snapshots);
        self
    }

    /// Adds `records` after the last one. They are readable when this returns.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if they do not follow the last record or one is too large; nothing was changed
    /// and `done` is dropped without being called.
    pub fn append(&self, records: Vec<Record>, done: Done) -> Result<(), Misuse> {
        self.change(Operation::Append(records), done)
    }

    /// Removes every record after `keep`; `None` removes all.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if purged records would have to come back; nothing was changed and `done` is
    /// dropped without being called.
    pub fn truncate_after(&self, keep: Option<u64>, done: Done) -> Result<(), Misuse> {
        self.change_by(|mirror| Ok(Operation::TruncateAfter(mirror.kept(keep)?)), done)
    }

    /// Drops every record up to and including `upto`. Later commits, or an idle writer, free the
    /// space on disk in slices.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if no good snapshot reaches `upto` (I30); nothing was changed and `done` is
    /// dropped without being called.
    pub fn purge(&self, upto: LogId, done: Done) -> Result<(), Misuse> {
        if let Some(snapshots) = self.snapshots.as_ref().filter(|_| !mutant!(SnapshotNotKept)) {
            let snapshot = snapshots.newest().and_then(|newest| newest.last);
            if snapshot.is_none_or(|last| last.index < upto.index) {
                return Err(Misuse::PurgesBeyondSnapshot { upto: upto.index, snapshot });
            }
        }
        self.change(Operation::Purge(upto), done)
    }

    /// Replaces the vote. Acknowledged only when the log *and* the guard file hold it (I20, I21).
    ///
    /// # Errors
    ///
    /// [`Misuse`] if it would take back the present vote; nothing was changed and `done` is
    /// dropped without being called.
    pub fn save_vote(&self, vote: StoredVote, done: Done) -> Result<(), Misuse> {
        self.change(Operation::Vote(vote), done)
    }

    /// The existing records of `range`, in order: the first always, further ones while their
    /// payloads stay within `max_bytes`.
    pub fn entries(&self, range: Range<u64>, max_bytes: usize) -> Vec<Record> {
        self.mirror().entries(range, max_bytes)
    }

    /// The last record; if none is left, the last one purged.
    pub fn last(&self) -> Option<LogId> {
        self.mirror().last()
    }

    /// The last record purged.
    pub fn purged(&self) -> Option<LogId> {
        self.mirror().purged()
    }

    /// The last vote given to [`save_vote`](Self::save_vote), or read back at start.
    pub fn vote(&self) -> Option<StoredVote> {
        self.mirror().vote()
    }

    /// Calls `look` with the log in memory. Be quick: no append runs meanwhile.
    pub fn look<R>(&self, look: impl FnOnce(&LogMirror) -> R) -> R {
        look(&self.mirror())
    }

    fn change(&self, operation: Operation, done: Done) -> Result<(), Misuse> {
        self.change_by(|_| Ok(operation), done)
    }

    fn change_by(
        &self,
        operation: impl FnOnce(&LogMirror) -> Result<Operation, Misuse>,
        done: Done,
    ) -> Result<(), Misuse> {
        let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        let (operation, dropped) = {
            let mut mirror = self.mirror();
            let operation = operation(&mirror)?;
            mirror.check(&operation)?;
            let dropped = mirror.apply(&operation);
            (operation, dropped)
        };
        self.io.submit(operation, done);
        drop(dropped);
        Ok(())
    }

    /// A panic of another thread while it held the lock leaves the mirror consistent: `apply`
    /// changes it only after `check`, and does not fail.
    fn mirror(&self) -> MutexGuard<'_, LogMirror> {
        self.mirror.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for LogStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mirror = self.mirror();
        f.debug_struct("LogStore")
            .field("purged", &mirror.purged())
            .field("last", &mirror.last())
            .field("vote", &mirror.vote())
            .finish_non_exhaustive()
    }
}
