//! A batch with a floor: a book needs two of three printers at once, and gets whichever are free.
//!
//! `HOLDFAST_ENDPOINTS=127.0.0.1:7420 cargo run --example two_printers`
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "an example talks to a person, and stands on tokio as a user's program does"
)]

use std::time::Duration;

use holdfast::Client;

const PRINTERS: [&str; 3] = ["printers/ada", "printers/bob", "printers/cleo"];

#[tokio::main(flavor = "current_thread")]
async fn main() -> holdfast::Result<()> {
    let endpoints = std::env::var("HOLDFAST_ENDPOINTS").unwrap_or("127.0.0.1:7420".into());
    let client = Client::connect(endpoints.split(',')).await?;
    // Two are busy: one with a letter, one with a poster.
    let letter = client.lock("printers/ada").await?;
    let poster = client.lock("printers/bob").await?;

    let book = async {
        // It holds nothing while it waits, and nobody who comes later gets the free one before it.
        let printers = client.any_of(PRINTERS).at_least(2).await?;
        let names: Vec<&str> = printers.names().collect();
        println!("the book is printed by {} under token {}", names.join(" and "), printers.token());
        printers.release().await
    };
    let others = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        println!("the letter is done");
        letter.release().await?;
        tokio::time::sleep(Duration::from_millis(300)).await;
        println!("the poster is done");
        poster.release().await
    };
    tokio::try_join!(book, others)?;
    client.close().await
}
