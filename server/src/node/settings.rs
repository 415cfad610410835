//! The node's settings, as each part wants them.

use std::sync::Arc;
use std::time::Duration;

use holdfast_cassandra::database::Tables;
use holdfast_seams::Seams;

use crate::authority::{self, Terms};
use crate::config::{Config, Member};
use crate::raft::{self, ReplicaConfig};
use crate::session::SessionSettings;

/// For the replica.
pub(super) fn replica(config: &Config) -> ReplicaConfig {
    let Config { node, cluster, .. } = config;
    let members = cluster.members.0.iter().map(member).collect();
    ReplicaConfig {
        join: node.join,
        limits: cluster.limits(),
        heartbeat_ms: node.heartbeat_ms,
        election_min_ms: node.election_min_ms,
        election_max_ms: node.election_max_ms,
        propose_deadline_ms: node.propose_deadline_ms,
        max_pending_commands: count(node.max_pending_commands),
        snapshot_every: node.snapshot_every,
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

/// For the session layer.
pub(super) fn sessions(config: &Config) -> SessionSettings {
    let Config { node, cluster, .. } = config;
    SessionSettings {
        ttl_default_ms: cluster.ttl_default_ms,
        outbox_frames: count(cluster.outbox_frames),
        frames_per_second: u32::try_from(cluster.frames_per_second).unwrap_or(u32::MAX),
        max_attached_streams: count(node.max_attached_streams),
        max_unopened_streams: count(node.max_unopened_streams),
        max_watches: count(node.max_watches),
        watch_backlog: count(node.watch_backlog),
        max_waiting_calls: count(node.max_waiting_calls),
        ..SessionSettings::default()
    }
}

/// For the keepers of scopes with fallback; `None` if no fallback was named. Cassandra is asked for nothing
/// before there is a scope.
pub(super) fn fallback(config: &Config, seams: &Seams) -> Option<(Terms, Arc<Tables>)> {
    let fallback = Some(&config.fallback).filter(|fallback| fallback.is_set())?;
    let millis = Duration::from_millis;
    let terms = Terms {
        // Checked with the settings.
        durations: fallback.durations().ok()?,
        drain_limit: millis(fallback.drain_limit_ms),
        switch_every: millis(fallback.switch_every_ms),
    };
    let tables = Tables::new(authority::database(fallback)?, seams.clock.clone());
    Some((terms, Arc::new(tables)))
}

/// Settings are bounded far below what any machine can count to.
fn count(setting: u64) -> usize {
    usize::try_from(setting).unwrap_or(usize::MAX)
}
