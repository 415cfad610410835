//! The work queue on three real Cassandra nodes: by the library, by processes that are killed, and by the command line.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests stop the test when something is not as it must be"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use holdfast_recipes::{ItemId, ItemStatus, LockerOptions, Wait, WorkItem, WorkQueue, WorkTables};
use holdfast_runtime::Runtime;
use holdfast_tests::cassandra::{Stage, WORK};
use holdfast_tests::cluster::binary;
use holdfast_tests::history::{Record, What, read};
use holdfast_tests::program::{Ended, Program};
use holdfast_tests::run::judge;
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

/// Short, so that a test can wait for its end: safe for 4.9 s.
const TTL: Duration = secs(9);
const SKEW: Duration = secs(3);
/// This suite does not measure the speed of the machine.
const LONG: Duration = Duration::from_mins(4);

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The tables, which all tests share, and a queue of the test's own.
struct Jobs {
    stage: Stage,
    queue: String,
}

impl Jobs {
    /// The queue is of this run: nodes that tests share keep rows of earlier runs.
    async fn of(test: &str) -> Self {
        let stage = Stage::set("work", &[WORK]).await;
        Self { stage, queue: format!("{test} {}", std::process::id()) }
    }

    fn queue(&self, service: &str) -> WorkQueue {
        let options = LockerOptions::default().service(service).ttl(TTL).max_skew(SKEW);
        let (on, tables) = (self.stage.cassandra(), WorkTables::default());
        WorkQueue::new(&on, &options, tables, &self.queue).unwrap()
    }
}

async fn next(queue: &WorkQueue) -> WorkItem {
    queue.next(Wait::AtMost(LONG)).await.unwrap().unwrap()
}

async fn enqueue(queue: &WorkQueue, number: usize) -> BTreeSet<ItemId> {
    let enqueued = (0..number).map(|number| queue.enqueue(format!("job {number}")));
    try_join_all(enqueued).await.unwrap().into_iter().collect()
}

async fn sleep(length: Duration) {
    Runtime::system().sleep(length).await;
}

/// Processes of `holdfast-cassandra-holder` on the queue, each with a history of its own.
struct Workers {
    points: String,
    keyspace: String,
    queue: String,
    folder: TempDir,
    started: u64,
}

impl Workers {
    fn of(Jobs { stage, queue }: &Jobs) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (points, keyspace) = (stage.points().to_owned(), stage.keyspace().to_owned());
        Self { points, keyspace, queue: queue.clone(), folder, started: 0 }
    }

    fn history(&self, id: u64) -> PathBuf {
        self.folder.path().join(format!("{id}.jsonl"))
    }

    /// Starts a process with the task `hold` or `work`.
    fn start(&mut self, task: &str) -> Program {
        self.started += 1;
        let (ttl, skew) = (TTL.as_secs().to_string(), SKEW.as_secs().to_string());
        let history = self.history(self.started).display().to_string();
        let id = self.started.to_string();
        let place = ["work", &self.points, &self.keyspace, &ttl, &skew, &history, &id];
        let terms = [&place[..], &[task, &self.queue]].concat();
        Program::start("holdfast-cassandra-holder", &terms)
    }

    /// Checks that no two had an item at once; returns all records.
    fn judge(&self) -> Vec<Record> {
        let parts: Vec<_> = (1..=self.started).map(|id| read(&self.history(id)).unwrap()).collect();
        println!("{}", judge(parts.clone()));
        parts.concat()
    }
}

/// The items whose work was finished.
fn finished(records: &[Record]) -> BTreeSet<ItemId> {
    let mut names = BTreeMap::new();
    let mut finished = BTreeSet::new();
    for Record { client, what, .. } in records {
        match what {
            What::Granted { token, names: granted, .. } => {
                names.insert((client.0, *token), granted[0].clone());
            }
            What::Release { token, .. } => {
                finished.insert(ItemId::parse(&names[&(client.0, *token)]).unwrap());
            }
            _ => {}
        }
    }
    finished
}

/// Another worker gets it once its TTL and the skew have passed, as attempt 2, and no worker before the dead one's hold was over.
#[tokio::test]
async fn an_item_of_a_killed_worker_goes_to_another() {
    let jobs = Jobs::of("killed").await;
    let heir = jobs.queue("heir");
    let id = heir.enqueue("job").await.unwrap();
    let mut workers = Workers::of(&jobs);
    let mut dying = workers.start("hold");
    assert_eq!(dying.line("had ", LONG).await, id.as_str());
    let listed = heir.list(9).await.unwrap();
    assert!(matches!(listed[0].status, ItemStatus::Taken { .. }), "{listed:?}");
    dying.signal(Signal::SIGKILL);
    let mut living = workers.start("work");
    living.line("ready", LONG).await;
    until_empty(&heir).await;
    living.signal(Signal::SIGTERM);
    assert_eq!(living.end(LONG).await.code, Some(0));

    let records = workers.judge();
    assert_eq!(finished(&records), BTreeSet::from([id]));
    let had = records.iter().filter(|record| matches!(record.what, What::Granted { .. }));
    assert_eq!(had.count(), 2, "by the killed one, and by the other");
}

async fn until_empty(queue: &WorkQueue) {
    let clock = Runtime::system().clock;
    let give_up = clock.now() + LONG;
    while !queue.is_empty().await.unwrap() {
        assert!(clock.now() < give_up, "left: {:?}", queue.list(9).await);
        sleep(Duration::from_millis(200)).await;
    }
}

/// Four processes, and two more that are killed while they have an item, while two others enqueue.
#[tokio::test]
async fn four_processes_work_on_every_item_and_no_two_have_one() {
    let jobs = Jobs::of("four").await;
    let mut workers = Workers::of(&jobs);
    let (one, other) = (jobs.queue("one"), jobs.queue("other"));
    let first = enqueue(&one, 2).await;
    let mut dying: Vec<Program> = (0..2).map(|_| workers.start("hold")).collect();
    for worker in &mut dying {
        worker.line("had ", LONG).await;
    }
    let mut working: Vec<Program> = (0..4).map(|_| workers.start("work")).collect();
    let killing = async {
        for worker in &mut working {
            worker.line("ready", LONG).await;
        }
        for worker in &dying {
            worker.signal(Signal::SIGKILL);
        }
    };
    let (ids, others, ()) = tokio::join!(enqueue(&one, 60), enqueue(&other, 60), killing);
    let all: BTreeSet<_> = [first, ids, others].into_iter().flatten().collect();
    assert_eq!(all.len(), 122);
    until_empty(&one).await;
    for worker in working {
        worker.signal(Signal::SIGTERM);
        assert_eq!(worker.end(LONG).await.code, Some(0));
    }
    let records = workers.judge();
    assert_eq!(all.difference(&finished(&records)).count(), 0, "none is lost");
    let had = records.iter().filter(|record| matches!(record.what, What::Granted { .. })).count();
    assert!(had >= 124, "{had}: two of them were had twice");
    assert_eq!(jobs.queue("late").list(9).await.unwrap(), []);
}

/// A worker is frozen past its term: another worker has the item, and nothing that the first does when it wakes removes anything.
#[tokio::test]
async fn a_worker_that_was_frozen_past_its_term_has_lost_its_item() {
    let jobs = Jobs::of("frozen").await;
    let other = jobs.queue("other");
    let id = other.enqueue("job").await.unwrap();
    let mut workers = Workers::of(&jobs);
    let mut frozen = workers.start("hold");
    frozen.line("had ", LONG).await;
    frozen.signal(Signal::SIGSTOP);
    let item = next(&other).await;
    assert_eq!((item.id(), item.attempt()), (&id, 2));
    frozen.signal(Signal::SIGCONT);
    frozen.line("lost", LONG).await;
    item.give_back().await.unwrap();
    let item = next(&other).await;
    assert_eq!((item.payload(), item.attempt()), ("job", 3));
    item.done().await.unwrap();
    workers.judge();
}

/// Payloads that Cassandra takes: the longest, every kind of character, an empty one; a lease over two TTLs.
#[tokio::test]
async fn payloads_come_as_they_went_and_an_item_is_kept() {
    let jobs = Jobs::of("payloads").await;
    let queue = jobs.queue("worker");
    let payloads = ["é".repeat(32_768), String::new(), "'; DROP \0\u{1F980}\n$1 ?".to_owned()];
    for payload in &payloads {
        queue.enqueue(payload.clone()).await.unwrap();
    }
    let too_long = queue.enqueue("x".repeat(65_537)).await.unwrap_err();
    assert!(too_long.to_string().contains("65537 bytes"), "{too_long}");
    for payload in &payloads {
        let item = next(&queue).await;
        assert_eq!((item.payload(), item.attempt()), (payload.as_str(), 1));
        item.done().await.unwrap();
    }
    // If the machine stalls for half a TTL, the worker loses the item; one of three has to be kept.
    for _ in 0..3 {
        queue.enqueue("kept").await.unwrap();
        let item = next(&queue).await;
        sleep(TTL * 2).await;
        if item.is_safe() {
            item.done().await.unwrap();
            return;
        }
        next(&queue).await.done().await.unwrap();
    }
    panic!("three were lost");
}

/// Rows written by hand: nothing panics, no item is hidden, and no item that they hold back is handed out.
#[tokio::test]
async fn rows_of_strangers_stop_nobody() {
    let jobs = Jobs::of("strangers").await;
    let queue = jobs.queue("worker");
    let held_back = queue.enqueue("held back").await.unwrap();
    let minute = held_back.as_str()[..20].parse::<i64>().unwrap() / 60_000_000;
    let slot = minute * 4_096;
    let partition = -1 - slot;
    let Jobs { stage, queue: of } = &jobs;
    let keyspace = stage.keyspace();
    let id = held_back.as_str();
    for (item, worker, number) in
        [(id, "x", "null"), (id, "y", "9223372036854775807"), ("job", "0", "0"), ("", "0", "null")]
    {
        let row = format!(
            "INSERT INTO {keyspace}.work_numbers (queue, hour, item, worker, number) \
             VALUES ('{of}', {partition}, '{item}', '{worker}', {number})"
        );
        stage.query(&row).await;
    }
    for row in [
        format!(
            "INSERT INTO {keyspace}.work_hours (queue, hour) VALUES ('{of}', -9223372036854775808)"
        ),
        format!(
            "INSERT INTO {keyspace}.work_hours (queue, hour) VALUES ('{of}', 9223372036854775807)"
        ),
        format!(
            "INSERT INTO {keyspace}.work_slots (queue, slot, listing) VALUES ('{of}', -1, 'x')"
        ),
        format!(
            "INSERT INTO {keyspace}.work_slots (queue, slot, listing) \
             VALUES ('{of}', 9223372036854775807, '')"
        ),
        format!(
            "INSERT INTO {keyspace}.work_slots (queue, slot, listing) VALUES ('{of}', {slot}, 'x')"
        ),
        format!("INSERT INTO {keyspace}.work_aside (queue, item) VALUES ('{of}', 'x')"),
        format!(
            "INSERT INTO {keyspace}.work_details (queue, item, name) VALUES ('{of}', '{id}', 'z')"
        ),
    ] {
        stage.query(&row).await;
    }
    let good = queue.enqueue("good").await.unwrap();
    let item = next(&queue).await;
    assert_eq!(item.id(), &good);
    item.done().await.unwrap();
    let listed = queue.list(9).await.unwrap();
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!((listed[0].payload.as_str(), listed[0].attempts), ("held back", 0));
    assert!(queue.next(Wait::AtMost(secs(5))).await.unwrap().is_none());
}

/// `holdfast cassandra work` in a keyspace.
struct Line(Vec<String>);

impl Line {
    fn of(Jobs { stage, .. }: &Jobs, terms: &[&str]) -> Self {
        let place =
            ["cassandra", "--contact-points", stage.points(), "--keyspace", stage.keyspace()];
        Self(place.iter().chain(terms).chain(&["work"]).map(|word| (*word).to_owned()).collect())
    }

    fn start(&self, rest: &[&str]) -> Program {
        let line: Vec<&str> =
            self.0.iter().map(String::as_str).chain(rest.iter().copied()).collect();
        Program::start("holdfast", &line)
    }

    async fn run(&self, rest: &[&str]) -> Ended {
        self.start(rest).end(LONG).await
    }

    /// Runs it with these lines on standard input.
    async fn fed(&self, input: &str, rest: &[&str]) -> Ended {
        let holdfast = binary("holdfast").display().to_string();
        let script = "input=$1; shift; printf \"$input\" | \"$@\"";
        let mut line = vec!["-c", script, "sh", input, &holdfast];
        line.extend(self.0.iter().map(String::as_str).chain(rest.iter().copied()));
        Program::start_at(&"/bin/sh".into(), &line).end(LONG).await
    }

    async fn listed(&self, queue: &str) -> Vec<(String, String, u64)> {
        let listed = self.run(&["list", queue, "--json"]).await;
        assert_eq!(listed.code, Some(0), "{listed:?}");
        let entry = |line: &str| {
            let entry: Value = serde_json::from_str(line).unwrap();
            let text = |name: &str| entry[name].as_str().unwrap().to_owned();
            (text("payload"), text("status"), entry["attempts"].as_u64().unwrap())
        };
        listed.out.lines().map(entry).collect()
    }
}

#[tokio::test]
async fn a_command_runs_for_every_item_and_what_fails_comes_again_and_becomes_a_dead_letter() {
    let jobs = Jobs::of("line").await;
    let line = Line::of(&jobs, &[]);
    let added = line.fed("good 1\\nbad\\ngood 2\\n", &["add", &jobs.queue]).await;
    assert_eq!((added.code, added.out.lines().count()), (Some(0), 3), "{added:?}");
    let added = line.run(&["add", &jobs.queue, "good 3"]).await;
    assert_eq!((added.code, added.out.lines().count()), (Some(0), 1), "{added:?}");

    let script =
        "read -r job; echo \"$HOLDFAST_QUEUE $HOLDFAST_ATTEMPT $job\"; [ \"$job\" != bad ]";
    let ran = line
        .run(&[
            "run",
            &jobs.queue,
            "--until-empty",
            "--workers",
            "3",
            "--max-attempts",
            "2",
            "--",
            "sh",
            "-c",
            script,
        ])
        .await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let said = |job: &str| ran.out.lines().filter(|line| line.ends_with(job)).count();
    // An attempt may end before its command begins, if the machine stalls.
    assert!((1..=2).contains(&said(" bad")), "{ran:?}");
    for job in ["good 1", "good 2", "good 3"] {
        assert_eq!(said(job), 1, "{ran:?}");
    }
    assert!(ran.out.starts_with(&jobs.queue), "{ran:?}");
    assert!(ran.err.contains("the command ended with 1, it is given back"), "{ran:?}");
    assert_eq!(line.listed(&jobs.queue).await, [("bad".to_owned(), "dead letter".to_owned(), 2)]);
    let shown = line.run(&["list", &jobs.queue]).await;
    assert!(shown.out.contains("dead letter"), "{shown:?}");

    let bad = shown.out.lines().nth(1).unwrap().split_whitespace().next().unwrap();
    let again = line.run(&["retry", &jobs.queue, bad]).await;
    assert_eq!(again.code, Some(0), "{again:?}");
    assert_eq!(line.listed(&jobs.queue).await, [("bad".to_owned(), "waiting".to_owned(), 0)]);
    let refused = line.run(&["forget", &jobs.queue, again.out.trim()]).await;
    assert_eq!(refused.code, Some(122), "{refused:?}");
    assert!(refused.err.contains("is no dead letter"), "{refused:?}");
}

/// A process that a command leaves behind in its process group keeps its item: no worker has two at a time.
#[tokio::test]
async fn the_next_item_begins_when_nothing_of_the_command_before_runs_any_more() {
    let jobs = Jobs::of("rest").await;
    let line = Line::of(&jobs, &[]);
    let added = line.fed("1\\n2\\n3\\n", &["add", &jobs.queue]).await;
    assert_eq!(added.code, Some(0), "{added:?}");

    let script = "read -r job; echo \"begun $job\"; (sleep 0.5; echo \"over $job\") & exit 0";
    let ran = line.run(&["run", &jobs.queue, "--until-empty", "--", "sh", "-c", script]).await;

    assert_eq!(ran.code, Some(0), "{ran:?}");
    let said: Vec<_> = ran.out.lines().collect();
    assert!(said.len() >= 6, "{ran:?}");
    for pair in said.chunks(2) {
        let begun = pair[0].strip_prefix("begun ");
        assert_eq!(begun, pair.get(1).and_then(|line| line.strip_prefix("over ")), "{ran:?}");
    }
}

/// A worker that is stopped past its term kills its command when it continues, and releases its item when it is asked to end.
#[tokio::test]
async fn a_lost_item_stops_its_command_and_a_signal_gives_it_back() {
    let jobs = Jobs::of("lost").await;
    let line = Line::of(&jobs, &["--ttl", "9s", "--max-skew", "3s"]);
    assert_eq!(line.run(&["add", &jobs.queue, "long"]).await.code, Some(0));
    let script = "echo \"begun $HOLDFAST_ATTEMPT\"; exec sleep 1000";
    let mut worker = line.start(&["run", &jobs.queue, "--", "sh", "-c", script]);
    worker.line("begun ", LONG).await;
    worker.signal(Signal::SIGSTOP);
    sleep(TTL).await;
    worker.signal(Signal::SIGCONT);
    let give_up = Runtime::system().clock.now() + LONG;
    while worker.out().lines().count() < 2 {
        assert!(Runtime::system().clock.now() < give_up, "{}", worker.out());
        sleep(Duration::from_millis(50)).await;
    }
    worker.signal(Signal::SIGTERM);
    let ended = worker.end(LONG).await;
    assert_eq!(ended.code, Some(143), "{ended:?}");
    assert!(ended.err.contains("was lost, the command stopped"), "{ended:?}");
    let item = next(&jobs.queue("heir")).await;
    assert_eq!(item.payload(), "long");
    assert!(item.attempt() >= 3, "{item:?}");
}

#[tokio::test]
async fn wrong_input_is_refused_with_what_to_do() {
    let jobs = Jobs::of("wrong").await;
    let line = Line::of(&jobs, &[]);
    let cases: [(&[&str], i32, &str); 7] = [
        (&["add", "", "x"], 122, "cannot be empty"),
        (&["add", "a\u{202e}b", "x"], 122, "U+202E"),
        (&["forget", &jobs.queue, "x"], 125, "is no id of an item"),
        (&["run", &jobs.queue, "--workers", "0", "--", "true"], 125, "--workers"),
        (&["run", &jobs.queue, "--max-attempts", "0", "--", "true"], 125, "--max-attempts"),
        (&["run", &jobs.queue], 125, "CMD"),
        (&["run", &jobs.queue, "--until-empty", "--", "no-such-command"], 0, ""),
    ];
    let ran = join_all(cases.iter().map(|(rest, ..)| line.run(rest))).await;
    for ((rest, code, says), ended) in cases.iter().zip(ran) {
        assert_eq!(ended.code, Some(*code), "{rest:?}: {ended:?}");
        assert!(ended.err.contains(says), "{rest:?}: {ended:?}");
    }
    let long = line.fed(&"x".repeat(65_537), &["add", &jobs.queue]).await;
    assert_eq!(long.code, Some(122), "{long:?}");
    assert!(long.err.contains("65537 bytes"), "{}", long.err);

    assert_eq!(line.run(&["add", &jobs.queue, "x"]).await.code, Some(0));
    for workers in ["1", "2"] {
        let run = ["run", &jobs.queue, "--workers", workers, "--", "no-such-command"];
        assert_eq!(line.run(&run).await.code, Some(127));
    }
    let elsewhere = ["--work-details-table", "nowhere"];
    let mut other = Line::of(&jobs, &[]);
    other.0.splice(5..5, elsewhere.map(str::to_owned));
    let refused = other.run(&["add", &jobs.queue, "x"]).await;
    assert_eq!(refused.code, Some(122), "{refused:?}");
    assert!(refused.err.contains("nowhere"), "{refused:?}");
}
