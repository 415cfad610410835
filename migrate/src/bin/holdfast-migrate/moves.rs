//! `holdfast-migrate cutover` and `holdfast-migrate rollback`: opening a scope, moving it, and
//! printing its way.

use std::sync::Arc;
use std::time::Duration;

use holdfast_cli::failure::{Failure, NOT_REACHED, REFUSED};
use holdfast_cli::{block_on, line, place, printable, progress_bar};
use holdfast_keyspace::driver::revoked;
use holdfast_keyspace::statement::Ident;
use holdfast_migrate::cutover::{
    Cutover, MoveError, MoveReport, MovingScope, Obstacle, Obstacles, OldClients, Preview,
};
use holdfast_migrate::import::{Fault, Options, Pace};
use holdfast_migrate::native::Native;
use holdfast_migrate::rollback::{Rollback, Rows};
use holdfast_migrate::scan::{Scan, Session};
use holdfast_recipes::modes::MODES;
use holdfast_recipes::{Cassandra, LockerMode, ModesTable, ScopeModes, ScopeView, Stage};
use holdfast_runtime::Runtime;
use indicatif::ProgressBar;
use serde_json::{Value, json};

use crate::args::{Cli, CutoverArgs, RollbackArgs, ScopeArgs, number};
use crate::import::{self, ImportBar};
use crate::{plan, verify};

/// A write that a node let in is done, or given up, within this time: the driver's own limit.
const WRITTEN_WITHIN: Duration = Duration::from_secs(10);
/// Processes that the output names.
const PROCESSES_SHOWN: usize = 20;

/// A scope with both its stores.
struct OpenScope {
    name: String,
    session: Arc<Session>,
    modes: ScopeModes,
    scan: Scan,
    native: Native,
}

impl OpenScope {
    async fn open(cli: &Cli, args: &ScopeArgs, name: &str) -> Result<Self, Failure> {
        let native = args.servers.native()?;
        let session = plan::session(cli).await?;
        let scan = plan::scan_over(cli, &args.source, session.clone()).await?;
        let serial = cli.reach.serial()?;
        let cassandra = Cassandra::new(session.clone(), &cli.reach.keyspace, &serial);
        let table = ModesTable::named(args.modes.names.one(&MODES));
        let modes = cassandra.and_then(|cassandra| ScopeModes::new(&cassandra, name, table));
        let modes = modes.map_err(place::failure)?;
        Ok(Self { name: name.to_owned(), session, modes, scan, native })
    }

    /// What is known of clients that know only the recipe.
    async fn old_clients(&self, cli: &Cli, args: &CutoverArgs) -> Result<OldClients, Failure> {
        let Some(role) = &args.revoked_role else {
            let stopped = args.writers_stopped;
            return Ok(if stopped { OldClients::Stopped } else { OldClients::MayWrite });
        };
        let layout = args.scope.source.layout();
        let tables =
            layout.tables().map(|table| (Ident::new(&cli.reach.keyspace), Ident::new(table)));
        let tables: Vec<(Ident, Ident)> = tables.collect();
        let checked = revoked(&self.session, &tables, role, args.permissions_validity).await;
        let validity = checked.map_err(|why| Failure::new(REFUSED, printable(&why.to_string())))?;
        let known_after = validity + WRITTEN_WITHIN;
        if !cli.json {
            line(printable(&format!(
                "role {role} may change none of the tables; every node goes by that in {} s at most",
                known_after.as_secs()
            )));
        }
        if !args.scope.dry_run {
            Runtime::system().sleep(known_after).await;
        }
        Ok(OldClients::Revoked)
    }

    fn moving(&self, args: &ScopeArgs) -> MovingScope<'_, Native> {
        let Self { name, modes, scan, native, .. } = self;
        let (wait, runtime) = (args.wait, Runtime::system());
        MovingScope { name, modes, scan, native, wait, runtime }
    }
}

/// Runs `holdfast-migrate cutover`.
pub(crate) fn cutover(cli: &Cli, args: &CutoverArgs) -> Result<u8, Failure> {
    each_scope(cli, &args.scope, |scope| cutover_of(cli, args, scope))
}

/// Moves one scope after the other. One with something in its way keeps no other from going on; a cluster that does not answer ends
/// the command.
fn each_scope(
    cli: &Cli,
    args: &ScopeArgs,
    move_one: impl Fn(&str) -> Result<(), Failure>,
) -> Result<u8, Failure> {
    let mut code = 0;
    for scope in args.names()? {
        if args.are_several() {
            let shown = printable(&scope);
            line(if cli.json {
                json!({ "kind": "scope", "scope": scope }).to_string()
            } else {
                format!("scope \"{shown}\":")
            });
        }
        match move_one(&scope) {
            Err(failure) if failure.code == REFUSED && args.are_several() => {
                failure.print("holdfast-migrate", cli.json);
                code = REFUSED;
            }
            moved => moved?,
        }
    }
    Ok(code)
}

fn cutover_of(cli: &Cli, args: &CutoverArgs, scope: &str) -> Result<(), Failure> {
    let (ranges, _) = args.scope.source.ranges();
    let mut printed = MovePrinter::new(cli.json, ranges);
    let moved = block_on(async {
        let opened = OpenScope::open(cli, &args.scope, scope).await?;
        let old_clients = opened.old_clients(cli, args).await?;
        let cutover = Cutover {
            scope: opened.moving(&args.scope),
            options: options(args, scope),
            old_clients,
            leave_out: args.leave_out,
        };
        if args.scope.dry_run {
            let preview = cutover.preview(args.to).await.map_err(failure)?;
            return show(cli, &cutover.scope, preview).map(|()| None);
        }
        let moved = cutover.run(args.to, &mut |told| printed.take(&told)).await;
        moved.map(Some).map_err(|error| failure_of(cli, error))
    })??;
    let Some(view) = moved else { return Ok(()) };
    if cli.json {
        line(json!({ "kind": "done", "stage": view.stage.as_str() }));
    } else {
        for text in what_next(cli, args, scope, &view) {
            line(printable(&text));
        }
    }
    Ok(())
}

fn options(args: &CutoverArgs, scope: &str) -> Options {
    let (ranges, reads_at_once) = args.scope.source.ranges();
    Options {
        rules: args.scope.source.rules(scope),
        ranges,
        reads_at_once,
        requests_at_once: number(args.speed.requests_at_once),
        pace: Pace::new(args.speed.rate),
        checkpoint: None,
        writers_stopped: true,
        modes_table: None,
    }
}

/// What the operator has to do next.
fn what_next(cli: &Cli, args: &CutoverArgs, scope: &str, view: &ScopeView) -> Vec<String> {
    if view.stage == Stage::Both {
        return vec![
            format!(
                "scope \"{scope}\" is at both: old clients are kept out as long as they are there"
            ),
            "next: stop the last old client, then cutover --to native --writers-stopped".to_owned(),
        ];
    }
    if view.stage == Stage::Fallback {
        return vec![
            format!("scope \"{scope}\" is at fallback: its processes may fall back on Cassandra"),
            format!(
                "next: holdfast scope set {scope} --fallback, if it is not set; then change each process to \
                 fallback"
            ),
        ];
    }
    let (keyspace, table) = (&cli.reach.keyspace, args.scope.modes.names.one(&MODES));
    vec![
        format!("scope \"{scope}\" is at native, and every process of it locks natively alone"),
        format!(
            "what is left in Cassandra: a row in {keyspace}.{table} for each process ({} now), which needs it as \
             long as there is a way back (holdfast-migrate rollback)",
            view.processes.len()
        ),
        "when there need be none: replace each Locker by a Client, process by process; then"
            .to_owned(),
        format!(
            "  DELETE FROM \"{keyspace}\".\"{table}\" WHERE scope = '{}*';",
            scope.replace('\'', "''")
        ),
        "and drop the recipe's tables once no scope uses them".to_owned(),
    ]
}

/// Runs `holdfast-migrate rollback`.
pub(crate) fn rollback(cli: &Cli, args: &RollbackArgs) -> Result<u8, Failure> {
    each_scope(cli, &args.scope, |scope| rollback_of(cli, args, scope))
}

fn rollback_of(cli: &Cli, args: &RollbackArgs, scope: &str) -> Result<(), Failure> {
    let ranges = args.scope.source.ranges();
    let mut printed = MovePrinter::new(cli.json, ranges.0);
    let moved = block_on(async {
        let opened = OpenScope::open(cli, &args.scope, scope).await?;
        let (keyspace, serial) = (&cli.reach.keyspace, cli.reach.serial()?);
        let database =
            holdfast_keyspace::driver::keyspace(opened.session.clone(), keyspace, &serial);
        let database =
            database.map_err(|why| Failure::new(REFUSED, printable(&why.to_string())))?;
        let rows = Rows::new(database, args.scope.source.layout(), Runtime::system());
        let moving = opened.moving(&args.scope);
        let rollback = Rollback { scope: moving, rows: &rows, ranges, live_for: args.live_for };
        if args.scope.dry_run {
            let preview = rollback.preview(args.to).await.map_err(failure)?;
            return show(cli, &rollback.scope, preview).map(|()| None);
        }
        let moved = rollback.run(args.to, &mut |told| printed.take(&told)).await;
        moved.map(Some).map_err(|error| failure_of(cli, error))
    })??;
    let Some(view) = moved else { return Ok(()) };
    if cli.json {
        line(json!({ "kind": "done", "stage": view.stage.as_str() }));
        return Ok(());
    }
    line(format!("scope \"{}\" is at {}", printable(scope), view.stage));
    line(match view.stage {
        Stage::Cassandra => {
            "next: old clients may come again; change each process to cassandra, or replace its Locker"
        }
        Stage::Both | Stage::Native | Stage::Fallback => {
            "next: rollback --to cassandra, or cutover --to native"
        }
    });
    Ok(())
}

/// Shows what a move would do. What is in its way is the failure that the move itself would end with.
fn show(cli: &Cli, scope: &MovingScope<'_, Native>, preview: Preview) -> Result<(), Failure> {
    let Preview { view, next, rows, obstacles } = preview;
    if cli.json {
        line(json!({
            "kind": "preview",
            "at": view_as_json(&view),
            "next": next.map(Stage::as_str),
            "to_import": rows.to_import,
            "to_write": rows.to_write,
            "to_take_back": rows.to_take_back,
            "in_the_way": as_json(&obstacles),
        }));
    } else {
        print_view(&view);
        line(next.map_or("no step is left to make".to_owned(), |next| format!("next: {next}")));
        for (number, what) in [
            (rows.to_import, "would be imported"),
            (rows.to_write, "would be written for what is held natively"),
            (rows.to_take_back, "would be taken back: what was held natively is not any more"),
        ] {
            if number > 0 {
                line(format!("{} {what}", counted(number as u64, "row")));
            }
        }
        line("nothing was changed (--dry-run)");
    }
    if obstacles.is_empty() {
        return Ok(());
    }
    Err(failure(scope.in_the_way(view.stage, obstacles)))
}

/// The failure that ends the command. For a program, what is in the way comes before it, each obstacle with its code.
fn failure_of(cli: &Cli, error: MoveError) -> Failure {
    if let MoveError::InTheWay { obstacles, .. } = &error
        && cli.json
    {
        line(json!({
            "kind": "in_the_way",
            "number": obstacles.number(),
            "by": as_json(obstacles),
        }));
    }
    failure(error)
}

fn failure(error: MoveError) -> Failure {
    let code = match error {
        MoveError::Scan(error) => return plan::failure(&error),
        MoveError::Import(error) => return import::failure(&error),
        MoveError::Verify(error) => return verify::failure(&error),
        MoveError::Modes(error) => return place::failure(error),
        MoveError::InTheWay { .. }
        | MoveError::Beyond { .. }
        | MoveError::StillWritten { .. }
        | MoveError::WrittenUnregistered { .. }
        | MoveError::TooManyRows { .. }
        | MoveError::OtherTie(_)
        | MoveError::Native(Fault::Refused(_))
        | MoveError::Row { why: Fault::Refused(_), .. } => REFUSED,
        MoveError::Native(Fault::Unknown(_)) | MoveError::Row { why: Fault::Unknown(_), .. } => {
            NOT_REACHED
        }
    };
    Failure::new(code, printable(&error.to_string()))
}

/// Prints the reports of a move as they arrive.
struct MovePrinter {
    json: bool,
    ranges: usize,
    /// The progress bar while an import runs.
    bar: Option<ImportBar>,
    /// The line that counts the locks before a step back.
    looked: Option<ProgressBar>,
}

impl MovePrinter {
    fn new(json: bool, ranges: usize) -> Self {
        Self { json, ranges, bar: None, looked: None }
    }

    fn take(&mut self, told: &MoveReport<'_>) {
        match told {
            MoveReport::Importing => self.bar = Some(ImportBar::new(self.ranges)),
            MoveReport::Import(step) => {
                if let Some(bar) = &mut self.bar {
                    bar.take(*step);
                }
            }
            MoveReport::Looked { locks, written } => {
                let looked = self
                    .looked
                    .get_or_insert_with(|| progress_bar(None, "{spinner} {msg}, {elapsed}"));
                looked.set_message(format!("{locks} locks looked at, {written} rows for them"));
                looked.tick();
            }
            told => {
                if let Some(bar) = self.bar.take() {
                    bar.end();
                }
                if let Some(looked) = self.looked.take() {
                    looked.finish_and_clear();
                }
                if self.json { print_json(told) } else { print(told) }
            }
        }
    }
}

fn print(told: &MoveReport<'_>) {
    match told {
        MoveReport::At(view) => print_view(view),
        MoveReport::Waiting(obstacles) => {
            line(format!("waiting for {} to be gone:", obstacles.number()));
            print_obstacles(obstacles);
        }
        MoveReport::Moved(stage) => line(format!("moved to {stage}")),
        MoveReport::Imported(sum) => import::print(sum),
        MoveReport::Verified(locks) => {
            let locks = counted(*locks, "lock");
            line(format!("{locks} of old clients compared: what stands is held natively"));
        }
        MoveReport::Rows { written, taken_back } => {
            if *written > 0 {
                let rows = counted(*written as u64, "row");
                line(format!("{rows} written for what is held natively"));
            }
            if *taken_back > 0 {
                let rows = counted(*taken_back as u64, "row");
                line(format!("{rows} taken back: what was held natively is not any more"));
            }
        }
        MoveReport::Importing | MoveReport::Import(_) | MoveReport::Looked { .. } => {}
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

fn as_json(obstacles: &Obstacles) -> Vec<Value> {
    let one =
        |obstacle: &Obstacle| json!({ "obstacle": obstacle.code(), "what": obstacle.to_string() });
    obstacles.shown().iter().map(one).collect()
}

fn print_json(told: &MoveReport<'_>) {
    line(match told {
        MoveReport::At(view) => view_as_json(view),
        MoveReport::Waiting(obstacles) => json!({
            "kind": "waiting",
            "number": obstacles.number(),
            "for": as_json(obstacles),
        }),
        MoveReport::Moved(stage) => json!({ "kind": "moved", "stage": stage.as_str() }),
        MoveReport::Imported(sum) => json!({ "kind": "imported", "sum": import::as_json(sum) }),
        MoveReport::Verified(locks) => json!({ "kind": "verified", "locks": locks }),
        MoveReport::Rows { written, taken_back } => {
            json!({ "kind": "rows", "written": written, "taken_back": taken_back })
        }
        MoveReport::Importing | MoveReport::Import(_) | MoveReport::Looked { .. } => return,
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

#[cfg(test)]
mod tests {
    use holdfast_migrate::import::ImportError;
    use holdfast_migrate::verify::VerifyError;

    use super::*;

    /// What a store or a server refuses is 122, what it did not answer 123, wherever in a move that happens.
    #[test]
    fn a_move_ends_with_the_code_of_a_refusal_only_if_something_was_refused() {
        let at_each_place = |why: &Fault| {
            [
                MoveError::Native(why.clone()),
                MoveError::Row { lock: "orders/1".to_owned(), why: why.clone() },
                MoveError::Import(ImportError::Target(why.clone())),
                MoveError::Verify(VerifyError::Native(why.clone())),
            ]
        };
        for (why, code) in [
            (Fault::Refused("no right".to_owned()), REFUSED),
            (Fault::Unknown("no answer".to_owned()), NOT_REACHED),
        ] {
            for error in at_each_place(&why) {
                let failure = failure(error);
                assert!(failure.message.contains(&why.to_string()), "{failure:?}");
                assert_eq!(failure.code, code, "{failure:?}");
            }
        }
    }
}
