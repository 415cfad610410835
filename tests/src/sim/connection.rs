//! Connections: frames each way, in order, and every way in which they end.
//!
//! Each end learns by itself that a connection is over: by the other end's reset, if that arrives,
//! or because its keepalives are not answered. Until then its frames are lost. Frames under way to
//! an end that has not yet learned of the end may still arrive there, also after a newer connection
//! was made.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, StreamExt as _};
use holdfast_runtime::{Instant, select};
use tokio::sync::{mpsc, watch};

use super::link::{Host, Part};
use super::network::{Fate, Network};
use super::port::Port;
use super::trace::digest_of;

/// Frames that lie at each end, not yet taken.
const AT_AN_END: usize = 64;
/// Frames under way in one direction; with more, the sender waits.
const UNDER_WAY: usize = 256;
/// How long a caller takes to find that no host answers, if nothing refuses it.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// Bytes of a message that opens, refuses or resets a connection.
const SMALL: usize = 64;

/// What is sent on a connection.
pub(super) trait Frame: Send + Sync + 'static {
    /// The frame as it travels.
    fn bytes(&self) -> Vec<u8>;
}

/// What a caller receives.
pub(super) trait Reply: Frame {
    /// The last frame of a stream whose connection broke.
    fn broken() -> Self;
}

/// One connection, with either kind of frames.
pub(super) struct Connection {
    id: u64,
    caller: Host,
    server: Host,
    ends: watch::Sender<Ends>,
}

/// What the two ends know.
#[derive(Clone, Copy, Default)]
struct Ends {
    caller_told: bool,
    server_told: bool,
    /// Frames to the server arrive until then, and no later ones.
    up_until: Option<Instant>,
    /// Frames to the caller arrive until then, and no later ones.
    down_until: Option<Instant>,
}

impl Connection {
    pub(super) fn has(&self, host: Host) -> bool {
        self.caller == host || self.server == host
    }

    pub(super) fn is_between(&self, one: Host, other: Host) -> bool {
        self.has(one) && self.has(other)
    }

    fn other(&self, host: Host) -> Host {
        if self.caller == host { self.server } else { self.caller }
    }

    /// What `host` sends on it: requests, or answers.
    fn part_of(&self, host: Host) -> Part {
        if self.caller == host { Part::Asked } else { Part::Answered }
    }

    /// `host` learns that it is over.
    pub(super) fn tell(&self, host: Host) {
        self.ends.send_modify(|ends| {
            if host == self.caller {
                ends.caller_told = true;
            } else {
                ends.server_told = true;
            }
        });
    }

    fn knows(&self, ends: Ends, host: Host) -> bool {
        if host == self.caller { ends.caller_told } else { ends.server_told }
    }
}

impl Network {
    /// `by` gives a connection up and sends a reset; the other end learns of it if the reset
    /// arrives.
    pub(super) fn reset(&self, connection: &Arc<Connection>, by: Host) {
        connection.tell(by);
        let other = connection.other(by);
        let way = (by, other, connection.part_of(by));
        let (network, connection) = (self.clone(), Arc::clone(connection));
        match self.send(by, other, SMALL, false) {
            Fate::Arrives(at, _) => self.spawn("reset", async move {
                network.arrive(way, at).await;
                connection.tell(other);
            }),
            // The keepalives there go unanswered from now on, whatever else passes.
            Fate::Lost => self.spawn("keepalive", async move {
                network.until_unanswered().await;
                connection.tell(other);
            }),
        }
    }

    /// Breaks a connection for both ends; some frames under way may arrive before each end notices.
    pub(super) fn break_off(&self, connection: &Arc<Connection>, within: Duration) {
        let now = self.now();
        let (up, down) = (now + self.some_of(within), now + self.some_of(within));
        connection.ends.send_modify(|ends| {
            ends.up_until = Some(up);
            ends.down_until = Some(down);
        });
        for (host, at) in [(connection.server, up), (connection.caller, down)] {
            let (network, connection) = (self.clone(), Arc::clone(connection));
            self.spawn("break", async move {
                network.until(at).await;
                connection.tell(host);
            });
        }
    }

    /// Connects to a node. Once the request arrives there, `serve` runs as a task of its process.
    /// `None`: no process listens, or nothing passes.
    pub(super) async fn dial<U: Frame, D: Reply>(
        &self,
        caller: Host,
        server: u64,
        kind: &'static str,
        serve: impl FnOnce(Port, mpsc::Receiver<U>, mpsc::Sender<D>) -> BoxFuture<'static, ()> + Send,
    ) -> Option<(mpsc::Sender<U>, mpsc::Receiver<D>)> {
        let host = Host::Node(server);
        let port = self.reach(caller, server).await?;
        let connection = self.register(|id| {
            Arc::new(Connection { id, caller, server: host, ends: watch::Sender::default() })
        });
        let at_an_end = self.window(kind).unwrap_or(AT_AN_END);
        let (outgoing, sent_up) = mpsc::channel(at_an_end);
        let (deliver_up, requests) = mpsc::channel(at_an_end);
        let (responses, sent_down) = mpsc::channel(at_an_end);
        let (deliver_down, incoming) = mpsc::channel(at_an_end);
        let up = Way::new(self, &connection, (caller, host), kind).carry(sent_up, deliver_up, None);
        let down = Way::new(self, &connection, (host, caller), kind).carry(
            sent_down,
            deliver_down,
            Some(D::broken()),
        );
        self.spawn("connection", self.clone().keep(connection, up.boxed(), down.boxed()));
        port.runtime.spawn(kind, serve(port.clone(), requests, responses)).detach();
        self.answered(caller, server).await;
        Some((outgoing, incoming))
    }

    /// The way to the node, until the caller's request meets a listening process or none.
    async fn reach(&self, caller: Host, server: u64) -> Option<Port> {
        let host = Host::Node(server);
        let at = match self.send(caller, host, SMALL, false) {
            Fate::Arrives(at, _) if self.hold_on((caller, host, Part::Asked)).is_none() => at,
            _ => {
                self.0.world.sleep(CONNECT_WITHIN).await;
                return None;
            }
        };
        self.until(at).await;
        let port = self.port(server).filter(|_| self.accepts(Host::Node(server)));
        if port.is_none() {
            self.answered(caller, server).await;
        }
        port
    }

    /// The way back.
    async fn answered(&self, caller: Host, server: u64) {
        let host = Host::Node(server);
        let held = self.hold_on((host, caller, Part::Answered)).is_some();
        match self.send(host, caller, SMALL, false) {
            Fate::Arrives(at, _) if !self.is_dark(server) && !held => self.until(at).await,
            _ => self.0.world.sleep(CONNECT_WITHIN).await,
        }
    }

    /// Carries frames both ways until both ends know that the connection is over.
    async fn keep(
        self,
        connection: Arc<Connection>,
        up: BoxFuture<'static, ()>,
        down: BoxFuture<'static, ()>,
    ) {
        let (caller, server) = (connection.caller, connection.server);
        let notices = |host: Host, other: Host| {
            let (network, connection) = (self.clone(), Arc::clone(&connection));
            async move {
                network.until_missed(host, other).await;
                network.reset(&connection, host);
                std::future::pending::<()>().await;
            }
        };
        select! {
            _ = futures_util::future::join(up, down) => {}
            () = notices(caller, server) => {}
            () = notices(server, caller) => {}
        }
        self.forget(connection.id);
    }
}

/// One direction of a connection.
struct Way<T> {
    network: Network,
    connection: Arc<Connection>,
    from: Host,
    to: Host,
    kind: &'static str,
    flying: VecDeque<Flying<T>>,
    /// How many frames are under way at most.
    window: usize,
    /// The sender has sent its last frame.
    ended: bool,
}

/// A frame under way.
struct Flying<T> {
    at: Instant,
    /// A chunk of a snapshot: when it arrives if snapshots stay as slow as they were when it was sent.
    slow: Option<Instant>,
    frame: T,
}

/// What happens next in one direction.
enum Next<T> {
    /// What an end knows has changed.
    Ends,
    /// The sender sends this frame, or has no more.
    Sent(Option<T>),
    /// The first frame under way has arrived.
    Arrived,
    /// The first frame is sent again, and arrives then.
    Again(Instant),
    /// The receiver wants no more frames.
    Unwanted,
}

impl<T: Frame> Way<T> {
    fn new(
        network: &Network,
        connection: &Arc<Connection>,
        (from, to): (Host, Host),
        kind: &'static str,
    ) -> Self {
        let window = network.window(kind).unwrap_or(UNDER_WAY);
        let (network, connection) = (network.clone(), Arc::clone(connection));
        let flying = VecDeque::new();
        Self { network, connection, from, to, kind, flying, window, ended: false }
    }

    /// `last` goes to the receiver when it learns that the connection broke.
    async fn carry(
        mut self,
        mut sent: mpsc::Receiver<T>,
        deliver: mpsc::Sender<T>,
        mut last: Option<T>,
    ) {
        let mut ends = self.connection.ends.subscribe();
        let mut deliver = Some(deliver);
        loop {
            let known = *ends.borrow_and_update();
            let sender_gone = self.connection.knows(known, self.from);
            if self.connection.knows(known, self.to)
                && let Some(receiver) = deliver.take()
            {
                self.flying.clear();
                if let Some(last) = last.take() {
                    // Does not wait for a receiver that takes nothing.
                    let _ = receiver.try_send(last);
                }
            }
            if sender_gone {
                sent.close();
            }
            match (&deliver, sender_gone || self.ended) {
                (None, true) => return,
                (Some(_), _) if self.ended && self.flying.is_empty() => return self.say_so(),
                _ => {}
            }
            let until = self.until(known);
            match self.next(&mut ends, &mut sent, deliver.as_ref(), until, sender_gone).await {
                Next::Ends => {}
                Next::Sent(Some(frame)) => self.take(frame, deliver.is_some()),
                Next::Sent(None) => self.ended = true,
                Next::Arrived => self.arrive(deliver.as_ref()),
                Next::Again(at) => self.delay(at),
                Next::Unwanted => self.unwanted(&mut deliver),
            }
        }
    }

    async fn next(
        &self,
        ends: &mut watch::Receiver<Ends>,
        sent: &mut mpsc::Receiver<T>,
        deliver: Option<&mpsc::Sender<T>>,
        until: Option<Instant>,
        sender_gone: bool,
    ) -> Next<T> {
        let first = self.flying.front().map(|first| (first.at, first.slow));
        let first =
            first.filter(|&(at, slow)| until.is_none_or(|until| slow.max(Some(at)) <= Some(until)));
        let taking = !sender_gone && !self.ended && self.flying.len() < self.window;
        select! {
            _ = ends.changed() => Next::Ends,
            () = closed(deliver) => Next::Unwanted,
            next = self.arrival(first, deliver) => next,
            frame = sent.recv(), if taking => Next::Sent(frame),
        }
    }

    /// Waits until the first frame can be handed over.
    async fn arrival(
        &self,
        first: Option<(Instant, Option<Instant>)>,
        deliver: Option<&mpsc::Sender<T>>,
    ) -> Next<T> {
        let (Some((at, slow)), Some(deliver)) = (first, deliver) else {
            return std::future::pending().await;
        };
        self.network.until(at).await;
        if let Some(slow) = slow {
            self.network.until_slow(slow).await;
        }
        if self.network.is_cut(self.from, self.to) {
            self.network.until_passes(self.from, self.to).await;
            return Next::Again(self.network.now() + self.network.sent_again());
        }
        let way = (self.from, self.to, self.connection.part_of(self.from));
        if let Some(hold) = self.network.hold_on(way) {
            let late = self.network.let_go(way, hold).await;
            return Next::Again(self.network.now() + late);
        }
        self.network.until_read(self.to).await;
        match deliver.reserve().await {
            Ok(_) => Next::Arrived,
            Err(_) => Next::Unwanted,
        }
    }

    fn take(&mut self, frame: T, wanted: bool) {
        let bytes = frame.bytes();
        let arrives = self.network.stream_arrival(self.from, self.to, bytes.len());
        let is_snapshot = self.kind == "snapshot" && arrives.is_some();
        let way = (self.from, self.to);
        let slow = is_snapshot.then(|| self.network.slow_arrival(way, bytes.len())).flatten();
        let (Self { from, to, kind, .. }, id) = (&*self, self.connection.id);
        self.network.note(format_args!("{from}>{to} {kind} #{id} {:016x}", digest_of(&bytes)));
        if wanted {
            let behind = self.flying.back().map(|last| last.at);
            let at = arrives
                .unwrap_or(self.network.now())
                .max(behind.unwrap_or(Instant::from_origin(Duration::ZERO)));
            self.flying.push_back(Flying { at, slow, frame });
        }
    }

    fn arrive(&mut self, deliver: Option<&mpsc::Sender<T>>) {
        if let (Some(first), Some(deliver)) = (self.flying.pop_front(), deliver) {
            // There was room a moment ago, and nothing else sends.
            let _ = deliver.try_send(first.frame);
        }
    }

    fn delay(&mut self, until: Instant) {
        self.flying.iter_mut().for_each(|one| one.at = until.max(one.at));
    }

    /// A caller that no longer listens resets the connection; a server may go on answering.
    fn unwanted(&mut self, deliver: &mut Option<mpsc::Sender<T>>) {
        self.flying.clear();
        *deliver = None;
        if self.to == self.connection.caller {
            self.network.reset(&self.connection, self.to);
        }
    }

    /// The sender was done and all of it arrived. A complete answer ends the call.
    fn say_so(&self) {
        if self.from == self.connection.server {
            self.connection.tell(self.connection.caller);
            self.connection.tell(self.connection.server);
        }
    }

    fn until(&self, known: Ends) -> Option<Instant> {
        if self.to == self.connection.server { known.up_until } else { known.down_until }
    }
}

async fn closed<T>(deliver: Option<&mpsc::Sender<T>>) {
    match deliver {
        Some(deliver) => deliver.closed().await,
        None => std::future::pending().await,
    }
}

/// Forwards what `source` yields until either end is done.
pub(super) async fn pump<T>(mut source: BoxStream<'static, T>, into: &mpsc::Sender<T>) {
    loop {
        select! {
            () = into.closed() => return,
            item = source.next() => match item {
                Some(item) => if into.send(item).await.is_err() { return },
                None => return,
            }
        }
    }
}
