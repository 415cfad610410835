//! Many tasks of one process at one lock (B9).

use std::sync::Mutex;

use futures_util::future::join_all;

use super::*;
use crate::locker::RemoteLocker;

/// A lock of one process, and others of the same process that wait for it.
const WAITERS: usize = 50;

/// Before, a renewal stood behind the look of every waiter, each of which takes two seconds: longer than the hold was certain.
#[test]
fn a_hold_outlives_fifty_waiters_of_its_process_while_every_lwt_takes_two_seconds() {
    let (machine, model) = world(21);
    let process = machine.process("a");
    let lease = locker(&model, &process, "a", secs(180), secs(60));
    let world = machine.world().runtime();
    machine.run(async {
        let held = lease.lock("jobs").await.unwrap();
        model.set_brown_out(secs(2));
        let waiters = join_all((0..WAITERS).map(|_| lease.lock_within("jobs", secs(600))));
        let holding = async {
            for _ in 0..590 {
                world.sleep(secs(1)).await;
                assert!(held.is_safe(), "{:?}", held.state());
            }
            drop(held);
        };
        let ((), waited) = futures_util::join!(holding, waiters);
        // The first of them has it, with all that it takes: the delete, a look, an insert.
        assert_eq!(waited.iter().filter(|waited| waited.is_ok()).count(), 1);
    });
}

#[test]
fn fifty_waiters_of_one_process_ask_as_often_as_one() {
    let asked_by = |waiters: usize| {
        let (machine, model) = world(22);
        let [a, b] = ["a", "b"].map(|name| machine.process(name));
        let [holder, waiter] =
            [(&a, "a"), (&b, "b")].map(|(of, name)| locker(&model, of, name, secs(180), secs(60)));
        machine.run(async {
            let _held = holder.lock("jobs").await.unwrap();
            join_all((0..waiters).map(|_| waiter.lock_within("jobs", secs(120)))).await;
        });
        waiter.base.cassandra.statements().sent
    };
    let (one, fifty) = (asked_by(1), asked_by(WAITERS));
    // After its time each of them asks once, at most.
    let once_each = u64::try_from(WAITERS).unwrap();
    assert!(fifty <= 2 * one + once_each, "{fifty} statements, and {one} of one waiter");
}

#[test]
fn waiters_of_one_process_come_in_order_and_each_as_soon_as_the_one_before_gives_back() {
    let (machine, model) = world(23);
    let process = machine.process("a");
    let lease = locker(&model, &process, "a", secs(180), secs(60));
    let world = machine.world().runtime();
    let order = Mutex::new(Vec::new());
    machine.run(async {
        let held = lease.lock("jobs").await.unwrap();
        let wait = async |number: u64| {
            world.sleep(Duration::from_millis(number)).await;
            let guard = lease.lock("jobs").await.unwrap();
            order.lock().unwrap().push(number);
            guard.release().await.unwrap();
        };
        let waiters = join_all((0..10).map(wait));
        let releasing = async {
            world.sleep(secs(30)).await;
            held.release().await.unwrap();
            world.clock.now()
        };
        let (released, _) = futures_util::join!(releasing, waiters);
        // A look, an insert and a delete each, of up to 80 ms; a poll of up to two seconds would show.
        let took = world.clock.now().saturating_since(released);
        assert!(took < 10 * Duration::from_millis(300), "{took:?}");
    });
    assert_eq!(order.into_inner().unwrap(), (0..10).collect::<Vec<_>>());
}

/// The row is free between two holders of one process, and a waiter of another one looks every two seconds at least.
#[test]
fn a_process_whose_tasks_hand_over_to_each_other_keeps_no_other_one_out_for_ever() {
    for seed in 0..20 {
        let (machine, model) = world(seed);
        let [a, b] = ["a", "b"].map(|name| machine.process(name));
        let [many, one] =
            [(&a, "a"), (&b, "b")].map(|(of, name)| locker(&model, of, name, secs(180), secs(60)));
        let world = machine.world().runtime();
        machine.run(async {
            let done = tokio_util::sync::CancellationToken::new();
            let busy = join_all((0..5).map(|_| async {
                while !done.is_cancelled() {
                    let guard = many.lock("jobs").await.unwrap();
                    world.sleep(Duration::from_millis(100)).await;
                    guard.release().await.unwrap();
                }
            }));
            let other = async {
                world.sleep(secs(1)).await;
                let guard = one.lock_within("jobs", secs(300)).await;
                done.cancel();
                drop(guard.unwrap());
            };
            futures_util::join!(busy, other);
        });
    }
}

#[test]
fn a_waiter_behind_others_of_its_process_is_told_who_holds() {
    let (machine, model) = world(24);
    let [a, b] = ["a", "b"].map(|name| machine.process(name));
    let [holder, waiter] =
        [(&a, "a"), (&b, "b")].map(|(of, name)| locker(&model, of, name, secs(180), secs(60)));
    machine.run(async {
        let _held = holder.lock("jobs").await.unwrap();
        let wait = |limit| waiter.lock_within("jobs", secs(limit));
        let (first, second) = futures_util::join!(wait(9), wait(7));
        for (waited, seconds) in [(first, 9), (second, 7)] {
            let error = waited.unwrap_err().to_string();
            assert_eq!(error, format!("jobs is not granted after {seconds}.0 s: held by a"));
        }
    });
}

/// B19. Waiters and observers look at QUORUM: while Paxos is slow they take nothing of it.
#[test]
fn waiters_and_observers_take_part_in_no_round_of_paxos() {
    let (machine, model) = world(25);
    let [a, b] = ["a", "b"].map(|name| machine.process(name));
    let [holder, waiter] =
        [(&a, "a"), (&b, "b")].map(|(of, name)| locker(&model, of, name, secs(180), secs(60)));
    let world = machine.world().runtime();
    machine.run(async {
        let held = holder.campaign("jobs", "here", crate::Wait::No).await.unwrap();
        let mut observer = waiter.observe("jobs");
        assert_eq!(observer.next().await.unwrap().unwrap().value.as_deref(), Some("here"));
        let _ = waiter.try_lock("jobs").await.unwrap();
        let serial: crate::model::Which =
            |one| matches!(one.action, crate::statement::Action::SelectSerial { .. });
        model.choose(serial, crate::model::Fate::Answered);
        let waiting = waiter.lock_within("jobs", secs(60));
        let observing = world.timeout(secs(60), observer.next());
        let (granted, changed) = futures_util::join!(waiting, observing);
        assert!(granted.is_err() && changed.is_err());
        assert!(!model.nothing_is_chosen(), "a look was a round of Paxos");
        assert!(held.guard().is_safe());
    });
}
