//! The list of slots: what leaves it, what it costs, and the hours of older versions.

use std::collections::BTreeSet;

use holdfast_mutants::{Mutant, while_armed};

use super::*;
use crate::statement::{Ident, Statement};

/// A process enqueues an item that a worker does, and a second one so long after it began; it is paused that long after that, and goes on.
/// Returns whether a worker gets the second item, and the slots that are listed in the end.
fn paused_in_its_second(wait: Duration, stops_after_ms: u64, pause: Duration) -> (bool, usize) {
    let (machine, model) = world(stops_after_ms);
    let process = machine.process("stops");
    let works = machine.process("works");
    // It shows nearly half a day more.
    works.set_wall_skew(39_600_000);
    let [stops, works] = [&process, &works].map(|process| queue(&model, process));
    let runtime = machine.world().runtime();
    machine.run(async {
        stops.enqueue("early").await.unwrap();
        next(&works).await.done().await.unwrap();
        // All of it lies in one minute.
        runtime.sleep(wait).await;
        let (answer, answered) = tokio::sync::oneshot::channel();
        let enqueueing = async move {
            let _ = answer.send(stops.enqueue("late").await);
        };
        process.runtime().spawn("enqueue", enqueueing).detach();
        runtime.sleep(Duration::from_millis(stops_after_ms)).await;
        process.pause();
        let early = works.next(Wait::AtMost(pause)).await.unwrap();
        let is_late = early.is_none();
        drop(early);
        process.resume();
        answered.await.unwrap().unwrap();
        let item = works.next(Wait::AtMost(secs(120))).await.unwrap();
        let is_found = item.is_some() || !is_late;
        if let Some(item) = item {
            item.done().await.unwrap();
        }
        assert!(works.next(Wait::AtMost(secs(300))).await.unwrap().is_none());
        (is_found, listed(&works).await.len())
    })
}

/// At whatever point of an enqueue, and for however long, the process is paused: a worker gets the item, and the slot leaves the list.
#[test]
fn a_slot_leaves_the_list_and_no_item_is_lost_by_that() {
    let short = [secs(1), secs(35), secs(100), secs(200)].map(|pause| (pause, 8));
    for (pause, step_ms) in short.into_iter().chain([(Duration::from_hours(40), 40)]) {
        for stops_after_ms in (0..160).step_by(step_ms) {
            let (is_found, left) = paused_in_its_second(secs(2), stops_after_ms, pause);
            assert!(is_found, "stopped after {stops_after_ms} ms for {pause:?}");
            assert_eq!(left, 0, "stopped after {stops_after_ms} ms for {pause:?}");
        }
    }
}

/// How many items are lost with that bug.
fn lost_with(bug: Mutant, pause: Duration) -> usize {
    let lost = |stops_after_ms: &u64| {
        while_armed(bug, || !paused_in_its_second(secs(2), *stops_after_ms, pause).0)
    };
    (0..160_u64).step_by(8).filter(lost).count()
}

/// The first look finds the slot empty while the process is about to write an item there.
#[test]
fn a_listing_that_is_removed_at_once_loses_items() {
    assert!(lost_with(Mutant::SlotUnlistedAtOnce, secs(35)) > 0);
}

#[test]
fn a_listing_that_is_relied_on_for_ever_loses_items() {
    assert!(lost_with(Mutant::ListingReliedOnForEver, secs(200)) > 0);
}

/// An item of version 0.3, with the statements of 0.3.
async fn enqueue_as_before(queue: &WorkQueue, number: usize) -> ItemId {
    let text = format!("{:020}{number:016x}", queue.rows.now_us());
    let id = ItemId::parse(&text).unwrap();
    queue.rows.put_payload(&id, "old").await.unwrap();
    queue.rows.put_marker(&id).await.unwrap();
    queue.rows.list_hour(id::hour_of(id.written_us())).await.unwrap();
    id
}

/// A process of version 0.3 goes on enqueueing: the first of its items is found by a whole look, the others by any.
#[test]
fn items_of_an_older_version_are_had_and_their_hours_leave_the_list() {
    let (machine, model) = world(21);
    let queue = queue(&model, &machine.process("worker"));
    let runtime = machine.world().runtime();
    machine.run(async {
        assert!(queue.next(Wait::No).await.unwrap().is_none());
        for number in 0..5 {
            let id = enqueue_as_before(&queue, number).await;
            let began = runtime.clock.now();
            let item = next(&queue).await;
            let took = runtime.clock.now().saturating_since(began);
            assert_eq!((item.id(), item.payload()), (&id, "old"));
            assert!(
                took < secs(if number == 0 { 35 } else { 4 }),
                "item {number} came after {took:?}"
            );
            item.done().await.unwrap();
        }
        // In a mixed fleet both come, the old ones first.
        let new = queue.enqueue("new").await.unwrap();
        let old = enqueue_as_before(&queue, 9).await;
        let ids: Vec<_> = queue.list(9).await.unwrap().into_iter().map(|item| item.id).collect();
        assert_eq!(ids, [old, new]);
        for _ in 0..2 {
            next(&queue).await.done().await.unwrap();
        }
        runtime.sleep(Duration::from_hours(26)).await;
        assert!(queue.next(Wait::AtMost(secs(60))).await.unwrap().is_none());
        assert_eq!(queue.rows.hours(0).await.unwrap(), [0; 0]);
        let late = enqueue_as_before(&queue, 10).await;
        assert_eq!(next(&queue).await.id(), &late);
    });
}

/// A partition that cannot be read, as one with 100,000 tombstones, hides no item of another; and a queue with such a partition is never
/// said to be empty.
#[test]
fn a_partition_that_cannot_be_read_hides_no_other() {
    let is_page = |one: &Statement| {
        one.table == Ident::new("work_numbers") && matches!(one.action, Action::FirstFrom { .. })
    };
    let (machine, model) = world(22);
    let queue = queue(&model, &machine.process("worker"));
    machine.run(async {
        queue.enqueue("hidden").await.unwrap();
        machine.world().runtime().sleep(secs(61)).await;
        model.choose(is_page, Fate::RequestLost);
        let seen = queue.scanner.free().await;
        assert!(seen.is_err(), "{seen:?}");
        let shown = queue.enqueue("shown").await.unwrap();
        model.choose(is_page, Fate::RequestLost);
        assert_eq!(queue.scanner.free().await.unwrap(), [shown]);
        model.choose(is_page, Fate::RequestLost);
        let listed = queue.scanner.look(0, 1, |_| true).await;
        assert!(listed.is_err() && model.nothing_is_chosen(), "{listed:?}");
    });
}

/// B11. A day of items that are done costs an idle worker nothing; before, it read every hour of the day each 30 s.
#[test]
fn an_idle_worker_reads_nothing_of_a_day_of_done_items() {
    let (machine, model) = world(23);
    let [enqueues, works] = ["enqueues", "works"].map(|name| queue(&model, &machine.process(name)));
    let runtime = machine.world().runtime();
    machine.run(async {
        for _ in 0..24 * 12 {
            enqueues.enqueue("job").await.unwrap();
            next(&works).await.done().await.unwrap();
            runtime.sleep(secs(300)).await;
        }
        assert!(works.next(Wait::AtMost(secs(200))).await.unwrap().is_none());
        let before = model.arrived();
        assert!(works.next(Wait::AtMost(secs(300))).await.unwrap().is_none());
        let asked = model.arrived() - before;
        // A read of the list each second or two, and one of the hours each 30 s.
        assert!(asked < 320, "{asked}");
    });
}

/// More of a process than the share that all use takes: they lie in two partitions, and a look shows each once.
#[test]
fn items_beyond_the_common_share_are_found_too() {
    const ITEMS: usize = 1_100;
    let (machine, model) = world(24);
    let [enqueues, works] = ["enqueues", "works"].map(|name| queue(&model, &machine.process(name)));
    machine.run(async {
        let all = (0..ITEMS).map(|_| enqueues.enqueue("job"));
        let ids = futures_util::future::try_join_all(all).await.unwrap();
        assert_eq!(listed(&works).await.len(), 2);
        let mut seen = Vec::new();
        let on = |one: scan::Seen| {
            seen.push(one.id);
            true
        };
        works.scanner.look(0, 1, on).await.unwrap();
        assert_eq!(seen.len(), ITEMS);
        assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), ids.into_iter().collect());
    });
}
