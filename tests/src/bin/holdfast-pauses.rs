//! How long a cluster with many held locks grants nothing while snapshots are written, dropped and
//! installed: `holdfast-pauses`.
//!
//! One line for each stretch of the measurement; the last line is `N holds, longest pause P ms`. It
//! ends with 0 only if that was within the limit.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a program for people, which cannot go on if its nodes do not"
)]

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use holdfast_runtime::{Instant, Runtime};
use holdfast_tests::admin;
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::many_holds::{self, TTL_MS};
use holdfast_tests::pauses::{Pauses, Reading};
use holdfast_tests::program::Program;
use nix::sys::signal::Signal;

/// Between two looks at the nodes.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A member is level with the leader if it lacks no more entries than these: the leader goes on.
const LEVEL: u64 = 1_000;
/// After the last event of a stretch, for what it leaves behind: a large table that is dropped.
const AFTERWARDS: Duration = Duration::from_secs(2);

/// How long is nothing granted while snapshots of many held locks are written and installed?
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// How many nodes; with one nothing is installed.
    #[arg(long, default_value_t = 3)]
    nodes: usize,
    /// How many locks are held.
    #[arg(long, default_value_t = 1_000_000)]
    holds: u64,
    /// How many of them each session holds.
    #[arg(long, default_value_t = 1_000)]
    per_session: u64,
    /// How many clients ask for locks meanwhile.
    #[arg(long, default_value_t = 8)]
    clients: u64,
    /// How many snapshots each node writes.
    #[arg(long, default_value_t = 2)]
    rounds: u64,
    /// `max_log_bytes` of the nodes, MiB: a snapshot is written after an eighth to a quarter of it,
    /// and a member that lacks more gets one.
    #[arg(long, default_value_t = 32)]
    log_mib: u64,
    /// How long a stretch may last, seconds.
    #[arg(long, default_value_t = 180)]
    limit: u64,
    /// The longest pause that passes, milliseconds.
    #[arg(long, default_value_t = 50)]
    within: u64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut measured = Measured::start(arguments).await;
    measured.empty_table().await;
    measured.load().await;
    let longest = measured.with_a_large_table().await;
    let Arguments { holds, within, .. } = measured.arguments;
    println!("{holds} holds, longest pause {:.1} ms", millis(longest));
    if longest <= Duration::from_millis(within) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

struct Measured {
    arguments: Arguments,
    cluster: Cluster,
    leader: usize,
    runtime: Runtime,
}

impl Measured {
    async fn start(arguments: Arguments) -> Self {
        let setup = Setup::nodes(arguments.nodes)
            .node("max_log_bytes", arguments.log_mib << 20)
            .cluster("ttl_max_ms", TTL_MS)
            .cluster("max_table_bytes", 64_u64 << 30)
            .cluster("max_requests_per_session", arguments.per_session + 1)
            .cluster("frames_per_second", 10_000_000);
        let cluster = Cluster::start(&setup).await;
        cluster.all_ready().await;
        let leader = cluster.leader().await;
        Self { arguments, cluster, leader, runtime: Runtime::system() }
    }

    async fn pauses(&self) -> Pauses {
        let nodes = self.cluster.nodes().iter().map(|node| node.listen.clone()).collect();
        Pauses::begin(self.address(), nodes, self.arguments.clients).await
    }

    fn address(&self) -> &str {
        &self.cluster.nodes()[self.leader].listen
    }

    /// What the machine does to a cluster whose snapshots are small.
    async fn empty_table(&self) {
        let pauses = self.pauses().await;
        self.runtime.sleep(AFTERWARDS * 2).await;
        tell("no locks", &pauses.take());
        pauses.end().await;
    }

    async fn load(&self) {
        let began = self.runtime.clock.now();
        let Arguments { holds, per_session, .. } = self.arguments;
        many_holds::take(self.address(), holds, per_session).await;
        let took = self.runtime.clock.now().saturating_since(began);
        println!("{holds} locks taken in {:.1} s", took.as_secs_f64());
    }

    /// All that is measured with the locks; returns the longest pause.
    async fn with_a_large_table(&mut self) -> Duration {
        let pauses = self.pauses().await;
        let mut longest = Duration::ZERO;
        let mut note = |what: &str| {
            let reading = pauses.take();
            tell(what, &reading);
            longest = longest.max(reading.longest_pause);
        };
        self.runtime.sleep(AFTERWARDS * 2).await;
        note("held");
        self.a_backup_is_taken().await;
        note("backed up");
        self.snapshots_are_written().await;
        note("written, dropped");
        if self.arguments.nodes > 1 {
            let away = (self.leader + 1) % self.arguments.nodes;
            self.falls_behind(away).await;
            note("a member is away");
            self.takes_a_snapshot(away).await;
            note("installed");
        }
        pauses.end().await;
        longest
    }

    /// A client takes a backup of it all, and checks it.
    async fn a_backup_is_taken(&self) {
        let file = self.cluster.folder().join("million.hfb");
        let (path, endpoint) = (file.to_str().unwrap(), self.address());
        let began = self.runtime.clock.now();
        let taking = ["--endpoints", endpoint, "cluster", "backup", path];
        let ended = Program::start("holdfast", &taking)
            .end(Duration::from_secs(self.arguments.limit))
            .await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let took = self.runtime.clock.now().saturating_since(began);
        let bytes = std::fs::metadata(&file).unwrap().len();
        let (kib, seconds) = (bytes >> 10, took.as_secs_f64());
        println!("a backup of {kib} KiB, received and checked in {seconds:.1} s");
    }

    /// Each node writes its snapshots.
    async fn snapshots_are_written(&self) {
        let began = self.runtime.clock.now();
        let mut wanted = Vec::new();
        for node in 0..self.arguments.nodes {
            wanted.push(self.metric(node, "snapshot_seconds_count").await + self.arguments.rounds);
        }
        for (node, wanted) in wanted.into_iter().enumerate() {
            while self.metric(node, "snapshot_seconds_count").await < wanted {
                self.look_again(began, "too few snapshots are written").await;
            }
        }
        self.runtime.sleep(AFTERWARDS).await;
    }

    /// A member is killed, until the leader has logged more than it keeps.
    async fn falls_behind(&mut self, away: usize) {
        self.cluster.signal(away, Signal::SIGKILL);
        self.cluster.wait_for_exit(away).await;
        let began = self.runtime.clock.now();
        let enough = (self.arguments.log_mib << 20) / 4 * 5;
        let (mut logged, mut before) = (0, u64::MAX);
        while logged < enough {
            let bytes = self.metric(self.leader, "log_bytes").await;
            logged += bytes.saturating_sub(before);
            before = bytes;
            self.look_again(began, "too little is logged").await;
        }
    }

    /// It comes back, gets a snapshot, and has the log after it too.
    async fn takes_a_snapshot(&mut self, away: usize) {
        let sent = self.metric(self.leader, "snapshots_sent_total").await;
        self.cluster.start_node(away);
        let began = self.runtime.clock.now();
        loop {
            let is_sent = self.metric(self.leader, "snapshots_sent_total").await > sent;
            let applied = self.metric(away, "raft_applied_index").await;
            let goal = self.metric(self.leader, "raft_applied_index").await;
            if is_sent && applied + LEVEL >= goal {
                break;
            }
            self.look_again(began, "the member does not get level by a snapshot").await;
        }
        self.runtime.sleep(AFTERWARDS).await;
    }

    async fn look_again(&self, began: Instant, what: &str) {
        let took = self.runtime.clock.now().saturating_since(began);
        assert!(took < Duration::from_secs(self.arguments.limit), "{what} within {took:?}");
        self.runtime.sleep(LOOK_EVERY).await;
    }

    async fn metric(&self, node: usize, name: &str) -> u64 {
        admin::metric(&self.cluster.nodes()[node].admin_listen, name).await
    }
}

fn tell(what: &str, reading: &Reading) {
    let Reading { lasted, grants, longest_pause, slowest_grant, p99_grant, .. } = reading;
    let Reading { slowest_answers, latest_timer, .. } = reading;
    let answers: Vec<String> =
        slowest_answers.iter().map(|took| format!("{:.1}", millis(*took))).collect();
    println!(
        "{what}: {:.1} s, {grants} grants, longest pause {:.1} ms, p99 of a grant {:.1} ms, \
         slowest grant {:.1} ms, slowest answers of the nodes {} ms, latest timer {:.1} ms",
        lasted.as_secs_f64(),
        millis(*longest_pause),
        millis(*p99_grant),
        millis(*slowest_grant),
        answers.join(" / "),
        millis(*latest_timer),
    );
}

fn millis(length: Duration) -> f64 {
    length.as_secs_f64() * 1_000.0
}
