//! One replica: assembles openraft, the proposer, the tenure keeper and the first start.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use holdfast_core::{Command, Limits, LockTable, LogIndex, WORK_STEPS};
use holdfast_mutants::mutant;
use holdfast_proto::v1::PeerHeader;
use holdfast_runtime::{BoxFuture, Runtime, Task};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::{Config, Instant as _, SnapshotPolicy};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::Member;
use super::admission::Bounds;
use super::admitting::Admissions;
use super::confirm::Confirmer;
use super::departure::Departure;
use super::disk_times::DiskTimes;
use super::fault::{Fault, FaultSlot};
use super::formation::{Formation, Forming};
use super::hand_over::{HandOver, HandedOver};
use super::handler::{Handler, LeaderContact, Raft, micros, millis};
use super::log::Log;
use super::log_keeper::{Asked, LogKeeper, Rules};
use super::machine::{Machine, Replicated, off_runtime};
use super::membership::Changes;
use super::metrics::{ReplicationMetrics, Stopwatch};
use super::network::Network;
use super::peers::{Heard, Me, Peer, PeerNetwork, Peers};
use super::proposer::{Policy, Proposer, Settings};
use super::quorum_round::QuorumRound;
use super::sending::Sending;
use super::survey::{Relief, Survey};
use super::tenure::{TableLimit, Tenures};
use super::types::Addresses;
use super::work_left::WorkKeeper;
use crate::consensus::{Confirmed, Consensus, Done, Listener, Recorder, Role};
use crate::error::ProposeError;
use crate::members::{Change, ClusterStatus, Members, MembershipError, PeerView};
use crate::storage::{ClusterId, LogMirror, ReplicaStore};

/// The settings of a replica.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    /// This node.
    pub node_id: u64,
    /// Every member of the cluster, this node among them. Decides only how the cluster is formed,
    /// or which members a joining node asks, and overrides addresses. Afterwards the membership in
    /// the log counts.
    pub members: Vec<Member>,
    /// Whether this node waits to be added to an existing cluster, instead of forming one with
    /// `members`. Decides nothing once the node belongs to a cluster.
    ///
    /// Default: false.
    pub join: bool,
    /// How many voters the cluster is to have, where nodes join by themselves (DESIGN §15): this node then
    /// admits them while it leads. `None`: an operator adds them.
    ///
    /// Default: none.
    pub admits_up_to: Option<usize>,
    /// The id of this start of the process, under which it was admitted. `None`: the replica draws one.
    ///
    /// Default: none.
    pub start_id: Option<[u8; 16]>,
    /// The limits that apply while this node leads.
    pub limits: Limits,
    /// How many bytes the table may take while this node leads, once all members know such a limit.
    ///
    /// Default: 1 073 741 824 (1 GiB). Minimum: 1.
    ///
    /// Source: a machine of 4 GiB has room for the table twice, which writing or installing a
    /// snapshot needs, and for the rest of the process.
    pub max_table_bytes: u64,
    /// How many steps of work one command may do while this node leads, once all members know such a limit.
    /// Tests make it small.
    ///
    /// Default: [`WORK_STEPS`]. Minimum: 1.
    ///
    /// Source: as there.
    pub work_steps: u64,
    /// Time between two heartbeats, milliseconds.
    ///
    /// Default: 100. Bounds: 10 to a third of `election_min_ms`. A follower has to answer within
    /// it, so it must exceed a round trip and a scheduling delay.
    pub heartbeat_ms: u64,
    /// Shortest silence of a leader after which a follower starts an election, milliseconds.
    ///
    /// Default: 450. Minimum: three times `heartbeat_ms`.
    pub election_min_ms: u64,
    /// Longest such silence, milliseconds; each node draws from between the two.
    ///
    /// Default: 600. Minimum: more than `election_min_ms`.
    pub election_max_ms: u64,
    /// How long a caller waits for the outcome of a command, milliseconds.
    ///
    /// Default: 5 000. Minimum: `election_max_ms`, so that an election alone fails no call.
    pub propose_deadline_ms: u64,
    /// Commands that may wait to be proposed.
    ///
    /// Default: 65 536. Minimum: 1. Further commands are refused ([`ProposeError::Overloaded`]). An
    /// eighth is reserved for commands that free, and one session may take a quarter at most.
    pub max_pending_commands: usize,
    /// Bytes of the commands that may wait to be proposed.
    ///
    /// Default: 16 MiB. Minimum: 0; one command alone always fits. Shared out as
    /// `max_pending_commands`; further commands are refused ([`ProposeError::OverloadedBytes`]).
    ///
    /// Source: about 65 536 usual commands (100 to 250 bytes each); or as many of the largest (33
    /// KiB) as a disk with 100 syncs a second takes in three seconds, which is within
    /// `propose_deadline_ms`.
    pub max_pending_bytes: usize,
    /// Bytes of the log between two snapshots, at least, counted as for `max_log_bytes`; an eighth
    /// of that at most. A large table is written less often: once the log after the last snapshot
    /// has half as many bytes as the table. Each member writes at indices of its own.
    ///
    /// Default: 16 MiB. Minimum: 1. A restart applies up to twice as many bytes again, or as many
    /// as the table has, and at most a quarter of `max_log_bytes`.
    ///
    /// Source: the log of five seconds at full rate, or of a minute with one client.
    pub snapshot_log_bytes: u64,
    /// Entries kept in the log below the last snapshot in any case, for followers that are a little
    /// behind. Within `max_log_bytes`, the log keeps more for a member that lags and for one that
    /// is being sent a snapshot.
    ///
    /// Default: 2 000. Minimum: 0.
    pub log_kept: u64,
    /// Most bytes of the log that are kept, in memory and on disk: payloads, and
    /// [`RECORD_BYTES`](crate::storage::RECORD_BYTES) for each entry. A follower that needs more
    /// gets a snapshot.
    ///
    /// Default: 256 MiB. Minimum: four times what is logged while a snapshot is written; below
    /// that, the log exceeds it by as much.
    ///
    /// Source: the log of three minutes at 3 000 entries of 300 bytes a second. Sending and
    /// installing a snapshot of ten million holds takes one to two.
    pub max_log_bytes: u64,
    /// A snapshot of which the receiving member has taken nothing for this long is given up, and
    /// sent again, milliseconds.
    ///
    /// Default: 10 000. Minimum: 1 000; more than a stall of the member's disk.
    pub snapshot_stall_ms: u64,
    /// An operation on the disk that takes longer ends the node, milliseconds. The caller that
    /// opens the store passes it on ([`stalls_after`](Self::stalls_after)).
    ///
    /// Default: 10 000. 0 is for simulations alone: the disk may take any time.
    pub disk_stall_ms: u64,
    /// Free bytes on the disk below which only commands that free or end something are proposed.
    ///
    /// Default: 512 MiB.
    ///
    /// Source: DESIGN §7.
    pub reserve_bytes: u64,
    /// What keeps a record of what this node applies.
    ///
    /// Default: nothing does.
    pub recorder: Option<Arc<dyn Recorder>>,
}

impl ReplicaConfig {
    /// The defaults, for node `node_id` of `members`.
    pub fn new(node_id: u64, members: Vec<Member>) -> Self {
        Self {
            node_id,
            members,
            join: false,
            admits_up_to: None,
            start_id: None,
            limits: Limits::default(),
            max_table_bytes: 1 << 30,
            work_steps: WORK_STEPS,
            heartbeat_ms: 100,
            election_min_ms: 450,
            election_max_ms: 600,
            propose_deadline_ms: 5_000,
            max_pending_commands: 65_536,
            max_pending_bytes: 16 << 20,
            snapshot_log_bytes: 16 << 20,
            log_kept: 2_000,
            max_log_bytes: 256 << 20,
            snapshot_stall_ms: 10_000,
            disk_stall_ms: 10_000,
            reserve_bytes: 512 << 20,
            recorder: None,
        }
    }
}

impl ReplicaConfig {
    /// How long a member may be silent before it counts as gone, and how long people wait for a
    /// leader, milliseconds: the longest silence before an election, and at least 2 s. Nothing is
    /// decided sooner by knowing it, and machines are busy at times.
    pub fn patience_ms(&self) -> u64 {
        self.election_max_ms.max(PATIENCE_LEAST_MS)
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(self.patience_ms())
    }

    /// For [`StoreOptions::stalls_after`](crate::storage::StoreOptions::stalls_after).
    pub fn stalls_after(&self) -> Option<Duration> {
        Some(self.disk_stall_ms).filter(|millis| *millis > 0).map(Duration::from_millis)
    }
}

/// A question to a quorum may take this long at least, however soon elections begin.
const ROUND_LEAST_MS: u64 = 1_000;
/// The least patience with a silent member.
const PATIENCE_LEAST_MS: u64 = 2_000;

/// Why a replica did not start. Nothing runs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The settings contradict each other.
    #[error("{0}")]
    Config(String),
    /// The newest snapshot cannot be read.
    #[error("the newest snapshot cannot be read: {0}")]
    Snapshot(String),
    /// The replication engine refused the store.
    #[error("replication does not start: {0}")]
    Engine(String),
}

/// What a replica is and how far it has come, for people and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// This node.
    pub node_id: u64,
    /// Its cluster; `None` before it promised itself to one.
    pub cluster: Option<ClusterId>,
    /// How far the first start has come.
    pub forming: Forming,
    /// The term it is in.
    pub term: u64,
    /// The leader, as far as it knows.
    pub leader: Option<Member>,
    /// The last entry in its log.
    pub last_log: Option<u64>,
    /// The last entry applied.
    pub applied: Option<u64>,
    /// The last entry in its newest snapshot.
    pub snapshot: Option<u64>,
    /// Every member.
    pub members: Vec<Member>,
    /// On a leader: milliseconds since a quorum last acknowledged it; 0 if it is a quorum alone.
    pub millis_since_quorum: Option<u64>,
    /// Milliseconds since the last message of a leader.
    pub millis_since_leader: Option<u64>,
    /// Whether this node votes, as far as it knows.
    pub votes: bool,
    /// Commands that wait to be proposed.
    pub waiting_commands: usize,
    /// Bytes that they take.
    pub waiting_bytes: usize,
    /// Entries proposed whose outcome is not known yet.
    pub entries_in_flight: usize,
    /// Whether the disk is below its reserve.
    pub below_disk_reserve: bool,
    /// What the log takes in memory, bytes.
    pub log_bytes: u64,
    /// The 99th percentile of the time that an append to the log took, in the last seconds,
    /// microseconds; `None` if there were too few.
    pub append_p99_us: Option<u64>,
}

/// A running replica.
pub struct Replica {
    node_id: u64,
    raft: Raft,
    peers: Peers,
    shared: Arc<Replicated>,
    role: watch::Receiver<Role>,
    proposer: Arc<Proposer>,
    confirmer: Arc<Confirmer>,
    handler: Handler,
    changes: Arc<Changes>,
    forming: watch::Receiver<Forming>,
    faults: FaultSlot,
    metrics: ReplicationMetrics,
    runtime: Runtime,
    had_at_start: LogIndex,
    tasks: Mutex<Vec<Task>>,
}

impl Replica {
    /// Starts a replica on `store`. If the cluster is not formed yet, the replica forms it in the
    /// background; see [`forming`](Self::forming).
    ///
    /// # Errors
    ///
    /// [`StartError`]; nothing runs.
    pub async fn start(
        config: ReplicaConfig,
        store: Arc<dyn ReplicaStore>,
        peers: Arc<dyn PeerNetwork>,
        runtime: Runtime,
    ) -> Result<Arc<Self>, StartError> {
        let engine = engine_config(&config)?;
        let configured = configured(&config)?;
        let faults = FaultSlot::new();
        let metrics = ReplicationMetrics::default();
        let snapshots =
            Stopwatch { clock: Arc::clone(&runtime.clock), into: metrics.snapshot_seconds.clone() };
        let machine = load(&store, &faults).await?.timed(snapshots);
        let machine = machine.recorded(config.recorder.clone());
        let ground = Ground {
            faults,
            metrics,
            had_at_start: last_kept(&store, &machine.shared()),
            shared: machine.shared(),
            peers: Peers {
                me: Arc::new(Me::new(config.node_id)),
                network: peers,
                configured,
                runtime: runtime.clone(),
            },
            heard: Arc::new(Heard::new(config.node_id)),
            times: Arc::new(DiskTimes::new(Arc::clone(&runtime.clock))),
            sending: Arc::new(Sending::new(store.log(), Arc::clone(&runtime.clock))),
            config,
            store,
            runtime,
        };
        let formation = Arc::new(ground.formation());
        let (node_id, log) = (ground.config.node_id, Log::over(ground.store.log()));
        let log = log.timed(Arc::clone(&ground.times));
        let raft = Raft::new(node_id, Arc::new(engine), ground.network(), log, machine)
            .await
            .map_err(|error| StartError::Engine(error.to_string()))?;
        Ok(Arc::new(ground.build(&raft, &formation)))
    }

    /// How far the first start has come.
    pub fn forming(&self) -> watch::Receiver<Forming> {
        self.forming.clone()
    }

    /// The first fault. From then on the replica answers nothing and the process should end.
    pub fn faults(&self) -> watch::Receiver<Option<Fault>> {
        self.faults.subscribe()
    }

    /// The metrics of replication.
    pub fn metrics(&self) -> ReplicationMetrics {
        self.metrics.clone()
    }

    /// This member's side of the peer protocol, to be served to the other members: by
    /// [`peer_server`](super::peer_server) over gRPC, or directly in memory.
    pub fn peer(&self) -> Arc<dyn Peer> {
        Arc::new(self.handler.clone())
    }

    /// The cluster that this replica belongs to, once it does. It takes no lock, so it may be asked for
    /// under the table's.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.peers.me.cluster().map(|(cluster, _)| cluster)
    }

    /// What this replica is and how far it has come. Cheap; but not to be called under the table's lock:
    /// it asks the proposer, which asks the table.
    pub fn status(&self) -> ReplicaStatus {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let membership = &metrics.membership_config;
        let member = |id: u64, node: &Addresses| self.peers.as_configured(node.member(id));
        let members = membership.nodes().map(|(id, node)| member(*id, node)).collect();
        let leader = metrics
            .current_leader
            .and_then(|id| membership.get_node(&id).map(|node| member(id, node)));
        let alone = membership.voter_ids().eq([self.node_id]);
        let quorum = metrics.last_quorum_acked.map(|acked| millis(acked.elapsed()));
        ReplicaStatus {
            node_id: self.node_id,
            cluster: self.cluster(),
            forming: self.forming.borrow().clone(),
            term: metrics.current_term,
            leader,
            last_log: metrics.last_log_index,
            applied: self.shared.applied().borrow().map(|id| id.index),
            snapshot: metrics.snapshot.map(|id| id.index),
            members,
            millis_since_quorum: if alone { Some(0) } else { quorum },
            millis_since_leader: self.handler.contact.millis_since(),
            votes: membership.voter_ids().any(|id| id == self.node_id),
            waiting_commands: self.proposer.waiting(),
            waiting_bytes: self.proposer.waiting_bytes(),
            entries_in_flight: self.proposer.in_flight(),
            below_disk_reserve: self.handler.below_reserve(),
            log_bytes: self.handler.store.log().look(LogMirror::bytes),
            append_p99_us: self.handler.times.p99().map(micros),
        }
    }

    /// openraft itself, for tests that do what a caller must not do.
    #[cfg(test)]
    pub(super) fn raft(&self) -> &Raft {
        &self.raft
    }

    #[cfg(test)]
    pub(super) fn proposer(&self) -> &Arc<Proposer> {
        &self.proposer
    }

    /// Whether a quorum round confirms that tenure, whatever the role says.
    #[cfg(test)]
    pub(super) async fn is_confirmed_in(&self, tenure: holdfast_core::Tenure) -> bool {
        self.confirmer.confirms(tenure).await
    }

    /// The term of the last entry applied.
    #[cfg(test)]
    pub(super) fn applied_term(&self) -> Option<u64> {
        self.shared.applied().borrow().map(|id| id.leader_id.term)
    }

    /// Hands leadership to a follower that has every entry, and waits until it leads, at most for
    /// `within`. Returns whether this node may stop leading: it no longer leads, or no other voter
    /// exists.
    ///
    /// From the call on, the replica refuses new commands with [`ProposeError::NotLeader`] and
    /// first finishes those under way.
    pub async fn hand_over(&self, within: Duration) -> bool {
        let alone = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            metrics.membership_config.voter_ids().all(|voter| voter == self.node_id)
        };
        alone || self.changes.hand_over.run(None, within).await == HandedOver::LeadsNoLonger
    }

    /// Stops: pending calls get [`ProposeError::ShuttingDown`], streams of peers end, nothing more
    /// is written. May be called again.
    pub async fn shutdown(&self) {
        self.handler.stopping.cancel();
        self.proposer.close();
        self.confirmer.close();
        // An engine that does not stop in time ends with the process.
        let ended = join_engine(self.raft.clone(), &self.runtime);
        let _ = self.runtime.timeout(STOP_WITHIN, ended).await;
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// What all parts of a replica are built from.
struct Ground {
    config: ReplicaConfig,
    store: Arc<dyn ReplicaStore>,
    peers: Peers,
    runtime: Runtime,
    faults: FaultSlot,
    metrics: ReplicationMetrics,
    /// [`Consensus::had_at_start`].
    had_at_start: LogIndex,
    shared: Arc<Replicated>,
    heard: Arc<Heard>,
    times: Arc<DiskTimes>,
    sending: Arc<Sending>,
}

impl Ground {
    fn network(&self) -> Network {
        Network {
            peers: self.peers.clone(),
            heard: Arc::clone(&self.heard),
            may_block: self.store.may_block(),
            clock: Arc::clone(&self.runtime.clock),
            sending: Arc::clone(&self.sending),
            stalls_after: Duration::from_millis(self.config.snapshot_stall_ms),
            metrics: self.metrics.clone(),
        }
    }

    fn log_keeper(&self, raft: &Raft) -> LogKeeper {
        LogKeeper {
            node_id: self.config.node_id,
            rules: Rules {
                floor: self.config.snapshot_log_bytes,
                kept: self.config.log_kept,
                max_bytes: self.config.max_log_bytes,
            },
            raft: raft.clone(),
            store: Arc::clone(&self.store),
            log: self.store.log(),
            sending: Arc::clone(&self.sending),
            applied: self.shared.applied(),
            runtime: self.runtime.clone(),
            asked: Asked::default(),
        }
    }

    fn formation(&self) -> Formation {
        Formation::new(
            Arc::clone(&self.store),
            (self.config.join, self.config.start_id),
            self.peers.clone(),
            self.runtime.clone(),
            self.faults.clone(),
        )
    }

    fn proposer(&self, role: watch::Receiver<Role>, policy: &Arc<Policy>) -> Arc<Proposer> {
        let settings = Settings {
            bounds: Bounds {
                commands: self.config.max_pending_commands,
                bytes: self.config.max_pending_bytes,
            },
            deadline: Duration::from_millis(self.config.propose_deadline_ms),
        };
        let (policy, shared) = (Arc::clone(policy), Arc::clone(&self.shared));
        let metrics = self.metrics.clone();
        Arc::new(Proposer::new(settings, self.runtime.clone(), role, policy, shared, metrics))
    }

    fn confirmer(&self, raft: &Raft, role: watch::Receiver<Role>) -> Arc<Confirmer> {
        let deadline = Duration::from_millis(self.config.election_min_ms.max(ROUND_LEAST_MS));
        let (raft, peers) = (raft.clone(), self.peers.clone());
        let round = QuorumRound::new(raft, peers, self.runtime.clone(), deadline);
        let shared = Arc::clone(&self.shared);
        Arc::new(Confirmer::new(self.runtime.clone(), role, shared, round, deadline))
    }

    fn handler(&self, raft: &Raft, formation: &Arc<Formation>) -> Handler {
        Handler {
            me: Arc::clone(&self.peers.me),
            raft: raft.clone(),
            formation: Arc::clone(formation),
            store: Arc::clone(&self.store),
            shared: Arc::clone(&self.shared),
            below_reserve: Arc::new(AtomicBool::new(false)),
            contact: Arc::new(LeaderContact::new(Arc::clone(&self.runtime.clock))),
            times: Arc::clone(&self.times),
            stopping: CancellationToken::new(),
            changes: Arc::default(),
        }
    }

    fn tenures(&self, raft: &Raft, role: watch::Sender<Role>, proposer: &Arc<Proposer>) -> Tenures {
        Tenures {
            node_id: self.config.node_id,
            raft: raft.clone(),
            role,
            proposer: Arc::clone(proposer),
            shared: Arc::clone(&self.shared),
            configured: Arc::clone(&self.peers.configured),
            limits: self.config.limits,
            runtime: self.runtime.clone(),
        }
    }

    fn table_limit(&self, role: watch::Receiver<Role>, proposer: &Arc<Proposer>) -> TableLimit {
        TableLimit {
            max_table_bytes: self.config.max_table_bytes,
            role,
            proposer: Arc::clone(proposer),
            shared: Arc::clone(&self.shared),
            runtime: self.runtime.clone(),
        }
    }

    fn work_keeper(&self, role: watch::Receiver<Role>, proposer: &Arc<Proposer>) -> WorkKeeper {
        WorkKeeper {
            steps: self.config.work_steps,
            begins_next: false,
            role,
            proposer: Arc::clone(proposer),
            shared: Arc::clone(&self.shared),
            runtime: self.runtime.clone(),
        }
    }

    fn survey(
        &self,
        handler: &Handler,
        role: watch::Receiver<Role>,
        policy: Arc<Policy>,
        changes: &Changes,
    ) -> Survey {
        Survey {
            store: Arc::clone(&self.store),
            reserve_bytes: self.config.reserve_bytes,
            below_reserve: Arc::clone(&handler.below_reserve),
            heard: Arc::clone(&self.heard),
            policy,
            role,
            raft: handler.raft.clone(),
            peers: self.peers.clone(),
            runtime: self.runtime.clone(),
            times: Arc::clone(&self.times),
            hand_over: changes.hand_over.clone(),
            one_at_a_time: Arc::clone(&changes.one_at_a_time),
            patience: changes.patience,
            metrics: self.metrics.clone(),
            relief: Relief::default(),
        }
    }

    fn changes(
        &self,
        raft: &Raft,
        role: watch::Receiver<Role>,
        proposer: &Arc<Proposer>,
        confirmer: &Arc<Confirmer>,
    ) -> Changes {
        let hand_over = HandOver {
            node_id: self.config.node_id,
            raft: raft.clone(),
            role: role.clone(),
            proposer: Arc::clone(proposer),
            confirmer: Arc::clone(confirmer),
            runtime: self.runtime.clone(),
        };
        Changes {
            node_id: self.config.node_id,
            raft: raft.clone(),
            heard: Arc::clone(&self.heard),
            shared: Arc::clone(&self.shared),
            role,
            confirmer: Arc::clone(confirmer),
            hand_over,
            peers: self.peers.clone(),
            runtime: self.runtime.clone(),
            deadline: Duration::from_millis(self.config.propose_deadline_ms),
            patience: self.config.patience(),
            one_at_a_time: Arc::default(),
            admissions: Admissions::new(self.config.admits_up_to, self.config.election_max_ms),
        }
    }

    fn departure(&self, handler: &Handler, role: watch::Receiver<Role>) -> Departure {
        Departure {
            raft: handler.raft.clone(),
            shared: Arc::clone(&self.shared),
            role,
            contact: Arc::clone(&handler.contact),
            peers: self.peers.clone(),
            faults: self.faults.clone(),
            runtime: self.runtime.clone(),
            patience: self.config.patience(),
        }
    }

    /// The tasks of members that join by themselves, where they do.
    fn of_admissions(&self, changes: &Arc<Changes>) -> Vec<Task> {
        let Some(up_to) = self.config.admits_up_to else { return Vec::new() };
        let (completing, telling) = (Arc::clone(changes), Arc::clone(changes));
        vec![
            self.runtime.spawn("raft-admissions", completing.complete_admissions(up_to)),
            self.runtime.spawn("raft-addresses", telling.tell_own_addresses()),
        ]
    }

    /// Puts the parts together and starts their tasks.
    fn build(self, raft: &Raft, formation: &Arc<Formation>) -> Replica {
        let (role_sender, role) = watch::channel(Role::Following { leader: None });
        let policy = Arc::new(Policy::new());
        let proposer = self.proposer(role.clone(), &policy);
        let confirmer = self.confirmer(raft, role.clone());
        let handler = self.handler(raft, formation);
        let tenures = self.tenures(raft, role_sender, &proposer);
        let changes = Arc::new(self.changes(raft, role.clone(), &proposer, &confirmer));
        // Nobody else sets it.
        let _ = handler.changes.set(Arc::clone(&changes));
        let survey = self.survey(&handler, role.clone(), policy, &changes);
        let table_limit = self.table_limit(role.clone(), &proposer);
        let work_keeper = self.work_keeper(role.clone(), &proposer);
        let departure = self.departure(&handler, role.clone());
        let forming = formation.progress();
        let spawn = &self.runtime;
        let mut tasks = self.of_admissions(&changes);
        tasks.extend([
            spawn.spawn("raft-proposer", Arc::clone(&proposer).run(raft.clone())),
            spawn.spawn("raft-confirmer", Arc::clone(&confirmer).run()),
            spawn.spawn("raft-tenure", tenures.run()),
            spawn.spawn("raft-survey", survey.run()),
            spawn.spawn("raft-log-keeper", self.log_keeper(raft).run()),
            spawn.spawn("raft-table-limit", table_limit.run()),
            spawn.spawn("raft-work-left", work_keeper.run()),
            spawn.spawn("raft-changes", Arc::clone(&changes).finish_what_was_begun()),
            spawn.spawn("raft-departure", departure.run()),
            spawn.spawn("raft-formation", Arc::clone(formation).run(raft.clone())),
            spawn.spawn(
                "raft-watch",
                watch_engine(
                    raft.clone(),
                    self.faults.clone(),
                    handler.stopping.clone(),
                    spawn.clone(),
                ),
            ),
        ]);
        Replica {
            node_id: self.config.node_id,
            raft: raft.clone(),
            peers: self.peers,
            shared: self.shared,
            role,
            proposer,
            confirmer,
            handler,
            changes,
            forming,
            faults: self.faults,
            metrics: self.metrics,
            runtime: self.runtime,
            had_at_start: self.had_at_start,
            tasks: Mutex::new(tasks),
        }
    }
}

const STOP_WITHIN: Duration = Duration::from_secs(5);

impl fmt::Debug for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replica").field("status", &self.status()).finish_non_exhaustive()
    }
}

impl Consensus for Replica {
    fn role(&self) -> watch::Receiver<Role> {
        self.role.clone()
    }

    fn submit(&self, command: Command, done: Done) {
        self.proposer.submit(command, done);
    }

    fn confirm(&self) -> BoxFuture<'static, Result<Confirmed, ProposeError>> {
        self.confirmer.confirm()
    }

    fn read(&self, look: &mut dyn FnMut(&LockTable, LogIndex)) {
        self.shared.look(|table, index| look(table, index));
    }

    fn had_at_start(&self) -> LogIndex {
        self.had_at_start
    }

    fn attach(&self, listener: Arc<dyn Listener>) {
        self.shared.attach(listener);
    }
}

impl Members for Replica {
    fn members(&self) -> Result<ClusterStatus, MembershipError> {
        self.changes.status()
    }

    fn change(&self, change: Change) -> BoxFuture<'_, Result<(), MembershipError>> {
        Box::pin(self.changes.run(change))
    }
}

impl PeerView for Replica {
    fn leader(&self) -> Option<Member> {
        let leader = self.role.borrow().leader()?.node_id;
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let node = metrics.membership_config.get_node(&leader)?;
        Some(self.peers.as_configured(node.member(leader)))
    }

    fn header(&self, to: u64) -> PeerHeader {
        self.peers.me.header(to)
    }

    fn admit(&self, header: Option<&PeerHeader>) -> Result<(), String> {
        self.peers.me.admit(header).map_err(|error| error.to_string())?;
        let from = header.map_or(0, |header| header.from_node);
        let metrics = self.raft.server_metrics();
        let is_member = metrics.borrow_watched().membership_config.get_node(&from).is_some();
        is_member.then_some(()).ok_or_else(|| format!("node {from} is no member"))
    }
}

/// The last entry in the log of a store or in the snapshot that `loaded` was read from.
fn last_kept(store: &Arc<dyn ReplicaStore>, loaded: &Replicated) -> LogIndex {
    let logged = store.log().last().map_or(0, |id| id.index);
    loaded.look(|_, index| index).max(LogIndex::new(logged))
}

async fn load(store: &Arc<dyn ReplicaStore>, faults: &FaultSlot) -> Result<Machine, StartError> {
    let (store, faults) = (Arc::clone(store), faults.clone());
    let loaded = off_runtime(store.may_block(), move || Ok(Machine::load(store, faults))).await;
    loaded.map_err(|error| StartError::Snapshot(error.to_string()))?.map_err(StartError::Snapshot)
}

/// Stops openraft, and tells when it has ended.
///
/// The wait begins at once, and goes on in a task that nobody drops: openraft's next caller panics if the
/// first one to wait for its end is gone.
fn join_engine(raft: Raft, runtime: &Runtime) -> oneshot::Receiver<()> {
    let (tell, told) = oneshot::channel();
    let mut join = async move {
        // An engine that ended with an error has reported it.
        let _ = raft.shutdown().await;
        let _ = tell.send(());
    }
    .boxed();
    if (&mut join).now_or_never().is_none() {
        runtime.spawn("engine-end", join).detach();
    }
    told
}

/// Reports that openraft stopped although this node is not stopping.
async fn watch_engine(
    raft: Raft,
    faults: FaultSlot,
    stopping: CancellationToken,
    runtime: Runtime,
) {
    let message = engine_stopped(&raft).await;
    // Before any of the calls under way, which their callers may drop: those are told of the end after this.
    drop(join_engine(raft, &runtime));
    if !stopping.is_cancelled() {
        // A more exact fault of this node was reported before.
        faults.report(Fault::Stopped { message });
    }
}

/// Waits until openraft has stopped; returns its message.
async fn engine_stopped(raft: &Raft) -> String {
    let mut metrics = raft.metrics();
    loop {
        if let Err(fatal) = &metrics.borrow_watched().running_state {
            return fatal.to_string();
        }
        if metrics.changed().await.is_err() {
            return "the engine is gone".to_owned();
        }
    }
}

fn configured(config: &ReplicaConfig) -> Result<Arc<[Member]>, StartError> {
    let mut members = config.members.clone();
    members.sort_by_key(|member| member.node_id);
    let wrong = |message: String| Err(StartError::Config(message));
    if members.windows(2).any(|pair| matches!(pair, [a, b] if a.node_id == b.node_id)) {
        return wrong("two members have the same node id".to_owned());
    }
    if !members.iter().any(|member| member.node_id == config.node_id) {
        return wrong(format!("node {} is not among the members", config.node_id));
    }
    if let Err(rejection) = config.limits.check() {
        return wrong(rejection.to_string());
    }
    if config.max_table_bytes == 0 {
        return wrong("max_table_bytes is 0; it must be at least 1".to_owned());
    }
    if config.work_steps == 0 {
        return wrong("work_steps is 0; it must be at least 1".to_owned());
    }
    Ok(members.into())
}

/// The time-outs given to openraft, so that a follower starts an election after a silence between
/// `election_min_ms` and `election_max_ms`.
///
/// openraft adds the two: a follower first grants its leader a lease of the longest time-out, and
/// only then waits for the time-out that it drew. With the settings passed on unchanged, no
/// follower would start an election before `min + max`, 3 to 4 s. So the lease is half of the
/// longest silence, and the drawn time-out is the rest, but at least three tenths of it: two
/// candidates need some distance.
fn election_timeouts(config: &ReplicaConfig) -> (u64, u64) {
    let lease = config.election_max_ms.div_ceil(2);
    let remainder = config.election_min_ms.saturating_sub(lease);
    let distance = config.election_max_ms.saturating_mul(3) / 10;
    (remainder.max(distance), lease)
}

fn engine_config(config: &ReplicaConfig) -> Result<Config, StartError> {
    let (election_timeout_min, election_timeout_max) = election_timeouts(config);
    Config {
        cluster_name: "holdfast".to_owned(),
        heartbeat_interval: config.heartbeat_ms,
        election_timeout_min,
        election_timeout_max,
        // With the default, a crashed leader would go on leading its old term with an empty memory:
        // a term would not be a tenure.
        enable_leader_restore: Some(mutant!(LeaderRestored)),
        enable_pre_vote: Some(!mutant!(PreVoteSkipped)),
        allow_log_reversion: Some(false),
        max_payload_entries: 128,
        // The log keeper makes snapshots and purges; openraft makes none by itself.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: u64::MAX,
        ..Config::default()
    }
    .validate()
    .map_err(|error| StartError::Config(error.to_string()))
}
