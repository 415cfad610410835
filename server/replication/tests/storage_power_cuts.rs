//! Power cuts: what was acknowledged survives the loss of every write that was not synced (I19,
//! I20), in each kind of operation.
//!
//! A driver process works on a store under `tests/lostwrite/lostwrite.c`, which takes back whatever
//! is not durable at a chosen call and ends the process; a restart after that may be cut as well.
//! The driver reports each operation to a file outside the store, before it begins and again when
//! it is acknowledged. Then the store is opened here: its state must be the one after some prefix
//! of the reported operations that contains all acknowledged ones. The driver is this same test
//! binary, run again.
//!
//! `HOLDFAST_POWER_CUTS` sets the number of cuts (260), `HOLDFAST_SEED` the first seed (1).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "clippy's allowance for tests does not reach helper functions"
)]

#[path = "storage_support/conversion.rs"]
mod conversion;
mod storage_support;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use holdfast_replication::storage::{
    BodyReader, Done, LogId, LogStore, Record, ReplicaStore, Store, StoredVote,
};
use storage_support::{Draw, options, record};
use tempfile::TempDir;

/// Exit status of a process whose power was cut; see the shim.
const CUT: i32 = 99;
/// Power cuts on one folder before a new one is made.
const LIVES: u64 = 4;

/// The operations that the driver reports and the model replays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Append { term: u64, first: u64, count: u64, bytes: u64 },
    Vote { term: u64 },
    Truncate { keep: Option<u64> },
    Purge { upto: Place },
    Snapshot { last: Place },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    term: u64,
    index: u64,
}

impl Place {
    fn of(id: LogId) -> Self {
        Self { term: id.term, index: id.index }
    }

    fn id(self) -> LogId {
        LogId { term: self.term, node_id: 1, index: self.index }
    }
}

impl Step {
    fn kind(&self) -> &'static str {
        match self {
            Self::Append { .. } => "append",
            Self::Vote { .. } => "vote",
            Self::Truncate { .. } => "truncation",
            Self::Purge { .. } => "purge",
            Self::Snapshot { .. } => "snapshot",
        }
    }

    fn write(&self) -> String {
        match self {
            Self::Append { term, first, count, bytes } => {
                format!("append {term} {first} {count} {bytes}")
            }
            Self::Vote { term } => format!("vote {term}"),
            Self::Truncate { keep } => format!("truncation {}", keep.map_or(-1, u64::cast_signed)),
            Self::Purge { upto } => format!("purge {} {}", upto.term, upto.index),
            Self::Snapshot { last } => format!("snapshot {} {}", last.term, last.index),
        }
    }

    fn read(words: &[&str]) -> Self {
        let number = |at: usize| u64::from_str(words[at]).unwrap();
        match words[0] {
            "append" => Self::Append {
                term: number(1),
                first: number(2),
                count: number(3),
                bytes: number(4),
            },
            "vote" => Self::Vote { term: number(1) },
            "truncation" => Self::Truncate { keep: u64::from_str(words[1]).ok() },
            "purge" => Self::Purge { upto: Place { term: number(1), index: number(2) } },
            "snapshot" => Self::Snapshot { last: Place { term: number(1), index: number(2) } },
            other => panic!("{other}"),
        }
    }
}

fn records(term: u64, first: u64, count: u64, bytes: u64) -> Vec<Record> {
    let bytes = usize::try_from(bytes).unwrap();
    (first..first + count).map(|index| record(term, index, bytes)).collect()
}

fn vote(term: u64) -> StoredVote {
    StoredVote { term, node_id: Some(1), committed: term.is_multiple_of(2) }
}

/// The body of the snapshot that ends at a place: computed from the place alone.
fn body(last: Place) -> Bytes {
    record(last.term, last.index, 150_000).payload
}

// ---- the driver --------------------------------------------------------------------------------

/// Not a test: the process whose power is cut. Does nothing unless the suite has started it.
#[test]
#[ignore = "started by the suite as a process of its own"]
fn driver_process() {
    let Ok(root) = std::env::var("HOLDFAST_DRIVER_ROOT") else { return };
    let env = |name: &str| std::env::var(name).unwrap();
    let report = OpenOptions::new().append(true).open(env("HOLDFAST_DRIVER_REPORT")).unwrap();
    let seed = env("HOLDFAST_DRIVER_SEED").parse().unwrap();
    let store = Store::open(&Path::new(&root).join("data"), options()).unwrap();
    let mut driver = Driver {
        draw: Draw(seed),
        target: env("HOLDFAST_DRIVER_TARGET"),
        log: store.log(),
        store,
        report: Arc::new(Mutex::new(report)),
        reported: 0,
    };
    driver.say("opened");
    if driver.target != "conversion" {
        driver.run();
    }
}

struct Driver {
    draw: Draw,
    /// The kind of operation in which the power is to be cut.
    target: String,
    store: Store,
    log: Arc<LogStore>,
    report: Arc<Mutex<File>>,
    reported: u64,
}

impl Driver {
    fn say(&self, line: &str) {
        say(&self.report, line);
    }

    fn run(&mut self) {
        // Occasionally enough data to fill segments, so that some are used again.
        let heavy = self.draw.below(6) == 0;
        let before = if heavy { 120 } else { self.draw.below(25) };
        for _ in 0..before {
            let step = self.any_step(heavy);
            self.perform(step);
        }
        self.prepare(heavy);
        let step = self.step_of(&self.target.clone(), heavy);
        arm(1 + self.draw.below(if self.target == "snapshot" { 14 } else { 5 }));
        self.perform(step);
        for _ in 0..10 {
            let step = self.any_step(heavy);
            self.perform(step);
        }
    }

    /// Makes the target possible: records to truncate, a snapshot to purge below.
    fn prepare(&mut self, heavy: bool) {
        let needed: &[&str] = match self.target.as_str() {
            "purge" => &["append", "snapshot"],
            "truncation" | "snapshot" => &["append"],
            _ => &[],
        };
        for kind in needed {
            let step = self.step_of(kind, heavy);
            self.perform(step);
        }
    }

    fn any_step(&mut self, heavy: bool) -> Step {
        let kind = match self.draw.below(12) {
            0 => "vote",
            1 => "truncation",
            2 => "snapshot",
            3 => "purge",
            _ => "append",
        };
        self.step_of(kind, heavy)
    }

    fn step_of(&mut self, kind: &str, heavy: bool) -> Step {
        let term = self.log.vote().map_or(1, |vote| vote.term);
        let next = self.log.last().map_or(0, |last| last.index + 1);
        let snapshot = self.store.snapshots().newest().and_then(|newest| newest.last);
        let floor = snapshot.max(self.log.purged()).map_or(0, |id| id.index + 1);
        match kind {
            "vote" => Step::Vote { term: term + 1 + self.draw.below(2) },
            "truncation" if next > floor => {
                let keep = (floor + self.draw.below(next - floor)).checked_sub(1);
                Step::Truncate { keep }
            }
            "snapshot" if next > floor => {
                let index = floor + self.draw.below(next - floor);
                let id = self.log.entries(index..index + 1, usize::MAX)[0].log_id;
                Step::Snapshot { last: Place::of(id) }
            }
            "purge" if snapshot > self.log.purged() => {
                Step::Purge { upto: Place::of(snapshot.unwrap()) }
            }
            _ => {
                let largest = if heavy { 60_000 } else { 400 };
                let (count, bytes) = (1 + self.draw.below(4), self.draw.below(largest));
                Step::Append { term, first: next, count, bytes }
            }
        }
    }

    fn perform(&mut self, step: Step) {
        self.reported += 1;
        let number = self.reported;
        self.say(&format!("begin {number} {}", step.write()));
        let report = Arc::clone(&self.report);
        let acknowledge = move |outcome: std::io::Result<()>| {
            outcome.unwrap();
            say(&report, &format!("done {number}"));
        };
        // One in two is waited for; the others queue behind it and share commits.
        let (done, wait): (Done, _) = if self.draw.below(2) == 0 {
            let (send, receive) = std::sync::mpsc::channel();
            let done = move |outcome| {
                acknowledge(outcome);
                send.send(()).unwrap();
            };
            (Box::new(done), Some(receive))
        } else {
            (Box::new(acknowledge), None)
        };
        self.submit(step, done);
        if let Some(receive) = wait {
            receive.recv().unwrap();
        }
    }

    fn submit(&self, step: Step, done: Done) {
        let log = &self.log;
        match step {
            Step::Append { term, first, count, bytes } => {
                log.append(records(term, first, count, bytes), done).unwrap();
            }
            Step::Vote { term } => log.save_vote(vote(term), done).unwrap(),
            Step::Truncate { keep } => log.truncate_after(keep, done).unwrap(),
            Step::Purge { upto } => {
                log.purge(upto.id(), done).unwrap();
                self.store.snapshots().remove_older(log.purged()).unwrap();
            }
            Step::Snapshot { last } => {
                let mut writer =
                    self.store.snapshots().begin(Some(last.id()), Bytes::from("meta")).unwrap();
                writer.write_all(&body(last)).unwrap();
                done(writer.finish().map(drop));
            }
        }
    }
}

/// Tells the shim to cut just before the watched call that is `calls` from here.
fn arm(calls: u64) {
    drop(File::open(format!("lostwrite.arm.{calls}")));
}

// ---- the model ---------------------------------------------------------------------------------

#[derive(Debug, Clone, Default, PartialEq)]
struct Model {
    records: BTreeMap<u64, Record>,
    purged: Option<LogId>,
    vote: Option<StoredVote>,
}

impl Model {
    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Append { term, first, count, bytes } => {
                let new = records(term, first, count, bytes);
                self.records.extend(new.into_iter().map(|r| (r.log_id.index, r)));
            }
            Step::Vote { term } => self.vote = Some(vote(term)),
            Step::Truncate { keep } => self.records.retain(|index, _| Some(*index) <= keep),
            Step::Purge { upto } => {
                self.purged = Some(upto.id());
                self.records.retain(|index, _| *index > upto.index);
            }
            Step::Snapshot { .. } => {}
        }
    }

    fn read(log: &LogStore) -> Self {
        let entries = log.entries(0..u64::MAX, usize::MAX);
        Self {
            records: entries.into_iter().map(|r| (r.log_id.index, r)).collect(),
            purged: log.purged(),
            vote: log.vote(),
        }
    }
}

/// In a single write: the power may be cut on another thread between two.
fn say(report: &Mutex<File>, line: &str) {
    report.lock().unwrap().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// The report of one process of the driver.
struct Report {
    opened: bool,
    steps: Vec<Step>,
    /// Acknowledged, by number from 1.
    done: Vec<usize>,
}

impl Report {
    fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        let mut report = Self { opened: false, steps: Vec::new(), done: Vec::new() };
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[0] {
                "opened" => report.opened = true,
                "begin" => report.steps.push(Step::read(&words[2..])),
                _ => report.done.push(words[1].parse().unwrap()),
            }
        }
        report
    }

    fn is_snapshot(step: &Step) -> bool {
        matches!(step, Step::Snapshot { .. })
    }

    /// The operations under way when the power was cut.
    fn in_flight(&self, life: u64) -> Vec<&'static str> {
        if !self.opened {
            return vec![if life == 0 { "creation" } else { "restart" }];
        }
        let open = (1..=self.steps.len()).filter(|number| !self.done.contains(number));
        let mut kinds: Vec<_> = open.map(|number| self.steps[number - 1].kind()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    /// Number of the last acknowledged operation of the log; all before it count as acknowledged.
    fn last_done_on_log(&self) -> usize {
        let on_log = |number: &&usize| !Self::is_snapshot(&self.steps[**number - 1]);
        self.done.iter().filter(on_log).max().copied().unwrap_or(0)
    }

    fn last_done_snapshot(&self) -> Option<Place> {
        let places = self.done.iter().filter_map(|number| match self.steps[number - 1] {
            Step::Snapshot { last } => Some(last),
            _ => None,
        });
        places.max_by_key(|last| last.index)
    }
}

/// Opens the store after a cut and compares it with what was acknowledged before.
///
/// Returns its state, or an error that says what is missing.
fn verify(folder: &Path, before: &Model, report: &Report) -> Result<Model, String> {
    let store = Store::open(folder, options()).map_err(|error| format!("refused: {error}"))?;
    let found = Model::read(&store.log());
    let mut possible = before.clone();
    let acknowledged = report.last_done_on_log();
    let mut matches = acknowledged == 0 && possible == found;
    for (number, step) in (1..).zip(&report.steps) {
        possible.apply(step);
        matches |= number >= acknowledged && possible == found;
    }
    if !matches {
        let last = found.records.keys().next_back();
        return Err(format!(
            "silent: last {last:?}, vote {:?}, purged {:?} is no state after operation \
             {acknowledged} or later",
            found.vote, found.purged
        ));
    }
    verify_snapshot(&store, report)?;
    Ok(found)
}

fn verify_snapshot(store: &Store, report: &Report) -> Result<(), String> {
    let newest = store.snapshots().newest();
    let last = newest.as_ref().and_then(|newest| newest.last).map(Place::of);
    let acknowledged = report.last_done_snapshot();
    if last.map(|last| last.index) < acknowledged.map(|last| last.index) {
        return Err(format!("silent: snapshot {acknowledged:?} is gone, newest is {last:?}"));
    }
    let Some((newest, last)) = newest.zip(last) else { return Ok(()) };
    let mut bytes = Vec::new();
    let kept = Arc::new(store.snapshots().read(&newest).unwrap());
    BodyReader::new(kept).read_to_end(&mut bytes).unwrap();
    if bytes != body(last) {
        return Err(format!("silent: snapshot {last:?} has another body"));
    }
    Ok(())
}

// ---- the suite ---------------------------------------------------------------------------------

struct Suite {
    shim: PathBuf,
    _folder: TempDir,
    /// Syncs of files that end like this are forgotten.
    ignored: Option<&'static str>,
}

#[derive(Default)]
struct Tally {
    cuts: u64,
    hits: BTreeMap<&'static str, u64>,
    lost: Vec<String>,
}

impl Tally {
    fn print(&self, title: &str, first: u64, last: u64) {
        let refused = self.lost.iter().filter(|lost| lost.contains("refused:")).count();
        println!(
            "{title}: {} power cuts, seeds {first} to {last}, in flight {:?}; lost in {} of them \
             ({refused} refused to open)",
            self.cuts,
            self.hits,
            self.lost.len()
        );
    }
}

impl Suite {
    fn new(ignored: Option<&'static str>) -> Self {
        let folder = TempDir::new().unwrap();
        let shim = folder.path().join("lostwrite.so");
        let source =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/lostwrite/lostwrite.c");
        let built = Command::new("cc")
            .args(["-O2", "-shared", "-fPIC", "-o"])
            .args([&shim, &source])
            .args(["-ldl", "-lpthread"])
            .status();
        assert!(built.expect("a C compiler is installed as `cc`").success());
        Self { shim, _folder: folder, ignored }
    }

    /// Runs the driver until the power is cut; `None` if it ended before that.
    fn life(&self, root: &Path, seed: u64, target: &str) -> Option<Report> {
        let report = root.join("report");
        File::create(&report).unwrap();
        let mut driver = self.driver(root, &report, seed);
        driver.env("HOLDFAST_DRIVER_TARGET", target);
        let opening =
            [("creation", 45), ("restart", 16)].into_iter().find(|(kind, _)| *kind == target);
        if let Some((_, calls)) = opening {
            let at = 1 + Draw(seed ^ 0xa7).below(calls);
            driver.env("LOSTWRITE_AT", at.to_string());
        }
        let is_cut = self.is_cut(&mut driver, &format!("seed {seed}, target {target}"));
        is_cut.then(|| Report::read(&report))
    }

    /// The driver as a process on the folder's own disk.
    fn driver(&self, root: &Path, report: &Path, seed: u64) -> Command {
        let mut driver = Command::new(std::env::current_exe().unwrap());
        driver
            .args(["--exact", "driver_process", "--ignored", "--nocapture", "--test-threads=1"])
            .env("LD_PRELOAD", &self.shim)
            .env("LOSTWRITE_DIR", root.join("disk"))
            .env("LOSTWRITE_TRASH", root.join("trash"))
            .env("LOSTWRITE_SEED", (seed & 0xffff).to_string())
            .env("LOSTWRITE_KEEP", ["0", "0", "50", "90"][Draw(seed ^ 0x5eed).size(4)])
            .env("HOLDFAST_DRIVER_ROOT", root.join("disk"))
            .env("HOLDFAST_DRIVER_REPORT", report)
            .env("HOLDFAST_DRIVER_SEED", seed.to_string());
        if let Some(ignored) = self.ignored {
            driver.env("LOSTWRITE_IGNORE", ignored);
        }
        driver
    }

    /// Runs the driver to its end; returns whether its power was cut.
    fn is_cut(&self, driver: &mut Command, case: &str) -> bool {
        let output = driver.output().unwrap();
        let status = output.status.code();
        let text = String::from_utf8_lossy(&output.stderr);
        let said = String::from_utf8_lossy(&output.stdout);
        // Without the syncs the driver may find its own store lost: a loss, seen one process later.
        let refused = self.ignored.is_some() && status == Some(101);
        assert!(
            matches!(status, Some(CUT | 0)) || refused,
            "{case}: the driver failed: {said}\n{text}"
        );
        status == Some(CUT)
    }

    /// Uses one folder after the other, with several processes on each, until there are enough
    /// cuts.
    fn run(&self, first_seed: u64, cuts: u64) -> (Tally, u64) {
        let targets = ["append", "vote", "purge", "truncation", "snapshot", "restart"];
        let mut tally = Tally::default();
        let mut seed = first_seed;
        let mut folders = 0_u64;
        while tally.cuts < cuts {
            folders += 1;
            let root = TempDir::new().unwrap();
            for part in ["disk", "trash"] {
                std::fs::create_dir(root.path().join(part)).unwrap();
            }
            let mut model = Model::default();
            for life in 0..LIVES {
                seed += 1;
                let target = match life {
                    0 if !folders.is_multiple_of(5) => "creation",
                    0 => targets[Draw(seed).size(5)],
                    _ => targets[Draw(seed).size(6)],
                };
                let Some(report) = self.life(root.path(), seed, target) else { break };
                tally.cuts += 1;
                for kind in report.in_flight(life) {
                    *tally.hits.entry(kind).or_default() += 1;
                }
                match verify(&root.path().join("disk/data"), &model, &report) {
                    Ok(found) => model = found,
                    Err(lost) => {
                        tally.lost.push(format!("seed {seed}, life {life}, {target}: {lost}"));
                        break;
                    }
                }
            }
        }
        (tally, seed)
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

#[test]
fn no_acknowledged_entry_vote_or_snapshot_is_lost_in_a_power_cut() {
    let (first, cuts) = (number("HOLDFAST_SEED", 1), number("HOLDFAST_POWER_CUTS", 260));
    let (tally, last) = Suite::new(None).run(first, cuts);
    tally.print("synced", first, last);
    assert!(tally.lost.is_empty(), "{:#?}", tally.lost);
    for kind in ["creation", "append", "vote", "purge", "truncation", "snapshot"] {
        let hits = tally.hits.get(kind).copied().unwrap_or(0);
        assert!(hits * 260 >= 20 * cuts, "{kind} was cut {hits} times only");
    }
}

/// The suite detects losses: with the syncs of the log's files ignored it finds many.
#[test]
fn without_the_sync_of_the_data_file_the_same_suite_loses_some() {
    let (first, cuts) = (number("HOLDFAST_SEED", 1), number("HOLDFAST_POWER_CUTS", 260));
    let (tally, last) = Suite::new(Some(".seg")).run(first, cuts);
    tally.print("without fdatasync", first, last);
    assert!(tally.lost.len() as u64 * 260 >= 50 * cuts, "lost in {} cuts", tally.lost.len());
}
