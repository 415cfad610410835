//! The optimistic tokens on the model of their table: demonstrations of where the article stops; the recipe beside it in
//! every order; how often many workers succeed; and simulated runs.

mod flaws;
mod many;
mod ours;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use holdfast_runtime::simulated::{Machine, Process};

use super::{OptimisticTable, OptimisticTokens};
use crate::cassandra::Cassandra;
use crate::database::Database;
use crate::lock_task::{Attempt, Reached};
use crate::locker::RemoteLocker;
use crate::model::Model;
use crate::seed_clients::{Before, FOR_EVER, Meeting, Met, SeedStamps, SeedTable, orders};
use crate::test_support::{cassandra, options, world};
use worker::SeedWorker;

const TOKENS: SeedTable = SeedTable::tokens("optimistic_tokens");

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn on(cassandra: &Cassandra, service: &str, ttl: Duration, skew: Duration) -> OptimisticTokens {
    OptimisticTokens::new(cassandra, &options(service, ttl, skew), OptimisticTable::default())
        .unwrap()
}

fn locker(
    model: &Model,
    process: &Process,
    service: &str,
    ttl: Duration,
    skew: Duration,
) -> OptimisticTokens {
    on(&cassandra(model, process), service, ttl, skew)
}
