//! Bringing a scope back from Cassandra while thousands of its locks are held there (B8).

use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use holdfast_recipes::{Locker, LockerOptions, RemoteGuard, RemoteLocker as _};
use holdfast_runtime::{Instant, Runtime};
use holdfast_tests::fallback::{SWITCHED_WITHIN, World};

use super::readers::{Drain, watch};
use super::secs;

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

/// Holders that go on until the drain's limit ends their holds: they know of no drain.
async fn drained(keyspace: &'static str, holds: usize) -> String {
    let mut world = World::start_in_partitions(keyspace, 256).await;
    // Leases so long that none is renewed meanwhile.
    let options = || LockerOptions::default().ttl(Duration::from_mins(30)).max_skew(secs(3));
    let mut lockers = Vec::new();
    for id in 1..=8 {
        lockers.push(world.enter_with(id, options()).await.0);
    }
    world.kill_all();
    let first = lockers[0].lock_within("job/first", SWITCHED_WITHIN).await.unwrap();
    first.release().await.unwrap();
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
    let outlasted = held.iter().filter(|guard| guard.is_safe()).count();
    assert_eq!(outlasted, 0, "a hold of an epoch that is over");
    let asked = clock.now();
    let again = take(&lockers, holds).await;
    assert!(again.iter().all(|guard| guard.token().is_some()));
    let natively = since(asked);
    format!(
        "{holds} holds, taken in {taken:.1?} ({safe} safe then): with a leader, draining after {:.1?}, native {:.1?} later, all granted \
         natively within {natively:.1?}; {blinked:.1?} not looked",
        draining.saturating_since(leads),
        native.saturating_since(draining),
    )
}

/// Lines for docs/cassandra.md.
#[tokio::test]
#[ignore = "long: a measurement"]
async fn what_it_costs_to_drain_a_scope_with_thousands_of_holds() {
    for (keyspace, holds) in [("drain_few", 10), ("drain_1000", 1_000), ("drain_10000", 10_000)] {
        println!("{}", drained(keyspace, holds).await);
    }
}
