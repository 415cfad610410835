//! Many processes that read the row at SERIAL, which costs a round of Paxos like the change that a leader wants to make.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream;
use holdfast_recipes::{LockerOptions, Wait};
use holdfast_runtime::{Instant, Runtime};
use holdfast_tests::cassandra::Stage as Nodes;
use holdfast_tests::cluster::Cluster;
use holdfast_tests::fallback::{SERVES_FOR, TABLES, V, World};
use holdfast_tests::remote::RemoteScribe;

use super::{secs, sleep};

/// How long a drain may take, including a second for holders to finish (`drain_limit_ms`).
const DRAINS_WITHIN: Duration = Duration::from_secs(3 * V.as_secs());
/// How often a holder checks its guard: there are many holders.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What this process observed of a leader's changes of the row.
#[derive(Debug, Default)]
pub(super) struct Drain {
    pub(super) draining: Option<Instant>,
    pub(super) native: Option<Instant>,
    /// The total time in which this process could not read: the machine stalled, or Cassandra.
    pub(super) blinked: Duration,
}

/// Each process holds a lock of its own until it loses it, and is then granted it again, natively.
async fn hold(client: &RemoteScribe, name: &str, until: &AtomicBool) {
    while !until.load(Ordering::Relaxed) {
        if let Ok(held) = client.acquire(name, Wait::AtMost(secs(60))).await {
            while held.note() && !until.load(Ordering::Relaxed) {
                sleep(LOOK_EVERY).await;
            }
            let _ = held.release().await;
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Until the row is native, or should have been.
pub(super) async fn watch(world: &World) -> Drain {
    let clock = Runtime::system().clock;
    let mut drain = Drain::default();
    let mut looked = clock.now();
    let late = looked + SERVES_FOR + DRAINS_WITHIN;
    while drain.native.is_none() && looked < late + drain.blinked {
        let row = world.row().await;
        sleep(Duration::from_millis(20)).await;
        let now = clock.now();
        let blink = now.saturating_since(looked);
        drain.blinked += blink.saturating_sub(Duration::from_millis(100));
        looked = now;
        match row.mode.as_str() {
            "draining" => drain.draining = drain.draining.or(Some(now)),
            "native" => drain.native = Some(now),
            _ => {}
        }
    }
    drain
}

/// Each process reads the row every V/3, holders and waiters alike. Servers come back, and the leader has to change the row twice beside
/// these reads.
async fn drain_beside(keyspace: &'static str, readers: usize) {
    let nodes = Nodes::set(keyspace, &TABLES).await;
    let setup = World::setup(&nodes).node("log_level", "\"info,holdfast_server::authority=debug\"");
    let cluster = Cluster::start(&setup).await;
    let mut world = World::of(nodes, cluster).await;
    // Leases so long that hardly one is renewed meanwhile: Cassandra's work is to read the row.
    let options = || LockerOptions::default().ttl(Duration::from_mins(10)).max_skew(secs(3));
    let entering = stream::iter(0..readers).map(|id| world.enter_with(id as u64, options()));
    let entered: Vec<_> = entering.buffered(8).collect().await;
    let names: Vec<String> = (0..readers).map(|id| format!("job/{id}")).collect();
    let (tokens, over) = (world.tokens.clone(), AtomicBool::new(false));
    let holding = entered.iter().zip(&names).map(|((_, client), name)| hold(client, name, &over));
    let clock = Runtime::system().clock;
    let switching = async {
        let native = tokens.above(0, readers).await;
        world.kill_all();
        let killed = clock.now();
        let fallen = tokens.above(native, 1).await;
        println!("Cassandra after {:.1?}", clock.now().saturating_since(killed));
        // A client that does not hold by then waits, and reads just as often.
        sleep(2 * V).await;
        println!("{:?} grants by epoch", tokens.by_epoch());
        world.start_all();
        let leader = world.cluster.leader().await;
        let leads = clock.now();
        let drain = watch(&world).await;
        let after = |at: Option<Instant>| at.map(|at| at.saturating_since(leads));
        println!(
            "{readers} readers: after there was a leader, draining after {:.1?}, native after {:.1?}; {:.1?} not looked\n{}",
            after(drain.draining),
            after(drain.native),
            drain.blinked,
            log_of_row(&world, leader)
        );
        assert!(drain.native.is_some(), "the leader does not win: {drain:?}");
        tokens.above(fallen, readers / 2).await;
        over.store(true, Ordering::Relaxed);
    };
    tokio::join!(join_all(holding), switching);
    drop(entered);
    world.judge(Vec::new());
}

/// The leader's log lines about the row.
fn log_of_row(world: &World, leader: usize) -> String {
    let log = world.cluster.log(leader);
    log.lines().filter(|line| line.contains("authority")).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
#[ignore = "50 clients and three nodes on two cores have to be fast enough; tests/run full"]
async fn a_leader_drains_the_scope_while_fifty_processes_read_its_row() {
    drain_beside("faults_readers", 50).await;
}

#[tokio::test]
#[ignore = "200 clients and three nodes on two cores have to be fast enough; tests/run full"]
async fn a_leader_drains_the_scope_while_two_hundred_processes_read_its_row() {
    drain_beside("faults_readers_many", 200).await;
}
