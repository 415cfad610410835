//! A batch worker: locks the free keys of a batch, works on them, then locks the rest.
//!
//! Messages come in batches, and each needs an exclusive lock on its key. A worker that waited for
//! the first busy key would leave the free ones idle; one that polls loads the store and waits
//! longer than it has to. This worker takes the free keys, and only when none is free it waits
//! until the store grants the first one that becomes free.
//!
//! `HOLDFAST_ENDPOINTS=127.0.0.1:7420 cargo run --example batch_worker`
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "an example talks to a person, and stands on tokio as a user's program does"
)]

use std::time::Duration;

use holdfast::{Client, Error, Guard, Result};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let endpoints = std::env::var("HOLDFAST_ENDPOINTS").unwrap_or("127.0.0.1:7420".into());
    // Two workers, as if on two machines, whose batches have two keys in common.
    let (one, two) = (
        Client::connect(endpoints.split(',')).await?,
        Client::connect(endpoints.split(',')).await?,
    );
    let (first, second) = tokio::join!(
        work_through(&one, "worker 1", &["index/a", "index/b", "index/c"]),
        work_through(&two, "worker 2", &["index/b", "index/c", "index/d"]),
    );
    println!("{} and {} messages are processed", first?, second?);
    one.close().await?;
    two.close().await
}

/// Processes every key of the batch under its lock. Returns how many there were.
async fn work_through(client: &Client, worker: &str, batch: &[&str]) -> Result<usize> {
    let mut rest = batch.to_vec();
    while !rest.is_empty() {
        let guard = lock_some(client, &rest).await?;
        // The guard shows which keys were granted: at least one, perhaps all of them.
        let keys: Vec<_> = rest.extract_if(.., |key| guard.holds(key)).collect();
        for key in keys {
            guard.run(process(key)).await?;
            println!("{worker} has processed {key} under token {}", guard.token());
            // A waiter for this key need not wait for the others.
            guard.release_names([key]).await?;
        }
    }
    Ok(batch.len())
}

/// Locks the keys that are free now; if none is, those that become free first.
async fn lock_some(client: &Client, keys: &[&str]) -> Result<Guard> {
    match client.try_any_of(keys.iter().copied()).await {
        Err(Error::NotGranted { .. }) => client.any_of(keys.iter().copied()).await,
        other => other,
    }
}

async fn process(_key: &str) {
    tokio::time::sleep(Duration::from_millis(20)).await;
}
