//! The tokens on the model of their tables: demonstrations of what the article leaves open; one
//! client and two; batches; the housekeeper; and simulated runs.

mod batches;
mod flaws;
mod housekeeping;
mod single;

use std::time::Duration;

use holdfast_runtime::simulated::{Machine, Process};

use super::{Housekeeper, Removed, Sweep, TokenTables, Tokens};
use crate::database::{Answer, Row};
use crate::locker::RemoteLocker;
use crate::model::Model;
use crate::statement::{Action, Cells, Ident, Statement, Value};
use crate::test_support::{self, cassandra, options, world};

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const GRACE: Duration = secs(180);

/// A locker of this process.
fn locker(
    model: &Model,
    process: &Process,
    service: &str,
    ttl: Duration,
    skew: Duration,
) -> Tokens {
    let (cassandra, options) = (cassandra(model, process), options(service, ttl, skew));
    Tokens::new(&cassandra, &options, TokenTables::default()).unwrap()
}

/// With the TTL of the lease recipe's article.
fn usual(model: &Model, process: &Process) -> Tokens {
    locker(model, process, &process.name(), GRACE, secs(60))
}

fn housekeeper(model: &Model, process: &Process, grace: Duration) -> Housekeeper {
    Housekeeper::new(&cassandra(model, process), TokenTables::default(), grace).unwrap()
}

/// Sweeps for ever, six times in each grace.
fn keep_house(model: &Model, process: &Process, grace: Duration) {
    let mut housekeeper = housekeeper(model, process, grace);
    let runtime = process.runtime();
    let sweeping = async move {
        loop {
            // The next sweep retries what was not answered.
            let _ = housekeeper.sweep().await;
            runtime.sleep(grace / 6).await;
        }
    };
    process.runtime().spawn("housekeeper", sweeping).detach();
}

fn text(column: &str, value: &str) -> (Ident, Option<Value>) {
    (Ident::new(column), Some(Value::from(value)))
}

fn time(value: i64) -> (Ident, Option<Value>) {
    (Ident::new("timestamp"), Some(Value::Time(value)))
}

fn on_token(token: &str, action: Action) -> Statement {
    let key = vec![(Ident::new("token"), Value::from(token))];
    Statement::new(Ident::new("tokens"), key, action)
}

fn on_session(session: &str, action: Action) -> Statement {
    let key = vec![(Ident::new("service_session_id"), Value::from(session))];
    Statement::new(Ident::new("token_times"), key, action)
}

/// `INSERT INTO tokens … IF NOT EXISTS`, the article's second listing.
fn seed_insert(token: &str, session: &str) -> Statement {
    let cells: Cells = vec![text("service_session_id", session), time(1)];
    on_token(token, Action::InsertIfAbsent { cells, ttl_s: None })
}

/// The session that has a token, by a read at SERIAL.
fn session_of(model: &Model, token: &str) -> Option<String> {
    let columns = vec![Ident::new("service_session_id")];
    match model.apply(&on_token(token, Action::SelectSerial { columns })) {
        Answer::Read(row) => {
            row.map(|row| row.text(&Ident::new("service_session_id")).unwrap_or("?").to_owned())
        }
        other => panic!("not a read: {other:?}"),
    }
}

fn row_of(model: &Model, session: &str) -> Option<Row> {
    let columns = vec![Ident::new("timestamp"), Ident::new("tokens")];
    match model.apply(&on_session(session, Action::SelectSerial { columns })) {
        Answer::Read(row) => row,
        other => panic!("not a read: {other:?}"),
    }
}

/// The number of sessions.
fn sessions(model: &Model) -> usize {
    model.number_of_rows(&Ident::new("token_times"))
}
