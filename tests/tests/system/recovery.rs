//! The program that measures how soon a node with many held locks serves again works as described;
//! `just recovery` runs it with a million locks, on a release build.

use std::time::Duration;

use holdfast_tests::program::Program;

#[tokio::test]
async fn a_killed_node_has_all_holds_when_it_serves_again() {
    let arguments = ["--holds", "2000", "--per-session", "500", "--kills", "2", "--within", "60"];
    let measured = Program::start("holdfast-recovery", &arguments);

    let ended = measured.end(Duration::from_mins(3)).await;

    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
    assert!(ended.out.contains("4 sessions looked at, 0 holds lost"), "{}", ended.out);
}
