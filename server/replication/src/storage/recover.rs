//! Reads back what a folder holds and checks it against the guard file (I21).
//!
//! Nothing is trusted: every record is checked, every gap is an error, and a log that is shorter
//! than its guard says is refused, whatever the cause.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;

use holdfast_mutants::mutant;
use holdfast_runtime::Clock;

use super::counters::Counters;
use super::disk::Disk;
use super::error::{OpenError, open_error};
use super::guard::{Guard, GuardState};
use super::mirror::LogMirror;
use super::record::{
    DecodeError, Fields, LogId, Record, StoredVote, decode_group, seal, take_log_id, take_vote,
    unseal,
};
use super::segments::{Keeper, SegmentSizes, Segments};
use super::tree::Tree;
use super::writer::{META_MAGIC, META_VERSION, PURGED_KEY, STORE_ID_KEY, VOTE_KEY, Writer};

/// Release 0.1 kept the records beside the marks: groups of them under `g` and the index of the first
/// one, big-endian.
const GROUP_PREFIX: &[u8] = b"g";
/// Groups removed by one write after a conversion.
const GROUPS_AT_ONCE: usize = 64;

/// The places of a folder.
pub(super) struct Places<'a> {
    /// The folder of the marks, for messages.
    pub(super) marks: &'a Path,
    /// The folder of the segments.
    pub(super) log: &'a Path,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) sizes: SegmentSizes,
}

/// What was read, ready to be written.
pub(super) struct Recovered {
    pub(super) writer: Writer,
    pub(super) keeper: Keeper,
    pub(super) mirror: LogMirror,
}

/// Reads marks and log and prepares them for writing. Commits are timed on `clock`.
///
/// # Errors
///
/// Why they cannot be trusted.
pub(super) fn recover(
    mut marks: Box<dyn Tree>,
    places: &Places<'_>,
    guard: Arc<Guard>,
    clock: Arc<dyn Clock>,
) -> Result<Recovered, OpenError> {
    let state = guard.state();
    check_store_id(places.marks, &mut *marks, &state)?;
    let vote = read_mark(places.marks, &*marks, VOTE_KEY, take_vote)?;
    let purged = read_mark(places.marks, &*marks, PURGED_KEY, take_log_id)?;
    if !state.has_segments {
        convert(&mut *marks, places, &guard, (vote, purged))?;
    } else if state.created {
        let there = places.disk.exists(places.log);
        if !there.map_err(|e| open_error("read", places.log, e))? {
            return Err(OpenError::Emptied { path: places.log.to_path_buf() });
        }
        // A conversion may have ended before they were gone.
        remove_groups(&mut *marks).map_err(|error| unreadable(places.marks, error))?;
    }
    let (segments, keeper, records) = open_segments(places, &state, purged)?;
    let mirror = LogMirror::recovered(records, purged, vote);
    if !mutant!(GuardIgnored) {
        check_guard(places.log, &mirror, &guard.state())?;
    }
    let (counters, last) = (Arc::new(Counters::new(clock)), mirror.last());
    let folder = places.log.to_path_buf();
    let writer = Writer { folder, segments, marks, guard, last, purged, since_bound: 0, counters };
    Ok(Recovered { writer, keeper, mirror })
}

fn open_segments(
    places: &Places<'_>,
    state: &GuardState,
    purged: Option<LogId>,
) -> Result<(Segments, Keeper, VecDeque<Record>), OpenError> {
    let Places { log, disk, sizes, .. } = places;
    if !state.created {
        // An interrupted creation left nothing that was ever acknowledged.
        Segments::clear(Arc::clone(disk), log).map_err(|e| open_error("remove", log, e))?;
    }
    Segments::open(Arc::clone(disk), log, state.store_id, *sizes, purged)
}

/// Writes the log of release 0.1, which lies beside the marks, into segments. A crash on the way
/// leaves the old log, which counts until the guard file says otherwise; after that it is removed.
fn convert(
    marks: &mut dyn Tree,
    places: &Places<'_>,
    guard: &Guard,
    (vote, purged): (Option<StoredVote>, Option<LogId>),
) -> Result<(), OpenError> {
    let records = read_groups(places.marks, marks, purged)?;
    let mirror = LogMirror::recovered(records.clone(), purged, vote);
    if !mutant!(GuardIgnored) {
        check_guard(places.marks, &mirror, &guard.state())?;
    }
    write_segments(places, guard.state().store_id, purged, &records)
        .map_err(|error| open_error("convert the log to", places.log, error))?;
    guard.set_segments().map_err(|f| open_error("write", guard.path(), f.to_io()))?;
    remove_groups(marks).map_err(|error| unreadable(places.marks, error))?;
    tracing::info!(records = records.len(), "the log of an earlier release was converted");
    Ok(())
}

/// Segments with these records, durable, in place of any that are there.
fn write_segments(
    places: &Places<'_>,
    store: [u8; 16],
    purged: Option<LogId>,
    records: &VecDeque<Record>,
) -> io::Result<()> {
    Segments::clear(Arc::clone(&places.disk), places.log)?;
    let disk = Arc::clone(&places.disk);
    let opened = Segments::open(disk, places.log, store, places.sizes, purged);
    let (mut segments, _keeper, _) = opened.map_err(io::Error::other)?;
    for record in records {
        segments.append_alone(std::slice::from_ref(record))?;
    }
    segments.sync()
}

fn remove_groups(marks: &mut dyn Tree) -> io::Result<()> {
    loop {
        let some = marks.scan(GROUP_PREFIX).take(GROUPS_AT_ONCE);
        let keys = some.map(|item| Ok((item?.0.to_vec(), None))).collect::<io::Result<Vec<_>>>()?;
        if keys.is_empty() {
            return Ok(());
        }
        marks.write(keys)?;
        marks.sync()?;
    }
}

/// Checks that guard and store were made together: a store without the guard's id is empty, one
/// with another id is another store.
fn check_store_id(path: &Path, tree: &mut dyn Tree, state: &GuardState) -> Result<(), OpenError> {
    if !state.created {
        let id = seal(META_MAGIC, META_VERSION, &state.store_id);
        let written =
            tree.write(vec![(STORE_ID_KEY.to_vec(), Some(id))]).and_then(|()| tree.sync());
        return written.map_err(|error| unreadable(path, error));
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

fn take_store_id(fields: &mut Fields<'_>) -> Result<[u8; 16], DecodeError> {
    fields.array()
}

fn read_mark<T>(
    path: &Path,
    tree: &dyn Tree,
    key: &[u8],
    decode: impl FnOnce(&mut Fields<'_>) -> Result<T, DecodeError>,
) -> Result<Option<T>, OpenError> {
    let Some(stored) = tree.get(key).map_err(|error| unreadable(path, error))? else {
        return Ok(None);
    };
    unseal(META_MAGIC, META_VERSION, &stored)
        .and_then(|body| decode(&mut Fields(body)))
        .map(Some)
        .map_err(|error| damaged(path, &String::from_utf8_lossy(key), error))
}

/// The records of release 0.1: reads every group in order and checks every checksum; no gap may
/// follow the purge mark.
fn read_groups(
    path: &Path,
    tree: &dyn Tree,
    purged: Option<LogId>,
) -> Result<VecDeque<Record>, OpenError> {
    let mut records: VecDeque<Record> = VecDeque::new();
    let mut expected = purged.map_or(0, |purged| purged.index.saturating_add(1));
    for entry in tree.scan(GROUP_PREFIX) {
        let (key, value) = entry.map_err(|error| unreadable(path, error))?;
        let group = decode_group(&value).map_err(|e| damaged(path, "a group of records", e))?;
        let ends = group.first().zip(group.last()).map(|(a, b)| (a.log_id, b.log_id));
        let Some((first, last)) = ends.filter(|(first, _)| key == group_key(first.index)) else {
            let what = format!("a group of records stands under another key: {key:?}");
            return Err(OpenError::Damaged { path: path.to_path_buf(), what });
        };
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
    Ok(records)
}

/// The key of the group that begins at `first`.
fn group_key(first: u64) -> Vec<u8> {
    [GROUP_PREFIX, &first.to_be_bytes()].concat()
}

/// I21: checks that the store holds at least what its guard recorded as durable.
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

/// Distinguishes errors of the system from damage of the files. sled returns copies of a system
/// error that have lost its number; the kind is still there.
pub(super) fn unreadable(path: &Path, error: io::Error) -> OpenError {
    use io::ErrorKind::{InvalidData, Other, UnexpectedEof};
    let own_words = error.raw_os_error().is_none()
        && matches!(error.kind(), InvalidData | Other | UnexpectedEof);
    if own_words {
        return OpenError::Damaged { path: path.to_path_buf(), what: error.to_string() };
    }
    open_error("open", path, error)
}
