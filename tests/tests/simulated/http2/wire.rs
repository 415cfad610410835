//! Turmoil's TCP beneath tonic: the connections that a server accepts and those of a channel.

use std::io;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::{Stream, TryFutureExt as _, stream};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::codegen::http::Uri;
use tonic::transport::server::Connected;
use tonic::transport::{Channel, Endpoint, Error};
use turmoil::net::{TcpListener, TcpStream};

/// A connection that was accepted.
pub(super) struct Accepted(TcpStream);

impl Connected for Accepted {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Accepted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, into)
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

/// Listens on a port of the host that runs now.
pub(super) async fn listen(
    port: u16,
) -> io::Result<impl Stream<Item = io::Result<Accepted>> + Send> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await?;
    Ok(stream::try_unfold(listener, |listener| async {
        let (accepted, _) = listener.accept().await?;
        Ok(Some((Accepted(accepted), listener)))
    }))
}

/// A channel that connects when it is used, like those between members.
pub(super) fn lazily(endpoint: &Endpoint) -> Channel {
    endpoint.connect_with_connector_lazy(tower::service_fn(dial))
}

/// A connected channel, like those of clients.
pub(super) async fn at_once(endpoint: Endpoint) -> Result<Channel, Error> {
    endpoint.connect_with_connector(tower::service_fn(dial)).await
}

async fn dial(to: Uri) -> io::Result<TokioIo<TcpStream>> {
    let (Some(host), Some(port)) = (to.host(), to.port_u16()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{to} is no address")));
    };
    TcpStream::connect((host.to_owned(), port)).map_ok(TokioIo::new).await
}
