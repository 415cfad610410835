//! What all lockers on one Cassandra session share.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use holdfast_runtime::{Instant, Runtime};
use tokio::sync::watch;

use super::alarms::Alarms;
use super::database::{Database, Fault, StatementCounts, Tables};
use super::measures::Timed;
use super::row_timing::RowTiming;
use crate::{Error, Result};
use holdfast_guard::default_label;

/// A keyspace of a Cassandra cluster, as lockers use it. Cheap to clone. Build all lockers of a
/// process from one, so that they do not compete for a partition.
#[derive(Clone)]
pub struct Cassandra {
    tables: Arc<Tables>,
    runtime: Runtime,
    pub(crate) alarms: Arc<Alarms>,
    /// How many tasks of its lockers run.
    pub(crate) tasks: watch::Sender<usize>,
}

impl Cassandra {
    /// Waits until everything that was given up or given back so far is out of the tables. For
    /// programs that end: whatever they leave behind stays until its TTL is over. This also waits
    /// for guards that are held and for waits that go on. Cancel safe.
    pub async fn settled(&self) {
        // The sender is in `self`.
        let _ = self.tasks.subscribe().wait_for(|tasks| *tasks == 0).await;
    }

    /// Counts the statements that the lockers built from this have sent to the cluster so far.
    pub fn statements(&self) -> StatementCounts {
        self.tables.counts()
    }

    /// The nodes of the cluster, as the session knows them.
    pub fn nodes(&self) -> Vec<String> {
        self.tables.endpoints()
    }

    /// Builds it over tables without a driver: for tests of code on top of the lockers.
    #[doc(hidden)]
    pub fn on(database: Arc<dyn Database>, runtime: Runtime) -> Self {
        let database = Arc::new(Timed { database, clock: runtime.clock.clone() });
        let tables = Arc::new(Tables::new(database, runtime.clock.clone()));
        let alarms = Arc::new(Alarms::new(runtime.clock.clone()));
        Self { tables, runtime, alarms, tasks: watch::Sender::new(0) }
    }

    pub(crate) fn tables(&self) -> &Arc<Tables> {
        &self.tables
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// The error that a caller gets for a fault of a call that began at `began`.
    pub(crate) fn failed(&self, fault: Fault, began: Instant) -> Error {
        match fault {
            Fault::Unknown(last) | Fault::NotDone(last) => self.unreachable(began, last),
            Fault::Refused(message) => Error::invalid(message),
        }
    }

    /// The error of a call that began at `began` and waits no longer; `last` says why it has no answer.
    pub(crate) fn unreachable(&self, began: Instant, last: String) -> Error {
        let waited = self.runtime.clock.now().saturating_since(began);
        Error::Unreachable { endpoints: self.nodes(), waited, last, answered: false }
    }
}

/// The name of a recipe with its tables in the table of modes: two are equal if, and only if, their clients exclude each
/// other.
pub fn recipe_on(recipe: &str, keyspace: &str, tables: &[&str]) -> String {
    let tables: Vec<String> = tables.iter().map(|table| format!("{keyspace}.{table}")).collect();
    format!("{recipe} {}", tables.join(" "))
}

impl fmt::Debug for Cassandra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cassandra")
            .field("endpoints", &self.tables.endpoints())
            .finish_non_exhaustive()
    }
}

/// The settings of every locker on Cassandra.
#[derive(Clone, Debug)]
#[must_use = "options do nothing until a locker is built with them"]
pub struct LockerOptions {
    pub(crate) service: String,
    ttl: Duration,
    max_skew: Duration,
    pub(crate) answer_limit: Duration,
}

impl Default for LockerOptions {
    fn default() -> Self {
        Self {
            service: default_label(),
            ttl: Duration::from_mins(3),
            max_skew: Self::MAX_SKEW,
            answer_limit: Duration::from_secs(10),
        }
    }
}

impl LockerOptions {
    /// The default of [`LockerOptions::max_skew`].
    pub const MAX_SKEW: Duration = Duration::from_mins(1);

    /// The name of this process in the table, which other clients see as the holder of a lock. Owner ids are
    /// `hf1:SERVICE@WRITER/` and a number for each attempt. Each locker draws its own writer, so that several processes
    /// may share one service name. Default: `host:pid`.
    pub fn service(mut self, service: impl Into<String>) -> Self {
        self.service = service.into();
        self
    }

    /// How long a row stays when nothing renews it, in whole seconds: after its holder crashed, a
    /// lock is free at the latest after this time plus the skew. The locker renews it every third
    /// of the time for which it is certain.
    ///
    /// Default: 180 s. Minimum: 3 s, and three times [`LockerOptions::max_skew`]; anything below is
    /// refused. Maximum: 20 years.
    ///
    /// Source: the lease article's `default_time_to_live`. It is so long because of clocks: the
    /// writing coordinator computes by its own clock when a cell expires, and the reading node
    /// compares that with its own clock. The authors of the queue recipe had to take 15 minutes.
    ///
    /// Tokens have no TTL: for them this is the minimum time that a session stays without a heartbeat before a
    /// [`Housekeeper`](super::Housekeeper) may end it.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// The largest difference between the wall clocks of any two nodes of the cluster. A hold counts as safe for that
    /// much less than its TTL. The client's own wall clock matters only to a foreign housekeeper that compares the
    /// timestamps of tokens with its own clock.
    ///
    /// Default: 60 s, which is what a TTL of 180 s allows for.
    pub fn max_skew(mut self, max_skew: Duration) -> Self {
        self.max_skew = max_skew;
        self
    }

    /// How long a call that does not wait for the lock may wait for the answer.
    ///
    /// Default: 10 s.
    pub fn answer_limit(mut self, limit: Duration) -> Self {
        self.answer_limit = limit;
        self
    }

    /// # Errors
    ///
    /// As of [`RowTiming::new`].
    pub(crate) fn timing(&self) -> Result<RowTiming> {
        RowTiming::new(self.ttl, self.max_skew)
    }
}
