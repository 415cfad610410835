//! The lease: one row for each lock, with an owner and a TTL, changed by LWT alone.
//!
//! Article: leases and leader election with Paxos in Cassandra. `row.rs` cites its four statements
//! where it sends them.
//!
//! # What it promises
//!
//! - **Safety.** While a guard is safe, no other client of the recipe has the row. Paxos decides
//!   `IF NOT EXISTS` and `IF owner = …` one after the other. The row vanishes by its TTL only, and
//!   a guard stops being safe before that: at the start of its last renewal that was answered as
//!   applied, plus TTL, less `max_skew`, one second (a TTL ends on a whole second) and a hundredth.
//! - **Liveness.** A lock whose holder died is free after TTL and skew at the latest. One of three
//!   nodes may be down. Chance decides which waiter gets a free lock.
//! - **Order.** None. The first waiter that looks after a release gets the lock; others may starve.
//! - **Fencing.** None: the recipe has no number that grows. [`Sequence`] provides one.
//!
//! # What it costs
//!
//! One LWT to acquire a free lock, one each `(TTL − skew)/3` to renew, one to release. A waiter
//! reads at QUORUM every 50 ms to 2 s, with jitter, and at SERIAL (a Paxos round without a write) while the outcome of an
//! insert of its own is open. Of several waiters of one process the first reads for all.
//!
//! # Where the article's text is unsafe, unfair or can stop
//!
//! - *"We know we have it for a max of 3 minutes"*: less, by the difference of the nodes' clocks.
//!   The coordinator that writes decides when the row ends, and the one that reads decides whether
//!   it has ended: 60 s of skew take a minute off. A holder that counts 180 s from the answer
//!   overlaps with the next holder.
//! - *The value vanishes.* A TTL belongs to a cell, and the article renews only `owner`: 180 s
//!   after the leader set the value it is gone, while the leader still leads. Here each renewal
//!   writes both.
//! - *An answer that does not come*: the article does not mention it. Under contention about half
//!   of all LWTs end without an answer (`WriteTimeout` of type CAS) and may have been applied. A
//!   client that takes this for a refusal leaves a row behind that locks out every client for a
//!   TTL, itself included. Here the client reads the row at SERIAL, and a row that carries its own
//!   id counts from a renewal of its own.
//! - *Write time plus TTL as the time to wait*: write times of LWTs are Paxos ballots, which run
//!   ahead with the fastest clock and stay ahead. Here the remaining TTL shortens a pause and
//!   decides nothing.
//! - *Fairness*: the article does not mention it. All waiters poll, and a client that comes just in
//!   time passes all of them.
//! - *Sequences*: the article only names them. In the lease's own row a counter would end with its
//!   TTL and begin again; see [`Sequence`].

mod election;
mod row;
mod sequence;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::Notify;

use super::cassandra::{Cassandra, LockerOptions};
use super::locker::{OnCassandra, RemoteGuard, RemoteLocker, Wait};
use super::locker_base::LockerBase;
use super::owner::Writer;
use super::recipe::{Names, Naming, Recipe, RecipeSpec, TableSpec};
use super::statement::Ident;
use crate::Result;
use crate::check_lock_name;
pub use election::{Leader, Leadership, Observer};
pub(crate) use row::LeaseRow;
use row::WantedValue;
pub(crate) use sequence::{Drawn, PAUSE_MAX, SequenceRows, UNDER_WAY_MAX, moved};
pub use sequence::{Sequence, SequencePlace, Sequences};

/// The names of the tables and columns, for deployments with other names. Columns are of type
/// `text`.
#[derive(Clone, Debug)]
pub struct LeaseTable {
    pub(crate) table: Ident,
    pub(crate) name: Ident,
    pub(crate) owner: Ident,
    pub(crate) value: Ident,
    pub(crate) sequences: Ident,
}

/// Article, "The Data Model".
pub(crate) const LEASES: TableSpec = TableSpec {
    name: Naming::new("lease-table", &[("TABLE", "leases", "")], "The leases"),
    columns: Naming::new(
        "lease-columns",
        &[("NAME", "name", "text"), ("OWNER", "owner", "text"), ("VALUE", "value", "text")],
        "Their columns: the lock, its owner, its value",
    ),
    key: 1,
};

const SEQUENCES: Naming =
    Naming::new("sequences-table", &[("TABLE", "sequences", "")], "The sequences");

pub(crate) const SPEC: RecipeSpec = RecipeSpec {
    name: "lease",
    rows: "A row with an owner and a TTL for each lock",
    tables: &[LEASES],
    names: &[LEASES.name, LEASES.columns, SEQUENCES],
    locker: |on, options, layout| Ok(Arc::new(Lease::new(on, options, layout.lease.clone())?)),
};

impl Default for LeaseTable {
    /// `leases(name, owner, value)`, as in the article, and `sequences(name, next)`.
    fn default() -> Self {
        Self::of(&Names::default())
    }
}

impl LeaseTable {
    /// Names the table, and its columns for the lock, its owner and its value. Names are exact,
    /// capitals included.
    #[must_use]
    pub fn named(table: &str, name: &str, owner: &str, value: &str) -> Self {
        Self {
            table: Ident::new(table),
            name: Ident::new(name),
            owner: Ident::new(owner),
            value: Ident::new(value),
            ..Self::default()
        }
    }

    pub(crate) fn of(names: &Names) -> Self {
        let [name, owner, value] = names.each(&LEASES.columns).map(Ident::new);
        let [table, sequences] =
            [LEASES.name, SEQUENCES].map(|naming| Ident::new(names.one(&naming)));
        Self { table, name, owner, value, sequences }
    }

    /// Rows of this client set their TTL; the table's default is for clients that do not.
    pub(crate) fn created(&self) -> [String; 2] {
        let Self { table, name, owner, value, sequences } = self;
        let sequences = format!("{sequences} (\"name\" text PRIMARY KEY, \"next\" bigint)");
        let leases = LEASES.created(table, &[name, owner, value]);
        [leases + " WITH default_time_to_live = 180", sequences]
    }

    /// Names the sequences' table; its columns are `name` and `next`.
    #[must_use]
    pub fn with_sequences(mut self, table: &str) -> Self {
        self.sequences = Ident::new(table);
        self
    }
}

/// Locks by the lease recipe; see the [module](self). Cheap to clone.
#[derive(Clone)]
pub struct Lease {
    base: LockerBase,
    table: Arc<LeaseTable>,
}

impl Lease {
    /// A locker on this keyspace. It sends no statement yet.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`](crate::Error::InvalidConfig) if TTL and skew do not fit together.
    pub fn new(cassandra: &Cassandra, options: &LockerOptions, table: LeaseTable) -> Result<Self> {
        Ok(Self { base: LockerBase::new(cassandra, options)?, table: Arc::new(table) })
    }

    async fn acquire_with(
        &self,
        name: &str,
        wait: Wait,
        value: Arc<WantedValue>,
        renew_now: Arc<Notify>,
    ) -> Result<RemoteGuard> {
        check_lock_name(name)?;
        let row = LeaseRow::new(&self.base, &self.table, name, value);
        self.base.hold(name, wait, row, renew_now).await
    }
}

impl RemoteLocker for Lease {
    fn acquire<'a>(&'a self, lock_id: &'a str, wait: Wait) -> BoxFuture<'a, Result<RemoteGuard>> {
        Box::pin(self.acquire_with(lock_id, wait, Arc::default(), Arc::default()))
    }

    fn on_cassandra(&self, writer: &Writer) -> Option<OnCassandra> {
        let base = self.base.written_by(writer);
        let lease = Self { base, ..self.clone() };
        let built = self.base.built_on(Recipe::Lease, &[&self.table.table], lease.clone());
        Some(OnCassandra { elections: Some(lease), ..built })
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease").field("table", &self.table).finish_non_exhaustive()
    }
}
