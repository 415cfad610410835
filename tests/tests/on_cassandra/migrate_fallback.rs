//! A scope with fallback on three real Cassandra nodes and three real holdfastd (DESIGN §10): the servers die, Cassandra serves; they come
//! back, and serve again. Every run writes a history, which the judge of all runs checks; the tokens of every name have to rise over all
//! switches.
//!
//! Durations are those of a test, not of production: W = 4 s, V = 2 s.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests stop the test when something is not as it must be, and show what they saw"
)]

use std::time::Duration;

use futures_util::future::join_all;
use holdfast::Client;
use holdfast_recipes::Locker;
use holdfast_runtime::Runtime;
use holdfast_tests::draw::Draw;
use holdfast_tests::fallback::{SWITCHED_WITHIN, World};
use holdfast_tests::history::read;
use holdfast_tests::program::Program;
use nix::sys::signal::Signal;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

async fn sleep(length: Duration) {
    Runtime::system().sleep(length).await;
}

/// A process is frozen while it holds natively, and through the switch to Cassandra and back: its hold is over when it wakes, and other
/// clients held the lock meanwhile in either store.
#[tokio::test]
async fn a_process_that_stood_still_over_both_switches_finds_its_lock_lost() {
    let mut world = World::start("fallback_frozen").await;
    let folder = tempfile::tempdir().unwrap();
    let history = folder.path().join("history");
    let recipe = format!("fallback@{}", world.cluster.endpoints());
    let (points, keyspace) = (world.nodes.points(), world.nodes.keyspace());
    let place = [&recipe, points, keyspace, "9", "3", history.to_str().unwrap(), "100"];
    let mut frozen =
        Program::start("holdfast-cassandra-holder", &[&place[..], &["hold", "job/a"]].concat());
    frozen.line("held", secs(30)).await;
    let (_locker, client) = world.enter(1).await;
    world.hold(&client, "job/b").await;

    frozen.signal(Signal::SIGSTOP);
    world.kill_all();
    // No server runs: Cassandra grants.
    let fallen = world.hold(&client, "job/a").await;
    world.start_all();
    let returning = async { while world.hold(&client, "job/a").await <= fallen {} };
    let within = Runtime::system().timeout(SWITCHED_WITHIN, returning).await;
    assert!(within.is_ok(), "not native again: {:?}", world.scope().await);
    frozen.signal(Signal::SIGCONT);
    frozen.line("lost", secs(10)).await;
    world.judge(vec![read(&history).unwrap()]);
}

/// `tests/run` runs these before the others, one at a time: the first measures pauses, the second kills nodes.
mod alone {
    use super::{
        Client, Draw, Duration, Locker, Runtime, SWITCHED_WITHIN, World, join_all, secs, sleep,
    };
    use holdfast_recipes::RemoteLocker as _;

    /// All three servers are killed under load: Cassandra serves the scope. They come back: they serve it again.
    #[tokio::test]
    async fn a_scope_whose_servers_die_is_served_by_cassandra_until_they_are_back() {
        die_and_come_back("fallback_kill", 1).await;
    }

    #[tokio::test]
    #[ignore = "long: every change has simulated runs in which scopes fall back many times (schedule switches)"]
    async fn a_scope_whose_servers_die_again_and_again_is_served_by_either_store() {
        die_and_come_back("fallback_kills", 4).await;
    }

    async fn die_and_come_back(keyspace: &'static str, rounds: usize) {
        let mut world = World::start(keyspace).await;
        let (workers, tokens) = (world.workers(6).await, world.tokens.clone());
        let clock = Runtime::system().clock;
        let switching = Box::pin(async {
            let mut native = tokens.above(0, 20).await;
            for round in 1..=rounds {
                let killed = clock.now();
                world.kill_all();
                let fallen = tokens.above(native, 1).await;
                let without = clock.now().saturating_since(killed);
                tokens.above(native, 20).await;
                world.start_all();
                let started = clock.now();
                let back = tokens.above(fallen, 1).await;
                let returned = clock.now().saturating_since(started);
                println!(
                    "round {round}: Cassandra after {without:.1?}, native again after {returned:.1?}"
                );
                tokens.above(fallen, 20).await;
                world.row_is("native").await;
                native = back;
            }
        });
        workers.work_during(switching).await;
        drop(workers);

        world.judge(Vec::new()).are_as_documented();
        assert!(tokens.by_epoch().len() > 2 * rounds, "{:?}", tokens.by_epoch());
        world.is_well().await;
    }

    /// B8. Lines for docs/cassandra.md: how many locks a scope grants while Cassandra serves it, by the partitions of its leases.
    #[tokio::test]
    #[ignore = "long: a measurement"]
    async fn what_a_scope_carries_while_cassandra_serves_it() {
        for (keyspace, partitions) in [("fallback_16", 16), ("fallback_256", 256)] {
            let mut world = World::start_in_partitions(keyspace, partitions).await;
            let mut lockers = Vec::new();
            for id in 1..=4 {
                lockers.push(world.enter(id).await.0);
            }
            world.kill_all();
            for locker in &lockers {
                locker
                    .lock_within("job/first", SWITCHED_WITHIN)
                    .await
                    .unwrap()
                    .release()
                    .await
                    .unwrap();
            }
            for (clients, names) in [(64, 1_000), (256, 1_000), (64, 10)] {
                let carried = carried(&lockers, clients, names).await;
                println!("{partitions} partitions, {clients} clients, {names} names: {carried}");
            }
        }
    }

    /// Tasks that take and give back locks of these names for twenty seconds: a line of what came of it.
    async fn carried(lockers: &[Locker], clients: usize, names: u64) -> String {
        const LENGTH: Duration = secs(20);
        let runtime = Runtime::system();
        let (clock, until) = (runtime.clock.clone(), runtime.clock.now() + LENGTH);
        let client = |number: usize| {
            let (locker, clock) = (lockers[number % lockers.len()].clone(), clock.clone());
            let mut draw = Draw::new(number as u64);
            async move {
                let (mut took, mut failed) = (Vec::new(), 0);
                while clock.now() < until {
                    let (asked, name) = (clock.now(), format!("job/{}", draw.below(names)));
                    match locker.lock_within(&name, secs(10)).await {
                        Ok(guard) => {
                            took.push(clock.now().saturating_since(asked));
                            failed += usize::from(guard.release().await.is_err());
                        }
                        Err(_) => failed += 1,
                    }
                }
                (took, failed)
            }
        };
        let ended = join_all((0..clients).map(client)).await;
        let failed: usize = ended.iter().map(|(_, failed)| failed).sum();
        let mut took: Vec<Duration> = ended.into_iter().flat_map(|(took, _)| took).collect();
        took.sort_unstable();
        let rate = f64::from(u32::try_from(took.len()).unwrap()) / LENGTH.as_secs_f64();
        let at = |part: usize| took.get(took.len() * part / 100).copied().unwrap_or_default();
        let (half, most) = (at(50), at(99));
        format!(
            "{rate:.0} locks a second, p50 {half:.1?}, p99 {most:.1?}, {failed} not had or given back"
        )
    }

    /// Cassandra is gone: a scope with fallback stops granting, names outside it go on; and it grants again with Cassandra.
    #[tokio::test]
    async fn without_cassandra_only_the_names_of_the_scope_stand_still() {
        let world = World::start("fallback_alone").await;
        let client = Client::connect(world.cluster.endpoints().split(',')).await.unwrap();
        let held = client.lock("job/a").await.unwrap();
        for node in [2, 3] {
            world.nodes.nodes().kill(node).await;
        }
        // Two of three replicas are gone: no SERIAL. On a slow machine the hold alone may end before authority does.
        let runtime = Runtime::system();
        let ending = async {
            while held.is_safe() || !world.scope().await.suspended {
                sleep(Duration::from_millis(20)).await;
            }
        };
        assert!(
            runtime.timeout(secs(60), ending).await.is_ok(),
            "authority ends without Cassandra"
        );
        let beside = client.lock("other").await.unwrap();
        beside.release().await.unwrap();
        let waiting = client.lock("job/b").wait(secs(2)).await;
        assert!(waiting.is_err(), "nobody may say that it is safe: {waiting:?}");

        tokio::join!(world.nodes.nodes().restart(2), world.nodes.nodes().restart(3));
        let again = client.lock("job/b").wait(secs(60)).await.unwrap();
        assert!(again.is_safe());
        again.release().await.unwrap();
    }
}
