//! Electing a leader: the holder of the lock leads, and publishes its address as the lock's value
//! for any observer.
//!
//! `HOLDFAST_ENDPOINTS=127.0.0.1:7420 cargo run --example leader_election`
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "an example talks to a person, and stands on tokio as a user's program does"
)]

use std::time::Duration;

use holdfast::{ChangeKind, Client, Result, Watch, WatchEvent};

const ELECTION: &str = "elections/scheduler";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let endpoints = std::env::var("HOLDFAST_ENDPOINTS").unwrap_or("127.0.0.1:7420".into());
    // The observer needs no session: it only watches. First it receives the present state.
    let mut watch = Client::builder().endpoints(endpoints.split(',')).reader()?.watch(ELECTION);
    while !matches!(watch.next().await.transpose()?, Some(WatchEvent::Synced) | None) {}

    // The candidates wait in the queue.
    let (first, second, leaders) = tokio::join!(
        stand(&endpoints, "10.0.0.1:8080"),
        stand(&endpoints, "10.0.0.2:8080"),
        observe(watch, 2),
    );
    first?;
    second?;
    println!("the observer saw {} take turns", leaders?.join(" and "));
    Ok(())
}

/// Waits to be elected, leads for a while, steps down.
async fn stand(endpoints: &str, address: &str) -> Result<()> {
    let client = Client::connect(endpoints.split(',')).await?;
    let guard = client.lock(ELECTION).await?;
    // The value goes to the next leader with the lock and names the previous leader. If that leader
    // died, the value is suspect.
    if let Some(before) = guard.value() {
        let who = String::from_utf8_lossy(&before.bytes).into_owned();
        println!("{address} takes over from {who}");
    }
    guard.set_value(address.to_owned()).await?;
    println!("{address} leads under token {}", guard.token());

    // The leader's work ends with its lock, however that ends.
    guard.run(lead()).await?;

    guard.release().await?;
    client.close().await
}

async fn lead() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

/// Follows the election until it has seen this many leaders.
async fn observe(mut watch: Watch, leaders: usize) -> Result<Vec<String>> {
    let mut seen = Vec::new();
    while seen.len() < leaders {
        let Some(event) = watch.next().await.transpose()? else { break };
        if let Some(address) = new_leader(&event) {
            println!("the observer hears that {address} leads");
            seen.push(address);
        }
    }
    Ok(seen)
}

/// The address of the new leader, if the event shows one.
fn new_leader(event: &WatchEvent) -> Option<String> {
    let WatchEvent::Change(change) = event else { return None };
    match &change.what {
        // Only a holder sets it. After a leader that died, the value is suspect.
        ChangeKind::ValueChanged(Some(value)) if !value.is_suspect => {
            Some(String::from_utf8_lossy(&value.bytes).into_owned())
        }
        _ => None,
    }
}
