//! The model's behaviour for plain writes, where recipes depend on it.

use super::*;

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
