//! One replica of the service.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast_runtime::Runtime;

use super::asking::Asking;
use super::cell::{Cell, is_time};
use super::course::{Course, micros};
use super::{TimeOptions, TimeTable};
use crate::cassandra::Cassandra;
use crate::clock::grpc::TimePort;
use crate::database::Fault;
use crate::queue::QueueTime;
use crate::{Error, Result};

/// Answers with the time, and keeps it going; see the [module](super). Cheap to clone; clones are the
/// same replica. All its state that matters is in the cell: a restarted replica is as good as one that
/// never stopped.
#[derive(Clone)]
pub struct TimeReplica {
    cassandra: Cassandra,
    options: TimeOptions,
    shared: Arc<Shared>,
    asking: Arc<Asking>,
}

struct Shared {
    cell: Cell,
    runtime: Runtime,
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
        let runtime = cassandra.runtime().clone();
        let shared = Arc::new(Shared {
            cell: Cell::new(cassandra.tables().clone(), table),
            runtime: runtime.clone(),
            max_ahead: options.max_ahead,
            course: Mutex::default(),
            settled_us: AtomicU64::new(0),
        });
        let reader = shared.clone();
        let asking = Asking::new(runtime, move || {
            let shared = reader.clone();
            Box::pin(async move { shared.answer().await })
        });
        Ok(Self { cassandra: cassandra.clone(), options, shared, asking })
    }

    /// The time: at least every answer that any replica gave before this call. Microseconds since 1970.
    /// Cancel safe.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] without a QUORUM, or while there is no time yet; [`Error::Refused`] if
    /// the table does not exist, or its cell holds no time.
    pub async fn now_us(&self) -> Result<u64> {
        let began = self.shared.runtime.clock.now();
        self.asking.ask().await.map_err(|fault| self.cassandra.failed(fault, began))
    }

    /// Updates the cell once (listing 8). Dropping the future leaves open whether the update was done;
    /// both are right.
    ///
    /// # Errors
    ///
    /// As [`TimeReplica::now_us`].
    pub async fn update(&self) -> Result<TimeUpdate> {
        let began = self.shared.runtime.clock.now();
        self.shared.update().await.map_err(|fault| self.cassandra.failed(fault, began))
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
            self.shared.runtime.sleep(self.options.interval).await;
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
    /// "It is enough to return the current value": a value that a QUORUM has, or a later read could
    /// miss it.
    async fn answer(&self) -> Result<u64, Fault> {
        let mut there = self.cell.read().await?;
        if there.is_none() {
            self.update().await?;
            there = self.cell.read().await?;
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
        let clock = &self.runtime.clock;
        let local = Duration::from_millis(clock.wall_ms());
        let (there, node) = futures_util::join!(self.cell.read(), self.cell.node_time());
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
        self.cell.write(time).await?;
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
