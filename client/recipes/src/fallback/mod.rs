//! Locks in Cassandra while, and only while, the native store cannot serve their scope (DESIGN §10): the basis of
//! [`LockerMode::Fallback`](super::LockerMode::Fallback).
//!
//! Two stores that do not know each other need an arbiter: the row of the scope in the table `authority`. A leading
//! server keeps it, and clients take it over when that server is gone. The lock itself is the lease of
//! [`lease`](super::lease), in a table of its own.
//!
//! # Why no other hold of the name is safe at the same time
//!
//! Each process measures durations on its own clock, which counts suspended time; the protocol never compares two
//! clocks, and no TTL column decides which store serves. The names in brackets are the rules that the model search
//! covers (`tests/model/src/authority/rule.rs`); a mutant breaks each of them.
//!
//! - **Taking over.** The process reads the row repeatedly while a caller waits. The row has to show the same,
//!   including the beat, for the W in it (`DurationsOfTheRow`), counted from the *end* of the first read that showed it
//!   (`WaitFromReadEnd`, `TakeOverWaits`, `DrainTakeOverWaits`, `BeatCompared`). Then the process changes it to
//!   `cassandra` in the next epoch, on condition that it is unchanged. A leader that had authority had it from a bump
//!   before that first read, and counted it by a W no longer than this one, so its authority is over. After no answer,
//!   or another row, the process reads again and concludes nothing (`UnknownTakeOverFails`). No process takes over from
//!   `preparing` or `retired`.
//! - **Holding.** A process requests a lock only under a read that showed `cassandra` (`NoEntryWhileDraining`). The
//!   hold is safe until V·(1 − a) after the *start* of that read, by the V that it showed (`HoldFromReadStart`), or
//!   until the lease's own safe deadline, if that is earlier. A later read extends the hold only if it *began* when the
//!   lock was held (`ReadOfHeld`) and shows the epoch of the hold's token, or the draining after it (`ReadOfOwnEpoch`).
//!   A read that shows anything else ends the hold, and a hold whose time is over is lost for good. The leader that
//!   leads the scope back waits longer than the row's V before it grants anything, and no process changes that V
//!   before.
//! - **Tokens** rise over all switches: the epoch of the read, and within it a number from `fences`, drawn between two
//!   writes of the lease that were answered as applied, so that the holder with the higher number held later.
//!
//! # What it needs and costs
//!
//! W and V are in the row, as the leader's settings have them. A process has no others, so it cannot wait for less, or
//! hold for longer, than leaders believe. The cost is one read at SERIAL each V/3 for a process and scope that holds or
//! waits here, and none while the native store serves. A lock costs the lease's LWT, a read and an LWT for its fence,
//! and one more renewal. The leases of a scope lie in 16 partitions, so that a leader learns by 16 reads that none is
//! left; LWTs of one partition wait for each other.
//!
//! If a server keeps its authority and this process cannot reach it, no process takes over, and this one waits: the
//! fallback protects the scope, not each client.

mod authority_watcher;
mod row;
mod row_view;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast_keyspace::authority::{Authority, Buckets};
use holdfast_runtime::select;

use super::cassandra::{Cassandra, LockerOptions};
use super::lease::LeaseTable;
use super::lock_task::passing;
use super::locker::{RemoteGuard, RemoteLocker, Wait};
use super::locker_base::LockerBase;
use super::schema::Rows;
use super::statement::{Ident, Value};
use crate::check_lock_name;
use crate::{Error, Result};
use authority_watcher::AuthorityWatcher;
use row::FallbackRow;

/// How long the native store may be unresponsive before Cassandra is asked, and how long it has to serve before
/// Cassandra is left alone again: longer than a stream takes to reconnect. While Cassandra is asked, the process reads
/// the row at SERIAL each V/3.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// The tables: which store serves a scope with fallback, the locks that Cassandra holds meanwhile, and the counters of
/// their tokens. Leases set their TTL; the other rows have none and are never deleted.
pub(crate) const TABLES: [(&str, Rows); 3] = [
    (
        "\"authority\" (\"scope\" text PRIMARY KEY, \"mode\" text, \"epoch\" bigint, \"beat\" bigint, \
     \"take_over_ms\" bigint, \"hold_ms\" bigint, \"cluster\" text)",
        Rows::Kept,
    ),
    (
        "\"fallback_leases\" (\"scope\" text, \"bucket\" bigint, \"name\" text, \"owner\" text, \"value\" text, \
     PRIMARY KEY ((\"scope\", \"bucket\"), \"name\"))",
        Rows::Locks,
    ),
    ("\"fences\" (\"name\" text PRIMARY KEY, \"n\" bigint)", Rows::Kept),
];

/// How this process falls back. Its durations are not set here: they are in the scope's row.
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing until a locker is built with them"]
pub struct FallbackOptions {
    lease: LockerOptions,
}

impl FallbackOptions {
    /// The name of this process in the table of leases, their TTL and skew, and how long a call that does not wait may
    /// take. Default: that of [`LockerOptions`].
    pub fn lease(mut self, options: LockerOptions) -> Self {
        self.lease = options;
        self
    }
}

/// Locks the names of one scope in Cassandra while it serves them. Cheap to clone: clones share one reader of the row.
#[derive(Clone)]
pub(crate) struct Fallback {
    base: LockerBase,
    leases: Arc<LeaseTable>,
    watcher: AuthorityWatcher,
}

impl Fallback {
    /// Locks names that begin with `scope`. This sends nothing.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] if TTL and skew make no sense, or if `scope` is empty (all names).
    pub(crate) fn new(
        cassandra: &Cassandra,
        scope: &str,
        options: &FallbackOptions,
    ) -> Result<Self> {
        if scope.is_empty() {
            let message = "a scope with fallback is a prefix of names, not all names".to_owned();
            return Err(Error::InvalidConfig { message });
        }
        let base = LockerBase::new(cassandra, &options.lease)?;
        let (tables, runtime) = (cassandra.tables().clone(), cassandra.runtime().clone());
        let authority = Authority::new(tables, runtime.clock.clone(), scope);
        Ok(Self {
            base,
            leases: Arc::new(LeaseTable::named("fallback_leases", "name", "owner", "value")),
            watcher: AuthorityWatcher::new(authority, runtime),
        })
    }

    pub(crate) fn scope(&self) -> &str {
        self.watcher.scope()
    }

    async fn acquire(&self, lock_id: &str, wait: Wait) -> Result<RemoteGuard> {
        check_lock_name(lock_id)?;
        let began = self.base.now();
        let deadline = wait.limit(self.base.answer_limit).map(|limit| began + limit);
        let acquiring = self.watcher.acquiring();
        select! {
            () = self.watcher.served() => {}
            () = passing(deadline, &*self.base.runtime().clock) => {
                return Err(self.base.cassandra.unreachable(began, self.watcher.why_not()));
            }
        }
        let wait = wait.until(deadline, self.base.now());
        let row = FallbackRow::new(self, lock_id, acquiring);
        self.base.hold(lock_id, wait, row, Arc::default()).await
    }

    /// The cluster whose leaders keep the scope's authority row, if the last read showed it.
    pub(crate) fn cluster(&self) -> Option<String> {
        self.watcher.cluster()
    }

    /// The partition of the lease of a name.
    fn partition_of(&self, name: &str, buckets: Buckets) -> Vec<(Ident, Value)> {
        vec![
            (Ident::new("scope"), Value::from(self.watcher.scope())),
            (Ident::new("bucket"), Value::from(buckets.of(name))),
        ]
    }
}

impl RemoteLocker for Fallback {
    fn acquire<'a>(&'a self, lock_id: &'a str, wait: Wait) -> BoxFuture<'a, Result<RemoteGuard>> {
        Box::pin(self.acquire(lock_id, wait))
    }
}
