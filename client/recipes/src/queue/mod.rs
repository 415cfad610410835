//! The queue: waiters in line by the time they came, and a main row that decides who has the lock.
//!
//! Article: the thesis, §5 (in Russian); `row.rs` cites its listings at their steps. No LWT: plain
//! writes and reads at QUORUM, with the client's own timestamps.
//!
//! # What it promises
//!
//! - **Safety.** While a guard is safe, no other client of the recipe has the lock. The article's lemma
//!   1: of two clients that each write their cell into the main row and then read the row at QUORUM, at
//!   least one sees both cells. So a client has the lock once it finds its own cell alone in the row,
//!   for as long as that cell stands. The safe deadline counts from before the last write of that cell
//!   that was acknowledged, plus TTL, less `max_skew`, one second (a TTL ends on a whole second) and a
//!   hundredth.
//! - **Liveness.** The first client in the queue gets the lock once the main row is free; the cells of
//!   a client that died end after TTL and skew.
//! - **Order.** By the time that a client read before it wrote its cell: as fair as the clocks of the
//!   waiters agree ([`QueueTime`]), or by the [time service](super::clock) that all of them ask. A
//!   client that is paused between the two comes in before those that passed it. This is not first in,
//!   first out, and the article says so.
//! - **Fencing.** None.
//!
//! # What it costs
//!
//! To acquire a free lock two writes and two reads at QUORUM, one round trip each; every
//! `(TTL − skew)/3` two writes; two deletes to release. A waiter reads the head of the queue every 50
//! ms to 2 s, and writes its place again each half of a TTL. The first two behind the holder look at
//! least every 200 ms: a hand-over takes about half of that and three round trips, at the price of ten
//! reads a second for each lock with waiters, however many wait. A client that is first while the main
//! row is taken writes, reads and deletes there once, and from then on reads it until it is free.
//!
//! # Where the article's text is unsafe, unfair or can stop
//!
//! - *"If there is only one record"* (listing 6, step 4; listing 7, step 6) does not check the owner. A
//!   thread that stalls for a TTL between its write and its read finds another thread's only record,
//!   and becomes a second holder. Here the record has to be the client's own.
//! - *The queue's cell is renewed only once the lock is held.* A thread that waits longer than a TTL
//!   drops out of the queue and is never first again. Here a waiter writes its place again, with its
//!   old time.
//! - *The two cells can end one without the other.* A holder without a place in the queue keeps the
//!   lock. A place without a holder lets the next client look at the main row, and find it taken. Only
//!   the main row's cell decides, here as in the article.
//! - *A renewal has no condition.* It writes the cell whatever the row contains, so a thread that wakes
//!   too late puts its cell beside the next holder's. Here the guard is lost by then, and the lock task
//!   task deletes the cell.
//! - *A TTL of 15 minutes*, because of clocks: a cell is dead on arrival if the reader's clock is ahead
//!   by more than the TTL. Here TTL and skew are settings, checked to fit together.
//! - *A delete may arrive before the write it is to undo*, and a coordinator's timestamps do not tell.
//!   Here all writes of a process carry timestamps that rise.
//! - *An answer that does not come*: the article does not mention it. A head whose write, look or
//!   delete in the main row has no answer finds a record there, its own, and waits for it until a TTL
//!   is over, and so does every waiter behind it. Here the head checks the owner, and deletes its own
//!   record before it waits for another.
//! - *Tombstones.* Every waiter leaves two, and each read of a row walks over them until the table drops them. The article
//!   does not mention it. Here a client reads the queue from the earliest place that it saw there, less two seconds, and the
//!   whole queue once in ten seconds (`floor.rs`); and a process uses few names in the main row (`cells.rs`).

mod floor;
mod row;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::{BoxFuture, ready};
use holdfast_runtime::Clock;

use super::cassandra::{Cassandra, LockerOptions};
use super::cells::{CellColumns, OwnCells};
use super::locker::{OnCassandra, RemoteGuard, RemoteLocker, Wait};
use super::locker_base::LockerBase;
use super::owner::Writer;
use super::recipe::{Names, Naming, Recipe, RecipeSpec, TableSpec};
use super::statement::Ident;
use crate::Result;
use floor::Floors;
use row::QueueAttempt;

/// The names of the queue's table and the main row's. All columns are of type `text`; the article
/// names none, and column families made through Thrift show up as `key, column1, value`.
#[derive(Clone, Debug)]
pub struct QueueTables {
    pub(crate) queue: Ident,
    pub(crate) main: Ident,
    pub(crate) key: Ident,
    pub(crate) column: Ident,
    pub(crate) value: Ident,
}

/// Thesis §5: a row of places and a main row for each lock. The thesis names no tables.
const QUEUE: TableSpec = TableSpec {
    name: Naming::new("queue-table", &[("TABLE", "lock_queue", "")], "The places in the queue"),
    ..MAIN
};

pub(crate) const MAIN: TableSpec = TableSpec {
    name: Naming::new("main-table", &[("TABLE", "lock_main", "")], "Their holders"),
    columns: Naming::new(
        "queue-columns",
        &[("KEY", "key", "text"), ("COLUMN", "column1", "text"), ("VALUE", "value", "text")],
        "The columns of both, as column families made through Thrift show them",
    ),
    key: 2,
};

pub(crate) const SPEC: RecipeSpec = RecipeSpec {
    name: "queue",
    rows: "The thesis' queue: places in line, and a main row with the holder",
    tables: &[MAIN, QUEUE],
    names: &[QUEUE.name, MAIN.name, MAIN.columns],
    locker: |on, options, layout| Ok(Arc::new(Queue::new(on, options, layout.queue.clone())?)),
};

impl Default for QueueTables {
    /// `lock_queue` and `lock_main`, both `(key, column1, value)`.
    fn default() -> Self {
        Self::of(&Names::default())
    }
}

impl QueueTables {
    /// Names the tables, and the columns of both, exactly as the server has them.
    #[must_use]
    pub fn named(queue: &str, main: &str, columns: [&str; 3]) -> Self {
        let [key, column, value] = columns.map(Ident::new);
        Self { queue: Ident::new(queue), main: Ident::new(main), key, column, value }
    }

    pub(crate) fn of(names: &Names) -> Self {
        Self::named(names.one(&QUEUE.name), names.one(&MAIN.name), names.each(&MAIN.columns))
    }

    pub(crate) fn created(&self) -> [String; 2] {
        let Self { queue, main, key, column, value } = self;
        [(QUEUE, queue), (MAIN, main)].map(|(spec, at)| spec.created(at, &[key, column, value]))
    }

    fn columns(&self) -> CellColumns {
        let Self { key, column, value, .. } = self.clone();
        CellColumns { key, column, value: Some(value) }
    }
}

/// Locks by the queue recipe; see the [module](self). Cheap to clone.
#[derive(Clone)]
pub struct Queue {
    base: LockerBase,
    tables: Arc<QueueTables>,
    time: Arc<dyn QueueTime>,
    floors: Arc<Floors>,
}

impl Queue {
    /// A locker on this keyspace that takes places by this machine's clock. It sends no statement yet.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`](crate::Error::InvalidConfig) if TTL and skew do not fit together.
    pub fn new(
        cassandra: &Cassandra,
        options: &LockerOptions,
        tables: QueueTables,
    ) -> Result<Self> {
        let base = LockerBase::new(cassandra, options)?;
        let time = Arc::new(LocalTime::new(cassandra.runtime().clock.clone()));
        Ok(Self { base, tables: Arc::new(tables), time, floors: Arc::default() })
    }

    /// Takes places by another time, for example a [`TimeClient`](super::TimeClient). All waiters of
    /// one queue need the same time: otherwise those whose time is behind are first.
    #[must_use]
    pub fn with_time(mut self, time: Arc<dyn QueueTime>) -> Self {
        self.time = time;
        self
    }

    fn attempt(&self, lock_id: &str, wait: Wait) -> QueueAttempt {
        QueueAttempt {
            cells: OwnCells::new(&self.base, lock_id, self.tables.columns()),
            tables: self.tables.clone(),
            time: self.time.clone(),
            floors: self.floors.clone(),
            waits: wait.waits(),
            place: None,
            entered: None,
            look_first: false,
            in_main: false,
        }
    }
}

impl RemoteLocker for Queue {
    fn acquire<'a>(&'a self, lock_id: &'a str, wait: Wait) -> BoxFuture<'a, Result<RemoteGuard>> {
        Box::pin(self.base.acquire(lock_id, wait, move || self.attempt(lock_id, wait)))
    }

    fn on_cassandra(&self, writer: &Writer) -> Option<OnCassandra> {
        let base = self.base.written_by(writer);
        let QueueTables { main, queue, .. } = &*self.tables;
        Some(self.base.built_on(Recipe::Queue, &[main, queue], Self { base, ..self.clone() }))
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("tables", &self.tables).finish_non_exhaustive()
    }
}

/// Gives out the time for places in the queue. A client that comes later should get no less; how far
/// that holds between processes is how fair the queue is. Safety does not depend on it.
pub trait QueueTime: Send + Sync + 'static {
    /// Microseconds since 1970; never less than an earlier answer of this source.
    ///
    /// # Errors
    ///
    /// Whatever kept the source from answering. Then the attempt has no place and ends without a write.
    /// The lock task retries it after a pause; [`Error::Refused`](crate::Error::Refused) goes to the
    /// caller.
    fn now_us(&self) -> BoxFuture<'_, Result<u64>>;
}

/// The wall clock of this machine, made never to go back.
pub struct LocalTime {
    clock: Arc<dyn Clock>,
    last: AtomicU64,
}

impl LocalTime {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, last: AtomicU64::new(0) }
    }
}

impl QueueTime for LocalTime {
    fn now_us(&self) -> BoxFuture<'_, Result<u64>> {
        let now = self.clock.wall_ms().saturating_mul(1_000);
        Box::pin(ready(Ok(now.max(self.last.fetch_max(now, Ordering::AcqRel)))))
    }
}

impl fmt::Debug for LocalTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalTime").finish_non_exhaustive()
    }
}
