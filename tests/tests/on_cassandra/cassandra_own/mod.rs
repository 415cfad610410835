//! Properties of one recipe alone, on three real Cassandra nodes. The locks of all are in `cassandra_scenarios.rs` and
//! `cassandra_legacy.rs`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests stop the test when something is not as it must be"
)]

mod lease;
mod queue;

use std::time::Duration;

use holdfast_runtime::Runtime;

/// Short, so that a test can wait for its end: safe for 4.9 s, renewed every 1.6 s.
const TTL: Duration = secs(9);
const SKEW: Duration = secs(3);

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

async fn sleep(length: Duration) {
    Runtime::system().sleep(length).await;
}
