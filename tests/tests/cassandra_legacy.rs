//! Old clients: processes that run a recipe as its seed's text has it, in Python with the ordinary driver (`tests/legacy`), and ours at the same
//! keys on three real Cassandra nodes. They exclude ours and are excluded by ours; both write the history, and the judge judges it.
//!
//! Needs `python3` and the packages in `tests/legacy/requirements.txt`, which pip puts into a folder of its own below the target folder,
//! once. A slice runs with every change; `HOLDFAST_LEGACY_SECONDS` says how long each way is, 300 in a full run.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests stop the test when something is not as it must be, and show what they saw"
)]

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use holdfast::compat::Patience;
use holdfast_seams::Seams;
use holdfast_tests::cassandra::Stage;
use holdfast_tests::history::{Record, What};
use holdfast_tests::legacy;
use holdfast_tests::python::Python;
use holdfast_tests::recipe::{Party, Recipe, Times};
use nix::sys::signal::Signal;

/// How long each way is, unless the environment says otherwise.
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

/// How often a lock passed from an old client to one of ours, and from one of ours to an old one.
fn passed(records: &[Record]) -> (usize, usize) {
    let mut last = BTreeMap::<&str, bool>::new();
    let (mut to_us, mut to_them) = (0, 0);
    for record in records {
        let What::Granted { names, .. } = &record.what else { continue };
        let old = record.client.0 >= OLD;
        for name in names {
            match last.insert(name, old) {
                Some(true) if !old => to_us += 1,
                Some(false) if old => to_them += 1,
                _ => {}
            }
        }
    }
    (to_us, to_them)
}

/// Old clients hold for `old_ms` at a time, ours as briefly as ever, and the other way round: who holds is who excludes.
async fn contend(
    party: &Party<'_>,
    python: &Python,
    names: &[&str],
    first: u64,
    (old_ms, our_ms): (u64, u64),
) {
    let [old_ms, pause_ms] = [old_ms, our_ms].map(|ms| ms.to_string());
    let task = [&["work", "4", &old_ms, &pause_ms][..], names].concat();
    let mut old = party.foreign(python.program(), &legacy::script("client.py"), OLD + first, &task);
    old.says("ready").await;
    let clock = Seams::system().clock;
    let until = clock.now() + length();
    let ours = (1..=4).map(async |id| {
        let client = party.client(first + id);
        client.work(names, Duration::from_millis(our_ms), || clock.now() >= until).await;
    });
    join_all(ours).await;
    old.end().await;
}

#[tokio::test]
async fn old_clients_and_ours_exclude_each_other() {
    let python = python();
    let stage = Stage::set("legacy").await;
    let least = usize::try_from(length().as_secs() / 2).unwrap();
    // Each on tables of its own: side by side they take no longer than one.
    let contending = Recipe::ALL.map(async |recipe| {
        let party = Party::new(&stage, recipe, Times::USUAL);
        contend(&party, &python, &NAMES, 0, (150, 20)).await;
        contend(&party, &python, &NAMES, 100, (20, 150)).await;
        party
    });
    for party in join_all(contending).await {
        let recipe = party.recipe();
        let (report, records) = party.judge_and_keep();
        let (to_us, to_them) = passed(&records);
        println!("{recipe:?}: {to_us} times from an old client to ours, {to_them} back: {report}");
        assert!(to_us >= least && to_them >= least, "{recipe:?}: {to_us} {to_them} {report}");
    }
}

/// Names that no other run has: what an old client of the older recipes leaves, when its test is cut short, stands for ever.
fn names_of_this_run() -> [String; 2] {
    let run = Seams::system().clock.wall_ms();
    NAMES.map(|name| format!("{name}/{run}"))
}

/// Nothing ensures that one of so many gets anywhere, so this goes on until old ones and ours did.
#[tokio::test]
async fn old_clients_of_the_older_recipes_and_ours_exclude_each_other() {
    const ROUNDS: u64 = 6;
    let python = python();
    let stage = Stage::set("legacy_older").await;
    let names = names_of_this_run();
    let names = names.each_ref().map(String::as_str);
    let contending = Recipe::OLDER.map(async |recipe| {
        let party = Party::new(&stage, recipe, Times::USUAL);
        for round in 0..ROUNDS {
            contend(&party, &python, &names, round * 200, (150, 20)).await;
            contend(&party, &python, &names, round * 200 + 100, (20, 150)).await;
            let theirs = party.history_of_processes();
            let theirs = theirs.iter().filter(|record| matches!(record.what, What::Granted { .. }));
            if party.given_back().min(theirs.count()) >= 5 {
                break;
            }
        }
        party
    });
    for party in join_all(contending).await {
        let recipe = party.recipe();
        let (report, records) = party.judge_and_keep();
        let (to_us, to_them) = passed(&records);
        println!("{recipe:?}: {to_us} times from an old client to ours, {to_them} back: {report}");
        assert!(to_us > 0 && to_them > 0, "{recipe:?}: {to_us} {to_them} {report}");
    }
}

/// Their seeds have no lease. Ours do.
#[tokio::test]
async fn what_a_killed_process_of_ours_left_ends_with_its_ttl_and_an_old_ones_of_the_older_recipes_never()
 {
    let python = python();
    let stage = Stage::set("legacy_older_killed").await;
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
        // So one TTL is over.
        let locker = party.locker("later");
        for name in [&theirs, &ours] {
            let tried = locker.try_get_lock(name).await.unwrap();
            assert!(tried.is_none(), "{recipe:?}: {name} is held by an old client");
        }
        party
    });
    for party in join_all(outlived).await {
        assert!(party.judge().tally.safe_holds >= 3);
    }
}

/// Either way: what the killed one left in the table is respected until its TTL is over, and is over then.
#[tokio::test]
async fn what_a_killed_process_of_either_kind_left_stands_for_its_ttl() {
    let python = python();
    let stage = Stage::set("legacy_killed").await;
    // The lease seed's rows have the TTL of their table.
    let short = "ALTER TABLE legacy_killed.leases WITH default_time_to_live = 9";
    stage.session().query_unpaged(short, ()).await.unwrap();
    let parties = Party::of_each(&stage, Times::SHORT);
    let clock = Seams::system().clock;
    let taken_over = async |party: &Party<'_>| {
        let recipe = party.recipe();
        let script = legacy::script("client.py");
        let mut old = party.foreign(python.program(), &script, OLD, &["hold", "theirs"]);
        let mut ours = party.process(100, &["hold", "ours"]);
        old.says("held").await;
        ours.says("held").await;
        let denied = party.locker("early").try_get_lock("theirs").await.unwrap();
        assert!(denied.is_none(), "{recipe:?}: an old client holds it");
        old.signal(Signal::SIGKILL);
        ours.signal(Signal::SIGKILL);
        let killed = clock.now();

        let mut heir = party.foreign(python.program(), &script, OLD + 1, &["hold", "ours"]);
        let taking = async {
            let client = party.client(1);
            let held = client.acquire("theirs", Patience::AtMost(secs(40))).await.unwrap();
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
            // Old ones renew every third, or half, of nine seconds.
            assert!(length > secs(3) && length < secs(15), "{recipe:?}: {took:?} {inherited:?}");
        }
    };
    join_all(parties.iter().map(taken_over)).await;
    for party in parties {
        assert!(party.judge().tally.safe_holds >= 4);
    }
}
