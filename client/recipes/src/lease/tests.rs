//! The lease on the model of its table: demonstrations of what the article leaves open, and
//! simulated runs of processes that contend for a few locks under all faults of the model.

mod flaws;
mod single;

use std::sync::Arc;
use std::time::Duration;

use holdfast_runtime::simulated::{Machine, Process};

use super::{Lease, LeaseTable};
use crate::lives;
use crate::locker::RemoteLocker;
use crate::model::Model;
use crate::scene::{self, cassandra, options, world};

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A locker of this process.
fn locker(model: &Model, process: &Process, service: &str, ttl: Duration, skew: Duration) -> Lease {
    let (cassandra, options) = (cassandra(model, process), options(service, ttl, skew));
    Lease::new(&cassandra, &options, LeaseTable::default()).unwrap()
}

fn of(model: &Model, process: &Process) -> Arc<dyn RemoteLocker> {
    Arc::new(locker(model, process, "worker", lives::TTL, lives::SKEW))
}

#[test]
fn in_no_life_are_two_guards_of_a_lock_safe_at_once() {
    lives::live_many(0..30, &of);
}

#[test]
#[ignore = "long: ten thousand lives"]
fn in_none_of_very_many_lives_are_two_guards_of_a_lock_safe_at_once() {
    lives::live_many(1_000..11_000, &of);
}
