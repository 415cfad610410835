//! One lock in both stores.

use super::*;
use crate::locker::Wait;
use crate::model::Odds;
use crate::statement::{Action, Ident, Statement, Value};
use crate::{Error, LostReason};

/// Whether an old client, and a native one, could get the lock.
async fn others(world: &World, process: &Process) -> [bool; 2] {
    let native = world.native.locker(process);
    [is_free(&world.old(process)).await, is_free(&native).await]
}

#[test]
fn a_lock_in_both_is_kept_from_either_side_under_the_native_token_and_given_back_on_both() {
    let world = World::new(1);
    let [a, b] = ["a", "b"].map(|name| world.machine.process(name));
    world.machine.run(async {
        let both = world.locker(&a, LockerMode::Both).await.unwrap();
        let held = both.lock("jobs").await.unwrap();
        assert_eq!((held.name(), held.owner()), ("jobs", "a"));
        assert!(held.is_safe() && held.token().is_some());
        assert_eq!(held.ttl(), secs(10), "the shorter of the two");
        assert_eq!(others(&world, &b).await, [false, false]);
        world.sleep(secs(200)).await;
        assert!(held.is_safe(), "renewed on both sides, and its row with them");
        held.release().await.unwrap();
        assert_eq!(others(&world, &b).await, [true, true]);
    });
}

/// First in Cassandra: a process that waits for an old client holds nothing natively meanwhile. Then natively: a
/// process that does not get the native lock gives the first one back.
#[test]
fn the_first_is_held_before_the_second_is_asked_for_and_given_back_if_the_second_is_not_granted() {
    let world = World::new(2);
    let [a, b, c] = ["a", "b", "c"].map(|name| world.machine.process(name));
    world.machine.run(async {
        let both = world.locker(&a, LockerMode::Both).await.unwrap();
        let (old, native) = (world.old(&b), world.native.locker(&c));
        let held = old.lock("jobs").await.unwrap();
        let began = world.machine.now();
        let refused = both.lock_within("jobs", secs(7)).await;
        assert!(matches!(refused, Err(Error::NotGranted { .. })), "{refused:?}");
        assert_eq!(world.since(began).as_secs(), 7);
        assert!(!world.native.is_held("jobs"));
        held.release().await.unwrap();

        let held = native.lock("jobs").await.unwrap();
        assert!(both.try_lock("jobs").await.unwrap().is_none());
        let began = world.machine.now();
        let refused = both.lock_within("jobs", secs(40)).await;
        assert!(matches!(refused, Err(Error::NotGranted { .. })), "{refused:?}");
        assert_eq!(world.since(began).as_secs(), 40, "one limit for both");
        world.sleep(secs(1)).await;
        assert!(is_free(&old).await, "the first half was given back");
        held.release().await.unwrap();
    });
}

/// In reverse order: old clients stay excluded until the native store has answered.
#[test]
fn the_native_half_is_given_back_before_the_other() {
    let world = World::new(12);
    let [a, b] = ["a", "b"].map(|name| world.machine.process(name));
    world.machine.run(async {
        let both = world.locker(&a, LockerMode::Both).await.unwrap();
        let old = world.old(&b);
        let held = both.lock("jobs").await.unwrap();
        world.native.set_down(true);
        let looking = async {
            world.sleep(secs(3)).await;
            assert!(!is_free(&old).await, "nothing was heard of the native half yet");
        };
        let (released, ()) = tokio::join!(held.release(), looking);
        assert!(matches!(released, Err(Error::OutcomeUnknown { .. })), "{released:?}");
        assert!(is_free(&old).await);
    });
}

/// Wherever the future is dropped, nothing is left in either store.
#[test]
fn an_acquire_that_is_given_up_leaves_nothing_in_either_store() {
    for after_ms in (0..1_500).step_by(30) {
        let world = World::new(after_ms);
        let [a, b] = ["a", "b"].map(|name| world.machine.process(name));
        world.machine.run(async {
            let both = world.locker(&a, LockerMode::Both).await.unwrap();
            let runtime = a.runtime();
            let acquiring = both.lock("jobs");
            drop(runtime.timeout(Duration::from_millis(after_ms), acquiring).await);
            world.sleep(secs(2)).await;
            assert_eq!(others(&world, &b).await, [true, true], "given up after {after_ms} ms");
        });
    }
}

/// While the process waits for the native half, it holds the other and renews it: an old client never gets in between.
#[test]
fn the_first_half_is_kept_for_as_long_as_the_second_is_waited_for() {
    let world = World::new(3);
    let [a, b, c] = ["a", "b", "c"].map(|name| world.machine.process(name));
    world.machine.run(async {
        let both = world.locker(&a, LockerMode::Both).await.unwrap();
        let (old, native) = (world.old(&b), world.native.locker(&c));
        let held = native.lock("jobs").await.unwrap();
        let waiting = both.lock("jobs");
        let releasing = async {
            world.sleep(secs(100)).await;
            assert!(!is_free(&old).await, "three TTLs later");
            held.release().await.unwrap();
        };
        let (guard, ()) = tokio::join!(waiting, releasing);
        assert!(guard.unwrap().is_safe());
    });
}

/// Cassandra does not answer for longer than the first half is certain, and the second half comes only then: together they
/// are no lock, and the process requests both again.
#[test]
fn a_first_half_that_is_lost_before_the_second_came_is_asked_for_again() {
    let world = World::new(4);
    let [a, b, c] = ["a", "b", "c"].map(|name| world.machine.process(name));
    world.machine.run(async {
        let both = world.locker(&a, LockerMode::Both).await.unwrap();
        let native = world.native.locker(&c);
        let held = native.lock("jobs").await.unwrap();
        let waiting = both.lock("jobs");
        let troubling = async {
            world.sleep(secs(5)).await;
            world.model.set_odds(Odds { request_lost: 1_000, ..Odds::default() });
            world.sleep(secs(40)).await;
            world.model.set_odds(Odds::default());
            // The row in Cassandra has expired: an old client has the lock now.
            let old = world.old(&b);
            let theirs = old.lock_within("jobs", secs(20)).await.unwrap();
            held.release().await.unwrap();
            for _ in 0..20 {
                assert!(theirs.is_safe());
                world.sleep(secs(1)).await;
            }
            let until = world.machine.now();
            theirs.release().await.unwrap();
            until
        };
        let (guard, released) = tokio::join!(
            async {
                let guard = waiting.await.unwrap();
                (guard, world.machine.now())
            },
            troubling
        );
        assert!(guard.0.is_safe() && guard.1 >= released, "before the old client was done");
    });
}

/// The process retries as soon as the first half is lost, not only when the second comes: it never waits natively
/// without the first.
#[test]
fn a_first_half_that_is_lost_is_acquired_again_while_the_second_is_still_waited_for() {
    let world = World::new(13);
    let [a, b, c] = ["a", "b", "c"].map(|name| world.machine.process(name));
    world.machine.run(async {
        // Its row stands for longer than the lease.
        let locker = Locker::builder(&world.cassandra(&a), "", world.old(&a))
            .native_like(Arc::new(world.native.locker(&a)))
            .row(LockerOptions::default().ttl(secs(600)).max_skew(secs(10)))
            .start(LockerMode::Both)
            .await
            .unwrap();
        let held = world.native.locker(&c).lock("jobs").await.unwrap();
        let waiting = locker.lock("jobs");
        let troubling = async {
            world.sleep(secs(5)).await;
            world.model.set_odds(Odds { request_lost: 1_000, ..Odds::default() });
            world.sleep(secs(60)).await;
            world.model.set_odds(Odds::default());
            world.sleep(secs(15)).await;
            assert!(!is_free(&world.old(&b)).await);
            held.release().await.unwrap();
        };
        let (guard, ()) = tokio::join!(waiting, troubling);
        assert!(guard.unwrap().is_safe());
    });
}

/// Either half; and `is_safe` shows it at once.
#[test]
fn a_lock_in_both_is_lost_with_either_half() {
    for lose_native in [true, false] {
        let world = World::new(5);
        let [a, b] = ["a", "b"].map(|name| world.machine.process(name));
        world.machine.run(async {
            let both = world.locker(&a, LockerMode::Both).await.unwrap();
            let held = both.lock("jobs").await.unwrap();
            if lose_native {
                world.native.forget("jobs");
            } else {
                let key = vec![(Ident::new("name"), Value::from("jobs"))];
                let action = Action::DeleteIf { only_if: Vec::new() };
                let gone = Statement::new(Ident::new("leases"), key, action);
                world.model.apply(&gone);
            }
            let reason = held.lost().await;
            let expected =
                if lose_native { LostReason::SessionExpired } else { LostReason::Revoked };
            assert_eq!(reason, expected);
            assert!(!held.is_safe());
            assert_eq!(held.release().await, Err(Error::Lost { reason: expected }));
            world.sleep(secs(1)).await;
            assert_eq!(others(&world, &b).await, [true, true], "the other half was given back");
        });
    }
}

#[test]
fn without_a_native_store_there_is_one_mode_and_outside_of_the_scope_no_lock() {
    let world = World::new(6);
    let a = world.machine.process("a");
    world.machine.run(async {
        let builder = || {
            Locker::builder(&world.cassandra(&a), "orders/", world.old(&a)).row(world.options(&a))
        };
        for mode in [LockerMode::Both, LockerMode::Native] {
            let refused = builder().start(mode).await.unwrap_err();
            assert!(matches!(refused, Error::InvalidConfig { .. }), "{refused}");
        }
        let locker = builder().start(LockerMode::Cassandra).await.unwrap();
        let refused = locker.set_mode(LockerMode::Both).await.unwrap_err();
        assert!(refused.to_string().contains("needs a native client"), "{refused}");
        let refused = locker.lock("jobs").await.unwrap_err();
        assert!(refused.to_string().contains("is not in the scope \"orders/\""), "{refused}");
        let held = locker.acquire("orders/7", Wait::No).await.unwrap();
        assert_eq!(held.token(), None);
    });
}
