//! The housekeeper: what it removes, and what it leaves.

use super::*;
use crate::Error;
use crate::model::{Fate, Odds};

/// A row of `token_times` as another implementation's client writes it.
fn beat(model: &Model, session: &str, stamp: i64) {
    let there = row_of(model, session).is_some();
    let cells: Cells = vec![time(stamp)];
    let action = if there {
        let stamp = row_of(model, session).unwrap().time_ms(&Ident::new("timestamp"));
        let only_if = vec![(Ident::new("timestamp"), stamp.map(Value::Time))];
        Action::UpdateIf { cells, ttl_s: None, only_if }
    } else {
        Action::InsertIfAbsent { cells, ttl_s: None }
    };
    assert_eq!(model.apply(&on_session(session, action)), Answer::Applied);
}

fn freed(sweep: &Sweep) -> Vec<&str> {
    let tokens = sweep.removed.iter().filter_map(|removed| match removed {
        Removed::Token { token, .. } => Some(token.as_str()),
        Removed::Session { .. } => None,
    });
    tokens.collect()
}

/// Ten sessions, so that there are several pages; half of them die.
#[test]
fn what_has_not_beaten_for_the_grace_is_removed_and_what_has_is_left() {
    let (machine, model) = world(1);
    let mut keeper = housekeeper(&model, &machine.process("housekeeper"), secs(60));
    let world = machine.world().runtime();
    machine.run(async {
        for number in 0..10 {
            beat(&model, &format!("s{number}"), 1);
            model.apply(&seed_insert(&format!("t{number}"), &format!("s{number}")));
        }
        for round in 2..6 {
            assert_eq!(keeper.sweep().await.unwrap(), Sweep::default());
            (0..5).for_each(|number| beat(&model, &format!("s{number}"), round));
            world.sleep(secs(14)).await;
        }
        world.sleep(secs(6)).await;
        let sweep = keeper.sweep().await.unwrap();

        assert_eq!(freed(&sweep), ["t5", "t6", "t7", "t8", "t9"]);
        assert_eq!((sweep.removed.len(), sweep.unanswered, sessions(&model)), (10, 0, 5));
        assert_eq!(session_of(&model, "t0").as_deref(), Some("s0"));
        assert_eq!(session_of(&model, "t5"), None);
    });
}

/// A day of tokens that come and go: each leaves a deleted partition, and a node that has to walk all of them gives no answer in time
/// (B17).
#[test]
fn a_table_full_of_deleted_rows_is_read_in_parts_that_nodes_can_read() {
    let (machine, model) = world(1);
    let mut keeper = housekeeper(&model, &machine.process("housekeeper"), secs(60));
    let world = machine.world().runtime();
    machine.run(async {
        for number in 0..1_000 {
            let session = format!("gone{number}");
            beat(&model, &session, 1);
            let only_if = vec![(Ident::new("timestamp"), Some(Value::Time(1)))];
            let delete = on_session(&session, Action::DeleteIf { only_if });
            assert_eq!(model.apply(&delete), Answer::Applied);
        }
        model.apply(&seed_insert("stray", "s"));
        // A hundred seconds for all of them.
        model.set_walk(Duration::from_millis(100));
        assert_eq!(keeper.sweep().await.unwrap(), Sweep::default());
        let began = world.clock.now();
        assert_eq!(freed(&keeper.sweep().await.unwrap()), ["stray"]);
        let took = world.clock.now().saturating_since(began);
        assert!((secs(100)..secs(115)).contains(&took), "no part was too large: {took:?}");
    });
}

/// The delete has no answer, and a read at SERIAL shows that it was applied.
#[test]
fn what_was_removed_without_an_answer_is_told_all_the_same() {
    let deletes = |table: &'static str| {
        let (machine, model) = world(1);
        let mut keeper = housekeeper(&model, &machine.process("housekeeper"), secs(60));
        let world = machine.world().runtime();
        machine.run(async {
            beat(&model, "s", 1);
            model.apply(&seed_insert("t", "s"));
            keeper.sweep().await.unwrap();
            world.sleep(secs(61)).await;
            let of_sessions = |lwt: &Statement| {
                matches!(lwt.action, Action::DeleteIf { .. }) && lwt.table.as_str() == "token_times"
            };
            let of_tokens = |lwt: &Statement| {
                matches!(lwt.action, Action::DeleteIf { .. }) && lwt.table.as_str() == "tokens"
            };
            let which = if table == "tokens" { of_tokens } else { of_sessions };
            model.choose(which, Fate::AnswerLost);
            keeper.sweep().await.unwrap()
        })
    };
    for table in ["tokens", "token_times"] {
        let sweep = deletes(table);
        assert_eq!((freed(&sweep), sweep.removed.len()), (vec!["t"], 2), "{table}");
        assert_eq!(sweep.unanswered, 0, "{table}");
    }
}

/// The timestamps are from 1970 and from the far future: the housekeeper compares them with no
/// clock.
#[test]
fn clocks_that_are_apart_end_no_session_that_beats() {
    let (machine, model) = world(1);
    let process = machine.process("housekeeper");
    process.set_wall_skew(365 * 24 * 3_600 * 1_000);
    let mut keeper = housekeeper(&model, &process, secs(60));
    let world = machine.world().runtime();
    machine.run(async {
        for stamp in 1..20 {
            beat(&model, "behind", stamp);
            beat(&model, "ahead", 99_999_999_999_999 - stamp);
            world.sleep(secs(20)).await;
            assert_eq!(keeper.sweep().await.unwrap(), Sweep::default());
        }
    });
}

/// A worker of the article that died between its insert and its first heartbeat.
#[test]
fn a_token_without_a_session_is_a_stray_and_goes_after_the_grace() {
    let (machine, model) = world(1);
    let mut keeper = housekeeper(&model, &machine.process("housekeeper"), secs(60));
    let world = machine.world().runtime();
    machine.run(async {
        model.apply(&seed_insert("stray", "nobody"));
        model.apply(&seed_insert("late", "slow"));
        assert_eq!(keeper.sweep().await.unwrap(), Sweep::default());
        world.sleep(secs(50)).await;
        assert_eq!(keeper.sweep().await.unwrap(), Sweep::default());
        world.sleep(secs(11)).await;
        // Its first heartbeat comes at the last moment.
        beat(&model, "slow", 1);
        let sweep = keeper.sweep().await.unwrap();
        assert_eq!(freed(&sweep), ["stray"]);
        assert_eq!(session_of(&model, "late").as_deref(), Some("slow"));
    });
}

/// The same token becomes stray again under another session: its grace starts again.
#[test]
fn a_stray_that_was_taken_again_is_another_one() {
    let (machine, model) = world(1);
    let mut keeper = housekeeper(&model, &machine.process("housekeeper"), secs(60));
    let world = machine.world().runtime();
    machine.run(async {
        model.apply(&seed_insert("t", "first"));
        keeper.sweep().await.unwrap();
        world.sleep(secs(59)).await;
        model.apply(&on_token("t", Action::DeleteIf { only_if: vec![] }));
        model.apply(&seed_insert("t", "second"));
        world.sleep(secs(2)).await;
        assert_eq!(keeper.sweep().await.unwrap(), Sweep::default());
        assert_eq!(session_of(&model, "t").as_deref(), Some("second"));
    });
}

/// The session's term is 180 s. A housekeeper with a grace of 10 s waits for 180.
#[test]
fn a_session_lives_as_long_as_it_was_promised_whatever_the_housekeepers_grace() {
    let (machine, model) = world(1);
    let holder = machine.process("holder");
    keep_house(&model, &machine.process("housekeeper"), secs(10));
    let tokens = usual(&model, &holder);
    let world = machine.world().runtime();
    machine.run(async {
        let held = tokens.lock("jobs").await.unwrap();
        holder.pause();
        for _ in 0..170 {
            world.sleep(secs(1)).await;
            assert!(session_of(&model, "jobs").is_some());
        }
        assert!(!held.is_safe());
        world.sleep(secs(15)).await;
        assert_eq!(session_of(&model, "jobs"), None);
    });
}

/// A beat comes between the look and the end of the session, at any point.
#[test]
fn a_session_that_beats_at_the_last_moment_lives_on() {
    for delay in 0..60 {
        let (machine, model) = world(delay);
        let mut keeper = housekeeper(&model, &machine.process("housekeeper"), secs(60));
        let world = machine.world().runtime();
        machine.run(async {
            beat(&model, "s", 1);
            model.apply(&seed_insert("t", "s"));
            keeper.sweep().await.unwrap();
            world.sleep(secs(60)).await;
            let beating = async {
                world.sleep(Duration::from_millis(delay * 5)).await;
                let alive = row_of(&model, "s").is_some();
                if alive {
                    beat(&model, "s", 2);
                }
                alive
            };
            let (sweep, alive) = futures_util::join!(keeper.sweep(), beating);
            let freed = !freed(&sweep.unwrap()).is_empty();
            assert_eq!(freed, !alive, "{delay}: a session that beat lost its token");
            assert_eq!(session_of(&model, "t").is_none(), freed);
        });
    }
}

/// The housekeeper ends the session and stalls; meanwhile the token is deleted by hand and taken by
/// another session.
#[test]
fn a_token_that_was_taken_again_since_the_look_is_left_to_its_next_holder() {
    for delay in 0..60 {
        let (machine, model) = world(delay);
        let process = machine.process("housekeeper");
        let mut keeper = housekeeper(&model, &process, secs(60));
        let world = machine.world().runtime();
        machine.run(async {
            beat(&model, "s", 1);
            model.apply(&seed_insert("t", "s"));
            keeper.sweep().await.unwrap();
            world.sleep(secs(60)).await;
            let passing_on = async {
                world.sleep(Duration::from_millis(delay * 5)).await;
                model.apply(&on_token("t", Action::DeleteIf { only_if: vec![] }));
                beat(&model, "next", 1);
                model.apply(&seed_insert("t", "next"));
            };
            let (sweep, ()) = futures_util::join!(keeper.sweep(), passing_on);
            sweep.unwrap();
            world.sleep(secs(5)).await;
            assert_eq!(session_of(&model, "t").as_deref(), Some("next"), "{delay}");
        });
    }
}

/// A foreign session that was ended writes its heartbeat again, as plainly as the article does. The
/// tokens that the housekeeper sees it with again stay its own.
#[test]
fn a_session_that_is_back_before_its_token_was_freed_keeps_it() {
    let mut kept = 0;
    for delay in 0..80 {
        let (machine, model) = world(delay);
        let mut keeper = housekeeper(&model, &machine.process("housekeeper"), secs(60));
        let world = machine.world().runtime();
        machine.run(async {
            beat(&model, "s", 1);
            model.apply(&seed_insert("t", "s"));
            keeper.sweep().await.unwrap();
            world.sleep(secs(60)).await;
            let coming_back = async {
                world.sleep(Duration::from_millis(delay * 5)).await;
                let was_ended = row_of(&model, "s").is_none();
                beat(&model, "s", 2);
                was_ended
            };
            let (_, was_ended) = futures_util::join!(keeper.sweep(), coming_back);
            kept += usize::from(was_ended && session_of(&model, "t").is_some());
        });
    }
    assert!(kept > 5, "{kept} were left to it");
}

/// Three at once, while a quarter of their statements has no answer: they remove all that is dead and
/// nothing that is alive.
#[test]
fn several_housekeepers_at_once_remove_what_is_dead_and_nothing_else() {
    for seed in 0..20 {
        let (machine, model) = world(seed);
        for at in 0..3 {
            keep_house(&model, &machine.process(&format!("housekeeper-{at}")), secs(30));
        }
        let world = machine.world().runtime();
        machine.run(async {
            model.apply(&seed_insert("stray", "nobody"));
            beat(&model, "dead", 1);
            (0..5).for_each(|number| {
                model.apply(&seed_insert(&format!("t{number}"), "dead"));
            });
            beat(&model, "alive", 1);
            model.apply(&seed_insert("mine", "alive"));
            model.set_odds(Odds { answer_lost: 100, request_lost: 100, late: 50, unavailable: 0 });
            for stamp in 2..20 {
                world.sleep(secs(15)).await;
                beat(&model, "alive", stamp);
            }
            assert_eq!(session_of(&model, "mine").as_deref(), Some("alive"));
            for token in ["stray", "t0", "t1", "t2", "t3", "t4"] {
                assert_eq!(session_of(&model, token), None, "seed {seed}: {token}");
            }
            assert_eq!(sessions(&model), 1);
        });
    }
}

/// A housekeeper dies after it has ended the session: the tokens are strays to the next one.
#[test]
fn a_housekeeper_that_died_half_way_is_followed_by_another_one() {
    for delay in 0..30 {
        let (machine, model) = world(delay);
        let process = machine.process("first");
        let mut first = housekeeper(&model, &process, secs(60));
        let world = machine.world().runtime();
        machine.run(async {
            beat(&model, "s", 1);
            model.apply(&seed_insert("t", "s"));
            first.sweep().await.unwrap();
            world.sleep(secs(60)).await;
            let limit = Duration::from_millis(delay * 12);
            drop(world.timeout(limit, first.sweep()).await);
            drop(first);
            keep_house(&model, &machine.process("second"), secs(60));
            world.sleep(secs(150)).await;
            assert_eq!((session_of(&model, "t"), sessions(&model)), (None, 0), "{delay}");
        });
    }
}

/// The read of the tables is incomplete: the housekeeper concludes nothing from a part.
#[test]
fn a_look_without_an_answer_removes_nothing_and_is_told() {
    let (machine, model) = world(1);
    let mut keeper = housekeeper(&model, &machine.process("housekeeper"), secs(60));
    let world = machine.world().runtime();
    machine.run(async {
        beat(&model, "s", 1);
        keeper.sweep().await.unwrap();
        world.sleep(secs(100)).await;
        model.set_odds(Odds { unavailable: 1_000, ..Odds::default() });
        let error = keeper.sweep().await.unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
        model.set_odds(Odds::default());
        assert_eq!(keeper.sweep().await.unwrap().removed.len(), 1, "it was watched on");
    });
}

#[test]
fn a_grace_of_nothing_is_refused() {
    let (machine, model) = world(1);
    let cassandra = cassandra(&model, &machine.process("housekeeper"));
    let refused = Housekeeper::new(&cassandra, TokenTables::default(), secs(2));
    assert!(matches!(refused, Err(Error::InvalidConfig { .. })));
}
