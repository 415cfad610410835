//! The virtual network: the hosts on it, the delay of messages, and their loss.
//!
//! Everything here happens on the world's clock and in the world's tasks, whatever the hosts do:
//! messages arrive at a process that is paused, and wait there. The work that a message causes is a
//! task of the receiving process.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_runtime::simulated::Process;
use holdfast_runtime::{Instant, Runtime, select};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::watch;

use super::answers::Answers;
use super::connection::Connection;
use super::link::{Cuts, Hold, Host, Injected, Link, Part};
use super::port::Port;
use super::trace::Trace;
use super::votes::Votes;

/// The range of times for which keepalives of a connection may be missed.
const KEEPALIVE_MIN: Duration = Duration::from_secs(5);
const KEEPALIVE_MAX: Duration = Duration::from_secs(10);
/// The range of times after which TCP sends again.
const SENT_AGAIN_MIN: Duration = Duration::from_millis(200);
const SENT_AGAIN_MAX: Duration = Duration::from_secs(1);
/// Messages that something in between kept arrive within this time after their release: calls in
/// any order, frames of a stream in theirs.
const LET_GO_WITHIN: Duration = Duration::from_millis(20);
/// Kinds of connections: of watches, and of sessions.
pub(super) const WATCH: &str = "watch";
pub(super) const SESSION: &str = "session";
/// The second copy of a call arrives up to this much later.
const SECOND_COPY: Duration = Duration::from_secs(3);

/// The network of one run. Cheap to clone.
#[derive(Clone)]
pub struct Network(pub(super) Arc<Shared>);

pub(super) struct Shared {
    pub(super) world: Runtime,
    state: Mutex<State>,
    /// Notified when a link, or what a host is able to do, has changed.
    changed: watch::Sender<u64>,
    pub(super) trace: Trace,
    /// The votes, as the messages show them.
    pub(super) votes: Votes,
    pub(super) answers: Answers,
}

struct State {
    rng: StdRng,
    usual: Link,
    links: BTreeMap<(Host, Host), Link>,
    cuts: BTreeSet<(Host, Host)>,
    holds: BTreeMap<(Host, Host, Part), Hold>,
    ports: BTreeMap<u64, Port>,
    /// Hosts that answer nothing, not even a keepalive: paused, or without power.
    silent: BTreeSet<Host>,
    connections: BTreeMap<u64, Arc<Connection>>,
    last_connection: u64,
    injected: Injected,
    /// Whether clients prove who they are.
    identities: bool,
    /// When a link of limited capacity is free again.
    busy_until: BTreeMap<(Host, Host), Instant>,
    /// The limits imposed on some hosts.
    short: Short,
}

/// The limits imposed on hosts, and their effect.
#[derive(Default)]
struct Short {
    /// Bytes a second at which snapshots travel.
    snapshot_rate: Option<u64>,
    /// When the path of a snapshot is free again.
    snapshots_until: BTreeMap<(Host, Host), Instant>,
    slowed_chunks: u64,
    /// Nodes that accept no connection.
    accept_nothing: BTreeSet<Host>,
    /// The longest message that a client's decoder takes, bytes.
    decode_limits: BTreeMap<Host, u64>,
    too_long: u64,
    too_long_for: BTreeMap<Host, u64>,
    /// Clients that read nothing from their connections.
    unread: BTreeSet<Host>,
    /// Limits of size that were reached, by name.
    limits: BTreeSet<String>,
    /// How many messages at most are under way on connections of a kind, and lie at each end.
    windows: BTreeMap<&'static str, usize>,
}

/// What happens to a message.
pub(super) enum Fate {
    /// It arrives at the first instant, and again at the second, if any.
    Arrives(Instant, Option<Instant>),
    Lost,
}

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Network").field("injected", &self.injected()).finish_non_exhaustive()
    }
}

impl Network {
    /// A network without hosts. Its random events are drawn from `seed`.
    pub fn new(world: &Process, seed: u64, trace: Trace) -> Self {
        let state = State {
            rng: StdRng::seed_from_u64(seed),
            usual: Link::default(),
            links: BTreeMap::new(),
            cuts: BTreeSet::new(),
            holds: BTreeMap::new(),
            ports: BTreeMap::new(),
            silent: BTreeSet::new(),
            connections: BTreeMap::new(),
            last_connection: 0,
            injected: Injected::default(),
            identities: false,
            busy_until: BTreeMap::new(),
            short: Short::default(),
        };
        Self(Arc::new(Shared {
            world: world.runtime(),
            state: Mutex::new(state),
            changed: watch::Sender::new(0),
            trace,
            votes: Votes::default(),
            answers: Answers::default(),
        }))
    }

    /// Sets every link that has no setting of its own.
    pub fn set_usual(&self, link: Link) {
        self.lock().usual = link;
        self.ring();
    }

    /// Sets one direction between two hosts.
    pub fn set_link(&self, from: Host, to: Host, link: Link) {
        self.lock().links.insert((from, to), link);
        self.ring();
    }

    /// The setting of every link that has none of its own.
    pub fn usual(&self) -> Link {
        self.lock().usual.clone()
    }

    /// Whether some traffic from or to `host` is cut off or held back.
    pub fn is_disturbed(&self, host: Host) -> bool {
        let state = self.lock();
        let cut = state.cuts.iter().any(|(from, to)| *from == host || *to == host);
        cut || state.holds.keys().any(|(from, to, _)| *from == host || *to == host)
    }

    /// How messages pass from one host to another now.
    pub fn link(&self, from: Host, to: Host) -> Link {
        self.lock().link(from, to)
    }

    /// Cuts these directions from now on, besides those that are already cut.
    pub fn cut(&self, cuts: Cuts) {
        self.lock().cuts.extend(cuts);
        self.ring();
    }

    /// Everything passes again as usual. Broken connections stay broken.
    pub fn heal(&self) {
        let mut state = self.lock();
        state.cuts.clear();
        state.holds.clear();
        state.links.clear();
        drop(state);
        self.ring();
    }

    /// Lets these directions pass again.
    pub fn mend(&self, cuts: &Cuts) {
        let mut state = self.lock();
        for cut in cuts {
            state.cuts.remove(cut);
        }
        drop(state);
        self.ring();
    }

    /// Holds back these parts of the traffic in these directions, on calls and on streams, together
    /// with the messages that report the end of a connection. They arrive after
    /// [`release`](Self::release). Connections live, as if their keepalives passed; new ones are
    /// not made.
    pub fn hold(&self, ways: &Cuts, parts: &[Part], hold: Hold) {
        let each = ways.iter().flat_map(|(from, to)| parts.iter().map(|part| (*from, *to, *part)));
        self.lock().holds.extend(each.map(|way| (way, hold)));
        self.ring();
    }

    /// Whatever is held back in these directions arrives.
    pub fn release(&self, ways: &Cuts, parts: &[Part]) {
        let held = |(from, to, part): &(Host, Host, Part)| {
            !(ways.contains(&(*from, *to)) && parts.contains(part))
        };
        self.lock().holds.retain(|way, _| held(way));
        self.ring();
    }

    /// Breaks every connection between `host` and others. Of the messages under way some may
    /// arrive, also after newer connections were made.
    pub fn break_connections(&self, host: Host) {
        for connection in self.connections_of(host) {
            self.lock().injected.broken += 1;
            self.break_off(&connection, SENT_AGAIN_MAX);
        }
    }

    /// Ends every connection between the two, and only `told` learns of it; the other host notices
    /// when its keepalive is not answered.
    pub fn half_open(&self, told: Host, unaware: Host) {
        for connection in self.connections_of(told) {
            if connection.is_between(told, unaware) {
                self.lock().injected.half_open += 1;
                connection.tell(told);
                let network = self.clone();
                self.spawn("keepalive", async move {
                    network.until_unanswered().await;
                    connection.tell(unaware);
                });
            }
        }
    }

    /// Snapshots travel at this rate from now on; `None`: like all else, and what is under way arrives.
    pub fn set_snapshot_rate(&self, bytes: Option<u64>) {
        {
            let short = &mut self.lock().short;
            short.snapshot_rate = bytes;
            short.snapshots_until.clear();
        }
        self.ring();
    }

    /// The number of snapshot chunks that were slowed down.
    pub fn slowed_chunks(&self) -> u64 {
        self.lock().short.slowed_chunks
    }

    /// `host` accepts no connection any more, or does again.
    pub fn refuse_connections(&self, host: Host, refuses: bool) {
        set_member(&mut self.lock().short.accept_nothing, host, refuses);
    }

    /// The decoder of `host` fails on longer messages of a session.
    pub fn set_decode_limit(&self, host: Host, bytes: Option<u64>) {
        let mut state = self.lock();
        match bytes {
            Some(bytes) => drop(state.short.decode_limits.insert(host, bytes)),
            None => drop(state.short.decode_limits.remove(&host)),
        }
    }

    /// How many messages have come so far that the decoder of this client fails on.
    pub fn too_long_for(&self, host: Host) -> u64 {
        self.lock().short.too_long_for.get(&host).copied().unwrap_or(0)
    }

    /// The number of messages that a decoder failed on.
    pub fn too_long(&self) -> u64 {
        self.lock().short.too_long
    }

    /// `host` reads nothing from its connections any more, or does again; they live on.
    pub fn set_unread(&self, host: Host, unread: bool) {
        set_member(&mut self.lock().short.unread, host, unread);
        self.ring();
    }

    /// Sets how many messages to a watcher are under way, and lie at each end, from now on: as with
    /// flow control, so that a client with many events receives them over a while.
    pub fn set_watch_window(&self, messages: usize) {
        self.lock().short.windows.insert(WATCH, messages.max(1));
    }

    /// The same for streams of sessions.
    pub fn set_session_window(&self, messages: usize) {
        self.lock().short.windows.insert(SESSION, messages.max(1));
    }

    /// Clients prove who they are on their streams, from now on.
    pub fn identify_clients(&self) {
        self.lock().identities = true;
    }

    pub(super) fn has_identities(&self) -> bool {
        self.lock().identities
    }

    /// The size limits for which some request was refused, by name.
    pub fn limits(&self) -> BTreeSet<String> {
        self.lock().short.limits.clone()
    }

    /// The faults injected so far.
    pub fn injected(&self) -> Injected {
        self.lock().injected
    }

    /// The votes so far, as the messages show them.
    pub fn votes(&self) -> &Votes {
        &self.0.votes
    }

    /// The answers of members so far.
    pub fn answers(&self) -> &Answers {
        &self.0.answers
    }

    /// The number of open connections of a host.
    pub fn connections(&self, host: Host) -> usize {
        self.connections_of(host).len()
    }

    /// A node serves from now on. Connections of an earlier process of it are reset.
    pub(super) fn open_port(&self, node: u64, port: Port) {
        let before = self.connections_of(Host::Node(node));
        let mut state = self.lock();
        state.ports.insert(node, port);
        state.silent.remove(&Host::Node(node));
        drop(state);
        for connection in before {
            self.reset(&connection, Host::Node(node));
        }
        self.ring();
    }

    /// The process of `host` is gone, and its system resets every connection.
    pub(super) fn gone(&self, host: Host) {
        if let Host::Node(id) = host {
            self.lock().ports.remove(&id);
        }
        for connection in self.connections_of(host) {
            self.reset(&connection, host);
        }
        self.ring();
    }

    /// `host` is without power: its peers learn nothing.
    pub(super) fn dark(&self, host: Host) {
        if let Host::Node(id) = host {
            self.lock().ports.remove(&id);
        }
        self.lock().silent.insert(host);
        for connection in self.connections_of(host) {
            connection.tell(host);
        }
        self.ring();
    }

    /// Closes the network at the end of a run: it and what it contains would keep each other alive.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        let ports = std::mem::take(&mut state.ports);
        drop(state);
        drop(ports);
    }

    /// Whether `host` answers keepalives.
    pub(super) fn set_silent(&self, host: Host, silent: bool) {
        let mut state = self.lock();
        if silent {
            state.silent.insert(host);
        } else {
            state.silent.remove(&host);
        }
        drop(state);
        self.ring();
    }

    /// Whether `host` answers nothing now.
    pub(super) fn is_silent(&self, host: Host) -> bool {
        self.lock().silent.contains(&host)
    }

    /// Whether a node has no power.
    pub(super) fn is_dark(&self, node: u64) -> bool {
        let state = self.lock();
        !state.ports.contains_key(&node) && state.silent.contains(&Host::Node(node))
    }

    pub(super) fn port(&self, node: u64) -> Option<Port> {
        self.lock().ports.get(&node).cloned()
    }

    /// Sends a message of `length` bytes, if it can arrive; returns what happens to it.
    pub(super) fn send(&self, from: Host, to: Host, length: usize, twice: bool) -> Fate {
        let now = self.now();
        let mut state = self.lock();
        state.injected.messages += 1;
        let link = state.link(from, to);
        if link.cut {
            state.injected.cut += 1;
            return Fate::Lost;
        }
        if state.happens(link.lost_per_million) {
            state.injected.lost += 1;
            return Fate::Lost;
        }
        let arrives = state.arrival(now, from, to, &link, length);
        let second = (twice && state.happens(link.twice_per_million)).then(|| {
            state.injected.twice += 1;
            arrives + state.below(SECOND_COPY)
        });
        Fate::Arrives(arrives, second)
    }

    /// When a message on a stream arrives: a lost one is sent again. `None` while it is cut off.
    pub(super) fn stream_arrival(&self, from: Host, to: Host, length: usize) -> Option<Instant> {
        let now = self.now();
        let mut state = self.lock();
        state.injected.messages += 1;
        let link = state.link(from, to);
        if link.cut {
            state.injected.cut += 1;
            return None;
        }
        let arrives = state.arrival(now, from, to, &link, length);
        if !state.happens(link.lost_per_million) {
            return Some(arrives);
        }
        state.injected.lost += 1;
        Some(arrives + state.between(SENT_AGAIN_MIN, SENT_AGAIN_MAX))
    }

    /// When a chunk of a snapshot arrives, where snapshots are slow: behind the chunks before it.
    pub(super) fn slow_arrival(&self, way: (Host, Host), length: usize) -> Option<Instant> {
        let now = self.now();
        let mut state = self.lock();
        let short = &mut state.short;
        let rate = short.snapshot_rate?;
        short.slowed_chunks += 1;
        let nanos = (length as u64).saturating_mul(1_000_000_000) / rate.max(1);
        let free = short.snapshots_until.entry(way).or_insert(now);
        *free = now.max(*free) + Duration::from_nanos(nanos);
        Some(*free)
    }

    /// Waits until `at`, or until snapshots travel like all else again: a line that is mended delivers what lay on it.
    pub(super) async fn until_slow(&self, at: Instant) {
        let mended = self.until_that(|state| state.short.snapshot_rate.is_none());
        select! {
            () = self.until(at) => {}
            () = mended => {}
        }
    }

    /// How many messages on this kind of connection may lie at an end, and be under way.
    pub(super) fn window(&self, kind: &str) -> Option<usize> {
        self.lock().short.windows.get(kind).copied()
    }

    pub(super) fn accepts(&self, host: Host) -> bool {
        !self.lock().short.accept_nothing.contains(&host)
    }

    /// Whether the decoder of `host` takes a message of this length.
    pub(super) fn decodes(&self, host: Host, length: usize) -> bool {
        let mut state = self.lock();
        let limit = state.short.decode_limits.get(&host);
        let takes = limit.is_none_or(|limit| length as u64 <= *limit);
        state.short.too_long += u64::from(!takes);
        *state.short.too_long_for.entry(host).or_default() += u64::from(!takes);
        takes
    }

    /// Waits until `host` reads what has arrived.
    pub(super) async fn until_read(&self, host: Host) {
        if self.lock().short.unread.contains(&host) {
            self.until_that(|state| !state.short.unread.contains(&host)).await;
        }
    }

    /// Notes that a limit of size was reached.
    pub fn reached(&self, limit: &str) {
        if !limit.is_empty() {
            self.lock().short.limits.insert(limit.to_owned());
        }
    }

    /// How long TCP takes to send again.
    pub(super) fn sent_again(&self) -> Duration {
        self.lock().between(SENT_AGAIN_MIN, SENT_AGAIN_MAX)
    }

    /// A random duration below `bound`.
    pub(super) fn some_of(&self, bound: Duration) -> Duration {
        self.lock().below(bound)
    }

    pub(super) fn is_cut(&self, from: Host, to: Host) -> bool {
        self.lock().link(from, to).cut
    }

    pub(super) fn now(&self) -> Instant {
        self.0.world.clock.now()
    }

    pub(super) async fn until(&self, at: Instant) {
        self.0.world.clock.sleep_until(at).await;
    }

    /// Waits until a message due at `at` arrives, however long it is held back.
    pub(super) async fn arrive(&self, way: (Host, Host, Part), at: Instant) {
        self.until(at).await;
        while let Some(hold) = self.hold_on(way) {
            let late = self.let_go(way, hold).await;
            self.0.world.sleep(late).await;
        }
    }

    /// Whether traffic in that direction is held back.
    pub(super) fn hold_on(&self, way: (Host, Host, Part)) -> Option<Hold> {
        self.lock().holds.get(&way).copied()
    }

    /// Waits until the traffic held back is released; returns how much later the message arrives.
    pub(super) async fn let_go(&self, way: (Host, Host, Part), hold: Hold) -> Duration {
        self.until_that(|state| !state.holds.contains_key(&way)).await;
        let mut state = self.lock();
        state.injected.held += 1;
        match hold {
            Hold::Kept => state.below(LET_GO_WITHIN),
            Hold::Outlived => state.between(SENT_AGAIN_MIN, SENT_AGAIN_MAX),
        }
    }

    /// Waits until nothing cuts `from` off from `to`.
    pub(super) async fn until_passes(&self, from: Host, to: Host) {
        self.until_that(|state| !state.link(from, to).cut).await;
    }

    /// Waits until `host` has missed keepalives of `other` for as long as it tolerates.
    pub(super) async fn until_missed(&self, host: Host, other: Host) {
        let well = move |state: &mut State| state.hears(host, other);
        loop {
            self.until_that(move |state| !well(state)).await;
            select! {
                () = self.until_that(well) => {}
                () = self.0.world.sleep(self.wait()) => return self.note_missed(),
            }
        }
    }

    /// Waits until unanswered keepalives have been missed for long enough.
    pub(super) async fn until_unanswered(&self) {
        self.0.world.sleep(self.wait()).await;
        self.note_missed();
    }

    /// How long keepalives may be missed.
    fn wait(&self) -> Duration {
        self.lock().between(KEEPALIVE_MIN, KEEPALIVE_MAX)
    }

    fn note_missed(&self) {
        self.lock().injected.missed += 1;
    }

    async fn until_that(&self, holds: impl Fn(&mut State) -> bool) {
        let mut changed = self.0.changed.subscribe();
        loop {
            changed.borrow_and_update();
            if holds(&mut self.lock()) {
                return;
            }
            // The sender lives as long as this network.
            let _ = changed.changed().await;
        }
    }

    /// Starts a task of the world, which no process can hold up.
    pub(super) fn spawn(
        &self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        self.0.world.spawn(name, task).detach();
    }

    pub(super) fn register(&self, connect: impl FnOnce(u64) -> Arc<Connection>) -> Arc<Connection> {
        let mut state = self.lock();
        state.last_connection += 1;
        let id = state.last_connection;
        let connection = connect(id);
        state.connections.insert(id, Arc::clone(&connection));
        connection
    }

    pub(super) fn forget(&self, connection: u64) {
        self.lock().connections.remove(&connection);
    }

    pub(super) fn note(&self, line: std::fmt::Arguments<'_>) {
        self.0.trace.note(self.now().since_origin(), line);
    }

    fn connections_of(&self, host: Host) -> Vec<Arc<Connection>> {
        let state = self.lock();
        state.connections.values().filter(|connection| connection.has(host)).cloned().collect()
    }

    fn ring(&self) {
        self.0.changed.send_modify(|count| *count += 1);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn set_member(hosts: &mut BTreeSet<Host>, host: Host, is: bool) {
    if is {
        hosts.insert(host);
    } else {
        hosts.remove(&host);
    }
}

impl State {
    fn link(&self, from: Host, to: Host) -> Link {
        let mut link = self.links.get(&(from, to)).unwrap_or(&self.usual).clone();
        link.cut |= self.cuts.contains(&(from, to));
        link
    }

    /// Whether `other` answers the keepalives of `host`.
    fn hears(&self, host: Host, other: Host) -> bool {
        !self.silent.contains(&other) && !self.link(host, other).cut && !self.link(other, host).cut
    }

    fn arrival(
        &mut self,
        now: Instant,
        from: Host,
        to: Host,
        link: &Link,
        length: usize,
    ) -> Instant {
        let mut delay = self.between(link.delay_min, link.delay_max);
        if self.happens(link.spikes_per_million) {
            self.injected.delayed += 1;
            delay += self.below(link.spike);
        }
        let Some(rate) = link.bytes_per_second else { return now + delay };
        let nanos = (length as u64).saturating_mul(1_000_000_000) / rate.max(1);
        let free = self.busy_until.entry((from, to)).or_insert(now);
        *free = now.max(*free) + Duration::from_nanos(nanos);
        *free + delay
    }

    fn happens(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.rng.random_range(0..1_000_000) < per_million
    }

    fn between(&mut self, least: Duration, most: Duration) -> Duration {
        least + self.below(most.saturating_sub(least))
    }

    fn below(&mut self, bound: Duration) -> Duration {
        let bound = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(if bound == 0 { 0 } else { self.rng.random_range(0..bound) })
    }
}
