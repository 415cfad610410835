//! The two cells of one attempt, and the two rows that hold them: every statement of the bakery.

use std::collections::BTreeSet;
use std::sync::Arc;

use holdfast_runtime::{Clock, Instant};

use super::line::Line;
use super::{BakeryForm, BakeryTables};
use crate::database::{Fault, Row, Tables};
use crate::owner::OwnerId;
use crate::stamps::Stamps;
use crate::statement::{Action, Ident, Statement, Value};

/// The most cells that a row may have: a client has to look at all of them.
const ROW_MAX: i32 = 10_000;

/// The cells of one attempt.
pub(super) struct Cells {
    pub(super) tables: Arc<Tables>,
    pub(super) names: Arc<BakeryTables>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) stamps: Arc<Stamps>,
    pub(super) lock: String,
    pub(super) owner: OwnerId,
    pub(super) ttl_s: i32,
}

impl Cells {
    pub(super) fn form(&self) -> BakeryForm {
        self.names.form
    }

    /// Wiki, line 1; PHP, step 2. Returns the instant from which the flag stands for its TTL, at
    /// least.
    pub(super) async fn raise_flag(&self) -> Result<Instant, Fault> {
        self.put(&self.names.choosing, self.flag(true)).await
    }

    /// The wiki deletes its flag (line 5); PHP lowers it "by changing the true to false" (step 5), and
    /// the cell ends with its TTL.
    pub(super) async fn lower_flag(&self) -> Result<(), Fault> {
        match self.form() {
            BakeryForm::Wiki => self.erase_flag().await,
            BakeryForm::Php => {
                self.put(&self.names.choosing, self.flag(false)).await.map(|_sent| ())
            }
        }
    }

    /// Wiki, line 4; PHP, step 4. Returns the instant from which the number stands for its TTL, at
    /// least.
    pub(super) async fn put_number(&self, number: i64) -> Result<Instant, Fault> {
        self.put(&self.names.numbers, Value::from(number)).await
    }

    pub(super) async fn erase_number(&self) -> Result<(), Fault> {
        self.erase(&self.names.numbers).await
    }

    pub(super) async fn erase_flag(&self) -> Result<(), Fault> {
        self.erase(&self.names.choosing).await
    }

    /// All numbers of the lock.
    ///
    /// # Errors
    ///
    /// [`Fault::Refused`] also for a row that does not show which client is first.
    pub(super) async fn line(&self) -> Result<Line, Fault> {
        let numbers = &self.names.numbers;
        let mut line = Line::default();
        for row in self.row(numbers).await? {
            let Some(id) = row.text(&self.names.column) else { continue };
            let number = row.long(&self.names.value);
            line.add(id, number).map_err(|what| self.unreadable(numbers, id, &what))?;
        }
        Ok(line)
    }

    /// The others whose flag is up.
    ///
    /// # Errors
    ///
    /// [`Fault::Refused`] also for a flag that is neither up nor down.
    pub(super) async fn choosing(&self) -> Result<BTreeSet<String>, Fault> {
        let choosing = &self.names.choosing;
        let mut up = BTreeSet::new();
        for row in self.row(choosing).await? {
            let Some(id) = row.text(&self.names.column) else { continue };
            let is_up =
                self.is_up(&row).ok_or_else(|| self.unreadable(choosing, id, "has no flag"))?;
            if is_up && id != self.owner.as_str() {
                up.insert(id.to_owned());
            }
        }
        Ok(up)
    }

    fn flag(&self, up: bool) -> Value {
        match self.form() {
            BakeryForm::Wiki => Value::Long(i64::from(up)),
            BakeryForm::Php => Value::Flag(up),
        }
    }

    fn is_up(&self, row: &Row) -> Option<bool> {
        let value = &self.names.value;
        match self.form() {
            BakeryForm::Wiki => row.long(value).map(|flag| flag != 0),
            BakeryForm::Php => row.flag(value),
        }
    }

    /// Writes a cell with a TTL, and with this process' own timestamp: its later write wins, in
    /// whatever order the two arrive.
    async fn put(&self, table: &Ident, value: Value) -> Result<Instant, Fault> {
        let action = Action::Put {
            cells: vec![(self.names.value.clone(), Some(value))],
            ttl_s: self.ttl_s,
            at_us: self.stamps.next(),
        };
        let sent = self.clock.now();
        self.tables.write(self.own(table, action)).await.map(|()| sent)
    }

    async fn erase(&self, table: &Ident) -> Result<(), Fault> {
        let action = Action::Erase { at_us: self.stamps.next() };
        self.tables.write(self.own(table, action)).await
    }

    fn own(&self, table: &Ident, action: Action) -> Statement {
        let own = (self.names.column.clone(), Value::from(self.owner.as_str()));
        Statement::new(table.clone(), vec![self.key(), own], action)
    }

    fn key(&self) -> (Ident, Value) {
        (self.names.key.clone(), Value::from(self.lock.as_str()))
    }

    /// All cells of the lock's row, at QUORUM.
    async fn row(&self, table: &Ident) -> Result<Vec<Row>, Fault> {
        let columns = vec![self.names.column.clone(), self.names.value.clone()];
        let action = Action::First { columns, limit: ROW_MAX + 1 };
        let rows =
            self.tables.scan(Statement::new(table.clone(), vec![self.key()], action)).await?;
        // More cells than a line has: clients behind the end of the read would be overlooked.
        if rows.len() > usize::try_from(ROW_MAX).unwrap_or(usize::MAX) {
            return Err(Fault::Refused(format!(
                "table {}: lock {:?} has more than {ROW_MAX} cells; delete those whose owners are gone",
                table.as_str(),
                self.lock,
            )));
        }
        Ok(rows)
    }

    fn unreadable(&self, table: &Ident, id: &str, what: &str) -> Fault {
        Fault::Refused(format!(
            "table {}: lock {:?}: {id:?} {what}, so nobody can say who is first; delete that cell, once its \
             owner is gone",
            table.as_str(),
            self.lock,
        ))
    }
}
