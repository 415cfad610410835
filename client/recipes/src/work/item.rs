//! An item that a worker has taken.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use holdfast_runtime::Clock;
use tokio_util::sync::CancellationToken;

use super::claim::Shared;
use super::id::ItemId;
use crate::locker::RemoteGuard;
use crate::{Error, GuardState, GuardStates, LostReason, Result};

/// An item of a [`WorkQueue`](super::WorkQueue), held while [`WorkItem::is_safe`] returns true: no other worker has it
/// then.
///
/// [`WorkItem::done`] removes it. Dropping it gives it back without waiting, and it comes again as the next attempt.
#[must_use = "dropping an item gives it back undone"]
pub struct WorkItem {
    id: ItemId,
    payload: String,
    attempt: u32,
    guard: RemoteGuard,
    shared: Arc<Shared>,
    clock: Arc<dyn Clock>,
}

impl WorkItem {
    pub(super) fn new(
        id: ItemId,
        guard: RemoteGuard,
        shared: Arc<Shared>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let (payload, attempt) = {
            let mut told = shared.lock();
            (std::mem::take(&mut told.payload), told.attempt)
        };
        Self { id, payload, attempt, guard, shared, clock }
    }

    /// The item's id: the same in every attempt.
    pub fn id(&self) -> &ItemId {
        &self.id
    }

    /// The payload that was enqueued.
    pub fn payload(&self) -> &str {
        &self.payload
    }

    /// The number of this attempt: above the number of those that were handed out before; the first is 1. An attempt
    /// whose worker died before it got the item may be counted, now and then or always, so a number may be left out or
    /// come twice.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Whether certainly no other worker has the item now. One clock read against an atomic. Once false, it stays false.
    pub fn is_safe(&self) -> bool {
        self.guard.is_safe()
    }

    /// As [`RemoteGuard::state`](crate::RemoteGuard::state).
    pub fn state(&self) -> GuardState {
        self.guard.state()
    }

    /// As [`RemoteGuard::states`](crate::RemoteGuard::states).
    pub fn states(&self) -> GuardStates {
        self.guard.states()
    }

    /// How long the item stays with this worker after its last renewal.
    pub fn ttl(&self) -> Duration {
        self.guard.ttl()
    }

    /// Waits until the lease is lost: another worker may get the item from then on. Cancel safe.
    pub async fn lost(&self) -> LostReason {
        self.guard.lost().await
    }

    /// A token that is cancelled when the item is no longer safe, for work that reacts to one.
    pub fn cancellation_token(&self) -> CancellationToken {
        self.guard.cancellation_token()
    }

    /// The work is done: removes the item, and waits until that is certain.
    ///
    /// Dropping the future leaves the removal to the background.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`]: the lease was over before, and nothing was removed; another worker does the item again.
    /// [`Error::OutcomeUnknown`]: no answer before the lease was over. The removal goes on in the background until a TTL
    /// has passed. The item is done again if that fails, or if another worker took it before.
    pub async fn done(self) -> Result<()> {
        let Self { guard, shared, clock, .. } = self;
        let began = clock.now();
        let is_safe = guard.is_safe();
        shared.lock().is_done = is_safe;
        match guard.release().await {
            Ok(()) if shared.lock().is_removed => Ok(()),
            Err(lost @ Error::Lost { .. }) if !is_safe => Err(lost),
            _ => Err(Error::OutcomeUnknown {
                what: "the removal of an item that is done",
                waited: clock.now().saturating_since(began),
            }),
        }
    }

    /// Gives the item back undone, and waits until it is free for others.
    ///
    /// # Errors
    ///
    /// As [`RemoteGuard::release`].
    pub async fn give_back(self) -> Result<()> {
        self.guard.release().await
    }
}

impl fmt::Debug for WorkItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkItem")
            .field("id", &self.id.as_str())
            .field("attempt", &self.attempt)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
