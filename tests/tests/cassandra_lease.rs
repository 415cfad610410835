//! The lease recipe on three real Cassandra nodes: the scenarios of the thesis and of the Scylla
//! seed, nodes that die and nodes whose clock is wrong. Every run writes a history, and the judge of
//! all runs judges it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests stop the test when something is not as it must be"
)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use holdfast::compat::{Lease, LeaseTable, LockerOptions, Patience, RemoteLocker};
use holdfast_seams::Seams;
use holdfast_tests::cassandra::{Nodes, Stage};
use holdfast_tests::history::read;
use holdfast_tests::program::Program;
use holdfast_tests::remote::RemoteScribe;
use holdfast_tests::run::judge;
use nix::sys::signal::Signal;
use scylla::client::session::Session;
use scylla::value::Row;
use tempfile::TempDir;

/// Short, so that a test can wait for its end: safe for 4.9 s, renewed every 1.6 s.
const TTL: Duration = secs(9);
const SKEW: Duration = secs(3);

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn lease(stage: &Stage, service: &str, ttl: Duration, skew: Duration) -> Lease {
    let options = LockerOptions::default().service(service).ttl(ttl).max_skew(skew);
    Lease::new(&stage.cassandra(), &options, LeaseTable::default()).unwrap()
}

/// Clients 1 to `number`, each with a locker of its own: as far as locks go, a process each.
fn clients(stage: &Stage, number: u64, ttl: Duration, skew: Duration) -> Vec<RemoteScribe> {
    stage.clients(number, |service| Arc::new(lease(stage, service, ttl, skew)))
}

/// A process that holds `name` as client `id`, and its history.
async fn holder(stage: &Stage, name: &str, id: u64) -> (Program, PathBuf, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let history = folder.path().join("history");
    let (ttl, skew) = (TTL.as_secs().to_string(), SKEW.as_secs().to_string());
    let (id, path) = (id.to_string(), history.to_str().unwrap());
    let place = ["lease", stage.points(), stage.keyspace(), &ttl, &skew, path, &id];
    let arguments = [&place[..], &["hold", name]].concat();
    let mut holder = Program::start("holdfast-cassandra-holder", &arguments);
    holder.line("held", secs(30)).await;
    (holder, history, folder)
}

async fn sleep(length: Duration) {
    Seams::system().sleep(length).await;
}

/// Thesis §5.5, first scenario; and performance, as the Scylla seed has it: it goes on at all, with
/// sixteen that fight for one row.
#[tokio::test]
async fn one_lock_is_had_by_one_of_sixteen_at_a_time() {
    let stage = Stage::set("one_lock").await;
    let clients = clients(&stage, 16, TTL, SKEW);
    let report = stage.under_load(clients, &["one"], async |_| sleep(secs(20)).await).await;

    assert_eq!(report.violations, []);
    assert!(report.tally.safe_holds > 30, "{report}");
}

/// Thesis §5.5, second scenario.
#[tokio::test]
async fn several_locks_are_had_by_several_at_a_time() {
    let stage = Stage::set("several").await;
    let clients = clients(&stage, 8, TTL, SKEW);
    let names = ["a", "b", "c", "d"];
    let report = stage.under_load(clients, &names, async |_| sleep(secs(15)).await).await;

    assert_eq!(report.violations, []);
    assert!(report.tally.safe_holds > 60, "{report}");
}

/// Thesis §5.5, third scenario: three TTLs long.
#[tokio::test]
async fn a_lease_is_renewed_for_as_long_as_it_is_held() {
    let stage = Stage::set("renewal").await;
    let held = lease(&stage, "holder", TTL, SKEW).get_lock("kept").await.unwrap();
    let other = lease(&stage, "other", TTL, SKEW);
    for _ in 0..27 {
        sleep(secs(1)).await;
        assert!(held.is_safe());
        assert!(other.try_get_lock("kept").await.unwrap().is_none());
    }
    held.release().await.unwrap();
    assert!(other.try_get_lock("kept").await.unwrap().is_some());
}

/// Thesis §5.5, fourth scenario: the holder is killed with SIGKILL.
#[tokio::test]
async fn the_lock_of_a_killed_process_passes_on_after_its_ttl_and_not_before() {
    let stage = Stage::set("killed").await;
    let (holder, history, _folder) = holder(&stage, "job", 100).await;
    sleep(secs(3)).await;
    holder.signal(Signal::SIGKILL);
    let killed = Seams::system().clock.now();

    let waiter = clients(&stage, 1, TTL, SKEW).remove(0);
    let held = waiter.acquire("job", Patience::AtMost(secs(30))).await.unwrap();
    let took = Seams::system().clock.now().saturating_since(killed);
    held.release().await.unwrap();

    let report = judge(vec![stage.recorder().take(), read(&history).unwrap()]);
    assert_eq!(report.violations, []);
    // Its last renewal was at most a third of 4.9 s old.
    assert!(took > secs(6) && took < TTL + secs(4), "{took:?}");
}

/// Stop-the-world, as the Scylla seed has it: the holder stands still past its lease, another one
/// has the lock, and the holder knows as soon as it wakes.
#[tokio::test]
async fn a_holder_that_was_frozen_past_its_lease_finds_it_lost() {
    let stage = Stage::set("frozen").await;
    let (mut holder, history, _folder) = holder(&stage, "job", 100).await;
    holder.signal(Signal::SIGSTOP);
    let next = clients(&stage, 1, TTL, SKEW).remove(0);
    let held = next.acquire("job", Patience::AtMost(secs(30))).await.unwrap();
    holder.signal(Signal::SIGCONT);
    holder.line("lost", secs(5)).await;
    held.keep(secs(3)).await;

    assert!(held.guard().is_safe(), "what the frozen one gave back was not ours");
    held.release().await.unwrap();
    let report = judge(vec![stage.recorder().take(), read(&history).unwrap()]);
    assert_eq!(report.violations, []);
}

#[tokio::test]
async fn one_node_killed_under_load_and_started_again_changes_nothing() {
    let stage = Stage::set("node_killed").await;
    let clients = clients(&stage, 6, TTL, SKEW);
    let act = async |nodes: &Nodes| {
        sleep(secs(3)).await;
        nodes.kill(2).await;
        sleep(secs(8)).await;
        nodes.restart(2).await;
        sleep(secs(4)).await;
    };
    let report = stage.under_load(clients, &["a", "b"], act).await;

    assert_eq!(report.violations, []);
    assert!(report.tally.safe_holds > 40, "{report}");
}

/// The seed's TTL, and as much skew as that allows for.
#[tokio::test]
async fn one_node_a_minute_ahead_under_load_changes_nothing() {
    let stage = Stage::set("node_ahead").await;
    let clients = clients(&stage, 6, secs(180), secs(60));
    let act = async |nodes: &Nodes| {
        sleep(secs(3)).await;
        nodes.skew(3, secs(60)).await;
        sleep(secs(12)).await;
    };
    let report = stage.under_load(clients, &["a", "b"], act).await;

    assert_eq!(report.violations, []);
    assert!(report.tally.safe_holds > 30, "{report}");
}

/// Somebody else's client, with the seed's own statements on the same table.
#[tokio::test]
async fn a_client_with_the_seeds_statements_excludes_ours_and_is_excluded() {
    let stage = Stage::set("strangers").await;
    let ours = lease(&stage, "ours", TTL, SKEW);
    let insert = "INSERT INTO strangers.leases (name, owner) VALUES ('foo', 'client_unique_id_1') IF NOT EXISTS";
    let held = ours.get_lock("foo").await.unwrap();
    assert!(!applied(stage.session(), insert).await);
    held.release().await.unwrap();

    assert!(applied(stage.session(), insert).await);
    let denied = ours.get_lock_within("foo", secs(1)).await.unwrap_err();
    assert!(denied.to_string().ends_with("held by client_unique_id_1"), "{denied}");
    let delete = "DELETE FROM strangers.leases WHERE name = 'foo' IF owner = 'client_unique_id_1'";
    assert!(applied(stage.session(), delete).await);
    assert!(ours.try_get_lock("foo").await.unwrap().is_some());
}

async fn applied(session: &Session, statement: &str) -> bool {
    let result = session.query_unpaged(statement, ()).await.unwrap();
    let row: Row = result.into_rows_result().unwrap().first_row().unwrap();
    row.columns[0].as_ref().and_then(scylla::value::CqlValue::as_boolean).unwrap()
}

/// The value is written with every renewal: it outlives the TTL as the leader does.
#[tokio::test]
async fn observers_see_the_leaders_value_beyond_its_ttl_and_a_new_leader_after_it() {
    let stage = Stage::set("election").await;
    let (first, second) = (lease(&stage, "one", TTL, SKEW), lease(&stage, "two", TTL, SKEW));
    let leading = first.campaign("lead", "10.0.0.1:80", Patience::Endless).await.unwrap();
    let mut observer = second.observe("lead");
    let leader = observer.next().await.unwrap().unwrap();
    assert_eq!((&*leader.thread_id, leader.value.as_deref()), ("one", Some("10.0.0.1:80")));

    sleep(TTL + secs(2)).await;
    assert_eq!(first.leader("lead").await.unwrap(), Some(leader));
    leading.set_value(Some("10.0.0.3:80".into())).await.unwrap();
    assert_eq!(observer.next().await.unwrap().unwrap().value.as_deref(), Some("10.0.0.3:80"));

    let standing = second.campaign("lead", "10.0.0.2:80", Patience::Endless);
    let (standing, resigned) = tokio::join!(standing, leading.resign());
    resigned.unwrap();
    assert!(standing.unwrap().guard().is_safe());
}

#[tokio::test]
async fn a_sequence_drawn_by_four_at_once_gives_no_number_twice() {
    let stage = Stage::set("sequences").await;
    let drawers = (0..4).map(|drawer| {
        let sequence = lease(&stage, &format!("drawer-{drawer}"), TTL, SKEW).sequence("orders");
        async move {
            let mut drawn = Vec::new();
            for count in 1..6 {
                drawn.extend(sequence.draw(count).await.unwrap());
            }
            drawn
        }
    });
    let mut drawn: Vec<i64> = join_all(drawers).await.concat();
    drawn.sort_unstable();
    drawn.dedup();

    assert_eq!(drawn.len(), 4 * (1 + 2 + 3 + 4 + 5));
    assert!(drawn[0] >= 1);
}
