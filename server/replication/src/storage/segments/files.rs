//! The files of the log: made ahead of need, and used again.
//!
//! The first write to a block of a new file changes the file system's own data as well, and a sync
//! has to write that too. So a segment is filled with zeros, synced, and has its final name before the
//! log needs it; in steady use it is the file of a segment whose records were all purged. Both
//! happen apart from the commits: the keeper is a loop of its own.
//!
//! A file gets its name last: it is `next.tmp` until its head is durable. Such a file that a crash
//! left is removed when the log is opened.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt as _;
use tokio::sync::Notify;

use super::frame::{HEAD_BYTES, Name, encode_head, frame_bytes};
use crate::storage::disk::{Disk, DiskFile};
use crate::storage::replica_store::{Pace, Step};

/// Zeros are written and synced in pieces of this many bytes, so that no single sync takes long.
const PIECE: u64 = 1 << 20;
const TEMPORARY: &str = "next.tmp";
const EXTENSION: &str = "seg";

/// The sizes of the log's files, bytes. Each new one is twice as long as the one before, up to the
/// largest: a small store stays small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSizes {
    /// The first one of a folder.
    pub first: u64,
    /// Only a single commit that is larger gets a file beyond this, of its own.
    pub largest: u64,
}

impl Default for SegmentSizes {
    fn default() -> Self {
        Self { first: 1 << 20, largest: 16 << 20 }
    }
}

impl SegmentSizes {
    /// The length of the segment after one of `length`, which has to take a frame with a body of
    /// `body` bytes.
    pub(super) fn next(self, length: Option<u64>, body: usize) -> u64 {
        let doubled = length.map_or(self.first, |length| length.saturating_mul(2));
        // The head, the frame, and the frame that ends a segment.
        let needed = HEAD_BYTES + frame_bytes(body) + frame_bytes(0);
        doubled.min(self.largest).max(needed)
    }
}

/// One file of the log.
pub(in crate::storage) struct Segment {
    pub(super) name: Name,
    pub(super) length: u64,
    pub(super) path: PathBuf,
    pub(super) file: Arc<dyn DiskFile>,
}

/// Makes segments and takes them back.
pub(super) struct SegmentFiles {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    store: [u8; 16],
    state: Mutex<State>,
    /// Notified when the keeper has something to do.
    work: Notify,
    /// Notified when the keeper has answered.
    answered: Notify,
}

#[derive(Default)]
struct State {
    /// The segment to make: its number and length.
    wanted: Option<(u64, u64)>,
    ready: Option<io::Result<Segment>>,
    /// Segments whose records were all purged, oldest first.
    released: VecDeque<Segment>,
    closing: bool,
    /// The keeper has ended with a fault.
    failed: bool,
}

/// What the keeper does next.
enum Task {
    Make { number: u64, length: u64, from: Option<Segment> },
    Remove(Segment),
}

impl SegmentFiles {
    pub(super) fn new(disk: Arc<dyn Disk>, folder: &Path, store: [u8; 16]) -> Self {
        let (work, answered) = (Notify::new(), Notify::new());
        let folder = folder.to_path_buf();
        Self { disk, folder, store, state: Mutex::default(), work, answered }
    }

    /// The numbers and paths of the segments in the folder, in order. Removes the file that a crash
    /// left unfinished; other files are none of the log's.
    ///
    /// # Errors
    ///
    /// As from the system.
    pub(super) fn found(&self) -> io::Result<Vec<(u64, PathBuf)>> {
        self.disk.create_folders(&self.folder)?;
        self.disk.remove(&self.folder.join(TEMPORARY))?;
        // The names that a killed process has given may be in the system's memory alone.
        self.disk.sync_folder(&self.folder)?;
        let mut found: Vec<_> =
            self.disk.list(&self.folder)?.into_iter().filter_map(numbered).collect();
        found.sort();
        Ok(found)
    }

    pub(super) fn open(&self, number: u64, path: PathBuf) -> io::Result<Segment> {
        let file = self.disk.open(&path)?;
        let length = file.length()?;
        Ok(Segment { name: Name { store: self.store, number }, length, path, file })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Makes a segment without the keeper.
    ///
    /// # Errors
    ///
    /// As from the system.
    pub(super) fn make_now(&self, number: u64, length: u64) -> io::Result<Segment> {
        let at_once: Pace = Arc::new(|_| Box::pin(std::future::ready(())));
        let made = self.make(number, length, None, &at_once).now_or_never();
        made.unwrap_or_else(|| Err(io::Error::other("a step of a file did not end")))
    }

    /// Removes every segment.
    ///
    /// # Errors
    ///
    /// As from the system.
    pub(super) fn remove_all(&self) -> io::Result<()> {
        for (_, path) in self.found()? {
            self.disk.remove(&path)?;
        }
        self.disk.sync_folder(&self.folder)
    }

    /// Takes a segment that was made ahead of need by an earlier process.
    pub(super) fn offer(&self, segment: Segment) {
        self.lock().ready = Some(Ok(segment));
    }

    /// Asks for segment `number`, which has to be at least `length` bytes long, ahead of need.
    pub(super) fn want(&self, number: u64, length: u64) {
        let mut state = self.lock();
        if state.ready.is_none() && state.wanted.is_none() {
            state.wanted = Some((number, length));
            self.work.notify_one();
        }
    }

    /// Segment `number` as soon as it is made. [`keep`](Self::keep) must run.
    ///
    /// # Errors
    ///
    /// As from the system: there is no such segment then.
    pub(super) async fn next(&self, number: u64, length: u64) -> io::Result<Segment> {
        // What was made ahead of need may be too short for this commit, or may have failed: that
        // is no fault until the segment is needed.
        if let Some(Ok(segment)) = self.take_ready(length) {
            return Ok(segment);
        }
        loop {
            let answered = self.answered.notified();
            if self.lock().failed {
                return Err(io::Error::other("the keeper of the log's files has ended"));
            }
            self.want(number, length);
            answered.await;
            if let Some(made) = self.take_ready(length) {
                return made;
            }
        }
    }

    /// What was made, unless it is shorter than `length`: the longer one takes its name, and so its
    /// place. It must not be released: its path is that of the longer one then.
    fn take_ready(&self, length: u64) -> Option<io::Result<Segment>> {
        let made = self.lock().ready.take()?;
        let is_short = made.as_ref().is_ok_and(|made| made.length < length);
        (!is_short).then_some(made)
    }

    /// Takes back a segment whose records were all purged.
    pub(super) fn release(&self, segment: Segment) {
        self.lock().released.push_back(segment);
        self.work.notify_one();
    }

    /// Lets the keeper end when nothing is left to do.
    pub(super) fn close(&self) {
        self.lock().closing = true;
        self.work.notify_one();
    }

    /// The keeper: makes and removes files until the log is closed.
    ///
    /// # Errors
    ///
    /// As from the system, when a file cannot be given back; what is in the log is not affected.
    pub(super) async fn keep(&self, pace: &Pace) -> io::Result<()> {
        loop {
            let work = self.work.notified();
            let Some(task) = self.next_task() else {
                if self.lock().closing {
                    return Ok(());
                }
                work.await;
                continue;
            };
            match task {
                Task::Make { number, length, from } => {
                    let made = self.make(number, length, from, pace).await;
                    let mut state = self.lock();
                    (state.wanted, state.ready) = (None, Some(made));
                    drop(state);
                    self.answered.notify_one();
                }
                Task::Remove(segment) => {
                    let removed = self.remove(&segment.path, pace).await;
                    if removed.is_err() {
                        self.lock().failed = true;
                        self.answered.notify_one();
                        return removed;
                    }
                }
            }
        }
    }

    fn next_task(&self) -> Option<Task> {
        let mut state = self.lock();
        if let Some((number, length)) = state.wanted.filter(|_| state.ready.is_none()) {
            // The oldest first, so that no gap ever stands between those that are left.
            let fits = state.released.front().is_some_and(|oldest| oldest.length >= length);
            let from = if fits { state.released.pop_front() } else { None };
            return Some(Task::Make { number, length, from });
        }
        state.released.pop_front().map(Task::Remove)
    }

    /// Makes a segment of a new file, or of one that was released.
    async fn make(
        &self,
        number: u64,
        length: u64,
        from: Option<Segment>,
        pace: &Pace,
    ) -> io::Result<Segment> {
        let temporary = self.folder.join(TEMPORARY);
        let (file, length) = match from {
            Some(old) => {
                // Its old name must be gone before its old head is.
                self.disk.rename(&old.path, &temporary)?;
                pace(Step::Sync).await;
                self.disk.sync_folder(&self.folder)?;
                (old.file, old.length)
            }
            None => (self.zeroed(&temporary, length, pace).await?, length),
        };
        let name = Name { store: self.store, number };
        file.write_all_at(&encode_head(name, length), 0)?;
        pace(Step::Sync).await;
        file.sync_all()?;
        let path = self.folder.join(format!("{number:016}.{EXTENSION}"));
        self.disk.rename(&temporary, &path)?;
        pace(Step::Sync).await;
        self.disk.sync_folder(&self.folder)?;
        Ok(Segment { name, length, path, file })
    }

    async fn zeroed(&self, path: &Path, length: u64, pace: &Pace) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.disk.create(path)?;
        let mut at = 0;
        while at < length {
            let piece = PIECE.min(length - at);
            file.write_all_at(&vec![0; usize::try_from(piece).unwrap_or_default()], at)?;
            pace(Step::Sync).await;
            file.sync_data()?;
            at += piece;
        }
        Ok(file)
    }

    async fn remove(&self, path: &Path, pace: &Pace) -> io::Result<()> {
        self.disk.remove(path)?;
        pace(Step::Sync).await;
        // A later one must not be gone before this one is.
        self.disk.sync_folder(&self.folder)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number of a segment, by the name of its file.
fn numbered(path: PathBuf) -> Option<(u64, PathBuf)> {
    let is_segment = path.extension().is_some_and(|extension| extension == EXTENSION);
    let number = path.file_stem()?.to_str()?.parse().ok()?;
    is_segment.then_some((number, path))
}
