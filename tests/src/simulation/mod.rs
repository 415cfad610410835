//! Simulated runs of a whole cluster, drawn from seeds: what `just simulate` makes.
//!
//! A run is drawn as a [`Plan`], made on a simulated machine, healed at its end, and judged by the
//! one judge of all runs ([`crate::check`]) and by probes on the state of every node.

mod byzantine_client;
mod caller;
mod client;
mod counts;
mod disaster;
mod fault;
mod inject;
mod lasting;
mod limits;
mod locker_client;
mod looks;
mod many;
mod membership_faults;
mod move_plan;
mod move_stage;
mod moved_numbers;
mod mover;
mod number_client;
mod operator;
mod orders;
mod plan;
mod resume_file;
mod schedule;
mod scope_client;
mod scope_plan;
mod scope_stage;
mod shrink;
mod stage;
mod table;
mod work;

use std::any::Any;
use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;
use std::time::Duration;

use holdfast_runtime::Runtime;
use holdfast_runtime::simulated::Machine;

pub use counts::Counts;
pub use disaster::DisasterPlan;
pub use fault::{CutOff, Damage, Fault, Kind, Shape, Way, Who};
pub use many::{Failed, Many, Outcome, run_many};
pub use move_plan::{MoverPlan, MovesPlan};
pub use plan::{Air, ClientPlan, Clocks, DiskPace, Knobs, Plan, Strike};
pub use resume_file::{ResumeFile, ResumeFileError};
pub use schedule::Schedule;
pub use scope_plan::{ScopeClientPlan, ScopesPlan};
pub use shrink::shrink;
pub use work::WorkPlan;

use crate::history::Record;
use crate::sim::Trace;
use stage::Stage;

/// A finished run.
#[derive(Clone, Debug, Default)]
pub struct SimulatedRun {
    /// Its seed.
    pub seed: u64,
    /// What it counted.
    pub counts: Counts,
    /// The violations, a line each, with the number of the invariant where there is one.
    pub violations: Vec<String>,
    /// Equal for equal runs: a digest of every step and everything that passed.
    pub digest: u64,
    /// The trace, a line each, if it was kept.
    pub trace: Vec<String>,
    /// The records of its clients.
    pub history: Vec<Record>,
    /// Real time that it took; zero where the caller did not measure it.
    pub took: Duration,
}

/// Runs a plan.
pub fn run(plan: &Plan) -> SimulatedRun {
    run_traced(plan, false)
}

/// Runs a plan, and keeps the trace if asked to. A panic in the run is a violation (I28).
pub fn run_traced(plan: &Plan, keep: bool) -> SimulatedRun {
    quiet_panics();
    let ran = panic::catch_unwind(AssertUnwindSafe(|| {
        let machine = Machine::new(plan.seed);
        let trace = if keep { Trace::kept() } else { Trace::default() };
        Stage::run(&machine, plan, trace)
    }));
    match ran {
        Ok(ran) => SimulatedRun {
            seed: plan.seed,
            counts: ran.counts,
            violations: ran.violations,
            digest: ran.digest,
            trace: ran.trace,
            history: ran.history,
            took: Duration::ZERO,
        },
        Err(payload) => SimulatedRun {
            seed: plan.seed,
            counts: Counts { runs: 1, ..Counts::default() },
            violations: vec![format!("I28: panic: {}", last_panic(payload.as_ref()))],
            ..SimulatedRun::default()
        },
    }
}

/// A random seed, so most likely a new one.
pub fn fresh_seed() -> u64 {
    // Short enough to be typed.
    Runtime::system().rng.next_u64() % 1_000_000_000_000
}

thread_local! {
    static LAST_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// From now on a panic inside a run prints nothing: it becomes a violation, with its location.
pub fn quiet_panics() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if holdfast_runtime::simulated::current().is_none() {
                usual(info);
            }
            LAST_PANIC.set(Some(info.to_string()));
        }));
    });
}

fn last_panic(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    LAST_PANIC.take().or(text).unwrap_or_else(|| "without a message".to_owned())
}
