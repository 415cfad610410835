//! What the session layer counts. The node registers these under their public names.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use crate::denials::Denials;

/// Counters and gauges of the session layer. Cheap to clone; clones count together.
#[derive(Clone, Debug, Default)]
pub struct SessionMetrics {
    /// Streams that a session is attached to.
    pub attached_streams: Gauge,
    /// Calls that wait for a lock.
    pub waiting_calls: Gauge,
    /// Resumes whose client was told to come back later.
    pub resumes_put_off: Counter,
    /// Streams cut because their outbox was full.
    pub outbox_overflows: Counter,
    /// Streams cut because all outboxes together were full.
    pub outbox_evictions: Counter,
    /// Bytes that lie in the outboxes of all streams.
    pub outbox_bytes: Gauge,
    /// Bytes of clients' messages that have not arrived completely, and of frames on streams that are not
    /// open yet.
    pub arriving_bytes: Gauge,
    /// Watches that are open.
    pub watches: Gauge,
    /// Events sent to watchers: state, changes, and the markers between them.
    pub watch_events: Counter,
    /// Watches cut because they were not read fast enough.
    pub watches_cut: Counter,
    /// Bytes of the changes that still have to be sent to watchers.
    pub watch_bytes: Gauge,
    /// Watches that wait in line until they are shown the state, or what they missed.
    pub watches_waiting: Gauge,
    /// Watches that went on where an earlier one had ended.
    pub watches_resumed: Counter,
    /// Watches that could not go on, because the changes since then were gone.
    pub watches_compacted: Counter,
    /// Bytes of the recent changes that are kept for watches that go on.
    pub watch_recent_bytes: Gauge,
    /// Keepalives that came in.
    pub keepalives: Counter,
    /// Keepalives that were acknowledged.
    pub keepalives_acknowledged: Counter,
    /// Quorum rounds that keepalives or expiries asked for.
    pub quorum_rounds: Counter,
    /// Quorum rounds that brought no quorum.
    pub quorum_rounds_failed: Counter,
    /// Grants applied on this node, leading or not.
    pub grants: Counter,
    /// Releases and cancels of a hold applied on this node, leading or not.
    pub releases: Counter,
    /// Holds lost, applied on this node, leading or not.
    pub losses: Counter,
    /// Sessions expired, applied on this node, leading or not.
    pub expiries: Counter,
    /// Seconds from a session's deadline to the moment its expiry was applied, on the leader
    /// (DESIGN §5.3, I7).
    pub expiry_lateness: Lateness,
    /// Backups that were sent whole.
    pub backups: Counter,
    /// Backups that were begun and not sent whole.
    pub backups_broken_off: Counter,
    /// When the last whole one was sent, Unix seconds; 0: none was.
    pub backup_sent: Gauge,
    /// Calls that were refused for want of a right, or with a wrong token.
    pub denials: Denials,
}

/// How late something is, seconds.
#[derive(Clone, Debug)]
pub struct Lateness(pub Histogram);

impl Default for Lateness {
    fn default() -> Self {
        let buckets = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];
        Self(Histogram::new(buckets))
    }
}
