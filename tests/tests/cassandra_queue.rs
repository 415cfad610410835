//! What only the queue recipe has, on three real Cassandra nodes: an order. Its locks are in `cassandra_scenarios.rs` and
//! `cassandra_legacy.rs`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests stop the test when something is not as it must be"
)]

use std::time::Duration;

use holdfast::compat::{LockerOptions, Patience, Queue, QueueTables, RemoteLocker};
use holdfast_seams::Seams;
use holdfast_tests::cassandra::{QUEUE, Stage};

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

async fn sleep(length: Duration) {
    Seams::system().sleep(length).await;
}

/// A place in the queue stands for as long as its waiter waits, longer than a TTL.
#[tokio::test]
async fn a_queued_lock_is_renewed_and_its_waiter_stays_first() {
    let stage = Stage::set("queue_renewal", &[QUEUE]).await;
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
