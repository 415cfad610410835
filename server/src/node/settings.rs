//! The node's settings in the form that each part needs.

use std::sync::Arc;
use std::time::Duration;

use holdfast_keyspace::authority::Buckets;
use holdfast_keyspace::database::Tables;
use holdfast_runtime::Runtime;

use crate::authority::{self, FallbackSettings};
use crate::config::{Config, FallbackConfig, Join, Member};
use crate::raft::{self, ReplicaConfig};
use crate::rpc::RpcSettings;
use crate::session::SessionSettings;

/// For the replica.
pub(crate) fn replica(config: &Config) -> ReplicaConfig {
    let Config { node, cluster, .. } = config;
    let by_itself = node.join == Join::Auto;
    let named = if by_itself { std::slice::from_ref(&config.own) } else { &cluster.members.0 };
    let members = named.iter().map(member).collect();
    ReplicaConfig {
        join: node.join != Join::No,
        admits_up_to: by_itself.then_some(cluster.members.0.len()),
        limits: cluster.limits(),
        max_table_bytes: cluster.max_table_bytes,
        heartbeat_ms: node.heartbeat_ms,
        election_min_ms: node.election_min_ms,
        election_max_ms: node.election_max_ms,
        propose_deadline_ms: node.propose_deadline_ms,
        max_pending_commands: count(node.max_pending_commands),
        max_pending_bytes: count(node.max_pending_bytes),
        snapshot_log_bytes: node.snapshot_log_bytes,
        max_log_bytes: node.max_log_bytes,
        disk_stall_ms: node.disk_stall_ms,
        reserve_bytes: node.reserve_bytes,
        ..ReplicaConfig::new(node.node_id, members)
    }
}

fn member(member: &Member) -> raft::Member {
    raft::Member {
        node_id: member.node_id,
        advertise: member.advertise.to_string(),
        peer_advertise: member.peer_advertise.to_string(),
    }
}

/// For the history of a store; nothing if none is to be kept.
pub(super) fn history(config: &Config, store: [u8; 16]) -> Option<holdfast_history::Settings> {
    let node = &config.node;
    let bounds = holdfast_history::Bounds {
        bytes_max: node.history_bytes,
        age_max: Duration::from_hours(24 * node.history_days),
        reserve_bytes: node.reserve_bytes,
    };
    let folder = node.data_dir.join("history");
    (bounds.bytes_max > 0).then_some(holdfast_history::Settings { folder, store, bounds })
}

/// For the session layer.
pub(super) fn sessions(config: &Config) -> SessionSettings {
    let Config { node, cluster, .. } = config;
    SessionSettings {
        ttl_default_ms: cluster.ttl_default_ms,
        outbox_frames: count(cluster.outbox_frames),
        frames_per_second: u32::try_from(cluster.frames_per_second).unwrap_or(u32::MAX),
        max_attached_streams: count(node.max_attached_streams),
        max_unopened_streams: count(node.max_unopened_streams),
        resumes_per_second: node.resumes_per_second,
        max_watches: count(node.max_watches),
        watch_backlog: count(node.watch_backlog),
        watch_states: count(node.watch_states),
        watch_recent_changes: node.watch_recent_changes,
        watch_recent_bytes: node.watch_recent_bytes,
        outbox_bytes: node.outbox_bytes,
        outbox_bytes_total: node.outbox_bytes_total,
        arriving_bytes_total: node.arriving_bytes_total,
        max_waiting_calls: count(node.max_waiting_calls),
        metrics_prefixes: node.metrics_prefixes.0.clone(),
        log_waits_over_ms: node.log_waits_over_ms,
        log_holds_over_ms: node.log_holds_over_ms,
        ..SessionSettings::default()
    }
}

/// For the port for clients.
pub(super) fn rpc(config: &Config) -> RpcSettings {
    let node = &config.node;
    RpcSettings {
        cluster_name: config.cluster.cluster_name.to_string(),
        admins: config.cluster.admins.0.clone(),
        // With `insecure` the members' port takes both.
        members_without_tls: config.has_peers && (node.insecure || !node.has_tls()),
        ..RpcSettings::default()
    }
}

/// For the authorities of scopes with fallback; `None` if no fallback was named. Cassandra gets no request
/// before there is a scope.
pub(super) fn fallback(
    config: &Config,
    runtime: &Runtime,
) -> Option<(FallbackSettings, Arc<Tables>)> {
    let fallback = Some(&config.fallback).filter(|fallback| fallback.is_set())?;
    let tables = Tables::new(authority::database(fallback)?, runtime.clock.clone());
    Some((terms(fallback)?, Arc::new(tables)))
}

fn terms(fallback: &FallbackConfig) -> Option<FallbackSettings> {
    let millis = Duration::from_millis;
    Some(FallbackSettings {
        // Checked with the settings.
        durations: fallback.durations().ok()?,
        drain_limit: millis(fallback.drain_limit_ms),
        buckets: Buckets::new(fallback.lease_partitions),
        switch_every: millis(fallback.switch_every_ms),
    })
}

/// Settings are bounded far below what any machine can count to.
fn count(setting: u64) -> usize {
    usize::try_from(setting).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use holdfast_keyspace::authority::Durations;

    use super::*;
    use crate::config::{ClusterLayer, FallbackLayer, Members, NodeLayer};

    /// No two settings are the same number.
    fn config() -> Config {
        let own: Member = "7=lock-7:8420/lock-7:8421".parse().unwrap();
        let node = NodeLayer {
            node_id: Some(7),
            join: Some(Join::Added),
            heartbeat_ms: Some(101),
            election_min_ms: Some(1_002),
            election_max_ms: Some(2_003),
            propose_deadline_ms: Some(5_004),
            max_pending_commands: Some(4_005),
            max_pending_bytes: Some(2_000_025),
            snapshot_log_bytes: Some(100_006),
            max_log_bytes: Some(2_000_025),
            disk_stall_ms: Some(9_026),
            reserve_bytes: Some(1_000_007),
            max_attached_streams: Some(20_008),
            max_unopened_streams: Some(1_009),
            resumes_per_second: Some(8_027),
            max_watches: Some(30_010),
            watch_backlog: Some(1_011),
            watch_states: Some(28),
            watch_recent_changes: Some(100_029),
            watch_recent_bytes: Some(3_000_030),
            outbox_bytes: Some(8_000_025),
            outbox_bytes_total: Some(80_000_026),
            arriving_bytes_total: Some(3_000_027),
            max_waiting_calls: Some(1_012),
            metrics_prefixes: Some("own/".parse().unwrap()),
            log_waits_over_ms: Some(3_031),
            log_holds_over_ms: Some(60_032),
            ..NodeLayer::default()
        };
        let cluster = ClusterLayer {
            members: Some(Members(vec![own.clone()])),
            cluster_name: Some("own".parse().unwrap()),
            admins: Some("cn:own".parse().unwrap()),
            ttl_default_ms: Some(10_013),
            ttl_max_ms: Some(900_014),
            max_sessions: Some(100_015),
            max_requests_per_session: Some(1_016),
            max_waiters_per_lock: Some(100_017),
            max_value_bytes: Some(1_000_018),
            outbox_frames: Some(8_019),
            frames_per_second: Some(50_020),
            max_table_bytes: Some(2_000_025),
        };
        let fallback = FallbackLayer {
            take_over_ms: Some(30_021),
            hold_ms: Some(15_022),
            drain_limit_ms: Some(10_023),
            lease_partitions: Some(27),
            switch_every_ms: Some(300_024),
            ..FallbackLayer::default()
        };
        let (node, cluster, fallback) = (node.resolve(), cluster.resolve(), fallback.resolve());
        Config { node, cluster, fallback, own, has_peers: true }
    }

    #[test]
    fn the_replica_goes_by_the_settings_of_its_names() {
        let replica = replica(&config());

        let member = raft::Member {
            node_id: 7,
            advertise: "lock-7:8420".to_owned(),
            peer_advertise: "lock-7:8421".to_owned(),
        };
        assert_eq!((replica.node_id, replica.members, replica.join), (7, vec![member], true));
        let times = (replica.heartbeat_ms, replica.election_min_ms, replica.election_max_ms);
        assert_eq!(times, (101, 1_002, 2_003));
        assert_eq!((replica.propose_deadline_ms, replica.max_pending_commands), (5_004, 4_005));
        assert_eq!(replica.max_pending_bytes, 2_000_025);
        assert_eq!((replica.snapshot_log_bytes, replica.reserve_bytes), (100_006, 1_000_007));
        assert_eq!((replica.max_log_bytes, replica.disk_stall_ms), (2_000_025, 9_026));
        let limits = replica.limits;
        assert_eq!((limits.ttl_max_ms, limits.max_sessions), (900_014, 100_015));
        let requests = (limits.max_requests_per_session, limits.max_waiters_per_lock);
        assert_eq!((requests, limits.max_value_bytes), ((1_016, 100_017), 1_000_018));
        assert_eq!(replica.max_table_bytes, 2_000_025);
    }

    #[test]
    fn sessions_go_by_the_settings_of_their_names() {
        let sessions = sessions(&config());

        assert_eq!(sessions.ttl_default_ms, 10_013);
        assert_eq!((sessions.outbox_frames, sessions.frames_per_second), (8_019, 50_020));
        assert_eq!((sessions.max_attached_streams, sessions.max_unopened_streams), (20_008, 1_009));
        assert_eq!((sessions.max_watches, sessions.watch_backlog), (30_010, 1_011));
        let recent = (sessions.watch_recent_changes, sessions.watch_recent_bytes);
        assert_eq!((sessions.watch_states, recent), (28, (100_029, 3_000_030)));
        assert_eq!((sessions.max_waiting_calls, sessions.resumes_per_second), (1_012, 8_027));
        let bytes = (sessions.outbox_bytes, sessions.outbox_bytes_total);
        assert_eq!(bytes, (8_000_025, 80_000_026));
        assert_eq!(sessions.arriving_bytes_total, 3_000_027);
        let logged = (sessions.log_waits_over_ms, sessions.log_holds_over_ms);
        assert_eq!(
            (logged, &*sessions.metrics_prefixes),
            ((3_031, 60_032), &["own/".to_owned()][..])
        );
    }

    #[test]
    fn a_port_for_members_is_open_without_tls_and_with_insecure() {
        let open = |config: &Config| rpc(config).members_without_tls;
        let plain = config();
        assert!(open(&plain), "no certificate");
        assert!(!open(&Config { has_peers: false, ..plain.clone() }), "no such port");
        let mut with_tls = plain;
        with_tls.node.tls_cert = "node.pem".into();
        assert!(!open(&with_tls));
        with_tls.node.insecure = true;
        assert!(open(&with_tls), "it takes both");
    }

    #[test]
    fn scopes_with_fallback_go_by_the_settings_of_their_names() {
        let terms = terms(&config().fallback).unwrap();

        let (w, v) = (Duration::from_millis(30_021), Duration::from_millis(15_022));
        assert_eq!(terms.durations, Durations::new(w, v).unwrap());
        assert_eq!(terms.drain_limit, Duration::from_millis(10_023));
        assert_eq!(terms.buckets, Buckets::new(27));
        assert_eq!(terms.switch_every, Duration::from_millis(300_024));
    }
}
