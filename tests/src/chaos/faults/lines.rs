//! Faults of the connections between programs: cut, lossy, slow, reset.
//!
//! On a network of its own the rules of [`crate::net`] inject them; on loopback a relay
//! before each node's ports does what a relay can.

use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use holdfast_runtime::Runtime;
use tokio::sync::oneshot;

use super::{Broken, Undo};
use crate::chaos::stage::Stage;
use crate::cluster::Place;
use crate::fault::{Delay, Line, Relay};
use crate::net::{Host, NetError, Rule};

/// The ports of a node on its own host, and those of its relay while there is a detour.
const PORTS: [(u16, u16); 2] = [(7420, 17_420), (7421, 17_421)];
/// Long enough that some packet comes over every busy connection, and is answered with a reset.
const RESET_FOR: Duration = Duration::from_millis(400);

/// Relays before a node's two ports.
#[derive(Debug)]
pub struct LineRelays {
    clients: Relay,
    peers: Relay,
}

impl LineRelays {
    /// Puts the relays before the node, so that clients and nodes connect to them.
    pub async fn before(place: &mut Place) -> Self {
        let clients = Relay::before(&place.listen).await;
        let peers = Relay::before(&place.peer_listen).await;
        clients.address().clone_into(&mut place.advertise);
        peers.address().clone_into(&mut place.peer_advertise);
        Self { clients, peers }
    }
}

fn split_for(stage: &mut Stage) -> Duration {
    Duration::from_millis(stage.draw.between(1_000, 10_000))
}

/// No two nodes of different groups receive each other's messages. On loopback no other node
/// receives those of a node in a group of its own.
fn split(stage: &mut Stage, apart: &[(usize, usize)], note: String) -> Broken {
    let lasts = split_for(stage);
    let Some(hosts) = &stage.hosts else {
        let deaf: Vec<usize> = apart.iter().map(|(node, _)| *node).collect();
        for node in &deaf {
            stage.relays[*node].peers.set(Line::Silent);
        }
        return Broken::new(note, lasts, Undo::Mend(deaf));
    };
    let both = apart.iter().flat_map(|&(one, other)| [(one, other), (other, one)]);
    let rules = both.map(|(one, other)| hosts[one].deaf_to(&hosts[other]));
    Broken::new(note, lasts, in_force(rules))
}

/// Fails the run at the first rule that fails, with its reason: it would test less than it claims.
fn in_force(rules: impl IntoIterator<Item = Result<Rule, NetError>>) -> Undo {
    Undo::Lift(all(rules))
}

fn all(rules: impl IntoIterator<Item = Result<Rule, NetError>>) -> Vec<Rule> {
    let made = |rule: Result<Rule, NetError>| {
        rule.unwrap_or_else(|error| panic!("a fault cannot be injected: {error}"))
    };
    rules.into_iter().map(made).collect()
}

pub(super) fn split_a_minority(stage: &mut Stage) -> Option<Broken> {
    let leader = stage.pulse.leader();
    let members = stage.members();
    let mut apart: Vec<usize> =
        members.iter().copied().filter(|node| Some(*node) != leader).collect();
    while apart.len() > stage.minority() {
        let spared = stage.draw.one_of(&apart)?;
        apart.retain(|node| *node != spared);
    }
    let others: Vec<usize> = members.into_iter().filter(|node| !apart.contains(node)).collect();
    let note = stage.names(&apart);
    Some(split(stage, &pairs(&apart, &others), note))
}

fn pairs(these: &[usize], others: &[usize]) -> Vec<(usize, usize)> {
    these.iter().flat_map(|one| others.iter().map(move |other| (*one, *other))).collect()
}

pub(super) fn split_the_majority(stage: &mut Stage) -> Broken {
    let members = stage.members();
    let mut apart = pairs(&members, &members);
    apart.retain(|(one, other)| one < other || stage.hosts.is_none() && one != other);
    split(stage, &apart, "all nodes".into())
}

pub(super) fn split_the_leader(stage: &mut Stage) -> Option<Broken> {
    let leader = stage.pulse.leader()?;
    let mut others = stage.members();
    others.retain(|node| *node != leader);
    let note = stage.name(leader);
    Some(split(stage, &pairs(&[leader], &others), note))
}

/// No other node receives the messages of this one.
pub(super) fn unheard(stage: &Stage, node: usize) -> Vec<Rule> {
    let Some(hosts) = &stage.hosts else { return Vec::new() };
    let mut others = stage.members();
    others.retain(|other| *other != node);
    all(others.into_iter().map(|other| hosts[other].deaf_to(&hosts[node])))
}

/// A client process reaches one node and no other, for longer than any lease it has.
pub(super) fn split_a_client(stage: &mut Stage) -> Option<Broken> {
    let client = usize::try_from(stage.draw.below(stage.clients.count() as u64)).ok()?;
    let reached = stage.leader_or_other(&stage.members())?;
    let lasts = Duration::from_millis(stage.draw.between(5_000, 15_000));
    let (hosts, host) = (stage.hosts.as_ref()?, stage.clients.host(client)?);
    let others = stage.members().into_iter().filter(|node| *node != reached);
    let apart = others.flat_map(|node| {
        let node = &hosts[node];
        [node.deaf_to(host), host.deaf_to(node)]
    });
    let undo = in_force(apart);
    let note = format!("client process {client} reaches only {}", stage.name(reached));
    Some(Broken::new(note, lasts, undo))
}

pub(super) fn split_into_a_ring(stage: &mut Stage) -> Broken {
    let members = stage.members();
    let count = members.len();
    let first = usize::try_from(stage.draw.below(count as u64)).unwrap_or(0);
    // Of three, each is a neighbour of each other.
    let apart: Vec<(usize, usize)> = if count < 4 {
        vec![(first, (first + 1) % count)]
    } else {
        let neighbours = |one: usize, other: usize| other - one == 1 || other - one == count - 1;
        let all = (0..count).flat_map(|one| (one + 1..count).map(move |other| (one, other)));
        all.filter(|&(one, other)| !neighbours(one, other)).collect()
    };
    let apart: Vec<(usize, usize)> =
        apart.into_iter().map(|(one, other)| (members[one], members[other])).collect();
    let named = apart.iter().map(|&(one, other)| stage.names(&[one, other]));
    let note = format!("apart are {}", named.collect::<Vec<_>>().join(", "));
    split(stage, &apart, note)
}

pub(super) fn one_way(stage: &mut Stage) -> Option<Broken> {
    let lasts = split_for(stage);
    let mut members = stage.members();
    let from = stage.draw.one_of(&members)?;
    members.retain(|node| *node != from);
    let to = stage.draw.one_of(&members)?;
    let hosts = stage.hosts.as_ref()?;
    let undo = in_force([hosts[to].deaf_to(&hosts[from])]);
    let note = format!("{} does not hear {}", stage.name(to), stage.name(from));
    Some(Broken::new(note, lasts, undo))
}

/// A node, or a client process, by its host and its name.
fn somebody(stage: &mut Stage) -> Option<(Arc<Host>, String)> {
    let hosts = stage.hosts.as_ref()?;
    let nodes = stage.members().into_iter();
    let mut all: Vec<(Arc<Host>, String)> =
        nodes.map(|node| (hosts[node].clone(), stage.name(node))).collect();
    let clients = (0..stage.clients.count())
        .filter_map(|client| Some((stage.clients.host(client)?.clone(), client)));
    all.extend(clients.map(|(host, client)| (host, format!("client process {client}"))));
    let chosen = usize::try_from(stage.draw.below(all.len() as u64)).ok()?;
    Some(all.swap_remove(chosen))
}

pub(super) fn lose(stage: &mut Stage) -> Option<Broken> {
    let (host, name) = somebody(stage)?;
    let percent = stage.draw.between(5, 50);
    let undo = in_force([host.lose(percent)]);
    Some(Broken::new(format!("{name}: {percent} %"), split_for(stage), undo))
}

pub(super) async fn reset(stage: &mut Stage) -> Option<Broken> {
    if stage.hosts.is_some() {
        let (host, name) = somebody(stage)?;
        return Some(Broken::new(name, RESET_FOR, in_force([host.reset()])));
    }
    let node = stage.draw.one_of(&stage.members())?;
    let LineRelays { clients, peers } = &stage.relays[node];
    tokio::join!(clients.cut_once(), peers.cut_once());
    Some(Broken::new(stage.name(node), Duration::ZERO, Undo::Nothing))
}

pub(super) fn throttle(stage: &mut Stage) -> Option<Broken> {
    let (host, name) = somebody(stage)?;
    let kbit = stage.draw.between(64, 1_024);
    let undo = in_force([host.throttle(kbit)]);
    Some(Broken::new(format!("{name}: {kbit} kbit/s"), split_for(stage), undo))
}

pub(super) async fn delay(stage: &mut Stage) -> Option<Broken> {
    let node = stage.draw.one_of(&stage.members())?;
    let least = stage.draw.below(100);
    let most = least + stage.draw.below(300);
    let delay = Delay { least: Duration::from_millis(least), most: Duration::from_millis(most) };
    let lasts = split_for(stage);
    let undo = if let Some(hosts) = &stage.hosts {
        Undo::Straighten(Detour::begin(&hosts[node], delay).await)
    } else {
        let LineRelays { clients, peers } = &stage.relays[node];
        clients.set_delay(delay);
        peers.set_delay(delay);
        Undo::Mend(vec![node])
    };
    Some(Broken::new(format!("{}: {least} to {most} ms", stage.name(node)), lasts, undo))
}

pub(super) fn lift(rules: Vec<Rule>) {
    for rule in rules {
        rule.lift().unwrap_or_else(|error| panic!("a fault cannot be undone: {error}"));
    }
}

pub(super) fn mend(stage: &Stage, nodes: &[usize]) {
    for node in nodes {
        let LineRelays { clients, peers } = &stage.relays[*node];
        for relay in [clients, peers] {
            relay.set(Line::Open);
            relay.set_delay(Delay::default());
        }
    }
}

/// New connections to a node's ports lead through relays on its own host, which take their time.
/// A thread of its own carries them: it has to be in the host's network.
#[derive(Debug)]
pub(super) struct Detour {
    rules: Vec<Rule>,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Detour {
    async fn begin(host: &Arc<Host>, delay: Delay) -> Self {
        let (stop, stopped) = oneshot::channel();
        let (ready, wait) = mpsc::sync_channel(1);
        let there = host.clone();
        let thread = std::thread::spawn(move || carry(&there, delay, &ready, stopped));
        wait.recv().expect("the relays stand");
        let rules = PORTS.iter().map(|&(port, relay)| host.redirect(port, relay));
        let rules = all(rules);
        // Every client and node reconnects, through the relay.
        let reset = all([host.reset()]);
        Runtime::system().sleep(RESET_FOR / 2).await;
        lift(reset);
        Self { rules, stop, thread }
    }

    pub(super) fn straighten(self) {
        lift(self.rules);
        let _ = self.stop.send(());
        let _ = self.thread.join();
    }
}

fn carry(host: &Host, delay: Delay, ready: &mpsc::SyncSender<()>, stopped: oneshot::Receiver<()>) {
    host.namespace.enter().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut relays = Vec::new();
        for (port, relay) in PORTS {
            let [at, target] = [relay, port].map(|port| format!("{}:{port}", host.address));
            let relay = Relay::at(at, &target).await;
            relay.set_delay(delay);
            relays.push(relay);
        }
        let _ = ready.send(());
        let _ = stopped.await;
    });
}
