//! Properties of the tokens alone, on three real Cassandra nodes: batches, the housekeeper's process, the effect of the article's plain
//! delete, and the command line. Every run writes a history, which the judge of all runs checks. The scenarios of every recipe are in
//! `cassandra_scenarios.rs`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests stop the test when something is not as it must be"
)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use holdfast_recipes::{
    Bunch, Lease, LeaseTable, LockerOptions, RemoteLocker, TokenTables, Tokens, Wait,
};
use holdfast_runtime::Runtime;
use holdfast_tests::cassandra::{LEASE, Stage, TOKENS};
use holdfast_tests::history::{Asked, ClientId, Recorder, What, read};
use holdfast_tests::legacy;
use holdfast_tests::program::{Program, run};
use holdfast_tests::recipe::{Party, Recipe, Times, keep_house, robbed};
use holdfast_tests::remote::RemoteScribe;
use holdfast_tests::run::judge;
use nix::sys::signal::Signal;
use scylla::client::session::Session;
use scylla::value::Row;
use tempfile::TempDir;

/// The grace: short, so that a test can wait for its end. A guard is safe for 4.9 s, and renews every 1.6 s.
const GRACE: Duration = secs(9);
const SKEW: Duration = secs(3);

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

async fn sleep(length: Duration) {
    Runtime::system().sleep(length).await;
}

fn tokens(stage: &Stage, service: &str, ttl: Duration, skew: Duration) -> Tokens {
    let options = LockerOptions::default().service(service).ttl(ttl).max_skew(skew);
    Tokens::new(&stage.cassandra(), &options, TokenTables::default()).unwrap()
}

/// Clients 1 to `number`, each with a locker of its own: as far as locks are concerned, a process each.
fn clients(stage: &Stage, number: u64, ttl: Duration, skew: Duration) -> Vec<RemoteScribe> {
    stage.clients(number, |service| Arc::new(tokens(stage, service, ttl, skew)))
}

/// A process that holds `name` as client `id`, and its history.
async fn holder(stage: &Stage, name: &str, id: u64) -> (Program, PathBuf, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let history = folder.path().join("history");
    let (ttl, skew) = (GRACE.as_secs().to_string(), SKEW.as_secs().to_string());
    let (id, path) = (id.to_string(), history.to_str().unwrap());
    let place = ["tokens-lwt", stage.points(), stage.keyspace(), &ttl, &skew, path, &id];
    let arguments = [&place[..], &["hold", name]].concat();
    let mut holder = Program::start("holdfast-cassandra-holder", &arguments);
    holder.line("held", secs(30)).await;
    (holder, history, folder)
}

/// `holdfast cassandra` on this stage.
fn command_line<'a>(stage: &'a Stage, rest: &[&'a str]) -> Vec<&'a str> {
    let place = ["cassandra", "--contact-points", stage.points(), "--keyspace", stage.keyspace()];
    place.into_iter().chain(rest.iter().copied()).collect()
}

async fn applied(session: &Session, statement: &str) -> bool {
    let result = session.query_unpaged(statement, ()).await.unwrap();
    let row: Row = result.into_rows_result().unwrap().first_row().unwrap();
    row.columns[0].as_ref().and_then(scylla::value::CqlValue::as_boolean).unwrap()
}

async fn rows(session: &Session, select: &str) -> usize {
    let result = session.query_unpaged(select, ()).await.unwrap();
    result.into_rows_result().unwrap().rows_num()
}

/// Rows of tokens and sequences have no TTL. A default of their table would end a token while a heartbeat keeps its holder safe, and begin a
/// sequence again.
#[tokio::test]
async fn the_default_ttl_of_a_table_ends_no_token_and_no_sequence() {
    let stage = Stage::set("tokens_default", &[TOKENS, LEASE]).await;
    for table in ["tokens", "token_times", "sequences"] {
        stage.cql(&format!("ALTER TABLE k.{table} WITH default_time_to_live = 6")).await;
    }
    let holder = tokens(&stage, "holder", GRACE, SKEW);
    let held = holder.lock("jobs").await.unwrap();
    let options = LockerOptions::default().service("drawer");
    let lease = Lease::new(&stage.cassandra(), &options, LeaseTable::default()).unwrap();
    let first = lease.sequence("numbers").draw(3).await.unwrap();

    sleep(secs(10)).await;

    assert!(held.is_safe());
    let other = tokens(&stage, "other", GRACE, SKEW);
    assert!(other.try_lock("jobs").await.unwrap().is_none());
    held.release().await.unwrap();
    assert!(other.try_lock("jobs").await.unwrap().is_some());
    assert_eq!(lease.sequence("numbers").draw(1).await.unwrap().start, first.end);
}

/// "In case of high conflict batches": four workers, the same thirty tokens. Each works on all of them, and no two on one at a time.
#[tokio::test]
async fn batches_of_the_same_tokens_come_to_their_end() {
    let stage = Stage::set("tokens_batch", &[TOKENS]).await;
    let _housekeeper = keep_house(&stage.cassandra(), GRACE);
    let names: Vec<String> = (0..30).map(|number| format!("sample/{number}")).collect();
    let work = async |id: u64| {
        let locker = tokens(&stage, &format!("worker-{id}"), GRACE, SKEW);
        let mut batch = locker.batch(names.iter());
        let mut bunches = 0;
        while let Some(bunch) = batch.next().await.unwrap() {
            bunches += 1;
            work_on(bunch, stage.recorder(), ClientId(id), bunches).await;
        }
        bunches
    };
    let bunches = join_all((1..=4).map(work)).await;

    let report = judge(vec![stage.recorder().take()]);
    println!("{bunches:?} bunches\n{report}");
    assert_eq!(report.violations, []);
    assert!(bunches.iter().all(|number| *number < 30), "one by one: {bunches:?}");
    assert_eq!(rows(stage.session(), "SELECT * FROM tokens_batch.token_times").await, 0);
}

/// Holds a bunch for a moment, checks all the time whether it is safe, and records it.
async fn work_on(bunch: Bunch<'_>, recorder: &Recorder, client: ClientId, request: u64) {
    let token = recorder.now_ns();
    let names = bunch.tokens().to_vec();
    let items = names.iter().map(Asked::exclusive).collect();
    let asked = What::Acquire { request, items, any: Some(1), wait: true, within_ms: None };
    recorder.write(client, asked);
    let values = Vec::new();
    recorder.write(client, What::Granted { request, token, names: names.clone(), values });
    for _ in 0..10 {
        let at_ns = recorder.now_ns();
        let safe = bunch.is_safe();
        recorder.write_at(at_ns, client, What::IsSafe { token, safe, names: names.clone() });
        sleep(Duration::from_millis(10)).await;
    }
    recorder.write(client, What::Release { token, names: Vec::new() });
    bunch.release().await.unwrap();
    recorder.write(client, What::Released { token, names: Vec::new() });
}

/// Deadlock and stop-the-world: one holder is killed, another one is frozen past its term. The housekeeper's process frees both tokens, and
/// not before its grace; the frozen process knows as soon as it wakes.
#[tokio::test]
async fn the_tokens_of_a_killed_and_of_a_frozen_process_are_freed_after_the_grace() {
    let stage = Stage::set("tokens_dead", &[TOKENS]).await;
    let sweeping = ["housekeeper", "--grace", "9s", "--every", "1s"];
    let mut housekeeper = Program::start("holdfast", &command_line(&stage, &sweeping));
    let (killed, first_history, _first) = holder(&stage, "killed", 100).await;
    let (mut frozen, second_history, _second) = holder(&stage, "frozen", 101).await;
    sleep(secs(2)).await;
    killed.signal(Signal::SIGKILL);
    frozen.signal(Signal::SIGSTOP);
    let stopped = Runtime::system().clock.now();

    let clients = clients(&stage, 2, GRACE, SKEW);
    let take = async |client: &RemoteScribe, name: &str| {
        let held = client.acquire(name, Wait::AtMost(secs(60))).await.unwrap();
        (held, Runtime::system().clock.now().saturating_since(stopped))
    };
    let ((first, first_took), (second, second_took)) =
        tokio::join!(take(&clients[0], "killed"), take(&clients[1], "frozen"));
    frozen.signal(Signal::SIGCONT);
    frozen.line("lost", secs(5)).await;
    second.keep(secs(2)).await;
    assert!(second.guard().is_safe(), "what the frozen one gave back was not ours");
    first.release().await.unwrap();
    second.release().await.unwrap();

    housekeeper.line("token killed removed, of hf1:", secs(20)).await;
    housekeeper.line("token frozen removed, of hf1:", secs(20)).await;
    housekeeper.signal(Signal::SIGTERM);
    let ended = housekeeper.end(secs(5)).await;
    // On a slow machine a sweep may print that the cluster did not answer.
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let histories = [&first_history, &second_history].map(|history| read(history).unwrap());
    let report = judge([vec![stage.recorder().take()], histories.into()].concat());
    assert_eq!(report.violations, []);
    // A guard is safe for 4.9 s after its last renewal, which may have been that long ago.
    for took in [first_took, second_took] {
        assert!(took > GRACE.saturating_sub(secs(5)), "{took:?}");
    }
}

/// The old housekeeper and ours on the same tables, and live holders of either kind all the time: neither frees a held token. Dead holders
/// of either kind are freed by whichever of the two runs, and by both together.
#[tokio::test]
async fn the_old_housekeeper_and_ours_free_the_same_and_neither_what_is_held() {
    let python = legacy::python(env!("CARGO_TARGET_TMPDIR"), "cassandra_tokens");
    let stage = Stage::set("tokens_houses", &[TOKENS]).await;
    let times = Times { ttl: GRACE, skew: SKEW };
    let party = Party::keeping_no_house(&stage, Recipe::TokensLwt, times);
    let script = legacy::script("client.py");
    let old = |id: u64, task: &[&str]| party.foreign(python.program(), &script, id, task);
    let mut their_house = old(1_000, &["house"]);
    let mut held = Vec::new();
    for (id, name) in ["live", "both", "theirs", "ours"].into_iter().enumerate() {
        let id = u64::try_from(id).unwrap();
        let [mine, yours] = [format!("{name}/ours"), format!("{name}/old")];
        held.push([party.process(100 + id, &["hold", &mine]), old(1_100 + id, &["hold", &yours])]);
    }
    their_house.says("ready").await;
    for holder in held.iter_mut().flatten() {
        holder.says("held").await;
    }
    let client = party.client(1);
    let inherit = async |name: &str| {
        for kind in ["ours", "old"] {
            let name = format!("{name}/{kind}");
            let held = client.acquire(&name, Wait::AtMost(secs(40))).await;
            held.unwrap_or_else(|error| panic!("{name}: {error}")).release().await.unwrap();
        }
    };
    let kill = |at: usize| held[at].iter().for_each(|holder| holder.signal(Signal::SIGKILL));

    let our_house = keep_house(&stage.cassandra(), GRACE);
    kill(1);
    inherit("both").await;
    drop(our_house);
    kill(2);
    inherit("theirs").await;
    their_house.end().await;
    let _our_house = keep_house(&stage.cassandra(), GRACE);
    kill(3);
    inherit("ours").await;

    // A client that gets a token of a live holder holds it for a while: the judge decides whether it was free.
    let late = party.client(2);
    for kind in ["ours", "old"] {
        if let Ok(freed) = late.acquire(&format!("live/{kind}"), Wait::No).await {
            println!("live/{kind} was free: given up without answers, or taken from its holder");
            freed.keep(secs(1)).await;
        }
    }
    let (report, records) = party.judge_and_keep();
    assert_eq!(robbed(&records), None, "a live holder's token was freed");
    assert!(report.tally.safe_holds >= 14, "{report}");
}

/// A third-party client, with the article's own statements on the same tables; and the effect of its plain delete when its coordinator is a
/// minute ahead: an insert that was answered as applied is not there.
#[tokio::test]
async fn a_client_with_the_seeds_statements_excludes_ours_and_is_excluded() {
    let stage = Stage::set("tokens_seed", &[TOKENS]).await;
    let ours = tokens(&stage, "ours", GRACE, SKEW);
    let insert = |token: &str, id: &str| {
        format!(
            "INSERT INTO tokens_seed.tokens (\"token\", service_session_id, timestamp) \
             VALUES ('{token}', '{id}', toTimestamp(now())) IF NOT EXISTS"
        )
    };
    let held = ours.lock("foo").await.unwrap();
    assert!(!applied(stage.session(), &insert("foo", "theirs")).await);
    held.release().await.unwrap();

    assert!(applied(stage.session(), &insert("foo", "theirs")).await);
    let denied = ours.lock_within("foo", secs(5)).await.unwrap_err();
    assert!(denied.to_string().ends_with("held by theirs"), "{denied}");
    let delete =
        "DELETE FROM tokens_seed.tokens WHERE \"token\" = 'foo' IF service_session_id = 'theirs'";
    assert!(applied(stage.session(), delete).await);
    assert!(ours.try_lock("foo").await.unwrap().is_some());

    assert!(applied(stage.session(), &insert("bar", "a")).await);
    let wall_us = Runtime::system().clock.wall_ms() * 1_000;
    let ahead = wall_us + 60_000_000;
    let delete =
        format!("DELETE FROM tokens_seed.tokens USING TIMESTAMP {ahead} WHERE \"token\" = 'bar'");
    stage.query(&delete).await;
    assert!(applied(stage.session(), &insert("bar", "b")).await);
    assert!(applied(stage.session(), &insert("bar", "c")).await, "the model knows no better");
}

/// Makes two of the printed tables. `cassandra_commands.rs` has the product make all of them.
async fn make(stage: &Stage, printed: &str, wanted: [&str; 2]) {
    let _turn = stage.nodes().turn_of_schema().await;
    let is_wanted = |line: &&str| wanted.iter().any(|table| line.contains(table));
    let mut number = 0;
    for statement in printed.lines().filter(is_wanted) {
        stage.query(statement.trim_end_matches(';')).await;
        number += 1;
    }
    assert_eq!(number, wanted.len(), "{printed}");
}

/// `tokens-lwt lock` and `try`, `housekeeper --once`, and tables of other names.
#[tokio::test]
async fn the_command_line_locks_tokens_and_keeps_house_in_tables_of_any_name() {
    let stage = Stage::set("tokens_line", &[TOKENS]).await;
    let columns = ["--tokens-table", "locked", "--tokens-columns", "key", "column1", "Value"];
    let names = [&columns[..], &["--token-times-table", "beats"]].concat();
    let line = |rest: &[&'static str]| {
        let with_names = [&names[..], rest].concat();
        command_line(&stage, &with_names).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let call = async |rest: &[&'static str]| {
        let line = line(rest);
        run("holdfast", &line.iter().map(String::as_str).collect::<Vec<_>>()).await
    };
    let printed = call(&["schema"]).await;
    assert_eq!(printed.code, Some(0), "{printed:?}");
    make(&stage, &printed.out, [".\"locked\" (", ".\"beats\" ("]).await;
    let shell = "echo \"$HOLDFAST_LOCK ${HOLDFAST_TOKEN-none}\"; exit 7";
    let ended = call(&["tokens-lwt", "lock", "it's\"", "--", "sh", "-c", shell]).await;
    assert_eq!((ended.code, ended.out.as_str()), (Some(7), "it's\" none\n"), "{ended:?}");

    let insert =
        "INSERT INTO tokens_line.locked (key, column1, \"Value\") VALUES ('job', 'dead', 0)";
    stage.query(insert).await;
    let tried = call(&["tokens-lwt", "try", "job", "--", "true"]).await;
    assert_eq!(tried.code, Some(124), "{tried:?}");
    assert!(tried.err.contains("job is not granted: held by dead"), "{}", tried.err);
    let swept = call(&["housekeeper", "--grace", "3s", "--once"]).await;
    assert_eq!((swept.code, swept.out.as_str()), (Some(0), "token job removed, of dead\n"));
    let tried = call(&["tokens-lwt", "try", "job", "--", "true"]).await;
    assert_eq!(tried.code, Some(0), "{tried:?}");
    assert_eq!(rows(stage.session(), "SELECT * FROM tokens_line.beats").await, 0);

    let refused = call(&["housekeeper", "--grace", "1s"]).await;
    assert_eq!(refused.code, Some(125), "{refused:?}");
    let lost = [&["--token-times-table", "nothing"][..], &["housekeeper"]].concat();
    let lost = run("holdfast", &command_line(&stage, &lost)).await;
    assert_eq!(lost.code, Some(122), "{lost:?}");
}
