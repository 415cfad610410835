//! Two services in one process share a client: one connection and one session for all their locks.
//! Each service still waits for the other's locks as for those of any other client.
//!
//! `HOLDFAST_ENDPOINTS=127.0.0.1:7420 cargo run --example two_services`
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "an example talks to a person, and stands on tokio as a user's program does"
)]

use std::time::Duration;

use holdfast::{Client, Result};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let endpoints = std::env::var("HOLDFAST_ENDPOINTS").unwrap_or("127.0.0.1:7420".into());
    let client = Client::connect(endpoints.split(',')).await?;

    // A clone is the same session. If the process dies, all its locks pass on together.
    tokio::try_join!(bill(client.clone()), mail(client.clone()))?;

    client.close().await
}

/// Changes the customers, so it needs an exclusive lock.
async fn bill(client: Client) -> Result<()> {
    for _ in 0..3 {
        let customers = client.lock("customers").await?;
        println!("billing begins");
        customers.run(work()).await?;
        println!("billing ends");
        customers.release().await?;
    }
    Ok(())
}

/// Reads the customers, beside other readers, and needs the outbox exclusively: both or none.
async fn mail(client: Client) -> Result<()> {
    use holdfast::LockItem;

    for _ in 0..3 {
        let items = [LockItem::shared("customers"), LockItem::exclusive("outbox")];
        let both = client.lock_all(items).await?;
        println!("mailing begins");
        both.run(work()).await?;
        println!("mailing ends");
        both.release().await?;
    }
    Ok(())
}

async fn work() {
    tokio::time::sleep(Duration::from_millis(10)).await;
}
