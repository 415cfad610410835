//! Opening sled and reading back what is in it, trusting nothing.
//!
//! sled panics on some damage, silently drops the end of a damaged log, and opens a file that was
//! cut off as an empty database. So it is opened on a thread of its own where a panic is caught,
//! every record is checked, and the result is compared with the guard file (I21).

use std::any::Any;
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};
use std::thread;
use std::time::Duration;

use bytes::Bytes;

use super::error::{OpenError, open_error};
use super::files::{sync_folder, sync_tree};
use super::guard::{Guard, GuardState};
use super::mirror::LogMirror;
use super::record::{
    DecodeError, Fields, LogId, Record, StoredVote, decode_group, seal, take_log_id, take_vote,
    unseal,
};
use super::sled_log::Counters;
use super::sled_pool::Idlers;
use super::sled_writer::{
    DataFile, GROUP_PREFIX, META_MAGIC, META_VERSION, PURGED_KEY, STORE_ID_KEY, VOTE_KEY, Writer,
    group_key,
};
use super::store::FolderLock;

/// Large enough that groups and the pages that hold them stay in sled's one file: with the default
/// of 512 KiB, values of 17 KB already went to files of their own, which sled never syncs.
const SEGMENT_BYTES: usize = 4 << 20;
/// The log is read once, at start; more cache buys nothing (measured).
const CACHE_BYTES: u64 = 32 << 20;
/// Two seconds in all for sled to let go of its file.
const RELEASE_TRIES: u32 = 100;
const RELEASE_PAUSE: Duration = Duration::from_millis(20);

/// Opens or creates the sled store below `folder` and checks it against `guard`.
///
/// # Errors
///
/// Why it cannot be trusted. A store that was never completely created is made anew; any other is
/// left to be inspected.
pub(super) fn open_sled(
    folder: &Path,
    guard: &Arc<Guard>,
    lock: FolderLock,
) -> Result<(Writer, LogMirror), OpenError> {
    let path = folder.join("sled");
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
        let (path, state, guard) = (path.clone(), state.clone(), Arc::clone(guard));
        move || read_store(&path, &state, guard, lock)
    })?;
    // Everything sled made or mended while opening, and the names it lies under (I19).
    sync_tree(&path)
        .and_then(|()| sync_folder(folder))
        .map_err(|e| open_error("sync", &path, e))?;
    if !state.created {
        guard.set_created().map_err(|f| open_error("write", guard.path(), f.to_io()))?;
    }
    Ok(opened)
}

/// A creation that was interrupted left nothing that was ever acknowledged.
fn remove_unfinished(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Makes a store that was not closed ready for sled.
///
/// sled notes at each start how far it has read, in a file `snap.*`. It writes it under a temporary
/// name, and at the next start takes what a crash left there for the newest one, and fails. The
/// note only saves time and the one before it is still there, so the left-over is removed. The note
/// must not run ahead of the file it is about either: what a killed process left in the page cache
/// is synced before sled reads it.
fn prepare(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == "generating") {
            fs::remove_file(file)?;
        }
    }
    sync_tree(path)
}

fn read_store(
    path: &Path,
    state: &GuardState,
    guard: Arc<Guard>,
    lock: FolderLock,
) -> Result<(Writer, LogMirror), OpenError> {
    let failed = |error| from_sled(path, error);
    let config = sled::Config::new()
        .path(path)
        .flush_every_ms(None)
        .segment_size(SEGMENT_BYTES)
        .cache_capacity(CACHE_BYTES);
    let db = open_when_released(&config).map_err(failed)?;
    let tree = db.open_tree("log").map_err(failed)?;
    check_store_id(path, &db, &tree, state)?;
    let vote = read_mark(path, &tree, VOTE_KEY, take_vote)?;
    let purged = read_mark(path, &tree, PURGED_KEY, take_log_id)?;
    let (groups, records) = read_log(path, &tree, purged)?;
    let mirror = LogMirror::recovered(records, purged, vote);
    check_guard(path, &mirror, state)?;
    let file = DataFile::open(path).map_err(|e| open_error("open", path, e))?;
    let counters = Arc::new(Counters::default());
    let idlers = Idlers::of_process();
    idlers.thin_out(&tree);
    let since_bound = 0;
    let writer = Writer {
        db,
        tree,
        idlers,
        file,
        guard,
        groups,
        purged,
        since_bound,
        counters,
        _lock: lock,
    };
    Ok((writer, mirror))
}

/// The guard and the store were made together: without its id the store is empty, with another one
/// it is another store.
fn check_store_id(
    path: &Path,
    db: &sled::Db,
    tree: &sled::Tree,
    state: &GuardState,
) -> Result<(), OpenError> {
    if !state.created {
        let id = seal(META_MAGIC, META_VERSION, &state.store_id);
        let written = tree.insert(STORE_ID_KEY, id).and_then(|_| db.flush());
        return written.map(|_| ()).map_err(|error| from_sled(path, error));
    }
    let stored = read_mark(path, tree, STORE_ID_KEY, take_store_id)?;
    if stored == Some(state.store_id) {
        return Ok(());
    }
    let what = match stored {
        None => "it opens as an empty store".to_owned(),
        Some(_) => "it is the store of another folder".to_owned(),
    };
    Err(OpenError::BehindGuard { path: path.to_path_buf(), what })
}

/// sled locks its file as well. We hold the folder, so nobody else has it open but what is left of
/// an instance that this very process has just closed: a forked process before its exec, or sled's
/// own threads. That is over in a moment.
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

fn take_store_id(fields: &mut Fields<'_>) -> Result<[u8; 16], DecodeError> {
    fields.array()
}

fn read_mark<T>(
    path: &Path,
    tree: &sled::Tree,
    key: &[u8],
    decode: impl FnOnce(&mut Fields<'_>) -> Result<T, DecodeError>,
) -> Result<Option<T>, OpenError> {
    let Some(stored) = tree.get(key).map_err(|error| from_sled(path, error))? else {
        return Ok(None);
    };
    unseal(META_MAGIC, META_VERSION, &stored)
        .and_then(|body| decode(&mut Fields(body)))
        .map(Some)
        .map_err(|error| damaged(path, &String::from_utf8_lossy(key), error))
}

type Log = (BTreeMap<u64, LogId>, VecDeque<Record>);

/// Every group in order, every checksum; no gap after the purge mark.
fn read_log(path: &Path, tree: &sled::Tree, purged: Option<LogId>) -> Result<Log, OpenError> {
    let mut groups = BTreeMap::new();
    let mut records: VecDeque<Record> = VecDeque::new();
    let mut expected = purged.map_or(0, |purged| purged.index.saturating_add(1));
    for entry in tree.scan_prefix(GROUP_PREFIX) {
        let (key, value) = entry.map_err(|error| from_sled(path, error))?;
        let value = Bytes::copy_from_slice(&value);
        let group = decode_group(&value).map_err(|e| damaged(path, "a group of records", e))?;
        let ends = group.first().zip(group.last()).map(|(a, b)| (a.log_id, b.log_id));
        let Some((first, last)) = ends.filter(|(first, _)| key == group_key(first.index)) else {
            let what = format!("a group of records stands under another key: {key:?}");
            return Err(OpenError::Damaged { path: path.to_path_buf(), what });
        };
        groups.insert(first.index, last);
        if purged.is_some_and(|purged| last.index <= purged.index) {
            continue;
        }
        let fits =
            if records.is_empty() { first.index <= expected } else { first.index == expected };
        if !fits {
            let what = format!("log index {expected} is missing before {}", first.index);
            return Err(OpenError::Damaged { path: path.to_path_buf(), what });
        }
        let needed = |record: &Record| purged.is_none_or(|p| record.log_id.index > p.index);
        records.extend(group.into_iter().filter(needed));
        expected = last.index.saturating_add(1);
    }
    Ok((groups, records))
}

/// I21: the store holds at least what its guard says was durable.
fn check_guard(path: &Path, log: &LogMirror, state: &GuardState) -> Result<(), OpenError> {
    let behind = |what| Err(OpenError::BehindGuard { path: path.to_path_buf(), what });
    if let Some(vote) = state.vote
        && log.vote().is_none_or(|stored| !stored.covers(&vote))
    {
        return behind(format!(
            "the vote is {}, the guard has {}",
            show(log.vote()),
            show(Some(vote))
        ));
    }
    let Some(bound) = state.durable else { return Ok(()) };
    if log.purged().is_some_and(|purged| purged.index >= bound.index) {
        return Ok(());
    }
    match log.get(bound.index).map(|record| record.log_id) {
        Some(found) if found == bound => Ok(()),
        Some(found) => behind(format!(
            "log index {} is of term {}, the guard has term {}",
            bound.index, found.term, bound.term
        )),
        None => behind(format!(
            "the log ends at {}, the guard has log index {}",
            log.last().map_or_else(|| "nothing".to_owned(), |last| format!("index {}", last.index)),
            bound.index
        )),
    }
}

fn show(vote: Option<StoredVote>) -> String {
    vote.map_or_else(
        || "missing".to_owned(),
        |vote| match vote.node_id {
            Some(node) => format!("for node {node} in term {}", vote.term),
            None => format!("for nobody in term {}", vote.term),
        },
    )
}

fn damaged(path: &Path, item: &str, error: DecodeError) -> OpenError {
    let path = path.to_path_buf();
    match error {
        DecodeError::Version { found, known } => OpenError::NewerFormat { path, found, known },
        other => OpenError::Damaged { path, what: format!("{item}: {other}") },
    }
}

/// What the system refused is told apart from what sled found in its files. sled hands out copies
/// of a system error that have lost its number; the kind is still there.
fn from_sled(path: &Path, error: sled::Error) -> OpenError {
    use io::ErrorKind::{InvalidData, Other, UnexpectedEof};
    let own_words = |error: &io::Error| {
        error.raw_os_error().is_none()
            && matches!(error.kind(), InvalidData | Other | UnexpectedEof)
    };
    match error {
        sled::Error::Io(error) if !own_words(&error) => open_error("open", path, error),
        other => OpenError::Damaged { path: path.to_path_buf(), what: other.to_string() },
    }
}

/// Runs `work` on a thread of its own; a panic there becomes [`OpenError::Damaged`] with its
/// message, and prints nothing by itself.
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

/// The operator gets one message, ours; a back trace of sled before it helps nobody.
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

/// What a caught panic said.
pub(super) fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic without a message".to_owned())
}
