//! Simulated runs of a whole cluster, drawn from seeds: what `just simulate` makes.
//!
//! A run is drawn as a [`Plan`], made on a simulated machine, healed at its end, and judged by the
//! one judge of all runs ([`crate::check`]) and by probes on the state of every node.

mod caller;
mod client;
mod counts;
mod crew;
mod fault;
mod lasting;
mod ledger;
mod limits;
mod locker_client;
mod looks;
mod many;
mod move_plan;
mod move_stage;
mod mover;
mod plan;
mod rogue;
mod schedule;
mod scope_client;
mod scope_plan;
mod scope_stage;
mod shrink;
mod stage;
mod strike;
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
pub use fault::{CutOff, Damage, Fault, Kind, Shape, Way, Who};
pub use ledger::{Ledger, LedgerError};
pub use many::{Failed, Many, Outcome, live_many};
pub use move_plan::{MoverPlan, MovesPlan};
pub use plan::{Air, ClientPlan, Clocks, DiskPace, Knobs, Plan, Strike};
pub use schedule::Schedule;
pub use scope_plan::{ScopeClientPlan, ScopesPlan};
pub use shrink::shrink;
pub use work::WorkPlan;

use crate::history::Record;
use crate::sim::Trace;
use stage::Stage;

/// A finished run.
#[derive(Clone, Debug, Default)]
pub struct Life {
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
pub fn live(plan: &Plan) -> Life {
    live_traced(plan, false)
}

/// Runs a plan, and keeps the trace if asked to. A panic in the run is a violation (I28).
pub fn live_traced(plan: &Plan, keep: bool) -> Life {
    quiet_panics();
    let lived = panic::catch_unwind(AssertUnwindSafe(|| {
        let machine = Machine::new(plan.seed);
        let trace = if keep { Trace::kept() } else { Trace::default() };
        Stage::live(&machine, plan, trace)
    }));
    match lived {
        Ok(lived) => Life {
            seed: plan.seed,
            counts: lived.counts,
            violations: lived.violations,
            digest: lived.digest,
            trace: lived.trace,
            history: lived.history,
            took: Duration::ZERO,
        },
        Err(payload) => Life {
            seed: plan.seed,
            counts: Counts { lives: 1, ..Counts::default() },
            violations: vec![format!("I28: panic: {}", last_panic(payload.as_ref()))],
            ..Life::default()
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
