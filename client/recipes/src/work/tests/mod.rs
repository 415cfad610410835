//! The work queue on the model of its tables.

mod dead_letter;
mod flaws;
mod single;

use std::time::Duration;

use holdfast_runtime::simulated::{Machine, Process};

use super::*;
use crate::model::{Fate, Model, Odds};
use crate::statement::Action;
use crate::test_support::{cassandra, world};
use rows::NumberRow;

const TTL: Duration = secs(30);
const SKEW: Duration = secs(10);

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The queue `jobs`, for this process.
fn queue(model: &Model, process: &Process) -> WorkQueue {
    queue_with(model, process, LockerOptions::default())
}

fn queue_with(model: &Model, process: &Process, options: LockerOptions) -> WorkQueue {
    let options = options.service(process.name()).ttl(TTL).max_skew(SKEW);
    WorkQueue::new(&cassandra(model, process), &options, WorkTables::default(), "jobs").unwrap()
}

/// The next item, which must come.
async fn next(queue: &WorkQueue) -> WorkItem {
    queue.next(Wait::AtMost(secs(300))).await.unwrap().unwrap()
}

/// All rows of the numbers.
async fn numbers(queue: &WorkQueue) -> Vec<NumberRow> {
    let mut all = Vec::new();
    for hour in queue.rows.hours(0).await.unwrap() {
        all.extend(queue.rows.page(hour, "").await.unwrap().0);
    }
    all
}
