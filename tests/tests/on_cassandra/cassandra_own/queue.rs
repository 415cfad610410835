//! The queue: an order.

use holdfast_recipes::{LockerOptions, Queue, QueueTables, RemoteLocker, Wait};
use holdfast_runtime::Runtime;
use holdfast_tests::cassandra::{QUEUE, Stage};

use super::{SKEW, TTL, secs, sleep};

fn queue(stage: &Stage, service: &str) -> Queue {
    let options = LockerOptions::default().service(service).ttl(TTL).max_skew(SKEW);
    Queue::new(&stage.cassandra(), &options, QueueTables::default()).unwrap()
}

/// A place in the queue stands for as long as its waiter waits, also longer than a TTL.
#[tokio::test]
async fn a_queued_lock_is_renewed_and_its_waiter_stays_first() {
    let stage = Stage::set("queue_renewal", &[QUEUE]).await;
    let held = queue(&stage, "holder").lock("kept").await.unwrap();
    let (first, second) = (queue(&stage, "first"), queue(&stage, "second"));
    let waiting = first.lock("kept");
    let later = async {
        sleep(TTL + secs(4)).await;
        assert!(held.is_safe());
        assert!(second.try_lock("kept").await.unwrap().is_none());
        let second = second.acquire("kept", Wait::AtMost(secs(30)));
        let (second, released) = tokio::join!(second, async {
            sleep(secs(1)).await;
            held.release().await
        });
        released.unwrap();
        (second.unwrap(), Runtime::system().clock.now())
    };
    let first = async {
        let guard = waiting.await.unwrap();
        let had = Runtime::system().clock.now();
        guard.release().await.unwrap();
        had
    };
    let (first_had, (second, second_had)) = tokio::join!(first, later);
    assert!(first_had < second_had, "who came first has it first");
    second.release().await.unwrap();
}
