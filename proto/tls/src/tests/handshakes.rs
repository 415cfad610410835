use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
use tokio_rustls::TlsConnector;

use super::{Office, cluster, future, month, node_name, past};
use crate::{
    Admits, Certificate, ClientSide, Credentials, DialError, Expected, HandshakeError, NodeName,
    ServerSide, Unusable, provider,
};

/// What both ends make of each other. The client sends a byte, and waits for it to come back: with TLS 1.3 a
/// server's refusal reaches it after its own handshake.
async fn meet(
    server: &ServerSide,
    client: &ClientSide,
    expected: &Expected,
) -> (Result<Option<Certificate>, HandshakeError>, Result<(), DialError>) {
    let (near, far) = duplex(1 << 16);
    let serve = async {
        let (mut stream, shown) = server.accept(far).await?;
        let byte = stream.read_u8().await.map_err(HandshakeError::Lost)?;
        stream.write_u8(byte).await.map_err(HandshakeError::Lost)?;
        stream.flush().await.map_err(HandshakeError::Lost)?;
        Ok(shown)
    };
    let dial = async {
        let mut stream = client.connect(near, expected).await?;
        stream.write_u8(7).await.map_err(DialError::Lost)?;
        stream.flush().await.map_err(DialError::Lost)?;
        stream.read_u8().await.map(|_| ()).map_err(DialError::Lost)
    };
    tokio::join!(serve, dial)
}

fn server(credentials: &Arc<Credentials>, admits: Admits) -> ServerSide {
    ServerSide::new(Arc::clone(credentials), admits, &["h2"]).unwrap()
}

fn client(credentials: &Arc<Credentials>) -> ClientSide {
    ClientSide::new(Arc::clone(credentials), "h2").unwrap()
}

fn host(name: &str) -> Expected {
    Expected::Server(name.to_owned())
}

fn node(id: u64) -> Expected {
    Expected::Node { cluster: cluster(), id }
}

fn nodes() -> Admits {
    Admits::Nodes(cluster())
}

#[tokio::test]
async fn a_client_of_the_right_ca_comes_in_and_its_identity_is_known() {
    let office = Office::new();
    for admits in [Admits::Anybody, Admits::Certified] {
        for name in ["db.example.com", "127.0.0.1"] {
            let server = server(&office.node(Some(1)), admits.clone());
            let (seen, dialled) = meet(&server, &client(&office.client("till")), &host(name)).await;
            dialled.unwrap();
            assert_eq!(seen.unwrap().unwrap().identity().as_deref(), Some("cn:till"));
        }
    }
}

#[tokio::test]
async fn a_client_without_a_certificate_comes_in_only_where_none_is_demanded() {
    let office = Office::new();
    let (node, nobody) = (office.node(Some(1)), client(&office.nobody()));
    let expected = host("127.0.0.1");

    let (seen, dialled) = meet(&server(&node, Admits::Anybody), &nobody, &expected).await;
    dialled.unwrap();
    assert_eq!(seen.unwrap(), None);

    for admits in [Admits::Certified, nodes()] {
        let (seen, dialled) = meet(&server(&node, admits), &nobody, &expected).await;
        assert!(dialled.is_err());
        assert!(matches!(seen, Err(HandshakeError::Refused(_))), "{seen:?}");
    }
}

#[tokio::test]
async fn certificates_of_another_ca_or_another_time_are_refused_at_both_ends() {
    let (office, other) = (Office::new(), Office::new());
    let expected = host("127.0.0.1");
    for admits in [Admits::Anybody, Admits::Certified] {
        for wrong in [office.client_of("a", past()), office.client_of("a", future())] {
            let server = server(&office.node(None), admits.clone());
            let (seen, dialled) = meet(&server, &client(&wrong), &expected).await;
            assert!(matches!(seen, Err(HandshakeError::Refused(_))), "{seen:?}");
            assert!(dialled.is_err());
        }
        // Signed by another CA, and sure of this one.
        let pair = other.ca.client("a", month()).unwrap();
        let stranger = office.credentials("stranger", &pair, month());
        let (seen, dialled) =
            meet(&server(&office.node(None), admits), &client(&stranger), &expected).await;
        assert!(matches!(seen, Err(HandshakeError::Refused(_))), "{seen:?}");
        assert!(dialled.is_err());
    }
    for wrong in [
        other.node(None),
        office.node_of(&node_name(None), past()),
        office.node_of(&node_name(None), future()),
    ] {
        for expected in [&expected, &node(1)] {
            let (_, dialled) =
                meet(&server(&wrong, Admits::Anybody), &client(&office.node(None)), expected).await;
            assert!(matches!(dialled, Err(DialError::Refused(_))), "{dialled:?}");
        }
    }
}

#[tokio::test]
async fn a_server_under_another_name_is_refused_before_anything_is_sent() {
    let office = Office::new();
    let server = server(&office.node(Some(1)), Admits::Anybody);
    for name in ["db2.example.com", "127.0.0.2", "example.com"] {
        let (_, dialled) = meet(&server, &client(&office.nobody()), &host(name)).await;
        assert!(matches!(dialled, Err(DialError::Refused(_))), "{name}: {dialled:?}");
    }
    let (_, dialled) = meet(&server, &client(&office.nobody()), &host("no name")).await;
    assert!(matches!(dialled, Err(DialError::NoName(_))), "{dialled:?}");
}

#[tokio::test]
async fn a_client_certificate_opens_no_peer_port() {
    let office = Office::new();
    let server = server(&office.node(Some(1)), nodes());

    let (seen, dialled) = meet(&server, &client(&office.client("till")), &node(1)).await;

    assert!(dialled.is_err());
    let said = seen.unwrap_err().to_string();
    assert_eq!(said, "the certificate of cn:till makes it no node of cluster shop");
}

#[tokio::test]
async fn nodes_take_their_own_cluster_only_at_both_ends() {
    let office = Office::new();
    let foreign = NodeName { cluster: "other".parse().unwrap(), id: Some(2) };
    let foreign = office.node_of(&foreign, month());
    let (one, two) = (office.node(Some(1)), office.node(Some(2)));

    let (seen, dialled) = meet(&server(&one, nodes()), &client(&two), &node(1)).await;
    dialled.unwrap();
    assert_eq!(seen.unwrap().unwrap().node_name(), Some(node_name(Some(2))));

    let (seen, _) = meet(&server(&one, nodes()), &client(&foreign), &node(1)).await;
    assert!(matches!(seen, Err(HandshakeError::NoNode { .. })), "{seen:?}");
    for (serves, dialled_as) in [(&foreign, 2), (&two, 1), (&office.client("till"), 1)] {
        let (_, dialled) = meet(&server(serves, nodes()), &client(&one), &node(dialled_as)).await;
        assert!(matches!(dialled, Err(DialError::Refused(_))), "{dialled:?}");
    }
}

#[tokio::test]
async fn a_node_without_an_id_speaks_for_any() {
    let office = Office::new();
    let any = office.node(None);
    for id in [1, 2] {
        let (_, dialled) = meet(&server(&any, nodes()), &client(&any), &node(id)).await;
        dialled.unwrap();
    }
}

/// The record of TLS that says why a connection ends.
const ALERT: u8 = 21;

/// Why a server refuses a client that sends these bytes and reads until the end, which gets an alert.
async fn refusal_of(server: &ServerSide, bytes: &[u8]) -> HandshakeError {
    let (mut near, far) = duplex(1 << 16);
    let client = async move {
        near.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        near.read_to_end(&mut answer).await.unwrap();
        answer
    };
    let (seen, answer) = tokio::join!(server.accept(far), client);
    assert_eq!(answer.first(), Some(&ALERT), "{answer:?}");
    seen.map(|(_, shown)| shown).unwrap_err()
}

#[tokio::test]
async fn plain_bytes_are_told_from_tls() {
    let office = Office::new();
    let server = server(&office.node(None), Admits::Anybody);
    let refusal = refusal_of(&server, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    assert!(matches!(refusal, HandshakeError::NoTls), "{refusal:?}");
    // And a connection that ends at once.
    let (near, far) = duplex(1 << 16);
    drop(near);
    assert!(matches!(server.accept(far).await, Err(HandshakeError::Lost(_))));
}

/// A client of another make, which speaks only what it is told to.
async fn speak(office: &Office, versions: &[&'static rustls::SupportedProtocolVersion]) -> bool {
    let server = server(&office.node(None), Admits::Anybody);
    let roots = Arc::clone(&office.nobody().current().roots);
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let (near, far) = duplex(1 << 16);
    let name = ServerName::try_from("db.example.com").unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    let (seen, dialled) = tokio::join!(server.accept(far), connector.connect(name, near));
    let spoken = dialled.unwrap().get_ref().1.protocol_version();
    seen.is_ok() && spoken == Some(versions[0].version)
}

#[tokio::test]
async fn tls_1_3_and_1_2_are_spoken() {
    let office = Office::new();
    assert!(speak(&office, &[&rustls::version::TLS13]).await);
    assert!(speak(&office, &[&rustls::version::TLS12]).await);
}

/// TLS 1.0, as its `ClientHello` begins: no library here speaks it any more.
#[tokio::test]
async fn an_older_version_is_refused() {
    let office = Office::new();
    let server = server(&office.node(None), Admits::Anybody);
    let mut hello = vec![22, 3, 1, 0, 47, 1, 0, 0, 43, 3, 1];
    hello.extend([0x5a; 32]);
    // No session, one cipher of that time, no compression, no extension.
    hello.extend([0, 0, 2, 0, 0x2f, 1, 0, 0, 0]);

    let refusal = refusal_of(&server, &hello).await;

    assert!(matches!(refusal, HandshakeError::Refused(_)), "{refusal:?}");
}

#[tokio::test]
async fn connections_that_begin_after_a_replacement_see_the_new_files() {
    let (office, next) = (Office::new(), Office::new());
    let now = std::time::SystemTime::now();
    let credentials = office.node(Some(1));
    let server = server(&credentials, Admits::Certified);
    let expected = host("127.0.0.1");
    let (old, new) = (client(&office.client("old")), next.ca.client("new", month()).unwrap());
    // It knows both CAs, and has a certificate of the second.
    let both = office.write("both.pem", &format!("{}{}", office.ca_pem, next.ca_pem));
    let mut files = office.files("new", &new);
    files.ca = Some(both);
    let new = client(&Arc::new(Credentials::load(files, now).unwrap()));
    assert!(meet(&server, &old, &expected).await.1.is_ok());
    assert!(meet(&server, &new, &expected).await.1.is_err());

    // The bundle alone is replaced: the node's own certificate stays.
    office.write("ca.pem", &next.ca_pem);
    credentials.reload(now).unwrap();

    assert!(meet(&server, &new, &expected).await.1.is_ok());
    assert!(meet(&server, &old, &expected).await.1.is_err());
}

#[test]
fn sides_that_could_prove_or_check_nothing_are_not_made() {
    let office = Office::new();
    let pair = office.ca.client("a", month()).unwrap();
    let mut files = office.files("a", &pair);
    files.ca = None;
    let now = std::time::SystemTime::now();
    let without_ca = Arc::new(Credentials::load(files, now).unwrap());
    for (credentials, admits, why) in [
        (office.nobody(), Admits::Anybody, Unusable::NoCertificate),
        (Arc::clone(&without_ca), Admits::Certified, Unusable::NoCa),
        (Arc::clone(&without_ca), nodes(), Unusable::NoCa),
    ] {
        assert_eq!(ServerSide::new(credentials, admits, &["h2"]).unwrap_err(), why);
    }
    assert!(matches!(ClientSide::new(without_ca, "h2"), Err(DialError::NoCa)));
}
