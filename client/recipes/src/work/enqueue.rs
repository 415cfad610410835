//! Enqueues items, and retries statements that have no answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use holdfast_mutants::mutant;
use holdfast_runtime::{Clock, Instant, Rng};

use super::WorkQueue;
use super::id::ItemId;
use super::slot::{Listing, Part, RELIED, Shares, Slot};
use crate::database::Fault;
use crate::locker_base::Stamps;
use crate::{Error, Result};

/// Longest payload, bytes. Longer data belongs elsewhere, with its place as the payload.
const PAYLOAD_BYTES_MAX: usize = 65_536;

/// What one process knows of its enqueued items.
pub(super) struct Enqueued {
    /// The times of its items and listings: no two have the same.
    times: Stamps,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    shares: Shares,
    /// The listings on which it relies.
    listed: BTreeMap<Slot, Listed>,
}

/// A listing of this process.
#[derive(Clone)]
struct Listed {
    listing: Listing,
    /// Before it was sent for the first time.
    since: Instant,
    is_answered: bool,
}

impl Enqueued {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { times: Stamps::micros(clock), state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn draw(&self, rng: &dyn Rng) -> ItemId {
        let mut state = self.lock();
        let at_us = self.times.next();
        ItemId::draw(at_us, state.shares.next(at_us, rng), rng)
    }

    /// The listing on which an item relies that is in `slot` now; a new one, if the last is too old.
    fn listing(&self, slot: Slot, now: Instant, rng: &dyn Rng) -> Listed {
        let mut state = self.lock();
        let is_relied_on = |listed: &Listed| {
            now.saturating_since(listed.since) < RELIED || mutant!(ListingReliedOnForEver)
        };
        state.listed.retain(|_, listed| is_relied_on(listed));
        let new = || Listed {
            listing: Listing::draw(self.times.next(), rng),
            since: now,
            is_answered: false,
        };
        state.listed.entry(slot).or_insert_with(new).clone()
    }

    fn note_answered(&self, slot: Slot, answered: &Listing) {
        if let Some(listed) = self.lock().listed.get_mut(&slot)
            && listed.listing == *answered
        {
            listed.is_answered = true;
        }
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
        let id = self.enqueued.draw(&*self.rows.base.runtime().rng);
        let written =
            self.rows.base.tries().until_answered(|| self.write_item(&id, &payload)).await;
        written.map_err(as_of_a_write)?;
        Ok(id)
    }

    /// The article's two writes, in its order and each at QUORUM: no item lacks details. Then it lists the item's slot, unless it relies on a
    /// listing of this process (`slot.rs` says why that loses no item).
    async fn write_item(&self, id: &ItemId, payload: &str) -> std::result::Result<(), Fault> {
        self.rows.put_payload(id, payload).await?;
        self.rows.put_marker(id).await?;
        let Part::Slot(slot) = id.part() else { return Ok(()) };
        let base = &self.rows.base;
        let listed = self.enqueued.listing(slot, base.now(), &*base.runtime().rng);
        if !listed.is_answered {
            self.rows.list_slot(slot, &listed.listing).await?;
            self.enqueued.note_answered(slot, &listed.listing);
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
