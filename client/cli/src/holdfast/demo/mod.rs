//! `holdfast demo`: locks under load on real processes, while the leader is killed twice.
//!
//! 64 workers in 4 processes, each worker with a client of its own, increment four files that only
//! the locks protect. At the end the demo checks the workers' records: no two turns at one file
//! overlap, tokens rise, no increment is lost. With `--page` it goes on for whoever looks at the page of a server, and the
//! leader is killed every twenty seconds.

mod stage;
mod verdict;
mod worker;

use crate::args::Global;
use crate::failure::Failure;
pub(crate) use worker::run as run_worker;

/// Files, and locks.
const FILES: u32 = 4;
/// Processes of workers.
const PROCESSES: u32 = 4;
/// Workers in each.
const WORKERS: u32 = 16;
/// Fewest turns of each worker.
const TURNS_MIN: u32 = 50;

/// Exit code when a check fails.
const OFF: u8 = 1;

/// Runs the demo and prints the results.
pub(crate) fn run(global: &Global, no_locks: bool, page: bool) -> Result<u8, Failure> {
    let verdict = stage::play(no_locks, page)?;
    if global.json {
        crate::show::line(verdict::json(&verdict));
    } else {
        verdict::print(&verdict, no_locks);
    }
    let turns_min = u64::from(TURNS_MIN);
    let off = verdict.violations() > 0
        || verdict.made != verdict.found
        || verdict.fewest_by_worker < turns_min
        || (!no_locks && !page && verdict.gaps_ms.len() < stage::KILLS);
    Ok(if off { OFF } else { 0 })
}

/// The name of a file and of its lock.
fn file_name(file: u32) -> String {
    format!("counter-{file}")
}
