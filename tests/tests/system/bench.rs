//! `holdfast bench`: short runs of the workloads, and the row that comparisons use.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail it by a panic")]

use std::time::Duration;

use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::host_stall::{TooLate, retry_if_host_stalled};
use holdfast_tests::program::{Ended, Program, run};
use serde_json::{Map, Value};

type Row = Map<String, Value>;

/// The text fields of every row, which describe the run.
const TEXTS: [&str; 7] = ["peer", "variant", "version", "topology", "durability", "workload", "ts"];
/// The number fields of every row of a closed loop.
const FIGURES: [&str; 25] = [
    "n",
    "secs",
    "ttl_s",
    "run",
    "load1",
    "other_cores",
    "ops",
    "ops_per_s",
    "errors",
    "acq_p50_us",
    "acq_p99_us",
    "acq_p999_us",
    "acq_max_us",
    "rel_p50_us",
    "rel_p99_us",
    "rel_p999_us",
    "rel_max_us",
    "server_cpu_s",
    "client_cpu_s",
    "server_cpu_s_per_kop",
    "server_rss_mb",
    "lo_packets_per_op",
    "wait_mean_ms",
    "jain",
    "longest_run",
];

async fn bench(arguments: &[&str]) -> Row {
    let arguments = [&["bench", "--json"], arguments].concat();
    let ended = Program::start("holdfast", &arguments).end(Duration::from_mins(1)).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let row: Row = serde_json::from_str(&ended.out).unwrap_or_else(|e| panic!("{e}: {ended:?}"));
    assert_eq!(ended.out.lines().count(), 1, "one object, one line: {ended:?}");
    for key in TEXTS {
        assert!(row.get(key).is_some_and(Value::is_string), "{key}: {row:?}");
    }
    assert_eq!(row["peer"], "holdfast");
    assert_eq!(row["errors"], 0, "{row:?}");
    row
}

fn number(row: &Row, key: &str) -> f64 {
    row.get(key).and_then(Value::as_f64).unwrap_or_else(|| panic!("no figure {key}: {row:?}"))
}

/// Checks that the row of a closed loop has every figure, and that they agree with each other.
fn check_loop(row: &Row, shared: bool) {
    let shared_only = ["wait_mean_ms", "jain", "longest_run"];
    for key in FIGURES.iter().filter(|key| shared || !shared_only.contains(key)) {
        number(row, key);
    }
    assert!(number(row, "ops") > 0.0, "{row:?}");
    let rate = number(row, "ops") / number(row, "secs");
    assert!((number(row, "ops_per_s") / rate - 1.0).abs() < 1e-9, "{row:?}");
    assert!(number(row, "acq_p50_us") <= number(row, "acq_p99_us"), "{row:?}");
    assert!(number(row, "acq_p999_us") <= number(row, "acq_max_us"), "{row:?}");
    assert!(number(row, "server_rss_mb") > 1.0, "{row:?}");
    assert_eq!(row.contains_key("ho_p50_us"), shared, "{row:?}");
}

#[tokio::test]
async fn one_client_at_one_member_gives_a_whole_row() {
    let row = bench(&["--workload", "W1", "--members", "1", "--secs", "1", "--run", "7"]).await;

    check_loop(&row, false);
    assert_eq!((&row["workload"], &row["topology"]), (&"W1".into(), &"1n".into()));
    assert_eq!((&row["n"], &row["run"]), (&1.into(), &7.into()));
}

#[tokio::test]
async fn many_clients_at_three_members_give_a_whole_row() {
    // Within one second some acquire has to be granted.
    retry_if_host_stalled(Duration::from_millis(500), async || {
        let row =
            bench(&["--workload", "W2", "--members", "3", "--clients", "16", "--secs", "1"]).await;

        TooLate::unless(row["ops"] != 0, || format!("nothing was granted: {row:?}"))?;
        check_loop(&row, false);
        assert_eq!((&row["topology"], &row["n"]), (&"3n".into(), &16.into()));
        assert_eq!(row["durability"], "fsync");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn many_clients_at_one_lock_share_it_in_turn() {
    let row =
        bench(&["--workload", "W3", "--members", "3", "--clients", "10", "--secs", "1"]).await;

    check_loop(&row, true);
    assert_eq!(row["starved"], 0, "{row:?}");
    assert!(number(&row, "jain") > 0.95, "first in, first out: {row:?}");
}

#[tokio::test]
async fn idle_waiters_are_measured_beside_the_same_locks_without_them() {
    let row =
        bench(&["--workload", "W4", "--members", "1", "--clients", "20", "--secs", "1"]).await;

    for key in ["server_cpu_s", "lo_packets_per_s", "client_cpu_s"] {
        number(&row, key);
        number(&row, &format!("{key}_base"));
    }
    number(&row, "server_kb_per_waiter");
    assert_eq!(row["ops"], 20, "{row:?}");
}

#[tokio::test]
async fn a_killed_holder_is_replaced_after_its_lease_and_not_before() {
    let row = bench(&["--workload", "W5", "--trials", "1", "--ttl", "2s"]).await;

    assert_eq!(row["takeover_s"].as_array().map(Vec::len), Some(1), "{row:?}");
    assert!(number(&row, "takeover_median_s") > 0.0, "{row:?}");
    let after_lease = row["takeover_after_lease_s"][0].as_f64().unwrap();
    assert!(after_lease > 0.0, "granted before the holder's lease had ended (I6): {row:?}");
}

#[tokio::test]
async fn servers_that_run_already_cost_what_their_processes_use() {
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    let (endpoints, pid) = (cluster.endpoints(), cluster.pid(0).to_string());
    let at = ["--endpoints", &endpoints, "--workload", "W2", "--secs", "1"];
    let row = bench(&[&at[..], &["--server-pids", &pid]].concat()).await;

    check_loop(&row, false);
    let unknown = bench(&at).await;
    assert!(!unknown.contains_key("server_cpu_s"), "not guessed at: {unknown:?}");
}

/// On a machine without the other stores, and with or without networks of its own.
#[tokio::test]
async fn ours_is_measured_alone_and_each_store_that_is_not_installed_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let [home, rows] = ["peers", "rows"].map(|name| folder.path().join(name).display().to_string());
    let at = ["--topologies", "loopback,1ms", "--cells", "W3:2", "--home", &home];
    let short = ["--rounds", "1", "--seconds", "1", "--rows", &rows];
    let program = Program::start("holdfast-bench-peers", &[&at[..], &short].concat());
    let ended = program.end(Duration::from_mins(3)).await;

    assert_eq!(ended.code, Some(0), "{ended:?}");
    for other in ["etcd", "zookeeper", "hiqlite", "hazelcast"] {
        let named = format!("\nLeft out: {other}, which is not installed");
        assert!(ended.out.contains(&named), "{other}: {ended:?}");
    }
    assert!(ended.out.contains("\n| **Holdfast** | "), "no table: {ended:?}");
    let rows = std::fs::read_to_string(&rows).unwrap();
    let rows: Vec<Row> = rows.lines().map(|row| serde_json::from_str(row).unwrap()).collect();
    let sites = if ended.out.contains("left out: 1ms") { 1 } else { 2 };
    let ours: Vec<&Row> = rows.iter().filter(|row| row.contains_key("cell")).collect();
    assert_eq!((ours.len(), rows.len()), (sites, 2 * sites), "{rows:?}");
    for row in ours {
        assert_eq!((&row["peer"], &row["errors"]), (&"holdfast".into(), &0.into()), "{row:?}");
        assert!(number(row, "server_cpu_s_per_kop") > 0.0, "{row:?}");
        // There, to a follower, back, and back to the client.
        let least = if row["topology"] == "1ms" { 4_000.0 } else { 0.0 };
        assert!(number(row, "acq_p50_us") >= least, "{row:?}");
    }
}

#[tokio::test]
async fn what_cannot_be_measured_is_refused_with_what_can() {
    let refused = async |arguments: &[&str], told: &str| {
        let ended: Ended = run("holdfast", &[&["bench"], arguments].concat()).await;
        assert_eq!(ended.code, Some(125), "{arguments:?}: {ended:?}");
        assert!(ended.err.contains(told), "{arguments:?}: {ended:?}");
    };
    refused(&["--workload", "W9"], "W1, W2, W3, W4, W5").await;
    refused(&["--workload", "W2", "--clients", "0"], "1..=100000").await;
    refused(&["--workload", "W2", "--members", "2"], "1 member or 3").await;
    refused(&["--workload", "W2", "--sessions", "0"], "1..=1000").await;
    refused(&["--workload", "W1", "--clients", "2"], "have one client, not 2").await;
    refused(&["--workload", "W1", "--server-pids", "7"], "at --endpoints, which are missing").await;
    refused(&["--workload", "W1", "--server-pids", "7", "--members", "1"], "--members").await;
    refused(&[], "--workload").await;
}
