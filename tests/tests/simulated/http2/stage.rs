//! A cluster and its clients on turmoil's hosts, in one thread, and the faults that a test injects
//! into the network between them.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use holdfast::{Builder, Client, Error, GrpcTransport};
use holdfast_fuzz::panics;
use holdfast_runtime::{Instant, Runtime, simulated};
use holdfast_server::raft::ReplicaConfig;
use holdfast_tests::check::Report;
use holdfast_tests::history::{ClientId, Recorder, What};
use holdfast_tests::run::judge;
use holdfast_tests::scribe::Scribe;
use holdfast_tests::sim::member;
use tokio::sync::mpsc;
use turmoil::Sim;

use super::node::{Node, WALL_MS};
use super::wire;

/// The lease in most tests.
pub(super) const TTL: Duration = Duration::from_secs(10);
/// Longer than anything here takes.
pub(super) const LONG: Duration = Duration::from_mins(10);
/// After a cut a connection that lost a segment is stuck: nothing is sent twice here. After this
/// time every keepalive of HTTP/2 has noticed (5 s and 5 s with clients, 3 s and 3 s among
/// members).
pub(super) const STUCK_LINES_ARE_GONE: Duration = Duration::from_secs(12);
/// The longest time until a cluster has a leader.
const LED_WITHIN: Duration = Duration::from_secs(20);
/// How long a job of a client may take, unless a test sets another limit.
const JOB_WITHIN: Duration = Duration::from_mins(2);
/// The time that the clients' clocks show at first.
pub(super) const CLOCKS_BEGIN_AT: Duration = Duration::from_hours(1);
/// How often the states of the nodes are recorded.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The client id of the harness's own records.
const HARNESS: ClientId = ClientId(0);
/// Jobs that may wait at a client's host.
const JOBS: usize = 64;

type Job = Pin<Box<dyn Future<Output = ()>>>;

/// The settings of a stage.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// The random seed of nodes, clients and the network.
    pub(super) seed: u64,
    /// The number of clients, numbered from 1 on.
    pub(super) clients: u64,
    /// The least and the greatest latency of a message, milliseconds.
    pub(super) latency_ms: (u64, u64),
    /// How many segments of one direction of a connection may be under way or unread; as many
    /// connections may wait to be accepted, and turmoil panics beyond that.
    pub(super) segments: usize,
    /// Settings of the nodes, apart from id and members.
    pub(super) replica: ReplicaConfig,
}

impl Settings {
    /// A usual network.
    pub(super) fn new(seed: u64, clients: u64) -> Self {
        let replica = ReplicaConfig { reserve_bytes: 0, ..ReplicaConfig::new(0, Vec::new()) };
        Self { seed, clients, latency_ms: (1, 5), segments: 64, replica }
    }
}

/// Three nodes, clients, and the network between them.
pub(super) struct Stage {
    sim: Sim<'static>,
    nodes: BTreeMap<u64, Arc<Node>>,
    down: BTreeSet<u64>,
    clients: BTreeMap<u64, Host>,
    look_at: Duration,
    panics: u64,
}

/// A client's host.
struct Host {
    jobs: mpsc::Sender<Job>,
    desk: Rc<OnceCell<Desk>>,
}

/// What a client's host provides to its jobs.
#[derive(Clone)]
pub(super) struct Desk {
    /// The client's number.
    pub(super) number: u64,
    /// The host's time, tasks and randomness.
    pub(super) runtime: Runtime,
    /// The client's history. All clients' clocks show the same.
    pub(super) recorder: Recorder,
}

/// The future result of a job.
pub(super) struct Pending<T>(Rc<RefCell<Option<T>>>);

impl<T> Pending<T> {
    pub(super) fn is_done(&self) -> bool {
        self.0.borrow().is_some()
    }
}

impl Desk {
    fn new(number: u64, seed: u64) -> Self {
        let runtime = simulated::runtime(seed ^ (number << 48), WALL_MS);
        Self { number, recorder: Recorder::in_memory(runtime.clock.clone()), runtime }
    }

    /// The settings of the client's library, except for its lease.
    pub(super) fn builder(&self) -> Builder {
        let endpoints: Vec<String> = (1..=3).map(|id| member(id).advertise).collect();
        let transport =
            GrpcTransport::over(self.runtime.clone(), |endpoint| Box::pin(wire::at_once(endpoint)));
        Client::builder()
            .endpoints(endpoints)
            .label(host_of_client(self.number))
            .runtime(self.runtime.clone())
            .transport(Arc::new(transport))
    }

    /// Opens a session that records what it does.
    pub(super) async fn connect(&self, ttl: Duration) -> Result<Scribe, Error> {
        self.connect_as(ClientId(self.number), ttl).await
    }

    /// As [`connect`](Self::connect), under another name in the history.
    pub(super) async fn connect_as(&self, id: ClientId, ttl: Duration) -> Result<Scribe, Error> {
        let client = self.builder().ttl(ttl).connect().await?;
        let scribe = Scribe::of(client, id, self.recorder.clone(), self.runtime.clone());
        scribe.opened(ttl);
        Ok(scribe)
    }
}

pub(super) fn host_of_node(id: u64) -> String {
    format!("node-{id}")
}

pub(super) fn host_of_client(number: u64) -> String {
    format!("client-{number}")
}

impl Stage {
    /// Starts all hosts, and waits until some node leads.
    pub(super) fn set(settings: &Settings) -> Self {
        println!("seed {}", settings.seed);
        panics::count();
        // openraft's random draws, of all nodes: one thread, one order.
        simulated::draw_from(simulated::rng(settings.seed));
        let (least, most) = settings.latency_ms;
        let sim = turmoil::Builder::new()
            .rng_seed(settings.seed)
            .simulation_duration(Duration::from_hours(24))
            .min_message_latency(Duration::from_millis(least))
            .max_message_latency(Duration::from_millis(most))
            .tcp_capacity(settings.segments)
            .enable_random_order()
            .build();
        let mut stage = Self {
            sim,
            nodes: BTreeMap::new(),
            down: BTreeSet::new(),
            clients: BTreeMap::new(),
            look_at: LOOK_EVERY,
            panics: panics::of_this_thread(),
        };
        for id in 1..=3 {
            stage.add_node(id, settings);
        }
        for number in 1..=settings.clients {
            stage.add_client(number, settings.seed);
        }
        stage.until_led();
        stage
    }

    fn add_node(&mut self, id: u64, settings: &Settings) {
        let members = (1..=3).map(member).collect();
        let config = ReplicaConfig { node_id: id, members, ..settings.replica.clone() };
        let node = Arc::new(Node::new(config, settings.seed ^ (id << 40)));
        let lives = node.clone();
        self.sim.host(host_of_node(id), move || lives.clone().live());
        self.nodes.insert(id, node);
    }

    fn add_client(&mut self, number: u64, seed: u64) {
        let (jobs, given) = mpsc::channel::<Job>(JOBS);
        let (given, desk) = (RefCell::new(Some(given)), Rc::new(OnceCell::new()));
        let host = Host { jobs, desk: desk.clone() };
        self.sim.host(host_of_client(number), move || {
            let mut given = given.take().expect("a client has one life");
            let desk = desk.clone();
            async move {
                let _ = desk.set(Desk::new(number, seed));
                while let Some(job) = given.recv().await {
                    tokio::task::spawn_local(job);
                }
                Ok(())
            }
        });
        self.clients.insert(number, host);
    }

    /// Lets a millisecond pass.
    fn step(&mut self) {
        self.sim.step().unwrap_or_else(|error| panic!("a host ended: {error}"));
        let panicked = panics::of_this_thread() > self.panics;
        assert!(!panicked, "a task panicked; above is where");
        if self.sim.elapsed() >= self.look_at {
            self.look_at += LOOK_EVERY;
            for applied in self.nodes.values().filter_map(|node| node.applied()) {
                self.note(applied);
            }
        }
    }

    /// Lets time pass.
    pub(super) fn pass(&mut self, length: Duration) {
        let until = self.sim.elapsed() + length;
        while self.sim.elapsed() < until {
            self.step();
        }
    }

    /// Lets time pass until `done`.
    pub(super) fn until(&mut self, what: &str, within: Duration, done: impl Fn(&mut Self) -> bool) {
        let give_up = self.sim.elapsed() + within;
        while !done(self) {
            assert!(self.sim.elapsed() < give_up, "not within {within:?}: {what}");
            self.step();
        }
    }

    /// The time since the stage was set up.
    pub(super) fn elapsed(&self) -> Duration {
        self.sim.elapsed()
    }

    // --- clients

    /// Begins a job on a client's host.
    pub(super) fn begin<T: 'static, F: Future<Output = T> + 'static>(
        &mut self,
        client: u64,
        job: impl FnOnce(Desk) -> F,
    ) -> Pending<T> {
        let host = &self.clients[&client];
        let outcome = Rc::new(RefCell::new(None));
        let (done, job) = (outcome.clone(), job(host.desk.get().expect("it runs").clone()));
        let job = async move {
            let came_to = job.await;
            done.replace(Some(came_to));
        };
        host.jobs.try_send(Box::pin(job)).expect("a client that takes jobs");
        Pending(outcome)
    }

    /// Lets time pass until a job is done.
    pub(super) fn finish<T>(&mut self, pending: &Pending<T>) -> T {
        self.until("a client's job is done", JOB_WITHIN, |_| pending.is_done());
        pending.0.borrow_mut().take().expect("it is done")
    }

    /// Makes a client do a job, and waits for it.
    pub(super) fn job<T: 'static, F: Future<Output = T> + 'static>(
        &mut self,
        client: u64,
        job: impl FnOnce(Desk) -> F,
    ) -> T {
        let pending = self.begin(client, job);
        self.finish(&pending)
    }

    /// Opens a session on a client's host.
    pub(super) fn connect(&mut self, client: u64, ttl: Duration) -> Scribe {
        self.job(client, |desk| async move { desk.connect(ttl).await.unwrap() })
    }

    // --- nodes

    /// The node that considers itself the leader in the latest term, and that term.
    fn tenure(&self) -> Option<(u64, u64)> {
        self.nodes.iter().filter_map(|(id, node)| Some((node.tenure()?, *id))).max()
    }

    /// The present leader.
    pub(super) fn leader(&self) -> Option<u64> {
        self.tenure().map(|(_, id)| id)
    }

    /// The latest term in which some node leads; 0 if none does.
    pub(super) fn term(&self) -> u64 {
        self.tenure().map_or(0, |(term, _)| term)
    }

    /// Lets time pass until some node leads; returns its id.
    pub(super) fn until_led(&mut self) -> u64 {
        self.until_led_in_a_term_after(0)
    }

    /// Lets time pass until a tenure of a later term has begun; returns its leader.
    pub(super) fn until_led_in_a_term_after(&mut self, term: u64) -> u64 {
        self.until("somebody leads", LED_WITHIN, |stage| stage.term() > term);
        self.leader().expect("somebody leads")
    }

    // --- faults

    fn fault(&self, note: String) {
        self.note(What::Fault { note });
    }

    fn note(&self, what: What) {
        self.note_of(HARNESS, what);
    }

    fn note_of(&self, who: ClientId, what: What) {
        let host = self.clients.values().next().expect("a stage has a client");
        let now = Instant::from_origin(self.sim.elapsed() + CLOCKS_BEGIN_AT);
        let recorder = &host.desk.get().expect("it runs").recorder;
        recorder.write_at(recorder.ns_of(now), who, what);
    }

    /// Whether a node's process is gone.
    pub(super) fn is_down(&self, id: u64) -> bool {
        self.down.contains(&id)
    }

    /// Ends a client's process, as by kill -9.
    pub(super) fn kill_client(&mut self, number: u64) {
        self.note_of(ClientId(number), What::Killed);
        self.sim.crash(host_of_client(number));
    }

    /// Ends a node's process, as by kill -9: its system closes its connections.
    pub(super) fn crash(&mut self, id: u64) {
        self.fault(format!("crash node {id}"));
        self.sim.crash(host_of_node(id));
        self.nodes[&id].died();
        self.down.insert(id);
    }

    /// A node loses its power: its peers learn nothing, and nothing answers for it.
    pub(super) fn power_off(&mut self, id: u64) {
        self.fault(format!("node {id} loses its power"));
        self.cut_off(id);
        self.crash(id);
    }

    /// A node has power again, and starts; it does not know the connections that others still have
    /// to it.
    pub(super) fn power_on(&mut self, id: u64) {
        self.join(id);
        self.start(id);
    }

    /// Starts a node again.
    pub(super) fn start(&mut self, id: u64) {
        self.sim.bounce(host_of_node(id));
        self.down.remove(&id);
    }

    /// Asks a node to stop, as by SIGTERM, and waits until it has.
    pub(super) fn stop(&mut self, id: u64) {
        self.fault(format!("stop node {id}"));
        self.nodes[&id].ask_to_stop();
        let stopped = |stage: &mut Self| !stage.sim.is_host_running(host_of_node(id));
        self.until("the node has stopped", Duration::from_secs(10), stopped);
        self.down.insert(id);
    }

    /// Messages between two hosts are lost.
    pub(super) fn cut(&mut self, one: &str, other: &str) {
        self.fault(format!("cut {one} and {other}"));
        self.sim.partition(one, other);
    }

    /// Messages from one host to the other are lost.
    pub(super) fn cut_one_way(&mut self, from: &str, to: &str) {
        self.fault(format!("cut {from} to {to}"));
        self.sim.partition_oneway(from, to);
    }

    /// Messages between two hosts are held until the link is mended; neither host learns of it.
    pub(super) fn hold(&mut self, one: &str, other: &str) {
        self.fault(format!("hold {one} and {other}"));
        self.sim.hold(one, other);
    }

    /// Restores a link; held messages are delivered, lost ones are not.
    pub(super) fn mend(&mut self, one: &str, other: &str) {
        self.sim.release(one, other);
    }

    fn others(&self, id: u64) -> Vec<String> {
        let nodes = self.nodes.keys().filter(|other| **other != id);
        let clients = self.clients.keys().map(|number| host_of_client(*number));
        nodes.map(|id| host_of_node(*id)).chain(clients).collect()
    }

    /// Cuts a node off from all others, both ways.
    pub(super) fn cut_off(&mut self, id: u64) {
        for other in self.others(id) {
            self.cut(&host_of_node(id), &other);
        }
    }

    /// Holds all messages from and to a node.
    pub(super) fn hold_off(&mut self, id: u64) {
        for other in self.others(id) {
            self.hold(&host_of_node(id), &other);
        }
    }

    /// A node is back on the network.
    pub(super) fn join(&mut self, id: u64) {
        for other in self.others(id) {
            self.mend(&host_of_node(id), &other);
        }
    }

    /// Every message between two hosts takes so long from now on.
    pub(super) fn slow(&mut self, one: &str, other: &str, latency: Duration) {
        self.sim.set_link_latency(one, other, latency);
    }

    // --- the end

    /// Restores all links, starts all nodes, and waits until no connection is stuck any more.
    pub(super) fn heal(&mut self) {
        for id in 1..=3 {
            self.join(id);
            if self.down.contains(&id) {
                self.start(id);
            }
        }
        self.pass(STUCK_LINES_ARE_GONE);
        self.until_led();
        self.note(What::Healed);
    }

    /// Waits until the nodes are in one state, and judges the history.
    pub(super) fn verdict(mut self) -> Report {
        self.until("all nodes are in one state", LED_WITHIN, |stage| {
            let states: BTreeSet<_> = stage.nodes.values().map(|node| node.state()).collect();
            states.len() == 1 && !states.contains(&None)
        });
        let desks = self.clients.values().filter_map(|host| host.desk.get());
        judge(desks.map(|desk| desk.recorder.take()).collect())
    }
}
