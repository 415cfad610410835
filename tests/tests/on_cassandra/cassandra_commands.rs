//! `holdfast cassandra` on three real nodes: exit codes, a command under a lock, figures, the tables, and the messages for wrong input.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests stop the test when something is not as it must be"
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use holdfast::Error;
use holdfast_recipes::{Cassandra, SerialScope};
use holdfast_runtime::Runtime;
use holdfast_tests::cassandra::Nodes;
use holdfast_tests::program::{Ended, Program, run};
use holdfast_tests::recipe::Recipe;
use nix::sys::signal::Signal;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use tokio::sync::OnceCell;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The command line on these nodes, in this keyspace.
struct Place {
    points: String,
    keyspace: &'static str,
}

impl Place {
    /// A place with tables. They are made once: each takes three nodes a long time, and no two processes may make one at the same time.
    async fn made(nodes: &Nodes) -> Self {
        static MADE: OnceCell<()> = OnceCell::const_new();
        let place = Self { points: nodes.contact_points().await, keyspace: "commands" };
        let make = async || {
            let _turn = nodes.turn_of_schema().await;
            let made = place.run(&["schema", "--apply", "--replication", "3"]).await;
            assert_eq!(made.code, Some(0), "{made:?}");
        };
        MADE.get_or_init(make).await;
        place
    }

    fn arguments<'a>(&'a self, rest: &[&'a str]) -> Vec<&'a str> {
        let start = ["cassandra", "--contact-points", &self.points, "--keyspace", self.keyspace];
        start.into_iter().chain(rest.iter().copied()).collect()
    }

    async fn run(&self, rest: &[&str]) -> Ended {
        run("holdfast", &self.arguments(rest)).await
    }

    /// Repeats the command, a few times, while busy nodes give no answer within the 5 s that a `try` has.
    async fn answered(&self, rest: &[&str]) -> Ended {
        const TRIES: u32 = 5;
        for _ in 1..TRIES {
            let ended = self.run(rest).await;
            if ended.code != Some(123) {
                return ended;
            }
        }
        self.run(rest).await
    }

    /// Runs it as the role `cassandra`.
    async fn run_as(&self, password: &str, rest: &[&str]) -> Ended {
        let login =
            [("HOLDFAST_CASSANDRA_USER", "cassandra"), ("HOLDFAST_CASSANDRA_PASSWORD", password)];
        Program::start_in("holdfast", &self.arguments(rest), &login).end(secs(30)).await
    }

    fn start(&self, rest: &[&str]) -> Program {
        Program::start("holdfast", &self.arguments(rest))
    }
}

/// Like the native command, by every recipe.
#[tokio::test]
async fn a_command_runs_under_a_lock_and_its_exit_code_is_ours() {
    let nodes = Nodes::start().await;
    let place = Place::made(&nodes).await;
    join_all(Recipe::ALL.map(|recipe| command_under_a_lock(&place, recipe.name()))).await;
    // Afterwards: the shadow recipe shares its main rows with the queue.
    join_all(Recipe::OLDER.map(|recipe| command_under_a_lock(&place, recipe.name()))).await;
}

async fn command_under_a_lock(place: &Place, recipe: &str) {
    let shell = "echo \"$HOLDFAST_LOCK ${HOLDFAST_TOKEN-none}\"; exit 7";
    let ended = place.run(&[recipe, "lock", "nightly", "--", "sh", "-c", shell]).await;
    assert_eq!((ended.code, ended.out.as_str()), (Some(7), "nightly none\n"), "{ended:?}");

    let mut holder =
        place.start(&[recipe, "lock", "nightly", "--", "sh", "-c", "echo on; sleep 60"]);
    holder.line("on", secs(20)).await;
    let tried = place.answered(&[recipe, "try", "nightly", "--", "true"]).await;
    assert_eq!(tried.code, Some(124), "{tried:?}");
    assert!(tried.err.contains("nightly is not granted: held by "), "{}", tried.err);
    let wait = [recipe, "lock", "--wait", "5s", "nightly", "--", "true"];
    let (waited, ()) = tokio::join!(place.run(&wait), its_claims_are_shown(place, recipe));
    assert_eq!(waited.code, Some(124), "{waited:?}");
    // The wait includes the time to reach a node, and so does the duration in the message.
    let after = waited.err.split(" not granted after ").nth(1).and_then(|it| it.split(' ').next());
    assert!(after.unwrap().parse::<f64>().unwrap() >= 5.0, "{waited:?}");

    holder.signal(Signal::SIGTERM);
    assert_eq!(holder.end(secs(10)).await.code, Some(128 + 15));
    let next = place.answered(&[recipe, "try", "nightly", "--", "true"]).await;
    assert_eq!(next.code, Some(0), "it was given back: {next:?}");
}

/// One client holds the lock, and another one waits for it.
async fn its_claims_are_shown(place: &Place, recipe: &str) {
    Runtime::system().sleep(secs(2)).await;
    let shown = place.answered(&["show", recipe, "nightly", "--json"]).await;
    let shown: serde_json::Value = serde_json::from_str(&shown.out).unwrap();
    let claims = shown["claims"].as_array().unwrap();
    let states: Vec<&str> = claims.iter().map(|claim| claim["state"].as_str().unwrap()).collect();
    let is_in_line = ["queue", "bakery"].contains(&recipe);
    assert_eq!(states, if is_in_line { &["holds", "waits"][..] } else { &["holds"] }, "{shown}");
    let has_ttl = !recipe.starts_with("tokens");
    let left = claims[0]["left_ms"].as_u64();
    assert_eq!(left.is_some_and(|left| (100_000..=180_000).contains(&left)), has_ttl, "{shown}");
    assert_eq!(claims[0]["since"].is_string(), recipe == "tokens-lwt", "{shown}");

    let listed = place.answered(&["ls", recipe, "night"]).await;
    let others = if is_in_line { "1 waiting" } else { "" };
    assert!(listed.out.trim_start().starts_with("LOCK"), "{listed:?}");
    assert!(listed.out.contains("nightly") && listed.out.contains(others), "{listed:?}");
    let none = place.answered(&["ls", recipe, "nothing/"]).await;
    assert_eq!(none.out, "no lock is held or waited for\n");
    let free = place.answered(&["show", recipe, "nothing/1"]).await;
    assert_eq!(free.out, "nothing/1 is neither held nor waited for\n");
}

/// The first of two candidates leads, and the second one after it has resigned. Observers are told both.
#[tokio::test]
async fn an_election_and_a_sequence_are_had_from_the_command_line() {
    let nodes = Nodes::start().await;
    let place = Place::made(&nodes).await;
    let nobody = place.answered(&["lease", "observe", "--once", "head"]).await;
    assert_eq!((nobody.code, nobody.out.as_str()), (Some(1), ""), "{nobody:?}");
    let mut observer = place.start(&["lease", "observe", "head"]);
    observer.shows("nobody leads", secs(20)).await;

    let candidate = |value: &'static str| {
        let work = ["--", "sh", "-c", "echo on; sleep 60"];
        place.start(&[&["lease", "elect", "head", "--value", value][..], &work].concat())
    };
    let mut first = candidate("db1:7420");
    first.line("on", secs(20)).await;
    observer.shows("leads: db1:7420", secs(20)).await;
    let leads = place.answered(&["lease", "observe", "--once", "head", "--json"]).await;
    let leads: serde_json::Value = serde_json::from_str(&leads.out).unwrap();
    assert_eq!(leads["value"], "db1:7420", "{leads}");
    let mut second = candidate("db2:7420");
    first.signal(Signal::SIGTERM);
    assert_eq!(first.end(secs(10)).await.code, Some(128 + 15));
    second.line("on", secs(20)).await;
    observer.shows("leads: db2:7420", secs(20)).await;
    for ended in [second, observer] {
        ended.signal(Signal::SIGTERM);
        assert!(ended.end(secs(10)).await.code.is_some());
    }

    let drawn = place.answered(&["sequence", "next", "invoices"]).await;
    assert_eq!((drawn.code, drawn.out.as_str()), (Some(0), "1\n"), "{drawn:?}");
    let drawn = place.answered(&["sequence", "next", "invoices", "--by", "2"]).await;
    assert_eq!(drawn.out, "2\n3\n");
}

/// By tokens-lwt under one session, by the lease each by itself: those that are free, and nothing if none is.
#[tokio::test]
async fn a_try_of_any_runs_under_those_that_are_free() {
    let nodes = Nodes::start().await;
    let place = Place::made(&nodes).await;
    for recipe in ["tokens-lwt", "lease"] {
        let held = [recipe, "lock", "any/b", "--", "sh", "-c", "echo on; sleep 60"];
        let mut holder = place.start(&held);
        holder.line("on", secs(20)).await;
        let shell = "echo \"$HOLDFAST_LOCKS\"; echo \"${HOLDFAST_TOKEN-none}\"; exit 3";
        let work = ["--", "sh", "-c", shell];
        let line = [&[recipe, "try", "--any", "any/c", "any/b", "any/a"][..], &work].concat();
        let ended = place.answered(&line).await;
        assert_eq!(ended.code, Some(3), "{recipe}: {ended:?}");
        assert_eq!(ended.out, "any/a\nany/c\nnone\n", "{recipe}: {ended:?}");
        let none = place.answered(&[recipe, "try", "--any", "any/b", "--", "true"]).await;
        assert_eq!(none.code, Some(124), "{recipe}: {none:?}");
        let several = place.answered(&[recipe, "try", "any/a", "any/c", "--", "true"]).await;
        assert_eq!(several.code, Some(125), "{recipe}: {several:?}");
        assert!(several.err.contains("say so with --any"), "{several:?}");
        holder.signal(Signal::SIGTERM);
        holder.end(secs(10)).await;
    }
}

/// What the other datacenter does is in `cassandra_datacenters`.
#[tokio::test]
async fn a_lock_is_decided_in_the_datacenter_that_is_named_and_no_other_one() {
    let nodes = Nodes::start().await;
    let place = Place::made(&nodes).await;
    let cases: [(&[&str], i32, &str); 5] = [
        (&["--datacenter", "datacenter1"], 0, ""),
        (&["--datacenter", "datacenter1", "--local-serial"], 0, ""),
        (&["--local-serial"], 125, "name it with --datacenter"),
        (
            &["--datacenter", "elsewhere"],
            122,
            "no node is in the datacenter elsewhere; the datacenters of this cluster: datacenter1",
        ),
        (&["--datacenter", "elsewhere", "--local-serial"], 122, "no node is in the datacenter"),
    ];
    for (place_in, code, says) in cases {
        let line = [place_in, &["lease", "try", "in-a-datacenter", "--", "true"]].concat();
        let ended = place.answered(&line).await;
        assert_eq!(ended.code, Some(code), "{place_in:?}: {ended:?}");
        assert!(ended.err.contains(says), "{place_in:?}: {ended:?}");
    }
}

/// Names are bound values: a quote, a semicolon and a snowman are a name like any other. A name that the native store does not accept is
/// refused in one line that says so, before any statement is sent: such a lock could never move.
#[tokio::test]
async fn a_name_is_what_it_is_to_the_native_store() {
    let nodes = Nodes::start().await;
    let place = Place::made(&nodes).await;
    let nobody = Place { points: "127.255.255.1:9".into(), keyspace: "commands" };
    let too_long = "x".repeat(513);
    let wrong = [
        ("", "a lock name cannot be empty"),
        (&too_long, "xxx…\" is not usable: 513 bytes is longer than the 512 allowed"),
        ("a\u{202e}b", "character U+202E at byte 1 is not allowed"),
    ];
    for recipe in Recipe::ALL.map(Recipe::name) {
        for name in ["it's'; DROP TABLE commands.leases; --", "☃\"%?", "a b", &"é".repeat(256)] {
            let ended = place.answered(&[recipe, "try", name, "--", "true"]).await;
            assert_eq!(ended.code, Some(0), "{name:?}: {ended:?}");
        }
        for (name, says) in wrong {
            expect(&nobody.run(&[recipe, "try", name, "--", "true"]).await, 122, says);
            expect(&nobody.run(&[recipe, "lock", name, "--", "true"]).await, 122, says);
        }
    }
}

/// A session that the service made itself: what `connect` refuses is refused here too.
#[tokio::test]
async fn a_keyspace_that_cannot_keep_locks_is_refused_on_a_callers_own_session_too() {
    let nodes = Nodes::start_one_with_login().await;
    let session = nodes.session_as("cassandra", "cassandra").await;
    let refused = |session: &Arc<Session>, keyspace: &str, says: &str| {
        let made = Cassandra::new(session.clone(), keyspace, &SerialScope::Cluster);
        let error = made.unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        assert!(error.to_string().contains(says), "{error}");
    };
    let make = |keyspace: &str, replicas: u8| {
        let class = format!("'class': 'NetworkTopologyStrategy', 'datacenter1': {replicas}");
        format!("CREATE KEYSPACE {keyspace} WITH replication = {{{class}}}")
    };
    session.query_unpaged(make("one", 1), ()).await.unwrap();
    session.query_unpaged(make("three", 3), ()).await.unwrap();
    session.refresh_metadata().await.unwrap();

    assert!(Cassandra::new(session.clone(), "one", &SerialScope::Cluster).is_ok());
    refused(&session, "nowhere", "there is no keyspace \"nowhere\"");
    refused(&session, "three", "\"three\" is to have 3 replicas, and there are 1 nodes for them");
    let unknowing = SessionBuilder::new().known_nodes(nodes.contact_points().await.split(','));
    let unknowing = unknowing.user("cassandra", "cassandra").fetch_schema_metadata(false);
    let unknowing = Arc::new(unknowing.build().await.unwrap());
    refused(&unknowing, "one", "does not know what keyspace \"one\" is like");
}

/// One row, like that of `holdfast bench`, with the fields that only these recipes have.
#[tokio::test]
async fn a_recipe_is_measured_as_the_native_store_is() {
    let nodes = Nodes::start().await;
    let place = Place::made(&nodes).await;
    for recipe in Recipe::ALL.map(Recipe::name) {
        let asked = ["--json", recipe, "bench", "--clients", "4", "--names", "2", "--seconds", "1"];
        let ended = place.run(&asked).await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let row: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
        let figure = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("no {key}: {row}"));
        for key in
            ["acq_p50_us", "acq_p99_us", "ho_p50_us", "rel_p99_us", "unknown", "client_cpu_s"]
        {
            figure(key);
        }
        assert!(figure("ops") > 0.0 && figure("errors") < 0.5, "{row}");
        // An acquire and a release each, but for the one of each client that the warm-up began.
        let round_trips = figure("round_trips_per_op") * figure("ops");
        assert!(round_trips > 2.0 * (figure("ops") - 4.0) - 0.5, "{row}");
        assert_eq!(row["peer"], format!("cassandra-{recipe}"));
        assert_eq!(row["topology"], "3n");
    }
    let nowhere = Place { points: place.points.clone(), keyspace: "nowhere" };
    expect(&nowhere.run(&["lease", "bench"]).await, 122, "there is no keyspace \"nowhere\"");
}

/// A cluster that requires a login, and a keyspace without a QUORUM, because its one node is not two.
#[tokio::test]
async fn a_command_that_is_not_let_in_or_has_no_quorum_says_so_in_one_line() {
    let nodes = Nodes::start_one_with_login().await;
    let place = Place { points: nodes.contact_points().await, keyspace: "alone" };
    let attempt = ["lease", "try", "job", "--", "true"];
    let began = Runtime::system().clock.now();
    expect(&place.run(&attempt).await, 122, "does not let us in: it wants a login");
    let schema = ["schema", "--apply", "--replication", "1"];
    expect(&place.run(&schema).await, 122, "does not let us in: it wants a login");
    expect(&place.run_as("wrong", &attempt).await, 122, "give a role (--user) and its password");
    assert!(Runtime::system().clock.now().saturating_since(began) < secs(10));

    let right = "cassandra";
    expect(&place.run_as(right, &attempt).await, 122, "there is no keyspace \"alone\"");
    assert_eq!(place.run_as(right, &schema).await.code, Some(0));
    assert_eq!(place.run_as(right, &attempt).await.code, Some(0));

    let session = nodes.session_as("cassandra", right).await;
    // With `replication_factor` nothing would change: it only counts for new datacenters.
    let three = "{'class': 'NetworkTopologyStrategy', 'datacenter1': 3}";
    let change = format!("ALTER KEYSPACE alone WITH replication = {three}");
    session.query_unpaged(change, ()).await.unwrap();
    for recipe in Recipe::ALL.map(Recipe::name) {
        let ended = place.run_as(right, &[recipe, "try", "job", "--", "true"]).await;
        expect(&ended, 122, "\"alone\" is to have 3 replicas, and there are 1 nodes for them");
    }
}

/// One error each, within the connect time-out, and nothing is made.
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
    let other = bare.run(&["schema", "--apply", "--replication", "1"]).await;
    expect(&other, 122, "other replicas (3 in datacenter1), not 1 in each datacenter");

    let table = "CREATE TABLE IF NOT EXISTS bare.leases (name text PRIMARY KEY, owner int, value text) WITH gc_grace_seconds = 300";
    session.query_unpaged(table, ()).await.unwrap();
    expect(&bare.run(&attempt).await, 122, "other types than the recipe's");

    let began = Runtime::system().clock.now();
    let silent = Place { points: "127.255.255.1:9,127.255.255.2:9".into(), keyspace: "nowhere" };
    expect(&silent.run(&attempt).await, 123, "no answer from Cassandra at 127.255.255.1:9");
    assert!(Runtime::system().clock.now().saturating_since(began) < secs(9));
    let short = bare.run(&["--ttl", "100s", "lease", "try", "job", "--", "true"]).await;
    expect(&short, 125, "too short for clocks that differ by up to 60s");
}

fn expect(ended: &Ended, code: i32, says: &str) {
    assert_eq!(ended.code, Some(code), "{ended:?}");
    assert!(ended.err.contains(says), "{says:?} is not in {:?}", ended.err);
    assert_eq!(ended.err.lines().count(), 1, "{:?}", ended.err);
}

/// B5. Tables as earlier versions made them, and one whose options somebody chose.
#[tokio::test]
async fn tables_that_keep_tombstones_too_long_are_named_until_the_schema_is_applied() {
    let nodes = Nodes::start().await;
    let session = nodes.session().await;
    let place = Place { points: nodes.contact_points().await, keyspace: "lasting" };
    let made = place.run(&["schema", "--apply", "--replication", "3"]).await;
    assert_eq!((made.code, made.err.as_str()), (Some(0), ""), "{made:?}");
    let attempt = ["lease", "try", "job", "--", "true"];
    let quiet = place.answered(&attempt).await;
    assert_eq!((quiet.code, quiet.err.as_str()), (Some(0), ""), "{quiet:?}");

    let _turn = nodes.turn_of_schema().await;
    for (table, kept) in [("lock_main", 864_000), ("leases", 864_000), ("tokens", 90_000)] {
        let older = format!(
            "ALTER TABLE lasting.{table} WITH gc_grace_seconds = {kept} AND compaction = \
             {{'class': 'SizeTieredCompactionStrategy'}}"
        );
        session.query_unpaged(older, ()).await.unwrap();
    }
    let warned = place.answered(&attempt).await;
    assert_eq!(warned.code, Some(0), "{warned:?}");
    let named = "\"leases\" (864000 s), \"lock_main\" (864000 s), \"tokens\" (90000 s); holdfast cassandra schema";
    assert!(warned.err.contains(named) && warned.err.lines().count() == 1, "{warned:?}");

    // Clients of the articles may write without a TTL what nobody would free if it came back.
    let applied = place.run(&["schema", "--apply"]).await;
    assert_eq!(applied.code, Some(0), "{applied:?}");
    let left =
        "deleted rows: \"lock_main\" (864000 s), \"tokens\" (90000 s); holdfast cassandra schema";
    assert!(applied.err.contains(left) && applied.err.contains("--writers-stopped"), "{applied:?}");
    let applied = place.run(&["schema", "--apply", "--writers-stopped"]).await;
    assert!(applied.code == Some(0) && !applied.err.contains("lock_main"), "{applied:?}");
    let chosen = place.answered(&attempt).await;
    assert!(chosen.err.contains("deleted rows: \"tokens\" (90000 s);"), "{chosen:?}");
    let asked = "SELECT compaction FROM system_schema.tables WHERE keyspace_name = 'lasting' AND table_name = 'leases'";
    let answer = session.query_unpaged(asked, ()).await.unwrap().into_rows_result().unwrap();
    let (compaction,) = answer.single_row::<(BTreeMap<String, String>,)>().unwrap();
    assert!(compaction["class"].ends_with("LeveledCompactionStrategy"), "{compaction:?}");
}

/// These nodes are as they should be, but for how their log is synced, and for what any client may do.
#[tokio::test]
async fn the_doctor_finds_what_is_good_and_what_is_not() {
    let nodes = Nodes::start().await;
    let place = Place::made(&nodes).await;
    let healthy = place.run(&["doctor", "--json"]).await;
    assert_eq!(healthy.code, Some(1), "its commit log: {healthy:?}");
    let found: BTreeMap<String, serde_json::Value> = (healthy.out.lines())
        .map(|line| serde_json::from_str(line).unwrap())
        .map(|line: serde_json::Value| (line["check"].as_str().unwrap().to_owned(), line))
        .collect();
    let is = |check: &str, verdict: &str, says: &str| {
        let line = &found[check];
        assert_eq!(line["verdict"], verdict, "{line}");
        assert!(line["says"].as_str().unwrap().contains(says), "{says:?}: {line}");
    };
    is("nodes", "good", "3 nodes (3 in datacenter1)");
    let version = std::env::var("HOLDFAST_CASSANDRA_VERSION").unwrap_or_else(|_| "5.0".to_owned());
    is("version", "good", &format!("Cassandra {version}"));
    is("clients", "note", "ScyllaDB Rust Driver");
    is("keyspace", "good", "3 in datacenter1");
    is("tables", "good", "are there");
    is("gc_grace", "good", "for too long");
    let variant = nodes.paxos();
    is("paxos", if variant == "v2" { "good" } else { "note" }, &format!("{variant} on every node"));
    is("commit log", "caution", "periodically, each 10");
    is("clocks", "good", "--max-skew is 60s");
    is("tombstones", "good", "");
    is("permissions", "note", "every client may change every lock");

    let nowhere = Place { points: place.points.clone(), keyspace: "nowhere" };
    let ended = nowhere.run(&["doctor"]).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.out.contains("wrong   keyspace"), "{ended:?}");
    let skew = place.run(&["--max-skew", "1ms", "doctor"]).await;
    assert!(skew.code == Some(1) && skew.out.contains("--max-skew is 1ms"), "{skew:?}");
    let local = place.run(&["--local-serial", "doctor"]).await;
    assert_eq!(local.code, Some(125), "{local:?}");
}

#[tokio::test]
async fn the_schema_is_printed_unless_it_is_to_be_applied_and_applied_as_often_as_wanted() {
    let nodes = Nodes::start().await;
    let place = Place::made(&nodes).await;
    let printed = place.run(&["schema"]).await;
    assert_eq!(printed.code, Some(0));
    let lease = "CREATE TABLE IF NOT EXISTS \"commands\".\"leases\" (\"name\" text PRIMARY KEY, \"owner\" text, \
                 \"value\" text) WITH default_time_to_live = 180 AND gc_grace_seconds = 300 AND compaction = ";
    assert!(printed.out.contains(lease), "{}", printed.out);
    let again = place.run(&["schema", "--apply", "--replication", "3"]).await;
    assert_eq!(again.code, Some(0), "{again:?}");
}
