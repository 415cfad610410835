//! The queue recipe on three real Cassandra nodes, by the judge.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests stop the test when something is not as it must be"
)]

use std::sync::Arc;
use std::time::Duration;

use holdfast::compat::{LockerOptions, Patience, Queue, QueueTables, RemoteLocker};
use holdfast_seams::Seams;
use holdfast_tests::cassandra::{Nodes, Stage};
use holdfast_tests::remote::RemoteScribe;

/// Short, so that a test can wait for its end: safe for 4.9 s.
const TTL: Duration = secs(9);
const SKEW: Duration = secs(3);

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn queue(stage: &Stage, service: &str) -> Queue {
    let options = LockerOptions::default().service(service).ttl(TTL).max_skew(SKEW);
    Queue::new(&stage.cassandra(), &options, QueueTables::default()).unwrap()
}

fn clients(stage: &Stage, number: u64) -> Vec<RemoteScribe> {
    stage.clients(number, |service| Arc::new(queue(stage, service)))
}

async fn sleep(length: Duration) {
    Seams::system().sleep(length).await;
}

/// Thesis §5.5, first and second scenario.
#[tokio::test]
async fn queued_locks_are_had_by_one_at_a_time() {
    let stage = Stage::set("queued").await;
    let clients = clients(&stage, 8);
    let report = stage.under_load(clients, &["a", "b"], async |_| sleep(secs(20)).await).await;

    println!("{report}");
    assert_eq!(report.violations, []);
    assert!(report.tally.safe_holds > 20, "{report}");
}

/// Thesis §5.5, third scenario, and the place of a waiter for longer than a TTL.
#[tokio::test]
async fn a_queued_lock_is_renewed_and_its_waiter_stays_first() {
    let stage = Stage::set("queue_renewal").await;
    let held = queue(&stage, "holder").get_lock("kept").await.unwrap();
    let (first, second) = (queue(&stage, "first"), queue(&stage, "second"));
    let waiting = first.get_lock("kept");
    let later = async {
        sleep(TTL + secs(4)).await;
        assert!(held.is_safe());
        assert!(second.try_get_lock("kept").await.unwrap().is_none());
        let second = second.acquire("kept", Patience::AtMost(secs(30)));
        let (second, released) = tokio::join!(second, async {
            sleep(secs(1)).await;
            held.release().await
        });
        released.unwrap();
        (second.unwrap(), Seams::system().clock.now())
    };
    let first = async {
        let guard = waiting.await.unwrap();
        let had = Seams::system().clock.now();
        guard.release().await.unwrap();
        had
    };
    let (first_had, (second, second_had)) = tokio::join!(first, later);
    assert!(first_had < second_had, "who came first has it first");
    second.release().await.unwrap();
}

#[tokio::test]
async fn one_node_killed_under_a_queue_and_started_again_changes_nothing() {
    let stage = Stage::set("queue_node_killed").await;
    let clients = clients(&stage, 4);
    let act = async |nodes: &Nodes| {
        sleep(secs(3)).await;
        nodes.kill(2).await;
        sleep(secs(8)).await;
        nodes.restart(2).await;
        sleep(secs(4)).await;
    };
    let report = stage.under_load(clients, &["a"], act).await;

    println!("{report}");
    assert_eq!(report.violations, []);
    assert!(report.tally.safe_holds > 5, "{report}");
}
