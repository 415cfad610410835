//! Holding a lock: wait in line, work while it is certain, give it back.
//!
//! `HOLDFAST_ENDPOINTS=127.0.0.1:7420 cargo run --example hold_a_lock`
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "an example talks to a person, and stands on tokio as a user's program does"
)]

use std::time::Duration;

use holdfast::Client;

#[tokio::main(flavor = "current_thread")]
async fn main() -> holdfast::Result<()> {
    let endpoints = std::env::var("HOLDFAST_ENDPOINTS").unwrap_or("127.0.0.1:7420".into());
    // One session with the store. A task in the background keeps it alive and follows the leader.
    let client = Client::connect(&endpoints).await?;

    // The request is made at once. While others are before us, we hear where we stand.
    let mut place =
        client.lock("reports/nightly").wait(Duration::from_secs(30)).follow_place().enqueue();
    while let Some(at) = place.next().await {
        println!("{} before us", at.place);
    }
    let guard = place.await?;
    println!("{} is ours under token {}", guard.name(), guard.token());

    // The work is dropped where it stands if the lock is not certainly ours any more, so that it
    // never runs beside the next holder's.
    let pages = guard.run(write_report()).await?;
    println!("{pages} pages written");

    // Dropping the guard would give the lock back too, without waiting until that is done.
    guard.release().await?;
    client.close().await
}

async fn write_report() -> u32 {
    tokio::time::sleep(Duration::from_millis(50)).await;
    12
}
