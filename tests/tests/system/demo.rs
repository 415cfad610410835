//! `holdfast demo`: the main job in one command, and the proof that it would show a failure.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail it by a panic")]

use std::time::Duration;

use holdfast_tests::program::{Ended, Program};
use serde_json::Value;

async fn demo(arguments: &[&str]) -> (Ended, Value) {
    let arguments = [&["demo", "--json"], arguments].concat();
    let ended = Program::start("holdfast", &arguments).end(Duration::from_mins(3)).await;
    let line = ended.out.lines().last().unwrap_or_default();
    let shown = serde_json::from_str(line);
    let shown = shown.unwrap_or_else(|error| panic!("{error}: {ended:?}"));
    (ended, shown)
}

#[tokio::test]
async fn the_demo_finds_every_increment_and_no_violation_over_two_kills_of_the_leader() {
    let (ended, shown) = demo(&[]).await;

    assert_eq!(ended.code, Some(0), "{shown} {}", ended.err);
    assert_eq!(shown["violations"], 0, "{shown}");
    assert_eq!(shown["increments_made"], shown["increments_found"], "{shown}");
    assert!(shown["increments_made"].as_u64().unwrap() >= 64 * 50, "{shown}");
    for key in ["handover_p50_us", "handover_p99_us", "longest_gap_ms", "jain"] {
        assert!(shown[key].is_number(), "{key}: {shown}");
    }
}

#[tokio::test]
async fn the_demo_without_locks_loses_increments_and_fails() {
    let (ended, shown) = demo(&["--no-locks"]).await;

    assert_eq!(ended.code, Some(1), "{shown} {}", ended.err);
    assert!(shown["increments_found"].as_u64() < shown["increments_made"].as_u64(), "{shown}");
}
