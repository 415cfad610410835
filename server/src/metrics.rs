//! Everything a node counts, under its public names: the one table.
//!
//! Names begin with `holdfast_` and end with their unit; counters end with `_total`. Those of the process have the
//! names that all programs have for them (`process_…`). Labels never hold lock names, labels of sessions or
//! addresses: the number of those has no bound. Prefixes of names are labels if an operator has named them.
//!
//! `docs/metrics.md` lists all of them; a test compares that with a scrape (`tests/serving/main.rs`).
//!
//! An event is counted where it happens, by the part in which it happens; a state is read at each scrape
//! ([`Sample`]), so that nothing has to be kept in step.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{Counts, ScopeState};
use holdfast_history::HistoryMetrics;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use crate::authority::AuthorityStatus;
use crate::incoming::ConnectionMetrics;
use crate::process::Process;
use crate::raft::{ReplicaStatus, ReplicationMetrics};
use crate::rpc::ForwardingMetrics;
use crate::session::SessionMetrics;
use crate::storage::Counters;
use crate::telemetry;

/// The state of a node at the moment of a scrape.
#[derive(Debug)]
pub struct Sample {
    /// How far the replica has come.
    pub status: ReplicaStatus,
    /// Whether this node leads and serves.
    pub leads: bool,
    /// Whether it can serve, or name the leader.
    pub ready: bool,
    /// How much is in the table.
    pub counts: Counts,
    /// The limit of its bytes; 0 as long as there is none.
    pub max_table_bytes: u64,
    /// Whether commands have left work that is carried on.
    pub work_left: bool,
    /// Index of the entry after which the state hash was last recorded.
    pub hash_index: u64,
    /// The work of the log's writer.
    pub log: Arc<Counters>,
    /// Bytes that can still be written on the data folder's disk.
    pub free_bytes: u64,
    /// The scopes with fallback: at most [`SCOPES_MAX`](holdfast_core::SCOPES_MAX).
    pub scopes: Vec<ScopeSample>,
    /// For how much longer this leader's restored cluster grants nothing.
    pub grants_in: Duration,
}

/// A scope with fallback at the moment of a scrape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeSample {
    /// The prefix of its names: operators set it, so it may be a label.
    pub prefix: String,
    /// The state that this node has applied.
    pub state: ScopeState,
    /// Its status, if this node leads and keeps it.
    pub status: Option<AuthorityStatus>,
}

type Look = fn(&Sample) -> u64;
type ScopeLook = fn(&ScopeSample) -> Option<f64>;

/// The gauges of each scope, with its prefix as label: name, meaning, source; a gauge is left out where
/// this node does not know its value. Only the leader has all but the first two.
const SCOPE_GAUGES: &[(&str, &str, ScopeLook)] = &[
    ("scope_epoch", "Upper part of the tokens of a scope with fallback", |scope| {
        Some(scope.state.epoch.into())
    }),
    ("scope_suspended", "Whether nobody is granted anything in the scope: 1, else 0", |scope| {
        Some(u8::from(scope.state.suspended).into())
    }),
    ("scope_row_epoch", "Epoch of the scope's row in Cassandra", |scope| {
        Some(scope.status.as_ref()?.row?.epoch.into())
    }),
    ("scope_beat_age_seconds", "Since the leader last said in Cassandra that it lives", |scope| {
        Some(scope.status.as_ref()?.beat_age?.as_secs_f64())
    }),
    ("scope_authority_seconds", "What is left of the leader's authority over the scope", |scope| {
        let status = scope.status.as_ref()?;
        Some(status.authority.unwrap_or_default().as_secs_f64())
    }),
    ("scope_trouble", "Whether an operator has to see to the scope: 1, else 0", |scope| {
        Some(u8::from(scope.status.as_ref()?.trouble.is_some()).into())
    }),
];

type ScopeCount = fn(&AuthorityStatus) -> u64;

/// The counters of each scope in this leader's tenure.
const SCOPE_COUNTERS: &[(&str, &str, ScopeCount)] = &[
    ("scope_switches", "Changes of a scope's mode that this leader has seen", |status| {
        status.switches
    }),
    (
        "scope_switches_refused",
        "Switches refused because the epochs of a scope are used up",
        |status| status.refused_switches,
    ),
];

/// Values that go up and down: name, meaning, source in the sample.
const GAUGES: &[(&str, &str, Look)] = &[
    ("sessions", "Sessions that are open", |sample| sample.counts.sessions),
    ("locks_held", "Locks that are held", |sample| sample.counts.held),
    ("waiters", "Requests that wait for a lock", |sample| sample.counts.waiting),
    (
        "table_bytes",
        "Bytes that sessions, requests and values take, as all members count them",
        |sample| sample.counts.table_bytes,
    ),
    ("table_bytes_limit", "How many of those there may be; 0: no limit is set yet", |sample| {
        sample.max_table_bytes
    }),
    ("work_left", "Whether commands have left work that is carried on: 1, else 0", |sample| {
        sample.work_left.into()
    }),
    ("leader", "Whether this node leads, with a quorum or without: 1, else 0", |sample| {
        sample.leads.into()
    }),
    ("ready", "Whether this node serves or hears a leader: 1, else 0", |sample| {
        sample.ready.into()
    }),
    ("raft_term", "The Raft term", |sample| sample.status.term),
    ("raft_members", "Members of the cluster", |sample| sample.status.members.len() as u64),
    ("raft_applied_index", "Index of the last entry applied", |sample| {
        sample.status.applied.unwrap_or(0)
    }),
    ("raft_log_index", "Index of the last entry in the log", |sample| {
        sample.status.last_log.unwrap_or(0)
    }),
    ("raft_snapshot_index", "Index of the last entry in the newest snapshot", |sample| {
        sample.status.snapshot.unwrap_or(0)
    }),
    ("log_bytes", "What the log in memory takes; bounded by max_log_bytes", |sample| {
        sample.status.log_bytes
    }),
    (
        "log_append_p99_microseconds",
        "As log_append_p99_seconds; goes with the next release",
        |sample| sample.status.append_p99_us.unwrap_or(0),
    ),
    ("raft_waiting_commands", "Commands that wait to be proposed", |sample| {
        sample.status.waiting_commands as u64
    }),
    ("raft_waiting_bytes", "Bytes of the commands that wait to be proposed", |sample| {
        sample.status.waiting_bytes as u64
    }),
    (
        "disk_below_reserve",
        "Whether only what frees or ends things is accepted, for want of disk: 1, else 0",
        |sample| sample.status.below_disk_reserve.into(),
    ),
    (
        "state_hash_index",
        "Index of the entry after which the state hash was last compared between members",
        |sample| sample.hash_index,
    ),
    (
        "disk_free_bytes",
        "Bytes that can still be written on the disk of the data folder",
        |sample| sample.free_bytes,
    ),
];

type Measure = fn(&Sample) -> f64;

/// The same in units of which there are parts.
const MEASURES: &[(&str, &str, Measure)] = &[
    (
        "log_append_p99_seconds",
        "99th percentile of the last seconds, from appending an entry until it is durable",
        |sample| Duration::from_micros(sample.status.append_p99_us.unwrap_or(0)).as_secs_f64(),
    ),
    (
        "restore_wait_seconds",
        "For how much longer a restored cluster grants nothing, on the leader; else 0",
        |sample| sample.grants_in.as_secs_f64(),
    ),
];

/// Values that only go up, and are counted where they cannot be registered.
const COUNTERS: &[(&str, &str, Look)] = &[
    ("log_syncs", "Flushes of the log, each synced to the disk", |sample| sample.log.commits()),
    (
        "log_lines_lost",
        "Log lines of this process that were lost because standard error was not read",
        |_| telemetry::lines_lost(),
    ),
];

/// The sources of the metrics.
pub struct Sources {
    /// Counted by the session layer.
    pub sessions: SessionMetrics,
    /// Counted by replication.
    pub replication: ReplicationMetrics,
    /// Counted by the ports.
    pub connections: ConnectionMetrics,
    /// Those of calls that are passed on to the leader.
    pub forwarded: ForwardingMetrics,
    /// Counted by the history.
    pub history: HistoryMetrics,
    /// Measured by the log's writer.
    pub log_sync: Histogram,
    /// Takes a [`Sample`]. Quick.
    pub sample: Box<dyn Fn() -> Sample + Send + Sync>,
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources").finish_non_exhaustive()
    }
}

/// The table.
pub fn registry(sources: Sources) -> Registry {
    let mut all = Registry::default();
    all.register_collector(Box::new(Process::started_now()));
    let registry = all.sub_registry_with_prefix("holdfast");
    let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("build", "What runs here", version);
    register_sessions(registry, &sources.sessions);
    register_locks(registry, &sources.sessions);
    register_watches(registry, &sources.sessions);
    register_backups(registry, &sources.sessions);
    register_replication(registry, &sources.replication);
    register_connections(registry, &sources.connections);
    register_forwarding(registry, &sources.forwarded);
    sources.history.register(registry);
    registry.register_with_unit(
        "log_sync",
        "From writing a commit of the log until it is on stable storage",
        Unit::Seconds,
        sources.log_sync,
    );
    registry.register_collector(Box::new(Sampler(sources.sample)));
    all
}

fn register_sessions(registry: &mut Registry, from: &SessionMetrics) {
    let SessionMetrics {
        attached_streams,
        waiting_calls,
        resumes_put_off,
        outbox_overflows,
        outbox_evictions,
        outbox_bytes,
        arriving_bytes,
        keepalives,
        keepalives_acknowledged,
        quorum_rounds,
        quorum_rounds_failed,
        grants,
        releases,
        losses,
        expiries,
        expiry_lateness,
        denials,
        // `register_locks`, `register_backups` and `register_watches` have these.
        closed_holds: _,
        refusals: _,
        locks: _,
        backups: _,
        backups_broken_off: _,
        backup_sent: _,
        watches: _,
        watch_events: _,
        watches_cut: _,
        watch_bytes: _,
        watches_waiting: _,
        watches_resumed: _,
        watches_compacted: _,
        watch_recent_bytes: _,
    } = from.clone();
    let meaning = "Calls refused for want of a right, by the verb, or with a wrong token";
    registry.register("calls_denied", meaning, denials.counted);
    registry.register("streams", "Streams that a session is attached to", attached_streams);
    let unit = || Unit::Bytes;
    let meaning = "What waits in the outboxes of all streams";
    registry.register_with_unit("outbox", meaning, unit(), outbox_bytes);
    let meaning = "Messages that have not arrived whole, or whose stream is not open yet";
    registry.register_with_unit("arriving", meaning, unit(), arriving_bytes);
    registry.register("waiting_calls", "Unary calls that wait for a lock", waiting_calls);
    let counters = [
        ("resumes_put_off", "Clients that came back and have to wait", resumes_put_off),
        ("outbox_overflows", "Streams cut because they were not read", outbox_overflows),
        ("outbox_evictions", "Streams cut because all outboxes were full", outbox_evictions),
        ("keepalives", "Keepalives that came in", keepalives),
        ("keepalives_acknowledged", "Keepalives that renewed a lease", keepalives_acknowledged),
        ("quorum_rounds", "Quorum rounds for keepalives and expiries", quorum_rounds),
        ("quorum_rounds_failed", "Those that brought no quorum", quorum_rounds_failed),
        ("grants", "Grants applied on this node, leading or not", grants),
        ("releases", "Releases and cancelled holds applied on this node", releases),
        ("losses", "Holds lost with their session, applied on this node", losses),
        ("expiries", "Sessions expired, applied on this node", expiries),
    ];
    for (name, meaning, counter) in counters {
        registry.register(name, meaning, counter);
    }
    let meaning = "From a session's deadline to its end, on the leader";
    registry.register_with_unit("expiry_lateness", meaning, Unit::Seconds, expiry_lateness.0);
}

/// Adds what is measured of locks, with the prefix as label, and what is refused and closed.
fn register_locks(registry: &mut Registry, from: &SessionMetrics) {
    let meaning = "Answers that refuse something, by the reason";
    registry.register("refusals", meaning, from.refusals.counted.clone());
    let meaning = "Holds closed from outside, applied on this node";
    registry.register("closed_holds", meaning, from.closed_holds.clone());
    let from = from.locks.clone();
    let unit = || Unit::Seconds;
    let meaning = "From entering the queue to the grant, on the leader";
    registry.register_with_unit("wait", meaning, unit(), from.wait.family);
    let meaning = "From the grant of a hold to its end, on the leader";
    registry.register_with_unit("hold", meaning, unit(), from.hold.family);
    let meaning = "From the coming in of a request to its grant, if it did not wait, on the leader";
    registry.register_with_unit("grant", meaning, unit(), from.grant.family);
    let meaning = "Places in the queues of locks, on the leader";
    registry.register("queue_waiters", meaning, from.queue_waiters.family);
    let meaning = "Waiters of the lock that most wait for, on the leader";
    registry.register("longest_queue", meaning, from.longest_queue);
}

fn register_backups(registry: &mut Registry, from: &SessionMetrics) {
    let from = from.clone();
    registry.register("backups", "Backups that were sent whole", from.backups);
    let meaning = "Backups that were begun and not sent whole";
    registry.register("backups_broken_off", meaning, from.backups_broken_off);
    let meaning =
        "When the last whole backup was sent by this node, since 1970; 0: none since it started";
    registry.register_with_unit("backup_timestamp", meaning, Unit::Seconds, from.backup_sent);
}

fn register_watches(registry: &mut Registry, from: &SessionMetrics) {
    let from = from.clone();
    registry.register("watches", "Watches that are open", from.watches);
    let meaning = "Changes that some watch still has to be told";
    registry.register_with_unit("watch", meaning, Unit::Bytes, from.watch_bytes);
    let meaning = "Recent changes, kept for watches that go on where they ended";
    registry.register_with_unit("watch_recent", meaning, Unit::Bytes, from.watch_recent_bytes);
    let meaning = "Watches that wait in line for their state";
    registry.register("watches_waiting", meaning, from.watches_waiting);
    let counters = [
        ("watch_events", "Locks and changes that watchers were told", from.watch_events),
        ("watches_cut", "Watches cut because they were not read", from.watches_cut),
        ("watches_resumed", "Watches that went on where they had ended", from.watches_resumed),
        (
            "watches_compacted",
            "Watches that began anew because the changes since their end were gone",
            from.watches_compacted,
        ),
    ];
    for (name, meaning, counter) in counters {
        registry.register(name, meaning, counter);
    }
}

/// Adds the counters of connections, each with the port as label: `clients`, `members` or `admin`.
fn register_connections(registry: &mut Registry, from: &ConnectionMetrics) {
    let ConnectionMetrics { open, limit, refused, put_off, unproven, certificate_ends } =
        from.clone();
    registry.register("connections", "Connections to a port that are open", open);
    registry.register("connections_limit", "Connections that a port may have", limit);
    registry.register(
        "connections_refused",
        "Connections closed because there were as many as there may be",
        refused,
    );
    registry.register(
        "accepts_put_off",
        "Accepts that failed for want of descriptors or memory, each followed by a pause",
        put_off,
    );
    registry.register(
        "connections_unproven",
        "Connections closed because their other end did not prove itself by TLS",
        unproven,
    );
    registry.register_with_unit(
        "certificate_ends",
        "When the first of the certificates in a file runs out, since 1970",
        Unit::Seconds,
        certificate_ends.0,
    );
}

fn register_forwarding(registry: &mut Registry, from: &ForwardingMetrics) {
    let ForwardingMetrics { passed_on, failed, open, taken_in, unread_bytes } = from.clone();
    let counters = [
        ("forwarded_calls", "Calls and streams passed on to the leader", passed_on),
        (
            "forwarded_calls_failed",
            "Those of them for which the leader was not reached, or whose connection to it broke",
            failed,
        ),
        ("forwarded_calls_taken", "Calls and streams taken in from other members", taken_in),
    ];
    for (name, meaning, counter) in counters {
        registry.register(name, meaning, counter);
    }
    registry.register(
        "forwarded_calls_open",
        "Calls and streams that are being passed on to the leader",
        open,
    );
    registry.register_with_unit(
        "forwarded_unread",
        "What clients have not read of streams that are passed on",
        Unit::Bytes,
        unread_bytes,
    );
}

fn register_replication(registry: &mut Registry, from: &ReplicationMetrics) {
    let ReplicationMetrics {
        batch_commands,
        commands_refused,
        commit_seconds,
        snapshot_seconds,
        snapshots_sent,
        followers_cut_off,
        relieved,
    } = from.clone();
    registry.register("batch_commands", "Commands in a proposed entry", batch_commands);
    registry.register(
        "commands_refused",
        "Commands refused because too many wait to be proposed",
        commands_refused,
    );
    registry.register_with_unit(
        "commit",
        "From proposing an entry to its being applied, on the leader",
        Unit::Seconds,
        commit_seconds,
    );
    registry.register_with_unit(
        "snapshot",
        "Writing, syncing and reading back a snapshot of the node's own",
        Unit::Seconds,
        snapshot_seconds,
    );
    let counters = [
        ("snapshots_sent", "Snapshots sent to other members, whole or not", snapshots_sent),
        (
            "followers_cut_off",
            "Times that a follower was too far behind for the log, and got a snapshot",
            followers_cut_off,
        ),
        (
            "leader_relieved",
            "Times that this leader handed over because its disk is below the reserve or slow",
            relieved,
        ),
    ];
    for (name, meaning, counter) in counters {
        registry.register(name, meaning, counter);
    }
}

/// Takes one sample for each scrape.
struct Sampler(Box<dyn Fn() -> Sample + Send + Sync>);

impl fmt::Debug for Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sampler")
    }
}

impl Collector for Sampler {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let sample = (self.0)();
        for (name, meaning, look) in GAUGES {
            let gauge = ConstGauge::new(i64::try_from(look(&sample)).unwrap_or(i64::MAX));
            let metric = encoder.encode_descriptor(name, meaning, None, MetricType::Gauge)?;
            gauge.encode(metric)?;
        }
        for (name, meaning, look) in COUNTERS {
            let counter = ConstCounter::new(look(&sample));
            let metric = encoder.encode_descriptor(name, meaning, None, MetricType::Counter)?;
            counter.encode(metric)?;
        }
        for (name, meaning, measure) in MEASURES {
            let metric = encoder.encode_descriptor(name, meaning, None, MetricType::Gauge)?;
            ConstGauge::new(measure(&sample)).encode(metric)?;
        }
        encode_scopes(&sample.scopes, &mut encoder)
    }
}

fn encode_scopes(
    scopes: &[ScopeSample],
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), fmt::Error> {
    if scopes.is_empty() {
        return Ok(());
    }
    for (name, meaning, look) in SCOPE_GAUGES {
        let mut family = encoder.encode_descriptor(name, meaning, None, MetricType::Gauge)?;
        for (scope, value) in scopes.iter().filter_map(|scope| Some((scope, look(scope)?))) {
            let labels = [("scope", scope.prefix.as_str())];
            ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
        }
    }
    let kept = || scopes.iter().filter_map(|scope| Some((scope, scope.status.as_ref()?)));
    for (name, meaning, count) in SCOPE_COUNTERS {
        let mut family = encoder.encode_descriptor(name, meaning, None, MetricType::Counter)?;
        for (scope, status) in kept() {
            let labels = [("scope", scope.prefix.as_str())];
            ConstCounter::new(count(status)).encode(family.encode_family(&labels)?)?;
        }
    }
    let meaning = "The mode of the scope's row in Cassandra, as a label: 1";
    let mut modes = encoder.encode_descriptor("scope_mode", meaning, None, MetricType::Gauge)?;
    for (scope, status) in kept() {
        let Some(row) = status.row else { continue };
        let labels = [("scope", scope.prefix.as_str()), ("mode", row.mode.as_str())];
        ConstGauge::new(1_i64).encode(modes.encode_family(&labels)?)?;
    }
    Ok(())
}
