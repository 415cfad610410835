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
//! - A connection gives its place back when it is dropped, in whatever task that is.
//!
//! The result is a plain stream of connections, to be wrapped before tonic gets it.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{Stream, stream};
use holdfast_runtime::{BoxFuture, Instant, Runtime};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::transport::server::Connected;

use crate::open_files::Shares;

/// The pause after the first failed accept. It doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause after a failed accept.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// Least time between two log lines about one port.
const LINE_EVERY: Duration = Duration::from_secs(10);

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
}

impl Port {
    /// The kind of peer that connects to this port: for messages, and as the label of metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Clients => "clients",
            Self::Members => "members",
            Self::Admin => "admin",
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
}

impl Admission {
    /// The connections of a port.
    pub fn incoming(&self, port: Port, listener: TcpListener) -> Incoming {
        let Shares { clients, members, admin, reserve: _ } = self.shares;
        let limit = match port {
            Port::Clients => clients,
            Port::Members => members,
            Port::Admin => admin,
        };
        Incoming::new(listener, port, limit, &self.metrics, self.runtime.clone())
    }
}

/// The source of connections: a listener, or a test.
pub trait Accept: Send + 'static {
    /// A connection.
    type Connection: Send;

    /// The next connection. Cancel safe.
    fn accept(&mut self) -> BoxFuture<'_, io::Result<(Self::Connection, SocketAddr)>>;
}

impl Accept for TcpListener {
    type Connection = TcpStream;

    fn accept(&mut self) -> BoxFuture<'_, io::Result<(TcpStream, SocketAddr)>> {
        Box::pin(Self::accept(self))
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
    runtime: Runtime,
}

impl<A: Accept> Incoming<A> {
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
            runtime,
        }
    }

    /// The next connection for which there is a place. Cancel safe.
    async fn next(&mut self) -> (Connection<A::Connection>, SocketAddr) {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.listener.accept().await {
                Ok((connection, from)) => {
                    pause = FIRST_PAUSE;
                    match Arc::clone(&self.places).try_acquire_owned() {
                        Ok(place) => return (self.admitted(connection, place), from),
                        Err(_) => self.refuse(connection),
                    }
                }
                // The client left before its turn.
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    self.put_off(&error);
                    self.runtime.sleep(pause).await;
                    pause = (2 * pause).min(LONGEST_PAUSE);
                }
            }
        }
    }

    fn admitted<S>(&self, stream: S, place: OwnedSemaphorePermit) -> Connection<S> {
        self.open.inc();
        let place = Place { _permit: place, open: self.open.clone() };
        Connection { stream, _place: place }
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

impl Incoming {
    /// The connections in the form that tonic takes. The stream never ends and yields no error.
    pub fn into_stream(self) -> impl Stream<Item = io::Result<Connection<TcpStream>>> + Send {
        stream::unfold(self, async |mut incoming| {
            let (connection, _) = incoming.next().await;
            // Small frames must not wait to be sent together: a client waits for each. A connection that
            // refuses this option is about to end.
            let _ = connection.stream.set_nodelay(true);
            Some((Ok(connection), incoming))
        })
    }
}

impl axum::serve::Listener for Incoming {
    type Io = Connection<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        self.next().await
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
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
    _place: Place,
}

#[derive(Debug)]
struct Place {
    _permit: OwnedSemaphorePermit,
    open: Gauge,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.open.dec();
    }
}

impl<S: Connected> Connected for Connection<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> S::ConnectInfo {
        self.stream.connect_info()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Connection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Connection<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
