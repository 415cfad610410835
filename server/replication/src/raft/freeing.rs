//! Frees large tables where that holds nobody up.

use std::thread;
use std::time::Duration;

/// Entries that are freed at once: a tenth of a millisecond's work.
const FREED_AT_ONCE: usize = 1_000;
/// The pause after it. The allocator has one lock for what the Raft thread has allocated; without
/// pauses that thread would wait for it again and again, as long as a large table is being freed.
const FREES_AGAIN: Duration = Duration::from_micros(200);

/// Frees a table by its pieces, each of which returns how many entries that were, with pauses in between. Call
/// it on a thread that may block.
pub fn free_with_pauses(pieces: impl Iterator<Item = usize>) {
    free(pieces, || thread::sleep(FREES_AGAIN));
}

fn free(pieces: impl Iterator<Item = usize>, mut pause: impl FnMut()) {
    let mut freed = 0;
    for entries in pieces {
        freed += entries;
        if freed >= FREED_AT_ONCE {
            freed = 0;
            pause();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SC4: the thread that serves waits for the allocator, too.
    #[test]
    fn a_large_table_is_freed_with_pauses_and_a_small_one_without() {
        let pauses = |pieces: usize| {
            let mut pauses = 0;
            free((0..pieces).map(|_| 400), || pauses += 1);
            pauses
        };

        assert_eq!((pauses(2), pauses(3), pauses(9)), (0, 1, 3));
    }
}
