//! Locks on three real Cassandra nodes when nodes die, or have wrong clocks: the tests that run alone.

#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests stop the test when something is not as it must be"
)]

use std::time::Duration;

use futures_util::future::join_all;
use holdfast_recipes::{Lease, LeaseTable, LockerOptions, RemoteLocker as _};
use holdfast_runtime::Runtime;
use holdfast_tests::cassandra::{BAKERY, LEASE, MODES, QUEUE, Stage, TOKENS};
use holdfast_tests::moving::migrate;
use holdfast_tests::program::run;
use holdfast_tests::recipe::{Times, each_under_load};

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

async fn sleep(length: Duration) {
    Runtime::system().sleep(length).await;
}

/// Two of three nodes are gone: no QUORUM, no lock, and the error comes in time.
#[tokio::test]
async fn without_a_quorum_nothing_is_granted() {
    let stage = Stage::set("quorum", &[LEASE, MODES]).await;
    let place = ["cassandra", "--contact-points", stage.points(), "--keyspace", stage.keyspace()];
    let attempt = [&place[..], &["lease", "try", "job", "--", "true"]].concat();
    let nodes = stage.nodes();
    nodes.kill(2).await;
    nodes.kill(3).await;
    // No server is asked before the scope's stage is known.
    let cutover = ["--scope", "jobs/", "--from", "lease"];
    let moving = migrate(&stage, "127.255.255.1:9", "cutover", &cutover).end(secs(60));
    let (tried, moved) = tokio::join!(run("holdfast", &attempt), moving);
    tokio::join!(nodes.restart(2), nodes.restart(3));

    assert_eq!(moved.code, Some(123), "{moved:?}");
    assert!(moved.err.contains("no answer from Cassandra"), "{moved:?}");
    assert_eq!(tried.code, Some(123), "{tried:?}");
    assert!(tried.err.contains("no answer from Cassandra"), "{tried:?}");
    assert_eq!(tried.err.lines().count(), 1, "{tried:?}");
    let tried = run("holdfast", &attempt).await;
    assert!(matches!(tried.code, Some(0 | 124)), "{tried:?}");
}

#[tokio::test]
async fn one_node_killed_under_load_and_started_again_changes_nothing() {
    let stage = Stage::set("node_killed", &[LEASE, QUEUE, TOKENS, BAKERY]).await;
    each_under_load(&stage, Times::SHORT, (4, &["a", "b"], 20), async |nodes| {
        sleep(secs(2)).await;
        nodes.kill(2).await;
        // With its start it is gone for longer than a hold is safe.
        sleep(secs(3)).await;
        nodes.restart(2).await;
        sleep(secs(2)).await;
    })
    .await;
}

/// The usual TTL, and the largest skew that it allows.
#[tokio::test]
async fn one_node_a_minute_ahead_under_load_changes_nothing() {
    let stage = Stage::set("node_ahead", &[LEASE, QUEUE, TOKENS, BAKERY]).await;
    each_under_load(&stage, Times::USUAL, (4, &["a", "b"], 20), async |nodes| {
        sleep(secs(2)).await;
        nodes.skew(3, secs(60)).await;
        sleep(secs(5)).await;
    })
    .await;
}

/// B9. Fifty tasks of one process wait for a lock that a task of the same process holds, while a statement takes two seconds: each renewal is
/// three statements away from being too late, and none stands behind the looks of those that wait.
#[tokio::test]
#[ignore = "long: nodes that stand still most of the time"]
async fn fifty_waiters_of_one_process_cost_no_hold_while_an_lwt_takes_two_seconds() {
    const HELD_FOR: Duration = secs(120);
    let stage = Stage::set("slow_nodes", &[LEASE]).await;
    let cassandra = stage.cassandra();
    let options = LockerOptions::default().ttl(secs(30)).max_skew(secs(3));
    let lease = Lease::new(&cassandra, &options, LeaseTable::default()).unwrap();
    let (runtime, clock) = (Runtime::system(), Runtime::system().clock);
    let held = lease.lock("job").await.unwrap();
    let waiting = join_all((0..50).map(|_| async {
        let guard = lease.lock("job").await.unwrap();
        guard.release().await.unwrap();
    }));
    let holding = async {
        let sent = cassandra.statements();
        let work = async {
            let until = clock.now() + HELD_FOR;
            let (mut took, mut lowest) = (Vec::new(), held.safe_for());
            while clock.now() < until {
                let asked = clock.now();
                let other = lease.try_lock_within("other", secs(20)).await.unwrap();
                took.push(clock.now().saturating_since(asked));
                other.unwrap().release().await.unwrap();
                lowest = lowest.min(held.safe_for());
                assert!(held.is_safe(), "{:?} after {took:?}", held.state());
            }
            (took, lowest)
        };
        // An LWT takes the nodes longer than they run for at a time.
        let (still, run) = (Duration::from_millis(2_180), Duration::from_millis(20));
        let (mut took, lowest) = stage.nodes().mostly_still(still, run, work).await;
        took.sort_unstable();
        let now = cassandra.statements();
        let middle = took[took.len() / 2];
        println!(
            "{} LWTs of another lock, p50 {middle:.1?}; safe for {lowest:.1?} at the least of 30 s; {} statements in {HELD_FOR:?}, {} of them \
             unanswered",
            took.len(),
            now.sent - sent.sent,
            now.unanswered - sent.unanswered,
        );
        assert!(middle >= secs(2), "the nodes were quicker than that");
        let released = clock.now();
        held.release().await.unwrap();
        released
    };
    let (_, released) = tokio::join!(waiting, holding);
    println!("50 waiters in turn within {:.1?}", clock.now().saturating_since(released));
    drop(lease);
    runtime.timeout(secs(60), cassandra.settled()).await.unwrap();
}
