//! What the faults of a run act on: nodes and client processes, each on a host of its own where the
//! machine allows it, and what the harness itself holds meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use holdfast::{Admin, Client};
use holdfast_runtime::Runtime;

use super::Options;
use super::clients::{Clients, Given};
use super::faults::{Clock, LineRelays, set_wall_clock};
use super::kind::{Kind, Need};
use super::pulse::Pulse;
use crate::cluster::{Cluster, Place, Setup};
use crate::draw::Draw;
use crate::history::{ClientId, Recorder, What};
use crate::net::{self, Host};
use crate::packet_relay::TUN;
use crate::resource::Served;
use crate::witness::Witness;

/// A node logs this when it starts.
const STARTED: &str = "INFO holdfast_server::node: holdfastd ";
/// A node logs this only once its data folder is open.
pub(super) const OPENED: &str = " holdfast_server::node::announce: ";

/// The client id of the harness's own records.
const HARNESS: ClientId = ClientId(0);
/// The client id of the witness; its waiter has the next one. Client processes begin far below.
const WITNESS: u64 = 1_000_000_000;
/// How many locks the witness holds.
const WITNESSED: u64 = 20;
/// Machines without a node, for members that join.
const SPARE_MACHINES: usize = 1;
/// Longest time until one change of the members has an outcome.
const CHANGE_WITHIN: Duration = Duration::from_secs(10);
/// Long enough for any run.
const WITNESS_TTL: Duration = Duration::from_hours(23);
/// The disk of a node, bytes, where it is a small one.
const DISK_BYTES: u64 = 256 << 20;
/// What a node on a small disk keeps free.
const RESERVE_BYTES: u64 = 16 << 20;
/// Client hosts are numbered from here, node hosts from 1.
const FIRST_CLIENT_HOST: u8 = 101;
/// How many client processes there are.
const CLIENT_PROCESSES: u8 = 4;
/// The library that shows a process another clock, where Debian installs it.
const FAKETIME: [&str; 2] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
];

/// Packets that were held back by one fault.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeldBack {
    /// The beginning of the fault.
    pub from_ns: u64,
    /// When the last ones were delivered.
    pub until_ns: u64,
    /// The number of packets.
    pub packets: u64,
    /// Live connections that they belonged to.
    pub connections: usize,
    /// Those of them that still lived when the packets were delivered.
    pub lived: usize,
}

/// Everything that a run consists of.
#[derive(Debug)]
pub struct Stage {
    /// The nodes.
    pub cluster: Cluster,
    /// The client processes.
    pub clients: Clients,
    /// Records what the harness does.
    pub recorder: Recorder,
    /// Observes the leader and the nodes' states.
    pub pulse: Pulse,
    /// The source of the run's random draws.
    pub draw: Draw,
    /// The machines' hosts, by the places of their nodes; `None` on loopback.
    pub hosts: Option<Vec<Arc<Host>>>,
    /// The relays before the machines, on loopback.
    pub relays: Vec<LineRelays>,
    /// The library for other clocks, if there is one.
    pub faketime: Option<PathBuf>,
    /// Whether each machine has a disk of its own that can be filled.
    pub small_disks: bool,
    /// Nodes that a fault has in hand: no other fault touches their process, disk or clock.
    pub busy: BTreeSet<usize>,
    /// Violations besides those that the histories show.
    pub wrong: Vec<String>,
    /// The run is over: a fault that is undone now must not go on.
    pub is_ending: bool,
    /// The packets that were held back and delivered.
    pub held: Vec<HeldBack>,
    /// The results of faults with several possible results, and how often each occurred.
    pub outcomes: BTreeMap<(Kind, String), usize>,
    /// The fenced resource.
    pub resource: Served,
    /// The holds and places that were acknowledged before the first fault.
    pub witness: Witness,
    /// The folder with all files of the run.
    pub folder: PathBuf,
    /// The highest id that a node ever had.
    highest_id: u64,
}

impl Stage {
    /// Starts nodes and clients. Reports through `say` what this machine lacks.
    pub async fn set(options: &Options, folder: &Path, seed: u64, say: &dyn Fn(&str)) -> Self {
        let machines = options.nodes + SPARE_MACHINES;
        let hosts = own_hosts(machines, say);
        let small_disks = hosts.is_some() && small_disks(machines, folder, say);
        let faketime = faketime(say);
        let (relays, setup) =
            setup(machines, folder, hosts.as_deref(), small_disks, faketime.clone()).await;
        let mut cluster = Cluster::prepare(&setup);
        for id in (1..=machines as u64).skip(options.nodes) {
            let spare = cluster.prepare_joining(id);
            cluster.retire(spare);
        }
        for index in 0..machines {
            set_wall_clock(folder, index, 0);
            cluster.set_variables(index, Clock::Right.variables(folder, index));
        }
        for index in cluster.members() {
            cluster.start_node(index);
        }
        let leader = cluster.leader().await;
        assert!(cluster.log(leader).contains(OPENED), "an open node no longer logs {OPENED}");
        let recorder =
            Recorder::to_file(Runtime::system().clock, &folder.join("harness.jsonl")).unwrap();
        let leader = &cluster.nodes()[leader].listen;
        let witness = Witness::take_for(WITNESS_TTL, leader, &recorder, WITNESS, WITNESSED).await;
        let own_address =
            if hosts.is_some() { net::harness().to_string() } else { "127.0.0.1".to_owned() };
        let resource = Served::open(&own_address, recorder.clone()).await;
        let given = Given {
            endpoints: cluster.endpoints(),
            resource: resource.address().to_owned(),
            folder: folder.to_path_buf(),
            seed,
        };
        let clients = Clients::start(given, client_hosts(hosts.is_some()));
        let listening = cluster.nodes().iter().map(|node| node.listen.clone()).collect();
        let pulse = Pulse::feel(listening, recorder.clone());
        Self {
            cluster,
            clients,
            recorder,
            pulse,
            draw: Draw::new(seed),
            hosts,
            relays,
            faketime,
            small_disks,
            busy: BTreeSet::new(),
            wrong: Vec::new(),
            is_ending: false,
            held: Vec::new(),
            outcomes: BTreeMap::new(),
            resource,
            witness,
            folder: folder.to_path_buf(),
            highest_id: machines as u64,
        }
    }

    /// Whether this machine supports a kind of fault.
    ///
    /// # Errors
    ///
    /// Why not.
    pub fn can(&self, kind: Kind) -> Result<(), &'static str> {
        match kind.needs() {
            Need::Network | Need::Tun if self.hosts.is_none() => Err("needs a network of its own"),
            Need::Tun if !Path::new(TUN).exists() => Err("needs /dev/net/tun (modprobe tun)"),
            Need::Clocks if self.faketime.is_none() => Err("needs libfaketime"),
            Need::Disks if !self.small_disks => Err("needs a small disk for each node"),
            _ => Ok(()),
        }
    }

    /// Records that a fault is active from now on.
    pub fn note(&self, note: &str) {
        self.recorder.write(HARNESS, What::Fault { note: note.into() });
    }

    /// Records that no fault is active any more.
    pub fn note_healed(&self) {
        self.recorder.write(HARNESS, What::Healed);
    }

    /// Nodes that are members, or about to become members.
    pub fn members(&self) -> Vec<usize> {
        self.cluster.members()
    }

    /// How many of them may be down with a majority left.
    pub fn minority(&self) -> usize {
        self.members().len().saturating_sub(1) / 2
    }

    /// A machine without a node.
    pub fn spare(&self) -> Option<usize> {
        (0..self.cluster.nodes().len()).find(|place| !self.members().contains(place))
    }

    /// Puts a node with a new id on the machine of one that is gone, and starts it. Returns its id.
    pub fn furnish(&mut self, place: usize) -> u64 {
        self.highest_id += 1;
        self.cluster.prepare_again(place, self.highest_id);
        self.cluster.start_node(place);
        self.highest_id
    }

    /// An admin client for changes of the members. Each call ends in time.
    pub fn admin(&self) -> Admin {
        let builder = Client::builder().endpoints(self.cluster.endpoints().split(','));
        builder.admin(CHANGE_WITHIN).expect("they are addresses")
    }

    /// The name of a node.
    pub fn name(&self, node: usize) -> String {
        format!("node {}", self.cluster.nodes()[node].id)
    }

    /// The names of several nodes.
    pub fn names(&self, nodes: &[usize]) -> String {
        let ids: Vec<u64> = nodes.iter().map(|node| self.cluster.nodes()[*node].id).collect();
        format!("nodes {ids:?}")
    }

    /// Nodes that no fault has in hand.
    pub fn idle_nodes(&self) -> Vec<usize> {
        self.members().into_iter().filter(|node| !self.busy.contains(node)).collect()
    }

    /// The leader, if no fault has it in hand.
    pub fn idle_leader(&self) -> Option<usize> {
        self.pulse.leader().filter(|leader| !self.busy.contains(leader))
    }

    /// The leader in half of the cases, otherwise any of these nodes.
    pub fn leader_or_other(&mut self, nodes: &[usize]) -> Option<usize> {
        let leader = self.pulse.leader().filter(|leader| nodes.contains(leader));
        let wanted = self.draw.below(2) == 0;
        leader.filter(|_| wanted).or_else(|| self.draw.one_of(nodes))
    }

    /// The same, of the nodes that no fault has in hand.
    pub fn idle_leader_or_other(&mut self) -> Option<usize> {
        let mut idle = self.idle_nodes();
        // The next check of all processes finds a node that has just ended by itself.
        idle.retain(|node| self.cluster.runs(*node));
        self.leader_or_other(&idle)
    }

    /// Whether a node has opened its data folder since it was started last.
    pub fn has_opened(&self, node: usize) -> bool {
        let log = self.cluster.log(node);
        let since = log.rsplit_once(STARTED).map_or(&*log, |(_, since)| since);
        since.contains(OPENED)
    }

    /// Counts the result of a fault, and records it.
    pub fn came_of(&mut self, kind: Kind, what: &str) {
        self.note(&format!("{}: {what}", kind.name()));
        *self.outcomes.entry((kind, what.to_owned())).or_default() += 1;
    }

    /// A node that no fault has in hand and that does not lead.
    pub fn idle_follower(&mut self) -> Option<usize> {
        let leader = self.pulse.leader();
        let mut idle = self.idle_nodes();
        idle.retain(|node| Some(*node) != leader);
        self.draw.one_of(&idle)
    }

    /// Replaces a client process that has ended because a fault left it too little memory.
    pub fn replace_starved(&mut self, client: usize) {
        if let Some(status) = self.clients.replace_starved(client, &self.recorder) {
            self.came_of(Kind::LittleMemory, &format!("the client process ended with {status}"));
        }
    }

    /// Reports, and restarts, processes that ended although no fault hit them; also reports nodes
    /// in different states.
    pub fn watch_processes(&mut self) {
        for node in self.idle_nodes() {
            if let Some(status) = self.cluster.exited(node) {
                let said = self.cluster.log(node);
                let last = said.lines().last().unwrap_or_default();
                let name = self.name(node);
                self.wrong.push(format!("{name} ended by itself ({status}): {last}"));
                self.cluster.start_node(node);
            }
        }
        self.wrong.extend(self.pulse.take_differences());
        for client in 0..self.clients.count() {
            self.replace_starved(client);
        }
        for ended in self.clients.ended() {
            if !self.wrong.contains(&ended) {
                self.wrong.push(ended);
            }
        }
    }
}

fn own_hosts(machines: usize, say: &dyn Fn(&str)) -> Option<Vec<Arc<Host>>> {
    let laid = net::leave_for_an_own_network(&net::WITH_FAULTS).and_then(|()| {
        let numbers = 1..=u8::try_from(machines).map_err(|error| error.to_string())?;
        numbers.map(|number| Host::new(number).map_err(|error| error.to_string())).collect()
    });
    laid.inspect_err(|why| {
        say(&format!(
            "no network namespaces ({why}): on loopback, with relays; kinds of faults that need \
             more are left out"
        ));
    })
    .ok()
}

fn client_hosts(own_network: bool) -> Vec<Option<Arc<Host>>> {
    (0..CLIENT_PROCESSES)
        .map(|nth| own_network.then(|| Host::new(FIRST_CLIENT_HOST + nth).unwrap()))
        .collect()
}

fn small_disks(machines: usize, folder: &Path, say: &dyn Fn(&str)) -> bool {
    let disk = |id: usize| {
        let disk = folder.join(format!("disk-{id}"));
        std::fs::create_dir_all(&disk).map_err(|error| error.to_string())?;
        net::small_disk(&disk, DISK_BYTES).map_err(|error| error.to_string())
    };
    let mounted: Result<Vec<()>, String> = (1..=machines).map(disk).collect();
    mounted.inspect_err(|why| say(&format!("no small disks ({why}): none will be full"))).is_ok()
}

fn faketime(say: &dyn Fn(&str)) -> Option<PathBuf> {
    let found = FAKETIME.map(PathBuf::from).into_iter().find(|path| path.exists());
    if found.is_none() {
        say("libfaketime is missing (apt-get install libfaketime): no clock will be wrong");
    }
    found
}

async fn setup(
    machines: usize,
    folder: &Path,
    hosts: Option<&[Arc<Host>]>,
    small_disks: bool,
    faketime: Option<PathBuf>,
) -> (Vec<LineRelays>, Setup) {
    let mut setup = Setup::nodes(machines - SPARE_MACHINES).with_power_cuts();
    setup.folder = Some(folder.to_path_buf());
    setup.preload = faketime.into_iter().collect();
    setup = setup.cluster("ttl_max_ms", 24 * 3_600 * 1_000);
    // So small that a machine that was away for a while gets a snapshot, and that snapshots are made.
    setup = setup.node("max_log_bytes", 2 << 20);
    if small_disks {
        setup.node_settings = setup.node_settings.replace("reserve_bytes = 0\n", "");
        setup = setup.node("reserve_bytes", RESERVE_BYTES);
    }
    let mut relays = Vec::new();
    if let Some(hosts) = hosts {
        setup = setup.node("insecure", true);
        setup.places = hosts.iter().map(|host| host.place()).collect();
    } else {
        for _ in 0..machines {
            let mut place = Place::on_loopback();
            relays.push(LineRelays::before(&mut place).await);
            setup.places.push(place);
        }
    }
    (relays, setup)
}
