//! Old clients: processes that run a recipe by the text of its article, in Python with the ordinary driver (`tests/legacy`), and ours on
//! the same keys on three real Cassandra nodes. They exclude ours and ours exclude them; both write the history, and the judge checks it.
//!
//! Needs `python3` and the packages in `tests/legacy/requirements.txt`, which pip puts into a folder of its own below the target folder,
//! once. A slice runs with every change; `HOLDFAST_LEGACY_SECONDS` sets the length of each direction, 300 in a full run.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests stop the test when something is not as it must be, and show what they saw"
)]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use holdfast_recipes::Wait;
use holdfast_runtime::Runtime;
use holdfast_tests::cassandra::{BAKERY, LEASE, OPTIMISTIC, QUEUE, SHADOW, Stage, TOKENS};
use holdfast_tests::check::{Options, Report, check};
use holdfast_tests::history::{ClientId, Record};
use holdfast_tests::legacy;
use holdfast_tests::python::{Python, run};
use holdfast_tests::recipe::{Party, Recipe, Times};
use holdfast_tests::run::judge;
use nix::sys::signal::Signal;

/// The length of each direction, unless the environment sets it.
const SLICE_S: u64 = 7;
/// The first client of an old process; ours are below.
const OLD: u64 = 1_000;
const NAMES: [&str; 2] = ["a", "b"];

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn length() -> Duration {
    let wanted = std::env::var("HOLDFAST_LEGACY_SECONDS");
    secs(wanted.map_or(SLICE_S, |wanted| wanted.parse().unwrap()))
}

fn python() -> Python {
    legacy::python(env!("CARGO_TARGET_TMPDIR"), "cassandra_legacy")
}

/// In a fresh clone the first tests of this file begin together, and none has a Python yet.
#[test]
fn a_python_that_tests_want_at_the_same_time_is_made_once() {
    let folder = tempfile::tempdir().unwrap();
    let requirements = folder.path().join("wanted.txt");
    std::fs::write(&requirements, "# nothing\n").unwrap();
    let client = folder.path().join("client");
    let wanted = || Python::with(&requirements, &client);

    let all = std::thread::scope(|scope| {
        let first = scope.spawn(wanted);
        while !client.join("python").exists() && !first.is_finished() {
            std::thread::yield_now();
        }
        let others = [(); 2].map(|()| scope.spawn(wanted));
        let [second, third] = others.map(|wanting| wanting.join().unwrap());
        [first.join().unwrap(), second, third]
    });

    for python in all {
        run(python.unwrap().command().args(["-c", "import pip"])).unwrap();
    }
}

/// Old clients hold for `old_ms` at a time, ours for `our_ms`: the kind that holds keeps the other out. Ends when locks have passed so many
/// `times`.
async fn contend(
    party: &Party<'_>,
    python: &Python,
    names: &[&str],
    (first, times): (u64, usize),
    (old_ms, our_ms): (u64, u64),
) {
    let [old_ms, pause_ms] = [old_ms, our_ms].map(|ms| ms.to_string());
    let task = [&["work", "4", &old_ms, &pause_ms][..], names].concat();
    let mut old = party.foreign(python.program(), &legacy::script("client.py"), OLD + first, &task);
    old.says("ready").await;
    let over = AtomicBool::new(false);
    let is_over = || over.load(Ordering::Relaxed);
    let ours = (1..=4).map(async |id| {
        let client = party.client(first + id);
        client.work(names, Duration::from_millis(our_ms), is_over).await;
    });
    let passing = async {
        party.pass_locks(OLD, times, length()).await;
        over.store(true, Ordering::Relaxed);
    };
    tokio::join!(join_all(ours), passing);
    old.end().await;
}

/// By line 13 of the wiki two clients that drew the same number are both in (`tests/legacy/bakery_wiki.py`). That is expected here, for two
/// old clients, and nowhere else: one of them at a time and all of ours are judged like any client.
fn judged_but_for_line_13(records: &[Record]) -> Report {
    let is_old = |client: &ClientId| client.0 >= OLD;
    let old: BTreeSet<ClientId> =
        records.iter().map(|record| record.client).filter(is_old).collect();
    for one in &old {
        let of_them = |record: &&Record| record.client == *one || !is_old(&record.client);
        judge(vec![records.iter().filter(of_them).cloned().collect()]);
    }
    check(records, Options::default())
}

#[tokio::test]
async fn old_clients_and_ours_exclude_each_other() {
    let python = python();
    let stage = Stage::set("legacy", &[LEASE, QUEUE, TOKENS, BAKERY]).await;
    Recipe::make_tables_of_forms(&stage).await;
    let least = usize::try_from(length().as_secs() / 2).unwrap();
    // Each recipe has tables of its own: side by side they take no longer than one.
    let contending = Recipe::ALL_FORMS.map(async |recipe| {
        let party = Party::new(&stage, recipe, Times::USUAL);
        contend(&party, &python, &NAMES, (0, least / 2), (150, 20)).await;
        contend(&party, &python, &NAMES, (100, least), (20, 150)).await;
        party
    });
    for party in join_all(contending).await {
        let recipe = party.recipe();
        let records = party.take_history();
        let report = match recipe {
            Recipe::Bakery => judged_but_for_line_13(&records),
            _ => judge(vec![records.clone()]),
        };
        let (to_us, to_them) = legacy::passed(&records, OLD);
        println!("{recipe:?}: {to_us} times from an old client to ours, {to_them} back: {report}");
        assert!(to_us >= least && to_them >= least, "{recipe:?}: {to_us} {to_them} {report}");
    }
}

/// Names that no other run uses: rows of an old client of the older recipes stay for ever if its test is interrupted.
fn names_of_this_run() -> [String; 2] {
    let run = Runtime::system().clock.wall_ms();
    NAMES.map(|name| format!("{name}/{run}"))
}

/// The recipes do not promise progress with so many clients, so each direction goes on until old clients and ours have been granted the
/// lock.
#[tokio::test]
async fn old_clients_of_the_older_recipes_and_ours_exclude_each_other() {
    let python = python();
    let stage = Stage::set("legacy_older", &[SHADOW, OPTIMISTIC]).await;
    let names = names_of_this_run();
    let names = names.each_ref().map(String::as_str);
    let contending = Recipe::OLDER.map(async |recipe| {
        let party = Party::new(&stage, recipe, Times::USUAL);
        contend(&party, &python, &names, (0, 1), (150, 20)).await;
        contend(&party, &python, &names, (100, 1), (20, 150)).await;
        party
    });
    for party in join_all(contending).await {
        let recipe = party.recipe();
        let (report, records) = party.judge_and_keep();
        let (to_us, to_them) = legacy::passed(&records, OLD);
        println!("{recipe:?}: {to_us} times from an old client to ours, {to_them} back: {report}");
        assert!(to_us > 0 && to_them > 0, "{recipe:?}: {to_us} {to_them} {report}");
    }
}

/// Their articles have no lease. Our recipes do.
#[tokio::test]
async fn what_a_killed_process_of_ours_left_ends_with_its_ttl_and_an_old_ones_of_the_older_recipes_never()
 {
    let python = python();
    let stage = Stage::set("legacy_older_killed", &[SHADOW, OPTIMISTIC]).await;
    let [theirs, ours] = names_of_this_run();
    let outlived = Recipe::OLDER.map(async |recipe| {
        let party = Party::new(&stage, recipe, Times::SHORT);
        let script = legacy::script("client.py");
        let mut old = party.foreign(python.program(), &script, OLD, &["hold", &theirs]);
        let mut killed = party.process(100, &["hold", &ours]);
        old.says("held").await;
        killed.says("held").await;
        old.signal(Signal::SIGKILL);
        killed.signal(Signal::SIGKILL);
        let mut heir = party.foreign(python.program(), &script, OLD + 1, &["hold", &ours]);
        heir.says("held").await;
        // By now one TTL is over.
        let locker = party.locker("later");
        for name in [&theirs, &ours] {
            let tried = locker.try_lock(name).await.unwrap();
            assert!(tried.is_none(), "{recipe:?}: {name} is held by an old client");
        }
        party
    });
    for party in join_all(outlived).await {
        assert!(party.judge().tally.safe_holds >= 3);
    }
}

/// In either direction: the rows of the killed client are respected until their TTL is over, and no longer.
#[tokio::test]
async fn what_a_killed_process_of_either_kind_left_stands_for_its_ttl() {
    let python = python();
    let stage = Stage::set("legacy_killed", &[LEASE, QUEUE, TOKENS, BAKERY]).await;
    // In the lease article rows have the TTL of their table.
    let short = "ALTER TABLE legacy_killed.leases WITH default_time_to_live = 9";
    stage.query(short).await;
    Recipe::make_tables_of_forms(&stage).await;
    let parties = Party::of(&stage, &Recipe::ALL_FORMS, Times::SHORT);
    let clock = Runtime::system().clock;
    let taken_over = async |party: &Party<'_>| {
        let recipe = party.recipe();
        let script = legacy::script("client.py");
        let mut old = party.foreign(python.program(), &script, OLD, &["hold", "theirs"]);
        let mut ours = party.process(100, &["hold", "ours"]);
        old.says("held").await;
        ours.says("held").await;
        let denied = party.locker("early").try_lock("theirs").await.unwrap();
        assert!(denied.is_none(), "{recipe:?}: an old client holds it");
        old.signal(Signal::SIGKILL);
        ours.signal(Signal::SIGKILL);
        let killed = clock.now();

        let mut heir = party.foreign(python.program(), &script, OLD + 1, &["hold", "ours"]);
        let taking = async {
            let client = party.client(1);
            let held = client.acquire("theirs", Wait::AtMost(secs(40))).await.unwrap();
            let took = clock.now().saturating_since(killed);
            held.release().await.unwrap();
            took
        };
        let inheriting = async {
            heir.says("held").await;
            clock.now().saturating_since(killed)
        };
        let (took, inherited) = tokio::join!(taking, inheriting);
        for length in [took, inherited] {
            // Old clients renew every third, or half, of nine seconds. A slow machine may be late, and no client is early.
            assert!(length > secs(3) && length < secs(40), "{recipe:?}: {took:?} {inherited:?}");
        }
    };
    join_all(parties.iter().map(taken_over)).await;
    for party in parties {
        assert!(party.judge().tally.safe_holds >= 4);
    }
}
