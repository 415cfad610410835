//! What is urgent goes first, and for how long at most: three jobs wait for one lock, and the last one has a head start.
//!
//! `HOLDFAST_ENDPOINTS=127.0.0.1:7420 cargo run --example urgent`
#![expect(clippy::print_stdout, reason = "an example talks to a person")]

use std::time::Duration;

use holdfast::{Client, QueuePlace};

const LOCK: &str = "reports/printer";

#[tokio::main(flavor = "current_thread")]
async fn main() -> holdfast::Result<()> {
    let endpoints = std::env::var("HOLDFAST_ENDPOINTS").unwrap_or("127.0.0.1:7420".into());
    let client = Client::connect(endpoints.split(',')).await?;
    let printing = client.lock(LOCK).note("the yearly report").await?;

    let first = queued(client.lock(LOCK)).await;
    let second = queued(client.lock(LOCK)).await;
    // It goes before those that came less than a minute before it; whoever came earlier keeps its place.
    let urgent = queued(client.lock(LOCK).head_start(Duration::from_mins(1))).await;

    printing.release().await?;
    let jobs = [("the first", first), ("the second", second), ("the urgent one", urgent)];
    let jobs = jobs.map(|(name, place)| print(name, place));
    futures_util::future::try_join_all(jobs).await?;
    client.close().await
}

/// Asks, and waits until the request stands in line.
async fn queued(acquire: holdfast::Acquire) -> QueuePlace {
    let mut place = acquire.enqueue();
    if let Some(at) = place.next().await {
        let holder = at.holders.first().map_or("", |holder| &holder.note);
        println!("{} before it, while {holder} is printed", at.place);
    }
    place
}

async fn print(name: &str, place: QueuePlace) -> holdfast::Result<()> {
    let guard = place.await?;
    println!("{name} is printed under token {}", guard.token());
    guard.release().await
}
