//! The common parts of `cutover` and `rollback`: opening a scope, and printing its way.

use std::sync::Arc;

use holdfast_cli::failure::{Failure, NOT_REACHED, REFUSED};
use holdfast_cli::{line, place, printable};
use holdfast_migrate::cutover::{MoveError, Obstacle, Obstacles, Told};
use holdfast_migrate::native::Native;
use holdfast_migrate::scan::{Scan, Session};
use holdfast_recipes::{Cassandra, LockerMode, ModesTable, ScopeModes, ScopeView, SerialScope};
use serde_json::{Value, json};

use crate::args::{Cli, ScopeArgs};
use crate::import::{self, Shown};
use crate::{plan, verify};

/// Processes that the output names.
const PROCESSES_SHOWN: usize = 20;

/// A scope with both its stores.
pub(crate) struct Stage {
    pub(crate) session: Arc<Session>,
    pub(crate) modes: ScopeModes,
    pub(crate) scan: Scan,
    pub(crate) native: Native,
}

impl Stage {
    pub(crate) async fn set(cli: &Cli, args: &ScopeArgs) -> Result<Self, Failure> {
        let native = args.servers.native()?;
        let session = plan::session(cli).await?;
        let scan = plan::scan_over(cli, &args.source, session.clone()).await?;
        let cassandra = Cassandra::new(session.clone(), &cli.reach.keyspace, serial(args));
        let table = ModesTable::named(&args.modes.modes_table);
        let modes = cassandra.and_then(|cassandra| ScopeModes::new(&cassandra, &args.name, table));
        Ok(Self { session, modes: modes.map_err(place::failure)?, scan, native })
    }
}

pub(crate) fn serial(args: &ScopeArgs) -> SerialScope {
    if args.local_serial { SerialScope::Datacenter } else { SerialScope::Cluster }
}

pub(crate) fn failure(error: MoveError) -> Failure {
    let code = match error {
        MoveError::Scan(error) => return plan::failure(&error),
        MoveError::Import(error) => return import::failure(&error),
        MoveError::Verify(error) => return verify::failure(&error),
        MoveError::Modes(error) => return place::failure(error),
        MoveError::InTheWay { .. }
        | MoveError::Beyond { .. }
        | MoveError::StillWritten { .. }
        | MoveError::TooManyRows { .. }
        | MoveError::OtherTie(_) => REFUSED,
        MoveError::Native(_) | MoveError::Row { .. } => NOT_REACHED,
    };
    Failure::new(code, printable(&error.to_string()))
}

/// Prints the reports of a move as they arrive.
pub(crate) struct Printed {
    json: bool,
    ranges: usize,
    /// The progress bar while an import runs.
    bar: Option<Shown>,
}

impl Printed {
    pub(crate) fn new(json: bool, ranges: usize) -> Self {
        Self { json, ranges, bar: None }
    }

    pub(crate) fn take(&mut self, told: &Told<'_>) {
        match told {
            Told::Importing => self.bar = Some(Shown::new(self.ranges)),
            Told::Import(step) => {
                if let Some(bar) = &mut self.bar {
                    bar.take(*step);
                }
            }
            told => {
                if let Some(bar) = self.bar.take() {
                    bar.end();
                }
                if self.json { print_json(told) } else { print(told) }
            }
        }
    }
}

fn print(told: &Told<'_>) {
    match told {
        Told::At(view) => print_view(view),
        Told::Waiting(obstacles) => {
            line(format!("waiting for {} to be gone:", obstacles.number()));
            print_obstacles(obstacles);
        }
        Told::Moved(stage) => line(format!("moved to {stage}")),
        Told::Imported(sum) => import::print(sum),
        Told::Verified(locks) => {
            let locks = counted(*locks, "lock");
            line(format!("{locks} of old clients compared: what stands is held natively"));
        }
        Told::Rows { written, taken_back } => {
            if *written > 0 {
                let rows = counted(*written as u64, "row");
                line(format!("{rows} written for what is held natively"));
            }
            if *taken_back > 0 {
                let rows = counted(*taken_back as u64, "row");
                line(format!("{rows} taken back: what was held natively is not any more"));
            }
        }
        Told::Importing | Told::Import(_) => {}
    }
}

/// `1 row`, `2 rows`.
fn counted(number: u64, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

fn print_view(view: &ScopeView) {
    let count = |mode| view.processes.iter().filter(|one| one.mode == mode).count();
    let modes = [LockerMode::Cassandra, LockerMode::Both, LockerMode::Native];
    let mut counts: Vec<String> = modes.map(|mode| format!("{} in {mode}", count(mode))).into();
    // Few scopes have processes in `fallback`.
    let fallback = count(LockerMode::Fallback);
    counts.extend((fallback > 0).then(|| format!("{fallback} in fallback")));
    let all = match view.processes.len() {
        1 => "1 process".to_owned(),
        all => format!("{all} processes"),
    };
    line(format!("stage {}, {all}: {}", view.stage, counts.join(", ")));
    for one in view.processes.iter().take(PROCESSES_SHOWN) {
        let older = if one.writer.is_none() { " (of version 0.1)" } else { "" };
        line(printable(&format!("  {:<10} {}{older}", one.mode.as_str(), one.process)));
    }
    let more = view.processes.len().saturating_sub(PROCESSES_SHOWN);
    if more > 0 {
        line(format!("  and {more} more; --json shows all"));
    }
}

fn print_obstacles(obstacles: &Obstacles) {
    for obstacle in obstacles.shown() {
        line(printable(&format!("  {obstacle}")));
    }
    let more = obstacles.number() - obstacles.shown().len();
    if more > 0 {
        line(format!("  and {more} more"));
    }
    for remedy in obstacles.remedies() {
        line(format!("  -> {remedy}"));
    }
}

fn print_json(told: &Told<'_>) {
    line(match told {
        Told::At(view) => view_as_json(view),
        Told::Waiting(obstacles) => json!({
            "kind": "waiting",
            "number": obstacles.number(),
            "for": obstacles.shown().iter().map(obstacle_as_json).collect::<Vec<_>>(),
        }),
        Told::Moved(stage) => json!({ "kind": "moved", "stage": stage.as_str() }),
        Told::Imported(sum) => json!({ "kind": "imported", "sum": import::as_json(sum) }),
        Told::Verified(locks) => json!({ "kind": "verified", "locks": locks }),
        Told::Rows { written, taken_back } => {
            json!({ "kind": "rows", "written": written, "taken_back": taken_back })
        }
        Told::Importing | Told::Import(_) => return,
    });
}

fn view_as_json(view: &ScopeView) -> Value {
    let processes = view.processes.iter();
    let processes =
        processes.map(|one| json!({ "process": one.process, "mode": one.mode.as_str() }));
    json!({
        "kind": "at",
        "stage": view.stage.as_str(),
        "turn": view.turn,
        "recipe": view.recipe,
        "cluster": view.cluster,
        "processes": processes.collect::<Vec<_>>(),
    })
}

fn obstacle_as_json(obstacle: &Obstacle) -> Value {
    json!({ "obstacle": obstacle.code(), "what": obstacle.to_string() })
}
