//! A scope that falls back on Cassandra, for suites on real servers and nodes: short durations, and lockers for it.

mod lines;
mod world;

use std::time::Duration;

use holdfast::Client;
use holdfast_recipes::{
    Cassandra, FallbackOptions, Lease, LeaseTable, Locker, LockerMode, LockerOptions,
};

use crate::cassandra::{FALLBACK, LEASE, MODES, Tables};
pub use lines::Lines;
pub use world::{NAMES, Pauses, Row, SWITCHED_WITHIN, Workers, World};

/// The tables that it needs in Cassandra.
pub const TABLES: [Tables; 3] = [LEASE, MODES, FALLBACK];
/// The prefix of its names.
pub const SCOPE: &str = "job/";
/// How long the authority row stands still before a process takes over.
pub const W: Duration = Duration::from_secs(4);
/// How long a hold in Cassandra is safe after a read of the row, less a tenth.
pub const V: Duration = Duration::from_secs(2);
/// How long Cassandra serves at least, once it does.
pub const SERVES_FOR: Duration = Duration::from_secs(3);

/// The settings of its servers, lines of TOML.
pub fn settings(contact_points: &str, keyspace: &str) -> String {
    format!(
        "cassandra = \"{contact_points}\"\ncassandra_keyspace = \"{keyspace}\"\ntake_over_ms = {}\n\
         hold_ms = {}\ndrain_limit_ms = 1000\nswitch_every_ms = {}\n",
        W.as_millis(),
        V.as_millis(),
        SERVES_FOR.as_millis()
    )
}

/// The fallback options of a process of such a scope, with leases of these times.
pub fn options(leases: &LockerOptions) -> FallbackOptions {
    FallbackOptions::default().lease(leases.clone())
}

/// A process of the scope in mode `fallback`, as far as locks are concerned: with a session of its own at these servers.
pub async fn locker(cassandra: &Cassandra, endpoints: &str, options: &LockerOptions) -> Locker {
    let client = Client::connect(endpoints.split(',')).await.unwrap();
    let recipe = Lease::new(cassandra, options, LeaseTable::default()).unwrap();
    let locker = Locker::builder(cassandra, SCOPE, std::sync::Arc::new(recipe));
    locker
        .native(client)
        .fallback(self::options(options))
        .start(LockerMode::Fallback)
        .await
        .unwrap()
}
