use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::{Office, month, node_name};
use crate::{Certificate, ClusterName, NodeName};

fn read(pem: &str) -> Certificate {
    Certificate::read(&CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap()
}

/// A certificate with these names, as DER, in its SAN.
fn read_with(names: &[u8]) -> Result<Certificate, String> {
    let length = u8::try_from(names.len()).unwrap();
    let san = [[0x30, length].as_slice(), names].concat();
    let mut params = rcgen::CertificateParams::default();
    params.custom_extensions.push(rcgen::CustomExtension::from_oid_content(&[2, 5, 29, 17], san));
    let made = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
    Certificate::read(made.der())
}

fn certificate(uris: &[&str], dns_names: &[&str], common_name: Option<&str>) -> Certificate {
    let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    let (now, common_name) = (std::time::SystemTime::UNIX_EPOCH, common_name.map(str::to_owned));
    Certificate {
        uris: owned(uris),
        dns_names: owned(dns_names),
        common_name,
        begins: now,
        ends: now,
    }
}

#[test]
fn the_first_uri_is_the_identity_then_the_first_dns_name_then_the_cn() {
    for (certificate, identity) in [
        (certificate(&["a:b", "c:d"], &["x.y"], Some("n")), Some("uri:a:b")),
        (certificate(&[], &["x.y", "z"], Some("n")), Some("dns:x.y")),
        (certificate(&[], &[], Some("n")), Some("cn:n")),
        (certificate(&[], &[], None), None),
    ] {
        assert_eq!(certificate.identity().as_deref(), identity);
    }
}

/// Without the URI its owner would be `dns:x.y`, who may have other rights.
#[test]
fn a_certificate_with_a_name_that_cannot_be_read_is_not_read_by_its_other_names() {
    let (dns_name, broken) = (b"\x82\x03x.y".as_slice(), b"\x86\x01\xff".as_slice());
    assert_eq!(read_with(dns_name).unwrap().identity().as_deref(), Some("dns:x.y"));
    for names in [[broken, dns_name].concat(), [dns_name, broken].concat()] {
        let error = read_with(&names).unwrap_err();
        assert!(error.contains("cannot be read"), "{error}");
    }
}

#[test]
fn a_made_certificate_says_what_it_was_made_for() {
    let office = Office::new();
    let addresses = ["db.example.com".to_owned(), "10.0.0.7".to_owned()];

    let node = office.ca.node(&node_name(Some(3)), &addresses, month()).unwrap();
    let client = office.ca.client("till 7", month()).unwrap();

    let (node, client) = (read(&node.cert_pem), read(&client.cert_pem));
    assert_eq!(node.node_name(), Some(node_name(Some(3))));
    assert_eq!(node.dns_names, ["db.example.com"]);
    assert_eq!(client.identity().as_deref(), Some("cn:till 7"));
    assert_eq!(client.node_name(), None);
    let now = std::time::SystemTime::now();
    assert!(client.begins < now && now < client.ends);
}

#[test]
fn only_one_spelling_is_the_name_of_a_node() {
    for (text, id) in [("holdfast:node:shop", None), ("holdfast:node:shop:7", Some(7))] {
        assert_eq!(NodeName::parse(text), Some(node_name(id)), "{text}");
        assert_eq!(node_name(id).to_string(), text);
    }
    for text in [
        "",
        "shop",
        "holdfast:node:",
        "holdfast:node::7",
        "holdfast:node:shop:",
        "holdfast:node:Shop",
        "holdfast:node:shop:07",
        "holdfast:node:shop:+7",
        "holdfast:node:shop:7:8",
        "holdfast:node:shop:-1",
        "HOLDFAST:node:shop",
        "holdfast:node:shop:18446744073709551616",
    ] {
        assert_eq!(NodeName::parse(text), None, "{text}");
    }
}

#[test]
fn a_name_without_an_id_speaks_for_every_node_of_its_cluster_only() {
    let other: ClusterName = "other".parse().unwrap();
    for (own, id, speaks) in [(None, 1, true), (Some(1), 1, true), (Some(1), 2, false)] {
        assert_eq!(node_name(own).speaks_for(&super::cluster(), id), speaks);
        assert!(!node_name(own).speaks_for(&other, id));
    }
}

#[test]
fn a_cluster_has_a_short_name_of_few_characters() {
    let longest = "a".repeat(63);
    for name in ["a", "shop-2", &longest] {
        assert_eq!(name.parse::<ClusterName>().unwrap().as_str(), name);
    }
    for name in ["", "Shop", "a:b", "a b", "ä", &format!("{longest}a")] {
        let error = name.parse::<ClusterName>().unwrap_err().to_string();
        assert!(error.contains("1 to 63"), "{error}");
    }
}
