//! What a certificate says of its owner.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

use crate::node_name::NodeName;

/// What a certificate says of its owner. It proves nothing by itself: whoever has one of these from a
/// handshake knows that the owner has the key, and that the CA bundle vouches for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The SAN URIs, in their order.
    pub uris: Vec<String>,
    /// The SAN DNS names, in their order.
    pub dns_names: Vec<String>,
    /// The last CN of the subject.
    pub common_name: Option<String>,
    /// It is valid from then on.
    pub begins: SystemTime,
    /// It is valid until then.
    pub ends: SystemTime,
}

impl Certificate {
    /// Reads a certificate; the error is what is wrong with it, as a text.
    ///
    /// A SAN that cannot be read is an error: without it another name would be the identity. A CN that cannot
    /// be read is none.
    pub(crate) fn read(der: &CertificateDer<'_>) -> Result<Self, String> {
        let (_, read) = X509Certificate::from_der(der).map_err(|error| error.to_string())?;
        let (mut uris, mut dns_names) = (Vec::new(), Vec::new());
        let names = read.subject_alternative_name().map_err(|error| error.to_string())?;
        for name in names.iter().flat_map(|names| &names.value.general_names) {
            match name {
                GeneralName::URI(uri) => uris.push((*uri).to_owned()),
                GeneralName::DNSName(dns_name) => dns_names.push((*dns_name).to_owned()),
                GeneralName::Invalid(..) => {
                    return Err("a name in its SAN cannot be read".to_owned());
                }
                _ => {}
            }
        }
        let common_name = read.subject().iter_common_name().last();
        let common_name = common_name.and_then(|name| name.as_str().ok());
        Ok(Self {
            uris,
            dns_names,
            common_name: common_name.map(str::to_owned),
            begins: at(read.validity().not_before.timestamp()),
            ends: at(read.validity().not_after.timestamp()),
        })
    }

    /// The identity that it proves: the first SAN URI, else the first SAN DNS name, else the subject's CN,
    /// as `uri:NAME`, `dns:NAME`, `cn:NAME` (DESIGN §14).
    pub fn identity(&self) -> Option<String> {
        let uri = self.uris.first().map(|uri| format!("uri:{uri}"));
        let dns_name = || self.dns_names.first().map(|name| format!("dns:{name}"));
        uri.or_else(dns_name).or_else(|| self.common_name.as_ref().map(|name| format!("cn:{name}")))
    }

    /// The node that it makes its owner: the first SAN URI that names one.
    pub fn node_name(&self) -> Option<NodeName> {
        self.uris.iter().find_map(|uri| NodeName::parse(uri))
    }
}

/// Seconds since 1970, before it too.
fn at(seconds: i64) -> SystemTime {
    let distance = Duration::from_secs(seconds.unsigned_abs());
    let moved = if seconds < 0 {
        UNIX_EPOCH.checked_sub(distance)
    } else {
        UNIX_EPOCH.checked_add(distance)
    };
    moved.unwrap_or(UNIX_EPOCH)
}
