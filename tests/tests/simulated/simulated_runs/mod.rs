//! Simulated runs of whole clusters on virtual time, judged: the slice of `just simulate` that
//! belongs to every run of the tests.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of a test tell what they find, and fail it by a panic"
)]

use std::time::Duration;

use holdfast_tests::simulation::{
    Clocks, Many, Outcome, Plan, Schedule, SimulatedRun, fresh_seed, run, run_many, run_traced,
};

/// The time for the slice, seconds; `HOLDFAST_SIMULATE_SECONDS` overrides it.
const SECONDS: u64 = 60;
/// So many are made, whatever time they take.
const LEAST: u64 = 10;
/// Runs that once found a bug, one a line, each with the bug.
const KEPT: &str = include_str!("kept.txt");

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn seconds() -> u64 {
    let asked = std::env::var("HOLDFAST_SIMULATE_SECONDS").ok();
    asked.and_then(|seconds| seconds.parse().ok()).unwrap_or(SECONDS)
}

fn told(run: &SimulatedRun, _: &Outcome) {
    for violation in &run.violations {
        println!("seed {}: {violation}", run.seed);
    }
}

/// Runs as the seeds from this one on draw them, without the large tables.
fn of_seeds(first_seed: u64) -> Many {
    Many {
        first_seed,
        runs: None,
        within: None,
        at_least: 0,
        failures: 1,
        jobs: cores(),
        clocks: Clocks::Within,
        schedule: None,
        first_stream: false,
        large_tables: false,
        node_totals: true,
        with_fault: None,
    }
}

/// From fresh seeds, which are printed.
#[test]
fn fresh_runs_break_no_invariant() {
    let within = Some(Duration::from_secs(seconds()));
    let many = Many { within, at_least: LEAST, failures: 3, ..of_seeds(fresh_seed()) };
    println!("first seed {}", many.first_seed);

    let outcome = run_many(&many, || (), told);

    println!("{}", outcome.counts);
    println!("{} runs, {} violations", outcome.counts.runs, outcome.violations());
    for failed in &outcome.failed {
        println!("repeat: {}", many.repeat(failed.seed));
    }
    assert_eq!(outcome.violations(), 0);
    let counts = outcome.counts;
    assert!(counts.runs >= LEAST && counts.grants > 1_000 && counts.leaders > 10, "too little");
    assert!(counts.writes > 1_000 && counts.refused_writes > 100, "too few writes to resources");
    assert!(counts.watch_news > 1_000, "watchers were told too little");
}

#[test]
fn the_same_seed_twice_is_the_same_run_to_the_byte() {
    for seed in [1, 2] {
        let plan = Plan::draw(seed, Clocks::Within);
        let (one, other) = (run_traced(&plan, true), run_traced(&plan, true));

        assert!(one.trace.len() > 1_000, "{} lines are no trace", one.trace.len());
        let differ = one.trace.iter().zip(&other.trace).position(|(one, other)| one != other);
        assert_eq!(differ.map(|line| (&one.trace[line], &other.trace[line])), None);
        assert_eq!((one.trace.len(), one.digest), (other.trace.len(), other.digest));
        assert_eq!(one.history, other.history);
    }
}

/// Otherwise the judge proves nothing about clocks.
#[test]
fn a_client_whose_clock_is_slower_than_allowed_is_found_to_believe_too_long() {
    // In this run it happens. Where plans are drawn in another way it is another run, and one of those after it has to serve.
    let many = Many { runs: Some(100), clocks: Clocks::Beyond, ..of_seeds(12) };

    let outcome = run_many(&many, || (), |_, _| ());

    let failed = outcome.failed.first().expect("a run is found in which it happens");
    println!("found after {} runs: {:?}", outcome.counts.runs, failed.violations);
    let about_time =
        |violation: &String| violation.starts_with("I6:") || violation.starts_with("I24:");
    assert!(failed.violations.iter().any(about_time));
}

/// Runs a schedule that once broke openraft with these seeds, and with a fresh one; it has to
/// happen so often in each.
fn happens(schedule: Schedule, kept: &[u64], least: u64) {
    for seed in kept.iter().copied().chain([fresh_seed()]) {
        let run = run(&Plan::of(schedule, seed));

        println!("{schedule:?}, seed {seed}: happened {} times", run.counts.scheduled);
        assert_eq!(run.violations, Vec::<String>::new(), "{schedule:?}, seed {seed}");
        let times = run.counts.scheduled;
        assert!(times >= least, "{schedule:?}, seed {seed}: only {times} times");
    }
}

/// openraft #1802: a quorum that never was.
#[test]
fn acknowledgements_of_five_voters_that_overtake_each_other_commit_nothing_too_early() {
    happens(Schedule::UnevenAcks, &[1], 2);
}

/// openraft #1808: members that only a deposed leader had, under a snapshot.
#[test]
fn members_that_nobody_agreed_on_are_forgotten_with_the_log_that_named_them() {
    happens(Schedule::StaleMembers, &[1], 1);
}

/// openraft #1892, #1894 (I22).
#[test]
fn a_node_of_an_earlier_cluster_is_refused_by_name() {
    // In the second run the answer to adding a node to the earlier cluster is lost.
    happens(Schedule::OtherLife, &[1, 18_710_804_764], 20);
}

/// Runs of little but scopes, from fresh seeds, which are printed: their store changes, they move, or a recipe is alone with Cassandra
/// (I24, I3; for a queue of work, that no item is with two workers).
#[test]
fn locks_between_two_stores_break_no_invariant_however_often_they_change() {
    for (schedule, runs, least) in
        [(Schedule::Switches, 3, 1), (Schedule::Moves, 3, 4), (Schedule::Recipe, 8, 8)]
    {
        let many = Many { runs: Some(runs), schedule: Some(schedule), ..of_seeds(fresh_seed()) };
        println!("{schedule:?}, first seed {}", many.first_seed);

        let outcome = run_many(&many, || (), told);

        println!("{schedule:?} happened {} times", outcome.counts.scheduled);
        for failed in &outcome.failed {
            println!("repeat: {}", many.repeat(failed.seed));
        }
        assert_eq!(outcome.violations(), 0, "{schedule:?}");
        let enough = outcome.counts.scheduled >= least && outcome.counts.runs == runs;
        assert!(enough, "{schedule:?}: too little: {}", outcome.counts);
    }
}

/// A run that does not end is given up, and named.
#[test]
fn runs_in_which_something_was_once_wrong_go_well() {
    for line in KEPT.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let (how, seed) = (words.next().unwrap(), words.next().unwrap().parse().unwrap());
        let run = run(&Plan::kept_as(how, seed).unwrap());
        assert_eq!(run.violations, Vec::<String>::new(), "{line}");
    }
}
