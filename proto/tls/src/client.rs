//! TLS at the end that dials.

use std::fmt;
use std::io;
use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, InvalidMessage};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::credentials::{Credentials, Loaded};
use crate::node_name::ClusterName;
use crate::verify::{Host, Node, Verifier};
use crate::{VERSIONS, provider};

/// What the other side has to prove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// That it is the host of this name or IP address.
    Server(String),
    /// That it may speak for this node of the cluster; the address does not count.
    Node {
        /// The cluster.
        cluster: ClusterName,
        /// The node.
        id: u64,
    },
}

/// Why no TLS connection came about. Nothing of the caller's was sent.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// There is no CA bundle.
    #[error("TLS to a server needs the CA bundle that vouches for it")]
    NoCa,
    /// It can be the name of no server.
    #[error("{0:?} is neither a DNS name nor an IP address")]
    NoName(String),
    /// The other side is not the one that was expected, or does not take this one.
    #[error("{0}")]
    Refused(rustls::Error),
    /// The other side answers something that is no TLS, or ends the connection at the first byte of it.
    #[error("the server speaks no TLS on this port")]
    NoTls,
    /// There is no connection, or it ended before the handshake did.
    #[error("{0}")]
    Lost(io::Error),
}

impl DialError {
    /// Whether the other side takes nobody without a certificate, and was shown none.
    pub fn wants_certificate(&self) -> bool {
        use rustls::{AlertDescription, Error};
        matches!(self, Self::Refused(Error::AlertReceived(AlertDescription::CertificateRequired)))
    }
}

/// TLS of a client, or of a node as the client of another. Cheap to clone.
#[derive(Clone)]
pub struct ClientSide {
    credentials: Arc<Credentials>,
    protocol: Vec<u8>,
}

impl ClientSide {
    /// A client that speaks `protocol` (ALPN).
    ///
    /// # Errors
    ///
    /// [`DialError::NoCa`].
    pub fn new(credentials: Arc<Credentials>, protocol: &str) -> Result<Self, DialError> {
        if credentials.current().roots.is_empty() {
            return Err(DialError::NoCa);
        }
        Ok(Self { credentials, protocol: protocol.as_bytes().to_vec() })
    }

    /// Makes a connection out of a stream of bytes, with the credentials that are in use now.
    ///
    /// It has no deadline of its own. Dropping the future drops the stream.
    ///
    /// # Errors
    ///
    /// [`DialError`].
    pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        expected: &Expected,
    ) -> Result<TlsStream<S>, DialError> {
        let loaded = self.credentials.current();
        let (verifier, name): (Result<Arc<dyn ServerCertVerifier>, _>, _) = match expected {
            Expected::Server(host) => {
                let check = Host::new(&loaded, None);
                (check.map(|check| Arc::new(Verifier(check)) as _), host_name(host)?)
            }
            Expected::Node { cluster, id } => {
                let roots = Arc::clone(&loaded.roots);
                let check = Node { roots, cluster: cluster.clone(), id: *id };
                (Ok(Arc::new(Verifier(check))), unnamed())
            }
        };
        let config = verifier.and_then(|verifier| self.config(&loaded, verifier));
        let connector = TlsConnector::from(Arc::new(config.map_err(DialError::Refused)?));
        connector.connect(name, stream).await.map_err(why_not)
    }

    fn config(
        &self,
        loaded: &Loaded,
        verifier: Arc<dyn ServerCertVerifier>,
    ) -> Result<ClientConfig, rustls::Error> {
        let own = loaded.own.as_ref().map(|own| {
            let own = SingleCertAndKey::from(Arc::clone(&own.certified));
            Arc::new(own) as Arc<dyn ResolvesClientCert>
        });
        let mut config = configuration(verifier, own)?;
        config.alpn_protocols = vec![self.protocol.clone()];
        Ok(config)
    }
}

impl fmt::Debug for ClientSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientSide").field("credentials", &self.credentials).finish_non_exhaustive()
    }
}

/// The name that is sent to a node: none, as an IP address is never sent.
fn unnamed() -> ServerName<'static> {
    ServerName::IpAddress(std::net::IpAddr::from([0, 0, 0, 0]).into())
}

/// The name or IP address of a host.
pub(crate) fn host_name(host: &str) -> Result<ServerName<'static>, DialError> {
    ServerName::try_from(host.to_owned()).map_err(|_| DialError::NoName(host.to_owned()))
}

/// Nothing is resumed. `own` proves who the client is; without it, it is nobody.
pub(crate) fn configuration(
    verifier: Arc<dyn ServerCertVerifier>,
    own: Option<Arc<dyn ResolvesClientCert>>,
) -> Result<ClientConfig, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(VERSIONS)?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match own {
        Some(own) => builder.with_client_cert_resolver(own),
        None => builder.with_no_client_auth(),
    };
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Whether TLS is why a connection did not come about, or ended.
pub fn refused_by_tls(error: &io::Error) -> Option<DialError> {
    let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    Some(because_of(error))
}

fn because_of(error: &rustls::Error) -> DialError {
    match error {
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => DialError::NoTls,
        error => DialError::Refused(error.clone()),
    }
}

fn why_not(error: io::Error) -> DialError {
    match refused_by_tls(&error) {
        Some(refused) => refused,
        None if error.kind() == io::ErrorKind::UnexpectedEof => DialError::NoTls,
        None => DialError::Lost(error),
    }
}
