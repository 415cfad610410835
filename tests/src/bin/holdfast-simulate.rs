//! Lives whole lives of a cluster on virtual time: `just simulate SEED`, `just simulate --lives N`.
#![allow(clippy::print_stdout, reason = "it talks to people")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use holdfast_tests::life::{
    self, Clocks, Counts, Ledger, LedgerError, Life, Many, Outcome, Plan, Schedule, live_many,
    shrink,
};

/// Lives whole lives of a cluster, each drawn from one seed, and judges them.
///
/// The last line is `N lives, M violations`. With `RUST_LOG=debug` a life shows what the nodes and
/// clients log. Exit codes: 0 no violation; 1 violations, or a demand
/// not met; 2 wrong arguments.
#[derive(Debug, Parser)]
#[command(name = "simulate", arg_required_else_help = true)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
struct Arguments {
    /// One life, by its seed.
    #[arg(conflicts_with_all = ["lives", "minutes"])]
    seed: Option<u64>,
    /// So many lives.
    #[arg(long)]
    lives: Option<u64>,
    /// As many lives as fit into so many minutes; with --lives, whichever ends first.
    #[arg(long)]
    minutes: Option<f64>,
    /// The seed of the first of many lives; the others follow. Drawn and printed if not given.
    #[arg(long)]
    first_seed: Option<u64>,
    /// Lives side by side [default: as many as there are cores].
    #[arg(long)]
    jobs: Option<usize>,
    /// Stop after so many lives that failed.
    #[arg(long, default_value_t = 10)]
    failures: u64,
    /// Let the clocks of clients be slower than DESIGN §5.4 allows: the judge must find violations.
    #[arg(long)]
    beyond: bool,
    /// Leave out what the second stream of the seeds draws: later kinds of faults, small limits,
    /// large tables.
    #[arg(long, conflicts_with_all = ["schedule", "demand", "plan"])]
    first_stream: bool,
    /// Live no large table where one is drawn: such a run takes much longer than all others.
    #[arg(long, conflicts_with_all = ["schedule", "demand", "plan"])]
    no_large_tables: bool,
    /// Print of each of many lives how long it took, the size of its table, its limits and its faults.
    #[arg(long, conflicts_with = "seed")]
    times: bool,
    /// Print every step that the life traces.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Write the life's history to this file, a line of JSON each.
    #[arg(long, requires = "seed")]
    history: Option<PathBuf>,
    /// Make a life that fails shorter, and print its plan.
    #[arg(long, requires = "seed")]
    shrink: bool,
    /// Live this plan instead of the one that the seed draws: a file as --shrink prints it.
    #[arg(long, conflicts_with_all = ["seed", "lives", "minutes"])]
    plan: Option<PathBuf>,
    /// The life, or lives, of these seeds in which a schedule that once broke openraft happens over
    /// and over.
    #[arg(long, conflicts_with_all = ["beyond", "demand", "resume", "plan"])]
    schedule: Option<Schedule>,
    /// Fail if all lives together saw less than the figures of docs/reliability.md rest on.
    #[arg(long)]
    demand: bool,
    /// Count what is lived in this file, and go on where an earlier run of the same build stopped:
    /// --lives is what all of them shall have lived together.
    #[arg(long, conflicts_with = "seed")]
    resume: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    life::quiet_panics();
    let filter = tracing_subscriber::EnvFilter::builder()
        .with_default_directive(tracing_subscriber::filter::LevelFilter::OFF.into())
        .from_env_lossy();
    tracing_subscriber::fmt().with_env_filter(filter).without_time().with_ansi(false).init();
    let clocks = if arguments.beyond { Clocks::Beyond } else { Clocks::Within };
    match (&arguments.plan, arguments.seed) {
        (Some(path), _) => match read_plan(path) {
            Ok(plan) => one(&plan, &arguments),
            Err(error) => {
                println!("{}: {error}", path.display());
                ExitCode::from(2)
            }
        },
        (None, Some(seed)) => one(&asked_for(&arguments, clocks, seed).plan(seed), &arguments),
        (None, None) => many(&arguments, clocks),
    }
}

fn read_plan(path: &PathBuf) -> Result<Plan, Box<dyn std::error::Error>> {
    Ok(serde_json::from_str(&std::fs::read_to_string(path)?)?)
}

fn one(plan: &Plan, arguments: &Arguments) -> ExitCode {
    let life = life::live_traced(plan, arguments.trace);
    for line in &life.trace {
        println!("{line}");
    }
    print!("{}", life.counts);
    println!("digest {:016x}", life.digest);
    for violation in &life.violations {
        println!("{violation}");
    }
    if let Some(path) = &arguments.history
        && let Err(error) = holdfast_tests::history::save(&life.history, path)
    {
        println!("{error}");
    }
    if arguments.shrink && !life.violations.is_empty() {
        print_shorter(plan);
    }
    println!("1 lives, {} violations", life.violations.len());
    exit(life.violations.is_empty())
}

fn print_shorter(plan: &Plan) {
    const TRIES: usize = 400;
    let shorter = shrink(plan.clone(), TRIES, |plan| !life::live(plan).violations.is_empty());
    match serde_json::to_string_pretty(&shorter) {
        Ok(text) => println!("{text}\nrepeat it with --plan FILE"),
        Err(error) => println!("the plan cannot be printed: {error}"),
    }
}

/// The lives that the command line asks for.
fn asked_for(arguments: &Arguments, clocks: Clocks, first_seed: u64) -> Many {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Many {
        first_seed,
        lives: arguments.lives,
        within: arguments.minutes.map(|minutes| Duration::from_secs_f64(minutes.max(0.0) * 60.0)),
        at_least: 0,
        failures: arguments.failures,
        jobs: arguments.jobs.unwrap_or(cores),
        clocks,
        schedule: arguments.schedule,
        first_stream: arguments.first_stream,
        large_tables: !arguments.no_large_tables,
    }
}

fn many(arguments: &Arguments, clocks: Clocks) -> ExitCode {
    let ledger = arguments.resume.as_deref();
    let ledger = ledger.map(|path| Ledger::open(path, arguments.first_seed, life::fresh_seed));
    let ledger = match ledger.transpose() {
        Ok(ledger) => ledger,
        Err(error) => return wrong(&error),
    };
    let asked = || arguments.first_seed.unwrap_or_else(life::fresh_seed);
    let first_seed = ledger.as_ref().map_or_else(asked, Ledger::first_seed);
    let many = asked_for(arguments, clocks, first_seed);
    println!("first seed {first_seed}, {} side by side", many.jobs);
    let outcome = match ledger {
        None => live_many(
            &many,
            || (),
            |life, so_far| {
                report(life, so_far);
                if arguments.times {
                    tell_time(life, &many.plan(life.seed));
                }
            },
        ),
        Some(ledger) => match ledger.live(&many, tell, say_so_far) {
            Ok(outcome) => outcome,
            Err(error) => return wrong(&error),
        },
    };
    print!("{}", outcome.counts);
    println!("lives an hour: {:.0}", per_hour(&outcome));
    let missing = if arguments.demand {
        outcome.counts.short_of(&Counts::of_the_long_run())
    } else {
        Vec::new()
    };
    for line in &missing {
        println!("too little: {line}");
    }
    for failed in &outcome.failed {
        println!("seed {} failed; repeat: {}", failed.seed, many.repeat(failed.seed));
    }
    println!("{} lives, {} violations", outcome.counts.lives, outcome.violations());
    exit(outcome.failed.is_empty() && missing.is_empty())
}

fn wrong(error: &LedgerError) -> ExitCode {
    println!("{error}");
    ExitCode::from(2)
}

fn report(life: &Life, so_far: &Outcome) {
    const EVERY: u64 = 100;
    tell(life);
    if so_far.counts.lives.is_multiple_of(EVERY) {
        say_so_far(so_far);
    }
}

fn tell(life: &Life) {
    if !life.violations.is_empty() {
        println!("seed {}:", life.seed);
        for violation in life.violations.iter().take(5) {
            println!("  {violation}");
        }
    }
}

fn tell_time(life: &Life, plan: &Plan) {
    let limits: Vec<&str> = plan.limits.keys().map(String::as_str).collect();
    let faults: Vec<String> =
        plan.strikes.iter().map(|strike| strike.fault.kind().to_string()).collect();
    let (seconds, seed, table, nodes) =
        (life.took.as_secs_f64(), life.seed, plan.table, plan.nodes);
    let (limits, faults) = (limits.join(","), faults.join(","));
    println!(
        "{seconds:.3} s, seed {seed}, table {table}, nodes {nodes}, limits {limits}; {faults}"
    );
}

fn say_so_far(outcome: &Outcome) {
    println!("{} lives, {} violations so far", outcome.counts.lives, outcome.violations());
}

fn per_hour(outcome: &Outcome) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "it is printed for people")]
    let lives = outcome.counts.lives as f64;
    lives * 3_600.0 / outcome.took.as_secs_f64().max(0.001)
}

fn exit(clean: bool) -> ExitCode {
    if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
