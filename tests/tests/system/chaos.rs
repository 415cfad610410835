//! A slice of chaos on real processes: a minute of faults from a fresh seed, every kind that this
//! machine supports, no violation.
//!
//! It starts the same program as `just chaos`, and reads its last line.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail it by a panic")]

use std::time::Duration;

use holdfast_tests::program::{Ended, Program};

/// Runs it and fails unless it ended well; returns how many grants and faults there were.
#[expect(clippy::print_stdout, reason = "seed and table belong into the test's output")]
async fn chaos(minutes: f64) -> (usize, usize) {
    let arguments = ["--minutes", &minutes.to_string()];
    let limit = Duration::from_secs_f64(minutes * 60.0) + Duration::from_mins(10);
    let Ended { code, out, err } = Program::start("holdfast-chaos", &arguments).end(limit).await;
    println!("{out}");
    assert_eq!(code, Some(0), "{err}");
    let last = out.lines().last().unwrap_or_default();
    let numbers: Vec<usize> = last.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [grants, faults, 0] = numbers[..] else { panic!("the last line is {last:?}") };
    (grants, faults)
}

#[tokio::test]
async fn a_minute_of_every_fault_there_is_breaks_no_invariant() {
    let (grants, faults) = chaos(1.0).await;

    assert!(grants >= 200 && faults >= 6, "{grants} grants, {faults} faults");
}

#[tokio::test]
#[ignore = "twenty minutes; tests/run full runs it"]
async fn twenty_minutes_of_every_fault_there_is_break_no_invariant() {
    let (grants, faults) = chaos(20.0).await;

    assert!(grants >= 5_000 && faults >= 200, "{grants} grants, {faults} faults");
}
