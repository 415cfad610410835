//! `holdfast-migrate import`.

use holdfast_cli::failure::{Failure, NOT_REACHED, OWN_ERROR, REFUSED};
use holdfast_cli::{block_on, line, printable, progress_bar};
use holdfast_migrate::import::{
    CheckpointError, Fault, ImportError, ImportReport, Options, Pace, SendError, Sum, import_all,
};
use holdfast_recipes::modes::MODES;
use holdfast_runtime::Runtime;
use indicatif::ProgressBar;
use serde_json::json;

use crate::args::{Cli, ImportArgs, number};
use crate::plan;

/// The exit code if the store refused some rows.
const SOME_REFUSED: u8 = 1;

pub(crate) fn run(cli: &Cli, args: &ImportArgs) -> Result<u8, Failure> {
    let native = args.servers.native()?;
    let (ranges, _) = args.source.ranges();
    let sum = block_on(async {
        let scan = plan::scan(cli, &args.source).await?;
        let mut shown = ImportBar::new(ranges);
        let mut tell = |step| shown.take(step);
        let (options, runtime) = (options(args), Runtime::system());
        let sum = import_all(&scan, &native, options, runtime, &mut tell, &mut |_| {}).await;
        shown.end();
        sum.map_err(|error| failure(&error))
    })??;
    if cli.json {
        line(as_json(&sum));
    } else {
        print(&sum);
    }
    Ok(if sum.refused == 0 { 0 } else { SOME_REFUSED })
}

fn options(args: &ImportArgs) -> Options {
    let (ranges, reads_at_once) = args.source.ranges();
    Options {
        rules: args.source.rules(&args.prefix),
        ranges,
        reads_at_once,
        requests_at_once: number(args.speed.requests_at_once),
        pace: Pace::new(args.speed.rate),
        checkpoint: args.resume.clone(),
        writers_stopped: args.writers_stopped,
        modes_table: Some(args.modes.names.one(&MODES).to_owned()),
    }
}

pub(crate) fn failure(error: &ImportError) -> Failure {
    let code = match error {
        ImportError::Scan(error) => return plan::failure(error),
        ImportError::Checkpoint(CheckpointError::File { .. })
        | ImportError::Send(SendError::Progress(_)) => OWN_ERROR,
        ImportError::ForeignWriter { .. }
        | ImportError::OtherTie(_)
        | ImportError::Older { .. }
        | ImportError::AlreadyNative { .. }
        | ImportError::Checkpoint(_)
        | ImportError::Send(SendError::Refused(_))
        | ImportError::Target(Fault::Refused(_)) => REFUSED,
        ImportError::Send(SendError::NoAnswer { .. }) | ImportError::Target(Fault::Unknown(_)) => {
            NOT_REACHED
        }
    };
    Failure::new(code, printable(&error.to_string()))
}

/// The progress bar of an import.
pub(crate) struct ImportBar {
    bar: ProgressBar,
    rows: u64,
}

impl ImportBar {
    pub(crate) fn new(ranges: usize) -> Self {
        let style = "{bar:30} {pos}/{len} ranges, {msg} rows, {elapsed}";
        let bar = progress_bar(Some(ranges), style);
        Self { bar, rows: 0 }
    }

    pub(crate) fn take(&mut self, step: ImportReport) {
        match step {
            ImportReport::Resumed { ranges, stale } => {
                self.bar.inc(u64::try_from(ranges).unwrap_or(0));
                if stale > 0 {
                    eprintln!(
                        "holdfast-migrate: {stale} ranges of the checkpoint were done more than two minutes ago, and are read \
                         again: their rows were renewed since, or are others"
                    );
                }
            }
            ImportReport::Range { .. } => self.bar.inc(1),
            ImportReport::Rows { number } => {
                self.rows += u64::try_from(number).unwrap_or(0);
                self.bar.set_message(self.rows.to_string());
            }
        }
    }

    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

pub(crate) fn print(sum: &Sum) {
    let Sum { imported, queued, already_there, over, left_out, refused, refusals } = sum;
    line(format!("{imported} held and {queued} waiting were imported"));
    let counted = [
        (*already_there, "were imported before and still stand"),
        (*over, "ran out before their turn"),
        (*left_out, "were left out: `holdfast-migrate plan` shows what and why"),
        (*refused, "were refused by the store"),
    ];
    for (number, what) in counted.into_iter().filter(|(number, _)| *number > 0) {
        line(format!("{number} {what}"));
    }
    for (lock, owner, why) in refusals {
        line(printable(&format!("  {lock} of {owner}: {why}")));
    }
    let more = refused.saturating_sub(u64::try_from(refusals.len()).unwrap_or(0));
    if more > 0 {
        line(format!("  and {more} more"));
    }
}

pub(crate) fn as_json(sum: &Sum) -> serde_json::Value {
    let refusals = sum.refusals.iter();
    json!({
        "imported": sum.imported,
        "queued": sum.queued,
        "already_there": sum.already_there,
        "over": sum.over,
        "left_out": sum.left_out,
        "refused": sum.refused,
        "refusals": refusals
            .map(|(lock, owner, why)| json!({ "lock": lock, "owner": owner, "why": why }))
            .collect::<Vec<_>>(),
    })
}
