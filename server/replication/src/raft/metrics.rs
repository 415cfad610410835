//! The metrics of replication. The node registers these under their public names.

use std::sync::Arc;

use holdfast_runtime::{Clock, Instant};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

/// The batches that a leader proposes, and how long things take. Cheap to clone; clones count
/// together.
#[derive(Clone, Debug)]
pub struct ReplicationMetrics {
    /// Commands in a proposed entry.
    pub batch_commands: Histogram,
    /// Commands refused because too many are waiting.
    pub commands_refused: Counter,
    /// Seconds from proposing an entry to its being applied here: what a client waits for.
    pub commit_seconds: Histogram,
    /// Seconds to write, sync and read back a snapshot that this node built.
    pub snapshot_seconds: Histogram,
    /// Snapshots whose transfer to another member began.
    pub snapshots_sent: Counter,
    /// Times that a follower was too far behind for the log and was cut off from it.
    pub followers_cut_off: Counter,
    /// Times that this leader handed over because its disk is full or slow.
    pub relieved: Counter,
}

impl ReplicationMetrics {
    /// Counts a proposed entry with this many commands.
    pub(super) fn proposed(&self, commands: usize) {
        self.batch_commands.observe(u32::try_from(commands).unwrap_or(u32::MAX).into());
    }
}

/// Measures how long something took.
#[derive(Clone)]
pub(super) struct Stopwatch {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) into: Histogram,
}

impl Stopwatch {
    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(super) fn observe_since(&self, begun: Instant) {
        self.into.observe(self.now().saturating_since(begun).as_secs_f64());
    }
}

impl Default for ReplicationMetrics {
    fn default() -> Self {
        Self {
            // 1 to 1,024, the most that one entry takes.
            batch_commands: Histogram::new(exponential_buckets(1.0, 2.0, 11)),
            commands_refused: Counter::default(),
            // A tenth of a millisecond to about three seconds.
            commit_seconds: Histogram::new(exponential_buckets(0.000_1, 2.0, 16)),
            // A millisecond to about half a minute.
            snapshot_seconds: Histogram::new(exponential_buckets(0.001, 2.0, 16)),
            snapshots_sent: Counter::default(),
            followers_cut_off: Counter::default(),
            relieved: Counter::default(),
        }
    }
}
