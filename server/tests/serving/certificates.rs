//! The certificate files of a node: whose they have to be, when they are looked at, what is said of their end, and
//! what the admin port shows to whom.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use holdfast_runtime::Runtime;
use holdfast_tls::make::{self, Ca, Term};
use holdfast_tls::{ClientSide, CredentialFiles, Credentials, Expected, NodeName, OwnFiles};
use nix::sys::signal::Signal;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::support::{Node, PATIENCE, Setup, assert_holds, eventually, get};
use super::value_of;

const DAY: Duration = Duration::from_hours(24);
/// How long the CA lasts, days.
const CA_DAYS: u32 = 90;
/// The name of the node that the tests start.
const ITS_NAME: &str = "holdfast:node:holdfast:1";
/// What a node logs when it takes new files.
const TAKEN: &str = "new certificate files";
/// Only its owner can read it.
const CLOSED: u32 = 0o600;

/// A CA, and the folder with the files of a node.
struct Office {
    folder: TempDir,
    ca: Ca,
}

fn term(days: u32) -> Term {
    let now = Runtime::system().clock.wall();
    Term { now, lasts: days * DAY }
}

impl Office {
    fn new() -> Self {
        let made = make::ca("test CA", term(CA_DAYS)).unwrap();
        let ca = Ca::read(&made.cert_pem, &made.key_pem).unwrap();
        let office = Self { folder: TempDir::new().unwrap(), ca };
        office.put("ca.pem", &made.cert_pem, 0o644);
        office
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    /// Puts a file in its place, as a whole.
    fn put(&self, file: &str, text: &str, mode: u32) {
        let new = self.path("new");
        std::fs::write(&new, text).unwrap();
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(mode)).unwrap();
        std::fs::rename(new, self.path(file)).unwrap();
    }

    /// Makes the files of the node, for the owner of this name. The node may look between the two: then they do
    /// not fit, and it keeps what it has.
    fn certify(&self, name: &str, days: u32, mode_of_key: u32) {
        let name = NodeName::parse(name).unwrap();
        let pair = self.ca.node(&name, &["127.0.0.1".to_owned()], term(days)).unwrap();
        self.put("node.key", &pair.key_pem, mode_of_key);
        self.put("node.pem", &pair.cert_pem, 0o644);
    }

    /// Node 1, with these files and a port for members.
    fn setup(&self) -> Setup {
        let setup = Setup::new();
        let members = format!("--members=1={}/{}", setup.listen, setup.peer_listen);
        let flag = |flag: &str, file: &str| format!("--tls-{flag}={}", self.path(file).display());
        let files = [flag("cert", "node.pem"), flag("key", "node.key"), flag("ca", "ca.pem")];
        let [cert, key, ca] = &files;
        setup.flags(&[&members, cert, key, ca])
    }

    /// A client of the admin port; without a name it has no certificate.
    fn client(&self, name: Option<&str>) -> ClientSide {
        let own = name.map(|name| {
            let pair = self.ca.client(name, term(30)).unwrap();
            self.put("client.key", &pair.key_pem, CLOSED);
            self.put("client.pem", &pair.cert_pem, 0o644);
            OwnFiles { cert: self.path("client.pem"), key: self.path("client.key") }
        });
        let files = CredentialFiles { own, ca: Some(self.path("ca.pem")) };
        let credentials = Credentials::load(files, term(0).now).unwrap();
        ClientSide::new(Arc::new(credentials), "http/1.1").unwrap()
    }
}

#[track_caller]
fn is_logged(node: &Node, words: &str) {
    let logged = eventually(|| node.log().contains(words).then_some(()));
    assert!(logged.is_some(), "{words:?} is not in: {}", node.log());
}

#[test]
fn a_certificate_of_another_node_or_cluster_ends_the_start() {
    let office = Office::new();
    for name in ["holdfast:node:holdfast:2", "holdfast:node:shop:1"] {
        office.certify(name, 30, CLOSED);

        let setup = office.setup();
        let (code, said) = setup.fails();

        assert_eq!(code, Some(78), "{said}");
        assert_holds(&said, &["does not make its owner node 1 of cluster holdfast", name]);
        assert!(!setup.data.exists(), "{} was made", setup.data.display());
    }
}

/// With the files of another node in use, the members would refuse its connections, and it could not start again.
#[test]
fn files_of_another_node_are_refused_while_it_serves_and_its_own_are_taken_without_a_signal() {
    let office = Office::new();
    office.certify(ITS_NAME, 30, CLOSED);
    let node = office.setup().flags(&["--insecure"]).starts();

    office.certify("holdfast:node:holdfast:2", 30, CLOSED);
    node.signal(Signal::SIGHUP);
    is_logged(&node, "stay as they were: the certificate in tls_cert does not make its owner");
    assert!(!node.log().contains(TAKEN), "{}", node.log());

    office.certify(ITS_NAME, 30, 0o644);
    node.signal(Signal::SIGHUP);
    is_logged(&node, TAKEN);
    is_logged(&node, "node.key can be read by everybody on this machine (644)");

    office.certify(ITS_NAME, 30, CLOSED);
    let taken = eventually(|| (node.log().matches(TAKEN).count() > 1).then_some(()));
    assert!(taken.is_some(), "without a signal: {}", node.log());
}

/// As by `systemctl reload`.
#[test]
fn a_hangup_does_not_end_a_node_without_tls() {
    let node = Setup::new().starts();
    node.signal(Signal::SIGHUP);
    // In an orderly way, so the signal before did not.
    node.stop();
}

#[test]
fn what_ends_within_14_days_is_warned_of_and_metrics_show_the_end_of_each_file() {
    let office = Office::new();
    office.certify(ITS_NAME, 10, CLOSED);
    let node = office.setup().flags(&["--insecure"]).starts();

    is_logged(&node, "node.pem ends in 9 days");
    assert!(!node.log().contains("ca.pem ends in"), "{}", node.log());
    let metrics = get(node.setup.admin_listen, "/metrics").unwrap();
    let now = Runtime::system().clock.wall_ms() / 1_000;
    for (file, days) in [("node.pem", 10), ("ca.pem", u64::from(CA_DAYS))] {
        let file = office.path(file);
        let name = format!("certificate_ends_seconds{{file=\"{}\"}}", file.display());
        let left = value_of(&metrics, &name) - now;
        assert_eq!(left.div_ceil(DAY.as_secs()), days, "{name}: {left} s");
    }
}

/// The start of the answer to a GET over TLS, with the status; empty if the connection ends before.
async fn get_secured(client: &ClientSide, address: SocketAddr, path: &str) -> String {
    let answer = async {
        let stream = TcpStream::connect(address).await.ok()?;
        let expected = Expected::Server(address.ip().to_string());
        let mut stream = client.connect(stream, &expected).await.ok()?;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut status = [0; 12];
        stream.read_exact(&mut status).await.ok()?;
        Some(String::from_utf8_lossy(&status).into_owned())
    };
    answer.await.unwrap_or_default()
}

/// A supervisor that asks for health has no certificate.
#[tokio::test]
async fn health_answers_without_the_certificate_that_clients_need_and_metrics_do_not() {
    let office = Office::new();
    office.certify(ITS_NAME, 30, CLOSED);
    let node = office.setup().flags(&["--client-certs=required"]).starts_unready();
    let (nobody, known) = (office.client(None), office.client(Some("prometheus")));
    let admin = node.setup.admin_listen;

    let ready = async {
        while get_secured(&nobody, admin, "/readyz").await != "HTTP/1.1 200" {
            Runtime::system().sleep(Duration::from_millis(20)).await;
        }
    };
    let ready = Runtime::system().timeout(PATIENCE, ready).await;
    assert!(ready.is_ok(), "{}", node.log());

    for (client, path, answer) in [
        (&nobody, "/healthz", "HTTP/1.1 200"),
        (&nobody, "/metrics", "HTTP/1.1 403"),
        (&known, "/healthz", "HTTP/1.1 200"),
        (&known, "/metrics", "HTTP/1.1 200"),
    ] {
        assert_eq!(get_secured(client, admin, path).await, answer, "{path}");
    }
}
