//! `holdfast cassandra` on three real nodes: exit codes, a command under a lease, the tables, and what
//! is said to wrong input.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests stop the test when something is not as it must be"
)]

use std::time::Duration;

use holdfast_seams::Seams;
use holdfast_tests::cassandra::Nodes;
use holdfast_tests::program::{Ended, Program, run};
use nix::sys::signal::Signal;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The command line on these nodes, in this keyspace.
struct Place {
    points: String,
    keyspace: &'static str,
}

impl Place {
    /// With tables in it.
    async fn made(nodes: &Nodes, keyspace: &'static str) -> Self {
        let place = Self { points: nodes.contact_points().await, keyspace };
        let made = place.run(&["schema", "--apply", "--replication", "3"]).await;
        assert_eq!(made.code, Some(0), "{made:?}");
        place
    }

    fn arguments<'a>(&'a self, rest: &[&'a str]) -> Vec<&'a str> {
        let start = ["cassandra", "--contact-points", &self.points, "--keyspace", self.keyspace];
        start.into_iter().chain(rest.iter().copied()).collect()
    }

    async fn run(&self, rest: &[&str]) -> Ended {
        run("holdfast", &self.arguments(rest)).await
    }

    fn start(&self, rest: &[&str]) -> Program {
        Program::start("holdfast", &self.arguments(rest))
    }
}

#[tokio::test]
async fn a_command_runs_under_a_lease_and_its_exit_code_is_ours() {
    let nodes = Nodes::start().await;
    let place = Place::made(&nodes, "commands").await;
    let shell = "echo \"$HOLDFAST_LOCK ${HOLDFAST_TOKEN-none}\"; exit 7";
    let ended = place.run(&["lease", "lock", "nightly", "--", "sh", "-c", shell]).await;
    assert_eq!((ended.code, ended.out.as_str()), (Some(7), "nightly none\n"), "{ended:?}");

    let mut holder =
        place.start(&["lease", "lock", "nightly", "--", "sh", "-c", "echo on; sleep 60"]);
    holder.line("on", secs(20)).await;
    let tried = place.run(&["lease", "try", "nightly", "--", "true"]).await;
    assert_eq!(tried.code, Some(124), "{tried:?}");
    assert!(tried.err.contains("nightly is not granted: held by "), "{}", tried.err);
    let waited = place.run(&["lease", "lock", "--wait", "1s", "nightly", "--", "true"]).await;
    assert_eq!(waited.code, Some(124), "{waited:?}");

    holder.signal(Signal::SIGTERM);
    assert_eq!(holder.end(secs(10)).await.code, Some(128 + 15));
    let next = place.run(&["lease", "try", "nightly", "--", "true"]).await;
    assert_eq!(next.code, Some(0), "it was given back: {next:?}");
}

/// Names are bound: a quote, a semicolon and a snowman are a name like any other.
#[tokio::test]
async fn a_name_is_any_text() {
    let nodes = Nodes::start().await;
    let place = Place::made(&nodes, "names").await;
    for name in ["it's'; DROP TABLE names.leases; --", "☃\u{202e}\t", "a b"] {
        let ended = place.run(&["lease", "try", name, "--", "true"]).await;
        assert_eq!(ended.code, Some(0), "{name:?}: {ended:?}");
    }
}

/// One error each, within the connect time-out, and nothing made.
#[tokio::test]
async fn wrong_input_is_refused_in_one_line_and_leaves_nothing() {
    let nodes = Nodes::start().await;
    let points = nodes.contact_points().await;
    let attempt = ["lease", "try", "job", "--", "true"];
    let nowhere = Place { points: points.clone(), keyspace: "nowhere" };
    let session = nodes.session().await;

    expect(&nowhere.run(&attempt).await, 122, "there is no keyspace \"nowhere\"");
    expect(&nowhere.run(&["schema", "--apply"]).await, 122, "--replication 3 makes it");
    let too_many = nowhere.run(&["schema", "--apply", "--replication", "5"]).await;
    expect(&too_many, 122, "cannot have 5 replicas on 3 nodes");
    expect(&nowhere.run(&attempt).await, 122, "there is no keyspace \"nowhere\"");

    let replication = "{'class': 'NetworkTopologyStrategy', 'replication_factor': 3}";
    let make = format!("CREATE KEYSPACE IF NOT EXISTS bare WITH replication = {replication}");
    session.query_unpaged(make, ()).await.unwrap();
    let bare = Place { points: points.clone(), keyspace: "bare" };
    expect(&bare.run(&attempt).await, 122, "table leases");
    expect(&bare.run(&["schema", "--apply", "--replication", "1"]).await, 122, "with 3 replicas");

    let table =
        "CREATE TABLE IF NOT EXISTS bare.leases (name text PRIMARY KEY, owner int, value text)";
    session.query_unpaged(table, ()).await.unwrap();
    expect(&bare.run(&attempt).await, 122, "other types than the recipe's");

    let began = Seams::system().clock.now();
    let silent = Place { points: "127.255.255.1:9,127.255.255.2:9".into(), keyspace: "nowhere" };
    expect(&silent.run(&attempt).await, 123, "no answer from Cassandra at 127.255.255.1:9");
    assert!(Seams::system().clock.now().saturating_since(began) < secs(9));
    let short = bare.run(&["--ttl", "100s", "lease", "try", "job", "--", "true"]).await;
    expect(&short, 125, "too short for clocks that differ by up to 60s");
}

fn expect(ended: &Ended, code: i32, says: &str) {
    assert_eq!(ended.code, Some(code), "{ended:?}");
    assert!(ended.err.contains(says), "{says:?} is not in {:?}", ended.err);
    assert_eq!(ended.err.lines().count(), 1, "{:?}", ended.err);
}

/// Two of three nodes are gone: no QUORUM, no lock, and it is said so in time.
#[tokio::test]
async fn without_a_quorum_nothing_is_granted() {
    let nodes = Nodes::start().await;
    let place = Place::made(&nodes, "quorum").await;
    nodes.kill(2).await;
    nodes.kill(3).await;
    let tried = place.run(&["lease", "try", "job", "--", "true"]).await;
    nodes.restart(2).await;
    nodes.restart(3).await;

    expect(&tried, 123, "no answer from Cassandra");
    let tried = place.run(&["lease", "try", "job", "--", "true"]).await;
    assert!(matches!(tried.code, Some(0 | 124)), "{tried:?}");
}

#[tokio::test]
async fn the_schema_is_printed_unless_it_is_to_be_applied_and_applied_as_often_as_wanted() {
    let nodes = Nodes::start().await;
    let place = Place::made(&nodes, "printed").await;
    let printed = place.run(&["schema"]).await;
    assert_eq!(printed.code, Some(0));
    let lease = "CREATE TABLE IF NOT EXISTS \"printed\".\"leases\" (\"name\" text PRIMARY KEY, \"owner\" text, \
                 \"value\" text) WITH default_time_to_live = 180;";
    assert!(printed.out.contains(lease), "{}", printed.out);
    let again = place.run(&["schema", "--apply", "--replication", "3"]).await;
    assert_eq!(again.code, Some(0), "{again:?}");
}
