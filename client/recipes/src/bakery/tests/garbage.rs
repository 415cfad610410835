//! Rows of foreign clients may hold anything.

use futures_util::future::join_all;

use super::*;
use crate::{Error, RefusalReason};

/// The error of an acquire beside this cell; the acquire leaves nothing behind.
fn told(form: BakeryForm, table: &'static str, value: Option<Value>) -> String {
    let (machine, model) = world(1);
    let ours = locker(&model, &machine.process("ours"), form);
    machine.run(async {
        model.execute(put(table, "odd\u{1b}", value, NEVER_S, 1)).await.unwrap();
        let error = ours.lock("foo").await.unwrap_err();
        let invalid = matches!(error, Error::Refused { reason: RefusalReason::Invalid, .. });
        assert!(invalid, "{error}");
        ours.base.cassandra.settled().await;
        machine.world().runtime().sleep(secs(10)).await;
        let left: Vec<String> =
            numbers(&model).await.into_keys().chain(choosing(&model).await).collect();
        assert!(left.iter().all(|id| id == "odd\u{1b}"), "{left:?}");
        error.to_string()
    })
}

#[test]
fn beside_a_number_that_is_none_nobody_is_let_in_and_it_is_named() {
    for form in FORMS {
        for value in
            [None, Some(Value::from("7")), Some(Value::Long(-1)), Some(Value::Long(i64::MIN))]
        {
            let told = told(form, "numbers", value);
            assert!(told.contains("table numbers: lock \"foo\": \"odd\\u{1b}\" has"), "{told}");
            assert!(told.contains("delete that cell"), "{told}");
        }
    }
}

#[test]
fn beside_a_flag_that_is_none_nobody_is_let_in_and_it_is_named() {
    for (form, other) in [(BakeryForm::Wiki, Value::Flag(true)), (BakeryForm::Php, Value::Long(1))]
    {
        for value in [None, Some(other), Some(Value::from("true"))] {
            let told = told(form, "choosing", value);
            assert!(
                told.contains("table choosing: lock \"foo\": \"odd\\u{1b}\" has no flag"),
                "{told}"
            );
        }
    }
}

#[test]
fn behind_the_last_number_there_is_none() {
    for form in FORMS {
        let told = told(form, "numbers", Some(Value::Long(i64::MAX)));
        assert!(told.contains("lock \"foo\" has the highest number there is"), "{told}");
    }
}

/// "number[i] := 0": a client that is not in line.
#[test]
fn a_number_of_0_is_in_nobodys_way() {
    let (machine, model) = world(1);
    let ours = locker(&model, &machine.process("ours"), BakeryForm::Wiki);
    machine.run(async {
        model.execute(put("numbers", "0", Some(Value::Long(0)), NEVER_S, 1)).await.unwrap();
        assert!(ours.try_lock("foo").await.unwrap().is_some());
    });
}

/// Numbers are drawn up to the last; then none is left.
#[test]
fn the_last_number_is_drawn_and_nothing_wraps() {
    let (machine, model) = world(1);
    let old = Old::new(&machine, &model, "old", BakeryForm::Wiki);
    let ours = locker(&model, &machine.process("ours"), BakeryForm::Wiki);
    let next = locker(&model, &machine.process("next"), BakeryForm::Wiki);
    machine.run(async {
        assert!(old.write_number(i64::MAX - 1).await);
        let leaving = async {
            old.runtime.sleep(secs(5)).await;
            assert!(numbers(&model).await.values().any(|number| *number == i64::MAX));
            let error = next.lock("foo").await.unwrap_err();
            assert!(error.to_string().contains("highest number"), "{error}");
            old.give_back().await;
        };
        let (guard, ()) = futures_util::join!(ours.lock("foo"), leaving);
        guard.unwrap().release().await.unwrap();
        assert!(next.lock("foo").await.is_ok(), "they begin again at 1");
    });
}

/// A read that ends before the row does would overlook a client.
#[test]
fn a_row_that_is_longer_than_a_read_is_refused() {
    let (machine, model) = world(1);
    let ours = locker(&model, &machine.process("ours"), BakeryForm::Php);
    machine.run(async {
        let down =
            |dead: u32| put("choosing", &dead.to_string(), Some(Value::Flag(false)), NEVER_S, 1);
        join_all((0..9_999).map(|dead| model.execute(down(dead)))).await;
        machine.world().runtime().sleep(secs(10)).await;
        ours.lock("foo").await.unwrap().release().await.unwrap();
        for dead in [9_999, 10_000] {
            model.execute(down(dead)).await.unwrap();
        }
        let error = ours.lock("foo").await.unwrap_err().to_string();
        assert!(
            error.contains("table choosing: lock \"foo\" has more than 10000 cells"),
            "{error}"
        );
    });
}
