//! A time that does not go back, for places in the queue and for the order of our own writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use holdfast_seams::Clock;

/// Gives out the time for places in the queue. Who comes later should be given no less; how far that
/// holds between processes is how fair the queue is. Safety does not rest on it.
pub trait QueueTime: Send + Sync + 'static {
    /// Microseconds since 1970; never less than before, from this one.
    fn now_us(&self) -> u64;
}

/// The wall clock of this machine, held back from going back.
pub struct LocalTime {
    clock: Arc<dyn Clock>,
    last: AtomicU64,
}

impl LocalTime {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, last: AtomicU64::new(0) }
    }
}

impl QueueTime for LocalTime {
    fn now_us(&self) -> u64 {
        let now = self.clock.wall_ms().saturating_mul(1_000);
        now.max(self.last.fetch_max(now, Ordering::AcqRel))
    }
}

impl std::fmt::Debug for LocalTime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalTime").finish_non_exhaustive()
    }
}

/// Timestamps of one process' writes: each above the one before, whatever the clock does, so that a
/// delete sent after a write wins over it. They are compared with nobody else's: no two processes
/// write the same cell.
pub(super) struct Stamps {
    clock: Arc<dyn Clock>,
    last: AtomicU64,
}

impl Stamps {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, last: AtomicU64::new(0) }
    }

    /// Microseconds.
    pub(super) fn next(&self) -> i64 {
        let now = self.clock.wall_ms().saturating_mul(1_000);
        let drawn = self.last.fetch_update(Ordering::AcqRel, Ordering::Acquire, |last| {
            Some(now.max(last.saturating_add(1)))
        });
        let last = drawn.unwrap_or_else(|last| last);
        i64::try_from(now.max(last.saturating_add(1))).unwrap_or(i64::MAX)
    }
}
