//! The statements of one attempt, step by step as in listings 3 and 4.

use std::sync::Arc;
use std::time::Duration;

use holdfast_runtime::Instant;

use super::ShadowTables;
use crate::cells::{OwnCells, drawn_up_to};
use crate::database::Fault;
use crate::lock_task::{Attempt, Left, Reached, Renewal};

/// Listing 4, step 6: the longest pause while another client has the lock.
pub(super) const OWNER_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Step 9: the growth of the longest pause with each attempt that met another one.
pub(super) const CONCURRENT_PAUSE_STEP: Duration = Duration::from_millis(50);
/// Its bound; the article has none. A hundred attempts in a row do not come near it.
const CONCURRENT_PAUSE_MAX: Duration = Duration::from_secs(10);

/// One attempt: its cell in the shadow row, and its cell in the main row.
pub(super) struct ShadowAttempt {
    pub(super) cells: OwnCells,
    pub(super) tables: Arc<ShadowTables>,
    /// This attempt's cell may be there, or may still arrive.
    pub(super) in_shadow: bool,
    pub(super) in_main: bool,
    /// Listing 4's `attempt`.
    pub(super) attempt: u32,
}

/// The result of one run of listing 3.
#[derive(Debug)]
enum TryLock {
    /// It has the lock, by cells of which the first was sent at `started`.
    Success { started: Instant },
    /// This client has it.
    AnotherThreadIsOwner(String),
    /// Other clients tried at the same time: one of them.
    ConcurrentAttempt(Option<String>),
}

impl ShadowAttempt {
    /// Listing 3.
    ///
    /// A cell of this attempt in the main row is from an earlier run, whose answer was lost. That is no success yet (step
    /// 4), because what a read shows may be on one replica only: the run goes on as if the cell were not there.
    async fn try_lock(&mut self) -> Result<TryLock, Fault> {
        // Steps 1 to 6.
        if let Some(owner) = self.cells.seen(&self.tables.main).await?.other {
            self.take_back().await?;
            return Ok(TryLock::AnotherThreadIsOwner(owner));
        }
        // Step 7. The hold counts from here: only while this cell stands does no other client pass step
        // 9.
        self.in_shadow = true;
        let started = self.cells.put_owner(&self.tables.shadow).await?;
        // Steps 8 and 9, and the check they lack: whose the one cell is.
        let tries = self.cells.seen(&self.tables.shadow).await?;
        // Step 10, which reads the row again: what step 1 saw may be older than another client's
        // success.
        if tries.is_ours_alone() && self.cells.seen(&self.tables.main).await?.other.is_none() {
            // Step 11. Step 12 waits for the release: a client that goes by what its step 1 saw is kept out by that cell
            // alone.
            self.in_main = true;
            self.cells.put_owner(&self.tables.main).await?;
            return Ok(TryLock::Success { started });
        }
        // Steps 14 and 15.
        self.take_back().await?;
        Ok(TryLock::ConcurrentAttempt(tries.other))
    }

    /// Deletes the main row's cell first, because waiters look at that. The flags fall only once both
    /// deletes are acknowledged.
    async fn take_back(&mut self) -> Result<(), Fault> {
        if self.in_main {
            self.cells.erase_owner(&self.tables.main).await?;
        }
        if self.in_shadow {
            self.cells.erase_owner(&self.tables.shadow).await?;
        }
        (self.in_main, self.in_shadow) = (false, false);
        Ok(())
    }

    /// Listing 4, steps 9 and 10.
    fn concurrent_pause(&mut self) -> Duration {
        let longest = CONCURRENT_PAUSE_STEP.saturating_mul(self.attempt).min(CONCURRENT_PAUSE_MAX);
        self.attempt = self.attempt.saturating_add(1);
        self.pause(longest)
    }

    fn pause(&self, longest: Duration) -> Duration {
        drawn_up_to(longest, &*self.cells.base.runtime().rng)
    }
}

impl Attempt for ShadowAttempt {
    /// Listing 4, without its loop.
    async fn advance(&mut self) -> Result<Reached, Fault> {
        Ok(match self.try_lock().await? {
            TryLock::Success { started } => Reached::Hold { started },
            TryLock::AnotherThreadIsOwner(owner) => {
                Reached::TryAgain { owner: Some(owner), after: self.pause(OWNER_PAUSE_MAX) }
            }
            TryLock::ConcurrentAttempt(owner) => {
                Reached::TryAgain { owner, after: self.concurrent_pause() }
            }
        })
    }

    /// Writes both cells, and counts from the first: both stand for that long.
    async fn renew(&mut self) -> Renewal {
        let started = self.cells.put_owner(&self.tables.shadow).await;
        let Ok(started) = started else { return Renewal::Unknown };
        let put = self.cells.put_owner(&self.tables.main).await;
        put.map_or(Renewal::Unknown, |_| Renewal::Applied(started))
    }

    async fn give_back(&mut self) -> Result<Left, Fault> {
        let had = self.in_main;
        self.take_back().await?;
        Ok(if had { Left::Released } else { Left::NotHad })
    }
}
