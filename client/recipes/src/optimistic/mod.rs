//! Optimistic tokens: a client writes a row beside all others, and has the lock if it then finds its row alone.
//!
//! Article: the Scylla article's first table and listing ("what I like to call it — a very optimistic lock"), which it
//! gave up for [tokens](super::tokens) with LWT. No LWT: plain writes and reads at QUORUM, with the client's own
//! timestamps.
//!
//! # What it promises
//!
//! - **Safety.** While a guard is safe, no other client of the recipe has the lock: lemma 1 of the thesis (§5.1). Of two
//!   clients whose rows stand, at most one found its row alone. The safe deadline counts from before the last write of
//!   the client's row that was acknowledged, plus TTL, less `max_skew`, one second and a hundredth.
//! - **Liveness.** None. *"If a certain number of workers were all interested in locking the same resource, there was no
//!   guarantee that any of them would ever succeed."* Here too: pauses are random and grow up to 2 s, and a client that
//!   found others looks before it writes again. That makes it unlikely that no client succeeds; it ensures nothing. For
//!   more than a handful of workers at one lock take any other recipe.
//! - **Order.** None; a waiter may starve.
//! - **Fencing.** None.
//! - A `try` (no wait) that meets another attempt is not granted, though no client may have the lock then: a row does not
//!   show whether its owner holds or tries.
//!
//! # What it costs
//!
//! To acquire a free lock one write and one read at QUORUM; every `(TTL − skew)/3` a write; a delete to release: three
//! round trips, the fewest of all recipes. A waiter reads once for each pause, of a second on average. Each hold and each
//! collision leaves a tombstone.
//!
//! # Where the article's text is unsafe, unfair or can stop
//!
//! With a new session id for each turn of the loop, as the text says, it lets no two workers in. It stops:
//!
//! - *No worker gets the lock*: the article's own example, which may go on for ever. See above.
//! - *A crash.* Whatever row its worker leaves when it dies excludes all others for ever. The article has heartbeats and
//!   a housekeeper for its second table only; here they would not do, because a row does not show whether it is a
//!   holder's or an attempt's, and an attempt does not beat. So rows have a TTL, and are renewed, as those of the
//!   [queue](super::queue). An old client's row still has none.
//! - *No answer.* Each turn draws the next id: the row of a write without an answer belongs to no later turn, and
//!   excludes for ever. Here an attempt keeps its id, and deletes its row.
//! - *A delete by another clock.* A coordinator that is behind the one that wrote deletes nothing: the row stands for
//!   ever. Here the timestamps of a process rise.
//! - *A waiter for a held lock* writes and deletes in each turn, and so keeps others out once the lock is free. Here it
//!   looks first.
//!
//! # Beside old clients
//!
//! This recipe's clients exclude old ones and are excluded by them. The row that an old one leaves when it dies excludes
//! for ever: it has to be deleted by hand. The article has two tables of one name, `index_lock.tokens` and
//! `lwt_lock.tokens`, in two keyspaces. Here recipes share a keyspace, and this one's table is `optimistic_tokens` unless
//! it is [named](OptimisticTable::named) otherwise.

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::cassandra::{Cassandra, LockerOptions};
use super::cells::{CellColumns, OwnCells, drawn_up_to};
use super::database::Fault;
use super::lock_task::{Attempt, Left, Reached, Renewal};
use super::locker::{OnCassandra, RemoteGuard, RemoteLocker, Wait};
use super::locker_base::LockerBase;
use super::owner::Writer;
use super::recipe::{Names, Naming, Recipe, RecipeSpec, TableSpec};
use super::statement::Ident;
use crate::Result;

/// The name of the tokens' table, whose key is both columns, of type `text`.
#[derive(Clone, Debug)]
pub struct OptimisticTable {
    pub(crate) tokens: Ident,
    pub(crate) token: Ident,
    pub(crate) session: Ident,
}

/// Article, the first `tokens` table: it has a keyspace of its own there, and so another name here.
const TOKENS: TableSpec = TableSpec {
    name: Naming::new(
        "optimistic-table",
        &[("TABLE", "optimistic_tokens", "")],
        "The optimistic tokens",
    ),
    columns: Naming::new(
        "optimistic-columns",
        &[("TOKEN", "token", "text"), ("SESSION", "service_session_id", "text")],
        "Their columns: the token, the session that wants it",
    ),
    key: 2,
};

pub(crate) const SPEC: RecipeSpec = RecipeSpec {
    name: "tokens-optimistic",
    rows: "A row for each session that wants a lock",
    tables: &[TOKENS],
    names: &[TOKENS.name, TOKENS.columns],
    locker: |on, options, layout| {
        Ok(Arc::new(OptimisticTokens::new(on, options, layout.optimistic.clone())?))
    },
};

impl Default for OptimisticTable {
    /// `optimistic_tokens(token, service_session_id)`.
    fn default() -> Self {
        Self::of(&Names::default())
    }
}

impl OptimisticTable {
    /// Names the table and its columns exactly as the server has them.
    #[must_use]
    pub fn named(table: &str, columns: [&str; 2]) -> Self {
        let [token, session] = columns.map(Ident::new);
        Self { tokens: Ident::new(table), token, session }
    }

    pub(crate) fn of(names: &Names) -> Self {
        Self::named(names.one(&TOKENS.name), names.each(&TOKENS.columns))
    }

    pub(crate) fn created(&self) -> String {
        TOKENS.created(&self.tokens, &[&self.token, &self.session])
    }
}

/// Locks by optimistic tokens; see the [module](self). Cheap to clone.
#[derive(Clone)]
pub struct OptimisticTokens {
    base: LockerBase,
    table: Arc<OptimisticTable>,
}

impl OptimisticTokens {
    /// A locker on this keyspace. It sends no statement yet.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`](crate::Error::InvalidConfig) if TTL and skew do not fit together.
    pub fn new(
        cassandra: &Cassandra,
        options: &LockerOptions,
        table: OptimisticTable,
    ) -> Result<Self> {
        Ok(Self { base: LockerBase::new(cassandra, options)?, table: Arc::new(table) })
    }

    fn attempt(&self, lock_id: &str) -> OptimisticAttempt {
        let OptimisticTable { token, session, .. } = &*self.table;
        let columns = CellColumns { key: token.clone(), column: session.clone(), value: None };
        OptimisticAttempt {
            cells: OwnCells::new(&self.base, lock_id, columns),
            table: self.table.clone(),
            written: false,
            look_first: false,
            attempts: 0,
        }
    }
}

impl RemoteLocker for OptimisticTokens {
    fn acquire<'a>(&'a self, lock_id: &'a str, wait: Wait) -> BoxFuture<'a, Result<RemoteGuard>> {
        Box::pin(self.base.acquire(lock_id, wait, move || self.attempt(lock_id)))
    }

    fn on_cassandra(&self, writer: &Writer) -> Option<OnCassandra> {
        let base = self.base.written_by(writer);
        let built = Self { base, ..self.clone() };
        Some(self.base.built_on(Recipe::TokensOptimistic, &[&self.table.tokens], built))
    }
}

impl fmt::Debug for OptimisticTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OptimisticTokens").field("table", &self.table).finish_non_exhaustive()
    }
}

/// "Random sleep between lock retries": the longest one after the first attempt. It doubles with each.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// One attempt: its row, beside those of other clients that want the token.
struct OptimisticAttempt {
    cells: OwnCells,
    table: Arc<OptimisticTable>,
    /// This attempt's row may be there, or may still arrive.
    written: bool,
    /// Other rows were there: look before the next write.
    look_first: bool,
    attempts: u32,
}

impl OptimisticAttempt {
    async fn take_back(&mut self) -> Result<(), Fault> {
        if self.written {
            self.cells.erase_owner(&self.table.tokens).await?;
        }
        self.written = false;
        Ok(())
    }

    /// Pauses the same way for a holder and for another attempt: their rows look alike.
    fn try_again(&mut self, owner: Option<String>) -> Reached {
        let longest =
            PAUSE_FIRST.saturating_mul(1_u32.checked_shl(self.attempts).unwrap_or(u32::MAX));
        self.attempts = self.attempts.saturating_add(1);
        let after = drawn_up_to(longest.min(PAUSE_MAX), &*self.cells.base.runtime().rng);
        Reached::TryAgain { owner, after }
    }
}

impl Attempt for OptimisticAttempt {
    const RECIPE: &'static str = SPEC.name;

    fn takes_turns(&self) -> bool {
        true
    }

    /// The article's loop, without its sleep. An attempt that found others looks first, which the article does not: each
    /// row that has to be deleted again is a tombstone, and keeps others from a token that is free.
    async fn advance(&mut self) -> Result<Reached, Fault> {
        let table = self.table.clone();
        if self.look_first
            && let Some(owner) = self.cells.seen(&table.tokens).await?.other
        {
            self.take_back().await?;
            return Ok(self.try_again(Some(owner)));
        }
        // "write (token, service_session_id) to index_lock.tokens"
        self.written = true;
        let started = self.cells.put_owner(&table.tokens).await?;
        // "entries = read token", and "if it finds only itself".
        let seen = self.cells.seen(&table.tokens).await?;
        if seen.is_ours_alone() {
            return Ok(Reached::Hold { started });
        }
        // "delete (token, service_session_id) from index_lock.tokens"
        self.look_first = true;
        self.take_back().await?;
        Ok(self.try_again(seen.other))
    }

    async fn renew(&mut self) -> Renewal {
        let put = self.cells.put_owner(&self.table.tokens).await;
        put.map_or(Renewal::Unknown, Renewal::Applied)
    }

    async fn give_back(&mut self) -> Result<Left, Fault> {
        let had = self.written;
        self.take_back().await?;
        Ok(if had { Left::Released } else { Left::NotHad })
    }
}
