//! How long a node with many held locks takes to serve again after SIGKILL: `holdfast-recovery`.
//!
//! The last line is `N holds, recovered in S s`; it ends with 0 only if that was within the limit
//! and the holds looked at were there.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program for people, which cannot go on if its node does not start"
)]

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use holdfast_runtime::Runtime;
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::many_holds::{self, TTL_MS};
use holdfast_tests::wire::{Ticket, Wire};

/// A node with many held locks is killed; how long until it serves?
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// How many locks are held.
    #[arg(long, default_value_t = 1_000_000)]
    holds: u64,
    /// How many of them each session holds.
    #[arg(long, default_value_t = 1_000)]
    per_session: u64,
    /// How often it is killed.
    #[arg(long, default_value_t = 3)]
    kills: usize,
    /// The longest recovery that passes, seconds.
    #[arg(long, default_value_t = 10.0)]
    within: f64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Arguments { holds, per_session, kills, within } = Arguments::parse();
    let setup = Setup::nodes(1)
        .cluster("ttl_max_ms", TTL_MS)
        .cluster("max_requests_per_session", per_session + 1)
        .cluster("frames_per_second", 10_000_000);
    let mut cluster = Cluster::start(&setup).await;
    let address = cluster.nodes()[0].listen.clone();
    let sessions = load(&address, holds, per_session).await;
    let mut longest = Duration::ZERO;
    for _ in 0..kills {
        let took = kill_and_wait(&mut cluster, &address).await;
        println!("serves {:.2} s after it was started again", took.as_secs_f64());
        longest = longest.max(took);
    }
    let lost = lost(&address, &sessions, per_session).await;
    println!("{} sessions looked at, {lost} holds lost", sessions.len().min(LOOKED_AT));
    println!("{holds} holds, recovered in {:.2} s", longest.as_secs_f64());
    if lost == 0 && longest.as_secs_f64() <= within { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Takes so many locks, each session its share.
async fn load(address: &str, holds: u64, per_session: u64) -> Vec<Ticket> {
    let clock = Runtime::system().clock;
    let began = clock.now();
    let sessions = many_holds::take(address, holds, per_session).await;
    let took = clock.now().saturating_since(began);
    println!("{holds} locks taken by {} sessions in {:.1} s", sessions.len(), took.as_secs_f64());
    sessions
}

/// SIGKILL, a start, and the time from there until somebody is granted a lock.
async fn kill_and_wait(cluster: &mut Cluster, address: &str) -> Duration {
    cluster.kill(0);
    let runtime = Runtime::system();
    let began = runtime.clock.now();
    cluster.start_node(0);
    cluster.leader().await;
    let (mut wire, _) = Wire::open(address, TTL_MS).await;
    wire.acquire(1, "after the kill", false).await;
    let token = wire.granted(1).await;
    let took = runtime.clock.now().saturating_since(began);
    wire.release(token).await;
    wire.released(token).await;
    wire.close().await;
    wire.end().await;
    took
}

/// How many sessions are looked at: all of them would take as long as the load.
const LOOKED_AT: usize = 20;

/// How many holds some of the sessions miss.
async fn lost(address: &str, sessions: &[Ticket], per_session: u64) -> u64 {
    let step = sessions.len().div_ceil(LOOKED_AT).max(1);
    let mut lost = 0;
    for ticket in sessions.iter().step_by(step) {
        let mut wire = Wire::dial(address).await.unwrap();
        let state = wire.resume(ticket).await;
        lost += per_session.saturating_sub(state.requests.len() as u64);
    }
    lost
}
