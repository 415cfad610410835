//! The base of the recipes that use plain writes: a row for each lock, with a cell for each attempt, written and read
//! at QUORUM under timestamps of this client.
//!
//! # Invariants
//!
//! - Only an attempt writes its own cells: their names contain its owner id, which no other attempt has at the same time.
//! - A cell that was taken back stays so, in whatever order its writes arrive, because a process's timestamps rise.
//! - An attempt may have the id of one that is over ([`OwnerPool`]): then the deletes of all its cells were acknowledged, so that
//!   no read at QUORUM shows them, and whatever of its writes arrives later has a lower timestamp than those deletes and than every
//!   write of the new attempt. So a lock that one process takes ten thousand times has few names in its row. Under new names each
//!   hold would leave tombstones, and every read of the row would walk them until the table drops them (B5).
//! - The article's lemma 1 (thesis, §5.1): of two clients that each have a write acknowledged and then read the row, at
//!   least one sees both. So of all clients whose cells are in the row, at most one finds its own alone.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_runtime::{Instant, Rng};

use super::database::{Fault, Row, Tables};
use super::locker_base::LockerBase;
use super::owner::OwnerId;
#[cfg(doc)]
use super::owner::OwnerPool;
use super::statement::{Action, Ident, Statement, Value};
use crate::Result;

#[derive(Clone, Debug)]
pub(super) struct CellColumns {
    /// The column with the lock's name.
    pub(super) key: Ident,
    /// The column with the cell's name.
    pub(super) column: Ident,
    /// The column with the content; `None`: the presence of the cell is all it expresses.
    pub(super) value: Option<Ident>,
}

/// The cells of one attempt, in the rows of one lock.
pub(super) struct OwnCells {
    pub(super) base: LockerBase,
    pub(super) columns: CellColumns,
    pub(super) lock: String,
    pub(super) owner: OwnerId,
    /// The cells that may be in the tables: sent, and no later delete of them was acknowledged.
    written: Mutex<BTreeSet<(Ident, String)>>,
}

impl Drop for OwnCells {
    fn drop(&mut self) {
        let written = self.written.get_mut().unwrap_or_else(PoisonError::into_inner);
        if written.is_empty() {
            self.base.owners.give_back(self.owner.clone());
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) ours: bool,
    /// Another owner has a cell there: one of them.
    pub(super) other: Option<String>,
}

impl Seen {
    /// "If there is only one record", and what the article does not check: that it is this
    /// attempt's.
    pub(super) fn is_ours_alone(&self) -> bool {
        self.ours && self.other.is_none()
    }
}

impl OwnCells {
    pub(super) fn new(base: &LockerBase, lock_id: &str, columns: CellColumns) -> Self {
        Self {
            base: base.clone(),
            columns,
            lock: lock_id.to_owned(),
            owner: base.owners.take(|| base.owner()),
            written: Mutex::default(),
        }
    }

    fn tables(&self) -> &Tables {
        self.base.cassandra.tables()
    }

    fn cell(&self, table: &Ident, name: &str, action: Action) -> Statement {
        let key = vec![
            (self.columns.key.clone(), Value::from(self.lock.as_str())),
            (self.columns.column.clone(), Value::from(name)),
        ];
        Statement::new(table.clone(), key, action)
    }

    /// Writes a cell with a TTL and the owner as its content; returns the instant before the write was sent.
    ///
    /// # Errors
    ///
    /// [`Fault`]; after [`Fault::Unknown`] the cell may be there, or may appear later.
    pub(super) async fn put(&self, table: &Ident, name: &str) -> Result<Instant, Fault> {
        self.put_value(table, name, Value::from(self.owner.as_str())).await
    }

    pub(super) async fn put_value(
        &self,
        table: &Ident,
        name: &str,
        value: Value,
    ) -> Result<Instant, Fault> {
        let action = Action::Put {
            cells: self.columns.value.iter().cloned().zip([Some(value)]).collect(),
            ttl_s: self.base.timing.ttl_s(),
            at_us: self.base.stamps.next(),
        };
        self.written().insert((table.clone(), name.to_owned()));
        let started = self.base.now();
        self.tables().write(self.cell(table, name, action)).await?;
        Ok(started)
    }

    /// Writes the cell that is named by its owner.
    pub(super) async fn put_owner(&self, table: &Ident) -> Result<Instant, Fault> {
        self.put(table, self.owner.as_str()).await
    }

    pub(super) async fn erase(&self, table: &Ident, name: &str) -> Result<(), Fault> {
        let action = Action::Erase { at_us: self.base.stamps.next() };
        self.tables().write(self.cell(table, name, action)).await?;
        self.written().remove(&(table.clone(), name.to_owned()));
        Ok(())
    }

    fn written(&self) -> MutexGuard<'_, BTreeSet<(Ident, String)>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn erase_owner(&self, table: &Ident) -> Result<(), Fault> {
        self.erase(table, self.owner.as_str()).await
    }

    /// The first cells of a row, in order, at QUORUM.
    pub(super) async fn first(&self, table: &Ident, limit: i32) -> Result<Vec<Row>, Fault> {
        self.look(table, Action::First { columns: self.shown(), limit }).await
    }

    /// The same, from the cell of this name on.
    pub(super) async fn first_from(
        &self,
        table: &Ident,
        from: &str,
        limit: i32,
    ) -> Result<Vec<Row>, Fault> {
        let from = (self.columns.column.clone(), Value::from(from));
        self.look(table, Action::FirstFrom { columns: self.shown(), from, limit }).await
    }

    fn shown(&self) -> Vec<Ident> {
        [&self.columns.column].into_iter().chain(&self.columns.value).cloned().collect()
    }

    async fn look(&self, table: &Ident, action: Action) -> Result<Vec<Row>, Fault> {
        let key = vec![(self.columns.key.clone(), Value::from(self.lock.as_str()))];
        self.tables().scan(Statement::new(table.clone(), key, action)).await
    }

    /// The owners of cells in a row whose cells are named by their owner. A name that is not text
    /// belongs to another owner.
    pub(super) async fn seen(&self, table: &Ident) -> Result<Seen, Fault> {
        let rows = self.first(table, 2).await?;
        let names = rows.iter().map(|row| row.text(&self.columns.column));
        let (ours, others): (Vec<_>, Vec<_>) =
            names.partition(|name| *name == Some(self.owner.as_str()));
        let other = others.first().map(|name| name.unwrap_or("somebody without a name").to_owned());
        Ok(Seen { ours: !ours.is_empty(), other })
    }
}

/// A pause of a random length up to `max`, uniformly distributed, as the articles have them.
pub(super) fn drawn_up_to(max: Duration, rng: &dyn Rng) -> Duration {
    let span = u64::try_from(max.as_micros()).unwrap_or(u64::MAX).saturating_add(1);
    Duration::from_micros(rng.next_u64() % span)
}
