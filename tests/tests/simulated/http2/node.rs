//! A node: the parts that `holdfastd` assembles, over turmoil's TCP and a log in memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_core::Tenure;
use holdfast_runtime::{Runtime, Task, select, simulated};
use holdfast_server::consensus::Consensus as _;
use holdfast_server::node::Condition;
use holdfast_server::raft::{GrpcNetwork, MemoryStore, Replica, ReplicaConfig, peer_server};
use holdfast_server::rpc::{
    ClientPort, Forwarding, ForwardingMetrics, Links, RpcSettings, Services,
};
use holdfast_server::session::{Hub, SessionSettings};
use holdfast_tests::history::What;
use tokio::sync::{Notify, watch};
use tonic::transport::server::Router;

use super::wire;

/// The ports in the addresses of `sim::member`, for clients and for members.
const CLIENTS: u16 = 7420;
const MEMBERS: u16 = 7421;
/// What the nodes' wall clocks show at the beginning, Unix milliseconds.
pub(super) const WALL_MS: u64 = 1_700_000_000_000;
/// The times in which `holdfastd` hands over its leadership, stops in any case, and closes its
/// ports.
const HAND_OVER_WITHIN: Duration = Duration::from_secs(5);
const STOP_WITHIN: Duration = Duration::from_secs(9);
const CLOSES_WITHIN: Duration = Duration::from_millis(500);

/// A node over all its processes.
pub(super) struct Node {
    config: ReplicaConfig,
    seed: u64,
    starts: AtomicU64,
    store: Mutex<Arc<MemoryStore>>,
    replica: Mutex<Option<Arc<Replica>>>,
    stop: Notify,
}

/// A port with its server.
struct Port {
    stop: watch::Sender<bool>,
    ended: watch::Receiver<bool>,
    _task: Task,
}

impl Node {
    pub(super) fn new(config: ReplicaConfig, seed: u64) -> Self {
        let store = Mutex::new(Arc::new(MemoryStore::new(config.node_id)));
        Self {
            config,
            seed,
            starts: AtomicU64::default(),
            store,
            replica: Mutex::default(),
            stop: Notify::new(),
        }
    }

    /// The replica of the running process, for looking at.
    pub(super) fn replica(&self) -> Option<Arc<Replica>> {
        locked(&self.replica).clone()
    }

    /// The process is gone.
    pub(super) fn died(&self) {
        let gone = locked(&self.replica).take();
        drop(gone);
    }

    /// Asks the process to stop, as by SIGTERM.
    pub(super) fn ask_to_stop(&self) {
        self.stop.notify_one();
    }

    /// A process from its start to its end; it continues with what the last process's log had made
    /// durable.
    pub(super) async fn live(self: Arc<Self>) -> turmoil::Result {
        let node_process = self.starts.fetch_add(1, Ordering::Relaxed);
        let runtime = simulated::runtime(self.seed.wrapping_add(node_process << 32), WALL_MS);
        let store = self.next_store();
        let network = Arc::new(GrpcNetwork::over(|_, endpoint| wire::lazily(endpoint)));
        let replica = Replica::start(self.config.clone(), store, network, runtime.clone()).await?;
        *locked(&self.replica) = Some(replica.clone());
        let condition = Arc::new(Condition::new(replica.clone(), self.config.patience_ms()));
        let settings = SessionSettings::default();
        let hub = Hub::start(replica.clone(), condition.clone(), settings, runtime.clone());
        let hub = Arc::new(hub);
        let settings = RpcSettings::default();
        let services = Services::new(hub.clone(), condition, replica.clone(), &settings);
        let forwarding = Forwarding {
            peers: replica.clone(),
            links: Links::over(|_, endpoint| wire::lazily(endpoint)),
            metrics: ForwardingMetrics::default(),
        };
        let members = peer_server(replica.peer(), |_| None);
        let taken = ForwardingMetrics::default();
        let members = services.for_members(members, replica.clone(), |_| None, taken);
        let members = Port::open("members", MEMBERS, members, &runtime).await?;
        let ClientPort { router, health: _health, .. } = services.client_port(forwarding)?;
        let clients = Port::open("clients", CLIENTS, router, &runtime).await?;
        self.until_stopped(&replica).await?;
        let take_down = async {
            replica.hand_over(HAND_OVER_WITHIN).await;
            hub.shutdown().await;
            replica.shutdown().await;
            for port in [members, clients] {
                port.close(&runtime).await;
            }
        };
        // Whatever does not end in time is left behind.
        let _ = runtime.timeout(STOP_WITHIN, take_down).await;
        self.died();
        Ok(())
    }

    fn next_store(&self) -> Arc<MemoryStore> {
        let mut store = locked(&self.store);
        *store = Arc::new(store.restarted());
        store.clone()
    }

    /// A node that must not go on ends the run: nothing here damages a disk.
    async fn until_stopped(&self, replica: &Replica) -> turmoil::Result {
        let mut faults = replica.faults();
        select! {
            () = self.stop.notified() => Ok(()),
            fault = faults.wait_for(Option::is_some) => match fault.as_deref() {
                Ok(Some(fault)) => Err(format!("node {}: {fault}", self.config.node_id).into()),
                _ => Ok(()),
            },
        }
    }

    /// Whether this node leads, and in which term.
    pub(super) fn tenure(&self) -> Option<u64> {
        let role = self.replica()?.role();
        let tenure = role.borrow().tenure();
        tenure.map(Tenure::get)
    }

    /// How far it has applied the log, and its state then, as a record of the history.
    pub(super) fn applied(&self) -> Option<What> {
        let (node, mut applied) = (self.config.node_id, None);
        self.replica()?.read(&mut |table, index| {
            let (index, hash) = (index.get(), hex::encode(table.state_hash()));
            applied = Some(What::Applied { node, index, hash, stamp_ms: table.stamp_ms() });
        });
        applied
    }

    /// Its last applied index and its state hash then.
    pub(super) fn state(&self) -> Option<(u64, [u8; 32])> {
        let mut state = None;
        self.replica()?.read(&mut |table, index| state = Some((index.get(), table.state_hash())));
        state
    }
}

impl Port {
    async fn open(
        whom: &'static str,
        port: u16,
        router: Router,
        runtime: &Runtime,
    ) -> std::io::Result<Self> {
        let incoming = wire::listen(port).await?;
        let (stop, mut stopped) = watch::channel(false);
        let (tell, ended) = watch::channel(false);
        let task = runtime.spawn(whom, async move {
            let asked = async move {
                // A failure means that the sender is gone: then the port ends too.
                let _ = stopped.wait_for(|stopped| *stopped).await;
            };
            let served = router.serve_with_incoming_shutdown(incoming, asked).await;
            assert!(served.is_ok(), "the port for {whom} is gone: {served:?}");
            tell.send_replace(true);
        });
        Ok(Self { stop, ended, _task: task })
    }

    async fn close(mut self, runtime: &Runtime) {
        self.stop.send_replace(true);
        let _ = runtime.timeout(CLOSES_WITHIN, self.ended.wait_for(|ended| *ended)).await;
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
