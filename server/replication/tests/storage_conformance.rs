//! What every implementation of the log's I/O must do, run on files and in memory.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy's allowance for tests does not reach helper functions"
)]

mod storage_support;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, mpsc};

use holdfast_replication::raft::ReplicaStore;
use holdfast_replication::storage::{
    LogId, LogMirror, LogStore, MAX_PAYLOAD, MemoryLog, Misuse, Record, Store, StoredVote,
};
use storage_support::{Draw, ignore, options, record, wait};
use tempfile::TempDir;

/// A kind of storage that can be closed and opened again.
trait Subject {
    fn create() -> Self;
    /// Closes the log, if it is open, and opens what is stored.
    fn open(&mut self) -> &LogStore;
    /// The log that is open.
    fn log(&self) -> &LogStore;
}

struct Files {
    folder: TempDir,
    log: Option<LogStore>,
}

impl Subject for Files {
    fn create() -> Self {
        Self { folder: TempDir::new().unwrap(), log: None }
    }

    fn open(&mut self) -> &LogStore {
        drop(self.log.take());
        let opened = Store::open_log_without_snapshots(self.folder.path(), options());
        self.log.insert(opened.unwrap())
    }

    fn log(&self) -> &LogStore {
        self.log.as_ref().unwrap()
    }
}

struct Memory {
    io: Arc<MemoryLog>,
    log: Option<LogStore>,
}

impl Subject for Memory {
    fn create() -> Self {
        Self { io: Arc::new(MemoryLog::new()), log: None }
    }

    fn open(&mut self) -> &LogStore {
        let durable = self.io.power_cut();
        self.io = Arc::new(MemoryLog::holding(durable.clone()));
        self.log.insert(LogStore::new(durable, self.io.clone()))
    }

    fn log(&self) -> &LogStore {
        self.log.as_ref().unwrap()
    }
}

/// Instantiates every test below for one kind of storage.
macro_rules! conformance {
    ($name:ident, $subject:ty) => {
        mod $name {
            use super::*;

            #[test]
            fn a_new_log_is_empty() {
                super::a_new_log_is_empty::<$subject>();
            }
            #[test]
            fn entries_are_readable_before_they_are_durable_and_after_a_restart() {
                super::entries_are_readable_at_once_and_after_a_restart::<$subject>();
            }
            #[test]
            fn acknowledgements_come_in_the_order_of_submission() {
                super::acknowledgements_come_in_the_order_of_submission::<$subject>();
            }
            #[test]
            fn a_hole_is_refused_and_changes_nothing() {
                super::a_hole_is_refused_and_changes_nothing::<$subject>();
            }
            #[test]
            fn a_vote_never_goes_back() {
                super::a_vote_never_goes_back::<$subject>();
            }
            #[test]
            fn truncation_cuts_inside_a_group_and_drops_later_ones() {
                super::truncation_cuts_inside_a_group_and_drops_later_ones::<$subject>();
            }
            #[test]
            fn a_log_purged_beyond_its_end_goes_on_after_the_mark() {
                super::a_log_purged_beyond_its_end_goes_on_after_the_mark::<$subject>();
            }
            #[test]
            fn records_of_every_size_come_back_whole() {
                super::records_of_every_size_come_back_whole::<$subject>();
            }
            #[test]
            fn random_histories_match_a_plain_model() {
                super::random_histories_match_a_plain_model::<$subject>();
            }
        }
    };
}

conformance!(files, Files);
conformance!(memory, Memory);

fn all(log: &LogStore) -> Vec<Record> {
    log.entries(0..u64::MAX, usize::MAX)
}

fn append(log: &LogStore, records: Vec<Record>) {
    wait(|done| log.append(records, done)).unwrap();
}

fn a_new_log_is_empty<S: Subject>() {
    let mut subject = S::create();
    let log = subject.open();
    assert_eq!((log.last(), log.purged(), log.vote()), (None, None, None));
    assert!(log.is_empty());
}

fn entries_are_readable_at_once_and_after_a_restart<S: Subject>() {
    let mut subject = S::create();
    let log = subject.open();
    let records: Vec<Record> = (0..50).map(|index| record(1, index, 100)).collect();

    log.append(records.clone(), ignore()).unwrap();
    assert_eq!(all(log), records);
    assert_eq!(log.entries(10..12, usize::MAX), records[10..12]);
    assert_eq!(log.entries(10..40, 250), records[10..12], "bounded by bytes");
    assert_eq!(log.entries(10..40, 1), records[10..11], "the first always comes");

    let reopened = subject.open();
    assert_eq!(all(reopened), records);
    assert_eq!(reopened.last(), Some(records[49].log_id));
}

fn acknowledgements_come_in_the_order_of_submission<S: Subject>() {
    let mut subject = S::create();
    let log = subject.open();
    let order = Arc::new(Mutex::new(Vec::new()));
    let (send, receive) = mpsc::channel::<()>();
    for index in 0..200_u64 {
        let order = Arc::clone(&order);
        let send = send.clone();
        let done: holdfast_replication::storage::Done = Box::new(move |outcome| {
            outcome.unwrap();
            order.lock().unwrap().push(index);
            drop(send);
        });
        match index % 5 {
            4 => {
                let vote = StoredVote { term: index, node_id: Some(1), committed: false };
                log.save_vote(vote, done).unwrap();
            }
            3 => log.truncate_after(log.last().map(|last| last.index - 1), done).unwrap(),
            _ => {
                let next = log.last().map_or(0, |last| last.index + 1);
                log.append(vec![record(index, next, 10)], done).unwrap();
            }
        }
    }
    drop(send);
    receive.recv().expect_err("ends when the last one is acknowledged");
    assert_eq!(*order.lock().unwrap(), (0..200).collect::<Vec<_>>());
}

fn a_hole_is_refused_and_changes_nothing<S: Subject>() {
    let mut subject = S::create();
    let log = subject.open();
    append(log, vec![record(1, 0, 10), record(1, 1, 10)]);
    let before = all(log);

    let hole = log.append(vec![record(1, 3, 10)], ignore());
    assert_eq!(hole, Err(Misuse::Gap { expected: 2, found: 3 }));
    let inner = log.append(vec![record(1, 2, 10), record(1, 4, 10)], ignore());
    assert_eq!(inner, Err(Misuse::Gap { expected: 3, found: 4 }));
    let large = log.append(vec![record(1, 2, MAX_PAYLOAD + 1)], ignore());
    assert_eq!(large, Err(Misuse::TooLarge { index: 2, bytes: MAX_PAYLOAD + 1 }));

    assert_eq!(all(log), before);
    assert_eq!(all(subject.open()), before);
}

/// I20, at the lowest layer that can enforce it.
fn a_vote_never_goes_back<S: Subject>() {
    let vote = |term, node_id, committed| StoredVote { term, node_id, committed };
    let mut subject = S::create();
    let log = subject.open();
    let good = [vote(1, None, false), vote(1, Some(2), false), vote(3, Some(1), false)];
    for vote in good.into_iter().chain([vote(3, Some(1), true)]) {
        wait(|done| log.save_vote(vote, done)).unwrap();
    }
    for bad in [vote(2, Some(1), true), vote(3, Some(2), true), vote(3, Some(1), false)] {
        let refused = log.save_vote(bad, ignore());
        assert!(matches!(refused, Err(Misuse::VoteGoesBack { .. })), "{bad:?}");
    }
    assert_eq!(subject.open().vote(), Some(vote(3, Some(1), true)));
}

fn truncation_cuts_inside_a_group_and_drops_later_ones<S: Subject>() {
    let mut subject = S::create();
    let log = subject.open();
    append(log, (0..10).map(|index| record(1, index, 10)).collect());
    append(log, (10..20).map(|index| record(1, index, 10)).collect());
    append(log, (20..30).map(|index| record(1, index, 10)).collect());

    wait(|done| log.truncate_after(Some(14), done)).unwrap();
    append(log, vec![record(2, 15, 10)]);
    let mut expected: Vec<Record> = (0..15).map(|index| record(1, index, 10)).collect();
    expected.push(record(2, 15, 10));
    assert_eq!(all(log), expected);
    let log = subject.open();
    assert_eq!(all(log), expected);

    wait(|done| log.truncate_after(None, done)).unwrap();
    assert!(log.is_empty());
    assert!(subject.open().is_empty());
}

/// As a follower does that installs a snapshot beyond its log.
fn a_log_purged_beyond_its_end_goes_on_after_the_mark<S: Subject>() {
    let mut subject = S::create();
    let log = subject.open();
    append(log, (0..40).map(|index| record(1, index, 10)).collect());
    let mark = LogId { term: 2, node_id: 3, index: 1000 };

    wait(|done| log.purge(mark, done)).unwrap();
    assert_eq!((log.last(), log.purged()), (Some(mark), Some(mark)));
    append(log, vec![record(2, 1001, 10)]);
    let below = log.truncate_after(Some(999), ignore());
    assert!(matches!(below, Err(Misuse::TruncatesPurged { .. })));

    let log = subject.open();
    assert_eq!(all(log), [record(2, 1001, 10)]);
    assert_eq!(log.purged(), Some(mark));
}

fn records_of_every_size_come_back_whole<S: Subject>() {
    let mut subject = S::create();
    let log = subject.open();
    // More than the first segment takes.
    let sizes = [4_095, 4_096, 4_097, 65_535, MAX_PAYLOAD, 0, 1, MAX_PAYLOAD, 32_768, MAX_PAYLOAD];
    let records: Vec<Record> =
        (0..).zip(sizes).map(|(index, bytes)| record(1, index, bytes)).collect();
    append(log, records[..6].to_vec());
    append(log, records[6..].to_vec());
    assert_eq!(all(subject.open()), records);
}

/// An independent, simple model of the log.
#[derive(Default)]
struct Model {
    records: BTreeMap<u64, Record>,
    purged: Option<LogId>,
    vote: Option<StoredVote>,
    term: u64,
}

impl Model {
    fn next(&self) -> u64 {
        let last = self.records.keys().next_back().copied();
        last.max(self.purged.map(|id| id.index)).map_or(0, |last| last + 1)
    }

    fn matches(&self, log: &LogStore, seed: u64, step: u64) {
        let expected: Vec<Record> = self.records.values().cloned().collect();
        assert_eq!(all(log), expected, "seed {seed}, step {step}");
        assert_eq!(
            (log.purged(), log.vote()),
            (self.purged, self.vote),
            "seed {seed}, step {step}"
        );
    }
}

fn random_histories_match_a_plain_model<S: Subject>() {
    for seed in 1..=12_u64 {
        let mut subject = S::create();
        let mut draw = Draw(seed);
        let mut model = Model::default();
        subject.open();
        for step in 0..150 {
            random_step(&mut subject, &mut model, &mut draw);
            if draw.below(12) == 0 {
                model.matches(subject.open(), seed, step);
            }
        }
        model.matches(subject.open(), seed, 150);
    }
}

/// One random operation on both; mostly without waiting, so that commits hold several.
fn random_step<S: Subject>(subject: &mut S, model: &mut Model, draw: &mut Draw) {
    let log = subject.log();
    match draw.below(10) {
        0..=5 => {
            let from = model.next();
            let count = 1 + draw.below(20);
            let largest = if draw.below(8) == 0 { 30_000 } else { 300 };
            let records: Vec<Record> = (from..from + count)
                .map(|index| record(model.term, index, draw.size(largest)))
                .collect();
            model.records.extend(records.iter().map(|r| (r.log_id.index, r.clone())));
            log.append(records, ignore()).unwrap();
        }
        6 => {
            model.term += 1;
            let vote = StoredVote { term: model.term, node_id: Some(1), committed: false };
            model.vote = Some(vote);
            wait(|done| log.save_vote(vote, done)).unwrap();
        }
        7 | 8 => {
            let floor = model.purged.map_or(0, |id| id.index + 1);
            let length = model.next() - floor;
            // Up to all of it: the index before the first unpurged one, if there is one.
            let keep = (floor + draw.below(length + 1)).checked_sub(1);
            model.term += 1;
            model.records.retain(|index, _| Some(*index) <= keep);
            log.truncate_after(keep, ignore()).unwrap();
        }
        _ => {
            let floor = model.purged.map_or(0, |id| id.index);
            let beyond = if draw.below(10) == 0 { 50 } else { 0 };
            let index = floor + draw.below(model.next() - floor + 1) + beyond;
            let upto = LogId { term: model.term, node_id: 1, index };
            if model.purged.is_none_or(|purged| purged.index < index) {
                model.purged = Some(upto);
            }
            model.records.retain(|at, _| *at > index);
            log.purge(upto, ignore()).unwrap();
        }
    }
}

/// The bytes of all files below a folder. A file may go meanwhile.
fn bytes_below(folder: &std::path::Path) -> u64 {
    let bytes = |file: std::fs::DirEntry| {
        let Ok(metadata) = file.metadata() else { return 0 };
        if metadata.is_dir() { bytes_below(&file.path()) } else { metadata.len() }
    };
    std::fs::read_dir(folder).unwrap().filter_map(Result::ok).map(bytes).sum()
}

/// L1: a log that is purged whenever it has `max_log_bytes` bounds the data folder as well.
///
/// The file of the log consists of segments of 4 MiB, and grows only when none is free. sled frees a
/// segment in which nothing is live any more, and moves what is left out of one of which at most half
/// is live, a page with each write. A page has up to 16 groups of 64 KiB, purged ones among them until
/// it is written anew. So the file holds about twice what is live (the log, what a slice of a purge has
/// not removed yet, a few such pages) and a few segments that are written, or not synced and free yet.
#[test]
fn the_data_folder_stays_within_a_bound_however_much_is_logged_and_purged() {
    const LOG_BYTES_MAX: usize = 2 << 20;
    const FOLDER_BYTES_MAX: u64 = 64 << 20;
    const RECORD_BYTES: usize = 60_000;
    let folder = TempDir::new().unwrap();
    let store = Store::open(folder.path(), options()).unwrap();
    let log = store.log();
    let large = |index| {
        let payload = bytes::Bytes::from(vec![7; RECORD_BYTES]);
        Record { payload, ..record(1, index, 0) }
    };
    let (mut logged, mut kept, mut most) = (0, 0, 0);
    while logged < 2 * FOLDER_BYTES_MAX {
        let next = log.last().map_or(0, |last| last.index + 1);
        append(&log, (next..next + 8).map(large).collect());
        logged += 8 * RECORD_BYTES as u64;
        kept += 8 * RECORD_BYTES;
        if kept > LOG_BYTES_MAX {
            let last = log.last().unwrap();
            finish_snapshot(&store, last);
            wait(|done| log.purge(last, done)).unwrap();
            store.snapshots().remove_older(log.purged()).unwrap();
            kept = 0;
        }
        most = most.max(bytes_below(folder.path()));
    }

    println!("at most {most} bytes, of {logged} that were logged");
    assert!(most < FOLDER_BYTES_MAX, "{most} bytes");
}

/// The spare snapshot goes when the log no longer reaches back to it; older ones at once.
#[test]
fn at_most_one_spare_snapshot_is_kept_and_only_while_it_is_of_use() {
    let folder = TempDir::new().unwrap();
    let store = Store::open(folder.path(), options()).unwrap();
    let log = store.log();
    append(&log, (0..10).map(|index| record(1, index, 10)).collect());
    let id = |index| LogId { term: 1, node_id: 1, index };
    let files = || std::fs::read_dir(folder.path().join("snapshots")).unwrap().count();
    for (index, expected) in [(2, 1), (4, 2), (6, 2)] {
        finish_snapshot(&store, id(index));
        assert_eq!(files(), expected);
    }
    wait(|done| log.purge(id(3), done)).unwrap();
    store.snapshots().remove_older(log.purged()).unwrap();
    assert_eq!(files(), 2, "the log still reaches back to 4");
    wait(|done| log.purge(id(6), done)).unwrap();
    store.snapshots().remove_older(log.purged()).unwrap();
    assert_eq!(files(), 1);
    assert_eq!(store.snapshots().newest().unwrap().last, Some(id(6)));
}

/// The disk hung while a member built this snapshot: by then a leader has sent two. It is of no
/// use, and no fault either (seed 20475 of the simulator).
#[test]
fn a_snapshot_that_two_newer_ones_have_overtaken_is_read_all_the_same_and_leaves_no_file() {
    let folder = TempDir::new().unwrap();
    let store = Store::open(folder.path(), options()).unwrap();
    let id = |index| LogId { term: 1, node_id: 1, index };
    let mut slow = ReplicaStore::begin_snapshot(&store, Some(id(2)), bytes::Bytes::new()).unwrap();
    std::io::Write::write_all(&mut slow, b"body").unwrap();
    for index in [4, 6] {
        finish_snapshot(&store, id(index));
    }

    let kept = slow.finish().unwrap();

    assert_eq!((kept.info().last, &*kept.chunk(0).unwrap()), (Some(id(2)), &b"body"[..]));
    assert_eq!(store.snapshots().newest().unwrap().last, Some(id(6)));
    assert_eq!(std::fs::read_dir(folder.path().join("snapshots")).unwrap().count(), 2);
}

/// A simulator relies on this: it decides when the disk finishes, and what a power cut loses.
#[test]
fn a_delayed_memory_log_acknowledges_in_order_and_loses_what_was_not_completed() {
    let completions = Arc::new(Mutex::new(Vec::new()));
    let queue = Arc::clone(&completions);
    let io = MemoryLog::delayed(LogMirror::default(), move |done| queue.lock().unwrap().push(done));
    let io = Arc::new(io);
    let log = LogStore::new(LogMirror::default(), io.clone());
    let order = Arc::new(Mutex::new(Vec::new()));
    for index in 0..3 {
        let order = Arc::clone(&order);
        let done = move |outcome: std::io::Result<()>| {
            order.lock().unwrap().push((index, outcome.is_ok()));
        };
        log.append(vec![record(1, index, 10)], Box::new(done)).unwrap();
    }
    assert_eq!((log.len(), order.lock().unwrap().len()), (3, 0), "readable, not acknowledged");

    let second = completions.lock().unwrap().remove(1);
    second();
    assert_eq!(*order.lock().unwrap(), [(0, true), (1, true)], "the first comes before it");

    let survived = io.power_cut();
    assert_eq!(survived.last(), Some(record(1, 1, 10).log_id));
    for late in std::mem::take(&mut *completions.lock().unwrap()) {
        late();
    }
    assert_eq!(order.lock().unwrap().len(), 2, "nothing is acknowledged after the cut");
    assert!(wait(|done| log.append(vec![record(1, 3, 10)], done)).is_err());
}

/// I30: the store itself refuses, and does not rely on the caller.
#[test]
fn a_purge_above_the_newest_good_snapshot_is_refused() {
    let folder = TempDir::new().unwrap();
    let store = Store::open(folder.path(), options()).unwrap();
    let log = store.log();
    append(&log, (0..10).map(|index| record(1, index, 10)).collect());
    let id = |index| LogId { term: 1, node_id: 1, index };
    finish_snapshot(&store, id(4));

    let refused = log.purge(id(5), ignore());
    assert_eq!(refused, Err(Misuse::PurgesBeyondSnapshot { upto: 5, snapshot: Some(id(4)) }));
    wait(|done| log.purge(id(4), done)).unwrap();
    assert_eq!(log.purged(), Some(id(4)));
}

fn finish_snapshot(store: &Store, last: LogId) {
    let mut writer = store.snapshots().begin(Some(last), bytes::Bytes::new()).unwrap();
    std::io::Write::write_all(&mut writer, b"state").unwrap();
    writer.finish().unwrap();
}
