//! A queue of work in Cassandra in a simulated run: workers enqueue items and work on them. No two workers have one item at once, no item
//! comes again once its removal was answered, and in the end a worker has worked on each item that was enqueued.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdfast::Error;
use holdfast_recipes::{ItemId, Wait, WorkQueue, WorkTables};
use holdfast_runtime::Runtime;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::client::{Actor, begin};
use super::counts::Counts;
use super::locker_client::options;
use super::plan::rate;
use super::stage::{Stage, in_history, lock};
use crate::draw::Draw;
use crate::worker::{Had, Worker};

/// What a seed is turned into for this.
const WORK_STREAM: u64 = 0x574f_524b_4552;
/// Of so many runs with scopes one has a queue of work.
const WORK_ONE_IN: u64 = 3;
/// The number of the first worker. Those that come in the place of others count on.
pub(super) const FIRST: u64 = 2_500_000;
/// No worker has this number, or one above it.
pub(super) const END: u64 = 2_600_000;
const VISITOR: u64 = 2_290_004;
/// How far the wall clock of a worker is wrong at most, milliseconds, either way: it changes the order of the items only.
const WALL_SKEW_MS: u64 = 300_000;
/// How long the last visitor may take to work on what is left.
const DONE_WITHIN: Duration = Duration::from_mins(5);
const PAYLOAD: &str = "what is to be done";

/// A queue of work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkPlan {
    /// How much faster than true time the clock of each worker is, parts of a million.
    pub rates: Vec<i32>,
}

impl WorkPlan {
    /// What the seed of a run with scopes draws.
    pub(super) fn draw(seed: u64) -> Option<Self> {
        let mut draw = Draw::new(seed ^ WORK_STREAM);
        (draw.below(WORK_ONE_IN) == 0).then(|| Self::any(&mut draw))
    }

    /// One with that seed, whether or not the run that is drawn from it has one.
    pub(super) fn of(seed: u64) -> Self {
        Self::any(&mut Draw::new(seed ^ WORK_STREAM))
    }

    fn any(draw: &mut Draw) -> Self {
        Self { rates: (0..2 + draw.below(2)).map(|_| rate(draw)).collect() }
    }
}

/// What all workers of a run know of its items together.
#[derive(Debug, Default)]
pub(super) struct Items {
    /// Those whose enqueue was answered.
    enqueued: Mutex<BTreeSet<ItemId>>,
    /// Those that were worked on to the end by a worker that was safe then.
    worked: Mutex<BTreeSet<ItemId>>,
    /// Those whose removal was answered.
    removed: Mutex<BTreeSet<ItemId>>,
    /// How often each was handed out.
    times: Mutex<BTreeMap<ItemId, u32>>,
    had: AtomicU64,
    again: AtomicU64,
}

impl Items {
    /// An item is handed out; returns what is wrong with that. (Whether two workers have it at once, the judge says.)
    fn had(&self, id: &ItemId, attempt: u32, payload: &str) -> Option<String> {
        self.had.fetch_add(1, Ordering::Relaxed);
        let before = {
            let mut times = lock(&self.times);
            let times = times.entry(id.clone()).or_default();
            *times += 1;
            *times - 1
        };
        if before > 0 {
            self.again.fetch_add(1, Ordering::Relaxed);
        }
        // Not above the last number: an attempt that was written to one replica and never handed out is counted now and then.
        if attempt <= before {
            return Some(format!(
                "work: {id} is handed out as attempt {attempt} after {before} times"
            ));
        }
        if lock(&self.removed).contains(id) {
            return Some(format!("work: {id} comes again after its removal was answered"));
        }
        (payload != PAYLOAD).then(|| format!("work: {id} has another payload"))
    }

    fn left(&self) -> Vec<ItemId> {
        lock(&self.enqueued).difference(&lock(&self.worked)).cloned().collect()
    }
}

/// One worker.
struct Laborer {
    queue: WorkQueue,
    worker: Worker,
    runtime: Runtime,
    draw: Draw,
    items: Arc<Items>,
    wrong: Arc<Mutex<Vec<String>>>,
    stopped: watch::Receiver<bool>,
}

impl Laborer {
    /// Enqueues and works until it is told to stop.
    async fn work(mut self) {
        while !*self.stopped.borrow() {
            if self.draw.below(2) == 0
                && let Ok(id) = self.queue.enqueue(PAYLOAD).await
            {
                lock(&self.items.enqueued).insert(id);
            }
            let wait = match self.draw.below(3) {
                0 => Wait::No,
                _ => Wait::AtMost(Duration::from_millis(self.draw.below(6_000))),
            };
            if let Ok(Some(had)) = self.worker.next(wait).await {
                let longest_ms = if self.draw.below(8) == 0 { 20_000 } else { 1_500 };
                let length = Duration::from_millis(self.draw.below(longest_ms));
                self.work_on(had, length).await;
            }
            self.runtime.sleep(Duration::from_millis(self.draw.below(2_000))).await;
        }
    }

    async fn work_on(&mut self, had: Had, length: Duration) {
        let item = had.item();
        lock(&self.wrong).extend(self.items.had(item.id(), item.attempt(), item.payload()));
        had.keep(length).await;
        if self.draw.below(8) == 0 {
            return had.abandon();
        }
        let id = had.item().id().clone();
        if had.item().is_safe() {
            lock(&self.items.worked).insert(id.clone());
        }
        match had.done().await {
            Ok(()) => {
                lock(&self.items.removed).insert(id);
            }
            Err(Error::OutcomeUnknown { .. } | Error::Lost { .. }) => {}
            Err(error) => lock(&self.wrong).push(format!("work: {id} cannot be done: {error}")),
        }
    }
}

impl Stage<'_> {
    fn work_plan(&self) -> Option<&WorkPlan> {
        self.plan.scopes.as_ref()?.work.as_ref()
    }

    /// What the ids of items begin with: the first digits of an instant.
    pub(super) fn items_prefix(&self) -> Option<String> {
        self.work_plan().map(|_| "0000".to_owned())
    }

    /// Workers begin.
    pub(super) fn begin_workers(&self) {
        for place in 0..self.workers() {
            self.begin_worker(FIRST + place);
        }
    }

    /// How many workers there are.
    pub(super) fn workers(&self) -> u64 {
        self.work_plan().map_or(0, |plan| plan.rates.len() as u64)
    }

    /// Starts a worker: one of the first, or one in the place of another.
    pub(super) fn begin_worker(&self, number: u64) {
        let Some(plan) = self.work_plan() else { return };
        let process = self.world.client_process(number);
        let place = usize::try_from(number - FIRST).unwrap_or(0) % plan.rates.len();
        process.set_rate(plan.rates[place]);
        let Some(mut laborer) = self.laborer(number) else { return };
        let ahead_ms = laborer.draw.below(2 * WALL_SKEW_MS + 1);
        let off_ms = |ms: u64| i64::try_from(ms).unwrap_or(0);
        process.set_wall_skew(off_ms(ahead_ms) - off_ms(WALL_SKEW_MS));
        let actor: Actor = begin(&process, &self.recorder, in_history(number), laborer.work());
        lock(&self.actors).insert(number, actor);
    }

    fn laborer(&self, number: u64) -> Option<Laborer> {
        let (process, id) = (self.world.client_process(number), in_history(number));
        let (runtime, recorder) = (process.runtime(), self.recorder.of(process.clone()));
        let (cassandra, options) = (self.cassandra_of(number), options("worker", id));
        let queue = match WorkQueue::new(&cassandra, &options, WorkTables::default(), "jobs") {
            Ok(queue) => queue,
            Err(error) => {
                self.wrong(format!("work: no queue is made: {error}"));
                return None;
            }
        };
        Some(Laborer {
            worker: Worker::of(queue.clone(), id, recorder).on(runtime.clone()),
            queue,
            runtime,
            draw: Draw::new(self.plan.seed ^ number),
            items: self.items.clone(),
            wrong: self.wrong.clone(),
            stopped: self.ends.stop.subscribe(),
        })
    }

    /// What came of the items.
    pub(super) fn count_work(&self, counts: &mut Counts) {
        counts.work_items = lock(&self.items.enqueued).len() as u64;
        counts.work_had = self.items.had.load(Ordering::Relaxed);
        counts.work_again = self.items.again.load(Ordering::Relaxed);
    }

    /// A worker that comes when all is healed works on everything that is left: nothing was lost.
    pub(super) async fn work_is_done(&self) {
        if self.work_plan().is_none() {
            return;
        }
        let Some(mut last) = self.laborer(VISITOR) else { return };
        let items = self.items.clone();
        let working = async move {
            while !items.left().is_empty() {
                match last.worker.next(Wait::AtMost(Duration::from_mins(1))).await {
                    Ok(Some(had)) => last.work_on(had, Duration::from_millis(100)).await,
                    Ok(None) => {}
                    Err(error) => {
                        lock(&last.wrong).push(format!("work: no item is handed out: {error}"));
                    }
                }
            }
        };
        let done = self.world.as_client(VISITOR, working);
        if self.runtime.timeout(DONE_WITHIN, done).await.is_err() {
            self.wrong(format!("work: lost: {:?}", self.items.left()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> ItemId {
        ItemId::parse("00001700000057332000733eda8ee0ebc5c4").unwrap()
    }

    #[test]
    fn an_attempt_below_the_times_that_the_item_was_handed_out_is_found() {
        let items = Items::default();
        assert_eq!(items.had(&id(), 1, PAYLOAD), None);
        assert_eq!(items.had(&id(), 3, PAYLOAD), None);
        assert_eq!(
            items.had(&id(), 3, PAYLOAD),
            None,
            "one that was never handed out was counted before"
        );
        assert!(items.had(&id(), 3, PAYLOAD).is_some_and(|wrong| wrong.contains("attempt 3")));
    }

    #[test]
    fn an_item_after_its_removal_and_another_payload_are_found() {
        let items = Items::default();
        assert!(items.had(&id(), 1, "another").is_some());
        lock(&items.removed).insert(id());
        assert!(items.had(&id(), 2, PAYLOAD).is_some_and(|wrong| wrong.contains("removal")));
    }
}
