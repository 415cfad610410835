//! `holdfast-migrate sequences`.

use holdfast_cli::failure::{Failure, NOT_REACHED, REFUSED};
use holdfast_cli::{block_on, either, place, printable};
use holdfast_migrate::import::Fault;
use holdfast_migrate::sequences::{Moved, MovingSequences, SequencesError, Told};
use holdfast_recipes::modes::MODES;
use holdfast_recipes::{Cassandra, Layout, ModesTable, ScopeModes, SequencePlace, Sequences};
use holdfast_runtime::Runtime;
use serde_json::json;

use crate::args::{Cli, SequencesArgs, SequencesTo};
use crate::plan;

/// The exit code if some stay where they were.
const SOME_STAY: u8 = 1;

pub(crate) fn run(cli: &Cli, args: &SequencesArgs) -> Result<u8, Failure> {
    let native = args.servers.native()?;
    let mut stay = 0;
    block_on(async {
        let session = plan::session(cli).await?;
        let cassandra = Cassandra::new(session, &cli.reach.keyspace, &cli.reach.serial()?);
        let cassandra = cassandra.map_err(place::failure)?;
        let table = ModesTable::named(args.names.names.one(&MODES));
        let modes = ScopeModes::new(&cassandra, &args.scope, table).map_err(place::failure)?;
        let rows = Sequences::new(&cassandra, &Layout::of(&args.names.names).lease);
        let (scope, runtime) = (args.scope.as_str(), Runtime::system());
        let moving =
            MovingSequences { scope, modes: &modes, rows: &rows, native: &native, runtime };
        let mut tell = |told: Told<'_>| {
            if let Told::Of(_, Moved::Stays { .. }) = told {
                stay += 1;
            }
            show(cli, args.to, &told);
        };
        let moved = match args.to.filter(|_| !args.dry_run) {
            None => moving.list().await.map(|listed| list(cli, &listed)),
            Some(SequencesTo::Native) => moving.give(&mut tell).await,
            Some(SequencesTo::Cassandra) => moving.bring_back(&mut tell).await,
        };
        moved.map_err(failure)
    })??;
    Ok(if stay == 0 { 0 } else { SOME_STAY })
}

fn list(cli: &Cli, listed: &[(String, SequencePlace)]) {
    for (name, place) in listed {
        let (at, next) = match place {
            SequencePlace::Cassandra { next } => ("cassandra", Some(next)),
            SequencePlace::Native => ("native", None),
            _ => ("returning", None),
        };
        let json = json!({ "sequence": name, "at": at, "next": next.map(ToString::to_string) });
        let text = match place {
            SequencePlace::Cassandra { next } => format!("{name}: in Cassandra, next {next}"),
            SequencePlace::Native => format!("{name}: in the native store"),
            _ => format!("{name}: on its way back to Cassandra"),
        };
        either(cli.json, json, printable(&text));
    }
    if !cli.json {
        either(false, "", "nothing was changed (--dry-run)");
    }
}

fn show(cli: &Cli, to: Option<SequencesTo>, told: &Told<'_>) {
    let to = match to {
        Some(SequencesTo::Cassandra) => ("cassandra", "in Cassandra"),
        _ => ("native", "in the native store"),
    };
    let (json, text) = match told {
        Told::Returning(sequences) => (
            json!({ "returning": sequences }),
            format!("{sequences} on the way back; nobody draws from them for half a minute"),
        ),
        Told::Of(name, Moved::There { next }) => (
            json!({ "sequence": name, "at": to.0, "next": next.to_string() }),
            format!("{name}: {}, from {next} on", to.1),
        ),
        Told::Of(name, Moved::Already) => {
            (json!({ "sequence": name, "at": to.0 }), format!("{name}: {} already", to.1))
        }
        Told::Of(name, Moved::Stays { why }) => {
            (json!({ "sequence": name, "stays": why }), format!("{name}: stays where it is: {why}"))
        }
    };
    either(cli.json, json, printable(&text));
}

fn failure(error: SequencesError) -> Failure {
    let code = match error {
        SequencesError::Cassandra(error) => return place::failure(error),
        SequencesError::Native(Fault::Unknown(_)) => NOT_REACHED,
        SequencesError::OtherTie(_)
        | SequencesError::Returning { .. }
        | SequencesError::Native(Fault::Refused(_)) => REFUSED,
    };
    Failure::new(code, printable(&error.to_string()))
}
