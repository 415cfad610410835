//! Which callers get in at the ports of real nodes with TLS, beside the clients of `tls`: at the peer port and the admin
//! port, and after a redirect (I22, I36).
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail it by a panic")]

use std::path::{Path, PathBuf};

use holdfast_proto::v1::peer_service_client::PeerServiceClient;
use holdfast_proto::v1::{HelloRequest, HelloResponse};
use holdfast_runtime::Runtime;
use holdfast_tests::certs::Certs;
use holdfast_tests::cluster::{Cluster, Place, Setup, free_port};
use holdfast_tests::program::{Ended, Program};
use holdfast_tls::{ClusterName, Dialler};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tonic::transport::Channel;

use super::secured::{channel, get, side};
use super::tls::{
    LIMIT, LOOKS, done_in_time, holdfast, pause, serves, started_with_tls, three_with_tls,
};

/// What a port answers to a GET.
const OK: &str = "HTTP/1.1 200";
const FORBIDDEN: &str = "HTTP/1.1 403";

async fn soon<T>(what: impl Future<Output = T>) -> T {
    Runtime::system().timeout(LIMIT, what).await.unwrap()
}

/// Asks node 1 as a node does, with that certificate and in the name of the node `from_node`.
async fn hello(
    peer_port: &str,
    ca: &Path,
    own: Option<&Path>,
    from_node: u64,
) -> Result<HelloResponse, String> {
    let dialler = Dialler::to_node(side(ca, own, "h2"), ClusterName::default(), 1, false);
    let channel = channel(peer_port, dialler).await.map_err(|error| error.to_string())?;
    hello_over(channel, from_node).await
}

async fn hello_over(channel: Channel, from_node: u64) -> Result<HelloResponse, String> {
    let answer = soon(PeerServiceClient::new(channel).hello(HelloRequest { from_node })).await;
    let told = answer.map_err(|status| format!("{:?}: {}", status.code(), status.message()))?;
    Ok(told.into_inner())
}

/// Waits until a node has counted so many connections to its peer port that did not prove themselves.
async fn until_unproven(cluster: &Cluster, certs: &Certs, number: u64) {
    const COUNTER: &str = "holdfast_connections_unproven_total{port=\"members\"} ";
    let side = side(&certs.path("ca.pem"), None, "http/1.1");
    let mut last = String::new();
    for _ in 0..LOOKS {
        last = get(&cluster.nodes()[0].admin_listen, &side, "/metrics", None).await;
        let counted = last.lines().find_map(|line| line.strip_prefix(COUNTER));
        if counted.and_then(|count| count.parse::<u64>().ok()).unwrap_or(0) >= number {
            return;
        }
        pause().await;
    }
    panic!("never {number} of them: {last}");
}

/// I22: the certificate decides, and not the message nor the address.
#[tokio::test]
async fn the_peer_port_answers_nodes_of_its_cluster_in_their_own_name_and_nobody_else() {
    let (certs, other) = (Certs::new().await, Certs::new().await);
    let cluster = three_with_tls(&certs).await;
    serves(&cluster, &certs.trusted()).await;
    certs.make(&["client", "app"]).await;
    certs.make(&["node", "--cluster", "shop", "--address", "127.0.0.1"]).await;
    other.node(2).await;
    let (peer_port, ca) = (cluster.nodes()[0].peer_listen.as_str(), certs.path("ca.pem"));
    let ask = async |own: Option<PathBuf>, from_node: u64| {
        hello(peer_port, &ca, own.as_deref(), from_node).await
    };
    let node_2 = || Some(certs.path("node-2.pem"));

    assert_eq!(ask(node_2(), 2).await.unwrap().node_id, 1);
    let in_anothers_name = ask(node_2(), 3).await.unwrap_err();
    assert!(in_anothers_name.starts_with("PermissionDenied"), "{in_anothers_name}");
    assert!(in_anothers_name.contains("of node 2, and the message one of node 3"));
    let strangers = [
        ("nobody", None),
        ("a client", Some(certs.path("app.pem"))),
        ("a node of another cluster", Some(certs.path("node.pem"))),
        ("a node by another CA", Some(other.path("node-2.pem"))),
    ];
    for (who, own) in strangers {
        let answer = ask(own, 2).await;
        assert!(answer.is_err(), "{who} is answered: {answer:?}");
    }
    let plain = Channel::from_shared(format!("http://{peer_port}")).unwrap().connect().await;
    if let Ok(channel) = plain {
        let answer = hello_over(channel, 2).await;
        assert!(answer.is_err(), "plain bytes are answered: {answer:?}");
    }
    // All five failed there, and not on the way.
    until_unproven(&cluster, &certs, 5).await;
    assert_eq!(ask(node_2(), 2).await.unwrap().node_id, 1);
}

/// Answers as a member that speaks no TLS. Returns the first byte that it was sent, and the connection, whose end would be
/// another answer.
async fn answered_in_plain(listener: &TcpListener) -> (Option<u8>, TcpStream) {
    let (mut stream, _) = soon(listener.accept()).await.unwrap();
    let mut sent = [0; 4_096];
    // The client that dialled may have been killed since.
    let read = soon(stream.read(&mut sent)).await.unwrap_or(0);
    let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    (sent[..read].first().copied(), stream)
}

/// Somebody who can answer at a member's address must not learn by that what members say to each other.
#[tokio::test]
async fn a_node_without_insecure_calls_no_member_in_plain() {
    const TLS_BEGINS: u8 = 22;
    let certs = Certs::new().await;
    certs.node(1).await;
    let mut cluster = Cluster::prepare(&Setup::nodes(2));
    let listener = TcpListener::bind(cluster.addresses(1).1).await.unwrap();
    cluster.set_variables(0, certs.of_node(1));
    cluster.start_node(0);
    let mut connections = Vec::new();
    let mut heard = 0;
    while heard < 4 {
        let (first, connection) = answered_in_plain(&listener).await;
        assert_eq!(first.unwrap_or(TLS_BEGINS), TLS_BEGINS, "it speaks to a member without TLS");
        heard += usize::from(first.is_some());
        connections.push(connection);
    }
    cluster.kill(0);

    // The same member is spoken to once the settings say so: the listener above would have heard it.
    let insecure = ("HOLDFAST_INSECURE".to_owned(), "true".to_owned());
    cluster.set_variables(0, [certs.of_node(1), vec![insecure]].concat());
    cluster.start_node(0);
    for _ in 0..LOOKS {
        let (first, connection) = answered_in_plain(&listener).await;
        if first.is_some_and(|first| first != TLS_BEGINS) {
            return;
        }
        connections.push(connection);
    }
    panic!("with `insecure` it calls nobody in plain either");
}

/// A node with rules on, and the tokens `dashboard`, who may see metrics, and `other`, who may not.
async fn with_rules(certs: &Certs) -> Cluster {
    for name in ["ops", "app"] {
        certs.make(&["client", name]).await;
    }
    let admins = ("HOLDFAST_ADMINS".to_owned(), "cn:ops".to_owned());
    let cluster = started_with_tls(certs, &Setup::nodes(1), &[admins]).await;
    let ops = certs.client("ops");
    serves(&cluster, &ops).await;
    for arguments in [
        &["auth", "role", "set", "observer", "metrics"][..],
        &["auth", "role", "set", "reader", "read", "status"],
        &["auth", "assign", "cn:app", "reader"],
        &["auth", "enable"],
    ] {
        done_in_time(&cluster, &ops, arguments).await;
    }
    cluster
}

/// The header of a new token.
async fn header_of(cluster: &Cluster, certs: &Certs, name: &str, role: &str) -> String {
    let create = ["auth", "token", "create", name, "--role", role];
    let made = holdfast(cluster, &certs.client("ops"), &create).await;
    assert_eq!(made.code, Some(0), "{made:?}");
    format!("Bearer {}", made.out.trim())
}

#[tokio::test]
async fn metrics_of_a_node_are_for_those_who_have_the_verb_and_health_is_for_everybody() {
    let certs = Certs::new().await;
    let cluster = with_rules(&certs).await;
    let dashboard = header_of(&cluster, &certs, "dashboard", "observer").await;
    let other = header_of(&cluster, &certs, "other", "reader").await;
    let unknown = format!("Bearer hft_{}", "0".repeat(64));
    let ca = certs.path("ca.pem");
    let ask = async |who: Option<&str>, path: &str, token: Option<&str>| {
        let own = who.map(|name| certs.path(&format!("{name}.pem")));
        let side = side(&ca, own.as_deref(), "http/1.1");
        get(&cluster.nodes()[0].admin_listen, &side, path, token).await
    };

    for (who, token, expected) in [
        (None, None, FORBIDDEN),
        (None, Some(unknown.as_str()), FORBIDDEN),
        (None, Some("Bearer"), FORBIDDEN),
        (None, Some(other.as_str()), FORBIDDEN),
        (Some("app"), None, FORBIDDEN),
        // A token decides, whatever certificate is shown.
        (Some("ops"), Some(unknown.as_str()), FORBIDDEN),
        (None, Some(dashboard.as_str()), OK),
        (Some("app"), Some(dashboard.as_str()), OK),
        (Some("ops"), None, OK),
    ] {
        let answer = ask(who, "/metrics", token).await;
        assert!(answer.starts_with(expected), "{who:?}, {token:?}: {answer}");
        assert_eq!(answer.contains("holdfast_ready"), expected == OK, "{answer}");
    }
    for path in ["/healthz", "/readyz"] {
        let answer = ask(None, path, None).await;
        assert!(answer.starts_with(OK), "{path}: {answer}");
    }
    let revoke = ["auth", "token", "revoke", "dashboard"];
    done_in_time(&cluster, &certs.client("ops"), &revoke).await;
    let answer = ask(None, "/metrics", Some(&dashboard)).await;
    assert!(answer.starts_with(FORBIDDEN), "{answer}");
}

/// Lists the locks through one server, which may send on.
async fn list_at(endpoint: &str, variables: &[(String, String)]) -> Ended {
    let variables: Vec<(&str, &str)> =
        variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let arguments = ["--endpoints", endpoint, "list"];
    Program::start_in("holdfast", &arguments, &variables).end(LIMIT).await
}

/// The leader is reached at an address that its certificate does not name. A client that is sent there talks to nobody
/// there: the node that sent it passes its calls on.
#[tokio::test]
async fn the_name_of_a_server_is_checked_after_a_redirect_too() {
    let certs = Certs::new().await;
    let unnamed = format!("127.0.0.2:{}", free_port());
    let leader =
        Place { listen: unnamed.clone(), advertise: unnamed.clone(), ..Place::on_loopback() };
    let setup = Setup { places: vec![leader], ..Setup::nodes(3) };
    let cluster = started_with_tls(&certs, &setup, &[]).await;
    // Whatever is dialled has to prove this name, which each certificate has.
    let one_name = ("HOLDFAST_SERVER_NAME".to_owned(), "127.0.0.1".to_owned());
    let by_one_name = [certs.trusted(), vec![one_name]].concat();
    serves(&cluster, &by_one_name).await;

    let follower = cluster.nodes()[1].advertise.as_str();
    done_in_time(&cluster, &by_one_name, &["cluster", "transfer-leader", "1"]).await;
    let refused = list_at(&unnamed, &certs.trusted()).await;
    assert_eq!(refused.code, Some(123), "{refused:?}");
    let why = &refused.err;
    assert!(why.contains("not valid for name") && why.contains("127.0.0.2"), "{refused:?}");
    for variables in [&by_one_name, &certs.trusted()] {
        let listed = list_at(follower, variables).await;
        assert_eq!(listed.code, Some(0), "{listed:?}");
    }
}
