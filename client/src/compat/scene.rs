//! For tests: what the recipes' tests on the model of the tables begin with.

use std::sync::Arc;
use std::time::Duration;

use holdfast_seams::simulated::{Machine, Process};

use super::cassandra::{Cassandra, LockerOptions};
use super::model::Model;

/// A machine on which everything is drawn from `seed`, and tables that everyone on it reaches.
pub(crate) fn world(seed: u64) -> (Machine, Model) {
    let machine = Machine::new(seed);
    let model = Model::new(&machine);
    (machine, model)
}

/// The tables as `process` reaches them, by its own clock.
pub(crate) fn cassandra(model: &Model, process: &Process) -> Cassandra {
    Cassandra::on(Arc::new(model.clone()), process.seams())
}

/// Of lockers with a lease of `ttl`, on nodes whose clocks differ by `skew` at most.
pub(crate) fn options(service: &str, ttl: Duration, skew: Duration) -> LockerOptions {
    LockerOptions::default().service(service).ttl(ttl).max_skew(skew)
}
