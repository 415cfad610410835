//! The two cells of one attempt, and the two rows that hold them: every statement of the bakery.

use std::collections::BTreeSet;
use std::sync::Arc;

use holdfast_runtime::Instant;

use super::line::Line;
use super::{BakeryForm, BakeryTables};
use crate::cells::OwnCells;
use crate::database::{Fault, Row};
use crate::statement::{Ident, Value};

/// The most cells that a row may have: a client has to look at all of them.
const ROW_MAX: i32 = 10_000;

pub(super) struct Cells {
    pub(super) own: OwnCells,
    pub(super) names: Arc<BakeryTables>,
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
        self.own.erase_owner(&self.names.numbers).await
    }

    pub(super) async fn erase_flag(&self) -> Result<(), Fault> {
        self.own.erase_owner(&self.names.choosing).await
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
            if is_up && id != self.own.owner.as_str() {
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

    async fn put(&self, table: &Ident, value: Value) -> Result<Instant, Fault> {
        self.own.put_value(table, self.own.owner.as_str(), value).await
    }

    /// All cells of the lock's row, at QUORUM.
    async fn row(&self, table: &Ident) -> Result<Vec<Row>, Fault> {
        let rows = self.own.first(table, ROW_MAX + 1).await?;
        // More cells than a line has: clients behind the end of the read would be overlooked.
        if rows.len() > usize::try_from(ROW_MAX).unwrap_or(usize::MAX) {
            return Err(Fault::Refused(format!(
                "table {}: lock {:?} has more than {ROW_MAX} cells; delete those whose owners are gone",
                table.as_str(),
                self.own.lock,
            )));
        }
        Ok(rows)
    }

    fn unreadable(&self, table: &Ident, id: &str, what: &str) -> Fault {
        Fault::Refused(format!(
            "table {}: lock {:?}: {id:?} {what}, so nobody can say who is first; delete that cell, once its \
             owner is gone",
            table.as_str(),
            self.own.lock,
        ))
    }
}
