//! Each line that safety rests on, by what happens without it.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::join;

use super::*;
use crate::lock_task::{Attempt, Reached};
use crate::model::{Fate, Odds};

fn is_number(statement: &Statement) -> bool {
    statement.table.as_str() == "numbers" && matches!(statement.action, Action::Put { .. })
}

/// Whether the lock task would hand out a guard.
fn had(attempted: &Reached, bakery: &Bakery) -> bool {
    matches!(attempted, Reached::Hold { started }
        if bakery.base.timing.safe_until(*started) > bakery.base.now())
}

/// `a` stalls for two TTLs at any step. Meanwhile `old` has the lock with the number 2 and sees no
/// other client (number 1 was there before it, and left). The check does not rely on the lock task's
/// safe deadline.
#[test]
fn who_stalls_anywhere_on_its_way_is_not_in_beside_another() {
    for stalls_after_ms in (0..700).step_by(5) {
        let form = FORMS[usize::try_from(stalls_after_ms / 5 % 2).unwrap()];
        let (machine, model) = world(stalls_after_ms);
        let process = machine.process("a");
        let bakery = locker(&model, &process, form);
        let old = Old::new(&machine, &model, "old", form);
        let mut attempt = bakery.attempt("foo", Wait::Forever);
        let keeper = bakery.clone();
        let (told, mut answer) = tokio::sync::oneshot::channel();
        let attempting = async move {
            let attempted = attempt.advance().await;
            let _ = told.send(attempted.is_ok_and(|attempted| had(&attempted, &keeper)));
            std::mem::forget(attempt);
        };
        process.runtime().spawn("attempt", attempting).detach();
        let world = machine.world().runtime();
        machine.run(async {
            world.sleep(ms(stalls_after_ms)).await;
            process.pause();
            world.sleep(TTL * 2).await;
            assert!(numbers(&model).await.is_empty() && choosing(&model).await.is_empty());
            assert!(old.write_number(2).await, "old is in");
            let asked = model.arrived();
            process.resume();
            world.sleep(secs(5)).await;
            // It has the lock and sent no statement since: it had succeeded before it stalled.
            let asked_on = model.arrived() > asked;
            assert!(
                !(answer.try_recv().unwrap() && asked_on),
                "stalled after {stalls_after_ms} ms"
            );
        });
    }
}

/// The write of its number is under way for longer than its flag stands.
#[test]
fn a_number_that_is_acknowledged_after_the_flag_has_ended_counts_for_nothing() {
    for form in FORMS {
        let (machine, model) = world(1);
        let bakery = locker(&model, &machine.process("a"), form);
        let old = Old::new(&machine, &model, "old", form);
        let mut attempt = bakery.attempt("foo", Wait::Forever);
        model.choose(is_number, Fate::Slowly(TTL + secs(10)));
        machine.run(async {
            let other = async {
                old.runtime.sleep(TTL + secs(2)).await;
                assert!(choosing(&model).await.is_empty());
                assert!(old.write_number(2).await, "old is in");
            };
            let (attempted, ()) = join!(attempt.advance(), other);
            assert!(attempted.is_err(), "{form:?}: {attempted:?}");
            let again = attempt.advance().await.unwrap();
            assert!(matches!(&again, Reached::HeldBy { owner: Some(owner), .. } if owner == "old"));
            assert_eq!(numbers(&model).await.into_values().max(), Some(3), "drawn again");
        });
    }
}

/// `a` waits behind number 1, stalls, and its number ends. Number 1 leaves, and `old`, which drew 5
/// behind a client that is gone, has the lock.
#[test]
fn a_number_that_has_ended_while_its_owner_stalled_is_not_written_again() {
    for form in FORMS {
        let (machine, model) = world(1);
        let process = machine.process("a");
        let bakery = locker(&model, &process, form);
        let [before, old] = ["before", "old"].map(|id| Old::new(&machine, &model, id, form));
        let world = machine.world().runtime();
        machine.run(async {
            before.draw().await;
            let waiting = async {
                let guard = bakery.lock("foo").await.unwrap();
                (guard, world.clock.now())
            };
            let others = async {
                world.sleep(secs(4)).await;
                process.pause();
                world.sleep(TTL * 2).await;
                before.give_back().await;
                assert_eq!(numbers(&model).await, BTreeMap::new());
                assert!(old.write_number(5).await, "old is in");
                process.resume();
                world.sleep(secs(20)).await;
                assert_eq!(numbers(&model).await.into_values().max(), Some(6), "drawn again");
                old.give_back().await;
                world.clock.now()
            };
            let ((_guard, in_at), left) = join!(waiting, others);
            assert!(in_at >= left, "{form:?}: in beside old");
        });
    }
}

/// The same, but it is a renewal that is under way for so long, and the nodes are ahead of the first write's clock by the
/// full skew. By itself the renewal would be safe for some seconds more.
#[test]
fn a_number_whose_renewal_came_after_its_end_counts_for_nothing() {
    for form in FORMS {
        let (machine, model) = world(1);
        let bakery = locker(&model, &machine.process("a"), form);
        let [before, old] = ["before", "old"].map(|id| Old::new(&machine, &model, id, form));
        let world = machine.world().runtime();
        machine.run(async {
            before.draw().await;
            let waiting = async {
                let guard = bakery.lock("foo").await.unwrap();
                (guard, world.clock.now())
            };
            let others = async {
                world.sleep(secs(4)).await;
                model.choose(is_number, Fate::Slowly(secs(16)));
                let ahead = i64::try_from(SKEW.as_millis()).unwrap();
                (0..3).for_each(|node| model.set_skew(node, ahead));
                world.sleep(secs(17)).await;
                assert!(model.nothing_is_chosen(), "it is renewed, and that is on its way");
                before.give_back().await;
                assert_eq!(numbers(&model).await, BTreeMap::new());
                assert!(old.write_number(5).await, "old is in");
                world.sleep(secs(20)).await;
                assert_eq!(numbers(&model).await.into_values().max(), Some(6), "drawn again");
                old.give_back().await;
                world.clock.now()
            };
            let ((_guard, in_at), left) = join!(waiting, others);
            assert!(in_at >= left, "{form:?}: in beside old");
        });
    }
}

/// A foreign client, by whatever rule it compares: wiki line 13 lets it in at once.
#[test]
fn a_number_equal_to_a_strangers_is_drawn_again() {
    for (form, id) in FORMS.into_iter().zip(["17", "zz"]) {
        let (machine, model) = world(1);
        let bakery = locker(&model, &machine.process("a"), form);
        let old = Old::new(&machine, &model, id, form);
        let mut attempt = bakery.attempt("foo", Wait::Forever);
        machine.run(async {
            assert!(attempt.advance().await.is_ok_and(|attempted| had(&attempted, &bakery)));
            // As if both had drawn at the same time.
            assert!(old.write_number(1).await);
            let tied = attempt.advance().await.unwrap();
            assert!(
                matches!(&tied, Reached::HeldBy { owner: Some(owner), .. } if owner == id),
                "{tied:?}"
            );
            let behind = attempt.advance().await.unwrap();
            assert!(!had(&behind, &bakery), "{behind:?}");
            assert_eq!(numbers(&model).await.into_values().max(), Some(2));
            old.give_back().await;
            assert!(attempt.advance().await.is_ok_and(|attempted| had(&attempted, &bakery)));
        });
    }
}

/// The number was deleted by hand, or clocks are further apart than `max_skew`.
#[test]
fn who_finds_its_number_gone_draws_again() {
    let (machine, model) = world(1);
    let bakery = locker(&model, &machine.process("a"), BakeryForm::Wiki);
    let old = Old::new(&machine, &model, "old", BakeryForm::Wiki);
    let mut attempt = bakery.attempt("foo", Wait::Forever);
    machine.run(async {
        assert!(attempt.advance().await.is_ok_and(|attempted| had(&attempted, &bakery)));
        let (own, _) = numbers(&model).await.pop_first().unwrap();
        let erase = on_cell("numbers", &own, Action::Erase { at_us: i64::MAX / 2 });
        model.execute(erase).await.unwrap();
        assert!(old.write_number(5).await);
        let attempted = attempt.advance().await.unwrap();
        assert!(!had(&attempted, &bakery), "{attempted:?}");
    });
}

/// A client that comes while another's number is under way waits for it, whichever of the two ids is lower; also when
/// writes get lost or their outcome is unknown.
#[test]
fn of_several_clients_that_draw_at_once_one_is_in_at_a_time() {
    for seed in 0..300 {
        let form = FORMS[usize::try_from(seed % 2).unwrap()];
        let (machine, model) = world(seed);
        let inside = AtomicUsize::new(0);
        if seed % 3 > 0 {
            model.set_odds(Odds { request_lost: 300, answer_lost: 100, ..Odds::default() });
        }
        let come = async |name: &str, after_ms: u64| {
            let process = machine.process(name);
            process.runtime().sleep(ms(after_ms)).await;
            let bakery = locker(&model, &process, form);
            if let Ok(guard) = bakery.lock_within("foo", secs(60)).await {
                let others = inside.fetch_add(1, Ordering::Relaxed);
                assert!(others == 0 || !guard.is_safe(), "seed {seed}");
                process.runtime().sleep(secs(4)).await;
                inside.fetch_sub(1, Ordering::Relaxed);
                drop(guard);
            }
        };
        model.choose(is_number, Fate::Slowly(secs(3)));
        let (second, third) = (seed * 37 % 1_000, seed * 71 % 4_000);
        machine.run(async { join!(come("a", 0), come("b", second), come("c", third)) });
    }
}

/// The holder pauses, its clock does not: its number has ended, the next client has the lock, and
/// what the holder writes when it wakes leaves nothing.
#[test]
fn a_holder_that_wakes_too_late_is_lost_and_leaves_nothing_beside_the_next_one() {
    let (machine, model) = world(4);
    let (a, b) = (machine.process("a"), machine.process("b"));
    let [first, second] = [&a, &b].map(|process| locker(&model, process, BakeryForm::Wiki));
    let world = machine.world().runtime();
    machine.run(async {
        let held = first.lock("foo").await.unwrap();
        a.pause();
        let next = second.lock("foo").await.unwrap();
        assert!(!held.is_safe());
        a.resume();
        world.sleep(secs(1)).await;
        for _ in 0..100 {
            let there = numbers(&model).await;
            assert_eq!(there.len(), 1, "{there:?}");
        }
        assert!(next.is_safe());
    });
}
