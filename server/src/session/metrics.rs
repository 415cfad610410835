//! What the session layer counts. The node registers these under their public names.

use std::time::Duration;

use holdfast_core::{Item, LockName};
use holdfast_proto::v1::RefusalReason;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use super::prefixes::{ByPrefix, Prefixes};
use super::refusals::reason_name;
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
    /// Holds closed from outside, applied on this node, leading or not.
    pub closed_holds: Counter,
    /// How long waits, holds and grants take, and how long queues are.
    pub locks: LockMetrics,
    /// Answers that refuse something.
    pub refusals: Refusals,
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

impl SessionMetrics {
    /// With these prefixes of locks.
    pub(super) fn new(prefixes: &[String]) -> Self {
        Self { locks: LockMetrics::new(prefixes), ..Self::default() }
    }
}

impl Default for Lateness {
    fn default() -> Self {
        let buckets = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];
        Self(Histogram::new(buckets))
    }
}

/// What is measured of locks, on the leader: by the prefixes that the settings name. A request for several locks
/// counts once, under the prefix of the first of them.
#[derive(Clone, Debug)]
pub struct LockMetrics {
    prefixes: Prefixes,
    /// Seconds from entering the queue to the grant.
    pub wait: ByPrefix<Histogram>,
    /// Seconds from the grant of a hold to its end.
    pub hold: ByPrefix<Histogram>,
    /// Seconds from the coming in of a request to its grant, if it did not wait.
    pub grant: ByPrefix<Histogram>,
    /// Places in the queues.
    pub queue_waiters: ByPrefix<Gauge>,
    /// Waiters of the lock that most wait for.
    pub longest_queue: Gauge,
}

impl Default for LockMetrics {
    fn default() -> Self {
        Self::new(&[])
    }
}

/// What people wait and hold for: from a critical section to a nightly job.
fn long() -> Histogram {
    let seconds =
        [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 1_800.0, 7_200.0];
    Histogram::new(seconds)
}

/// A round trip between members and a sync of a disk, and what may delay them.
fn short() -> Histogram {
    let seconds = [
        0.000_25, 0.000_5, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.25, 0.5, 1.0,
        5.0,
    ];
    Histogram::new(seconds)
}

impl LockMetrics {
    pub(super) fn new(prefixes: &[String]) -> Self {
        let prefixes = Prefixes::new(prefixes);
        Self {
            wait: ByPrefix::new(&prefixes, long),
            hold: ByPrefix::new(&prefixes, long),
            grant: ByPrefix::new(&prefixes, short),
            queue_waiters: ByPrefix::new(&prefixes, Gauge::default),
            longest_queue: Gauge::default(),
            prefixes,
        }
    }

    /// A request for these locks was granted, and had waited.
    pub(super) fn waited(&self, items: &[Item], waited: Duration) {
        self.observe(&self.wait, items, waited);
    }

    /// A hold of these locks is over.
    pub(super) fn held(&self, items: &[Item], held: Duration) {
        self.observe(&self.hold, items, held);
    }

    /// A request for these locks was granted at once.
    pub(super) fn granted(&self, items: &[Item], took: Duration) {
        self.observe(&self.grant, items, took);
    }

    fn observe(&self, into: &ByPrefix<Histogram>, items: &[Item], length: Duration) {
        let Some(first) = items.first() else { return };
        if let Some(histogram) = into.of(self.prefixes.of(first.lock.as_str())) {
            histogram.observe(length.as_secs_f64());
        }
    }

    /// The place of the sum that a lock's waiters belong to.
    pub(super) fn place_of(&self, lock: &LockName) -> usize {
        self.prefixes.of(lock.as_str()).place()
    }

    /// What a look at all queues has found; `waiters` has a sum for each place.
    pub(super) fn show_queues(&self, longest: u64, waiters: impl Iterator<Item = u64>) {
        let gauge = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        self.longest_queue.set(gauge(longest));
        for (shown, sum) in self.queue_waiters.iter().zip(waiters) {
            shown.set(gauge(sum));
        }
    }
}

/// Answers that refuse something, by their reason; those that were refused before any answer, as bytes that
/// do not decode, are not among them. Clones count together.
#[derive(Clone, Debug)]
pub struct Refusals {
    /// By the reason; each is there from the beginning.
    pub counted: Family<[(&'static str, &'static str); 1], Counter>,
}

impl Default for Refusals {
    fn default() -> Self {
        let refusals = Self { counted: Family::default() };
        let reasons = (0..).map_while(|number| RefusalReason::try_from(number).ok());
        for reason in reasons {
            drop(refusals.of(reason));
        }
        refusals
    }
}

impl Refusals {
    /// An answer with that reason leaves.
    pub(crate) fn note(&self, reason: RefusalReason) {
        self.of(reason).inc();
    }

    fn of(&self, reason: RefusalReason) -> Counter {
        self.counted.get_or_create_owned(&[("reason", reason_name(reason))])
    }
}
