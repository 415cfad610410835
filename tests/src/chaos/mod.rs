//! Chaos on real processes: nodes and clients work for a given time, while faults drawn from a seed
//! come and go; then every fault is undone, and the run is judged.
//!
//! | module | what |
//! |---|---|
//! | [`stage`] | nodes, client processes, the network between them, the harness's own state |
//! | [`kind`], [`faults`] | the kinds of faults, how each is injected and undone |
//! | [`hold`] | packets held back on live connections |
//! | [`schedule`] | when which fault comes |
//! | [`workload`], [`clients`] | what the clients do, in processes of their own |
//! | [`pulse`], [`progress`] | what is observed while it runs |
//! | [`ending`] | no faults left: everything is served, nothing lost, all members agree |
//! | [`figures`] | what a run measured, and its table |
//!
//! A run repeats its choices under the same seed, but not what the machine does in between. Its
//! histories can be judged again any number of times.

pub mod clients;
pub mod ending;
pub mod faults;
pub mod figures;
pub mod hold;
pub mod kind;
pub mod progress;
pub mod pulse;
pub mod schedule;
pub mod stage;
pub mod workload;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use holdfast_runtime::Runtime;

use crate::check;
use ending::Ending;
use figures::Figures;
use kind::Kind;
use schedule::Schedule;
use stage::Stage;

/// Real nodes and clients under faults, for a while; then the verdict.
#[derive(Clone, Debug, Parser)]
#[command(name = "holdfast-chaos", version)]
pub struct Options {
    /// For how long faults come and go. What is mended and judged comes after that.
    #[arg(long, default_value_t = 5.0, value_parser = minutes)]
    pub minutes: f64,
    /// What everything is drawn from; a fresh one if not given. It is printed.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Only these kinds of faults, separated by commas.
    #[arg(long, value_delimiter = ',', value_enum)]
    pub faults: Vec<Kind>,
    /// How many nodes, 3 to 8; one more may join them.
    #[arg(long, default_value_t = 3, value_parser = nodes)]
    pub nodes: usize,
    /// Keep settings, logs and histories in a folder below this one, also of a run without a
    /// violation.
    #[arg(long)]
    pub keep: Option<PathBuf>,
}

fn minutes(text: &str) -> Result<f64, String> {
    let minutes: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if minutes > 0.0 && minutes <= 22.0 * 60.0 {
        return Ok(minutes);
    }
    Err("more than 0 and at most 1320 (22 hours): the witness' lease ends then".into())
}

fn nodes(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(nodes @ 3..=8) => Ok(nodes),
        _ => Err("3 to 8".into()),
    }
}

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// What was measured.
    pub figures: Figures,
    /// Every violation.
    pub violations: Vec<String>,
}

/// Makes one run in `folder`, which exists and is empty. Reports its progress through `say`, a line
/// at a time.
///
/// The calling thread moves into a network of its own if it can, for the rest of its life.
///
/// # Panics
///
/// If the run cannot go on: nodes that do not start, faults that cannot be injected or undone, a
/// cluster that does not come back once everything is mended.
pub async fn run(options: &Options, seed: u64, folder: &Path, say: &dyn Fn(&str)) -> Outcome {
    let mut stage = Stage::set(options, folder, seed, say).await;
    let kinds = kinds(options, &stage, say);
    let mut schedule = Schedule::new(kinds, &mut stage);
    let ends = Runtime::system().clock.now() + Duration::from_secs_f64(options.minutes * 60.0);
    schedule.work(&mut stage, ends, say).await;
    say("everything is mended; the cluster has to serve, agree, and hold what it acknowledged");
    let Ending { history, logs, violations } = ending::end(stage, &mut schedule).await;
    let report = check::check(&history, check::Options::default());
    let figures = Figures::of(&history, &logs, &report, schedule.observed());
    let judged = report.violations.iter().map(ToString::to_string);
    let violations = violations
        .into_iter()
        .chain(judged)
        .chain(figures.too_late())
        .chain(figures.missed(options.minutes))
        .collect();
    Outcome { figures, violations }
}

/// The kinds asked for, without those that this machine does not support.
fn kinds(options: &Options, stage: &Stage, say: &dyn Fn(&str)) -> Vec<Kind> {
    let asked = if options.faults.is_empty() { Kind::all() } else { options.faults.as_slice() };
    let mut kinds = asked.to_vec();
    kinds.retain(|kind| match stage.can(*kind) {
        Ok(()) => true,
        Err(why) => {
            say(&format!("left out: {}, which {why}", kind.name()));
            false
        }
    });
    kinds
}
