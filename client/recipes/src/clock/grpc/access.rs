//! How a time service and its clients prove to each other who they are.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::ready;
use futures_util::{Stream, StreamExt as _, stream};
use holdfast::{Bearer, Tls};
use holdfast_runtime::Runtime;
use holdfast_tls::{Admits, CredentialFiles, Credentials, OwnFiles, ServerSide};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::service::Interceptor;
use tonic::transport::server::Connected;
use tonic::{Request, Status};

use crate::{Error, Result};

/// Connections of a port: far more than there are clients of a time service, and few enough for the descriptors
/// of a process.
pub(super) const CONNECTIONS_MAX: usize = 512;
/// Handshakes under way.
const HANDSHAKES_MAX: usize = 256;
/// How long a handshake may take.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);

/// How clients reach the replicas of a time service. Default: without TLS, and as nobody in particular.
#[derive(Clone, Debug, Default)]
#[must_use = "it does nothing until a TimeClient has it"]
pub struct TimeAccess {
    pub(super) tls: Option<Tls>,
    pub(super) token: Bearer,
}

impl TimeAccess {
    /// Speaks TLS with the replicas. The files are read when the client is made.
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Shows this token with every request, without the white space around it. Use TLS, except on loopback: a
    /// thief of the token can do what its owner can.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] for a token that cannot be sent.
    pub fn token(mut self, token: &str) -> Result<Self> {
        self.token = Bearer::new(token)?;
        Ok(self)
    }
}

/// TLS of a replica's port, with certificates that may be replaced while it serves.
#[derive(Clone, Debug)]
pub(super) struct PortTls {
    credentials: Arc<Credentials>,
    side: Arc<ServerSide>,
    runtime: Runtime,
}

impl PortTls {
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] for a file that cannot be used.
    pub(super) fn load(cert: PathBuf, key: PathBuf, clients: Option<PathBuf>) -> Result<Self> {
        let runtime = Runtime::system();
        let invalid = |message: String| Error::InvalidConfig { message };
        let admits = if clients.is_some() { Admits::Certified } else { Admits::Anybody };
        let files = CredentialFiles { own: Some(OwnFiles { cert, key }), ca: clients };
        let credentials = Credentials::load(files, runtime.clock.wall());
        let credentials = credentials.map_err(|error| invalid(error.to_string()))?;
        let credentials = Arc::new(credentials);
        let side = ServerSide::new(credentials.clone(), admits, &["h2"]);
        let side = side.map_err(|error| invalid(error.to_string()))?;
        Ok(Self { credentials, side: Arc::new(side), runtime })
    }

    /// `None`: the client did not prove itself.
    async fn prove(
        self,
        connection: TcpStream,
    ) -> Option<impl AsyncRead + AsyncWrite + Unpin + Send + use<>> {
        // What was good before is good until something better is there.
        let _ = self.credentials.reload(self.runtime.clock.wall());
        let accepted = self.runtime.timeout(HANDSHAKE_LIMIT, self.side.accept(connection)).await;
        match accepted {
            Ok(Ok((secured, _))) => Some(secured),
            Ok(Err(error)) => {
                tracing::debug!(%error, "a client of the time service did not prove itself");
                None
            }
            Err(_) => None,
        }
    }
}

/// The connections of `listener`, at most `limit` at a time: one more is closed at once. With
/// `tls`, those that have proved themselves; the others are closed.
pub(super) fn connections(
    listener: TcpListener,
    tls: Option<PortTls>,
    limit: usize,
) -> impl Stream<Item = io::Result<Served>> {
    let accepted = stream::unfold(listener, async |listener| {
        let connection = listener.accept().await.map(|(connection, _)| connection);
        Some((connection, listener))
    });
    let places = Arc::new(Semaphore::new(limit));
    let runtime = Runtime::system();
    let begun = accepted
        .map(move |connection| begin(connection, places.clone(), tls.clone(), runtime.clone()));
    begun.buffer_unordered(HANDSHAKES_MAX).filter_map(ready).map(Ok)
}

async fn begin(
    connection: io::Result<TcpStream>,
    places: Arc<Semaphore>,
    tls: Option<PortTls>,
    runtime: Runtime,
) -> Option<Served> {
    let connection = match connection {
        Ok(connection) => connection,
        Err(error) => {
            tracing::warn!(%error, "a connection cannot be accepted");
            // As where there are no descriptors: trying at once would only spin.
            runtime.sleep(Duration::from_millis(100)).await;
            return None;
        }
    };
    let place = places.try_acquire_owned().ok()?;
    // A connection that refuses this option is about to end.
    let _ = connection.set_nodelay(true);
    Some(match tls {
        None => Served::new(connection, place),
        Some(tls) => Served::new(tls.prove(connection).await?, place),
    })
}

/// A connection, with or without TLS. It keeps its place until it is dropped.
pub(super) struct Served {
    stream: Pin<Box<dyn Bytes>>,
    _place: OwnedSemaphorePermit,
}

trait Bytes: AsyncRead + AsyncWrite + Send {}

impl<S: AsyncRead + AsyncWrite + Send> Bytes for S {}

impl Served {
    fn new(stream: impl Bytes + 'static, place: OwnedSemaphorePermit) -> Self {
        Self { stream: Box::pin(stream), _place: place }
    }
}

impl Connected for Served {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Served {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_read(cx, into)
    }
}

impl AsyncWrite for Served {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream.as_mut().poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_shutdown(cx)
    }
}

/// Lets in whoever shows the token; everybody if there is none.
#[derive(Clone, Default)]
pub(super) struct Doorkeeper(Option<[u8; 32]>);

impl Doorkeeper {
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] for a token that no client can send.
    pub(super) fn demanding(token: &str) -> Result<Self> {
        Bearer::new(token)?;
        Ok(Self(Some(hash(token.trim()))))
    }
}

/// Never the token.
impl fmt::Debug for Doorkeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Doorkeeper(token)" } else { "Doorkeeper(everybody)" })
    }
}

impl Interceptor for Doorkeeper {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let Some(demanded) = self.0 else { return Ok(request) };
        let shown = request.metadata().get("authorization").and_then(|shown| shown.to_str().ok());
        // Hashes, so that the time of the comparison tells nothing of the token.
        match shown.and_then(|shown| shown.strip_prefix("Bearer ")).map(hash) {
            Some(shown) if shown == demanded => Ok(request),
            Some(_) => Err(Status::unauthenticated("it does not take this token")),
            None => Err(Status::unauthenticated("it wants a token, and none was shown")),
        }
    }
}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token).into()
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[tokio::test]
    async fn one_connection_more_than_the_limit_is_closed_and_an_ended_one_makes_room() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut accepted = Box::pin(connections(listener, None, 1));
        let first = TcpStream::connect(address).await.unwrap();
        let served = accepted.next().await.unwrap().unwrap();

        let next = async { accepted.next().await.unwrap().unwrap() };
        let closed_and_ended = async {
            let mut second = TcpStream::connect(address).await.unwrap();
            assert_eq!(second.read(&mut [0]).await.unwrap(), 0, "it is closed");
            // Its client keeps its own end open.
            drop(served);
            loop {
                let mut another = TcpStream::connect(address).await.unwrap();
                let mut byte = [0];
                let read = another.read(&mut byte);
                if Runtime::system().timeout(Duration::from_millis(100), read).await.is_err() {
                    drop(first);
                    return;
                }
            }
        };
        let limit = Duration::from_mins(1);
        let both = async { tokio::join!(next, closed_and_ended) };
        assert!(Runtime::system().timeout(limit, both).await.is_ok(), "it has room again");
    }
}
