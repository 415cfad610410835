//! What a member's table keeps in memory: bytes on the heap for each held lock, waiter and idle
//! session. DESIGN §13 allows 400 bytes for a held lock besides its name, and 1 KB for a waiter with
//! all there is of it in a member.
//!
//! The core only: a session with a stream has buffers of its own, which `holdfast bench --workload
//! W4` shows as resident memory of real servers.

mod support;

use peak_alloc::PeakAlloc;
use support::Played;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Things of each kind.
const NUMBER: u64 = 200_000;
/// Enough to see that the bench runs (`--test`).
const NUMBER_TEST: u64 = 2_000;

fn main() {
    let short = std::env::args().any(|argument| argument == "--test");
    let number = if short { NUMBER_TEST } else { NUMBER };
    tell("held lock, name of 12 bytes", number, || Played::with_locks(number));
    tell("waiter", number, || Played::with_waiters(number));
    tell("idle session", number, || {
        let mut played = Played::new();
        for _ in 0..number {
            played.open();
        }
        played
    });
}

fn tell(what: &str, number: u64, fill: impl FnOnce() -> Played) {
    let empty = HEAP.current_usage();
    let played = fill();
    let grown = u64::try_from(HEAP.current_usage().saturating_sub(empty)).unwrap_or(u64::MAX);
    let counts = played.table.counts();
    assert!(counts.held + counts.waiting + counts.sessions >= number, "{counts:?}");
    eprintln!("{what}: {} bytes", grown / number);
}
