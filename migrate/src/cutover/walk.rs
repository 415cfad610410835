//! The steps of a move, one after the other, each as soon as nothing is in its way.

use std::time::Duration;

use holdfast::Error;
use holdfast::compat::{LockerMode, MoveRefused, ScopeModes, ScopeView, Stage};
use holdfast_seams::Seams;

use super::obstacle::{Obstacle, Obstacles};
use crate::import::{Fault, OtherTie, Step, Sum, WholeError};
use crate::scan::ScanError;
use crate::verify::VerifyError;

/// Between two looks at what is in the way.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// What a move tells while it goes on.
#[derive(Debug)]
pub enum Told<'a> {
    /// Where the scope is, and who is in which mode; again whenever that changes.
    At(&'a ScopeView),
    /// It waits, for these to be gone.
    Waiting(&'a Obstacles),
    /// It was moved.
    Moved(Stage),
    /// An import has begun.
    Importing,
    /// How far that is.
    Import(Step),
    /// What it came to.
    Imported(&'a Sum),
    /// The tables and the store were compared: so many locks, and none differs.
    Verified(u64),
    /// So many rows were written for what is held natively, and so many taken back whose holds have ended.
    Rows {
        /// Written.
        written: usize,
        /// Taken back.
        taken_back: usize,
    },
}

/// Who hears of it.
pub type Tell<'a> = dyn FnMut(Told<'_>) + 'a;

/// Why a move ended before its end. The scope is at the stage that was told last; the same call goes on
/// from there.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// A step was not made, for its precondition does not hold.
    #[error("scope {scope:?} stays at {stage}: {obstacles}")]
    InTheWay {
        /// The scope.
        scope: String,
        /// Its stage.
        stage: Stage,
        /// What is in the way.
        obstacles: Obstacles,
    },
    /// A row of an old client was written during the run: the operator's word is not so. Nothing is waited for: it has to be made so.
    #[error(
        "scope {scope:?} stays at both: \"{owner}\" wrote a row of {lock:?} while this ran, although --writers-stopped says that no \
         client that knows only the recipe works any more; stop it, and begin again"
    )]
    StillWritten {
        /// The scope.
        scope: String,
        /// The lock.
        lock: String,
        /// Who.
        owner: String,
    },
    /// More rows of old clients than are remembered.
    #[error(
        "scope {scope:?} stays at both: it has more than 10,000,000 rows of old clients, and which of them are new cannot be told; \
         wait until they have ended, or move it in several scopes"
    )]
    TooManyRows {
        /// The scope.
        scope: String,
    },
    /// Its processes lock by another recipe, other tables, or at another cluster.
    #[error(transparent)]
    OtherTie(#[from] OtherTie),
    /// It is past that already.
    #[error("scope {scope:?} is at {stage}, beyond {target}; holdfast-migrate {back} goes there")]
    Beyond {
        /// The scope.
        scope: String,
        /// Its stage.
        stage: Stage,
        /// Where it was to go.
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
    Import(#[from] WholeError),
    /// The comparison did.
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
        why: String,
    },
}

/// What came of a step.
pub(crate) enum Stepped {
    /// The scope is at this stage now.
    Moved(Stage),
    /// It is where it was, and something is in the way.
    InTheWay(Obstacles),
    /// There is no step to be made.
    There,
}

impl Stepped {
    /// What a move of the stage came to; nothing is known of one without an answer.
    pub(crate) fn of(moved: Result<Stage, MoveRefused>, to: LockerMode) -> Result<Self, MoveError> {
        match moved {
            Ok(stage) => Ok(Self::Moved(stage)),
            Err(MoveRefused::InTheWay { processes, .. }) => {
                let obstacles = processes.into_iter().map(|one| Obstacle::Process {
                    process: one.process,
                    mode: one.mode,
                    to,
                });
                Ok(Self::InTheWay(collected(obstacles)))
            }
            Err(MoveRefused::AtTheEnd { .. }) => Ok(Self::There),
            Err(MoveRefused::Store(error)) => Err(error.into()),
            Err(other) => Err(Error::Setting { message: other.to_string() }.into()),
        }
    }
}

/// The processes that are in a mode, and have to leave it.
pub(crate) fn processes_in(view: &ScopeView, mode: LockerMode, to: LockerMode) -> Obstacles {
    let there = view.processes.iter().filter(|one| one.mode == mode);
    collected(there.map(|one| Obstacle::Process { process: one.process.clone(), mode, to }))
}

fn collected(obstacles: impl IntoIterator<Item = Obstacle>) -> Obstacles {
    let mut all = Obstacles::default();
    all.extend(obstacles);
    all
}

/// Makes steps until there is none, and waits at most `wait` in all for what is in the way.
///
/// Dropping the future leaves the scope between two steps, or a step made of which nobody heard.
pub(crate) async fn walk(
    modes: &ScopeModes,
    scope: &str,
    (wait, seams): (Duration, &Seams),
    tell: &mut Tell<'_>,
    mut step: impl AsyncFnMut(&ScopeView, &mut Tell<'_>) -> Result<Stepped, MoveError>,
) -> Result<ScopeView, MoveError> {
    let give_up_at = seams.clock.now() + wait;
    let (mut last_view, mut last_obstacles) = (None, Obstacles::default());
    loop {
        let view = modes.view().await?;
        if last_view.as_ref() != Some(&view) {
            tell(Told::At(&view));
            last_view = Some(view.clone());
        }
        let obstacles = match step(&view, tell).await? {
            Stepped::There => return Ok(view),
            Stepped::Moved(stage) => {
                tell(Told::Moved(stage));
                continue;
            }
            Stepped::InTheWay(obstacles) => obstacles,
        };
        if seams.clock.now() >= give_up_at {
            let (scope, stage) = (scope.to_owned(), view.stage);
            return Err(MoveError::InTheWay { scope, stage, obstacles });
        }
        if obstacles != last_obstacles {
            tell(Told::Waiting(&obstacles));
            last_obstacles = obstacles;
        }
        seams.sleep(LOOK_AGAIN).await;
    }
}
