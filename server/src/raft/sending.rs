//! Which followers get the log, which get a snapshot, and what that needs of the log.
//!
//! openraft purges nothing while a request with entries from below the purge mark is on its way to
//! any member, and never switches a member from the log to a snapshot by itself. So a member that is
//! slow, or hangs on a connection that lives, would keep the whole log. Here the log keeper sets a
//! floor, and a stream of appends whose member has not reached it ends as if the member was
//! unreachable: then openraft purges, and sends the member a snapshot.
//!
//! The other way round, openraft knows nothing of the log that follows a snapshot on its way. So
//! each one is entered here, and the log keeper keeps what follows it, until the member has it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_seams::{Clock, Moment};
use tokio::sync::watch;

use crate::storage::LogStore;

/// How long a snapshot that arrived holds the log back, at most, until the member is seen to have
/// it: openraft has to take notice, and to turn to the log again.
const NOTICED_WITHIN: Duration = Duration::from_secs(5);

/// Shared by the ways to all members and the log keeper.
pub(super) struct Sending {
    /// Everything up to here is purged, or is to be as soon as no stream needs it.
    floor: watch::Sender<Option<u64>>,
    /// At most one for each member: openraft sends a member one snapshot at a time.
    transfers: Mutex<BTreeMap<u64, Transfer>>,
    /// Bytes that were logged while the last snapshot was on its way.
    logged_meanwhile: AtomicU64,
    tickets: AtomicU64,
    log: Arc<LogStore>,
    clock: Arc<dyn Clock>,
}

struct Transfer {
    ticket: u64,
    /// The last entry in the snapshot.
    upto: u64,
    arrived: Option<Moment>,
}

/// A snapshot on its way; dropped before it arrived, it holds nothing back any more.
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

    /// The floor from here on, for one stream.
    pub(super) fn floor(&self) -> Floor {
        Floor(self.floor.subscribe())
    }

    /// A snapshot that ends at `upto` sets out to `target`.
    pub(super) fn begin(self: &Arc<Self>, target: u64, upto: u64) -> Underway {
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(target, Transfer { ticket, upto, arrived: None });
        Underway { sending: Arc::clone(self), target, ticket }
    }

    /// The last entry of the snapshot that is on its way to each member, of which `matched` says
    /// how far its log matches.
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

    /// Bytes that were logged while the last snapshot that arrived was on its way.
    pub(super) fn logged_meanwhile(&self) -> u64 {
        self.logged_meanwhile.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Transfer>> {
        self.transfers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Underway {
    /// The member has it.
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

    /// As [`is_above`](Self::is_above), and a raise that was not waited for still counts.
    pub(super) fn stands_above(&self, matched: Option<u64>) -> bool {
        *self.0.borrow() > matched
    }

    /// Waits until the floor is raised above `matched`.
    pub(super) async fn raised_above(&mut self, matched: Option<u64>) {
        loop {
            if self.0.changed().await.is_err() {
                // Nobody raises it any more: the replica ends.
                return std::future::pending().await;
            }
            if self.is_above(matched) {
                return;
            }
        }
    }
}
