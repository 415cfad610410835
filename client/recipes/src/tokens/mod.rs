//! Tokens: one row for each lock, with a session, changed by LWT alone. Sessions beat in a table of
//! their own, and a housekeeper clears up after those that stop.
//!
//! Article: service resilience with `ScyllaDB`, part 3, its second solution ("Luckily, at the time,
//! `ScyllaDB` just released a version with lightweight transactions"). `rows.rs`, `session.rs`,
//! `batch.rs` and `housekeeper.rs` cite its sentences at their steps.
//!
//! # What it promises
//!
//! - **Safety.** While a guard is safe, no other client of the recipe has the token. Paxos decides
//!   `IF NOT EXISTS`. A token has no TTL: it stands until its session deletes it or a housekeeper
//!   removes it, and a housekeeper removes it only once the session's row is gone. That row goes by an
//!   LWT on the timestamp of a heartbeat that the housekeeper has seen unchanged for the grace, by its
//!   own monotonic clock. The guard has stopped being safe before that: at the start of the last
//!   heartbeat that was answered as applied, plus [`ttl`](super::LockerOptions::ttl) (which is the
//!   grace), less `max_skew`, one second and a hundredth. A session that was ended cannot beat again.
//! - **Liveness.** Only as long as a [`Housekeeper`] runs somewhere: nothing here has a TTL, and the
//!   lock of a holder that died stays taken without one. With one, the lock is free a grace and two
//!   sweeps after the death; a grace later if the housekeeper dies in the middle of that. One of three
//!   nodes may be down. Chance decides which waiter gets a free token.
//! - **Order.** None. The first waiter that looks after a release gets the token; others may starve.
//! - **Fencing.** None: the recipe has no number that grows. A holder that is paused between its check
//!   of the guard and its write can write after the housekeeper has freed its token; nothing in these
//!   tables can prevent that.
//!
//! On top of what the [module above](super) assumes: every housekeeper's grace is at least the locker's
//! TTL. Holdfast's housekeepers wait for as long as a session's id asks for (`hf1:SERVICE/…:SECONDS`),
//! if that is longer than their own grace. Another implementation's housekeeper that compares
//! timestamps with its clock compares them with the wall clock of *this* process: `max_skew` is taken
//! off for that, and the two clocks may differ by that much.
//!
//! # What it costs
//!
//! To acquire a free token a read at SERIAL and two LWTs (the session, the token), one after the other;
//! each third of the time that is certain one LWT, for all tokens of a session; two LWTs to release
//! (the token is free after the first). A batch of n tokens: n reads, n + 1 LWTs, sixteen at once. A
//! waiter reads at SERIAL every 50 ms to 2 s, with jitter. A sweep reads both tables whole.
//!
//! # Where the article's text is unsafe, unfair or can stop
//!
//! - *"delete token"* does not check the session, and is no LWT. A holder that wakes after the
//!   housekeeper freed its token deletes the next holder's. Worse, a plain delete has its coordinator's
//!   time and an LWT that of its ballot. Where clocks differ, the delete of a node that is ahead also
//!   hides the *next* insert, which was answered as applied, and two clients hold the token; that of a
//!   node that is behind deletes nothing, and the token stays. Here a delete is an LWT on the session.
//! - *"Tokens that did not heartbeat in time get deleted"*: also those of a holder that was only paused
//!   and does not learn of it. Nothing in the article ends its belief. Here the guard does, before the
//!   grace.
//! - *The heartbeat may come between the housekeeper's look and its delete*: then a live holder loses
//!   its token; and a token that was released meanwhile is deleted under its next holder. Here the
//!   housekeeper first deletes the session's row, only if it has not beaten since, and then only the
//!   tokens that are still that session's.
//! - *A timestamp is compared with a clock.* A housekeeper whose clock is ahead by more than the grace
//!   deletes every token. Here timestamps are compared with earlier timestamps only.
//! - *A plain heartbeat brings a session back* whose tokens are gone, and one that comes late puts an
//!   older timestamp over a newer one. Here each is applied only on top of the one before it.
//! - *"Upon acquiring a bunch of locks, a worker starts heartbeating"*: a worker that dies in between
//!   leaves tokens that no session lists, which a housekeeper that reads `token_times` never sees: they
//!   stay for ever. Here the session's row exists before its first token, and the housekeeper reads
//!   both tables: a token without a session is a stray, and goes a grace after it was first seen.
//! - *An answer that does not come*: the article does not mention it. The next turn of the loop draws
//!   another session, and the token that the first one may have taken stays without a heartbeat. Here
//!   the client reads the token at SERIAL, and an attempt that is abandoned is undone.
//! - *The housekeeper is one process.* Two that delete without a condition delete the next holder's
//!   token. Here any number may run.
//! - *"sleep 1"*: all waiters poll, and a client that comes just in time passes all of them.
//! - *The list of tokens* in `token_times` names the tokens that were held at the last heartbeat. Here
//!   it is written for other readers and decides nothing.
//! - The listings do not parse (`PRIMARY KEY ((key), id)` in a table without such columns, a
//!   parenthesis is missing), and the loop deletes the token it has just got: the work goes between.

mod housekeeper;
mod parts;
mod rows;
mod session;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::cassandra::{Cassandra, LockerOptions};
use super::locker::{OnCassandra, RemoteGuard, RemoteLocker, Wait};
use super::locker_base::LockerBase;
use super::owner::Writer;
use super::recipe::{Names, Naming, Recipe, RecipeSpec, TableSpec};
use super::statement::Ident;
use crate::Result;
use crate::check_lock_name;
pub use housekeeper::{Housekeeper, Removed, Sweep};
use rows::TokenRows;
#[doc(hidden)]
pub use session::term_of;

/// The names of the tables of tokens and heartbeats, for deployments with other names.
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

/// Article, the second `tokens` table.
const TOKENS: TableSpec = TableSpec {
    name: Naming::new("tokens-table", &[("TABLE", "tokens", "")], "The tokens"),
    columns: Naming::new(
        "tokens-columns",
        &[
            ("TOKEN", "token", "text"),
            ("SESSION", "service_session_id", "text"),
            ("TIMESTAMP", "timestamp", "timestamp"),
        ],
        "Their columns: the token, its session, since when",
    ),
    key: 1,
};

const TIMES: TableSpec = TableSpec {
    name: Naming::new("token-times-table", &[("TABLE", "token_times", "")], "The heartbeats"),
    columns: Naming::new(
        "token-times-columns",
        &[
            ("SESSION", "service_session_id", "text"),
            ("TOKENS", "tokens", "list<text>"),
            ("TIMESTAMP", "timestamp", "timestamp"),
        ],
        "Their columns: the session, its tokens, its last heartbeat",
    ),
    key: 1,
};

pub(crate) const SPEC: RecipeSpec = RecipeSpec {
    name: "tokens-lwt",
    rows: "A row with a session for each lock, and the sessions' heartbeats",
    tables: &[TOKENS, TIMES],
    names: &[TOKENS.name, TOKENS.columns, TIMES.name, TIMES.columns],
    locker: |on, options, layout| Ok(Arc::new(Tokens::new(on, options, layout.tokens.clone())?)),
};

impl Default for TokenTables {
    /// `tokens("token", service_session_id, timestamp)` and
    /// `token_times(service_session_id, tokens, timestamp)`, as in the article.
    fn default() -> Self {
        Self::of(&Names::default())
    }
}

impl TokenTables {
    /// Names the table of tokens and its columns for the token (`text`, the key), its session (`text`)
    /// and since when (`timestamp`); the table of heartbeats and its columns for the session (`text`,
    /// the key), its tokens (`list<text>`) and the last heartbeat (`timestamp`). Names are exact.
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

    pub(crate) fn of(names: &Names) -> Self {
        let [tokens, times] = [TOKENS, TIMES].map(|spec| names.one(&spec.name));
        Self::named(tokens, names.each(&TOKENS.columns), times, names.each(&TIMES.columns))
    }

    pub(crate) fn created(&self) -> [String; 2] {
        let Self { tokens, token, session, timestamp, times, beating, held, beat } = self;
        let tokens = TOKENS.created(tokens, &[token, session, timestamp]);
        [tokens, TIMES.created(times, &[beating, held, beat])]
    }
}

/// Locks by the tokens recipe with LWT; see the [module](self). Cheap to clone.
#[derive(Clone)]
pub struct Tokens {
    base: LockerBase,
    tables: Arc<TokenTables>,
}

impl Tokens {
    /// A locker on this keyspace. It sends no statement yet. The TTL of `options` is the least grace
    /// that housekeepers give.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`](crate::Error::InvalidConfig) if TTL and skew do not fit together.
    pub fn new(
        cassandra: &Cassandra,
        options: &LockerOptions,
        tables: TokenTables,
    ) -> Result<Self> {
        Ok(Self { base: LockerBase::new(cassandra, options)?, tables: Arc::new(tables) })
    }

    /// Acquires one session that holds all of `wanted` that are free now.
    pub(crate) async fn take(
        &self,
        called: &str,
        wanted: Vec<String>,
        wait: Wait,
    ) -> Result<(RemoteGuard, Vec<String>)> {
        wanted.iter().try_for_each(|name| check_lock_name(name))?;
        let rows = TokenRows::new(&self.base, &self.tables, wanted);
        let had = rows.had();
        let acquired = self.base.hold(called, wait, rows, Arc::default()).await?;
        Ok((acquired, had.all()))
    }
}

impl RemoteLocker for Tokens {
    fn acquire<'a>(&'a self, lock_id: &'a str, wait: Wait) -> BoxFuture<'a, Result<RemoteGuard>> {
        Box::pin(async move {
            let taken = self.take(lock_id, vec![lock_id.to_owned()], wait).await;
            taken.map(|(guard, _)| guard)
        })
    }

    fn on_cassandra(&self, writer: &Writer) -> Option<OnCassandra> {
        let base = self.base.written_by(writer);
        let built = Self { base, ..self.clone() };
        Some(self.base.built_on(Recipe::TokensLwt, &[&self.tables.tokens], built))
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("tables", &self.tables).finish_non_exhaustive()
    }
}
