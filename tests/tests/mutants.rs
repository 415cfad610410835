//! Deliberate bugs, in the lives that found them: a judge that has gone blind finds them no more.

use std::process::Command;

/// Also one that no kept life has found yet is missed.
#[test]
fn every_mutant_is_found_again_in_the_life_that_found_it() {
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/lives/mutants.txt");
    let mut replay = Command::new(env!("CARGO_BIN_EXE_holdfast-mutants"));

    let ended = replay.args(["--replay", kept]).status();

    assert!(ended.is_ok_and(|ended| ended.success()), "see its lines above");
}
