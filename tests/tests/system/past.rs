//! What nodes remember of locks, read by `holdfast history`: on every node the same, over leaders, crashes and snapshots.
#![allow(clippy::unwrap_used, reason = "helpers of a test fail it by a panic")]

use std::collections::BTreeSet;
use std::time::Duration;

use holdfast::Client;
use holdfast_runtime::Runtime;
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::program::{Ended, Program, run};
use nix::sys::signal::Signal;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(30);

async fn holdfast(endpoints: &str, arguments: &[&str]) -> Ended {
    let ended = run("holdfast", &[&["--endpoints", endpoints], arguments].concat()).await;
    assert_eq!(ended.code, Some(0), "{arguments:?}: {}", ended.err);
    ended
}

/// What a node remembers, oldest first; changes of the members are left out, whose times are each node's own.
async fn history(endpoint: &str, arguments: &[&str]) -> Vec<Value> {
    let arguments = [&["history", "--json", "--limit", "1000000"], arguments].concat();
    let lines = holdfast(endpoint, &arguments).await.out;
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["what"] != "members").collect()
}

/// In words: what, which lock, why.
fn words(line: &Value) -> String {
    let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
    let lock = line["locks"][0]["name"].as_str().unwrap_or_default();
    let more = match line["what"].as_str().unwrap() {
        "held" => format!("{} {}", text("label"), text("note")),
        "lost" | "closed" => text("reason"),
        "act" => format!("{} {} {}", text("verb"), text("on"), text("detail")),
        _ => String::new(),
    };
    format!("{} {lock} {more}", text("what")).split_whitespace().collect::<Vec<_>>().join(" ")
}

async fn told(endpoint: &str, arguments: &[&str]) -> Vec<String> {
    history(endpoint, arguments).await.iter().map(words).collect()
}

/// Waits until all nodes have heard the same.
async fn agreed(cluster: &Cluster) -> Vec<Value> {
    let endpoints: Vec<String> =
        (0..cluster.nodes().len()).map(|index| cluster.addresses(index).0).collect();
    let clock = Runtime::system().clock;
    let give_up_at = clock.now() + LIMIT;
    loop {
        let mut all = Vec::new();
        for endpoint in &endpoints {
            all.push(history(endpoint, &[]).await);
        }
        if all.windows(2).all(|two| two[0] == two[1]) {
            return all.pop().unwrap();
        }
        assert!(clock.now() < give_up_at, "{all:#?}");
        Runtime::system().sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn who_held_what_and_why_it_ended_is_told_by_every_node_whoever_leads() {
    let mut cluster = Cluster::start(&Setup::nodes(3)).await;
    let endpoints = cluster.endpoints();
    cluster.leader().await;
    let job = ["lock", "jobs/nightly", "--label", "w7", "--note", "migrating", "--", "true"];
    holdfast(&endpoints, &job).await;

    // A holder that dies, and one whose lock is taken away.
    let holder = ["--endpoints", &endpoints, "lock", "jobs/died", "--label", "w8", "--ttl", "1s"];
    let holder = Program::start("holdfast", &[&holder[..], &["--", "sleep", "60"]].concat());
    held(&endpoints, "jobs/died").await;
    holder.signal(Signal::SIGKILL);
    drop(holder);
    let holder = ["--endpoints", &endpoints, "lock", "jobs/stuck", "--label", "w9"];
    let holder = Program::start("holdfast", &[&holder[..], &["--", "sleep", "60"]].concat());
    held(&endpoints, "jobs/stuck").await;
    holdfast(&endpoints, &["release", "jobs/stuck", "--force", "--reason", "stuck"]).await;
    holder.end(LIMIT).await;
    holdfast(&endpoints, &["freeze", "jobs/", "--message", "upgrade"]).await;
    holdfast(&endpoints, &["thaw", "jobs/"]).await;
    lost(&endpoints, "jobs/died").await;

    assert_eq!(
        told(&endpoints, &["jobs/nightly"]).await,
        [
            "held jobs/nightly w7 migrating",
            "released jobs/nightly",
            "act freeze jobs/ frozen: upgrade",
            "act freeze jobs/ thawed"
        ]
    );
    let died = told(&endpoints, &["jobs/died"]).await;
    assert_eq!(died[0], "held jobs/died w8", "{died:?}");
    assert!(died.iter().any(|word| word == "lost jobs/died the session expired"), "{died:?}");
    let stuck = told(&endpoints, &["jobs/stuck"]).await;
    assert_eq!(
        stuck[..4],
        [
            "held jobs/stuck w9",
            "act force jobs/stuck stuck",
            "closed jobs/stuck stuck",
            "lost jobs/stuck the session was closed"
        ],
        "{stuck:?}"
    );
    assert_eq!(told(&endpoints, &["jobs/nightly", "--until", "1h"]).await, [""; 0]);

    let before = agreed(&cluster).await;
    let leader = cluster.leader().await;
    cluster.kill(leader);
    cluster.leader().await;
    cluster.start_node(leader);
    cluster.all_ready().await;
    holdfast(&endpoints, &job).await;
    let after = agreed(&cluster).await;
    assert_eq!(after[..before.len()], before);
    let new: Vec<String> = after[before.len()..].iter().map(words).collect();
    assert_eq!(new, ["elected", "held jobs/nightly w7 migrating", "released jobs/nightly"]);
}

async fn held(endpoints: &str, name: &str) {
    await_what(endpoints, name, "held").await;
}

async fn lost(endpoints: &str, name: &str) {
    await_what(endpoints, name, "lost").await;
}

/// Waits until the last that is remembered of a lock's holds is this.
async fn await_what(endpoints: &str, name: &str, what: &str) {
    let clock = Runtime::system().clock;
    let give_up_at = clock.now() + LIMIT;
    loop {
        let lines = history(endpoints, &[name]).await;
        if lines.iter().any(|line| line["what"] == what) {
            return;
        }
        assert!(clock.now() < give_up_at, "{lines:#?}");
        Runtime::system().sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn the_lines_for_people_name_holder_times_and_reason() {
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    let endpoints = cluster.endpoints();
    holdfast(&endpoints, &["lock", "a", "b", "--label", "w7", "--", "sleep", "1"]).await;
    let text = holdfast(&endpoints, &["history"]).await.out;
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].trim().starts_with("WHEN"), "{text}");
    for lock in ["a", "b"] {
        let line = lines.iter().find(|line| line.contains(&format!("  {lock}  "))).unwrap();
        assert!(line.contains("w7") && line.contains("held for 1 s, then released it"), "{line}");
    }
    assert!(text.contains("a leader was elected"), "{text}");
    let none = holdfast(&endpoints, &["history", "nobody/held/it"]).await.out;
    assert_eq!(none, "nothing of that kind is remembered\n");
    let wrong = ["--endpoints", &endpoints, "history", "a", "--since", "yesterday"];
    let wrong = run("holdfast", &wrong).await;
    assert!(wrong.code == Some(125) && wrong.err.contains("write 2h or 3d"), "{}", wrong.err);
}

/// I39, while all nodes are killed under load, again and again.
#[tokio::test]
async fn after_crashes_no_grant_stands_in_a_history_twice_and_what_is_missing_is_shown() {
    let mut cluster = Cluster::start(&Setup::nodes(3).node("snapshot_log_bytes", 4_096)).await;
    let endpoints = cluster.endpoints();
    let client = Client::builder().endpoints([endpoints.clone()]).connect_timeout(LIMIT);
    let client = client.ttl(Duration::from_secs(20)).connect().await.unwrap();
    for round in 0..4 {
        for nth in 0..30 {
            let guard = client.lock(format!("lock-{round}-{nth}")).await.unwrap();
            guard.release().await.unwrap();
        }
        for index in 0..3 {
            cluster.kill(index);
        }
        for index in 0..3 {
            cluster.start_node(index);
        }
        cluster.all_ready().await;
    }
    let guard = client.lock("last").await.unwrap();
    guard.release().await.unwrap();
    for index in 0..3 {
        let endpoint = cluster.addresses(index).0;
        await_what(&endpoint, "last", "released").await;
        let lines = history(&endpoint, &[]).await;
        let mut grants = BTreeSet::new();
        let (mut last, mut missing) = (0, 0);
        for line in &lines {
            let at: u64 = line["index"].as_str().unwrap_or("0").parse().unwrap();
            assert!(at >= last, "node {index}: {line} after {last}");
            last = at;
            match line["what"].as_str().unwrap() {
                "held" => {
                    let token = line["token"].as_str().unwrap().to_owned();
                    assert!(grants.insert(token), "node {index} has it twice: {line}");
                }
                "gap" | "beginning" => missing += 1,
                _ => {}
            }
        }
        // What was not written when the node was killed is missing, and shows.
        assert!(grants.len() == 121 || missing > 0, "node {index}: {} grants", grants.len());
        assert!(missing <= 4, "node {index}: {missing} gaps");
    }
}

/// I39.
#[tokio::test]
async fn a_member_that_is_sent_a_snapshot_shows_what_it_has_not_heard_as_a_gap() {
    let setup = Setup::nodes(3).node("snapshot_log_bytes", 4_096).node("max_log_bytes", 1 << 20);
    let mut cluster = Cluster::start(&setup).await;
    let leader = cluster.leader().await;
    let away = (leader + 1) % 3;
    holdfast(&cluster.endpoints(), &["lock", "before", "--", "true"]).await;
    await_what(&cluster.addresses(away).0, "before", "released").await;
    // A process that is killed loses what it remembered in the last tenth of a second.
    Runtime::system().sleep(Duration::from_secs(1)).await;
    cluster.kill(away);
    let client = Client::builder().endpoints([cluster.endpoints()]).connect().await.unwrap();
    // Values, so that the log grows quickly.
    let value = vec![b'x'; 4_000];
    for nth in 0..600 {
        let guard = client.lock(format!("m-{}", nth % 7)).await.unwrap();
        guard.set_value(value.clone()).await.unwrap();
        guard.release().await.unwrap();
    }
    cluster.start_node(away);
    cluster.all_ready().await;
    let endpoint = cluster.addresses(away).0;
    let clock = Runtime::system().clock;
    let give_up_at = clock.now() + LIMIT;
    // The snapshot may be of an instant after it, and have it.
    while history(&endpoint, &["after"]).await.is_empty() {
        assert!(clock.now() < give_up_at, "it never hears of anything again");
        client.lock("after").await.unwrap().release().await.unwrap();
        Runtime::system().sleep(Duration::from_millis(200)).await;
    }
    await_what(&endpoint, "after", "released").await;

    let told = told(&endpoint, &[]).await;
    let gaps = told.iter().filter(|word| word.starts_with("gap")).count();
    assert!(gaps == 1, "{gaps} gaps of {} lines", told.len());
    let at = |word: &str| told.iter().position(|told| told.starts_with(word)).unwrap();
    assert!(at("released before") < at("gap") && at("gap") < at("held after"));
}

#[tokio::test]
async fn a_node_that_keeps_no_history_says_so() {
    let cluster = Cluster::start(&Setup::nodes(1).node("history_bytes", 0)).await;
    let arguments = ["--endpoints", &cluster.endpoints(), "history"];
    let refused = run("holdfast", &arguments).await;
    assert_eq!(refused.code, Some(122), "{}", refused.err);
    assert!(refused.err.contains("history_bytes"), "{}", refused.err);
    assert!(!cluster.nodes()[0].data.join("history").exists());
}
