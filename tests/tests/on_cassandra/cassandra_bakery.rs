//! Properties of the bakery alone, on three real Cassandra nodes: numbers, flags, and clients that die with one of them. Both forms, side
//! by side. Its locks are in `cassandra_scenarios.rs` and `cassandra_legacy.rs` as well.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests stop the test when something is not as it must be, and show what they saw"
)]

use std::time::Duration;

use futures_util::future::join_all;
use holdfast::Error;
use holdfast_recipes::{Bakery, BakeryTables, LockerOptions, RemoteLocker, Wait};
use holdfast_runtime::Runtime;
use holdfast_tests::cassandra::{BAKERY, Stage};
use holdfast_tests::program::run;
use holdfast_tests::recipe::{Party, Recipe, Times, robbed};
use nix::sys::signal::Signal;
use scylla::value::Row;

const FORMS: [Recipe; 2] = [Recipe::Bakery, Recipe::BakeryPhp];
const TTL_S: u64 = Times::SHORT.ttl.as_secs();

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

async fn sleep(length: Duration) {
    Runtime::system().sleep(length).await;
}

/// A stage with the tables of both forms. Tests share the keyspace `bakery`, and their locks have names of their own.
async fn set(keyspace: &'static str) -> Stage {
    let stage = Stage::set(keyspace, &[BAKERY]).await;
    Recipe::make_tables_of_forms(&stage).await;
    stage
}

/// The tables of numbers and of choosing, and the value of a flag that is up.
fn tables(form: Recipe) -> (&'static str, &'static str, &'static str) {
    match form {
        Recipe::BakeryPhp => ("numbers_php", "choosing_php", "true"),
        _ => ("numbers", "choosing", "1"),
    }
}

async fn rows(stage: &Stage, table: &str, lock: &str) -> usize {
    let select = format!("SELECT * FROM {}.{table} WHERE key = '{lock}'", stage.keyspace());
    let result = stage.query(&select).await;
    result.into_rows_result().unwrap().rows::<Row>().unwrap().count()
}

/// Waits until nothing of a lock is left, for less than the usual TTL: the recipe takes back its cells in the background.
async fn is_emptied(stage: &Stage, table: &str, lock: &str) {
    let emptied = async {
        while rows(stage, table, lock).await > 0 {
            sleep(Duration::from_millis(100)).await;
        }
    };
    Runtime::system().timeout(secs(120), emptied).await.unwrap();
}

async fn highest(stage: &Stage, table: &str, lock: &str) -> Option<i64> {
    let select =
        format!("SELECT max(value) FROM {}.{table} WHERE key = '{lock}'", stage.keyspace());
    let result = stage.query(&select).await;
    result.into_rows_result().unwrap().first_row::<(Option<i64>,)>().unwrap().0
}

/// Runs `scenario` with each form at the same time, then judges each.
async fn with_each(stage: &Stage, scenario: impl AsyncFn(&Party<'_>)) {
    let parties = Party::of(stage, &FORMS, Times::SHORT);
    join_all(parties.iter().map(|party| scenario(party))).await;
    for party in parties {
        let recipe = party.recipe();
        let (report, records) = party.judge_and_keep();
        println!("{recipe:?}: {report}");
        assert_eq!(robbed(&records), None, "{recipe:?}");
        assert!(report.tally.safe_holds > 0, "{recipe:?}: {report}");
    }
}

/// A client that died between its flag and its number has left a flag that is up. A later client waits until the flag has expired, and no
/// longer than the skew and one look after that.
#[tokio::test]
async fn who_died_while_choosing_holds_everybody_up_for_its_ttl_and_no_longer() {
    let stage = set("bakery").await;
    with_each(&stage, async |party| {
        let (_, choosing, up) = tables(party.recipe());
        let clock = Runtime::system().clock;
        let before = clock.now();
        stage.cql(&format!("INSERT INTO k.{choosing} (key, column1, value) VALUES ('chosen', 'dead', {up}) USING TTL {TTL_S}")).await;
        let [hasty, patient] = [1, 2].map(|id| party.client(id));
        let tried = hasty.acquire("chosen", Wait::No).await.map(|_held| ());
        // A refusal within the TTL was caused by the flag.
        if clock.now().saturating_since(before) < secs(TTL_S - 1) {
            assert!(matches!(tried, Err(Error::NotGranted { .. })), "{tried:?}");
        }
        let held = patient.acquire("chosen", Wait::AtMost(secs(60))).await.unwrap();
        let waited = clock.now().saturating_since(before);
        assert!(waited > secs(TTL_S - 2), "it waited for the flag: {waited:?}");
        held.release().await.unwrap();
        is_emptied(&stage, choosing, "chosen").await;
    })
    .await;
}

/// The holder's process and the first waiter's are killed; the next client gets the lock once both numbers have expired, and not while the
/// holder's hold is certain: the judge checks that.
#[tokio::test]
async fn the_numbers_of_a_killed_holder_and_a_killed_waiter_end_with_their_ttl() {
    let stage = set("bakery").await;
    with_each(&stage, async |party| {
        let (numbers, _, _) = tables(party.recipe());
        let mut holder = party.process(100, &["hold", "killed"]);
        holder.says("held").await;
        let waiter = party.process(101, &["hold", "killed"]);
        while rows(&stage, numbers, "killed").await < 2 {
            sleep(Duration::from_millis(100)).await;
        }
        waiter.signal(Signal::SIGKILL);
        holder.signal(Signal::SIGKILL);
        let held = party.client(1).acquire("killed", Wait::AtMost(secs(60))).await.unwrap();
        held.release().await.unwrap();
        assert_eq!(rows(&stage, numbers, "killed").await, 0, "and what it wrote is gone");
    })
    .await;
}

/// Five clients draw one after the other while the lock is held for longer than a TTL; they are granted it in that order.
#[tokio::test]
async fn who_drew_first_has_it_first_and_keeps_its_number_for_longer_than_a_ttl() {
    const WAITERS: u64 = 5;
    let stage = set("bakery").await;
    with_each(&stage, async |party| {
        let (numbers, _, _) = tables(party.recipe());
        let held = party.client(99).acquire("ordered", Wait::Forever).await.unwrap();
        let order = std::sync::Mutex::new(Vec::new());
        let drawn = async |least: u64| {
            while rows(&stage, numbers, "ordered").await < usize::try_from(least).unwrap() {
                sleep(Duration::from_millis(50)).await;
            }
        };
        let wait = async |id: u64| {
            // The holder's number, and those drawn before.
            drawn(id).await;
            let client = party.client(id);
            let guard = client.acquire("ordered", Wait::Forever).await.unwrap();
            order.lock().unwrap().push(id);
            guard.release().await.unwrap();
        };
        let holding = async {
            drawn(WAITERS + 1).await;
            held.keep(secs(TTL_S + 3)).await;
            let last = highest(&stage, numbers, "ordered").await;
            let _ = held.release().await;
            last
        };
        let waiting = join_all((1..=WAITERS).map(wait));
        let (last, _) = tokio::join!(holding, waiting);
        // If the machine stalls for half a TTL, a client has to draw its number again, and the order changes.
        if last == Some(6) {
            assert_eq!(order.into_inner().unwrap(), [1, 2, 3, 4, 5], "{:?}", party.recipe());
        } else {
            println!("{:?}: somebody had to draw again: {last:?}", party.recipe());
        }
    })
    .await;
}

/// Twelve clients at one lock, in both forms at once.
#[tokio::test]
async fn twelve_clients_that_draw_at_once_are_in_one_at_a_time() {
    let stage = set("bakery").await;
    let parties = Party::of(&stage, &FORMS, Times::USUAL);
    let clock = Runtime::system().clock;
    let began = clock.now();
    // A slow machine takes longer to reach the number.
    let enough = || parties.iter().all(|party| party.given_back() >= 30);
    let is_over = || {
        let worked = clock.now().saturating_since(began);
        worked >= secs(4) && (enough() || worked >= secs(90))
    };
    join_all(parties.iter().map(|party| party.work(12, &["twelve"], &is_over))).await;
    for party in parties {
        let recipe = party.recipe();
        let (numbers, choosing, _) = tables(recipe);
        let report = party.judge();
        println!("{recipe:?}: {report}");
        assert!(report.tally.safe_holds >= 30, "{recipe:?}: {report}");
        is_emptied(&stage, numbers, "twelve").await;
        is_emptied(&stage, choosing, "twelve").await;
    }
}

/// Tables of other names, by the command line; tables that do not fit the recipe are refused by name.
#[tokio::test]
async fn the_command_line_locks_in_either_form_and_names_what_it_cannot_lock_in() {
    let stage = set("bakery_cli").await;
    let place = ["cassandra", "--contact-points", stage.points(), "--keyspace", stage.keyspace()];
    let php = ["--numbers-table", "numbers_php", "--choosing-table", "choosing_php"];
    let job = ["job", "--", "true"];
    let line = |names: &[&'static str], rest: &[&'static str]| {
        [&place[..], names, &["bakery"], rest, &job].concat()
    };
    stage.cql("CREATE TABLE IF NOT EXISTS k.numbers_pid (key text, column1 int, value bigint, PRIMARY KEY (key, column1))").await;
    stage.cql("CREATE TABLE IF NOT EXISTS k.choosing_pid (key text, column1 int, value bigint, PRIMARY KEY (key, column1))").await;
    stage.cql("TRUNCATE k.numbers").await;

    for (names, rest) in [(&[][..], ["lock"].as_slice()), (&php, &["--form", "php", "try"])] {
        let ended = run("holdfast", &line(names, rest)).await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
    let of_pids = ["--numbers-table", "numbers_pid", "--choosing-table", "choosing_pid"];
    let refused = [
        (line(&php, &["lock"]), "table choosing_php: its columns are of other types"),
        (line(&of_pids, &["lock"]), "table choosing_pid: its columns are of other types"),
    ];
    for (line, says) in refused {
        let ended = run("holdfast", &line).await;
        assert_eq!(ended.code, Some(122), "{ended:?}");
        assert!(ended.err.contains(says), "{}", ended.err);
    }
    stage.cql("INSERT INTO k.numbers (key, column1, value) VALUES ('job', 'odd', -1)").await;
    let ended = run("holdfast", &line(&[], &["lock"])).await;
    assert_eq!(ended.code, Some(122), "{ended:?}");
    assert!(ended.err.contains("\"odd\" has the number -1, which nobody draws"), "{}", ended.err);
}

/// A guard has no token, and its label is the service.
#[tokio::test]
async fn a_guard_says_who_has_it() {
    let stage = set("bakery").await;
    let options = LockerOptions::default().service("billing");
    let bakery = Bakery::new(&stage.cassandra(), &options, BakeryTables::default()).unwrap();
    let guard = bakery.lock("guarded").await.unwrap();
    assert_eq!((guard.owner(), guard.token()), ("billing", None));
    let Err(Error::NotGranted { holders, .. }) = bakery.acquire("guarded", Wait::No).await else {
        panic!("it is held");
    };
    assert_eq!(holders[0].label, "billing");
    guard.release().await.unwrap();
}
