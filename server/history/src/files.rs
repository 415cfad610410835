//! The files of a history: one that grows, and older ones that go when there are too many bytes of them, or they are too
//! old.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use holdfast_replication::storage::{Disk, DiskFile};

use crate::frame::{self, Cover, Draft, Harm};

/// How the name of a file ends; it begins with the entry after which it has something.
const ENDING: &str = "history";
/// A file is followed by another one when it is a sixteenth of what all may take, within these bounds.
const SHARE: u64 = 16;
const FILE_BYTES_MIN: u64 = 64 << 10;
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Where a history lies, and how much it may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The folder of its files alone.
    pub folder: PathBuf,
    /// The id of the store whose log it is: files of another one's history are left alone.
    pub store: [u8; 16],
    /// How much, and for how long.
    pub bounds: Bounds,
}

/// How much a history may take, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of all files together. The file that grows is never removed, so that it may be a little more.
    pub bytes_max: u64,
    /// What happened longer ago goes, a file at a time.
    pub age_max: Duration,
    /// Free bytes on the disk that are not the history's to take.
    pub reserve_bytes: u64,
}

/// The files, as the one thread sees them that writes them.
pub(crate) struct Files {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    store: [u8; 16],
    bounds: Bounds,
    /// The file that grows; none before the next frame is written.
    growing: Option<Growing>,
    /// The others, the oldest first.
    older: VecDeque<Older>,
}

struct Growing {
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    bytes: u64,
    /// When its last entry was proposed.
    last_ms: u64,
}

struct Older {
    path: PathBuf,
    bytes: u64,
    /// When its last entry was proposed; read when it is wanted.
    last_ms: Option<u64>,
}

/// A file by the entry after which it has something.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Named {
    after: u64,
    pub(crate) path: PathBuf,
}

/// The files of a folder, the oldest first.
///
/// # Errors
///
/// As from the system.
pub(crate) fn list(disk: &dyn Disk, folder: &Path) -> io::Result<Vec<Named>> {
    let named = |path: PathBuf| {
        let is_ours = path.extension().is_some_and(|ending| ending == ENDING);
        let stem = path.file_stem().filter(|_| is_ours)?.to_str()?;
        let after = stem.parse().ok().filter(|_| stem.len() == 20)?;
        Some(Named { after, path })
    };
    let mut files: Vec<_> = disk.list(folder)?.into_iter().filter_map(named).collect();
    files.sort();
    Ok(files)
}

/// All bytes of a file.
///
/// # Errors
///
/// As from the system.
pub(crate) fn read(file: &dyn DiskFile) -> io::Result<Vec<u8>> {
    let length = usize::try_from(file.length()?).map_err(io::Error::other)?;
    let mut bytes = vec![0; length];
    let mut read = 0;
    while let Some(rest) = bytes.get_mut(read..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, read as u64)? {
            0 => break,
            more => read += more,
        }
    }
    bytes.truncate(read);
    Ok(bytes)
}

/// What is found in a file.
enum Look {
    /// What it covers last, and where the next frame belongs.
    Frames { last: Cover, end: u64 },
    /// A crash came before a frame was written.
    Empty,
    /// It is none of ours, or damaged, or of a later release.
    Harmed(Harm),
    /// A later file has said enough.
    Passed,
}

fn look(file: &dyn DiskFile, store: [u8; 16]) -> io::Result<Look> {
    let bytes = read(file)?;
    Ok(match frame::check_head(&bytes, store) {
        Err(Harm::Head) if bytes.len() < frame::HEAD_BYTES => Look::Empty,
        Err(harm) => Look::Harmed(harm),
        Ok(()) => {
            let (frames, end) = frame::frames(&bytes);
            let last = frames.last().map(|frame| frame.cover);
            last.map_or(Look::Empty, |last| Look::Frames { last, end: end as u64 })
        }
    })
}

impl Files {
    /// Opens the files of a store's history, and returns with them what they cover last, if anything. What a crash has left
    /// of a frame is cut off.
    ///
    /// # Errors
    ///
    /// As from the system.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        settings: &Settings,
    ) -> io::Result<(Self, Option<Cover>)> {
        let Settings { folder, store, bounds } = settings;
        disk.create_folders(folder)?;
        let mut files = Self {
            disk,
            folder: folder.clone(),
            store: *store,
            bounds: *bounds,
            growing: None,
            older: VecDeque::new(),
        };
        let mut covers = None;
        let mut left = list(files.disk.as_ref(), folder)?;
        while let Some(Named { path, .. }) = left.pop() {
            let file = files.disk.open(&path)?;
            let bytes = file.length()?;
            let is_last = files.growing.is_none() && files.older.is_empty();
            let look = if covers.is_none() { look(file.as_ref(), *store)? } else { Look::Passed };
            match look {
                Look::Empty if is_last => files.disk.remove(&path)?,
                Look::Frames { last, end } if is_last => {
                    covers = Some(last);
                    if end < bytes {
                        file.shorten(end)?;
                    }
                    let last_ms = last.last_ms;
                    files.growing = Some(Growing { path, file, bytes: end, last_ms });
                }
                other => {
                    match other {
                        Look::Frames { last, .. } => covers = Some(last),
                        Look::Harmed(harm) => {
                            tracing::warn!("{} is left as it is: {harm}", path.display());
                        }
                        Look::Empty | Look::Passed => {}
                    }
                    files.older.push_front(Older { path, bytes, last_ms: None });
                }
            }
        }
        Ok((files, covers))
    }

    /// Writes a frame behind the others. It is durable after [`Files::sync`].
    ///
    /// # Errors
    ///
    /// As from the system, or that the disk has no room. Nothing of the frame will be read, and the next one begins a
    /// file.
    pub(crate) fn append(&mut self, draft: &Draft) -> io::Result<()> {
        let frame = draft.encoded();
        let free = self.disk.free_space(&self.folder)?;
        if free < self.bounds.reserve_bytes.saturating_add(frame.len() as u64) {
            let message = format!("the disk has {free} free bytes, which are the store's reserve");
            return Err(io::Error::new(io::ErrorKind::StorageFull, message));
        }
        let mut growing = match self.growing.take() {
            Some(growing) if growing.bytes < self.file_bytes() => growing,
            full => {
                if let Some(Growing { path, bytes, last_ms, .. }) = full {
                    self.older.push_back(Older { path, bytes, last_ms: Some(last_ms) });
                }
                self.begin(&draft.cover)?
            }
        };
        if let Err(error) = growing.file.write_all_at(&frame, growing.bytes) {
            self.leave(growing);
            return Err(error);
        }
        growing.bytes += frame.len() as u64;
        growing.last_ms = draft.cover.last_ms;
        self.growing = Some(growing);
        Ok(())
    }

    fn file_bytes(&self) -> u64 {
        (self.bounds.bytes_max / SHARE).clamp(FILE_BYTES_MIN, FILE_BYTES_MAX)
    }

    /// Begins a file, durably. Where a file that cannot be read has its name, it takes the next one that is free.
    fn begin(&self, first: &Cover) -> io::Result<Growing> {
        let mut number = first.after;
        let path = loop {
            let path = self.folder.join(format!("{number:020}.{ENDING}"));
            if !self.disk.exists(&path)? {
                break path;
            }
            number += 1;
        };
        let begun = || -> io::Result<Growing> {
            let (file, head) = (self.disk.create(&path)?, frame::head(self.store));
            file.write_all_at(&head, 0)?;
            file.sync_data()?;
            self.disk.sync_folder(&self.folder)?;
            let bytes = head.len() as u64;
            Ok(Growing { path: path.clone(), file, bytes, last_ms: 0 })
        };
        begun().inspect_err(|_| {
            // Nothing is in it.
            let _ = self.disk.remove(&path);
        })
    }

    /// Writes nothing more into a file of which a write or a sync failed.
    fn leave(&mut self, growing: Growing) {
        let Growing { path, bytes, last_ms, .. } = growing;
        let last_ms = Some(last_ms);
        if bytes > frame::HEAD_BYTES as u64 {
            self.older.push_back(Older { path, bytes, last_ms });
        } else {
            let _ = self.disk.remove(&path);
        }
    }

    /// Makes durable what was written.
    ///
    /// # Errors
    ///
    /// As from the system; what is durable of the last frames is unknown then, and the next one begins a file.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        let Some(growing) = self.growing.take() else { return Ok(()) };
        match growing.file.sync_data() {
            Ok(()) => self.growing = Some(growing),
            Err(error) => {
                self.leave(growing);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Removes the oldest files while there are too many bytes, or what they have is too old.
    ///
    /// # Errors
    ///
    /// As from the system.
    pub(crate) fn prune(&mut self, now_ms: u64) -> io::Result<()> {
        while self.bytes() > self.bounds.bytes_max || self.is_old(now_ms)? {
            let Some(oldest) = self.older.front() else { break };
            self.disk.remove(&oldest.path)?;
            self.older.pop_front();
        }
        Ok(())
    }

    /// Whether all of the oldest file is too old.
    fn is_old(&mut self, now_ms: u64) -> io::Result<bool> {
        let age_max = u64::try_from(self.bounds.age_max.as_millis()).unwrap_or(u64::MAX);
        let Some(oldest) = self.older.front_mut() else { return Ok(false) };
        let last_ms = if let Some(last_ms) = oldest.last_ms {
            last_ms
        } else {
            let bytes = read(self.disk.open(&oldest.path)?.as_ref())?;
            let last = frame::frames(&bytes).0.last().map(|frame| frame.cover.last_ms);
            // What cannot be read goes when there are too many bytes.
            *oldest.last_ms.insert(last.unwrap_or(u64::MAX))
        };
        Ok(last_ms.saturating_add(age_max) < now_ms)
    }

    /// Bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        let older: u64 = self.older.iter().map(|file| file.bytes).sum();
        older + self.growing.as_ref().map_or(0, |growing| growing.bytes)
    }
}
