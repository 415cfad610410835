//! The queue's statements, and the steps of one attempt.

use std::sync::Arc;
use std::time::Duration;

use holdfast_seams::{Clock, Moment};

use super::QueueTables;
use super::time::QueueTime;
use crate::Error;
use crate::compat::database::{Fault, Row, Tables};
use crate::compat::keeper::{Attempt, Left, Recipe, Renewal};
use crate::compat::owner::OwnerId;
use crate::compat::stamps::Stamps;
use crate::compat::statement::{Action, Ident, Statement, Value};

/// One attempt: its place in the queue, and its cell in the main row.
pub(super) struct QueueSpot {
    pub(super) tables: Arc<Tables>,
    pub(super) columns: Arc<QueueTables>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) time: Arc<dyn QueueTime>,
    pub(super) stamps: Arc<Stamps>,
    pub(super) lock: String,
    pub(super) owner: OwnerId,
    pub(super) ttl: Duration,
    /// Whether it gets back into line when somebody is before it (listing 6), or gives up (listing 7).
    pub(super) waits: bool,
    /// The name of its cell in the queue, once it has one.
    pub(super) place: Option<String>,
    /// When the queue's cell was last sent and acknowledged.
    pub(super) entered: Option<Moment>,
    /// Somebody had the main row: look before the next write to it.
    pub(super) look_first: bool,
}

/// How many cells at the head of the queue are looked at: the holder's, for it keeps its place while it
/// holds, and those of the next two.
const NEAR: i32 = 3;
/// The longest pause between two looks of who is near: a hand-over takes about half of it, and a few round
/// trips. It costs five reads a second for each of two waiters, however many there are. The one behind the
/// next is near as well, for it has to know soon when its own turn is next.
const NEAR_PAUSE_MAX: Duration = Duration::from_millis(200);

/// Listing 5: 20 digits of microseconds, then the thread: cells are in the order of their names.
pub(super) fn column_name(now_us: u64, thread_id: &str) -> String {
    format!("{now_us:020}{thread_id}")
}

impl QueueSpot {
    fn cell(&self, table: &Ident, column: &str, action: Action) -> Statement {
        let columns = &self.columns;
        let key = vec![
            (columns.key.clone(), Value::from(self.lock.as_str())),
            (columns.column.clone(), Value::from(column)),
        ];
        Statement::new(table.clone(), key, action)
    }

    /// A cell with a TTL, and with a timestamp of ours: a delete that we send later wins, in
    /// whatever order the two arrive.
    async fn put(&self, table: &Ident, column: &str) -> (Moment, Result<(), Fault>) {
        let owner = Value::from(self.owner.as_str());
        let action = Action::Put {
            cells: vec![(self.columns.value.clone(), Some(owner))],
            ttl_s: i32::try_from(self.ttl.as_secs()).unwrap_or(i32::MAX),
            at_us: self.stamps.next(),
        };
        let started = self.clock.now();
        (started, self.tables.write(self.cell(table, column, action)).await)
    }

    async fn erase(&self, table: &Ident, column: &str) -> Result<(), Fault> {
        let action = Action::Erase { at_us: self.stamps.next() };
        self.tables.write(self.cell(table, column, action)).await
    }

    /// The first cells of a row, in order, at QUORUM.
    async fn first(&self, table: &Ident, limit: i32) -> Result<Vec<Row>, Fault> {
        let columns = vec![self.columns.column.clone(), self.columns.value.clone()];
        let key = vec![(self.columns.key.clone(), Value::from(self.lock.as_str()))];
        let action = Action::First { columns, limit };
        self.tables.scan(Statement::new(table.clone(), key, action)).await
    }

    /// Listing 5. Without an answer from whoever tells the time there is no place: one by this machine's clock
    /// would be before those who came earlier, or behind those who come later.
    async fn draw(&self) -> Result<String, Fault> {
        let now_us = self.time.now_us().await.map_err(|error| match error {
            Error::Refused { message, .. } => Fault::Refused(message),
            other => Fault::NotDone(format!("no time for a place in the queue: {other}")),
        })?;
        Ok(column_name(now_us, self.owner.as_str()))
    }

    /// Listing 6, step 1: into the queue; and there again each half of a TTL. The seed renews the
    /// cell only once the lock is had, so that a waiter's place ends with its TTL.
    async fn enter(&mut self) -> Result<String, Fault> {
        let place = match self.place.clone() {
            Some(place) => place,
            None => self.draw().await?,
        };
        self.place = Some(place.clone());
        let stale = self
            .entered
            .is_none_or(|entered| self.clock.now().saturating_since(entered) >= self.ttl / 2);
        if stale {
            let (started, put) = self.put(&self.columns.queue.clone(), &place).await;
            put?;
            self.entered = Some(started);
        }
        Ok(place)
    }

    /// Steps 3 to 7: our cell into the main row; the lock is had if it is the only one there. Who found it
    /// taken before looks first, as listing 7 does: a write that has to be undone is a tombstone.
    async fn claim(&mut self) -> Result<Attempt, Fault> {
        let main = self.columns.main.clone();
        if self.look_first {
            let there = self.first(&main, 1).await?;
            if let Some(row) = there.first() {
                return Ok(self.held_by(Some(row), Some(NEAR_PAUSE_MAX)));
            }
        }
        // Step 3. Had counts from before it; one without an answer is sent again.
        let (started, put) = self.put(&main, self.owner.as_str()).await;
        put?;
        // Step 4, and what it does not ask: whose the one record is.
        let there = self.first(&main, 2).await?;
        let owners: Vec<&str> =
            there.iter().filter_map(|row| row.text(&self.columns.column)).collect();
        if owners == [self.owner.as_str()] {
            return Ok(Attempt::Had { started });
        }
        let other = owners.iter().find(|owner| **owner != self.owner.as_str());
        let other = other.map(|owner| (*owner).to_owned());
        // Step 7.
        self.erase(&main, self.owner.as_str()).await?;
        self.look_first = true;
        Ok(Attempt::HeldBy { owner: other, again: Some(NEAR_PAUSE_MAX) })
    }

    fn held_by(&self, row: Option<&Row>, again: Option<Duration>) -> Attempt {
        let owner = row.and_then(|row| row.text(&self.columns.value)).map(str::to_owned);
        Attempt::HeldBy { owner, again }
    }
}

impl Recipe for QueueSpot {
    async fn attempt(&mut self) -> Result<Attempt, Fault> {
        if !self.waits && self.place.is_none() {
            // Listing 7, step 1.
            let there = self.first(&self.columns.main.clone(), 1).await?;
            if let Some(row) = there.first() {
                return Ok(self.held_by(Some(row), None));
            }
        }
        let place = self.enter().await?;
        // Listing 6, step 2; listing 7, step 4.
        let head = self.first(&self.columns.queue.clone(), NEAR).await?;
        let ours = |row: &Row| row.text(&self.columns.column) == Some(place.as_str());
        match head.iter().position(ours) {
            Some(0) => self.claim().await,
            None if head.is_empty() => {
                // Our own cell has ended while we stalled: back to our place with it.
                self.entered = None;
                Ok(self.held_by(None, None))
            }
            near => Ok(self.held_by(head.first(), near.map(|_| NEAR_PAUSE_MAX))),
        }
    }

    /// Thesis §5.3: both cells are written again. The main row's is the lock: from before it was
    /// sent the hold counts. Without the queue's, somebody else is first there, and does not get in.
    async fn renew(&mut self) -> Renewal {
        if let Some(place) = self.place.clone() {
            let (started, put) = self.put(&self.columns.queue.clone(), &place).await;
            self.entered = put.is_ok().then_some(started).or(self.entered);
        }
        let (started, put) = self.put(&self.columns.main.clone(), self.owner.as_str()).await;
        match put {
            Ok(()) => Renewal::Applied(started),
            Err(_) => Renewal::Unknown,
        }
    }

    /// Thesis §5.3: both cells are removed; the main row's first, for the next in the queue looks at
    /// that.
    async fn leave(&mut self) -> Result<Left, Fault> {
        let Some(place) = self.place.clone() else { return Ok(Left::NotHad) };
        self.erase(&self.columns.main.clone(), self.owner.as_str()).await?;
        self.erase(&self.columns.queue.clone(), &place).await?;
        Ok(Left::Released)
    }
}
