//! A process of its own that holds one lock by a recipe with the real library and writes down, every few
//! milliseconds, whether its guard is safe: to be frozen or killed by a test.
//!
//! `holdfast-cassandra-holder RECIPE CONTACT_POINTS KEYSPACE TTL_S SKEW_S HISTORY CLIENT_ID hold NAME`; prints
//! `held` once it holds, and `lost` when it does not any more.
#![allow(
    clippy::print_stdout,
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a helper of tests: what cannot go on fails the test that started it"
)]

use std::sync::Arc;
use std::time::Duration;

use holdfast::compat::{
    Cassandra, Lease, LeaseTable, LockerOptions, Patience, RemoteLocker, TokenTables, Tokens,
};
use holdfast_seams::Seams;
use holdfast_tests::history::{ClientId, Recorder};
use holdfast_tests::remote::RemoteScribe;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [recipe, points, keyspace, ttl_s, skew_s, history, id, _hold, name] = arguments.as_slice()
    else {
        panic!("RECIPE CONTACT_POINTS KEYSPACE TTL_S SKEW_S HISTORY CLIENT_ID hold NAME");
    };
    let seams = Seams::system();
    let recorder = Recorder::to_file(seams.clock.clone(), history.as_ref()).unwrap();
    let secs = |text: &String| Duration::from_secs(text.parse().unwrap());
    let limit = Duration::from_secs(20);
    let cassandra = Cassandra::connect(points, keyspace, None, limit).await.unwrap();
    let options = LockerOptions::default().ttl(secs(ttl_s)).max_skew(secs(skew_s));
    let locker: Arc<dyn RemoteLocker> = match recipe.as_str() {
        "lease" => Arc::new(Lease::new(&cassandra, &options, LeaseTable::default()).unwrap()),
        "tokens-lwt" => {
            Arc::new(Tokens::new(&cassandra, &options, TokenTables::default()).unwrap())
        }
        other => panic!("no recipe {other}"),
    };
    let id = ClientId(id.parse().unwrap());

    let scribe = RemoteScribe::of(locker, id, recorder);
    let held = scribe.acquire(name, Patience::AtMost(Duration::from_secs(30))).await.unwrap();
    println!("held");
    while held.note() {
        seams.sleep(Duration::from_millis(5)).await;
    }
    println!("lost");
    std::future::pending::<()>().await;
}
