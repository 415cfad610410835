//! The interface below the recipes: it executes a statement and reports honestly what became of it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::BoxFuture;
use holdfast_mutants::mutant;
use holdfast_runtime::{Clock, Instant};
use tokio::sync::{Mutex, MutexGuard};

use crate::shared::Shared;
use crate::statement::{Ident, Statement, Value};

/// The interface between a recipe and its tables. A session of the driver implements it, or the
/// model of the tests. It hides the wire protocol, never the recipe: every step is a [`Statement`].
pub trait Database: Send + Sync + 'static {
    /// Executes a statement once, without retries (a repeated LWT that was applied the first time
    /// would report that it was not).
    ///
    /// Dropping the future leaves open whether the statement takes effect.
    fn execute(&self, statement: Statement) -> BoxFuture<'static, Result<Answer, Fault>>;

    /// The addresses of the database, for error messages.
    fn endpoints(&self) -> Vec<String>;

    /// The keyspace of its tables; empty if it has none.
    fn keyspace(&self) -> String {
        String::new()
    }
}

/// The outcome of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The condition was true, and the statement is applied.
    Applied,
    /// The condition was false, and nothing is changed; the row that it was compared with, if there
    /// was one.
    NotApplied(Option<Row>),
    /// The row, if there is one.
    Read(Option<Row>),
    /// The write or delete is done.
    Written,
    /// The rows, in the order of their clustering columns.
    Rows(Vec<Row>),
    /// Some of a table's rows, in no order, and where the next page begins.
    Page(Vec<Row>, Option<Vec<u8>>),
}

/// The columns of a row that have a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row(
    /// By name.
    pub BTreeMap<String, Cell>,
);

/// One cell of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Its value.
    pub value: Value,
    /// Seconds until it vanishes by the coordinator's clock, if the statement requested that. A
    /// hint.
    pub ttl_s: Option<i32>,
}

impl Row {
    /// The column's value, if it is a text.
    pub fn text(&self, column: &Ident) -> Option<&str> {
        self.0.get(column.as_str())?.value.text()
    }

    /// The column's value, if it is a number.
    pub fn long(&self, column: &Ident) -> Option<i64> {
        self.0.get(column.as_str())?.value.long()
    }

    /// The column's value, if it is a time.
    pub fn time_ms(&self, column: &Ident) -> Option<i64> {
        self.0.get(column.as_str())?.value.time_ms()
    }

    /// The column's value, if it is a flag.
    pub fn flag(&self, column: &Ident) -> Option<bool> {
        self.0.get(column.as_str())?.value.flag()
    }

    /// Seconds until the column vanishes, if it has a TTL and the statement requested it.
    pub fn ttl_s(&self, column: &Ident) -> Option<i32> {
        self.0.get(column.as_str())?.ttl_s
    }
}

/// Why a statement has no answer, and what is certain then. The text is for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The statement may have taken effect, or may still do so as long as a coordinator works on
    /// it. Under contention on one partition this is common: half of all LWTs of 16 clients.
    Unknown(String),
    /// The statement has not taken effect and never will; a repetition may.
    NotDone(String),
    /// The same, and a repetition will not either: the statement is wrong.
    Refused(String),
}

impl Fault {
    /// The fault when a coordinator reports that too few replicas are alive. It counts them before it sends a read or a
    /// plain write, so those are not done. An LWT may still be decided: Paxos v1 (the default up to Cassandra 5.0)
    /// counts the replicas for the commit only after the proposal was accepted, and reports the same error.
    #[must_use]
    pub fn of_too_few_replicas(statement: &Statement, message: String) -> Self {
        let may_be_decided = statement.is_conditional() && !mutant!(UnavailableIsNotDone);
        if may_be_decided { Self::Unknown(message) } else { Self::NotDone(message) }
    }

    /// The message.
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

/// The outcome of an LWT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conditional {
    /// The LWT is applied.
    Applied,
    /// Nothing is changed; the row that it was compared with, if there was one.
    NotApplied(Option<Row>),
}

/// A database as one client uses it: at most one LWT, or read at SERIAL, is in flight for each
/// partition, because two of one client would only compete. Those that wait for it come in the order in which they were asked for; a
/// renewal ([`Tables::conditional_first`]) comes before them.
pub struct Tables {
    database: Arc<dyn Database>,
    clock: Arc<dyn Clock>,
    lanes: Shared<Partition, Lane>,
    sent: AtomicU64,
    unanswered: AtomicU64,
}

/// The statements sent to the database so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatementCounts {
    /// Statements sent, each of which is one round trip to a coordinator.
    pub sent: u64,
    /// Those of them that ended without an answer and may or may not have taken effect.
    pub unanswered: u64,
}

/// A table, and the columns of a partition key.
type Partition = (Ident, Vec<Value>);

/// The way to a partition.
#[derive(Default)]
struct Lane {
    /// Its holder is the next one, but for those that come first.
    door: Mutex<()>,
    /// Its holder has exclusive use of the partition.
    alone: Mutex<()>,
}

impl Lane {
    /// Waits for everybody who came before.
    async fn enter(&self) -> MutexGuard<'_, ()> {
        let _next = self.door.lock().await;
        self.alone.lock().await
    }

    /// Waits for one statement that is in flight, and for the one at the door: for two, however many wait.
    async fn enter_first(&self) -> MutexGuard<'_, ()> {
        if mutant!(RenewalsWaitBehindLooks) {
            return self.enter().await;
        }
        self.alone.lock().await
    }
}

impl Tables {
    /// Uses this database; the clock measures how long statements take.
    pub fn new(database: Arc<dyn Database>, clock: Arc<dyn Clock>) -> Self {
        let [sent, unanswered] = [const { AtomicU64::new(0) }; 2];
        Self { database, clock, lanes: Shared::default(), sent, unanswered }
    }

    /// The addresses of the database, for error messages.
    pub fn endpoints(&self) -> Vec<String> {
        self.database.endpoints()
    }

    /// The keyspace of the tables.
    pub fn keyspace(&self) -> String {
        self.database.keyspace()
    }

    /// The statements sent so far.
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

    /// Executes an LWT. The returned instant precedes the sending: whatever the TTL guarantees
    /// counts from there.
    pub async fn conditional(&self, statement: Statement) -> (Instant, Result<Conditional, Fault>) {
        let lane = self.lane(&statement);
        let _alone = lane.enter().await;
        self.conditional_now(statement).await
    }

    /// The same, before all of this client's statements that wait for the partition: for a renewal, which is worth nothing when it is late,
    /// and which would otherwise wait behind the looks of every waiter here (B9).
    pub async fn conditional_first(
        &self,
        statement: Statement,
    ) -> (Instant, Result<Conditional, Fault>) {
        let lane = self.lane(&statement);
        let _alone = lane.enter_first().await;
        self.conditional_now(statement).await
    }

    async fn conditional_now(&self, statement: Statement) -> (Instant, Result<Conditional, Fault>) {
        let started = self.clock.now();
        let answer = self.execute(statement).await.and_then(|answer| match answer {
            Answer::Applied => Ok(Conditional::Applied),
            Answer::NotApplied(row) => Ok(Conditional::NotApplied(row)),
            other => Err(Fault::Unknown(format!("an LWT was answered with {other:?}"))),
        });
        (started, answer)
    }

    /// Reads at SERIAL: an LWT that was begun and can still be completed is completed first;
    /// otherwise its proposer can never complete it.
    ///
    /// # Errors
    ///
    /// [`Fault`]; in no case does a read change anything.
    pub async fn read(&self, statement: Statement) -> Result<Option<Row>, Fault> {
        let lane = self.lane(&statement);
        let _alone = lane.enter().await;
        match self.execute(statement).await? {
            Answer::Read(row) => Ok(row),
            other => Err(Fault::NotDone(format!("a read was answered with {other:?}"))),
        }
    }

    /// Reads one row at QUORUM, without waiting for this client's other statements: an LWT that is under way may be in what it shows or not.
    ///
    /// # Errors
    ///
    /// [`Fault`]; in no case does a read change anything.
    pub async fn peek(&self, statement: Statement) -> Result<Option<Row>, Fault> {
        match self.execute(statement).await? {
            Answer::Read(row) => Ok(row),
            other => Err(Fault::NotDone(format!("a read was answered with {other:?}"))),
        }
    }

    /// Reads all rows of a partition at SERIAL, all as of one instant.
    ///
    /// # Errors
    ///
    /// [`Fault`]; in no case does a read change anything.
    pub async fn read_all(&self, statement: Statement) -> Result<Vec<Row>, Fault> {
        let lane = self.lane(&statement);
        let _alone = lane.enter().await;
        match self.execute(statement).await? {
            Answer::Rows(rows) => Ok(rows),
            other => Err(Fault::NotDone(format!("a read was answered with {other:?}"))),
        }
    }

    /// Writes or erases at QUORUM: every later read at QUORUM sees it once the answer has arrived.
    ///
    /// # Errors
    ///
    /// [`Fault`]; after [`Fault::Unknown`] some replicas may have the write, or may get it later.
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
    /// [`Fault`]; in no case does a read change anything.
    pub async fn scan(&self, statement: Statement) -> Result<Vec<Row>, Fault> {
        match self.execute(statement).await? {
            Answer::Rows(rows) => Ok(rows),
            other => Err(Fault::NotDone(format!("a scan was answered with {other:?}"))),
        }
    }

    /// Reads one page of all rows of a table at QUORUM, and the position of the next page.
    ///
    /// # Errors
    ///
    /// [`Fault`]; in no case does a read change anything.
    pub async fn page(&self, statement: Statement) -> Result<(Vec<Row>, Option<Vec<u8>>), Fault> {
        match self.execute(statement).await? {
            Answer::Page(rows, next) => Ok((rows, next)),
            other => Err(Fault::NotDone(format!("a page was answered with {other:?}"))),
        }
    }

    fn lane(&self, statement: &Statement) -> Arc<Lane> {
        let columns = statement.key.iter().take(statement.partition);
        let partition = columns.map(|(_, value)| value.clone()).collect();
        self.lanes.get((statement.table.clone(), partition))
    }
}
