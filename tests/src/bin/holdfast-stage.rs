//! Locks in every state there is, for whoever looks at pages and screens: held, wanted, in a deadlock, shared, frozen, with
//! names that are code and names that run from right to left, one that is hot, and a queue that grows.
//!
//! `holdfast-stage ENDPOINTS`; prints `staged` once all of it stands, and keeps it until its standard input ends.
#![allow(
    clippy::print_stdout,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a helper of tests: what cannot go on fails the test that started it"
)]

use std::io::Read as _;
use std::time::Duration;

use holdfast::{Acquire, Client, Guard, QueuePlace};
use holdfast_runtime::Runtime;

/// The most that the queue grows to.
const QUEUE_MAX: usize = 60;
/// How often it grows, and how long a turn at the hot lock takes.
const GROWS_EVERY: Duration = Duration::from_millis(400);
const TURN: Duration = Duration::from_millis(4);

/// A client, and what it has.
struct Actor {
    client: Client,
    holds: Vec<Guard>,
    waits: Vec<QueuePlace>,
}

impl Actor {
    async fn new(endpoints: &str, label: &str) -> Self {
        let client = Client::builder().endpoints(endpoints.split(',')).label(label);
        Self { client: client.connect().await.unwrap(), holds: Vec::new(), waits: Vec::new() }
    }

    async fn holds(&mut self, ask: impl FnOnce(&Client) -> Acquire) {
        self.holds.push(ask(&self.client).await.unwrap());
    }

    async fn waits(&mut self, ask: impl FnOnce(&Client) -> Acquire) {
        let mut place = ask(&self.client).enqueue();
        place.next().await.unwrap();
        self.waits.push(place);
    }
}

async fn stage(at: &str) -> Vec<Actor> {
    let mut actors = Vec::new();
    let mut backup = Actor::new(at, "backup@db1").await;
    backup.holds(|client| client.lock("jobs/nightly").note("weekly, full")).await;
    let mut report = Actor::new(at, "report@web2").await;
    report.holds(|client| client.lock("reports/q3")).await;
    report.waits(|client| client.lock("jobs/nightly").note("needs the dump")).await;
    actors.extend([backup, report]);
    for nth in 1..=3 {
        let mut waiter = Actor::new(at, &format!("mailer-{nth}")).await;
        waiter.waits(|client| client.lock("reports/q3")).await;
        actors.push(waiter);
    }
    // A deadlock.
    let (mut one, mut other) = (Actor::new(at, "billing").await, Actor::new(at, "shipping").await);
    one.holds(|client| client.lock("orders/42")).await;
    other.holds(|client| client.lock("orders/43")).await;
    one.waits(|client| client.lock("orders/43")).await;
    other.waits(|client| client.lock("orders/42")).await;
    actors.extend([one, other]);
    // Readers, and names that are not what they seem.
    let mut names = Actor::new(at, "<b>bold</b> & \"quoted\"").await;
    for name in [
        "<script>alert(1)</script>",
        "משימות/לילה",
        "a/very/long/name/that/goes/on/and/on/until/no/column/of/any/table/can/hold/it/on/one/line",
    ] {
        names.holds(|client| client.lock(name).shared()).await;
    }
    let mut reader = Actor::new(at, "reader").await;
    reader.holds(|client| client.lock("משימות/לילה").shared()).await;
    let mut settings = Actor::new(at, "settings").await;
    settings.holds(|client| client.lock("config/leader")).await;
    settings.holds[0].set_value("{\"leader\": \"db1\"} <i>").await.unwrap();
    let mut frozen = Actor::new(at, "upgrade").await;
    frozen.holds(|client| client.lock("frozen/held")).await;
    actors.extend([names, reader, settings, frozen]);
    let mut first = Actor::new(at, "first in line").await;
    first.holds(|client| client.lock("hot/queue")).await;
    actors.push(first);
    actors
}

/// Two clients that take turns at a lock.
async fn be_hot(at: String) {
    let client =
        Client::builder().endpoints(at.split(',')).label("worker").connect().await.unwrap();
    loop {
        let guard = client.lock("hot/counter").await.unwrap();
        Runtime::system().sleep(TURN).await;
        guard.release().await.unwrap();
    }
}

async fn grow(at: String) {
    let mut crowd = Actor::new(&at, "crowd").await;
    loop {
        crowd.waits(|client| client.lock("hot/queue")).await;
        Runtime::system().sleep(GROWS_EVERY).await;
        if crowd.waits.len() >= QUEUE_MAX {
            std::future::pending::<()>().await;
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let Some(at) = std::env::args().nth(1) else { panic!("ENDPOINTS") };
    let actors = stage(&at).await;
    let runtime = Runtime::system();
    let _moving = [
        runtime.spawn("hot", be_hot(at.clone())),
        runtime.spawn("hot", be_hot(at.clone())),
        runtime.spawn("grows", grow(at)),
    ];
    println!("staged");
    // Until whoever started it has gone.
    let end = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    end.await.unwrap().unwrap();
    drop(actors);
}
