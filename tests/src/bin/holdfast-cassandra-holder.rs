//! A process of its own that locks by a recipe on Cassandra with the real library and writes down what it is told and believes: to be
//! frozen, killed or replaced by a test.
//!
//! `holdfast-cassandra-holder RECIPE CONTACT_POINTS KEYSPACE TTL_S SKEW_S HISTORY CLIENT_ID`, then either
//! (RECIPE may be `fallback@ENDPOINTS`: a process of the scope of `tests/src/fallback/mod.rs`.)
//! `hold NAME`: prints `held` once it holds, and `lost` when it does not any more, or
//! `work NAME…`: prints `ready`, acquires and gives back until SIGTERM, and ends with nothing left behind; or
//! `work-in MODE ENDPOINTS SCOPE NAME…`: the same as a process of a scope that moves.
//! (RECIPE may be `work`: NAME is a queue of work then, and what is held are its items.)
#![allow(
    clippy::print_stdout,
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a helper of tests: what cannot go on fails the test that started it"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdfast::Client;
use holdfast_recipes::{
    Cassandra, Contact, Locker, LockerMode, LockerOptions, SerialScope, Wait, WorkQueue, WorkTables,
};
use holdfast_runtime::Runtime;
use holdfast_tests::fallback;
use holdfast_tests::history::{ClientId, Recorder};
use holdfast_tests::recipe::{Recipe, WORK};
use holdfast_tests::remote::RemoteScribe;
use holdfast_tests::shim::ClockRate;
use holdfast_tests::worker::Worker;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [recipe, points, keyspace, ttl_s, skew_s, history, id, task, names @ ..] =
        arguments.as_slice()
    else {
        panic!("RECIPE CONTACT_POINTS KEYSPACE TTL_S SKEW_S HISTORY CLIENT_ID hold|work NAME…");
    };
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let recorder = Recorder::to_file(Runtime::system().clock, history.as_ref()).unwrap();
    let recorder = recorder.of_rate(ClockRate::of_this_process());
    let secs = |text: &String| Duration::from_secs(text.parse().unwrap());
    let limit = Duration::from_secs(20);
    let contact = Contact::new(points).limit(limit);
    let cassandra = Cassandra::connect(&contact, keyspace, &SerialScope::Cluster).await.unwrap();
    let options = LockerOptions::default().ttl(secs(ttl_s)).max_skew(secs(skew_s));
    if recipe == "work" {
        let (queue, id) = (names[0], ClientId(id.parse().unwrap()));
        let queue = WorkQueue::new(&cassandra, &options, WorkTables::default(), queue).unwrap();
        let worker = Worker::of(queue, id, recorder);
        match task.as_str() {
            "hold" => have(&worker).await,
            "work" => until_terminated(async |is_over| worker.work(WORK, is_over).await).await,
            other => panic!("hold or work, not {other:?}"),
        }
        return cassandra.settled().await;
    }
    let locker = match recipe.strip_prefix("fallback@") {
        Some(endpoints) => Arc::new(fallback::locker(&cassandra, endpoints, &options).await),
        None => Recipe::named(recipe).unwrap().locker(&cassandra, &options),
    };
    let scribe = |locker| RemoteScribe::of(locker, ClientId(id.parse().unwrap()), recorder);
    match (task.as_str(), &*names) {
        ("hold", [name]) => hold(&scribe(locker), name).await,
        ("work", names) => work(&scribe(locker), names).await,
        ("work-in", [mode, endpoints, scope, names @ ..]) => {
            let client = Client::connect(endpoints.split(',')).await.unwrap();
            let falls_back = fallback::options(&options);
            let moving = Locker::builder(&cassandra, scope, locker).native(client).row(options);
            let moving =
                moving.fallback(falls_back).start(LockerMode::parse(mode).unwrap()).await.unwrap();
            work(&scribe(Arc::new(moving)), names).await;
        }
        other => panic!("hold, work or work-in, not {other:?}"),
    }
    cassandra.settled().await;
}

async fn hold(scribe: &RemoteScribe, name: &str) {
    let held = scribe.acquire(name, Wait::AtMost(Duration::from_mins(1))).await.unwrap();
    println!("held");
    while held.note() {
        Runtime::system().sleep(Duration::from_millis(5)).await;
    }
    println!("lost");
    std::future::pending::<()>().await;
}

async fn have(worker: &Worker) {
    let had = worker.next(Wait::AtMost(Duration::from_mins(1))).await.unwrap().unwrap();
    println!("had {}", had.item().id());
    while had.note() {
        Runtime::system().sleep(Duration::from_millis(5)).await;
    }
    println!("lost");
    std::future::pending::<()>().await;
}

async fn work(scribe: &RemoteScribe, names: &[&str]) {
    until_terminated(async |is_over| scribe.work(names, WORK, is_over).await).await;
}

/// Prints `ready`, and works until SIGTERM.
async fn until_terminated(work: impl AsyncFnOnce(&dyn Fn() -> bool)) {
    let over = AtomicBool::new(false);
    let mut asked = signal(SignalKind::terminate()).unwrap();
    let ending = async {
        asked.recv().await;
        over.store(true, Ordering::Relaxed);
    };
    println!("ready");
    let is_over = || over.load(Ordering::Relaxed);
    tokio::join!(work(&is_over), ending);
}
