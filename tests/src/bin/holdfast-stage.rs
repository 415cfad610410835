//! Locks in every state there is, for whoever looks at pages and screens: held, wanted, in a deadlock, shared, frozen, with
//! names that are code and names that run from right to left, one that is hot, and a queue that grows.
//!
//! `holdfast-stage ENDPOINTS`; prints `staged` once all of it stands, and keeps it until its standard input ends.
//!
//! `holdfast-stage LEADER large HOLDS SESSIONS WAITERS` stages so many locks that are held, so many sessions more, and a queue
//! of so many, for measurements, and ends: their leases last half a day, which the setting `ttl_max_ms` has to allow.
#![allow(
    clippy::print_stdout,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a helper of tests: what cannot go on fails the test that started it"
)]

use std::io::Read as _;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use holdfast::{Acquire, Client, Guard, QueuePlace};
use holdfast_proto::v1::OpenSessionRequest;
use holdfast_proto::v1::lock_service_client::LockServiceClient;
use holdfast_runtime::Runtime;
use holdfast_tests::many_holds;
use holdfast_tests::wire::Wire;
use tonic::transport::Endpoint;

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

/// Locks of one session.
const PER_SESSION: u64 = 10_000;
/// Calls that are under way at once.
const AT_ONCE: usize = 64;

async fn stage_large(leader: &str, [holds, sessions, waiters]: [u64; 3]) {
    let held = many_holds::take(leader, holds, PER_SESSION).await;
    println!("{holds} locks held by {} sessions", held.len());
    let channel =
        Endpoint::from_shared(format!("http://{leader}")).unwrap().connect().await.unwrap();
    let open = |number: u64| {
        let mut service = LockServiceClient::new(channel.clone());
        async move {
            let label = format!("idle-{number}");
            let request = OpenSessionRequest {
                ttl_ms: Some(many_holds::TTL_MS),
                label,
                ..OpenSessionRequest::default()
            };
            service.open_session(request).await.unwrap();
        }
    };
    stream::iter(0..sessions).map(open).buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
    println!("{sessions} sessions more");
    for first in (0..waiters).step_by(usize::try_from(PER_SESSION).unwrap()) {
        let (mut wire, _) = Wire::open(leader, many_holds::TTL_MS).await;
        let all: Vec<u64> = (1..=PER_SESSION.min(waiters - first)).collect();
        for requests in all.chunks(1_000) {
            for request in requests {
                wire.acquire(*request, "held/1", true).await;
            }
            for request in requests {
                wire.queued(*request).await;
            }
        }
    }
    println!("{waiters} requests wait for held/1");
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(at) = arguments.first().cloned() else { panic!("ENDPOINTS") };
    if arguments.get(1).is_some_and(|word| word == "large") {
        let numbers: Vec<u64> =
            arguments.iter().skip(2).map(|number| number.parse().unwrap()).collect();
        let Ok(numbers) = numbers.try_into() else { panic!("HOLDS SESSIONS WAITERS") };
        return stage_large(&at, numbers).await;
    }
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
