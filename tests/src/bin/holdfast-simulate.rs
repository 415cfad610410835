//! Makes simulated runs of a cluster on virtual time: `just simulate SEED`, `just simulate --runs N`.
#![allow(clippy::print_stdout, reason = "it talks to people")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use holdfast_tests::simulation::{
    self, Clocks, Counts, Kind, Many, Outcome, Plan, ResumeFile, ResumeFileError, Schedule,
    SimulatedRun, run_many, shrink,
};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Makes simulated runs of a cluster, each drawn from one seed, and judges them.
///
/// The last line is `N runs, M violations`. With `RUST_LOG=debug` a run shows what the nodes and
/// clients log. Exit codes: 0 no violation; 1 violations, or a demand
/// not met; 2 wrong arguments.
#[derive(Debug, Parser)]
#[command(name = "simulate", arg_required_else_help = true)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
struct Arguments {
    /// One run, by its seed.
    #[arg(conflicts_with_all = ["runs", "minutes"])]
    seed: Option<u64>,
    /// So many runs.
    #[arg(long)]
    runs: Option<u64>,
    /// As many runs as fit into so many minutes; with --runs, whichever ends first.
    #[arg(long)]
    minutes: Option<f64>,
    /// The seed of the first of many runs; the others follow. Drawn and printed if not given.
    #[arg(long)]
    first_seed: Option<u64>,
    /// Runs side by side [default: as many as there are cores].
    #[arg(long)]
    jobs: Option<usize>,
    /// Stop after so many runs that failed.
    #[arg(long, default_value_t = 10)]
    failures: u64,
    /// Let the clocks of clients be slower than DESIGN §5.4 allows: the judge must find violations.
    #[arg(long)]
    beyond: bool,
    /// Leave out what the second stream of the seeds draws: later kinds of faults, small limits,
    /// large tables.
    #[arg(long, conflicts_with_all = ["schedule", "demand", "plan"])]
    first_stream: bool,
    /// Make no large table where one is drawn: such a run takes much longer than all others.
    #[arg(long, conflicts_with_all = ["schedule", "demand", "plan"])]
    no_large_tables: bool,
    /// Leave out the limits on what all streams of a node have together (`outbox_bytes_total`,
    /// `max_attached_streams`): the runs are those of builds that did not draw them, for --demand
    /// and --resume too.
    #[arg(long, conflicts_with_all = ["schedule", "plan"])]
    no_node_totals: bool,
    /// Of so many runs only those in which this fault is drawn.
    #[arg(long, value_name = "FAULT", conflicts_with_all = ["seed", "schedule", "demand", "resume", "plan"])]
    with_fault: Option<Kind>,
    /// Print of each of many runs how long it took, the size of its table, its limits and its faults.
    #[arg(long, conflicts_with = "seed")]
    times: bool,
    /// Print every step that the run traces.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Write the run's history to this file, a line of JSON each.
    #[arg(long, requires = "seed")]
    history: Option<PathBuf>,
    /// Make a run that fails shorter, and print its plan.
    #[arg(long, requires = "seed")]
    shrink: bool,
    /// Make this plan instead of the one that the seed draws: a file as --shrink prints it.
    #[arg(long, conflicts_with_all = ["seed", "runs", "minutes"])]
    plan: Option<PathBuf>,
    /// The run, or runs, of these seeds in which a schedule that once broke openraft happens over
    /// and over.
    #[arg(long, conflicts_with_all = ["beyond", "demand", "resume", "plan"])]
    schedule: Option<Schedule>,
    /// Fail if all runs together saw less than the figures of docs/reliability.md rest on.
    #[arg(long)]
    demand: bool,
    /// Count the runs in this file, and go on where an earlier run of a build that behaves the same
    /// stopped (forty runs are compared first): --runs is how many runs all of them make together.
    #[arg(long, conflicts_with = "seed")]
    resume: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    simulation::quiet_panics();
    show_logs();
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

/// Prints the nodes' lines that `RUST_LOG` asks for: none unless it is set.
fn show_logs() {
    let wanted = std::env::var("RUST_LOG").unwrap_or_else(|_| "off".to_owned());
    let shown = wanted.parse::<Targets>().unwrap_or_else(|error| {
        eprintln!("RUST_LOG={wanted}: {error}");
        std::process::exit(2)
    });
    let lines = tracing_subscriber::fmt::layer().without_time().with_ansi(false);
    tracing_subscriber::registry().with(shown).with(lines).init();
}

fn read_plan(path: &PathBuf) -> Result<Plan, Box<dyn std::error::Error>> {
    Ok(serde_json::from_str(&std::fs::read_to_string(path)?)?)
}

fn one(plan: &Plan, arguments: &Arguments) -> ExitCode {
    let run = simulation::run_traced(plan, arguments.trace);
    for line in &run.trace {
        println!("{line}");
    }
    print!("{}", run.counts);
    println!("digest {:016x}", run.digest);
    for violation in &run.violations {
        println!("{violation}");
    }
    if let Some(path) = &arguments.history
        && let Err(error) = holdfast_tests::history::save(&run.history, path)
    {
        println!("{error}");
    }
    if arguments.shrink && !run.violations.is_empty() {
        print_shorter(plan);
    }
    println!("1 runs, {} violations", run.violations.len());
    exit(run.violations.is_empty())
}

fn print_shorter(plan: &Plan) {
    const TRIES: usize = 400;
    let shorter = shrink(plan.clone(), TRIES, |plan| !simulation::run(plan).violations.is_empty());
    match serde_json::to_string_pretty(&shorter) {
        Ok(text) => println!("{text}\nrepeat it with --plan FILE"),
        Err(error) => println!("the plan cannot be printed: {error}"),
    }
}

fn jobs(arguments: &Arguments) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    arguments.jobs.unwrap_or_else(cores)
}

/// The runs that the command line asks for.
fn asked_for(arguments: &Arguments, clocks: Clocks, first_seed: u64) -> Many {
    Many {
        first_seed,
        runs: arguments.runs,
        within: arguments.minutes.map(|minutes| Duration::from_secs_f64(minutes.max(0.0) * 60.0)),
        at_least: 0,
        failures: arguments.failures,
        jobs: jobs(arguments),
        clocks,
        schedule: arguments.schedule,
        first_stream: arguments.first_stream,
        large_tables: !arguments.no_large_tables,
        node_totals: !arguments.no_node_totals,
        with_fault: arguments.with_fault,
    }
}

/// How the runs are drawn by which two builds are compared.
fn drawn(arguments: &Arguments) -> fn(u64, Clocks) -> Plan {
    if arguments.no_node_totals { Plan::without_node_totals } else { Plan::draw }
}

/// The counts that a long run has to reach.
fn demanded(arguments: &Arguments) -> Counts {
    let all = Counts::of_the_long_run();
    if arguments.no_node_totals { all.without_node_totals() } else { all }
}

fn many(arguments: &Arguments, clocks: Clocks) -> ExitCode {
    let resume_file = arguments.resume.as_deref();
    let resume_file = resume_file.map(|path| {
        let (asked, jobs) = (arguments.first_seed, jobs(arguments));
        ResumeFile::open(path, asked, simulation::fresh_seed, jobs, drawn(arguments))
    });
    let resume_file = match resume_file.transpose() {
        Ok(resume_file) => resume_file,
        Err(error) => return wrong(&error),
    };
    let asked = || arguments.first_seed.unwrap_or_else(simulation::fresh_seed);
    let first_seed = resume_file.as_ref().map_or_else(asked, ResumeFile::first_seed);
    let many = asked_for(arguments, clocks, first_seed);
    println!("first seed {first_seed}, {} side by side", many.jobs);
    let outcome = match resume_file {
        None => run_many(
            &many,
            || (),
            |run, so_far| {
                report(run, so_far);
                if arguments.times {
                    tell_time(run, &many.plan(run.seed));
                }
            },
        ),
        Some(resume_file) => match resume_file.run(&many, tell, say_so_far) {
            Ok(outcome) => outcome,
            Err(error) => return wrong(&error),
        },
    };
    print!("{}", outcome.counts);
    println!("runs an hour: {:.0}", per_hour(&outcome));
    let missing =
        if arguments.demand { outcome.counts.short_of(&demanded(arguments)) } else { Vec::new() };
    for line in &missing {
        println!("too little: {line}");
    }
    for failed in &outcome.failed {
        println!("seed {} failed; repeat: {}", failed.seed, many.repeat(failed.seed));
    }
    println!("{} runs, {} violations", outcome.counts.runs, outcome.violations());
    exit(outcome.failed.is_empty() && missing.is_empty())
}

fn wrong(error: &ResumeFileError) -> ExitCode {
    println!("{error}");
    ExitCode::from(2)
}

fn report(run: &SimulatedRun, so_far: &Outcome) {
    const EVERY: u64 = 100;
    tell(run);
    if so_far.counts.runs.is_multiple_of(EVERY) {
        say_so_far(so_far);
    }
}

fn tell(run: &SimulatedRun) {
    if !run.violations.is_empty() {
        println!("seed {}:", run.seed);
        for violation in run.violations.iter().take(5) {
            println!("  {violation}");
        }
    }
}

fn tell_time(run: &SimulatedRun, plan: &Plan) {
    let limits: Vec<&str> = plan.limits.keys().map(String::as_str).collect();
    let faults: Vec<String> =
        plan.strikes.iter().map(|strike| strike.fault.kind().to_string()).collect();
    let (seconds, seed, table, nodes) = (run.took.as_secs_f64(), run.seed, plan.table, plan.nodes);
    let (limits, faults) = (limits.join(","), faults.join(","));
    println!(
        "{seconds:.3} s, seed {seed}, table {table}, nodes {nodes}, limits {limits}; {faults}"
    );
}

fn say_so_far(outcome: &Outcome) {
    println!("{} runs, {} violations so far", outcome.counts.runs, outcome.violations());
}

fn per_hour(outcome: &Outcome) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "it is printed for people")]
    let runs = outcome.counts.runs as f64;
    runs * 3_600.0 / outcome.took.as_secs_f64().max(0.001)
}

fn exit(clean: bool) -> ExitCode {
    if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
