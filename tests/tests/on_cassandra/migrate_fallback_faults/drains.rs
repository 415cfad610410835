//! Bringing a scope back from Cassandra while thousands of its locks are held there (B8).

use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use holdfast_recipes::{Locker, LockerOptions, RemoteGuard, RemoteLocker as _};
use holdfast_runtime::{Instant, Runtime};
use holdfast_tests::fallback::{SCOPE, SWITCHED_WITHIN, World};

use super::readers::{Drain, watch};
use super::secs;

/// Among so many the leases are spread: as in a scope that is new.
const PARTITIONS: u16 = 256;
/// How many locks are asked for at once.
const AT_ONCE: usize = 256;
/// How long each is asked for: the nodes have two cores together with everything else.
const GRANTED_WITHIN: Duration = Duration::from_mins(4);

/// The locks `job/0` and so on, each by one of the lockers.
async fn take(lockers: &[Locker], holds: usize) -> Vec<RemoteGuard> {
    let asked = (0..holds).map(|number| async move {
        let name = format!("job/{number}");
        lockers[number % lockers.len()].lock_within(&name, GRANTED_WITHIN).await.unwrap()
    });
    stream::iter(asked).buffer_unordered(AT_ONCE).collect().await
}

/// Leases of processes that died, in partitions of the scope: whatever a drain waits for, they do not end meanwhile.
async fn leave(world: &World, leases: usize) {
    let keyspace = world.nodes.keyspace();
    let insert = format!(
        "INSERT INTO \"{keyspace}\".fallback_leases (scope, bucket, name, owner) VALUES (?, ?, ?, 'hf1:dead@01/02') USING TTL 1800"
    );
    let session = world.nodes.session();
    let insert = session.prepare(insert).await.unwrap();
    let written = (0..leases).map(|number| {
        let row = (
            SCOPE,
            i64::try_from(number).unwrap() % i64::from(PARTITIONS),
            format!("job/left/{number}"),
        );
        let insert = &insert;
        async move { session.execute_unpaged(insert, row).await.unwrap() }
    });
    stream::iter(written).buffer_unordered(64).count().await;
}

/// A drain of holders that go on until its limit ends their holds, because they know of no drain, and of leases that nobody holds any more.
async fn drained(keyspace: &'static str, holds: usize, left: usize) -> String {
    let mut world = World::start_in_partitions(keyspace, PARTITIONS).await;
    // Leases so long that none is renewed meanwhile.
    let options = || LockerOptions::default().ttl(Duration::from_mins(30)).max_skew(secs(3));
    let mut lockers = Vec::new();
    for id in 1..=8 {
        lockers.push(world.enter_with(id, options()).await.0);
    }
    world.kill_all();
    let first = lockers[0].lock_within("job/first", SWITCHED_WITHIN).await.unwrap();
    first.release().await.unwrap();
    leave(&world, left).await;
    let clock = Runtime::system().clock;
    let since = |began: Instant| clock.now().saturating_since(began);

    let began = clock.now();
    let held = take(&lockers, holds).await;
    let taken = since(began);
    let safe = held.iter().filter(|guard| guard.is_safe()).count();

    world.start_all();
    world.cluster.leader().await;
    let leads = clock.now();
    let Drain { draining, native, blinked } = watch(&world).await;
    let (draining, native) = (draining.unwrap(), native.unwrap());
    // The row is native first, and the leader grants when no hold under it can be safe any more.
    let asked = clock.now();
    let again = take(&lockers, holds).await;
    let natively = since(asked);
    assert!(held.iter().all(|guard| !guard.is_safe()), "two holders");
    assert!(again.iter().all(|guard| guard.token().is_some()));
    format!(
        "{holds} holds, taken in {taken:.1?} ({safe} safe then), {left} leases of dead processes: with a leader, draining after {:.1?}, native \
         {:.1?} later, all granted natively within {natively:.1?}; {blinked:.1?} not looked",
        draining.saturating_since(leads),
        native.saturating_since(draining),
    )
}

/// Lines for docs/migration.md. More holds than a thousand at a time are more than these nodes carry.
#[tokio::test]
#[ignore = "long: a measurement"]
async fn what_it_costs_to_drain_a_scope_with_thousands_of_holds() {
    let cases = [("drain_few", 10, 0), ("drain_1000", 1_000, 0), ("drain_left", 10, 10_000)];
    for (keyspace, holds, left) in cases {
        println!("{}", drained(keyspace, holds, left).await);
    }
}
