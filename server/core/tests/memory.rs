//! The memory that waiting and holding take (DESIGN §13), as the operating system counts it; the
//! table must count no less for it (I27). Alone in its file: no other test may allocate meanwhile.

#![expect(clippy::unwrap_used, reason = "what cannot be unwrapped fails the test")]
#![cfg(target_os = "linux")]

use holdfast_core::{Batch, Command, LockTable, LogIndex};

mod support;
use support::{TENURE, acquire, open};

const SESSIONS: u64 = 50_000;
const LOCKS: u64 = 100_000;
/// DESIGN §13.
const BYTES_PER_WAITER: u64 = 1_024;
/// DESIGN §13, besides the lock's name.
const BYTES_PER_HELD_LOCK: u64 = 400;
/// Bytes of a name used here, with the two counts that an `Arc` keeps before it.
const BYTES_PER_NAME: u64 = 16 + 16;

/// Memory of this process that is in use, bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    kilobytes * 1_024
}

/// Applies commands in small batches, so that the test measures the table and not the commands.
fn apply_each(table: &mut LockTable, index: &mut u64, commands: impl Iterator<Item = Command>) {
    let mut commands = commands.peekable();
    while commands.peek().is_some() {
        *index += 1;
        let batch = Batch { commands: commands.by_ref().take(100).collect(), ..Batch::default() };
        table.apply_batch(LogIndex::new(*index), TENURE, &batch, &mut Vec::new()).unwrap();
    }
}

/// Every waiter is a session with no other request: the most expensive case. A holder has a hundred
/// locks.
#[test]
fn a_waiter_and_a_held_lock_stay_within_their_budgets_and_are_counted_for_no_less() {
    let (mut table, mut index) = (LockTable::new(), 0);
    let empty = resident();
    apply_each(&mut table, &mut index, (0..SESSIONS).map(|_| open()));
    let before = resident();
    println!("{} bytes for each of {SESSIONS} sessions", (before - empty) / SESSIONS);
    assert_counted(&table, before - empty);
    apply_each(&mut table, &mut index, (1..=SESSIONS).map(|session| acquire(session, 1, "jobs")));
    let per_waiter = (resident() - before) / SESSIONS;
    println!("{per_waiter} bytes for each of {} waiters", table.counts().waiting);
    assert_counted(&table, resident() - empty);

    let before = resident();
    let hold = |number: u64| acquire(1 + number / 100, 2 + number % 100, &format!("{number:016}"));
    apply_each(&mut table, &mut index, (0..LOCKS).map(hold));
    let per_lock = (resident() - before) / LOCKS;
    println!("{per_lock} bytes for each of {} held locks, names included", table.counts().held);
    assert_counted(&table, resident() - empty);

    assert_eq!((table.counts().waiting, table.counts().held), (SESSIONS - 1, LOCKS + 1));
    assert!(per_waiter <= BYTES_PER_WAITER, "{per_waiter} bytes for each waiter");
    let budget = BYTES_PER_HELD_LOCK + BYTES_PER_NAME;
    assert!(per_lock <= budget, "{per_lock} bytes for each held lock");
}

/// I27: a limit on a count that is too low would bound nothing.
#[track_caller]
fn assert_counted(table: &LockTable, resident: u64) {
    let counted = table.counts().table_bytes;
    assert!(resident <= counted, "{resident} bytes in memory, counted as {counted}");
}
