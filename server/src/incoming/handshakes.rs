//! TLS handshakes, on a thread of their own: a handshake signs and verifies, and the thread of Raft has no
//! time for that. The ports with TLS are accepted from there too, so that the thread of Raft learns of a
//! connection only once it has proved itself: a flood of others costs it nothing.
//!
//! # Invariants
//!
//! - At most [`Bounds::at_once`] handshakes are under way. One more ends the one that has lasted longest: whoever
//!   opens connections and says nothing cannot keep out those that do, as one that speaks is through in two
//!   round trips.
//! - A handshake has [`Bounds::within`] to end.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use holdfast_runtime::{Runtime, select};
use holdfast_tls::{HandshakeError, ServerSide};
use prometheus_client::metrics::counter::Counter;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};

use super::wire::Wire;
use super::{Connection, Incoming, Lines, Port};

/// How many handshakes there may be, and for how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Handshakes under way.
    pub(super) at_once: usize,
    /// How long one may take.
    pub(super) within: Duration,
}

const BOUNDS: Bounds = Bounds { at_once: 1_024, within: Duration::from_secs(5) };
/// Connections that have proved themselves, on their way to the servers of a port.
const QUEUED: usize = 256;
/// Ports on their way to the thread: a node has three.
const PORTS: usize = 8;
/// The first byte of TLS: a record of a handshake.
const TLS_BEGINS: u8 = 22;

/// TLS of one port.
#[derive(Clone, Debug)]
pub struct Security {
    /// Certificate, key and whom they let in.
    pub side: Arc<ServerSide>,
    /// Connections without TLS are let in too: while a cluster and its clients go over to TLS.
    pub plain_too: bool,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("it took longer than {} s", .0.as_secs_f32())]
    TooLong(Duration),
    #[error("{0} others began after it")]
    GaveWay(usize),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A port whose connections have to prove themselves.
pub(super) struct SecuredPort {
    /// Its listener comes from another event queue.
    pub(super) incoming: Incoming<std::net::TcpListener>,
    pub(super) security: Security,
    pub(super) unproven: Counter,
    /// Where those go that have; the port is closed once nobody takes them.
    pub(super) proven: mpsc::Sender<Wire>,
}

/// The thread. It ends when nothing can reach it any more.
#[derive(Clone, Debug)]
pub struct Handshakes {
    ports: mpsc::Sender<SecuredPort>,
}

impl Handshakes {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// The system gives no thread or no event queue.
    pub fn start(runtime: Runtime) -> io::Result<Self> {
        Self::bounded(BOUNDS, runtime)
    }

    /// As [`Handshakes::start`], with other bounds.
    pub(super) fn bounded(bounds: Bounds, runtime: Runtime) -> io::Result<Self> {
        let events = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (ports, opened) = mpsc::channel(PORTS);
        let thread = std::thread::Builder::new().name("holdfast-tls".to_owned());
        thread.spawn(move || events.block_on(serve(opened, bounds, runtime)))?;
        Ok(Self { ports })
    }

    /// The way of a port's proven connections.
    pub(super) fn proven() -> (mpsc::Sender<Wire>, mpsc::Receiver<Wire>) {
        mpsc::channel(QUEUED)
    }

    /// Accepts the connections of a port from now on.
    ///
    /// # Errors
    ///
    /// The thread is gone, or has too many ports.
    pub(super) fn open(&self, port: SecuredPort) -> io::Result<()> {
        let sent = self.ports.try_send(port);
        sent.map_err(|_| io::Error::other("the thread of TLS takes no port any more"))
    }
}

async fn serve(mut opened: mpsc::Receiver<SecuredPort>, bounds: Bounds, runtime: Runtime) {
    let under_way = Arc::new(Mutex::new(UnderWay { bounds, begun: 0, ends: BTreeMap::new() }));
    while let Some(port) = opened.recv().await {
        runtime_spawn(accept_all(port, Arc::clone(&under_way), runtime.clone()));
    }
}

/// Accepts until nobody takes the connections any more.
async fn accept_all(port: SecuredPort, under_way: Arc<Mutex<UnderWay>>, runtime: Runtime) {
    let SecuredPort { incoming, security, unproven, proven } = port;
    let name = incoming.port;
    let mut incoming = match incoming.on_this_queue() {
        Ok(incoming) => incoming,
        // Only an event queue without sockets says so.
        Err(error) => {
            tracing::error!(port = name.name(), %error, "the port cannot be listened on");
            return;
        }
    };
    let failures = Arc::new(Mutex::new(Lines::default()));
    loop {
        let connection = select! {
            () = proven.closed() => return,
            connection = incoming.next() => connection,
        };
        let begun = Begun {
            port: name,
            security: security.clone(),
            unproven: unproven.clone(),
            failures: failures.clone(),
            proven: proven.clone(),
        };
        runtime_spawn(begun.prove(connection, under_way.clone(), runtime.clone()));
    }
}

/// A handshake that has begun.
struct Begun {
    port: Port,
    security: Security,
    unproven: Counter,
    failures: Arc<Mutex<Lines>>,
    proven: mpsc::Sender<Wire>,
}

impl Begun {
    async fn prove(
        self,
        connection: Connection<TcpStream>,
        under_way: Arc<Mutex<UnderWay>>,
        runtime: Runtime,
    ) {
        let Bounds { at_once, within } = lock(&under_way).bounds;
        let (number, give_way) = lock(&under_way).begin();
        let outcome = select! {
            _ = give_way => Err(Failed::GaveWay(at_once)),
            outcome = runtime.timeout(within, prove(connection, &self.security)) => {
                outcome.unwrap_or(Err(Failed::TooLong(within)))
            }
        };
        lock(&under_way).ended(number);
        match outcome {
            // If the port is gone, nobody wants the connection.
            Ok(wire) => drop(self.proven.send(wire).await),
            Err(failed) => self.failed(&failed, &runtime),
        }
    }

    fn failed(&self, failed: &Failed, runtime: &Runtime) {
        self.unproven.inc();
        let mut lines = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = lines.due(runtime.clock.now()) {
            let port = self.port.name();
            tracing::warn!(port, error = %failed, "{count} connections did not prove themselves by TLS");
        }
    }
}

/// On the thread of handshakes: no runtime of a simulation comes here.
#[expect(clippy::disallowed_methods, reason = "this thread has an event queue of its own")]
fn runtime_spawn(handshake: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(handshake);
}

fn lock(under_way: &Mutex<UnderWay>) -> std::sync::MutexGuard<'_, UnderWay> {
    under_way.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The handshakes under way, in the order in which they began.
struct UnderWay {
    bounds: Bounds,
    begun: u64,
    ends: BTreeMap<u64, oneshot::Sender<()>>,
}

impl UnderWay {
    /// One more; its number, and what tells it to give way.
    fn begin(&mut self) -> (u64, oneshot::Receiver<()>) {
        if self.ends.len() >= self.bounds.at_once {
            // Dropped, it tells the oldest one.
            let _ = self.ends.pop_first();
        }
        let (end, give_way) = oneshot::channel();
        self.begun += 1;
        self.ends.insert(self.begun, end);
        (self.begun, give_way)
    }

    fn ended(&mut self, number: u64) {
        let _ = self.ends.remove(&number);
    }
}

async fn prove(connection: Connection<TcpStream>, security: &Security) -> Result<Wire, Failed> {
    let Connection { stream: socket, place } = connection.ready();
    if security.plain_too && socket.first_byte().await? != Some(TLS_BEGINS) {
        return Ok(Wire::plain(Connection { stream: socket, place }));
    }
    let (stream, shown) = security.side.accept(socket).await?;
    Ok(Wire::tls(stream, place, shown))
}
