//! For tests: clients that follow the articles' text, a statement at a time, and this crate's client between their
//! statements, in whatever order a test gives.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast_runtime::Runtime;
use holdfast_runtime::simulated::Machine;

use super::database::{Answer, Database, Fault};
use super::model::Model;
use super::statement::{Action, Ident, Statement, Value};

/// A TTL that outlasts every test: the clients of these articles have none.
pub(crate) const FOR_EVER: i32 = 20 * 365 * 24 * 3_600;

/// A table of cells; the lock is `foo`.
#[derive(Clone, Copy)]
pub(crate) struct SeedTable {
    table: &'static str,
    key: &'static str,
    column: &'static str,
    value: Option<&'static str>,
}

impl SeedTable {
    /// A column family made through Thrift.
    pub(crate) const fn cells(table: &'static str) -> Self {
        Self { table, key: "key", column: "column1", value: Some("value") }
    }

    /// The Scylla article's first table.
    pub(crate) const fn tokens(table: &'static str) -> Self {
        Self { table, key: "token", column: "service_session_id", value: None }
    }

    fn cell(&self, name: &str, action: Action) -> Statement {
        let key = vec![
            (Ident::new(self.key), Value::from("foo")),
            (Ident::new(self.column), Value::from(name)),
        ];
        Statement::new(Ident::new(self.table), key, action)
    }

    pub(crate) fn put(&self, name: &str, ttl_s: i32, at_us: i64) -> Statement {
        let cells = self.value.iter().map(|value| (Ident::new(value), Some(Value::from(name))));
        self.cell(name, Action::Put { cells: cells.collect(), ttl_s, at_us })
    }

    pub(crate) fn erase(&self, name: &str, at_us: i64) -> Statement {
        self.cell(name, Action::Erase { at_us })
    }

    /// The names of the cells in the row.
    pub(crate) async fn names(&self, model: &Model) -> Vec<String> {
        let column = Ident::new(self.column);
        let key = vec![(Ident::new(self.key), Value::from("foo"))];
        let action = Action::First { columns: vec![column.clone()], limit: 100 };
        match model.execute(Statement::new(Ident::new(self.table), key, action)).await {
            Ok(Answer::Rows(rows)) => {
                rows.iter().map(|row| row.text(&column).unwrap_or("?").to_owned()).collect()
            }
            other => panic!("{other:?}"),
        }
    }
}

/// The timestamps of a client, or of the coordinator it talks to.
#[derive(Clone)]
pub(crate) struct SeedStamps {
    runtime: Runtime,
    /// By how much its clock is ahead, milliseconds.
    pub(crate) ahead_ms: i64,
}

impl SeedStamps {
    pub(crate) fn new(machine: &Machine) -> Self {
        Self { runtime: machine.world().runtime(), ahead_ms: 0 }
    }

    pub(crate) fn now_us(&self) -> i64 {
        let wall_ms = self.runtime.clock.wall_ms();
        (i64::try_from(wall_ms).unwrap() + self.ahead_ms) * 1_000
    }
}

/// A client that follows an article literally.
pub(crate) trait SeedClient: Send + 'static {
    /// Does its next statement, unless it has ended.
    fn step<'a>(&'a mut self, model: &'a Model) -> BoxFuture<'a, ()>;
}

/// What happens before one of our client's statements.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Before {
    /// Our client stalls for so long first.
    pub(crate) stall: Duration,
    /// Then the other client takes so many steps.
    pub(crate) steps: usize,
    /// Whether the statement's answer is lost.
    pub(crate) lost: bool,
}

/// The tables as our client reaches them, with the other client's statements between its own.
pub(crate) struct Meeting<C> {
    runtime: Runtime,
    model: Model,
    pub(crate) other: tokio::sync::Mutex<C>,
    plan: Mutex<VecDeque<Before>>,
}

impl<C: SeedClient> Meeting<C> {
    pub(crate) fn new(machine: &Machine, model: &Model, other: C, plan: &[Before]) -> Arc<Self> {
        let (runtime, model) = (machine.world().runtime(), model.clone());
        let (other, plan) = (tokio::sync::Mutex::new(other), plan.iter().copied().collect());
        Arc::new(Self { runtime, model, other, plan: Mutex::new(plan) })
    }

    pub(crate) async fn steps(&self, number: usize) {
        for _ in 0..number {
            self.other.lock().await.step(&self.model).await;
        }
    }
}

/// The [`Database`] of our client.
pub(crate) struct Met<C>(pub(crate) Arc<Meeting<C>>);

impl<C: SeedClient> Database for Met<C> {
    fn execute(&self, statement: Statement) -> BoxFuture<'static, Result<Answer, Fault>> {
        let meeting = self.0.clone();
        Box::pin(async move {
            let before = meeting.plan.lock().unwrap().pop_front().unwrap_or_default();
            meeting.runtime.sleep(before.stall).await;
            meeting.steps(before.steps).await;
            let answer = meeting.model.execute(statement).await;
            if before.lost { Err(Fault::Unknown("its answer was lost".into())) } else { answer }
        })
    }

    fn endpoints(&self) -> Vec<String> {
        self.0.model.endpoints()
    }
}

/// Every order of `ours` statements of our client and `steps` steps of the other one: how many steps come before each
/// statement.
pub(crate) fn orders(ours: u32, steps: u32) -> impl Iterator<Item = Vec<Before>> {
    let length = ours + steps;
    let masks = (0_u32..1 << length).filter(move |mask| mask.count_ones() == steps);
    masks.map(move |mask| {
        let mut plan = vec![Before::default()];
        for at in 0..length {
            if mask & (1 << at) == 0 {
                plan.push(Before::default());
            } else if let Some(last) = plan.last_mut() {
                last.steps += 1;
            }
        }
        plan
    })
}
