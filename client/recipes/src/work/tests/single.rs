//! One worker or a few, without faults except those that a test injects.

use std::collections::BTreeSet;

use holdfast_mutants::{Mutant, while_armed};
use holdfast_runtime::Rng;

use super::*;

#[test]
fn one_worker_has_the_items_in_their_order_and_each_once() {
    let (machine, model) = world(1);
    let [enqueues, works] = ["enqueues", "works"].map(|name| queue(&model, &machine.process(name)));
    machine.run(async {
        let mut ids = Vec::new();
        for number in 0..20 {
            ids.push(enqueues.enqueue(format!("job {number}")).await.unwrap());
        }
        for (number, id) in ids.iter().enumerate() {
            let item = next(&works).await;
            assert_eq!((item.id(), item.payload()), (id, format!("job {number}").as_str()));
            assert_eq!(item.attempt(), 1);
            assert!(item.is_safe());
            item.done().await.unwrap();
        }
        assert!(works.next(Wait::No).await.unwrap().is_none());
        assert!(works.is_empty().await.unwrap());
    });
}

#[test]
fn what_is_dropped_or_given_back_comes_again_as_the_next_attempt() {
    let (machine, model) = world(2);
    let queue = queue(&model, &machine.process("worker"));
    machine.run(async {
        let id = queue.enqueue("job").await.unwrap();
        drop(next(&queue).await);
        next(&queue).await.give_back().await.unwrap();
        let item = next(&queue).await;
        assert_eq!((item.id(), item.attempt()), (&id, 3));
        let by = "worker".into();
        assert_eq!(queue.list(1).await.unwrap()[0].status, ItemStatus::Taken { by });
    });
}

/// One worker, of which every attempt at the first item fails: it comes to the others, and the first costs less and less.
#[test]
fn an_item_that_always_fails_keeps_no_worker_from_the_others() {
    let done_and_tried = || {
        let (machine, model) = world(2);
        let queue = queue(&model, &machine.process("worker"));
        let runtime = machine.world().runtime();
        machine.run(async {
            let fails = queue.enqueue("fails").await.unwrap();
            for _ in 0..20 {
                queue.enqueue("job").await.unwrap();
            }
            let (mut done, mut tried) = (0, 0);
            let until = runtime.clock.now() + secs(3_600);
            while runtime.clock.now() < until {
                let Some(item) = queue.next(Wait::AtMost(secs(10))).await.unwrap() else {
                    continue;
                };
                if *item.id() == fails {
                    tried += 1;
                    item.give_back().await.unwrap();
                } else {
                    item.done().await.unwrap();
                    done += 1;
                }
                if tried > 100 {
                    break;
                }
            }
            (done, tried)
        })
    };
    let (done, tried) = done_and_tried();
    assert_eq!(done, 20);
    // 1 s, 2 s, 4 s, … 512 s, and then once in 10 minutes.
    assert!((12..=16).contains(&tried), "{tried}");
    let (done, tried) = while_armed(Mutant::FailedItemIsNextAgain, done_and_tried);
    assert_eq!((done, tried), (0, 101), "the pause is needed");
}

/// Many attempts of one process write their numbers under one id: one tombstone is left of them.
#[test]
fn attempts_at_one_item_write_under_one_id_and_are_counted_each() {
    let (machine, model) = world(2);
    let queue = queue(&model, &machine.process("worker"));
    machine.run(async {
        queue.enqueue("job").await.unwrap();
        let mut workers = BTreeSet::new();
        for attempt in 1..=8 {
            let item = next(&queue).await;
            assert_eq!(item.attempt(), attempt);
            let rows = numbers(&queue).await;
            workers.extend(rows.into_iter().filter(|row| !row.is_marker()).map(|row| row.worker));
            item.give_back().await.unwrap();
        }
        assert_eq!(workers.len(), 1, "{workers:?}");
    });
}

#[test]
fn an_item_is_kept_for_longer_than_a_ttl_and_others_have_none() {
    let (machine, model) = world(3);
    let [a, b] = ["a", "b"].map(|name| queue(&model, &machine.process(name)));
    machine.run(async {
        a.enqueue("job").await.unwrap();
        let item = next(&a).await;
        assert!(b.next(Wait::AtMost(TTL * 4)).await.unwrap().is_none());
        assert!(item.is_safe());
        item.done().await.unwrap();
    });
}

#[test]
fn an_item_whose_lease_is_over_is_not_removed() {
    let (machine, model) = world(4);
    let processes = ["a", "b"].map(|name| machine.process(name));
    let [a, b] = processes.each_ref().map(|process| queue(&model, process));
    machine.run(async {
        let id = a.enqueue("job").await.unwrap();
        let late = next(&a).await;
        processes[0].pause();
        let item = next(&b).await;
        assert!(!late.is_safe());
        processes[0].resume();
        assert!(matches!(late.done().await, Err(Error::Lost { .. })));
        item.give_back().await.unwrap();
        assert_eq!(next(&b).await.id(), &id, "it is there still");
    });
}

/// What `done` says of a removal that takes so long, of an item whose lease was last renewed 13 s ago.
fn removed_within(slow: Duration) -> Result<()> {
    let (machine, model) = world(11);
    let queue = queue(&model, &machine.process("worker"));
    machine.run(async {
        queue.enqueue("job").await.unwrap();
        let item = next(&queue).await;
        model.set_odds(Odds { request_lost: 1_000, ..Odds::default() });
        machine.world().runtime().sleep(secs(13)).await;
        assert!(item.is_safe(), "by its last renewal");
        model.set_odds(Odds::default());
        model.choose(|one| matches!(one.action, Action::Erase { .. }), Fate::Slowly(slow));
        item.done().await
    })
}

/// The removal is answered when the lease may be over: another worker may have taken the item before. With the
/// rule taken away it counts all the same.
#[test]
fn a_removal_that_is_answered_late_is_no_removal_for_certain() {
    assert_eq!(removed_within(secs(1)), Ok(()));
    let late = removed_within(secs(8));
    assert!(matches!(late, Err(Error::OutcomeUnknown { .. })), "{late:?}");
    let missed = while_armed(Mutant::LateRemovalCounts, || removed_within(secs(8)));
    assert_eq!(missed, Ok(()));
}

/// The clock of `late` shows ten minutes less, so its items lie before those that were done long
/// ago.
#[test]
fn what_is_enqueued_out_of_order_is_found() {
    let (machine, model) = world(5);
    let late = machine.process("late");
    late.set_wall_skew(-600_000);
    let [late, works] = [late, machine.process("works")].map(|process| queue(&model, &process));
    let runtime = machine.world().runtime();
    machine.run(async {
        for _ in 0..3 {
            works.enqueue("early").await.unwrap();
            next(&works).await.done().await.unwrap();
            runtime.sleep(secs(70)).await;
        }
        let id = late.enqueue("late").await.unwrap();
        let began = runtime.clock.now();
        assert_eq!(next(&works).await.id(), &id);
        assert!(runtime.clock.now().saturating_since(began) < secs(35));
    });
}

#[test]
fn a_look_costs_the_same_after_many_items() {
    let (machine, model) = world(6);
    let queue = queue(&model, &machine.process("worker"));
    machine.run(async {
        let mut costs = Vec::new();
        for number in 0..200_u64 {
            queue.enqueue("job").await.unwrap();
            let before = model.arrived();
            next(&queue).await.done().await.unwrap();
            costs.push((number, model.arrived() - before));
        }
        // The list, a page of one slot or two, eight for the bakery and the details, three deletes; each 30 s also the hours, and all
        // slots that are listed.
        let sum: usize = costs.iter().map(|(_, cost)| cost).sum();
        let all = costs.iter().all(|(_, cost)| (13..=18).contains(cost));
        assert!(all && sum < 200 * 14, "{sum}: {costs:?}");
        let before = queue.rows.now_us();
        machine.world().runtime().sleep(secs(120)).await;
        queue.scanner.free().await.unwrap();
        queue.enqueue("job").await.unwrap();
        queue.scanner.free().await.unwrap();
        assert!(queue.scanner.floor_us() > before, "what was done is not passed over again");
    });
}

#[test]
fn workers_that_meet_spread_over_the_next_items() {
    let (machine, model) = world(7);
    let workers: Vec<_> = (0..20).map(|_| queue(&model, &machine.process("worker"))).collect();
    let runtime = machine.world().runtime();
    machine.run(async {
        for number in 0..40 {
            workers[0].enqueue(format!("{number}")).await.unwrap();
        }
        let began = runtime.clock.now();
        let before = model.arrived();
        let had = futures_util::future::join_all(workers.iter().map(next)).await;
        let took = runtime.clock.now().saturating_since(began);
        let mut ids: Vec<_> = had.iter().map(WorkItem::id).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 20);
        let asked = (model.arrived() - before) / 20;
        println!("{took:?}, {asked} statements each");
        assert!(took < secs(6) && asked < 60, "{took:?}, {asked} statements each");
    });
}

#[test]
fn a_worker_that_loses_an_item_draws_from_more_and_one_that_has_an_item_from_fewer() {
    let (machine, model) = world(11);
    let queue = queue(&model, &machine.process("worker"));
    let ids: Vec<ItemId> =
        (0..4).map(|at_us| ItemId::draw(at_us, 0, &*machine.world().runtime().rng)).collect();
    let drawn = |random| queue.scanner.draw(&mut ids.clone(), random);
    let at = |random: usize| ids.get(random).cloned();
    assert_eq!([0, 1, 7].map(drawn), [at(0), at(0), at(0)]);
    queue.scanner.learn(false);
    assert_eq!([0, 1, 2].map(drawn), [at(0), at(1), at(0)]);
    queue.scanner.learn(false);
    assert_eq!([0, 1, 2, 3, 4].map(drawn), [at(0), at(1), at(2), at(3), at(0)]);
    queue.scanner.learn(true);
    assert_eq!([2, 3].map(drawn), [at(0), at(1)]);
    assert_eq!(queue.scanner.draw(&mut Vec::new(), 3), None);
}

#[test]
fn who_finds_nothing_looks_less_and_less_often() {
    let (machine, model) = world(8);
    let queue = queue(&model, &machine.process("worker"));
    machine.run(async {
        let before = model.arrived();
        assert!(queue.next(Wait::AtMost(secs(600))).await.unwrap().is_none());
        let asked = model.arrived() - before;
        // One read of a queue without slots, each 1 to 2 s, and one of its hours each 30 s.
        assert!((300..700).contains(&asked), "{asked}");
    });
}

#[test]
fn what_no_queue_can_take_is_refused_before_anything_is_sent() {
    let (machine, model) = world(9);
    let process = machine.process("worker");
    let queue = queue(&model, &process);
    let cassandra = cassandra(&model, &process);
    machine.run(async {
        let long = queue.enqueue("é".repeat(32_769)).await.unwrap_err();
        assert!(long.to_string().contains("65538 bytes is longer than the 65536"), "{long}");
        let options = LockerOptions::default();
        for name in ["", "a\nb"] {
            let made = WorkQueue::new(&cassandra, &options, WorkTables::default(), name);
            assert!(matches!(made, Err(Error::Refused { .. })), "{name:?}");
        }
        let short = options.ttl(secs(3)).max_skew(secs(2));
        let made = WorkQueue::new(&cassandra, &short, WorkTables::default(), "jobs");
        assert!(matches!(made, Err(Error::InvalidConfig { .. })));
        assert_eq!(model.arrived(), 0);
        let id = queue.enqueue("é".repeat(32_768)).await.unwrap();
        assert_eq!(next(&queue).await.id(), &id);
    });
}

#[test]
fn tables_that_do_not_answer_are_an_error_and_no_empty_queue() {
    let (machine, model) = world(10);
    let queue = queue(&model, &machine.process("worker"));
    machine.run(async {
        queue.enqueue("job").await.unwrap();
        model.set_odds(Odds { unavailable: 1_000, ..Odds::default() });
        for wait in [Wait::No, Wait::AtMost(secs(30))] {
            let asked = queue.next(wait).await;
            assert!(matches!(asked, Err(Error::Unreachable { .. })), "{asked:?}");
        }
        assert!(matches!(queue.list(1).await, Err(Error::Unreachable { .. })));
        assert!(matches!(queue.is_empty().await, Err(Error::Unreachable { .. })));
        assert!(matches!(queue.enqueue("job").await, Err(Error::OutcomeUnknown { .. })));
        model.set_odds(Odds::default());
        assert_eq!(next(&queue).await.payload(), "job");
    });
}

/// Workers that choose at the same moment, again and again: one gets the item within some looks, and
/// never two.
#[test]
fn of_many_workers_that_want_one_item_one_has_it() {
    for seed in 0..60 {
        let (machine, model) = world(seed);
        let workers: Vec<_> = (0..6).map(|_| queue(&model, &machine.process("worker"))).collect();
        let runtime = machine.world().runtime();
        machine.run(async {
            workers[0].enqueue("job").await.unwrap();
            let wanting = workers.iter().map(async |worker| {
                let delay = Rng::next_u64(&machine.world()) % 300;
                runtime.sleep(Duration::from_millis(delay)).await;
                worker.next(Wait::AtMost(secs(8))).await.unwrap()
            });
            let had = futures_util::future::join_all(wanting).await;
            let had: Vec<_> = had.into_iter().flatten().collect();
            assert_eq!(had.len(), 1, "seed {seed}: {had:?}");
        });
    }
}

/// During the removal of the item, and after it.
#[test]
fn an_item_that_is_being_removed_goes_to_no_worker() {
    for seed in 0..40 {
        let (machine, model) = world(seed);
        let [a, b] = ["a", "b"].map(|name| queue(&model, &machine.process(name)));
        machine.run(async {
            a.enqueue("job").await.unwrap();
            let item = next(&a).await;
            let (removed, had) = futures_util::join!(item.done(), b.next(Wait::AtMost(secs(20))));
            removed.unwrap();
            assert!(had.unwrap().is_none(), "seed {seed}");
        });
    }
}
