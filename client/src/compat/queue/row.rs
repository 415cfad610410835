//! The queue's statements, and the steps of one attempt.

use std::sync::Arc;
use std::time::Duration;

use holdfast_seams::Moment;

use super::QueueTables;
use super::time::QueueTime;
use crate::Error;
use crate::compat::cells::OwnCells;
use crate::compat::database::{Fault, Row};
use crate::compat::keeper::{Attempt, Left, Recipe, Renewal};

/// One attempt: its place in the queue, and its cell in the main row.
pub(super) struct QueueSpot {
    pub(super) cells: OwnCells,
    pub(super) tables: Arc<QueueTables>,
    pub(super) time: Arc<dyn QueueTime>,
    /// Whether it gets back into line when somebody is before it (listing 6), or gives up (listing 7).
    pub(super) waits: bool,
    /// The name of its cell in the queue, once it has one.
    pub(super) place: Option<String>,
    /// When the queue's cell was last sent and acknowledged.
    pub(super) entered: Option<Moment>,
    /// Somebody had the main row: look before the next write to it.
    pub(super) look_first: bool,
    /// A cell of ours may stand in the main row: it was sent, and no later delete of it was acknowledged.
    pub(super) in_main: bool,
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
    /// Listing 5. Without an answer from whoever tells the time there is no place: one by this machine's clock
    /// would be before those who came earlier, or behind those who come later.
    async fn draw(&self) -> Result<String, Fault> {
        let now_us = self.time.now_us().await.map_err(|error| match error {
            Error::Refused { message, .. } => Fault::Refused(message),
            other => Fault::NotDone(format!("no time for a place in the queue: {other}")),
        })?;
        Ok(column_name(now_us, self.cells.owner.as_str()))
    }

    /// Listing 6, step 1: into the queue; and there again each half of a TTL. The seed renews the
    /// cell only once the lock is had, so that a waiter's place ends with its TTL.
    async fn enter(&mut self) -> Result<String, Fault> {
        let place = match self.place.clone() {
            Some(place) => place,
            None => self.draw().await?,
        };
        self.place = Some(place.clone());
        let now = self.cells.seams.clock.now();
        let is_old = |entered| now.saturating_since(entered) >= self.cells.ttl / 2;
        let stale = self.entered.is_none_or(is_old);
        if stale {
            self.entered = Some(self.cells.put(&self.tables.queue, &place).await?);
        }
        Ok(place)
    }

    /// Steps 3 to 7: our cell into the main row; the lock is had if it is the only one there. Who found it
    /// taken before looks first, as listing 7 does: a write that has to be undone is a tombstone. Our own cell
    /// there is from an earlier run, one of whose answers was lost, and nobody to wait for.
    async fn claim(&mut self) -> Result<Attempt, Fault> {
        let tables = self.tables.clone();
        if self.look_first
            && let Some(owner) = self.cells.seen(&tables.main).await?.other
        {
            self.leave_main().await?;
            return Ok(held_near(Some(owner)));
        }
        // Step 3. Had counts from before it; one without an answer is sent again.
        self.in_main = true;
        let started = self.cells.put_owner(&tables.main).await?;
        // Step 4, and what it does not ask: whose the one record is.
        let seen = self.cells.seen(&tables.main).await?;
        if seen.is_ours_alone() {
            return Ok(Attempt::Had { started });
        }
        // Step 7.
        self.look_first = true;
        self.leave_main().await?;
        Ok(held_near(seen.other))
    }

    /// Takes our cell out of the main row, if it may be there: the process that is first by now would take it for a holder's.
    async fn leave_main(&mut self) -> Result<(), Fault> {
        if self.in_main {
            self.cells.erase_owner(&self.tables.main).await?;
        }
        self.in_main = false;
        Ok(())
    }

    fn held_by(&self, row: Option<&Row>, again: Option<Duration>) -> Attempt {
        let owner = row.and_then(|row| row.text(&self.tables.value)).map(str::to_owned);
        Attempt::HeldBy { owner, again }
    }
}

/// Somebody has the main row, and we are next.
fn held_near(owner: Option<String>) -> Attempt {
    Attempt::HeldBy { owner, again: Some(NEAR_PAUSE_MAX) }
}

impl Recipe for QueueSpot {
    async fn attempt(&mut self) -> Result<Attempt, Fault> {
        if !self.waits && self.place.is_none() {
            // Listing 7, step 1.
            let there = self.cells.first(&self.tables.main, 1).await?;
            if let Some(row) = there.first() {
                return Ok(self.held_by(Some(row), None));
            }
        }
        let place = self.enter().await?;
        // Listing 6, step 2; listing 7, step 4.
        let head = self.cells.first(&self.tables.queue, NEAR).await?;
        let ours = |row: &Row| row.text(&self.tables.column) == Some(place.as_str());
        let near = head.iter().position(ours);
        if near != Some(0) {
            // It was first when it wrote there, and somebody with an earlier time came in since.
            self.leave_main().await?;
        }
        match near {
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
            let put = self.cells.put(&self.tables.queue, &place).await;
            self.entered = put.ok().or(self.entered);
        }
        self.cells.put_owner(&self.tables.main).await.map_or(Renewal::Unknown, Renewal::Applied)
    }

    /// Thesis §5.3: both cells are removed; the main row's first, for the next in the queue looks at
    /// that.
    async fn leave(&mut self) -> Result<Left, Fault> {
        let Some(place) = self.place.clone() else { return Ok(Left::NotHad) };
        self.cells.erase_owner(&self.tables.main).await?;
        self.cells.erase(&self.tables.queue, &place).await?;
        Ok(Left::Released)
    }
}
