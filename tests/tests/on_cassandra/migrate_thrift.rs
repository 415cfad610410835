//! Tables as clusters have them that began before CQL: columns of bytes, on the ring of `RandomPartitioner` (B22). Clients lock in them,
//! and `holdfast-migrate` reads and imports what they hold.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests stop the test when something is not as it must be"
)]

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use holdfast_recipes::{
    Cassandra, Contact, Layout, LockerOptions, Recipe, RemoteLocker, Schema, SerialScope,
};
use holdfast_tests::cassandra::Nodes;
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::program::run;
use scylla::client::session::Session;
use serde_json::{Value, json};

const TABLES: [&str; 4] = ["leases", "lock_main", "lock_queue", "lock_shadow"];
/// Leases of old clients.
const OLD: u32 = 200;

/// The tables of the recipes, with bytes in place of text.
async fn tables_of_bytes(session: &Session) {
    let wanted = |statement: &String| {
        let names = |table: &&str| statement.contains(&format!(".\"{table}\" ("));
        statement.starts_with("CREATE KEYSPACE") || TABLES.iter().any(names)
    };
    let statements = Schema::new("thrift").replicated(1).statements().into_iter().filter(wanted);
    for statement in statements {
        let statement = statement.replace("\" text", "\" blob");
        session.query_unpaged(statement, ()).await.unwrap();
    }
}

fn locker(recipe: Recipe, cassandra: &Cassandra) -> Arc<dyn RemoteLocker> {
    recipe.locker(cassandra, &LockerOptions::default(), &Layout::default()).unwrap()
}

async fn one_at_a_time(recipe: Recipe, cassandra: &Cassandra) {
    let (one, other) = (locker(recipe, cassandra), locker(recipe, cassandra));
    let name = format!("{recipe} of bytes");
    let guard = one.try_lock(&name).await.unwrap().unwrap();
    assert!(other.try_lock(&name).await.unwrap().is_none(), "{recipe}: it is held");
    guard.release().await.unwrap();
    let guard = other.lock_within(&name, Duration::from_secs(20)).await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn tables_of_bytes_on_another_ring_are_locked_in_and_moved() {
    let nodes = Nodes::start_one_of_random_tokens().await;
    let (points, session) = (nodes.contact_points().await, nodes.session().await);
    tables_of_bytes(&session).await;
    let contact = Contact::new(points.clone());
    let cassandra = Cassandra::connect(&contact, "thrift", &SerialScope::Cluster).await.unwrap();
    for recipe in [Recipe::Lease, Recipe::Queue, Recipe::Shadow] {
        one_at_a_time(recipe, &cassandra).await;
    }
    // The id of an owner that is no text.
    let odd =
        "INSERT INTO thrift.leases (name, owner) VALUES (textAsBlob('odd'), 0xff00) USING TTL 600";
    session.query_unpaged(odd, ()).await.unwrap();
    let taken = locker(Recipe::Lease, &cassandra).try_lock("odd").await.unwrap();
    assert!(taken.is_none(), "it is held");

    let insert = |number: u32| {
        let session = session.clone();
        async move {
            let text = format!(
                "INSERT INTO thrift.leases (name, owner) VALUES (textAsBlob('jobs/{number}'), textAsBlob('client_{number}')) USING TTL 600"
            );
            session.query_unpaged(text, ()).await.unwrap();
        }
    };
    stream::iter((0..OLD).map(insert)).buffer_unordered(16).collect::<Vec<_>>().await;
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    let migrate = async |command: &str, more: &[&str]| {
        let place = ["--json", "--contact-points", &points, "--keyspace", "thrift", command];
        let rows = ["--from", "lease", "--prefix", "jobs/", "--ranges", "32"];
        let ended = run("holdfast-migrate", &[&place[..], &rows, more].concat()).await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>()
    };
    let planned = migrate("plan", &[]).await;
    let holders = planned.iter().filter(|line| line["kind"] == "holder").count();
    assert_eq!(holders, OLD as usize, "each lies in one range");
    let (servers, stopped) = (cluster.endpoints(), "--writers-stopped");
    let imported = migrate("import", &["--endpoints", &servers, stopped]).await;
    assert_eq!(imported[0]["imported"], OLD);
    let compared = migrate("verify", &["--endpoints", &servers]).await;
    assert_eq!(compared, [json!({ "kind": "summary", "locks": OLD, "differing": 0 })]);
}
