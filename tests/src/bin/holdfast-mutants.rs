//! Looks for each deliberate bug of `mutants/` with the simulator and its judge: `just mutants`.
#![allow(clippy::print_stdout, reason = "it talks to people")]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum as _};
use comfy_table::{Table, presets};
use holdfast_mutants::{Mutant, arm};
use holdfast_tests::simulation::{
    Clocks, Many, Plan, Schedule, fresh_seed, quiet_panics, run, run_many,
};

/// Makes simulated runs with one deliberate bug after another until the judge finds it.
///
/// Exit codes: 0 every one was found; 1 at least one was not; 2 wrong arguments.
#[derive(Debug, Parser)]
#[command(name = "mutants")]
struct Arguments {
    /// Look for these only; may be repeated.
    #[arg(long)]
    only: Vec<Mutant>,
    /// How long each is looked for, minutes.
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// The seed of the first run of each. Drawn and printed if not given.
    #[arg(long)]
    first_seed: Option<u64>,
    /// Runs side by side [default: as many as there are cores].
    #[arg(long)]
    jobs: Option<usize>,
    /// Make only the runs that found them before: a file of lines `mutant HOW seed` (HOW: `first`, `two`,
    /// `three`, `all`, `rules`, `totals`, `latest`, `disasters`, `vocabulary`, `terms`, `numbers` or `bounds`, by which streams are drawn, or a schedule), `mutant plan.json`
    /// for a plan beside it, or `mutant test NAME` where a test shows what no run was found for. Each must
    /// be found by one of its runs; one without any line is not found.
    #[arg(long)]
    replay: Option<PathBuf>,
    /// Replay only so many of those that have a kept run. The one to begin with is drawn.
    #[arg(long, requires = "replay")]
    some: Option<usize>,
    /// Make this plan alone with each of them: a file as `holdfast-simulate --shrink` prints it.
    #[arg(long, conflicts_with = "replay")]
    plan: Option<PathBuf>,
    /// Add the seeds that find them to this file.
    #[arg(long)]
    keep: Option<PathBuf>,
}

/// What came of looking for one.
struct Looked {
    mutant: Mutant,
    runs: u64,
    took: Duration,
    found: Option<Found>,
}

/// What shows a mutant.
#[derive(Clone)]
enum Found {
    /// The run of a seed, and what was wrong in it.
    Run(u64, String),
    /// A test of the package that has the guarded line.
    Test(String),
}

/// What a file of kept lines has of a mutant.
enum Kept {
    Run(Box<Plan>),
    Test(String),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    quiet_panics();
    let looked = match (&arguments.plan, &arguments.replay) {
        (None, None) => look_for_all(&arguments),
        (Some(path), _) => match read_plan(path) {
            Ok(plan) => chosen(&arguments).into_iter().map(|one| look_once(one, &plan)).collect(),
            Err(error) => {
                println!("{}: {error}", path.display());
                return ExitCode::from(2);
            }
        },
        (None, Some(path)) => match kept(path) {
            Ok(seeds) => replay(&arguments, &seeds),
            Err(error) => {
                println!("{}: {error}", path.display());
                return ExitCode::from(2);
            }
        },
    };
    println!("{}", table(&looked));
    let missed: Vec<String> = (looked.iter().filter(|looked| looked.found.is_none()))
        .map(|looked| looked.mutant.to_string())
        .collect();
    let by_test = looked.iter().filter(|looked| matches!(looked.found, Some(Found::Test(_))));
    println!(
        "{} mutants, {} of them left to their tests, {} not found {}",
        looked.len(),
        by_test.count(),
        missed.len(),
        missed.join(" ")
    );
    if missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn chosen(arguments: &Arguments) -> Vec<Mutant> {
    if arguments.only.is_empty() { Mutant::ALL.to_vec() } else { arguments.only.clone() }
}

fn look_for_all(arguments: &Arguments) -> Vec<Looked> {
    let first_seed = arguments.first_seed.unwrap_or_else(fresh_seed);
    println!("first seed {first_seed}");
    let mut all = Vec::new();
    for mutant in chosen(arguments) {
        let looked = look_for(mutant, first_seed, arguments);
        println!("{}", line(&looked));
        if let (Some(path), Some(Found::Run(seed, _))) = (&arguments.keep, &looked.found)
            && let Err(error) = keep(path, mutant, *seed)
        {
            println!("{}: {error}", path.display());
        }
        all.push(looked);
    }
    all
}

/// The schedule in which a mutant is searched; `None` for runs as seeds draw them.
fn schedule_of(mutant: Mutant) -> Option<Schedule> {
    if mutant == Mutant::StrangerAdmitted {
        // Nobody calls from another cluster otherwise.
        Some(Schedule::OtherLife)
    } else if mutant >= Mutant::ModeRowLeavesGuards
        || matches!(mutant, Mutant::NumbersUnderWayCount | Mutant::LapsedModeRowCounts)
    {
        Some(Schedule::Moves)
    } else if mutant >= Mutant::RecipeIgnoresSkew {
        Some(Schedule::Recipe)
    } else if mutant >= Mutant::CoverFromReceipt {
        Some(Schedule::Switches)
    } else {
        None
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn look_for(mutant: Mutant, first_seed: u64, arguments: &Arguments) -> Looked {
    let many = Many {
        first_seed,
        runs: None,
        within: Some(Duration::from_secs_f64(arguments.minutes.max(0.0) * 60.0)),
        at_least: 0,
        failures: 1,
        jobs: arguments.jobs.unwrap_or_else(cores),
        clocks: Clocks::Within,
        schedule: schedule_of(mutant),
        first_stream: false,
        large_tables: false,
        node_totals: true,
        with_fault: None,
    };
    let outcome = run_many(&many, || arm(Some(mutant)), |_, _| ());
    let found = outcome.failed.into_iter().next();
    let found = found.map(|failed| (failed.seed, failed.violations.into_iter().next()));
    let found = found.map(|(seed, violation)| Found::Run(seed, violation.unwrap_or_default()));
    Looked { mutant, runs: outcome.counts.runs, took: outcome.took, found }
}

fn read_plan(path: &Path) -> Result<Plan, Box<dyn std::error::Error>> {
    Ok(serde_json::from_str(&std::fs::read_to_string(path)?)?)
}

fn look_once(mutant: Mutant, plan: &Plan) -> Looked {
    arm(Some(mutant));
    let violation = run(plan).violations.into_iter().next();
    let found = violation.map(|violation| Found::Run(plan.seed, violation));
    let looked = Looked { mutant, runs: 1, took: Duration::ZERO, found };
    println!("{}", line(&looked));
    looked
}

/// Every mutant is found by one of the runs that found it before, or has a test of its own.
fn replay(arguments: &Arguments, kept: &[(Mutant, Kept)]) -> Vec<Looked> {
    let look = |mutant: Mutant| {
        arm(Some(mutant));
        let mut looked = Looked { mutant, runs: 0, took: Duration::ZERO, found: None };
        for (_, one) in kept.iter().filter(|(of, _)| *of == mutant) {
            let plan = match one {
                Kept::Run(plan) => plan,
                Kept::Test(name) => {
                    looked.found = Some(Found::Test(name.clone()));
                    break;
                }
            };
            looked.runs += 1;
            if let Some(violation) = run(plan).violations.into_iter().next() {
                looked.found = Some(Found::Run(plan.seed, violation));
                break;
            }
        }
        looked
    };
    let mut mutants = chosen(arguments);
    if let Some(some) = arguments.some {
        let has_run = |mutant: &Mutant| {
            kept.iter().any(|(of, one)| of == mutant && matches!(one, Kept::Run(_)))
        };
        mutants.retain(has_run);
        let turn = usize::try_from(fresh_seed()).unwrap_or(0) % mutants.len().max(1);
        mutants.rotate_left(turn);
        mutants.truncate(some);
    }
    let jobs = arguments.jobs.unwrap_or_else(cores).max(1);
    let (next, all) = (std::sync::atomic::AtomicUsize::new(0), std::sync::Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let Some(mutant) = mutants.get(place) else { return };
                    let looked = look(*mutant);
                    println!("{}", line(&looked));
                    if let Ok(mut all) = all.lock() {
                        all.push(looked);
                    }
                }
            });
        }
    });
    let mut all = all.into_inner().unwrap_or_default();
    all.sort_by_key(|looked| looked.mutant.to_string());
    all
}

/// The lines of a file: each has a mutant, and how the run that found it is drawn, with its seed, or the file of a plan beside this one,
/// or the name of a test.
fn kept(path: &Path) -> Result<Vec<(Mutant, Kept)>, Box<dyn std::error::Error>> {
    let text = std::fs::read_to_string(path)?;
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines.map(|line| kept_line(path, line)).collect()
}

fn kept_line(path: &Path, line: &str) -> Result<(Mutant, Kept), Box<dyn std::error::Error>> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (mutant, kept) = match words[..] {
        [mutant, "test", name] => (mutant, Kept::Test(name.to_owned())),
        [mutant, how, seed] => {
            let plan = Plan::kept_as(how, seed.parse()?);
            let plan = plan.ok_or_else(|| format!("'{line}': no run is drawn as '{how}'"))?;
            (mutant, Kept::Run(Box::new(plan)))
        }
        [mutant, plan] => (mutant, Kept::Run(Box::new(read_plan(&path.with_file_name(plan))?))),
        _ => {
            let forms = "`mutant HOW seed`, `mutant plan.json`, `mutant test NAME`";
            return Err(format!("'{line}' is none of {forms}").into());
        }
    };
    Ok((mutant.parse()?, kept))
}

fn keep(path: &Path, mutant: Mutant, seed: u64) -> std::io::Result<()> {
    use std::io::Write as _;
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
    let schedule = schedule_of(mutant).and_then(|schedule| schedule.to_possible_value());
    let how = schedule.map_or_else(|| Plan::NEWEST.to_owned(), |value| value.get_name().to_owned());
    writeln!(file, "{mutant} {how} {seed}")
}

fn line(looked: &Looked) -> String {
    let Looked { mutant, runs, took, found } = looked;
    let seconds = took.as_secs_f64();
    match found {
        Some(Found::Run(seed, violation)) => {
            format!("{mutant}: found after {runs} runs, {seconds:.0} s, seed {seed}: {violation}")
        }
        Some(Found::Test(name)) => format!("{mutant}: shown by the test {name}"),
        None => format!("{mutant}: NOT FOUND in {runs} runs, {seconds:.0} s"),
    }
}

fn table(all: &[Looked]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["mutant", "found after (runs)", "seed", "broke"]);
    for looked in all {
        let (seed, broke) = match &looked.found {
            Some(Found::Run(seed, violation)) => {
                let number = violation.split(':').next().unwrap_or_default().to_owned();
                (seed.to_string(), number)
            }
            Some(Found::Test(name)) => ("test".to_owned(), name.clone()),
            None => ("-".to_owned(), "not found".to_owned()),
        };
        table.add_row([looked.mutant.to_string(), looked.runs.to_string(), seed, broke]);
    }
    table
}
