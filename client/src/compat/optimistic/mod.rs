//! Optimistic tokens: whoever wants a lock writes a row beside all others, and has it if it then finds itself alone.
//!
//! Seed: the Scylla article's first table and listing ("what I like to call it — a very optimistic lock"), which it gave up
//! for [tokens](super::tokens) with LWT. No LWT: plain writes and reads at QUORUM, with timestamps of our own.
//!
//! # What it promises
//!
//! - **Safety.** While a guard is safe, no other client of the recipe has the lock: lemma 1 of the thesis (§5.1). Of two whose
//!   rows stand, at most one found itself alone. The safe deadline counts from before the last write of our row that was
//!   acknowledged, plus TTL, less `max_skew`, one second and a hundredth.
//! - **Liveness.** None. *"If a certain number of workers were all interested in locking the same resource, there was no guarantee
//!   that any of them would ever succeed."* Here too: pauses are random and grow up to 2 s, and who found others there looks before
//!   it writes again. That makes it unlikely that many get nowhere; it ensures nothing. For more than a handful of
//!   workers at one lock take any other recipe.
//! - **Order.** None; a waiter may starve.
//! - **Fencing.** None.
//! - A try (no wait) that meets another one is told that it is not granted, though nobody may have the lock then: a row
//!   does not say whether its owner holds or tries.
//!
//! # What it costs
//!
//! To acquire a free lock one write and one read at QUORUM; every `(TTL − skew)/3` a write; a delete to release: three round trips, the fewest of
//! all. Who waits reads once for each pause, of a second on average. A deployment pays a tombstone for each hold and each collision.
//!
//! # Where the seed's text is unsafe, unfair or can stop
//!
//! With a session id of its own for each turn of the loop, which is what it says, the text lets no two in. It stops:
//!
//! - *Nobody gets the lock*: the article's own example, which may go on for ever. Above.
//! - *A crash.* Whatever row is there when its worker dies excludes everybody for ever. The article has heartbeats and a housekeeper for its
//!   second table only; here they would not do, because a row does not say whether it is a holder's or an attempt's, and an attempt does not beat.
//!   So rows have a TTL, and are renewed, as those of the [queue](super::queue). An old client's row still has none.
//! - *No answer.* Each turn draws the next id: the row of one whose write was not answered is nobody's, and excludes for ever. Here an
//!   attempt keeps its id, and takes its row back.
//! - *A delete by another clock.* A coordinator that is behind the one that wrote deletes nothing: the row stands for ever. Here the
//!   timestamps of a process rise.
//! - *Who waits for a lock that is held* writes and deletes in each turn, and so keeps others out once it is free. Here it looks first.
//!
//! # Beside old clients
//!
//! Ours exclude them and are excluded by them. What an old one leaves when it dies excludes for ever: it has to be deleted by hand.
//! The article has two tables of one name, `index_lock.tokens` and `lwt_lock.tokens`, in two keyspaces. Here recipes share a keyspace, and
//! this one's table is `optimistic_tokens` unless it is [named](OptimisticTable::named) otherwise.

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
use row::OptimisticSpot;

/// Where the tokens are: a table whose key is both columns, of type `text`.
#[derive(Clone, Debug)]
pub struct OptimisticTable {
    pub(crate) tokens: Ident,
    pub(crate) token: Ident,
    pub(crate) session: Ident,
}

impl Default for OptimisticTable {
    /// `optimistic_tokens(token, service_session_id)`.
    fn default() -> Self {
        Self::named("optimistic_tokens", ["token", "service_session_id"])
    }
}

impl OptimisticTable {
    /// Its name, and those of its columns, as the server has them.
    #[must_use]
    pub fn named(table: &str, columns: [&str; 2]) -> Self {
        let [token, session] = columns.map(Ident::new);
        Self { tokens: Ident::new(table), token, session }
    }
}

/// Locks by optimistic tokens; see the [module](self). Cheap to clone.
#[derive(Clone)]
pub struct OptimisticTokens {
    cells: CellLocker,
    table: Arc<OptimisticTable>,
}

impl OptimisticTokens {
    /// A locker on this keyspace. Nothing is asked of it yet.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`](crate::Error::Setting) if TTL and skew make no sense together.
    pub fn new(
        cassandra: &Cassandra,
        options: &LockerOptions,
        table: OptimisticTable,
    ) -> Result<Self> {
        Ok(Self { cells: CellLocker::new(cassandra, options)?, table: Arc::new(table) })
    }

    fn spot(&self, lock_id: &str) -> OptimisticSpot {
        let OptimisticTable { token, session, .. } = &*self.table;
        let columns = CellColumns { key: token.clone(), column: session.clone(), value: None };
        OptimisticSpot {
            cells: self.cells.cells(lock_id, columns),
            table: self.table.clone(),
            written: false,
            look_first: false,
            attempts: 0,
        }
    }
}

impl RemoteLocker for OptimisticTokens {
    fn acquire<'a>(
        &'a self,
        lock_id: &'a str,
        patience: Patience,
    ) -> BoxFuture<'a, Result<RemoteGuard>> {
        Box::pin(self.cells.acquire(lock_id, patience, move || self.spot(lock_id)))
    }

    fn on_cassandra(&self, writer: &Writer) -> Option<OnCassandra> {
        let (cells, recipe) = self.cells.written_by(writer, "tokens", &[&self.table.tokens]);
        Some(OnCassandra::new(Self { cells, ..self.clone() }, recipe))
    }
}

impl fmt::Debug for OptimisticTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OptimisticTokens").field("table", &self.table).finish_non_exhaustive()
    }
}
