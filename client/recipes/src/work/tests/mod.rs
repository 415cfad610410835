//! The work queue on the model of its tables.

mod dead_letter;
mod flaws;
mod single;
mod slots;

use std::time::Duration;

use holdfast_runtime::simulated::{Machine, Process};

use super::*;
use crate::model::{Fate, Model, Odds};
use crate::statement::Action;
use crate::test_support::{cassandra, world};
use rows::NumberRow;
use slot::{Listing, Part, Slot};

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
    let hours = queue.rows.hours(0).await.unwrap().into_iter().map(Part::Hour);
    let slots = listed(queue).await.into_iter().map(Part::Slot);
    for part in hours.chain(slots) {
        all.extend(queue.rows.page(part, "", rows::PAGE).await.unwrap().0);
    }
    all
}

/// The slots on the list.
async fn listed(queue: &WorkQueue) -> Vec<Slot> {
    let page = queue.rows.slots(Slot::first_of(0)).await.unwrap();
    assert!(page.is_last);
    let mut slots: Vec<_> = page.rows.into_iter().map(|(slot, _)| slot).collect();
    slots.dedup();
    slots
}
