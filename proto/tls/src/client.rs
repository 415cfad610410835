//! TLS at the end that dials.

use std::fmt;
use std::io;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::SingleCertAndKey;
use rustls::{
    CertificateError, DigitallySignedStruct, InvalidMessage, OtherError, RootCertStore,
    SignatureScheme,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::certificate::Certificate;
use crate::credentials::{Credentials, Loaded};
use crate::node_name::ClusterName;
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
        let (verifier, name) = match expected {
            Expected::Server(host) => {
                let name = ServerName::try_from(host.clone());
                (by_address(&loaded), name.map_err(|_| DialError::NoName(host.clone()))?)
            }
            Expected::Node { cluster, id } => {
                let roots = Arc::clone(&loaded.roots);
                let verifier: Arc<dyn ServerCertVerifier> =
                    Arc::new(NodeVerifier { roots, cluster: cluster.clone(), id: *id });
                (Ok(verifier), unnamed())
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
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(VERSIONS)?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let mut config = match &loaded.own {
            Some(own) => {
                let own = SingleCertAndKey::from(Arc::clone(&own.certified));
                builder.with_client_cert_resolver(Arc::new(own))
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![self.protocol.clone()];
        config.resumption = Resumption::disabled();
        Ok(config)
    }
}

impl fmt::Debug for ClientSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientSide").field("credentials", &self.credentials).finish_non_exhaustive()
    }
}

fn by_address(loaded: &Loaded) -> Result<Arc<dyn ServerCertVerifier>, rustls::Error> {
    let roots = Arc::clone(&loaded.roots);
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider()).build();
    let verifier = verifier.map_err(|error| rustls::Error::General(error.to_string()))?;
    Ok(verifier)
}

/// The name that is sent to a node: none, as an IP address is never sent.
fn unnamed() -> ServerName<'static> {
    ServerName::IpAddress(std::net::IpAddr::from([0, 0, 0, 0]).into())
}

/// Takes the certificates of one node of one cluster, wherever that node is.
#[derive(Debug)]
struct NodeVerifier {
    roots: Arc<RootCertStore>,
    cluster: ClusterName,
    id: u64,
}

/// A certificate of the right CA that does not make its owner the node that was dialled.
#[derive(Debug, thiserror::Error)]
#[error("the certificate of {found} does not make it node {id} of cluster {cluster}")]
struct AnotherNode {
    found: String,
    cluster: ClusterName,
    id: u64,
}

impl ServerCertVerifier for NodeVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let algorithms = provider().signature_verification_algorithms.all;
        let parsed = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &self.roots,
            intermediates,
            now,
            algorithms,
        )?;
        let certificate = Certificate::read(end_entity);
        let certificate = certificate.map_err(|_| CertificateError::BadEncoding)?;
        if certificate.node_name().is_some_and(|name| name.speaks_for(&self.cluster, self.id)) {
            return Ok(ServerCertVerified::assertion());
        }
        let found = certificate.identity().unwrap_or_else(|| "somebody without a name".to_owned());
        let another = AnotherNode { found, cluster: self.cluster.clone(), id: self.id };
        Err(CertificateError::Other(OtherError(Arc::new(another))).into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &provider().signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

fn why_not(error: io::Error) -> DialError {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) => DialError::NoTls,
        Some(error) => DialError::Refused(error.clone()),
        None if error.kind() == io::ErrorKind::UnexpectedEof => DialError::NoTls,
        None => DialError::Lost(error),
    }
}
