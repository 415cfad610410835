//! A world: nodes with their disks, clients, and the network between them, on one machine.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast::{Builder, Client};
use holdfast_core::LockTable;
use holdfast_keyspace::database::Database;
use holdfast_runtime::simulated::{Machine, Process};
use holdfast_runtime::{Instant, Runtime, Transport};
use holdfast_server::authority::FallbackSettings;
use holdfast_server::consensus::Consensus as _;
use holdfast_server::raft::{Replica, ReplicaConfig};
use holdfast_server::session::SessionSettings;
use tokio::sync::oneshot;

use super::clients::{Calls, ClientNetwork, endpoint_of, label_of};
use super::disk::VirtualDisk;
use super::durability_probe::DurabilityProbe;
use super::keyspace::Keyspace;
use super::link::Host;
use super::logs::Logs;
use super::network::Network;
use super::node::{self, Crash, Ended, NodeProcess, Parts, Start, member};
use super::observer::{Expiry, Observer};
use super::rights::{Right, Rights};
use super::trace::Trace;

/// How a world is made.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The random events of its network and disks are drawn from it.
    pub seed: u64,
    /// The number of nodes at the beginning, with ids from 1 on.
    pub nodes: u64,
    /// Settings of each node, apart from its id and the members.
    pub replica: ReplicaConfig,
    /// Settings of each node's session layer.
    pub sessions: SessionSettings,
    /// How nodes keep scopes with fallback: one entry after the other, over nodes and the processes
    /// of each. Empty: not at all.
    pub fallback: Vec<FallbackSettings>,
    /// Records what happens.
    pub trace: Trace,
    /// The keepalives of clients go together with those of others, beside their streams.
    pub keeps_together: bool,
}

impl Settings {
    /// A world of so many nodes with their usual settings.
    pub fn new(seed: u64, nodes: u64) -> Self {
        let replica = ReplicaConfig {
            reserve_bytes: 1 << 20,
            disk_stall_ms: 0,
            ..ReplicaConfig::new(0, Vec::new())
        };
        let (sessions, trace) = (SessionSettings::default(), Trace::default());
        let (fallback, keeps_together) = (Vec::new(), false);
        Self { seed, nodes, replica, sessions, fallback, trace, keeps_together }
    }
}

/// All nodes and clients on one machine. Use it in the future given to [`Machine::run`], not inside
/// tasks; methods take `&self`, so that several parts of that future can share it.
pub struct World<'m> {
    machine: &'m Machine,
    settings: Settings,
    network: Network,
    keyspace: Keyspace,
    nodes: Mutex<BTreeMap<u64, Node>>,
    clients: Mutex<BTreeMap<u64, Process>>,
    observer: Arc<Observer>,
    rights: Rights,
    pledges: Arc<DurabilityProbe>,
    logs: Arc<Logs>,
    last_id: AtomicU64,
    /// The number of processes that were killed while they wrote a snapshot.
    torn_snapshots: AtomicU64,
}

struct Node {
    config: ReplicaConfig,
    disk: VirtualDisk,
    process: Option<Arc<NodeProcess>>,
    starts: u64,
    rate: i32,
    /// The node was removed for ever.
    gone: bool,
}

impl std::fmt::Debug for World<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Drop for World<'_> {
    fn drop(&mut self) {
        self.network.close();
    }
}

impl<'m> World<'m> {
    /// A world whose nodes do not run yet.
    pub fn new(machine: &'m Machine, settings: Settings) -> Self {
        let network = Network::new(&machine.world(), settings.seed, settings.trace.clone());
        Self::on(machine, network, settings)
    }

    /// Another world on the same network: its nodes have disks of their own, and use the same
    /// addresses as this one's while those do not run.
    #[must_use]
    pub fn beside(&self, settings: Settings) -> Self {
        Self::on(self.machine, self.network.clone(), settings)
    }

    fn on(machine: &'m Machine, network: Network, settings: Settings) -> Self {
        let ids: Vec<u64> = (1..=settings.nodes).collect();
        let clock = machine.world().runtime().clock;
        let logs = Arc::new(Logs::new(clock, &settings.replica));
        let made = Self {
            machine,
            settings,
            network,
            keyspace: Keyspace::new(machine),
            nodes: Mutex::default(),
            clients: Mutex::default(),
            observer: Arc::new(Observer::new(machine.world().runtime().clock)),
            rights: Rights::new(machine.world().runtime().clock),
            pledges: Arc::new(DurabilityProbe::new(machine.world().runtime())),
            logs,
            last_id: AtomicU64::new(ids.len() as u64),
            torn_snapshots: AtomicU64::new(0),
        };
        for id in &ids {
            made.put(*id, &ids, false);
        }
        made
    }

    /// As [`new`](Self::new), with every node running and one of them leading.
    pub async fn start(machine: &'m Machine, settings: Settings) -> Self {
        let world = Self::new(machine, settings);
        for id in world.nodes() {
            world.start_node(id).await.unwrap_or_else(|ended| panic!("node {id}: {ended:?}"));
        }
        world.until_led(Duration::from_mins(1)).await.expect("a leader within a minute");
        world
    }

    fn put(&self, id: u64, members: &[u64], join: bool) {
        let members = members.iter().copied().map(member).collect();
        let config = ReplicaConfig { node_id: id, members, join, ..self.settings.replica.clone() };
        let disk = self.empty_disk(id);
        self.pledges.stands_on(id, disk.clone());
        let node = Node { config, disk, process: None, starts: 0, rate: 0, gone: false };
        self.locked().insert(id, node);
    }

    fn empty_disk(&self, id: u64) -> VirtualDisk {
        // Disks get seeds that differ from each other and from the network's.
        let seed = self.settings.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(id);
        let trace = self.settings.trace.clone();
        VirtualDisk::new(Host::Node(id), &self.machine.world(), seed, trace)
    }

    /// The world's own time, tasks and randomness.
    pub fn runtime(&self) -> Runtime {
        self.machine.world().runtime()
    }

    /// The network.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Cassandra.
    pub fn keyspace(&self) -> &Keyspace {
        &self.keyspace
    }

    /// The trace so far.
    pub fn trace(&self) -> &Trace {
        &self.settings.trace
    }

    /// Every node, running or not.
    pub fn nodes(&self) -> Vec<u64> {
        self.locked().iter().filter(|(_, node)| !node.gone).map(|(id, _)| *id).collect()
    }

    /// Nodes whose process runs, and has not ended by itself.
    pub fn running(&self) -> Vec<u64> {
        self.nodes().into_iter().filter(|id| self.is_running(*id)).collect()
    }

    /// Whether a node's process exists.
    pub fn is_running(&self, id: u64) -> bool {
        self.node_process(id).is_some_and(|node_process| node_process.ended().is_none())
    }

    /// Why a node's last process ended; `None` if it runs or never did.
    pub fn ended(&self, id: u64) -> Option<Ended> {
        self.node_process(id)?.ended()
    }

    /// A node's disk.
    pub fn disk(&self, id: u64) -> VirtualDisk {
        self.locked().get(&id).expect("there is such a node").disk.clone()
    }

    /// A running node's replica, for looking at, not for requests.
    pub fn replica(&self, id: u64) -> Option<Arc<Replica>> {
        Some(self.parts(id)?.replica)
    }

    /// Starts a process on a node's disk, and waits until it serves.
    ///
    /// # Errors
    ///
    /// Why it ended before.
    pub async fn start_node(&self, id: u64) -> Result<(), Ended> {
        self.begin_node(id);
        let node_process = self.node_process(id).expect("it was just begun");
        node_process.until_started().await
    }

    /// Makes the empty disk of a node that of the only member of a restored cluster.
    ///
    /// # Errors
    ///
    /// Why that failed.
    pub async fn restore_node(
        &self,
        id: u64,
        cluster: [u8; 16],
        table: &LockTable,
    ) -> Result<(), String> {
        let disk = self.disk(id);
        node::restore(&disk, &self.runtime(), (id, cluster, table)).await
    }

    /// Starts a process on a node's disk. An existing one is killed first.
    pub fn begin_node(&self, id: u64) {
        self.crash(id, Crash::Process);
        let mut nodes = self.locked();
        let node = nodes.get_mut(&id).expect("there is such a node");
        node.starts += 1;
        let process = self.machine.process(&format!("node {id}, start {}", node.starts));
        process.set_rate(node.rate);
        let start = Start {
            config: node.config.clone(),
            sessions: self.settings.sessions.clone(),
            disk: node.disk.clone(),
            network: self.network.clone(),
            fallback: self.fallback_of(id, node.starts),
            observer: Arc::clone(&self.observer),
            pledges: Arc::clone(&self.pledges),
            logs: Arc::clone(&self.logs),
            number: node.starts,
        };
        node.process = Some(NodeProcess::begin(&process, start));
    }

    /// How a process of a node keeps its scopes, and the tables as that node reaches them.
    fn fallback_of(&self, id: u64, start: u64) -> Option<(FallbackSettings, Arc<dyn Database>)> {
        let choices = &self.settings.fallback;
        let chosen = usize::try_from(id + start).unwrap_or(0) % choices.len().max(1);
        choices.get(chosen).map(|terms| (*terms, self.keyspace.reached_by(Host::Node(id))))
    }

    /// Ends a node's process at once. Does nothing if there is none.
    pub fn crash(&self, id: u64, crash: Crash) {
        if let Some(node_process) =
            self.node_process(id).filter(|node_process| node_process.ended().is_none())
        {
            let torn = self.disk(id).has_unfinished_snapshot();
            self.torn_snapshots.fetch_add(u64::from(torn), Ordering::Relaxed);
            node_process.crash(crash);
        }
    }

    /// How many processes were killed while they wrote a snapshot.
    pub fn torn_snapshots(&self) -> u64 {
        self.torn_snapshots.load(Ordering::Relaxed)
    }

    /// Every node loses power at once.
    pub fn power_cut(&self) {
        for id in self.nodes() {
            self.crash(id, Crash::Power);
        }
    }

    /// Asks a node to stop and waits until it has.
    pub async fn stop(&self, id: u64) {
        if let Some(node_process) =
            self.node_process(id).filter(|node_process| node_process.ended().is_none())
        {
            node_process.stop().await;
        }
    }

    /// A node does nothing until it is resumed; its clock runs on.
    pub fn pause(&self, id: u64) {
        if let Some(node_process) = self.node_process(id) {
            node_process.process.pause();
            self.network.set_silent(Host::Node(id), true);
        }
    }

    /// Whether a node is paused, or without power.
    pub fn is_paused(&self, id: u64) -> bool {
        self.network.is_silent(Host::Node(id))
    }

    /// Whether some log was larger than its limit for a while.
    pub fn log_limit_reached(&self) -> bool {
        self.logs.limit_reached()
    }

    /// A paused node continues.
    pub fn resume(&self, id: u64) {
        if let Some(node_process) =
            self.node_process(id).filter(|node_process| node_process.ended().is_none())
        {
            node_process.process.resume();
            self.network.set_silent(Host::Node(id), false);
        }
    }

    /// The clock of a node, and of its later processes, runs this much faster than true time from
    /// now on, parts per million.
    pub fn set_rate(&self, id: u64, faster_by: i32) {
        let mut nodes = self.locked();
        let node = nodes.get_mut(&id).expect("there is such a node");
        node.rate = faster_by;
        if let Some(node_process) = &node.process {
            node_process.process.set_rate(faster_by);
        }
    }

    /// A node's wall clock is ahead of the true one by this much, milliseconds.
    pub fn set_wall_skew(&self, id: u64, milliseconds: i64) {
        if let Some(node_process) = self.node_process(id) {
            node_process.process.set_wall_skew(milliseconds);
        }
    }

    /// A new node with an empty disk, under an id that no node had; it does not run yet. Once it
    /// does, it waits until the leader adds it.
    pub fn new_node(&self) -> u64 {
        let mut ids = self.nodes();
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        ids.push(id);
        self.put(id, &ids, true);
        id
    }

    /// Removes a node for ever, with its disk. One that runs is killed.
    pub fn remove_node(&self, id: u64) {
        self.crash(id, Crash::Process);
        if let Some(node) = self.locked().get_mut(&id) {
            node.gone = true;
        }
    }

    /// The data of a node that does not run is lost. It comes back with an empty folder, and no
    /// member may let it take its place again (I22).
    pub fn wipe(&self, id: u64) {
        self.crash(id, Crash::Process);
        let disk = self.empty_disk(id);
        self.pledges.is_wiped(id);
        if let Some(node) = self.locked().get_mut(&id) {
            node.disk = disk;
        }
    }

    /// Asks the leader to change the members, in a task of its process. `None`: no node leads, or
    /// its process was gone meanwhile.
    pub async fn ask_leader<T, F>(&self, ask: impl FnOnce(Arc<Replica>) -> F) -> Option<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let leader = self.leader()?;
        let (node_process, replica) = (self.node_process(leader)?, self.replica(leader)?);
        in_task_of(&node_process.process, "operator", ask(replica)).await
    }

    /// The node that considers itself the leader; of several, the one with the latest term.
    pub fn leader(&self) -> Option<u64> {
        let tenure = |id: &u64| self.replica(*id)?.role().borrow().tenure();
        let leading = self.running().into_iter().filter_map(|id| Some((tenure(&id)?, id)));
        leading.max().map(|(_, id)| id)
    }

    /// Waits until some node leads; `None` if that takes too long.
    pub async fn until_led(&self, within: Duration) -> Option<u64> {
        let runtime = self.runtime();
        let give_up = runtime.clock.now() + within;
        while runtime.clock.now() < give_up {
            if let Some(leader) = self.leader() {
                return Some(leader);
            }
            runtime.sleep(Duration::from_millis(10)).await;
        }
        None
    }

    /// Looks at every node, and keeps what is wrong ([`violations`](Self::violations)).
    pub fn observe(&self) {
        for id in self.running() {
            if let (Some(node_process), Some(parts)) = (self.node_process(id), self.parts(id)) {
                self.observer.look(id, node_process.number, &parts);
                let is_well = !self.is_paused(id) && self.disk(id).is_well();
                self.logs.look(id, node_process.number, &parts, is_well);
            }
        }
    }

    /// The violations so far, each with its invariant's number.
    pub fn violations(&self) -> Vec<String> {
        let mut found = self.observer.violations();
        found.extend(self.network.votes().broken());
        found.extend(self.pledges.broken());
        found.extend(self.rights.broken());
        found.extend(self.logs.broken());
        found
    }

    /// The sessions that were expired so far.
    pub fn expiries(&self) -> Vec<Expiry> {
        self.observer.expiries()
    }

    /// The versions of the commands in the log, and when the first one of each was applied, true
    /// time.
    pub fn versions(&self) -> Vec<(u16, Instant)> {
        self.observer.versions()
    }

    /// The acknowledgements of leases that clients received so far.
    pub fn rights(&self) -> Vec<Right> {
        self.rights.given()
    }

    /// How many streams of clients were opened or resumed so far.
    pub fn streams_opened(&self) -> u64 {
        self.rights.streams_opened()
    }

    /// Until when the newest session of client `number` is certain, on the true clock; `None` if it
    /// never had one.
    pub fn certain_until(&self, number: u64) -> Option<Instant> {
        self.rights.newest_of(number)
    }

    /// The newest session of client `number` and its lease, and when it was last acknowledged; on the
    /// true clock.
    pub fn last_right(&self, number: u64) -> Option<Right> {
        self.rights.last_of(number)
    }

    /// When client `number` last sent what may renew its lease, true time.
    pub fn last_sign_of(&self, number: u64) -> Option<Instant> {
        self.rights.signed(number)
    }

    /// When a token was granted, true time.
    pub fn granted_at(&self, token: u64) -> Option<Instant> {
        self.observer.granted_at(token)
    }

    /// When each session that was revoked was, true time, and the label of its client.
    pub fn revoked(&self) -> Vec<(Instant, String)> {
        self.observer.revoked()
    }

    /// When each token was granted, true time.
    pub fn grants(&self) -> Vec<(u64, Instant)> {
        self.observer.grants()
    }

    /// How many states nodes took over whole from a leader so far.
    pub fn taken_over(&self) -> u64 {
        self.observer.taken_over()
    }

    /// From when until when, true time, a command had left work for later ones.
    pub fn work_left(&self) -> Vec<(Instant, Option<Instant>)> {
        self.observer.work_left()
    }

    /// A running node's last applied index and its state hash.
    pub fn state_of(&self, id: u64) -> Option<(u64, [u8; 32])> {
        let mut state = None;
        self.replica(id)?.read(&mut |table, index| state = Some((index.get(), table.state_hash())));
        state
    }

    /// The process of client `number`; it is made at the first call, and again after it was killed.
    pub fn client_process(&self, number: u64) -> Process {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let process = clients.entry(number).or_insert_with(|| self.machine.process("client"));
        if !process.is_alive() {
            *process = self.machine.process("client");
            self.network.set_silent(Host::Client(number), false);
        }
        process.clone()
    }

    /// Ends client `number` at once.
    pub fn kill_client(&self, number: u64) {
        self.network.gone(Host::Client(number));
        self.client_process(number).kill();
    }

    /// Client `number` does nothing until it is resumed.
    pub fn pause_client(&self, number: u64) {
        self.network.set_silent(Host::Client(number), true);
        self.client_process(number).pause();
    }

    /// Client `number` continues.
    pub fn resume_client(&self, number: u64) {
        self.network.set_silent(Host::Client(number), false);
        self.client_process(number).resume();
    }

    /// The network as client `number` sees it, and the addresses of the nodes: for messages that
    /// the library would never send.
    pub fn line_of(&self, number: u64) -> (Arc<dyn Transport>, Vec<String>) {
        let transport = self.network_of(number);
        (Arc::new(transport), self.nodes().into_iter().map(endpoint_of).collect())
    }

    /// The unary calls of client `number`, and the addresses of the nodes.
    pub fn calls_of(&self, number: u64) -> (Calls, Vec<String>) {
        let endpoints = self.nodes().into_iter().map(endpoint_of).collect();
        (Calls::of(self.network_of(number)), endpoints)
    }

    /// The builder of client `number`; connect it inside a task of its process.
    pub fn client_builder(&self, number: u64) -> Builder {
        let endpoints: Vec<String> = self.nodes().into_iter().map(endpoint_of).collect();
        let transport = self.network_of(number);
        Client::builder()
            .endpoints(endpoints)
            .label(label_of(number))
            .runtime(self.client_process(number).runtime())
            .transport(Arc::new(transport))
    }

    fn network_of(&self, client: u64) -> ClientNetwork {
        let (network, process) = (self.network.clone(), self.client_process(client));
        let (rights, keeps_together) = (self.rights.clone(), self.settings.keeps_together);
        ClientNetwork { network, client, process, rights, keeps_together }
    }

    /// Connects client `number`.
    ///
    /// # Errors
    ///
    /// As [`Builder::connect`]; [`holdfast::Error::Closed`] if its process was killed meanwhile.
    pub async fn connect(&self, number: u64, ttl: Duration) -> holdfast::Result<Client> {
        let builder = self.client_builder(number).ttl(ttl);
        self.as_client(number, builder.connect()).await.unwrap_or(Err(holdfast::Error::Closed))
    }

    /// Runs `work` as client `number`, in a task of its process; `None` if that was killed
    /// meanwhile.
    pub async fn as_client<T: Send + 'static>(
        &self,
        number: u64,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        in_task_of(&self.client_process(number), "client", work).await
    }

    fn node_process(&self, id: u64) -> Option<Arc<NodeProcess>> {
        self.locked().get(&id)?.process.clone()
    }

    fn parts(&self, id: u64) -> Option<Parts> {
        self.node_process(id).filter(|node_process| node_process.ended().is_none())?.parts()
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<u64, Node>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs `work` in a task of a process; `None` if that was killed meanwhile.
async fn in_task_of<T: Send + 'static>(
    process: &Process,
    name: &'static str,
    work: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    let (tell, told) = oneshot::channel();
    process.runtime().spawn(name, async move { drop(tell.send(work.await)) }).detach();
    told.await.ok()
}
