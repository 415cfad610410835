//! The guided switch of a scope from Cassandra to the native store: `cassandra`, `both`, `native`.
//!
//! | at | the move goes on when |
//! |---|---|
//! | `cassandra` | no process is in `cassandra` |
//! | `both` | the operator states that no client locks by the recipe alone, no row contradicts that, and every standing row is held natively |
//! | `native` | no process is in `both`; then the scope is at the end, or moves to `fallback` |
//!
//! # What it promises
//!
//! - **No step without its precondition.** Obstacles are named. The step itself checks that no
//!   process of ours is in an earlier mode (an LWT on the stage as it was read; see
//!   [`holdfast_recipes`], module of modes), so that much is certain. Clients that know no modes
//!   are different: a lock that was given back leaves no row, so no number of passes shows that a
//!   client which locks now and then is gone. That all of them are stopped is the operator's
//!   statement (`--writers-stopped`), and without it no scope leaves `both`.
//! - **The statement is checked as far as rows can show.** Each pass over the tables, the import's
//!   too, remembers the cells that it read. If a later pass of the run finds a cell of an old
//!   client new or written again, the run ends and names it. A client of ours without a row in the
//!   table of modes is an obstacle whatever the operator states: it can be registered, or its row
//!   ends.
//! - **The move covers the tables that the processes lock by.** The scope records recipe, tables
//!   and cluster; a move with others is refused. A process of version 0.1, which records none, is
//!   an obstacle to `native`.
//! - **Old holds are native before any process locks natively alone.** At `both` all rows of
//!   unregistered owners are imported and compared. Such a row stands, in Cassandra and natively,
//!   until its TTL ends.
//! - **A move can be stopped at any point and begun again**, also two at once: a stage moves only
//!   from where it was read, and a second import changes nothing.
//!
//! # Why the rows of registered processes are not imported
//!
//! A process in `both` takes a lock in Cassandra first and then natively; its guard is safe while
//! it has both halves, so its row alone is no hold. If that row were imported between the two
//! halves, the process would have to wait for the import under its own name, until its TTL ends.

mod obstacle;
mod row_check;
mod steps;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use holdfast_mutants::mutant;
use holdfast_recipes::{LockerMode, ScopeView, Stage, Writer};

use crate::import::{Importer, Options, OtherTie, import_all};
use crate::layout::LockRows;
use crate::plan::Rules;
use crate::scan::Range;
use crate::verify::{Difference, NativeStore, verify_rows};
pub use obstacle::{Obstacle, Obstacles};
use row_check::{Met, NewCell, SeenCells};
pub use steps::{MoveError, MoveReport, MovingScope, OnReport, PlannedRows, Preview};
pub(crate) use steps::{Stepped, processes_in};

/// What is known of clients that know only the recipe. No row registers them, and a lock they gave back
/// leaves no trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldClients {
    /// Nothing: they may still write.
    MayWrite,
    /// All of them are stopped, as the operator states.
    Stopped,
    /// Their role may change none of the recipe's tables, and every node knows.
    Revoked,
}

/// A move of one scope towards `native` and `fallback`.
#[derive(Debug)]
pub struct Cutover<'a, N> {
    /// The scope.
    pub scope: MovingScope<'a, N>,
    /// How rows are imported. The rules have the scope as their prefix, and no registered writers.
    pub options: Options,
    /// With [`OldClients::MayWrite`] no scope leaves `both` for `native`.
    pub old_clients: OldClients,
    /// Rows that cannot be imported are left out: natively their locks are free.
    pub leave_out: bool,
}

impl<N> Cutover<'_, N>
where
    N: NativeStore,
    for<'b> &'b N: Importer,
{
    /// Moves the scope to `target`, stage by stage, and returns when no process is in an earlier
    /// mode.
    ///
    /// Dropping the future, or ending the process, at any point is harmless: the same call goes on
    /// from there.
    ///
    /// # Errors
    ///
    /// [`MoveError`]; the scope is at the stage that was reported last, or one further if an answer
    /// was lost.
    pub async fn run(
        &self,
        target: Stage,
        tell: &mut OnReport<'_>,
    ) -> Result<ScopeView, MoveError> {
        let (mut seen, met) = (SeenCells::default(), Met::default());
        let step = async |view: &ScopeView, tell: &mut OnReport<'_>| {
            if view.stage > target {
                return Err(self.scope.beyond(view.stage, target, "rollback"));
            }
            match view.stage {
                Stage::Cassandra if target == Stage::Cassandra => Ok(Stepped::There),
                Stage::Cassandra => self.advance(view, LockerMode::Both).await,
                Stage::Both if target == Stage::Both => Ok(Stepped::There),
                Stage::Both => {
                    met.add(view);
                    let leaving = self.leave_cassandra(view, &mut seen, &met, tell);
                    self.meeting_processes(&met, leaving).await
                }
                Stage::Native if target == Stage::Native => Ok(all_native(view)),
                Stage::Native => self.advance(view, LockerMode::Native).await,
                Stage::Fallback => Ok(Stepped::There),
            }
        };
        self.scope.walk(tell, step).await
    }

    async fn advance(&self, view: &ScopeView, to: LockerMode) -> Result<Stepped, MoveError> {
        Stepped::of(self.scope.modes.advance_from(view).await, to)
    }

    /// From `both` to `native`: imports the rows first.
    async fn leave_cassandra(
        &self,
        view: &ScopeView,
        seen: &mut SeenCells,
        met: &Met,
        tell: &mut OnReport<'_>,
    ) -> Result<Stepped, MoveError> {
        let behind = left_behind(view);
        if !behind.is_empty() {
            return Ok(Stepped::InTheWay(behind));
        }
        let (rules, ranges) = (self.rules(view), Range::split(self.options.ranges));
        let mut obstacles = self.look(&rules, &ranges, seen, met).await?.obstacles;
        if self.old_clients == OldClients::MayWrite && !mutant!(OneLookIsEnough) {
            obstacles.push(Obstacle::NotDeclared);
            return Err(self.scope.in_the_way(view.stage, obstacles));
        }
        self.check_declaration(seen, met).await?;
        if obstacles.is_empty() {
            self.tie(view).await?;
            obstacles = self.bring_over(rules, &ranges, seen, tell).await?;
            self.check_declaration(seen, met).await?;
        }
        if obstacles.is_empty() {
            self.advance(view, LockerMode::Both).await
        } else {
            Ok(Stepped::InTheWay(obstacles))
        }
    }

    /// What the next step would be, and what is in its way. Reads all rows of a scope at `both`, and changes nothing.
    ///
    /// # Errors
    ///
    /// [`MoveError`]; never [`MoveError::InTheWay`].
    pub async fn preview(&self, target: Stage) -> Result<Preview, MoveError> {
        let view = self.scope.view().await?;
        if view.stage > target {
            return Err(self.scope.beyond(view.stage, target, "rollback"));
        }
        let next = view.step_forward().to.filter(|_| view.stage < target);
        let mut to_import = 0;
        let obstacles = match view.stage {
            Stage::Both if next.is_some() => {
                let (rules, ranges) = (self.rules(&view), Range::split(self.options.ranges));
                let (mut seen, met) = (SeenCells::default(), Met::default());
                let look = self.look(&rules, &ranges, &mut seen, &met).await?;
                to_import = look.to_import;
                let mut obstacles = left_behind(&view);
                obstacles.append(look.obstacles);
                if self.old_clients == OldClients::MayWrite {
                    obstacles.push(Obstacle::NotDeclared);
                }
                obstacles
            }
            Stage::Native => processes_in(&view, LockerMode::Both, LockerMode::Native),
            Stage::Cassandra if next.is_some() => {
                processes_in(&view, LockerMode::Cassandra, LockerMode::Both)
            }
            Stage::Cassandra | Stage::Both | Stage::Fallback => Obstacles::default(),
        };
        Ok(Preview {
            view,
            next,
            rows: PlannedRows { to_import, ..PlannedRows::default() },
            obstacles,
        })
    }

    /// At `both`, the rows of registered processes are not imported.
    fn rules(&self, view: &ScopeView) -> Rules {
        Rules { registered: writers_of(view), ..self.options.rules.clone() }
    }

    /// Records recipe and cluster in a scope that none of our processes has entered, so that
    /// processes that enter it later are checked against them.
    async fn tie(&self, view: &ScopeView) -> Result<(), MoveError> {
        if view.recipe.is_some() && view.cluster.is_some() {
            return Ok(());
        }
        let MovingScope { name, modes, scan, native, .. } = &self.scope;
        let (recipe, cluster) = (scan.named(), native.cluster().await?);
        let tied = modes.tie(&recipe, &cluster).await?;
        OtherTie::check(name, "recipe", Some(&tied.0), &recipe)?;
        OtherTie::check(name, "cluster", Some(&tied.1), &cluster)?;
        Ok(())
    }

    /// Fails if a pass of this run has contradicted the operator's statement about old clients, or has met a client of ours
    /// that works and is no process of the scope.
    async fn check_declaration(&self, seen: &mut SeenCells, met: &Met) -> Result<(), MoveError> {
        let scope = self.scope.name.to_owned();
        if let Some(NewCell { lock, owner }) = seen.new_cell.clone() {
            let said = match self.old_clients {
                OldClients::Revoked => "its role may change no row any more, as every node says",
                OldClients::Stopped | OldClients::MayWrite => {
                    "--writers-stopped says that no client that knows only the recipe works any more"
                }
            };
            return Err(MoveError::StillWritten { scope, lock, owner, said });
        }
        if seen.too_many {
            return Err(MoveError::TooManyRows { scope });
        }
        match self.unregistered(std::mem::take(&mut seen.new_of_ours), met).await? {
            Some(NewCell { lock, owner }) => {
                Err(MoveError::WrittenUnregistered { scope, lock, owner })
            }
            None => Ok(()),
        }
    }

    /// Imports the standing rows and compares the result. The import counts as a pass for `seen`.
    async fn bring_over(
        &self,
        rules: Rules,
        ranges: &[Range],
        seen: &mut SeenCells,
        tell: &mut OnReport<'_>,
    ) -> Result<Obstacles, MoveError> {
        tell(MoveReport::Importing);
        let options =
            Options { rules: rules.clone(), writers_stopped: true, ..self.options.clone() };
        let mut step = |step| tell(MoveReport::Import(step));
        let mut watch = |rows: &LockRows| seen.note(rows, &rules);
        let MovingScope { scan, native, runtime, .. } = &self.scope;
        let (native, own) = (*native, runtime.clone());
        let sum = import_all(scan, native, options, own, &mut step, &mut watch).await?;
        tell(MoveReport::Imported(&sum));
        let mut obstacles = Obstacles::default();
        let mut differs = |lock: &str, difference: &Difference| {
            let (lock, difference) = (lock.to_owned(), difference.clone());
            obstacles.push(Obstacle::Differs { lock, difference });
        };
        let read = (ranges, self.options.reads_at_once);
        let verified = verify_rows(scan, native, &rules, read, runtime, &mut differs).await?;
        if obstacles.is_empty() {
            tell(MoveReport::Verified(verified.locks));
            return Ok(obstacles);
        }
        // Refusals are obstacles only if something differs: a refused row may have ended since.
        let refused = sum.refusals.into_iter();
        obstacles.extend(refused.map(|(lock, owner, why)| Obstacle::Refused { lock, owner, why }));
        Ok(obstacles)
    }
}

/// The writers of all processes: at `both`, each holds natively what it holds in the tables.
fn writers_of(view: &ScopeView) -> BTreeSet<Writer> {
    view.processes.iter().filter_map(|one| one.writer.clone()).collect()
}

/// The processes that keep a scope at `both`.
fn left_behind(view: &ScopeView) -> Obstacles {
    let mut behind = processes_in(view, LockerMode::Cassandra, LockerMode::Both);
    let older = view.processes.iter().filter(|one| one.writer.is_none());
    behind.extend(older.map(|one| Obstacle::Older { process: one.process.clone() }));
    behind
}

fn all_native(view: &ScopeView) -> Stepped {
    let behind = processes_in(view, LockerMode::Both, LockerMode::Native);
    if behind.is_empty() { Stepped::There } else { Stepped::InTheWay(behind) }
}
