//! `holdfast-migrate import` from three real Cassandra nodes into three real servers, and what the owners find in those.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests stop the test when something is not as it must be"
)]

use std::fs;
use std::time::Duration;

use holdfast::LockInfo;
use holdfast_recipes::LockerOptions;
use holdfast_tests::cassandra::{LEASE, MODES, QUEUE, Stage};
use holdfast_tests::certs::Certs;
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::moving::{LEASES, Move};
use holdfast_tests::program::{Ended, Program};
use holdfast_tests::recipe::Recipe;
use serde_json::{Value, json};

/// Longer than any command's own limit.
const LIMIT: Duration = Duration::from_mins(1);

async fn imported(moved: &Move, arguments: &[&str]) -> Value {
    moved.done("import", arguments).await.remove(0)
}

fn counts(sum: &Value) -> [&Value; 4] {
    ["imported", "queued", "already_there", "refused"].map(|key| &sum[key])
}

fn line_of(lock: &LockInfo) -> Vec<&str> {
    let holders = lock.holders.iter().map(|holder| holder.label.as_str());
    holders.chain(lock.queue.iter().map(|waiter| waiter.label.as_str())).collect()
}

/// I25, over a killed leader between two runs.
#[tokio::test]
async fn what_is_imported_is_claimed_by_its_owners_in_the_order_of_there() {
    let mut moved = Move::set("native_order", &[LEASE, QUEUE, MODES]).await;
    moved
        .cql(&[
            "INSERT INTO k.leases (name, owner, value) VALUES ('orders/1', 'client_1', '10.0.0.7') USING TTL 600",
            "INSERT INTO k.lock_main (key, column1, value) VALUES ('q', 't1', 'x') USING TTL 600",
            "INSERT INTO k.lock_queue (key, column1, value) VALUES ('q', '00000000000000000002t2', 'x') USING TTL 600",
            "INSERT INTO k.lock_queue (key, column1, value) VALUES ('q', '00000000000000000003t3', 'x') USING TTL 600",
        ])
        .await;
    let old_clients_are_gone = "--writers-stopped";
    let leases = imported(&moved, &["--from", "lease", old_clients_are_gone]).await;
    assert_eq!(counts(&leases), [&json!(1), &json!(0), &json!(0), &json!(0)]);
    let queue = imported(&moved, &["--from", "queue", old_clients_are_gone]).await;
    assert_eq!(counts(&queue), [&json!(1), &json!(2), &json!(0), &json!(0)]);

    let leader = moved.cluster.leader().await;
    moved.cluster.kill(leader);
    let again = imported(&moved, &["--from", "queue", old_clients_are_gone]).await;
    assert_eq!(counts(&again), [&json!(0), &json!(0), &json!(3), &json!(0)]);

    // Rows that came from another recipe are not in the tables of this one.
    for (recipe, prefix) in [("lease", "orders/"), ("queue", "q")] {
        let same = moved.run("verify", &["--from", recipe, "--prefix", prefix]).await;
        assert_eq!(same.code, Some(0), "{same:?}");
        assert!(same.out.contains("\"locks\":1"), "{}", same.out);
    }

    let client = moved.client().await;
    let lock = client.reader().inspect("q").await.unwrap().unwrap();
    assert_eq!(line_of(&lock), ["t1", "t2", "t3"]);
    let first = client.claim("q", "t1").await.unwrap();
    let mut third = client.claim("q", "t3").enqueue();
    assert_eq!(third.next().await.map(|place| place.place), Some(1));
    let second = client.claim("q", "t2").enqueue();
    first.release().await.unwrap();
    let second = second.await.unwrap();
    let between = second.token();
    second.release().await.unwrap();
    assert!(third.await.unwrap().token() > between);
    let lease = client.claim("orders/1", "client_1").await.unwrap();
    let differs = moved.run("verify", &["--from", "lease", "--prefix", "orders/"]).await;
    assert_eq!(differs.code, Some(1), "{differs:?}");
    assert!(differs.out.contains("\"difference\":\"other-holder\""), "{}", differs.out);
    assert_eq!(lease.value().map(|value| value.bytes), Some(b"10.0.0.7"[..].into()));
}

/// DESIGN §10: a row that belongs to no client of ours and was changed lately is one of an old client that still works, until the operator
/// declares that it does not.
#[tokio::test]
async fn an_import_beside_clients_that_still_write_is_refused_and_ours_are_let_in() {
    let moved = Move::set("native_strangers", LEASES).await;
    let ours = Recipe::Lease.locker(&moved.stage.cassandra(), &LockerOptions::default());
    let guard = ours.lock("ours").await.unwrap();
    let alone = imported(&moved, &["--from", "lease"]).await;
    assert_eq!(counts(&alone)[0], &json!(1));

    moved.cql(&["INSERT INTO k.leases (name, owner) VALUES ('theirs', 'client_1')"]).await;
    let refused = moved.run("import", &["--from", "lease"]).await;
    guard.release().await.unwrap();

    assert_eq!(refused.code, Some(122), "{refused:?}");
    assert!(refused.err.contains("client_1"), "{}", refused.err);
    assert!(refused.err.contains("--writers-stopped"), "{}", refused.err);
    assert!(moved.client().await.reader().inspect("theirs").await.unwrap().is_none());
}

/// The error names both, and nothing is sent.
#[tokio::test]
async fn a_checkpoint_of_another_cluster_is_refused() {
    let moved = Move::set("native_checkpoint", LEASES).await;
    moved.cql(&["INSERT INTO k.leases (name, owner) VALUES ('a', 'o') USING TTL 600"]).await;
    let file = moved.cluster.folder().join("checkpoint");
    let path = file.to_str().unwrap();
    let line = ["--from", "lease", "--writers-stopped", "--resume", path];
    assert_eq!(counts(&imported(&moved, &line).await)[0], &json!(1));
    let resumed = imported(&moved, &line).await;
    assert_eq!(counts(&resumed), [&json!(0); 4], "every range is done");

    let other = Cluster::start(&Setup::nodes(1)).await;
    let moved = Move { cluster: other, ..moved };
    let refused = moved.run("import", &line).await;

    assert_eq!(refused.code, Some(122), "{refused:?}");
    assert!(refused.err.contains("is of another import"), "{}", refused.err);
    assert!(moved.client().await.reader().list("").await.unwrap().is_empty());
}

/// Runs a program with these variables to its end.
async fn run(program: &str, arguments: &[&str], variables: &[(String, String)]) -> Ended {
    let variables: Vec<(&str, &str)> =
        variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    Program::start_in(program, arguments, &variables).end(LIMIT).await
}

/// A server that speaks TLS, with rules: the token in `mover.token` is for imports below `orders/`.
async fn server_with_rules(certs: &Certs) -> Cluster {
    certs.node(1).await;
    certs.make(&["client", "ops"]).await;
    let mut cluster = Cluster::prepare(&Setup::nodes(1));
    let admins = ("HOLDFAST_ADMINS".to_owned(), "cn:ops".to_owned());
    cluster.set_variables(0, [certs.of_node(1), vec![admins]].concat());
    cluster.start_node(0);
    let endpoints = cluster.endpoints();
    // Each command waits until the server leads.
    for arguments in [
        &["auth", "role", "set", "mover", "import:orders/"][..],
        &["auth", "token", "create", "mover", "--role", "mover"],
        &["auth", "enable"],
    ] {
        let arguments = [&["--endpoints", &*endpoints], arguments].concat();
        let ended = run("holdfast", &arguments, &certs.client("ops")).await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
        if arguments.contains(&"token") {
            fs::write(certs.path("mover.token"), ended.out).unwrap();
        }
    }
    cluster
}

#[tokio::test]
async fn an_import_over_tls_is_its_tokens_owner_and_refused_without_a_token() {
    let stage = Stage::set("native_secured", LEASES).await;
    stage.empty(LEASE).await;
    let row = "INSERT INTO k.leases (name, owner) VALUES ('orders/1', 'client_1') USING TTL 600";
    stage.cql(row).await;
    let certs = Certs::new().await;
    let cluster = server_with_rules(&certs).await;
    let endpoints = cluster.endpoints();
    let migrate = async |command: &[&str], variables: &[(String, String)]| {
        let place = ["--json", "--contact-points", stage.points(), "--keyspace", stage.keyspace()];
        let servers = ["--endpoints", &*endpoints, "--from", "lease"];
        run("holdfast-migrate", &[&place[..], command, &servers[..]].concat(), variables).await
    };
    let import = ["import", "--writers-stopped"];

    let anonymous = migrate(&import, &certs.trusted()).await;
    assert_eq!(anonymous.code, Some(122), "{anonymous:?}");
    assert!(anonymous.err.contains("import on orders/1"), "{anonymous:?}");
    let imported = migrate(&import, &certs.with_token("mover.token")).await;
    assert_eq!(imported.code, Some(0), "{imported:?}");
    let sum: Value = serde_json::from_str(&imported.out).unwrap();
    assert_eq!(counts(&sum), [&json!(1), &json!(0), &json!(0), &json!(0)]);
    // Comparing needs another right, which the certificate of the administrator has.
    let verify = ["verify", "--prefix", "orders/"];
    let same = migrate(&verify, &certs.client("ops")).await;
    assert_eq!(same.code, Some(0), "{same:?}");
    assert!(same.out.contains("\"locks\":1"), "{same:?}");
}
