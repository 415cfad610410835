//! Moves of processes and of the scope.

use super::*;
use crate::Error;
use crate::modes::MoveRefused;

#[test]
fn a_process_goes_all_the_way_and_back_when_the_scope_does() {
    let world = World::new(1);
    let a = world.machine.process("a");
    world.machine.run(async {
        let locker = world.locker(&a, LockerMode::Cassandra).await.unwrap();
        assert_eq!(world.rows().await, [("a".into(), LockerMode::Cassandra)]);
        let refused = locker.set_mode(LockerMode::Native).await.unwrap_err();
        assert!(refused.to_string().contains("is at cassandra, where no process may enter native"));
        assert_eq!(locker.mode(), Some(LockerMode::Both), "it stays where it had come to");
        world.move_to(Stage::Native).await;
        locker.set_mode(LockerMode::Native).await.unwrap();
        let held = locker.lock("jobs").await.unwrap();
        assert!(held.token().is_some() && is_free(&world.old(&a)).await);
        held.release().await.unwrap();

        locker.set_mode(LockerMode::Both).await.unwrap();
        world.move_to(Stage::Cassandra).await;
        let refused = locker.set_mode(LockerMode::Native).await.unwrap_err();
        assert!(matches!(refused, Error::Refused { .. }), "{refused}");
        locker.set_mode(LockerMode::Cassandra).await.unwrap();
        assert_eq!(world.rows().await, [("a".into(), LockerMode::Cassandra)]);
        drop(locker);
        world.sleep(secs(1)).await;
        assert_eq!(world.rows().await, [], "nothing is left of it");
    });
}

#[test]
fn a_scope_is_not_moved_past_a_process_that_would_be_left_behind_and_says_which() {
    let world = World::new(2);
    let [a, b] = ["a", "b"].map(|name| world.machine.process(name));
    world.machine.run(async {
        let first = world.locker(&a, LockerMode::Cassandra).await.unwrap();
        let second = world.locker(&b, LockerMode::Both).await.unwrap();
        let refused = world.scope().advance().await.unwrap_err();
        assert!(
            refused
                .to_string()
                .starts_with("scope \"\" stays at cassandra: 1 process is in the way: hf1:a@")
        );
        let MoveRefused::InTheWay { processes, .. } = refused else { panic!("{refused:?}") };
        assert_eq!(processes.iter().map(|one| one.service.as_str()).collect::<Vec<_>>(), ["a"]);

        drop(first);
        world.sleep(secs(1)).await;
        assert_eq!(world.scope().advance().await, Ok(Stage::Both));
        assert!(
            world.locker(&a, LockerMode::Cassandra).await.is_err(),
            "nobody enters it any more"
        );
        assert_eq!(world.scope().advance().await, Ok(Stage::Native));
        let refused = world.scope().advance().await.unwrap_err();
        assert!(matches!(refused, MoveRefused::InTheWay { stage: Stage::Native, .. }), "{refused}");

        second.set_mode(LockerMode::Native).await.unwrap();
        assert_eq!(world.scope().advance().await, Ok(Stage::Fallback));
        assert!(matches!(world.scope().advance().await, Err(MoveRefused::AtTheEnd { .. })));
        assert_eq!(world.scope().go_back().await, Ok(Stage::Native));
        let refused = world.scope().go_back().await.unwrap_err();
        assert!(matches!(refused, MoveRefused::InTheWay { stage: Stage::Native, .. }), "{refused}");
        second.set_mode(LockerMode::Both).await.unwrap();
        assert_eq!(world.scope().go_back().await, Ok(Stage::Both));
        assert_eq!(world.scope().go_back().await, Ok(Stage::Cassandra));
        assert!(matches!(world.scope().go_back().await, Err(MoveRefused::AtTheEnd { .. })));
    });
}

/// The guard stays as it was taken, and keeps the row at `cassandra`; new locks are taken in both stores.
#[test]
fn guards_stay_in_the_mode_they_were_taken_in_and_the_row_with_them() {
    let world = World::new(5);
    let a = world.machine.process("a");
    world.machine.run(async {
        let locker = world.locker(&a, LockerMode::Cassandra).await.unwrap();
        let held = locker.lock("jobs").await.unwrap();
        let changing = in_time(&a, secs(100), locker.set_mode(LockerMode::Both)).await;
        assert!(changing.is_none(), "not as long as the guard is there");
        assert!(held.is_safe() && held.token().is_none());
        assert_eq!(locker.mode(), Some(LockerMode::Both));
        let other = locker.lock("other").await.unwrap();
        assert!(other.token().is_some());
        assert_eq!(world.rows().await, [("a".into(), LockerMode::Cassandra)]);
        assert!(world.scope().advance().await.is_err());

        held.release().await.unwrap();
        locker.set_mode(LockerMode::Both).await.unwrap();
        assert_eq!(world.rows().await, [("a".into(), LockerMode::Both)]);
        assert!(other.is_safe());
    });
}

/// From `cassandra` to `native`: the process waits for every guard of the old mode, whatever its name; new locks are taken in
/// both stores meanwhile.
#[test]
fn a_process_does_not_lock_natively_while_it_holds_anything_in_cassandra() {
    let world = World::new(6);
    let a = world.machine.process("a");
    world.machine.run(async {
        let locker = world.locker(&a, LockerMode::Cassandra).await.unwrap();
        let held = locker.lock("jobs").await.unwrap();
        let stopper = held.cancellation_token();
        let moving = async {
            let refused = locker.set_mode(LockerMode::Native).await.unwrap_err();
            assert!(stopper.is_cancelled(), "the guard is gone before the row is changed");
            assert!(refused.to_string().contains("is at cassandra"), "{refused}");
        };
        let operating = async {
            world.sleep(secs(50)).await;
            assert!(world.scope().advance().await.is_err(), "the guard's row is in the way");
            let both = locker.lock_within("other", secs(5)).await.unwrap();
            assert!(both.token().is_some());
            assert!(!is_free(&world.old(&a)).await, "jobs is held in Cassandra");
            drop(held);
        };
        tokio::join!(moving, operating);
        assert_eq!(world.rows().await, [("a".into(), LockerMode::Both)]);
        world.move_to(Stage::Native).await;
        locker.set_mode(LockerMode::Native).await.unwrap();
    });
}

/// The change does not leave a waiter behind in the old mode, or wait for it: the waiter starts again in the new mode.
#[test]
fn who_waits_when_the_mode_changes_waits_on_in_the_new_mode() {
    let world = World::new(7);
    let [a, b] = ["a", "b"].map(|name| world.machine.process(name));
    world.machine.run(async {
        let locker = world.locker(&a, LockerMode::Cassandra).await.unwrap();
        let theirs = world.old(&b).lock("jobs").await.unwrap();
        let waiting = async { locker.lock("jobs").await.unwrap() };
        let changing = async {
            world.sleep(secs(5)).await;
            let changed = in_time(&a, secs(5), locker.set_mode(LockerMode::Both)).await;
            assert_eq!(changed, Some(Ok(())));
            theirs.release().await.unwrap();
        };
        let (guard, ()) = tokio::join!(waiting, changing);
        assert!(guard.token().is_some(), "the lock was held in both stores");
    });
}

/// The leases stand for minutes, the row for 30 s. A process that is paused for longer than its row is certain wakes with lost guards,
/// although no other client has the lock; and the scope has moved on without it.
#[test]
fn no_guard_outlives_the_row_that_covers_it() {
    let world = World::new(8);
    let a = world.machine.process("a");
    world.machine.run(async {
        let options = LockerOptions::default().ttl(secs(600)).max_skew(secs(10));
        let lease = Lease::new(&world.cassandra(&a), &options, LeaseTable::default()).unwrap();
        let locker = Locker::builder(&world.cassandra(&a), "", lease)
            .native_like(Arc::new(world.native.locker(&a)))
            .row(world.options(&a))
            .start(LockerMode::Cassandra)
            .await
            .unwrap();
        let held = locker.lock("jobs").await.unwrap();
        world.sleep(secs(100)).await;
        assert!(held.is_safe(), "its row is renewed");
        a.pause();
        let paused = world.machine.now();
        while world.scope().advance().await.is_err() {
            world.sleep(ms(500)).await;
        }
        assert!(!held.is_safe(), "the row is gone, and the guard was lost before");
        assert!(world.since(paused) > secs(15));
        assert_eq!(world.scope().advance().await, Ok(Stage::Native));
        a.resume();
        world.sleep(secs(5)).await;
        let refused = locker.lock_within("jobs", secs(5)).await.unwrap_err();
        assert!(refused.to_string().contains("is at native, where no process may enter cassandra"));
        drop(held);
        locker.set_mode(LockerMode::Native).await.unwrap();
        assert!(locker.lock("other").await.unwrap().is_safe());
    });
}

/// By the clock of the node that the operator asks, the row of a paused process has expired, and the scope moves on. By the clock of the
/// node that the process asks when it wakes, the row still exists. The process does not renew it.
#[test]
fn a_row_that_was_over_by_one_nodes_clock_does_not_come_back_by_anothers() {
    let world = World::new(17);
    let [a, b] = ["a", "b"].map(|name| world.machine.process(name));
    let set_clocks = |ahead: Duration| {
        let ahead = i64::try_from(ahead.as_millis()).unwrap();
        (0..3).for_each(|node| world.model.set_skew(node, ahead));
    };
    world.machine.run(async {
        let locker = world.locker(&a, LockerMode::Cassandra).await.unwrap();
        a.pause();
        set_clocks(world.skew);
        while world.scope().advance().await.is_err() {
            world.sleep(ms(500)).await;
        }
        assert_eq!(world.scope().advance().await, Ok(Stage::Native));
        let native = world.locker(&b, LockerMode::Native).await.unwrap();
        let held = native.lock("jobs").await.unwrap();
        set_clocks(Duration::ZERO);
        let there = world.rows().await;
        assert!(there.contains(&("a".into(), LockerMode::Cassandra)), "{there:?}");

        a.resume();
        let refused = locker.lock_within("jobs", secs(5)).await;
        assert!(held.is_safe());
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.contains("is at native, where no process may enter cassandra"),
            "{refused}"
        );
        locker.set_mode(LockerMode::Native).await.unwrap();
        assert!(locker.lock("other").await.unwrap().is_safe());
    });
}

#[test]
fn of_two_changes_the_later_one_counts_and_the_earlier_one_says_so() {
    let world = World::new(11);
    let a = world.machine.process("a");
    world.machine.run(async {
        let locker = world.locker(&a, LockerMode::Cassandra).await.unwrap();
        let held = locker.lock("jobs").await.unwrap();
        let first = locker.set_mode(LockerMode::Both);
        let second = async {
            world.sleep(secs(1)).await;
            locker.set_mode(LockerMode::Cassandra).await
        };
        let (first, second) = tokio::join!(first, second);
        assert!(first.unwrap_err().to_string().contains("another mode than both"));
        assert_eq!(second, Ok(()));
        assert_eq!(locker.mode(), Some(LockerMode::Cassandra));
        assert!(held.is_safe());
    });
}
