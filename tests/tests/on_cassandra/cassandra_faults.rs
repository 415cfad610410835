//! Locks on three real Cassandra nodes when nodes die, or have wrong clocks: the tests that run alone.

#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests stop the test when something is not as it must be"
)]

use std::time::Duration;

use holdfast_runtime::Runtime;
use holdfast_tests::cassandra::{BAKERY, LEASE, QUEUE, Stage, TOKENS};
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
    let stage = Stage::set("quorum", &[LEASE]).await;
    let place = ["cassandra", "--contact-points", stage.points(), "--keyspace", stage.keyspace()];
    let attempt = [&place[..], &["lease", "try", "job", "--", "true"]].concat();
    let nodes = stage.nodes();
    nodes.kill(2).await;
    nodes.kill(3).await;
    let tried = run("holdfast", &attempt).await;
    tokio::join!(nodes.restart(2), nodes.restart(3));

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
