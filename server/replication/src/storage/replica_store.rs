//! What a replica keeps, as a trait: a data folder in production, memory in simulations.

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;

use bytes::Bytes;
use holdfast_runtime::BoxFuture;

use super::guard::{ClusterId, Identity, Member, PromiseError};
use super::log_store::LogStore;
use super::record::LogId;
use super::snapshot::SnapshotInfo;

/// The next step of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It writes its changes to the system.
    Write,
    /// It makes them durable. Until then a loss of power may take them away.
    Sync,
    /// It updates the guard file. Nothing is acknowledged before.
    Guard,
}

/// How long a simulated disk takes for a step: the step is done when the future is. A future that
/// never ends is a disk that hangs.
pub type Pace = Arc<dyn Fn(Step) -> BoxFuture<'static, ()> + Send + Sync>;

/// The log, the snapshots and the identity of one replica.
///
/// Methods that change something may block on a disk where [`may_block`](Self::may_block) returns
/// true: call them off the runtime then.
pub trait ReplicaStore: Send + Sync + 'static {
    /// Whether methods block on a disk.
    fn may_block(&self) -> bool;

    /// How long the disk takes for one step of writing a snapshot. Zero except in a simulation, so
    /// that a crash can fall between any two steps.
    fn pace(&self, _step: Step) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    /// The log.
    fn log(&self) -> Arc<LogStore>;

    /// What this node is.
    fn identity(&self) -> Identity;

    /// Promises this node to an incarnation of a cluster, durably before it returns (DESIGN §7,
    /// first start). Repeating the same promise changes nothing.
    ///
    /// # Errors
    ///
    /// [`PromiseError::Taken`] if it is promised to another; nothing changed then.
    fn promise(
        &self,
        cluster: ClusterId,
        incarnation: u64,
        members: Vec<Member>,
    ) -> Result<(), PromiseError>;

    /// Notes, durably before it returns, that the cluster is initialised. Repeating it changes
    /// nothing.
    ///
    /// # Errors
    ///
    /// [`PromiseError::NotPromised`] if there is no promise to build on.
    fn set_initialised(&self) -> Result<(), PromiseError>;

    /// The newest snapshot that was synced and read back, opened for reading: it stays readable
    /// when a newer one replaces it.
    ///
    /// # Errors
    ///
    /// As from the system.
    fn newest_snapshot(&self) -> io::Result<Option<Arc<dyn KeptSnapshot>>>;

    /// Begins a snapshot of everything up to `last`. Dropped unfinished, it leaves nothing behind.
    ///
    /// # Errors
    ///
    /// As from the system.
    fn begin_snapshot(
        &self,
        last: Option<LogId>,
        meta: Bytes,
    ) -> io::Result<Box<dyn SnapshotDraft>>;

    /// Bytes that can still be written. Quick: to be compared with the disk reserve every few
    /// seconds.
    ///
    /// # Errors
    ///
    /// As from the system.
    fn free_space(&self) -> io::Result<u64>;
}

/// A finished snapshot.
pub trait KeptSnapshot: Send + Sync + fmt::Debug {
    /// What it contains.
    fn info(&self) -> &SnapshotInfo;
    /// At most 64 KiB of its body from `offset`; empty at the end.
    ///
    /// # Errors
    ///
    /// As from the system.
    fn chunk(&self, offset: u64) -> io::Result<Bytes>;
}

/// A snapshot that is being written. It does not count until it is finished.
pub trait SnapshotDraft: Write + Send {
    /// Whether its body so far is the one that a peer announced.
    fn is_whole(&self, length: u64, sha256: &[u8]) -> bool;

    /// Makes it durable, reads it back, and lets it count (I30).
    ///
    /// # Errors
    ///
    /// As from the system; whether it counts after a restart is unknown.
    fn finish(self: Box<Self>) -> io::Result<Arc<dyn KeptSnapshot>>;
}

/// Reads the body of a snapshot from its beginning.
#[derive(Debug)]
pub struct BodyReader {
    snapshot: Arc<dyn KeptSnapshot>,
    chunk: Bytes,
    offset: u64,
}

impl BodyReader {
    /// A reader at the beginning.
    pub fn new(snapshot: Arc<dyn KeptSnapshot>) -> Self {
        Self { snapshot, chunk: Bytes::new(), offset: 0 }
    }
}

impl Read for BodyReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.chunk.is_empty() {
            self.chunk = self.snapshot.chunk(self.offset)?;
            self.offset = self.offset.saturating_add(self.chunk.len() as u64);
        }
        let taken = self.chunk.split_to(self.chunk.len().min(out.len()));
        let (filled, _) = out.split_at_mut(taken.len());
        filled.copy_from_slice(&taken);
        Ok(taken.len())
    }
}
