//! Opens sled, which keeps the marks, without trusting it.
//!
//! sled panics on some damage, silently drops the end of a damaged file, and opens a file that was
//! cut off as an empty database. So it is opened on a separate thread where a panic is caught, and
//! its contents are checked (`recover.rs`).

use std::any::Any;
use std::cell::Cell;
use std::fs;
use std::io;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};
use std::thread;
use std::time::Duration;

use holdfast_runtime::Runtime;

use super::disk::Disk;
use super::error::{OpenError, open_error};
use super::files::{sync_folder, sync_tree};
use super::guard::Guard;
use super::recover::{Places, Recovered, recover, unreadable};
use super::segments::SegmentSizes;
use super::store::FolderLock;
use super::tree::{DataFile, SledTree, to_io};

/// As release 0.1 had it, whose log lies in the same file: it was large enough that groups of records
/// and the pages that hold them stayed in sled's one file.
const SEGMENT_BYTES: usize = 4 << 20;
/// What is here is read once, at start; more cache gains nothing (measured).
const CACHE_BYTES: u64 = 32 << 20;
/// Two seconds in all for sled to release its file.
const RELEASE_TRIES: u32 = 100;
const RELEASE_PAUSE: Duration = Duration::from_millis(20);

/// The folder of the marks.
pub(super) const MARKS: &str = "sled";
/// The folder of the log's segments.
pub(super) const LOG: &str = "log";

/// Opens or creates marks and log below `folder` and checks them against `guard`.
///
/// # Errors
///
/// Why it cannot be trusted. A store that was never completely created is created again; any other
/// is left for inspection.
pub(super) fn open_sled(
    folder: &Path,
    disk: Arc<dyn Disk>,
    guard: &Arc<Guard>,
    lock: FolderLock,
) -> Result<Recovered, OpenError> {
    let path = folder.join(MARKS);
    let state = guard.state();
    if state.created {
        let db = path.join("db");
        if !fs::metadata(&db).is_ok_and(|metadata| metadata.len() > 0) {
            return Err(OpenError::Emptied { path: db });
        }
        prepare(&path).map_err(|e| open_error("prepare", &path, e))?;
    } else {
        remove_unfinished(&path).map_err(|e| open_error("remove", &path, e))?;
    }
    let opened = apart(&path, {
        let (path, log, guard) = (path.clone(), folder.join(LOG), Arc::clone(guard));
        move || read_store(&path, &log, disk, guard, lock)
    })?;
    // Everything that sled created or repaired while opening, and the names of its files (I19).
    sync_tree(&path)
        .and_then(|()| sync_folder(folder))
        .map_err(|e| open_error("sync", &path, e))?;
    if !state.created {
        guard.set_created().map_err(|f| open_error("write", guard.path(), f.to_io()))?;
    }
    Ok(opened)
}

/// An interrupted creation left nothing that was ever acknowledged.
fn remove_unfinished(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Prepares a store that was not closed for sled.
///
/// sled notes at each start how far it has read, in a file `snap.*`, which it writes under a
/// temporary name. At the next start it takes a temporary file that a crash left for the newest
/// note, and fails. The note only saves time and the one before it is still there, so the left-over
/// is removed. Nor may the note run ahead of the file that it describes: what a killed process left
/// in the page cache is synced before sled reads it.
fn prepare(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == "generating") {
            fs::remove_file(file)?;
        }
    }
    sync_tree(path)
}

/// Opens sled and reads the marks in it, and the log.
fn read_store(
    path: &Path,
    log: &Path,
    disk: Arc<dyn Disk>,
    guard: Arc<Guard>,
    lock: FolderLock,
) -> Result<Recovered, OpenError> {
    let failed = |error| unreadable(path, to_io(error));
    let config = sled::Config::new()
        .path(path)
        .flush_every_ms(None)
        .segment_size(SEGMENT_BYTES)
        .cache_capacity(CACHE_BYTES);
    let db = open_when_released(&config).map_err(failed)?;
    let tree = db.open_tree("log").map_err(failed)?;
    let file = DataFile::open(path).map_err(|e| open_error("open", path, e))?;
    let tree = SledTree { db, tree, file, _lock: lock };
    let places = Places { marks: path, log, disk, sizes: SegmentSizes::default() };
    // The machine's own clock: no simulation repeats the work of this thread.
    recover(Box::new(tree), &places, guard, Runtime::system().clock)
}

/// sled locks its file as well. We hold the folder, so only the remains of an instance that this
/// process has just closed can have it open: a forked process before its exec, or sled's own
/// threads. They release it in a moment.
fn open_when_released(config: &sled::Config) -> Result<sled::Db, sled::Error> {
    for _ in 0..RELEASE_TRIES {
        match config.open() {
            Err(sled::Error::Io(error)) if error.to_string().contains("acquire lock") => {
                thread::sleep(RELEASE_PAUSE);
            }
            other => return other,
        }
    }
    config.open()
}

/// Runs `work` on a separate thread. A panic there becomes [`OpenError::Damaged`] with its message,
/// and prints nothing by itself.
fn apart<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce() -> Result<T, OpenError> + Send + 'static,
) -> Result<T, OpenError> {
    silence_panics_of_openers();
    let caught = move || {
        QUIET.set(true);
        catch_unwind(AssertUnwindSafe(work))
    };
    let thread = thread::Builder::new()
        .name("holdfast-open".to_owned())
        .spawn(caught)
        .map_err(|e| open_error("start a thread to open", path, e))?;
    let payload = match thread.join() {
        Ok(Ok(outcome)) => return outcome,
        Ok(Err(payload)) | Err(payload) => payload,
    };
    let what = format!("sled gave up on it: {}", panic_message(payload.as_ref()));
    Err(OpenError::Damaged { path: PathBuf::from(path), what })
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// The operator gets one message, ours; a back trace of sled before it does not help.
fn silence_panics_of_openers() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                usual(info);
            }
        }));
    });
}

/// The message of a caught panic.
pub(super) fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic without a message".to_owned())
}
