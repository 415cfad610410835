//! Random simulated runs: old clients and lockers compete for two locks while a scope moves back and forth, under all faults. At
//! no grant is another guard of the lock safe, and tokens rise (I24, I3).

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;
use crate::lives::{Judge, SKEW, TTL, below, torment, work};

/// A run, as its processes see it.
struct Life {
    world: World,
    judge: Arc<Judge>,
    seed: u64,
    /// The direction in which the operator moves the scope.
    towards_native: AtomicBool,
    /// Processes of old clients, which have no row: the operator ends them in time.
    old: Mutex<Vec<Process>>,
    old_may_come: AtomicBool,
    moves: AtomicUsize,
    switches: AtomicUsize,
}

impl Life {
    fn start(self: &Arc<Self>, process: &Process) {
        let life = self.clone();
        let here = process.clone();
        let old = below(process, 3) == 0 && self.old_may_come.load(Ordering::Relaxed);
        if old {
            self.old.lock().unwrap().push(process.clone());
        }
        let living = async move {
            let locker: Arc<dyn RemoteLocker> = if old {
                Arc::new(life.world.old(&here))
            } else {
                let locker = life.enter(&here).await;
                let (changing, process) = (life.clone(), here.clone());
                let changes = {
                    let locker = locker.clone();
                    async move { changing.change_modes(&locker, &process).await }
                };
                here.runtime().spawn("modes", changes).detach();
                Arc::new(locker)
            };
            work(locker, here, life.judge.clone(), life.seed).await;
        };
        process.runtime().spawn("life", living).detach();
    }

    async fn enter(&self, process: &Process) -> Locker {
        loop {
            let mode = match below(process, 3) {
                0 => LockerMode::Cassandra,
                1 => LockerMode::Both,
                _ => LockerMode::Native,
            };
            match self.world.locker(process, mode).await {
                Ok(locker) => return locker,
                Err(_) => process.runtime().sleep(secs(1)).await,
            }
        }
    }

    /// Mostly follows the operator's direction.
    async fn change_modes(&self, locker: &Locker, process: &Process) {
        let runtime = process.runtime();
        loop {
            runtime.sleep(Duration::from_millis(below(process, 20_000))).await;
            let onward = self.towards_native.load(Ordering::Relaxed);
            let mode = match (below(process, 4), onward) {
                (0, _) => LockerMode::Both,
                (1, true) | (2.., false) => LockerMode::Cassandra,
                (1, false) | (_, true) => LockerMode::Native,
            };
            let limit = Duration::from_millis(below(process, 60_000));
            if let Ok(Ok(())) = runtime.timeout(limit, locker.set_mode(mode)).await {
                self.switches.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    async fn operate(&self) {
        let world = self.world.machine.world();
        let runtime = world.runtime();
        let scope = self.world.scope();
        loop {
            runtime.sleep(Duration::from_millis(below(&world, 10_000))).await;
            if below(&world, 12) == 0 {
                self.towards_native.fetch_xor(true, Ordering::Relaxed);
            }
            let onward = self.towards_native.load(Ordering::Relaxed);
            if onward {
                self.old_may_come.store(false, Ordering::Relaxed);
                self.old.lock().unwrap().drain(..).for_each(|process| process.kill());
                // Not to `fallback`: these names have none.
                let is_there = scope.view().await.is_ok_and(|view| view.stage == Stage::Native);
                if !is_there && scope.advance().await.is_ok() {
                    self.moves.fetch_add(1, Ordering::Relaxed);
                }
            } else if let Ok(stage) = scope.go_back().await {
                self.moves.fetch_add(1, Ordering::Relaxed);
                // At `both` a process that slipped in may still be in `native`.
                self.old_may_come.store(stage == Stage::Cassandra, Ordering::Relaxed);
            }
        }
    }

    /// Makes the native store unreachable now and then.
    async fn trouble_native(&self) {
        let world = self.world.machine.world();
        loop {
            world.runtime().sleep(Duration::from_millis(below(&world, 120_000))).await;
            self.world.native.set_down(true);
            world.runtime().sleep(Duration::from_millis(below(&world, 15_000))).await;
            self.world.native.set_down(false);
        }
    }
}

#[derive(Debug, Default)]
struct Seen {
    grants: usize,
    fenced: usize,
    lost: usize,
    moves: usize,
    switches: usize,
}

fn live(seed: u64, all: &mut Seen) {
    let mut world = World::new(seed);
    (world.ttl, world.skew) = (TTL, SKEW);
    let life = Arc::new(Life {
        world,
        judge: Arc::default(),
        seed,
        towards_native: AtomicBool::new(seed.is_multiple_of(2)),
        old: Mutex::default(),
        old_may_come: AtomicBool::new(true),
        moves: AtomicUsize::new(0),
        switches: AtomicUsize::new(0),
    });
    let machine = &life.world.machine;
    let operator = machine.world().runtime();
    let operating = life.clone();
    let operation = operator.spawn("operator", async move { operating.operate().await });
    let troubling = life.clone();
    operator.spawn("native trouble", async move { troubling.trouble_native().await }).detach();
    let start = |process: &Process| life.start(process);
    machine.run(torment(machine, &life.world.model, &start));
    // The faults are over: a new client in `both`, which every stage but the last admits, gets the
    // locks.
    drop(operation);
    let newcomer = machine.process("newcomer");
    machine.run(async {
        // An unanswered move may have brought the scope here.
        if life.world.scope().view().await.unwrap().stage == Stage::Fallback {
            life.world.scope().go_back().await.unwrap();
        }
        let locker = life.world.locker(&newcomer, LockerMode::Both).await.unwrap();
        for name in ["a", "b"] {
            let guard = locker.lock_within(name, secs(900)).await;
            let guard = guard.unwrap_or_else(|error| panic!("seed {seed}: {name}: {error}"));
            life.judge.granted(&Arc::new(guard), seed);
        }
    });
    all.grants += *life.judge.grants.lock().unwrap();
    all.fenced += *life.judge.fenced.lock().unwrap();
    all.lost += *life.judge.lost.lock().unwrap();
    all.moves += life.moves.load(Ordering::Relaxed);
    all.switches += life.switches.load(Ordering::Relaxed);
}

fn live_many(seeds: std::ops::Range<u64>) {
    let mut all = Seen::default();
    let lives = seeds.clone().count();
    seeds.for_each(|seed| live(seed, &mut all));
    println!("{lives} lives: {all:?}");
    let enough = all.grants > 20 * lives
        && all.fenced > 5 * lives
        && all.grants - all.fenced > 5 * lives
        && all.lost > lives / 4
        && all.moves > 2 * lives
        && all.switches > 5 * lives;
    assert!(enough, "too little happened: {all:?}");
}

#[test]
fn in_no_life_are_two_guards_safe_at_once_while_a_scope_moves() {
    live_many(0..14);
}

#[test]
#[ignore = "long: five thousand lives"]
fn in_none_of_very_many_lives_are_two_guards_safe_at_once_while_a_scope_moves() {
    live_many(1_000..6_000);
}
