//! TLS at the end that listens.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::ServerConfig;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::certificate::Certificate;
use crate::credentials::{Credentials, Loaded};
use crate::node_name::{ClusterName, NodeName};
use crate::{VERSIONS, provider};

/// Bytes that a client may still send after it was refused: more than what is under way when it hears of it.
const READ_TO_END: u64 = 64 << 10;

/// Whom a port lets in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admits {
    /// Clients with a certificate that the CA bundle vouches for, and clients without one. A certificate that
    /// is shown and not vouched for ends the connection.
    Anybody,
    /// Clients with such a certificate only.
    Certified,
    /// Nodes of this cluster only, by the name in their certificate.
    Nodes(ClusterName),
}

/// A port that cannot have TLS with the files it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// It has nothing to prove itself with.
    #[error("a port with TLS needs a certificate and its key")]
    NoCertificate,
    /// It could not tell a certificate that may come in from another.
    #[error("a port that demands certificates needs the CA bundle that vouches for them")]
    NoCa,
}

/// Why a connection was not let in. It is closed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The other side sent something that is no TLS.
    #[error("the other side speaks no TLS")]
    NoTls,
    /// TLS says no: an unknown CA, a certificate that has ended, no version in common.
    #[error("{0}")]
    Refused(rustls::Error),
    /// The connection ended before the handshake did.
    #[error("{0}")]
    Lost(io::Error),
    /// A certificate of the right CA that makes its owner no node of this cluster.
    #[error("the certificate of {found} makes it no node of cluster {cluster}")]
    NoNode {
        /// The cluster.
        cluster: ClusterName,
        /// What the certificate says instead.
        found: String,
    },
    /// A certificate of the right CA that cannot be read.
    #[error("the certificate cannot be read: {0}")]
    Unreadable(String),
}

/// TLS of a port.
pub struct ServerSide {
    credentials: Arc<Credentials>,
    admits: Admits,
    protocols: Vec<Vec<u8>>,
    /// The configuration made of the credentials that were in use last.
    made: Mutex<Option<(Arc<Loaded>, TlsAcceptor)>>,
}

impl ServerSide {
    /// A port that speaks `protocols` (ALPN), the best first.
    ///
    /// # Errors
    ///
    /// [`Unusable`].
    pub fn new(
        credentials: Arc<Credentials>,
        admits: Admits,
        protocols: &[&str],
    ) -> Result<Self, Unusable> {
        let loaded = credentials.current();
        if loaded.own.is_none() {
            return Err(Unusable::NoCertificate);
        }
        if admits != Admits::Anybody && loaded.roots.is_empty() {
            return Err(Unusable::NoCa);
        }
        let protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        Ok(Self { credentials, admits, protocols, made: Mutex::default() })
    }

    /// Makes a connection out of a stream of bytes, with what the certificate says that was shown.
    ///
    /// A refusal is sent as an alert, and then read until the other end closes: an end of the connection that
    /// overtakes the alert would leave it without a reason. It has no deadline of its own. Dropping the future
    /// drops the stream.
    ///
    /// # Errors
    ///
    /// [`HandshakeError`].
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> Result<(TlsStream<S>, Option<Certificate>), HandshakeError> {
        let acceptor = self.acceptor().map_err(HandshakeError::Refused)?;
        let stream = match acceptor.accept(stream).into_fallible().await {
            Ok(stream) => stream,
            Err((error, refused)) => {
                await_end(refused).await;
                return Err(why_not(error));
            }
        };
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let shown = shown.map(Certificate::read).transpose().map_err(HandshakeError::Unreadable)?;
        if let Admits::Nodes(cluster) = &self.admits {
            node_of(cluster, shown.as_ref())?;
        }
        Ok((stream, shown))
    }

    fn acceptor(&self) -> Result<TlsAcceptor, rustls::Error> {
        let loaded = self.credentials.current();
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, acceptor)) = &*made
            && Arc::ptr_eq(of, &loaded)
        {
            return Ok(acceptor.clone());
        }
        let acceptor = TlsAcceptor::from(Arc::new(self.config(&loaded)?));
        *made = Some((loaded, acceptor.clone()));
        Ok(acceptor)
    }

    fn config(&self, loaded: &Loaded) -> Result<ServerConfig, rustls::Error> {
        let missing = |what: &str| rustls::Error::General(what.to_owned());
        let own = loaded.own.as_ref().ok_or_else(|| missing("no certificate"))?;
        let verifier = if loaded.roots.is_empty() {
            WebPkiClientVerifier::no_client_auth()
        } else {
            let roots = Arc::clone(&loaded.roots);
            let mut verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
            if self.admits == Admits::Anybody {
                verifier = verifier.allow_unauthenticated();
            }
            verifier.build().map_err(|error| missing(&error.to_string()))?
        };
        let builder = ServerConfig::builder_with_provider(provider());
        let mut config = builder
            .with_protocol_versions(VERSIONS)?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(&own.certified))));
        config.alpn_protocols.clone_from(&self.protocols);
        // Each connection proves itself anew: a resumed one would rest on a CA that is no longer trusted.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }
}

impl fmt::Debug for ServerSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerSide").field("admits", &self.admits).finish_non_exhaustive()
    }
}

/// The node of `cluster` that a certificate makes its owner.
fn node_of(cluster: &ClusterName, shown: Option<&Certificate>) -> Result<NodeName, HandshakeError> {
    let name = shown.and_then(Certificate::node_name).filter(|name| name.cluster == *cluster);
    name.ok_or_else(|| HandshakeError::NoNode { cluster: cluster.clone(), found: called(shown) })
}

/// An owner of a certificate, for a message.
fn called(shown: Option<&Certificate>) -> String {
    shown.and_then(Certificate::identity).unwrap_or_else(|| "somebody without a name".to_owned())
}

/// Reads until the other end has closed a connection that is over at this end; not without end, as the other
/// end may send without end.
async fn await_end<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) {
    // What fails here has ended.
    if stream.shutdown().await.is_ok() {
        let _ = tokio::io::copy(&mut stream.take(READ_TO_END), &mut tokio::io::sink()).await;
    }
}

fn why_not(error: io::Error) -> HandshakeError {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)) => {
            HandshakeError::NoTls
        }
        Some(error) => HandshakeError::Refused(error.clone()),
        None => HandshakeError::Lost(error),
    }
}
