//! A data folder on a simulation's disk, and the log's writer as a task: it does what `sled_log.rs`
//! does with a thread.
//!
//! The queue, the commits and the order of steps are the same; only the time of each step comes
//! from outside, so that a crash can fall between any two of them.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use holdfast_runtime::{Clock, Runtime, select};
use tokio::sync::Notify;

use super::commit_queue::{Commit, Queue};
use super::disk::{Disk, SystemDisk};
use super::disk_watch::{DiskWatch, WatchedDisk};
use super::error::{Fault, OnFault, OpenError, open_error};
use super::guard::Guard;
use super::log_store::{Done, LogIo, LogStore, Operation};
use super::mirror::LogMirror;
use super::recover::{recover, unreadable};
use super::replica_store::{Pace, Step};
use super::sled_log::{IDLE, SledLog};
use super::sled_open::open_sled;
use super::snapshot::Snapshots;
use super::store::{Opened, Store, StoreOptions, claim_folder, open_guard};
use super::tree::Tree;
use super::writer::Writer;

/// Opens the log in the given file, or creates it there.
pub type OpenTree = Box<dyn FnOnce(&Path) -> io::Result<Box<dyn Tree>>>;

/// What a simulated store uses in place of the machine.
pub struct Ground {
    /// Its files.
    pub disk: Arc<dyn Disk>,
    /// Its log.
    pub open_tree: OpenTree,
    /// How long its commits take.
    pub pace: Pace,
    /// Runs the task that writes the log.
    pub runtime: Runtime,
}

impl std::fmt::Debug for Ground {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ground").finish_non_exhaustive()
    }
}

impl Store {
    /// The snapshots.
    pub fn snapshots(&self) -> Arc<Snapshots> {
        Arc::clone(&self.snapshots)
    }

    /// As [`open`](Self::open), on a simulation's disk. Does not block. No other process may have
    /// the folder open.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_simulated(
        folder: &Path,
        options: StoreOptions,
        ground: Ground,
    ) -> Result<Self, OpenError> {
        let Ground { disk, open_tree, pace, runtime } = ground;
        let watch = options.stalls_after.map_or_else(DiskWatch::none, |limit| {
            DiskWatch::as_a_task(limit, Arc::clone(&options.on_fault), &runtime)
        });
        let disk: Arc<dyn Disk> = Arc::new(WatchedDisk { disk, watch: watch.clone() });
        disk.create_folders(folder).map_err(|e| open_error("create", folder, e))?;
        let guard = Arc::new(open_guard(&*disk, folder, &options)?);
        let (writer, mirror) =
            open_tree_on(&*disk, folder, &guard, open_tree, runtime.clock.clone())?;
        let counters = writer.counters();
        let opened = Opened { disk, folder, guard, mirror, counters, watch: watch.clone() };
        let log_pace = (Arc::clone(&pace), watch);
        let mut store = opened.assemble(options.on_fault, |on_fault| {
            Ok(Arc::new(LogTask::start(writer, on_fault, log_pace, &runtime)))
        })?;
        store.pace = Some(pace);
        Ok(store)
    }

    /// Opens only the log of a folder, with purges unchecked: for test suites without snapshots. A
    /// folder purged like that no longer opens as a [`Store`] (I30).
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_log_without_snapshots(
        folder: &Path,
        options: StoreOptions,
    ) -> Result<LogStore, OpenError> {
        let lock = claim_folder(folder, &DiskWatch::none())?;
        let guard = Arc::new(open_guard(&SystemDisk, folder, &options)?);
        let (writer, mirror) = open_sled(folder, &guard, lock)?;
        let io = SledLog::start(writer, options.on_fault, DiskWatch::none())
            .map_err(|e| open_error("start the writer of", folder, e))?;
        Ok(LogStore::new(mirror, Arc::new(io)))
    }
}

impl LogStore {
    /// Records in memory.
    pub fn len(&self) -> usize {
        self.look(LogMirror::len)
    }

    /// Whether no record is in memory.
    pub fn is_empty(&self) -> bool {
        self.look(LogMirror::is_empty)
    }
}

/// Opens the log as [`open_sled`] does, with another tree in the same place.
fn open_tree_on(
    disk: &dyn Disk,
    folder: &Path,
    guard: &Arc<Guard>,
    open_tree: impl FnOnce(&Path) -> io::Result<Box<dyn Tree>>,
    clock: Arc<dyn Clock>,
) -> Result<(Writer, LogMirror), OpenError> {
    let parent = folder.join("sled");
    let path = parent.join("db");
    let state = guard.state();
    let there = disk.exists(&path).map_err(|e| open_error("read", &path, e))?;
    if state.created && !there {
        return Err(OpenError::Emptied { path });
    }
    if !state.created {
        disk.remove(&path).map_err(|e| open_error("remove", &path, e))?;
    }
    disk.create_folders(&parent).map_err(|e| open_error("create", &parent, e))?;
    let tree = open_tree(&path).map_err(|e| unreadable(&path, e))?;
    let recovered = recover(tree, &path, &state, Arc::clone(guard), clock)?;
    disk.sync_folder(&parent).map_err(|e| open_error("sync", &parent, e))?;
    if !state.created {
        guard.set_created().map_err(|f| open_error("write", guard.path(), f.to_io()))?;
    }
    Ok(recovered)
}

/// [`LogIo`] on a task. Dropping it lets the task finish what is queued.
struct LogTask {
    shared: Arc<Shared>,
}

struct Shared {
    /// Without the bound of `sled_log.rs`: a task cannot wait inside `submit`. openraft bounds its
    /// own operations under way.
    queue: Mutex<Queue>,
    /// Notified when there is work, or the log is being closed.
    work: Notify,
    watch: DiskWatch,
}

impl LogTask {
    fn start(
        writer: Writer,
        on_fault: OnFault,
        (pace, watch): (Pace, DiskWatch),
        runtime: &Runtime,
    ) -> Self {
        let shared = Arc::new(Shared { queue: Mutex::default(), work: Notify::new(), watch });
        let write = Arc::clone(&shared).run(writer, on_fault, pace, runtime.clone());
        runtime.spawn("log", write).detach();
        Self { shared }
    }
}

impl LogIo for LogTask {
    fn submit(&self, operation: Operation, done: Done) {
        let refused = self.shared.lock().push(operation, done);
        match refused {
            Some((done, fault)) => done(Err(fault.to_io())),
            None => self.shared.work.notify_one(),
        }
    }
}

impl Drop for LogTask {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.work.notify_one();
    }
}

impl Shared {
    /// Runs commit by commit until the log is closed or the first fault.
    async fn run(
        self: Arc<Self>,
        mut writer: Writer,
        on_fault: OnFault,
        pace: Pace,
        runtime: Runtime,
    ) {
        while let Some((commit, done)) = self.next_commit(writer.has_purge_left(), &runtime).await {
            let path = writer.path().to_owned();
            let watched = self.watch.enter("write", &path);
            let committed = commit_at(&mut writer, &commit, &pace).await;
            drop(watched);
            match committed {
                Ok(()) => done.into_iter().for_each(|done| done(Ok(()))),
                Err(fault) => return self.fail(&fault, done, &on_fault),
            }
        }
        if let Err(fault) = writer.close() {
            self.fail(&fault, Vec::new(), &on_fault);
        }
    }

    /// Waits for work, as the thread does.
    async fn next_commit(
        &self,
        purge_left: bool,
        runtime: &Runtime,
    ) -> Option<(Commit, Vec<Done>)> {
        loop {
            {
                let mut queue = self.lock();
                if !queue.operations.is_empty() {
                    return Some(queue.take_commit());
                }
                if queue.closing {
                    return None;
                }
            }
            if !purge_left {
                self.work.notified().await;
                continue;
            }
            select! {
                () = self.work.notified() => {}
                () = runtime.sleep(IDLE) => return Some((Commit::Changes(Vec::new()), Vec::new())),
            }
        }
    }

    /// Reports the fault to the server, then fails all waiting operations. Later ones are refused.
    fn fail(&self, fault: &Fault, waiting: Vec<Done>, on_fault: &OnFault) {
        let queued = self.lock().fail(fault);
        on_fault(fault.clone());
        waiting.into_iter().chain(queued).for_each(|done| done(Err(fault.to_io())));
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// [`Writer::commit`], step by step.
async fn commit_at(writer: &mut Writer, commit: &Commit, pace: &Pace) -> Result<(), Fault> {
    pace(Step::Write).await;
    let written = writer.write(commit)?;
    pace(Step::Sync).await;
    writer.sync(&written)?;
    pace(Step::Guard).await;
    writer.tell_guard(&written)
}
