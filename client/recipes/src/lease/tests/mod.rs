//! The lease on the model of its table: demonstrations of what the article leaves open, and
//! simulated runs of processes that contend for a few locks under all faults of the model.

mod flaws;
mod single;
mod turns;

use std::time::Duration;

use holdfast_runtime::simulated::{Machine, Process};

use super::{Lease, LeaseTable};
use crate::model::Model;
use crate::test_support::{self, cassandra, options, world};

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A locker of this process.
fn locker(model: &Model, process: &Process, service: &str, ttl: Duration, skew: Duration) -> Lease {
    let (cassandra, options) = (cassandra(model, process), options(service, ttl, skew));
    Lease::new(&cassandra, &options, LeaseTable::default()).unwrap()
}
