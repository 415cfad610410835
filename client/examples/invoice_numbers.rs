//! Invoice numbers: two offices write invoices, and no number is written twice.
//!
//! `HOLDFAST_ENDPOINTS=127.0.0.1:7420 cargo run --example invoice_numbers`
#![expect(clippy::print_stdout, reason = "an example talks to a person")]

use std::num::NonZeroU32;

use holdfast::{Builder, Client};

#[tokio::main(flavor = "current_thread")]
async fn main() -> holdfast::Result<()> {
    let endpoints = std::env::var("HOLDFAST_ENDPOINTS").unwrap_or("127.0.0.1:7420".into());
    let store = Client::builder().endpoints([endpoints]);
    tokio::try_join!(one_by_one(&store), a_block_at_a_time(&store))?;
    Ok(())
}

/// One number for each invoice: no gap, as long as every answer arrives.
async fn one_by_one(store: &Builder) -> holdfast::Result<()> {
    let invoices = store.sequence("invoices")?;
    for _ in 0..4 {
        println!("the office in Lund writes invoice {}", invoices.next().await?);
    }
    Ok(())
}

/// Ten numbers for each commit: for whoever writes thousands. What is left at the end is a gap.
async fn a_block_at_a_time(store: &Builder) -> holdfast::Result<()> {
    let ten = NonZeroU32::new(10).unwrap_or(NonZeroU32::MIN);
    let invoices = store.sequence("invoices")?.blocks_of(ten);
    for _ in 0..4 {
        println!("the office in Graz writes invoice {}", invoices.next().await?);
    }
    Ok(())
}
