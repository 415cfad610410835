//! `holdfast cassandra doctor`.

use clap::Args;
use holdfast_cli::block_on;
use holdfast_cli::place::failure;
use holdfast_recipes::{Doctor, Finding, LockerOptions, Schema, Verdict};
use serde_json::json;

use super::Place;
use crate::args::Global;
use crate::failure::Failure;
use crate::show::{self, Tone};

/// There is something to do.
const UNWELL: u8 = 1;

/// What is looked at.
#[derive(Clone, Debug, Args)]
pub(super) struct DoctorArgs {
    /// Look at what this role may do [default: the one of --user].
    #[arg(long, value_name = "ROLE")]
    role: Option<String>,
}

/// Prints what was found, and ends with 1 if something has to be done.
pub(super) fn run(global: &Global, place: &Place, args: DoctorArgs) -> Result<u8, Failure> {
    let contact = place.reach.contact(Global::connect_limit(None))?;
    let schema = Schema::new(&place.reach.keyspace).named(place.layout());
    let max_skew = place.max_skew.unwrap_or(LockerOptions::MAX_SKEW);
    let role = args.role.or_else(|| place.reach.user.clone());
    let doctor = Doctor::new(schema, place.reach.serial()?, max_skew).role(role);
    let findings = block_on(doctor.examine(&contact))?.map_err(failure)?;
    for finding in &findings {
        print(global, finding);
    }
    let is_unwell = findings.iter().any(|finding| finding.verdict >= Verdict::Caution);
    Ok(if is_unwell { UNWELL } else { 0 })
}

fn print(global: &Global, finding: &Finding) {
    let Finding { check, verdict, says, remedy, .. } = finding;
    if global.json {
        let verdict = verdict.as_str();
        show::line(json!({ "check": check, "verdict": verdict, "says": says, "do": remedy }));
        return;
    }
    let word = format!("{:<8}", verdict.as_str());
    let word = match verdict {
        Verdict::Good => Tone::Good.of(word),
        Verdict::Caution => Tone::Caution.of(word),
        Verdict::Wrong => Tone::Wrong.of(word),
        _ => word,
    };
    // Nodes say part of it: nothing of that may steer the terminal.
    let says = says.replace(char::is_control, " ");
    show::line(format_args!("{word}{check:<16}{says}"));
    if let Some(remedy) = remedy {
        show::line(format_args!("{:24}→ {remedy}", ""));
    }
}
