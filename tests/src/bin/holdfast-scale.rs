//! What three nodes do with very many sessions, waiters, watchers or connections: `holdfast-scale`.
//!
//! One line for each thing that is measured; `docs/limits.md` has the figures.

use std::time::Duration;

use clap::{Parser, Subcommand};
use holdfast_tests::scale::{connections, sessions, waiters, watchers};

/// What do three nodes do with very many sessions, waiters, watchers or connections?
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    scene: Scene,
    /// How long the nodes are looked at, each time, seconds.
    #[arg(long, global = true, default_value_t = 20)]
    secs: u64,
}

#[derive(Subcommand)]
enum Scene {
    /// Sessions with a lock each, which share connections.
    Sessions {
        /// How many.
        #[arg(long, default_value_t = 100_000)]
        count: usize,
        /// Their leases, seconds.
        #[arg(long, default_value_t = 10)]
        ttl: u64,
        /// The leader is killed.
        #[arg(long)]
        kill: bool,
    },
    /// Clients that connect at the same moment.
    Connections {
        /// How many.
        #[arg(long, default_value_t = 10_000)]
        count: usize,
    },
    /// Waiters for one lock.
    Waiters {
        /// How many; by the thousand.
        #[arg(long, default_value_t = 100_000)]
        count: u64,
    },
    /// Watchers of small prefixes, and of everything.
    Watchers {
        /// How many of a prefix each.
        #[arg(long, default_value_t = 10_000)]
        count: usize,
        /// How many of everything.
        #[arg(long, default_value_t = 10)]
        whole: usize,
        /// The leader is killed.
        #[arg(long)]
        kill: bool,
    },
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let Arguments { scene, secs } = Arguments::parse();
    let look = Duration::from_secs(secs);
    match scene {
        Scene::Sessions { count, ttl, kill } => {
            sessions::measure(look, count, Duration::from_secs(ttl), kill).await;
        }
        Scene::Connections { count } => connections::measure(look, count).await,
        Scene::Waiters { count } => waiters::measure(look, count).await,
        Scene::Watchers { count, whole, kill } => watchers::measure(look, count, whole, kill).await,
    }
}
