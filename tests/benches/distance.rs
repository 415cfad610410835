//! How the time of an acquire and of a hand-over follows from the distance between the machines and from the
//! number of members, in simulated worlds: on virtual time, where nothing costs any time but the network and
//! the disks. `docs/scaling.md` has the figures.
//!
//! `cargo bench -p holdfast-tests --bench distance`
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench, which cannot go on in error"
)]

use std::time::Duration;

use futures_util::future::join;
use holdfast::{Client, Guard};
use holdfast_runtime::Instant;
use holdfast_runtime::simulated::Machine;
use holdfast_server::raft::ReplicaConfig;
use holdfast_tests::sim::{Link, Settings, World};

/// From one machine to any other, microseconds: in one rack, between zones of a region, between regions.
const DISTANCES_US: [u64; 5] = [0, 50, 250, 5_000, 30_000];
const MEMBERS: [u64; 4] = [1, 3, 5, 7];
/// What each disk takes for a sync. A commit has two in the simulator, the log's and the guard's, and a write
/// of up to 50 µs; a real disk syncs the guard once in a thousand commits.
const SYNC: Duration = Duration::from_micros(100);
const TTL: Duration = Duration::from_secs(20);
const TIMES: usize = 25;

fn main() {
    let short = std::env::args().any(|argument| argument == "--test");
    let distances = if short { &DISTANCES_US[..2] } else { &DISTANCES_US[..] };
    println!("a commit takes each disk 0.20 to 0.25 ms; a link takes the same both ways");
    println!("| members | one way ms | acquire ms | hand-over ms |");
    println!("|---|---|---|---|");
    for &one_way_us in distances {
        for members in MEMBERS {
            let (acquire, hand_over) = measure(members, Duration::from_micros(one_way_us));
            let one_way = millis(Duration::from_micros(one_way_us));
            println!(
                "| {members} | {one_way:.2} | {:.2} | {:.2} |",
                millis(acquire),
                millis(hand_over)
            );
        }
    }
}

/// The medians in a world of so many members.
fn measure(members: u64, one_way: Duration) -> (Duration, Duration) {
    let machine = Machine::new(1);
    machine.run(async {
        let world = World::start(&machine, settings(members, one_way)).await;
        for node in world.nodes() {
            world.disk(node).set_pace(SYNC, SYNC);
        }
        let link = Link { delay_min: one_way, delay_max: one_way, ..Link::default() };
        world.network().set_usual(link);
        world.until_led(Duration::from_mins(1)).await.unwrap();
        let (first, second) = (world.connect(1, TTL).await, world.connect(2, TTL).await);
        let (first, acquire) = acquires(&world, first.unwrap()).await;
        (acquire, hand_overs(&world, [first, second.unwrap()], one_way).await)
    })
}

/// The times of Raft as `round_trip_ms` derives them (`server/settings/src/distance.rs`).
fn settings(members: u64, one_way: Duration) -> Settings {
    let usual = Settings::new(1, members);
    let round_trip_ms = u64::try_from((one_way * 2).as_millis()).unwrap().max(10);
    let heartbeat_ms = 80 + 2 * round_trip_ms;
    let election_min_ms = heartbeat_ms * 9 / 2;
    let election_max_ms = election_min_ms * 4 / 3;
    let times = ReplicaConfig { heartbeat_ms, election_min_ms, election_max_ms, ..usual.replica };
    Settings { replica: times, ..usual }
}

async fn acquires(world: &World<'_>, client: Client) -> (Client, Duration) {
    let clock = world.runtime().clock;
    let work = async move {
        let mut took = Vec::new();
        for number in 0..TIMES {
            let began = clock.now();
            let guard = client.lock(format!("lock-{number}")).await.unwrap();
            took.push(clock.now().saturating_since(began));
            guard.release().await.unwrap();
        }
        (client, median(took))
    };
    world.as_client(1, work).await.unwrap()
}

/// Two clients hand one lock to each other.
async fn hand_overs(
    world: &World<'_>,
    [first, second]: [Client; 2],
    one_way: Duration,
) -> Duration {
    let mut took = Vec::new();
    let (mut guard, mut holder, _) = take(world, 1, first).await;
    let mut waiter = second;
    for turn in 0..TIMES as u64 {
        // The waiter is in the queue by then.
        let queued = one_way * 8 + Duration::from_millis(10);
        let gives_back = async {
            world.runtime().sleep(queued).await;
            let began = world.runtime().clock.now();
            let release = async move { guard.release().await.unwrap() };
            world.as_client(1 + turn % 2, release).await.unwrap();
            began
        };
        let waits = take(world, 1 + (turn + 1) % 2, waiter);
        let ((next, by, granted), began) = join(waits, gives_back).await;
        took.push(granted.saturating_since(began));
        (guard, waiter, holder) = (next, holder, by);
    }
    median(took)
}

async fn take(world: &World<'_>, number: u64, client: Client) -> (Guard, Client, Instant) {
    let clock = world.runtime().clock;
    let take = async move {
        let guard = client.lock("one").await.unwrap();
        (guard, client, clock.now())
    };
    world.as_client(number, take).await.unwrap()
}

fn median(mut took: Vec<Duration>) -> Duration {
    took.sort();
    took.get(took.len() / 2).copied().unwrap_or_default()
}

fn millis(length: Duration) -> f64 {
    length.as_secs_f64() * 1_000.0
}
