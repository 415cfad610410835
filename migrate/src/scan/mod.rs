//! Reads the tables of a recipe, lock by lock, by token ranges.
//!
//! A cluster orders the rows of a table by the token of their partition key, and each node has some
//! ranges of tokens. So a scan reads a table in many ranges, a few at once, each in pages. The two
//! tables of a recipe have the same key, so a lock's rows are in the same range of both, in the
//! same order: the scan joins them as they arrive, and keeps in memory one page of each table for
//! every range that is being read. Only the sessions of tokens are kept whole, because a token
//! names only its session. They are read at the beginning of each pass, never before, because only
//! a young heartbeat shows that a session lives.
//!
//! Reads are at QUORUM: they see what was acknowledged at QUORUM before the read began. They change
//! nothing and are repeated, a few times, after a fault.

mod driver;
mod error;
mod join;
mod scopes;
mod tables;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::try_join;
use futures_util::{StreamExt, TryStreamExt, stream};
use holdfast_keyspace::driver::SerialScope;
use holdfast_runtime::{Instant, Runtime};
pub use scylla::client::session::Session;
use tokio::sync::mpsc;

use holdfast_recipes::Recipe;

use crate::layout::{Cell, Heartbeat, Layout, LockRows, Raw, Said, TokenRow};
use driver::Driver;
pub use error::ScanError;
use join::{Joined, join};
pub use scopes::SeenScope;
pub use tables::Range;
use tables::Tables;

/// Messages of a scan that wait for their receiver: with what is being read and used, all that is in memory
/// at once.
pub const MESSAGES_WAITING: usize = 4;

/// Reads the tables of a recipe, which exist and have its columns.
pub struct Scan {
    layout: Layout,
    tables: Arc<dyn Tables>,
    runtime: Runtime,
}

/// Sessions that have a heartbeat, and the write time of that.
type Sessions = BTreeMap<String, Option<i64>>;

/// Identifies tables: equal for two scans if, and only if, they read the same tables of the same
/// cluster, not others of the same names.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Identity {
    /// The cluster's name.
    pub cluster: String,
    /// The keyspace.
    pub keyspace: String,
    /// Each table, with the id that the cluster gave it when it was created.
    pub tables: Vec<(String, String)>,
}

/// A message of a scan.
#[derive(Debug)]
pub enum ScanMessage {
    /// Some locks of a range; each lock is reported once.
    Locks {
        /// The range's number.
        range: usize,
        /// The locks.
        locks: Vec<LockRows>,
        /// An instant not before the answer with the last of these rows: what a row had left when
        /// it was read has become less by at least the time since.
        read_at: Instant,
    },
    /// All locks of a range were reported.
    Done {
        /// The range's number.
        range: usize,
        /// How many messages had its locks.
        news: u64,
    },
}

impl fmt::Debug for Scan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scan").field("layout", &self.layout).finish_non_exhaustive()
    }
}

impl Scan {
    /// Finds the tables of a keyspace and checks them; rows are read where `scope` decides. Changes nothing.
    ///
    /// # Errors
    ///
    /// [`ScanError`] names the table and what is wrong with it, or why it could not be read.
    pub async fn open(
        session: Arc<Session>,
        (keyspace, scope): (&str, &SerialScope),
        layout: Layout,
        runtime: Runtime,
    ) -> Result<Self, ScanError> {
        let driver =
            Driver::open(session, (keyspace, scope), layout.expected(), runtime.clone()).await?;
        Ok(Self { layout, tables: Arc::new(driver), runtime })
    }

    /// A scan of tables without a cluster.
    #[cfg(test)]
    pub(crate) fn over(tables: Arc<dyn Tables>, layout: Layout, runtime: Runtime) -> Self {
        Self { layout, tables, runtime }
    }

    /// The recipe and its tables, as the table of modes has them.
    pub fn named(&self) -> String {
        self.layout.on(&self.tables.keyspace())
    }

    /// The recipe that wrote the rows.
    pub fn recipe(&self) -> Recipe {
        self.layout.recipe
    }

    /// Identifies the tables.
    ///
    /// # Errors
    ///
    /// [`ScanError`] if the cluster does not answer.
    pub async fn identity(&self) -> Result<Identity, ScanError> {
        self.tables.identity().await
    }

    /// The time of one coordinator, microseconds since 1970, for comparison with write times, which
    /// come from other clocks.
    ///
    /// # Errors
    ///
    /// [`ScanError`] if the coordinator does not answer.
    pub async fn now_us(&self) -> Result<i64, ScanError> {
        self.tables.now_us().await
    }

    /// Makes one pass: reads these ranges, `at_once` of them at a time, and sends what it reads to
    /// `news`. Waits while the channel is full. Cancel safe: messages that were sent stay valid.
    ///
    /// # Errors
    ///
    /// [`ScanError`] if a page could not be read in spite of repeats. Messages that were sent stay
    /// valid.
    pub async fn run(
        &self,
        ranges: &[Range],
        at_once: usize,
        news: mpsc::Sender<ScanMessage>,
    ) -> Result<(), ScanError> {
        let sessions = self.sessions().await?;
        let reading = ranges.iter().map(|range| self.read(*range, &sessions, &news));
        stream::iter(reading).buffer_unordered(at_once.max(1)).try_collect().await
    }

    /// Makes one pass like [`run`](Self::run), and hands over each lock that it reads; an error of
    /// `take` ends it. Cancel safe.
    pub(crate) async fn each<E: From<ScanError>>(
        &self,
        (ranges, at_once): (&[Range], usize),
        mut take: impl AsyncFnMut(LockRows) -> Result<(), E>,
    ) -> Result<(), E> {
        let (send, mut news) = mpsc::channel(MESSAGES_WAITING);
        let reading = async { Ok(self.run(ranges, at_once, send).await?) };
        let taking = async {
            while let Some(news) = news.recv().await {
                let ScanMessage::Locks { locks, .. } = news else { continue };
                for rows in locks {
                    take(rows).await?;
                }
            }
            Ok(())
        };
        try_join(reading, taking).await.map(|((), ())| ())
    }

    /// Reads all rows of one lock now; `None` if it has none.
    ///
    /// # Errors
    ///
    /// [`ScanError`] if it could not be read.
    pub async fn lock(&self, name: &Raw) -> Result<Option<LockRows>, ScanError> {
        let first = self.tables.rows(0, name).await?;
        let second = if self.has_second() { self.tables.rows(1, name).await? } else { vec![] };
        if first.is_empty() && second.is_empty() {
            return Ok(None);
        }
        let Some(rows) = LockRows::of(self.recipe(), name.clone(), first, second) else {
            return Ok(None);
        };
        // Does not use a pass's sessions: they may be older than the row.
        self.with_heartbeat(rows, &Sessions::new()).await
    }

    /// Whether the second table has rows per lock: the heartbeats of tokens are per session.
    fn has_second(&self) -> bool {
        self.layout.lock_tables() > 1
    }

    async fn read(
        &self,
        range: Range,
        sessions: &Sessions,
        news: &mpsc::Sender<ScanMessage>,
    ) -> Result<(), ScanError> {
        let recipe = self.recipe();
        let clock = &*self.runtime.clock;
        let told = AtomicU64::new(0);
        let tell = async |rows: Vec<Joined>, read_at| {
            let mut locks = Vec::with_capacity(rows.len());
            for Joined { lock, first, second } in rows {
                if let Some(rows) = LockRows::of(recipe, lock, first, second) {
                    locks.extend(self.with_heartbeat(rows, sessions).await?);
                }
            }
            told.fetch_add(1, Ordering::Relaxed);
            // A receiver that was dropped needs no more messages.
            let _ = news.send(ScanMessage::Locks { range: range.index, locks, read_at }).await;
            Ok(())
        };
        let pages = async |table, from| self.tables.page(table, range, from).await;
        join(&pages, clock, self.has_second(), tell).await?;
        let _ = news.send(ScanMessage::Done { range: range.index, news: told.into_inner() }).await;
        Ok(())
    }

    /// Adds the heartbeat to one token. A session that began after the pass's read of sessions is
    /// read by itself. If it has no row, its token is read again: both may just have ended, which
    /// is no error.
    async fn with_heartbeat(
        &self,
        mut rows: LockRows,
        known: &Sessions,
    ) -> Result<Option<LockRows>, ScanError> {
        let Said::Tokens(sessions) = &mut rows.said else { return Ok(Some(rows)) };
        for row in sessions.iter_mut() {
            let Some(id) = row.session.as_ref().map(|cell| &cell.value) else { continue };
            let heartbeat = match known.get(&id.to_string()) {
                Some(written_us) => Some(*written_us),
                None => self.tables.rows(1, id).await?.into_iter().next().map(written_of),
            };
            if let Some(written_us) = heartbeat {
                row.heartbeat = Heartbeat::There { written_us };
            }
        }
        if let [TokenRow { session: Some(stray), heartbeat: Heartbeat::Missing }] = &**sessions {
            let now = self.tables.rows(0, &rows.lock).await?;
            let session = |row: &Vec<Option<Cell>>| row.get(1).cloned().flatten();
            if !now.iter().filter_map(session).any(|session| session.value == stray.value) {
                return Ok(None);
            }
        }
        Ok(Some(rows))
    }

    /// Reads all sessions of tokens; none where the recipe has none.
    async fn sessions(&self) -> Result<Sessions, ScanError> {
        let mut sessions = Sessions::new();
        if self.recipe() != Recipe::TokensLwt {
            return Ok(sessions);
        }
        let whole = Range { index: 0, after: i64::MIN, upto: i64::MAX };
        let mut from = None;
        loop {
            let page = self.tables.page(1, whole, from).await?;
            let rows = page.rows.into_iter().map(|(_, row)| row);
            sessions.extend(rows.filter_map(|row| {
                let id = row.first()?.as_ref()?.value.to_string();
                Some((id, written_of(row)))
            }));
            if page.next.is_none() {
                return Ok(sessions);
            }
            from = page.next;
        }
    }
}

/// The write time of a heartbeat: the second cell of `token_times`.
fn written_of(row: Vec<Option<Cell>>) -> Option<i64> {
    row.into_iter().nth(1).flatten()?.written_us
}
