//! Reads back what a tree holds and checks it against the guard file (I21).
//!
//! Nothing is trusted: every record is checked, every gap is an error, and a tree that is shorter
//! than its guard says is refused, whatever the cause.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::Arc;

use holdfast_mutants::mutant;
use holdfast_runtime::Clock;

use super::counters::Counters;
use super::error::{OpenError, open_error};
use super::guard::{Guard, GuardState};
use super::mirror::LogMirror;
use super::record::{
    DecodeError, Fields, LogId, Record, StoredVote, decode_group, seal, take_log_id, take_vote,
    unseal,
};
use super::tree::Tree;
use super::writer::{
    GROUP_PREFIX, META_MAGIC, META_VERSION, PURGED_KEY, STORE_ID_KEY, VOTE_KEY, Writer, group_key,
};

/// Reads the tree at `path` and prepares it for writing. Commits are timed on `clock`.
///
/// # Errors
///
/// Why it cannot be trusted.
pub(super) fn recover(
    mut tree: Box<dyn Tree>,
    path: &Path,
    state: &GuardState,
    guard: Arc<Guard>,
    clock: Arc<dyn Clock>,
) -> Result<(Writer, LogMirror), OpenError> {
    check_store_id(path, &mut *tree, state)?;
    let vote = read_mark(path, &*tree, VOTE_KEY, take_vote)?;
    let purged = read_mark(path, &*tree, PURGED_KEY, take_log_id)?;
    let (groups, records) = read_log(path, &*tree, purged)?;
    let mirror = LogMirror::recovered(records, purged, vote);
    if !mutant!(GuardIgnored) {
        check_guard(path, &mirror, state)?;
    }
    let counters = Arc::new(Counters::new(clock));
    Ok((Writer { tree, guard, groups, purged, since_bound: 0, counters }, mirror))
}

/// Checks that guard and store were made together: a store without the guard's id is empty, one
/// with another id is another store.
fn check_store_id(path: &Path, tree: &mut dyn Tree, state: &GuardState) -> Result<(), OpenError> {
    if !state.created {
        let id = seal(META_MAGIC, META_VERSION, &state.store_id);
        let written =
            tree.write(vec![(STORE_ID_KEY.to_vec(), Some(id))]).and_then(|()| tree.sync());
        return written.map(|_| ()).map_err(|error| unreadable(path, error));
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

type Log = (BTreeMap<u64, LogId>, VecDeque<Record>);

/// Reads every group in order and checks every checksum; no gap may follow the purge mark.
fn read_log(path: &Path, tree: &dyn Tree, purged: Option<LogId>) -> Result<Log, OpenError> {
    let mut groups = BTreeMap::new();
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
