//! What the recipes stand on: something that executes a statement, and is honest about what
//! became of it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use futures_util::future::BoxFuture;
use holdfast_seams::{Clock, Moment};

use crate::statement::{Ident, Statement, Value};

/// The seam between a recipe and its tables. Behind it stands a session of the driver, or the
/// model of the tests; it hides the wire, never the recipe: every step is a [`Statement`].
pub trait Database: Send + Sync + 'static {
    /// Executes a statement, once: nothing is retried on the way (a repeated LWT that was applied
    /// the first time answers that it was not).
    ///
    /// Dropping the future leaves open whether it takes effect.
    fn execute(&self, statement: Statement) -> BoxFuture<'static, Result<Answer, Fault>>;

    /// Where the database is, for people.
    fn endpoints(&self) -> Vec<String>;

    /// In which keyspace its tables are; empty where there is no such thing.
    fn keyspace(&self) -> String {
        String::new()
    }
}

/// What a statement came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The condition was true, and it is done.
    Applied,
    /// The condition was false, and nothing is done; what it was compared with, if there was a row.
    NotApplied(Option<Row>),
    /// The row, if there is one.
    Read(Option<Row>),
    /// Written, or erased.
    Written,
    /// The rows, in the order of their clustering columns.
    Rows(Vec<Row>),
    /// Some of a table's rows, in no order, and where the next of them begin.
    Page(Vec<Row>, Option<Vec<u8>>),
}

/// The columns of a row that have a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row(
    /// By name.
    pub BTreeMap<String, Cell>,
);

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// What it has.
    pub value: Value,
    /// Seconds until it vanishes by the coordinator's clock, where that was asked. A hint.
    pub ttl_s: Option<i32>,
}

impl Row {
    /// That column, if it has a text.
    pub fn text(&self, column: &Ident) -> Option<&str> {
        self.0.get(column.as_str())?.value.text()
    }

    /// That column, if it has a number.
    pub fn long(&self, column: &Ident) -> Option<i64> {
        self.0.get(column.as_str())?.value.long()
    }

    /// That column, if it has a time.
    pub fn time_ms(&self, column: &Ident) -> Option<i64> {
        self.0.get(column.as_str())?.value.time_ms()
    }

    /// That column, if it has a flag.
    pub fn flag(&self, column: &Ident) -> Option<bool> {
        self.0.get(column.as_str())?.value.flag()
    }

    /// Seconds until that column vanishes, if it does and was asked.
    pub fn ttl_s(&self, column: &Ident) -> Option<i32> {
        self.0.get(column.as_str())?.ttl_s
    }
}

/// Why a statement has no answer, and what is certain then. The text is for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It may have taken effect, or may still, as long as a coordinator works on it. Under
    /// contention on one partition this is no rare thing: half of all LWTs of 16 clients.
    Unknown(String),
    /// It has not taken effect and never will; another time it may.
    NotDone(String),
    /// The same, and it will not another time either: what was asked is wrong.
    Refused(String),
}

impl Fault {
    /// What is certain when a coordinator has answered that too few replicas are alive. It counts them before it sends a
    /// read or a plain write, and nothing is done. An LWT may be decided all the same: Paxos v1 (the default up to
    /// Cassandra 5.0) counts the replicas for the commit only after the proposal was accepted, and answers the same.
    #[must_use]
    pub fn of_too_few_replicas(statement: &Statement, message: String) -> Self {
        if statement.is_conditional() { Self::Unknown(message) } else { Self::NotDone(message) }
    }

    /// The words.
    pub fn message(&self) -> &str {
        match self {
            Self::Unknown(message) | Self::NotDone(message) | Self::Refused(message) => message,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

/// What an LWT came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conditional {
    /// It is done.
    Applied,
    /// Nothing is done; what it was compared with, if there was a row.
    NotApplied(Option<Row>),
}

/// A database as one client uses it: at most one LWT, or read at SERIAL, in flight for each
/// partition, for two of one client would only fight each other.
pub struct Tables {
    database: Arc<dyn Database>,
    clock: Arc<dyn Clock>,
    /// By table and partition; an entry goes when nobody uses it and another one is made.
    lanes: Mutex<BTreeMap<Partition, Weak<Lane>>>,
    sent: AtomicU64,
    unanswered: AtomicU64,
}

/// What was asked of the database since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatementCounts {
    /// Statements sent, each of which is one round trip to a coordinator.
    pub sent: u64,
    /// Those of them that ended without an answer, and may have taken effect or not.
    pub unanswered: u64,
}

/// A table, and the columns of a partition key.
type Partition = (Ident, Vec<Value>);

/// Who has it is alone on a partition.
type Lane = tokio::sync::Mutex<()>;

impl Tables {
    /// Over this database; how long something took is told by this clock.
    pub fn new(database: Arc<dyn Database>, clock: Arc<dyn Clock>) -> Self {
        let [sent, unanswered] = [const { AtomicU64::new(0) }; 2];
        Self { database, clock, lanes: Mutex::default(), sent, unanswered }
    }

    /// Where the database is, for people.
    pub fn endpoints(&self) -> Vec<String> {
        self.database.endpoints()
    }

    /// In which keyspace the tables are.
    pub fn keyspace(&self) -> String {
        self.database.keyspace()
    }

    /// What was asked since the beginning.
    pub fn counts(&self) -> StatementCounts {
        let [sent, unanswered] =
            [&self.sent, &self.unanswered].map(|count| count.load(Ordering::Relaxed));
        StatementCounts { sent, unanswered }
    }

    async fn execute(&self, statement: Statement) -> Result<Answer, Fault> {
        self.sent.fetch_add(1, Ordering::Relaxed);
        let answer = self.database.execute(statement).await;
        if let Err(Fault::Unknown(_)) = answer {
            self.unanswered.fetch_add(1, Ordering::Relaxed);
        }
        answer
    }

    /// Executes an LWT. The instant is from before it was sent: whatever its TTL gives counts from
    /// there.
    pub async fn conditional(&self, statement: Statement) -> (Moment, Result<Conditional, Fault>) {
        let lane = self.lane(&statement);
        let _alone = lane.lock().await;
        let started = self.clock.now();
        let answer = self.execute(statement).await.and_then(|answer| match answer {
            Answer::Applied => Ok(Conditional::Applied),
            Answer::NotApplied(row) => Ok(Conditional::NotApplied(row)),
            other => Err(Fault::Unknown(format!("an LWT was answered with {other:?}"))),
        });
        (started, answer)
    }

    /// Reads at SERIAL: what was begun and can still be completed is completed first, or never
    /// will be by whoever was before.
    ///
    /// # Errors
    ///
    /// [`Fault`]; a read changes nothing, whichever.
    pub async fn read(&self, statement: Statement) -> Result<Option<Row>, Fault> {
        let lane = self.lane(&statement);
        let _alone = lane.lock().await;
        match self.execute(statement).await? {
            Answer::Read(row) => Ok(row),
            other => Err(Fault::NotDone(format!("a read was answered with {other:?}"))),
        }
    }

    /// Reads all rows of a partition at SERIAL, all as of one instant.
    ///
    /// # Errors
    ///
    /// [`Fault`]; a read changes nothing, whichever.
    pub async fn read_all(&self, statement: Statement) -> Result<Vec<Row>, Fault> {
        let lane = self.lane(&statement);
        let _alone = lane.lock().await;
        match self.execute(statement).await? {
            Answer::Rows(rows) => Ok(rows),
            other => Err(Fault::NotDone(format!("a read was answered with {other:?}"))),
        }
    }

    /// Writes or erases at QUORUM: whoever reads at QUORUM after the answer sees it.
    ///
    /// # Errors
    ///
    /// [`Fault`]; after [`Fault::Unknown`] some replicas may have it, or may come to.
    pub async fn write(&self, statement: Statement) -> Result<(), Fault> {
        match self.execute(statement).await? {
            Answer::Written => Ok(()),
            other => Err(Fault::Unknown(format!("a write was answered with {other:?}"))),
        }
    }

    /// Reads the first rows of a partition at QUORUM.
    ///
    /// # Errors
    ///
    /// [`Fault`]; a read changes nothing, whichever.
    pub async fn scan(&self, statement: Statement) -> Result<Vec<Row>, Fault> {
        match self.execute(statement).await? {
            Answer::Rows(rows) => Ok(rows),
            other => Err(Fault::NotDone(format!("a scan was answered with {other:?}"))),
        }
    }

    /// Reads one page of all rows of a table at QUORUM, and where the next one begins.
    ///
    /// # Errors
    ///
    /// [`Fault`]; a read changes nothing, whichever.
    pub async fn page(&self, statement: Statement) -> Result<(Vec<Row>, Option<Vec<u8>>), Fault> {
        match self.database.execute(statement).await? {
            Answer::Page(rows, next) => Ok((rows, next)),
            other => Err(Fault::NotDone(format!("a page was answered with {other:?}"))),
        }
    }

    fn lane(&self, statement: &Statement) -> Arc<Lane> {
        let columns = statement.key.iter().take(statement.partition);
        let partition = columns.map(|(_, value)| value.clone()).collect();
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (statement.table.clone(), partition);
        if let Some(lane) = lanes.get(&key).and_then(Weak::upgrade) {
            return lane;
        }
        lanes.retain(|_, lane| lane.strong_count() > 0);
        let lane = Arc::default();
        lanes.insert(key, Arc::downgrade(&lane));
        lane
    }
}
