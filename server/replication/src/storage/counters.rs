//! The counters of the log's writer.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use holdfast_runtime::{Clock, Instant};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

/// Counts the work of the writer since the log was opened, for metrics.
pub struct Counters {
    commits: AtomicU64,
    pub(super) groups: AtomicU64,
    pub(super) groups_purged: AtomicU64,
    blob_syncs: AtomicU64,
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
            groups: AtomicU64::default(),
            groups_purged: AtomicU64::default(),
            blob_syncs: AtomicU64::default(),
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
    pub(super) fn committed(&self, begun: Instant, synced_blobs: bool) {
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.blob_syncs.fetch_add(u64::from(synced_blobs), Ordering::Relaxed);
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

    /// Groups of records written.
    pub fn groups(&self) -> u64 {
        self.groups.load(Ordering::Relaxed)
    }

    /// Groups removed after a purge.
    pub fn groups_purged(&self) -> u64 {
        self.groups_purged.load(Ordering::Relaxed)
    }

    /// Commits in which sled wrote outside its one file, so that `blobs/` had to be synced too.
    /// Expected to stay 0; each costs a sync per file.
    pub fn blob_syncs(&self) -> u64 {
        self.blob_syncs.load(Ordering::Relaxed)
    }
}
