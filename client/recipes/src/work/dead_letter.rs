//! Dead letters: an operator retries or forgets them.

use super::enqueue::as_of_a_write;
use super::id::ItemId;
use super::{Result, WorkQueue};
use crate::Error;
use crate::database::Fault;

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
        let mut tries = self.rows.base.tries();
        while let Err(fault) = self.remove_dead_letter(id).await {
            tries.again(fault).await.map_err(as_of_a_write)?;
        }
        Ok(())
    }

    /// A process that dies between the two deletes leaves a name without details, which is not
    /// listed.
    async fn remove_dead_letter(&self, id: &ItemId) -> Result<(), Fault> {
        self.rows.remove_details(id).await?;
        self.rows.unlist_dead_letter(id).await
    }

    async fn dead_payload(&self, id: &ItemId) -> Result<String> {
        let mut tries = self.rows.base.tries();
        loop {
            match self.look_at_dead_letter(id).await {
                Ok(Some(payload)) => return Ok(payload),
                Ok(None) => {
                    let queue = self.name().escape_debug();
                    return Err(Error::invalid(format!(
                        "item {id} of the queue \"{queue}\" is no dead letter; list shows which items are"
                    )));
                }
                Err(fault) => tries.again(fault).await?,
            }
        }
    }

    async fn look_at_dead_letter(&self, id: &ItemId) -> Result<Option<String>, Fault> {
        let first = self.rows.dead_letters(id.as_str()).await?.into_iter().next();
        // An item with a marker still waits: its worker died while it made it a dead letter, and the next one
        // repeats that.
        let is_listed = first.as_deref() == Some(id.as_str());
        if !is_listed || self.rows.numbers(id).await?.iter().any(super::rows::NumberRow::is_marker)
        {
            return Ok(None);
        }
        Ok(self.rows.details(id).await?.payload)
    }
}
