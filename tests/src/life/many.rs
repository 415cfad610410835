//! Many lives, side by side on as many threads as there are cores; one life is one thread.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use holdfast_seams::Seams;

use super::counts::Counts;
use super::plan::{Clocks, Plan};
use super::{Life, live};

/// Which lives, and when to stop.
#[derive(Clone, Debug)]
pub struct Many {
    /// The seed of the first; the others follow.
    pub first_seed: u64,
    /// How many; `None`: as many as fit into the time.
    pub lives: Option<u64>,
    /// No life begins after so long.
    pub within: Option<Duration>,
    /// No life begins once so many have failed.
    pub failures: u64,
    /// Threads.
    pub jobs: usize,
    /// What kind of clocks.
    pub clocks: Clocks,
}

/// What came of them.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Everything that was seen.
    pub counts: Counts,
    /// The lives that failed, by their seeds.
    pub failed: Vec<Failed>,
    /// Wall time that it took.
    pub took: Duration,
}

/// A life that failed.
#[derive(Clone, Debug)]
pub struct Failed {
    /// Its seed.
    pub seed: u64,
    /// What was wrong, a line each.
    pub violations: Vec<String>,
}

impl Outcome {
    /// Violations of all lives together.
    pub fn violations(&self) -> usize {
        self.failed.iter().map(|failed| failed.violations.len()).sum()
    }
}

/// Lives them all. `prepare` runs on each thread before its first life; `lived` after each,
/// with what came of all so far.
pub fn live_many(
    many: &Many,
    prepare: impl Fn() + Sync,
    lived: impl Fn(&Life, &Outcome) + Sync,
) -> Outcome {
    let clock = Seams::system().clock;
    let begun = clock.now();
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let outcome = Mutex::new(Outcome::default());
    let over = || {
        let late = many.within.is_some_and(|within| clock.now().saturating_since(begun) >= within);
        late || stop.load(Ordering::Relaxed)
    };
    let work = || {
        prepare();
        while !over() {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if many.lives.is_some_and(|lives| number >= lives) {
                return;
            }
            let seed = many.first_seed.wrapping_add(number);
            let life = live(&Plan::draw(seed, many.clocks));
            let mut outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner);
            outcome.take(&life);
            if outcome.failed.len() as u64 >= many.failures {
                stop.store(true, Ordering::Relaxed);
            }
            lived(&life, &outcome);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..many.jobs.max(1) {
            scope.spawn(work);
        }
    });
    let mut outcome = outcome.into_inner().unwrap_or_else(PoisonError::into_inner);
    outcome.took = clock.now().saturating_since(begun);
    outcome.failed.sort_by_key(|failed| failed.seed);
    outcome
}

impl Outcome {
    fn take(&mut self, life: &Life) {
        self.counts.add(&life.counts);
        if !life.violations.is_empty() {
            let violations = life.violations.clone();
            self.failed.push(Failed { seed: life.seed, violations });
        }
    }
}
