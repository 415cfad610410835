//! A connection as the servers of a port get it: with TLS or without.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use holdfast_tls::Certificate;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use tonic::transport::server::Connected;

use super::{Connection, Counted, Place};

/// A TCP connection that can go from one event queue to another: it is accepted on one, has its handshake on
/// another, and is served on the first.
#[derive(Debug)]
pub(super) struct Socket(Option<TcpStream>);

impl Socket {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self(Some(stream))
    }

    /// Waits for bytes without taking any; the first of them, none at the end.
    pub(super) async fn first_byte(&self) -> io::Result<Option<u8>> {
        let mut first = [0];
        let stream = self.0.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let seen = stream.peek(&mut first).await?;
        Ok((seen > 0).then_some(first[0]))
    }

    /// Goes over to the event queue of the caller. After an error the connection is lost.
    pub(super) fn come_here(&mut self) -> io::Result<()> {
        let stream = self.0.take().ok_or(io::ErrorKind::NotConnected)?;
        self.0 = Some(TcpStream::from_std(stream.into_std()?)?);
        Ok(())
    }

    fn peer(&self) -> Option<SocketAddr> {
        self.0.as_ref().and_then(|stream| stream.peer_addr().ok())
    }

    fn here(self: Pin<&mut Self>) -> io::Result<Pin<&mut TcpStream>> {
        let stream = self.get_mut().0.as_mut();
        stream.map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

macro_rules! here {
    ($socket:ident) => {
        match $socket.here() {
            Ok(stream) => stream,
            Err(error) => return Poll::Ready(Err(error)),
        }
    };
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        here!(self).poll_read(context, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        here!(self).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        here!(self).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        here!(self).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        here!(self).poll_shutdown(context)
    }
}

/// A connection of a port.
#[derive(Debug)]
pub struct Wire {
    stream: Stream,
    peer: Peer,
    _place: Place,
}

type Stream = Either<Either<Box<TlsStream<Socket>>, Socket>, UnixStream>;

/// The other end of a connection, as each call on it is told.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// Where it connects from, over a network.
    pub address: Option<SocketAddr>,
    /// Whether the connection has TLS.
    pub has_tls: bool,
    /// What the certificate says that it has proved to own.
    pub certificate: Option<Arc<Certificate>>,
    /// The user of its process, over a Unix socket.
    pub uid: Option<u32>,
    /// For whom the connection counts.
    pub counted: Arc<Counted>,
}

impl Wire {
    /// Without TLS.
    pub(super) fn plain(connection: Connection<Socket>) -> Self {
        let Connection { stream, place } = connection;
        let peer = Peer { address: stream.peer(), ..Peer::default() };
        Self { stream: Either::Left(Either::Right(stream)), peer, _place: place }
    }

    /// With TLS, and what the other end has shown.
    pub(super) fn tls(stream: TlsStream<Socket>, place: Place, shown: Option<Certificate>) -> Self {
        let address = stream.get_ref().0.peer();
        let certificate = shown.map(Arc::new);
        let peer = Peer { address, has_tls: true, certificate, ..Peer::default() };
        Self { stream: Either::Left(Either::Left(Box::new(stream))), peer, _place: place }
    }

    /// Over a Unix socket: the system says whose process connects.
    ///
    /// # Errors
    ///
    /// The system does not know.
    pub(super) fn local(connection: Connection<UnixStream>) -> io::Result<Self> {
        let Connection { stream, place } = connection;
        let uid = stream.peer_cred()?.uid();
        let peer = Peer { uid: Some(uid), ..Peer::default() };
        Ok(Self { stream: Either::Right(stream), peer, _place: place })
    }

    /// Goes over to the event queue of the caller. After an error the connection is lost.
    pub(super) fn come_here(&mut self) -> io::Result<()> {
        match &mut self.stream {
            Either::Left(Either::Right(socket)) => socket.come_here(),
            Either::Left(Either::Left(stream)) => stream.get_mut().0.come_here(),
            // It never leaves the event queue on which it was accepted.
            Either::Right(_) => Ok(()),
        }
    }
}

impl Connected for Wire {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Wire {
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
