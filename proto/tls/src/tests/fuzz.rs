//! What a certificate says, whatever its bytes are: it has passed the CA before, but not this reader.

use holdfast_fuzz::{Outcome, Target};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::{Office, month, node_name};
use crate::Certificate;

/// The parser keeps an entry for each name and extension.
const PER_BYTE: u64 = 256;
const BESIDES: u64 = 256 << 10;

#[test]
fn no_certificate_brings_a_reader_down() {
    let office = Office::new();
    let node = office.ca.node(&node_name(Some(7)), &["db.example.com".to_owned()], month());
    let client = office.ca.client("till", month());
    let seeds = [node, client].map(|pair| {
        let der = CertificateDer::from_pem_slice(pair.unwrap().cert_pem.as_bytes()).unwrap();
        der.as_ref().to_vec()
    });
    Target::new("certificates", seeds).memory(PER_BYTE, BESIDES).run(|bytes| {
        let read = Certificate::read(&CertificateDer::from(bytes));
        if let Ok(certificate) = &read {
            let identity = certificate.identity().unwrap_or_default();
            assert!(certificate.node_name().is_none() || identity.starts_with("uri:"));
        }
        Outcome::of(&read)
    });
}
