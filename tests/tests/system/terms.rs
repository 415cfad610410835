//! What requests say besides their locks, on the command line: head starts, notes, and a command that would wait for itself.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail it by a panic")]

use std::time::Duration;

use holdfast::{Client, Error};
use holdfast_runtime::Runtime;
use holdfast_tests::cluster::{Cluster, Setup, binary};
use holdfast_tests::program::{Ended, Program, run};
use nix::sys::signal::Signal;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(30);

async fn holdfast(cluster: &Cluster, arguments: &[&str]) -> Ended {
    let endpoints = cluster.endpoints();
    run("holdfast", &[&["--endpoints", &endpoints], arguments].concat()).await
}

/// A command that holds `jobs` until a signal.
fn holding(cluster: &Cluster, options: &[&str]) -> Program {
    let endpoints = cluster.endpoints();
    let command = ["jobs", "--", "sh", "-c", "echo held; exec sleep 1000"];
    Program::start("holdfast", &[&["--endpoints", &endpoints, "lock"], options, &command].concat())
}

async fn inspected(cluster: &Cluster) -> Value {
    let ended = holdfast(cluster, &["--json", "inspect", "jobs"]).await;
    serde_json::from_str(&ended.out).unwrap()
}

async fn so_many_wait(cluster: &Cluster, waiting: u64) -> Value {
    let runtime = Runtime::system();
    let until = runtime.clock.now() + LIMIT;
    loop {
        let lock = inspected(cluster).await;
        if lock["waiting"] == waiting {
            return lock;
        }
        assert!(runtime.clock.now() < until, "{waiting} wait: {lock}");
        runtime.sleep(Duration::from_millis(20)).await;
    }
}

/// I9: in a new cluster from the first request on, without anything set up.
#[tokio::test]
async fn the_urgent_command_runs_next_and_everybody_sees_what_it_waits_for() {
    let cluster = Cluster::start(&Setup::nodes(3)).await;
    cluster.leader().await;
    let mut holder = holding(&cluster, &["--note", "ticket 4711"]);
    holder.line("held", LIMIT).await;
    let mut plain = holding(&cluster, &[]);
    so_many_wait(&cluster, 1).await;
    let mut urgent = holding(&cluster, &["--head-start", "30s", "--note", "the site is down"]);

    let lock = so_many_wait(&cluster, 2).await;

    assert_eq!(lock["holders"][0]["note"], "ticket 4711", "{lock}");
    let next = &lock["queue"][0];
    assert_eq!(
        (&next["note"], &next["head_start_ms"]),
        (&"the site is down".into(), &30_000.into())
    );
    let shown = holdfast(&cluster, &["inspect", "jobs"]).await.out;
    assert!(shown.contains(", \"ticket 4711\"\n"), "{shown}");
    assert!(shown.contains(", with a head start of 30 s, \"the site is down\"\n"), "{shown}");
    let listed = holdfast(&cluster, &["list"]).await.out;
    assert!(listed.contains(", \"ticket 4711\""), "{listed}");
    let tried = holdfast(&cluster, &["try", "jobs", "--", "true"]).await;
    assert_eq!(tried.code, Some(124), "{tried:?}");
    assert!(tried.err.contains("(ticket 4711)"), "{tried:?}");

    holder.signal(Signal::SIGTERM);
    holder.end(LIMIT).await;
    urgent.line("held", LIMIT).await;
    let lock = so_many_wait(&cluster, 1).await;
    assert_eq!(lock["holders"][0]["note"], "the site is down", "{lock}");
    urgent.signal(Signal::SIGTERM);
    urgent.end(LIMIT).await;
    plain.line("held", LIMIT).await;
    let long = holdfast(&cluster, &["lock", "--head-start", "11m", "jobs", "--", "true"]).await;
    assert_eq!(long.code, Some(122), "{long:?}");
    assert!(long.err.contains("660000 ms is longer than the 600000 ms allowed"), "{long:?}");
}

/// A command that traps the signal goes on; one that does not gives its lock back.
#[tokio::test]
async fn a_command_is_signalled_when_somebody_waits_and_again_when_it_is_more_urgent() {
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    cluster.leader().await;
    let endpoints = cluster.endpoints();
    let traps = "trap 'n=$((n+1)); echo wanted $n' USR1; echo held; while :; do sleep 0.1; done";
    let arguments = ["--endpoints", &endpoints, "lock", "--on-contended", "usr1", "jobs", "--"];
    let mut holder = Program::start("holdfast", &[&arguments[..], &["sh", "-c", traps]].concat());
    holder.line("held", LIMIT).await;
    let mut yields = holding(&cluster, &["--on-contended", "TERM"]);
    holder.line("wanted 1", LIMIT).await;
    let mut urgent = holding(&cluster, &["--head-start", "30s"]);
    holder.line("wanted 2", LIMIT).await;
    let mut last = holding(&cluster, &["--head-start", "10s"]);
    so_many_wait(&cluster, 3).await;

    holder.signal(Signal::SIGTERM);
    let ended = holder.end(LIMIT).await;
    assert!(ended.err.contains("1 waits for jobs: the command is sent SIGUSR1"), "{ended:?}");
    let urgently = "2 wait for jobs, with a head start of up to 30 s: the command is sent SIGUSR1";
    assert!(ended.err.contains(urgently), "{ended:?}");
    assert_eq!(ended.err.matches("SIGUSR1").count(), 2, "{ended:?}");
    urgent.line("held", LIMIT).await;
    urgent.signal(Signal::SIGTERM);
    urgent.end(LIMIT).await;
    last.line("held", LIMIT).await;
    last.signal(Signal::SIGTERM);
    last.end(LIMIT).await;
    yields.line("held", LIMIT).await;
    let mut next = holding(&cluster, &[]);
    next.line("held", LIMIT).await;
    let ended = yields.end(LIMIT).await;
    assert_eq!(ended.code, Some(143), "{ended:?}");
    next.signal(Signal::SIGTERM);
    next.end(LIMIT).await;
    for (signal, said) in
        [("USR3", "write the name of a signal"), ("STOP", "would stop the command")]
    {
        let wrong =
            holdfast(&cluster, &["lock", "--on-contended", signal, "a", "--", "true"]).await;
        assert_eq!(wrong.code, Some(125), "{wrong:?}");
        assert!(wrong.err.contains(said), "{wrong:?}");
    }
    let bare = holdfast(&cluster, &["lock", "--on-contended", "USR1", "a"]).await;
    assert_eq!(bare.code, Some(125), "{bare:?}");
}

/// Nothing of the names is granted, to nobody, over a change of leader too; who waits sees why.
#[tokio::test]
async fn frozen_names_are_granted_to_nobody_until_they_are_thawed() {
    let cluster = Cluster::start(&Setup::nodes(3)).await;
    cluster.leader().await;
    let mut holder = holding(&cluster, &[]);
    holder.line("held", LIMIT).await;
    let frozen = holdfast(&cluster, &["freeze", "jo", "--message", "the disk is full"]).await;
    assert_eq!(
        (frozen.code, frozen.out.trim()),
        (Some(0), "nothing of jo… is granted until it is thawed")
    );
    let mut waiter = holding(&cluster, &[]);
    so_many_wait(&cluster, 1).await;
    holder.signal(Signal::SIGTERM);
    holder.end(LIMIT).await;

    let tried = holdfast(&cluster, &["try", "jobs", "--", "true"]).await;
    assert_eq!(tried.code, Some(122), "{tried:?}");
    assert!(
        tried
            .err
            .contains("jobs is frozen, and nobody is granted it at the moment: the disk is full"),
        "{tried:?}"
    );
    let moved = holdfast(&cluster, &["cluster", "transfer-leader"]).await;
    assert_eq!(moved.code, Some(0), "{moved:?}");
    let lock = so_many_wait(&cluster, 1).await;
    assert_eq!(
        (&lock["held_by"], &lock["frozen"]["message"]),
        (&0.into(), &"the disk is full".into())
    );
    let shown = holdfast(&cluster, &["inspect", "jobs"]).await.out;
    assert!(
        shown.contains("  frozen for ") && shown.contains(": \"the disk is full\"\n"),
        "{shown}"
    );
    // Nobody has it, and nobody waits for it.
    let free = holdfast(&cluster, &["inspect", "journal"]).await.out;
    assert!(free.contains("  frozen for "), "{free}");
    let other = holdfast(&cluster, &["lock", "other", "--", "true"]).await;
    assert_eq!(other.code, Some(0), "{other:?}");
    let listed = holdfast(&cluster, &["freezes"]).await.out;
    assert!(listed.contains("jo…") && listed.contains("the disk is full"), "{listed}");

    // Under another freeze as well: it takes both.
    assert_eq!(holdfast(&cluster, &["freeze", "--all"]).await.code, Some(0));
    assert_eq!(holdfast(&cluster, &["thaw", "jo"]).await.code, Some(0));
    let again = holdfast(&cluster, &["thaw", "jo"]).await;
    assert_eq!(again.code, Some(122), "{again:?}");
    assert!(again.err.contains("\"jo\" are not frozen by that prefix"), "{again:?}");
    assert_eq!(inspected(&cluster).await["held_by"], 0);
    assert_eq!(holdfast(&cluster, &["thaw", "--all"]).await.code, Some(0));
    waiter.line("held", LIMIT).await;
    let listed = holdfast(&cluster, &["freezes"]).await;
    assert_eq!(listed.out.trim(), "nothing is frozen");
    for wrong in [&["freeze"][..], &["thaw"], &["freeze", "--all", "jo"], &["freeze", ""]] {
        assert_eq!(holdfast(&cluster, wrong).await.code, Some(125), "{wrong:?}");
    }
}

/// The outer command waits for the inner one, and the inner one would wait for the outer one.
#[tokio::test]
async fn a_command_in_another_one_is_refused_what_it_would_wait_for_with_the_process_that_holds_it()
{
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    cluster.leader().await;
    let endpoints = cluster.endpoints();
    let holdfast = binary("holdfast");
    let holdfast = holdfast.display();
    let inner =
        |lock: &str| format!("{holdfast} --endpoints {endpoints} lock {lock} -- echo inner");
    let nested = |outer: &[&str], script: &str| {
        let lock = ["--endpoints", &endpoints, "lock"];
        let command = ["--", "sh", "-c", script];
        Program::start("holdfast", &[&lock, outer, &command].concat())
    };

    let program = nested(&["jobs"], &inner("jobs"));
    let process = program.id();
    let ended = program.end(LIMIT).await;

    assert_eq!(ended.code, Some(122), "{ended:?}");
    let names_it = format!("the holdfast lock of process {process}, which runs this command");
    assert!(ended.err.contains("jobs would wait for itself"), "{ended:?}");
    assert!(ended.err.contains(&names_it), "{ended:?}");
    // Also through one in between, and as one of several.
    let between =
        format!("{holdfast} --endpoints {endpoints} lock other -- {}", inner("third jobs"));
    let ended = nested(&["jobs"], &between).end(LIMIT).await;
    assert_eq!(ended.code, Some(122), "{ended:?}");
    assert!(ended.err.contains("third, jobs would wait for itself"), "{ended:?}");
    // What it can have it gets: another name, a share beside a share, permits that are left, whichever is free.
    for (outer, wanted) in [
        (&["jobs"][..], "other"),
        (&["--shared", "jobs"], "--shared jobs"),
        (&["-n", "2", "jobs"], "-n 2 jobs"),
        (&["jobs"], "--any jobs other"),
    ] {
        let ended = nested(outer, &inner(wanted)).end(LIMIT).await;
        assert_eq!((ended.code, ended.out.trim()), (Some(0), "inner"), "{wanted}: {ended:?}");
    }
}

/// One part of a program asks for what another part of the same work holds.
#[tokio::test]
async fn an_owner_that_asks_again_is_told_its_token_and_another_one_waits() {
    let cluster = Cluster::start(&Setup::nodes(3)).await;
    cluster.leader().await;
    let endpoints = cluster.endpoints();
    let client = Client::connect(endpoints.split(',')).await.unwrap();
    let (order, other) = (client.owner(), client.owner());
    let guard = order.lock("orders/42").await.unwrap();

    let again = order.lock("orders/42").await.unwrap_err();

    assert!(
        matches!(again, Error::AlreadyHeld { token, .. } if token == guard.token()),
        "{again:?}"
    );
    let waits = other.lock("orders/42").enqueue();
    let tried = client.try_lock_all(["orders/41", "orders/42"]).by(&order).await.unwrap_err();
    assert!(matches!(tried, Error::AlreadyHeld { .. }), "{tried:?}");
    let asked = client.lock("orders/42").by(&other).await.unwrap_err();
    let words = "this owner waits for orders/42 already, by request";
    assert!(asked.to_string().contains(words), "{asked}");
    guard.release().await.unwrap();
    let guard = waits.await.unwrap();
    // Given back, the first one may ask again: it waits behind the other one.
    let later = order.lock("orders/42").wait(Duration::from_millis(50)).await.unwrap_err();
    assert!(matches!(later, Error::NotGranted { .. }), "{later:?}");
    guard.release().await.unwrap();
    order.lock("orders/42").await.unwrap().release().await.unwrap();
    client.close().await.unwrap();
}

/// The lock stays closed over a dead leader, whose successor counts anew.
#[tokio::test]
async fn a_job_that_every_machine_starts_runs_once() {
    let mut cluster = Cluster::start(&Setup::nodes(3)).await;
    let leader = cluster.leader().await;
    let once = ["try", "--hold-at-least", "30s", "jobs", "--", "true"];
    assert_eq!(holdfast(&cluster, &once).await.code, Some(0));
    let other = holdfast(&cluster, &once).await;
    assert_eq!(other.code, Some(124), "{other:?}");
    cluster.kill(leader);
    cluster.leader().await;
    let late = holdfast(&cluster, &once).await;
    assert_eq!(late.code, Some(124), "{late:?}");

    let shown = holdfast(&cluster, &["inspect", "jobs"]).await.out;
    assert!(
        shown.starts_with("jobs is closed for another ") && shown.contains("for 30 s at least"),
        "{shown}"
    );
    let closed = inspected(&cluster).await["closed"].clone();
    let left = closed["left_ms"].as_u64().unwrap();
    assert!((10_000..=30_000).contains(&left), "{closed}");
    let listed = holdfast(&cluster, &["list"]).await.out;
    assert!(listed.contains("closed for another "), "{listed}");

    let clock = Runtime::system().clock;
    let begun = clock.now();
    let short = ["lock", "--hold-at-least", "1500ms", "short", "--", "true"];
    assert_eq!(holdfast(&cluster, &short).await.code, Some(0));
    assert_eq!(holdfast(&cluster, &["lock", "short", "--", "true"]).await.code, Some(0));
    let took = clock.now().saturating_since(begun);
    assert!(took >= Duration::from_millis(1_500), "{took:?}");
    let crossed = ["lock", "--hold-at-least", "2s", "--max-hold", "1s", "a", "--", "true"];
    let crossed = holdfast(&cluster, &crossed).await;
    assert_eq!(crossed.code, Some(122), "{crossed:?}");
    assert!(crossed.err.contains("max_hold (1000 ms) is shorter"), "{crossed:?}");
    let shared = ["lock", "--hold-at-least", "2s", "--shared", "a", "--", "true"];
    assert_eq!(holdfast(&cluster, &shared).await.code, Some(125));
    let long = holdfast(&cluster, &["lock", "--max-hold", "25h", "a", "--", "true"]).await;
    assert_eq!(long.code, Some(122), "{long:?}");
    assert!(long.err.contains("a hold is bound to 86400000 ms at most"), "{long:?}");
}

/// Its session is alive all the time, and the command would hang for ever.
#[tokio::test]
async fn a_command_that_hangs_is_ended_at_its_max_hold_and_the_next_one_runs() {
    let cluster = Cluster::start(&Setup::nodes(3)).await;
    cluster.leader().await;
    let mut hangs = holding(&cluster, &["--max-hold", "2s"]);
    hangs.line("held", LIMIT).await;
    let mut next = holding(&cluster, &[]);
    let lock = so_many_wait(&cluster, 1).await;
    assert_eq!(lock["holders"][0]["max_hold_ms"], 2_000, "{lock}");

    next.line("held", LIMIT).await;
    let ended = hangs.end(LIMIT).await;
    assert!(ended.err.contains("it was held for as long as its max_hold allows"), "{ended:?}");
    assert_ne!(ended.code, Some(0), "{ended:?}");
    next.signal(Signal::SIGTERM);
    next.end(LIMIT).await;
}

#[tokio::test]
async fn a_command_waits_for_some_of_several_locks() {
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    cluster.leader().await;
    let mut holder = holding(&cluster, &[]);
    holder.line("held", LIMIT).await;
    let some = |verb: &'static str, count: &'static str| {
        [verb, "--any", "--at-least", count, "jobs", "b", "c", "--", "true"]
    };
    assert_eq!(holdfast(&cluster, &some("lock", "2")).await.code, Some(0));
    let tried = holdfast(&cluster, &some("try", "3")).await;
    assert_eq!(tried.code, Some(124), "{tried:?}");
    let above = holdfast(&cluster, &some("lock", "4")).await;
    assert_eq!(above.code, Some(122), "{above:?}");
    assert!(above.err.contains("of 3 locks, a request needs 1 to 3, not 4"), "{above:?}");
    for wrong in [&["lock", "--at-least", "2", "a", "b", "--", "true"][..], &some("lock", "0")] {
        assert_eq!(holdfast(&cluster, wrong).await.code, Some(125), "{wrong:?}");
    }
    let endpoints = cluster.endpoints();
    let all = Program::start(
        "holdfast",
        &[&["--endpoints", &endpoints][..], &some("lock", "3")].concat(),
    );
    so_many_wait(&cluster, 1).await;
    // Those that are free are kept for it.
    let kept = holdfast(&cluster, &["try", "b", "--", "true"]).await;
    assert_eq!(kept.code, Some(124), "{kept:?}");
    holder.signal(Signal::SIGTERM);
    holder.end(LIMIT).await;
    assert_eq!(all.end(LIMIT).await.code, Some(0));
}
