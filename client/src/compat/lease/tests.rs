//! The lease on the model of its table: what the seed's text leaves open, shown, and whole lives of
//! processes that fight for a few locks while everything goes wrong that may.

mod flaws;
mod single;

use std::sync::Arc;
use std::time::Duration;

use holdfast_seams::simulated::{Machine, Process};

use super::{Lease, LeaseTable};
use crate::compat::cassandra::{Cassandra, LockerOptions};
use crate::compat::lives;
use crate::compat::locker::RemoteLocker;
use crate::compat::model::Model;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A locker of this process.
fn locker(model: &Model, process: &Process, service: &str, ttl: Duration, skew: Duration) -> Lease {
    let cassandra = Cassandra::on(Arc::new(model.clone()), process.seams());
    let options = LockerOptions::default().service(service).ttl(ttl).max_skew(skew);
    Lease::new(&cassandra, &options, LeaseTable::default()).unwrap()
}

/// A machine, its tables, and a process with the seed's TTL.
fn world(seed: u64) -> (Machine, Model) {
    let machine = Machine::new(seed);
    let model = Model::new(&machine);
    (machine, model)
}

fn of(model: &Model, process: &Process) -> Arc<dyn RemoteLocker> {
    Arc::new(locker(model, process, "worker", lives::TTL, lives::SKEW))
}

#[test]
fn in_no_life_are_two_guards_of_a_lock_safe_at_once() {
    lives::live_many(0..120, &of);
}

#[test]
#[ignore = "long: ten thousand lives"]
fn in_none_of_very_many_lives_are_two_guards_of_a_lock_safe_at_once() {
    lives::live_many(1_000..11_000, &of);
}
