//! For tests: the common fixture of the recipes' tests on the model of the tables.

use std::sync::Arc;
use std::time::Duration;

use futures_util::join;
use holdfast_runtime::simulated::{Machine, Process};

use super::cassandra::{Cassandra, LockerOptions};
use super::locker::RemoteLocker;
use super::model::{Model, Odds};
use crate::Error;

/// A machine that draws everything from `seed`, and tables that every process on it reaches.
pub(crate) fn world(seed: u64) -> (Machine, Model) {
    let machine = Machine::new(seed);
    let model = Model::new(&machine);
    (machine, model)
}

/// The tables as `process` reaches them, by its own clock.
pub(crate) fn cassandra(model: &Model, process: &Process) -> Cassandra {
    Cassandra::on(Arc::new(model.clone()), process.runtime())
}

/// Options for lockers with a lease of `ttl`, on nodes whose clocks differ by at most `skew`.
pub(crate) fn options(service: &str, ttl: Duration, skew: Duration) -> LockerOptions {
    LockerOptions::default().service(service).ttl(ttl).max_skew(skew)
}

/// Measures three waiters of a lock that was held for a minute.
pub(crate) struct HandOver {
    /// For each of the first two: the time from being next to holding the lock.
    took: [Duration; 2],
    /// The number of statements that each of the three sent in that minute.
    asked: [u64; 3],
}

/// The first locker holds the lock; the others start waiting one second apart. `sent` counts the statements that a
/// locker has sent.
pub(crate) fn hand_over<L: RemoteLocker>(
    machine: &Machine,
    [a, b, c, d]: &[L; 4],
    sent: impl Fn(&L) -> u64,
) -> HandOver {
    let world = machine.world().runtime();
    let wait = async |locker: &L, after: u64| {
        world.sleep(Duration::from_secs(after)).await;
        let guard = locker.lock("foo").await.unwrap();
        let had = world.clock.now();
        guard.release().await.unwrap();
        (had, world.clock.now())
    };
    machine.run(async {
        let held = a.lock("foo").await.unwrap();
        let holding = async {
            world.sleep(Duration::from_secs(10)).await;
            let before = [b, c, d].map(&sent);
            world.sleep(Duration::from_mins(1)).await;
            let asked = [sent(b) - before[0], sent(c) - before[1], sent(d) - before[2]];
            held.release().await.unwrap();
            (asked, world.clock.now())
        };
        let (b, c, _, (asked, released)) = join!(wait(b, 1), wait(c, 2), wait(d, 3), holding);
        HandOver { took: [b.0.saturating_since(released), c.0.saturating_since(b.1)], asked }
    })
}

impl HandOver {
    /// The next waiter holds the lock within one look and a few round trips, and so does the one after it, which became next only
    /// then. The third sends no more statements than a waiter of another recipe.
    pub(crate) fn is_quick_and_only_the_first_two_pay(&self, seed: u64) {
        let Self { took, asked } = self;
        // A look at most 200 ms later, its answer, and three round trips of up to 80 ms and a replica's 40, or a renewal.
        assert!(took.iter().all(|took| *took < Duration::from_millis(800)), "{seed}: {took:?}");
        assert!(asked[..2].iter().all(|asked| (120..=310).contains(asked)), "{seed}: {asked:?}");
        assert!((25..=65).contains(&asked[2]), "seed {seed}: {asked:?}");
    }
}

/// An attempt at a store that refuses everything for now ends at its own limit and reports `Unreachable`.
pub(crate) fn is_unreachable_within_the_limit(
    machine: &Machine,
    model: &Model,
    locker: &impl RemoteLocker,
) {
    model.set_odds(Odds { unavailable: 1_000, ..Odds::default() });
    let clock = machine.world().runtime().clock;
    machine.run(async {
        let began = clock.now();
        let error = locker.try_lock("jobs").await.unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
        assert_eq!(clock.now().saturating_since(began), Duration::from_secs(10), "its own limit");
    });
}
