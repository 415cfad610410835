//! `holdfast demo`: the main job on real processes, with a leader that is killed twice.
//!
//! 64 workers in 4 processes, each worker with a client of its own, add one to four files that
//! nothing but the locks protects. What they write down is judged at the end: no two turns at one
//! file overlap, tokens rise, no increment is lost.

mod record;
mod stage;
mod table;
mod verdict;
mod worker;

use crate::args::{DemoArgs, DemoWorkerArgs, Global};
use crate::failure::Failure;

/// Files, and locks.
const FILES: u32 = 4;
/// Processes of workers.
const PROCESSES: u32 = 4;
/// Workers in each.
const WORKERS: u32 = 16;
/// Turns each worker has at least.
const TURNS_MIN: u32 = 50;

/// Exit code when anything is off.
const OFF: u8 = 1;

/// Runs the demo and prints what it showed.
pub(crate) fn run(global: &Global, args: &DemoArgs) -> Result<u8, Failure> {
    let verdict = stage::play(args.no_locks)?;
    if global.json {
        crate::show::line(table::json(&verdict));
    } else {
        table::print(&verdict, args.no_locks);
    }
    let turns_min = u64::from(TURNS_MIN);
    let off = verdict.violations() > 0
        || verdict.made != verdict.found
        || verdict.fewest_by_worker < turns_min
        || (!args.no_locks && verdict.gaps_ms.len() < stage::KILLS);
    Ok(if off { OFF } else { 0 })
}

/// Runs a process of workers.
pub(crate) fn run_worker(args: &DemoWorkerArgs) -> Result<u8, Failure> {
    worker::run(args)
}

/// The lock's name too.
fn file_name(file: u32) -> String {
    format!("counter-{file}")
}
