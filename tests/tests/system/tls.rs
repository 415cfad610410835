//! TLS on every port of real nodes, made with `holdfast cert`, and rules (DESIGN §14; I1, I24, I36).
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail it by a panic")]

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use holdfast::{Builder, Client, Tls};
use holdfast_runtime::Runtime;
use holdfast_tests::certs::Certs;
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::program::{Ended, Program};
use nix::sys::signal::Signal;

/// Longer than any command's own limit.
pub(super) const LIMIT: Duration = Duration::from_mins(1);
/// How often a condition is checked before the test fails.
pub(super) const LOOKS: usize = 300;

pub(super) async fn pause() {
    Runtime::system().sleep(Duration::from_millis(100)).await;
}

/// Starts `holdfast` with these arguments and variables.
pub(super) fn begin(
    cluster: &Cluster,
    variables: &[(String, String)],
    arguments: &[&str],
) -> Program {
    let endpoints = cluster.endpoints();
    let variables: Vec<(&str, &str)> =
        variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    Program::start_in("holdfast", &[&["--endpoints", &endpoints], arguments].concat(), &variables)
}

/// Runs it to its end.
pub(super) async fn holdfast(
    cluster: &Cluster,
    variables: &[(String, String)],
    arguments: &[&str],
) -> Ended {
    begin(cluster, variables, arguments).end(LIMIT).await
}

/// Waits until a leader serves callers with these variables.
pub(super) async fn serves(cluster: &Cluster, variables: &[(String, String)]) {
    let mut last = None;
    for _ in 0..LOOKS {
        let ended = holdfast(cluster, variables, &["try", "probe", "--", "true"]).await;
        if ended.code == Some(0) {
            return;
        }
        last = Some(ended);
        pause().await;
    }
    panic!("nobody serves: {last:?}");
}

async fn until_logged(cluster: &Cluster, index: usize, words: &str) {
    for _ in 0..LOOKS {
        if cluster.log(index).contains(words) {
            return;
        }
        pause().await;
    }
    panic!("node {} never said: {words}", cluster.nodes()[index].id);
}

/// Stops a node as an operator does, and starts it with these variables.
async fn restart(cluster: &mut Cluster, index: usize, variables: Vec<(String, String)>) {
    cluster.signal(index, Signal::SIGTERM);
    cluster.wait_for_exit(index).await;
    cluster.set_variables(index, variables);
    cluster.start_node(index);
}

/// Three nodes with TLS, each with its own certificate, that are started.
pub(super) async fn three_with_tls(certs: &Certs) -> Cluster {
    started_with_tls(certs, &Setup::nodes(3), &[]).await
}

/// The nodes of a setup, with TLS and these variables.
pub(super) async fn started_with_tls(
    certs: &Certs,
    setup: &Setup,
    more: &[(String, String)],
) -> Cluster {
    let mut cluster = Cluster::prepare(setup);
    for index in 0..setup.nodes {
        let id = cluster.nodes()[index].id;
        certs.node(id).await;
        cluster.set_variables(index, [certs.of_node(id), more.to_vec()].concat());
        cluster.start_node(index);
    }
    cluster
}

#[tokio::test]
async fn three_nodes_with_tls_serve_who_trusts_their_ca_and_speaks_tls() {
    let (certs, other) = (Certs::new().await, Certs::new().await);
    let cluster = three_with_tls(&certs).await;
    serves(&cluster, &certs.trusted()).await;
    certs.make(&["client", "app"]).await;
    other.make(&["client", "app"]).await;

    let shown = holdfast(&cluster, &certs.client("app"), &["cluster", "status"]).await;
    assert_eq!(shown.code, Some(0), "{shown:?}");

    let mixed = [certs.trusted(), other.client("app")[1..].to_vec()].concat();
    let named = [certs.trusted(), vec![("HOLDFAST_SERVER_NAME".into(), "db9".into())]].concat();
    for (variables, says) in [
        (Vec::new(), "TLS"),
        // Both CAs have the same name.
        (other.trusted(), "BadSignature"),
        (named, "db9"),
        // The server says no after the client's own handshake, in an alert.
        (mixed, "DecryptError"),
    ] {
        let refused = holdfast(&cluster, &variables, &["list"]).await;
        assert_eq!(refused.code, Some(123), "{refused:?}");
        assert!(refused.err.contains(says), "{says}: {refused:?}");
    }
}

/// A node whose clients have to show a certificate.
#[tokio::test]
async fn a_client_without_a_certificate_is_kept_out_where_one_is_required() {
    let certs = Certs::new().await;
    certs.node(1).await;
    certs.make(&["client", "app"]).await;
    let mut cluster = Cluster::prepare(&Setup::nodes(1).node("client_certs", "\"required\""));
    cluster.set_variables(0, certs.of_node(1));
    cluster.start_node(0);

    serves(&cluster, &certs.client("app")).await;
    let refused = holdfast(&cluster, &certs.trusted(), &["list"]).await;

    assert_eq!(refused.code, Some(123), "{refused:?}");
    assert!(refused.err.contains("CertificateRequired"), "{refused:?}");
}

/// The lock is held from before the change until after it, by a client without TLS and then by one with it,
/// who holds it on when rules are on that give nobody a right.
#[tokio::test]
async fn a_cluster_goes_over_to_tls_node_by_node_and_no_lock_is_lost() {
    let certs = Certs::new().await;
    certs.make(&["client", "ops"]).await;
    let mut cluster = Cluster::start(&Setup::nodes(3)).await;
    let hold = |seconds: &'static str| ["lock", "jobs", "--", "sleep", seconds];
    let old = begin(&cluster, &[], &hold("1000"));
    until_held(&cluster, &[], 1).await;

    let insecure = ("HOLDFAST_INSECURE".to_owned(), "true".to_owned());
    for index in 0..3 {
        let id = cluster.nodes()[index].id;
        certs.node(id).await;
        let both = [certs.of_node(id), vec![insecure.clone()]].concat();
        restart(&mut cluster, index, both).await;
        serves(&cluster, &[]).await;
    }
    // A client with TLS waits behind the one without.
    let new = begin(&cluster, &certs.trusted(), &hold("1000"));
    until_held(&cluster, &certs.trusted(), 2).await;
    old.signal(Signal::SIGTERM);
    let ended = old.end(LIMIT).await;
    assert_eq!(ended.code, Some(143), "the lock was not lost: {ended:?}");
    until_held(&cluster, &certs.trusted(), 1).await;

    for index in 0..3 {
        let id = cluster.nodes()[index].id;
        let admins = ("HOLDFAST_ADMINS".to_owned(), "cn:ops".to_owned());
        let with_admins = [certs.of_node(id), vec![admins]].concat();
        restart(&mut cluster, index, with_admins).await;
        serves(&cluster, &certs.trusted()).await;
    }
    let plain = holdfast(&cluster, &[], &["list"]).await;
    assert_eq!(plain.code, Some(123), "{plain:?}");

    let ops = certs.client("ops");
    done_in_time(&cluster, &ops, &["auth", "enable"]).await;
    let nobody = holdfast(&cluster, &certs.trusted(), &["try", "other", "--", "true"]).await;
    assert_eq!(nobody.code, Some(122), "{nobody:?}");
    until_held(&cluster, &ops, 1).await;
    new.signal(Signal::SIGTERM);
    let ended = new.end(LIMIT).await;
    assert_eq!(ended.code, Some(143), "the lock was not lost: {ended:?}");
}

/// As docs/security.md tells operators, on a cluster whose clients hold locks meanwhile; the rules are the
/// same at every node that comes to lead.
#[tokio::test]
async fn rules_go_on_while_a_lock_is_held_and_count_under_every_leader() {
    let certs = Certs::new().await;
    for name in ["ops", "app"] {
        certs.make(&["client", name]).await;
    }
    let admins = ("HOLDFAST_ADMINS".to_owned(), "cn:ops".to_owned());
    let cluster = started_with_tls(&certs, &Setup::nodes(3), &[admins]).await;
    let (ops, app, nobody) = (certs.client("ops"), certs.client("app"), certs.trusted());
    serves(&cluster, &ops).await;
    let held = begin(&cluster, &app, &["lock", "jobs", "--", "sleep", "1000"]);
    let anonymous = begin(&cluster, &nobody, &["lock", "pay/old", "--", "sleep", "1000"]);
    until_held(&cluster, &ops, 1).await;

    let done = async |arguments: &[&str]| {
        let ended = holdfast(&cluster, &ops, arguments).await;
        assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
        ended.out
    };
    done(&["auth", "role", "set", "worker", "acquire:jobs", "read:jobs"]).await;
    done(&["auth", "assign", "cn:app", "worker"]).await;
    let token = done(&["auth", "token", "create", "ci", "--role", "worker"]).await;
    let file = certs.path("ci.token");
    fs::write(&file, token).unwrap();
    let by_token = ("HOLDFAST_TOKEN_FILE".to_owned(), file.to_str().unwrap().to_owned());
    // A token decides, whatever certificate is shown.
    let ci = [certs.client("ops"), vec![by_token]].concat();
    done(&["auth", "enable"]).await;

    for index in 0..3 {
        let leader = cluster.nodes()[index].id.to_string();
        done_in_time(&cluster, &ops, &["cluster", "transfer-leader", &leader]).await;
        for (variables, lock, says) in [
            (&app, "jobs/1", None),
            (&ci, "jobs/1", None),
            (&ops, "pay/1", None),
            (&app, "pay/1", Some("acquire on pay/1")),
            (&ci, "pay/1", Some("acquire on pay/1")),
            (&nobody, "jobs/1", Some("any verb")),
        ] {
            let ended = holdfast(&cluster, variables, &["try", lock, "--", "true"]).await;
            let code = if says.is_some() { 122 } else { 0 };
            assert_eq!(ended.code, Some(code), "node {leader}, {lock}: {ended:?}");
            assert!(ended.err.contains(says.unwrap_or_default()), "{ended:?}");
        }
    }
    done(&["auth", "token", "revoke", "ci"]).await;
    let revoked = holdfast(&cluster, &ci, &["try", "jobs/1", "--", "true"]).await;
    assert_eq!(revoked.code, Some(122), "{revoked:?}");

    // What was held before the rules were on is held still, by whoever it was.
    for holder in [held, anonymous] {
        holder.signal(Signal::SIGTERM);
        let ended = holder.end(LIMIT).await;
        assert_eq!(ended.code, Some(143), "the lock was not lost: {ended:?}");
    }
}

/// Runs it until it ends well: a change of leader may be refused while another is under way.
pub(super) async fn done_in_time(
    cluster: &Cluster,
    variables: &[(String, String)],
    arguments: &[&str],
) {
    let mut last = None;
    for _ in 0..LOOKS {
        let ended = holdfast(cluster, variables, arguments).await;
        if ended.code == Some(0) {
            return;
        }
        last = Some(ended);
        pause().await;
    }
    panic!("{arguments:?} never succeeded: {last:?}");
}

/// Waits until the lock `jobs` has so many requests, the holder's among them.
async fn until_held(cluster: &Cluster, variables: &[(String, String)], requests: usize) {
    let mut last = None;
    for _ in 0..LOOKS {
        let ended = holdfast(cluster, variables, &["inspect", "jobs", "--json"]).await;
        let shown: serde_json::Value = serde_json::from_str(&ended.out).unwrap_or_default();
        last = Some(ended);
        if shown["held_by"] == 1 && shown["waiting"] == requests - 1 {
            return;
        }
        pause().await;
    }
    panic!("never {requests} requests: {last:?}");
}

/// The CA is replaced in three steps, as the manual tells operators: both, the new certificates, the new one.
#[tokio::test]
async fn certificates_and_ca_are_replaced_under_load_and_no_lock_is_lost() {
    let (certs, next) = (Certs::new().await, Certs::new().await);
    let mut cluster = three_with_tls(&certs).await;
    serves(&cluster, &certs.trusted()).await;
    let client = Certs::new().await;
    client.replace("ca.pem", &certs.path("ca.pem"));
    let held = begin(&cluster, &client.trusted(), &["lock", "jobs", "--", "sleep", "1000"]);
    until_held(&cluster, &client.trusted(), 1).await;
    let load = Load::start(&cluster, &client);

    // A broken file is refused, and nothing changes.
    let good = fs::read(certs.path("node-1.key")).unwrap();
    fs::write(certs.path("node-1.key"), "broken").unwrap();
    until_logged(&cluster, 0, "the certificate files stay as they were").await;
    fs::write(certs.path("node-1.key"), good).unwrap();

    let both =
        [certs.path("ca.pem"), next.path("ca.pem")].map(|ca| fs::read_to_string(ca).unwrap());
    fs::write(next.path("both"), both.concat()).unwrap();
    client.replace("ca.pem", &next.path("both"));
    certs.replace("ca.pem", &next.path("both"));
    all_reload(&cluster, 1).await;
    for id in 1..=3 {
        next.node(id).await;
        for file in [format!("node-{id}.key"), format!("node-{id}.pem")] {
            certs.replace(&file, &next.path(&file));
        }
    }
    all_reload(&cluster, 2).await;
    certs.replace("ca.pem", &next.path("ca.pem"));
    all_reload(&cluster, 3).await;

    // Clients that began with the old CA alone have to dial again: they look at their files anew.
    for index in 0..3 {
        cluster.kill(index);
        cluster.start_node(index);
    }
    serves(&cluster, &next.trusted()).await;
    held.signal(Signal::SIGTERM);
    let ended = held.end(LIMIT).await;
    assert_eq!(ended.code, Some(143), "the lock was not lost: {ended:?}");
    let grants = load.end().await;
    println!("{grants} grants, {} of them over a connection of their own", grants - load.kept());
}

/// Clients that take locks and give them back all the time, every other one over a new connection each time.
#[derive(Clone, Default)]
struct Load {
    ended: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
    grants: [Arc<AtomicUsize>; 2],
}

impl Load {
    const CLIENTS: usize = 4;

    fn start(cluster: &Cluster, certs: &Certs) -> Self {
        let load = Self::default();
        for number in 0..Self::CLIENTS {
            let endpoints: Vec<String> =
                cluster.endpoints().split(',').map(str::to_owned).collect();
            let builder =
                Client::builder().endpoints(endpoints).tls(Tls::new(certs.path("ca.pem")));
            let client = load.clone().run(builder, number % 2);
            Runtime::system().spawn("load", client).detach();
        }
        load
    }

    async fn run(self, builder: Builder, kind: usize) {
        let name = format!("load/{kind}");
        let mut client = builder.clone().connect().await.unwrap();
        while !self.is_over.load(Ordering::Relaxed) {
            if kind == 1 {
                client = builder.clone().connect().await.unwrap();
            }
            let guard = client.lock(&name).await.unwrap();
            // An error says that the lock was lost.
            guard.release().await.unwrap();
            self.grants[kind].fetch_add(1, Ordering::Relaxed);
        }
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends it; fails if a client has met an error. Returns the grants.
    async fn end(&self) -> usize {
        self.is_over.store(true, Ordering::Relaxed);
        for look in 0.. {
            assert!(look < LOOKS, "a client has ended with an error, or hangs");
            if self.ended.load(Ordering::Relaxed) == Self::CLIENTS {
                break;
            }
            pause().await;
        }
        let [kept, new] = [0, 1].map(|kind| self.grants[kind].load(Ordering::Relaxed));
        assert!(kept > 50 && new > 5, "{kept} and {new} grants are no load");
        kept + new
    }

    /// Grants over connections that stay.
    fn kept(&self) -> usize {
        self.grants[0].load(Ordering::Relaxed)
    }
}

/// Asks every node to look at its files; waits until each has found new ones so many times.
async fn all_reload(cluster: &Cluster, times: usize) {
    const SAID: &str = "new certificate files";
    for index in 0..3 {
        cluster.signal(index, Signal::SIGHUP);
    }
    for index in 0..3 {
        for look in 0.. {
            assert!(look < LOOKS, "node {} found no new files", index + 1);
            if cluster.log(index).matches(SAID).count() >= times {
                break;
            }
            pause().await;
        }
    }
}
