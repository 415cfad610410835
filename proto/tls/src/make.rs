//! Makes certificates: a CA, and what it signs.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use crate::credentials::pem_error;
use crate::node_name::NodeName;
use crate::provider;

/// Certificates begin so long before they are made: the clocks of the machines that use them differ.
const BACKDATED: Duration = Duration::from_mins(5);

/// A certificate with its key, as the text of two files.
pub struct Pair {
    /// The certificate.
    pub cert_pem: String,
    /// The key, PKCS #8.
    pub key_pem: String,
}

/// Why a certificate cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// It can be the name of nothing.
    #[error("{name:?} cannot stand in a certificate: {reason}")]
    Name {
        /// The name.
        name: String,
        /// Why.
        reason: String,
    },
    /// They are not certificate and key of a CA.
    #[error("the CA cannot be used: {0}")]
    Ca(String),
    /// A failure of cryptography, or of the machine's source of randomness.
    #[error("{0}")]
    Failed(#[from] rcgen::Error),
}

/// When a certificate is valid.
#[derive(Clone, Copy, Debug)]
pub struct Term {
    /// The wall clock's time now.
    pub now: SystemTime,
    /// How long it is valid from now on.
    pub lasts: Duration,
}

/// Makes a CA of this name, which signs certificates of nodes and clients only.
///
/// # Errors
///
/// [`MakeError`].
pub fn ca(name: &str, term: Term) -> Result<Pair, MakeError> {
    let mut params = named(name, term);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate()?;
    Ok(Pair { cert_pem: params.self_signed(&key)?.pem(), key_pem: key.serialize_pem() })
}

/// A CA, to sign with.
pub struct Ca(Issuer<'static, KeyPair>);

impl Ca {
    /// Reads certificate and key.
    ///
    /// # Errors
    ///
    /// [`MakeError::Ca`], also if they are not of one pair: nobody would take what they sign.
    pub fn read(cert_pem: &str, key_pem: &str) -> Result<Self, MakeError> {
        let unusable = |error: rcgen::Error| MakeError::Ca(error.to_string());
        let broken = |error: pem::Error| MakeError::Ca(pem_error(&error).to_owned());
        let cert = CertificateDer::from_pem_slice(cert_pem.as_bytes()).map_err(broken)?;
        let own = PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).map_err(broken)?;
        CertifiedKey::from_der(vec![cert], own, &provider())
            .map_err(|error| MakeError::Ca(error.to_string()))?;
        let key = KeyPair::from_pem(key_pem).map_err(unusable)?;
        Issuer::from_ca_cert_pem(cert_pem, key).map(Self).map_err(unusable)
    }

    /// A node's certificate: for its peers it carries `name`, for clients its addresses, DNS names or IP
    /// addresses without a port.
    ///
    /// # Errors
    ///
    /// [`MakeError`].
    pub fn node(
        &self,
        name: &NodeName,
        addresses: &[String],
        term: Term,
    ) -> Result<Pair, MakeError> {
        let uri = name.to_string();
        // A CN has at most 64 characters, and nobody looks at this one.
        let mut params = named("Holdfast node", term);
        params.subject_alt_names.push(SanType::URI(ascii(&uri)?));
        for address in addresses {
            let address = match address.parse() {
                Ok(ip) => SanType::IpAddress(ip),
                Err(_) => SanType::DnsName(ascii(address)?),
            };
            params.subject_alt_names.push(address);
        }
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    /// A client's certificate, with `name` as its CN: the identity `cn:NAME`.
    ///
    /// # Errors
    ///
    /// [`MakeError`].
    pub fn client(&self, name: &str, term: Term) -> Result<Pair, MakeError> {
        let mut params = named(name, term);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    fn sign(&self, mut params: CertificateParams) -> Result<Pair, MakeError> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let signed = params.signed_by(&key, &self.0)?;
        Ok(Pair { cert_pem: signed.pem(), key_pem: key.serialize_pem() })
    }
}

fn named(name: &str, term: Term) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = (term.now - BACKDATED).into();
    params.not_after = (term.now + term.lasts).into();
    params
}

fn ascii(name: &str) -> Result<rcgen::string::Ia5String, MakeError> {
    name.try_into().map_err(|error: rcgen::Error| MakeError::Name {
        name: name.to_owned(),
        reason: error.to_string(),
    })
}
