//! `holdfast lock NAME -- CMD` as a script sees it: exit codes, signals, and a child that never
//! outlives its lock (DESIGN §8).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of a test fail it by a panic"
)]

mod descendants;
mod surroundings;

use std::path::Path;
use std::time::Duration;

use holdfast_runtime::Runtime;
use holdfast_tests::cluster::{Cluster, Setup, binary, free_port};
use holdfast_tests::host_stall::{TooLate, retry_if_host_stalled};
use holdfast_tests::program::{Ended, Program};
use nix::sys::signal::Signal;

const LIMIT: Duration = Duration::from_secs(30);

struct Shell {
    cluster: Cluster,
}

impl Shell {
    async fn start() -> Self {
        Self { cluster: Cluster::start(&Setup::nodes(1)).await }
    }

    /// Starts `holdfast` with these arguments.
    fn begin(&self, arguments: &[&str]) -> Program {
        let endpoints = self.cluster.endpoints();
        Program::start("holdfast", &[&["--endpoints", &endpoints], arguments].concat())
    }

    /// The same in place of a shell that has run `first`.
    fn begin_after(&self, first: &str, arguments: &[&str]) -> Program {
        let (holdfast, endpoints) = (binary("holdfast"), self.cluster.endpoints());
        let (script, holdfast) = (format!("{first}; exec \"$@\""), holdfast.to_str().unwrap());
        let own = ["-c", &script, "bash", holdfast, "--endpoints", &endpoints];
        Program::start_at(&"/bin/bash".into(), &[&own, arguments].concat())
    }

    async fn run(&self, arguments: &[&str]) -> Ended {
        self.begin(arguments).end(LIMIT).await
    }

    /// `holdfast lock NAME -- sh -c SCRIPT`
    async fn script(&self, name: &str, script: &str) -> Ended {
        self.run(&["lock", name, "--", "sh", "-c", script]).await
    }
}

#[tokio::test]
async fn the_exit_code_is_the_childs_or_128_and_its_signal() {
    let shell = Shell::start().await;

    assert_eq!(shell.script("jobs", "exit 0").await.code, Some(0));
    assert_eq!(shell.script("jobs", "exit 7").await.code, Some(7));
    assert_eq!(shell.script("jobs", "kill -TERM $$").await.code, Some(128 + 15));
    assert_eq!(shell.script("jobs", "kill -KILL $$").await.code, Some(128 + 9));
}

#[tokio::test]
async fn a_command_that_cannot_run_or_does_not_exist_gives_126_and_127() {
    let shell = Shell::start().await;

    let folder = shell.cluster.folder().to_str().unwrap().to_owned();
    let cannot = shell.run(&["lock", "jobs", "--", &folder]).await;
    let missing = shell.run(&["lock", "jobs", "--", "/no/such/command"]).await;

    assert_eq!((cannot.code, missing.code), (Some(126), Some(127)), "{cannot:?} {missing:?}");
    assert!(missing.err.contains("/no/such/command"), "{missing:?}");
    // The lock was released.
    assert_eq!(shell.script("jobs", "exit 0").await.code, Some(0));
}

#[tokio::test]
async fn the_child_is_told_which_lock_it_holds_under_which_token() {
    let shell = Shell::start().await;

    let ended = shell.script("jobs", "echo $HOLDFAST_LOCK $HOLDFAST_TOKEN").await;

    let (name, token) = ended.out.trim().split_once(' ').unwrap();
    assert_eq!(name, "jobs");
    assert!(token.parse::<u64>().unwrap() > 0);
}

#[tokio::test]
async fn without_a_command_a_lock_is_held_until_a_signal_under_the_label_that_was_given() {
    let shell = Shell::start().await;
    for (signal, json) in [(Signal::SIGINT, false), (Signal::SIGTERM, true)] {
        let format = if json { &["--json"][..] } else { &[] };
        let arguments = [format, &["lock", "--label", "night shift", "jobs", "more"]].concat();
        let mut holder = shell.begin(&arguments);
        let held = if json {
            r#"{"held":["jobs","more"],"token":"#
        } else {
            "holding the locks jobs, more under token"
        };
        holder.line(held, LIMIT).await;

        let refused = shell.run(&["try", "jobs", "--", "true"]).await;
        assert!(refused.err.contains("held by night shift"), "{refused:?}");
        holder.signal(signal);
        let ended = holder.end(LIMIT).await;
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{ended:?}");
        assert_eq!(shell.run(&["try", "more", "--", "true"]).await.code, Some(0));
    }
}

#[tokio::test]
async fn without_a_command_a_lost_lock_gives_121_after_a_warning() {
    let mut shell = Shell::start().await;
    let mut holder = shell.begin(&["lock", "--ttl", "2s", "jobs"]);
    holder.line("holding the lock jobs", LIMIT).await;
    shell.cluster.kill(0);

    let ended = holder.end(LIMIT).await;
    assert_eq!(ended.code, Some(121), "{ended:?}");
    assert!(ended.err.contains("unless it does, the lock jobs is lost in"), "{ended:?}");
    assert!(ended.err.contains("the lock jobs was lost: "), "{ended:?}");
}

#[tokio::test]
async fn status_says_whether_the_store_serves_and_what_each_server_does() {
    let mut cluster = Cluster::start(&Setup::nodes(3)).await;
    cluster.all_ready().await;
    let leader = cluster.leader().await;
    let endpoints = cluster.endpoints();
    let run = async || {
        Program::start("holdfast", &["--endpoints", &endpoints, "status"]).end(LIMIT).await
    };

    let ended = run().await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let first = format!("serving: node {} leads in term", leader + 1);
    assert!(ended.out.starts_with(&first) && ended.out.contains("3 members\n"), "{ended:?}");
    assert_eq!(ended.out.matches(" follows ").count(), 2, "{ended:?}");

    cluster.kill((leader + 1) % 3);
    cluster.kill((leader + 2) % 3);
    Runtime::system().sleep(Duration::from_secs(2)).await;
    let ended = run().await;
    assert_eq!(ended.code, Some(123), "{ended:?}");
    assert!(ended.out.starts_with("not serving: "), "{ended:?}");
    assert_eq!(ended.out.matches("refused").count(), 2, "{ended:?}");
    let ended = Program::start("holdfast", &["--endpoints", &endpoints, "try", "x", "--", "true"]);
    let ended = ended.end(LIMIT).await;
    assert_eq!(ended.code, Some(123), "{ended:?}");
    assert!(ended.err.contains("the cluster has lost its quorum"), "{ended:?}");
    assert!(ended.err.contains("see holdfast status"), "{ended:?}");
    assert_says_what_is_wrong_once(&cluster.log(leader));
}

/// The log of a leader whose two followers died some seconds ago: a line about each of them, and one about the quorum;
/// none of the consensus library, which has ten a second.
fn assert_says_what_is_wrong_once(log: &str) {
    let count = |says: &str| log.matches(says).count();
    assert_eq!(count("does not answer this leader"), 2, "{log}");
    assert_eq!(count("this node does not serve: leads in term"), 1, "{log}");
    assert_eq!(count("openraft"), 0, "{log}");
}

#[tokio::test]
async fn a_lock_that_is_held_gives_124_and_names_the_holder() {
    let shell = Shell::start().await;
    let mut holder = shell.begin(&["lock", "jobs", "--", "sh", "-c", "echo held; exec sleep 60"]);
    holder.line("held", LIMIT).await;

    for arguments in
        [&["lock", "jobs", "--wait", "300ms", "--", "true"][..], &["try", "jobs", "--", "true"]]
    {
        let ended = shell.run(arguments).await;
        assert_eq!(ended.code, Some(124), "{ended:?}");
        assert!(ended.err.contains("held by"), "{ended:?}");
    }
}

#[tokio::test]
async fn a_store_that_cannot_be_reached_gives_123_and_names_the_endpoints() {
    let address = format!("127.0.0.1:{}", free_port());
    let arguments = ["--endpoints", &address, "lock", "jobs", "--wait", "1s", "--", "true"];

    let ended = Program::start("holdfast", &arguments).end(LIMIT).await;

    assert_eq!(ended.code, Some(123), "{ended:?}");
    assert!(ended.err.contains(&address), "{ended:?}");
}

#[tokio::test]
async fn signals_are_passed_on_to_the_child() {
    let shell = Shell::start().await;
    for (signal, name) in
        [(Signal::SIGTERM, "TERM"), (Signal::SIGINT, "INT"), (Signal::SIGUSR1, "USR1")]
    {
        let script = format!("trap 'exit 9' {name}; echo ready; while :; do sleep 0.05; done");
        let mut program = shell.begin(&["lock", "jobs", "--", "sh", "-c", &script]);
        program.line("ready", LIMIT).await;

        program.signal(signal);

        assert_eq!(program.end(LIMIT).await.code, Some(9), "{signal}");
    }
}

#[tokio::test]
async fn a_wrapper_that_is_killed_takes_its_child_with_it() {
    let shell = Shell::start().await;
    let script = "cat /proc/uptime >> stamps; echo ready; while :; do cat /proc/uptime >> stamps; sleep 0.05; done";
    let stamps = shell.cluster.folder().join("stamps");
    let script = script.replace("stamps", stamps.to_str().unwrap());
    let mut program = shell.begin(&["lock", "jobs", "--", "sh", "-c", &script]);
    program.line("ready", LIMIT).await;

    program.signal(Signal::SIGKILL);
    program.end(LIMIT).await;
    Runtime::system().sleep(Duration::from_millis(300)).await;

    let before = std::fs::read_to_string(&stamps).unwrap();
    Runtime::system().sleep(Duration::from_millis(300)).await;
    assert_eq!(std::fs::read_to_string(&stamps).unwrap(), before, "the child writes no more");
}

/// The store is gone for good: the child is asked to end, and it and all its descendants are dead before another client could be granted
/// the lock (DESIGN §8; with a TTL of 2 s, safe for 1,780 ms: asked 500 ms before that, killed 200 ms before).
#[tokio::test]
async fn a_child_is_killed_before_its_lease_ends_when_the_store_is_gone_and_121_says_so() {
    killed_in_time_after(|cluster| cluster.kill(0), DEAF).await;
}

/// The same when its connections stay, and no answer comes.
#[tokio::test]
async fn a_child_is_killed_before_its_lease_ends_when_the_store_is_silent_and_121_says_so() {
    killed_in_time_after(|cluster| cluster.freeze(0), DEAF).await;
}

/// The command itself ends as asked; the child that it started does not (I6).
#[tokio::test]
async fn what_outlives_a_wrapper_is_killed_before_its_lease_ends_when_the_store_is_gone() {
    killed_in_time_after(|cluster| cluster.kill(0), DIES_OF_TERM).await;
}

/// The same when its connections stay, and no answer comes.
#[tokio::test]
async fn what_outlives_a_wrapper_is_killed_before_its_lease_ends_when_the_store_is_silent() {
    killed_in_time_after(|cluster| cluster.freeze(0), DIES_OF_TERM).await;
}

/// The command has ended by itself long before the store is gone; the child that it started runs on.
#[tokio::test]
async fn what_outlives_a_command_is_killed_before_its_lease_ends_when_the_store_is_gone() {
    killed_in_time_after(|cluster| cluster.kill(0), HAS_ENDED).await;
}

/// A command and a child of it that does not end for half a minute and writes the time into the file `stamps`; a process that is asked to
/// end leaves the file `asked`. This command ignores the request, and so does its child: only SIGKILL ends them, and the one that writes
/// only a SIGKILL to both.
const DEAF: &str = "trap 'echo > asked' TERM; (trap '' TERM; i=0; while [ $i -lt 1500 ]; do i=$((i+1)); cat /proc/uptime >> stamps; sleep 0.02; done) & \
                    echo ready; while :; do wait; done";
/// Here only the child ignores the request.
const DIES_OF_TERM: &str = "(trap 'echo > asked' TERM; i=0; while [ $i -lt 1500 ]; do i=$((i+1)); cat /proc/uptime >> stamps; sleep 0.02; done) & \
                            echo ready; wait";
/// Here only the child is left.
const HAS_ENDED: &str = "(trap 'echo > asked' TERM; i=0; while [ $i -lt 1500 ]; do i=$((i+1)); cat /proc/uptime >> stamps; sleep 0.02; done) & \
                         echo ready; exit 0";

async fn killed_in_time_after(lose: impl Fn(&mut Cluster), script: &str) {
    // A stalled host kills nothing in time.
    let scenario = async || hold_and_lose_the_store(&lose, script, None).await;
    retry_if_host_stalled(Duration::from_millis(100), scenario).await;
}

/// `first`: what a shell runs before; standard error then shows nothing.
async fn hold_and_lose_the_store(
    lose: impl Fn(&mut Cluster),
    script: &str,
    first: Option<&str>,
) -> Result<(), TooLate> {
    const TTL: Duration = Duration::from_secs(2);
    const SAFE: Duration = Duration::from_millis(1_780);
    let clock = Runtime::system().clock;
    let mut shell = Shell::start().await;
    let (stamps, asked) =
        (shell.cluster.folder().join("stamps"), shell.cluster.folder().join("asked"));
    let script = script.replace("stamps", stamps.to_str().unwrap());
    let script = script.replace("> asked", &format!("> {}", asked.display()));
    let line = ["lock", "--ttl", "2s", "jobs", "--", "sh", "-c", &script];
    let begin = |first| shell.begin_after(first, &line);
    let mut program = first.map_or_else(|| shell.begin(&line), begin);
    program.line("ready", LIMIT).await;
    Runtime::system().sleep(TTL + Duration::from_millis(500)).await;

    lose(&mut shell.cluster);
    // No keepalive that was sent after this was answered: from here on no hold is safe for longer than that.
    let gone = clock.now().since_origin();
    let ended = program.end(LIMIT).await;

    assert_eq!(ended.code, Some(121), "{ended:?}");
    // A process that outlives its lock writes again.
    Runtime::system().sleep(Duration::from_millis(200)).await;
    let last = last_stamp(&stamps);
    TooLate::unless(last > gone.as_secs_f64(), || "not renewed past its TTL".to_owned())?;
    TooLate::unless(asked.exists(), || "killed before it was asked to end".to_owned())?;
    let warned =
        "the store has not answered for a while: unless it does, the command is asked to end in";
    assert!(first.is_some() || ended.err.contains(warned), "{ended:?}");
    let after = last - (gone + SAFE).as_secs_f64();
    TooLate::unless(after < 0.0, || format!("the child still wrote {after} s after it was safe"))?;
    // The wrapper may try for a while to close its session before it gives up.
    let ended_in_time = clock.now().since_origin() < gone + TTL + Duration::from_secs(6);
    TooLate::unless(ended_in_time, || format!("{ended:?}"))
}

/// When a child wrote last, seconds since the machine started.
fn last_stamp(stamps: &Path) -> f64 {
    let text = std::fs::read_to_string(stamps).unwrap();
    text.lines().last().unwrap().split(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn list_and_inspect_show_who_holds_and_who_waits() {
    let shell = Shell::start().await;
    let mut holder = shell.begin(&["lock", "jobs", "--", "sh", "-c", "echo held; exec sleep 60"]);
    holder.line("held", LIMIT).await;
    let _waiter = shell.begin(&["lock", "jobs", "--", "true"]);
    Runtime::system().sleep(Duration::from_millis(500)).await;

    let inspected = shell.run(&["--json", "inspect", "jobs"]).await;
    let listed = shell.run(&["--json", "list"]).await;
    let person = shell.run(&["inspect", "jobs"]).await;

    let lock: serde_json::Value = serde_json::from_str(inspected.out.trim()).unwrap();
    assert_eq!(lock["name"], "jobs", "{lock}");
    assert_eq!(lock["waiting"], 1, "{lock}");
    assert!(lock["holders"][0]["token"].is_string(), "a token may not fit a JSON number: {lock}");
    assert!(listed.out.contains("jobs"), "{listed:?}");
    assert!(person.out.contains("jobs"), "{person:?}");
}
