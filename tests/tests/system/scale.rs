//! The program that measures very many sessions, waiters, watchers and connections works as described; `just scale` runs it on
//! a release build, with sizes that say something (`docs/limits.md`).

use std::time::Duration;

use holdfast_tests::program::Program;

async fn measured(arguments: &[&str], lines: &[&str]) {
    let program = Program::start("holdfast-scale", &[arguments, &["--secs", "1"]].concat());

    let ended = program.end(Duration::from_mins(3)).await;

    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
    for line in lines {
        assert!(ended.out.contains(line), "{line:?} is not in {}", ended.out);
    }
}

#[tokio::test]
async fn sessions_live_on_when_their_leader_dies() {
    let lines = ["30 sessions with a lock each", "all sessions are back", " 0 guards are lost"];
    measured(&["sessions", "--count", "30", "--kill"], &lines).await;
}

#[tokio::test]
async fn waiters_cancel_in_the_middle_and_are_handed_the_lock() {
    let lines = ["1000 waiters for one lock", "a cancel in the middle: p50", "a hand-over: p50"];
    measured(&["waiters", "--count", "1000"], &lines).await;
}

#[tokio::test]
async fn watchers_see_changes_and_go_on_when_their_leader_dies() {
    let lines =
        ["20 watchers of a prefix and 2 of everything", "changes were seen", "all watchers go on"];
    measured(&["watchers", "--count", "20", "--whole", "2", "--kill"], &lines).await;
}

#[tokio::test]
async fn clients_that_connect_at_the_same_moment_cost_no_election() {
    let line = "500 of 500 connections that are begun at once are there";
    measured(&["connections", "--count", "500"], &[line, "; 0 elections;"]).await;
}
