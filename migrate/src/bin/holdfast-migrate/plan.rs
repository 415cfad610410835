//! `holdfast-migrate plan`.

use std::io::{BufWriter, Write as _};
use std::sync::Arc;

use futures_util::future::join;
use holdfast_cli::failure::{Failure, NOT_REACHED, REFUSED};
use holdfast_cli::{CONNECT_LIMIT, block_on, line, place, printable, progress_bar};
use holdfast_migrate::plan::{LockPlan, Rules, plan};
use holdfast_migrate::report::{Tally, json_finding, json_row};
use holdfast_migrate::scan::{MESSAGES_WAITING, Range, Scan, ScanError, ScanMessage, Session};
use holdfast_recipes::open;
use holdfast_runtime::Runtime;
use indicatif::ProgressBar;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::args::{Cli, PlanArgs, Source};

pub(crate) fn run(cli: &Cli, args: &PlanArgs) -> Result<u8, Failure> {
    let tally = block_on(async {
        let scan = scan(cli, &args.source).await?;
        let (ranges, at_once) = args.source.ranges();
        let ranges = Range::split(ranges);
        let (tell, told) = mpsc::channel(MESSAGES_WAITING);
        let mut planning = Planning::new(args, cli.json, ranges.len());
        let (read, ()) = join(scan.run(&ranges, at_once, tell), planning.take(told)).await;
        read.map_err(|error| failure(&error))?;
        Ok::<_, Failure>(planning.end())
    })??;
    if cli.json {
        line(tally.json());
    } else {
        tally.lines().iter().for_each(line);
        line("nothing was changed");
    }
    Ok(0)
}

/// Opens the tables and checks them.
pub(crate) async fn scan(cli: &Cli, source: &Source) -> Result<Scan, Failure> {
    scan_over(cli, source, session(cli).await?).await
}

/// Opens a session of the driver.
pub(crate) async fn session(cli: &Cli) -> Result<Arc<Session>, Failure> {
    open(&cli.reach.contact(CONNECT_LIMIT)?).await.map_err(place::failure)
}

/// Opens the tables over a session.
pub(crate) async fn scan_over(
    cli: &Cli,
    source: &Source,
    session: Arc<Session>,
) -> Result<Scan, Failure> {
    let (place, runtime) = ((cli.reach.keyspace.as_str(), &cli.reach.serial()?), Runtime::system());
    let scan = Scan::open(session, place, source.layout(), runtime).await;
    scan.map_err(|error| failure(&error))
}

pub(crate) fn failure(error: &ScanError) -> Failure {
    let code = if error.is_refusal() { REFUSED } else { NOT_REACHED };
    Failure::new(code, printable(&error.to_string()))
}

/// Plans and counts the locks that arrive, and prints them for programs.
struct Planning {
    rules: Rules,
    tally: Tally,
    out: Option<BufWriter<std::io::Stdout>>,
    bar: ProgressBar,
}

impl Planning {
    fn new(args: &PlanArgs, json: bool, ranges: usize) -> Self {
        let bar = progress_bar(Some(ranges), "{bar:30} {pos}/{len} ranges, {elapsed}");
        let out = json.then(|| BufWriter::new(std::io::stdout()));
        Self { rules: args.source.rules(&args.prefix), tally: Tally::new(args.show), out, bar }
    }

    async fn take(&mut self, mut told: mpsc::Receiver<ScanMessage>) {
        while let Some(news) = told.recv().await {
            match news {
                ScanMessage::Done { .. } => self.bar.inc(1),
                ScanMessage::Locks { locks, .. } => {
                    for rows in locks {
                        let plan = plan(rows, &self.rules);
                        self.print(plan.as_ref());
                        self.tally.add(plan.as_ref());
                    }
                }
            }
        }
    }

    fn print(&mut self, plan: Option<&LockPlan>) {
        let (Some(out), Some(plan)) = (&mut self.out, plan) else { return };
        let rows = plan.rows.iter().map(json_row);
        let lines: Vec<Value> = rows.chain(plan.findings.iter().map(json_finding)).collect();
        for line in lines {
            // The reader of the output may have gone, which is no error.
            let _ = writeln!(out, "{line}");
        }
    }

    fn end(mut self) -> Tally {
        self.bar.finish_and_clear();
        let _ = self.out.as_mut().map(std::io::Write::flush);
        self.tally
    }
}
