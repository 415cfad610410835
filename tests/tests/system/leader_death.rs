//! The program that measures how long nothing is granted when a leader dies works as described; `just leader-death`
//! runs it twenty times, on a release build.

use std::time::Duration;

use holdfast_tests::program::Program;

#[tokio::test]
async fn a_leader_that_is_killed_and_one_that_is_stopped_are_measured() {
    let events = ["--kills", "1", "--stops", "1", "--clients", "2", "--quiet-minutes", "0.05"];
    let limits = ["--median", "60000", "--p95", "60000", "--stop", "60000"];
    let measured = Program::start("holdfast-leader-death", &[&events[..], &limits].concat());

    let ended = measured.end(Duration::from_mins(2)).await;

    // On a machine that stalls another leader may be elected, which is not this test's concern.
    for stretch in
        ["quiet: 0.05 min", "killed 1 times: pauses of all", "stopped 1 times: pauses of all"]
    {
        assert!(ended.out.contains(stretch), "{}{}", ended.out, ended.err);
    }
}
