//! One replica of the service, and its cell `GlobalTime`: the statements, and which values are a time.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::asking::Asking;
use super::course::{Course, micros};
use super::{TimeOptions, TimeTable};
use crate::cassandra::Cassandra;
use crate::clock::grpc::TimePort;
use crate::database::Fault;
use crate::queue::QueueTime;
use crate::statement::{Action, Ident, NODE_TIME, Statement, Value};
use crate::{Error, Result};

/// The end of the year 9999. A later value is no time, and the service does not go on from it.
pub(super) const LATEST_US: u64 = 253_402_300_799_999_999;

pub(super) fn is_time(us: u64) -> bool {
    (1..=LATEST_US).contains(&us)
}

/// Answers with the time, and keeps it going; see the [module](super). Cheap to clone; clones are the
/// same replica. All its state that matters is in the cell: a restarted replica is as good as one that
/// never stopped.
#[derive(Clone)]
pub struct TimeReplica {
    options: TimeOptions,
    shared: Arc<Shared>,
    asking: Arc<Asking>,
}

struct Shared {
    cassandra: Cassandra,
    table: TimeTable,
    max_ahead: Duration,
    course: Mutex<Course>,
    /// The largest value that a QUORUM has acknowledged to this replica.
    settled_us: AtomicU64,
}

/// The result of one update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeUpdate {
    /// The time after it, microseconds since 1970; `None`: there is none yet.
    pub time_us: Option<u64>,
    /// This machine's clock.
    pub local_us: u64,
    /// By how much that clock is too far ahead of a Cassandra node's; zero: it is believed.
    pub disbelieved: Duration,
}

impl TimeUpdate {
    /// By how much the time is ahead of this machine's clock; zero if it is not.
    pub fn ahead(&self) -> Duration {
        Duration::from_micros(self.time_us.unwrap_or(0).saturating_sub(self.local_us))
    }
}

impl TimeReplica {
    /// A replica of the service of this cell. It sends no statement yet, and does not move the time
    /// before [`TimeReplica::keep`].
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] for an interval out of bounds.
    pub fn new(cassandra: &Cassandra, table: TimeTable, options: TimeOptions) -> Result<Self> {
        let options = options.checked()?;
        let shared = Arc::new(Shared {
            cassandra: cassandra.clone(),
            table,
            max_ahead: options.max_ahead,
            course: Mutex::default(),
            settled_us: AtomicU64::new(0),
        });
        let reader = shared.clone();
        let asking = Asking::new(cassandra.runtime().clone(), move || {
            let shared = reader.clone();
            Box::pin(async move { shared.answer().await })
        });
        Ok(Self { options, shared, asking })
    }

    /// The time: at least every answer that any replica gave before this call. Microseconds since 1970.
    /// Cancel safe.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] without a QUORUM, or while there is no time yet; [`Error::Refused`] if
    /// the table does not exist, or its cell holds no time.
    pub async fn now_us(&self) -> Result<u64> {
        let cassandra = &self.shared.cassandra;
        let began = cassandra.runtime().clock.now();
        self.asking.ask().await.map_err(|fault| cassandra.failed(fault, began))
    }

    /// Updates the cell once (listing 8). Dropping the future leaves open whether the update was done;
    /// both are right.
    ///
    /// # Errors
    ///
    /// As [`TimeReplica::now_us`].
    pub async fn update(&self) -> Result<TimeUpdate> {
        let cassandra = &self.shared.cassandra;
        let began = cassandra.runtime().clock.now();
        self.shared.update().await.map_err(|fault| cassandra.failed(fault, began))
    }

    /// Keeps the time going: updates the cell repeatedly, passes each result to `tell`, and returns
    /// only with an error that makes it useless to go on. Stops when dropped.
    pub async fn keep(&self, mut tell: impl FnMut(&Result<TimeUpdate>)) -> Error {
        loop {
            let updated = self.update().await;
            tell(&updated);
            if let Err(refused @ Error::Refused { .. }) = updated {
                return refused;
            }
            self.shared.cassandra.runtime().sleep(self.options.interval).await;
        }
    }

    /// Answers at `port` until the future is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] if the port cannot be served.
    pub async fn answer_at(&self, port: TimePort) -> Result<()> {
        let replica = self.clone();
        let now_us = move || -> BoxFuture<'static, Result<u64>> {
            let replica = replica.clone();
            Box::pin(async move { replica.now_us().await })
        };
        port.serve(now_us).await
    }
}

impl Shared {
    fn statement(&self, action: Action) -> Statement {
        let TimeTable { table, name, cell, .. } = &self.table;
        Statement::new(table.clone(), vec![(name.clone(), Value::from(cell.as_str()))], action)
    }

    /// Listing 8, step 2: the cell's value, microseconds since 1970; `None` before the first time.
    ///
    /// # Errors
    ///
    /// [`Fault::Refused`] if the value is no time, or the table is not as it should be.
    async fn read(&self) -> Result<Option<u64>, Fault> {
        let value = &self.table.value;
        let read = Action::First { columns: vec![value.clone()], limit: 1 };
        let rows = self.cassandra.tables().scan(self.statement(read)).await?;
        let Some(there) = rows.first().and_then(|row| row.0.get(value.as_str())) else {
            return Ok(None);
        };
        let time = there.value.long().and_then(|value| u64::try_from(value).ok());
        match time.filter(|time| is_time(*time)) {
            Some(time) => Ok(Some(time)),
            None => Err(self.no_time(&there.value)),
        }
    }

    /// Step 4: writes the value with itself as the timestamp, so that on no node it is ever less than
    /// before. A repeated or late write is harmless.
    async fn write_cell(&self, time: u64) -> Result<(), Fault> {
        let at_us = i64::try_from(time).unwrap_or(i64::MAX);
        let cells = vec![(self.table.value.clone(), Some(Value::from(at_us)))];
        self.cassandra.tables().write(self.statement(Action::Put { cells, ttl_s: 0, at_us })).await
    }

    /// The wall clock of any one of the cluster's nodes, since 1970.
    async fn node_time(&self) -> Result<Duration, Fault> {
        let rows = self.cassandra.tables().scan(Statement::node_time()).await?;
        let shown = rows.first().and_then(|row| row.long(&Ident::new(NODE_TIME)));
        let shown = shown.and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis);
        shown.ok_or_else(|| Fault::NotDone("a node does not tell what time it is".into()))
    }

    fn no_time(&self, there: &Value) -> Fault {
        let TimeTable { table, cell, .. } = &self.table;
        let there = match there {
            Value::Long(number) => number.to_string(),
            other => format!("{other:?}"),
        };
        Fault::Refused(format!(
            "table {}: {:?} has {}, which is no time (a bigint of microseconds from 1970 to 9999); once nobody waits by \
             it, go on with another cell (--time-cell)",
            table.as_str(),
            cell,
            there.escape_debug(),
        ))
    }

    /// "It is enough to return the current value": a value that a QUORUM has, or a later read could
    /// miss it.
    async fn answer(&self) -> Result<u64, Fault> {
        let mut there = self.read().await?;
        if there.is_none() {
            self.update().await?;
            there = self.read().await?;
        }
        let none = || {
            Fault::NotDone("there is no time yet, and this replica's clock is not believed".into())
        };
        let time = there.ok_or_else(none)?;
        if time > self.settled_us.load(Ordering::Acquire) {
            self.write(time).await?;
        }
        Ok(time)
    }

    /// Listing 8, and what it leaves out: what step 3 does otherwise.
    async fn update(&self) -> Result<TimeUpdate, Fault> {
        let clock = &self.cassandra.runtime().clock;
        let local = Duration::from_millis(clock.wall_ms());
        let (there, node) = futures_util::join!(self.read(), self.node_time());
        let (there, node, now) = (there?, node?, clock.now());
        if let Some(there) = there {
            self.course().saw(there, now);
        }
        let local_us = micros(local);
        let disbelieved = local.saturating_sub(node.saturating_add(self.max_ahead));
        let shown = Some(local_us).filter(|shown| disbelieved.is_zero() && is_time(*shown));
        let next = shown.max(self.course().goes_on(now)).filter(|next| is_time(*next));
        if let Some(next) = next.filter(|next| there.is_none_or(|there| *next > there)) {
            self.write(next).await?;
            self.course().saw(next, now);
        }
        Ok(TimeUpdate { time_us: next.max(there), local_us, disbelieved })
    }

    /// Writes at QUORUM: each later read at QUORUM returns no less.
    async fn write(&self, time: u64) -> Result<(), Fault> {
        self.write_cell(time).await?;
        self.settled_us.fetch_max(time, Ordering::AcqRel);
        Ok(())
    }

    fn course(&self) -> MutexGuard<'_, Course> {
        self.course.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// For a service that is a replica itself.
impl QueueTime for TimeReplica {
    fn now_us(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(Self::now_us(self))
    }
}

impl fmt::Debug for TimeReplica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimeReplica").field("options", &self.options).finish_non_exhaustive()
    }
}
