//! The items of a queue.

use super::id::{ItemId, from_time};
use super::rows::PAGE;
use super::scan::Seen;
use super::{Result, WorkQueue};
use crate::database::Fault;
use crate::owner::thread_id;

/// An item at the time of the look.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// [`Error::Unreachable`](crate::Error::Unreachable) if no answer comes in time,
    /// [`Error::Refused`](crate::Error::Refused) if Cassandra refuses a statement.
    pub async fn list(&self, limit: usize) -> Result<Vec<Listed>> {
        let mut tries = self.rows.base.tries();
        loop {
            match self.look_at_all(limit).await {
                Ok(listed) => return Ok(listed),
                Err(fault) => tries.again(fault).await?,
            }
        }
    }

    /// Whether no item waits or is taken. Dead letters do not count. Cancel safe.
    ///
    /// # Errors
    ///
    /// As [`WorkQueue::list`].
    pub async fn is_empty(&self) -> Result<bool> {
        let mut tries = self.rows.base.tries();
        loop {
            match self.first(1).await {
                Ok(seen) => return Ok(seen.is_empty()),
                Err(fault) => tries.again(fault).await?,
            }
        }
    }

    async fn first(&self, limit: usize) -> Result<Vec<Seen>, Fault> {
        let mut found = Vec::new();
        if limit > 0 {
            let on = |seen| {
                found.push(seen);
                found.len() < limit
            };
            self.scanner.look(0, on).await?;
        }
        Ok(found)
    }

    async fn look_at_all(&self, limit: usize) -> Result<Vec<Listed>, Fault> {
        let mut listed = Vec::new();
        for Seen { id, taken_by } in self.first(limit).await? {
            let status = taken_by.map_or(ItemStatus::Waiting, |owner| ItemStatus::Taken {
                by: thread_id(&owner).to_owned(),
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
