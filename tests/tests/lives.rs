//! Simulated runs of whole clusters on virtual time, judged: the slice of `just simulate` that
//! belongs to every run of the tests.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of a test tell what they find, and fail it by a panic"
)]

use std::time::Duration;

use holdfast_tests::life::{
    Clocks, Life, Many, Only, Outcome, Plan, Schedule, fresh_seed, live, live_many, live_traced,
};

/// The time for the slice, seconds; `HOLDFAST_SIMULATE_SECONDS` overrides it.
const SECONDS: u64 = 110;
/// Runs that once found a bug, one seed a line, each with the bug.
const KEPT: &str = include_str!("lives/kept.txt");

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn seconds() -> u64 {
    let asked = std::env::var("HOLDFAST_SIMULATE_SECONDS").ok();
    asked.and_then(|seconds| seconds.parse().ok()).unwrap_or(SECONDS)
}

fn told(life: &Life, _: &Outcome) {
    for violation in &life.violations {
        println!("seed {}: {violation}", life.seed);
    }
}

/// From fresh seeds, which are printed.
#[test]
fn fresh_lives_break_no_invariant() {
    let many = Many {
        first_seed: fresh_seed(),
        lives: None,
        within: Some(Duration::from_secs(seconds())),
        failures: 3,
        jobs: cores(),
        clocks: Clocks::Within,
        schedule: None,
        first_stream: false,
        large_tables: false,
        only: Only::Any,
    };
    println!("first seed {}", many.first_seed);

    let outcome = live_many(&many, || (), told);

    println!("{}", outcome.counts);
    println!("{} lives, {} violations", outcome.counts.lives, outcome.violations());
    for failed in &outcome.failed {
        println!("repeat: {}", many.repeat(failed.seed));
    }
    assert_eq!(outcome.violations(), 0);
    let counts = outcome.counts;
    assert!(counts.lives >= 10 && counts.grants > 1_000 && counts.leaders > 10, "too little");
    assert!(counts.writes > 1_000 && counts.refused_writes > 100, "too few writes to resources");
    assert!(counts.watch_news > 1_000, "watchers were told too little");
}

#[test]
fn the_same_seed_twice_is_the_same_life_to_the_byte() {
    for seed in [1, 2] {
        let plan = Plan::draw(seed, Clocks::Within);
        let (one, other) = (live_traced(&plan, true), live_traced(&plan, true));

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
    let many = Many {
        first_seed: 1,
        lives: Some(200),
        within: None,
        failures: 1,
        jobs: cores(),
        clocks: Clocks::Beyond,
        schedule: None,
        first_stream: false,
        large_tables: false,
        only: Only::Any,
    };

    let outcome = live_many(&many, || (), |_, _| ());

    let failed = outcome.failed.first().expect("a life is found in which it happens");
    println!("found after {} lives: {:?}", outcome.counts.lives, failed.violations);
    let about_time =
        |violation: &String| violation.starts_with("I6:") || violation.starts_with("I24:");
    assert!(failed.violations.iter().any(about_time));
}

/// Runs a schedule that once broke openraft with these seeds, and with a fresh one; it has to
/// happen so often in each.
fn happens(schedule: Schedule, kept: &[u64], least: u64) {
    for seed in kept.iter().copied().chain([fresh_seed()]) {
        let life = live(&Plan::of(schedule, seed));

        println!("{schedule:?}, seed {seed}: happened {} times", life.counts.scheduled);
        assert_eq!(life.violations, Vec::<String>::new(), "{schedule:?}, seed {seed}");
        let times = life.counts.scheduled;
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
fn a_node_of_an_earlier_life_of_the_cluster_is_refused_by_name() {
    // In the second run the answer to adding a node to the earlier cluster is lost.
    happens(Schedule::OtherLife, &[1, 18_710_804_764], 20);
}

/// A run that does not end is given up, and named.
#[test]
fn lives_in_which_something_was_once_wrong_go_well() {
    let seeds = KEPT.lines().filter(|line| !line.starts_with('#'));
    for line in seeds {
        let seed = line.split_whitespace().next().unwrap().parse().unwrap();
        let once = Many {
            first_seed: seed,
            lives: Some(1),
            within: None,
            failures: 1,
            jobs: 1,
            clocks: Clocks::Within,
            schedule: None,
            // As the run was when it was kept.
            first_stream: true,
            large_tables: false,
            only: Only::Any,
        };
        let outcome = live_many(&once, || (), told);
        assert_eq!(outcome.violations(), 0, "seed {line}");
    }
}
