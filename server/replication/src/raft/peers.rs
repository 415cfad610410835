//! How members reach each other: a small trait, implemented by gRPC and by a simulator's network.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use holdfast_core::VersionGate;
use holdfast_mutants::mutant;
use holdfast_proto::v1 as proto;
use holdfast_runtime::{BoxFuture, Runtime};

use super::Member;
use super::relief::DiskHealth;
use crate::storage::ClusterId;

/// Why a member did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// No connection, or it broke. The member may have seen the message.
    #[error("not reachable: {0}")]
    Unreachable(String),
    /// The member checked the sender, or the message, and refused it.
    #[error("refused: {0}")]
    Refused(String),
    /// The member stops.
    #[error("the member stops: {0}")]
    Stopping(String),
}

/// The answers on a stream.
pub type PeerStream<T> = BoxStream<'static, Result<T, PeerError>>;

/// The answer to one call.
pub type PeerAnswer<T> = BoxFuture<'static, Result<T, PeerError>>;

/// The calls that a member answers. The member's own side implements it too: a network in memory
/// returns that directly.
///
/// The messages are documented in `peer.proto`.
pub trait Peer: Send + Sync + 'static {
    /// First start: asks a member to promise itself to a cluster.
    fn promise(&self, request: proto::PromiseRequest) -> PeerAnswer<proto::PromiseResponse>;

    /// Asks a member for a place in its cluster, or tells of new addresses.
    fn admit(&self, request: proto::AdmitRequest) -> PeerAnswer<proto::AdmitResponse>;

    /// Asks a member for its own state.
    fn hello(&self, request: proto::HelloRequest) -> PeerAnswer<proto::HelloResponse>;

    /// Log replication, in order, answered in order.
    fn stream_append(
        &self,
        requests: BoxStream<'static, proto::AppendRequest>,
    ) -> PeerAnswer<PeerStream<proto::AppendResponse>>;

    /// One append or heartbeat.
    fn append(&self, request: proto::AppendRequest) -> PeerAnswer<proto::AppendResponse>;

    /// Asks for a vote.
    fn vote(&self, request: proto::VoteRequest) -> PeerAnswer<proto::VoteResponse>;

    /// Asks whether the member would vote for this node.
    fn pre_vote(&self, request: proto::VoteRequest) -> PeerAnswer<proto::VoteResponse>;

    /// Sends a whole snapshot; the first chunk carries the head.
    fn install_snapshot(
        &self,
        chunks: BoxStream<'static, proto::SnapshotChunk>,
    ) -> PeerAnswer<proto::SnapshotResponse>;

    /// Hands leadership to the member.
    fn transfer_leader(
        &self,
        request: proto::TransferLeaderRequest,
    ) -> PeerAnswer<proto::TransferLeaderResponse>;
}

/// Traffic that travels apart from other traffic, so that much of one kind does not delay another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// The append stream.
    Log,
    /// Heartbeats, votes, questions: small and urgent.
    Control,
    /// Snapshots.
    Bulk,
}

impl Lane {
    /// All lanes.
    #[cfg(test)]
    pub(super) const ALL: [Self; 3] = [Self::Log, Self::Control, Self::Bulk];
}

/// Makes connections to members.
pub trait PeerNetwork: Send + Sync + 'static {
    /// A connection to `member`, whether or not it is reachable.
    fn peer(&self, member: &Member, lane: Lane) -> Arc<dyn Peer>;
}

/// The other members, as this node reaches them. Cheap to clone.
#[derive(Clone)]
pub(super) struct Peers {
    pub(super) me: Arc<Me>,
    pub(super) network: Arc<dyn PeerNetwork>,
    /// The members as configured, by node id.
    pub(super) configured: Arc<[Member]>,
    pub(super) runtime: Runtime,
}

impl Peers {
    /// The member with its configured addresses, if it has any. Where they differ from those in the log,
    /// an operator moved the node.
    pub(super) fn as_configured(&self, member: Member) -> Member {
        let configured = self.configured.iter().find(|known| known.node_id == member.node_id);
        configured.cloned().unwrap_or(member)
    }

    /// The connection for calls that are small and urgent.
    pub(super) fn control(&self, member: &Member) -> Arc<dyn Peer> {
        self.network.peer(member, Lane::Control)
    }

    /// Asks a member for its own state; another node may answer at its address.
    ///
    /// # Errors
    ///
    /// Why no answer came `within` that time.
    pub(super) async fn hello(
        &self,
        member: &Member,
        within: Duration,
    ) -> Result<proto::HelloResponse, String> {
        let request = proto::HelloRequest { from_node: self.me.node_id };
        match self.runtime.timeout(within, self.control(member).hello(request)).await {
            Ok(answer) => answer.map_err(|error| error.to_string()),
            Err(elapsed) => Err(elapsed.to_string()),
        }
    }
}

/// The identity that this node presents to its peers.
pub(super) struct Me {
    pub(super) node_id: u64,
    /// Cluster and incarnation, from the promise on.
    cluster: OnceLock<(ClusterId, u64)>,
}

impl Me {
    pub(super) fn new(node_id: u64) -> Self {
        Self { node_id, cluster: OnceLock::new() }
    }

    /// To be called when the promise is durable. A folder makes it once.
    pub(super) fn belongs_to(&self, cluster: ClusterId, incarnation: u64) {
        let known = self.cluster.get_or_init(|| (cluster, incarnation));
        debug_assert_eq!(*known, (cluster, incarnation));
    }

    pub(super) fn cluster(&self) -> Option<(ClusterId, u64)> {
        self.cluster.get().copied()
    }

    /// The header of a message to `to`. Before the promise it names no cluster, and every member
    /// refuses it.
    pub(super) fn header(&self, to: u64) -> proto::PeerHeader {
        let (cluster_id, incarnation) = self
            .cluster()
            .map_or((Bytes::new(), 0), |(id, life)| (Bytes::copy_from_slice(&id.0), life));
        proto::PeerHeader {
            cluster_id,
            incarnation,
            from_node: self.node_id,
            to_node: to,
            group: GROUP,
        }
    }

    /// Checks that a message is meant for this node, in this cluster and incarnation (I22). The
    /// only place that decides it, before other code looks at the message.
    ///
    /// # Errors
    ///
    /// [`PeerError::Refused`] names what differs.
    pub(super) fn admit(&self, header: Option<&proto::PeerHeader>) -> Result<(), PeerError> {
        let header = header.ok_or_else(|| refused("the message has no header"))?;
        let Some((cluster, incarnation)) = self.cluster() else {
            return Err(refused(format!("node {} belongs to no cluster yet", self.node_id)));
        };
        if header.cluster_id != cluster.0.as_slice() && !mutant!(StrangerAdmitted) {
            let theirs = hex::encode(&header.cluster_id);
            return Err(refused(format!("cluster {theirs} calls, this is cluster {cluster}")));
        }
        if header.incarnation != incarnation {
            let theirs = header.incarnation;
            return Err(refused(format!("incarnation {theirs} calls, this is {incarnation}")));
        }
        if header.to_node != self.node_id {
            let (to, own) = (header.to_node, self.node_id);
            return Err(refused(format!("meant for node {to}, this is node {own}")));
        }
        if header.from_node == self.node_id {
            return Err(refused(format!("another process calls itself node {}", self.node_id)));
        }
        if header.group != GROUP {
            return Err(refused(format!("group {} is not served here", header.group)));
        }
        Ok(())
    }
}

/// One cluster may later run several Raft groups; today there is one.
const GROUP: u64 = 0;

pub(super) fn refused(reason: impl Into<String>) -> PeerError {
    PeerError::Refused(reason.into())
}

/// What the members have reported lately.
pub(super) struct Heard {
    gate: Mutex<VersionGate>,
    reports: Mutex<BTreeMap<u64, Report>>,
}

#[derive(Default)]
struct Report {
    below_reserve: bool,
    progress: Option<Progress>,
    /// If the member answered the last question.
    disk: Option<DiskHealth>,
}

/// How far a member has come, by its own report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) version: String,
    pub(super) last_log: Option<u64>,
    pub(super) applied: Option<u64>,
    pub(super) snapshot: Option<u64>,
}

impl Heard {
    pub(super) fn new(own: u64) -> Self {
        Self { gate: Mutex::new(VersionGate::new(own)), reports: Mutex::default() }
    }

    /// Stores what a member answered.
    pub(super) fn note(&self, hello: proto::HelloResponse) {
        self.note_version(hello.node_id, hello.command_version);
        let below_reserve = hello.below_disk_reserve;
        let append_p99 = hello.append_p99_us.map(Duration::from_micros);
        let progress = Progress {
            version: hello.version,
            last_log: hello.last_log_index,
            applied: hello.applied_index,
            snapshot: hello.snapshot_index,
        };
        let disk = Some(DiskHealth { below_reserve, append_p99 });
        let report = Report { below_reserve, progress: Some(progress), disk };
        lock(&self.reports).insert(hello.node_id, report);
    }

    /// A member did not answer.
    pub(super) fn note_silence(&self, member: u64) {
        lock(&self.reports).entry(member).or_default().disk = None;
    }

    pub(super) fn note_version(&self, member: u64, highest: u32) {
        let highest = u16::try_from(highest).unwrap_or(u16::MAX);
        lock(&self.gate).announce(member, highest);
    }

    pub(super) fn note_reserve(&self, member: u64, below: bool) {
        lock(&self.reports).entry(member).or_default().below_reserve = below;
    }

    /// Forgets nodes that are no longer members.
    pub(super) fn keep_only(&self, members: &[u64]) {
        let mut gone = Vec::new();
        lock(&self.reports).retain(|id, report| {
            let stays = members.contains(id);
            // A node that is being added is no member yet, and has reported no progress.
            gone.extend((!stays && report.progress.is_some()).then_some(*id));
            stays
        });
        let mut gate = lock(&self.gate);
        for id in gone {
            gate.forget(id);
        }
    }

    pub(super) fn progress(&self, member: u64) -> Option<Progress> {
        lock(&self.reports).get(&member)?.progress.clone()
    }

    /// The member's last report of its disk; `None`: it did not answer.
    pub(super) fn disk(&self, member: u64) -> Option<DiskHealth> {
        lock(&self.reports).get(&member)?.disk
    }

    /// The highest command version that may be proposed to `members` (I29).
    pub(super) fn highest_version(&self, members: &[u64]) -> u16 {
        lock(&self.gate).highest(members.iter().copied())
    }

    /// How many of `members` report that they are below their disk reserve.
    pub(super) fn below_reserve(&self, members: &[u64]) -> usize {
        let reports = lock(&self.reports);
        members.iter().filter(|id| reports.get(id).is_some_and(|one| one.below_reserve)).count()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for dyn Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Peer")
    }
}
