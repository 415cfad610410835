//! How long a cluster grants nothing when its leader is killed or stopped, and whether it elects another without
//! cause: `holdfast-leader-death`.
//!
//! One line for each kind of event, with the pause of the cluster and of the client that waited longest. It ends with
//! 0 only if all limits were kept.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a program for people, which cannot go on if its nodes do not"
)]

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Parser;
use holdfast::Client;
use holdfast_runtime::{Instant, Runtime, Task};
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::pauses::{Gauge, Reading};
use nix::sys::signal::Signal;

/// Between two events: all members are level, and all clients at work, for at least this long.
const SETTLED: Duration = Duration::from_millis(1_500);
/// After an event, until the measurement of it ends.
const AFTERWARDS: Duration = Duration::from_secs(3);
/// After a request that failed.
const AGAIN: Duration = Duration::from_millis(100);
/// Between two looks at whether the term has changed.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long is nothing granted when the leader dies?
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// How often the leader is killed.
    #[arg(long, default_value_t = 20)]
    kills: usize,
    /// How often the leader is stopped as an operator stops it.
    #[arg(long, default_value_t = 20)]
    stops: usize,
    /// How many clients ask for locks, each for its own, one after the other.
    #[arg(long, default_value_t = 8)]
    clients: u64,
    /// Minutes in which nothing is broken, and nobody else may be elected.
    #[arg(long, default_value_t = 0.0)]
    quiet_minutes: f64,
    /// The largest median of the pauses after a kill that passes, milliseconds.
    #[arg(long, default_value_t = 700)]
    median: u64,
    /// The largest 95th percentile of these that passes, milliseconds.
    #[arg(long, default_value_t = 1_000)]
    p95: u64,
    /// The largest median of the pauses at a planned stop that passes, milliseconds.
    #[arg(long, default_value_t = 100)]
    stop: u64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut measured = Measured::start(arguments.clients).await;
    let elected = measured.quiet(arguments.quiet_minutes).await;
    let kills = measured.events("killed", arguments.kills, Signal::SIGKILL).await;
    let stops = measured.events("stopped", arguments.stops, Signal::SIGTERM).await;
    measured.end().await;
    let within = |pauses: &[Duration], percent, limit| {
        percentile(pauses, percent) <= Duration::from_millis(limit)
    };
    let are_kept = elected == 0
        && within(&kills, 50, arguments.median)
        && within(&kills, 95, arguments.p95)
        && within(&stops, 50, arguments.stop);
    if are_kept { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

struct Measured {
    cluster: Cluster,
    shared: Arc<Shared>,
    clients: Vec<Task>,
}

struct Shared {
    gauge: Mutex<Gauge>,
    stopped: AtomicBool,
    runtime: Runtime,
}

impl Measured {
    async fn start(clients: u64) -> Self {
        let cluster = Cluster::start(&Setup::nodes(3)).await;
        cluster.all_ready().await;
        let runtime = Runtime::system();
        let gauge = Mutex::new(Gauge::new(0, runtime.clock.now()));
        let stopped = AtomicBool::new(false);
        let shared = Arc::new(Shared { gauge, stopped, runtime: runtime.clone() });
        let mut asking = Vec::new();
        for number in 0..clients {
            let builder = Client::builder().endpoints(cluster.endpoints().split(','));
            let client = builder.connect().await.unwrap();
            let asks = Arc::clone(&shared).ask_for_a_lock(number, client);
            asking.push(runtime.spawn("client", asks));
        }
        Self { cluster, shared, clients: asking }
    }

    /// Breaks nothing for a while; returns how often a leader was elected.
    async fn quiet(&self, minutes: f64) -> u64 {
        let runtime = &self.shared.runtime;
        let until = runtime.clock.now() + Duration::from_secs_f64(minutes * 60.0);
        let before = self.term().await;
        while runtime.clock.now() < until {
            runtime.sleep(LOOK_EVERY).await;
        }
        let elected = self.term().await - before;
        if minutes > 0.0 {
            let reading = self.shared.take();
            println!(
                "quiet: {minutes} min, {} grants, {elected} elections, longest pause {:.0} ms",
                reading.grants,
                millis(reading.longest_pause)
            );
        }
        elected
    }

    /// The term of the leader.
    async fn term(&self) -> u64 {
        let leader = self.cluster.leader().await;
        let status = self.cluster.status(leader).await;
        status.unwrap_or_else(|| panic!("the leader tells no status")).term
    }

    /// Ends the leader so many times; returns the pauses of the cluster, sorted.
    async fn events(&mut self, what: &str, times: usize, signal: Signal) -> Vec<Duration> {
        let (mut pauses, mut slowest) = (Vec::new(), Duration::ZERO);
        for _ in 0..times {
            let leader = self.cluster.leader().await;
            self.cluster.all_ready().await;
            self.shared.runtime.sleep(SETTLED).await;
            self.shared.take();
            self.cluster.signal(leader, signal);
            self.cluster.wait_for_exit(leader).await;
            self.shared.runtime.sleep(AFTERWARDS).await;
            let reading = self.shared.take();
            pauses.push(reading.longest_pause);
            slowest = slowest.max(reading.slowest_grant);
            self.cluster.start_node(leader);
        }
        pauses.sort();
        if times > 0 {
            println!(
                "{what} {times} times: pauses of all clients p50 {:.0} ms, p95 {:.0} ms, longest {:.0} ms; the \
                 client that waited longest {:.0} ms",
                millis(percentile(&pauses, 50)),
                millis(percentile(&pauses, 95)),
                millis(percentile(&pauses, 100)),
                millis(slowest),
            );
        }
        pauses
    }

    async fn end(self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        while !self.clients.iter().all(Task::is_finished) {
            self.shared.runtime.sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Shared {
    /// A client that fails shows as a pause: it asks no more.
    async fn ask_for_a_lock(self: Arc<Self>, number: u64, client: Client) {
        let name = format!("asked/{number}");
        while !self.stopped.load(Ordering::Relaxed) {
            let asked = self.runtime.clock.now();
            match client.lock(&name).await {
                Ok(guard) => {
                    self.granted(asked);
                    // Whether it was freed is seen at the next request.
                    let _ = guard.release().await;
                }
                Err(error) => {
                    println!("client {number}: {error}");
                    self.runtime.sleep(AGAIN).await;
                }
            }
        }
        client.close().await.unwrap();
    }

    fn granted(&self, asked: Instant) {
        self.gauge
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .granted(asked, self.runtime.clock.now());
    }

    fn take(&self) -> Reading {
        self.gauge.lock().unwrap_or_else(PoisonError::into_inner).take(self.runtime.clock.now())
    }
}

/// The value of sorted ones below which so many percent lie; zero of none.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let at = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(at).copied().unwrap_or_default()
}

fn millis(length: Duration) -> f64 {
    length.as_secs_f64() * 1_000.0
}
