//! The counters of the log's writer.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use holdfast_runtime::{Clock, Instant};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

/// Counts the work of the writer since the log was opened, for metrics.
pub struct Counters {
    commits: AtomicU64,
    sync_seconds: Histogram,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counters").field("commits", &self.commits()).finish_non_exhaustive()
    }
}

impl Counters {
    /// Counters at zero; commits are timed on `clock`.
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            commits: AtomicU64::default(),
            // A twentieth of a millisecond to about two seconds.
            sync_seconds: Histogram::new(exponential_buckets(0.000_05, 2.0, 16)),
            clock,
        }
    }

    /// The time at which a commit begins, for [`committed`](Self::committed).
    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Counts a commit that began at `begun` and is durable.
    pub(super) fn committed(&self, begun: Instant) {
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.sync_seconds.observe(self.now().saturating_since(begun).as_secs_f64());
    }

    /// Seconds from writing a commit until it is on stable storage.
    pub fn sync_seconds(&self) -> Histogram {
        self.sync_seconds.clone()
    }

    /// Flushes with fdatasync.
    pub fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }
}
