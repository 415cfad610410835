//! One lock, few clients, one event after another.

use holdfast_mutants::{Mutant, while_armed};

use super::*;
use crate::locker::{RemoteLocker, Wait};
use crate::model::{Fate, Odds};
use crate::statement::Action;
use crate::{Error, LostReason};

/// Two processes on one model.
fn two(seed: u64) -> (Machine, Model, [Process; 2], [Lease; 2]) {
    let (machine, model) = world(seed);
    let processes = ["a", "b"].map(|name| machine.process(name));
    let [a, b] = &processes;
    let leases =
        [locker(&model, a, "a", secs(180), secs(60)), locker(&model, b, "b", secs(180), secs(60))];
    (machine, model, processes, leases)
}

#[test]
fn a_lock_is_held_by_one_and_by_the_next_after_its_release() {
    let (machine, _model, _processes, [a, b]) = two(1);
    machine.run(async {
        let held = a.lock("jobs").await.unwrap();
        assert!(b.try_lock("jobs").await.unwrap().is_none());
        assert!(b.try_lock("other").await.unwrap().is_some());
        assert_eq!((held.name(), held.owner()), ("jobs", "a"));
        assert_eq!(held.token(), None);

        held.release().await.unwrap();
        assert!(b.try_lock("jobs").await.unwrap().is_some());
    });
}

#[test]
fn a_wait_ends_at_its_limit_and_says_who_holds() {
    let (machine, _model, _processes, [a, b]) = two(1);
    let world = machine.world().runtime();
    machine.run(async {
        let _held = a.lock("jobs").await.unwrap();
        let began = world.clock.now();
        let error = b.lock_within("jobs", secs(7)).await.unwrap_err();

        assert_eq!(world.clock.now().saturating_since(began), secs(7));
        assert_eq!(error.to_string(), "jobs is not granted after 7.0 s: held by a");
    });
}

/// A dropped guard and an abandoned wait leave nothing behind.
#[test]
fn what_is_dropped_is_given_back() {
    let (machine, _model, _processes, [a, b]) = two(2);
    let world = machine.world().runtime();
    machine.run(async {
        drop(a.lock("jobs").await.unwrap());
        world.sleep(secs(1)).await;
        let held = b.try_lock("jobs").await.unwrap().unwrap();

        assert!(world.timeout(secs(5), a.lock("jobs")).await.is_err());
        drop(held);
        world.sleep(secs(5)).await;
        assert!(b.try_lock("jobs").await.unwrap().is_some());
    });
}

/// The caller gives up while its insert is under way: the lock task sees it applied, and undoes
/// it.
#[test]
fn an_acquire_dropped_with_its_insert_on_the_way_leaves_nothing() {
    for seed in 0..200 {
        let (machine, model, _processes, [a, b]) = two(seed);
        model.set_odds(Odds { answer_lost: 300, ..Odds::default() });
        let world = machine.world().runtime();
        machine.run(async {
            let wait = Duration::from_millis(seed % 90);
            let dropped = world.timeout(wait, a.lock("jobs")).await;
            drop(dropped);
            world.sleep(secs(20)).await;
            model.set_odds(Odds::default());
            world.sleep(secs(5)).await;
            assert!(b.try_lock("jobs").await.unwrap().is_some(), "seed {seed}");
        });
    }
}

#[test]
fn a_holder_holds_on_for_as_long_as_it_renews() {
    let (machine, _model, _processes, [a, b]) = two(1);
    let world = machine.world().runtime();
    machine.run(async {
        let held = a.lock("jobs").await.unwrap();
        for _ in 0..60 {
            world.sleep(secs(60)).await;
            assert!(held.is_safe());
            assert!(b.try_lock("jobs").await.unwrap().is_none());
        }
    });
}

/// The row ends after the TTL, by clocks that may differ by the skew.
#[test]
fn the_lock_of_a_holder_that_died_is_free_after_ttl_and_skew() {
    let (machine, model, [a, _], [lease, waiter]) = two(1);
    model.set_skew(0, -60_000);
    let world = machine.world().runtime();
    machine.run(async {
        let task = world.spawn("holder", async { drop(lease) });
        drop(task);
        let doomed = locker(&model, &a, "a", secs(180), secs(60));
        let held = doomed.lock("jobs").await.unwrap();
        a.kill();
        std::mem::forget(held);
        let began = world.clock.now();
        let _next = waiter.lock("jobs").await.unwrap();
        let took = world.clock.now().saturating_since(began);
        assert!(took > secs(100) && took <= secs(180 + 60 + 3), "{took:?}");
    });
}

/// A pause past the safe deadline: the guard is lost for ever, and the lock task deletes its row
/// at once.
#[test]
fn a_holder_that_slept_too_long_is_lost_and_does_not_come_back() {
    let (machine, _model, [a, _], [lease, other]) = two(1);
    let world = machine.world().runtime();
    machine.run(async {
        let held = lease.lock("jobs").await.unwrap();
        a.pause();
        world.sleep(secs(119)).await;
        assert!(!held.is_safe(), "a clock read says so although nobody was woken");
        a.resume();
        world.sleep(secs(2)).await;

        assert_eq!(held.lost().await, LostReason::DeadlinePassed);
        assert!(other.try_lock("jobs").await.unwrap().is_some(), "given back");
        let error = held.release().await.unwrap_err();
        assert_eq!(error, Error::Lost { reason: LostReason::DeadlinePassed });
    });
}

#[test]
fn a_store_that_does_not_answer_is_unreachable_within_the_limit() {
    let (machine, model, _processes, [a, _]) = two(1);
    test_support::is_unreachable_within_the_limit(&machine, &model, &a);
    machine.run(async {
        let error = a.acquire("jobs", Wait::AtMost(secs(3))).await.unwrap_err();
        assert!(error.to_string().contains("1 of 2 replicas alive"), "{error}");
    });
}

#[test]
fn an_observer_sees_a_leader_come_change_its_value_and_go() {
    let (machine, _model, _processes, [a, b]) = two(1);
    machine.run(async {
        let mut observer = b.observe("lead");
        assert_eq!(observer.next().await.unwrap(), None);
        let leading = a.campaign("lead", "one", Wait::Forever).await.unwrap();
        let leader = observer.next().await.unwrap().unwrap();
        assert_eq!((&*leader.name, leader.value.as_deref()), ("a", Some("one")));

        leading.set_value(Some("two".into())).await.unwrap();
        let leader = observer.next().await.unwrap().unwrap();
        assert_eq!(leader.value.as_deref(), Some("two"));
        leading.resign().await.unwrap();
        assert_eq!(observer.next().await.unwrap(), None);
    });
}

/// Lost answers leave numbers out; no number comes twice, and they grow from draw to draw.
#[test]
fn a_sequence_gives_no_number_twice() {
    let (machine, model, processes, [a, b]) = two(5);
    model.set_odds(Odds { answer_lost: 150, request_lost: 50, late: 100, ..Odds::default() });
    let drawn = std::sync::Mutex::new(Vec::new());
    machine.run(async {
        let draw = async |lease: &Lease, process: &Process| {
            for count in 1..=20 {
                let before = drawn.lock().unwrap().iter().copied().max().unwrap_or(0);
                if let Ok(numbers) = lease.sequence("orders").draw(count).await {
                    assert!(numbers.start > before, "{numbers:?} after {before}");
                    drawn.lock().unwrap().extend(numbers);
                }
                process.runtime().sleep(Duration::from_millis(300)).await;
            }
        };
        futures_util::join!(draw(&a, &processes[0]), draw(&b, &processes[1]));
    });
    let mut drawn = drawn.into_inner().unwrap();
    let number = drawn.len();
    drawn.sort_unstable();
    drawn.dedup();
    assert_eq!(drawn.len(), number, "a number came twice");
    assert!(number > 200, "only {number} numbers were drawn");
}

#[test]
fn a_ttl_below_three_times_the_skew_is_refused() {
    let (machine, model) = world(1);
    let cassandra = cassandra(&model, &machine.process("a"));
    let options = options("a", secs(100), secs(60));
    let refused = Lease::new(&cassandra, &options, LeaseTable::default());
    assert!(matches!(refused, Err(Error::InvalidConfig { .. })));
}

/// In Paxos v1 a coordinator may notice only at the commit of an accepted insert that replicas are missing. It then
/// answers "unavailable", and the insert is decided. A process that gives up then deletes what it may have left.
#[test]
fn an_insert_that_was_answered_unavailable_and_applied_leaves_no_row_behind() {
    let (machine, model, _processes, [a, b]) = two(9);
    let world = machine.world().runtime();
    machine.run(async {
        model.choose(
            |one| matches!(one.action, Action::InsertIfAbsent { .. }),
            Fate::Unavailable { applied: true },
        );
        let tried = a.acquire("jobs", Wait::NoAnsweredWithin(Duration::from_millis(90))).await;
        assert!(model.nothing_is_chosen());
        assert!(matches!(tried, Err(Error::Unreachable { .. })), "{tried:?}");
        world.sleep(secs(10)).await;
        let other = b.try_lock("jobs").await.unwrap();
        assert!(other.is_some(), "a row of nobody stands in the way until its TTL is over");
    });
}

#[test]
fn an_insert_that_is_taken_for_not_done_is_noticed() {
    let test = an_insert_that_was_answered_unavailable_and_applied_leaves_no_row_behind;
    let run = while_armed(Mutant::UnavailableIsNotDone, || std::panic::catch_unwind(test));
    assert!(run.is_err(), "nothing showed that the mutant was armed");
}
