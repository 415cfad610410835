//! What the article leaves open, each demonstrated with its own statements on the model.

use super::*;

/// "delete token from `lwt_lock.tokens`": plain, through this node.
fn seed_delete(model: &Model, machine: &Machine, node: usize, skew_ms: i64, token: &str) {
    let wall_ms = i64::try_from(machine.world().runtime().clock.wall_ms()).unwrap();
    let at_us = (wall_ms + skew_ms) * 1_000;
    assert_eq!(model.apply_at(node, &on_token(token, Action::Erase { at_us })), Answer::Written);
}

/// What the article's housekeeper finds: sessions whose timestamp is older than the grace by its clock.
fn late_sessions(model: &Model, sessions: &[&str], now_ms: i64, grace: Duration) -> Vec<String> {
    let grace_ms = i64::try_from(grace.as_millis()).unwrap();
    let is_late = |session: &&&str| {
        let stamp = row_of(model, session).and_then(|row| row.time_ms(&Ident::new("timestamp")));
        stamp.is_some_and(|stamp| now_ms - stamp > grace_ms)
    };
    sessions.iter().filter(is_late).map(|session| (*session).to_owned()).collect()
}

/// "Heartbeat tick will be a write to a helper table."
fn seed_beat(model: &Model, session: &str, now_ms: i64) {
    model.apply(&on_session(session, Action::DeleteIf { only_if: vec![] }));
    let cells = vec![time(now_ms)];
    model.apply(&on_session(session, Action::InsertIfAbsent { cells, ttl_s: None }));
}

fn wall_ms(machine: &Machine) -> i64 {
    i64::try_from(machine.world().runtime().clock.wall_ms()).unwrap()
}

/// A pause of the holder, nothing else. Nothing in the article ends its belief.
#[test]
fn the_seeds_housekeeper_takes_the_token_of_a_paused_holder_that_believes_on() {
    let (machine, model) = world(1);
    let runtime = machine.world().runtime();
    machine.run(async {
        model.apply(&seed_insert("foo", "a"));
        seed_beat(&model, "a", wall_ms(&machine));
        assert_eq!(session_of(&model, "foo").as_deref(), Some("a"), "a goes in, and is paused");
        runtime.sleep(secs(61)).await;
        assert_eq!(late_sessions(&model, &["a"], wall_ms(&machine), secs(60)), ["a"]);
        seed_delete(&model, &machine, 0, 0, "foo");
        assert_eq!(model.apply(&seed_insert("foo", "b")), Answer::Applied, "b goes in beside a");
        // It wakes, beats as if nothing had happened, and deletes `b`'s token.
        seed_beat(&model, "a", wall_ms(&machine));
        assert!(row_of(&model, "a").is_some(), "its session is back");
        seed_delete(&model, &machine, 0, 0, "foo");
        assert_eq!(model.apply(&seed_insert("foo", "c")), Answer::Applied, "c goes in beside b");
    });
}

/// The heartbeat comes between the look and the delete.
#[test]
fn the_seeds_housekeeper_takes_the_token_of_a_holder_that_beat_in_time() {
    let (machine, model) = world(1);
    let runtime = machine.world().runtime();
    machine.run(async {
        model.apply(&seed_insert("foo", "a"));
        seed_beat(&model, "a", wall_ms(&machine));
        runtime.sleep(Duration::from_millis(60_001)).await;
        let late = late_sessions(&model, &["a"], wall_ms(&machine), secs(60));
        seed_beat(&model, "a", wall_ms(&machine));
        assert_eq!(late, ["a"]);
        seed_delete(&model, &machine, 0, 0, "foo");
        assert_eq!(late_sessions(&model, &["a"], wall_ms(&machine), secs(60)), [""; 0]);
        assert_eq!(model.apply(&seed_insert("foo", "b")), Answer::Applied, "a holds it, alive");
    });
}

/// Two housekeepers have seen the same dead session. The slower one deletes the next holder's token.
#[test]
fn of_two_of_the_seeds_housekeepers_the_slower_one_takes_the_next_holders_token() {
    let (machine, model) = world(1);
    let runtime = machine.world().runtime();
    machine.run(async {
        model.apply(&seed_insert("foo", "a"));
        seed_beat(&model, "a", wall_ms(&machine));
        runtime.sleep(secs(61)).await;
        for _ in 0..2 {
            assert_eq!(late_sessions(&model, &["a"], wall_ms(&machine), secs(60)), ["a"]);
        }
        seed_delete(&model, &machine, 0, 0, "foo");
        assert_eq!(model.apply(&seed_insert("foo", "b")), Answer::Applied);
        runtime.sleep(secs(1)).await;
        seed_delete(&model, &machine, 0, 0, "foo");
        assert_eq!(model.apply(&seed_insert("foo", "c")), Answer::Applied, "c goes in beside b");
    });
}

/// A heartbeat that its coordinator delayed for a minute is written after the newer one.
#[test]
fn a_heartbeat_of_the_seeds_that_comes_late_makes_a_live_session_look_dead() {
    let (machine, model) = world(1);
    let runtime = machine.world().runtime();
    machine.run(async {
        let held_up = wall_ms(&machine);
        runtime.sleep(secs(61)).await;
        seed_beat(&model, "a", wall_ms(&machine));
        seed_beat(&model, "a", held_up);
        assert_eq!(late_sessions(&model, &["a"], wall_ms(&machine), secs(60)), ["a"]);
    });
}

/// "We will assume some very reasonable bounds on clock drifts." A clock that is off by the grace
/// removes all tokens.
#[test]
fn the_seeds_housekeeper_takes_everybodys_tokens_when_its_clock_is_ahead() {
    let (machine, model) = world(1);
    machine.run(async {
        seed_beat(&model, "a", wall_ms(&machine));
        let late = late_sessions(&model, &["a"], wall_ms(&machine) + 60_001, secs(60));
        assert_eq!(late, ["a"], "it beat this very moment");
    });
}

/// "Upon acquiring a bunch of locks, a worker starts heartbeating": not if it dies in between.
#[test]
fn a_token_whose_worker_died_before_its_first_heartbeat_is_never_found() {
    let (machine, model) = world(1);
    let runtime = machine.world().runtime();
    machine.run(async {
        model.apply(&seed_insert("foo", "a"));
        runtime.sleep(secs(1_000_000)).await;
        assert_eq!(late_sessions(&model, &["a"], wall_ms(&machine), secs(60)), [""; 0]);
        assert!(matches!(model.apply(&seed_insert("foo", "b")), Answer::NotApplied(_)));
    });
}

/// A plain delete through a node that is a minute ahead hides inserts for that minute. They are
/// answered as applied.
#[test]
fn after_the_seeds_delete_through_a_node_that_is_ahead_two_are_in() {
    let (machine, model) = world(1);
    let runtime = machine.world().runtime();
    model.set_skew(2, 60_000);
    machine.run(async {
        model.apply_at(0, &seed_insert("foo", "a"));
        runtime.sleep(secs(1)).await;
        seed_delete(&model, &machine, 2, 60_000, "foo");
        runtime.sleep(secs(1)).await;
        assert_eq!(model.apply_at(0, &seed_insert("foo", "b")), Answer::Applied);
        assert_eq!(model.apply_at(1, &seed_insert("foo", "c")), Answer::Applied, "and b is in");
        assert_eq!(session_of(&model, "foo"), None);
        runtime.sleep(secs(60)).await;
        model.apply_at(0, &seed_insert("foo", "d"));
        assert_eq!(session_of(&model, "foo").as_deref(), Some("d"));
    });
}

/// And one through a node that is behind the ballot of the insert deletes nothing.
#[test]
fn the_seeds_delete_through_a_node_that_is_behind_leaves_the_token_where_it_is() {
    let (machine, model) = world(1);
    let runtime = machine.world().runtime();
    model.set_skew(2, 60_000);
    machine.run(async {
        model.apply_at(2, &seed_insert("foo", "a"));
        runtime.sleep(secs(30)).await;
        seed_delete(&model, &machine, 0, 0, "foo");
        assert_eq!(session_of(&model, "foo").as_deref(), Some("a"), "for ever");
    });
}

/// This recipe, with nodes as far apart: a release frees the token, and one client takes it.
#[test]
fn a_release_frees_whatever_the_nodes_clocks_say_and_the_next_one_is_seen() {
    for seed in 0..40 {
        let (machine, model) = world(seed);
        model.set_skew(0, -60_000);
        let processes = ["a", "b", "c"].map(|name| machine.process(name));
        let [a, b, c] = [0, 1, 2].map(|at| usual(&model, &processes[at]));
        machine.run(async {
            a.lock("foo").await.unwrap().release().await.unwrap();
            let held = b.try_lock("foo").await.unwrap();
            assert!(held.is_some(), "seed {seed}: it was not freed");
            assert!(c.try_lock("foo").await.unwrap().is_none(), "seed {seed}: two are in");
        });
    }
}

/// The article does not mention a lost answer. Its loop draws the next session, and finds its own token
/// taken by a session that never beats.
#[test]
fn a_lost_answer_taken_for_a_refusal_locks_everybody_out_for_ever() {
    let (machine, model) = world(1);
    let runtime = machine.world().runtime();
    machine.run(async {
        // The answer to that insert is lost.
        model.apply(&seed_insert("foo", "a-0"));
        for attempt in 1..1_000 {
            runtime.sleep(secs(1)).await;
            let again = model.apply(&seed_insert("foo", &format!("a-{attempt}")));
            assert!(matches!(again, Answer::NotApplied(_)), "attempt {attempt}");
        }
    });
}

/// "sleep 1": a client that comes at the right moment passes all that sleep.
#[test]
fn under_the_articles_text_a_waiter_is_passed_for_as_long_as_others_come() {
    let (machine, model) = world(1);
    let runtime = machine.world().runtime();
    machine.run(async {
        model.apply(&seed_insert("foo", "lucky-0"));
        for round in 0..1_000 {
            let waiter = model.apply(&seed_insert("foo", "waiter"));
            assert!(matches!(waiter, Answer::NotApplied(_)), "round {round}");
            runtime.sleep(Duration::from_millis(500)).await;
            let session = Some(Value::from(format!("lucky-{round}").as_str()));
            let only_if = vec![(Ident::new("service_session_id"), session)];
            assert_eq!(
                model.apply(&on_token("foo", Action::DeleteIf { only_if })),
                Answer::Applied
            );
            let lucky = format!("lucky-{}", round + 1);
            assert_eq!(model.apply(&seed_insert("foo", &lucky)), Answer::Applied);
            runtime.sleep(Duration::from_millis(500)).await;
        }
    });
}
