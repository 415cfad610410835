//! An import from three real Cassandra nodes: which rows it reads, in which order it sends them, what a killed run leaves, and which
//! clients are in the way. The store is one in memory.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests stop the test when something is not as it must be"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use holdfast::{FencingToken, ImportGroup, ImportOutcome, ImportedState, RefusalReason};
use holdfast_migrate::import::{
    Fault, ImportError, ImportReport, Importer, Options, Pace, Sum, import_all,
};
use holdfast_migrate::layout::Layout;
use holdfast_migrate::plan::Rules;
use holdfast_migrate::scan::{Range, Scan};
use holdfast_migrate::verify::{Difference, NativeLock, NativeStore, Party, Verified, verify};
use holdfast_recipes::{LockerOptions, SerialScope, recipe};
use holdfast_runtime::Runtime;
use holdfast_tests::cassandra::{LEASE, MODES, QUEUE, Stage};
use holdfast_tests::recipe::Recipe;

/// A store that answers like the native one: each lock's holder, then its queue.
#[derive(Debug, Default)]
struct Store {
    cluster: &'static str,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    lines: BTreeMap<String, Vec<String>>,
    values: BTreeMap<String, Vec<u8>>,
    leases_ms: BTreeMap<String, u64>,
    requests: usize,
    /// From this request on it takes nothing any more.
    dies_at: Option<usize>,
}

impl Store {
    fn new(cluster: &'static str) -> Self {
        Self { cluster, state: Mutex::default() }
    }

    fn lines(&self) -> BTreeMap<String, Vec<String>> {
        self.state.lock().unwrap().lines.clone()
    }

    fn requests(&self) -> usize {
        self.state.lock().unwrap().requests
    }

    fn dies_at(&self, request: Option<usize>) {
        self.state.lock().unwrap().dies_at = request;
    }
}

impl State {
    fn apply(&mut self, group: ImportGroup) -> Vec<ImportOutcome> {
        let ImportGroup { owner, remaining, rows } = group;
        let refused = |message| ImportOutcome::Refused { reason: RefusalReason::Invalid, message };
        let mut outcomes = Vec::new();
        for row in rows {
            let line = self.lines.entry(row.name.clone()).or_default();
            let waits = row.has == ImportedState::Place;
            outcomes.push(match line.first() {
                _ if line.contains(&owner) => ImportOutcome::Known,
                None if waits => refused("nobody holds it".into()),
                Some(holder) if !waits => refused(format!("held by {holder}")),
                None | Some(_) => {
                    line.push(owner.clone());
                    let remaining_ms = u64::try_from(remaining.as_millis()).unwrap();
                    self.leases_ms.insert(owner.clone(), remaining_ms);
                    if waits {
                        ImportOutcome::Queued { place: 0 }
                    } else {
                        ImportOutcome::Held { token: FencingToken::from_raw(1) }
                    }
                }
            });
            if let ImportedState::Hold { value: Some(value) } = row.has {
                self.values.insert(row.name, value);
            }
        }
        outcomes
    }
}

impl Importer for &Store {
    async fn cluster(&self) -> Result<String, Fault> {
        Ok(self.cluster.into())
    }

    async fn import(&self, groups: &[ImportGroup]) -> Result<Vec<Vec<ImportOutcome>>, Fault> {
        // A real store is not as fast, and other tasks go on meanwhile.
        tokio::task::yield_now().await;
        let mut state = self.state.lock().unwrap();
        state.requests += 1;
        if state.dies_at.is_some_and(|at| state.requests >= at) {
            return Err(Fault::Refused("dead".into()));
        }
        Ok(groups.iter().map(|group| state.apply(group.clone())).collect())
    }
}

/// An owner that ends with a star did not come in by an import.
impl NativeStore for Store {
    async fn lock(&self, name: &str) -> Result<Option<NativeLock>, Fault> {
        let state = self.state.lock().unwrap();
        let Some(line) = state.lines.get(name) else { return Ok(None) };
        let party = |label: &String| Party {
            label: label.clone(),
            is_imported: !label.ends_with('*'),
            left: Some(Duration::from_hours(1)),
            ..Party::default()
        };
        let mut parties = line.iter().map(party);
        Ok(Some(NativeLock {
            name: name.to_owned(),
            holders: parties.next().into_iter().collect(),
            line: parties.collect(),
            value: state.values.get(name).cloned(),
            ..NativeLock::default()
        }))
    }

    /// Pages of two names.
    async fn names(
        &self,
        prefix: &str,
        after: Option<&str>,
    ) -> Result<(Vec<String>, Option<String>), Fault> {
        let lines = self.lines();
        let below = lines.keys().filter(|name| name.starts_with(prefix));
        let mut rest = below.filter(|name| after.is_none_or(|after| name.as_str() > after));
        let names: Vec<String> = rest.by_ref().take(2).cloned().collect();
        let next = rest.next().and_then(|_| names.last().cloned());
        Ok((names, next))
    }
}

fn leases() -> Layout {
    Layout::of(recipe::Recipe::Lease)
}

fn queues() -> Layout {
    Layout::of(recipe::Recipe::Queue)
}

fn options(ranges: usize, checkpoint: Option<&Path>) -> Options {
    Options {
        rules: Rules::new("", Duration::from_mins(3)),
        ranges,
        reads_at_once: 4,
        requests_at_once: 4,
        pace: Pace::new(None),
        checkpoint: checkpoint.map(PathBuf::from),
        writers_stopped: true,
        modes_table: Some("locker_modes".into()),
    }
}

async fn import(
    stage: &Stage,
    layout: Layout,
    store: &Store,
    options: Options,
) -> Result<Sum, ImportError> {
    let runtime = Runtime::system();
    let session = stage.nodes().session().await;
    let scan =
        Scan::open(session, (stage.keyspace(), &SerialScope::Cluster), layout, runtime.clone())
            .await
            .unwrap();
    let mut rows = 0;
    let mut count = |step| {
        if let ImportReport::Rows { number } = step {
            rows += number;
        }
    };
    let sum = import_all(&scan, store, options, runtime, &mut count, &mut |_| {}).await?;
    let Sum { imported, queued, already_there, refused, over, .. } = &sum;
    assert_eq!(u64::try_from(rows).unwrap(), imported + queued + already_there + refused + over);
    Ok(sum)
}

async fn cql(stage: &Stage, statements: &[&str]) {
    for statement in statements {
        stage.cql(statement).await;
    }
}

/// So many leases of an hour, of fifty owners.
async fn many(stage: &Stage, number: u32) {
    let insert = format!(
        "INSERT INTO \"{}\".leases (name, owner) VALUES (?, ?) USING TTL 3600",
        stage.keyspace()
    );
    let insert = stage.session().prepare(insert).await.unwrap();
    let rows = stream::iter(0..number).map(|row| {
        let values = (format!("job/{row}"), format!("client_{}", row % 50));
        stage.session().execute_unpaged(&insert, values)
    });
    let inserted = rows.buffer_unordered(64);
    inserted.for_each(async |inserted| assert!(inserted.is_ok(), "{inserted:?}")).await;
}

fn expected(number: u32) -> BTreeMap<String, Vec<String>> {
    let line = |row| (format!("job/{row}"), vec![format!("client_{}", row % 50)]);
    (0..number).map(line).collect()
}

#[tokio::test]
async fn what_is_held_and_waited_for_comes_in_once_and_in_order() {
    let stage = Stage::set("import_once", &[LEASE, QUEUE, MODES]).await;
    let cell = |table: &str, column: &str, ttl_s: u32| {
        format!(
            "INSERT INTO k.{table} (key, column1, value) VALUES ('q', '{column}', 'x') \
             USING TTL {ttl_s}"
        )
    };
    let place = |time: u32, thread: &str| format!("{time:020}{thread}");
    let rows = [
        "INSERT INTO k.leases (name, owner, value) VALUES ('a', 'o1', 'here') USING TTL 600".into(),
        "INSERT INTO k.leases (name, owner) VALUES ('b', 'o1') USING TTL 900".into(),
        "INSERT INTO k.leases (name, owner) VALUES ('c', 'o2') USING TTL 0".into(),
        cell("lock_main", "t1", 600),
        cell("lock_queue", &place(1, "t1"), 600),
        cell("lock_queue", &place(3, "t3"), 500),
        cell("lock_queue", &place(2, "t2"), 400),
    ];
    cql(&stage, &rows.each_ref().map(String::as_str)).await;

    let store = Store::new("one");
    let sum = import(&stage, leases(), &store, options(16, None)).await.unwrap();
    assert_eq!((sum.imported, sum.queued, sum.left_out, sum.refused), (2, 0, 1, 0));
    let sum = import(&stage, queues(), &store, options(16, None)).await.unwrap();
    assert_eq!((sum.imported, sum.queued), (1, 2));

    let owners = |owners: &[&str]| owners.iter().map(|owner| (*owner).to_owned()).collect();
    let lines: BTreeMap<String, Vec<String>> = BTreeMap::from([
        ("a".into(), owners(&["o1"])),
        ("b".into(), owners(&["o1"])),
        ("q".into(), owners(&["t1", "t2", "t3"])),
    ]);
    assert_eq!(store.lines(), lines);
    {
        let there = store.state.lock().unwrap();
        assert_eq!(there.values, BTreeMap::from([("a".to_owned(), b"here".to_vec())]));
        let lease = |owner: &str| there.leases_ms[owner];
        assert!((380_000..=400_000).contains(&lease("t2")), "{}", lease("t2"));
        assert!((480_000..=500_000).contains(&lease("t3")), "{}", lease("t3"));
    }

    for layout in [leases(), queues()] {
        let again = import(&stage, layout, &store, options(3, None)).await.unwrap();
        assert_eq!((again.imported, again.queued, again.refused), (0, 0, 0), "{again:?}");
    }
    assert_eq!(store.lines(), lines);
}

/// The store dies at some requests; each time the import is started again with its checkpoint, and in the end without it.
#[tokio::test]
async fn an_import_that_ends_early_goes_on_where_it_was() {
    let stage = Stage::set("import_resumed", &[LEASE, MODES]).await;
    many(&stage, 2_000).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("checkpoint");
    let store = Store::new("one");
    let mut done_before = BTreeSet::new();
    for dies_at in [3, 10, 25, 40] {
        store.dies_at(Some(dies_at));
        let ended = import(&stage, leases(), &store, options(64, Some(&path))).await;
        assert!(matches!(ended, Err(ImportError::Send(_))), "{ended:?}");
        let done = done_in(&path);
        assert!(done.is_superset(&done_before), "what was done is done");
        done_before = done;
    }
    assert!(!done_before.is_empty() && done_before.len() < 64, "{done_before:?}");
    let requests = store.requests();
    store.dies_at(None);
    let sum = import(&stage, leases(), &store, options(64, Some(&path))).await.unwrap();
    assert_eq!(store.lines(), expected(2_000));
    assert!(sum.imported + sum.already_there < 2_000, "what is done is not read again: {sum:?}");
    assert!(store.requests() - requests <= 64 - done_before.len());

    let whole = import(&stage, leases(), &store, options(64, None)).await.unwrap();
    assert_eq!((whole.imported, whole.already_there), (0, 2_000));
}

fn done_in(path: &Path) -> BTreeSet<u64> {
    let Ok(text) = std::fs::read(path) else { return BTreeSet::new() };
    let content: serde_json::Value = serde_json::from_slice(&text).unwrap();
    content["done"].as_object().unwrap().keys().map(|range| range.parse().unwrap()).collect()
}

/// Another store, other ranges, a table that was dropped and made again under its name.
#[tokio::test]
async fn a_checkpoint_of_another_import_is_refused_and_nothing_is_sent() {
    let stage = Stage::set("import_other", &[LEASE, MODES]).await;
    let table = "CREATE TABLE k.leases (name text PRIMARY KEY, owner text, value text)";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("checkpoint");
    many(&stage, 50).await;
    let store = Store::new("one");
    import(&stage, leases(), &store, options(4, Some(&path))).await.unwrap();

    let other = Store::new("other");
    let refused = import(&stage, leases(), &other, options(4, Some(&path))).await.unwrap_err();
    assert!(refused.to_string().contains("its Holdfast cluster is one, that of this one other"));
    let refused = import(&stage, leases(), &other, options(5, Some(&path))).await.unwrap_err();
    assert!(matches!(refused, ImportError::Checkpoint(_)), "{refused}");

    cql(&stage, &["DROP TABLE k.leases", table]).await;
    many(&stage, 50).await;
    let refused = import(&stage, leases(), &store, options(4, Some(&path))).await.unwrap_err();
    assert!(refused.to_string().contains("its tables is leases ("), "{refused}");
    assert_eq!(other.requests(), 0);
}

/// Clients of ours are not in the way, however lately they wrote.
#[tokio::test]
async fn somebody_elses_client_that_writes_is_in_the_way_unless_it_is_said_to_be_stopped() {
    let stage = Stage::set("import_strangers", &[LEASE, MODES]).await;
    let on = stage.cassandra();
    let guard = Recipe::Lease
        .locker(&on, &LockerOptions::default().service("billing"))
        .lock("orders/ours")
        .await
        .unwrap();
    let careful = || Options { writers_stopped: false, ..options(16, None) };
    let store = Store::new("one");
    let sum = import(&stage, leases(), &store, careful()).await.unwrap();
    assert_eq!(sum.imported, 1);

    let row = "INSERT INTO k.leases (name, owner) VALUES ('jobs/theirs', 'client_1') USING TTL 600";
    cql(&stage, &[row]).await;
    let requests = store.requests();
    let refused = import(&stage, leases(), &store, careful()).await.unwrap_err().to_string();
    assert!(refused.starts_with("\"client_1\" changed the row of \"jobs/theirs\""), "{refused}");
    assert_eq!(store.requests(), requests, "nothing was sent");

    let rules = Rules::new("orders/", Duration::from_mins(3));
    let below = Options { rules, ..careful() };
    let sum = import(&stage, leases(), &store, below).await.unwrap();
    assert_eq!((sum.imported, sum.already_there), (0, 1), "elsewhere it may write");
    let sum = import(&stage, leases(), &store, options(16, None)).await.unwrap();
    assert_eq!((sum.imported, sum.already_there), (1, 1));
    guard.release().await.unwrap();
}

/// `lock code` for each difference, in the order of the locks.
async fn differences(
    stage: &Stage,
    layout: Layout,
    store: &Store,
    prefix: &str,
) -> (Verified, Vec<String>) {
    let runtime = Runtime::system();
    let session = stage.nodes().session().await;
    let scan =
        Scan::open(session, (stage.keyspace(), &SerialScope::Cluster), layout, runtime.clone())
            .await
            .unwrap();
    let rules = Rules::new(prefix, Duration::from_mins(3));
    let ranges = Range::split(16);
    let mut told = Vec::new();
    let mut tell = |lock: &str, difference: &_| told.push(said(lock, difference));
    let verified = verify(&scan, store, &rules, (&ranges, 4), &runtime, &mut tell).await.unwrap();
    told.sort();
    (verified, told)
}

fn said(lock: &str, difference: &Difference) -> String {
    format!("{lock} {}", difference.code())
}

#[tokio::test]
async fn what_came_in_is_verified_and_each_difference_is_told() {
    let stage = Stage::set("import_verified", &[LEASE, QUEUE, MODES]).await;
    let cell = |table: &str, column: &str| {
        let ttl = "USING TTL 600";
        format!("INSERT INTO k.{table} (key, column1, value) VALUES ('q', '{column}', 'x') {ttl}")
    };
    let place = |time: u32, thread: &str| format!("{time:020}{thread}");
    let rows = [
        cell("lock_main", "t1"),
        cell("lock_queue", &place(1, "t1")),
        cell("lock_queue", &place(2, "t2")),
        cell("lock_queue", &place(3, "t3")),
        "INSERT INTO k.leases (name, owner) VALUES ('forever', 'o') USING TTL 0".into(),
        "INSERT INTO k.leases (name, owner, value) VALUES ('job/0', 'client_0', 'v') USING TTL 600"
            .into(),
    ];
    many(&stage, 40).await;
    cql(&stage, &rows.each_ref().map(String::as_str)).await;
    let [store, queue] = ["one", "two"].map(Store::new);
    import(&stage, leases(), &store, options(16, None)).await.unwrap();
    import(&stage, queues(), &queue, options(16, None)).await.unwrap();
    let same = |locks| (Verified { locks, differing: 0 }, Vec::<String>::new());
    assert_eq!(differences(&stage, leases(), &store, "").await, same(40));
    assert_eq!(differences(&stage, queues(), &queue, "").await, same(1));

    let set = |store: &Store, lock: &str, line: &[&str]| {
        let line = line.iter().map(|owner| (*owner).to_owned()).collect();
        store.state.lock().unwrap().lines.insert(lock.into(), line);
    };
    store.state.lock().unwrap().lines.remove("job/7");
    store.state.lock().unwrap().values.insert("job/0".into(), b"w".to_vec());
    set(&store, "job/9", &["native*"]);
    set(&store, "ended", &["client_1"]);
    set(&store, "theirs", &["native*"]);
    set(&queue, "q", &["t1", "t3", "t2"]);

    let (verified, told) = differences(&stage, leases(), &store, "").await;
    let expected =
        ["ended only-native", "job/0 other-value", "job/7 not-held", "job/9 other-holder"];
    assert_eq!(told, expected);
    assert_eq!(verified, Verified { locks: 41, differing: 4 });
    let (_, told) = differences(&stage, leases(), &store, "job/7").await;
    assert_eq!(told, ["job/7 not-held"]);
    let (_, told) = differences(&stage, queues(), &queue, "").await;
    assert_eq!(told, ["q other-order"]);
}

/// `tests/run` runs these before the others, one at a time.
mod alone {
    use super::{
        Duration, LEASE, MODES, Options, Pace, Runtime, Stage, Store, expected, import, leases,
        many, options,
    };

    /// One node of three dies while the tables are read, and is started again.
    #[tokio::test]
    async fn a_node_that_dies_during_the_read_costs_no_row() {
        let stage = Stage::set("import_killed_node", &[LEASE, MODES]).await;
        many(&stage, 2_000).await;
        let store = Store::new("one");
        let slow = Options { pace: Pace::new(std::num::NonZeroU32::new(500)), ..options(64, None) };
        let killing = async {
            Runtime::system().sleep(Duration::from_secs(1)).await;
            stage.nodes().kill(2).await;
        };
        let (sum, ()) = tokio::join!(import(&stage, leases(), &store, slow), killing);
        stage.nodes().restart(2).await;

        let sum = sum.unwrap();
        assert_eq!((sum.imported, sum.over), (2_000, 0), "{sum:?}");
        assert_eq!(store.lines(), expected(2_000));
    }
}
