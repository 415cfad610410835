//! Many runs, side by side on as many threads as there are cores; one run is one thread.

#![allow(clippy::print_stdout, reason = "a run that does not end is told before the process is")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clap::ValueEnum as _;
use holdfast_runtime::Runtime;
use serde::{Deserialize, Serialize};

use super::counts::Counts;
use super::fault::Kind;
use super::plan::{Clocks, Plan};
use super::schedule::Schedule;
use super::{SimulatedRun, run};

/// How long one run may take, wall time: a hundred times what it takes.
const ENDS_WITHIN: Duration = Duration::from_mins(5);
/// Between two looks at the runs that are being made.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Which runs, and when to stop.
#[derive(Clone, Debug)]
pub struct Many {
    /// The seed of the first; the others follow.
    pub first_seed: u64,
    /// How many; `None`: as many as fit into the time.
    pub runs: Option<u64>,
    /// No run begins after so long.
    pub within: Option<Duration>,
    /// So many begin, whatever time that takes.
    pub at_least: u64,
    /// No run begins once so many have failed.
    pub failures: u64,
    /// Threads.
    pub jobs: usize,
    /// What kind of clocks.
    pub clocks: Clocks,
    /// Runs of this schedule, instead of those that the seeds draw.
    pub schedule: Option<Schedule>,
    /// Leave out what the second stream of the seeds draws.
    pub first_stream: bool,
    /// Whether a large table is made as it is drawn; one run with it takes as long as a hundred others.
    pub large_tables: bool,
    /// Whether some runs have limits on what all streams of a node have together.
    pub node_totals: bool,
    /// Only the runs in which this fault is drawn.
    pub with_fault: Option<Kind>,
}

impl Many {
    /// The run of one of the seeds.
    pub fn plan(&self, seed: u64) -> Plan {
        let drawn = || {
            let plan = if self.node_totals {
                Plan::draw(seed, self.clocks)
            } else {
                Plan::without_node_totals(seed, self.clocks)
            };
            let plan = if self.first_stream { plan.first_stream_alone() } else { plan };
            if self.large_tables { plan } else { plan.without_a_large_table() }
        };
        self.schedule.map_or_else(drawn, |schedule| Plan::of(schedule, seed))
    }

    fn wants(&self, plan: &Plan) -> bool {
        let has = |kind| plan.strikes.iter().any(|strike| strike.fault.kind() == kind);
        self.with_fault.is_none_or(has)
    }

    /// The command that repeats one of them.
    pub fn repeat(&self, seed: u64) -> String {
        let beyond = if self.clocks == Clocks::Beyond { " --beyond" } else { "" };
        let name = |schedule: Schedule| Some(schedule.to_possible_value()?.get_name().to_owned());
        let schedule = self.schedule.and_then(name).map(|name| format!(" --schedule {name}"));
        let without = if self.first_stream { " --first-stream" } else { "" };
        let small = self.large_tables || self.schedule.is_some();
        let small = if small { "" } else { " --no-large-tables" };
        let totals = self.node_totals || self.schedule.is_some();
        let totals = if totals { "" } else { " --no-node-totals" };
        let schedule = schedule.unwrap_or_default();
        format!("just simulate {seed}{beyond}{without}{small}{totals}{schedule}")
    }
}

/// What came of them.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Everything that was seen.
    pub counts: Counts,
    /// The runs that failed, by their seeds.
    pub failed: Vec<Failed>,
    /// Wall time that it took.
    pub took: Duration,
}

/// A run that failed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failed {
    /// Its seed.
    pub seed: u64,
    /// What was wrong, a line each.
    pub violations: Vec<String>,
}

impl Outcome {
    /// Violations of all runs together.
    pub fn violations(&self) -> usize {
        self.failed.iter().map(|failed| failed.violations.len()).sum()
    }
}

/// Makes them all. `prepare` runs on each thread before its first run; `after` after each,
/// with what came of all so far.
pub fn run_many(
    many: &Many,
    prepare: impl Fn() + Sync,
    after: impl Fn(&SimulatedRun, &Outcome) + Sync,
) -> Outcome {
    let clock = Runtime::system().clock;
    let begun = clock.now();
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let outcome = Mutex::new(Outcome::default());
    let over = || {
        let enough = next.load(Ordering::Relaxed) >= many.at_least;
        let late = many.within.is_some_and(|within| clock.now().saturating_since(begun) >= within);
        late && enough || stop.load(Ordering::Relaxed)
    };
    let living = Living::default();
    let work = || {
        prepare();
        while !over() {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if many.runs.is_some_and(|runs| number >= runs) {
                return;
            }
            let seed = many.first_seed.wrapping_add(number);
            let plan = many.plan(seed);
            if !many.wants(&plan) {
                continue;
            }
            let living = living.begin(seed);
            let started = clock.now();
            let run = run(&plan);
            let run = SimulatedRun { took: clock.now().saturating_since(started), ..run };
            drop(living);
            let mut outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner);
            outcome.take(&run);
            if outcome.failed.len() as u64 >= many.failures {
                stop.store(true, Ordering::Relaxed);
            }
            after(&run, &outcome);
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..many.jobs.max(1)).map(|_| scope.spawn(work)).collect();
        while workers.iter().any(|worker| !worker.is_finished()) {
            std::thread::sleep(LOOK_EVERY);
            living.give_up_the_endless(many);
        }
    });
    let mut outcome = outcome.into_inner().unwrap_or_else(PoisonError::into_inner);
    outcome.took = clock.now().saturating_since(begun);
    outcome.failed.sort_by_key(|failed| failed.seed);
    outcome
}

/// Runs that are being made, with how often each was looked at. A clock would count the time for which this process was
/// stopped.
#[derive(Default)]
struct Living(Mutex<BTreeMap<u64, u32>>);

/// A run that is being made.
struct Begun<'a>(&'a Living, u64);

impl Living {
    fn begin(&self, seed: u64) -> Begun<'_> {
        self.lock().insert(seed, 0);
        Begun(self, seed)
    }

    /// A task that never waits holds up its whole run, and its thread cannot be ended: the process
    /// is, with the seed.
    fn give_up_the_endless(&self, many: &Many) {
        let mut endless = None;
        for (seed, looks) in self.lock().iter_mut() {
            *looks += 1;
            endless = endless.or((LOOK_EVERY * *looks > ENDS_WITHIN).then_some(*seed));
        }
        if let Some(seed) = endless {
            println!("I32: the run of seed {seed} does not end; repeat: {}", many.repeat(seed));
            std::process::exit(1);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.0.lock().remove(&self.1);
    }
}

impl Outcome {
    fn take(&mut self, run: &SimulatedRun) {
        self.counts.add(&run.counts);
        if !run.violations.is_empty() {
            let violations = run.violations.clone();
            self.failed.push(Failed { seed: run.seed, violations });
        }
    }
}
