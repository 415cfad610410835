//! The model's behaviour for plain writes, where recipes depend on it.

use std::pin::pin;

use futures_util::future::join_all;
use holdfast_mutants::{Mutant, while_armed};

use super::*;
use crate::database::{Conditional, Tables};

const fn at(text: &str, at_us: i64) -> (&str, i64) {
    (text, at_us)
}

fn key(columns: &[&str]) -> Vec<(Ident, Value)> {
    let names = ["queue", "item", "worker"].into_iter().map(Ident::new);
    names.zip(columns.iter().map(|value| Value::from(*value))).collect()
}

fn statement(columns: &[&str], action: Action) -> Statement {
    Statement::new(Ident::new("work"), key(columns), action)
}

async fn put(model: &Model, columns: &[&str], ttl_s: i32, at_us: i64) {
    let action = Action::Put { cells: Vec::new(), ttl_s, at_us };
    assert_eq!(model.execute(statement(columns, action)).await, Ok(Answer::Written));
}

async fn erase(model: &Model, columns: &[&str], at_us: i64) {
    let erased = model.execute(statement(columns, Action::Erase { at_us })).await;
    assert_eq!(erased, Ok(Answer::Written));
}

async fn items(model: &Model, columns: &[&str], action: Action) -> Vec<String> {
    let Ok(Answer::Rows(rows)) = model.execute(statement(columns, action)).await else {
        panic!("no rows")
    };
    let text = |row: &Row, name| row.text(&Ident::new(name)).unwrap_or_default().to_owned();
    rows.iter().map(|row| text(row, "item") + &text(row, "worker")).collect()
}

fn first(limit: i32) -> Action {
    Action::First { columns: Vec::new(), limit }
}

#[test]
fn rows_from_one_on_come_in_order_as_many_as_are_asked_for() {
    let machine = Machine::new(1);
    let model = Model::new(&machine);
    machine.run(async {
        for item in ["c", "a", "d", "b"] {
            put(&model, &["q", item, "w"], 0, 1).await;
        }
        let from = (Ident::new("item"), Value::from("b"));
        let two = Action::FirstFrom { columns: Vec::new(), from, limit: 2 };
        assert_eq!(items(&model, &["q"], two).await, ["bw", "cw"]);
    });
}

#[test]
fn a_delete_of_a_part_of_the_key_hides_what_is_below_it_and_no_newer() {
    let machine = Machine::new(2);
    let model = Model::new(&machine);
    machine.run(async {
        for ((worker, at_us), item) in [(at("1", 5), "a"), (at("2", 6), "a"), (at("3", 5), "b")] {
            put(&model, &["q", item, worker], 0, at_us).await;
        }
        erase(&model, &["q", "a"], 5).await;
        assert_eq!(items(&model, &["q"], first(9)).await, ["a2", "b3"]);
        assert_eq!(items(&model, &["q", "a"], first(9)).await, ["a2"]);
        erase(&model, &["q"], 6).await;
        assert_eq!(items(&model, &["q", "a"], first(9)).await, [""; 0]);
    });
}

#[test]
fn a_ttl_of_0_is_none() {
    let machine = Machine::new(3);
    let model = Model::new(&machine);
    machine.run(async {
        put(&model, &["q", "a", "w"], 0, 1).await;
        put(&model, &["q", "b", "w"], 1, 1).await;
        machine.world().runtime().sleep(Duration::from_hours(1_000)).await;
        assert_eq!(items(&model, &["q"], first(9)).await, ["aw"]);
    });
}

/// B9. Fifty looks of one process wait for a partition while each takes two seconds: a renewal that comes then waits for the one that is
/// in flight and for the next one.
#[test]
fn a_renewal_waits_for_two_statements_of_its_process_at_most() {
    let machine = Machine::new(7);
    let model = Model::new(&machine);
    let runtime = machine.world().runtime();
    let tables = Tables::new(std::sync::Arc::new(model.clone()), runtime.clock.clone());
    let owner = || (Ident::new("owner"), Some(Value::from("a")));
    let row = |action| Statement::new(Ident::new("leases"), key(&["jobs"]), action);
    let insert = Action::InsertIfAbsent { cells: vec![owner()], ttl_s: None };
    let renewal = Action::UpdateIf { cells: vec![owner()], ttl_s: None, only_if: vec![owner()] };
    machine.run(async {
        assert_eq!(tables.conditional(row(insert)).await.1, Ok(Conditional::Applied));
        model.set_brown_out(Duration::from_secs(2));
        let look = || Action::SelectSerial { columns: vec![owner().0] };
        let mut looks = pin!(join_all((0..50).map(|_| tables.read(row(look())))));
        let renewing = async {
            runtime.sleep(Duration::from_millis(100)).await;
            let asked = runtime.clock.now();
            let renewed = tables.conditional_first(row(renewal)).await.1;
            assert_eq!(renewed, Ok(Conditional::Applied));
            runtime.clock.now().saturating_since(asked)
        };
        let took = futures_util::select_biased! {
            took = futures_util::FutureExt::fuse(renewing) => took,
            _ = futures_util::FutureExt::fuse(&mut looks) => panic!("all looks came first"),
        };
        assert!(took < Duration::from_secs(7), "{took:?}");
    });
}

#[test]
fn a_renewal_behind_all_looks_is_noticed() {
    let test = a_renewal_waits_for_two_statements_of_its_process_at_most;
    let run = while_armed(Mutant::RenewalsWaitBehindLooks, || std::panic::catch_unwind(test));
    assert!(run.is_err(), "nothing showed that the mutant was armed");
}
