//! `holdfast-migrate verify`.

use holdfast_cli::failure::{Failure, NOT_REACHED, REFUSED};
use holdfast_cli::{block_on, either, printable};
use holdfast_migrate::import::Fault;
use holdfast_migrate::scan::Range;
use holdfast_migrate::verify::{Difference, Verified, VerifyError, verify};
use holdfast_recipes::modes::MODES;
use holdfast_runtime::Runtime;
use serde_json::json;

use crate::args::{Cli, VerifyArgs};
use crate::plan;

/// The exit code if something differs.
const DIFFERENT: u8 = 1;

pub(crate) fn run(cli: &Cli, args: &VerifyArgs) -> Result<u8, Failure> {
    let native = args.servers.native()?;
    let (ranges, at_once) = args.source.ranges();
    let ranges = Range::split(ranges);
    let mut tell = |lock: &str, difference: &Difference| {
        let text = difference.to_string();
        let json = json!({ "lock": lock, "difference": difference.code(), "why": text });
        either(cli.json, json, printable(&format!("{lock}: {text}")));
    };
    let Verified { locks, differing } = block_on(async {
        let scan = plan::scan(cli, &args.source).await?;
        let (mut rules, runtime) = (args.source.rules(&args.prefix), Runtime::system());
        let scopes = scan.scopes(args.modes.names.one(&MODES)).await;
        let scopes = scopes.map_err(|error| plan::failure(&error))?;
        let met = scopes.into_iter().filter(|seen| seen.meets(&rules.prefix));
        // Registered processes hold natively under other ids than in the tables.
        rules.registered = met.flat_map(|seen| seen.writers).collect();
        let read = (&ranges[..], at_once);
        verify(&scan, &native, &rules, read, &runtime, &mut tell)
            .await
            .map_err(|error| failure(&error))
    })??;
    let json = json!({ "kind": "summary", "locks": locks, "differing": differing });
    either(cli.json, json, format_args!("{locks} locks compared, {differing} differ"));
    Ok(if differing == 0 { 0 } else { DIFFERENT })
}

pub(crate) fn failure(error: &VerifyError) -> Failure {
    match error {
        VerifyError::Scan(error) => plan::failure(error),
        VerifyError::Native(Fault::Unknown(_)) => {
            Failure::new(NOT_REACHED, printable(&error.to_string()))
        }
        VerifyError::Native(Fault::Refused(_)) => {
            Failure::new(REFUSED, printable(&error.to_string()))
        }
    }
}
