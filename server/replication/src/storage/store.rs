//! One data folder, opened: guard, log and snapshots together.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use holdfast_runtime::BoxFuture;

use super::counters::Counters;
use super::disk::{Disk, SystemDisk};
use super::disk_watch::{DiskWatch, WatchedDisk};
use super::error::{OnFault, OpenError, open_error};
use super::files::create_folders;
use super::guard::{ClusterId, Guard, Identity, Member, PromiseError, guard_path};
use super::log_loop::LogLoop;
use super::log_store::{LogIo, LogStore};
use super::mirror::LogMirror;
use super::record::LogId;
use super::recover::Recovered;
use super::replica_store::{KeptSnapshot, Pace, ReplicaStore, SnapshotDraft, Step};
use super::sled_open::{LOG, MARKS, open_sled};
use super::snapshot::Snapshots;

/// What a data folder is expected to contain.
#[derive(Clone)]
pub struct StoreOptions {
    /// The node id of this process. A folder of another node is refused.
    pub node_id: u64,
    /// The cluster of this process, if it is known from elsewhere. A folder of another cluster is
    /// refused; one that belongs to none yet is not.
    pub cluster: Option<ClusterId>,
    /// Sixteen fresh random bytes: the id of the store if it has to be created, ignored otherwise.
    pub new_store_id: [u8; 16],
    /// Receives faults; the server's callback ends the process with exit code 74, or 75 if the disk
    /// hung.
    pub on_fault: OnFault,
    /// An operation on the disk that takes longer is a fault ([`Fault::is_stall`](super::Fault::is_stall)). `None`: the disk
    /// may take any time.
    pub stalls_after: Option<Duration>,
}

impl std::fmt::Debug for StoreOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreOptions")
            .field("node_id", &self.node_id)
            .field("cluster", &self.cluster)
            .finish_non_exhaustive()
    }
}

/// An open data folder. Dropping it, and the last reference to its log, waits until everything
/// queued is durable, and closes it.
pub struct Store {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    guard: Arc<Guard>,
    log: Arc<LogStore>,
    pub(super) snapshots: Arc<Snapshots>,
    counters: Arc<Counters>,
    /// How long a simulated disk takes for each step.
    pub(super) pace: Option<Pace>,
    watch: DiskWatch,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("folder", &self.folder)
            .field("guard", &self.guard)
            .field("log", &self.log)
            .finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the data folder, creating it if there is none or it is empty. Blocks.
    ///
    /// # Errors
    ///
    /// Why the folder must not be used, in words for the operator. A folder that does not hold
    /// everything it acknowledged never opens (I21).
    ///
    /// Not detected: a folder that was emptied *with* its guard file looks new
    /// ([`Stage::Fresh`](super::Stage::Fresh)), and an old copy of a whole folder looks like the
    /// folder. The code that forms or joins a cluster decides on the stage (I22).
    pub fn open(folder: &Path, options: StoreOptions) -> Result<Self, OpenError> {
        let watch = watch_thread(folder, &options)?;
        let lock = claim_folder(folder, &watch)?;
        let disk: Arc<dyn Disk> =
            Arc::new(WatchedDisk { disk: Arc::new(SystemDisk), watch: watch.clone() });
        let guard = Arc::new(open_guard(&*disk, folder, &options)?);
        let Recovered { writer, keeper, mirror } = {
            let _watched = watch.enter_patiently("open the log in", folder);
            open_sled(folder, Arc::clone(&disk), &guard, lock)?
        };
        let counters = writer.counters();
        let opened = Opened { disk, folder, guard, mirror, counters, watch: watch.clone() };
        opened.assemble(options.on_fault, |on_fault| {
            Ok(Arc::new(LogLoop::on_threads((writer, keeper), on_fault, watch)?))
        })
    }

    /// The id of the node whose folder this is, if it is a node's. Reads the guard file alone.
    ///
    /// # Errors
    ///
    /// The guard file cannot be read.
    pub fn node_of(folder: &Path) -> Result<Option<u64>, OpenError> {
        // Nothing is written, so nothing can fail to be.
        let guard = Guard::open(&SystemDisk, folder, Arc::new(|_| ()))?;
        Ok(guard.map(|guard| guard.state().identity.node_id))
    }

    /// The random id of this folder: that of no other, and of none that was in its place.
    pub fn id(&self) -> [u8; 16] {
        self.guard.state().store_id
    }

    /// The counters of the writer, for metrics.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }
}

impl ReplicaStore for Store {
    fn may_block(&self) -> bool {
        self.disk.may_block()
    }

    fn pace(&self, step: Step) -> BoxFuture<'static, ()> {
        let Some(pace) = &self.pace else { return Box::pin(std::future::ready(())) };
        let (done, watch) = (pace(step), self.watch.clone());
        let path = self.folder.join("snapshots");
        Box::pin(async move {
            let _watched = watch.enter("write", &path);
            done.await;
        })
    }

    fn log(&self) -> Arc<LogStore> {
        Arc::clone(&self.log)
    }

    fn identity(&self) -> Identity {
        self.guard.state().identity
    }

    fn promise(
        &self,
        cluster: ClusterId,
        incarnation: u64,
        members: Vec<Member>,
    ) -> Result<(), PromiseError> {
        self.guard.promise(cluster, incarnation, members)
    }

    fn set_initialised(&self) -> Result<(), PromiseError> {
        self.guard.set_initialised()
    }

    fn newest_snapshot(&self) -> io::Result<Option<Arc<dyn KeptSnapshot>>> {
        let Some(newest) = self.snapshots.newest() else { return Ok(None) };
        Ok(Some(Arc::new(self.snapshots.read(&newest)?)))
    }

    fn begin_snapshot(
        &self,
        last: Option<LogId>,
        meta: Bytes,
    ) -> io::Result<Box<dyn SnapshotDraft>> {
        let mut writer = self.snapshots.begin(last, meta)?;
        writer.purged = self.log.purged();
        Ok(Box::new(writer))
    }

    fn free_space(&self) -> io::Result<u64> {
        self.disk.free_space(&self.folder)
    }
}

/// A folder whose guard and log were read.
pub(super) struct Opened<'a> {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) folder: &'a Path,
    pub(super) guard: Arc<Guard>,
    pub(super) mirror: LogMirror,
    pub(super) counters: Arc<Counters>,
    pub(super) watch: DiskWatch,
}

impl Opened<'_> {
    /// Reads the snapshots, then starts the writer of the log.
    pub(super) fn assemble(
        self,
        on_fault: OnFault,
        start: impl FnOnce(OnFault) -> io::Result<Arc<dyn LogIo>>,
    ) -> Result<Store, OpenError> {
        let Self { disk, folder, guard, mirror, counters, watch } = self;
        let snapshot_folder = folder.join("snapshots");
        disk.create_folders(&snapshot_folder)
            .map_err(|e| open_error("create", &snapshot_folder, e))?;
        let held = (mirror.purged().map(|id| id.index), mirror.last().map(|id| id.index));
        let snapshots = Snapshots::open(
            Arc::clone(&disk),
            snapshot_folder,
            Arc::clone(&guard),
            held,
            Arc::clone(&on_fault),
        )?;
        guard.mend().map_err(|f| open_error("write", guard.path(), f.to_io()))?;
        let snapshots = Arc::new(snapshots);
        let io = start(on_fault).map_err(|e| open_error("start the writer of", folder, e))?;
        let log = Arc::new(LogStore::new(mirror, io).below_snapshots(Arc::clone(&snapshots)));
        let folder = folder.to_path_buf();
        Ok(Store { disk, folder, guard, log, snapshots, counters, pace: None, watch })
    }
}

fn watch_thread(folder: &Path, options: &StoreOptions) -> Result<DiskWatch, OpenError> {
    let Some(limit) = options.stalls_after else { return Ok(DiskWatch::none()) };
    DiskWatch::on_a_thread(limit, Arc::clone(&options.on_fault))
        .map_err(|e| open_error("start the watchdog of", folder, e))
}

/// The lock on a folder: the folder belongs to this process until it is dropped.
#[derive(Debug)]
pub(super) struct FolderLock(File);

impl Drop for FolderLock {
    /// Closing the file is not enough: a process that is being forked at this moment keeps it open
    /// for a little longer, and the lock with it.
    fn drop(&mut self) {
        drop(self.0.unlock());
    }
}

/// Creates the folder if there is none, and locks it for this process.
pub(super) fn claim_folder(folder: &Path, watch: &DiskWatch) -> Result<FolderLock, OpenError> {
    let _watched = watch.enter("create and lock", folder);
    create_folders(folder).map_err(|e| open_error("create", folder, e))?;
    lock_folder(folder)
}

/// Locks the folder for this process and writes the process id for the message of a second process.
fn lock_folder(folder: &Path) -> Result<FolderLock, OpenError> {
    let path = folder.join("LOCK");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(|e| open_error("open", &path, e))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            drop(file.read_to_string(&mut pid));
            return Err(OpenError::InUse { path, pid: pid.trim().parse().ok() });
        }
        Err(TryLockError::Error(error)) => return Err(open_error("lock", &path, error)),
    }
    let written = file
        .set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "{}", std::process::id()));
    written.map_err(|e| open_error("write", &path, e))?;
    Ok(FolderLock(file))
}

/// The guard of the folder, after a check of the node and cluster it names. Created only if the
/// folder holds nothing else.
pub(super) fn open_guard(
    disk: &dyn Disk,
    folder: &Path,
    options: &StoreOptions,
) -> Result<Guard, OpenError> {
    let on_fault = Arc::clone(&options.on_fault);
    let Some(guard) = Guard::open(disk, folder, Arc::clone(&on_fault))? else {
        for part in [MARKS, LOG, "snapshots"] {
            let present =
                disk.exists(&folder.join(part)).map_err(|e| open_error("read", folder, e))?;
            if present {
                return Err(OpenError::GuardMissing { path: guard_path(folder) });
            }
        }
        return Guard::create(disk, folder, options.node_id, options.new_store_id, on_fault);
    };
    let identity = guard.state().identity;
    let path = guard.path().to_path_buf();
    if identity.node_id != options.node_id {
        let (found, expected) = (identity.node_id, options.node_id);
        return Err(OpenError::OtherNode { path, found, expected });
    }
    if let Some((found, expected)) = identity.cluster.zip(options.cluster)
        && found != expected
    {
        return Err(OpenError::OtherCluster { path, found, expected });
    }
    Ok(guard)
}
