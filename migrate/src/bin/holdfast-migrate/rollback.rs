//! `holdfast-migrate rollback`.

use holdfast_cli::failure::{Failure, REFUSED};
use holdfast_cli::{line, printable, runtime};
use holdfast_migrate::rollback::{Rollback, Rows};
use holdfast_recipes::Stage;
use holdfast_runtime::Runtime;
use serde_json::json;

use crate::args::{Back, Cli, RollbackArgs};
use crate::moving::{self, Printed};

pub(crate) fn run(cli: &Cli, args: &RollbackArgs) -> Result<u8, Failure> {
    let ranges = args.scope.source.ranges();
    let mut printed = Printed::new(cli.json, ranges.0);
    let view = runtime::block_on(async {
        let stage = moving::Stage::set(cli, &args.scope).await?;
        let runtime = Runtime::system();
        let (keyspace, serial) = (&cli.reach.keyspace, moving::serial(&args.scope));
        let database = holdfast_keyspace::driver::keyspace(stage.session.clone(), keyspace, serial);
        let database =
            database.map_err(|why| Failure::new(REFUSED, printable(&why.to_string())))?;
        let rows = Rows::new(database, args.scope.source.names(), runtime.clone());
        let rollback = Rollback {
            modes: &stage.modes,
            scope: &args.scope.name,
            scan: &stage.scan,
            rows: &rows,
            native: &stage.native,
            ranges,
            live_for: args.live_for,
            wait: args.scope.wait,
            runtime,
        };
        let target = match args.to {
            Back::Native => Stage::Native,
            Back::Both => Stage::Both,
            Back::Cassandra => Stage::Cassandra,
        };
        let moved = rollback.run(target, &mut |told| printed.take(&told)).await;
        moved.map_err(moving::failure)
    })??;
    if cli.json {
        line(json!({ "kind": "done", "stage": view.stage.as_str() }));
        return Ok(0);
    }
    let scope = printable(&args.scope.name);
    line(format!("scope \"{scope}\" is at {}", view.stage));
    line(match view.stage {
        Stage::Cassandra => {
            "next: old clients may come again; change each process to cassandra, or replace its Locker"
        }
        Stage::Both | Stage::Native | Stage::Fallback => {
            "next: rollback --to cassandra, or cutover --to native"
        }
    });
    Ok(0)
}
