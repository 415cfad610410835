//! Watching, on real nodes: no change is missed or reported twice, over killed leaders too; a
//! watcher that does not read is cut, and no other client notices; `holdfast watch` as a script
//! sees it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of a test fail it by a panic"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdfast::{ChangeKind, Client, LockChange, Watch, WatchEvent};
use holdfast_proto::v1::lock_change::What;
use holdfast_proto::v1::lock_service_client::LockServiceClient;
use holdfast_proto::v1::watch_event::Body;
use holdfast_proto::v1::{WatchRequest, WatchResponse};
use holdfast_runtime::{Runtime, Task};
use holdfast_tests::cluster::{Cluster, Setup, free_port};
use holdfast_tests::program::Program;
use holdfast_tests::wire;
use nix::sys::signal::Signal;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Streaming};

/// Longest wait for anything that must happen.
const LIMIT: Duration = Duration::from_mins(1);

/// Waits until something holds, looking every few milliseconds.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let runtime = Runtime::system();
    let give_up = runtime.clock.now() + LIMIT;
    while !holds() {
        assert!(runtime.clock.now() < give_up, "not within {LIMIT:?}: {what}");
        runtime.sleep(Duration::from_millis(5)).await;
    }
}

async fn client(endpoints: &str) -> Client {
    Client::builder().endpoints(endpoints.split(',')).label("tester").connect().await.unwrap()
}

// ---- a watcher over killed leaders ---------------------------------------------------------

/// The reports of a watch between two restarts, processed in order.
#[derive(Debug, Default)]
struct Epoch {
    /// The holders: by name, the tokens.
    held: BTreeMap<String, BTreeSet<u64>>,
    waiting: BTreeMap<String, u64>,
    synced: bool,
    /// Grants reported as changes after `Synced`, in order.
    grants: Vec<(u64, String)>,
    index: u64,
}

impl Epoch {
    /// Fails on a change that is reported twice, or out of order.
    fn take_in(&mut self, event: WatchEvent) {
        match event {
            WatchEvent::Lock(lock) => {
                assert!(!self.synced, "{} is shown after Synced", lock.name);
                let tokens = lock.holders.iter().map(|holder| holder.token.get()).collect();
                let before = self.held.insert(lock.name.clone(), tokens);
                assert_eq!(before, None, "{} is shown twice", lock.name);
                self.waiting.insert(lock.name, lock.waiting);
            }
            WatchEvent::Synced => {
                assert!(!self.synced, "synced twice");
                self.synced = true;
            }
            WatchEvent::Change(change) => self.changed(change),
            other => panic!("{other:?}"),
        }
    }

    fn changed(&mut self, LockChange { name, what, waiting, index, .. }: LockChange) {
        assert!(index >= self.index, "index {index} after {}", self.index);
        self.index = index;
        let held = self.held.entry(name.clone()).or_default();
        match what {
            ChangeKind::Granted(holder) => {
                let token = holder.token.get();
                assert!(held.insert(token), "{name} is granted twice under {token}");
                assert_eq!(held.len(), 1, "{name} is granted to two");
                if self.synced {
                    self.grants.push((token, name.clone()));
                }
            }
            ChangeKind::Released(holder) | ChangeKind::Lost(holder, _) => {
                assert!(held.remove(&holder.token.get()), "{name} was not held: {holder:?}");
            }
            _ => {}
        }
        self.waiting.insert(name, waiting);
    }

    /// Checks that every grant that a client saw between the first and the last one reported here
    /// was reported, each once, in the order of the tokens.
    fn judge(&self, seen: &BTreeMap<u64, String>) {
        let tokens: Vec<u64> = self.grants.iter().map(|(token, _)| *token).collect();
        assert!(tokens.is_sorted_by(|a, b| a < b), "out of order: {tokens:?}");
        let (Some(&first), Some(&last)) = (tokens.first(), tokens.last()) else { return };
        let told: BTreeMap<u64, String> = self.grants.iter().cloned().collect();
        for (token, name) in seen.range(first..=last) {
            assert_eq!(told.get(token), Some(name), "the grant under {token} was not told");
        }
    }
}

/// A watcher that keeps the reports of its watch.
#[derive(Clone, Default)]
struct Watcher(Arc<Mutex<Vec<Epoch>>>, Breaks);

/// How often a watch broke, and how often it went on where it had ended.
#[derive(Clone, Default)]
struct Breaks {
    all: Arc<AtomicUsize>,
    resumed: Arc<AtomicUsize>,
}

impl Watcher {
    fn start(mut watch: Watch) -> (Self, Task) {
        let watcher = Self::default();
        watcher.0.lock().unwrap().push(Epoch::default());
        let writing = watcher.clone();
        let task = Runtime::system().spawn("watcher", async move {
            while let Some(event) = watch.next().await {
                let mut epochs = writing.0.lock().unwrap();
                match event.expect("the watch goes on") {
                    WatchEvent::Restarted => epochs.push(Epoch::default()),
                    WatchEvent::Interrupted => _ = writing.1.all.fetch_add(1, Ordering::Relaxed),
                    WatchEvent::Resumed => _ = writing.1.resumed.fetch_add(1, Ordering::Relaxed),
                    WatchEvent::Compacted => panic!("so little is kept by every node"),
                    event => epochs.last_mut().unwrap().take_in(event),
                }
            }
        });
        (watcher, task)
    }

    fn look<T>(&self, look: impl FnOnce(&[Epoch]) -> T) -> T {
        look(&self.0.lock().unwrap())
    }

    /// How many grants were reported after `Synced`.
    fn grants(&self) -> usize {
        self.look(|epochs| epochs.iter().map(|epoch| epoch.grants.len()).sum())
    }

    fn breaks(&self) -> usize {
        self.1.all.load(Ordering::Relaxed)
    }
}

/// Clients that acquire a lock, release it, and acquire the next.
struct Workers {
    /// The grants: by token, the name.
    seen: Arc<Mutex<BTreeMap<u64, String>>>,
    stop: Arc<AtomicBool>,
    running: Arc<AtomicUsize>,
    _tasks: Vec<Task>,
}

impl Workers {
    async fn start(endpoints: &str, count: usize) -> Self {
        let (seen, stop, running) =
            (Arc::default(), Arc::default(), Arc::new(AtomicUsize::new(count)));
        let mut tasks = Vec::new();
        for nth in 0..count {
            let work = work(client(endpoints).await, nth, Arc::clone(&seen), Arc::clone(&stop));
            let running = running.clone();
            tasks.push(Runtime::system().spawn("worker", async move {
                work.await;
                running.fetch_sub(1, Ordering::Relaxed);
            }));
        }
        Self { seen, stop, running, _tasks: tasks }
    }

    async fn finish(self) -> BTreeMap<u64, String> {
        self.stop.store(true, Ordering::Relaxed);
        until("the workers are done", || self.running.load(Ordering::Relaxed) == 0).await;
        self.seen.lock().unwrap().clone()
    }
}

async fn work(
    client: Client,
    nth: usize,
    seen: Arc<Mutex<BTreeMap<u64, String>>>,
    stop: Arc<AtomicBool>,
) {
    let mut turn = nth;
    while !stop.load(Ordering::Relaxed) {
        turn += 1;
        let name = format!("work/{}", turn % 4);
        // Failures while no node leads do not matter here.
        if let Ok(guard) = client.lock(&name).wait(LIMIT).await {
            seen.lock().unwrap().insert(guard.token().get(), name);
            let _ = guard.release().await;
        }
    }
    // Without an answer the session lives on for its lease, which does not matter at the end of the
    // test.
    let _ = client.close().await;
}

/// The watch reports every change once and in order, or that it begins anew with the state: over two
/// leaders killed under load. Every node keeps so many changes that it goes on where it ended.
#[tokio::test]
async fn a_watcher_misses_nothing_but_what_it_is_told_it_missed_over_killed_leaders() {
    const GRANTS: usize = 150;
    let mut cluster = Cluster::start(&Setup::nodes(3)).await;
    cluster.all_ready().await;
    let reader = Client::builder().endpoints(cluster.endpoints().split(',')).reader().unwrap();
    let (watcher, _task) = Watcher::start(reader.watch("work/"));
    until("it is synced", || watcher.look(|epochs| epochs[0].synced)).await;
    let workers = Workers::start(&cluster.endpoints(), 6).await;
    until("grants are told", || watcher.grants() >= GRANTS).await;
    for _ in 0..2 {
        let (breaks, leader) = (watcher.breaks(), cluster.leader().await);
        cluster.kill(leader);
        until("the watch breaks", || watcher.breaks() > breaks).await;
        let grants = watcher.grants();
        until("grants are told again", || watcher.grants() >= grants + GRANTS).await;
        cluster.start_node(leader);
        cluster.all_ready().await;
    }
    let seen = workers.finish().await;

    // All holds but one are over, and the watcher knows.
    let last = client(&cluster.endpoints()).await;
    let guard = last.lock("work/last").wait(LIMIT).await.unwrap();
    let token = guard.token().get();
    let holds_it =
        |epoch: &Epoch| epoch.held.get("work/last").is_some_and(|it| it.contains(&token));
    until("the last grant is told", || watcher.look(|epochs| holds_it(epochs.last().unwrap())))
        .await;
    watcher.look(|epochs| {
        let resumed = watcher.1.resumed.load(Ordering::Relaxed);
        assert!(resumed >= 2 && epochs.len() == 1, "{resumed}, {} epochs", epochs.len());
        for epoch in epochs {
            epoch.judge(&seen);
        }
        let end = epochs.last().unwrap();
        for (name, held) in &end.held {
            assert!(held.is_empty() || name == "work/last", "{name} is still held: {held:?}");
        }
        assert!(end.waiting.values().all(|waiting| *waiting == 0), "{:?}", end.waiting);
        let told: usize = epochs.iter().map(|epoch| epoch.grants.len()).sum();
        assert!(told >= 3 * GRANTS && seen.len() >= 3 * GRANTS, "{told} of {}", seen.len());
    });
}

/// Whichever node is asked: a node that does not lead names the leader, and the library goes there.
#[tokio::test]
async fn a_watch_goes_through_any_node_and_a_client_that_goes_itself_is_sent_to_the_leader() {
    let cluster = Cluster::start(&Setup::nodes(3)).await;
    cluster.all_ready().await;
    let leader = cluster.leader().await;
    let follower = &cluster.nodes()[(leader + 1) % 3].listen;
    let mut direct = wire::connect(follower).await.unwrap();

    let mut through = direct.watch(WatchRequest::default()).await.unwrap().into_inner();
    assert!(through.message().await.unwrap().is_some());
    let mut itself = Request::new(WatchRequest::default());
    itself.metadata_mut().insert("holdfast-redirect", MetadataValue::from_static(""));
    let status = direct.watch(itself).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    let hint = status.metadata().get("holdfast-leader").unwrap();
    assert_eq!(hint.to_str().unwrap(), cluster.nodes()[leader].listen);
    let mut watch = Client::builder().endpoints([follower]).reader().unwrap().watch("");
    assert_eq!(watch.next().await, Some(Ok(WatchEvent::Synced)));
}

// ---- many watches over few connections -----------------------------------------------------

/// The watches of one process share connections. None of them waits for one that nobody reads, and neither does a
/// session.
#[tokio::test]
async fn watches_share_connections_and_one_that_is_not_read_stops_no_other() {
    const WATCHES: usize = 200;
    const ROUNDS: usize = 1_500;
    let cluster = Cluster::start(&Setup::nodes(1).node("max_connections", 64)).await;
    let builder = Client::builder().endpoints([&cluster.nodes()[0].listen]).share_connections();
    let reader = builder.reader().unwrap();
    let mut unread = Vec::new();
    for _ in 0..WATCHES {
        let mut watch = reader.watch("jobs/");
        assert_eq!(watch.next().await, Some(Ok(WatchEvent::Synced)));
        unread.push(watch);
    }
    let (watcher, _task) = Watcher::start(reader.watch("jobs/"));
    until("it is synced", || watcher.look(|epochs| epochs[0].synced)).await;
    let client = builder.connect().await.unwrap();
    for round in 0..ROUNDS {
        client.lock(format!("jobs/{}", round % 7)).await.unwrap().release().await.unwrap();
    }
    until("all grants are told", || watcher.grants() == ROUNDS).await;
    assert_eq!(watcher.breaks(), 0);
    // What was not read was not lost either.
    for watch in &mut unread {
        assert!(matches!(watch.next().await, Some(Ok(WatchEvent::Change(_)))));
    }
}

// ---- many watchers, one of them stuck ------------------------------------------------------

/// Watchers that read, all of one prefix.
struct Crowd {
    /// By watcher: the reported tokens, once for the grant and once for the release.
    told: Arc<Mutex<Vec<Vec<u64>>>>,
    synced: Arc<AtomicUsize>,
    _tasks: Vec<Task>,
}

impl Crowd {
    /// `count` watchers, a hundred to a connection.
    async fn start(address: &str, count: usize) -> Self {
        let told = Arc::new(Mutex::new(vec![Vec::new(); count]));
        let synced = Arc::new(AtomicUsize::new(0));
        let (mut tasks, mut connection) = (Vec::new(), None);
        for nth in 0..count {
            if nth % 100 == 0 {
                connection = Some(wire::connect(address).await.unwrap());
            }
            let mut stream = watch_jobs(connection.clone().unwrap()).await;
            let (told, synced) = (told.clone(), synced.clone());
            tasks.push(Runtime::system().spawn("watcher", async move {
                while let Ok(Some(message)) = stream.message().await {
                    for event in message.events().unwrap() {
                        match event.body.unwrap() {
                            Body::Synced(_) => _ = synced.fetch_add(1, Ordering::Relaxed),
                            Body::Change(change) => {
                                told.lock().unwrap()[nth].extend(token_of(change.what));
                            }
                            Body::Lock(lock) => panic!("nothing is held yet: {lock:?}"),
                        }
                    }
                }
            }));
        }
        Self { told, synced, _tasks: tasks }
    }

    /// Whether so many changes were reported to every watcher.
    fn has(&self, changes: usize) -> bool {
        self.told.lock().unwrap().iter().all(|told| told.len() >= changes)
    }
}

async fn watch_jobs(mut connection: LockServiceClient<Channel>) -> Streaming<WatchResponse> {
    let request = WatchRequest { prefix: "jobs/".into(), resume: None };
    connection.watch(request).await.unwrap().into_inner()
}

fn token_of(what: Option<What>) -> Option<u64> {
    match what? {
        What::Granted(holder) | What::Released(holder) => Some(holder.token),
        other => panic!("nobody waits here: {other:?}"),
    }
}

/// Acquires and releases a lock, so many times; returns the number of changes that makes.
async fn grants(client: &Client, rounds: usize, tokens: &mut Vec<u64>) -> usize {
    for round in 0..rounds {
        let guard = client.try_lock(format!("jobs/{round}")).await.unwrap();
        tokens.extend([guard.token().get(); 2]);
        guard.release().await.unwrap();
    }
    2 * rounds
}

/// I27. The grants are counted: those made while one watcher is stuck, and after it was cut, are as
/// many as before; every other watcher receives all of them.
#[tokio::test]
async fn a_stuck_watcher_among_a_thousand_is_cut_and_nobody_notices() {
    const WATCHERS: usize = 1_000;
    const BACKLOG: usize = 64;
    const ROUNDS: usize = 8;
    let setup = Setup::nodes(1).node("watch_backlog", BACKLOG).node("max_watches", WATCHERS);
    let cluster = Cluster::start(&setup).await;
    let address = &cluster.nodes()[0].listen;
    let crowd = Crowd::start(address, WATCHERS - 1).await;
    // The smallest of windows: messages that it does not read soon stay at the server.
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let endpoint = endpoint.initial_stream_window_size(1_024);
    let mut stuck = watch_jobs(LockServiceClient::new(endpoint.connect().await.unwrap())).await;
    until("all are synced", || crowd.synced.load(Ordering::Relaxed) == WATCHERS - 1).await;

    // One more than allowed.
    let mut more = wire::connect(address).await.unwrap();
    let status = more.watch(WatchRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("max_watches = 1000"), "{status:?}");

    let client = client(address).await;
    let (mut tokens, mut made) = (Vec::new(), 0);
    // Until its place is free again it was not cut.
    let mut cut_after = None;
    for turn in 0..16 {
        // A watcher that reads is never more than these behind.
        made += grants(&client, ROUNDS, &mut tokens).await;
        until("all who read are told", || crowd.has(made)).await;
        if cut_after.is_none() && more.watch(WatchRequest::default()).await.is_ok() {
            cut_after = Some(turn);
        }
    }
    let cut_after = cut_after.expect("the stuck watcher is cut");
    assert!((BACKLOG / (2 * ROUNDS)..15).contains(&cut_after), "cut after turn {cut_after}");
    assert_eq!(tokens.len(), 16 * 2 * ROUNDS, "every grant was made");
    for (nth, told) in crowd.told.lock().unwrap().iter().enumerate() {
        assert_eq!(*told, tokens, "watcher {nth}");
    }

    // It reads again: first the messages under way, then the reason why it was cut.
    let mut read = 0;
    let status = loop {
        match stuck.message().await {
            Ok(message) => read += message.expect("no plain end").encoded_events.len(),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("watch_backlog = 64"), "{status:?}");
    assert!(read < tokens.len(), "all {read} events came");
}

// ---- the command line ----------------------------------------------------------------------

#[tokio::test]
async fn holdfast_watch_prints_a_line_for_each_change_and_ends_quietly_when_asked() {
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    let endpoints = cluster.endpoints();
    let client = client(&endpoints).await;
    let held = client.lock("orders/1\u{85}2").await;
    assert!(held.is_err(), "a control character is no part of a name");
    let first = client.lock("orders/1").await.unwrap();
    let mut text = Program::start("holdfast", &["--endpoints", &endpoints, "watch", "orders/"]);
    let mut json =
        Program::start("holdfast", &["--endpoints", &endpoints, "--json", "watch", "orders/"]);
    let held = format!("orders/1  held by tester (token {})", first.token());
    text.shows(&held, LIMIT).await;
    text.shows("# that is the only lock; changes follow", LIMIT).await;
    json.shows(r#""event":"synced""#, LIMIT).await;

    let other = client.lock("elsewhere").await.unwrap();
    let second = client.lock("orders/42").await.unwrap();
    second.set_value("x\u{1b}[2J").await.unwrap();
    let token = second.token();
    second.release().await.unwrap();
    other.release().await.unwrap();
    client.close().await.unwrap();
    let lines = [
        format!("orders/42  held by tester (token {token})"),
        "orders/42  value 5 bytes".to_owned(),
        format!("orders/42  released by tester (token {token})"),
        format!("orders/1  lost by tester (token {}): the session was closed", first.token()),
    ];
    for line in &lines {
        text.shows(line, LIMIT).await;
    }
    json.shows(r#""event":"lost""#, LIMIT).await;
    for (program, signal) in [(text, Signal::SIGINT), (json, Signal::SIGTERM)] {
        program.signal(signal);
        let ended = program.end(LIMIT).await;
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{signal}");
        assert!(!ended.out.contains("elsewhere"), "{}", ended.out);
        assert!(!ended.out.contains('\u{1b}'), "{}", ended.out);
        if signal == Signal::SIGTERM {
            let events: Vec<serde_json::Value> =
                ended.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            let kinds: Vec<_> =
                events.iter().map(|event| event["event"].as_str().unwrap()).collect();
            assert_eq!(kinds, ["lock", "synced", "granted", "value", "released", "lost"]);
            let has_time = |event: &serde_json::Value| event["at"].as_str().unwrap().ends_with('Z');
            assert!(events.iter().all(has_time), "{events:?}");
            assert_eq!(events[5]["holder"]["label"], "tester", "its session has ended");
            assert_eq!(events[2]["holder"]["token"], token.to_string());
            assert_eq!(events[3]["value"]["data"], "x\u{1b}[2J");
            assert_eq!(events[5]["reason"], "session-closed");
        }
    }
}

#[tokio::test]
async fn holdfast_watch_names_what_is_wrong_in_one_line() {
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    let endpoints = cluster.endpoints();
    let nobody = format!("127.0.0.1:{}", free_port());
    let too_long = "x".repeat(513);
    let cases = [
        (&endpoints, "a\nb", 122, "the prefix is not usable"),
        (&endpoints, too_long.as_str(), 122, "512"),
        (&nobody, "", 123, nobody.as_str()),
    ];
    for (endpoints, prefix, code, words) in cases {
        let arguments = ["--endpoints", endpoints, "watch", prefix];
        let ended = Program::start("holdfast", &arguments).end(LIMIT).await;
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert!(ended.err.contains(words) && ended.err.lines().count() == 1, "{ended:?}");
        assert_eq!(ended.out, "");
    }
}
