//! Why a lock is waited for: chains, cycles, locks that are kept for a set, and what is left out.
#![allow(clippy::unwrap_used, reason = "helpers of a test fail it by a panic")]

use std::time::Duration;

use holdfast::{Client, Explanation, Guard, QueuePlace};
use holdfast_runtime::Runtime;
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::program::run;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(20);

async fn client(cluster: &Cluster, label: &str) -> Client {
    let endpoints = cluster.endpoints();
    let builder = Client::builder().endpoints(endpoints.split(',')).label(label);
    builder.connect().await.unwrap()
}

/// A client that holds a lock and waits for others.
struct Stuck {
    client: Client,
    /// Kept, and given back with this.
    kept: (Guard, Option<QueuePlace>),
}

impl Stuck {
    async fn on(cluster: &Cluster, label: &str, holds: &str) -> Self {
        let client = client(cluster, label).await;
        let held = client.lock(holds).await.unwrap();
        Self { client, kept: (held, None) }
    }

    async fn waits_for(&mut self, names: &[&str]) {
        let mut place = self.client.lock_all(names.iter().copied()).enqueue();
        let told = Runtime::system().timeout(LIMIT, place.next()).await;
        told.unwrap().unwrap();
        self.kept.1 = Some(place);
    }
}

async fn explained(cluster: &Cluster, name: &str) -> Explanation {
    let reader = Client::builder().endpoints(cluster.endpoints().split(',')).reader().unwrap();
    reader.explain(name).await.unwrap()
}

async fn said(cluster: &Cluster, arguments: &[&str]) -> String {
    let endpoints = cluster.endpoints();
    let ended = run("holdfast", &[&["--endpoints", &endpoints], arguments].concat()).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended.out
}

fn names(explained: &Explanation) -> Vec<&str> {
    explained.locks.iter().map(|lock| lock.name.as_str()).collect()
}

#[tokio::test]
async fn a_chain_is_followed_to_who_waits_for_nothing() {
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    cluster.leader().await;
    let mut web = Stuck::on(&cluster, "web", "nightly").await;
    let mut batch = Stuck::on(&cluster, "batch", "orders/42").await;
    let _report = Stuck::on(&cluster, "report", "report").await;
    web.waits_for(&["orders/42"]).await;
    batch.waits_for(&["free", "report"]).await;
    let mut late = Stuck::on(&cluster, "late", "other").await;
    late.waits_for(&["nightly"]).await;

    let chain = explained(&cluster, "nightly").await;
    assert_eq!(names(&chain), ["nightly", "orders/42", "free", "report"]);
    let culprits: Vec<_> =
        chain.culprits().map(|(lock, holder)| (lock, holder.label.as_str())).collect();
    assert_eq!(culprits, [("report", "report")]);
    assert!(chain.is_whole && chain.cycle().is_none());
    let kept = chain.locks[2].kept_for.as_ref().unwrap();
    assert_eq!((chain.locks[2].held_by, kept.label.as_str()), (0, "batch"));

    let text = said(&cluster, &["inspect", "--why", "nightly"]).await;
    for words in [
        "nightly is held by web",
        "one request waits",
        "which waits for orders/42",
        "orders/42 is held by batch",
        "free is kept for batch, which waits for report as well",
        "In the end nightly waits for report, which holds report and waits for nothing",
    ] {
        assert!(text.contains(words), "{words:?} is not in\n{text}");
    }
    let nothing = said(&cluster, &["inspect", "--why", "nobody"]).await;
    assert_eq!(nothing, "nobody holds nobody, and nobody waits for it\n");
}

#[tokio::test]
async fn a_deadlock_is_named_and_ends_with_one_hold() {
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    cluster.leader().await;
    let mut one = Stuck::on(&cluster, "one", "a").await;
    let mut two = Stuck::on(&cluster, "two", "b").await;
    one.waits_for(&["b"]).await;
    two.waits_for(&["a"]).await;
    let mut third = Stuck::on(&cluster, "third", "c").await;
    third.waits_for(&["a"]).await;

    let round = explained(&cluster, "c").await;
    let cycle = round.cycle().unwrap();
    let steps: Vec<_> = cycle.iter().map(|step| (step.lock, step.label)).collect();
    assert_eq!(steps, [("a", "one"), ("b", "two")]);
    let text = said(&cluster, &["inspect", "--why", "c"]).await;
    assert!(
        text.contains("They wait for each other: a (held by one) → b (held by two) → a"),
        "{text}"
    );
    let json: Value =
        serde_json::from_str(&said(&cluster, &["--json", "inspect", "--why", "c"]).await).unwrap();
    assert_eq!(json["cycle"][1]["lock"], "b");

    drop(two);
    let until = Runtime::system().clock.now() + LIMIT;
    while explained(&cluster, "c").await.cycle().is_some() {
        assert!(Runtime::system().clock.now() < until);
        Runtime::system().sleep(Duration::from_millis(20)).await;
    }
}

/// However much there is: 100 locks, and it says that there is more.
#[tokio::test]
async fn a_chain_of_any_length_is_answered_as_far_as_it_is_shown() {
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    cluster.leader().await;
    let one = client(&cluster, "one").await;
    let two = client(&cluster, "two").await;
    let names_of = |of: &str| (0..300).map(|number| format!("{of}/{number}")).collect::<Vec<_>>();
    let mut held = Vec::new();
    for (client, of) in [(&one, "a"), (&two, "b")] {
        for names in names_of(of).chunks(60) {
            held.push(client.lock_all(names.iter().map(String::as_str)).await.unwrap());
        }
    }
    let mut places = Vec::new();
    for names in names_of("b").chunks(60) {
        let mut place = one.lock_all(names.iter().map(String::as_str)).enqueue();
        place.next().await.unwrap();
        places.push(place);
    }

    let chain = explained(&cluster, "a/0").await;
    assert_eq!(chain.locks.len(), 100);
    assert!(!chain.is_whole);
    assert!(said(&cluster, &["inspect", "--why", "a/0"]).await.contains("more than is shown"));
}
