//! What a node shows of itself: whether it can serve, and its metrics.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use holdfast_core::{Counts, Verb};
use holdfast_page::Calls;
use holdfast_proto::v1::{self as proto, StatusResponse};
use prometheus_client::registry::Registry;

use crate::authority::ScopeAuthorities;
use crate::config::{ClientCerts, Config};
use crate::consensus::{Consensus, Role};
use crate::http::{Inspected, Readiness};
use crate::incoming::{ConnectionMetrics, Peer};
use crate::metrics::{self, Sample, ScopeSample, Sources};
use crate::raft::{self, Forming, Replica, ReplicaStatus};
use crate::rpc::{Door, ForwardingMetrics, NodeInfo};
use crate::session::{ClusterId, Hub};
use crate::storage::{Counters, free_space};

/// The node as the admin port sees it, from before its parts exist until after they are gone.
#[derive(Debug)]
pub(super) struct View {
    phase: Mutex<Phase>,
    /// The services, once the node has them.
    calls: OnceLock<Calls>,
}

/// How far the node has come.
#[derive(Clone, Debug)]
pub(super) enum Phase {
    /// The node has no id yet; why.
    Joining(String),
    /// The data folder is being opened and the log read: seconds with a million holds.
    Opening,
    /// All parts are running.
    Running(Arc<Running>),
    /// The node was asked to stop.
    Stopping,
}

/// The parts that are read for the admin port.
#[derive(Debug)]
pub(super) struct Running {
    condition: Arc<Condition>,
    door: Door,
    client_certs: ClientCerts,
    registry: Registry,
}

/// What the ports count.
#[derive(Debug)]
pub(super) struct Counted<'a> {
    pub(super) connections: &'a ConnectionMetrics,
    pub(super) forwarded: &'a ForwardingMetrics,
}

impl View {
    pub(super) fn new() -> Self {
        Self { phase: Mutex::new(Phase::Opening), calls: OnceLock::new() }
    }

    pub(super) fn set(&self, phase: Phase) {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = phase;
    }

    /// The node has its services.
    pub(super) fn set_calls(&self, calls: Calls) {
        let _ = self.calls.set(calls);
    }

    /// The services, while the node runs.
    pub(super) fn calls(&self) -> Option<Calls> {
        let runs = matches!(self.phase(), Phase::Running(_));
        self.calls.get().filter(|_| runs).cloned()
    }

    fn phase(&self) -> Phase {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Inspected for View {
    fn readiness(&self) -> Readiness {
        let unready = |why: &str| Readiness { ready: false, why: why.to_owned() };
        match self.phase() {
            Phase::Joining(why) => unready(&format!("joining: {why}")),
            Phase::Opening => unready("opening the data folder"),
            Phase::Running(running) => running.condition.readiness(),
            Phase::Stopping => unready("stopping"),
        }
    }

    fn may_see_metrics(&self, authorization: Option<&[u8]>, peer: &Peer) -> bool {
        match self.phase() {
            Phase::Running(running) => running.shows_metrics(authorization, peer),
            // There is nothing to see.
            Phase::Joining(_) | Phase::Opening | Phase::Stopping => true,
        }
    }

    fn metrics(&self, look: &mut dyn FnMut(&Registry)) {
        match self.phase() {
            Phase::Running(running) => look(&running.registry),
            Phase::Joining(_) | Phase::Opening | Phase::Stopping => look(&Registry::default()),
        }
    }
}

impl Running {
    pub(super) fn new(
        config: &Config,
        condition: Arc<Condition>,
        door: Door,
        hub: Arc<Hub>,
        counters: Arc<Counters>,
        counted: &Counted<'_>,
    ) -> Self {
        let (connections, forwarded) = (counted.connections.clone(), counted.forwarded.clone());
        let (log_sync, sessions) = (counters.sync_seconds(), hub.metrics());
        let history = hub.history().map(|history| history.metrics()).unwrap_or_default();
        let replication = condition.replica.metrics();
        let sampler = Sampler {
            condition: condition.clone(),
            hub,
            counters,
            data_folder: config.node.data_dir.clone(),
        };
        let sample = Box::new(move || sampler.sample());
        Self {
            condition,
            door,
            client_certs: config.node.client_certs,
            registry: metrics::registry(Sources {
                sessions,
                replication,
                connections,
                forwarded,
                history,
                log_sync,
                sample,
            }),
        }
    }

    /// Without a certificate only where clients need none, as for their calls.
    fn shows_metrics(&self, authorization: Option<&[u8]>, peer: &Peer) -> bool {
        let proved = self.client_certs == ClientCerts::Optional || peer.certificate.is_some();
        proved && self.door.admit_now(authorization, Some(peer), Verb::Metrics).is_ok()
    }
}

/// Whether a replica can serve, and its answer to Status.
#[derive(Debug)]
pub struct Condition {
    replica: Arc<Replica>,
    /// A quorum or a leader that was silent for this long counts as gone: by then the other members have
    /// elected another leader.
    patience_ms: u64,
    /// Whether it is ready only with a vote, and with what is committed: where a node that is not ready yet keeps others
    /// from being stopped.
    only_with_vote: bool,
}

impl Condition {
    /// The condition of a replica that counts members as gone after `patience_ms` of silence.
    pub fn new(replica: Arc<Replica>, patience_ms: u64) -> Self {
        Self { replica, patience_ms, only_with_vote: false }
    }

    /// The same for a node that joins by itself: ready only once it votes and has caught up (DESIGN §15).
    #[must_use]
    pub fn with_vote(self) -> Self {
        Self { only_with_vote: true, ..self }
    }

    pub(super) fn readiness(&self) -> Readiness {
        let status = self.replica.status();
        if self.only_with_vote
            && let Some(why) = lacks(&status)
        {
            return Readiness { ready: false, why };
        }
        readiness(&status, &self.replica.role().borrow(), self.patience_ms)
    }
}

impl NodeInfo for Condition {
    fn status(&self) -> StatusResponse {
        let status = self.replica.status();
        let ready = self.readiness().ready;
        let leader = status.leader.as_ref();
        // Both from one read, so that members can be compared.
        let (mut applied_index, mut state_hash) = (0, Bytes::new());
        self.replica.read(&mut |table, index| {
            applied_index = index.get();
            state_hash = Bytes::copy_from_slice(&table.state_hash());
        });
        StatusResponse {
            cluster_id: status.cluster.map(|id| id.0.to_vec().into()).unwrap_or_default(),
            node_id: status.node_id,
            leader_id: leader.map(|leader| leader.node_id),
            leader: leader.map(|leader| leader.advertise.clone()),
            term: status.term,
            applied_index,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            members: status.members.iter().map(member).collect(),
            ready,
            state_hash,
        }
    }
}

fn member(member: &raft::Member) -> proto::Member {
    proto::Member {
        node_id: member.node_id,
        advertise: member.advertise.clone(),
        peer_advertise: member.peer_advertise.clone(),
    }
}

impl ClusterId for Condition {
    fn cluster_id(&self) -> Option<Bytes> {
        self.replica.cluster().map(|id| Bytes::copy_from_slice(&id.0))
    }
}

/// Entries that a node may still have to apply when it counts as one that has caught up.
const APPLIES_AT_ONCE: u64 = 1_000;

/// What a node that joins by itself lacks to be counted on.
fn lacks(status: &ReplicaStatus) -> Option<String> {
    if status.forming == Forming::Formed && !status.votes {
        return Some("has no vote yet".to_owned());
    }
    let behind = status.last_log.unwrap_or(0).saturating_sub(status.applied.unwrap_or(0));
    (behind > APPLIES_AT_ONCE).then(|| format!("has {behind} entries to apply"))
}

fn readiness(status: &ReplicaStatus, role: &Role, patience_ms: u64) -> Readiness {
    let lately = |millis: Option<u64>| millis.is_some_and(|millis| millis <= patience_ms);
    let (ready, why) = match (&status.forming, role) {
        (Forming::Waiting { reason }, _) => (false, format!("forming: {reason}")),
        (Forming::Formed, Role::Leading { tenure }) if lately(status.millis_since_quorum) => {
            (true, format!("leads in term {tenure}"))
        }
        (Forming::Formed, Role::Leading { tenure }) => {
            (false, format!("leads in term {tenure}, but no quorum answers"))
        }
        (Forming::Formed, Role::Following { leader: Some(leader) })
            if lately(status.millis_since_leader) =>
        {
            (true, format!("follows node {} at {}", leader.node_id, leader.advertise))
        }
        (Forming::Formed, Role::Following { .. }) => {
            let (term, members) = (status.term, status.members.len());
            let why = "a majority of the members has to run and to reach each other";
            (false, format!("no leader is heard in term {term}: {why} ({members} members)"))
        }
    };
    Readiness { ready, why }
}

/// The source of a [`Sample`].
#[derive(Debug)]
struct Sampler {
    condition: Arc<Condition>,
    hub: Arc<Hub>,
    counters: Arc<Counters>,
    data_folder: PathBuf,
}

impl Sampler {
    fn sample(&self) -> Sample {
        let replica = &self.condition.replica;
        let mut sample = Sample {
            status: replica.status(),
            leads: replica.role().borrow().tenure().is_some(),
            ready: self.condition.readiness().ready,
            counts: Counts::default(),
            max_table_bytes: 0,
            work_left: false,
            hash_index: 0,
            log: self.counters.clone(),
            // If the disk cannot be queried, no free space can be relied on.
            free_bytes: free_space(&self.data_folder).unwrap_or(0),
            scopes: Vec::new(),
            grants_in: self.hub.grants_in().unwrap_or_default(),
        };
        replica.read(&mut |table, _| {
            sample.counts = table.counts();
            sample.max_table_bytes = table.max_table_bytes().unwrap_or(0);
            sample.work_left = table.has_work_left();
            sample.hash_index = table.latest_witness().map_or(0, |witness| witness.index.get());
            let scopes = table.scopes().map(|view| ScopeSample {
                prefix: view.scope.as_str().to_owned(),
                state: view.state,
                status: None,
            });
            sample.scopes = scopes.collect();
        });
        let statuses = self.hub.authorities().map(ScopeAuthorities::statuses).unwrap_or_default();
        for (scope, status) in statuses {
            let mut samples = sample.scopes.iter_mut();
            if let Some(sample) = samples.find(|sample| sample.prefix == scope.as_str()) {
                sample.status = Some(status);
            }
        }
        sample
    }
}
