//! A node of the world: its disk, and the process that runs on it, if any.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_core::LockTable;
use holdfast_keyspace::database::{Database, Tables};
use holdfast_runtime::simulated::Process;
use holdfast_runtime::{Runtime, select};
use holdfast_server::authority::FallbackSettings;
use holdfast_server::node::Condition;
use holdfast_server::raft::{Fault, Member, Replica, ReplicaConfig, ReplicaStore, found_restored};
use holdfast_server::rpc::lock_calls;
use holdfast_server::session::{Hub, SessionSettings};
use holdfast_server::storage::{
    ClusterId, Ground, LogStore, SegmentSizes, Snapshots, Store, StoreOptions,
};
use tokio::sync::{Notify, watch};

use super::clients::endpoint_of;
use super::disk::{Mount, VirtualDisk};
use super::durability_probe::DurabilityProbe;
use super::link::Host;
use super::logs::Logs;
use super::network::Network;
use super::observer::Observer;
use super::peers::NodeNetwork;
use super::port::Port;
use super::tap::Tapped;
use super::tree::FileTree;

/// Where a node's data lies on its disk.
pub const DATA: &str = "/data";
/// How long `holdfastd` takes at most to hand over its leadership when it stops.
const HAND_OVER_WITHIN: Duration = Duration::from_secs(5);
/// Small files, so that a run fills many.
pub(super) const SEGMENTS: SegmentSizes = SegmentSizes { first: 4 << 10, largest: 32 << 10 };
/// After this time `holdfastd` stops in any case.
const STOP_WITHIN: Duration = Duration::from_secs(9);
/// How long `holdfastd` waits for tasks that it leaves behind.
const LEFT_BEHIND_WITHIN: Duration = Duration::from_millis(500);

/// Why a process of a node ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was killed, or lost its power.
    Killed,
    /// It was asked to stop, and stopped.
    Stopped,
    /// It did not open its data folder, or did not start on it; with its message.
    Refused(String),
    /// A write or sync failed, and it ended at once, as `holdfastd` does.
    Storage(String),
    /// Its replica stopped.
    Fault(Fault),
}

/// How a process ends without being asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// As by kill -9: everything that it wrote is there, and its connections are reset.
    Process,
    /// With the power: whatever was not synced is lost, and its peers learn nothing.
    Power,
}

/// One process of a node.
pub(super) struct NodeProcess {
    pub(super) process: Process,
    pub(super) number: u64,
    host: Host,
    disk: VirtualDisk,
    network: Network,
    pledges: Arc<DurabilityProbe>,
    parts: Mutex<Option<Parts>>,
    started: watch::Sender<bool>,
    ended: watch::Sender<Option<Ended>>,
    stop: Notify,
}

/// The parts that can be observed from outside.
#[derive(Clone)]
pub(super) struct Parts {
    pub(super) replica: Arc<Replica>,
    pub(super) log: Arc<LogStore>,
    pub(super) snapshots: Arc<Snapshots>,
}

/// Everything a process needs to start.
pub(super) struct Start {
    pub(super) config: ReplicaConfig,
    pub(super) sessions: SessionSettings,
    pub(super) disk: VirtualDisk,
    pub(super) network: Network,
    /// How it keeps scopes with fallback, if it does.
    pub(super) fallback: Option<(FallbackSettings, Arc<dyn Database>)>,
    pub(super) observer: Arc<Observer>,
    pub(super) pledges: Arc<DurabilityProbe>,
    pub(super) logs: Arc<Logs>,
    pub(super) number: u64,
}

/// The member entry of node `id`.
pub fn member(id: u64) -> Member {
    Member { node_id: id, advertise: endpoint_of(id), peer_advertise: format!("node-{id}:7421") }
}

/// What a store stands on.
fn ground(disk: &VirtualDisk, mount: Mount, runtime: &Runtime) -> Ground {
    let tree = mount.clone();
    Ground {
        disk: Arc::new(mount),
        open_tree: Box::new(move |path| Ok(Box::new(FileTree::open(&tree, path)?))),
        segments: SEGMENTS,
        pace: disk.pace(),
        runtime: runtime.clone(),
    }
}

/// Makes an empty disk that of the first member of a restored cluster, as `holdfastd restore` does.
pub(super) async fn restore(
    disk: &VirtualDisk,
    runtime: &Runtime,
    (id, cluster, table): (u64, [u8; 16], &LockTable),
) -> Result<(), String> {
    let ground = ground(disk, disk.mount(), runtime);
    let options = StoreOptions {
        node_id: id,
        cluster: None,
        new_store_id: cluster,
        on_fault: Arc::new(|_| ()),
        stalls_after: None,
    };
    let store = Store::open_simulated(Path::new(DATA), options, ground);
    let store = store.map_err(|error| error.to_string())?;
    let made = found_restored(&store, ClusterId(cluster), table, &member(id)).await;
    drop(store);
    disk.unmount();
    made.map_err(|error| error.to_string())
}

impl NodeProcess {
    /// Starts a process. Whether the start succeeds shows later.
    pub(super) fn begin(process: &Process, start: Start) -> Arc<Self> {
        let host = Host::Node(start.config.node_id);
        start.network.set_silent(host, false);
        let mount = start.disk.mount();
        let node_process = Arc::new(Self {
            process: process.clone(),
            number: start.number,
            host,
            disk: start.disk.clone(),
            network: start.network.clone(),
            pledges: Arc::clone(&start.pledges),
            parts: Mutex::default(),
            started: watch::Sender::new(false),
            ended: watch::Sender::new(None),
            stop: Notify::new(),
        });
        let living = Arc::clone(&node_process).live(start, mount, process.runtime());
        process.runtime().spawn("main", living).detach();
        let (network, ending) = (node_process.network.clone(), Arc::clone(&node_process));
        network.spawn("the system", async move { ending.clean_up().await });
        node_process
    }

    /// Waits until it serves, or has ended.
    pub(super) async fn until_started(&self) -> Result<(), Ended> {
        let (mut started, mut ended) = (self.started.subscribe(), self.ended.subscribe());
        select! {
            _ = started.wait_for(|started| *started) => Ok(()),
            _ = ended.wait_for(Option::is_some) => Err(self.ended().unwrap_or(Ended::Killed)),
        }
    }

    /// Why it ended, if it did.
    pub(super) fn ended(&self) -> Option<Ended> {
        self.ended.borrow().clone()
    }

    pub(super) fn parts(&self) -> Option<Parts> {
        self.locked().clone()
    }

    pub(super) fn crash(&self, crash: Crash) {
        match crash {
            Crash::Process => self.network.gone(self.host),
            Crash::Power => self.network.dark(self.host),
        }
        self.end(Ended::Killed);
        self.vanish();
        if crash == Crash::Power {
            self.disk.lose_power();
        }
    }

    /// Asks it to stop, as by SIGTERM, and waits until it has.
    pub(super) async fn stop(&self) {
        self.stop.notify_one();
        // The sender is a field of this very process.
        let _ = self.ended.subscribe().wait_for(Option::is_some).await;
    }

    /// The first reason counts.
    fn end(&self, why: Ended) {
        self.ended.send_if_modified(|ended| {
            let first = ended.is_none();
            if first {
                *ended = Some(why);
            }
            first
        });
    }

    fn vanish(&self) {
        self.disk.unmount();
        // Not while the mutex is held: the destructors may lock it.
        let parts = self.locked().take();
        self.process.kill();
        drop(parts);
    }

    /// Does what the system does with a process that has ended by itself.
    async fn clean_up(&self) {
        // The sender is a field of this very process.
        let _ = self.ended.subscribe().wait_for(Option::is_some).await;
        if self.process.is_alive() {
            self.network.gone(self.host);
            self.vanish();
        }
    }

    /// The process from its start to its end.
    async fn live(self: Arc<Self>, start: Start, mount: Mount, runtime: Runtime) {
        let ended = match self.start(start, mount, &runtime).await {
            Err(refused) => refused,
            Ok((replica, hub)) => {
                self.started.send_replace(true);
                let why = self.serve(&replica).await;
                // Whatever does not end in time is left behind, as in `holdfastd`.
                let _ = runtime.timeout(STOP_WITHIN, self.take_down(&replica, &hub)).await;
                drop((replica, hub));
                runtime.sleep(LEFT_BEHIND_WITHIN).await;
                why
            }
        };
        self.end(ended);
    }

    /// Starts like `holdfastd`: folder, replica, sessions, ports.
    async fn start(
        self: &Arc<Self>,
        start: Start,
        mount: Mount,
        runtime: &Runtime,
    ) -> Result<(Arc<Replica>, Arc<Hub>), Ended> {
        let Start { config, sessions, network, fallback, observer, logs, .. } = start;
        let (node, patience_ms) = (config.node_id, config.patience_ms());
        let stalls_after = config.stalls_after();
        let store = self.open_store(node, mount, runtime, stalls_after).map_err(Ended::Refused)?;
        let (log, snapshots) = (store.log(), store.snapshots());
        let peers = NodeNetwork { network: network.clone(), node, runtime: runtime.clone(), logs };
        let store: Arc<dyn ReplicaStore> = Arc::new(store);
        let replica = Replica::start(config, store, Arc::new(peers), runtime.clone())
            .await
            .map_err(|error| Ended::Refused(error.to_string()))?;
        let condition = Arc::new(Condition::new(replica.clone(), patience_ms));
        let tapped = Arc::new(Tapped { replica: replica.clone(), node, observer });
        let hub = Arc::new(Hub::start(tapped, condition.clone(), sessions, runtime.clone()));
        if let Some((terms, database)) = fallback {
            let tables = Tables::new(database, runtime.clock.clone());
            hub.keep_scopes(Some((terms, Arc::new(tables))));
        }
        let port = Port {
            runtime: runtime.clone(),
            peer: replica.peer(),
            hub: hub.clone(),
            calls: lock_calls(hub.clone(), condition),
            pledges: Arc::clone(&self.pledges),
        };
        network.open_port(node, port);
        *self.locked() = Some(Parts { replica: replica.clone(), log, snapshots });
        Ok((replica, hub))
    }

    fn open_store(
        self: &Arc<Self>,
        node_id: u64,
        mount: Mount,
        runtime: &Runtime,
        stalls_after: Option<Duration>,
    ) -> Result<Store, String> {
        let mut new_store_id = [0; 16];
        runtime.rng.fill(&mut new_store_id);
        let node_process = Arc::downgrade(self);
        let on_fault = Arc::new(move |fault: holdfast_server::storage::Fault| {
            if let Some(node_process) = node_process.upgrade() {
                node_process.disk.unmount();
                node_process.end(Ended::Storage(fault.to_string()));
            }
        });
        let ground = ground(&self.disk, mount, runtime);
        let options = StoreOptions { node_id, cluster: None, new_store_id, on_fault, stalls_after };
        let store = Store::open_simulated(Path::new(DATA), options, ground)
            .map_err(|error| error.to_string())?;
        self.pledges.opened(node_id, &store);
        Ok(store)
    }

    /// Serves until it is asked to stop, or has to.
    async fn serve(&self, replica: &Replica) -> Ended {
        let mut faults = replica.faults();
        select! {
            () = self.stop.notified() => Ended::Stopped,
            fault = faults.wait_for(Option::is_some) => match fault.as_deref() {
                Ok(Some(fault)) => Ended::Fault(fault.clone()),
                _ => Ended::Stopped,
            },
        }
    }

    /// Stops like `holdfastd`.
    async fn take_down(&self, replica: &Replica, hub: &Hub) {
        replica.hand_over(HAND_OVER_WITHIN).await;
        hub.shutdown().await;
        replica.shutdown().await;
        self.network.gone(self.host);
        drop(self.locked().take());
    }

    fn locked(&self) -> MutexGuard<'_, Option<Parts>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
