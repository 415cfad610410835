//! A busy queue of work: every item leaves tombstones, and neither the workers that go on nor those that idle may have to walk over those of a
//! whole day (B11). The items are written with times that are past: nobody waits for an hour to go by.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests stop the test when something is not as it must be; a soak shows what it saw"
)]

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use holdfast_recipes::{Cassandra, LockerOptions, SerialScope, Wait, WorkQueue, WorkTables};
use holdfast_runtime::{Runtime, select};
use holdfast_tests::cassandra::{Stage, WORK};
use scylla::client::session::Session;

const MINUTE_US: u64 = 60_000_000;
/// How many shares a minute has.
const SHARES: u64 = 4_096;
/// Items in a batch of statements: the nodes refuse one of 50 KiB.
const BATCH: u64 = 40;
const WORKERS: u64 = 8;

/// Items that were enqueued in so many minutes, which are over.
#[derive(Clone, Copy)]
pub(super) struct Past {
    pub(super) minutes: u64,
    pub(super) items_each: u64,
}

impl Past {
    /// Writes them as `WorkQueue::enqueue` does, but for their time.
    async fn write(self, session: &Session, keyspace: &str, queue: &str) {
        let last = Runtime::system().clock.wall_ms() * 1_000 / MINUTE_US - 5;
        for minute in last - self.minutes..last {
            let slot = minute * SHARES;
            let begins = minute * MINUTE_US;
            let ids: Vec<u64> = (0..self.items_each).map(|item| begins + item).collect();
            let batches = ids.chunks(usize::try_from(BATCH).unwrap()).map(|ids| {
                let mut batch = "BEGIN UNLOGGED BATCH ".to_owned();
                for at_us in ids {
                    let id = format!("{at_us:020}s000{at_us:016x}");
                    let part = -1 - i64::try_from(slot).unwrap();
                    write!(
                        batch,
                        "INSERT INTO \"{keyspace}\".work_details (queue, item, name, value) VALUES ('{queue}', '{id}', 'payload', 'job') USING TIMESTAMP {at_us}; \
                         INSERT INTO \"{keyspace}\".work_numbers (queue, hour, item, worker, number) VALUES ('{queue}', {part}, '{id}', '0', 0) USING TIMESTAMP {at_us}; "
                    )
                    .unwrap();
                }
                batch + "APPLY BATCH"
            });
            let written = batches.map(async |batch| {
                session.query_unpaged(batch, ()).await.unwrap();
            });
            join_all(written).await;
            let listing = format!(
                "INSERT INTO \"{keyspace}\".work_slots (queue, slot, listing) \
                 VALUES ('{queue}', {slot}, '{begins:020}{begins:016x}') USING TIMESTAMP {begins}"
            );
            session.query_unpaged(listing, ()).await.unwrap();
        }
    }

    fn items(self) -> u64 {
        self.minutes * self.items_each
    }
}

fn queue_on(cassandra: &Cassandra, name: &str) -> WorkQueue {
    WorkQueue::new(cassandra, &LockerOptions::default(), WorkTables::default(), name).unwrap()
}

/// Works off all items with so many workers of two processes; prints a row each ten seconds.
async fn work_off(cassandra: &Cassandra, queues: &[WorkQueue; 2], items: u64) {
    const WINDOW: Duration = Duration::from_secs(10);
    let (runtime, done) = (Runtime::system(), Arc::new(AtomicU64::new(0)));
    let (began, sent) = (runtime.clock.now(), cassandra.statements().sent);
    let workers = (0..WORKERS).map(|worker| {
        let queue = &queues[usize::try_from(worker % 2).unwrap()];
        let done = done.clone();
        async move {
            while let Some(item) = queue.next(Wait::AtMost(Duration::from_secs(3))).await.unwrap() {
                item.done().await.unwrap();
                done.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    let rows = async {
        let mut before = 0;
        loop {
            runtime.sleep(WINDOW).await;
            let now = done.load(Ordering::Relaxed);
            println!("{now} items done, {} a second", (now - before) / WINDOW.as_secs());
            before = now;
        }
    };
    select! {
        _ = join_all(workers) => {}
        () = rows => {}
    }
    let took = runtime.clock.now().saturating_since(began);
    let sent = cassandra.statements().sent - sent;
    println!("{} items in {took:.1?} by {sent} statements", done.load(Ordering::Relaxed));
    assert_eq!(done.load(Ordering::Relaxed), items);
}

/// A new worker, which knows nothing yet, finds no item, and can read everything that is listed.
async fn finds_nothing(cassandra: &Cassandra, name: &str) {
    let queue = queue_on(cassandra, name);
    let clock = Runtime::system().clock;
    let (asked, sent) = (clock.now(), cassandra.statements().sent);
    assert!(queue.is_empty().await.unwrap());
    let took = clock.now().saturating_since(asked);
    println!("a whole look: {took:.1?}, {} statements", cassandra.statements().sent - sent);
    assert!(queue.next(Wait::No).await.unwrap().is_none());
}

/// B11. The node fails a read of more than 250 tombstones, in place of 100,000: the items of any hour leave more, those of a minute do not.
pub(super) async fn a_busy_queue_outlives_its_tombstones(
    session: &Session,
    cassandra: &Cassandra,
    keyspace: &str,
) {
    let past = Past { minutes: 12, items_each: 40 };
    past.write(session, keyspace, "busy").await;
    let queues = [(); 2].map(|()| queue_on(cassandra, "busy"));
    work_off(cassandra, &queues, past.items()).await;
    finds_nothing(cassandra, "busy").await;
}

fn number(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).map_or(usual, |text| text.parse().unwrap())
}

/// Items of an hour, or of a day, that are done one after the other; then workers idle, and the slots leave the list.
#[tokio::test]
#[ignore = "long: thousands of items; every change has a queue that outlives its tombstones"]
async fn a_queue_of_thousands_of_items_stays_as_fast_as_it_was() {
    let minutes = number("HOLDFAST_SOAK_MINUTES", 60);
    let past = Past { minutes, items_each: number("HOLDFAST_SOAK_ITEMS", 6_000) / minutes };
    let stage = Stage::set("work_soak", &[WORK]).await;
    let name = format!("busy {}", std::process::id());
    past.write(stage.session(), stage.keyspace(), &name).await;
    println!("{} items in {minutes} minutes that are over", past.items());
    let cassandra =
        Cassandra::new(stage.session().clone(), stage.keyspace(), &SerialScope::Cluster).unwrap();
    let queues = [(); 2].map(|()| queue_on(&cassandra, &name));
    work_off(&cassandra, &queues, past.items()).await;
    finds_nothing(&cassandra, &name).await;
    for _ in 0..4 {
        let (began, sent) = (Runtime::system().clock.now(), cassandra.statements().sent);
        let idle = queues.iter().map(|queue| queue.next(Wait::AtMost(Duration::from_secs(45))));
        assert!(join_all(idle).await.into_iter().all(|had| had.unwrap().is_none()));
        let took = Runtime::system().clock.now().saturating_since(began);
        println!("two idle workers, {took:.1?}: {} statements", cassandra.statements().sent - sent);
    }
    finds_nothing(&cassandra, &name).await;
    let listed = format!("SELECT count(*) FROM k.work_slots WHERE queue = '{name}'");
    let listed = stage.cql(&listed).await.into_rows_result().unwrap();
    assert_eq!(listed.first_row::<(i64,)>().unwrap(), (0,), "slots that are still listed");
}
