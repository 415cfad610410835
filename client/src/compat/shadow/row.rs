//! The statements of one attempt, step by step as in listings 3 and 4.

use std::sync::Arc;
use std::time::Duration;

use holdfast_seams::Moment;

use super::ShadowTables;
use crate::compat::cells::OwnCells;
use crate::compat::database::Fault;
use crate::compat::keeper::{Attempt, Left, Recipe, Renewal};
use crate::compat::pauses::drawn_up_to;

/// Listing 4, step 6: the longest pause while somebody has the lock.
pub(super) const OWNER_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Step 9: by so much the longest pause grows with each attempt that met another one.
pub(super) const CONCURRENT_PAUSE_STEP: Duration = Duration::from_millis(50);
/// Up to so much; the seed has no bound. A hundred attempts in a row do not come near it.
const CONCURRENT_PAUSE_MAX: Duration = Duration::from_secs(10);

/// One attempt: its cell in the shadow row, and its cell in the main row.
pub(super) struct ShadowSpot {
    pub(super) cells: OwnCells,
    pub(super) tables: Arc<ShadowTables>,
    /// Our cell may be there, or come to be.
    pub(super) in_shadow: bool,
    pub(super) in_main: bool,
    /// Listing 4's `attempt`.
    pub(super) attempt: u32,
}

/// What one run of listing 3 comes to.
#[derive(Debug)]
enum TryLock {
    /// It has the lock, by cells of which the first was sent at `started`.
    Success { started: Moment },
    /// This one has it.
    AnotherThreadIsOwner(String),
    /// Others tried at the same time: one of them.
    ConcurrentAttempt(Option<String>),
}

impl ShadowSpot {
    /// Listing 3.
    ///
    /// Our own cell in the main row is from an earlier run of this attempt, whose answer was lost: no success yet
    /// (step 4), for what a read shows may be on one replica only. It is written and looked at as if it were not there.
    async fn try_lock(&mut self) -> Result<TryLock, Fault> {
        // Steps 1 to 6.
        if let Some(owner) = self.cells.seen(&self.tables.main).await?.other {
            self.take_back().await?;
            return Ok(TryLock::AnotherThreadIsOwner(owner));
        }
        // Step 7. The hold counts from here: only as long as this cell stands nobody else passes step 9.
        self.in_shadow = true;
        let started = self.cells.put_owner(&self.tables.shadow).await?;
        // Steps 8 and 9, and what it does not ask: whose the one cell is.
        let tries = self.cells.seen(&self.tables.shadow).await?;
        // Step 10, for which the row is read again: what step 1 saw is older than somebody's success.
        if tries.is_ours_alone() && self.cells.seen(&self.tables.main).await?.other.is_none() {
            // Step 11. Step 12 is left for the release: who goes by what its step 1 saw is kept out by that cell alone.
            self.in_main = true;
            self.cells.put_owner(&self.tables.main).await?;
            return Ok(TryLock::Success { started });
        }
        // Steps 14 and 15.
        self.take_back().await?;
        Ok(TryLock::ConcurrentAttempt(tries.other))
    }

    /// The main row's cell first: who waits looks at that. Both are known to be gone only when both are.
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
        drawn_up_to(longest, &*self.cells.seams.rng)
    }
}

impl Recipe for ShadowSpot {
    /// Listing 4, but for its loop.
    async fn attempt(&mut self) -> Result<Attempt, Fault> {
        Ok(match self.try_lock().await? {
            TryLock::Success { started } => Attempt::Had { started },
            TryLock::AnotherThreadIsOwner(owner) => {
                Attempt::TryAgain { owner: Some(owner), after: self.pause(OWNER_PAUSE_MAX) }
            }
            TryLock::ConcurrentAttempt(owner) => {
                Attempt::TryAgain { owner, after: self.concurrent_pause() }
            }
        })
    }

    /// Both cells, and as of the first: that is how long both stand.
    async fn renew(&mut self) -> Renewal {
        let started = self.cells.put_owner(&self.tables.shadow).await;
        let Ok(started) = started else { return Renewal::Unknown };
        let put = self.cells.put_owner(&self.tables.main).await;
        put.map_or(Renewal::Unknown, |_| Renewal::Applied(started))
    }

    async fn leave(&mut self) -> Result<Left, Fault> {
        let had = self.in_main;
        self.take_back().await?;
        Ok(if had { Left::Released } else { Left::NotHad })
    }
}
