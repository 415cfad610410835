//! A move of locks from real Cassandra nodes into real servers, by `holdfast-migrate` as an operator runs it.

use std::time::Duration;

use holdfast::{Client, LockInfo};
use holdfast_recipes::{Locker, LockerMode, LockerOptions};
use serde_json::Value;

use crate::cassandra::{BAKERY, FALLBACK, LEASE, MODES, QUEUE, SHADOW, Stage, TOKENS, Tables};
use crate::cluster::{Cluster, Setup};
use crate::fallback;
use crate::program::{Ended, Program};
use crate::recipe::Recipe;

/// Longer than a move of a few rows takes, with a change of leader in it.
const PATIENCE: Duration = Duration::from_mins(1);

/// The tables of leases that move, and the table of modes.
pub const LEASES: &[Tables] = &[LEASE, MODES];
/// The tables of every recipe that moves, and the table of modes.
pub const RECIPES: &[Tables] = &[LEASE, QUEUE, TOKENS, SHADOW, BAKERY, MODES];

/// Starts `holdfast-migrate --json … COMMAND …`.
pub fn migrate(stage: &Stage, endpoints: &str, command: &str, arguments: &[&str]) -> Program {
    let place = ["--json", "--contact-points", stage.points()];
    let place = [&place[..], &["--keyspace", stage.keyspace(), command]].concat();
    let servers = ["--endpoints", endpoints];
    // Planning sends no request to a server.
    let servers = if command == "plan" { &[][..] } else { &servers[..] };
    Program::start("holdfast-migrate", &[&place[..], servers, arguments].concat())
}

/// Both stores.
#[derive(Debug)]
pub struct Move {
    /// The store that locks leave.
    pub stage: Stage,
    /// The store that they move to.
    pub cluster: Cluster,
}

impl Move {
    /// Three nodes of each, and nothing in the tables.
    pub async fn set(keyspace: &'static str, tables: &[Tables]) -> Self {
        let stage = Stage::set(keyspace, tables).await;
        Self::with_servers(stage, tables, &Setup::nodes(3)).await
    }

    /// The same with one server.
    pub async fn set_with_one_server(keyspace: &'static str, tables: &[Tables]) -> Self {
        let stage = Stage::set(keyspace, tables).await;
        Self::with_servers(stage, tables, &Setup::nodes(1)).await
    }

    /// Three of each, for leases; the servers' scopes may fall back on the Cassandra nodes.
    pub async fn set_with_fallback(keyspace: &'static str) -> Self {
        let stage = Stage::set(keyspace, &[LEASES, &[FALLBACK]].concat()).await;
        let settings = fallback::settings(stage.points(), stage.keyspace());
        Self::with_servers(stage, LEASES, &Setup::nodes(3).with_fallback(&settings)).await
    }

    async fn with_servers(stage: Stage, tables: &[Tables], setup: &Setup) -> Self {
        let moved = Self { stage, cluster: Cluster::start(setup).await };
        // An earlier run on the same nodes has left a scope in some mode.
        for of_one in tables.iter().copied() {
            moved.stage.empty(of_one).await;
        }
        moved
    }

    /// Runs statements, with `k.` for the keyspace.
    pub async fn cql(&self, statements: &[&str]) {
        for statement in statements {
            self.stage.cql(statement).await;
        }
    }

    /// Owner and remaining TTL of a lease, if there is one.
    pub async fn lease(&self, name: &str) -> Option<(String, i32)> {
        let keyspace = self.stage.keyspace();
        let text = format!("SELECT owner, TTL(owner) FROM \"{keyspace}\".leases WHERE name = ?");
        let read = self.stage.session().query_unpaged(text, (name,)).await.unwrap();
        let rows = read.into_rows_result().unwrap();
        rows.maybe_first_row::<(String, i32)>().unwrap()
    }

    /// As [`migrate`].
    pub fn start(&self, command: &str, arguments: &[&str]) -> Program {
        migrate(&self.stage, &self.cluster.endpoints(), command, arguments)
    }

    /// Runs it to its end.
    pub async fn run(&self, command: &str, arguments: &[&str]) -> Ended {
        self.start(command, arguments).end(PATIENCE).await
    }

    /// The same, expecting exit code 0; returns its output, line by line.
    pub async fn done(&self, command: &str, arguments: &[&str]) -> Vec<Value> {
        let ended = self.run(command, arguments).await;
        assert_eq!(
            (ended.code, ended.err.as_str()),
            (Some(0), ""),
            "{command} {arguments:?}: {ended:?}"
        );
        ended.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The same, expecting a refusal; returns its message.
    pub async fn refused(&self, command: &str, arguments: &[&str]) -> String {
        let ended = self.run(command, arguments).await;
        assert_eq!(ended.code, Some(122), "{command} {arguments:?}: {ended:?}");
        let said: Value = serde_json::from_str(&ended.err).unwrap();
        let said = said["error"].as_str().unwrap().to_owned();
        if said.contains(" in the way: ") {
            is_told_to_programs(&said, &ended.out);
        }
        said
    }

    /// A native client.
    pub async fn client(&self) -> Client {
        let builder = Client::builder().endpoints(self.cluster.endpoints().split(','));
        builder.connect().await.unwrap()
    }

    /// The state of a lock that a client holds natively.
    pub async fn native(&self, name: &str) -> LockInfo {
        self.client().await.reader().inspect(name).await.unwrap().unwrap()
    }

    /// A process of a scope, with the lease recipe: its service is `service`, also in its row.
    pub async fn process(&self, scope: &str, service: &str, mode: LockerMode) -> Locker {
        let options = LockerOptions::default().service(service);
        let lease = Recipe::Lease.locker(&self.stage.cassandra(), &options);
        let row = options.ttl(Duration::from_mins(15));
        let locker = Locker::builder(&self.stage.cassandra(), scope, lease).row(row);
        locker.native(self.client().await).start(mode).await.unwrap()
    }
}

/// Asserts that a line of the output lists each obstacle of the message, with a code.
fn is_told_to_programs(message: &str, out: &str) {
    let lines = out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut lists = lines.filter_map(|line| match line["kind"].as_str() {
        Some("in_the_way") => Some(line["by"].clone()),
        Some("preview") => Some(line["in_the_way"].clone()),
        _ => None,
    });
    let list = lists.next_back().unwrap_or_else(|| panic!("no list of what is in the way: {out}"));
    let list = list.as_array().unwrap();
    assert!(!list.is_empty(), "{out}");
    for obstacle in list {
        assert!(message.contains(obstacle["what"].as_str().unwrap()), "{obstacle}: {message}");
        assert!(!obstacle["obstacle"].as_str().unwrap().is_empty(), "{obstacle}");
    }
}
