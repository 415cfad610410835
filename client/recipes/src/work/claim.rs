//! Decides which worker has an item: the bakery, once for each item and attempt, with a TTL on its
//! rows.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_mutants::mutant;
use holdfast_runtime::Instant;

use super::id::ItemId;
use super::rows::{NumberRow, PAGE, Rows};
use super::scan::Scanner;
use crate::database::Fault;
use crate::lock_task::{Attempt, Left, Reached, Renewal};
use crate::owner::OwnerId;

/// How often an attempt looks at choosing workers before it goes away.
const CHOOSER_LOOKS: usize = 4;
/// The pause between two of these looks: "sleep a little".
const CHOOSER_PAUSE: Duration = Duration::from_millis(50);

pub(super) struct Claim {
    rows: Rows,
    id: ItemId,
    /// The id of its number and its choosing: one that earlier claims of this process had too, so that an item which always fails
    /// has one row here, and its tombstone, for each id that is in use at a time and not for each attempt.
    owner: OwnerId,
    /// The id of its row among the attempts, which nobody else has.
    attempt: OwnerId,
    max_attempts: Option<u32>,
    /// Valid once `has_number` is set.
    number: i64,
    /// Until then the number is certainly there, and no other worker has the item.
    lasts_until: Instant,
    /// Which of its rows may be in the tables.
    chooses: bool,
    has_number: bool,
    shared: Arc<Shared>,
    scanner: Arc<Scanner>,
}

/// The state that an item's guard and its claim share.
#[derive(Debug, Default)]
pub(super) struct Shared(Mutex<Told>);

#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) payload: String,
    /// Which attempt this is; the first is 1.
    pub(super) attempt: u32,
    /// The work is done: the release has to remove the item.
    pub(super) is_done: bool,
    /// The removal was answered while no other worker could have the item.
    pub(super) is_removed: bool,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Claim {
    pub(super) fn new(
        rows: Rows,
        id: ItemId,
        max_attempts: Option<u32>,
        shared: Arc<Shared>,
        scanner: Arc<Scanner>,
    ) -> Self {
        Self {
            owner: rows.base.owners.take(|| rows.base.owner()),
            attempt: rows.base.owner(),
            lasts_until: rows.base.now(),
            rows,
            id,
            max_attempts,
            number: 0,
            chooses: false,
            has_number: false,
            shared,
            scanner,
        }
    }

    /// From `write <choosing>` to `delete <choosing>`; `None`: no number is possible. Returns the instant before the
    /// number was sent.
    async fn choose(&mut self) -> Result<Option<Instant>, Fault> {
        let ttl_s = self.rows.base.timing.ttl_s();
        self.chooses = true;
        let (choosing_from, put) = self.rows.put_choosing(&self.id, &self.owner, ttl_s).await;
        put?;
        let numbers = self.rows.numbers(&self.id).await?;
        let Some(number) = number_after(&numbers, self.owner.as_str()) else { return Ok(None) };
        self.number = number;
        self.has_number = true;
        let (started, put) = self.rows.put_number(&self.id, &self.owner, number, ttl_s).await;
        put?;
        self.lasts_until = self.rows.base.timing.safe_until(started);
        // Every worker that chose meanwhile must have seen this one's choosing. If that row may have ended before the
        // number was there, no worker had to wait for it.
        if self.rows.base.now() >= self.rows.base.timing.safe_until(choosing_from) {
            return Ok(None);
        }
        self.stop_choosing().await?;
        Ok(Some(started))
    }

    /// `delete <work_item_id, CF=choosing, worker_id=1>`, unless it is done already.
    async fn stop_choosing(&mut self) -> Result<(), Fault> {
        if self.chooses {
            self.rows.remove_choosing(&self.id, &self.owner).await?;
            self.chooses = false;
        }
        Ok(())
    }

    /// `while choosing_hash[id] == 1 do sleep a little`; returns a worker that still chooses after some
    /// looks.
    async fn wait_for_choosers(&self) -> Result<Option<String>, Fault> {
        for look in 1.. {
            let choosing = self.rows.choosing(&self.id).await?;
            let other = choosing.into_iter().find(|other| other != self.owner.as_str());
            if other.is_none() || look == CHOOSER_LOOKS {
                return Ok(other);
            }
            self.rows.base.runtime().sleep(CHOOSER_PAUSE).await;
        }
        Ok(None)
    }

    /// This claim has the item: returns what the caller gets. `None`: there is nothing to do, and
    /// no look finds the item again.
    async fn begin(&self, has_marker: bool) -> Result<Option<Told>, Fault> {
        if !has_marker {
            // It was done, or became a dead letter, after the scan found it.
            return Ok(None);
        }
        let details = self.rows.details(&self.id).await?;
        let Some(payload) = details.payload else {
            // Its last worker died between the deletes.
            self.rows.remove_details(&self.id).await?;
            self.rows.remove_marker(&self.id).await?;
            return Ok(None);
        };
        let others = details.attempts.iter().filter(|one| *one != self.attempt.as_str());
        let before = u32::try_from(others.count()).unwrap_or(u32::MAX);
        if self.max_attempts.is_some_and(|max| before >= max) {
            // In this order: an item in neither place is lost.
            self.rows.list_dead_letter(&self.id).await?;
            self.rows.remove_marker(&self.id).await?;
            return Ok(None);
        }
        self.rows.put_attempt(&self.id, &self.attempt).await?;
        Ok(Some(Told { payload, attempt: before.saturating_add(1), ..Told::default() }))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.chooses && !self.has_number {
            self.rows.base.owners.give_back(self.owner.clone());
        }
    }
}

/// `max(number_hash.values) + 1`; `None` if there are too many numbers, or one that cannot be
/// passed.
fn number_after(numbers: &[NumberRow], owner: &str) -> Option<i64> {
    let mut largest = 0;
    for row in numbers.iter().filter(|row| row.worker != owner) {
        largest = largest.max(row.number?);
    }
    largest.checked_add(1).filter(|_| is_all(numbers))
}

fn is_all(numbers: &[NumberRow]) -> bool {
    i32::try_from(numbers.len()).is_ok_and(|read| read < PAGE)
}

/// A worker before this one. The article compares the numbers alone: of two with the same number
/// neither goes away.
pub(super) fn before<'a>(numbers: &'a [NumberRow], number: i64, owner: &str) -> Option<&'a str> {
    let is_before = |row: &&NumberRow| {
        let theirs = (row.number.unwrap_or(i64::MIN), row.worker.as_str());
        row.worker != owner && theirs < (number, owner)
    };
    let mut others = numbers.iter().filter(|row| !row.is_marker());
    others.find(is_before).map(|row| row.worker.as_str())
}

fn held_by(owner: Option<String>) -> Reached {
    Reached::HeldBy { owner, again: None }
}

impl Attempt for Claim {
    const RECIPE: &'static str = "work";

    async fn advance(&mut self) -> Result<Reached, Fault> {
        let Some(started) = self.choose().await? else { return Ok(held_by(None)) };
        if let Some(chooser) = self.wait_for_choosers().await? {
            return Ok(held_by(Some(chooser)));
        }
        // After the wait, not before it as in the article: each worker that was choosing has a
        // number by now.
        let numbers = self.rows.numbers(&self.id).await?;
        if let Some(other) = before(&numbers, self.number, self.owner.as_str()) {
            // "oops, someone else is handling this work item"
            return Ok(held_by(Some(other.to_owned())));
        }
        if !is_all(&numbers) {
            return Ok(held_by(None));
        }
        let has_marker = numbers.iter().any(NumberRow::is_marker);
        let Some(told) = self.begin(has_marker).await? else { return Ok(held_by(None)) };
        *self.shared.lock() = told;
        Ok(Reached::Hold { started })
    }

    async fn renew(&mut self) -> Renewal {
        let ttl_s = self.rows.base.timing.ttl_s();
        let put = self.rows.put_number(&self.id, &self.owner, self.number, ttl_s).await;
        match put {
            (started, Ok(())) => {
                self.lasts_until = self.rows.base.timing.safe_until(started);
                Renewal::Applied(started)
            }
            (_, Err(_)) => Renewal::Unknown,
        }
    }

    /// The three deletes of the article, in its order: a worker that dies after the first leaves an item that others
    /// recognize as done, and only the last one makes the item free.
    ///
    /// Once the number may have ended, another worker may have read the item before it was removed: then it does it again.
    async fn give_back(&mut self) -> Result<Left, Fault> {
        if self.shared.lock().is_done {
            self.rows.remove_details(&self.id).await?;
            self.rows.remove_marker(&self.id).await?;
            let in_time = self.rows.base.now() < self.lasts_until || mutant!(LateRemovalCounts);
            self.shared.lock().is_removed |= in_time;
        } else {
            self.scanner.set_aside(&self.id, self.shared.lock().attempt);
        }
        let left = if self.has_number { Left::Released } else { Left::NotHad };
        if self.has_number {
            self.rows.remove_number(&self.id, &self.owner).await?;
            self.has_number = false;
        }
        self.stop_choosing().await?;
        Ok(left)
    }
}
