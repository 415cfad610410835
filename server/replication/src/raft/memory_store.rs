//! A replica's store without a disk, for simulations and tests on virtual time.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use holdfast_runtime::Runtime;
use sha2::{Digest, Sha256};

use super::formation::FIRST_INCARNATION;
use crate::storage::{
    ClusterId, Completion, Identity, KeptSnapshot, LogId, LogMirror, LogStore, Member, MemoryLog,
    PromiseError, ReplicaStore, SNAPSHOT_CHUNK, SnapshotDraft, SnapshotInfo, Stage,
};

/// Keeps everything in memory. [`restarted`](Self::restarted) is what the next process would find.
pub struct MemoryStore {
    io: Arc<MemoryLog>,
    stall: Arc<Mutex<Stall>>,
    log: Arc<LogStore>,
    kept: Arc<Mutex<Kept>>,
    free_space: AtomicU64,
}

/// A disk that takes all writes and finishes only a number of them, or all if none is set.
#[derive(Default)]
struct Stall {
    finishes: Option<u64>,
    /// How long each write takes.
    slow: Option<(Runtime, Duration)>,
    unfinished: Vec<Completion>,
}

#[derive(Clone)]
struct Kept {
    identity: Identity,
    snapshot: Option<Arc<MemorySnapshot>>,
}

impl MemoryStore {
    /// An empty store of node `node_id`.
    pub fn new(node_id: u64) -> Self {
        let identity = Identity {
            node_id,
            stage: Stage::Fresh,
            cluster: None,
            incarnation: FIRST_INCARNATION,
            members: Vec::new(),
        };
        Self::over(LogMirror::default(), Kept { identity, snapshot: None })
    }

    fn over(durable: LogMirror, kept: Kept) -> Self {
        let stall = Arc::new(Mutex::new(Stall::default()));
        let disk = stall.clone();
        let io = MemoryLog::delayed(durable.clone(), move |completion| {
            let mut stall = disk.lock().unwrap_or_else(PoisonError::into_inner);
            if stall.finishes == Some(0) {
                stall.unfinished.push(completion);
            } else if let Some((runtime, takes)) = stall.slow.clone() {
                drop(stall);
                let done = runtime.sleep(takes);
                let finish = async move {
                    done.await;
                    completion();
                };
                runtime.spawn("disk", finish).detach();
            } else {
                stall.finishes = stall.finishes.map(|left| left - 1);
                drop(stall);
                completion();
            }
        });
        let io = Arc::new(io);
        let log = Arc::new(LogStore::new(durable, io.clone()));
        let free_space = AtomicU64::new(u64::MAX);
        Self { io, stall, log, kept: Arc::new(Mutex::new(kept)), free_space }
    }

    /// What a process would find that starts after this one was killed. From then on this store's
    /// log takes nothing: two processes never write one folder.
    #[must_use]
    pub fn restarted(&self) -> Self {
        let kept = self.lock().clone();
        Self::over(self.io.power_cut(), kept)
    }

    /// From now on the disk takes writes and finishes none: unfinished writes are not durable, and
    /// [`restarted`](Self::restarted) loses them.
    pub fn stall(&self) {
        self.stall_after(0);
    }

    /// As [`stall`](Self::stall), once the disk has finished this many more writes.
    pub fn stall_after(&self, writes: u64) {
        let mut stall = self.stall.lock().unwrap_or_else(PoisonError::into_inner);
        stall.finishes = Some(writes);
    }

    /// From now on the disk takes this long for each write, and does any number of them at once.
    pub fn slow_down(&self, runtime: &Runtime, takes: Duration) {
        let mut stall = self.stall.lock().unwrap_or_else(PoisonError::into_inner);
        stall.slow = Some((runtime.clone(), takes));
    }

    /// From now on the disk reports an error.
    pub fn fail(&self) {
        self.io.fail();
    }

    /// Sets how many bytes the disk has left.
    pub fn set_free_space(&self, bytes: u64) {
        self.free_space.store(bytes, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStore").field("log", &self.log).finish_non_exhaustive()
    }
}

impl ReplicaStore for MemoryStore {
    fn may_block(&self) -> bool {
        false
    }

    fn log(&self) -> Arc<LogStore> {
        Arc::clone(&self.log)
    }

    fn identity(&self) -> Identity {
        self.lock().identity.clone()
    }

    fn promise(
        &self,
        cluster: ClusterId,
        incarnation: u64,
        members: Vec<Member>,
    ) -> Result<(), PromiseError> {
        let identity = &mut self.lock().identity;
        match identity.cluster {
            Some(taken) if (taken, identity.incarnation) == (cluster, incarnation) => Ok(()),
            Some(taken) => Err(PromiseError::Taken {
                node_id: identity.node_id,
                cluster: taken,
                incarnation: identity.incarnation,
            }),
            None => {
                identity.stage = Stage::Promised;
                identity.cluster = Some(cluster);
                identity.incarnation = incarnation;
                identity.members = members;
                Ok(())
            }
        }
    }

    fn set_initialised(&self) -> Result<(), PromiseError> {
        let identity = &mut self.lock().identity;
        if identity.cluster.is_none() {
            return Err(PromiseError::NotPromised { node_id: identity.node_id });
        }
        identity.stage = Stage::Initialised;
        Ok(())
    }

    fn newest_snapshot(&self) -> io::Result<Option<Arc<dyn KeptSnapshot>>> {
        Ok(self.lock().snapshot.clone().map(|kept| kept as Arc<dyn KeptSnapshot>))
    }

    fn begin_snapshot(
        &self,
        last: Option<LogId>,
        meta: Bytes,
    ) -> io::Result<Box<dyn SnapshotDraft>> {
        let kept = Arc::clone(&self.kept);
        Ok(Box::new(MemoryDraft { kept, last, meta, body: Vec::new() }))
    }

    fn free_space(&self) -> io::Result<u64> {
        Ok(self.free_space.load(Ordering::Relaxed))
    }
}

#[derive(Debug)]
struct MemorySnapshot {
    info: SnapshotInfo,
    body: Bytes,
}

impl KeptSnapshot for MemorySnapshot {
    fn info(&self) -> &SnapshotInfo {
        &self.info
    }

    fn chunk(&self, offset: u64) -> io::Result<Bytes> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(self.body.len());
        let end = start.saturating_add(SNAPSHOT_CHUNK).min(self.body.len());
        Ok(self.body.slice(start..end))
    }
}

struct MemoryDraft {
    kept: Arc<Mutex<Kept>>,
    last: Option<LogId>,
    meta: Bytes,
    body: Vec<u8>,
}

impl Write for MemoryDraft {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.body.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl SnapshotDraft for MemoryDraft {
    fn is_whole(&self, length: u64, sha256: &[u8]) -> bool {
        self.body.len() as u64 == length && Sha256::digest(&self.body).as_slice() == sha256
    }

    fn finish(self: Box<Self>) -> io::Result<Arc<dyn KeptSnapshot>> {
        let (last, meta, length) = (self.last, self.meta, self.body.len() as u64);
        let (sha256, path) = (Sha256::digest(&self.body).into(), PathBuf::new());
        let info = SnapshotInfo { last, meta, length, sha256, path };
        let snapshot = Arc::new(MemorySnapshot { info, body: self.body.into() });
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).snapshot =
            Some(Arc::clone(&snapshot));
        Ok(snapshot)
    }
}
