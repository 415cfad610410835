//! What a cluster of real processes does with very many sessions, waiters, watchers or connections: memory, CPU, and how
//! long a client that has nothing to do with them waits for its lock.
#![allow(clippy::print_stdout, reason = "the scenes of a program for people")]

use std::time::Duration;

use holdfast_runtime::{Instant, Runtime};
use nix::sys::signal::Signal;

use self::quiet::Quiet;
use crate::cluster::{Cluster, Setup};
use crate::{admin, usage};

pub mod connections;
pub mod quiet;
pub mod sessions;
pub mod waiters;
pub mod watchers;

/// Between two looks at what is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long anything may take.
const WITHIN: Duration = Duration::from_mins(10);

/// Three nodes with their leader, and the client that is measured beside everything else.
struct Stage {
    cluster: Cluster,
    leader: usize,
    quiet: Quiet,
    /// How long the cluster is looked at, each time.
    looked_at_for: Duration,
    runtime: Runtime,
}

/// What a process had used at an instant.
struct Used {
    at: Instant,
    cpu_s: f64,
}

impl Stage {
    async fn start(setup: &Setup, looked_at_for: Duration) -> Self {
        let cluster = Cluster::start(setup).await;
        cluster.all_ready().await;
        let leader = cluster.leader().await;
        let quiet = Quiet::begin(&cluster.endpoints());
        let runtime = Runtime::system();
        let stage = Self { cluster, leader, quiet, looked_at_for, runtime };
        stage.look("nothing else").await;
        stage
    }

    fn endpoints(&self) -> Vec<String> {
        self.cluster.endpoints().split(',').map(str::to_owned).collect()
    }

    fn leader_address(&self) -> &str {
        &self.cluster.nodes()[self.leader].listen
    }

    fn leader_process(&self) -> u32 {
        u32::try_from(self.cluster.pid(self.leader).as_raw()).expect("a process id")
    }

    fn now(&self) -> Instant {
        self.runtime.clock.now()
    }

    fn since(&self, began: Instant) -> Duration {
        self.now().saturating_since(began)
    }

    /// Looks at the cluster for a while, and prints what it used and how long the quiet client waited.
    async fn look(&self, what: &str) {
        self.quiet.take();
        let (leader, own) = (self.leader_process(), std::process::id());
        let before = (self.used(leader), self.used(own));
        self.runtime.sleep(self.looked_at_for).await;
        let cores = (self.cores_since(leader, &before.0), self.cores_since(own, &before.1));
        let mib = |process| usage::memory_of_process(process).expect("it runs") >> 20;
        let waits = self.quiet.take();
        println!(
            "{what}: the leader {:.2} cores and {} MiB, the clients {:.2} cores and {} MiB; a quiet client waits p50 \
             {:.1} ms, p99 {:.1} ms, at most {:.1} ms ({} requests)",
            cores.0,
            mib(leader),
            cores.1,
            mib(own),
            millis(waits.percentile(50)),
            millis(waits.percentile(99)),
            millis(waits.percentile(100)),
            waits.count(),
        );
    }

    fn used(&self, process: u32) -> Used {
        Used { at: self.now(), cpu_s: usage::cpu_of_process(process).expect("it runs") }
    }

    fn cores_since(&self, process: u32, before: &Used) -> f64 {
        let cpu_s = usage::cpu_of_process(process).expect("it runs") - before.cpu_s;
        cpu_s / self.since(before.at).as_secs_f64()
    }

    /// Kills the leader; returns when, and how long until another one serves.
    async fn kill_the_leader(&mut self) -> (Instant, Duration) {
        self.quiet.take();
        let began = self.now();
        self.cluster.signal(self.leader, Signal::SIGKILL);
        self.cluster.wait_for_exit(self.leader).await;
        let dead = self.leader;
        self.leader = self.cluster.leader_among(|node| node != dead).await;
        (began, self.since(began))
    }

    /// Waits until a metric of the leader is at least that.
    async fn leader_shows(&self, name: &str, least: u64) {
        let began = self.now();
        loop {
            let shown = admin::metric(&self.cluster.nodes()[self.leader].admin_listen, name).await;
            if shown >= least {
                return;
            }
            assert!(self.since(began) < WITHIN, "{name} is {shown}, and was to be {least}");
            self.runtime.sleep(LOOK_EVERY).await;
        }
    }

    fn end(self) {
        self.quiet.end();
    }
}

fn millis(length: Duration) -> f64 {
    length.as_secs_f64() * 1_000.0
}
