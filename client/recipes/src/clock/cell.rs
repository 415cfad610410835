//! The cell `GlobalTime`: its statements, and which values are a time.

use std::sync::Arc;
use std::time::Duration;

use super::TimeTable;
use crate::database::{Fault, Tables};
use crate::statement::{Action, Ident, NODE_TIME, Statement, Value};

/// The end of the year 9999. A later value is no time, and the service does not go on from it.
pub(super) const LATEST_US: u64 = 253_402_300_799_999_999;

/// Whether a value can be a time.
pub(super) fn is_time(us: u64) -> bool {
    (1..=LATEST_US).contains(&us)
}

/// The cell of one service. Cheap to clone.
#[derive(Clone)]
pub(super) struct Cell {
    tables: Arc<Tables>,
    table: Arc<TimeTable>,
}

impl Cell {
    pub(super) fn new(tables: Arc<Tables>, table: TimeTable) -> Self {
        Self { tables, table: Arc::new(table) }
    }

    fn statement(&self, action: Action) -> Statement {
        let TimeTable { table, name, cell, .. } = &*self.table;
        Statement::new(table.clone(), vec![(name.clone(), Value::from(cell.as_str()))], action)
    }

    /// Listing 8, step 2: the cell's value, microseconds since 1970; `None` before the first time.
    ///
    /// # Errors
    ///
    /// [`Fault::Refused`] if the value is no time, or the table is not as it should be.
    pub(super) async fn read(&self) -> Result<Option<u64>, Fault> {
        let value = &self.table.value;
        let read = Action::First { columns: vec![value.clone()], limit: 1 };
        let rows = self.tables.scan(self.statement(read)).await?;
        let Some(there) = rows.first().and_then(|row| row.0.get(value.as_str())) else {
            return Ok(None);
        };
        let time = there.value.long().and_then(|value| u64::try_from(value).ok());
        match time.filter(|time| is_time(*time)) {
            Some(time) => Ok(Some(time)),
            None => Err(self.no_time(&there.value)),
        }
    }

    /// Step 4: writes the value with itself as the timestamp, so that on no node it is ever less than
    /// before. A repeated or late write is harmless.
    pub(super) async fn write(&self, time: u64) -> Result<(), Fault> {
        let at_us = i64::try_from(time).unwrap_or(i64::MAX);
        let cells = vec![(self.table.value.clone(), Some(Value::from(at_us)))];
        self.tables.write(self.statement(Action::Put { cells, ttl_s: 0, at_us })).await
    }

    /// The wall clock of any one of the cluster's nodes, since 1970.
    pub(super) async fn node_time(&self) -> Result<Duration, Fault> {
        let rows = self.tables.scan(Statement::node_time()).await?;
        let shown = rows.first().and_then(|row| row.long(&Ident::new(NODE_TIME)));
        let shown = shown.and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis);
        shown.ok_or_else(|| Fault::NotDone("a node does not tell what time it is".into()))
    }

    fn no_time(&self, there: &Value) -> Fault {
        let TimeTable { table, cell, .. } = &*self.table;
        let there = match there {
            Value::Long(number) => number.to_string(),
            other => format!("{other:?}"),
        };
        Fault::Refused(format!(
            "table {}: {:?} has {}, which is no time (a bigint of microseconds from 1970 to 9999); once nobody waits by \
             it, go on with another cell (--time-cell)",
            table.as_str(),
            cell,
            there.escape_debug(),
        ))
    }
}
