//! `holdfast-migrate plan` on three real nodes: every table layout, written as the recipes' clients write it, and the errors for tables
//! that do not fit.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests stop the test when something is not as it must be"
)]

use std::time::Duration;

use futures_util::{StreamExt, stream};
use holdfast_recipes::LockerOptions;
use holdfast_runtime::Runtime;
use holdfast_tests::cassandra::{BAKERY, LEASE, MODES, QUEUE, SHADOW, Stage, TOKENS};
use holdfast_tests::program::{Ended, run};
use holdfast_tests::recipe::Recipe;
use serde_json::{Value, json};

/// The plan's lines, the summary last.
async fn planned(stage: &Stage, arguments: &[&str]) -> Vec<Value> {
    let ended = ran(stage, arguments).await;
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{ended:?}");
    ended.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

async fn ran(stage: &Stage, arguments: &[&str]) -> Ended {
    let place =
        ["--json", "--contact-points", stage.points(), "--keyspace", stage.keyspace(), "plan"];
    let line: Vec<&str> = place.iter().chain(arguments).copied().collect();
    run("holdfast-migrate", &line).await
}

/// `holder job owner`, or `no-ttl job owner`, in the order of the locks; those of one lock in the order of the output.
fn said(lines: &[Value]) -> Vec<String> {
    let text = |line: &Value, key: &str| line[key].as_str().unwrap_or("-").to_owned();
    let mut said: Vec<(String, String)> = lines
        .iter()
        .filter(|line| line["kind"] != "summary")
        .map(|line| {
            let what = if line["reason"].is_null() { "kind" } else { "reason" };
            let (what, lock) = (text(line, what), text(line, "lock"));
            (lock.clone(), format!("{what} {lock} {}", text(line, "owner")))
        })
        .collect();
    said.sort_by(|(one, _), (other, _)| one.cmp(other));
    said.into_iter().map(|(_, line)| line).collect()
}

fn line_of<'a>(lines: &'a [Value], lock: &str) -> &'a Value {
    lines.iter().find(|line| line["lock"] == lock).unwrap_or_else(|| panic!("{lock}: {lines:?}"))
}

async fn cql(stage: &Stage, statements: &[&str]) {
    for statement in statements {
        stage.cql(statement).await;
    }
}

fn left_s(line: &Value) -> f64 {
    line["left_ms"].as_f64().unwrap() / 1_000.0
}

#[tokio::test]
async fn leases_are_planned_with_owner_value_time_left_and_write_time() {
    let stage = Stage::set("plan_lease", &[LEASE, MODES]).await;
    let rows = [
        "INSERT INTO k.leases (name, owner, value) VALUES ('orders/1', 'client_1', '10.0.0.7') IF NOT EXISTS",
        "INSERT INTO k.leases (name, owner) VALUES ('orders/2', 'client_2') USING TTL 900 AND TIMESTAMP 1700000000000000",
        "INSERT INTO k.leases (name, owner) VALUES ('forever', 'client_3') USING TTL 0",
        "INSERT INTO k.leases (name, value) VALUES ('nobody', 'v')",
        "INSERT INTO k.leases (name, owner) VALUES ('a\nb', 'client_4')",
        "INSERT INTO k.leases (name, owner) VALUES ('over', 'client_5') USING TTL 1",
    ];
    cql(&stage, &rows).await;
    let on = stage.cassandra();
    let ours = Recipe::Lease.locker(&on, &LockerOptions::default().service("billing"));
    let guard = ours.lock("ours").await.unwrap();
    Runtime::system().sleep(Duration::from_millis(2_500)).await;

    let lines = planned(&stage, &["--from", "lease"]).await;
    guard.release().await.unwrap();

    let mut expected = vec![
        "name a\nb -".to_owned(),
        "no-ttl forever client_3".to_owned(),
        "nobody-holds nobody -".to_owned(),
        "holder orders/1 client_1".to_owned(),
        "holder orders/2 client_2".to_owned(),
    ];
    let owner = line_of(&lines, "ours")["owner"].as_str().unwrap().to_owned();
    assert!(owner.starts_with("hf1:billing@"), "{owner}");
    expected.push(format!("holder ours {owner}"));
    expected.sort_by_key(|line| line.split(' ').nth(1).unwrap().to_owned());
    assert_eq!(said(&lines), expected, "what is over is not there");

    let first = line_of(&lines, "orders/1");
    assert_eq!((&first["value_bytes"], &first["ours"]), (&json!(8), &json!(false)));
    assert!((100.0..=178.0).contains(&left_s(first)), "{first}: the table's TTL of 180 s");
    let second = line_of(&lines, "orders/2");
    assert_eq!(second["written_us"], 1_700_000_000_000_000_i64);
    assert!((800.0..=898.0).contains(&left_s(second)), "{second}");

    let summary = lines.last().unwrap();
    assert_eq!(
        (&summary["holders"], &summary["ours"], &summary["locks"]),
        (&json!(3), &json!(1), &json!(6))
    );
    let below = planned(&stage, &["--from", "lease", "--prefix", "orders/"]).await;
    assert_eq!(said(&below), ["holder orders/1 client_1", "holder orders/2 client_2"]);
    assert_eq!(below.last().unwrap()["outside_prefix"], 3);
}

/// More rows than pages, ranges that contain several pages, one range for all, and more ranges than rows: each row is read once.
#[tokio::test]
async fn however_the_table_is_cut_each_row_is_read_once() {
    let stage = Stage::set("plan_many", &[LEASE]).await;
    let insert = stage
        .session()
        .prepare("INSERT INTO plan_many.leases (name, owner) VALUES (?, ?) USING TTL 3600")
        .await
        .unwrap();
    let insert = &insert;
    let rows = stream::iter(0..3_500_u32).map(|row| {
        let values = (format!("job/{row}"), format!("client_{}", row % 50));
        stage.session().execute_unpaged(insert, values)
    });
    rows.buffer_unordered(64)
        .for_each(async |inserted| assert!(inserted.is_ok(), "{inserted:?}"))
        .await;

    let mut expected: Vec<String> =
        (0..3_500).map(|row| format!("holder job/{row} client_{}", row % 50)).collect();
    expected.sort_by_key(|line| line.split(' ').nth(1).unwrap().to_owned());
    for (ranges, at_once) in [("1", "1"), ("3", "8"), ("256", "8"), ("5000", "64")] {
        let cut = ["--from", "lease", "--ranges", ranges, "--at-once", at_once];
        assert_eq!(said(&planned(&stage, &cut).await), expected, "{ranges}");
    }
}

#[tokio::test]
async fn a_queue_is_planned_as_its_clients_see_it() {
    let stage = Stage::set("plan_queue", &[QUEUE]).await;
    let place = |time: u32, thread: &str| format!("{time:020}{thread}");
    let cell = |table: &str, lock: &str, column: &str, using: &str| {
        format!(
            "INSERT INTO k.{table} (key, column1, value) VALUES ('{lock}', '{column}', 'x') {using}"
        )
    };
    let ttl = "USING TTL 600";
    let rows = [
        cell("lock_main", "job", "a", ttl),
        cell("lock_queue", "job", &place(1, "a"), ttl),
        cell("lock_queue", "job", &place(3, "c"), ttl),
        cell("lock_queue", "job", &place(2, "b"), "USING TTL 300"),
        cell("lock_queue", "free", &place(2, "b"), ttl),
        cell("lock_main", "two", "a", ttl),
        cell("lock_main", "two", "b", ttl),
        cell("lock_queue", "two", &place(1, "c"), ttl),
        cell("lock_queue", "odd", "7", ttl),
        cell("lock_queue", "odd", &place(1, "d"), ""),
    ];
    cql(&stage, &rows.each_ref().map(String::as_str)).await;
    let on = stage.cassandra();
    let ours = Recipe::Queue.locker(&on, &LockerOptions::default().service("billing"));
    let guard = ours.lock("ours").await.unwrap();

    let lines = planned(&stage, &["--from", "queue"]).await;
    guard.release().await.unwrap();

    let owner = line_of(&lines, "ours")["owner"].as_str().unwrap();
    let expected = [
        "holder free b".to_owned(),
        "holder job a".into(),
        "waiter job b".into(),
        "waiter job c".into(),
        format!("no-ttl odd {}", place(1, "d")),
        "place odd 7".into(),
        format!("holder ours {owner}"),
        "several-holders two -".into(),
        format!("holder-left-out two {}", place(1, "c")),
    ];
    assert_eq!(said(&lines), expected);
    let waiter = lines.iter().find(|line| line["lock"] == "job" && line["owner"] == "b").unwrap();
    assert!((200.0..=300.0).contains(&left_s(waiter)), "each cell has its own: {waiter}");
}

#[tokio::test]
async fn a_shadow_row_is_planned_as_clients_that_try() {
    let stage = Stage::set("plan_shadow", &[SHADOW]).await;
    let table = "CREATE TABLE IF NOT EXISTS k.\"Shadow\" (key text, column1 blob, value blob, PRIMARY KEY (key, column1))";
    let rows = [
        table,
        "INSERT INTO k.lock_main (key, column1, value) VALUES ('job', 'a', 'x') USING TTL 600",
        "INSERT INTO k.\"Shadow\" (key, column1, value) VALUES ('job', textAsBlob('b'), 0x00) USING TTL 600",
        "INSERT INTO k.\"Shadow\" (key, column1, value) VALUES ('free', 0x61ff, 0x00) USING TTL 600",
    ];
    cql(&stage, &rows).await;

    let lines = planned(&stage, &["--from", "shadow", "--shadow-table", "Shadow"]).await;
    assert_eq!(said(&lines), ["trying free a\\xff", "holder job a", "trying job b"]);
}

#[tokio::test]
async fn a_token_is_planned_if_its_session_beats() {
    let stage = Stage::set("plan_tokens", &[TOKENS]).await;
    let rows = [
        "INSERT INTO k.tokens (\"token\", service_session_id, timestamp) VALUES ('job', 's1', 0) IF NOT EXISTS",
        "INSERT INTO k.tokens (\"token\", service_session_id, timestamp) VALUES ('job2', 's1', 0)",
        "INSERT INTO k.tokens (\"token\", service_session_id, timestamp) VALUES ('stray', 's2', 0)",
        "INSERT INTO k.tokens (\"token\") VALUES ('nobody')",
        "INSERT INTO k.token_times (service_session_id, tokens, timestamp) VALUES ('s1', ['job', 'job2'], 0)",
    ];
    cql(&stage, &rows).await;
    let on = stage.cassandra();
    let options = LockerOptions::default().service("billing").ttl(Duration::from_mins(10));
    let guard = Recipe::TokensLwt.locker(&on, &options).lock("ours").await.unwrap();

    let lines = planned(&stage, &["--from", "tokens", "--grace", "90s"]).await;
    guard.release().await.unwrap();

    let owner = line_of(&lines, "ours")["owner"].as_str().unwrap();
    let expected = [
        "holder job s1".to_owned(),
        "holder job2 s1".into(),
        "nobody-holds nobody -".into(),
        format!("holder ours {owner}"),
        "no-heartbeat stray s2".into(),
    ];
    assert_eq!(said(&lines), expected);
    assert_eq!(line_of(&lines, "job")["left_ms"], 90_000);
    assert_eq!(line_of(&lines, "ours")["left_ms"], 600_000, "it says so itself");
}

/// The Scylla article's first table, whose key has the session.
#[tokio::test]
async fn a_token_without_lwt_is_planned_if_one_session_has_it() {
    let stage = Stage::set("plan_optimistic", &[TOKENS]).await;
    let rows = [
        "CREATE TABLE IF NOT EXISTS k.wanted (\"token\" text, service_session_id text, PRIMARY KEY (\"token\", service_session_id))",
        "INSERT INTO k.wanted (\"token\", service_session_id) VALUES ('job', 's1')",
        "INSERT INTO k.wanted (\"token\", service_session_id) VALUES ('two', 's1')",
        "INSERT INTO k.wanted (\"token\", service_session_id) VALUES ('two', 's2')",
        "INSERT INTO k.token_times (service_session_id, timestamp) VALUES ('s1', 0)",
        "INSERT INTO k.token_times (service_session_id, timestamp) VALUES ('s2', 0)",
    ];
    cql(&stage, &rows).await;

    let lines = planned(&stage, &["--from", "tokens", "--tokens-table", "wanted"]).await;
    assert_eq!(said(&lines), ["holder job s1", "several-holders two -"]);
}

/// In both articles' ways: integers, flags that are deleted or overwritten.
#[tokio::test]
async fn a_bakery_is_planned_by_number_and_process() {
    let stage = Stage::set("plan_bakery", &[BAKERY]).await;
    let rows = [
        "CREATE TABLE IF NOT EXISTS k.pid_numbers (key text, column1 int, value varint, PRIMARY KEY (key, column1))",
        "CREATE TABLE IF NOT EXISTS k.pid_choosing (key text, column1 int, value boolean, PRIMARY KEY (key, column1))",
        "INSERT INTO k.pid_numbers (key, column1, value) VALUES ('job', 10, 2) USING TTL 600",
        "INSERT INTO k.pid_numbers (key, column1, value) VALUES ('job', 9, 2) USING TTL 600",
        "INSERT INTO k.pid_numbers (key, column1, value) VALUES ('job', 11, 1) USING TTL 600",
        "INSERT INTO k.pid_choosing (key, column1, value) VALUES ('job', 12, true)",
        "INSERT INTO k.pid_choosing (key, column1, value) VALUES ('job', 9, false)",
        "INSERT INTO k.pid_choosing (key, column1, value) VALUES ('alone', 1, true)",
        "INSERT INTO k.pid_numbers (key, column1, value) VALUES ('crashed', 1, 1)",
    ];
    cql(&stage, &rows).await;

    let names = ["--numbers-table", "pid_numbers", "--choosing-table", "pid_choosing"];
    let lines = planned(&stage, &[&["--from", "bakery"][..], &names].concat()).await;
    let expected = [
        "choosing alone 1",
        "no-ttl crashed 1",
        "holder job 11",
        "waiter job 9",
        "waiter job 10",
        "choosing job 12",
    ];
    assert_eq!(said(&lines), expected);
}

/// Each error names the table and the remedy; nothing is made and nothing else is read.
#[tokio::test]
async fn what_is_no_table_of_the_recipe_is_refused_by_name() {
    let stage = Stage::set("plan_refused", &[LEASE, QUEUE, TOKENS]).await;
    let tables = [
        "CREATE TABLE IF NOT EXISTS k.typed (name text PRIMARY KEY, owner double, value text)",
        "CREATE TABLE IF NOT EXISTS k.short (name text PRIMARY KEY, owner text)",
        "CREATE TABLE IF NOT EXISTS k.keyed (name text, owner text, value text, PRIMARY KEY (name, owner))",
    ];
    cql(&stage, &tables).await;
    let cases = [
        (vec!["lease", "--lease-table", "gone"], "has no table \"gone\"; its tables are: keyed, "),
        (
            vec!["lease", "--lease-table", "typed"],
            "table \"typed\" is not as the recipe has it: its column \"owner\" is of type double",
        ),
        (vec!["lease", "--lease-table", "short"], "it has no column \"value\", which was expected"),
        (
            vec!["lease", "--lease-table", "keyed"],
            "its column \"owner\" is part of the clustering key",
        ),
        (vec!["lease", "--lease-table", "Leases"], "has no table \"Leases\""),
        (vec!["bakery", "--numbers-table", "gone"], "has no table \"gone\""),
    ];
    for (arguments, says) in cases {
        let line: Vec<&str> = ["--from"].into_iter().chain(arguments).collect();
        refused(&ran(&stage, &line).await, says);
    }
    let nowhere = ["--json", "--contact-points", stage.points(), "--keyspace", "nowhere", "plan"];
    let nowhere: Vec<&str> = nowhere.into_iter().chain(["--from", "lease"]).collect();
    refused(&run("holdfast-migrate", &nowhere).await, "there is no keyspace \"nowhere\"");
}

fn refused(ended: &Ended, says: &str) {
    assert_eq!((ended.code, ended.out.as_str()), (Some(122), ""), "{ended:?}");
    let error: Value = serde_json::from_str(&ended.err).unwrap();
    assert!(error["error"].as_str().unwrap().contains(says), "{says:?}: {error}");
    assert_eq!(error["exit_code"], 122);
}
