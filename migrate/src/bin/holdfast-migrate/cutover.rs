//! `holdfast-migrate cutover`.

use holdfast_cli::failure::Failure;
use holdfast_cli::{line, printable, runtime};
use holdfast_migrate::cutover::{Cutover, OldClients};
use holdfast_migrate::import::{Options, Pace};
use holdfast_recipes::{ScopeView, Stage};
use holdfast_runtime::Runtime;
use serde_json::json;

use crate::args::{Cli, CutoverArgs, Forward, number};
use crate::moving::{self, Printed};

pub(crate) fn run(cli: &Cli, args: &CutoverArgs) -> Result<u8, Failure> {
    let (ranges, _) = args.scope.source.ranges();
    let mut printed = Printed::new(cli.json, ranges);
    let view = runtime::block_on(async {
        let stage = moving::Stage::set(cli, &args.scope).await?;
        let cutover = Cutover {
            modes: &stage.modes,
            scope: &args.scope.name,
            scan: &stage.scan,
            native: &stage.native,
            options: options(args),
            old_clients: if args.writers_stopped {
                OldClients::Stopped
            } else {
                OldClients::MayWrite
            },
            leave_out: args.leave_out,
            wait: args.scope.wait,
            runtime: Runtime::system(),
        };
        let moved = cutover.run(target(args.to), &mut |told| printed.take(&told)).await;
        moved.map_err(moving::failure)
    })??;
    if cli.json {
        line(json!({ "kind": "done", "stage": view.stage.as_str() }));
    } else {
        for text in what_next(cli, args, &view) {
            line(printable(&text));
        }
    }
    Ok(0)
}

fn target(to: Forward) -> Stage {
    match to {
        Forward::Both => Stage::Both,
        Forward::Native => Stage::Native,
        Forward::Fallback => Stage::Fallback,
    }
}

fn options(args: &CutoverArgs) -> Options {
    let (ranges, reads_at_once) = args.scope.source.ranges();
    Options {
        rules: args.scope.source.rules(&args.scope.name),
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
fn what_next(cli: &Cli, args: &CutoverArgs, view: &ScopeView) -> Vec<String> {
    let scope = &args.scope.name;
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
    let (keyspace, table) = (&cli.reach.keyspace, &args.scope.modes.modes_table);
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
