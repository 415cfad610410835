//! What a server's certificate has to prove to the end that dials.

use std::fmt::Debug;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme};

use crate::certificate::Certificate;
use crate::credentials::Loaded;
use crate::node_name::ClusterName;
use crate::provider;

/// What a server shows.
pub(crate) struct Shown<'a> {
    pub(crate) certificate: &'a CertificateDer<'a>,
    /// The CAs between it and the root.
    pub(crate) between: &'a [CertificateDer<'a>],
    /// The host that was dialled.
    pub(crate) host: &'a ServerName<'a>,
    pub(crate) now: UnixTime,
}

/// Decides whether a server is the one that is wanted.
pub(crate) trait Check: Debug + Send + Sync {
    fn check(&self, shown: &Shown<'_>) -> Result<(), rustls::Error>;
}

/// A check as rustls takes it. The server proves to have the certificate's key as the provider checks it.
#[derive(Debug)]
pub(crate) struct Verifier<C>(pub(crate) C);

impl<C: Check> ServerCertVerifier for Verifier<C> {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        host: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.0.check(&Shown { certificate, between, host, now })?;
        Ok(ServerCertVerified::assertion())
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

/// Takes the host that was dialled, or the one of the name `instead`, of a CA that vouches for servers.
#[derive(Debug)]
pub(crate) struct Host {
    roots: Arc<WebPkiServerVerifier>,
    instead: Option<ServerName<'static>>,
}

impl Host {
    pub(crate) fn new(
        loaded: &Loaded,
        instead: Option<ServerName<'static>>,
    ) -> Result<Self, rustls::Error> {
        let roots = Arc::clone(&loaded.roots);
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider()).build();
        let roots = verifier.map_err(|error| rustls::Error::General(error.to_string()))?;
        Ok(Self { roots, instead })
    }
}

impl Check for Host {
    fn check(&self, shown: &Shown<'_>) -> Result<(), rustls::Error> {
        let Shown { certificate, between, host, now } = *shown;
        let host = self.instead.as_ref().unwrap_or(host);
        self.roots.verify_server_cert(certificate, between, host, &[], now).map(|_| ())
    }
}

/// Takes the certificates of one node of one cluster, wherever that node is.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) roots: Arc<RootCertStore>,
    pub(crate) cluster: ClusterName,
    pub(crate) id: u64,
}

/// A certificate of the right CA that does not make its owner the node that was dialled.
#[derive(Debug, thiserror::Error)]
#[error("the certificate of {found} does not make it node {id} of cluster {cluster}")]
struct AnotherNode {
    found: String,
    cluster: ClusterName,
    id: u64,
}

impl Check for Node {
    fn check(&self, shown: &Shown<'_>) -> Result<(), rustls::Error> {
        let Shown { certificate, between, now, .. } = *shown;
        let algorithms = provider().signature_verification_algorithms.all;
        let parsed = ParsedCertificate::try_from(certificate)?;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, between, now, algorithms)?;
        let certificate = Certificate::read(certificate);
        let certificate = certificate.map_err(|_| CertificateError::BadEncoding)?;
        if certificate.node_name().is_some_and(|name| name.speaks_for(&self.cluster, self.id)) {
            return Ok(());
        }
        let found = certificate.identity().unwrap_or_else(|| "somebody without a name".to_owned());
        let another = AnotherNode { found, cluster: self.cluster.clone(), id: self.id };
        Err(CertificateError::Other(OtherError(Arc::new(another))).into())
    }
}
