//! A cluster in one thread: real clients, real sessions and real replication over memory, on
//! virtual time.
//!
//! To be used on a current-thread tokio runtime with paused time. Nothing here opens a socket or a
//! file; a node that is killed comes back with what its log had made durable.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use holdfast::Client;
use holdfast_proto::v1::{
    CheckTokenRequest, CheckTokenResponse, ClientFrames, InspectRequest, InspectResponse,
    ListRequest, ListResponse, ServerFrames, StatusRequest, StatusResponse, WatchRequest,
};
use holdfast_seams::{BoxFuture, Pipe, Seams, Task, Transport, TransportError, Watched, simulated};
use holdfast_server::consensus::Consensus as _;
use holdfast_server::raft::{Member, MemoryNetwork, MemoryStore, Replica, ReplicaConfig};
use holdfast_server::session::{ClusterId, Hub, SessionSettings, StreamError};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::ReceiverStream;

use crate::fault::Line;
use crate::history::{ClientId, Recorder};
use crate::traffic::Scribe;

/// Frames on their way in one direction of a stream.
const IN_FLIGHT: usize = 64;
/// Virtual time in which a cluster must have a leader.
const LEADER_WITHIN: Duration = Duration::from_secs(20);

/// Nodes without processes.
pub struct Sim {
    /// Virtual time, the runtime's tasks, and randomness from the run's seed.
    pub seams: Seams,
    /// Who reaches whom among the nodes.
    pub network: MemoryNetwork,
    nodes: Vec<Node>,
    streets: Streets,
}

/// Where clients find nodes that run.
type Streets = Arc<Mutex<BTreeMap<String, Arc<Doorway>>>>;

struct Node {
    config: ReplicaConfig,
    store: Arc<MemoryStore>,
    running: Option<Running>,
}

struct Running {
    replica: Arc<Replica>,
    doorway: Arc<Doorway>,
}

/// Where streams of clients come in; they end with it.
struct Doorway {
    hub: Arc<Hub>,
    streams: Mutex<Vec<Task>>,
}

struct ClusterOf(Arc<Replica>);

impl ClusterId for ClusterOf {
    fn cluster_id(&self) -> Option<Bytes> {
        self.0.status().cluster.map(|id| Bytes::copy_from_slice(&id.0))
    }
}

impl std::fmt::Debug for Sim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sim").field("nodes", &self.nodes.len()).finish_non_exhaustive()
    }
}

impl Sim {
    /// Starts so many nodes and waits until one leads. The same seed is the same run.
    pub async fn start(nodes: u64, seed: u64) -> Self {
        let members: Vec<Member> = (1..=nodes).map(member).collect();
        let nodes = (1..=nodes).map(|id| Node {
            config: ReplicaConfig { reserve_bytes: 0, ..ReplicaConfig::new(id, members.clone()) },
            store: Arc::new(MemoryStore::new(id)),
            running: None,
        });
        let mut sim = Self {
            seams: simulated::seams(seed, 1_700_000_000_000),
            network: MemoryNetwork::new(),
            nodes: nodes.collect(),
            streets: Streets::default(),
        };
        for index in 0..sim.nodes.len() {
            sim.start_node(index).await;
        }
        sim.leader().await;
        sim
    }

    /// Starts a node that does not run, with what its store holds.
    pub async fn start_node(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        let (id, store) = (node.config.node_id, node.store.clone());
        let peers = self.network.of(id);
        let replica =
            Replica::start(node.config.clone(), store, peers, self.seams.clone()).await.unwrap();
        let cluster = Arc::new(ClusterOf(replica.clone()));
        let hub =
            Hub::start(replica.clone(), cluster, SessionSettings::default(), self.seams.clone());
        self.network.join(id, replica.peer());
        let doorway = Arc::new(Doorway { hub: Arc::new(hub), streams: Mutex::default() });
        lock(&self.streets).insert(member(id).advertise, doorway.clone());
        node.running = Some(Running { replica, doorway });
    }

    /// Ends a node where it stands; its streams break.
    pub async fn kill(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        let id = node.config.node_id;
        self.network.leave(id);
        self.network.isolate(id);
        node.store = Arc::new(node.store.restarted());
        lock(&self.streets).remove(&member(id).advertise);
        if let Some(Running { replica, doorway }) = node.running.take() {
            lock(&doorway.streams).clear();
            replica.shutdown().await;
        }
    }

    /// From here on a node's disk finishes nothing; what it has not finished is lost when the node
    /// is killed.
    pub fn stall_disk(&self, index: usize) {
        self.nodes[index].store.stall();
    }

    /// A running node's replica.
    pub fn replica(&self, index: usize) -> &Replica {
        &self.nodes[index].running.as_ref().expect("the node runs").replica
    }

    /// Waits until a node leads, and says which.
    pub async fn leader(&self) -> usize {
        let give_up = self.seams.clock.now() + LEADER_WITHIN;
        loop {
            let leads = |node: &Node| {
                node.running
                    .as_ref()
                    .is_some_and(|running| running.replica.role().borrow().tenure().is_some())
            };
            if let Some(leader) = self.nodes.iter().position(leads) {
                return leader;
            }
            assert!(self.seams.clock.now() < give_up, "no leader within {LEADER_WITHIN:?}");
            self.seams.sleep(Duration::from_millis(10)).await;
        }
    }

    /// Connects a client of the library, over a line that can be broken.
    pub async fn client(
        &self,
        ttl: Duration,
        id: u64,
        recorder: &Recorder,
    ) -> (Scribe, watch::Sender<Line>) {
        let (line, watched) = watch::channel(Line::Open);
        let transport =
            InMemory { streets: self.streets.clone(), line: watched, seams: self.seams.clone() };
        let endpoints: Vec<String> =
            self.nodes.iter().map(|node| member(node.config.node_id).advertise).collect();
        let client = Client::builder()
            .endpoints(&endpoints.join(","))
            .unwrap()
            .ttl(ttl)
            .label(format!("client {id}"))
            .seams(self.seams.clone())
            .transport(Arc::new(transport))
            .connect()
            .await
            .unwrap();
        let scribe = Scribe::of(client, ClientId(id), recorder.clone(), self.seams.clone());
        (scribe, line)
    }
}

fn member(node_id: u64) -> Member {
    Member {
        node_id,
        advertise: format!("node-{node_id}:7420"),
        peer_advertise: format!("node-{node_id}:7421"),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One client's way to the nodes.
struct InMemory {
    streets: Streets,
    line: watch::Receiver<Line>,
    seams: Seams,
}

impl Transport for InMemory {
    fn open(
        &self,
        endpoint: &str,
    ) -> BoxFuture<'static, Result<Pipe<ClientFrames, ServerFrames>, TransportError>> {
        let (streets, seams) = (self.streets.clone(), self.seams.clone());
        let (mut line, endpoint) = (self.line.clone(), endpoint.to_owned());
        Box::pin(async move {
            let state = *line.borrow();
            if state == Line::Silent {
                // The packets go nowhere until the cable is back.
                let _ = line.wait_for(|line| *line != Line::Silent).await;
            }
            let doorway = lock(&streets).get(&endpoint).cloned();
            match doorway {
                Some(doorway) if *line.borrow() == Line::Open => Ok(doorway.enter(line, &seams)),
                _ => Err(TransportError::Unreachable { endpoint, detail: "nobody there".into() }),
            }
        })
    }

    fn inspect(
        &self,
        _endpoint: &str,
        _request: InspectRequest,
    ) -> BoxFuture<'static, Result<InspectResponse, TransportError>> {
        Box::pin(async { Err(only_streams()) })
    }

    fn list(
        &self,
        _endpoint: &str,
        _request: ListRequest,
    ) -> BoxFuture<'static, Result<ListResponse, TransportError>> {
        Box::pin(async { Err(only_streams()) })
    }

    fn check_token(
        &self,
        _endpoint: &str,
        _request: CheckTokenRequest,
    ) -> BoxFuture<'static, Result<CheckTokenResponse, TransportError>> {
        Box::pin(async { Err(only_streams()) })
    }

    fn watch(
        &self,
        _endpoint: &str,
        _request: WatchRequest,
    ) -> BoxFuture<'static, Result<Watched, TransportError>> {
        Box::pin(async { Err(only_streams()) })
    }

    fn status(
        &self,
        _endpoint: &str,
        _request: StatusRequest,
    ) -> BoxFuture<'static, Result<StatusResponse, TransportError>> {
        Box::pin(async { Err(only_streams()) })
    }
}

fn only_streams() -> TransportError {
    TransportError::Refused { message: "only streams pass here".into() }
}

impl Doorway {
    /// Lets a stream in, and gives the client's end of it.
    fn enter(
        &self,
        line: watch::Receiver<Line>,
        seams: &Seams,
    ) -> Pipe<ClientFrames, ServerFrames> {
        let (outgoing, from_client) = mpsc::channel(IN_FLIGHT);
        let (to_client, incoming) = mpsc::channel(IN_FLIGHT);
        let (server_end, relay_end) = simulated::pipe(IN_FLIGHT);
        let (tell, ended) = oneshot::channel();
        let hub = self.hub.clone();
        let serve = async move {
            let _ = tell.send(hub.serve(server_end).await);
        };
        lock(&self.streams).push(seams.spawn("stream", serve));
        let relay = Between { from_client, to_client, node: relay_end, ended };
        seams.spawn("line", relay.carry(line)).detach();
        Pipe { outgoing, incoming: ReceiverStream::new(incoming).boxed() }
    }
}

/// What stands between a client and a node.
struct Between {
    from_client: mpsc::Receiver<ClientFrames>,
    to_client: mpsc::Sender<Result<ServerFrames, TransportError>>,
    node: Pipe<ClientFrames, ServerFrames>,
    ended: oneshot::Receiver<Result<(), StreamError>>,
}

impl Between {
    /// Passes frames on while the line is open, until one end is done or the line is cut.
    async fn carry(mut self, line: watch::Receiver<Line>) {
        let (mut cut, mut up, mut down) = (line.clone(), line.clone(), line);
        let upwards = async {
            while let Some(frames) = self.from_client.recv().await {
                if open(&mut up).await.is_err() || self.node.outgoing.send(frames).await.is_err() {
                    break;
                }
            }
        };
        let downwards = async {
            while let Some(Ok(frames)) = self.node.incoming.next().await {
                if open(&mut down).await.is_err() || self.to_client.send(Ok(frames)).await.is_err()
                {
                    return;
                }
            }
            if let Ok(Err(error)) = self.ended.await {
                let _ = self.to_client.send(Err(as_the_wire_says(error))).await;
            }
        };
        holdfast_seams::select! {
            _ = cut.wait_for(|line| *line == Line::Cut) => {}
            () = upwards => {}
            () = downwards => {}
        }
    }
}

async fn open(line: &mut watch::Receiver<Line>) -> Result<(), watch::error::RecvError> {
    line.wait_for(|line| *line == Line::Open).await.map(|_| ())
}

/// As the client's gRPC transport would read it.
fn as_the_wire_says(error: StreamError) -> TransportError {
    match error {
        StreamError::AttachedElsewhere { .. } => TransportError::AttachedElsewhere,
        StreamError::Limit { .. } => TransportError::TooSlow,
        StreamError::Unavailable { message, leader } => {
            TransportError::Unavailable { message, leader }
        }
        StreamError::ShuttingDown { leader } => {
            TransportError::Unavailable { message: "the node stops".into(), leader }
        }
        StreamError::Protocol(message) => TransportError::Refused { message },
    }
}
