//! Rising timestamps, which order the writes of one process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use holdfast_runtime::Clock;

/// Each timestamp is above the one before, whatever the clock does. No timestamp is compared with
/// another process's: no two processes write the same cell.
pub(super) struct Stamps {
    clock: Arc<dyn Clock>,
    /// The number of timestamps in a millisecond.
    per_ms: u64,
    last: AtomicU64,
}

impl Stamps {
    /// In microseconds, as a write carries them: a delete that is sent after a write wins over it.
    pub(super) fn micros(clock: Arc<dyn Clock>) -> Self {
        Self { clock, per_ms: 1_000, last: AtomicU64::new(0) }
    }

    /// In milliseconds, as a column of type `timestamp` has them.
    pub(super) fn millis(clock: Arc<dyn Clock>) -> Self {
        Self { clock, per_ms: 1, last: AtomicU64::new(0) }
    }

    pub(super) fn next(&self) -> i64 {
        let now = self.clock.wall_ms().saturating_mul(self.per_ms);
        let drawn = self.last.fetch_update(Ordering::AcqRel, Ordering::Acquire, |last| {
            Some(now.max(last.saturating_add(1)))
        });
        let last = drawn.unwrap_or_else(|last| last);
        i64::try_from(now.max(last.saturating_add(1))).unwrap_or(i64::MAX)
    }
}
