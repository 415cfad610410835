//! Deliberate bugs, in the simulated runs that found them: a judge that no longer works finds them no more.

use std::process::Command;

/// A mutant that no kept run has found yet fails the test, too.
#[test]
fn every_mutant_is_found_again_in_the_life_that_found_it() {
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/lives/mutants.txt");
    let mut replay = Command::new(env!("CARGO_BIN_EXE_holdfast-mutants"));

    let output = replay.args(["--replay", kept]).output().expect("it starts");

    // The lines of found mutants read like failed tests: so only the table is printed.
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{complained}");
    let table = said.find("| mutant").map_or("", |begin| &said[begin..]);
    println!("{table}");
}
