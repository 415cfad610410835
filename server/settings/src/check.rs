//! Bounds: what makes raw settings a [`Config`].

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::Path;

use holdfast_core::TTL_CEILING_MS;
use holdfast_keyspace::authority::Buckets;
use tonic::codegen::http::Uri;

use super::{
    Advertised, ClientCerts, ClusterConfig, Config, ConfigError, FallbackConfig, Join,
    ListenAddress, Member, Members, MetricsPrefixes, NodeConfig, Origin, log_filter,
};
use holdfast_replication::members::MEMBERS_MAX;

/// How many heartbeats fit into the shortest election time-out, at least: with fewer, two lost packets
/// depose a leader.
pub(super) const HEARTBEATS_PER_ELECTION: u64 = 3;
/// A client that comes back sends at once all requests without an answer, and what it requested and
/// released meanwhile: with fewer frames a second its stream ends each time, and its locks stay held.
const FRAMES_PER_REQUEST: u64 = 2;
/// What the system has room for in the address of a Unix socket, with the byte that ends it.
const SOCKET_PATH_BYTES: usize = 107;
/// 30 days: a lock that is held for longer is no matter for a log.
const LOGGED_OVER_MAX_MS: u64 = 30 * 86_400_000;
/// Twice the frames that a client puts into one message.
const FRAMES_LEAST: u64 = 128;

/// Whether it is a host and a port without TLS, and no more.
fn is_plain_http(endpoint: &str) -> bool {
    let Ok(uri) = endpoint.parse::<Uri>() else { return false };
    let has_both = uri.host().is_some_and(|host| !host.is_empty()) && uri.port_u16().is_some();
    uri.scheme_str() == Some("http") && has_both && matches!(uri.path(), "" | "/")
}

impl Config {
    /// Checks raw settings; `origin` gives the source of each, for the message.
    pub(super) fn check(
        mut node: NodeConfig,
        mut cluster: ClusterConfig,
        fallback: FallbackConfig,
        origin: &dyn Fn(&'static str) -> Origin,
    ) -> Result<Self, ConfigError> {
        let check = Check { origin };
        node.follow_distance(origin);
        check.node_numbers(&node)?;
        check.cluster_numbers(&cluster)?;
        check.log_level(&node.log_level)?;
        check.metrics_prefixes(&node.metrics_prefixes)?;
        check.id_is_given(&mut node)?;
        let own = check.own_member(&node, &cluster.members)?;
        node.advertise = own.advertise.clone();
        node.peer_advertise = own.peer_advertise.clone();
        let has_peers = !cluster.members.0.is_empty();
        check.members(&mut cluster.members, &own)?;
        check.join(&node, &cluster.members, has_peers)?;
        check.tls(&node, has_peers)?;
        check.listeners(&node, has_peers)?;
        check.unix_socket(&node)?;
        check.otlp_endpoint(&node)?;
        check.fallback(&fallback)?;
        Ok(Self { node, cluster, fallback, own, has_peers })
    }

    /// The settings of a node that joins by itself, now that it has this id.
    #[must_use]
    pub fn with_id(&self, node_id: u64) -> Self {
        let mut config = self.clone();
        (config.node.node_id, config.own.node_id) = (node_id, node_id);
        config
    }
}

struct Check<'a> {
    origin: &'a dyn Fn(&'static str) -> Origin,
}

impl Check<'_> {
    fn refuse(&self, key: &'static str, value: impl Display, problem: String) -> ConfigError {
        ConfigError::BadValue { key, value: value.to_string(), origin: (self.origin)(key), problem }
    }

    fn within(
        &self,
        key: &'static str,
        value: u64,
        bounds: RangeInclusive<u64>,
    ) -> Result<(), ConfigError> {
        if bounds.contains(&value) {
            return Ok(());
        }
        let (low, high) = bounds.into_inner();
        Err(self.refuse(key, value, format!("must be from {low} to {high}")))
    }

    /// A lower bound that depends on another setting.
    fn at_least(
        &self,
        key: &'static str,
        value: u64,
        least: u64,
        why: &str,
    ) -> Result<(), ConfigError> {
        if value >= least {
            return Ok(());
        }
        Err(self.refuse(key, value, format!("must be at least {least} ({why})")))
    }

    fn node_numbers(&self, node: &NodeConfig) -> Result<(), ConfigError> {
        self.within("node_id", node.node_id, 1..=i64::MAX.unsigned_abs())?;
        self.within("round_trip_ms", node.round_trip_ms, 1..=300)?;
        self.within("heartbeat_ms", node.heartbeat_ms, 10..=5_000)?;
        let least = node.heartbeat_ms * HEARTBEATS_PER_ELECTION;
        self.at_least("election_min_ms", node.election_min_ms, least, "three times heartbeat_ms")?;
        self.within("election_min_ms", node.election_min_ms, least..=30_000)?;
        let least = node.election_min_ms + 1;
        self.at_least("election_max_ms", node.election_max_ms, least, "above election_min_ms")?;
        self.within("election_max_ms", node.election_max_ms, least..=60_000)?;
        let (key, least) = ("propose_deadline_ms", node.election_max_ms);
        self.at_least(key, node.propose_deadline_ms, least, "election_max_ms")?;
        self.within(key, node.propose_deadline_ms, least..=60_000)?;
        self.within("max_pending_commands", node.max_pending_commands, 1..=10_000_000)?;
        self.within("max_pending_bytes", node.max_pending_bytes, 1 << 20..=16 << 30)?;
        self.within("max_connections", node.max_connections, 64..=10_000_000)?;
        self.within("max_attached_streams", node.max_attached_streams, 1..=10_000_000)?;
        self.within("max_unopened_streams", node.max_unopened_streams, 1..=1_000_000)?;
        self.within("resumes_per_second", node.resumes_per_second, 10..=1_000_000)?;
        if node.history_bytes != 0 {
            self.within("history_bytes", node.history_bytes, 1 << 20..=1 << 40)?;
        }
        self.within("history_days", node.history_days, 1..=36_500)?;
        self.within("spin_us", node.spin_us, 0..=1_000)?;
        self.within("max_watches", node.max_watches, 1..=1_000_000)?;
        self.within("watch_backlog", node.watch_backlog, 16..=1_000_000)?;
        self.within("watch_states", node.watch_states, 1..=10_000)?;
        self.within("watch_recent_changes", node.watch_recent_changes, 0..=10_000_000)?;
        self.within("watch_recent_bytes", node.watch_recent_bytes, 64 << 10..=16 << 30)?;
        self.within("outbox_bytes", node.outbox_bytes, 1 << 20..=1 << 30)?;
        let (key, least) = ("outbox_bytes_total", node.outbox_bytes);
        self.at_least(key, node.outbox_bytes_total, least, "outbox_bytes")?;
        self.within(key, node.outbox_bytes_total, least..=64 << 30)?;
        self.within("arriving_bytes_total", node.arriving_bytes_total, 1 << 20..=64 << 30)?;
        self.within("max_waiting_calls", node.max_waiting_calls, 1..=1_000_000)?;
        self.within("snapshot_log_bytes", node.snapshot_log_bytes, 4_096..=64 << 30)?;
        self.within("max_log_bytes", node.max_log_bytes, 1 << 20..=64 << 30)?;
        self.within("disk_stall_ms", node.disk_stall_ms, 1_000..=600_000)?;
        self.within("log_waits_over_ms", node.log_waits_over_ms, 0..=LOGGED_OVER_MAX_MS)?;
        self.within("log_holds_over_ms", node.log_holds_over_ms, 0..=LOGGED_OVER_MAX_MS)
    }

    fn cluster_numbers(&self, cluster: &ClusterConfig) -> Result<(), ConfigError> {
        let ttl = cluster.limits().ttl_min_ms..=TTL_CEILING_MS;
        self.within("ttl_max_ms", cluster.ttl_max_ms, ttl.clone())?;
        self.within("ttl_default_ms", cluster.ttl_default_ms, ttl)?;
        if cluster.ttl_default_ms > cluster.ttl_max_ms {
            let problem = format!("must be at most ttl_max_ms, which is {}", cluster.ttl_max_ms);
            return Err(self.refuse("ttl_default_ms", cluster.ttl_default_ms, problem));
        }
        self.within("max_sessions", cluster.max_sessions, 1..=10_000_000)?;
        self.within("max_requests_per_session", cluster.max_requests_per_session, 1..=1_000_000)?;
        self.within("max_waiters_per_lock", cluster.max_waiters_per_lock, 1..=10_000_000)?;
        self.within("max_value_bytes", cluster.max_value_bytes, 0..=16 << 30)?;
        self.within("max_table_bytes", cluster.max_table_bytes, 1 << 20..=1 << 40)?;
        self.within("outbox_frames", cluster.outbox_frames, 16..=1_000_000)?;
        self.within("frames_per_second", cluster.frames_per_second, FRAMES_LEAST..=10_000_000)?;
        let least = cluster.max_requests_per_session * FRAMES_PER_REQUEST;
        let why = "twice max_requests_per_session: a client that comes back sends all that was not \
                   answered at once";
        self.at_least("frames_per_second", cluster.frames_per_second, least, why)
    }

    fn fallback(&self, fallback: &FallbackConfig) -> Result<(), ConfigError> {
        self.within("hold_ms", fallback.hold_ms, 1_000..=3_600_000)?;
        self.within("take_over_ms", fallback.take_over_ms, 1_300..=3_600_000)?;
        if let Err(problem) = fallback.durations() {
            return Err(self.refuse("take_over_ms", fallback.take_over_ms, problem.to_string()));
        }
        self.within("drain_limit_ms", fallback.drain_limit_ms, 0..=fallback.take_over_ms / 2)?;
        self.within("switch_every_ms", fallback.switch_every_ms, 0..=86_400_000)?;
        self.within(
            "lease_partitions",
            u64::from(fallback.lease_partitions),
            0..=u64::from(Buckets::MAX),
        )?;
        let password = &fallback.cassandra_password_file;
        if fallback.cassandra_user.is_empty() != password.as_os_str().is_empty() {
            let problem = "goes with cassandra_password_file; set both or none".to_owned();
            return Err(self.refuse("cassandra_user", &fallback.cassandra_user, problem));
        }
        self.fallback_tls(fallback)?;
        if fallback.is_set() && !cfg!(feature = "fallback") {
            let problem = "this holdfastd has no driver for Cassandra; build it with cargo build \
                           --release -p holdfast-server --features fallback";
            return Err(self.refuse("cassandra", &fallback.cassandra, problem.to_owned()));
        }
        Ok(())
    }

    fn fallback_tls(&self, fallback: &FallbackConfig) -> Result<(), ConfigError> {
        let is_set = |file: &Path| !file.as_os_str().is_empty();
        let FallbackConfig { cassandra_cert: cert, cassandra_key: key, .. } = fallback;
        if is_set(cert) != is_set(key) {
            let problem = "goes with cassandra_key; set both or none".to_owned();
            return Err(self.refuse("cassandra_cert", cert.display(), problem));
        }
        if is_set(&fallback.cassandra_ca) {
            return Ok(());
        }
        let problem = || "needs cassandra_ca: the CAs that vouch for Cassandra's nodes".to_owned();
        if is_set(cert) {
            return Err(self.refuse("cassandra_cert", cert.display(), problem()));
        }
        if !fallback.cassandra_server_name.is_empty() {
            return Err(self.refuse(
                "cassandra_server_name",
                &fallback.cassandra_server_name,
                problem(),
            ));
        }
        Ok(())
    }

    fn metrics_prefixes(&self, prefixes: &MetricsPrefixes) -> Result<(), ConfigError> {
        prefixes.check().map_err(|problem| self.refuse("metrics_prefixes", prefixes, problem))
    }

    fn log_level(&self, text: &str) -> Result<(), ConfigError> {
        match log_filter(text) {
            Ok(_) => Ok(()),
            Err(problem) => Err(self.refuse("log_level", text, problem)),
        }
    }

    /// This node as the others see it: as `members` says, or as the node's own keys say; both have to
    /// agree.
    fn own_member(&self, node: &NodeConfig, members: &Members) -> Result<Member, ConfigError> {
        let is_own = |member: &&Member| {
            let by_address = member.peer_advertise == node.peer_advertise;
            if node.join == Join::Auto { by_address } else { member.node_id == node.node_id }
        };
        let listed = members.0.iter().find(is_own);
        if node.join != Join::Auto && listed.is_none() && !members.0.is_empty() {
            let problem = format!("node_id {} is not among them", node.node_id);
            return Err(self.refuse("members", members, problem));
        }
        let advertise = self.own_address(
            ("advertise", &node.advertise),
            listed.map(|member| &member.advertise),
            ("listen", node.listen),
        )?;
        let peer_advertise = self.own_address(
            ("peer_advertise", &node.peer_advertise),
            listed.map(|member| &member.peer_advertise),
            ("peer_listen", node.peer_listen),
        )?;
        Ok(Member { node_id: node.node_id, advertise, peer_advertise })
    }

    fn own_address(
        &self,
        (key, given): (&'static str, &Advertised),
        listed: Option<&Advertised>,
        (listen_key, local): (&'static str, ListenAddress),
    ) -> Result<Advertised, ConfigError> {
        match (given.is_unset(), listed) {
            (true, Some(listed)) => Ok(listed.clone()),
            (true, None) => local.to_string().parse().map_err(|_| {
                let problem = format!("nobody can connect to it; set {key} as well");
                self.refuse(listen_key, local, problem)
            }),
            (false, Some(listed)) if listed != given => {
                let problem = format!("members has {listed} for this node; make them equal");
                Err(self.refuse(key, given, problem))
            }
            (false, _) => Ok(given.clone()),
        }
    }

    /// Sorts the members by id; a cluster of one has itself.
    fn members(&self, members: &mut Members, own: &Member) -> Result<(), ConfigError> {
        if members.0.is_empty() {
            members.0.push(own.clone());
        }
        members.0.sort_by_key(|member| member.node_id);
        if members.0.len() > MEMBERS_MAX {
            let problem = format!("{} members; at most {MEMBERS_MAX}", members.0.len());
            return Err(self.refuse("members", &*members, problem));
        }
        if let Some(problem) = repetition(&members.0) {
            return Err(self.refuse("members", &*members, problem));
        }
        let by_itself = own.node_id == 0;
        let mut odd = members.0.iter().filter(|member| (member.node_id == 0) != by_itself);
        let Some(odd) = odd.next() else { return Ok(()) };
        let problem = if by_itself {
            "a node id; with `join = \"auto\"` the cluster gives each node its own"
        } else {
            "node ids begin at 1"
        };
        Err(self.refuse("members", odd, problem.to_owned()))
    }

    /// A node that joins has to know a member to ask.
    fn join(
        &self,
        node: &NodeConfig,
        members: &Members,
        has_members: bool,
    ) -> Result<(), ConfigError> {
        let problem = match node.join {
            Join::No => return Ok(()),
            Join::Added if members.0.len() > 1 => return Ok(()),
            Join::Added => {
                "needs `members`: those of the cluster that is to be joined, and this node"
            }
            Join::Auto if !has_members => {
                "needs `members`, without node ids: the addresses of all that are to vote"
            }
            Join::Auto if node.has_tls() || node.peer_listen.is_loopback() => return Ok(()),
            Join::Auto => {
                "outside loopback a node asks for a place under a certificate alone; set tls_cert, tls_key and \
                 tls_ca (`holdfast cert node` without --id makes one)"
            }
        };
        Err(self.refuse("join", node.join, problem.to_owned()))
    }

    /// The id of a node that joins by itself is not known before it has one.
    fn id_is_given(&self, node: &mut NodeConfig) -> Result<(), ConfigError> {
        if node.join != Join::Auto {
            return Ok(());
        }
        if (self.origin)("node_id") != Origin::Default {
            let problem = "with `join = \"auto\"` the cluster gives the node its id; leave it out";
            return Err(self.refuse("node_id", node.node_id, problem.to_owned()));
        }
        node.node_id = 0;
        Ok(())
    }

    /// Files of TLS stand together or not at all; what is in them is looked at when the node starts.
    fn tls(&self, node: &NodeConfig, has_peers: bool) -> Result<(), ConfigError> {
        let is_set = |file: &Path| !file.as_os_str().is_empty();
        let (has_key, has_ca) = (is_set(&node.tls_key), is_set(&node.tls_ca));
        let refuse = |key, file: &Path, problem: &str| {
            Err(self.refuse(key, file.display(), problem.to_owned()))
        };
        if node.has_tls() && !has_key {
            return refuse("tls_cert", &node.tls_cert, "needs `tls_key`, the file with its key");
        }
        if has_key && !node.has_tls() {
            return refuse("tls_key", &node.tls_key, "needs `tls_cert`, its certificate");
        }
        if has_ca && !node.has_tls() {
            return refuse("tls_ca", &node.tls_ca, "needs `tls_cert` and `tls_key`");
        }
        if node.has_tls() && has_peers && !has_ca {
            let problem = "needs `tls_ca`: members prove themselves to each other";
            return refuse("tls_cert", &node.tls_cert, problem);
        }
        if node.client_certs == ClientCerts::Required && !has_ca {
            let problem = "needs `tls_cert`, `tls_key` and `tls_ca`".to_owned();
            return Err(self.refuse("client_certs", "required", problem));
        }
        if node.client_certs == ClientCerts::Required && node.insecure {
            let problem = "`insecure` lets clients in without TLS, and so without a certificate";
            return Err(self.refuse("client_certs", "required", problem.to_owned()));
        }
        Ok(())
    }

    fn otlp_endpoint(&self, node: &NodeConfig) -> Result<(), ConfigError> {
        let endpoint = node.otlp_endpoint.as_str();
        let problem = if endpoint.is_empty() {
            return Ok(());
        } else if !cfg!(feature = "otel") {
            "this holdfastd is built without OpenTelemetry; build it with --features otel"
        } else if !is_plain_http(endpoint) {
            "must be http://HOST:PORT: a collector beside the node, which speaks TLS to others"
        } else {
            return Ok(());
        };
        Err(self.refuse("otlp_endpoint", endpoint, problem.to_owned()))
    }

    fn unix_socket(&self, node: &NodeConfig) -> Result<(), ConfigError> {
        let bytes = node.unix_socket.as_os_str().len();
        if bytes <= SOCKET_PATH_BYTES {
            return Ok(());
        }
        let problem = format!("has {bytes} bytes; the system takes at most {SOCKET_PATH_BYTES}");
        Err(self.refuse("unix_socket", node.unix_socket.display(), problem))
    }

    /// Checks that listeners outside loopback without TLS are intended: every process that can connect can
    /// take and release every lock (DESIGN §6).
    fn listeners(&self, node: &NodeConfig, has_peers: bool) -> Result<(), ConfigError> {
        let mut open = vec![("listen", node.listen), ("admin_listen", node.admin_listen)];
        if has_peers {
            open.push(("peer_listen", node.peer_listen));
        }
        for (nth, (key, address)) in open.iter().enumerate() {
            if let Some((other, _)) = open.iter().take(nth).find(|(_, other)| other == address) {
                return Err(self.refuse(key, address, format!("{other} is the same address")));
            }
        }
        let exposed = open.into_iter().find(|(_, address)| !address.is_loopback());
        match exposed {
            Some((key, address)) if !node.insecure && !node.has_tls() => {
                let problem = "outside loopback without TLS; give the node a certificate (tls_cert; \
                               `holdfast cert` makes one), listen on 127.0.0.1, or say \
                               `insecure = true` (--insecure) if the network keeps strangers out";
                Err(self.refuse(key, address, problem.to_owned()))
            }
            _ => Ok(()),
        }
    }
}

/// The first id or address that two members share.
fn repetition(members: &[Member]) -> Option<String> {
    members.iter().enumerate().find_map(|(nth, member)| {
        let before = members.get(..nth)?;
        let addresses = [&member.advertise, &member.peer_advertise];
        let is_given = member.node_id != 0;
        if is_given && before.iter().any(|other| other.node_id == member.node_id) {
            return Some(format!("node_id {} stands twice", member.node_id));
        }
        let taken = |address: &&Advertised| {
            before.iter().any(|other| [&other.advertise, &other.peer_advertise].contains(address))
        };
        let twice = addresses.into_iter().find(taken);
        let twice =
            twice.or((member.advertise == member.peer_advertise).then_some(&member.advertise));
        twice.map(|address| format!("the address {address} stands twice"))
    })
}
