//! Events between a read and the write that depends on it, and changes of the table by hand.

use super::*;
use crate::database::{Answer, Conditional};
use crate::model::Fate;
use crate::modes::MoveRefused;
use crate::modes::scope::Rows;
use crate::owner::Writer;
use crate::statement::{Action, Ident, Statement, Value};

/// A process enters `cassandra` after the operator looked and before the operator moves the scope: the next step finds
/// it.
#[test]
fn a_process_that_slips_in_before_the_first_step_is_found_at_the_second() {
    let world = World::new(3);
    let a = world.machine.process("a");
    world.machine.run(async {
        let seen = world.scope().view().await.unwrap();
        let _locker = world.locker(&a, LockerMode::Cassandra).await.unwrap();
        let rows = Rows::new(&world.cassandra(&a), "", ModesTable::default()).unwrap();
        assert_eq!(rows.change_stage(&seen, Stage::Both).await, Ok(true));
        let refused = world.scope().advance().await.unwrap_err();
        assert!(matches!(refused, MoveRefused::InTheWay { stage: Stage::Both, .. }), "{refused}");
    });
}

/// A process enters `fallback` after the operator looked and before the scope goes back to `native`: it stays in `fallback` and blocks
/// both later steps back. At `cassandra` nothing would exclude it and old clients from each other (modes 4, I24).
#[test]
fn a_process_that_slips_into_fallback_is_in_the_way_of_the_later_steps_back() {
    let world = World::new(5);
    let a = world.machine.process("a");
    world.machine.run(async {
        world.move_to(Stage::Fallback).await;
        let _locker = world.locker(&a, LockerMode::Native).await.unwrap();
        let seen = world.scope().view().await.unwrap();
        let rows = Rows::new(&world.cassandra(&a), "", ModesTable::default()).unwrap();
        says_fallback(&rows, &seen.processes[0].process).await;
        assert_eq!(rows.change_stage(&seen, Stage::Native).await, Ok(true));

        for (at, next) in [(Stage::Native, Stage::Both), (Stage::Both, Stage::Cassandra)] {
            let refused = world.scope().go_back().await.unwrap_err();
            assert!(
                matches!(refused, MoveRefused::InTheWay { stage, .. } if stage == at),
                "{refused}"
            );
            // An earlier version moves the scope all the same.
            let seen = world.scope().view().await.unwrap();
            assert_eq!(rows.change_stage(&seen, next).await, Ok(true));
        }
    });
}

/// Sets the row of `process` to `fallback`.
async fn says_fallback(rows: &Rows, process: &str) {
    let seq = rows.own(process).await.unwrap().1.unwrap().seq;
    let cells = vec![(Ident::new("mode"), Some(Value::from("fallback/2")))];
    let only_if = vec![(Ident::new("seq"), Some(Value::from(seq)))];
    let change = rows.row(process, Action::UpdateIf { cells, ttl_s: Some(30), only_if });
    let (_, answer) = rows.cassandra.tables().conditional(change).await;
    assert!(matches!(answer, Ok(Conditional::Applied)), "{answer:?}");
}

/// An operator looks at `both`, where no process is in the way, and is delayed. The scope goes back, a process enters
/// `cassandra`, and the scope comes to `both` once more. The operator's earlier decision no longer applies.
#[test]
fn what_was_decided_on_an_earlier_turn_of_the_scope_is_not_done_later() {
    let world = World::new(4);
    let a = world.machine.process("a");
    world.machine.run(async {
        world.move_to(Stage::Both).await;
        let seen = world.scope().view().await.unwrap();
        world.move_to(Stage::Cassandra).await;
        let before = world.scope().view().await.unwrap();
        let _locker = world.locker(&a, LockerMode::Cassandra).await.unwrap();
        let rows = Rows::new(&world.cassandra(&a), "", ModesTable::default()).unwrap();
        assert_eq!(rows.change_stage(&before, Stage::Both).await, Ok(true));

        assert_eq!(rows.change_stage(&seen, Stage::Native).await, Ok(false));
        assert!(world.scope().advance_from(&seen).await.is_err());
        assert!(world.scope().go_back_from(&seen).await.is_err());
        assert_eq!(world.scope().view().await.unwrap().stage, Stage::Both);
    });
}

/// An operator looked at the scope, with no process in the way, and others moved it since, to the stage that the
/// operator wanted, too. Whatever else the operator checked, it checked before those moves.
#[test]
fn a_scope_is_moved_only_from_where_it_was_seen() {
    let world = World::new(6);
    world.machine.run(async {
        let seen = world.scope().view().await.unwrap();
        world.move_to(Stage::Both).await;
        let at_both = world.scope().view().await.unwrap();
        world.move_to(Stage::Cassandra).await;

        let moved =
            [world.scope().advance_from(&at_both).await, world.scope().advance_from(&seen).await];
        assert!(moved.iter().all(Result::is_err), "{moved:?}");
        assert_eq!(world.scope().view().await.unwrap().stage, Stage::Cassandra);
        world.move_to(Stage::Both).await;
        let moved = world.scope().advance_from(&seen).await;
        assert!(moved.is_err(), "it is at both by another process' step: {moved:?}");
    });
}

/// The step is applied without an answer; the retry finds the scope already moved.
#[test]
fn a_step_that_was_done_without_an_answer_is_answered_as_done() {
    let world = World::new(7);
    world.machine.run(async {
        world.model.choose(|lwt| matches!(lwt.action, Action::UpdateIf { .. }), Fate::AnswerLost);
        assert_eq!(world.scope().advance().await, Ok(Stage::Both));
        assert!(world.model.nothing_is_chosen());
        assert_eq!(world.scope().view().await.unwrap().stage, Stage::Both, "one step");
    });
}

/// The process finds out what an unanswered write left in the row; a write that is applied late finds a newer row.
#[test]
fn a_write_that_is_applied_late_changes_nothing() {
    let world = World::new(9);
    let a = world.machine.process("a");
    world.machine.run(async {
        let locker = world.locker(&a, LockerMode::Cassandra).await.unwrap();
        let rows = Rows::new(&world.cassandra(&a), "", ModesTable::default()).unwrap();
        let process = world.scope().view().await.unwrap().processes[0].process.clone();
        let own = rows.own(&process).await.unwrap().1;
        let seq = own.unwrap().seq;
        // The locker renews it.
        world.sleep(secs(15)).await;
        let cells = vec![(Ident::new("mode"), Some(Value::from("both")))];
        let only_if = vec![(Ident::new("seq"), Some(Value::from(seq)))];
        let late = rows.row(&process, Action::UpdateIf { cells, ttl_s: Some(30), only_if });
        let (_, answer) = rows.cassandra.tables().conditional(late).await;
        assert!(matches!(answer, Ok(Conditional::NotApplied(_))), "{answer:?}");
        drop(locker);
    });
}

/// The row is deleted by hand: its guards are lost when the next renewal finds that, and the process enters again.
#[test]
fn a_row_that_was_taken_away_takes_its_guards_with_it() {
    let world = World::new(10);
    let a = world.machine.process("a");
    world.machine.run(async {
        let locker = world.locker(&a, LockerMode::Cassandra).await.unwrap();
        let held = locker.lock("jobs").await.unwrap();
        let process = world.scope().view().await.unwrap().processes[0].process.clone();
        let key = vec![
            (Ident::new("scope"), Value::from("*")),
            (Ident::new("process"), Value::from(process.as_str())),
        ];
        let action = Action::DeleteIf { only_if: Vec::new() };
        let delete = Statement::new(Ident::new("locker_modes"), key, action);
        assert_eq!(world.model.apply(&delete), Answer::Applied);
        assert!(in_time(&a, secs(15), held.lost()).await.is_some());
        drop(held);
        let again = locker.lock_within("jobs", secs(20)).await.unwrap();
        assert!(again.is_safe());
    });
}

/// A write of a row that gives it another mode.
fn is_change(statement: &Statement) -> bool {
    matches!(&statement.action, Action::UpdateIf { ttl_s: Some(_), only_if, .. }
        if only_if.iter().any(|(column, _)| column.as_str() == "stage"))
}

/// The stage admits the mode when the process reads it, and no longer when its write is decided.
#[test]
fn the_stage_is_asked_with_the_write_and_not_before_it() {
    for enters in [true, false] {
        let world = World::new(12);
        let a = world.machine.process("a");
        world.machine.run(async {
            let there =
                if enters { None } else { Some(world.locker(&a, LockerMode::Both).await.unwrap()) };
            world.model.choose(is_change, Fate::Slowly(secs(6)));
            let moving = async {
                match &there {
                    None => world.locker(&a, LockerMode::Cassandra).await.map(|_| ()),
                    Some(locker) => locker.set_mode(LockerMode::Cassandra).await,
                }
            };
            let operating = async {
                world.sleep(secs(2)).await;
                world.move_to(Stage::Native).await;
            };
            let (moved, ()) = tokio::join!(moving, operating);
            let refused = moved.unwrap_err().to_string();
            assert!(refused.contains("is at native, where no process may enter cassandra"));
            assert!(world.rows().await.iter().all(|(_, mode)| *mode == LockerMode::Both));
        });
    }
}

/// A change to `both` is applied long after it was reported as unknown; the process has gone back to `cassandra` meanwhile,
/// and holds there.
#[test]
fn a_change_that_is_applied_late_does_not_uncover_what_is_held_since() {
    let world = World::new(13);
    let a = world.machine.process("a");
    world.machine.run(async {
        let locker = world.locker(&a, LockerMode::Cassandra).await.unwrap();
        world.model.choose(is_change, Fate::Late(secs(6)));
        let there = locker.set_mode(LockerMode::Both);
        let back = async {
            world.sleep(secs(1)).await;
            locker.set_mode(LockerMode::Cassandra).await.unwrap();
            locker.lock_within("jobs", secs(3)).await.unwrap()
        };
        let (_, held) = tokio::join!(there, back);
        assert_eq!(held.token(), None, "held in Cassandra alone");
        for _ in 0..20 {
            world.sleep(ms(500)).await;
            assert_eq!(world.rows().await, [("a".into(), LockerMode::Cassandra)]);
        }
        assert!(held.is_safe());
    });
}

/// A change to `both` is under way and will be applied. A process that reverts it does not lock in `cassandra` before it knows
/// the outcome.
#[test]
fn while_a_change_has_no_answer_everything_is_locked_in_both() {
    let world = World::new(14);
    let a = world.machine.process("a");
    world.machine.run(async {
        let locker = world.locker(&a, LockerMode::Cassandra).await.unwrap();
        // One LWT at a time on a partition: the first native guard of the scope would wait for the slow one.
        world.scope().tie("lease model.leases", "c1").await.unwrap();
        locker.lock("other").await.unwrap().release().await.unwrap();
        world.model.choose(is_change, Fate::Slowly(secs(6)));
        let there = locker.set_mode(LockerMode::Both);
        let back = async {
            world.sleep(secs(1)).await;
            let back = locker.set_mode(LockerMode::Cassandra);
            let lock = locker.lock_within("jobs", secs(3));
            tokio::join!(back, lock)
        };
        let (_, (back, held)) = tokio::join!(there, back);
        assert!(held.unwrap().token().is_some());
        assert_eq!(back, Ok(()));
        assert_eq!(world.rows().await, [("a".into(), LockerMode::Cassandra)]);
    });
}

/// The process stalls anywhere on the way, for longer than the row is certain: a guard that is handed out in the end is
/// safe then.
#[test]
fn what_is_not_safe_any_more_is_not_handed_out() {
    for stalls_after_ms in (0..400).step_by(5) {
        let world = World::new(stalls_after_ms);
        let a = world.machine.process("a");
        let (runtime, here) = (a.runtime(), a.clone());
        let options = LockerOptions::default().ttl(secs(600)).max_skew(secs(10));
        let (said, mut heard) = tokio::sync::oneshot::channel();
        let lease = Lease::new(&world.cassandra(&a), &options, LeaseTable::default()).unwrap();
        let builder = Locker::builder(&world.cassandra(&a), "", lease).row(world.options(&here));
        let (ready, started) = tokio::sync::oneshot::channel();
        let acquiring = async move {
            let locker = builder.start(LockerMode::Cassandra).await.unwrap();
            let _ = ready.send(());
            let held = locker.lock("jobs").await.unwrap();
            let _ = said.send(held.is_safe());
            std::future::pending::<()>().await;
        };
        runtime.spawn("acquiring", acquiring).detach();
        world.machine.run(async {
            started.await.unwrap();
            world.sleep(ms(stalls_after_ms)).await;
            a.pause();
            world.sleep(secs(60)).await;
            a.resume();
            world.sleep(secs(60)).await;
            assert_eq!(heard.try_recv(), Ok(true), "stalled after {stalls_after_ms} ms");
        });
    }
}

/// The row is changed by hand. A guard that the row does not cover any more is lost.
#[test]
fn a_row_that_says_too_little_takes_its_guards_with_it() {
    let world = World::new(15);
    let a = world.machine.process("a");
    world.machine.run(async {
        let locker = world.locker(&a, LockerMode::Cassandra).await.unwrap();
        let held = locker.lock("jobs").await.unwrap();
        let process = world.scope().view().await.unwrap().processes[0].process.clone();
        let rows = Rows::new(&world.cassandra(&a), "", ModesTable::default()).unwrap();
        let own = rows.own(&process).await.unwrap().1;
        let cells = vec![
            (Ident::new("mode"), Some(Value::from("both"))),
            (Ident::new("seq"), Some(Value::from(own.unwrap().seq + 1_000))),
        ];
        let action = Action::UpdateIf { cells, ttl_s: Some(30), only_if: Vec::new() };
        assert_eq!(world.model.apply(&rows.row(&process, action)), Answer::Applied);
        assert!(in_time(&a, secs(15), held.lost()).await.is_some());
    });
}

/// By that a rollback knows which row is the other half of a native hold.
#[test]
fn a_hold_in_both_stores_says_natively_which_row_it_has_unless_the_servers_know_no_notes() {
    let world = World::new(7);
    let a = world.machine.process("a");
    world.machine.run(async {
        let locker = world.locker(&a, LockerMode::Both).await.unwrap();
        let process = world.scope().view().await.unwrap().processes.remove(0);
        let hold = async || {
            locker.lock("x").await.unwrap().release().await.unwrap();
            world.native.notes()
        };
        let notes = hold().await;
        let [Some(note)] = &notes[..] else { panic!("{notes:?}") };
        assert_eq!(Writer::of_note(note), process.writer);
        assert!(process.writer.is_some());
        world.native.set_older(true);
        assert_eq!(hold().await, [None]);
        world.native.set_older(false);
        world.move_to(Stage::Native).await;
        locker.set_mode(LockerMode::Native).await.unwrap();
        assert_eq!(hold().await, [None], "it has no row");
    });
}
