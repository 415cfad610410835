//! The items of a queue, and what an operator does with dead letters: retries or forgets them.

use super::enqueue::as_of_a_write;
use super::id::{ItemId, from_time};
use super::rows::{NumberRow, PAGE};
use super::scan::Seen;
use super::{Result, WorkQueue};
use crate::Error;
use crate::database::Fault;
use crate::owner::service_of;

/// An item at the time of the look.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listed {
    /// Its id.
    pub id: ItemId,
    /// Its state.
    pub status: ItemStatus,
    /// How many attempts there were, the current one included.
    pub attempts: u32,
    /// The payload that was enqueued.
    pub payload: String,
}

/// The state of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemStatus {
    /// It waits for a worker.
    Waiting,
    /// A worker has it, or is about to.
    Taken {
        /// The name that the worker gives itself.
        by: String,
    },
    /// A dead letter: it had as many attempts as it may have.
    DeadLetter,
}

impl WorkQueue {
    /// The first `limit` items in order, and after them as many dead letters as still fit in. Each is read by itself, so
    /// the list is not of one instant. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] if no answer comes in time,
    /// [`Error::Refused`] if Cassandra refuses a statement.
    pub async fn list(&self, limit: usize) -> Result<Vec<Listed>> {
        self.rows.base.tries().until_answered(|| self.look_at_all(limit)).await
    }

    /// Whether no item waits or is taken. Dead letters do not count. Cancel safe.
    ///
    /// # Errors
    ///
    /// As [`WorkQueue::list`].
    pub async fn is_empty(&self) -> Result<bool> {
        Ok(self.rows.base.tries().until_answered(|| self.first(1)).await?.is_empty())
    }

    async fn first(&self, limit: usize) -> Result<Vec<Seen>, Fault> {
        let mut found = Vec::new();
        if limit > 0 {
            let on = |seen| {
                found.push(seen);
                found.len() < limit
            };
            self.scanner.look(0, limit, on).await?;
        }
        Ok(found)
    }

    async fn look_at_all(&self, limit: usize) -> Result<Vec<Listed>, Fault> {
        let mut listed = Vec::new();
        for Seen { id, taken_by } in self.first(limit).await? {
            let status = taken_by.map_or(ItemStatus::Waiting, |owner| ItemStatus::Taken {
                by: service_of(&owner).to_owned(),
            });
            listed.extend(self.look_at(id, status).await?);
        }
        let mut from = Some(from_time(0));
        while let Some(begin) = from {
            let page = self.rows.dead_letters(&begin).await?;
            let is_last = i32::try_from(page.len()).is_ok_and(|read| read < PAGE);
            from = page.last().filter(|_| !is_last).map(|last| format!("{last}\0"));
            for id in page.iter().filter_map(|item| ItemId::parse(item)) {
                if listed.len() >= limit {
                    return Ok(listed);
                }
                listed.extend(self.look_at(id, ItemStatus::DeadLetter).await?);
            }
        }
        Ok(listed)
    }

    /// `None`: it was done meanwhile.
    async fn look_at(&self, id: ItemId, status: ItemStatus) -> Result<Option<Listed>, Fault> {
        let details = self.rows.details(&id).await?;
        let attempts = u32::try_from(details.attempts.len()).unwrap_or(u32::MAX);
        Ok(details.payload.map(|payload| Listed { id, status, attempts, payload }))
    }
}

impl WorkQueue {
    /// Enqueues a dead letter's payload as a new item without attempts, and forgets the old one.
    ///
    /// Called twice, or dropped half way, it may leave the old one as well: then there are two.
    ///
    /// # Errors
    ///
    /// As [`WorkQueue::enqueue`]; [`Error::Refused`] too if `id` is no
    /// dead letter.
    pub async fn retry(&self, id: &ItemId) -> Result<ItemId> {
        let payload = self.dead_payload(id).await?;
        let again = self.enqueue(payload).await?;
        self.forget_now(id).await?;
        Ok(again)
    }

    /// Removes a dead letter.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if `id` is no dead letter, or Cassandra refuses a
    /// statement, [`Error::Unreachable`] if the look had no answer: nothing
    /// is removed. [`Error::OutcomeUnknown`] without an answer after
    /// that.
    pub async fn forget(&self, id: &ItemId) -> Result<()> {
        self.dead_payload(id).await?;
        self.forget_now(id).await
    }

    async fn forget_now(&self, id: &ItemId) -> Result<()> {
        let removed = self.rows.base.tries().until_answered(|| self.remove_dead_letter(id)).await;
        removed.map_err(as_of_a_write)
    }

    /// A process that dies between the two deletes leaves a name without details, which is not
    /// listed.
    async fn remove_dead_letter(&self, id: &ItemId) -> Result<(), Fault> {
        self.rows.remove_details(id).await?;
        self.rows.unlist_dead_letter(id).await
    }

    async fn dead_payload(&self, id: &ItemId) -> Result<String> {
        let payload =
            self.rows.base.tries().until_answered(|| self.look_at_dead_letter(id)).await?;
        let queue = self.name().escape_debug();
        payload.ok_or_else(|| {
            Error::invalid(format!(
                "item {id} of the queue \"{queue}\" is no dead letter; list shows which items are"
            ))
        })
    }

    async fn look_at_dead_letter(&self, id: &ItemId) -> Result<Option<String>, Fault> {
        let first = self.rows.dead_letters(id.as_str()).await?.into_iter().next();
        // An item with a marker still waits: its worker died while it made it a dead letter, and the next one
        // repeats that.
        let is_listed = first.as_deref() == Some(id.as_str());
        if !is_listed || self.rows.numbers(id).await?.iter().any(NumberRow::is_marker) {
            return Ok(None);
        }
        Ok(self.rows.details(id).await?.payload)
    }
}
