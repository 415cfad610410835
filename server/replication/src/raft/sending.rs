//! Which followers get the log, which get a snapshot, and which part of the log that needs.
//!
//! openraft purges nothing while a request with entries from below the purge mark is under way to
//! any member, and never switches a member from the log to a snapshot by itself. So a member that is
//! slow, or hangs on an open connection, would keep the whole log. The log keeper therefore sets a
//! floor, and an append stream whose member has not reached it ends as if the member was
//! unreachable. Then openraft purges, and sends the member a snapshot.
//!
//! Conversely, openraft does not keep the log that follows a snapshot under way. So each transfer
//! is registered here, and the log keeper keeps the entries after it until the member has them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_runtime::{Clock, Instant};
use tokio::sync::watch;

use crate::storage::LogStore;

/// How long an arrived snapshot keeps the log at most, until the member is seen to have it:
/// openraft has to notice, and to turn to the log again.
const NOTICED_WITHIN: Duration = Duration::from_secs(5);

/// Shared by the ways to all members and the log keeper.
pub(super) struct Sending {
    /// Everything up to here is purged, or will be once no stream needs it.
    floor: watch::Sender<Option<u64>>,
    /// At most one for each member: openraft sends a member one snapshot at a time.
    transfers: Mutex<BTreeMap<u64, Transfer>>,
    /// Bytes that were logged during the last transfer of a snapshot.
    logged_meanwhile: AtomicU64,
    tickets: AtomicU64,
    log: Arc<LogStore>,
    clock: Arc<dyn Clock>,
}

struct Transfer {
    ticket: u64,
    /// The last entry in the snapshot.
    upto: u64,
    arrived: Option<Instant>,
}

/// A snapshot that is being sent. Dropped before it arrived, it keeps none of the log any more.
pub(super) struct Underway {
    sending: Arc<Sending>,
    target: u64,
    ticket: u64,
}

impl Sending {
    pub(super) fn new(log: Arc<LogStore>, clock: Arc<dyn Clock>) -> Self {
        Self {
            floor: watch::Sender::new(None),
            transfers: Mutex::default(),
            logged_meanwhile: AtomicU64::new(0),
            tickets: AtomicU64::new(0),
            log,
            clock,
        }
    }

    /// Ends the streams whose members have not reached `floor`. It never goes down.
    pub(super) fn raise_floor(&self, floor: u64) {
        self.floor.send_if_modified(|now| {
            let higher = now.is_none_or(|now| now < floor);
            if higher {
                *now = Some(floor);
            }
            higher
        });
    }

    /// The floor, as one stream sees it from now on.
    pub(super) fn floor(&self) -> Floor {
        Floor(self.floor.subscribe())
    }

    /// Registers that a snapshot which ends at `upto` is sent to `target`.
    pub(super) fn begin(self: &Arc<Self>, target: u64, upto: u64) -> Underway {
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(target, Transfer { ticket, upto, arrived: None });
        Underway { sending: Arc::clone(self), target, ticket }
    }

    /// The last entry of the snapshot that is being sent to each member; `matched` holds how far
    /// each member's log matches.
    pub(super) fn underway(&self, matched: &BTreeMap<u64, Option<u64>>) -> BTreeMap<u64, u64> {
        let now = self.clock.now();
        let mut transfers = self.lock();
        transfers.retain(|target, transfer| {
            let Some(arrived) = transfer.arrived else { return true };
            let noticed = matched.get(target).is_none_or(|at| *at >= Some(transfer.upto));
            !noticed && now.saturating_since(arrived) < NOTICED_WITHIN
        });
        transfers.iter().map(|(target, transfer)| (*target, transfer.upto)).collect()
    }

    /// Bytes that were logged during the transfer of the last snapshot that arrived.
    pub(super) fn logged_meanwhile(&self) -> u64 {
        self.logged_meanwhile.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Transfer>> {
        self.transfers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Underway {
    /// The member has the snapshot.
    pub(super) fn arrived(self) {
        let now = self.sending.clock.now();
        if let Some(transfer) = self.sending.lock().get_mut(&self.target)
            && transfer.ticket == self.ticket
        {
            transfer.arrived = Some(now);
            let logged = self.sending.log.look(|log| log.bytes_after(Some(transfer.upto)));
            self.sending.logged_meanwhile.store(logged, Ordering::Relaxed);
        }
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        let mut transfers = self.sending.lock();
        let own = transfers.get(&self.target).filter(|transfer| transfer.ticket == self.ticket);
        if own.is_some_and(|transfer| transfer.arrived.is_none()) {
            transfers.remove(&self.target);
        }
    }
}

/// The floor, as one stream sees it.
pub(super) struct Floor(watch::Receiver<Option<u64>>);

impl Floor {
    #[cfg(test)]
    pub(super) fn of(floor: &watch::Sender<Option<u64>>) -> Self {
        Self(floor.subscribe())
    }

    /// Whether a log that matches up to `matched` lacks entries that are no longer kept.
    pub(super) fn is_above(&mut self, matched: Option<u64>) -> bool {
        *self.0.borrow_and_update() > matched
    }

    /// As [`is_above`](Self::is_above), but does not mark the raise as seen.
    pub(super) fn stands_above(&self, matched: Option<u64>) -> bool {
        *self.0.borrow() > matched
    }

    /// Waits until the floor is raised above `matched`.
    pub(super) async fn raised_above(&mut self, matched: Option<u64>) {
        loop {
            if self.0.changed().await.is_err() {
                // No raise will come: the replica ends.
                return std::future::pending().await;
            }
            if self.is_above(matched) {
                return;
            }
        }
    }
}
