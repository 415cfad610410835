//! The queue's statements, and the steps of one attempt.

use std::sync::Arc;
use std::time::Duration;

use holdfast_mutants::mutant;
use holdfast_runtime::Instant;

use super::floor::Floors;
use super::{QueueTables, QueueTime};
use crate::Error;
use crate::cells::OwnCells;
use crate::database::{Fault, Row};
use crate::lock_task::{Attempt, Left, Reached, Renewal};

/// One attempt: its place in the queue, and its cell in the main row.
pub(super) struct QueueAttempt {
    pub(super) cells: OwnCells,
    pub(super) tables: Arc<QueueTables>,
    pub(super) time: Arc<dyn QueueTime>,
    /// From which place on its locker reads the queues.
    pub(super) floors: Arc<Floors>,
    /// Whether it stays in line behind others (listing 6), or gives up (listing 7).
    pub(super) waits: bool,
    /// The name of its cell in the queue, once it has one.
    pub(super) place: Option<String>,
    /// The instant at which it sent its last acknowledged write of the queue's cell.
    pub(super) entered: Option<Instant>,
    /// Another client had the main row: look before the next write to it.
    pub(super) look_first: bool,
    /// This attempt's cell may be in the main row: it was sent, and no later delete of it was
    /// acknowledged.
    pub(super) in_main: bool,
}

/// How many cells an attempt reads at the head of the queue: the holder's, which keeps its place while
/// it holds, and those of the next two.
const NEAR: i32 = 3;
/// The longest pause of a waiter near the head: a hand-over takes about half of it, and a few round
/// trips. It costs five reads a second for each of two waiters, however many there are. The second
/// waiter is near as well: it has to learn soon that its own turn is next.
const NEAR_PAUSE_MAX: Duration = Duration::from_millis(200);

/// Listing 5: 20 digits of microseconds, then the thread; cells sort by name.
pub(super) fn column_name(now_us: u64, thread_id: &str) -> String {
    format!("{now_us:0TIME_DIGITS$}{thread_id}")
}

pub(super) const TIME_DIGITS: usize = 20;

impl QueueAttempt {
    /// Draws a place (listing 5). There is none without an answer of the time source: a place by this
    /// machine's clock would be before clients that came earlier, or behind clients that come later.
    async fn draw(&self) -> Result<String, Fault> {
        let now_us = self.time.now_us().await.map_err(|error| match error {
            Error::Refused { message, .. } => Fault::Refused(message),
            other => Fault::NotDone(format!("no time for a place in the queue: {other}")),
        })?;
        Ok(column_name(now_us, self.cells.owner.as_str()))
    }

    /// Listing 6, step 1: enters the queue, and writes the place again each half of a TTL. The
    /// article renews the cell only once the lock is held, so that a waiter's place ends with its
    /// TTL.
    async fn enter(&mut self) -> Result<String, Fault> {
        let place = match self.place.clone() {
            Some(place) => place,
            None => self.draw().await?,
        };
        self.place = Some(place.clone());
        let now = self.cells.base.now();
        let is_old = |entered| now.saturating_since(entered) >= self.cells.base.timing.ttl() / 2;
        let stale = self.entered.is_none_or(is_old);
        if stale {
            self.entered = Some(self.cells.put(&self.tables.queue, &place).await?);
        }
        Ok(place)
    }

    /// The first cells of the queue, from the floor of its locker on.
    async fn head(&self, place: &str) -> Result<Vec<Row>, Fault> {
        let Self { cells, tables, floors, .. } = self;
        let asked = cells.base.now();
        let (head, whole) = match floors.of(&cells.lock, place, asked) {
            Some(floor) => (cells.first_from(&tables.queue, &floor, NEAR).await?, false),
            None => (cells.first(&tables.queue, NEAR).await?, true),
        };
        let earliest = head.first().and_then(|row| row.text(&tables.column));
        floors.saw(&cells.lock, earliest, whole, asked);
        Ok(head)
    }

    /// Steps 3 to 7: writes this attempt's cell into the main row; it has the lock if the cell is the
    /// only one there. An attempt that found the row taken before looks first, as listing 7 does: a
    /// write that has to be undone is a tombstone. Its own cell, left by an earlier try with a lost
    /// answer, does not make it wait.
    async fn claim(&mut self) -> Result<Reached, Fault> {
        let tables = self.tables.clone();
        if self.look_first {
            let seen = self.cells.seen(&tables.main).await?;
            if mutant!(OwnCellInTheWay) && seen.is_ours_alone() {
                return Ok(held_near(None));
            }
            if let Some(owner) = seen.other {
                self.leave_main().await?;
                return Ok(held_near(Some(owner)));
            }
        }
        // Step 3. The hold counts from before it; a write without an answer is sent again.
        self.in_main = true;
        let started = self.cells.put_owner(&tables.main).await?;
        // Step 4, and the check it lacks: whose the one record is.
        let seen = self.cells.seen(&tables.main).await?;
        if seen.is_ours_alone() {
            return Ok(Reached::Hold { started });
        }
        // Step 7.
        self.look_first = true;
        self.leave_main().await?;
        Ok(held_near(seen.other))
    }

    /// Deletes this attempt's cell from the main row, if it may be there: the client that is first now would take it for
    /// a holder's.
    async fn leave_main(&mut self) -> Result<(), Fault> {
        if self.in_main {
            self.cells.erase_owner(&self.tables.main).await?;
        }
        self.in_main = false;
        Ok(())
    }

    fn held_by(&self, row: Option<&Row>, again: Option<Duration>) -> Reached {
        let owner = row.and_then(|row| row.text(&self.tables.value)).map(str::to_owned);
        Reached::HeldBy { owner, again }
    }
}

/// Another client has the main row, and this one is near the head.
fn held_near(owner: Option<String>) -> Reached {
    Reached::HeldBy { owner, again: Some(NEAR_PAUSE_MAX) }
}

impl Attempt for QueueAttempt {
    const RECIPE: &'static str = super::SPEC.name;

    async fn advance(&mut self) -> Result<Reached, Fault> {
        if !self.waits && self.place.is_none() {
            // Listing 7, step 1.
            let there = self.cells.first(&self.tables.main, 1).await?;
            if let Some(row) = there.first() {
                return Ok(self.held_by(Some(row), None));
            }
        }
        let place = self.enter().await?;
        // Listing 6, step 2; listing 7, step 4.
        let head = self.head(&place).await?;
        let ours = |row: &Row| row.text(&self.tables.column) == Some(place.as_str());
        let near = head.iter().position(ours);
        if near != Some(0) {
            // It was first when it wrote there, and a client with an earlier time came in since.
            self.leave_main().await?;
        }
        match near {
            Some(0) => self.claim().await,
            None if head.is_empty() => {
                // This attempt's cell ended while the client stalled: it enters again at the same
                // place.
                self.entered = None;
                Ok(self.held_by(None, None))
            }
            near => Ok(self.held_by(head.first(), near.map(|_| NEAR_PAUSE_MAX))),
        }
    }

    /// Thesis §5.3: writes both cells again. The main row's cell is the lock, and the hold counts from
    /// before its write was sent. Without the queue's cell another client is first there, and finds the
    /// main row taken.
    async fn renew(&mut self) -> Renewal {
        if let Some(place) = self.place.clone() {
            let put = self.cells.put(&self.tables.queue, &place).await;
            self.entered = put.ok().or(self.entered);
        }
        self.cells.put_owner(&self.tables.main).await.map_or(Renewal::Unknown, Renewal::Applied)
    }

    /// Thesis §5.3: deletes both cells, the main row's first, because the next client in the queue
    /// looks at that.
    async fn give_back(&mut self) -> Result<Left, Fault> {
        let Some(place) = self.place.clone() else { return Ok(Left::NotHad) };
        self.cells.erase_owner(&self.tables.main).await?;
        self.cells.erase(&self.tables.queue, &place).await?;
        Ok(Left::Released)
    }
}
