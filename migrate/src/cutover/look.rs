//! Looks at the recipe's rows before they are given up: who still locks by them alone, and what of them cannot
//! be imported.

use std::time::Duration;

use futures_util::future::try_join;
use holdfast_seams::Seams;
use tokio::sync::mpsc;

use super::obstacle::{Obstacle, Obstacles};
use super::walk::MoveError;
use crate::layout::{LockRows, Raw};
use crate::plan::{LockPlan, Planned, Rules, changed_by_strangers, plan};
use crate::scan::{News, Range, Scan};
use crate::verify::NativeStore;

/// News that wait to be looked at.
const NEWS_WAITING: usize = 4;
/// Rows of ours that are looked at once more: if there are more, one look says enough.
const SUSPECTS: usize = 1_000;
/// Between the two looks: between its half in Cassandra and its native one a process in `both` needs less.
const PAUSE: Duration = Duration::from_secs(3);

/// What is looked for, and where.
pub(super) struct Look<'a, N> {
    pub(super) scan: &'a Scan,
    pub(super) native: &'a N,
    pub(super) rules: &'a Rules,
    pub(super) ranges: &'a [Range],
    pub(super) at_once: usize,
    pub(super) seams: &'a Seams,
    /// The operator says that nobody writes by the recipe alone any more.
    pub(super) writers_stopped: bool,
    /// The operator lets go of what cannot be imported.
    pub(super) leave_out: bool,
}

/// A row of one of ours that has no process in the scope.
struct Suspect {
    lock: Raw,
    owner: String,
}

impl<N: NativeStore> Look<'_, N> {
    /// Reads all rows of the scope once.
    pub(super) async fn obstacles(&self) -> Result<Obstacles, MoveError> {
        let now_us = self.scan.now_us().await?;
        let (send, mut news) = mpsc::channel(NEWS_WAITING);
        let reading =
            async { self.scan.run(self.ranges, self.at_once, send).await.map_err(MoveError::from) };
        let looking = async {
            let (mut obstacles, mut suspects) = (Obstacles::default(), Vec::new());
            while let Some(news) = news.recv().await {
                let News::Locks { locks, .. } = news else { continue };
                for rows in locks {
                    self.look_at(rows, now_us, &mut obstacles, &mut suspects);
                }
            }
            Ok((obstacles, suspects))
        };
        let ((), (mut obstacles, suspects)) = try_join(reading, looking).await?;
        self.confront(suspects, &mut obstacles).await?;
        Ok(obstacles)
    }

    fn look_at(
        &self,
        rows: LockRows,
        now_us: i64,
        obstacles: &mut Obstacles,
        suspects: &mut Vec<Suspect>,
    ) {
        let lock = rows.lock.clone();
        let stranger = changed_by_strangers(&rows, self.rules, now_us);
        let Some(LockPlan { rows, findings }) = plan(rows, self.rules) else { return };
        if !self.writers_stopped {
            let owner = stranger.into_iter();
            obstacles
                .extend(owner.map(|owner| Obstacle::Stranger { lock: lock.to_string(), owner }));
            let ours = rows.into_iter().find(Planned::is_ours);
            if let Some(row) = ours.filter(|_| suspects.len() < SUSPECTS) {
                suspects.push(Suspect { lock, owner: row.owner });
            }
        }
        if !self.leave_out {
            let left = findings.into_iter().filter(|found| found.reason.leaves_somebody_out());
            obstacles.extend(left.map(|finding| Obstacle::NotImported { finding }));
        }
    }

    /// Who is in `both` under another name than its row's is there natively as well, a moment later at the
    /// latest; and what has ended by then is in nobody's way.
    async fn confront(
        &self,
        suspects: Vec<Suspect>,
        obstacles: &mut Obstacles,
    ) -> Result<(), MoveError> {
        let mut alone = Vec::new();
        for suspect in suspects {
            if !self.is_natively_there(&suspect).await? {
                alone.push(suspect);
            }
        }
        if alone.is_empty() {
            return Ok(());
        }
        self.seams.sleep(PAUSE).await;
        for suspect in alone {
            let rows = self.scan.lock(&suspect.lock).await?;
            let planned = rows.and_then(|rows| plan(rows, self.rules)).unwrap_or_default();
            let stands = planned.rows.iter().any(|row| row.owner == suspect.owner);
            if stands && !self.is_natively_there(&suspect).await? {
                let (lock, owner) = (suspect.lock.to_string(), suspect.owner);
                obstacles.push(Obstacle::Unregistered { lock, owner });
            }
        }
        Ok(())
    }

    /// Whether somebody has the lock, or waits for it, who did not come in by an import.
    async fn is_natively_there(&self, suspect: &Suspect) -> Result<bool, MoveError> {
        let native = self.native.lock(&suspect.lock.to_string()).await?;
        let is_live = |native: crate::verify::NativeLock| {
            native.holders.iter().chain(&native.line).any(|party| !party.is_imported)
        };
        Ok(native.is_some_and(is_live))
    }
}
