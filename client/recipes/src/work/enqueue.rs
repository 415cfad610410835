//! Enqueues items, and retries statements that have no answer.

use std::sync::{Arc, Mutex, PoisonError};

use holdfast_runtime::Clock;

use super::WorkQueue;
use super::id::{ItemId, hour_of};
use crate::database::Fault;
use crate::locker_base::Stamps;
use crate::{Error, Result};

/// Longest payload, bytes. Longer data belongs elsewhere, with its place as the payload.
const PAYLOAD_BYTES_MAX: usize = 65_536;

/// What one process knows of its enqueued items.
pub(super) struct Enqueued {
    /// The times of its items: no two have the same.
    times: Stamps,
    /// The hour that it listed last.
    listed: Mutex<Option<i64>>,
}

impl Enqueued {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { times: Stamps::micros(clock), listed: Mutex::new(None) }
    }

    fn has_listed(&self, hour: i64) -> bool {
        *self.listed.lock().unwrap_or_else(PoisonError::into_inner) == Some(hour)
    }

    fn note_listed(&self, hour: i64) {
        *self.listed.lock().unwrap_or_else(PoisonError::into_inner) = Some(hour);
    }
}

impl WorkQueue {
    /// Enqueues an item, and returns its id once it is certain that a worker finds it.
    ///
    /// Statements without an answer are sent again, within the options' limit for an answer: each
    /// of them can be repeated without harm.
    ///
    /// Dropping the future leaves open whether the item is in the queue.
    /// # Errors
    ///
    /// [`Error::Refused`] if the payload is longer than 64 KiB, or Cassandra refuses a statement: it is not enqueued.
    /// [`Error::OutcomeUnknown`] without an answer: it may be in the queue, and be done, or may never come up; another
    /// call enqueues another item.
    pub async fn enqueue(&self, payload: impl Into<String>) -> Result<ItemId> {
        let payload = payload.into();
        if payload.len() > PAYLOAD_BYTES_MAX {
            return Err(Error::invalid(format!(
                "a payload of {} bytes is longer than the {PAYLOAD_BYTES_MAX} allowed; put it elsewhere and \
                 enqueue its place",
                payload.len()
            )));
        }
        let id = ItemId::draw(self.enqueued.times.next(), &*self.rows.base.runtime().rng);
        let written =
            self.rows.base.tries().until_answered(|| self.write_item(&id, &payload)).await;
        written.map_err(as_of_a_write)?;
        Ok(id)
    }

    /// The article's two writes, in its order and each at QUORUM: no item lacks details. Then it lists the item's hour,
    /// unless this process did so and the hour is not over: an hour stays listed for a day longer than a process relies
    /// on that.
    async fn write_item(&self, id: &ItemId, payload: &str) -> std::result::Result<(), Fault> {
        self.rows.put_payload(id, payload).await?;
        self.rows.put_marker(id).await?;
        let hour = id.hour();
        let is_over = hour_of(self.rows.now_us()) != hour;
        if is_over || !self.enqueued.has_listed(hour) {
            self.rows.list_hour(hour).await?;
            self.enqueued.note_listed(hour);
        }
        Ok(())
    }
}

/// The error of a write without an answer: it may have been applied.
pub(super) fn as_of_a_write(error: Error) -> Error {
    match error {
        Error::Unreachable { waited, .. } => {
            Error::OutcomeUnknown { what: "a change of the queue", waited }
        }
        other => other,
    }
}
