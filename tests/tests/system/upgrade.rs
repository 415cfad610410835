//! The release before this one, rolled to this one and back under load, node by node, with clients of both: nothing
//! acknowledged is lost, and no call takes longer than a change of leader (I12, I17, I29, I31).
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test fail it by a panic")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdfast::Client;
use holdfast_runtime::Runtime;
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::program::Program;
use holdfast_tests::run::Run;
use holdfast_tests::traffic::Plan;

/// A stopping leader hands over, and a client comes back after a pause of at most half a second. On a machine that does
/// something else besides, that takes longer.
const CALL_MAX: Duration = Duration::from_secs(5);
/// Version and commit.
const RELEASE_BEFORE: &str = include_str!("../../upgrade/release-before");
const LIMIT: Duration = Duration::from_secs(30);

/// The programs of the release before, as `tests/upgrade/build` has made them.
fn built_before(program: &str) -> PathBuf {
    let folder = std::env::var_os("HOLDFAST_RELEASE_BEFORE");
    let folder =
        folder.expect("HOLDFAST_RELEASE_BEFORE names the folder that tests/upgrade/build prints");
    PathBuf::from(folder).join(program)
}

fn release_before() -> &'static str {
    let line = RELEASE_BEFORE.lines().find(|line| !line.starts_with('#'));
    line.and_then(|line| line.split(' ').next()).expect("the file names it")
}

/// Locks and gives back until told to end; the longest that a grant took.
async fn longest_call(endpoints: String, over: Arc<AtomicBool>) -> Duration {
    let runtime = Runtime::system();
    let client = Client::connect(endpoints.split(',')).await.unwrap();
    let mut longest = Duration::ZERO;
    while !over.load(Ordering::Relaxed) {
        let began = runtime.clock.now();
        let guard = client.lock("upgrade/probe").wait(LIMIT).await.unwrap();
        longest = longest.max(runtime.clock.now().saturating_since(began));
        guard.release().await.unwrap();
        runtime.sleep(Duration::from_millis(5)).await;
    }
    client.close().await.unwrap();
    longest
}

async fn roll(run: &mut Run, indexes: impl IntoIterator<Item = usize>, program: Option<PathBuf>) {
    for index in indexes {
        run.cluster.set_program(index, program.clone());
        run.restart(index).await;
        run.serves().await;
    }
}

/// Waits until the leader knows that the members are of these releases: it asks them once a second.
async fn are_of(cluster: &Cluster, expected: [&str; 3]) {
    let all = async {
        while releases(cluster).await != expected {
            Runtime::system().sleep(Duration::from_millis(100)).await;
        }
    };
    let in_time = Runtime::system().timeout(LIMIT, all).await.is_ok();
    assert!(in_time, "not {expected:?}, but {:?}", releases(cluster).await);
}

async fn releases(cluster: &Cluster) -> Vec<String> {
    let arguments = ["--endpoints", &cluster.endpoints(), "cluster", "status", "--json"];
    let ended = Program::start("holdfast", &arguments).end(LIMIT).await;
    let status: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    let members = status["members"].as_array().unwrap().iter();
    members.map(|member| member["version"].as_str().unwrap_or_default().to_owned()).collect()
}

/// What the release before does not know.
const NEW: [&[&str]; 5] = [
    &["lock", "-n", "2", "upgrade/permits", "--", "true"],
    &["lock", "--note", "now", "upgrade/noted", "--", "true"],
    &["lock", "--max-hold", "1m", "upgrade/bound", "--", "true"],
    &["freeze", "upgrade/frozen"],
    &["sequence", "next", "upgrade/numbers"],
];

async fn each_new_command_ends_with(code: i32, endpoints: &str) {
    for command in NEW {
        let arguments = [&["--endpoints", endpoints], command].concat();
        let ended = Program::start("holdfast", &arguments).end(LIMIT).await;
        assert_eq!(ended.code, Some(code), "{command:?}: {ended:?}");
    }
}

#[tokio::test]
#[ignore = "started by tests/run full, which builds the release before"]
async fn a_cluster_that_is_rolled_from_the_release_before_and_back_loses_nothing() {
    let old = built_before("holdfastd");
    let setup = Setup { program: Some(old.clone()), ..Setup::nodes(3) };
    let mut run = Run::start(&setup, &Plan::default()).await;
    let endpoints = run.cluster.endpoints();
    let over = Arc::new(AtomicBool::new(false));
    let (tell, longest) = tokio::sync::oneshot::channel();
    let call = longest_call(endpoints.clone(), over.clone());
    let _probe = Runtime::system().spawn("probe", async move {
        // If the test has ended, nobody asks any more.
        let _ = tell.send(call.await);
    });
    let hold = [
        "--endpoints",
        &endpoints,
        "lock",
        "upgrade/held",
        "--",
        "sh",
        "-c",
        "echo held; exec sleep 600",
    ];
    let mut holder = Program::start_at(&built_before("holdfast"), &hold);
    holder.line("held", LIMIT).await;

    roll(&mut run, 0..2, None).await;
    let (before, now) = (release_before(), env!("CARGO_PKG_VERSION"));
    are_of(&run.cluster, [now, now, before]).await;
    // No member of the release before is sent what it does not know: it is refused meanwhile.
    each_new_command_ends_with(122, &endpoints).await;
    // No member of the release before has had to know a command of this one.
    roll(&mut run, 0..2, Some(old)).await;
    are_of(&run.cluster, [before; 3]).await;
    roll(&mut run, 0..3, None).await;
    run.nothing_lost().await;

    are_of(&run.cluster, [now; 3]).await;
    each_new_command_ends_with(0, &endpoints).await;
    over.store(true, Ordering::Relaxed);
    let longest = longest.await.unwrap();
    assert!(longest < CALL_MAX, "a call took {longest:?}");
    // A client of the release before, which has held through all of it.
    let queued = ["--endpoints", &endpoints, "try", "upgrade/held", "--", "true"];
    assert_eq!(Program::start("holdfast", &queued).end(LIMIT).await.code, Some(124));
    holder.signal(nix::sys::signal::Signal::SIGTERM);
    let ended = holder.end(LIMIT).await;
    assert_eq!(ended.err, "", "{ended:?}");
    let report = run.heal_and_judge().await;
    assert!(report.tally.grants > 1_500, "{report}");
}
