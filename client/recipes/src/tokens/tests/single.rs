//! One lock, one holder, one waiter.

use holdfast_mutants::{Mutant, while_armed};

use super::*;
use crate::lock_task::{Attempt as _, Reached};
use crate::locker::Wait;
use crate::model::{Fate, Odds};
use crate::tokens::rows::TokenRows;
use crate::{Error, LostReason};

/// Two processes, each with a locker, and a third that runs a housekeeper.
fn two(seed: u64) -> (Machine, Model, [Process; 3], [Tokens; 2]) {
    let (machine, model) = world(seed);
    let processes = ["a", "b", "housekeeper"].map(|name| machine.process(name));
    keep_house(&model, &processes[2], GRACE);
    let lockers = [usual(&model, &processes[0]), usual(&model, &processes[1])];
    (machine, model, processes, lockers)
}

#[test]
fn a_token_is_held_by_one_and_given_back_without_a_trace() {
    let (machine, model, _processes, [a, b]) = two(1);
    machine.run(async {
        let held = a.lock("jobs").await.unwrap();
        assert_eq!((held.name(), held.owner()), ("jobs", "a"));
        assert_eq!((held.token(), held.ttl()), (None, GRACE));
        assert!(b.try_lock("jobs").await.unwrap().is_none());
        assert_eq!(sessions(&model), 1, "who found it held left no session");

        let error = b.lock_within("jobs", secs(7)).await.unwrap_err();
        assert_eq!(error.to_string(), "jobs is not granted after 7.0 s: held by a");
        held.release().await.unwrap();
        assert_eq!((session_of(&model, "jobs"), sessions(&model)), (None, 0));
        assert!(b.try_lock("jobs").await.unwrap().is_some());
    });
}

/// A housekeeper sweeps all the time.
#[test]
fn a_holder_holds_on_for_as_long_as_it_beats_and_its_session_lists_the_token() {
    let (machine, model, _processes, [a, b]) = two(1);
    let world = machine.world().runtime();
    machine.run(async {
        let held = a.lock("jobs").await.unwrap();
        for _ in 0..60 {
            world.sleep(secs(60)).await;
            assert!(held.is_safe());
            assert!(b.try_lock("jobs").await.unwrap().is_none());
        }
        let session = session_of(&model, "jobs").unwrap();
        let listed = row_of(&model, &session).unwrap().0.remove("tokens").unwrap();
        assert_eq!(listed.value, Value::Texts(vec!["jobs".into()]));
    });
}

/// Only the housekeeper frees it: nothing here has a TTL.
#[test]
fn the_token_of_a_holder_that_died_is_free_after_the_grace_and_not_without_a_housekeeper() {
    let (machine, model, [a, _, housekeeper], [_, waiter]) = two(1);
    let world = machine.world().runtime();
    machine.run(async {
        let doomed = usual(&model, &a);
        std::mem::forget(doomed.lock("jobs").await.unwrap());
        a.kill();
        let began = world.clock.now();
        let next = waiter.lock("jobs").await.unwrap();
        let took = world.clock.now().saturating_since(began);
        assert!(took > secs(100) && took < GRACE + GRACE / 6 + secs(10), "{took:?}");
        next.release().await.unwrap();
        assert_eq!(sessions(&model), 0);

        housekeeper.kill();
        let other = machine.process("c");
        std::mem::forget(usual(&model, &other).lock("jobs").await.unwrap());
        other.kill();
        assert!(waiter.lock_within("jobs", secs(10_000)).await.is_err());
    });
}

/// Most answers are lost, whatever was done: a read of the rows shows what became of the
/// statements.
#[test]
fn what_was_applied_without_an_answer_is_found_by_a_read_and_held() {
    let mut unseen = 0;
    for seed in 0..20 {
        let (machine, model, _processes, [a, _]) = two(seed);
        let world = machine.world().runtime();
        machine.run(async {
            model.set_odds(Odds { answer_lost: 600, ..Odds::default() });
            let getting = a.lock("foo");
            let healing = async {
                world.sleep(secs(30)).await;
                model.set_odds(Odds::default());
                world.clock.now()
            };
            let (guard, healed) = futures_util::join!(getting, healing);
            let guard = guard.unwrap();

            assert!(world.clock.now().saturating_since(healed) < secs(8), "not a grace later");
            assert!(guard.is_safe(), "seed {seed}");
            guard.release().await.unwrap();
            assert_eq!((session_of(&model, "foo"), sessions(&model)), (None, 0), "seed {seed}");
        });
        unseen += model.unknown_but_applied();
    }
    assert!(unseen > 20, "{unseen}");
}

/// The insert had no answer, and then too few replicas live for a look: the caller gives up, and leaves nothing behind.
#[test]
fn an_insert_without_an_answer_that_cannot_be_read_leaves_no_token_behind() {
    for seed in 0..20 {
        let (machine, model, _processes, [a, _]) = two(seed);
        let world = machine.world().runtime();
        machine.run(async {
            let insert = |one: &Statement| {
                let of_token = one.table == Ident::new("tokens");
                of_token && matches!(one.action, Action::InsertIfAbsent { .. })
            };
            model.choose(insert, Fate::AnswerLost);
            let trying = a.lock_within("jobs", secs(6));
            let failing = async {
                while !model.nothing_is_chosen() {
                    world.sleep(Duration::from_millis(1)).await;
                }
                model.set_odds(Odds { unavailable: 1_000, ..Odds::default() });
                world.sleep(secs(10)).await;
                model.set_odds(Odds::default());
            };
            let (tried, ()) = futures_util::join!(trying, failing);
            assert!(tried.is_err(), "seed {seed}");
            world.sleep(secs(20)).await;
            assert_eq!((session_of(&model, "jobs"), sessions(&model)), (None, 0), "seed {seed}");
        });
    }
}

#[test]
fn an_insert_that_is_forgotten_because_it_could_not_be_read_is_noticed() {
    let test = an_insert_without_an_answer_that_cannot_be_read_leaves_no_token_behind;
    let run = while_armed(Mutant::UnreadInsertForgotten, || std::panic::catch_unwind(test));
    assert!(run.is_err(), "nothing showed that the mutant was armed");
}

/// Half of all beats are lost, late, or applied without an answer, for a quarter of an hour.
#[test]
fn a_session_goes_on_beating_over_beats_without_an_answer() {
    for seed in 0..20 {
        let (machine, model, _processes, [a, _]) = two(seed);
        let world = machine.world().runtime();
        machine.run(async {
            let held = a.lock("jobs").await.unwrap();
            model.set_odds(Odds { answer_lost: 200, late: 200, request_lost: 100, unavailable: 0 });
            world.sleep(secs(900)).await;
            assert!(held.is_safe(), "seed {seed}");
            model.set_odds(Odds::default());
            world.sleep(secs(60)).await;
            held.release().await.unwrap();
            assert_eq!((session_of(&model, "jobs"), sessions(&model)), (None, 0), "seed {seed}");
        });
    }
}

/// No beat is applied any more. `b` gets the token only after `a`'s guard is unsafe, although their
/// clocks run apart: the housekeeper's is half a per cent fast.
#[test]
fn a_guard_is_unsafe_before_a_housekeeper_can_free_its_token() {
    for seed in 0..20 {
        let (machine, model) = world(seed);
        let processes = ["a", "b", "housekeeper"].map(|name| machine.process(name));
        processes[0].set_rate(-5_000);
        processes[2].set_rate(5_000);
        keep_house(&model, &processes[2], secs(30));
        // The whole term but drift and grain: the skew is for housekeepers of other
        // implementations.
        let a = locker(&model, &processes[0], "a", secs(30), Duration::ZERO);
        let b = locker(&model, &processes[1], "b", secs(30), Duration::ZERO);
        let world = machine.world().runtime();
        machine.run(async {
            let held = a.lock("jobs").await.unwrap();
            world.sleep(secs(seed * 3)).await;
            processes[0].pause();
            let paused = world.clock.now();
            let next = b.lock("jobs").await.unwrap();
            let took = world.clock.now().saturating_since(paused);
            assert!(!held.is_safe(), "seed {seed}: two hold it, {took:?} after the last beat");
            assert!(next.is_safe() && took > secs(15) && took < secs(45), "{took:?}");
        });
    }
}

/// The holder wakes: its session is over, its guard is lost, and it leaves the next holder's token.
#[test]
fn a_holder_that_slept_too_long_is_lost_and_leaves_the_next_one_alone() {
    let (machine, model, [a, _, _], [lease, other]) = two(1);
    let world = machine.world().runtime();
    machine.run(async {
        let held = lease.lock("jobs").await.unwrap();
        a.pause();
        let next = other.lock("jobs").await.unwrap();
        assert!(!held.is_safe(), "a clock read says so although nobody was woken");
        a.resume();
        world.sleep(secs(400)).await;

        assert_eq!(held.lost().await, LostReason::DeadlinePassed);
        assert!(next.is_safe());
        let error = held.release().await.unwrap_err();
        assert_eq!(error, Error::Lost { reason: LostReason::DeadlinePassed });
        assert_eq!(sessions(&model), 1, "only the next one's");
        next.release().await.unwrap();
    });
}

/// The row of a session is deleted before the grace is over. The next beat detects it.
#[test]
fn a_session_that_is_removed_under_its_holder_is_lost_at_its_next_beat() {
    let (machine, model, _processes, [a, _]) = two(1);
    let world = machine.world().runtime();
    machine.run(async {
        let held = a.lock("jobs").await.unwrap();
        let session = session_of(&model, "jobs").unwrap();
        model.apply(&on_session(&session, Action::DeleteIf { only_if: vec![] }));
        let lost = world.timeout(secs(60), held.lost()).await;
        assert!(matches!(lost, Ok(LostReason::Revoked)), "it believes on");
        world.sleep(secs(5)).await;
        assert_eq!((session_of(&model, "jobs"), sessions(&model)), (None, 0));
    });
}

/// The caller gives up while its insert is under way: the lock task sees it applied, and undoes
/// it.
#[test]
fn an_acquire_dropped_with_its_statements_on_the_way_leaves_nothing() {
    for seed in 0..200 {
        let (machine, model, _processes, [a, b]) = two(seed);
        model.set_odds(Odds { answer_lost: 300, ..Odds::default() });
        let world = machine.world().runtime();
        machine.run(async {
            let wait = Duration::from_millis(seed % 150);
            drop(world.timeout(wait, a.lock("jobs")).await);
            world.sleep(secs(20)).await;
            model.set_odds(Odds::default());
            world.sleep(secs(5)).await;
            let had = b.try_lock("jobs").await.unwrap();
            assert!(had.is_some(), "seed {seed}");
            assert_eq!(sessions(&model), 1, "seed {seed}");
        });
    }
}

/// A housekeeper ends the session of a waiter, which can take no token any more. The waiter goes on
/// with another session. What the ended one's late insert took is a stray, and goes too.
#[test]
fn a_waiter_whose_session_was_ended_goes_on_as_another_one() {
    let mut stalled = 0;
    for seed in 0..60 {
        let (machine, model, [a, _, _], [waiter, other]) = two(seed);
        let world = machine.world().runtime();
        machine.run(async {
            let held = other.lock("jobs").await.unwrap();
            let waiting = async {
                let guard = waiter.acquire("jobs", Wait::Forever).await.unwrap();
                (guard, world.clock.now())
            };
            let script = async {
                world.sleep(secs(2)).await;
                drop(held.release().await);
                // The waiter may see it free from now on; it stalls somewhere on its way in.
                world.sleep(Duration::from_millis(seed * 37)).await;
                a.pause();
                let stalls = world.clock.now();
                world.sleep(secs(600)).await;
                a.resume();
                stalls
            };
            let ((guard, had), stalls) = futures_util::join!(waiting, script);
            if had <= stalls {
                return;
            }
            stalled += 1;
            assert!(guard.is_safe(), "seed {seed}");
            let session = session_of(&model, "jobs").unwrap();
            assert!(row_of(&model, &session).is_some(), "seed {seed}: a session that is over");
            world.sleep(secs(900)).await;
            assert!(guard.is_safe(), "seed {seed}");
            assert_eq!(sessions(&model), 1, "seed {seed}");
        });
    }
    assert!(stalled > 10, "{stalled} stalled on their way in");
}

/// An attempt that is repeated, for whatever reason, does not make the hold younger.
#[test]
fn a_hold_counts_from_the_last_beat_and_not_from_when_the_token_was_had() {
    let (machine, _model, _processes, [a, _]) = two(1);
    let world = machine.world().runtime();
    machine.run(async {
        let mut rows = TokenRows::new(&a.base, &a.tables, vec!["jobs".into()]);
        let first = rows.advance().await.unwrap();
        world.sleep(secs(20)).await;
        assert_eq!(rows.advance().await.unwrap(), first, "20 s old, and not due before 39");
        assert!(matches!(first, Reached::Hold { .. }));
    });
}

/// Two come at once; the later one has a session by then, and waits for three graces with it.
#[test]
fn the_session_of_a_waiter_is_not_taken_for_dead() {
    let mut met = 0;
    for seed in 0..40 {
        let (machine, model, _processes, [a, b]) = two(seed);
        let world = machine.world().runtime();
        machine.run(async {
            let (a, b) = (a.lock("jobs"), b.lock("jobs"));
            let (mut a, mut b) = (std::pin::pin!(a), std::pin::pin!(b));
            let first = holdfast_runtime::select! {
                guard = &mut a => guard,
                guard = &mut b => guard,
            };
            world.sleep(secs(1)).await;
            if sessions(&model) == 2 {
                met += 1;
                world.sleep(GRACE * 3).await;
                assert_eq!(sessions(&model), 2, "seed {seed}");
            }
            first.unwrap().release().await.unwrap();
        });
    }
    assert!(met > 5, "only {met} met");
}

/// The token is deleted although the session is alive: the release reports it.
#[test]
fn who_gives_back_what_is_not_there_any_more_is_told_so() {
    let (machine, model, _processes, [a, _]) = two(1);
    machine.run(async {
        let held = a.lock("jobs").await.unwrap();
        model.apply(&on_token("jobs", Action::DeleteIf { only_if: vec![] }));
        let error = held.release().await.unwrap_err();
        assert_eq!(error, Error::Lost { reason: LostReason::Revoked });
    });
}

#[test]
fn a_store_that_does_not_answer_is_unreachable_within_the_limit() {
    let (machine, model, _processes, [a, _]) = two(1);
    test_support::is_unreachable_within_the_limit(&machine, &model, &a);
}
