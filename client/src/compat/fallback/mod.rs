//! Locks in Cassandra while the native store cannot serve their scope, and only then (DESIGN §10): the net under
//! [`LockerMode::Fallback`](super::LockerMode::Fallback).
//!
//! Two stores that do not know each other need an arbiter: the row of the scope in the table `authority`, which a
//! leading server keeps and clients take over when that server is gone. The lock itself is the lease of
//! [`lease`](super::lease), in a table of its own.
//!
//! # Why no other hold of the name is safe at the same time
//!
//! What true time each process measures is measured on its own clock, which counts suspended time; two clocks are
//! compared nowhere, and no TTL column decides which store serves. The names in brackets are the rules that a model was
//! searched for (`tests/model/src/authority/rule.rs`); a mutant breaks each of them.
//!
//! - **Taking over.** The row is read again and again while somebody waits, and has to show the same, down to the beat,
//!   for the W that stands in it (`DurationsOfTheRow`), counted from the *end* of the first read that did
//!   (`WaitFromReadEnd`, `TakeOverWaits`, `DrainTakeOverWaits`, `BeatCompared`). Then it is changed to `cassandra` in the
//!   next epoch, if it is still so. A leader that had authority had it from a bump before that first read, and counted it
//!   by a W that is no longer, so it is over. No answer, or another row: it is read again, and nothing is concluded
//!   (`UnknownTakeOverFails`). Nobody takes over from `preparing` or `retired`.
//! - **Holding.** A lock is asked for only under a read that showed `cassandra` (`NoEntryWhileDraining`), and the hold is
//!   safe until V·(1 − a), by the V that it showed, after the *start* of that read (`HoldFromReadStart`), or until the
//!   lease's own safe deadline, if that is earlier. A later read moves it on only if it *began* when the lock was had
//!   (`ReadOfHeld`) and shows the epoch of the hold's token, or the draining after it (`ReadOfOwnEpoch`). Any other ends
//!   the hold, and a hold whose time is over is lost for good. The leader that leads the scope back waits longer than the
//!   row's V before it grants anything, and nobody changes that V before.
//! - **Tokens** rise over all switches: the epoch of the read, and in it a number from `fences`, drawn between two writes
//!   of the lease that were answered as applied, so that who drew the higher one held later.
//!
//! # What it needs and costs
//!
//! W and V stand in the row, as the leader's settings have them: a process has no others, so that it cannot wait for
//! less, or hold for longer, than leaders believe. One read at SERIAL each V/3 for a process and scope that holds or
//! waits here, and none while the native store serves. A lock costs the lease's LWT, a read and an LWT for its fence,
//! and one more renewal. The leases of a scope lie in 16 partitions, so that a leader finds out by 16 reads that none is
//! left; LWTs of one partition wait for each other.
//!
//! If a server keeps its authority and this process cannot reach it, nobody takes over, and the process waits: the
//! net is under the scope, not under each client.

mod course;
mod fence;
mod lookout;
mod row;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast_cassandra::authority::{Authority, BUCKETS};
use holdfast_seams::select;

use super::cassandra::{Cassandra, LockerOptions};
use super::keeper::{Keeping, passing};
use super::lease::LeaseTable;
use super::locker::{Patience, RemoteGuard, RemoteLocker};
use super::name::check_lock_name;
use super::owner::Signature;
use super::statement::{Ident, Value};
use crate::{Error, Result};
use lookout::Lookout;
use row::FallbackRow;

/// How long the native store may be silent before Cassandra is looked at, and how long it has to serve before that is
/// left alone again: longer than a stream takes to be made anew. A look costs a read at SERIAL each V/3.
const PATIENCE: Duration = Duration::from_secs(1);

/// How this process falls back. How long things last is no setting of it: that stands in the scope's row.
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing until a locker is built with them"]
pub struct FallbackOptions {
    lease: LockerOptions,
}

impl FallbackOptions {
    /// What this process is called in the table of leases, their TTL and skew, and how long a call that does not wait may
    /// take. Default: that of [`LockerOptions`].
    pub fn lease(mut self, options: LockerOptions) -> Self {
        self.lease = options;
        self
    }
}

/// Locks the names of one scope in Cassandra, while that serves them. Cheap to clone: clones share one reader of the
/// row.
#[derive(Clone)]
pub(crate) struct Fallback {
    cassandra: Cassandra,
    keeping: Keeping,
    signature: Signature,
    leases: Arc<LeaseTable>,
    lookout: Lookout,
}

impl Fallback {
    /// Of names that begin with `scope`. Nothing is asked yet.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] if TTL and skew make no sense, or the scope is that of all names.
    pub(crate) fn new(
        cassandra: &Cassandra,
        scope: &str,
        options: &FallbackOptions,
    ) -> Result<Self> {
        if scope.is_empty() {
            let message = "a scope with fallback is a prefix of names, not all names".to_owned();
            return Err(Error::Setting { message });
        }
        let keeping = cassandra.keeping(&options.lease)?;
        let (tables, seams) = (cassandra.tables().clone(), cassandra.seams().clone());
        let authority = Authority::new(tables, seams.clock.clone(), scope);
        Ok(Self {
            cassandra: cassandra.clone(),
            keeping,
            signature: cassandra.sign(&options.lease),
            leases: Arc::new(LeaseTable::named("fallback_leases", "name", "owner", "value")),
            lookout: Lookout::new(authority, seams),
        })
    }

    /// How long the native store may be silent before Cassandra is looked at.
    pub(crate) fn patience() -> Duration {
        PATIENCE
    }

    async fn acquire(&self, lock_id: &str, patience: Patience) -> Result<RemoteGuard> {
        check_lock_name(lock_id)?;
        let seams = self.keeping.seams.clone();
        let began = seams.clock.now();
        let deadline = patience.limit(self.keeping.answer_limit).map(|limit| began + limit);
        let acquiring = self.lookout.acquiring();
        select! {
            () = self.lookout.served() => {}
            () = passing(deadline, &*seams.clock) => {
                let waited = seams.clock.now().saturating_since(began);
                let endpoints = self.cassandra.nodes();
                return Err(Error::Unreachable { endpoints, waited, last: self.lookout.why_not() });
            }
        }
        let patience = patience.until(deadline, seams.clock.now());
        let row = FallbackRow::new(self, lock_id, acquiring);
        let service = self.signature.service();
        self.keeping.acquire(lock_id, service, patience, row, Arc::default()).await
    }

    /// The cluster whose leaders keep the scope's row of authority, as far as that was read.
    pub(crate) fn cluster(&self) -> Option<String> {
        self.lookout.cluster()
    }

    /// The partition that the lease of a name lies in.
    fn partition_of(&self, name: &str) -> Vec<(Ident, Value)> {
        vec![
            (Ident::new("scope"), Value::from(self.lookout.scope())),
            (Ident::new("bucket"), Value::from(bucket_of(name))),
        ]
    }
}

/// FNV-1a: spreads names, and is the same in every process for ever.
fn bucket_of(name: &str) -> i64 {
    let mixed = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // The low bits alone are mixed little.
    let folded = (mixed ^ (mixed >> 32)) & 0xffff_ffff;
    i64::try_from(folded).unwrap_or_default() % BUCKETS
}

impl RemoteLocker for Fallback {
    fn acquire<'a>(
        &'a self,
        lock_id: &'a str,
        patience: Patience,
    ) -> BoxFuture<'a, Result<RemoteGuard>> {
        Box::pin(self.acquire(lock_id, patience))
    }
}
