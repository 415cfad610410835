//! The program that measures how long nothing is granted while snapshots of many held locks are
//! written, dropped and installed works as described; `just pauses` runs it with a million locks, on
//! a release build.

use std::time::Duration;

use holdfast_tests::program::Program;

#[tokio::test]
async fn snapshots_are_written_and_installed_while_pauses_are_measured() {
    let sizes = ["--holds", "2000", "--per-session", "500", "--log-mib", "1", "--clients", "4"];
    let limits = ["--rounds", "1", "--limit", "240", "--within", "60000"];
    let measured = Program::start("holdfast-pauses", &[&sizes[..], &limits].concat());

    let ended = measured.end(Duration::from_mins(8)).await;

    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
    let stretches = ["no locks: ", "held: ", "a backup of ", "backed up: ", "written, dropped: "];
    for stretch in stretches.into_iter().chain(["a member is away: ", "installed: "]) {
        assert!(ended.out.contains(stretch), "{}", ended.out);
    }
    assert!(ended.out.contains("2000 holds, longest pause "), "{}", ended.out);
}
