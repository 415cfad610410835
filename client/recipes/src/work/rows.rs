//! The statements of the work queue: plain writes and reads at QUORUM.

use std::sync::Arc;

use holdfast_runtime::Instant;

use super::WorkTables;
use super::id::{HOUR_US, ItemId};
use super::slot::{Listing, Part, Slot};
use crate::database::{Fault, Row, Tables};
use crate::locker_base::LockerBase;
use crate::owner::OwnerId;
use crate::statement::{Action, Ident, Statement, Value};

/// The worker of the row `0=0`, which is the item's own and makes it an item of the queue.
pub(super) const MARKER: &str = "0";
pub(super) const PAGE: i32 = 500;
/// The name of the detail that holds the payload; every other detail is an attempt.
const PAYLOAD: &str = "payload";
/// Sorts behind the payload.
const ATTEMPT: &str = "try/";
/// How long an hour stays listed after its end once it is empty, and a slot's listing after its own time if no worker lives long enough to
/// know it. Clocks of processes may differ by half of it.
const LISTED_US: i64 = 24 * HOUR_US;

/// The tables of one queue, as one process uses them. Cheap to clone.
#[derive(Clone)]
pub(super) struct Rows {
    /// Its timestamps are for the cells of claims, each of which one process writes.
    pub(super) base: LockerBase,
    pub(super) names: Arc<WorkTables>,
    pub(super) queue: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NumberRow {
    pub(super) item: String,
    pub(super) worker: String,
    /// `None`: a foreign client's row without a number.
    pub(super) number: Option<i64>,
}

impl NumberRow {
    pub(super) fn is_marker(&self) -> bool {
        self.worker == MARKER
    }
}

/// Rows of the list of slots, in order.
pub(super) struct SlotPage {
    /// `None`: a row of a foreign client, which lists its slot all the same.
    pub(super) rows: Vec<(Slot, Option<Listing>)>,
    pub(super) is_last: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Details {
    /// `None`: the item was done, or never was one.
    pub(super) payload: Option<String>,
    pub(super) attempts: Vec<String>,
}

fn column(name: &str) -> Ident {
    Ident::new(name)
}

impl Rows {
    fn tables(&self) -> &Tables {
        self.base.cassandra.tables()
    }

    fn queue_key(&self) -> (Ident, Value) {
        (column("queue"), Value::from(&*self.queue))
    }

    /// A row of the details, the choosing, or the dead letters, or all rows of an item there.
    fn of_item(
        &self,
        table: &Ident,
        id: &ItemId,
        own: Option<(&str, &str)>,
        action: Action,
    ) -> Statement {
        let mut key = vec![self.queue_key(), (column("item"), Value::from(id.as_str()))];
        key.extend(own.map(|(name, value)| (column(name), Value::from(value))));
        Statement::new(table.clone(), key, action).partitioned_by(2)
    }

    fn number(&self, id: &ItemId, worker: Option<&str>, action: Action) -> Statement {
        let mut key = vec![
            self.queue_key(),
            (column("hour"), Value::from(id.part().key())),
            (column("item"), Value::from(id.as_str())),
        ];
        key.extend(worker.map(|worker| (column("worker"), Value::from(worker))));
        Statement::new(self.names.numbers.clone(), key, action).partitioned_by(2)
    }

    fn hour(&self, hour: i64, action: Action) -> Statement {
        let key = vec![self.queue_key(), (column("hour"), Value::from(hour))];
        Statement::new(self.names.hours.clone(), key, action)
    }

    /// `write <timestamp, CF=details, "some columns describing work item">`.
    pub(super) async fn put_payload(&self, id: &ItemId, payload: &str) -> Result<(), Fault> {
        self.put_detail(id, PAYLOAD, payload).await
    }

    /// Adds an attempt. A row each, not a count: no two processes write one cell, so no clock can hide one.
    pub(super) async fn put_attempt(&self, id: &ItemId, owner: &OwnerId) -> Result<(), Fault> {
        self.put_detail(id, &format!("{ATTEMPT}{}", owner.as_str()), "").await
    }

    async fn put_detail(&self, id: &ItemId, name: &str, value: &str) -> Result<(), Fault> {
        let cells = vec![(column("value"), Some(Value::from(value)))];
        let action = Action::Put { cells, ttl_s: 0, at_us: id.written_us() };
        let statement = self.of_item(&self.names.details, id, Some(("name", name)), action);
        self.tables().write(statement).await
    }

    /// `work_details = read <work_item_id, CF=details>`.
    pub(super) async fn details(&self, id: &ItemId) -> Result<Details, Fault> {
        let (name, value) = (column("name"), column("value"));
        let action = Action::First { columns: vec![name.clone(), value.clone()], limit: i32::MAX };
        let read = self.tables().scan(self.of_item(&self.names.details, id, None, action)).await?;
        let mut details = Details::default();
        for row in read {
            match row.text(&name) {
                Some(PAYLOAD) => details.payload = row.text(&value).map(str::to_owned),
                Some(other) => {
                    details.attempts.extend(other.strip_prefix(ATTEMPT).map(str::to_owned));
                }
                None => {}
            }
        }
        Ok(details)
    }

    /// `delete <work_item_id, CF=details, *>`.
    pub(super) async fn remove_details(&self, id: &ItemId) -> Result<(), Fault> {
        let action = Action::Erase { at_us: id.removed_us() };
        self.tables().write(self.of_item(&self.names.details, id, None, action)).await
    }

    /// `write <timestamp, CF=number, 0=0>`.
    pub(super) async fn put_marker(&self, id: &ItemId) -> Result<(), Fault> {
        let cells = vec![(column("number"), Some(Value::from(0)))];
        let action = Action::Put { cells, ttl_s: 0, at_us: id.written_us() };
        self.tables().write(self.number(id, Some(MARKER), action)).await
    }

    /// `delete <work_item_id, CF=number, 0=0>`.
    pub(super) async fn remove_marker(&self, id: &ItemId) -> Result<(), Fault> {
        let action = Action::Erase { at_us: id.removed_us() };
        self.tables().write(self.number(id, Some(MARKER), action)).await
    }

    /// `write <work_item, CF=choosing, worker_id=1>`, with a TTL; returns the instant before it was
    /// sent.
    pub(super) async fn put_choosing(
        &self,
        id: &ItemId,
        owner: &OwnerId,
        ttl_s: i32,
    ) -> (Instant, Result<(), Fault>) {
        let action = Action::Put { cells: Vec::new(), ttl_s, at_us: self.base.stamps.next() };
        let started = self.base.now();
        let own = Some(("worker", owner.as_str()));
        (started, self.tables().write(self.of_item(&self.names.choosing, id, own, action)).await)
    }

    /// `delete <work_item_id, CF=choosing, worker_id=1>`.
    pub(super) async fn remove_choosing(&self, id: &ItemId, owner: &OwnerId) -> Result<(), Fault> {
        let action = Action::Erase { at_us: self.base.stamps.next() };
        let own = Some(("worker", owner.as_str()));
        self.tables().write(self.of_item(&self.names.choosing, id, own, action)).await
    }

    /// `choosing_hash = read <work_item_id, CF=choosing>`: the workers.
    pub(super) async fn choosing(&self, id: &ItemId) -> Result<Vec<String>, Fault> {
        let worker = column("worker");
        let action = Action::First { columns: vec![worker.clone()], limit: PAGE };
        let read = self.tables().scan(self.of_item(&self.names.choosing, id, None, action)).await?;
        Ok(read.iter().filter_map(|row| row.text(&worker)).map(str::to_owned).collect())
    }

    /// `write <work_item_id, CF=number, worker_id=worker_number>`, with a TTL: the lease; returns the instant before it
    /// was sent.
    pub(super) async fn put_number(
        &self,
        id: &ItemId,
        owner: &OwnerId,
        number: i64,
        ttl_s: i32,
    ) -> (Instant, Result<(), Fault>) {
        let cells = vec![(column("number"), Some(Value::from(number)))];
        let action = Action::Put { cells, ttl_s, at_us: self.base.stamps.next() };
        let started = self.base.now();
        (started, self.tables().write(self.number(id, Some(owner.as_str()), action)).await)
    }

    /// `delete <work_item_id, CF=number, worker_id=worker_number>`.
    pub(super) async fn remove_number(&self, id: &ItemId, owner: &OwnerId) -> Result<(), Fault> {
        let action = Action::Erase { at_us: self.base.stamps.next() };
        self.tables().write(self.number(id, Some(owner.as_str()), action)).await
    }

    /// `number_hash = read <work_item, CF=number>`: a page of it at most.
    pub(super) async fn numbers(&self, id: &ItemId) -> Result<Vec<NumberRow>, Fault> {
        let action = Action::First { columns: number_columns(), limit: PAGE };
        let read = self.tables().scan(self.number(id, None, action)).await?;
        Ok(read.iter().filter_map(number_row).collect())
    }

    /// `scan <0.., CF=number>`: so many rows of a partition at most, from an item on; and how many there were.
    pub(super) async fn page(
        &self,
        part: Part,
        from: &str,
        limit: i32,
    ) -> Result<(Vec<NumberRow>, i32), Fault> {
        let key = vec![self.queue_key(), (column("hour"), Value::from(part.key()))];
        let from = (column("item"), Value::from(from));
        let action = Action::FirstFrom { columns: number_columns(), from, limit };
        let statement = Statement::new(self.names.numbers.clone(), key, action).partitioned_by(2);
        let read = self.tables().scan(statement).await?;
        let rows_read = i32::try_from(read.len()).unwrap_or(i32::MAX);
        Ok((read.iter().filter_map(number_row).collect(), rows_read))
    }

    fn listing(&self, slot: Slot, listing: &Listing, action: Action) -> Statement {
        let key = vec![
            self.queue_key(),
            (column("slot"), Value::from(slot.number())),
            (column("listing"), Value::from(listing.as_str())),
        ];
        Statement::new(self.names.slots.clone(), key, action)
    }

    pub(super) async fn list_slot(&self, slot: Slot, listing: &Listing) -> Result<(), Fault> {
        let at_us = listing.written_us();
        let action = Action::Put { cells: Vec::new(), ttl_s: 0, at_us };
        self.tables().write(self.listing(slot, listing, action)).await
    }

    pub(super) async fn unlist_slot(&self, slot: Slot, listing: &Listing) -> Result<(), Fault> {
        let action = Action::Erase { at_us: listing.removed_us() };
        self.tables().write(self.listing(slot, listing, action)).await
    }

    /// A page of the list, from a slot on.
    pub(super) async fn slots(&self, from: Slot) -> Result<SlotPage, Fault> {
        let (slot, listing) = (column("slot"), column("listing"));
        let from = (slot.clone(), Value::from(from.number()));
        let columns = vec![slot.clone(), listing.clone()];
        let action = Action::FirstFrom { columns, from, limit: PAGE };
        let statement = Statement::new(self.names.slots.clone(), vec![self.queue_key()], action);
        let read = self.tables().scan(statement).await?;
        let is_last = i32::try_from(read.len()).is_ok_and(|read| read < PAGE);
        let row = |row: &Row| {
            Some((Slot::listed(row.long(&slot)?)?, Listing::parse(row.text(&listing)?)))
        };
        Ok(SlotPage { rows: read.iter().filter_map(row).collect(), is_last })
    }

    /// Whether a listing is so old that its writer relies on it no longer, by clocks that agree within half a day.
    pub(super) fn is_long_over(&self, listing: &Listing) -> bool {
        self.now_us() >= listing.written_us().saturating_add(LISTED_US)
    }

    #[cfg(test)]
    pub(super) async fn list_hour(&self, hour: i64) -> Result<(), Fault> {
        let action = Action::Put { cells: Vec::new(), ttl_s: 0, at_us: self.base.stamps.next() };
        self.tables().write(self.hour(hour, action)).await
    }

    /// All listed hours from this one on, in order.
    pub(super) async fn hours(&self, from: i64) -> Result<Vec<i64>, Fault> {
        let hour = column("hour");
        let mut hours = Vec::new();
        let mut next = from;
        loop {
            let from = (hour.clone(), Value::from(next));
            let action = Action::FirstFrom { columns: vec![hour.clone()], from, limit: PAGE };
            let key = vec![self.queue_key()];
            let read =
                self.tables().scan(Statement::new(self.names.hours.clone(), key, action)).await?;
            let is_all = i32::try_from(read.len()).is_ok_and(|read| read < PAGE);
            hours.extend(read.iter().filter_map(|row| row.long(&hour)));
            match hours.last().and_then(|last: &i64| last.checked_add(1)) {
                Some(after) if !is_all => next = after,
                _ => return Ok(hours),
            }
        }
    }

    /// Removes an empty hour from the list, if it ended so long ago that every process that still writes there lists it
    /// again. The delete's timestamp lies between those of writers in time and those of late writers, whatever this clock
    /// shows.
    pub(super) async fn unlist_hour(&self, hour: i64) -> Result<(), Fault> {
        let end_us = hour.saturating_add(1).saturating_mul(HOUR_US);
        if self.now_us() < end_us.saturating_add(LISTED_US) {
            return Ok(());
        }
        let at_us = end_us.saturating_add(LISTED_US / 2);
        self.tables().write(self.hour(hour, Action::Erase { at_us })).await
    }

    pub(super) async fn list_dead_letter(&self, id: &ItemId) -> Result<(), Fault> {
        let action = Action::Put { cells: Vec::new(), ttl_s: 0, at_us: id.written_us() };
        self.tables()
            .write(self.of_item(&self.names.aside, id, None, action).partitioned_by(1))
            .await
    }

    pub(super) async fn unlist_dead_letter(&self, id: &ItemId) -> Result<(), Fault> {
        let action = Action::Erase { at_us: id.removed_us() };
        self.tables()
            .write(self.of_item(&self.names.aside, id, None, action).partitioned_by(1))
            .await
    }

    /// A page of the dead letters, from an item on.
    pub(super) async fn dead_letters(&self, from: &str) -> Result<Vec<String>, Fault> {
        let item = column("item");
        let from = (item.clone(), Value::from(from));
        let action = Action::FirstFrom { columns: vec![item.clone()], from, limit: PAGE };
        let statement = Statement::new(self.names.aside.clone(), vec![self.queue_key()], action);
        let read = self.tables().scan(statement).await?;
        Ok(read.iter().filter_map(|row| row.text(&item)).map(str::to_owned).collect())
    }

    pub(super) fn now_us(&self) -> i64 {
        i64::try_from(self.base.runtime().clock.wall_ms().saturating_mul(1_000)).unwrap_or(i64::MAX)
    }
}

fn number_columns() -> Vec<Ident> {
    ["item", "worker", "number"].map(column).to_vec()
}

fn number_row(row: &Row) -> Option<NumberRow> {
    let text = |name| row.text(&column(name)).map(str::to_owned);
    Some(NumberRow {
        item: text("item")?,
        worker: text("worker")?,
        number: row.long(&column("number")),
    })
}
