//! The shadow on the model of its tables: demonstrations of what the article leaves open; the recipe beside the article's
//! threads in every order; one client and two; and simulated runs.

mod beside;
mod flaws;
mod ours;
mod thread;

use std::sync::Arc;
use std::time::Duration;

use holdfast_runtime::simulated::{Machine, Process};

use super::{CONCURRENT_PAUSE_STEP, OWNER_PAUSE_MAX};
use super::{Shadow, ShadowTables};
use crate::cassandra::{Cassandra, LockerOptions};
use crate::database::Database;
use crate::lock_task::{Attempt, Reached};
use crate::locker::RemoteLocker;
use crate::model::Model;
use crate::seed_clients::{Before, FOR_EVER, Meeting, Met, SeedStamps, SeedTable, orders};
use crate::test_support::{cassandra, options, world};
use thread::{SeedThread, Verdict};

const MAIN: SeedTable = SeedTable::cells("lock_main");
const SHADOW: SeedTable = SeedTable::cells("lock_shadow");

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn on(cassandra: &Cassandra, service: &str, ttl: Duration, skew: Duration) -> Shadow {
    Shadow::new(cassandra, &options(service, ttl, skew), ShadowTables::default()).unwrap()
}

fn locker(
    model: &Model,
    process: &Process,
    service: &str,
    ttl: Duration,
    skew: Duration,
) -> Shadow {
    on(&cassandra(model, process), service, ttl, skew)
}
