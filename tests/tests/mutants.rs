//! Deliberate bugs, in the lives that found them: a judge that has gone blind finds them no more.

use std::process::Command;

/// Also one that no kept life has found yet is missed.
#[test]
fn every_mutant_is_found_again_in_the_life_that_found_it() {
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/lives/mutants.txt");
    let mut replay = Command::new(env!("CARGO_BIN_EXE_holdfast-mutants"));

    let output = replay.args(["--replay", kept]).output().expect("it starts");

    // Line by line the found ones read like tests that failed: only the table is for those who look on.
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{complained}");
    let table = said.find("| mutant").map_or("", |begin| &said[begin..]);
    println!("{table}");
}
