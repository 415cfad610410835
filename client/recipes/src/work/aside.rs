//! Dead letters: an operator retries or forgets an item that was set aside.

use super::enqueue::{Tries, as_of_a_write};
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
    /// As [`WorkQueue::enqueue`]; [`Error::Refused`] too if `id` is not set
    /// aside.
    pub async fn retry(&self, id: &ItemId) -> Result<ItemId> {
        let payload = self.payload_aside(id).await?;
        let again = self.enqueue(payload).await?;
        self.forget_now(id).await?;
        Ok(again)
    }

    /// Removes a dead letter.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if `id` is not set aside, or Cassandra refuses a
    /// statement, [`Error::Unreachable`] if the look had no answer: nothing
    /// is removed. [`Error::OutcomeUnknown`] without an answer after
    /// that.
    pub async fn forget(&self, id: &ItemId) -> Result<()> {
        self.payload_aside(id).await?;
        self.forget_now(id).await
    }

    async fn forget_now(&self, id: &ItemId) -> Result<()> {
        let mut tries = Tries::new(self);
        while let Err(fault) = self.remove_what_is_aside(id).await {
            tries.again(fault).await.map_err(as_of_a_write)?;
        }
        Ok(())
    }

    /// A process that dies between the two deletes leaves a name without details, which is not
    /// listed.
    async fn remove_what_is_aside(&self, id: &ItemId) -> Result<(), Fault> {
        self.rows.remove_details(id).await?;
        self.rows.remove_aside(id).await
    }

    async fn payload_aside(&self, id: &ItemId) -> Result<String> {
        let mut tries = Tries::new(self);
        loop {
            match self.look_aside(id).await {
                Ok(Some(payload)) => return Ok(payload),
                Ok(None) => {
                    let queue = self.name().escape_debug();
                    return Err(Error::invalid(format!(
                        "item {id} of the queue \"{queue}\" is not set aside; list shows what is"
                    )));
                }
                Err(fault) => tries.again(fault).await?,
            }
        }
    }

    async fn look_aside(&self, id: &ItemId) -> Result<Option<String>, Fault> {
        let first = self.rows.aside(id.as_str()).await?.into_iter().next();
        // An item with a marker still waits: its worker died while it set it aside, and the next one
        // repeats that.
        let is_aside = first.as_deref() == Some(id.as_str());
        if !is_aside || self.rows.numbers(id).await?.iter().any(super::rows::NumberRow::is_marker) {
            return Ok(None);
        }
        Ok(self.rows.details(id).await?.payload)
    }
}
