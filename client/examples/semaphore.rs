//! A semaphore: five jobs, and never more than two of them at a time.
//!
//! `HOLDFAST_ENDPOINTS=127.0.0.1:7420 cargo run --example semaphore`
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "an example talks to a person, and stands on tokio as a user's program does"
)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use holdfast::Client;

const AT_A_TIME: u32 = 2;

#[tokio::main(flavor = "current_thread")]
async fn main() -> holdfast::Result<()> {
    let endpoints = std::env::var("HOLDFAST_ENDPOINTS").unwrap_or("127.0.0.1:7420".into());
    let client = Client::connect(endpoints.split(',')).await?;
    let running = AtomicU32::new(0);

    let jobs = (1..=5).map(|number| job(&client, number, &running));
    futures_util::future::try_join_all(jobs).await?;

    client.close().await
}

async fn job(client: &Client, number: u32, running: &AtomicU32) -> holdfast::Result<()> {
    // Elsewhere this would be another process, on another machine: it names the same lock and the same limit.
    let permit = client.semaphore("reports/render", AT_A_TIME).permits(1).await?;
    let now = running.fetch_add(1, Ordering::Relaxed) + 1;
    println!("job {number} runs under token {}, {now} of {AT_A_TIME} at a time", permit.token());
    tokio::time::sleep(Duration::from_millis(200)).await;
    running.fetch_sub(1, Ordering::Relaxed);
    permit.release().await
}
