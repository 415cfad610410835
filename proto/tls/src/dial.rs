//! Connections with TLS as a service, in the form that tonic's channels take.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;
use tonic::transport::Uri;
use tower::Service;

use crate::client::{ClientSide, DialError, Expected};
use crate::node_name::ClusterName;

/// Dials servers, or the nodes of a cluster.
#[derive(Clone, Debug)]
pub struct Dialler {
    side: ClientSide,
    wanted: Wanted,
    plain_too: bool,
}

#[derive(Clone, Debug)]
enum Wanted {
    /// The host that is dialled, or one of this name in its place.
    Server(Option<String>),
    Node(ClusterName, u64),
}

impl Dialler {
    /// Dials servers, each of which has to prove that it is the host that was dialled, or the one of the name
    /// `instead`.
    pub fn to_servers(side: ClientSide, instead: Option<String>) -> Self {
        Self { side, wanted: Wanted::Server(instead), plain_too: false }
    }

    /// Dials one node of a cluster. With `plain_too` a node that speaks no TLS is dialled without.
    pub fn to_node(side: ClientSide, cluster: ClusterName, id: u64, plain_too: bool) -> Self {
        Self { side, wanted: Wanted::Node(cluster, id), plain_too }
    }

    /// Dials a server whose certificate has to name `host`, unless another name stands instead: for an address that
    /// was looked up.
    #[must_use]
    pub fn for_host(mut self, host: &str) -> Self {
        if let Wanted::Server(instead) = &mut self.wanted {
            instead.get_or_insert_with(|| host.to_owned());
        }
        self
    }

    fn expected(&self, host: &str) -> Expected {
        match &self.wanted {
            Wanted::Server(instead) => {
                // An IPv6 address stands in brackets in a URI, and without in a certificate.
                let host = host.trim_start_matches('[').trim_end_matches(']');
                Expected::Server(instead.clone().unwrap_or_else(|| host.to_owned()))
            }
            Wanted::Node(cluster, id) => Expected::Node { cluster: cluster.clone(), id: *id },
        }
    }

    async fn dial(self, uri: Uri) -> Result<Dialled, DialError> {
        let no_address = || DialError::NoName(uri.to_string());
        let host = uri.host().ok_or_else(no_address)?;
        let address = uri.authority().ok_or_else(no_address)?.as_str();
        let secured = self.side.connect(tcp(address).await?, &self.expected(host)).await;
        match secured {
            Ok(stream) => Ok(Either::Left(Box::new(stream))),
            Err(DialError::NoTls) if self.plain_too => Ok(Either::Right(tcp(address).await?)),
            Err(error) => Err(error),
        }
    }
}

async fn tcp(address: &str) -> Result<TcpStream, DialError> {
    let stream = TcpStream::connect(address).await.map_err(DialError::Lost)?;
    stream.set_nodelay(true).map_err(DialError::Lost)?;
    Ok(stream)
}

impl Service<Uri> for Dialler {
    type Response = TokioIo<Dialled>;
    type Error = DialError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, DialError>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), DialError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let dialler = self.clone();
        Box::pin(async move { dialler.dial(uri).await.map(TokioIo::new) })
    }
}

/// A connection that was dialled: with TLS, or without, if the node speaks none and was allowed not to.
pub type Dialled = Either<Box<TlsStream<TcpStream>>, TcpStream>;
