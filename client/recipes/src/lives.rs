//! Random simulated runs of any recipe: four processes compete for two locks while statements get
//! lost or are applied late, nodes have wrong clocks, and processes stall, die and have clocks of
//! their own. At no grant is another guard of the lock safe (I24, within one store); and every run
//! makes progress.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use holdfast_runtime::Rng;
use holdfast_runtime::simulated::{Machine, Process};

use super::locker::{RemoteGuard, RemoteLocker, Wait};
use super::model::{Model, Odds};
use super::scene::world;
use crate::FencingToken;

/// The TTL of the lockers in these runs.
pub(crate) const TTL: Duration = secs(30);
/// The largest skew between the nodes.
pub(crate) const SKEW: Duration = secs(10);
const LENGTH: Duration = secs(900);
const PROCESSES: usize = 4;

/// Builds the locker of a process.
pub(crate) type Make = dyn Fn(&Model, &Process) -> Arc<dyn RemoteLocker>;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Checks every grant of a run.
#[derive(Default)]
pub(crate) struct Judge {
    guards: Mutex<Vec<Weak<RemoteGuard>>>,
    tokens: Mutex<BTreeMap<String, FencingToken>>,
    pub(crate) grants: Mutex<usize>,
    /// Grants with a token.
    pub(crate) fenced: Mutex<usize>,
    pub(crate) lost: Mutex<usize>,
}

impl Judge {
    /// A guard becomes safe only here, and an unsafe guard stays unsafe. So two guards that are safe at one instant are
    /// detected when the later one is handed out.
    pub(crate) fn granted(&self, guard: &Arc<RemoteGuard>, seed: u64) {
        if let Some(token) = guard.token() {
            *self.fenced.lock().unwrap() += 1;
            let before = self.tokens.lock().unwrap().insert(guard.name().to_owned(), token);
            assert!(before < Some(token), "seed {seed}: {token} after {before:?}: {guard:?}");
        }
        let mut guards = self.guards.lock().unwrap();
        guards.retain(|other| other.strong_count() > 0);
        if guard.is_safe() {
            for other in guards.iter().filter_map(Weak::upgrade) {
                let both = other.name() == guard.name() && other.is_safe();
                let tokens = [other.token(), guard.token()];
                assert!(!both, "seed {seed}: two safe: {other:?} and {guard:?} under {tokens:?}");
            }
        }
        guards.push(Arc::downgrade(guard));
        *self.grants.lock().unwrap() += 1;
    }
}

pub(crate) fn below(process: &Process, number: u64) -> u64 {
    Rng::next_u64(process) % number
}

/// Acquires, holds and gives back, in an endless loop.
pub(crate) async fn work(
    locker: Arc<dyn RemoteLocker>,
    process: Process,
    judge: Arc<Judge>,
    seed: u64,
) {
    let runtime = process.runtime();
    loop {
        let name = if below(&process, 3) == 0 { "b" } else { "a" };
        let wait = match below(&process, 4) {
            0 => Wait::No,
            1 => Wait::AtMost(secs(below(&process, 40))),
            _ => Wait::Forever,
        };
        if let Ok(guard) = locker.acquire(name, wait).await {
            let guard = Arc::new(guard);
            judge.granted(&guard, seed);
            hold(&process, &guard).await;
            if !guard.is_safe() {
                *judge.lost.lock().unwrap() += 1;
            }
            match Arc::try_unwrap(guard) {
                Ok(guard) if below(&process, 3) > 0 => drop(guard.release().await),
                guard => drop(guard),
            }
        }
        runtime.sleep(Duration::from_millis(below(&process, 3_000))).await;
    }
}

/// Holds the lock mostly for a short time, sometimes for longer than a TTL.
async fn hold(process: &Process, guard: &RemoteGuard) {
    let long = below(process, 6) == 0;
    let length = Duration::from_millis(below(process, if long { 60_000 } else { 4_000 }));
    let runtime = process.runtime();
    let until = runtime.clock.now() + length;
    while runtime.clock.now() < until && guard.is_safe() {
        runtime.sleep(Duration::from_millis(500)).await;
    }
}

/// Injects one fault after another.
pub(crate) async fn torment(machine: &Machine, model: &Model, start: &dyn Fn(&Process)) {
    let world = machine.world();
    let runtime = world.runtime();
    let mut alive: Vec<Process> = (0..PROCESSES).map(|_| machine.process("worker")).collect();
    alive.iter().for_each(start);
    // In most runs the processes take a while to think.
    machine.set_look_takes(Duration::from_micros(below(&world, 4)));
    let end = runtime.clock.now() + LENGTH;
    while runtime.clock.now() < end {
        runtime.sleep(Duration::from_millis(below(&world, 15_000))).await;
        let at = usize::try_from(below(&world, PROCESSES as u64)).unwrap();
        match below(&world, 7) {
            0 => {
                alive[at].kill();
                alive[at] = machine.process("worker");
                start(&alive[at]);
            }
            1 => {
                alive[at].pause();
                runtime.sleep(Duration::from_millis(below(&world, 40_000))).await;
                alive[at].resume();
            }
            // Half a per cent either way: the deadlines allow for more than that.
            2 => alive[at].set_rate(i32::try_from(below(&world, 10_000)).unwrap() - 5_000),
            3 => {
                let node = usize::try_from(below(&world, 3)).unwrap();
                let skew = below(&world, u64::try_from(SKEW.as_millis()).unwrap());
                model.set_skew(node, i64::try_from(skew).unwrap());
            }
            4 => {
                let odds = Odds {
                    answer_lost: below(&world, 300),
                    request_lost: below(&world, 200),
                    late: below(&world, 200),
                    unavailable: below(&world, 200),
                };
                model.set_odds(odds);
            }
            5 => {
                // For a while either no statement is answered or none is carried out.
                let nothing = if below(&world, 2) == 0 {
                    Odds { answer_lost: 500, request_lost: 500, ..Odds::default() }
                } else {
                    Odds { late: 300, unavailable: 700, ..Odds::default() }
                };
                model.set_odds(nothing);
                runtime.sleep(Duration::from_millis(below(&world, 40_000))).await;
                model.set_odds(Odds::default());
            }
            _ => model.set_odds(Odds::default()),
        }
    }
    model.set_odds(Odds::default());
}

#[derive(Default)]
struct Seen {
    grants: usize,
    lost: usize,
    unknown: usize,
}

fn live(seed: u64, make: &Make) -> Seen {
    let (machine, model) = world(seed);
    let judge = Arc::new(Judge::default());
    let start = |process: &Process| {
        let work = work(make(&model, process), process.clone(), judge.clone(), seed);
        process.runtime().spawn("work", work).detach();
    };
    machine.run(torment(&machine, &model, &start));
    // The faults are over: whatever was left behind has expired, and a new client gets the locks.
    let newcomer = make(&model, &machine.process("newcomer"));
    machine.run(async {
        for name in ["a", "b"] {
            let guard = newcomer.lock_within(name, secs(600)).await;
            let guard = guard.unwrap_or_else(|error| panic!("seed {seed}: {name}: {error}"));
            judge.granted(&Arc::new(guard), seed);
        }
    });
    let (grants, lost) = (*judge.grants.lock().unwrap(), *judge.lost.lock().unwrap());
    Seen { grants, lost, unknown: model.unknown_but_applied() }
}

/// Does one run for each of these random seeds.
pub(crate) fn live_many(seeds: Range<u64>, make: &Make) {
    let mut all = Seen::default();
    for seed in seeds.clone() {
        let seen = live(seed, make);
        all.grants += seen.grants;
        all.lost += seen.lost;
        all.unknown += seen.unknown;
    }
    let lives = seeds.count();
    println!(
        "{lives} lives: {} grants, {} holds lost, {} writes applied unseen",
        all.grants, all.lost, all.unknown
    );
    assert!(
        all.grants > 20 * lives && all.lost > lives / 4 && all.unknown > lives,
        "too little happened"
    );
}
