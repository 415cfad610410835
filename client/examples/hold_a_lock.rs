//! Holding a lock: wait in the queue, work while the lock is safe, release it.
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
    let client = Client::connect(endpoints.split(',')).await?;

    // The client sends the request at once. While others are ahead, the stream yields our place.
    let mut place =
        client.lock("reports/nightly").wait(Duration::from_secs(30)).follow_place().enqueue();
    while let Some(at) = place.next().await {
        println!("{} before us", at.place);
    }
    let guard = place.await?;
    println!("{} is ours under token {}", guard.name(), guard.token());

    // `run` drops the work at its current await point if the lock is not safe any more, so that it
    // never runs beside the next holder's work.
    let pages = guard.run(write_report()).await?;
    println!("{pages} pages written");

    // Dropping the guard would release the lock too, without waiting for the answer.
    guard.release().await?;
    client.close().await
}

async fn write_report() -> u32 {
    tokio::time::sleep(Duration::from_millis(50)).await;
    12
}
