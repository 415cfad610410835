//! A cluster in one thread, in memory, on virtual time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::BoxStream;
use holdfast_core::{
    Answer, Command, Item, Label, LockName, Need, Outcome, RequestId, SessionId, Tenure,
};
use holdfast_proto::v1 as proto;
use holdfast_runtime::{BoxFuture, Runtime, simulated};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::consensus::{Committed, Consensus, Role, propose};
use crate::error::ProposeError;
use crate::raft::{
    Fault, Forming, Member, MemoryNetwork, MemoryStore, Peer, PeerError, PeerStream, Replica,
    ReplicaConfig,
};

/// Long enough for any election on virtual time.
const PATIENCE: Duration = Duration::from_mins(1);

pub(super) struct Cluster {
    pub(super) runtime: Runtime,
    pub(super) network: MemoryNetwork,
    pub(super) members: Vec<Member>,
    pub(super) nodes: BTreeMap<u64, Node>,
    adjust: fn(&mut ReplicaConfig),
    /// Whether members started from now on appear to the others as an older release.
    pub(super) older: bool,
}

pub(super) struct Node {
    pub(super) replica: Arc<Replica>,
    pub(super) store: Arc<MemoryStore>,
}

pub(super) fn member(node_id: u64) -> Member {
    Member {
        node_id,
        advertise: format!("clients-of-{node_id}:7420"),
        peer_advertise: format!("peers-of-{node_id}:7421"),
    }
}

impl Cluster {
    /// `size` members, none of them started. `adjust` changes the settings of each.
    pub(super) fn stopped(size: u64, adjust: fn(&mut ReplicaConfig)) -> Self {
        // `RUST_LOG=debug cargo test … -- --nocapture` shows what openraft does.
        let wanted = std::env::var("RUST_LOG").unwrap_or_else(|_| "off".to_owned());
        let shown = wanted.parse::<tracing_subscriber::filter::Targets>().unwrap();
        let lines = tracing_subscriber::fmt::layer().with_test_writer();
        drop(tracing_subscriber::registry().with(shown).with(lines).try_init());
        Self {
            runtime: simulated::runtime(1, 1_000_000),
            network: MemoryNetwork::new(),
            members: (1..=size).map(member).collect(),
            nodes: BTreeMap::new(),
            adjust,
            older: false,
        }
    }

    /// `size` members with empty stores, all started.
    pub(super) async fn started(size: u64, adjust: fn(&mut ReplicaConfig)) -> Self {
        let mut cluster = Self::stopped(size, adjust);
        for node_id in 1..=size {
            cluster.start(node_id, MemoryStore::new(node_id)).await;
        }
        cluster
    }

    pub(super) async fn start(&mut self, node_id: u64, store: MemoryStore) {
        self.start_as(ReplicaConfig::new(node_id, self.members.clone()), store).await;
    }

    /// Starts a node that waits to be added; its settings name the first members.
    pub(super) async fn start_joining(&mut self, node_id: u64, store: MemoryStore) {
        let mut members = self.members.clone();
        members.retain(|member| member.node_id != node_id);
        members.push(member(node_id));
        let config = ReplicaConfig { join: true, ..ReplicaConfig::new(node_id, members) };
        self.start_as(config, store).await;
    }

    pub(super) async fn start_as(&mut self, mut config: ReplicaConfig, store: MemoryStore) {
        let store = Arc::new(store);
        let node_id = config.node_id;
        (self.adjust)(&mut config);
        let replica =
            Replica::start(config, store.clone(), self.network.of(node_id), self.runtime.clone())
                .await
                .unwrap();
        let peer = replica.peer();
        self.network.join(node_id, if self.older { Arc::new(OlderRelease(peer)) } else { peer });
        self.nodes.insert(node_id, Node { replica, store });
    }

    pub(super) fn replica(&self, node_id: u64) -> &Arc<Replica> {
        &self.nodes[&node_id].replica
    }

    /// Kills the node as `kill -9` does; returns what the next process finds.
    pub(super) async fn kill(&mut self, node_id: u64) -> MemoryStore {
        self.network.leave(node_id);
        let node = self.nodes.remove(&node_id).unwrap();
        let left = node.store.restarted();
        node.replica.shutdown().await;
        left
    }

    pub(super) async fn restart(&mut self, node_id: u64) {
        let store = self.kill(node_id).await;
        self.start(node_id, store).await;
    }

    /// Waits for a leader. If an old leader does not know of its successor yet, returns the one
    /// with the highest term.
    pub(super) async fn leader(&self) -> (u64, Tenure) {
        let leads = async {
            loop {
                let leading = self.nodes.iter().filter_map(|(id, node)| {
                    let tenure = node.replica.role().borrow().tenure()?;
                    Some((*id, tenure))
                });
                if let Some(found) = leading.max_by_key(|(_, tenure)| *tenure) {
                    return found;
                }
                self.runtime.sleep(Duration::from_millis(10)).await;
            }
        };
        self.runtime.timeout(PATIENCE, leads).await.expect("nobody leads")
    }

    /// Waits for a tenure after `old`.
    pub(super) async fn leader_after(&self, old: Tenure) -> (u64, Tenure) {
        let later = async {
            loop {
                let (id, tenure) = self.leader().await;
                if tenure > old {
                    return (id, tenure);
                }
                self.runtime.sleep(Duration::from_millis(10)).await;
            }
        };
        self.runtime.timeout(PATIENCE, later).await.expect("nobody leads later")
    }

    pub(super) async fn until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let wait = async {
            while !holds(self) {
                self.runtime.sleep(Duration::from_millis(10)).await;
            }
        };
        assert!(self.runtime.timeout(PATIENCE, wait).await.is_ok(), "never happened: {what}");
    }

    pub(super) async fn formed(&self) {
        let formed = |node: &Node| *node.replica.forming().borrow() == Forming::Formed;
        self.until("every node formed", |cluster| cluster.nodes.values().all(formed)).await;
    }

    /// Waits until all have applied as much as the leader.
    pub(super) async fn level(&self) {
        let (leader, _) = self.leader().await;
        let last = self.replica(leader).status().last_log;
        let level = |node: &Node| node.replica.status().applied >= last;
        self.until("all are level", |cluster| cluster.nodes.values().all(level)).await;
    }

    /// The state hash of each node.
    pub(super) fn hashes(&self) -> Vec<[u8; 32]> {
        let hash = |node: &Node| {
            let mut hash = [0; 32];
            node.replica.read(&mut |table, _| hash = table.state_hash());
            hash
        };
        self.nodes.values().map(hash).collect()
    }

    pub(super) async fn shutdown(self) {
        for node in self.nodes.values() {
            node.replica.shutdown().await;
        }
    }
}

/// The fault that stops `replica`. Fails when none comes.
pub(super) async fn fault_of(runtime: &Runtime, replica: &Replica) -> Fault {
    let mut faults = replica.faults();
    let fault = runtime.timeout(PATIENCE, faults.wait_for(Option::is_some)).await;
    fault.expect("no fault stops the node").unwrap().clone().unwrap()
}

pub(super) fn open_session() -> Command {
    Command::OpenSession {
        ttl_ms: 10_000,
        label: Label::parse("test").unwrap(),
        secret_hash: [3; 32],
    }
}

pub(super) fn acquire(session: SessionId, request: u64, name: &str) -> Command {
    Command::Acquire {
        session,
        done_below: RequestId::new(0),
        request: RequestId::new(request),
        items: vec![Item::exclusive(LockName::parse(name).unwrap())],
        need: Need::All,
        wait: true,
    }
}

pub(super) async fn commit(replica: &Replica, command: Command) -> Committed {
    propose(replica, command).await.unwrap()
}

pub(super) async fn open(replica: &Replica) -> SessionId {
    match commit(replica, open_session()).await.outcome {
        Ok(Answer::SessionOpened { session }) => session,
        other => panic!("{other:?}"),
    }
}

pub(super) fn has_session(replica: &Replica, session: SessionId) -> bool {
    let mut found = false;
    replica.read(&mut |table, _| found = table.session(session).is_some());
    found
}

/// Submits without waiting; the slot receives the result.
pub(super) fn submit(
    replica: &Replica,
    command: Command,
) -> tokio::sync::oneshot::Receiver<Result<Committed, ProposeError>> {
    let (tell, told) = tokio::sync::oneshot::channel();
    let done = Box::new(move |result| {
        let _ = tell.send(result);
    });
    replica.submit(command, done);
    told
}

pub(super) fn follows(replica: &Replica) -> bool {
    matches!(&*replica.role().borrow(), Role::Following { .. })
}

pub(super) fn outcome(result: Result<Committed, ProposeError>) -> Outcome {
    result.unwrap().outcome
}

/// What release 0.1 knew.
pub(super) const OLDER_VERSION: u16 = 4;

/// A member of release 0.1.
pub(super) struct OlderRelease(pub(super) Arc<dyn Peer>);

impl Peer for OlderRelease {
    fn admit(&self, request: proto::AdmitRequest) -> Reply<proto::AdmitResponse> {
        self.0.admit(request)
    }

    fn hello(&self, request: proto::HelloRequest) -> Reply<proto::HelloResponse> {
        let hello = self.0.hello(request);
        Box::pin(async move {
            let command_version = u32::from(OLDER_VERSION);
            Ok(proto::HelloResponse { command_version, ..hello.await? })
        })
    }

    fn promise(&self, request: proto::PromiseRequest) -> Reply<proto::PromiseResponse> {
        self.0.promise(request)
    }

    fn stream_append(
        &self,
        requests: BoxStream<'static, proto::AppendRequest>,
    ) -> Reply<PeerStream<proto::AppendResponse>> {
        self.0.stream_append(requests)
    }

    fn append(&self, request: proto::AppendRequest) -> Reply<proto::AppendResponse> {
        self.0.append(request)
    }

    fn vote(&self, request: proto::VoteRequest) -> Reply<proto::VoteResponse> {
        self.0.vote(request)
    }

    fn pre_vote(&self, request: proto::VoteRequest) -> Reply<proto::VoteResponse> {
        self.0.pre_vote(request)
    }

    fn install_snapshot(
        &self,
        chunks: BoxStream<'static, proto::SnapshotChunk>,
    ) -> Reply<proto::SnapshotResponse> {
        self.0.install_snapshot(chunks)
    }

    fn transfer_leader(
        &self,
        request: proto::TransferLeaderRequest,
    ) -> Reply<proto::TransferLeaderResponse> {
        self.0.transfer_leader(request)
    }
}

type Reply<T> = BoxFuture<'static, Result<T, PeerError>>;
