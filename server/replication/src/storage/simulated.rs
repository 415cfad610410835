//! A data folder on a simulation's disk: everything but the marks is what a real disk has.

use std::io;
use std::path::Path;
use std::sync::Arc;

use holdfast_runtime::{Clock, Runtime};

use super::disk::{Disk, SystemDisk};
use super::disk_watch::{DiskWatch, WatchedDisk};
use super::error::{OpenError, open_error};
use super::guard::Guard;
use super::log_loop::LogLoop;
use super::log_store::LogStore;
use super::mirror::LogMirror;
use super::recover::{Places, Recovered, recover, unreadable};
use super::replica_store::Pace;
use super::segments::SegmentSizes;
use super::sled_open::{LOG, MARKS, open_sled};
use super::snapshot::Snapshots;
use super::store::{Opened, Store, StoreOptions, claim_folder, open_guard};
use super::tree::Tree;

/// Opens the marks in the given file, or creates them there.
pub type OpenTree = Box<dyn FnOnce(&Path) -> io::Result<Box<dyn Tree>>>;

/// What a simulated store uses in place of the machine.
pub struct Ground {
    /// Its files.
    pub disk: Arc<dyn Disk>,
    /// Its marks.
    pub open_tree: OpenTree,
    /// How large the files of its log are.
    pub segments: SegmentSizes,
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
        let Ground { disk, open_tree, segments, pace, runtime } = ground;
        let watch = options.stalls_after.map_or_else(DiskWatch::none, |limit| {
            DiskWatch::as_a_task(limit, Arc::clone(&options.on_fault), &runtime)
        });
        let disk: Arc<dyn Disk> = Arc::new(WatchedDisk { disk, watch: watch.clone() });
        disk.create_folders(folder).map_err(|e| open_error("create", folder, e))?;
        let guard = Arc::new(open_guard(&*disk, folder, &options)?);
        let Recovered { writer, keeper, mirror } =
            open_on(&disk, folder, &guard, (open_tree, segments), runtime.clock.clone())?;
        let counters = writer.counters();
        let opened = Opened { disk, folder, guard, mirror, counters, watch: watch.clone() };
        let log_pace = (Arc::clone(&pace), watch);
        let mut store = opened.assemble(options.on_fault, |on_fault| {
            Ok(Arc::new(LogLoop::as_tasks((writer, keeper), on_fault, log_pace, &runtime)))
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
        let Recovered { writer, keeper, mirror } =
            open_sled(folder, Arc::new(SystemDisk), &guard, lock)?;
        let io = LogLoop::on_threads((writer, keeper), options.on_fault, DiskWatch::none())
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

/// Opens marks and log as [`open_sled`] does, with another tree in sled's place.
fn open_on(
    disk: &Arc<dyn Disk>,
    folder: &Path,
    guard: &Arc<Guard>,
    (open_tree, sizes): (OpenTree, SegmentSizes),
    clock: Arc<dyn Clock>,
) -> Result<Recovered, OpenError> {
    let parent = folder.join(MARKS);
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
    let places = Places { marks: &path, log: &folder.join(LOG), disk: Arc::clone(disk), sizes };
    let recovered = recover(tree, &places, Arc::clone(guard), clock)?;
    disk.sync_folder(&parent).map_err(|e| open_error("sync", &parent, e))?;
    if !state.created {
        guard.set_created().map_err(|f| open_error("write", guard.path(), f.to_io()))?;
    }
    Ok(recovered)
}
