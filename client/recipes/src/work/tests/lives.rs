//! Simulated runs: four processes enqueue and work while statements get lost or are applied late, nodes have wrong
//! clocks, and processes stall, die and have clocks of their own. No two workers have an item at once, no item comes
//! again once its removal was answered, and all enqueued items are done in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Mutex, Weak};

use super::*;
use crate::lives::{below, torment};

#[derive(Default)]
struct Judge {
    /// The items whose enqueue was answered.
    enqueued: Mutex<BTreeSet<ItemId>>,
    /// The items whose work was finished, whether or not their removal succeeded.
    worked: Mutex<BTreeSet<ItemId>>,
    /// The items whose removal was answered.
    removed: Mutex<BTreeSet<ItemId>>,
    /// How often each was handed out, and its last holder.
    had: Mutex<BTreeMap<ItemId, (u32, Weak<WorkItem>)>>,
    counts: Mutex<Counts>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    had: usize,
    again: usize,
    lost: usize,
    unknown: usize,
}

impl Judge {
    /// Checks an item that was handed out: safety begins only here, and once unsafe an item stays
    /// so.
    fn had(&self, item: &Arc<WorkItem>, seed: u64) {
        let mut had = self.had.lock().unwrap();
        let before = had.get(item.id()).map_or(0, |(before, _)| *before);
        // An attempt that reached one replica and was never handed out is counted now and then.
        assert!(
            item.attempt() > before,
            "seed {seed}: handed out {before} times, and then {item:?}"
        );
        if let Some((_, other)) = had.get(item.id()) {
            let both = other.upgrade().is_some_and(|other| other.is_safe()) && item.is_safe();
            assert!(!both, "seed {seed}: two have {item:?}");
            self.counts.lock().unwrap().again += 1;
        }
        let is_removed = self.removed.lock().unwrap().contains(item.id());
        assert!(!is_removed, "seed {seed}: removed, and here again: {item:?}");
        assert_eq!(item.payload(), "what is to be done", "seed {seed}");
        had.insert(item.id().clone(), (before + 1, Arc::downgrade(item)));
        self.counts.lock().unwrap().had += 1;
    }

    async fn work_on(&self, process: &Process, item: WorkItem, seed: u64) {
        let item = Arc::new(item);
        self.had(&item, seed);
        let long = below(process, 8) == 0;
        let length = Duration::from_millis(below(process, if long { 60_000 } else { 3_000 }));
        process.runtime().sleep(length).await;
        let Ok(item) = Arc::try_unwrap(item) else { panic!("nobody else has it") };
        if !item.is_safe() {
            self.counts.lock().unwrap().lost += 1;
        }
        if below(process, 8) == 0 {
            return;
        }
        let id = item.id().clone();
        if item.is_safe() {
            self.worked.lock().unwrap().insert(id.clone());
        }
        match item.done().await {
            Ok(()) => drop(self.removed.lock().unwrap().insert(id)),
            Err(Error::OutcomeUnknown { .. }) => self.counts.lock().unwrap().unknown += 1,
            Err(Error::Lost { .. }) => {}
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }

    /// Enqueues and works, for ever.
    async fn work(self: Arc<Self>, queue: WorkQueue, process: Process, seed: u64) {
        loop {
            if below(&process, 2) == 0
                && let Ok(id) = queue.enqueue("what is to be done").await
            {
                self.enqueued.lock().unwrap().insert(id);
            }
            let wait = match below(&process, 3) {
                0 => Wait::No,
                _ => Wait::AtMost(Duration::from_millis(below(&process, 10_000))),
            };
            if let Ok(Some(item)) = queue.next(wait).await {
                self.work_on(&process, item, seed).await;
            }
            process.runtime().sleep(Duration::from_millis(below(&process, 4_000))).await;
        }
    }
}

fn live(seed: u64) -> (Counts, usize) {
    let (machine, model) = world(seed);
    let judge = Arc::new(Judge::default());
    let start = |process: &Process| {
        // Clocks of processes change the order only.
        process.set_wall_skew(i64::try_from(below(process, 600_000)).unwrap() - 300_000);
        let work = judge.clone().work(queue(&model, process), process.clone(), seed);
        process.runtime().spawn("work", work).detach();
    };
    machine.run(torment(&machine, &model, &start));
    // Healed: the processes that still run and a newcomer do all of it. Items enqueued from now on
    // do not count.
    let newcomer = machine.process("newcomer");
    let last = queue(&model, &newcomer);
    let enqueued = judge.enqueued.lock().unwrap().clone();
    machine.run(async {
        let until = newcomer.runtime().clock.now() + secs(1_200);
        let is_left = || !judge.worked.lock().unwrap().is_superset(&enqueued);
        while is_left() && newcomer.runtime().clock.now() < until {
            if let Some(item) = last.next(Wait::AtMost(secs(60))).await.unwrap() {
                judge.work_on(&newcomer, item, seed).await;
            }
        }
        let left: Vec<_> = enqueued.difference(&judge.worked.lock().unwrap()).cloned().collect();
        assert_eq!(left, [], "seed {seed}: lost");
    });
    (*judge.counts.lock().unwrap(), enqueued.len())
}

fn live_many(seeds: Range<u64>) {
    let lives = seeds.clone().count();
    let (mut all, mut items) = (Counts::default(), 0);
    for seed in seeds {
        let (counts, enqueued) = live(seed);
        items += enqueued;
        all.had += counts.had;
        all.again += counts.again;
        all.lost += counts.lost;
        all.unknown += counts.unknown;
    }
    println!("{lives} lives: {items} items, {all:?}");
    let little =
        items < 50 * lives || all.again < 5 * lives || all.lost < lives || all.unknown < lives / 4;
    assert!(!little, "too little happened");
}

#[test]
fn in_no_life_is_an_item_lost_or_had_twice_at_once() {
    live_many(0..6);
}

#[test]
#[ignore = "long: five hundred lives"]
fn in_none_of_very_many_lives_is_an_item_lost_or_had_twice_at_once() {
    live_many(1_000..1_500);
}
