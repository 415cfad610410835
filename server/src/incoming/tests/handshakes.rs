//! Ports with TLS: a caller that does not prove itself keeps no other out, and costs the servers nothing.

use holdfast_tls::make::{self, Ca, Term};
use holdfast_tls::{
    Admits, ClientSide, CredentialFiles, Credentials, Expected, NodeName, OwnFiles, ServerSide,
};
use tempfile::TempDir;

use super::super::handshakes::Bounds;
use super::*;

const LIMIT: Duration = Duration::from_mins(1);

/// A port with TLS whose handshakes have these bounds.
struct Secured {
    address: SocketAddr,
    proven: mpsc::Receiver<Wire>,
    unproven: Counter,
    client: ClientSide,
    /// The thread ends with it.
    _handshakes: Handshakes,
    _folder: TempDir,
}

impl Secured {
    fn new(at_once: usize, within: Duration) -> Self {
        let (folder, server, client) = both_sides();
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let metrics = ConnectionMetrics::default();
        let incoming = Incoming::new(listener, Port::Clients, 100, &metrics, Runtime::system());
        let unproven = Counter::default();
        let (tell, proven) = Handshakes::proven();
        let port = SecuredPort {
            incoming,
            security: Security { side: Arc::new(server), plain_too: false },
            unproven: unproven.clone(),
            proven: tell,
        };
        let bounds = Bounds { at_once, within };
        let handshakes = Handshakes::bounded(bounds, Runtime::system()).unwrap();
        handshakes.open(port).unwrap();
        Self { address, proven, unproven, client, _handshakes: handshakes, _folder: folder }
    }

    async fn silent(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Waits until one is counted that did not prove itself: that is after its connection is closed.
    async fn has_one_unproven(&self) {
        let counted = async {
            while self.unproven.get() != 1 {
                Runtime::system().sleep(Duration::from_millis(5)).await;
            }
        };
        within_limit(counted).await;
    }

    /// Proves itself, as the server does; the server's end.
    async fn speak(&mut self) -> Wire {
        let connection = self.silent().await;
        let expected = Expected::Server(self.address.ip().to_string());
        let connected = self.client.connect(connection, &expected);
        let both = async { tokio::join!(connected, self.proven.recv()) };
        let (connected, wire) = within_limit(both).await;
        connected.unwrap();
        wire.unwrap()
    }
}

/// The two sides of TLS, and the folder of their files.
fn both_sides() -> (TempDir, ServerSide, ClientSide) {
    let now = Runtime::system().clock.wall();
    let term = Term { now, lasts: Duration::from_hours(1) };
    let made = make::ca("test CA", term).unwrap();
    let ca = Ca::read(&made.cert_pem, &made.key_pem).unwrap();
    let name = NodeName { cluster: "shop".parse().unwrap(), id: None };
    let node = ca.node(&name, &[Ipv4Addr::LOCALHOST.to_string()], term).unwrap();
    let folder = TempDir::new().unwrap();
    let files =
        [("ca.pem", made.cert_pem), ("node.pem", node.cert_pem), ("node.key", node.key_pem)];
    let [ca, cert, key] = files.map(|(file, text)| {
        let path = folder.path().join(file);
        std::fs::write(&path, text).unwrap();
        path
    });
    let load = |files| Arc::new(Credentials::load(files, now).unwrap());
    let server = load(CredentialFiles { own: Some(OwnFiles { cert, key }), ca: None });
    let client = load(CredentialFiles { own: None, ca: Some(ca) });
    let server = ServerSide::new(server, Admits::Anybody, &["h2"]).unwrap();
    (folder, server, ClientSide::new(client, "h2").unwrap())
}

async fn within_limit<T>(work: impl Future<Output = T>) -> T {
    Runtime::system().timeout(LIMIT, work).await.unwrap()
}

#[tokio::test]
async fn the_oldest_of_those_that_say_nothing_gives_way_to_one_that_speaks() {
    let mut port = Secured::new(2, LIMIT);
    let oldest = port.silent().await;
    let _other = port.silent().await;

    let _wire = port.speak().await;

    assert!(within_limit(is_closed(oldest)).await);
    port.has_one_unproven().await;
}

#[tokio::test]
async fn who_says_nothing_is_closed_after_the_limit_and_reaches_no_server() {
    let mut port = Secured::new(100, Duration::from_millis(50));
    let silent = port.silent().await;

    assert!(within_limit(is_closed(silent)).await);

    port.has_one_unproven().await;
    assert!(port.proven.try_recv().is_err());
}

#[tokio::test]
async fn a_port_is_closed_when_nobody_takes_its_connections() {
    let mut port = Secured::new(100, LIMIT);
    let wire = port.speak().await;
    let address = port.address;
    drop((wire, port.proven));

    let refused = async {
        while TcpStream::connect(address).await.is_ok() {
            Runtime::system().sleep(Duration::from_millis(10)).await;
        }
    };
    within_limit(refused).await;
}
