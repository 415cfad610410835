//! What a replica keeps, as a trait: a data folder in production, memory in simulations.

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;

use bytes::Bytes;
use holdfast_runtime::BoxFuture;

use crate::storage::{
    ClusterId, Identity, LogId, LogStore, Member, PromiseError, SnapshotInfo, SnapshotReader,
    SnapshotWriter, Step, Store,
};

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
    /// first start).
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

    /// Bytes that can still be written.
    ///
    /// # Errors
    ///
    /// As from the system.
    fn free_space(&self) -> io::Result<u64>;
}

/// A finished snapshot.
pub trait KeptSnapshot: Send + Sync + fmt::Debug {
    /// The last entry it contains.
    fn last(&self) -> Option<LogId>;
    /// The meta that was given with it.
    fn meta(&self) -> Bytes;
    /// Length of its body, bytes.
    fn length(&self) -> u64;
    /// SHA-256 of its body.
    fn sha256(&self) -> [u8; 32];
    /// At most 64 KiB of its body from `offset`; empty at the end.
    ///
    /// # Errors
    ///
    /// As from the system.
    fn chunk(&self, offset: u64) -> io::Result<Bytes>;
}

/// A snapshot that is being written. It does not count until it is finished.
pub trait SnapshotDraft: Write + Send {
    /// Makes it durable, reads it back, and lets it count (I30).
    ///
    /// # Errors
    ///
    /// As from the system; whether it counts after a restart is unknown.
    fn finish(self: Box<Self>) -> io::Result<Arc<dyn KeptSnapshot>>;
}

/// Reads the body of a snapshot from its beginning.
pub(super) struct BodyReader {
    snapshot: Arc<dyn KeptSnapshot>,
    chunk: Bytes,
    offset: u64,
}

impl BodyReader {
    pub(super) fn new(snapshot: Arc<dyn KeptSnapshot>) -> Self {
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

impl ReplicaStore for Store {
    fn may_block(&self) -> bool {
        Self::may_block(self)
    }

    fn pace(&self, step: Step) -> BoxFuture<'static, ()> {
        Self::pace(self, step)
    }

    fn log(&self) -> Arc<LogStore> {
        Self::log(self)
    }

    fn identity(&self) -> Identity {
        Self::identity(self)
    }

    fn promise(
        &self,
        cluster: ClusterId,
        incarnation: u64,
        members: Vec<Member>,
    ) -> Result<(), PromiseError> {
        Self::promise(self, cluster, incarnation, members)
    }

    fn set_initialised(&self) -> Result<(), PromiseError> {
        Self::set_initialised(self)
    }

    fn newest_snapshot(&self) -> io::Result<Option<Arc<dyn KeptSnapshot>>> {
        let snapshots = self.snapshots();
        let Some(info) = snapshots.newest() else { return Ok(None) };
        let reader = snapshots.read(&info)?;
        Ok(Some(Arc::new(SnapshotOnDisk { info, reader })))
    }

    fn begin_snapshot(
        &self,
        last: Option<LogId>,
        meta: Bytes,
    ) -> io::Result<Box<dyn SnapshotDraft>> {
        let snapshots = self.snapshots();
        let writer = snapshots.begin(last, meta)?;
        Ok(Box::new(DraftOnDisk { writer, snapshots, purged: self.log().purged() }))
    }

    fn free_space(&self) -> io::Result<u64> {
        Self::free_space(self)
    }
}

/// The incarnation of a new cluster; raised when one is restored from a backup.
pub(super) const FIRST_INCARNATION: u64 = 0;

#[derive(Debug)]
struct SnapshotOnDisk {
    info: SnapshotInfo,
    reader: SnapshotReader,
}

impl KeptSnapshot for SnapshotOnDisk {
    fn last(&self) -> Option<LogId> {
        self.info.last
    }

    fn meta(&self) -> Bytes {
        self.info.meta.clone()
    }

    fn length(&self) -> u64 {
        self.info.length
    }

    fn sha256(&self) -> [u8; 32] {
        self.info.sha256
    }

    fn chunk(&self, offset: u64) -> io::Result<Bytes> {
        self.reader.chunk(offset)
    }
}

struct DraftOnDisk {
    writer: SnapshotWriter,
    snapshots: Arc<crate::storage::Snapshots>,
    purged: Option<LogId>,
}

impl Write for DraftOnDisk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

impl SnapshotDraft for DraftOnDisk {
    fn finish(self: Box<Self>) -> io::Result<Arc<dyn KeptSnapshot>> {
        // Built while the disk was slow it may be older than two that came from a leader meanwhile,
        // and removed already.
        let (info, reader) = self.writer.finish_open()?;
        self.snapshots.remove_older(self.purged)?;
        Ok(Arc::new(SnapshotOnDisk { info, reader }))
    }
}
