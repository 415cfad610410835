//! The older recipe of the thesis: a main row that says who has the lock, and a shadow row in which those who want it
//! try whether they are alone.
//!
//! Seed: the thesis, §4 (in Russian), listings 3 and 4; their steps are cited where they are, in `row.rs`. No LWT: plain
//! writes and reads at QUORUM, with timestamps of our own. The thesis wrote it down to replace it by the
//! [queue](super::queue), and gives no proof.
//!
//! # What it promises
//!
//! - **Safety.** While a guard is safe, no other client of the recipe has the lock. The thesis' lemma 1 (§5.1), in the
//!   shadow row: of two whose cells stand there, at most one found its own alone. Ours stands there from before the
//!   first look until the lock is given back, and the safe deadline counts from before its last write that was
//!   acknowledged, with that of the main row's cell after it: plus TTL, less `max_skew`, one second and a hundredth.
//!   Who has the lock by the seed's text, and has left the shadow row, is found in the main row at step 10.
//! - **Liveness.** None for sure. Two that come at once both go back, and may meet again; their pauses grow (up to 50 ms
//!   more with each attempt, as in listing 4, up to 10 s), so that this becomes unlikely. The more wait, the longer it takes
//!   until one of them has a free lock.
//! - **Order.** None. Who gives back and comes again at once mostly passes those who pause: bursts.
//! - **Fencing.** None.
//! - A try (no wait) is one run of listing 3: one that meets another one is told that it is not granted, though
//!   nobody may have the lock then.
//!
//! # What it costs
//!
//! To acquire a free lock two writes and three reads at QUORUM, one round trip each; every `(TTL − skew)/3` two writes;
//! two deletes to release. So has the seed, which makes one of the deletes before it is in. Who waits reads the main row
//! twice a second.
//!
//! # Where the seed's text is unsafe, unfair or can stop
//!
//! - *"If there are no cells in the main table"* (step 10). Steps 1 and 8 take cells, step 10 does not: as it stands
//!   it asks what step 1 saw. Who is held up between 1 and 8 for as long as somebody else takes for all of it finds the shadow row
//!   empty again, and goes in beside the holder. Here it is read again. And a holder of ours stays in the shadow row (step
//!   12 comes with the release), so that old clients that read the listing this way are kept out by it.
//! - *"If there is one cell"* (step 9) does not ask whose. A thread's cell that is written again may be hidden by its
//!   own delete of the attempt before, where that had the timestamp of a clock ahead. It then sees the one cell
//!   of somebody else, and goes in beside him. Here it has to be our own, and our timestamps rise.
//! - *The thread's id names its cells for ever.* The main row's cell of a thread that gave back and has the lock again may be hidden by
//!   that delete in the same way: nobody sees the holder. Here every attempt has an id of its own.
//! - *Success on one's own cell* (steps 3 and 4), if two processes have threads of one id, or one thread asks twice: both are in, and the first who
//!   gives back frees it for all. Here whole owner ids are compared, so that it is a repeated step of one attempt.
//! - *No lease.* Who dies between 7 and 12, or with the lock, keeps everybody out for ever. Here both cells have a TTL and are
//!   renewed, as in §5.3; a dead attempt keeps everybody out for a TTL and the skew.
//! - *With the lease of §5.3 and nothing else*, a thread that stalls between 10 and 11 for its TTL goes in beside who came meanwhile.
//!   Here that is no hold, because time counts from the shadow row's cell.
//! - *Bursts*, as the thesis says itself. Nothing mends that but a queue.
//! - *Nobody may ever get it*: two that always come at once. The pauses make it unlikely, here as there.
//!
//! # Beside old clients
//!
//! On the same tables ours exclude old clients, and are excluded by them, however the steps of two fall together
//! (a test goes through all of it, for both readings of step 10). What remains is the old client's: one whose cell is hidden by clocks, one whose
//! thread ids are not its own, or one with a TTL that it stalls for, goes in beside ours as it does beside its like. One
//! without a TTL that dies excludes for ever.
//!
//! The main rows have the queue's name, as the thesis has one name for both. In one keyspace a lock is either a queue's or one of these.

mod row;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::cassandra::{Cassandra, LockerOptions};
use super::cells::{CellColumns, CellLocker};
use super::locker::{OnCassandra, Patience, RemoteGuard, RemoteLocker};
use super::owner::Writer;
use super::statement::Ident;
use crate::Result;
use row::ShadowSpot;

/// Where main and shadow rows are. All columns are of type `text`; the seed names none, and column
/// families made through Thrift show up as `key, column1, value`.
#[derive(Clone, Debug)]
pub struct ShadowTables {
    pub(crate) shadow: Ident,
    pub(crate) main: Ident,
    pub(crate) key: Ident,
    pub(crate) column: Ident,
    pub(crate) value: Ident,
}

impl Default for ShadowTables {
    /// `lock_shadow` and `lock_main`, both `(key, column1, value)`.
    fn default() -> Self {
        Self::named("lock_shadow", "lock_main", ["key", "column1", "value"])
    }
}

impl ShadowTables {
    /// The tables' names, and those of the columns of both, as the server has them.
    #[must_use]
    pub fn named(shadow: &str, main: &str, columns: [&str; 3]) -> Self {
        let [key, column, value] = columns.map(Ident::new);
        Self { shadow: Ident::new(shadow), main: Ident::new(main), key, column, value }
    }

    fn columns(&self) -> CellColumns {
        let Self { key, column, value, .. } = self.clone();
        CellColumns { key, column, value: Some(value) }
    }
}

/// Locks by the shadow recipe; see the [module](self). Cheap to clone.
#[derive(Clone)]
pub struct Shadow {
    cells: CellLocker,
    tables: Arc<ShadowTables>,
}

impl Shadow {
    /// A locker on this keyspace. Nothing is asked of it yet.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`](crate::Error::Setting) if TTL and skew make no sense together.
    pub fn new(
        cassandra: &Cassandra,
        options: &LockerOptions,
        tables: ShadowTables,
    ) -> Result<Self> {
        Ok(Self { cells: CellLocker::new(cassandra, options)?, tables: Arc::new(tables) })
    }

    fn spot(&self, lock_id: &str) -> ShadowSpot {
        ShadowSpot {
            cells: self.cells.cells(lock_id, self.tables.columns()),
            tables: self.tables.clone(),
            in_shadow: false,
            in_main: false,
            attempt: 1,
        }
    }
}

impl RemoteLocker for Shadow {
    fn acquire<'a>(
        &'a self,
        lock_id: &'a str,
        patience: Patience,
    ) -> BoxFuture<'a, Result<RemoteGuard>> {
        Box::pin(self.cells.acquire(lock_id, patience, move || self.spot(lock_id)))
    }

    fn on_cassandra(&self, writer: &Writer) -> Option<OnCassandra> {
        let (cells, recipe) =
            self.cells.written_by(writer, "shadow", &[&self.tables.main, &self.tables.shadow]);
        Some(OnCassandra::new(Self { cells, ..self.clone() }, recipe))
    }
}

impl fmt::Debug for Shadow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shadow").field("tables", &self.tables).finish_non_exhaustive()
    }
}
