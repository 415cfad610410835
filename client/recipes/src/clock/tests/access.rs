//! Who may ask a replica, and whom a client believes.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use holdfast::Tls;
use holdfast_runtime::{Runtime, Task};
use holdfast_tls::make::{self, Ca, Pair, Term};
use holdfast_tls::{ClusterName, NodeName};
use tempfile::TempDir;

use crate::clock::{TimeAccess, TimeClient, TimePort};
use crate::{Error, Result};

const TOKEN: &str = "hft_00";

/// A CA with the certificates that it vouches for, in a folder.
struct Files(TempDir);

impl Files {
    fn make() -> Self {
        let now = Runtime::system().clock.wall();
        let files = Self(tempfile::tempdir().unwrap());
        files.sign("", now);
        files.sign("other-", now);
        files
    }

    fn sign(&self, prefix: &str, now: SystemTime) {
        let term = Term { now, lasts: Duration::from_hours(1) };
        let of_ca = make::ca("test", term).unwrap();
        let ca = Ca::read(&of_ca.cert_pem, &of_ca.key_pem).unwrap();
        let name = NodeName { cluster: "test".parse::<ClusterName>().unwrap(), id: None };
        self.write(&format!("{prefix}ca"), &of_ca);
        self.write(
            &format!("{prefix}server"),
            &ca.node(&name, &["127.0.0.1".into()], term).unwrap(),
        );
        self.write(&format!("{prefix}client"), &ca.client("app", term).unwrap());
    }

    fn write(&self, name: &str, pair: &Pair) {
        fs::write(self.cert(name), &pair.cert_pem).unwrap();
        fs::write(self.key(name), &pair.key_pem).unwrap();
    }

    fn cert(&self, name: &str) -> PathBuf {
        self.0.path().join(format!("{name}.pem"))
    }

    fn key(&self, name: &str) -> PathBuf {
        self.0.path().join(format!("{name}.key"))
    }

    fn tls(&self) -> Tls {
        Tls::new(self.cert("ca"))
    }

    fn tls_as(&self, name: &str) -> Tls {
        self.tls().certificate(self.cert(name), self.key(name))
    }

    /// A port with TLS; with `demands`, for clients of the CA only.
    async fn port(&self, demands: bool) -> TimePort {
        let clients = demands.then(|| self.cert("ca"));
        listen().await.tls(self.cert("server"), self.key("server"), clients).unwrap()
    }
}

async fn listen() -> TimePort {
    TimePort::listen("127.0.0.1:0").await.unwrap()
}

/// It is always 7.
struct Serving {
    at: String,
    _task: Task,
}

impl Serving {
    fn at(port: TimePort) -> Self {
        let at = port.address().to_string();
        let serve = async move {
            let _ = port.serve(|| Box::pin(std::future::ready(Ok(7)))).await;
        };
        Self { at, _task: Runtime::system().spawn("replica", serve) }
    }

    async fn ask(&self, access: TimeAccess) -> Result<u64> {
        TimeClient::with_access([&self.at], &access)?.now_us().await
    }

    async fn fails(&self, access: TimeAccess, says: &str) {
        let error = self.ask(access).await.unwrap_err().to_string();
        assert!(error.contains(says), "{says:?} is not in {error:?}");
        assert!(!error.contains(TOKEN), "{error}");
    }
}

fn plain() -> TimeAccess {
    TimeAccess::default()
}

fn with(tls: Tls) -> TimeAccess {
    TimeAccess::default().tls(tls)
}

#[tokio::test]
async fn a_replica_with_tls_is_believed_for_its_certificate_and_answers_nobody_without() {
    let files = Files::make();
    let serving = Serving::at(files.port(false).await);
    assert_eq!(serving.ask(with(files.tls())).await, Ok(7));
    assert_eq!(serving.ask(with(files.tls_as("client"))).await, Ok(7));
    serving.fails(plain(), &serving.at).await;
    serving.fails(with(Tls::new(files.cert("other-ca"))), "certificate").await;
    serving.fails(with(files.tls().server_name("elsewhere")), "not valid for name").await;

    let without = Serving::at(listen().await);
    without.fails(with(files.tls()), "speaks no TLS").await;
    let nothing = without.ask(with(Tls::new(files.cert("none")))).await;
    assert!(
        matches!(&nothing, Err(Error::InvalidConfig { message }) if message.contains("none.pem"))
    );
}

#[tokio::test]
async fn a_replica_that_demands_certificates_answers_only_clients_of_its_ca() {
    let files = Files::make();
    let serving = Serving::at(files.port(true).await);
    assert_eq!(serving.ask(with(files.tls_as("client"))).await, Ok(7));
    serving.fails(with(files.tls()), "received fatal alert").await;
    serving.fails(with(files.tls_as("other-client")), "received fatal alert").await;

    let missing = listen().await.tls(files.cert("server"), files.key("ca"), None).unwrap_err();
    assert!(missing.to_string().contains("does not belong"), "{missing}");
}

#[tokio::test]
async fn replaced_files_count_from_the_next_connection_on() {
    let files = Files::make();
    let serving = Serving::at(files.port(false).await);
    assert_eq!(serving.ask(with(files.tls())).await, Ok(7));
    for name in ["server", "ca"] {
        let of = format!("other-{name}");
        fs::copy(files.cert(&of), files.cert(name)).unwrap();
        fs::copy(files.key(&of), files.key(name)).unwrap();
    }
    assert_eq!(serving.ask(with(files.tls())).await, Ok(7));
}

#[tokio::test]
async fn a_replica_with_a_token_answers_only_clients_that_show_it() {
    let serving = Serving::at(listen().await.token(&format!("{TOKEN}\n")).unwrap());
    assert_eq!(serving.ask(plain().token(TOKEN).unwrap()).await, Ok(7));
    serving.fails(plain(), "it wants a token, and none was shown").await;
    serving.fails(plain().token("hft_01").unwrap(), "it does not take this token").await;
    assert!(listen().await.token(" ").is_err() && plain().token("a\nb").is_err());
    let shown = format!("{:?}", listen().await.token(TOKEN).unwrap());
    assert!(!shown.contains(TOKEN), "{shown}");
}
