//! A process of its own that holds one lock with the real library and writes down, every few
//! milliseconds, whether its guard is safe: to be frozen or killed by a test.
//!
//! `holdfast-test-holder ENDPOINTS TTL_MS NAME CLIENT_ID HISTORY`; prints `held TOKEN` once it
//! holds.
#![allow(
    clippy::print_stdout,
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a helper of tests: what cannot go on fails the test that started it"
)]

use std::time::Duration;

use holdfast_runtime::Runtime;
use holdfast_tests::history::{ClientId, Recorder};
use holdfast_tests::traffic::Scribe;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [endpoints, ttl_ms, name, id, history] = arguments.as_slice() else {
        panic!("ENDPOINTS TTL_MS NAME CLIENT_ID HISTORY");
    };
    let runtime = Runtime::system();
    let recorder = Recorder::to_file(runtime.clock.clone(), history.as_ref()).unwrap();
    let ttl = Duration::from_millis(ttl_ms.parse().unwrap());
    let id = ClientId(id.parse().unwrap());

    let scribe = Scribe::connect(endpoints, ttl, id, recorder).await.unwrap();
    let held = scribe.lock(name, Duration::from_secs(30)).await.unwrap();
    println!("held {}", held.token());
    loop {
        held.note();
        runtime.sleep(Duration::from_millis(5)).await;
    }
}
