//! The settings of a node: one list of keys, three ways to give them.
//!
//! A key stands in a TOML file, in the environment (`HOLDFAST_…`) or on the command line (`--…`);
//! the command line wins over the environment, the environment over the file, the file over the
//! default. The three calls of `settings!` below are the only list: they make the structures, the
//! flags with their help, and the names a file may hold.
//!
//! [`NodeConfig`] may differ from node to node. [`ClusterConfig`] and [`FallbackConfig`] must be equal on
//! all nodes of a cluster; in a file their keys stand in the tables `[cluster]` and `[fallback]`.
//!
//! A [`Config`] was checked completely: every number within its bounds, every address usable, no
//! listener open to the world by mistake.

mod address;
mod admins;
mod check;
mod distance;
#[cfg(test)]
mod fuzz;
mod prefixes;
mod source;
mod unwise;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use holdfast_core::Limits;
use holdfast_keyspace::authority::{DoNotFit, Durations};
use holdfast_tls::{ClusterName, Tls};
use serde::{Deserialize, Serialize};
use tracing_subscriber::filter::{LevelFilter, Targets};

pub use self::address::{Advertised, ListenAddress, Member, Members};
pub use self::admins::Admins;
use self::distance::{ROUND_TRIP_MS, election_max_ms, election_min_ms, heartbeat_ms};
pub use self::prefixes::{MetricsPrefixes, OTHER};
pub use self::source::{Origin, Overrides, Settings};

/// Makes, from one list of documented keys:
///
/// - the structure of checked values,
/// - the *layer*: the same keys, each optional, as a source gives them (a TOML table through serde,
///   flags and environment variables through clap, with the documentation as help),
/// - how the layers lie on one another, and how what is left open gets its default.
macro_rules! settings {
    (
        $(#[doc = $config_doc:literal])*
        $config:ident,
        $(#[doc = $layer_doc:literal])*
        $layer:ident,
        $(
            $(#[doc = $doc:literal])*
            $key:ident: $type:ty = $default:expr, $env:literal $(, arg($($arg:tt)*))?;
        )*
    ) => {
        $(#[doc = $config_doc])*
        #[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
        pub struct $config {
            $( $(#[doc = $doc])* pub $key: $type, )*
        }

        $(#[doc = $layer_doc])*
        #[derive(Clone, Debug, Default, serde::Deserialize, clap::Args)]
        #[serde(default)]
        pub struct $layer {
            $(
                $(#[doc = $doc])*
                #[arg(long, env = $env, hide_env_values = true, value_name = "VALUE" $(, $($arg)*)?)]
                pub $key: Option<$type>,
            )*
        }

        impl $layer {
            /// The keys, in the order in which they are documented.
            pub const KEYS: &[&str] = &[$(stringify!($key)),*];

            /// The variables that stand for the keys, in the same order.
            pub const VARIABLES: &[&str] = &[$($env),*];

            /// What `self` says, and what `below` says where `self` is silent.
            #[must_use]
            pub fn over(self, below: Self) -> Self {
                Self { $( $key: self.$key.or(below.$key), )* }
            }

            /// What was said, and the default where nothing was.
            pub fn resolve(self) -> $config {
                $config { $( $key: self.$key.unwrap_or_else(|| $default), )* }
            }
        }
    };
}

settings! {
    /// Settings of one node; may differ from node to node.
    NodeConfig,
    /// The values of [`NodeConfig`] that one source sets.
    NodeLayer,
    /// This node's number in its cluster.
    ///
    /// Default: 1. Bounds: 1 to 2⁶³ − 1, different on every node, never reused after a node's
    /// data folder was lost. With `join = "auto"` the cluster gives it.
    node_id: u64 = 1, "HOLDFAST_NODE_ID";

    /// Where clients connect: IP address and port.
    ///
    /// Default: 127.0.0.1:7420. Outside loopback only with `tls_cert` or `insecure`.
    listen: ListenAddress = ListenAddress::loopback(7420), "HOLDFAST_LISTEN";

    /// A Unix socket for clients on this machine too, by its path: its user and group may connect, and who
    /// connects is the identity `uid:NUMBER`. Clients name it as `unix:PATH`.
    ///
    /// Default: none. Bounds: at most 107 bytes. With it an eighth of `max_connections` is its own.
    unix_socket: PathBuf = PathBuf::new(), "HOLDFAST_UNIX_SOCKET";

    /// The address that clients get for this node: host and port as they see them.
    ///
    /// Default: this node's in `members`, otherwise `listen`. Bounds: port 1 to 65535,
    /// and never an unspecified address such as 0.0.0.0, which no client can reach.
    advertise: Advertised = Advertised::unset(), "HOLDFAST_ADVERTISE";

    /// Where the other members connect: IP address and port. Opened only with `members`.
    ///
    /// Default: 127.0.0.1:7421. Outside loopback only with `tls_cert` or `insecure`.
    peer_listen: ListenAddress = ListenAddress::loopback(7421), "HOLDFAST_PEER_LISTEN";

    /// The address that other members use for this node: host and port as they see them.
    ///
    /// Default: this node's in `members`, otherwise `peer_listen`.
    peer_advertise: Advertised = Advertised::unset(), "HOLDFAST_PEER_ADVERTISE";

    /// `true`: wait to be added to an existing cluster (`holdfast cluster add`), instead of forming one with
    /// `members`. `auto`, for `StatefulSet`s: ask the cluster for a place, under a new id each time that the data folder
    /// is empty; one node forms it, once, by `holdfastd init`.
    ///
    /// Default: false. Only with `members`, which then names the members to ask; with `auto` without ids, and
    /// as many as are to vote. Changes nothing once the node belongs to a cluster.
    join: Join = Join::No, "HOLDFAST_JOIN",
        arg(num_args = 0..=1, require_equals = true, default_missing_value = "true");

    /// Where health, readiness and metrics are served over HTTP: IP address and port.
    ///
    /// Default: 127.0.0.1:7422. Outside loopback only with `tls_cert` or `insecure`.
    admin_listen: ListenAddress = ListenAddress::loopback(7422), "HOLDFAST_ADMIN_LISTEN";

    /// Whether the admin port serves the page too: who holds what, why everybody waits, what happened. Without TLS it is
    /// served where `admin_listen` is loopback alone.
    ///
    /// Default: true.
    page: bool = true, "HOLDFAST_PAGE",
        arg(num_args = 0..=1, require_equals = true, default_missing_value = "true");

    /// The folder for log, vote and snapshots; made if it is missing.
    ///
    /// Default: ./holdfast-data, in the folder the node is started in. One node each.
    data_dir: PathBuf = PathBuf::from("./holdfast-data"), "HOLDFAST_DATA_DIR";

    /// Take connections without TLS, outside loopback too, although nothing on them is encrypted and nobody is
    /// authenticated.
    ///
    /// Default: false. Only where the network itself keeps strangers out.
    insecure: bool = false, "HOLDFAST_INSECURE",
        arg(num_args = 0..=1, require_equals = true, default_missing_value = "true");

    /// This node's certificate (PEM, the CAs between it and the root after it), for all its ports: with it they
    /// speak TLS. `holdfast cert` makes one. With `insecure` they speak both, while a cluster goes over to TLS.
    ///
    /// Default: none, and no TLS. Only with `tls_key`. Replaced files are in use within 10 s, or at SIGHUP.
    tls_cert: PathBuf = PathBuf::new(), "HOLDFAST_TLS_CERT";

    /// The private key of `tls_cert` (PEM, not encrypted).
    ///
    /// Default: none.
    tls_key: PathBuf = PathBuf::new(), "HOLDFAST_TLS_KEY";

    /// The CAs (PEM) that vouch for other members and for clients.
    ///
    /// Default: none. A node with other members needs it, and one with `client_certs = "required"`.
    tls_ca: PathBuf = PathBuf::new(), "HOLDFAST_TLS_CA";

    /// Whether clients have to show a certificate that `tls_ca` vouches for: `optional` or `required`. One
    /// that is shown always has to be good. The admin port wants one for metrics, and none for health.
    ///
    /// Default: optional.
    client_certs: ClientCerts = ClientCerts::Optional, "HOLDFAST_CLIENT_CERTS";

    /// Free space on the data folder's disk below which only commands that free or end something
    /// are accepted, bytes.
    ///
    /// Default: 536870912 (512 MiB). 0 keeps no reserve: the node then stops when the disk is
    /// full.
    ///
    /// Source: a log of 100,000 unpurged entries and two snapshots of a million holds fit into it.
    reserve_bytes: u64 = 512 << 20, "HOLDFAST_RESERVE_BYTES";

    /// Longest round trip between two members, milliseconds, as `ping` shows it when the network is busy.
    ///
    /// Default: 10, which one region is within. Bounds: 1 to 300. The heartbeats and with them the time
    /// until a dead leader is replaced follow from it.
    round_trip_ms: u64 = ROUND_TRIP_MS, "HOLDFAST_ROUND_TRIP_MS";

    /// Time between two heartbeats of a leader, milliseconds.
    ///
    /// Default: 80 and two `round_trip_ms`: 100. Bounds: 10 to 5000.
    ///
    /// Source: a member has to answer within it, and both it and the leader may have to wait for a busy
    /// core; a heartbeat does not wait for the disk.
    heartbeat_ms: u64 = heartbeat_ms(ROUND_TRIP_MS), "HOLDFAST_HEARTBEAT_MS";

    /// Shortest time without a leader after which a member starts an election, milliseconds.
    ///
    /// Default: 4.5 `heartbeat_ms`: 450. Bounds: three times `heartbeat_ms` to 30000.
    election_min_ms: u64 = election_min_ms(heartbeat_ms(ROUND_TRIP_MS)), "HOLDFAST_ELECTION_MIN_MS";

    /// Longest time without a leader after which a member starts an election, milliseconds.
    ///
    /// Default: a third more than `election_min_ms`: 600. Bounds: above `election_min_ms`, at most 60000.
    /// Each member draws a time between the two, so that they seldom start at once.
    election_max_ms: u64 =
        election_max_ms(election_min_ms(heartbeat_ms(ROUND_TRIP_MS))), "HOLDFAST_ELECTION_MAX_MS";

    /// How long a caller waits for the outcome of a command before the answer is that the outcome is
    /// unknown, milliseconds.
    ///
    /// Default: 5000. Bounds: `election_max_ms` to 60000, so that an election alone fails no call.
    propose_deadline_ms: u64 = 5_000, "HOLDFAST_PROPOSE_DEADLINE_MS";

    /// How many commands may wait to be proposed; one more is refused, to be sent again. An eighth is
    /// kept for releases, cancels and the like, which are not refused for load; one session has a
    /// quarter at most.
    ///
    /// Default: 65536. Bounds: 1 to 10000000.
    max_pending_commands: u64 = 65_536, "HOLDFAST_MAX_PENDING_COMMANDS";

    /// How many bytes the commands that wait to be proposed may take; shared out as
    /// `max_pending_commands`.
    ///
    /// Default: 16777216 (16 MiB). Bounds: 1048576 (1 MiB) to 17179869184 (16 GiB).
    ///
    /// Source: about 65536 usual commands; of the largest, 33 KiB each, as many as a slow disk takes
    /// within `propose_deadline_ms`.
    max_pending_bytes: u64 = 16 << 20, "HOLDFAST_MAX_PENDING_BYTES";

    /// How many clients may be connected to this node; one more connection is accepted and closed at once.
    ///
    /// Default: 131072. Bounds: 64 to 10000000. Fewer where the limit of open files leaves fewer: of it,
    /// 96 descriptors or a sixteenth are for the files of the store and for connections that the node
    /// makes itself, 64 for members, 32 for the admin port. The log says so at the start. Below 256 open
    /// files a node does not start.
    ///
    /// Source: `max_attached_streams`, `max_unopened_streams` and `max_watches`, with room; a
    /// connection takes about 32 KiB of memory.
    max_connections: u64 = 131_072, "HOLDFAST_MAX_CONNECTIONS";

    /// How many sessions may have their stream at this node; one more is refused.
    ///
    /// Default: 100000. Bounds: 1 to 10000000. With less than `max_sessions` a leader cannot serve
    /// them all.
    ///
    /// Source: about 32 KiB of memory for a stream with a connection of its own.
    max_attached_streams: u64 = 100_000, "HOLDFAST_MAX_ATTACHED_STREAMS";

    /// How many streams may be open without a session yet; one more is refused.
    ///
    /// Default: 8192. Bounds: 1 to 1000000. Every client comes back at once after a change of
    /// leader, and each is opened within milliseconds.
    max_unopened_streams: u64 = 8_192, "HOLDFAST_MAX_UNOPENED_STREAMS";

    /// How many sessions may be resumed at this node in a second. The next ones wait for a quarter of a
    /// second; others are told when to come back. Clients may begin as many connections in a second, at the
    /// port and at the Unix socket; others wait until they are accepted. Where a new leader expects more than it can let in
    /// without that, leases last longer in its tenure, by the time that all of them need and a quarter,
    /// and a second: at most 76 s.
    ///
    /// Default: 8000. Bounds: 10 to 1000000.
    ///
    /// Source: a resume with a connection of its own takes about 100 µs of the thread that serves, so a
    /// fifth of that thread is left for everything else.
    resumes_per_second: u64 = 8_000, "HOLDFAST_RESUMES_PER_SECOND";

    /// The thread on which sessions run: `own`, one beside Raft's, so that heartbeats never wait behind
    /// sessions; `shared`, Raft's own, which saves two changes of thread for each command; or `auto`, their
    /// own where the process may use four cores or more.
    ///
    /// Default: auto.
    session_thread: SessionThread = SessionThread::Auto, "HOLDFAST_SESSION_THREAD";

    /// How long the node's threads look for the next event each time that they were woken, before they
    /// sleep again, microseconds. It saves what waking a thread takes, and takes up to so much of a core for
    /// each wake-up. For nodes with cores to spare.
    ///
    /// Default: 0. Bounds: 0 to 1000.
    spin_us: u64 = 0, "HOLDFAST_SPIN_US";

    /// How many watches may be open at this node; one more is refused.
    ///
    /// Default: 10000. Bounds: 1 to 1000000. All of them are at the leader.
    max_watches: u64 = 10_000, "HOLDFAST_MAX_WATCHES";

    /// How many changes a watch may be behind; with one more it ends, and a new watch begins with
    /// the state.
    ///
    /// Default: 8192. Bounds: 16 to 1000000. Watches of one prefix share their backlog.
    watch_backlog: u64 = 8_192, "HOLDFAST_WATCH_BACKLOG";

    /// How many watches are shown the state, or what they missed, at the same time; the others wait in line.
    ///
    /// Default: 8. Bounds: 1 to 10000. A client that does not read for a quarter of a second gives its
    /// place to the next.
    ///
    /// Source: two for each core of a small machine; the table is locked for one page at a time.
    watch_states: u64 = 8, "HOLDFAST_WATCH_STATES";

    /// How many recent changes every node keeps, so that a watch goes on where it ended after a change
    /// of leader or a broken connection; one that missed more begins with the state.
    ///
    /// Default: 131072. Bounds: 0 to 10000000; 0: every watch that breaks begins with the state, and a
    /// change without watchers costs nothing.
    ///
    /// Source: four seconds of as many changes as three members on a test machine make, twice as long
    /// as a dead leader is missed.
    watch_recent_changes: u64 = 131_072, "HOLDFAST_WATCH_RECENT_CHANGES";

    /// How many bytes the recent changes may take.
    ///
    /// Default: 33554432 (32 MiB). Bounds: 65536 (64 KiB) to 17179869184 (16 GiB).
    ///
    /// Source: `watch_recent_changes` of 256 bytes each; a change of a value takes as much more as the
    /// value has.
    watch_recent_bytes: u64 = 32 << 20, "HOLDFAST_WATCH_RECENT_BYTES";

    /// How many bytes of pushes may lie unread for one stream, and how many bytes of changes a watch may
    /// be behind; more ends the stream or the watch, as `outbox_frames` and `watch_backlog` do.
    ///
    /// Default: 8388608 (8 MiB). Bounds: 1048576 (1 MiB) to 1073741824 (1 GiB).
    ///
    /// Source: one push may have 330 KB, a set of 64 locks with values.
    outbox_bytes: u64 = 8 << 20, "HOLDFAST_OUTBOX_BYTES";

    /// How many bytes of pushes may lie unread for all streams together, and as many again of changes for
    /// all watches. Past it the streams with most unread end until a quarter is free, and the watches that
    /// are behind by more than their share; sessions go on.
    ///
    /// Default: 268435456 (256 MiB). Bounds: `outbox_bytes` to 68719476736 (64 GiB).
    ///
    /// Source: 32 full outboxes.
    outbox_bytes_total: u64 = 256 << 20, "HOLDFAST_OUTBOX_BYTES_TOTAL";

    /// How many bytes may lie here of what clients send and no session takes yet: messages that have not
    /// arrived whole, and frames on streams that are not open. Past it a call or a stream that has more
    /// than 16 KiB of that is refused.
    ///
    /// Default: 67108864 (64 MiB). Bounds: 1048576 (1 MiB), the largest message, to 68719476736 (64 GiB).
    ///
    /// Source: 64 of the largest messages; the library sends less than a kibibyte before its session is
    /// open.
    arriving_bytes_total: u64 = 64 << 20, "HOLDFAST_ARRIVING_BYTES_TOTAL";

    /// How many unary Acquire calls may wait for a lock at this node at once; one more is refused.
    ///
    /// Default: 10000. Bounds: 1 to 1000000. A client that waits a lot has a stream, which carries
    /// any number of waits.
    max_waiting_calls: u64 = 10_000, "HOLDFAST_MAX_WAITING_CALLS";

    /// How many bytes are logged between two snapshots, at least; a large table is written less often,
    /// once the log has half as many bytes as the table.
    ///
    /// Default: 16777216 (16 MiB). Bounds: 4096 (4 KiB) to 68719476736 (64 GiB); more than an eighth of
    /// `max_log_bytes` counts as that. A restart applies up to twice as many bytes again, or as many as
    /// the table has, at most a quarter of `max_log_bytes`.
    ///
    /// Source: the log of five seconds at full rate, or of a minute with one client.
    snapshot_log_bytes: u64 = 16 << 20, "HOLDFAST_SNAPSHOT_LOG_BYTES";

    /// How much of the log is kept, bytes: in memory, and about as much on disk. A follower that
    /// needs more gets a snapshot instead.
    ///
    /// Default: 268435456 (256 MiB). Bounds: 1048576 (1 MiB) to 68719476736 (64 GiB). What is logged
    /// while a snapshot is sent and installed has to fit, or that follower needs another one. After an
    /// election a member that answers nothing may keep what is logged in ten seconds more, until its
    /// connection counts as dead.
    ///
    /// Source: the log of three minutes at full rate; a snapshot of ten million holds takes two.
    max_log_bytes: u64 = 256 << 20, "HOLDFAST_MAX_LOG_BYTES";

    /// How long one operation on the data folder's disk may take before the disk counts as hung and
    /// the node ends with code 75, milliseconds.
    ///
    /// Default: 10000. Bounds: 1000 to 600000. A node whose disk hangs takes part in nothing, and the
    /// others do not notice; once it has ended they do, and its leadership moves. Reading the log at
    /// the start is one operation, and may take 60 times as long.
    ///
    /// Source: the default lease; healthy disks and volumes stall for up to seconds.
    disk_stall_ms: u64 = 10_000, "HOLDFAST_DISK_STALL_MS";

    /// How many bytes the history of this node may take: who held what, and why that ended (`holdfast history`).
    ///
    /// Default: 268435456 (256 MiB). Bounds: 1048576 (1 MiB) to 1099511627776 (1 TiB), or 0: no history is kept,
    /// and none that is there is read. Nothing is written below `reserve_bytes`.
    ///
    /// Source: about a million holds.
    history_bytes: u64 = 256 << 20, "HOLDFAST_HISTORY_BYTES";

    /// How long the history goes back at most, days.
    ///
    /// Default: 30. Bounds: 1 to 36500.
    history_days: u64 = 30, "HOLDFAST_HISTORY_DAYS";

    /// Prefixes of lock names by which the metrics of locks are kept apart: waits, holds, grants and queues.
    /// Of several the longest counts; all other names are counted under `other`.
    ///
    /// In a file: `metrics_prefixes = ["orders/"]`; as a flag or variable separated by commas.
    ///
    /// Default: none. Bounds: 32 prefixes, each of 1 to 512 bytes and once, and none is `other`.
    ///
    /// Source: each has about 50 lines in every scrape.
    metrics_prefixes: MetricsPrefixes = MetricsPrefixes::default(), "HOLDFAST_METRICS_PREFIXES";

    /// How long a request may have waited for its grant, milliseconds; a longer wait has a line in the
    /// leader's log, ten lines in ten seconds at most.
    ///
    /// Default: 0, no line. Bounds: 0 to 2592000000 (30 days).
    log_waits_over_ms: u64 = 0, "HOLDFAST_LOG_WAITS_OVER_MS";

    /// How long a hold may have lasted when it ends, milliseconds; a longer one has a line in the leader's
    /// log, ten lines in ten seconds at most.
    ///
    /// Default: 0, no line. Bounds: 0 to 2592000000 (30 days).
    log_holds_over_ms: u64 = 0, "HOLDFAST_LOG_HOLDS_OVER_MS";

    /// Where spans of requests are sent that bring a sampled trace along: a collector of OpenTelemetry that takes
    /// OTLP over gRPC, as `http://127.0.0.1:4317`. In a build with the feature `otel` only.
    ///
    /// Default: none.
    otlp_endpoint: String = String::new(), "HOLDFAST_OTLP_ENDPOINT";

    /// How log lines look: `text` for people, `json` for machines.
    ///
    /// Default: text. They go to standard error.
    log_format: LogFormat = LogFormat::Text, "HOLDFAST_LOG_FORMAT";

    /// What is logged: `error`, `warn`, `info`, `debug` or `trace`, or directives by module such
    /// as `info,holdfast_server::raft=debug`.
    ///
    /// Default: info.
    log_level: String = "info".to_owned(), "HOLDFAST_LOG_LEVEL";
}

settings! {
    /// Settings that must be equal on all nodes of a cluster.
    ///
    /// The limits that decide about refusals travel through the log: those of the leader hold for
    /// all, so nodes whose files differ never disagree about an answer.
    ClusterConfig,
    /// The values of [`ClusterConfig`] that one source sets.
    ClusterLayer,
    /// The members of the cluster as it is first formed; with `join`, its present members and this
    /// node. Later the members in the log count, and addresses given here win over those in the log.
    ///
    /// In a file: `members = [{ node_id = 1, advertise = "a:7420", peer_advertise = "a:7421" }, …]`;
    /// as a flag or variable: `1=a:7420/a:7421,2=b:7420/b:7421,3=c:7420/c:7421`. With `join = "auto"` without the ids.
    ///
    /// Default: this one node. Bounds: 9 members; this node is one of them, no id and no address
    /// twice.
    members: Members = Members::default(), "HOLDFAST_MEMBERS";

    /// The name of the cluster in the certificates of its nodes: only with such does one open another's peer port.
    ///
    /// Default: holdfast. Bounds: 1 to 63 of a to z, 0 to 9 and -.
    cluster_name: ClusterName = ClusterName::default(), "HOLDFAST_CLUSTER_NAME";

    /// Identities with every right, whatever the rules say, as `cn:ops` or `uri:spiffe://example.com/ops`: an
    /// operator who can restart a node gets in again. The same on all nodes.
    ///
    /// In a file: `admins = ["cn:ops"]`; as a flag or variable separated by commas.
    ///
    /// Default: none. `anonymous` cannot be one.
    admins: Admins = Admins::default(), "HOLDFAST_ADMINS";

    /// Lease of a session that asks for none, milliseconds.
    ///
    /// Default: 10000. Bounds: 1000 to `ttl_max_ms`. Longer leases survive longer pauses of a
    /// client and delay the take-over from a dead one by as much.
    ///
    /// Source: DESIGN §5.4; with a keepalive every quarter of it, two lost in a row end nothing.
    ttl_default_ms: u64 = 10_000, "HOLDFAST_TTL_DEFAULT_MS";

    /// Longest lease a session may ask for, milliseconds.
    ///
    /// Default: 900000 (15 minutes). Bounds: 1000 to 86400000 (24 hours).
    ///
    /// Source: DESIGN §5.4; a restored cluster grants nothing for this long.
    ttl_max_ms: u64 = 900_000, "HOLDFAST_TTL_MAX_MS";

    /// How many sessions there may be; one more is refused.
    ///
    /// Default: 100000. Bounds: 1 to 10000000.
    max_sessions: u64 = 100_000, "HOLDFAST_MAX_SESSIONS";

    /// How many requests of one session may wait, hold, or be kept for its retries; one more is
    /// refused.
    ///
    /// Default: 1024. Bounds: 1 to 1000000.
    max_requests_per_session: u64 = 1_024, "HOLDFAST_MAX_REQUESTS_PER_SESSION";

    /// How many requests may wait for one lock; one more is refused.
    ///
    /// Default: 100000. Bounds: 1 to 10000000.
    max_waiters_per_lock: u64 = 100_000, "HOLDFAST_MAX_WAITERS_PER_LOCK";

    /// How many bytes the values of all locks may take, each with its lock's name and 256 bytes
    /// more; a value that would take more is refused.
    ///
    /// Default: 268435456 (256 MiB). Bounds: 0, which refuses every value, to 17179869184 (16 GiB).
    ///
    /// Source: a snapshot holds all of them, and every member holds them in memory.
    max_value_bytes: u64 = 256 << 20, "HOLDFAST_MAX_VALUE_BYTES";

    /// How many bytes sessions, requests and values may take together, as every member counts them alike:
    /// 768 for a session, 192 for a request with 256 for each of its locks, and names, labels and values.
    /// What would take more is refused; releases, cancels and expiries are not.
    ///
    /// Default: 1073741824 (1 GiB). Bounds: 1048576 (1 MiB) to 1099511627776 (1 TiB). A process takes up to
    /// twice as much while it writes or installs a snapshot.
    ///
    /// Source: two million locks held by ten thousand sessions; fits twice into a machine of 4 GiB.
    max_table_bytes: u64 = 1 << 30, "HOLDFAST_MAX_TABLE_BYTES";

    /// How many pushes may lie unread for one stream; one more ends the stream, and the session
    /// goes on.
    ///
    /// Default: 8192. Bounds: 16 to 1000000.
    outbox_frames: u64 = 8_192, "HOLDFAST_OUTBOX_FRAMES";

    /// How many frames one stream may send in a second; at least twice `max_requests_per_session`.
    ///
    /// Default: 50000. Bounds: 128 to 10000000.
    ///
    /// Source: a client that comes back sends again, at once, all that was not answered.
    frames_per_second: u64 = 50_000, "HOLDFAST_FRAMES_PER_SECOND";
}

settings! {
    /// Where scopes with fallback are served while no server can be reached, and when (DESIGN §10). Should be
    /// equal on all nodes of a cluster; while nodes are restarted with another W or V, one by one, they may differ. Clients have no W and V
    /// of their own: they use those in the scope's row.
    FallbackConfig,
    /// The values of [`FallbackConfig`] that one source sets.
    FallbackLayer,
    /// Contact points of Cassandra, separated by commas: `host` or `host:port`.
    ///
    /// Default: none, and no scope with fallback can be set. Needs a build with the feature `fallback`.
    cassandra: String = String::new(), "HOLDFAST_CASSANDRA";

    /// The keyspace with the tables `authority` and `fallback_leases`, by its exact name
    /// (`holdfast cassandra schema` makes them).
    ///
    /// Default: holdfast.
    cassandra_keyspace: String = "holdfast".to_owned(), "HOLDFAST_CASSANDRA_KEYSPACE";

    /// The datacenter of Cassandra whose nodes this node asks, while one of them is up. Scopes with fallback are decided by all
    /// datacenters (SERIAL), whichever it is.
    ///
    /// Default: none, and nodes of any are asked.
    cassandra_datacenter: String = String::new(), "HOLDFAST_CASSANDRA_DATACENTER";

    /// The user as which this node logs in to Cassandra.
    ///
    /// Default: none, and no login. Only with `cassandra_password_file`.
    cassandra_user: String = String::new(), "HOLDFAST_CASSANDRA_USER";

    /// The file whose first line is the password of `cassandra_user`.
    ///
    /// Default: none.
    cassandra_password_file: PathBuf = PathBuf::new(), "HOLDFAST_CASSANDRA_PASSWORD_FILE";

    /// The CAs (PEM) that vouch for Cassandra's nodes: with them this node speaks TLS there.
    ///
    /// Default: none, and no TLS. Files that are replaced are in use from the next connection on.
    cassandra_ca: PathBuf = PathBuf::new(), "HOLDFAST_CASSANDRA_CA";

    /// The certificate (PEM) that this node shows Cassandra's nodes.
    ///
    /// Default: none. Only with `cassandra_key` and `cassandra_ca`.
    cassandra_cert: PathBuf = PathBuf::new(), "HOLDFAST_CASSANDRA_CERT";

    /// The private key of `cassandra_cert` (PEM, not encrypted).
    ///
    /// Default: none.
    cassandra_key: PathBuf = PathBuf::new(), "HOLDFAST_CASSANDRA_KEY";

    /// The name that the certificate of every one of Cassandra's nodes carries, in place of the IP address under which the other
    /// nodes know it.
    ///
    /// Default: none, and each certificate has to name the address.
    cassandra_server_name: String = String::new(), "HOLDFAST_CASSANDRA_SERVER_NAME";

    /// W: how long the leader may be silent in Cassandra before clients take a scope over, milliseconds.
    /// A leader grants in a scope for 0.8 W from the start of its last answered write there. It writes W
    /// into the scope's row, where clients read it: a longer W at once, a shorter one once the longer has
    /// passed.
    ///
    /// Default: 30000. Bounds: 1.3 times `hold_ms` to 3600000.
    ///
    /// Source: DESIGN §10.
    take_over_ms: u64 = 30_000, "HOLDFAST_TAKE_OVER_MS";

    /// V: how long a hold in Cassandra lasts after its client's last read there, milliseconds. A
    /// scope that comes back is not served for 1.3 V. Written into the row, where clients read it, once
    /// no client holds in Cassandra.
    ///
    /// Default: 15000. Bounds: 1000 to 3600000.
    ///
    /// Source: DESIGN §10.
    hold_ms: u64 = 15_000, "HOLDFAST_HOLD_MS";

    /// How long holders in Cassandra may continue once the scope is to come back and no new client may
    /// enter, milliseconds.
    ///
    /// Default: 10000. Bounds: 0 to half of `take_over_ms`, so that no client takes the drain for that
    /// of a dead leader.
    drain_limit_ms: u64 = 10_000, "HOLDFAST_DRAIN_LIMIT_MS";

    /// How long Cassandra serves a scope at least, once it does, milliseconds.
    ///
    /// Default: 300000 (5 minutes). Bounds: 0 to 86400000. A scope has 32,000 epochs for ever, and a round
    /// trip takes three of them: at one in 5 minutes they last for 37 days of nothing but switching.
    switch_every_ms: u64 = 300_000, "HOLDFAST_SWITCH_EVERY_MS";

    /// Over how many partitions of `fallback_leases` the locks of a scope are spread while Cassandra serves it. One partition grants
    /// some dozens of locks a second. It changes while the native store serves the scope; processes and servers of 0.3 and earlier refuse
    /// a scope with another number than 16.
    ///
    /// Default: 0, which is 256 for a new scope, and what it has for any other. Bounds: 0 to 4096.
    lease_partitions: u16 = 0, "HOLDFAST_LEASE_PARTITIONS";
}

/// How a node comes to its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "JoinText", into = "JoinText")]
pub enum Join {
    /// It forms one with the others.
    No,
    /// An operator adds it.
    Added,
    /// It asks for a place.
    Auto,
}

/// As a file has it.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum JoinText {
    Flag(bool),
    Word(String),
}

impl FromStr for Join {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "false" => Ok(Self::No),
            "true" => Ok(Self::Added),
            "auto" => Ok(Self::Auto),
            other => Err(format!("`{other}` is not true, false or auto")),
        }
    }
}

impl TryFrom<JoinText> for Join {
    type Error = String;

    fn try_from(text: JoinText) -> Result<Self, String> {
        match text {
            JoinText::Flag(true) => Ok(Self::Added),
            JoinText::Flag(false) => Ok(Self::No),
            JoinText::Word(word) => word.parse(),
        }
    }
}

impl From<Join> for JoinText {
    fn from(join: Join) -> Self {
        match join {
            Join::No => Self::Flag(false),
            Join::Added => Self::Flag(true),
            Join::Auto => Self::Word("auto".to_owned()),
        }
    }
}

impl fmt::Display for Join {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::No => "false",
            Self::Added => "true",
            Self::Auto => "auto",
        })
    }
}

/// Whether clients have to show a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ClientCerts {
    /// They may.
    Optional,
    /// They have to.
    Required,
}

/// On which thread sessions run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum SessionThread {
    /// One of their own where there are four cores or more, else Raft's.
    Auto,
    /// One of their own.
    Own,
    /// Raft's.
    Shared,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One object a line, for machines.
    Json,
}

/// Checked settings.
///
/// # Invariants
///
/// - Every number is within the bounds its key documents.
/// - `members` names this node, with the addresses that it advertises.
/// - No listener is open outside loopback without TLS, unless `insecure` says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// What may differ from node to node.
    pub node: NodeConfig,
    /// What must be equal on all nodes.
    pub cluster: ClusterConfig,
    /// Where scopes with fallback are served while no server can be reached, if anywhere.
    pub fallback: FallbackConfig,
    /// This node as the others see it.
    pub own: Member,
    /// Whether members were named: then there are, or may be, others, and the peer port is opened.
    pub has_peers: bool,
}

/// Why a node cannot run with its settings. Each error names the setting and what to do; `holdfastd`
/// prints it and exits with 78.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("the settings file {} cannot be read: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is not TOML, or a value in it has the wrong type.
    #[error("{}:{line}: {problem} (at: {excerpt})", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The text of that line.
        excerpt: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The file holds a key that is no setting.
    #[error("{}: unknown key `{key}`{}", path.display(), suggestion(nearest.as_deref()))]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// The setting whose name is nearest, if one is near.
        nearest: Option<String>,
    },
    /// A variable of the environment whose name is close to that of a setting.
    #[error("unknown variable {name}; did you mean {nearest}?")]
    UnknownVariable {
        /// The variable.
        name: String,
        /// The variable of a setting whose name is nearest.
        nearest: &'static str,
    },
    /// A value that cannot be used.
    #[error("{key} = {value} ({origin}): {problem}")]
    BadValue {
        /// The setting.
        key: &'static str,
        /// Its value.
        value: String,
        /// The source of the value.
        origin: Origin,
        /// Which bound it breaks and what to do.
        problem: String,
    },
}

fn suggestion(nearest: Option<&str>) -> String {
    nearest.map_or_else(
        || "; `holdfastd --help` lists all settings".to_owned(),
        |nearest| format!("; did you mean {nearest}?"),
    )
}

impl NodeConfig {
    /// Whether its ports speak TLS.
    pub fn has_tls(&self) -> bool {
        !self.tls_cert.as_os_str().is_empty()
    }

    /// The Unix socket for clients, if one was named.
    pub fn unix_socket(&self) -> Option<&Path> {
        Some(self.unix_socket.as_path()).filter(|path| !path.as_os_str().is_empty())
    }
}

impl FallbackConfig {
    /// Whether a fallback was named.
    pub fn is_set(&self) -> bool {
        !self.cassandra.is_empty()
    }

    /// TLS to Cassandra, if a CA was named.
    pub fn tls(&self) -> Option<Tls> {
        let is_set = |file: &PathBuf| !file.as_os_str().is_empty();
        let tls = Some(&self.cassandra_ca).filter(|file| is_set(file)).map(Tls::new)?;
        let own = Some(&self.cassandra_cert).filter(|file| is_set(file));
        let tls = own.into_iter().fold(tls, |tls, cert| tls.certificate(cert, &self.cassandra_key));
        let name = Some(&self.cassandra_server_name).filter(|name| !name.is_empty());
        Some(name.into_iter().fold(tls, Tls::server_name))
    }

    /// W, V, and the durations derived from them.
    ///
    /// # Errors
    ///
    /// [`DoNotFit`]: W is too short for V.
    pub fn durations(&self) -> Result<Durations, DoNotFit> {
        let millis = Duration::from_millis;
        Durations::new(millis(self.take_over_ms), millis(self.hold_ms))
    }
}

impl ClusterConfig {
    /// The limits that decide refusals. They travel through the log, proposed by a leader whose
    /// table has others.
    pub fn limits(&self) -> Limits {
        Limits {
            max_sessions: self.max_sessions,
            max_requests_per_session: self.max_requests_per_session,
            max_waiters_per_lock: self.max_waiters_per_lock,
            max_value_bytes: self.max_value_bytes,
            ttl_max_ms: self.ttl_max_ms,
            ..Limits::default()
        }
    }
}

/// Parses the value of `log_level`, from any source: levels, separated by commas, each of all that is written or of
/// a part of the program (`info,holdfast_replication=debug`). Of what no level is for, errors are written.
///
/// # Errors
///
/// What is wrong with it.
pub fn log_filter(text: &str) -> Result<Targets, String> {
    let mut filter = Targets::new().with_default(LevelFilter::ERROR);
    for directive in text.split(',').map(str::trim).filter(|directive| !directive.is_empty()) {
        filter = match directive.split_once('=') {
            None => filter.with_default(level(directive)?),
            Some((part, of_part)) => filter.with_target(program_part(part)?, level(of_part)?),
        };
    }
    Ok(filter)
}

fn level(text: &str) -> Result<LevelFilter, String> {
    let none = |_| format!("'{text}' is neither off, error, warn, info, debug nor trace");
    text.trim().parse().map_err(none)
}

fn program_part(text: &str) -> Result<&str, String> {
    let name = text.trim();
    let is_name =
        name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':'));
    if is_name {
        Ok(name)
    } else {
        Err(format!("'{name}' is no part of the program, as holdfast_replication is"))
    }
}
