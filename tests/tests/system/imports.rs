//! Imports from another store, over real processes: held while leaders die, shown as imported, claimed by the library and by the command
//! line (I25).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of a test fail it by a panic"
)]

use std::time::Duration;

use holdfast::{
    Admin, Client, Error, ImportGroup, ImportOutcome, ImportRow, ImportedState, RefusalReason,
};
use holdfast_runtime::Runtime;
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::program::{Ended, Program};

const PATIENCE: Duration = Duration::from_secs(30);
const ROWS: usize = 1_500;

fn admin(cluster: &Cluster) -> Admin {
    Client::builder().endpoints(cluster.endpoints().split(',')).admin(PATIENCE).unwrap()
}

async fn client(cluster: &Cluster) -> Client {
    Client::builder().endpoints(cluster.endpoints().split(',')).connect().await.unwrap()
}

async fn soon<T>(what: impl IntoFuture<Output = T>) -> T {
    let within = Runtime::system().timeout(PATIENCE, what.into_future()).await;
    within.expect("it comes within half a minute")
}

fn row(name: impl Into<String>, has: ImportedState) -> ImportRow {
    ImportRow { name: name.into(), has }
}

fn held(name: impl Into<String>) -> ImportRow {
    row(name, ImportedState::Hold { value: None })
}

fn group(owner: &str, rows: Vec<ImportRow>) -> ImportGroup {
    ImportGroup { owner: owner.to_owned(), remaining: Duration::from_mins(10), rows }
}

/// The last call is repeated at the new leader, as a tool does whose connection broke.
#[tokio::test]
async fn an_import_outlives_its_leader_and_comes_in_once() {
    let mut cluster = Cluster::start(&Setup::nodes(3)).await;
    let many = (0..ROWS).map(|number| held(format!("jobs/{number:04}"))).collect();
    let waiting = vec![row("jobs/0007", ImportedState::Place)];
    let groups = [group("old/1", many), group("old/2", waiting)];
    let before = admin(&cluster).import(&groups).await.unwrap();
    assert!(
        before[0].iter().all(|fate| matches!(fate, ImportOutcome::Held { .. })),
        "{:?}",
        before[0][0]
    );
    assert_eq!(before[1], [ImportOutcome::Queued { place: 0 }]);

    let leader = cluster.leader().await;
    cluster.kill(leader);
    let again = admin(&cluster).import(&groups).await.unwrap();

    assert!(again.concat().iter().all(|fate| *fate == ImportOutcome::Known), "{:?}", again[0][0]);
    let client = client(&cluster).await;
    let seen = client.reader().inspect("jobs/0007").await.unwrap().unwrap();
    assert!(seen.holders[0].is_imported && seen.holders[0].label == "old/1", "{seen:?}");
    assert!(seen.queue[0].is_imported && seen.queue[0].label == "old/2", "{seen:?}");
    let guard = soon(client.claim("jobs/0007", "old/1")).await.unwrap();
    let mut next = client.claim("jobs/0007", "old/2").enqueue();
    assert_eq!(soon(next.next()).await.map(|place| place.place), Some(0));
    soon(guard.release()).await.unwrap();
    let next = soon(next).await.unwrap();
    assert!(next.is_safe() && next.holds("jobs/0007"));
    let nothing = soon(client.claim("jobs/0007", "old/1")).await.unwrap_err();
    let refused = matches!(nothing, Error::Refused { reason: RefusalReason::NotImported, .. });
    assert!(refused, "{nothing}");
}

#[tokio::test]
async fn the_command_line_shows_an_import_and_takes_it_over() {
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    admin(&cluster).import(&[group("old/\u{e9}", vec![held("nightly")])]).await.unwrap();
    let endpoints = cluster.endpoints();
    let run = async |arguments: &[&str]| -> Ended {
        let arguments = [&["--endpoints", endpoints.as_str()], arguments].concat();
        Program::start("holdfast", &arguments).end(PATIENCE).await
    };

    let seen = run(&["inspect", "nightly"]).await;
    assert!(
        seen.out.contains("nightly is held by old/\u{e9} (imported), session "),
        "{}",
        seen.out
    );
    let listed = run(&["list"]).await;
    assert!(listed.out.contains("old/\u{e9} (imported)"), "{}", listed.out);
    let as_json = run(&["--json", "inspect", "nightly"]).await;
    assert!(as_json.out.contains("\"imported\":true"), "{}", as_json.out);

    let holder: serde_json::Value = serde_json::from_str(&as_json.out).unwrap();
    let session = holder["holders"][0]["session"].as_str().unwrap();
    let session = run(&["session", session]).await;
    assert!(session.out.contains("was imported for old/\u{e9} "), "{session:?}");
    assert!(session.out.contains("\n  holds nightly for "), "{session:?}");
    let nobody = run(&["session", "77"]).await;
    assert_eq!(nobody.code, Some(122), "{nobody:?}");

    let claim = ["lock", "nightly", "--claim", "old/\u{e9}", "--", "sh", "-c"];
    let taken = run(&[&claim[..], &["test -n \"$HOLDFAST_TOKEN\""]].concat()).await;
    assert_eq!(taken.code, Some(0), "{}", taken.err);
    let again = run(&[&claim[..], &["true"]].concat()).await;
    assert_eq!(again.code, Some(122));
    assert!(again.err.contains("nothing of nightly was imported for that owner"), "{}", again.err);
    let two = run(&["lock", "a", "b", "--claim", "old/1", "--", "true"]).await;
    assert_eq!(two.code, Some(125));
    assert!(two.err.contains("--claim takes over one lock"), "{}", two.err);
}
