//! The older recipe of the thesis: a main row that decides who has the lock, and a shadow row in which clients check
//! whether they are alone.
//!
//! Article: the thesis, §4 (in Russian), listings 3 and 4, cited at their steps. No LWT: plain writes and reads at
//! QUORUM, with the client's own timestamps. The thesis described it in order to replace it by the [queue](super::queue),
//! and gives no proof.
//!
//! # What it promises
//!
//! - **Safety.** While a guard is safe, no other client of the recipe has the lock. The thesis' lemma 1 (§5.1), in the
//!   shadow row: of two clients whose cells stand there, at most one found its own alone. A holder's cell stands there
//!   from before its first look until the release, and the safe deadline counts from before that cell's last write that
//!   was acknowledged together with the write of the main row's cell after it: plus TTL, less `max_skew`, one second and
//!   a hundredth. A holder by the article's text, which has left the shadow row, is found in the main row at step 10.
//! - **Liveness.** Not certain. Two clients that come at once both withdraw, and may meet again. Their pauses grow (up to
//!   50 ms more with each attempt, as in listing 4, up to 10 s), so that this becomes unlikely. The more clients wait,
//!   the longer it takes until one of them gets a free lock.
//! - **Order.** None. A client that releases and returns at once mostly passes those that pause: bursts.
//! - **Fencing.** None.
//! - A `try` (no wait) is one run of listing 3: one that meets another attempt is not granted, though no client may have
//!   the lock then.
//!
//! # What it costs
//!
//! To acquire a free lock two writes and three reads at QUORUM, one round trip each; every `(TTL − skew)/3` two writes;
//! two deletes to release. The article costs the same, and makes one of the deletes before it has the lock. A waiter
//! reads the main row twice a second.
//!
//! # Where the article's text is unsafe, unfair or can stop
//!
//! - *"If there are no cells in the main table"* (step 10). Steps 1 and 8 read cells, step 10 does not: literally it
//!   tests what step 1 saw. A client paused between steps 1 and 8 while another runs the whole protocol finds the shadow
//!   row empty and becomes a second holder. Here step 10 reads again. And a holder of this recipe stays in the shadow row
//!   (step 12 comes with the release), which keeps out old clients that read the listing literally.
//! - *"If there is one cell"* (step 9) does not check the owner. When a thread writes its cell again, its own delete of
//!   the attempt before may hide the cell, if that delete had the timestamp of a clock ahead. The thread then sees one
//!   cell, another thread's, and becomes a second holder. Here the cell has to be the client's own, and its timestamps
//!   rise.
//! - *The thread's id names its cells for ever.* In the same way that delete may hide the main row's cell of a thread
//!   that released and acquired again: no thread sees the holder. Here every attempt has an id of its own.
//! - *Success on one's own cell* (steps 3 and 4), if two processes have threads of one id, or one thread acquires twice:
//!   both hold the lock, and the first release frees it for all. Here whole owner ids are compared, so that an own cell
//!   is a repeated step of one attempt.
//! - *No lease.* A client that dies between 7 and 12, or with the lock, keeps all others out for ever. Here both cells
//!   have a TTL and are renewed (thesis, §5.3); a dead attempt keeps others out for a TTL and the skew.
//! - *With nothing but a lease* (thesis, §5.3), a thread that stalls between 10 and 11 for its TTL joins a holder that
//!   came meanwhile. Here that is no hold, because time counts from the shadow row's cell.
//! - *Bursts*, as the thesis says itself. Only a queue mends that.
//! - *A free lock may stay free*: two clients that always come at once. The pauses make it unlikely, here as in the
//!   article.
//!
//! # Beside old clients
//!
//! On the same tables this recipe's clients exclude old clients, and are excluded by them, in every order of the steps of
//! two (a test runs all orders, for both readings of step 10). What remains are the old client's own flaws: one whose
//! cell is hidden by clocks, one whose thread id is not unique, or one with a TTL that it stalls for becomes a second
//! holder, as it does among old clients. One without a TTL that dies excludes for ever.
//!
//! The main rows have the queue's name, as the thesis has one name for both. In one keyspace a lock is either a queue's
//! or one of these.

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast_runtime::Instant;

use super::cassandra::{Cassandra, LockerOptions};
use super::cells::{CellColumns, OwnCells, drawn_up_to};
use super::database::Fault;
use super::lock_task::{Attempt, Left, Reached, Renewal};
use super::locker::{OnCassandra, RemoteGuard, RemoteLocker, Wait};
use super::locker_base::LockerBase;
use super::owner::Writer;
use super::queue::MAIN;
use super::recipe::{Names, Naming, Recipe, RecipeSpec, TableSpec};
use super::statement::Ident;
use crate::Result;

/// The names of the main and shadow rows' tables. All columns are of type `text`; the article names
/// none, and column families made through Thrift show up as `key, column1, value`.
#[derive(Clone, Debug)]
pub struct ShadowTables {
    pub(crate) shadow: Ident,
    pub(crate) main: Ident,
    pub(crate) key: Ident,
    pub(crate) column: Ident,
    pub(crate) value: Ident,
}

/// Thesis §4: the rows of clients that try, beside the main rows, which share the queue's table unless the layout names
/// another.
const SHADOW: TableSpec = TableSpec {
    name: Naming::new(
        "shadow-table",
        &[("TABLE", "lock_shadow", "")],
        "The shadow rows. The main rows and the columns of both are those of the queue",
    ),
    ..MAIN
};

pub(crate) const SPEC: RecipeSpec = RecipeSpec {
    name: "shadow",
    rows: "The thesis' earlier solution: a main row with the holder, a shadow row where threads try",
    tables: &[MAIN, SHADOW],
    names: &[SHADOW.name],
    locker: |on, options, layout| Ok(Arc::new(Shadow::new(on, options, layout.shadow.clone())?)),
};

impl Default for ShadowTables {
    /// `lock_shadow` and `lock_main`, both `(key, column1, value)`.
    fn default() -> Self {
        Self::of(&Names::default())
    }
}

impl ShadowTables {
    /// Names the tables, and the columns of both, exactly as the server has them.
    #[must_use]
    pub fn named(shadow: &str, main: &str, columns: [&str; 3]) -> Self {
        let [key, column, value] = columns.map(Ident::new);
        Self { shadow: Ident::new(shadow), main: Ident::new(main), key, column, value }
    }

    pub(crate) fn of(names: &Names) -> Self {
        Self::named(names.one(&SHADOW.name), names.one(&MAIN.name), names.each(&MAIN.columns))
    }

    pub(crate) fn created(&self) -> [String; 2] {
        let Self { shadow, main, key, column, value } = self;
        [(SHADOW, shadow), (MAIN, main)].map(|(spec, at)| spec.created(at, &[key, column, value]))
    }

    fn columns(&self) -> CellColumns {
        let Self { key, column, value, .. } = self.clone();
        CellColumns { key, column, value: Some(value) }
    }
}

/// Locks by the shadow recipe; see the [module](self). Cheap to clone.
#[derive(Clone)]
pub struct Shadow {
    base: LockerBase,
    tables: Arc<ShadowTables>,
}

impl Shadow {
    /// A locker on this keyspace. It sends no statement yet.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`](crate::Error::InvalidConfig) if TTL and skew do not fit together.
    pub fn new(
        cassandra: &Cassandra,
        options: &LockerOptions,
        tables: ShadowTables,
    ) -> Result<Self> {
        Ok(Self { base: LockerBase::new(cassandra, options)?, tables: Arc::new(tables) })
    }

    fn attempt(&self, lock_id: &str) -> ShadowAttempt {
        ShadowAttempt {
            cells: OwnCells::new(&self.base, lock_id, self.tables.columns()),
            tables: self.tables.clone(),
            in_shadow: false,
            in_main: false,
            attempt: 1,
        }
    }
}

impl RemoteLocker for Shadow {
    fn acquire<'a>(&'a self, lock_id: &'a str, wait: Wait) -> BoxFuture<'a, Result<RemoteGuard>> {
        Box::pin(self.base.acquire(lock_id, wait, move || self.attempt(lock_id)))
    }

    fn on_cassandra(&self, writer: &Writer) -> Option<OnCassandra> {
        let base = self.base.written_by(writer);
        let ShadowTables { main, shadow, .. } = &*self.tables;
        Some(self.base.built_on(Recipe::Shadow, &[main, shadow], Self { base, ..self.clone() }))
    }
}

impl fmt::Debug for Shadow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shadow").field("tables", &self.tables).finish_non_exhaustive()
    }
}

/// Listing 4, step 6: the longest pause while another client has the lock.
const OWNER_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Step 9: the growth of the longest pause with each attempt that met another one.
const CONCURRENT_PAUSE_STEP: Duration = Duration::from_millis(50);
/// Its bound; the article has none. A hundred attempts in a row do not come near it.
const CONCURRENT_PAUSE_MAX: Duration = Duration::from_secs(10);

/// One attempt: its cell in the shadow row, and its cell in the main row.
struct ShadowAttempt {
    cells: OwnCells,
    tables: Arc<ShadowTables>,
    /// This attempt's cell may be there, or may still arrive.
    in_shadow: bool,
    in_main: bool,
    /// Listing 4's `attempt`.
    attempt: u32,
}

#[derive(Debug)]
enum TryLock {
    /// It has the lock, by cells of which the first was sent at `started`.
    Success {
        started: Instant,
    },
    AnotherThreadIsOwner(String),
    /// Other clients tried at the same time: one of them.
    ConcurrentAttempt(Option<String>),
}

impl ShadowAttempt {
    /// Listing 3.
    ///
    /// A cell of this attempt in the main row is from an earlier run, whose answer was lost. That is no success yet (step
    /// 4), because what a read shows may be on one replica only: the run goes on as if the cell were not there.
    async fn try_lock(&mut self) -> Result<TryLock, Fault> {
        // Steps 1 to 6.
        if let Some(owner) = self.cells.seen(&self.tables.main).await?.other {
            self.take_back().await?;
            return Ok(TryLock::AnotherThreadIsOwner(owner));
        }
        // Step 7. The hold counts from here: only while this cell stands does no other client pass step
        // 9.
        self.in_shadow = true;
        let started = self.cells.put_owner(&self.tables.shadow).await?;
        // Steps 8 and 9, and the check they lack: whose the one cell is.
        let tries = self.cells.seen(&self.tables.shadow).await?;
        // Step 10, which reads the row again: what step 1 saw may be older than another client's
        // success.
        if tries.is_ours_alone() && self.cells.seen(&self.tables.main).await?.other.is_none() {
            // Step 11. Step 12 waits for the release: a client that goes by what its step 1 saw is kept out by that cell
            // alone.
            self.in_main = true;
            self.cells.put_owner(&self.tables.main).await?;
            return Ok(TryLock::Success { started });
        }
        // Steps 14 and 15.
        self.take_back().await?;
        Ok(TryLock::ConcurrentAttempt(tries.other))
    }

    /// Deletes the main row's cell first, because waiters look at that. The flags fall only once both
    /// deletes are acknowledged.
    async fn take_back(&mut self) -> Result<(), Fault> {
        if self.in_main {
            self.cells.erase_owner(&self.tables.main).await?;
        }
        if self.in_shadow {
            self.cells.erase_owner(&self.tables.shadow).await?;
        }
        (self.in_main, self.in_shadow) = (false, false);
        Ok(())
    }

    /// Listing 4, steps 9 and 10.
    fn concurrent_pause(&mut self) -> Duration {
        let longest = CONCURRENT_PAUSE_STEP.saturating_mul(self.attempt).min(CONCURRENT_PAUSE_MAX);
        self.attempt = self.attempt.saturating_add(1);
        self.pause(longest)
    }

    fn pause(&self, longest: Duration) -> Duration {
        drawn_up_to(longest, &*self.cells.base.runtime().rng)
    }
}

impl Attempt for ShadowAttempt {
    const RECIPE: &'static str = SPEC.name;

    fn takes_turns(&self) -> bool {
        true
    }

    /// Listing 4, without its loop.
    async fn advance(&mut self) -> Result<Reached, Fault> {
        Ok(match self.try_lock().await? {
            TryLock::Success { started } => Reached::Hold { started },
            TryLock::AnotherThreadIsOwner(owner) => {
                Reached::TryAgain { owner: Some(owner), after: self.pause(OWNER_PAUSE_MAX) }
            }
            TryLock::ConcurrentAttempt(owner) => {
                Reached::TryAgain { owner, after: self.concurrent_pause() }
            }
        })
    }

    /// Writes both cells, and counts from the first: both stand for that long.
    async fn renew(&mut self) -> Renewal {
        let started = self.cells.put_owner(&self.tables.shadow).await;
        let Ok(started) = started else { return Renewal::Unknown };
        let put = self.cells.put_owner(&self.tables.main).await;
        put.map_or(Renewal::Unknown, |_| Renewal::Applied(started))
    }

    async fn give_back(&mut self) -> Result<Left, Fault> {
        let had = self.in_main;
        self.take_back().await?;
        Ok(if had { Left::Released } else { Left::NotHad })
    }
}
