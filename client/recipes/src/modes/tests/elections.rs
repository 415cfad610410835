//! Elections and batches through lockers in every mode.

use std::collections::BTreeSet;

use super::*;
use crate::locker::Wait;
use crate::queue::{Queue, QueueTables};

const NAME: &str = "scheduler";

/// The value that an observer is told next.
async fn told(observer: &mut super::super::LockerObserver) -> Option<String> {
    observer.next().await.unwrap().and_then(|leader| leader.value)
}

/// A candidate in each mode leads after the one before has resigned, and observers of the modes that go together see it.
#[test]
fn one_candidate_leads_whichever_the_modes() {
    let world = World::new(1);
    world.machine.run(async {
        let [a, b, c] = ["a", "b", "c"].map(|name| world.machine.process(name));
        let first = world.locker(&a, LockerMode::Cassandra).await.unwrap();
        let second = world.locker(&b, LockerMode::Both).await.unwrap();
        let mut observer = second.observe(NAME);
        assert_eq!(told(&mut observer).await, None);
        let leads = first.campaign(NAME, "at a", Wait::Forever).await.unwrap();
        assert_eq!(told(&mut observer).await.as_deref(), Some("at a"));
        let early = second.campaign(NAME, "at b", Wait::AtMost(secs(5))).await;
        assert!(matches!(early, Err(crate::Error::NotGranted { .. })), "{early:?}");
        leads.set_value(Some("at a, port 2".into())).await.unwrap();
        assert_eq!(told(&mut observer).await.as_deref(), Some("at a, port 2"));
        let leader = first.leader(NAME).await.unwrap().unwrap();
        assert_eq!((leader.name.as_str(), leader.is_native), ("a", false));
        leads.resign().await.unwrap();

        first.set_mode(LockerMode::Both).await.unwrap();
        world.move_to(Stage::Native).await;
        let third = world.locker(&c, LockerMode::Native).await.unwrap();
        let leads = second.campaign(NAME, "at b", Wait::Forever).await.unwrap();
        assert!(leads.guard().is_safe());
        for locker in [&first, &third] {
            let leader = locker.leader(NAME).await.unwrap().unwrap();
            assert_eq!((leader.value.as_deref(), leader.is_native), (Some("at b"), true));
        }
        leads.set_value(Some("b speaks".into())).await.unwrap();
        let value = third.leader(NAME).await.unwrap().unwrap().value;
        assert_eq!(value.as_deref(), Some("b speaks"), "natively");
        let lease = world.old(&a);
        let row = lease.leader(NAME).await.unwrap().unwrap();
        assert_eq!(row.value.as_deref(), Some("b speaks"), "in Cassandra");
        let early = third.campaign(NAME, "at c", Wait::AtMost(secs(5))).await;
        assert!(matches!(early, Err(crate::Error::NotGranted { .. })), "{early:?}");
        leads.resign().await.unwrap();
        let leads = third.campaign(NAME, "at c", Wait::Forever).await.unwrap();
        // A candidate in `both` has the row in Cassandra while it waits: it does not lead.
        let waits = second.campaign(NAME, "at b", Wait::AtMost(secs(5)));
        let looks = async {
            world.sleep(secs(3)).await;
            assert!(lease.leader(NAME).await.unwrap().is_some());
            second.leader(NAME).await.unwrap().unwrap().value
        };
        let (waited, seen) = futures_util::join!(waits, looks);
        assert!(waited.is_err() && seen.as_deref() == Some("at c"), "{waited:?} {seen:?}");
        drop(leads);
    });
}

/// The leadership ends with either half.
#[test]
fn a_leader_in_both_stores_is_lost_with_either() {
    let world = World::new(2);
    world.machine.run(async {
        let process = world.machine.process("a");
        let locker = world.locker(&process, LockerMode::Both).await.unwrap();
        let leads = locker.campaign(NAME, "at a", Wait::Forever).await.unwrap();
        world.native.forget(NAME);
        let changed = async {
            leads.guard().lost().await;
            leads.set_value(Some("late".into())).await
        };
        let changed = in_time(&process, secs(30), changed).await;
        assert!(matches!(changed, Some(Err(crate::Error::Lost { .. }))), "{changed:?}");
    });
}

#[test]
fn what_keeps_no_value_has_no_elections() {
    let world = World::new(3);
    world.machine.run(async {
        let process = world.machine.process("a");
        let queue = Queue::new(
            &world.cassandra(&process),
            &world.options(&process),
            QueueTables::default(),
        );
        let locker = Locker::builder(&world.cassandra(&process), "q/", queue.unwrap())
            .native_like(Arc::new(world.native.locker(&process)))
            .row(world.options(&process))
            .start(LockerMode::Cassandra)
            .await
            .unwrap();
        let refused = locker.campaign("q/x", "v", Wait::No).await.unwrap_err();
        assert!(refused.to_string().contains("only the recipe lease keeps"), "{refused}");
        for outside in [
            locker.campaign("x", "v", Wait::No).await.map(drop),
            locker.leader("x").await.map(drop),
            locker.sequence("x").map(drop),
        ] {
            let said = outside.unwrap_err().to_string();
            assert!(said.contains("is not in the scope \"q/\""), "{said}");
        }
        let scope = ScopeModes::new(&world.cassandra(&process), "q/", ModesTable::default());
        let scope = scope.unwrap();
        locker.set_mode(LockerMode::Both).await.unwrap();
        scope.advance().await.unwrap();
        scope.advance().await.unwrap();
        locker.set_mode(LockerMode::Native).await.unwrap();
        let leads = locker.campaign("q/x", "v", Wait::No).await.unwrap();
        leads.resign().await.unwrap();
        scope.advance().await.unwrap();
        locker.set_mode(LockerMode::Fallback).await.unwrap();
        let refused = locker.campaign("q/x", "v", Wait::No).await.unwrap_err();
        assert!(refused.to_string().contains("in mode fallback"), "{refused}");
    });
}

/// Three processes in three modes work off the same names: each name is worked on once at a time, nobody waits for one while another is free, and in
/// the end each process had each of them.
#[test]
fn a_batch_works_first_on_what_is_free() {
    const NAMES: usize = 12;
    let world = World::new(4);
    let names: Vec<String> = (0..NAMES).map(|number| format!("sample {number}")).collect();
    world.machine.run(async {
        let processes = ["a", "b", "c"].map(|name| world.machine.process(name));
        let modes = [LockerMode::Cassandra, LockerMode::Both, LockerMode::Both];
        let in_work = Arc::new(std::sync::Mutex::new(BTreeSet::new()));
        let mut working = Vec::new();
        for (process, mode) in processes.iter().zip(modes) {
            let locker = world.locker(process, mode).await.unwrap();
            let (mut batch, in_work) = (locker.batch(names.clone()), in_work.clone());
            let runtime = process.runtime();
            let work = async move {
                let mut bunches = 0;
                while let Some(bunch) = batch.next().await.unwrap() {
                    let tokens = bunch.tokens().to_vec();
                    assert!(bunch.is_safe() && !tokens.is_empty());
                    for token in &tokens {
                        assert!(in_work.lock().unwrap().insert(token.clone()), "{token}");
                    }
                    runtime.sleep(secs(2)).await;
                    assert!(bunch.is_safe());
                    for token in &tokens {
                        in_work.lock().unwrap().remove(token);
                    }
                    bunch.release().await.unwrap();
                    bunches += 1;
                }
                bunches
            };
            working.push(task(process, work));
        }
        let mut bunches = Vec::new();
        for worked in working {
            bunches.push(worked.await);
        }
        println!("bunches: {bunches:?}");
        assert!(bunches.iter().all(|bunches| *bunches >= 1));
    });
}

#[test]
fn a_batch_that_does_not_wait_is_refused_when_nothing_is_free() {
    let world = World::new(5);
    world.machine.run(async {
        let [a, b] = ["a", "b"].map(|name| world.machine.process(name));
        let holds = world.locker(&a, LockerMode::Both).await.unwrap();
        let asks = world.locker(&b, LockerMode::Both).await.unwrap();
        let guards = [holds.lock("x").await.unwrap(), holds.lock("y").await.unwrap()];
        let mut batch = asks.batch(["x", "y"]);
        for wait in [Wait::No, Wait::NoAnsweredWithin(secs(5)), Wait::AtMost(secs(3))] {
            let refused = batch.next_with(wait).await.map(drop);
            let names = vec!["x".to_owned(), "y".to_owned()];
            assert!(
                matches!(&refused, Err(crate::Error::NotGranted { names: of, waited, .. })
                    if *of == names && waited.is_some() == (wait == Wait::AtMost(secs(3)))),
                "{wait:?}: {refused:?}"
            );
        }
        let [x, y] = guards;
        x.release().await.unwrap();
        let bunch = batch.next_with(Wait::AtMost(secs(30))).await.unwrap().unwrap();
        assert_eq!(bunch.tokens(), ["x"]);
        // Held together, lost together.
        world.native.forget("x");
        in_time(&b, secs(30), bunch.lost()).await.unwrap();
        drop(bunch);
        drop(y);
        assert_eq!(batch.left().collect::<Vec<_>>(), ["y"]);
    });
}
