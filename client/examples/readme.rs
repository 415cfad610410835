//! The ten lines of the README, which shows the same text.
#![expect(clippy::print_stdout, reason = "an example talks to a person")]

use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() -> holdfast::Result<()> {
    let client = holdfast::Client::connect(["127.0.0.1:7420"]).await?;
    let guard = client.lock("orders/42").wait(Duration::from_secs(30)).await?;
    println!("{} is held under token {}", guard.name(), guard.token());
    guard.release().await?;
    client.close().await
}
