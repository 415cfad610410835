//! A node: its parts, put together in order and taken down in reverse.
//!
//! ```text
//!   ports claimed ─▶ admin port ─▶ data folder ─▶ replica ─▶ sessions ─▶ peers' port ─▶ clients' port
//! ```
//!
//! A failed claim or folder ends the start before the node has promised anything to a client. The
//! cluster is formed in the background: meanwhile the admin port reports what the node waits for, and
//! clients are told that there is no leader yet.
//!
//! To stop, the node hands its leadership over, sends every stream away with the new leader's address,
//! closes its ports and then its folder. Each step has a time limit; a part that does not end in time is
//! left behind, since nothing acknowledged depends on it.
//!
//! # Threads
//!
//! Raft and the members' port share one current-thread runtime: measured, half the latency of a
//! multi-thread one (DESIGN §7). The clients' port and all sessions run there too, or, where there are
//! cores, on a thread of their own (`session_thread.rs`). The log's writer, the admin port and the opening
//! of the folder have threads of their own.

mod announce;
mod event_queue;
mod joining;
mod page;
mod session_thread;
pub(crate) mod settings;
mod view;

use std::convert::Infallible;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::select_all;
use futures_util::stream::{self, BoxStream};
use holdfast_history::History;
use holdfast_runtime::{Runtime, Task};
use holdfast_tls::Dialler;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tonic::Extensions;
use tonic::transport::server::Router;
use tonic::transport::{Channel, Endpoint};

use self::joining::Settled;
pub use self::joining::{InitError, init};
use self::session_thread::SessionQueue;
pub use self::view::Condition;
use self::view::{Counted, Phase, Running, View};
use crate::config::{Config, Join};
use crate::consensus::Recorder;
use crate::exit::{self, Exit};
use crate::http::{self, AdminPort};
use crate::incoming::{self, Admission, ConnectionMetrics, Peer, Wire};
use crate::listen::{Claim, Claims, ListenError, LocalAddress, LocalClaim};
use crate::open_files::{self, TooFewFiles};
use crate::raft::{Fault, GrpcNetwork, Replica, ReplicaConfig, StartError, peer_server};
use crate::rpc::{
    BadDescriptors, ClientPort, Door, Forwarding, ForwardingMetrics, Links, Services,
};
use crate::session::Hub;
use crate::storage::{self, Store, StoreOptions};
use crate::tls::{Dials, NodeTls, TlsError};

/// How long the hand-over of the leadership may take.
const HAND_OVER_WITHIN: Duration = Duration::from_secs(5);
/// How long a graceful stop may take in total. Supervisors should wait longer before they kill.
const STOP_WITHIN: Duration = Duration::from_secs(9);
/// How long the stop then waits for threads that still read or write snapshots.
const LEFT_BEHIND_WITHIN: Duration = Duration::from_millis(500);

/// Why a node did not start, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A port is not available, or was lost. Nothing was changed on disk.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The process may open too few files. Nothing was changed on disk.
    #[error(transparent)]
    OpenFiles(#[from] TooFewFiles),
    /// The data folder cannot be used.
    #[error(transparent)]
    DataFolder(#[from] storage::OpenError),
    /// The data folder of a node that joins by itself cannot be changed.
    #[error("{} cannot be used: {source}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The files of TLS cannot be used. Nothing was changed on disk.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The replica cannot start.
    #[error(transparent)]
    Replica(#[from] StartError),
    /// The replica must not go on. What was acknowledged is safe.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The build is broken.
    #[error(transparent)]
    Build(#[from] BadDescriptors),
    /// The operating system refuses a resource that every process needs.
    #[error("the system gives no {what}: {source}")]
    System {
        /// The resource.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A port stopped serving without a request to stop.
    #[error("the port for {whom} is gone: {why}")]
    PortLost {
        /// The kind of peer that connects to it.
        whom: &'static str,
        /// What happened.
        why: String,
    },
}

impl NodeError {
    /// The exit code for this error.
    pub const fn exit(&self) -> Exit {
        match self {
            Self::Listen(_) => Exit::Listen,
            Self::DataFolder(storage::OpenError::NoDescriptors { .. }) => Exit::Fault,
            Self::DataFolder(_)
            | Self::Folder { .. }
            | Self::Replica(StartError::Snapshot(_))
            | Self::Fault(Fault::DataGone { .. }) => Exit::DataFolder,
            Self::OpenFiles(_)
            | Self::Tls(_)
            | Self::Replica(StartError::Config(_))
            | Self::Fault(Fault::IdUsed { .. }) => Exit::Settings,
            Self::Fault(Fault::Removed { .. }) => Exit::Removed,
            Self::Replica(StartError::Engine(_))
            | Self::Fault(_)
            | Self::Build(_)
            | Self::System { .. }
            | Self::PortLost { .. } => Exit::Fault,
        }
    }
}

/// Runs a node until SIGTERM or SIGINT asks it to stop.
///
/// # Errors
///
/// [`NodeError`]; everything that was acknowledged is in the data folder.
pub fn run(config: &Config) -> Result<(), NodeError> {
    greet(config);
    let has_socket = config.node.unix_socket().is_some();
    let shares = open_files::share_out(config.node.max_connections, has_socket)?;
    let Claims { admin, peers, clients, local } = Claims::new(config)?;
    let view = Arc::new(View::new());
    let runtime = Runtime::system();
    let metrics = ConnectionMetrics::default();
    let tls = NodeTls::load(config, &runtime)?.map(Arc::new);
    let clients_per_second = config.node.resumes_per_second;
    let admission =
        Admission { shares, metrics, runtime: runtime.clone(), tls, clients_per_second };
    let spin = Duration::from_micros(config.node.spin_us);
    let events = event_queue::new(spin)
        .map_err(|source| NodeError::System { what: "event queue", source })?;
    let hangups = hangups(&events)?;
    let page = page::router(config, &view, &runtime);
    let _admin = AdminPort::start(admin, http::router(view.clone(), page), &admission)?;
    let Some(settled) = settle(config, &view, &admission, &events)? else { return Ok(()) };
    let Settled { config, store, start_id, founds } = settled;
    let config = &config;
    view.set(Phase::Opening);
    let sessions = SessionQueue::start(config.node.session_thread, spin)
        .map_err(|source| NodeError::System { what: "thread for sessions", source })?;
    let result = events.block_on(async {
        let mut signals = Signals::new()?;
        let listeners = Listeners { peers, clients, local };
        let joined = Joined { start_id, founds };
        let start =
            Start { config, view: &view, admission: &admission, sessions: &sessions, joined };
        let mut node = start.node(store, listeners, hangups).await?;
        let result = node.serve(&mut signals).await;
        view.set(Phase::Stopping);
        node.stop(signals).await;
        result
    });
    events.shutdown_timeout(LEFT_BEHIND_WITHIN);
    result
}

/// What the node starts as; nothing if it is stopped before that is known.
fn settle(
    config: &Config,
    view: &View,
    admission: &Admission,
    events: &tokio::runtime::Runtime,
) -> Result<Option<Settled>, NodeError> {
    let runtime = &admission.runtime;
    if config.node.join != Join::Auto {
        let store = open_store(config, runtime)?;
        return Ok(Some(Settled { config: config.clone(), store, start_id: None, founds: false }));
    }
    let network = network(admission.tls.as_deref());
    events.block_on(async {
        let mut signals = Signals::new()?;
        holdfast_runtime::select! {
            signal = signals.next() => {
                tracing::info!(signal, "stopping");
                Ok(None)
            }
            settled = joining::settle(config, &network, view, runtime) => settled.map(Some),
        }
    })
}

/// Opens the data folder. A later failed write ends the process at once: nothing may be acknowledged
/// after it, and an end without a goodbye loses nothing. The same happens when a file gets no descriptor
/// for a minute; but then no disk failed, and a supervisor may start the node again.
fn open_store(config: &Config, runtime: &Runtime) -> Result<Store, NodeError> {
    let mut new_store_id = [0; 16];
    runtime.rng.fill(&mut new_store_id);
    let options = StoreOptions {
        node_id: config.node.node_id,
        cluster: None,
        new_store_id,
        on_fault: Arc::new(|fault| {
            if fault.is_stall() {
                exit::at_once(Exit::DiskHangs, fault.to_string());
            }
            let only_descriptors = fault.is_want_of_descriptors();
            exit::now(if only_descriptors { Exit::Fault } else { Exit::Storage }, &fault)
        }),
        stalls_after: settings::replica(config).stalls_after(),
    };
    let store = Store::open(&config.node.data_dir, options)?;
    close_to_others(&config.node.data_dir);
    Ok(store)
}

/// A data folder that others on this machine may enter, as one that was made by hand, is closed to them: names of
/// locks, values and hashes of secrets lie in it.
fn close_to_others(folder: &Path) {
    let mode = |found: &fs::Metadata| found.permissions().mode() & 0o777;
    let Some(open) = fs::metadata(folder).ok().as_ref().map(mode).filter(|mode| mode & 0o077 != 0)
    else {
        return;
    };
    let folder_name = folder.display();
    match fs::set_permissions(folder, fs::Permissions::from_mode(0o700)) {
        Ok(()) => tracing::info!("{folder_name} was open to others ({open:o}); it is 700 now"),
        Err(error) => {
            tracing::warn!(%error, "{folder_name} is open to others ({open:o}), and stays so");
        }
    }
}

/// Logs the first lines, for an operator who starts the node by hand.
fn greet(config: &Config) {
    let node = &config.node;
    let id = match node.node_id {
        0 => "a node that joins by itself".to_owned(),
        id => format!("node {id}"),
    };
    tracing::info!("holdfastd {}, {id}", env!("CARGO_PKG_VERSION"));
    tracing::info!("clients connect to {}", node.advertise);
    if let Some(socket) = node.unix_socket() {
        tracing::info!(
            "clients on this machine connect to unix:{} too",
            absolute(socket).display()
        );
    }
    tracing::info!("data lies in {}", absolute(&node.data_dir).display());
    let scheme = if node.has_tls() { "https" } else { "http" };
    tracing::info!("health and metrics are at {scheme}://{}/", node.admin_listen);
    if node.has_tls() && node.insecure {
        tracing::warn!("connections without TLS are taken too: `insecure` is set");
    }
}

/// What `./holdfast-data` means depends on where the node was started.
fn absolute(folder: &Path) -> PathBuf {
    std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned())
}

/// What the event queue of Raft and gRPC listens on.
struct Listeners {
    peers: Option<Claim>,
    clients: Claim,
    local: Option<LocalClaim>,
}

/// What a node is started with.
struct Start<'a> {
    config: &'a Config,
    view: &'a View,
    admission: &'a Admission,
    /// Where sessions run.
    sessions: &'a SessionQueue,
    joined: Joined,
}

/// How a node that joins by itself came to its id.
#[derive(Clone, Copy)]
struct Joined {
    start_id: Option<[u8; 16]>,
    founds: bool,
}

/// The parts of a running node.
struct Node {
    replica: Arc<Replica>,
    hub: Arc<Hub>,
    history: Option<Arc<History>>,
    /// The port for clients and, if there are other members, the one for them.
    ports: Vec<Port>,
    runtime: Runtime,
    /// The tasks that keep the health service and the log up to date; they end with the node.
    _tellers: Vec<Task>,
}

impl Start<'_> {
    /// Starts everything above the data folder; the port for clients last.
    async fn node(
        &self,
        store: Store,
        listeners: Listeners,
        hangups: Signal,
    ) -> Result<Node, NodeError> {
        let Self { config, admission, .. } = self;
        let runtime = admission.runtime.clone();
        let counters = store.counters();
        let network = Arc::new(network(admission.tls.as_deref()));
        let Joined { start_id, founds } = self.joined;
        let of_replica = settings::replica(config);
        let join = of_replica.join && !founds;
        let history = history(config, store.id(), &runtime);
        let recorder = history.clone().map(|history| history as Arc<dyn Recorder>);
        let of_replica = ReplicaConfig { join, start_id, recorder, ..of_replica };
        let patience_ms = of_replica.patience_ms();
        let replica = Replica::start(of_replica, Arc::new(store), network, runtime.clone()).await?;
        let condition = Condition::new(replica.clone(), patience_ms);
        let by_itself = config.node.join == Join::Auto;
        let condition = Arc::new(if by_itself { condition.with_vote() } else { condition });
        let hub = self.hub(&replica, &condition);
        if let Some(history) = history.clone() {
            hub.keep_history(history);
        }
        let rpc = settings::rpc(config);
        let door = Door::new(hub.clone(), &rpc.admins);
        let forwarded = ForwardingMetrics::default();
        let counted = Counted { connections: &admission.metrics, forwarded: &forwarded };
        let running =
            Running::new(config, condition.clone(), door, hub.clone(), counters, &counted);
        self.view.set(Phase::Running(Arc::new(running)));
        let faults = announce::faults(replica.clone(), condition.clone(), runtime.clone());
        let announcers = [
            runtime.spawn("announcer", announce::changes(replica.clone())),
            runtime.spawn("faults", faults),
        ];
        let services = Services::new(hub.clone(), condition, replica.clone(), &rpc);
        let mut ports = Vec::new();
        let Listeners { peers, clients, local } = listeners;
        if let Some(claim) = peers {
            let members = peer_server(replica.peer(), proven_node);
            let members =
                services.for_members(members, replica.clone(), proven_node, forwarded.clone());
            let arrivals = arrivals(incoming::Port::Members, claim, admission)?;
            ports.push(Port::open(incoming::Port::Members, arrivals, members, &runtime));
        }
        let links = links(admission.tls.as_deref());
        let forwarding = Forwarding { peers: replica.clone(), links, metrics: forwarded };
        let ClientPort { router, calls, health } = services.client_port(forwarding)?;
        self.view.set_calls(page::calls(calls, runtime.clone()));
        ports.push(self.clients_port(clients, local, router)?);
        let mut tellers = vec![health];
        tellers.extend(announcers);
        if let Some(tls) = admission.tls.clone() {
            let ends = admission.metrics.certificate_ends.clone();
            tellers.push(runtime.spawn("certificates", tls.keep(hangups, ends, runtime.clone())));
        }
        Ok(Node { replica, hub, history, ports, runtime, _tellers: tellers })
    }

    /// The session layer, on its event queue.
    fn hub(&self, replica: &Arc<Replica>, condition: &Arc<Condition>) -> Arc<Hub> {
        let _context = self.sessions.enter();
        let runtime = self.sessions.runtime(&self.admission.runtime);
        let (replica, condition) = (replica.clone(), condition.clone());
        let settings = settings::sessions(self.config);
        let hub = Hub::start(replica, condition, settings, runtime.clone());
        hub.keep_scopes(settings::fallback(self.config, &runtime));
        Arc::new(hub)
    }

    /// The port for clients, on the event queue of sessions.
    fn clients_port(
        &self,
        clients: Claim,
        local: Option<LocalClaim>,
        router: Router,
    ) -> Result<Port, NodeError> {
        let _context = self.sessions.enter();
        let mut arrivals = arrivals(incoming::Port::Clients, clients, self.admission)?;
        if let Some(claim) = local {
            arrivals = stream::select(arrivals, self.admission.local(claim.listen()?)).boxed();
        }
        let runtime = self.sessions.runtime(&self.admission.runtime);
        Ok(Port::open(incoming::Port::Clients, arrivals, router, &runtime))
    }
}

impl Node {
    /// Serves until a signal comes, or a part fails that the node needs.
    async fn serve(&mut self, signals: &mut Signals) -> Result<(), NodeError> {
        let lost = select_all(self.ports.iter_mut().map(|port| Box::pin(port.lost())));
        holdfast_runtime::select! {
            signal = signals.next() => {
                tracing::info!(signal, "stopping");
                Ok(())
            }
            fault = fault_of(&self.replica) => Err(fault),
            (Err(error), ..) = lost => Err(error),
        }
    }

    /// Takes the node down; a second signal ends the process at once.
    async fn stop(mut self, mut signals: Signals) {
        let runtime = self.runtime.clone();
        holdfast_runtime::select! {
            signal = signals.next() => {
                let why = format!("{signal} while stopping: ended at once");
                exit::now(Exit::Interrupted, &why)
            }
            ended = runtime.timeout(STOP_WITHIN, self.take_down()) => {
                if ended.is_err() {
                    tracing::warn!("not everything ended in time; it is left behind");
                }
            }
        }
    }

    /// Stops the parts in order. Leadership first, so that clients are served elsewhere at once; then
    /// the streams, which learn where to go; then the replica, which ends the streams of its peers; then
    /// the ports.
    async fn take_down(&mut self) {
        if !self.replica.hand_over(HAND_OVER_WITHIN).await {
            tracing::warn!("nobody took the leadership over in time");
        }
        self.hub.shutdown().await;
        self.replica.shutdown().await;
        for port in self.ports.drain(..) {
            port.close(&self.runtime).await;
        }
        if let Some(history) = self.history.take() {
            // Nothing is applied any more. For two seconds at most.
            history.close();
        }
        tracing::info!("stopped");
    }
}

/// The history of this node, unless it keeps none. One that cannot be opened does not keep a node from serving.
fn history(config: &Config, store: [u8; 16], runtime: &Runtime) -> Option<Arc<History>> {
    let settings = settings::history(config, store)?;
    let opened = History::open(&settings, Arc::clone(&runtime.clock));
    opened.inspect_err(|error| tracing::warn!("this node keeps no history: {error}")).ok()
}

/// How this node calls the other members.
fn network(tls: Option<&NodeTls>) -> GrpcNetwork {
    match tls.and_then(NodeTls::dials) {
        None => GrpcNetwork::new(),
        Some(dials) => GrpcNetwork::over(dial(dials)),
    }
}

/// How it passes clients' calls on to them.
fn links(tls: Option<&NodeTls>) -> Links {
    match tls.and_then(NodeTls::dials) {
        None => Links::new(),
        Some(dials) => Links::over(dial(dials)),
    }
}

fn dial(dials: Dials) -> impl Fn(u64, &Endpoint) -> Channel + Send + Sync {
    let Dials { side, cluster, plain_too } = dials;
    move |id, endpoint| {
        let dialler = Dialler::to_node(side.clone(), cluster.clone(), id, plain_too);
        endpoint.connect_with_connector_lazy(dialler)
    }
}

/// The one node that the other end of a connection has proved to be.
fn proven_node(connection: &Extensions) -> Option<u64> {
    connection.get::<Peer>()?.certificate.as_ref()?.node_name()?.id
}

/// The replica's first fault.
async fn fault_of(replica: &Replica) -> NodeError {
    let mut faults = replica.faults();
    match faults.wait_for(Option::is_some).await.as_deref() {
        Ok(Some(fault)) => fault.clone().into(),
        // The replica is gone: no fault will be reported any more.
        _ => std::future::pending().await,
    }
}

/// How long connections may take to end by themselves.
const CLOSES_WITHIN: Duration = Duration::from_millis(500);

/// The connections of a port that begins to listen. Call it inside the runtime.
///
/// # Errors
///
/// [`ListenError`].
fn arrivals(
    port: incoming::Port,
    claim: Claim,
    admission: &Admission,
) -> Result<BoxStream<'static, io::Result<Wire>>, ListenError> {
    let (key, address) = (claim.key, LocalAddress::Port(claim.address));
    let arrivals = admission.arrivals(port, claim.listen()?);
    let arrivals = arrivals.map_err(|source| ListenError { key, address, source })?;
    Ok(arrivals.into_stream().boxed())
}

/// A gRPC server on its port. Dropping it ends it with all its connections.
#[derive(Debug)]
struct Port {
    whom: &'static str,
    stop: CancellationToken,
    ended: oneshot::Receiver<String>,
    _task: Task,
}

impl Port {
    /// Serves `router` to what arrives.
    fn open(
        port: incoming::Port,
        arrivals: BoxStream<'static, io::Result<Wire>>,
        router: Router,
        runtime: &Runtime,
    ) -> Self {
        let whom = port.name();
        let stop = CancellationToken::new();
        let asked = stop.clone().cancelled_owned();
        let (tell, ended) = oneshot::channel();
        let task = runtime.spawn(whom, async move {
            let served = router.serve_with_incoming_shutdown(arrivals, asked).await;
            let why = served.err().map_or_else(|| "it ended".to_owned(), |error| error.to_string());
            // The receiver is gone if the port was dropped meanwhile.
            let _ = tell.send(why);
        });
        Self { whom, stop, ended, _task: task }
    }

    /// Waits until the port ends without a request to stop. Cancel safe.
    async fn lost(&mut self) -> Result<Infallible, NodeError> {
        let why = (&mut self.ended).await.unwrap_or_else(|_| "its task is gone".to_owned());
        Err(NodeError::PortLost { whom: self.whom, why })
    }

    /// Accepts no new connection and waits until all have ended, but not for long: a paused client
    /// answers nothing, and would delay the stop of the node (I32).
    async fn close(mut self, runtime: &Runtime) {
        self.stop.cancel();
        // Ended or not, its connections are dropped with it.
        let _ = runtime.timeout(CLOSES_WITHIN, &mut self.ended).await;
    }
}

/// SIGHUP, which does not end this process from then on: with TLS it asks for a look at the files, without it
/// does nothing. A supervisor may send it while the data folder is being opened.
fn hangups(events: &tokio::runtime::Runtime) -> Result<Signal, NodeError> {
    let _context = events.enter();
    let signals = signal(SignalKind::hangup());
    signals.map_err(|source| NodeError::System { what: "signal handler", source })
}

/// SIGTERM and SIGINT, from the moment this is made: the first requests a graceful stop, the second ends
/// the process at once.
#[derive(Debug)]
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Starts to catch the signals. Call it inside the runtime.
    fn new() -> Result<Self, NodeError> {
        let listen = |kind| {
            signal(kind).map_err(|source| NodeError::System { what: "signal handler", source })
        };
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    /// The name of the next signal. Cancel safe.
    async fn next(&mut self) -> &'static str {
        holdfast_runtime::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::OpenError;

    /// R3: systemd starts a node again after 70 (`deploy/systemd/holdfastd.service`), not after 73.
    #[test]
    fn a_start_that_lacked_descriptors_is_no_fault_of_the_data_folder() {
        let (action, path) = ("open", PathBuf::from("/data/sled"));
        let source = || io::Error::from(io::ErrorKind::Other);
        let short = OpenError::NoDescriptors { action, path: path.clone(), source: source() };
        assert_eq!(NodeError::from(short).exit(), Exit::Fault);
        let other = OpenError::Inaccessible { action, path, source: source() };
        assert_eq!(NodeError::from(other).exit(), Exit::DataFolder);
    }
}
