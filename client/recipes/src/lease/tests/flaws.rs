//! What the article leaves open, each demonstrated with its own statements on the model.

use super::*;
use crate::database::{Answer, Row};
use crate::locker::{RemoteLocker, Wait};
use crate::model::Odds;
use crate::statement::{Action, Ident, Statement, Value};

fn on_foo(action: Action) -> Statement {
    let key = vec![(Ident::new("name"), Value::from("foo"))];
    Statement::new(Ident::new("leases"), key, action)
}

fn owner(owner: &str) -> (Ident, Option<Value>) {
    (Ident::new("owner"), Some(Value::from(owner)))
}

/// `INSERT INTO leases (name, owner) VALUES ('foo', …) IF NOT EXISTS`, in a table with a TTL of 180.
fn seed_insert(id: &str) -> Statement {
    on_foo(Action::InsertIfAbsent { cells: vec![owner(id)], ttl_s: Some(180) })
}

/// `UPDATE leases SET owner = … WHERE name = 'foo' IF owner = …`.
fn seed_renewal(id: &str) -> Statement {
    let (cells, only_if) = (vec![owner(id)], vec![owner(id)]);
    on_foo(Action::UpdateIf { cells, ttl_s: Some(180), only_if })
}

fn read_foo(model: &Model) -> Option<Row> {
    let columns = vec![Ident::new("owner"), Ident::new("value")];
    match model.apply(&on_foo(Action::SelectSerial { columns })) {
        Answer::Read(row) => row,
        other => panic!("not a read: {other:?}"),
    }
}

fn value_of_foo(model: &Model) -> Option<String> {
    read_foo(model)?.text(&Ident::new("value")).map(str::to_owned)
}

/// A TTL belongs to a cell: the article's renewal keeps the owner and lets the value end.
#[test]
fn under_the_seeds_renewal_a_leaders_value_vanishes_after_180_s() {
    let (machine, model) = world(1);
    let runtime = machine.world().runtime();
    machine.run(async {
        let value = (Ident::new("value"), Some(Value::from("10.0.0.1:80")));
        let cells = vec![owner("a"), value];
        model.apply(&on_foo(Action::InsertIfAbsent { cells, ttl_s: Some(180) }));
        for _ in 0..3 {
            runtime.sleep(secs(60)).await;
            assert_eq!(model.apply(&seed_renewal("a")), Answer::Applied);
        }

        assert_eq!(read_foo(&model).unwrap().text(&Ident::new("owner")), Some("a"));
        assert_eq!(value_of_foo(&model), None, "its leader leads on, and nobody can find it");
    });
}

#[test]
fn a_leaders_value_stands_as_long_as_it_leads() {
    let (machine, model) = world(1);
    let process = machine.process("leader");
    let lease = locker(&model, &process, "a", secs(180), secs(60));
    machine.run(async {
        let leading = lease.campaign("foo", "10.0.0.1:80", Wait::Forever).await.unwrap();
        for _ in 0..20 {
            process.runtime().sleep(secs(60)).await;
            assert_eq!(value_of_foo(&model).as_deref(), Some("10.0.0.1:80"));
        }
        leading.set_value(Some("10.0.0.2:80".into())).await.unwrap();
        process.runtime().sleep(secs(400)).await;
        assert_eq!(value_of_foo(&model).as_deref(), Some("10.0.0.2:80"));
        leading.set_value(None).await.unwrap();
        assert_eq!(value_of_foo(&model), None);
        assert!(leading.guard().is_safe());
    });
}

/// "We know we have it for a max of 3 minutes": two minutes, when one node is a minute ahead.
#[test]
fn under_skew_the_seeds_three_minutes_have_two_owners() {
    let (machine, model) = world(1);
    let runtime = machine.world().runtime();
    model.set_skew(2, 60_000);
    machine.run(async {
        assert_eq!(model.apply_at(0, &seed_insert("a")), Answer::Applied);
        runtime.sleep(secs(121)).await;

        assert_eq!(model.apply_at(2, &seed_insert("b")), Answer::Applied, "121 s of a's 180");
    });
}

/// The same skew: the guard stops being safe before another client can take the row.
#[test]
fn under_skew_a_guard_is_unsafe_before_its_row_can_end_anywhere() {
    let (machine, model) = world(1);
    model.set_skew(2, 60_000);
    let process = machine.process("holder");
    let lease = locker(&model, &process, "a", secs(180), secs(60));
    let world = machine.world().runtime();
    machine.run(async {
        let guard = lease.lock("foo").await.unwrap();
        // From here on no request of the holder is applied.
        model.set_odds(Odds { request_lost: 1_000, ..Odds::default() });
        let mut safe_for = 0;
        while guard.is_safe() {
            world.sleep(secs(1)).await;
            safe_for += 1;
            if guard.is_safe() {
                let stolen = model.apply_at(2, &seed_insert("b"));
                assert!(matches!(stolen, Answer::NotApplied(_)), "after {safe_for} s");
            }
        }
        assert!(safe_for > 110, "it gave up after {safe_for} s");
    });
}

/// The article does not mention a lost answer. A client that takes it for a refusal leaves a row
/// that no client renews or deletes.
#[test]
fn a_lost_answer_taken_for_a_refusal_locks_everybody_out_for_a_ttl() {
    let (machine, model) = world(1);
    let runtime = machine.world().runtime();
    machine.run(async {
        model.apply(&seed_insert("a"));
        // The answer to that insert is lost; the article's client draws its next id and tries
        // again.
        for attempt in 0..17 {
            runtime.sleep(secs(10)).await;
            let again = model.apply(&seed_insert(&format!("a-{attempt}")));
            assert!(matches!(again, Answer::NotApplied(_)), "attempt {attempt}");
        }
        runtime.sleep(secs(11)).await;
        assert_eq!(model.apply(&seed_insert("a-last")), Answer::Applied);
    });
}

/// Every answer is lost, whatever was done: a read of the row shows what became of the insert.
#[test]
fn an_insert_whose_answer_is_lost_is_found_in_the_row_and_held_by_a_renewal() {
    let (machine, model) = world(3);
    let process = machine.process("a");
    let lease = locker(&model, &process, "a", secs(180), secs(60));
    let world = machine.world().runtime();
    machine.run(async {
        model.set_odds(Odds { answer_lost: 1_000, ..Odds::default() });
        let getting = lease.lock("foo");
        let healing = async {
            world.sleep(secs(9)).await;
            model.set_odds(Odds::default());
            world.clock.now()
        };
        let (guard, healed) = futures_util::join!(getting, healing);
        let guard = guard.unwrap();

        assert!(world.clock.now().saturating_since(healed) < secs(8), "not a TTL later");
        assert!(guard.is_safe() && model.unknown_but_applied() > 0);
        guard.release().await.unwrap();
        assert_eq!(read_foo(&model), None);
    });
}

/// The client finds its own row 150 s after the row was made, and gets no more answers after that.
/// The guard counts from the renewal it began with, not from an insert whose instant is unknown.
#[test]
fn a_row_found_to_be_ours_is_safe_from_a_renewal_of_our_own_only() {
    let (machine, model) = world(4);
    let process = machine.process("a");
    let lease = locker(&model, &process, "a", secs(180), secs(60));
    let world = machine.world().runtime();
    machine.run(async {
        model.set_odds(Odds { answer_lost: 1_000, ..Odds::default() });
        let script = async {
            world.sleep(secs(1)).await;
            model.set_odds(Odds { unavailable: 1_000, ..Odds::default() });
            world.sleep(secs(150)).await;
            model.set_odds(Odds::default());
        };
        let (guard, ()) = futures_util::join!(lease.lock("foo"), script);
        let guard = guard.unwrap();
        model.set_odds(Odds { request_lost: 1_000, ..Odds::default() });
        world.sleep(secs(40)).await;

        assert!(guard.is_safe());
        assert!(
            matches!(model.apply(&seed_insert("b")), Answer::NotApplied(_)),
            "190 s after ours"
        );
    });
}
