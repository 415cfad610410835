//! Deliberate bugs, in the simulated runs that found them: a judge that no longer works finds them no more.
#![allow(clippy::expect_used, reason = "the helper of a test fails it by a panic")]

use std::process::Command;

/// Repeats the kept runs, and returns the table of what was found. A mutant that no kept run finds fails the test.
fn found_again(more: &[&str]) -> String {
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/simulated/simulated_runs/mutants.txt");
    let mut replay = Command::new(env!("CARGO_BIN_EXE_holdfast-mutants"));

    let output = replay.args(["--replay", kept]).args(more).output().expect("it starts");

    // The lines of found mutants read like failed tests: so only the table is printed.
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{complained}");
    said.find("| mutant").map_or("", |begin| &said[begin..]).to_owned()
}

/// Six of them, of which the first is drawn: a minute on two cores.
#[test]
fn mutants_are_found_again_in_the_runs_that_found_them() {
    println!("{}", found_again(&["--some", "6"]));
}

#[test]
#[ignore = "long: all of them"]
fn every_mutant_is_found_again_in_the_run_that_found_it() {
    println!("{}", found_again(&[]));
}
