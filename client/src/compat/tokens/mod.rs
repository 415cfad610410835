//! Tokens: a row with a session for each lock, changed by LWT alone; sessions beat in a table of their
//! own, and a housekeeper clears up after those that stop.
//!
//! Seed: the article on service resilience with `ScyllaDB`, part 3, its second solution ("Luckily, at the
//! time, `ScyllaDB` just released a version with lightweight transactions"). Its sentences are cited
//! where their steps are, in `rows.rs`, `session.rs`, `batch.rs` and `housekeeper.rs`.
//!
//! # What it promises
//!
//! - **Safety.** While a guard is safe, no other client of the recipe has the token. `IF NOT EXISTS` is
//!   decided by Paxos; a token has no TTL, so it stands until its session takes it back or a housekeeper
//!   removes it; and a housekeeper removes it only once the session's row is gone. That row goes by an
//!   LWT on the timestamp of a heartbeat that the housekeeper has watched, unchanged, for the grace, by
//!   its own watch. The guard has stopped being safe before: at the start of the last heartbeat that
//!   was answered as applied, plus [`ttl`](super::LockerOptions::ttl) (which is the grace), less
//!   `max_skew`, one second and a hundredth. A session that was ended cannot beat again.
//! - **Liveness.** Only as long as a [`Housekeeper`] runs somewhere: nothing here has a TTL, and the lock
//!   of a holder that died stays taken without one. With one, it is free a grace and two
//!   sweeps after the death; a grace later if the housekeeper dies in the middle of that. One of three nodes
//!   may be down. A waiter gets a free token with chance, not by right.
//! - **Order.** None. Who looks first after a release has it; a waiter may starve behind others.
//! - **Fencing.** None: the recipe has no number that grows. A holder that is paused between its look at
//!   the guard and its write can write after the housekeeper has passed its token on; nothing in these
//!   tables can hold that back.
//!
//! On top of what the [module above](super) assumes: every housekeeper's grace is at least the
//! locker's TTL. Ours wait for as long as a session's id says (`hf1:SERVICE/…:SECONDS`), whatever their
//! own grace. A housekeeper of somebody else's that compares timestamps with its clock compares them
//! with the wall clock of *this* process: that is what `max_skew` is taken off for here, and the
//! two may differ by that much.
//!
//! # What it costs
//!
//! To acquire a free token a read at SERIAL and two LWTs (the session, the token), one after the other;
//! each third of what is certain one LWT, for all tokens of a session; two LWTs to release (the token is
//! free after the first). A batch of n tokens: n reads, n + 1 LWTs, sixteen at once. A waiter reads at
//! SERIAL every 50 ms to 2 s, with jitter. A sweep reads both tables whole.
//!
//! # Where the seed's text is unsafe, unfair or can stop
//!
//! - *"delete token"* does not ask whose, and is no LWT. A holder that wakes after the housekeeper passed
//!   its token on deletes the next one's. Worse, a plain delete has its coordinator's time and an LWT
//!   that of its ballot: where clocks differ, the delete of a node that is ahead hides the *next* insert
//!   too, which was answered as applied, and two are in; that of a node that is behind deletes nothing,
//!   and the token stays. Here a delete is an LWT on the session.
//! - *"Tokens that did not heartbeat in time get deleted"*: also those of a holder that was only paused,
//!   and it does not know. Nothing in the seed ends its belief. Here the guard does, before the grace.
//! - *The heartbeat may come between the housekeeper's look and its delete*: then a live holder loses
//!   its token; and one that was released meanwhile is deleted under its next holder. Here the
//!   session's row goes first, only if it has not beaten since, and then only what is still that session's.
//! - *A timestamp is compared with a clock.* A housekeeper whose clock is ahead by more than the grace
//!   deletes what everybody holds. Here timestamps are compared with themselves.
//! - *A plain heartbeat brings a session back* whose tokens are gone, and one that comes late puts an
//!   older timestamp over a newer one. Here each is applied only on top of the one before it.
//! - *"Upon acquiring a bunch of locks, a worker starts heartbeating"*: one that dies in between leaves
//!   tokens that no session lists, which a housekeeper that goes by `token_times` never sees: they stay
//!   for ever. Here the session's row is there before its first token, and the housekeeper reads both
//!   tables: a token without a session is a stray, and goes a grace after it was first seen.
//! - *An answer that does not come* is not spoken of. The next turn of the loop draws another session,
//!   and the token that the first one may have taken stays without a heartbeat. Here the token is read
//!   at SERIAL, and what was given up is taken back.
//! - *The housekeeper is one process.* Two that delete without a condition delete the next holder's token.
//!   Here any number may run.
//! - *"sleep 1"*: all who wait poll, and one who comes just in time passes all of them.
//! - *The list of tokens* in `token_times` names what was held at the last heartbeat. It is written for
//!   others; here nothing is decided by it.
//! - The listings do not parse (`PRIMARY KEY ((key), id)` in a table without such columns, a parenthesis
//!   is missing), and the loop deletes the token it has just got: the work goes between.

mod batch;
mod housekeeper;
mod rows;
mod session;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::cassandra::{Cassandra, LockerOptions};
use super::keeper::Keeping;
use super::locker::{OnCassandra, Patience, RemoteGuard, RemoteLocker};
use super::name::check_lock_name;
use super::owner::{Signature, Writer};
use super::statement::Ident;
use crate::Result;
pub use batch::{Batch, Bunch};
pub use housekeeper::{Housekeeper, Removed, Sweep};
use rows::TokenRows;
#[doc(hidden)]
pub use session::term_of;

/// Where the tokens and the heartbeats are, for deployments that call them otherwise.
#[derive(Clone, Debug)]
pub struct TokenTables {
    pub(crate) tokens: Ident,
    pub(crate) token: Ident,
    pub(crate) session: Ident,
    pub(crate) timestamp: Ident,
    pub(crate) times: Ident,
    pub(crate) beating: Ident,
    pub(crate) held: Ident,
    pub(crate) beat: Ident,
}

impl Default for TokenTables {
    /// `tokens("token", service_session_id, timestamp)` and
    /// `token_times(service_session_id, tokens, timestamp)`, as in the seed.
    fn default() -> Self {
        Self::named(
            "tokens",
            ["token", "service_session_id", "timestamp"],
            "token_times",
            ["service_session_id", "tokens", "timestamp"],
        )
    }
}

impl TokenTables {
    /// The table of tokens and its columns for the token (`text`, the key), its session (`text`) and
    /// since when (`timestamp`); that of heartbeats and its columns for the session (`text`, the key),
    /// its tokens (`list<text>`) and the last heartbeat (`timestamp`). As the server has them.
    #[must_use]
    pub fn named(
        tokens: &str,
        tokens_columns: [&str; 3],
        times: &str,
        times_columns: [&str; 3],
    ) -> Self {
        let [token, session, timestamp] = tokens_columns.map(Ident::new);
        let [beating, held, beat] = times_columns.map(Ident::new);
        let (tokens, times) = (Ident::new(tokens), Ident::new(times));
        Self { tokens, token, session, timestamp, times, beating, held, beat }
    }
}

/// Locks by the tokens recipe with LWT; see the [module](self). Cheap to clone.
#[derive(Clone)]
pub struct Tokens {
    cassandra: Cassandra,
    keeping: Keeping,
    tables: Arc<TokenTables>,
    signature: Signature,
}

impl Tokens {
    /// A locker on this keyspace. Nothing is asked of it yet. The TTL of `options` is the grace that
    /// housekeepers give at least.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`](crate::Error::Setting) if TTL and skew make no sense together.
    pub fn new(
        cassandra: &Cassandra,
        options: &LockerOptions,
        tables: TokenTables,
    ) -> Result<Self> {
        Ok(Self {
            cassandra: cassandra.clone(),
            keeping: cassandra.keeping(options)?,
            tables: Arc::new(tables),
            signature: cassandra.sign(options),
        })
    }

    fn rows(&self, wanted: Vec<String>) -> TokenRows {
        TokenRows::new(
            self.cassandra.tables().clone(),
            self.tables.clone(),
            self.keeping.seams.clone(),
            self.signature.clone(),
            self.keeping.terms,
            wanted,
        )
    }

    /// One session that holds as many of these as could be had at once.
    async fn take(
        &self,
        called: &str,
        wanted: Vec<String>,
        patience: Patience,
    ) -> Result<(RemoteGuard, Vec<String>)> {
        wanted.iter().try_for_each(|name| check_lock_name(name))?;
        let rows = self.rows(wanted);
        let had = rows.had();
        let acquired = self
            .keeping
            .acquire(called, self.signature.service(), patience, rows, Arc::default())
            .await?;
        Ok((acquired, had.all()))
    }
}

impl RemoteLocker for Tokens {
    fn acquire<'a>(
        &'a self,
        lock_id: &'a str,
        patience: Patience,
    ) -> BoxFuture<'a, Result<RemoteGuard>> {
        Box::pin(async move {
            let taken = self.take(lock_id, vec![lock_id.to_owned()], patience).await;
            taken.map(|(guard, _)| guard)
        })
    }

    fn on_cassandra(&self, writer: &Writer) -> Option<OnCassandra> {
        let signature = self.signature.of_writer(writer);
        let recipe = self.cassandra.recipe("tokens", &[&self.tables.tokens]);
        Some(OnCassandra::new(Self { signature, ..self.clone() }, recipe))
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("tables", &self.tables).finish_non_exhaustive()
    }
}
