//! The bakery on the model of its tables.

mod flaws;
mod garbage;
mod safety;
mod single;

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_runtime::Runtime;
use holdfast_runtime::simulated::{Machine, Process};

use super::*;
use crate::database::{Answer, Database};
use crate::model::Model;
use crate::statement::{Action, Statement, Value};

const TTL: Duration = secs(30);
const SKEW: Duration = secs(10);
use crate::test_support::{self, cassandra, options, world};

const FORMS: [BakeryForm; 2] = [BakeryForm::Wiki, BakeryForm::Php];
/// The articles' cells never end.
const NEVER_S: i32 = 100_000_000;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// A locker of this process, with the TTL and skew of simulated runs.
fn locker(model: &Model, process: &Process, form: BakeryForm) -> Bakery {
    locker_for(model, process, form, (TTL, SKEW))
}

fn locker_for(
    model: &Model,
    process: &Process,
    form: BakeryForm,
    (ttl, skew): (Duration, Duration),
) -> Bakery {
    let (cassandra, options) = (cassandra(model, process), options(&process.name(), ttl, skew));
    Bakery::new(&cassandra, &options, BakeryTables::default().of_form(form)).unwrap()
}

fn up(form: BakeryForm) -> Value {
    match form {
        BakeryForm::Wiki => Value::Long(1),
        BakeryForm::Php => Value::Flag(true),
    }
}

fn is_up(value: &Value) -> bool {
    matches!(value, Value::Long(1) | Value::Flag(true))
}

fn on_cell(table: &str, id: &str, action: Action) -> Statement {
    let key =
        vec![(Ident::new("key"), Value::from("foo")), (Ident::new("column1"), Value::from(id))];
    Statement::new(Ident::new(table), key, action)
}

fn put(table: &str, id: &str, value: Option<Value>, ttl_s: i32, at_us: i64) -> Statement {
    let cells = vec![(Ident::new("value"), value)];
    on_cell(table, id, Action::Put { cells, ttl_s, at_us })
}

/// A client of the articles at the lock `foo`, step by step.
struct Old<'a> {
    runtime: Runtime,
    model: &'a Model,
    id: &'static str,
    form: BakeryForm,
    stamp: std::cell::Cell<i64>,
    ttl_s: i32,
}

impl<'a> Old<'a> {
    fn new(machine: &Machine, model: &'a Model, id: &'static str, form: BakeryForm) -> Self {
        let (runtime, stamp) = (machine.world().runtime(), std::cell::Cell::new(0));
        Self { runtime, model, id, form, stamp, ttl_s: NEVER_S }
    }

    /// With cells that have a TTL, unlike the articles'.
    fn with_ttl(self, ttl_s: i32) -> Self {
        Self { ttl_s, ..self }
    }

    fn at_us(&self) -> i64 {
        self.stamp.set(self.stamp.get() + 1);
        self.stamp.get()
    }

    /// Returns whether the write was acknowledged.
    async fn write(&self, table: &str, value: Value) -> bool {
        let put = put(table, self.id, Some(value), self.ttl_s, self.at_us());
        self.model.execute(put).await.is_ok()
    }

    async fn erase(&self, table: &str) {
        let erase = on_cell(table, self.id, Action::Erase { at_us: self.at_us() });
        self.model.execute(erase).await.unwrap();
    }

    /// Wiki, line 1; PHP, step 2.
    async fn raise_flag(&self) {
        assert!(self.write("choosing", up(self.form)).await);
    }

    /// Wiki, lines 2 and 3; PHP, step 3.
    async fn next_number(&self) -> i64 {
        numbers(self.model).await.into_values().max().unwrap_or(0) + 1
    }

    /// Wiki, line 4; PHP, step 4.
    async fn write_number(&self, number: i64) -> bool {
        self.write("numbers", Value::Long(number)).await
    }

    /// Wiki, line 5; PHP, step 5.
    async fn lower_flag(&self) {
        match self.form {
            BakeryForm::Wiki => self.erase("choosing").await,
            BakeryForm::Php => assert!(self.write("choosing", Value::Flag(false)).await),
        }
    }

    /// All steps of drawing.
    async fn draw(&self) -> i64 {
        self.raise_flag().await;
        let number = self.next_number().await;
        assert!(self.write_number(number).await);
        self.lower_flag().await;
        number
    }

    /// Wiki, line 19.
    async fn give_back(&self) {
        self.erase("numbers").await;
    }
}

async fn cells(model: &Model, table: &str) -> BTreeMap<String, Value> {
    let [column, value] = ["column1", "value"].map(Ident::new);
    let columns = vec![column.clone(), value];
    let key = vec![(Ident::new("key"), Value::from("foo"))];
    let statement = Statement::new(Ident::new(table), key, Action::First { columns, limit: 100 });
    let Ok(Answer::Rows(rows)) = model.execute(statement).await else { panic!("no answer") };
    let cell = |row: &crate::database::Row| {
        Some((row.text(&column)?.to_owned(), row.0.get("value")?.value.clone()))
    };
    rows.iter().filter_map(cell).collect()
}

async fn numbers(model: &Model) -> BTreeMap<String, i64> {
    let cells = cells(model, "numbers").await;
    cells.into_iter().filter_map(|(id, value)| Some((id, value.long()?))).collect()
}

/// The clients whose flags are up.
async fn choosing(model: &Model) -> Vec<String> {
    let cells = cells(model, "choosing").await;
    cells.into_iter().filter(|(_, value)| is_up(value)).map(|(id, _)| id).collect()
}
