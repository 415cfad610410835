//! The everyday vocabulary over real processes: readers beside readers, sets, those of several
//! names that are free, values, queries of tokens, through the library and the command line.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of a test fail it by a panic"
)]

use std::time::Duration;

use futures_util::FutureExt;
use holdfast::{Client, Error, Guard, LockInfo, Mode, QueuePlace};
use holdfast_runtime::Runtime;
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::fault::{Line, Relay};
use holdfast_tests::program::Program;

const PATIENCE: Duration = Duration::from_secs(30);

async fn client(cluster: &Cluster, label: &str) -> Client {
    let builder = Client::builder().endpoints(cluster.endpoints().split(','));
    builder.label(label).connect().await.unwrap()
}

/// Waits for something that must happen in time.
async fn soon<T>(what: impl IntoFuture<Output = T>) -> T {
    let within = Runtime::system().timeout(PATIENCE, what.into_future()).await;
    within.expect("it comes within half a minute")
}

/// Waits until the request stands in the queue.
async fn queued(mut place: QueuePlace) -> QueuePlace {
    soon(place.next()).await.expect("it has to wait");
    place
}

fn names(guard: &Guard) -> Vec<&str> {
    guard.names().collect()
}

async fn look(client: &Client, name: &str) -> LockInfo {
    client.reader().inspect(name).await.unwrap().unwrap_or_else(|| panic!("{name} is there"))
}

/// I2, I9: adjacent readers enter together, and none overtakes a writer.
#[tokio::test]
async fn readers_share_and_a_writer_is_not_overtaken() {
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    let client = client(&cluster, "one").await;
    let first = soon(client.lock("rates").shared()).await.unwrap();
    let second = soon(client.try_lock("rates").shared()).await.unwrap();
    let writer = queued(client.lock("rates").enqueue()).await;
    let late = queued(client.lock("rates").shared().enqueue()).await;

    let lock = look(&client, "rates").await;
    assert_eq!((lock.held_by, lock.waiting), (2, 2));
    assert!(lock.holders.iter().all(|holder| holder.mode == Mode::Shared), "{lock:?}");
    let refused = client.try_lock("rates").shared().await.unwrap_err();
    assert!(matches!(refused, Error::NotGranted { .. }), "a writer waits: {refused}");

    soon(first.release()).await.unwrap();
    soon(second.release()).await.unwrap();
    let writer = soon(writer).await.unwrap();
    assert!(late.place().is_some());
    soon(writer.release()).await.unwrap();
    assert_eq!(soon(late).await.unwrap().lock("rates").mode(), Some(Mode::Shared));
}

/// I14.
#[tokio::test]
async fn a_set_is_granted_whole_and_given_back_name_by_name() {
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    let client = client(&cluster, "one").await;
    let busy = soon(client.lock("b")).await.unwrap();
    let refused = client.try_lock_all(["a", "b"]).await.unwrap_err();
    assert!(matches!(refused, Error::NotGranted { .. }), "{refused}");
    assert!(client.reader().inspect("a").await.unwrap().is_none(), "nothing of it is held");

    let set = queued(client.lock_all(["c", "b", "a"]).enqueue()).await;
    soon(busy.release()).await.unwrap();
    let set = soon(set).await.unwrap();
    assert_eq!(names(&set), ["c", "b", "a"]);
    let next = queued(client.lock("b").enqueue()).await;
    let others = soon(set.contended().next()).await.unwrap();
    assert_eq!((&*others.name, others.waiting), ("b", 1));

    soon(set.release_names(["b", "c"])).await.unwrap();
    let next = soon(next).await.unwrap();
    assert!(next.token() > set.token() && set.is_safe());
    assert_eq!(names(&set), ["a"]);
    assert!(client.reader().check_token("a", set.token()).await.unwrap());
    assert!(!client.reader().check_token("b", set.token()).await.unwrap());
    assert!(client.reader().check_token("b", next.token()).await.unwrap());
}

#[tokio::test]
async fn any_of_several_takes_what_is_free_and_waits_only_for_the_first() {
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    let client = client(&cluster, "one").await;
    let busy = soon(client.lock("a")).await.unwrap();

    let free = soon(client.any_of(["a", "b", "c"])).await.unwrap();
    assert_eq!(names(&free), ["b", "c"]);
    let none = soon(client.try_any_of(["a", "b"])).await.unwrap_err();
    assert!(matches!(&none, Error::NotGranted { .. }), "{none}");
    let waiting = queued(client.any_of(["a", "b"]).enqueue()).await;
    soon(busy.release()).await.unwrap();

    let got = soon(waiting).await.unwrap();
    assert_eq!(names(&got), ["a"]);
    assert_eq!(look(&client, "b").await.waiting, 0, "it has left the other queue");
}

/// DESIGN §4, Value: it outlives the hold, and is suspect after an end without a release.
#[tokio::test]
async fn a_value_goes_to_the_next_holder_and_is_suspect_if_the_last_one_died() {
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    let next = client(&cluster, "next").await;
    let relay = Relay::before(&cluster.nodes()[0].listen).await;
    let builder = Client::builder().endpoints([relay.address()]);
    let doomed = builder.ttl(Duration::from_secs(1)).connect().await.unwrap();
    let guard = soon(doomed.lock("import")).await.unwrap();
    assert_eq!(guard.value(), None);
    soon(guard.set_value("first")).await.unwrap();
    soon(guard.set_value("half")).await.unwrap();
    let token = guard.token();
    let waiting = queued(next.lock("import").enqueue()).await;
    relay.set(Line::Silent);

    let guard = soon(waiting).await.unwrap();
    let left = guard.value().expect("it outlives its holder");
    assert_eq!((&left.bytes[..], left.token, left.is_suspect), (&b"half"[..], token, true));
    soon(guard.confirm_value()).await.unwrap();
    let confirmed = look(&next, "import").await.value.expect("it is shown");
    assert_eq!((confirmed.token, confirmed.is_suspect), (token, false));
    assert_eq!(guard.value(), Some(confirmed), "the guard knows as much");
    soon(guard.clear_value()).await.unwrap();
    let nothing = soon(guard.confirm_value()).await.unwrap_err();
    assert!(matches!(nothing, Error::Refused { .. }), "{nothing}");
    soon(guard.release()).await.unwrap();
    assert!(next.reader().inspect("import").await.unwrap().is_none(), "no residue (I33)");
}

/// DESIGN §5.6, I12, I23 over a change of leader: parts and values that are requested while no node
/// leads are applied once.
#[tokio::test]
async fn sets_and_values_outlive_the_leader() {
    let mut cluster = Cluster::start(&Setup::nodes(3)).await;
    let client = client(&cluster, "one").await;
    let guard = soon(client.lock_all(["a", "b", "c"])).await.unwrap();
    soon(guard.lock("b").set_value("before")).await.unwrap();
    soon(guard.release_names(["a"])).await.unwrap();
    let shared = soon(client.lock("rates").shared()).await.unwrap();
    let any = queued(client.any_of(["b", "c"]).enqueue()).await;

    let leader = cluster.leader().await;
    cluster.kill(leader);
    let (changed, part) = soon(async {
        tokio::join!(guard.lock("b").set_value("after"), guard.release_names(["c"]))
    })
    .await;

    assert_eq!((changed, part), (Ok(()), Ok(())));
    assert!(guard.is_safe() && shared.is_safe());
    assert_eq!(names(&guard), ["b"]);
    let any = soon(any).await.unwrap();
    assert_eq!(names(&any), ["c"], "what was given back meanwhile");
    let lock = look(&client, "b").await;
    assert_eq!(lock.holders.first().map(|holder| holder.token), Some(guard.token()));
    assert_eq!(lock.value.map(|value| value.bytes.to_vec()), Some(b"after".to_vec()));
    assert!(client.reader().inspect("a").await.unwrap().is_none());
    assert_eq!(
        look(&client, "rates").await.holders.first().map(|one| one.mode),
        Some(Mode::Shared)
    );
}

/// Each gets an error of its own, from the client or the server, and none of them changes anything.
#[tokio::test]
async fn what_makes_no_sense_is_refused_in_words_of_its_own() {
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    let client = client(&cluster, "one").await;
    let shared = soon(client.lock("rates").shared()).await.unwrap();
    let own = queued(client.lock("rates").enqueue()).await;
    assert!(own.place().is_some(), "two requests of one session exclude each other");
    let wrong = [
        (client.try_lock_all(["a", "a"]).await.map(drop), "a is named twice in one request"),
        (client.lock("").await.map(drop), "cannot be empty"),
        (shared.set_value("x").await, "only an exclusive holder sets its value"),
        (shared.set_value(vec![0; 5_000]).await, "5000 bytes is larger than the 4096 allowed"),
        (shared.release_names(["a"]).await, "a is not held by this guard"),
    ];

    for (outcome, words) in wrong {
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    assert!(client.reader().inspect("a").await.unwrap().is_none());
}

#[tokio::test]
async fn the_command_line_shares_takes_several_and_checks_tokens() {
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    let endpoints = cluster.endpoints();
    let run = |arguments: &[&str]| {
        let servers = ["--endpoints", &*endpoints];
        Program::start("holdfast", &[&servers, arguments].concat()).end(PATIENCE)
    };
    let client = client(&cluster, "reader").await;
    let guard = soon(client.lock("a").shared()).await.unwrap();

    let shown = "echo $HOLDFAST_LOCKS";
    let any = run(&["try", "--any", "a", "b", "c", "--", "sh", "-c", shown]).await;
    assert_eq!((any.code, any.out.as_str()), (Some(0), "b c\n"), "{}", any.err);
    let all = run(&["try", "a", "b", "--", "true"]).await;
    assert_eq!(all.code, Some(124), "{}", all.err);
    assert!(all.err.contains("a, b are not granted"), "{}", all.err);
    let shared = run(&["lock", "--shared", "a", "b", "--", "true"]).await;
    assert_eq!(shared.code, Some(0), "{}", shared.err);

    let token = guard.token().to_string();
    assert_eq!(run(&["check-token", "a", &token]).await.code, Some(0));
    soon(guard.release()).await.unwrap();
    assert_eq!(run(&["check-token", "a", &token]).await.code, Some(1));
    assert_eq!(run(&["check-token", "", &token]).await.code, Some(122));
}

/// Dropped at any moment, a request for several leaves nothing behind.
#[tokio::test]
async fn requests_for_several_that_are_dropped_leave_nothing_behind() {
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    let client = client(&cluster, "one").await;
    let busy = soon(client.lock("b")).await.unwrap();
    for _ in 0..20 {
        drop(queued(client.lock_all(["a", "b", "c"]).enqueue()).await);
        drop(client.any_of(["b", "a"]).enqueue());
        assert!(client.try_any_of(["a", "c"]).into_future().now_or_never().is_none());
    }
    soon(busy.release()).await.unwrap();

    let all = soon(client.lock_all(["a", "b", "c"])).await.unwrap();

    assert_eq!(names(&all), ["a", "b", "c"]);
    soon(all.release()).await.unwrap();
    soon(client.close()).await.unwrap();
    let reader = Client::builder().endpoints(cluster.endpoints().split(',')).reader().unwrap();
    assert_eq!(reader.list("").await.unwrap(), []);
}

/// I31, the review's L3: a State of 17 MiB is more than a client takes in one message. Either the
/// client resumes with all of it, or its locks end; they are never held without a client.
#[tokio::test]
async fn a_client_with_megabytes_of_state_keeps_its_locks_over_a_restart_or_loses_them() {
    const SETS: usize = 68;
    const NAMES: usize = 64;
    let mut cluster = Cluster::start(&Setup::nodes(1)).await;
    let builder = Client::builder().endpoints(cluster.endpoints().split(','));
    let holder = builder.ttl(Duration::from_secs(2)).connect().await.unwrap();
    let mut guards = Vec::new();
    for set in 0..SETS {
        let names: Vec<_> = (0..NAMES).map(|nth| format!("set {set}/lock {nth}")).collect();
        let guard = soon(holder.lock_all(&names)).await.unwrap();
        let value = bytes::Bytes::from(vec![7; 4 << 10]);
        let changes = names.iter().map(|name| guard.lock(name).set_value(value.clone()));
        for changed in soon(futures_util::future::join_all(changes)).await {
            changed.unwrap();
        }
        guards.push(guard);
    }

    cluster.kill(0);
    cluster.start_node(0);
    let other = client(&cluster, "other").await;
    let clock = Runtime::system().clock;
    let restarted = clock.now();
    let settled = async {
        loop {
            // A client that is safe after more than a TTL has renewed since.
            let renewed = clock.now().saturating_since(restarted) > Duration::from_secs(3);
            let safe = guards.iter().filter(|guard| guard.is_safe()).count();
            let holders = match other.reader().inspect("set 0/lock 0").await {
                Ok(lock) => lock.map_or(0, |lock| lock.held_by),
                Err(_) => 1,
            };
            if (safe, holders) == (SETS, 1) && renewed || (safe, holders) == (0, 0) {
                return (safe, holders);
            }
            Runtime::system().sleep(Duration::from_millis(100)).await;
        }
    };
    let (safe, holders) = soon(settled).await;
    println!("{safe} guards safe, {holders} holder at the store");
}
