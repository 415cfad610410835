//! Makes the steps of a move in order, each as soon as it has no obstacle.

use std::time::Duration;

use holdfast::Error;
use holdfast_recipes::{LockerMode, MoveRefused, ScopeModes, ScopeView, Stage};
use holdfast_runtime::Runtime;

use super::obstacle::{Obstacle, Obstacles};
use crate::import::{Fault, ImportError, ImportReport, Importer, OtherTie, Sum};
use crate::scan::{Scan, ScanError};
use crate::verify::VerifyError;

/// The pause between two checks for obstacles.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The same, of what a check took: one may read every row of a recipe's tables, whose nodes have other work.
const REST: u32 = 3;

/// What a move reports while it runs.
#[derive(Debug)]
pub enum MoveReport<'a> {
    /// The scope's stage, and the mode of each process; again whenever one changes.
    At(&'a ScopeView),
    /// The move waits until these obstacles are gone.
    Waiting(&'a Obstacles),
    /// The scope has moved to this stage.
    Moved(Stage),
    /// An import has begun.
    Importing,
    /// The progress of the import.
    Import(ImportReport),
    /// The result of the import.
    Imported(&'a Sum),
    /// Tables and store were compared: this many locks, and none differs.
    Verified(u64),
    /// So many locks were looked at before a step back, and so many of them got a row, or would get one.
    Looked {
        /// How many were looked at.
        locks: usize,
        /// How many were written.
        written: usize,
    },
    /// Rows were written for native holds, or rows whose native holds have ended were removed.
    Rows {
        /// How many were written.
        written: usize,
        /// How many were removed.
        taken_back: usize,
    },
}

/// What a move would do next, as far as it shows without a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preview {
    /// The scope.
    pub view: ScopeView,
    /// The next stage; `None`: no step is left to make.
    pub next: Option<Stage>,
    /// The rows that the step would bring about.
    pub rows: PlannedRows,
    /// What is in its way.
    pub obstacles: Obstacles,
}

/// Rows that a step would bring about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlannedRows {
    /// Holds and places in line that would be imported.
    pub to_import: usize,
    /// Rows that would be written for native holds.
    pub to_write: usize,
    /// Rows that would be removed because their native holds have ended.
    pub to_take_back: usize,
}

/// Receives the reports of a move.
pub type OnReport<'a> = dyn FnMut(MoveReport<'_>) + 'a;

/// Why a move ended early. The scope is at the stage that was reported last; the same call goes on
/// from there.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// A step was not made, because its precondition does not hold.
    #[error("scope {scope:?} stays at {stage}: {obstacles}")]
    InTheWay {
        /// The scope.
        scope: String,
        /// Its stage.
        stage: Stage,
        /// What is in the way.
        obstacles: Obstacles,
    },
    /// An old client wrote a row during the run, so what was said of old clients is false. The move
    /// does not wait: the operator has to stop that client.
    #[error(
        "scope {scope:?} stays at both: \"{owner}\" wrote a row of {lock:?} while this ran, although {said}; stop it, and begin again"
    )]
    StillWritten {
        /// The scope.
        scope: String,
        /// The lock.
        lock: String,
        /// The row's owner.
        owner: String,
        /// What was said of old clients.
        said: &'static str,
    },
    /// A client of this library that is no process of the scope wrote a row during the run.
    #[error(
        "scope {scope:?} stays at both: \"{owner}\", a client of this library that is no process of the scope, wrote a row of {lock:?} \
         while this ran; give it a Locker of this version (or --mode both), or stop it, and begin again"
    )]
    WrittenUnregistered {
        /// The scope.
        scope: String,
        /// The lock.
        lock: String,
        /// The row's owner.
        owner: String,
    },
    /// The scope has more rows of old clients than a run remembers.
    #[error(
        "scope {scope:?} stays at both: it has more than 10,000,000 rows of old clients, and which of them are new cannot be told; \
         wait until they have ended, or move it in several scopes"
    )]
    TooManyRows {
        /// The scope.
        scope: String,
    },
    /// The scope's processes lock by another recipe, other tables, or in another cluster.
    #[error(transparent)]
    OtherTie(#[from] OtherTie),
    /// The scope is beyond the target already.
    #[error("scope {scope:?} is at {stage}, beyond {target}; holdfast-migrate {back} goes there")]
    Beyond {
        /// The scope.
        scope: String,
        /// Its stage.
        stage: Stage,
        /// The stage it was to go to.
        target: Stage,
        /// The command that goes the other way.
        back: &'static str,
    },
    /// The table of modes was not read or written.
    #[error(transparent)]
    Modes(#[from] Error),
    /// The recipe's tables were not read.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// The import ended early.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// The comparison ended early.
    #[error(transparent)]
    Verify(#[from] VerifyError),
    /// The store was not read.
    #[error("the store was not read: {0}")]
    Native(#[from] Fault),
    /// A row was not written.
    #[error("the row of {lock:?} was not written: {why}")]
    Row {
        /// The lock.
        lock: String,
        /// Why.
        why: Fault,
    },
}

/// The outcome of a step.
pub(crate) enum Stepped {
    /// The scope has moved to this stage.
    Moved(Stage),
    /// The scope has not moved, because of these obstacles.
    InTheWay(Obstacles),
    /// No step is left to make.
    There,
}

impl Stepped {
    /// The outcome of moving the stage. An error without an answer leaves open whether it moved.
    pub(crate) fn of(moved: Result<Stage, MoveRefused>, to: LockerMode) -> Result<Self, MoveError> {
        match moved {
            Ok(stage) => Ok(Self::Moved(stage)),
            Err(MoveRefused::InTheWay { processes, .. }) => {
                let obstacles = processes.into_iter().map(|one| Obstacle::left_behind(one, to));
                Ok(Self::InTheWay(collected(obstacles)))
            }
            Err(MoveRefused::AtTheEnd { .. }) => Ok(Self::There),
            Err(MoveRefused::Store(error)) => Err(error.into()),
            Err(other) => Err(Error::InvalidConfig { message: other.to_string() }.into()),
        }
    }
}

/// The processes that are in a mode and have to leave it.
pub(crate) fn processes_in(view: &ScopeView, mode: LockerMode, to: LockerMode) -> Obstacles {
    let there = view.processes.iter().filter(|one| one.mode == mode);
    collected(there.cloned().map(|one| Obstacle::left_behind(one, to)))
}

fn collected(obstacles: impl IntoIterator<Item = Obstacle>) -> Obstacles {
    let mut all = Obstacles::default();
    all.extend(obstacles);
    all
}

/// A scope that moves, and its two stores.
#[derive(Debug)]
pub struct MovingScope<'a, N> {
    /// What its locks' names begin with.
    pub name: &'a str,
    /// Its modes.
    pub modes: &'a ScopeModes,
    /// Reads the recipe's tables.
    pub scan: &'a Scan,
    /// The native store.
    pub native: &'a N,
    /// How long to wait, in all, for obstacles to go.
    pub wait: Duration,
    /// Time.
    pub runtime: Runtime,
}

impl<N> MovingScope<'_, N>
where
    for<'b> &'b N: Importer,
{
    /// Makes steps until none is left, and waits for obstacles to go. Before each step it checks the
    /// scope's ties.
    ///
    /// Dropping the future leaves the scope between two steps, or after a step that was not reported.
    pub(crate) async fn walk(
        &self,
        tell: &mut OnReport<'_>,
        mut step: impl AsyncFnMut(&ScopeView, &mut OnReport<'_>) -> Result<Stepped, MoveError>,
    ) -> Result<ScopeView, MoveError> {
        let give_up_at = self.runtime.clock.now() + self.wait;
        let (mut last_view, mut last_obstacles) = (None, Obstacles::default());
        loop {
            let began = self.runtime.clock.now();
            let view = self.modes.view().await?;
            if last_view.as_ref() != Some(&view) {
                tell(MoveReport::At(&view));
                last_view = Some(view.clone());
            }
            self.check_ties(&view).await?;
            let obstacles = match step(&view, tell).await? {
                Stepped::There => return Ok(view),
                Stepped::Moved(stage) => {
                    tell(MoveReport::Moved(stage));
                    continue;
                }
                Stepped::InTheWay(obstacles) => obstacles,
            };
            let now = self.runtime.clock.now();
            if now >= give_up_at {
                return Err(self.in_the_way(view.stage, obstacles));
            }
            if obstacles != last_obstacles {
                tell(MoveReport::Waiting(&obstacles));
                last_obstacles = obstacles;
            }
            let rest = LOOK_AGAIN.max(REST * now.saturating_since(began));
            self.runtime.sleep(rest.min(give_up_at.saturating_since(now))).await;
        }
    }

    /// The scope, once its ties are checked.
    pub(crate) async fn view(&self) -> Result<ScopeView, MoveError> {
        let view = self.modes.view().await?;
        self.check_ties(&view).await?;
        Ok(view)
    }

    /// The error for a step that is not made.
    pub fn in_the_way(&self, stage: Stage, obstacles: Obstacles) -> MoveError {
        MoveError::InTheWay { scope: self.name.to_owned(), stage, obstacles }
    }

    /// The scope is beyond `target`; the command `back` goes there.
    pub(crate) fn beyond(&self, stage: Stage, target: Stage, back: &'static str) -> MoveError {
        MoveError::Beyond { scope: self.name.to_owned(), stage, target, back }
    }

    /// Checks that the scope's processes lock by these tables and in this cluster, as far as they
    /// have recorded it.
    async fn check_ties(&self, view: &ScopeView) -> Result<(), MoveError> {
        OtherTie::check(self.name, "recipe", view.recipe.as_deref(), &self.scan.named())?;
        if view.cluster.is_some() {
            let own = self.native.cluster().await?;
            OtherTie::check(self.name, "cluster", view.cluster.as_deref(), &own)?;
        }
        Ok(())
    }
}
