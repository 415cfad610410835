//! The statements of one attempt.

use std::sync::Arc;
use std::time::Duration;

use super::OptimisticTable;
use crate::cells::{OwnCells, drawn_up_to};
use crate::database::Fault;
use crate::lock_task::{Attempt, Left, Reached, Renewal};

/// "Random sleep between lock retries": the longest one after the first attempt. It doubles with each.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
/// The bound of that.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// One attempt: its row, beside those of other clients that want the token.
pub(super) struct OptimisticAttempt {
    pub(super) cells: OwnCells,
    pub(super) table: Arc<OptimisticTable>,
    /// This attempt's row may be there, or may still arrive.
    pub(super) written: bool,
    /// Other rows were there: look before the next write.
    pub(super) look_first: bool,
    /// The number of attempts so far.
    pub(super) attempts: u32,
}

impl OptimisticAttempt {
    async fn take_back(&mut self) -> Result<(), Fault> {
        if self.written {
            self.cells.erase_owner(&self.table.tokens).await?;
        }
        self.written = false;
        Ok(())
    }

    /// Pauses the same way for a holder and for another attempt: their rows look alike.
    fn try_again(&mut self, owner: Option<String>) -> Reached {
        let longest =
            PAUSE_FIRST.saturating_mul(1_u32.checked_shl(self.attempts).unwrap_or(u32::MAX));
        self.attempts = self.attempts.saturating_add(1);
        let after = drawn_up_to(longest.min(PAUSE_MAX), &*self.cells.base.runtime().rng);
        Reached::TryAgain { owner, after }
    }
}

impl Attempt for OptimisticAttempt {
    /// The article's loop, without its sleep. An attempt that found others looks first, which the article does not: each
    /// row that has to be deleted again is a tombstone, and keeps others from a token that is free.
    async fn advance(&mut self) -> Result<Reached, Fault> {
        let table = self.table.clone();
        if self.look_first
            && let Some(owner) = self.cells.seen(&table.tokens).await?.other
        {
            self.take_back().await?;
            return Ok(self.try_again(Some(owner)));
        }
        // "write (token, service_session_id) to index_lock.tokens"
        self.written = true;
        let started = self.cells.put_owner(&table.tokens).await?;
        // "entries = read token", and "if it finds only itself".
        let seen = self.cells.seen(&table.tokens).await?;
        if seen.is_ours_alone() {
            return Ok(Reached::Hold { started });
        }
        // "delete (token, service_session_id) from index_lock.tokens"
        self.look_first = true;
        self.take_back().await?;
        Ok(self.try_again(seen.other))
    }

    async fn renew(&mut self) -> Renewal {
        let put = self.cells.put_owner(&self.table.tokens).await;
        put.map_or(Renewal::Unknown, Renewal::Applied)
    }

    async fn give_back(&mut self) -> Result<Left, Fault> {
        let had = self.written;
        self.take_back().await?;
        Ok(if had { Left::Released } else { Left::NotHad })
    }
}
