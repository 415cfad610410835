//! Processes that a command has started and left behind in its process group: while any of them runs, the lock is held (I6).

use std::path::Path;
use std::time::Duration;

use holdfast_runtime::Runtime;
use holdfast_tests::program::{Ended, Program};
use nix::sys::signal::Signal;

use super::{LIMIT, Shell, last_stamp};

/// A child that only SIGKILL ends, and that writes the time into `stamps` about 50 times a second.
fn writer(stamps: &Path, times: u32) -> String {
    format!(
        "(trap '' TERM INT HUP QUIT; i=0; while [ $i -lt {times} ]; do i=$((i+1)); cat /proc/uptime >> {}; \
         sleep 0.02; done) &",
        stamps.display()
    )
}

/// Longer than any of these tests lets a child run.
const FOR_LONG: u32 = 2_000;

/// How the first holder ended, and how long its child still wrote after the next one had started, seconds: below 0 unless both ran at the
/// same time.
pub(super) struct Overlap {
    pub(super) first: Ended,
    pub(super) seconds: f64,
}

/// The first holder runs the script, whose child writes so many times; another client waits in the queue; then `end` ends the first.
async fn overlap(arguments: &[&str], times: u32, script: &str, end: impl Fn(&Program)) -> Overlap {
    overlap_after(":", arguments, times, script, end).await
}

/// The same; a shell runs `before` in place of which the first holder comes.
pub(super) async fn overlap_after(
    before: &str,
    arguments: &[&str],
    times: u32,
    script: &str,
    end: impl Fn(&Program),
) -> Overlap {
    let shell = Shell::start().await;
    let stamps = shell.cluster.folder().join("stamps");
    let script = format!("{} echo ready; {script}", writer(&stamps, times));
    let line = [arguments, &["--", "sh", "-c", &script]].concat();
    let mut first = shell.begin_after(before, &line);
    first.line("ready", LIMIT).await;
    let next = shell.begin(&["lock", "jobs", "--", "cat", "/proc/uptime"]);
    Runtime::system().sleep(Duration::from_millis(300)).await;

    end(&first);

    let (first, next) = (first.end(LIMIT).await, next.end(LIMIT).await);
    // A process that still runs writes again.
    Runtime::system().sleep(Duration::from_millis(200)).await;
    let started: f64 = next.out.split(' ').next().unwrap().parse().unwrap();
    Overlap { first, seconds: last_stamp(&stamps) - started }
}

#[tokio::test]
async fn after_the_commands_own_end_the_lock_is_held_until_its_group_is_empty() {
    for verb in ["lock", "try"] {
        let Overlap { first, seconds } = overlap(&[verb, "jobs"], 100, "exit 7", |_| ()).await;

        assert!(seconds <= 0.0, "{verb}: {seconds} s with two holders; {first:?}");
        assert_eq!(first.code, Some(7), "{first:?}");
        assert!(first.err.contains("of its group still run"), "{first:?}");
        assert!(first.err.contains("--release-at-exit"), "{first:?}");
    }
}

/// The wrapper ends at once by the signal; its child never would.
#[tokio::test]
async fn what_outlives_a_wrapper_that_was_asked_to_end_is_killed_before_the_lock_is_given_back() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let arguments = ["lock", "jobs", "--kill-after", "700ms"];
        let asked = |first: &Program| first.signal(signal);

        let Overlap { first, seconds } = overlap(&arguments, FOR_LONG, "wait", asked).await;

        assert!(seconds <= 0.0, "{signal}: {seconds} s with two holders; {first:?}");
        assert_eq!(first.code, Some(128 + signal as i32), "{first:?}");
        assert!(first.err.contains("killed"), "{first:?}");
    }
}

/// The user sets no limit: the wait still ends.
#[tokio::test]
async fn what_outlives_a_wrapper_that_was_asked_to_end_is_killed_after_ten_seconds_by_default() {
    let asked = |first: &Program| first.signal(Signal::SIGTERM);

    let Overlap { first, seconds } = overlap(&["lock", "jobs"], FOR_LONG, "wait", asked).await;

    assert!(seconds <= 0.0, "{seconds} s with two holders; {first:?}");
    assert_eq!(first.code, Some(128 + 15), "{first:?}");
}

/// A limit of the user's own also ends processes that are left after the command's own end.
#[tokio::test]
async fn what_outlives_a_command_is_killed_when_the_users_own_limit_has_passed() {
    let arguments = ["lock", "jobs", "--kill-after", "700ms"];

    let Overlap { first, seconds } = overlap(&arguments, FOR_LONG, "exit 7", |_| ()).await;

    assert!(seconds <= 0.0, "{seconds} s with two holders; {first:?}");
    assert!(first.err.contains("killed"), "{first:?}");
    assert_eq!(first.code, Some(7), "{first:?}");
}

/// A command that ignores the signal too is killed with its children.
#[tokio::test]
async fn a_command_that_ignores_the_signal_is_killed_when_the_users_own_limit_has_passed() {
    let arguments = ["lock", "jobs", "--kill-after", "700ms"];
    let asked = |first: &Program| first.signal(Signal::SIGTERM);
    let script = "trap '' TERM; while :; do wait; done";

    let Overlap { first, seconds } = overlap(&arguments, FOR_LONG, script, asked).await;

    assert!(seconds <= 0.0, "{seconds} s with two holders; {first:?}");
    assert_eq!(first.code, Some(128 + 9), "{first:?}");
}

#[tokio::test]
async fn with_release_at_exit_the_lock_is_given_back_at_the_commands_own_end() {
    let arguments = ["lock", "jobs", "--release-at-exit"];

    let Overlap { first, seconds } = overlap(&arguments, 300, "exit 7", |_| ()).await;

    assert!(seconds > 0.0, "nobody wrote any more when the next one started; {first:?}");
    assert_eq!(first.code, Some(7), "{first:?}");
}

/// A zombie runs nothing, and a process that left the group is not supervised: neither keeps the lock. The zombie's parent has left the
/// group and never reaps it.
#[tokio::test]
async fn neither_a_zombie_nor_a_process_that_left_the_group_keeps_the_lock() {
    let shell = Shell::start().await;
    let script = "(sh -c 'true & exec setsid sleep 20') & sleep 0.5; exit 7";
    let mut program = shell.begin(&["lock", "jobs", "--", "sh", "-c", script]);

    assert!(program.ends_within(Duration::from_secs(10)).await, "it waits for a zombie");
    assert_eq!(program.end(LIMIT).await.code, Some(7));
}
