//! Semaphores: never more permits than the limit, while holders and servers die; a limit that is set and changed while
//! others hold and wait (I2, I9, I15).
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail it by a panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use holdfast::Client;
use holdfast_runtime::Runtime;
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::program::{Ended, Program, run};
use nix::sys::signal::Signal;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(30);
const PERMITS: u32 = 5;

async fn holdfast(cluster: &Cluster, arguments: &[&str]) -> Ended {
    let endpoints = cluster.endpoints();
    run("holdfast", &[&["--endpoints", &endpoints], arguments].concat()).await
}

/// A command that holds permits until a signal.
fn holding(cluster: &Cluster, options: &[&str]) -> Program {
    let endpoints = cluster.endpoints();
    let lock = ["--endpoints", &endpoints, "lock", "--ttl", "2s"];
    let command = ["gpu", "--", "sh", "-c", "echo token $HOLDFAST_TOKEN; exec sleep 1000"];
    Program::start("holdfast", &[&lock, options, &command].concat())
}

async fn inspected(cluster: &Cluster) -> Value {
    let ended = holdfast(cluster, &["--json", "inspect", "gpu"]).await;
    serde_json::from_str(&ended.out).unwrap()
}

/// Waits until so many hold it, and so many wait.
async fn are_there(cluster: &Cluster, held_by: u64, waiting: u64) {
    let runtime = Runtime::system();
    let until = runtime.clock.now() + LIMIT;
    loop {
        let lock = inspected(cluster).await;
        if (lock["held_by"].as_u64(), lock["waiting"].as_u64()) == (Some(held_by), Some(waiting)) {
            return;
        }
        assert!(runtime.clock.now() < until, "{held_by} hold, {waiting} wait: {lock}");
        runtime.sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn commands_share_the_permits_and_the_next_follows_one_that_dies() {
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    cluster.leader().await;
    let mut first = holding(&cluster, &["-n", "3", "--permits", "2"]);
    first.line("token ", LIMIT).await;
    let mut second = holding(&cluster, &["-n", "3"]);
    second.line("token ", LIMIT).await;
    let mut third = holding(&cluster, &["-n", "3", "--permits", "2"]);
    are_there(&cluster, 2, 1).await;
    let fourth = holding(&cluster, &["-n", "3"]);
    are_there(&cluster, 2, 2).await;

    // In strict order: the one permit of the second is not enough for the third, and the fourth stands behind it.
    second.signal(Signal::SIGTERM);
    second.end(LIMIT).await;
    are_there(&cluster, 1, 2).await;
    let lock = inspected(&cluster).await;
    assert_eq!(lock["limit"]["permits"], 3, "{lock}");
    assert_eq!((&lock["limit"]["used"], &lock["limit"]["for_good"]), (&2.into(), &false.into()));
    assert_eq!(lock["holders"][0]["permits"], 2, "{lock}");
    let shown = holdfast(&cluster, &["inspect", "gpu"]).await.out;
    assert!(shown.contains("gpu is held (2 permits) by"), "{shown}");
    assert!(shown.contains("for 2 permits") && shown.contains("for 1 permit\n"), "{shown}");
    assert!(shown.contains("2 of 3 permits are held\n"), "{shown}");
    let listed = holdfast(&cluster, &["list"]).await.out;
    assert!(listed.contains("2 of 3 permits"), "{listed}");

    let tried = holdfast(&cluster, &["try", "-n", "3", "gpu", "--", "true"]).await;
    assert_eq!(tried.code, Some(124), "{tried:?}");
    let other = holdfast(&cluster, &["lock", "-n", "4", "gpu", "--", "true"]).await;
    assert_eq!(other.code, Some(122), "{other:?}");
    assert!(other.err.contains("gpu has a limit of 3 permits, and not of 4"), "{other:?}");

    first.signal(Signal::SIGKILL);
    first.end(LIMIT).await;
    third.line("token ", LIMIT).await;
    are_there(&cluster, 2, 0).await;
    drop(fourth);
}

#[tokio::test]
async fn a_limit_is_set_for_good_and_changed_while_others_hold_and_wait() {
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    cluster.leader().await;
    let none = holdfast(&cluster, &["lock", "--permits", "1", "gpu", "--", "true"]).await;
    assert_eq!(none.code, Some(122), "{none:?}");
    assert!(none.err.contains("no limit of permits that was set for good"), "{none:?}");
    let set = holdfast(&cluster, &["limit", "gpu", "1"]).await;
    assert_eq!((set.code, set.out.trim()), (Some(0), "of gpu, one permit is held at a time"));
    let listed = holdfast(&cluster, &["list"]).await.out;
    assert!(listed.contains("0 of 1 permits"), "{listed}");
    let mut first = holding(&cluster, &["--permits", "1"]);
    first.line("token ", LIMIT).await;
    let mut second = holding(&cluster, &["--permits", "1"]);
    are_there(&cluster, 1, 1).await;

    assert_eq!(holdfast(&cluster, &["limit", "gpu", "2"]).await.code, Some(0));
    second.line("token ", LIMIT).await;
    let large = holding(&cluster, &["--permits", "2"]);
    are_there(&cluster, 2, 1).await;
    assert_eq!(holdfast(&cluster, &["limit", "gpu", "1"]).await.code, Some(0));

    let refused = large.end(LIMIT).await;
    assert_eq!(refused.code, Some(122), "{refused:?}");
    assert!(
        refused.err.contains("2 permits of gpu cannot be granted: its limit is 1"),
        "{refused:?}"
    );
    let shown = holdfast(&cluster, &["inspect", "gpu"]).await.out;
    assert!(shown.contains("2 of 1 permits are held; the limit is for good"), "{shown}");
    let gone = holdfast(&cluster, &["limit", "gpu", "none"]).await;
    assert_eq!((gone.code, gone.out.trim()), (Some(0), "gpu has no limit that was set for good"));
    for wrong in ["0", "4294967296", "-1", "many"] {
        let refused = holdfast(&cluster, &["limit", "--", "gpu", wrong]).await;
        assert_eq!(refused.code, Some(125), "{refused:?}");
        assert!(refused.err.contains("from 1 to 4294967295, or `none`"), "{refused:?}");
    }
    for command in [first, second] {
        command.signal(Signal::SIGTERM);
        command.end(LIMIT).await;
    }
    let over = holdfast(&cluster, &["list"]).await.out;
    assert!(over.contains("no lock is held, waited for, or has a value or a limit"), "{over}");
}

/// Takes some permits again and again, and adds them to what all hold while they are certainly held.
async fn takes(
    endpoints: String,
    count: u32,
    (used, over): (Arc<AtomicU32>, Arc<AtomicBool>),
) -> u64 {
    let runtime = Runtime::system();
    let client = Client::connect(endpoints.split(',')).await.unwrap();
    let semaphore = client.semaphore("pool", PERMITS);
    let mut grants = 0;
    while !over.load(Ordering::SeqCst) {
        let Ok(guard) = semaphore.permits(count).wait(LIMIT).await else { continue };
        let before = used.fetch_add(count, Ordering::SeqCst);
        if guard.is_safe() {
            assert!(before + count <= PERMITS, "{before} permits are held, and {count} more");
        }
        runtime.sleep(Duration::from_millis(2)).await;
        used.fetch_sub(count, Ordering::SeqCst);
        grants += 1;
        guard.release().await.ok();
    }
    client.close().await.ok();
    grants
}

/// I2: each sum is over holds of one process, which takes back what it counted before it gives a permit back.
#[tokio::test]
async fn never_more_than_the_limit_are_held_while_leaders_die() {
    let mut cluster = Cluster::start(&Setup::nodes(3)).await;
    cluster.all_ready().await;
    let runtime = Runtime::system();
    let used: Arc<AtomicU32> = Arc::default();
    let over: Arc<AtomicBool> = Arc::default();
    let (tell, mut told) = tokio::sync::mpsc::channel(16);
    let counts = [1, 2, 3, 5, 1, 2, 1, 4];
    let tasks = counts.map(|count| {
        let takes = takes(cluster.endpoints(), count, (used.clone(), over.clone()));
        let tell = tell.clone();
        // The test has failed if nobody listens.
        runtime.spawn("taker", async move { _ = tell.send(takes.await).await })
    });

    for _ in 0..2 {
        runtime.sleep(Duration::from_secs(1)).await;
        let leader = cluster.leader().await;
        cluster.kill(leader);
        cluster.start_node(leader);
        cluster.all_ready().await;
    }
    over.store(true, Ordering::SeqCst);

    let mut grants = 0;
    for _ in &tasks {
        let of_one = runtime.timeout(LIMIT, told.recv()).await.unwrap();
        let of_one = of_one.unwrap_or_else(|| panic!("a taker has stopped"));
        assert!(of_one > 0, "nobody starves");
        grants += of_one;
    }
    assert!(grants > 100, "{grants} grants");
}
