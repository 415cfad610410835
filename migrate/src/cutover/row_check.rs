//! Reads the recipe's rows before the scope leaves them: finds clients that lock by them alone, and
//! rows that cannot be imported.
//!
//! Each pass remembers the cells that it has seen, in [`SeenCells`], to find those written during the
//! run, which contradict `--writers-stopped`. No clock is read and no times are compared: a cell
//! that an earlier pass did not see, or saw with another write time, was written in between. A
//! client that writes nothing during the run is not noticed; that is what the operator's statement
//! is for.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select};
use holdfast_recipes::ScopeView;

use holdfast_recipes::{Writer, is_ours};

use super::obstacle::{Obstacle, Obstacles};
use super::steps::MoveError;
use super::{Cutover, OldClients, writers_of};
use crate::layout::{LockRows, Raw};
use crate::plan::{
    LockPlan, Rules, cell_marks, changed_by_foreign_writer, changed_by_unregistered, plan,
};
use crate::rollback::StandIn;
use crate::scan::Range;
use crate::verify::{NativeLock, NativeStore};

/// Rows of ours that are kept in memory for a second look. When there are more, they get their second look before the scan goes on.
const SUSPECTS: usize = 1_000;
/// The pause before the second read. A process needs less to enter the scope, or to take both
/// halves of a stand-in.
const PAUSE: Duration = Duration::from_secs(3);
/// How often a lock is read again while it has one new owner of ours after the other. The last of them counts, whoever it is.
const LOOKS_AGAIN: usize = 3;
/// How often a run that reads rows looks which processes the scope has.
const MEETS_EVERY: Duration = Duration::from_secs(1);

/// Cells that are remembered, of 8 bytes each and about as much around them. A run with more ends
/// with an error, because it could not distinguish new cells.
const REMEMBERED_MAX: usize = 10_000_000;

/// What a pass over the rows has found.
#[derive(Default)]
pub(super) struct Look {
    pub(super) obstacles: Obstacles,
    /// Holds and places in line that an import would bring over.
    pub(super) to_import: usize,
    suspects: Vec<Suspect>,
}

/// A row of our own client library whose owner is no registered process.
struct Suspect {
    lock: Raw,
    owner: String,
}

impl<N: NativeStore> Cutover<'_, N> {
    /// Reads all rows of the scope once, and records them in `seen`.
    pub(super) async fn look(
        &self,
        rules: &Rules,
        ranges: &[Range],
        seen: &mut SeenCells,
        met: &Met,
    ) -> Result<Look, MoveError> {
        let now_us = self.scope.scan.now_us().await?;
        let mut found = Look::default();
        let check = async |rows: LockRows| {
            seen.note(&rows, rules);
            self.check_lock(rows, rules, now_us, &mut found);
            if found.suspects.len() == SUSPECTS {
                self.check_again(&mut found, rules, met, now_us).await?;
            }
            Ok::<_, MoveError>(())
        };
        self.scope.scan.each((ranges, self.options.reads_at_once), check).await?;
        seen.complete = true;
        self.check_again(&mut found, rules, met, now_us).await?;
        Ok(found)
    }

    /// Looks for our own unregistered clients whatever the operator says of old clients: they can
    /// be registered, and a stopped one gives its rows back or leaves them for a TTL.
    fn check_lock(&self, rows: LockRows, rules: &Rules, now_us: i64, found: &mut Look) {
        let Look { obstacles, to_import, suspects } = found;
        let lock = rows.lock.clone();
        let foreign = changed_by_foreign_writer(&rows, rules, now_us);
        let ours = changed_by_unregistered(&rows, rules, now_us);
        let Some(LockPlan { rows, findings }) = plan(rows, rules) else { return };
        *to_import += rows.len();
        if self.old_clients == OldClients::MayWrite {
            let owner = foreign.into_iter();
            obstacles.extend(
                owner.map(|owner| Obstacle::ForeignWriter { lock: lock.to_string(), owner }),
            );
        }
        suspects.extend(ours.map(|owner| Suspect { lock, owner }));
        if !self.leave_out {
            let left = findings.into_iter().filter(|found| found.reason.omits_a_claim());
            obstacles.extend(left.map(|finding| Obstacle::NotImported { finding }));
        }
    }

    /// Reads the suspects' locks again after a pause, and reports those that remain. By then the
    /// view has a process that registered meanwhile, and a row that has ended is no obstacle. A row
    /// that stands in for a native hold is no obstacle while that hold exists. Where another client of
    /// ours has the lock by then, or stands behind the first, that one gets a second look too; it wrote
    /// its row during the run, so only a process of the scope may have given it back meanwhile.
    async fn check_again(
        &self,
        found: &mut Look,
        rules: &Rules,
        met: &Met,
        now_us: i64,
    ) -> Result<(), MoveError> {
        let mut suspects = std::mem::take(&mut found.suspects);
        for look in 1..=LOOKS_AGAIN {
            let mut others = Vec::new();
            let alone = self.without_native_holds(suspects).await?;
            if alone.is_empty() {
                return Ok(());
            }
            self.scope.runtime.sleep(PAUSE).await;
            met.add(&self.scope.modes.view().await?);
            let rules = Rules { registered: met.writers().clone(), ..rules.clone() };
            for Suspect { lock, owner: before } in alone {
                let rows = self.scope.scan.lock(&lock).await?;
                let owner = rows.and_then(|rows| changed_by_unregistered(&rows, &rules, now_us));
                let came_since = look > 1 && !met.has(&before);
                let stays = match owner {
                    _ if came_since => before,
                    None => continue,
                    Some(owner) if owner == before || look == LOOKS_AGAIN => owner,
                    Some(owner) => {
                        others.push(Suspect { lock, owner });
                        continue;
                    }
                };
                let (lock, owner) = (lock.to_string(), stays);
                found.obstacles.push(Obstacle::Unregistered { lock, owner });
            }
            suspects = others;
        }
        Ok(())
    }

    async fn without_native_holds(
        &self,
        suspects: Vec<Suspect>,
    ) -> Result<Vec<Suspect>, MoveError> {
        let mut alone = Vec::new();
        for suspect in suspects {
            let stands_in = StandIn::of(&suspect.owner).is_some();
            if !stands_in || !self.is_natively_there(&suspect).await? {
                alone.push(suspect);
            }
        }
        Ok(alone)
    }

    /// The first of these cells whose writer was no process of the scope at any time of the run, nor is after a pause. A process
    /// that starts during the run writes its first row before a look can show it in the scope.
    pub(super) async fn unregistered(
        &self,
        cells: BTreeMap<Option<Writer>, NewCell>,
        met: &Met,
    ) -> Result<Option<NewCell>, MoveError> {
        if cells.is_empty() {
            return Ok(None);
        }
        self.scope.runtime.sleep(PAUSE).await;
        met.add(&self.scope.modes.view().await?);
        Ok(cells.into_values().find(|cell| !met.has(&cell.owner)))
    }

    /// Does `work`, and meets the scope's processes meanwhile: a short one is over before the work is.
    pub(super) async fn meeting_processes<T>(&self, met: &Met, work: impl Future<Output = T>) -> T {
        let meeting = pin!(async {
            loop {
                self.scope.runtime.sleep(MEETS_EVERY).await;
                // Without an answer a process may stay unknown, which holds the move up and is never unsafe.
                if let Ok(view) = self.scope.modes.view().await {
                    met.add(&view);
                }
            }
        });
        match select(pin!(work), meeting).await {
            Either::Left((done, _)) => done,
            Either::Right((never, _)) => never,
        }
    }

    /// Whether a session that was not imported holds the lock or waits for it.
    async fn is_natively_there(&self, suspect: &Suspect) -> Result<bool, MoveError> {
        let native = self.scope.native.lock(&suspect.lock.to_string()).await?;
        let is_live = |native: NativeLock| {
            native.holders.iter().chain(&native.line).any(|party| !party.is_imported)
        };
        Ok(native.is_some_and(is_live))
    }
}

/// The writers of all processes that a view of the scope has shown during one run. Each excluded clients in Cassandra and natively for
/// as long as it held, also one that has ended since.
#[derive(Debug, Default)]
pub(super) struct Met(Mutex<BTreeSet<Writer>>);

impl Met {
    pub(super) fn add(&self, view: &ScopeView) {
        self.writers().extend(writers_of(view));
    }

    fn has(&self, owner: &str) -> bool {
        Writer::of(owner).is_some_and(|writer| self.writers().contains(&writer))
    }

    fn writers(&self) -> MutexGuard<'_, BTreeSet<Writer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A cell that was written during the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NewCell {
    pub(super) lock: String,
    pub(super) owner: String,
}

/// The seen of one run; see the module.
#[derive(Debug, Default)]
pub(super) struct SeenCells {
    seen: BTreeSet<u64>,
    /// The first pass is over: every mark from here on is new.
    complete: bool,
    /// The first new cell of a client that is not of our library.
    pub(super) new_cell: Option<NewCell>,
    /// A new cell of each writer of our library: a process that registers just then, or a client that never does.
    pub(super) new_of_ours: BTreeMap<Option<Writer>, NewCell>,
    pub(super) too_many: bool,
}

impl SeenCells {
    /// Records the cells of one lock.
    pub(super) fn note(&mut self, rows: &LockRows, rules: &Rules) {
        let lock = rows.lock.to_string();
        if !lock.starts_with(&rules.prefix) {
            return;
        }
        for (owner, mark) in cell_marks(rows, rules) {
            let is_new = !self.seen.contains(&mark);
            if is_new && self.complete {
                let cell = NewCell { lock: lock.clone(), owner };
                if is_ours(&cell.owner) {
                    self.new_of_ours.entry(Writer::of(&cell.owner)).or_insert(cell);
                } else {
                    self.new_cell.get_or_insert(cell);
                }
            } else if self.seen.len() >= REMEMBERED_MAX {
                self.too_many = true;
            } else {
                self.seen.insert(mark);
            }
        }
    }
}
