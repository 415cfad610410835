//! The connections of one port: a bounded number, and an accept loop that never spins.
//!
//! tonic's own loop tries again at once when the system has no descriptor left; the connection that
//! cannot be accepted stays, so the loop tries without end and takes a whole core. This loop pauses
//! after such a failure, and a port has a bound far below the process's.
//!
//! # Invariants
//!
//! - At most `limit` connections of the port are open. One more is accepted and closed at once, so that
//!   its client learns it and does not wait in the backlog.
//! - Between two failed accepts lie at least `FIRST_PAUSE`: however long the system is short of
//!   descriptors, the loop tries at most 100 times a second, and soon 10 times.
//! - At a port for clients the connections begin at a pace (`server/src/incoming/pace.rs`); the others wait in the backlog of the
//!   system.
//! - A connection gives its place back when it is dropped, in whatever task that is.
//!
//! A Unix socket counts as a port. A port with TLS has its handshakes on a thread of their own ([`Handshakes`]); what its servers get has proved
//! itself.

mod counted;
mod handshakes;
mod pace;
mod wire;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, TryFutureExt, stream};
use holdfast_mutants::mutant;
use holdfast_runtime::{BoxFuture, Instant, Runtime};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tonic::transport::server::Connected;

pub use self::counted::{ConnectionCounts, Counted};
use self::handshakes::SecuredPort;
pub use self::handshakes::{Handshakes, Security};
use self::pace::Pace;
use self::wire::Socket;
pub use self::wire::{Peer, Wire};
use crate::listen::LocalListener;
use crate::open_files::Shares;
use crate::tls::{CertificateEnds, NodeTls};

/// The pause after the first failed accept. It doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause after a failed accept.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// Least time between two log lines about one port.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// A connection to the admin port whose other end takes nothing for so long is cut.
const UNREAD_FOR_MS: u32 = 30_000;

/// The one label: the port.
type Label = [(&'static str, &'static str); 1];

/// The counters for the connections of all ports.
#[derive(Clone, Debug, Default)]
pub struct ConnectionMetrics {
    /// Connections that are open.
    pub open: Family<Label, Gauge>,
    /// The limit of open connections.
    pub limit: Family<Label, Gauge>,
    /// Connections that were closed because the limit was reached.
    pub refused: Family<Label, Counter>,
    /// Times that the system could not accept a connection, and the loop paused.
    pub put_off: Family<Label, Counter>,
    /// Connections that were closed because they did not prove themselves.
    pub unproven: Family<Label, Counter>,
    /// When the certificates in use run out.
    pub certificate_ends: CertificateEnds,
}

/// A port of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// For clients.
    Clients,
    /// For the other members.
    Members,
    /// For health, readiness and metrics.
    Admin,
    /// The Unix socket, for clients on this machine.
    Local,
}

impl Port {
    /// The kind of peer that connects to this port: for messages, and as the label of metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Clients => "clients",
            Self::Members => "members",
            Self::Admin => "admin",
            Self::Local => "local",
        }
    }
}

/// How many connections the ports of a node accept, and where they are counted. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Admission {
    /// The limits.
    pub shares: Shares,
    /// The counters.
    pub metrics: ConnectionMetrics,
    /// The clock of the pauses.
    pub runtime: Runtime,
    /// TLS of the ports, if they have any.
    pub tls: Option<Arc<NodeTls>>,
    /// Connections of clients that may begin in a second, at each port for clients.
    pub clients_per_second: u64,
}

impl Admission {
    /// The connections of a port, for its servers. Call it on the event queue of `listener`.
    ///
    /// # Errors
    ///
    /// The system does not let the listener go to the thread of handshakes.
    pub fn arrivals(&self, port: Port, listener: TcpListener) -> io::Result<Arrivals> {
        let address = listener.local_addr()?;
        let security = self.tls.as_ref().and_then(|tls| tls.of(port));
        let Some((security, handshakes)) = security else {
            let ready = Ready::Plain(Box::new(self.incoming(port, listener)));
            return Ok(Arrivals { address, ready });
        };
        let incoming = self.incoming(port, listener.into_std()?);
        let unproven = self.metrics.unproven.get_or_create(&[("port", port.name())]).clone();
        let (tell, proven) = Handshakes::proven();
        handshakes.open(SecuredPort { incoming, security, unproven, proven: tell })?;
        Ok(Arrivals { address, ready: Ready::Proven(proven) })
    }

    /// The connections of the Unix socket, as [`Arrivals::into_stream`] has those of a port.
    pub fn local(
        &self,
        listener: LocalListener,
    ) -> impl Stream<Item = io::Result<Wire>> + Send + use<> {
        let incoming = self.incoming(Port::Local, listener);
        stream::unfold(incoming, async |mut incoming| {
            loop {
                // One whose other end the system does not know is closed.
                if let Ok(wire) = Wire::local(incoming.next().await) {
                    return Some((Ok(wire), incoming));
                }
            }
        })
    }

    fn incoming<A>(&self, port: Port, listener: A) -> Incoming<A> {
        let Shares { clients, local, members, admin, reserve: _ } = self.shares;
        let limit = match port {
            Port::Clients => clients,
            Port::Members => members,
            Port::Admin => admin,
            Port::Local => local,
        };
        let incoming = Incoming::new(listener, port, limit, &self.metrics, self.runtime.clone());
        match port {
            Port::Clients | Port::Local => incoming.paced(self.clients_per_second),
            Port::Members | Port::Admin => incoming,
        }
    }
}

/// The source of connections: a listener, or a test.
pub trait Accept: Send + 'static {
    /// A connection.
    type Connection: Send;

    /// The next connection. Cancel safe.
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Self::Connection>>;
}

impl Accept for TcpListener {
    type Connection = TcpStream;

    fn accept(&mut self) -> BoxFuture<'_, io::Result<TcpStream>> {
        Box::pin(Self::accept(self).map_ok(|(stream, _)| stream))
    }
}

impl Accept for LocalListener {
    type Connection = UnixStream;

    fn accept(&mut self) -> BoxFuture<'_, io::Result<UnixStream>> {
        Box::pin(self.listener.accept().map_ok(|(stream, _)| stream))
    }
}

/// The connections of one port.
pub struct Incoming<A = TcpListener> {
    listener: A,
    port: Port,
    limit: u64,
    places: Arc<Semaphore>,
    open: Gauge,
    refused: Counter,
    put_off: Counter,
    refusals: Lines,
    failures: Lines,
    /// None: a connection is accepted as it comes.
    pace: Option<Pace>,
    runtime: Runtime,
}

impl<A> Incoming<A> {
    /// At most `limit` connections of `listener` at a time.
    pub fn new(
        listener: A,
        port: Port,
        limit: u64,
        metrics: &ConnectionMetrics,
        runtime: Runtime,
    ) -> Self {
        let label = [("port", port.name())];
        metrics.limit.get_or_create(&label).set(i64::try_from(limit).unwrap_or(i64::MAX));
        let places = usize::try_from(limit).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Self {
            listener,
            port,
            limit,
            places: Arc::new(Semaphore::new(places)),
            open: metrics.open.get_or_create(&label).clone(),
            refused: metrics.refused.get_or_create(&label).clone(),
            put_off: metrics.put_off.get_or_create(&label).clone(),
            refusals: Lines::default(),
            failures: Lines::default(),
            pace: None,
            runtime,
        }
    }

    /// The same, but only so many begin in a second.
    fn paced(self, per_second: u64) -> Self {
        let pace = Some(Pace::new(per_second, self.runtime.clock.now()));
        Self { pace, ..self }
    }
}

impl Incoming<std::net::TcpListener> {
    /// The same on the event queue of the caller.
    ///
    /// # Errors
    ///
    /// The system does not let it.
    fn on_this_queue(self) -> io::Result<Incoming> {
        let Self { listener, port, limit, places, open, refused, put_off, .. } = self;
        let (refusals, failures, runtime) = (self.refusals, self.failures, self.runtime);
        let (pace, listener) = (self.pace, TcpListener::from_std(listener)?);
        Ok(Incoming {
            listener,
            port,
            limit,
            places,
            open,
            refused,
            put_off,
            refusals,
            failures,
            pace,
            runtime,
        })
    }
}

impl<A: Accept> Incoming<A> {
    /// The next connection for which there is a place. Cancel safe.
    async fn next(&mut self) -> Connection<A::Connection> {
        let mut pause = FIRST_PAUSE;
        loop {
            self.turn().await;
            match self.listener.accept().await {
                Ok(connection) => {
                    pause = FIRST_PAUSE;
                    match Arc::clone(&self.places).try_acquire_owned() {
                        Ok(place) => {
                            self.begins();
                            return self.admitted(connection, place);
                        }
                        Err(_) => self.refuse(connection),
                    }
                }
                // The client left before its turn.
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    self.put_off(&error);
                    if !mutant!(AcceptWithoutPause) {
                        self.runtime.sleep(pause).await;
                    }
                    pause = (2 * pause).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// Waits until another connection may begin. Cancel safe.
    async fn turn(&self) {
        let now = self.runtime.clock.now();
        if let Some(at) = self.pace.as_ref().and_then(|pace| pace.not_before(now)) {
            self.runtime.clock.sleep_until(at).await;
        }
    }

    fn begins(&mut self) {
        if let Some(pace) = &mut self.pace {
            pace.begins(self.runtime.clock.now());
        }
    }

    fn admitted<S>(&self, stream: S, place: OwnedSemaphorePermit) -> Connection<S> {
        self.open.inc();
        let is_admin = matches!(self.port, Port::Admin);
        let place = Place { _permit: place, open: self.open.clone(), is_admin };
        Connection { stream, place }
    }

    fn refuse(&mut self, connection: A::Connection) {
        drop(connection);
        self.refused.inc();
        if let Some(count) = self.refusals.due(self.runtime.clock.now()) {
            let (port, limit) = (self.port.name(), self.limit);
            tracing::warn!(port, "{count} connections refused; {limit} are open, the limit");
        }
    }

    fn put_off(&mut self, error: &io::Error) {
        self.put_off.inc();
        if let Some(count) = self.failures.due(self.runtime.clock.now()) {
            let port = self.port.name();
            tracing::warn!(port, %error, "{count} times no connection could be accepted");
        }
    }
}

/// The connections of one port that its servers get: with TLS those that have proved themselves.
pub struct Arrivals {
    address: SocketAddr,
    ready: Ready,
}

enum Ready {
    Plain(Box<Incoming>),
    Proven(mpsc::Receiver<Wire>),
}

impl Arrivals {
    /// The next connection. Cancel safe but for one that is just handed over, which is closed. Waits without end
    /// if the thread of handshakes is gone, which happens only while the process ends.
    async fn next(&mut self) -> Wire {
        match &mut self.ready {
            Ready::Plain(incoming) => Wire::plain(incoming.next().await.ready()),
            Ready::Proven(proven) => loop {
                let Some(mut wire) = proven.recv().await else { std::future::pending().await };
                // One that cannot be served here is lost.
                if wire.come_here().is_ok() {
                    return wire;
                }
            },
        }
    }

    /// The connections in the form that tonic takes. The stream never ends and yields no error.
    pub fn into_stream(self) -> impl Stream<Item = io::Result<Wire>> + Send {
        stream::unfold(self, async |mut arrivals| Some((Ok(arrivals.next().await), arrivals)))
    }
}

impl axum::serve::Listener for Arrivals {
    type Io = Wire;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Wire, SocketAddr) {
        let wire = self.next().await;
        let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
        let from = wire.connect_info().address.unwrap_or(unknown);
        (wire, from)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

impl fmt::Debug for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arrivals").field("address", &self.address).finish_non_exhaustive()
    }
}

impl<A> fmt::Debug for Incoming<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { port, limit, .. } = self;
        f.debug_struct("Incoming").field("port", port).field("limit", limit).finish_non_exhaustive()
    }
}

/// Whether an accept failed because of that one connection, which is gone: the next may be tried at
/// once. Every other failure may last, above all the lack of descriptors (EMFILE, ENFILE) and of memory
/// (ENOBUFS, ENOMEM).
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// When the next log line may be written, and how many events it has to report.
#[derive(Debug, Default)]
struct Lines {
    last: Option<Instant>,
    untold: u64,
}

impl Lines {
    /// Counts an event; returns how many there were since the last line, if another one is due.
    fn due(&mut self, now: Instant) -> Option<u64> {
        self.untold = self.untold.saturating_add(1);
        if self.last.is_some_and(|last| now < last + LINE_EVERY) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.untold))
    }
}

/// A connection that counts as one of its port until it is dropped.
#[derive(Debug)]
pub struct Connection<S> {
    stream: S,
    place: Place,
}

impl<S> Connection<S> {
    fn map<T>(self, change: impl FnOnce(S) -> T) -> Connection<T> {
        Connection { stream: change(self.stream), place: self.place }
    }
}

impl Connection<TcpStream> {
    /// As its servers are to have it.
    fn ready(self) -> Connection<Socket> {
        self.set_options();
        self.map(Socket::new)
    }

    fn set_options(&self) {
        // Small frames must not wait to be sent together: a client waits for each. A connection that refuses
        // this option is about to end.
        let _ = self.stream.set_nodelay(true);
        // A browser that does not read its live page is cut, and so is a machine that is gone: nothing is kept for either.
        if self.place.is_admin {
            cut_when_unread(&self.stream, UNREAD_FOR_MS);
        }
    }
}

/// Has the system end a connection whose other end takes nothing of what it is sent for `for_ms`. One that is about to end
/// refuses this, which does no harm.
fn cut_when_unread(stream: &TcpStream, for_ms: u32) {
    let _ = rustix::net::sockopt::set_tcp_user_timeout(stream, for_ms);
}

#[derive(Debug)]
struct Place {
    _permit: OwnedSemaphorePermit,
    open: Gauge,
    is_admin: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.open.dec();
    }
}

#[cfg(test)]
mod tests;
