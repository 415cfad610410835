//! A nightly job that every machine starts at the same time, and one of them runs: however short the job is, and however wrong a
//! machine's clock.
//!
//! `HOLDFAST_ENDPOINTS=127.0.0.1:7420 cargo run --example nightly_once`
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "an example talks to a person, and stands on tokio as a user's program does"
)]

use std::time::Duration;

use holdfast::{Client, Error};

#[tokio::main(flavor = "current_thread")]
async fn main() -> holdfast::Result<()> {
    let endpoints = std::env::var("HOLDFAST_ENDPOINTS").unwrap_or("127.0.0.1:7420".into());
    let machine = |name, late| machine(endpoints.clone(), name, late);
    tokio::try_join!(
        machine("one", Duration::ZERO),
        machine("two", Duration::from_millis(300)),
        // It comes when the lock may be had again: tomorrow.
        machine("three", Duration::from_millis(1_500)),
    )?;
    Ok(())
}

/// Here a day is a second long.
const DAY: Duration = Duration::from_secs(1);

async fn machine(endpoints: String, name: &str, late: Duration) -> holdfast::Result<()> {
    let client = Client::connect(endpoints.split(',')).await?;
    tokio::time::sleep(late).await;
    // Nobody else has it before most of the day is over, and nobody has it for longer.
    let report = client.try_lock("reports/nightly").hold_at_least(DAY * 9 / 10).max_hold(DAY);
    match report.await {
        Ok(guard) => {
            println!("machine {name} writes the report under token {}", guard.token());
            guard.release().await?;
        }
        Err(Error::NotGranted { .. }) => println!("machine {name} has nothing to do"),
        Err(error) => return Err(error),
    }
    client.close().await
}
