//! Electing a leader, who proclaims its address to any observer.
//!
//! `HOLDFAST_ENDPOINTS=127.0.0.1:7420 cargo run --example leader_election`
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "an example talks to a person, and stands on tokio as a user's program does"
)]

use std::time::Duration;

use holdfast::{Client, LeaderEvent, Leaders, Result};

const ELECTION: &str = "elections/scheduler";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let endpoints = std::env::var("HOLDFAST_ENDPOINTS").unwrap_or("127.0.0.1:7420".into());
    // The observer needs no session. First it is told who leads now: nobody.
    let reader = Client::builder().endpoints(endpoints.split(',')).reader()?;
    let mut leaders = reader.leaders(ELECTION);
    leaders.next().await.transpose()?;

    let (first, second, seen) = tokio::join!(
        stand(&endpoints, "10.0.0.1:8080"),
        stand(&endpoints, "10.0.0.2:8080"),
        observe(leaders, 2),
    );
    first?;
    second?;
    println!("the observer saw {} take turns", seen?.join(" and "));
    Ok(())
}

/// Waits to be elected, leads for a while, resigns.
async fn stand(endpoints: &str, address: &str) -> Result<()> {
    let client = Client::connect(endpoints.split(',')).await?;
    let leadership = client.election(ELECTION).campaign(address.to_owned()).await?;
    // If the leader before died, what it proclaimed last is suspect.
    if let Some(before) = leadership.predecessor() {
        println!("{address} takes over from {}", String::from_utf8_lossy(&before.bytes));
    }
    println!("{address} leads under token {}", leadership.token());

    // The leader's work ends with its lead, however that ends.
    leadership.run(lead()).await?;

    leadership.resign().await?;
    client.close().await
}

async fn lead() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

/// Follows the election until it has seen this many leaders.
async fn observe(mut leaders: Leaders, number: usize) -> Result<Vec<String>> {
    let mut seen = Vec::new();
    while seen.len() < number {
        let Some(event) = leaders.next().await.transpose()? else { break };
        if let LeaderEvent::Leads(leader) = event {
            let address = String::from_utf8_lossy(&leader.value).into_owned();
            println!("the observer hears that {address} leads");
            seen.push(address);
        }
    }
    Ok(seen)
}
