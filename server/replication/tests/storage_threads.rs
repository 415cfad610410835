//! The cost of a commit: threads woken, writes made. In a separate process: sled has one pool for
//! the whole process, and the system counts by process.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy's allowance for tests does not reach helper functions"
)]

mod storage_support;

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Mutex, PoisonError};

use holdfast_replication::storage::Store;
use storage_support::{options, record, wait};
use tempfile::TempDir;

/// One test at a time: each counts the work of the whole process.
static ALONE: Mutex<()> = Mutex::new(());

const COMMITS: u64 = 200;

/// The rest of the line that begins with `name` in this file of `/proc`.
fn field(text: &str, name: &str) -> String {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_default().trim().to_owned()
}

/// How often each thread of sled's pool has gone to sleep.
fn sleeps_of_pool_threads() -> BTreeMap<String, u64> {
    let mut sleeps = BTreeMap::new();
    for thread in fs::read_dir("/proc/self/task").unwrap() {
        let status = fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        let name = field(&status, "Name:");
        if name.starts_with("sled-io") {
            let count = field(&status, "voluntary_ctxt_switches:").parse().unwrap();
            sleeps.insert(field(&status, "Pid:"), count);
        }
    }
    sleeps
}

/// sled wakes its whole pool for each write. Five of its seven threads are kept away from it.
#[test]
fn a_commit_wakes_two_threads_of_sleds_pool() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = TempDir::new().unwrap();
    let log = Store::open_log_without_snapshots(folder.path(), options()).unwrap();

    let before = sleeps_of_pool_threads();
    for index in 0..COMMITS {
        wait(|done| log.append(vec![record(1, index, 64)], done)).unwrap();
    }
    let after = sleeps_of_pool_threads();

    let grown = |thread: &String| after[thread] - before.get(thread).copied().unwrap_or(0);
    let sleeps: Vec<u64> = after.keys().map(grown).collect();
    // Idle threads of the pool wake once a second by themselves. A thread that is woken for each
    // commit sleeps about as often as there are commits.
    let busy = sleeps.iter().filter(|sleeps| **sleeps > COMMITS / 4).count();
    assert!((1..=2).contains(&busy), "how often each thread slept: {sleeps:?}");
}

/// The number of calls of this process that wrote something.
fn writes() -> u64 {
    let io = fs::read_to_string("/proc/self/io").unwrap();
    field(&io, "syscw:").parse().unwrap()
}

/// One for the group of records, one for the guard's hint. A batch of sled would be a third.
#[test]
fn a_commit_of_one_record_writes_twice() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = TempDir::new().unwrap();
    let log = Store::open_log_without_snapshots(folder.path(), options()).unwrap();

    let before = writes();
    for index in 0..COMMITS {
        wait(|done| log.append(vec![record(1, index, 64)], done)).unwrap();
    }
    let writes = writes() - before;

    // sled rewrites a page now and then.
    assert!(writes < COMMITS * 5 / 2, "{COMMITS} commits wrote {writes} times");
}
