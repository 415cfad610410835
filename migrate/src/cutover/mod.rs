//! The guided switch of a scope from Cassandra to the native store: `cassandra`, `both`, `native`.
//!
//! | at | a step on is made when |
//! |---|---|
//! | `cassandra` | no process is in `cassandra` |
//! | `both` | the operator says that nobody locks by the recipe alone any more, nothing that is seen says otherwise, and every row that stands is held natively |
//! | `native` | there is none; the end is when no process is in `both` any more |
//!
//! # What it promises
//!
//! - **No step whose precondition does not hold.** What is in the way is named. That no process of ours is
//!   in an earlier mode is asked with the step itself (an LWT on the stage as it was seen; see
//!   [`holdfast::compat`], module of modes), so it is certain. What is left of clients that know of no
//!   modes is not: a lock that was given back leaves nothing to be seen, so no number of looks shows that a client is gone that locks
//!   now and then. That none is left is the operator's word (`--writers-stopped`), without which no scope leaves `both`.
//! - **The word is checked as far as rows can tell.** Each pass over the tables remembers what it saw; a cell of an old client that a
//!   later pass of the same run finds new, or written again, ends the run by name, also during the import. A client of
//!   ours that is in no row of modes is in the way whatever the word is: it can be registered, or its row ends.
//! - **What is moved is what its processes lock by.** The scope says which recipe, tables and cluster; others are refused by name.
//!   A process of version 0.1, which does not say, is in the way of `native`.
//! - **What they left is natively held before anybody locks natively alone.** At `both` all rows that are
//!   not those of registered processes are imported and compared. A row stands, in Cassandra and natively,
//!   until its time is over, whoever comes.
//! - **It may be ended anywhere, and begun again**, also twice at once: a stage is moved only from where it
//!   was seen, and an import changes nothing the second time.
//!
//! # Why what registered processes hold is not imported
//!
//! A process in `both` takes a lock in Cassandra first and then natively; its guard is safe while both halves
//! are. So its row alone is nobody's hold. If it came in between the two halves, the process would have to wait
//! for what was imported in its own name, until its TTL is over.

mod look;
mod marks;
mod obstacle;
#[cfg(test)]
mod tests;
mod walk;

use std::collections::BTreeSet;
use std::time::Duration;

use holdfast::compat::{LockerMode, ScopeModes, ScopeView, Stage, Writer};
use holdfast_seams::Seams;

use crate::import::{Importer, Options, OtherTie, import_watched};
use crate::layout::LockRows;
use crate::plan::Rules;
use crate::scan::{Range, Scan};
use crate::verify::{Difference, NativeStore, verify_rows};
use look::Look;
use marks::{Marks, Newcomer};
pub use obstacle::{Obstacle, Obstacles};
pub use walk::{MoveError, Tell, Told};
pub(crate) use walk::{Stepped, processes_in, walk};

/// What is known of the clients that know only the recipe. They have no row that says they are there, and what they gave back is not seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldClients {
    /// Nothing. (A role of their own that was revoked is to be another answer: `--revoked-role`.)
    MayWrite,
    /// The operator says that none of them works any more.
    Stopped,
}

/// How a scope is moved.
#[derive(Debug)]
pub struct Cutover<'a, N> {
    /// The scope.
    pub modes: &'a ScopeModes,
    /// What its locks' names begin with.
    pub scope: &'a str,
    /// The recipe's tables.
    pub scan: &'a Scan,
    /// The store.
    pub native: &'a N,
    /// How rows are imported; nobody is registered in its rules, whose prefix is the scope.
    pub options: Options,
    /// Without a word of them no scope leaves `both` for `native`.
    pub old_clients: OldClients,
    /// What cannot be imported is left out: natively it is free.
    pub leave_out: bool,
    /// How long to wait, in all, for what is in the way.
    pub wait: Duration,
    /// Time.
    pub seams: Seams,
}

impl<N> Cutover<'_, N>
where
    N: NativeStore,
    for<'b> &'b N: Importer,
{
    /// Moves the scope to `target`, stage by stage, and returns when no process is in an earlier mode.
    ///
    /// Dropping the future, or ending the process, at any point is harmless: the same call goes on from there.
    ///
    /// # Errors
    ///
    /// [`MoveError`]; the scope is at the stage that was told last, or one further if an answer was lost.
    pub async fn run(&self, target: Stage, tell: &mut Tell<'_>) -> Result<ScopeView, MoveError> {
        let waiting = (self.wait, &self.seams);
        let mut marks = Marks::default();
        walk(self.modes, self.scope, waiting, tell, async |view, tell| {
            check_ties(view, self.scope, self.scan, self.native).await?;
            if view.stage > target {
                let (scope, stage) = (self.scope.to_owned(), view.stage);
                return Err(MoveError::Beyond { scope, stage, target, back: "rollback" });
            }
            match view.stage {
                Stage::Cassandra if target == Stage::Cassandra => Ok(Stepped::There),
                Stage::Cassandra => self.advance(view).await,
                Stage::Both if target == Stage::Both => Ok(Stepped::There),
                Stage::Both => self.leave_cassandra(view, &mut marks, tell).await,
                Stage::Native if target == Stage::Native => Ok(all_native(view)),
                Stage::Native => {
                    Stepped::of(self.modes.advance_from(view).await, LockerMode::Native)
                }
                Stage::Fallback => Ok(Stepped::There),
            }
        })
        .await
    }

    async fn advance(&self, view: &ScopeView) -> Result<Stepped, MoveError> {
        Stepped::of(self.modes.advance_from(view).await, LockerMode::Both)
    }

    /// From `both` to `native`: rows first.
    async fn leave_cassandra(
        &self,
        view: &ScopeView,
        marks: &mut Marks,
        tell: &mut Tell<'_>,
    ) -> Result<Stepped, MoveError> {
        let mut behind = processes_in(view, LockerMode::Cassandra, LockerMode::Both);
        let older = view.processes.iter().filter(|one| one.writer.is_none());
        behind.extend(older.map(|one| Obstacle::Older { process: one.process.clone() }));
        if !behind.is_empty() {
            return Ok(Stepped::InTheWay(behind));
        }
        let rules = Rules { registered: writers_of(view), ..self.options.rules.clone() };
        let ranges = Range::split(self.options.ranges);
        let look = Look {
            scan: self.scan,
            native: self.native,
            modes: self.modes,
            rules: &rules,
            ranges: &ranges,
            at_once: self.options.reads_at_once,
            seams: &self.seams,
            old_clients: self.old_clients,
            leave_out: self.leave_out,
        };
        let mut obstacles = look.obstacles(marks).await?;
        if self.old_clients == OldClients::MayWrite {
            obstacles.push(Obstacle::NoWord);
            let (scope, stage) = (self.scope.to_owned(), view.stage);
            return Err(MoveError::InTheWay { scope, stage, obstacles });
        }
        self.check_word(marks)?;
        if obstacles.is_empty() {
            self.tie(view).await?;
            obstacles = self.bring_over(rules, &ranges, marks, tell).await?;
            self.check_word(marks)?;
        }
        if obstacles.is_empty() {
            self.advance(view).await
        } else {
            Ok(Stepped::InTheWay(obstacles))
        }
    }

    /// A scope that none of our processes has entered says by whom it is to be entered from now on.
    async fn tie(&self, view: &ScopeView) -> Result<(), MoveError> {
        if view.recipe.is_some() && view.cluster.is_some() {
            return Ok(());
        }
        let (recipe, cluster) = (self.scan.named(), self.native.cluster().await?);
        let tied = self.modes.tie(&recipe, &cluster).await?;
        OtherTie::check(self.scope, "recipe", Some(&tied.0), &recipe)?;
        OtherTie::check(self.scope, "cluster", Some(&tied.1), &cluster)?;
        Ok(())
    }

    /// Whether what the operator says of old clients is so, as far as the looks of this run show.
    fn check_word(&self, marks: &Marks) -> Result<(), MoveError> {
        let scope = self.scope.to_owned();
        if let Some(Newcomer { lock, owner }) = marks.newcomer.clone() {
            return Err(MoveError::StillWritten { scope, lock, owner });
        }
        if marks.too_many {
            return Err(MoveError::TooManyRows { scope });
        }
        Ok(())
    }

    /// Imports what stands, and looks whether it is there. The import is a look, too.
    async fn bring_over(
        &self,
        rules: Rules,
        ranges: &[Range],
        marks: &mut Marks,
        tell: &mut Tell<'_>,
    ) -> Result<Obstacles, MoveError> {
        tell(Told::Importing);
        let options =
            Options { rules: rules.clone(), writers_stopped: true, ..self.options.clone() };
        let mut step = |step| tell(Told::Import(step));
        let mut watch = |rows: &LockRows| marks.note(rows, &rules);
        let (seams, native) = (self.seams.clone(), self.native);
        let sum = import_watched(self.scan, native, options, seams, &mut step, &mut watch).await?;
        tell(Told::Imported(&sum));
        let mut obstacles = Obstacles::default();
        let mut differs = |lock: &str, difference: &Difference| {
            let (lock, difference) = (lock.to_owned(), difference.clone());
            obstacles.push(Obstacle::Differs { lock, difference });
        };
        let read = (ranges, self.options.reads_at_once);
        let verified =
            verify_rows(self.scan, self.native, &rules, read, &self.seams, &mut differs).await?;
        if obstacles.is_empty() {
            tell(Told::Verified(verified.locks));
            return Ok(obstacles);
        }
        // What was refused and has ended since is in nobody's way; what differs may differ for that.
        let refused = sum.refusals.into_iter();
        obstacles.extend(refused.map(|(lock, owner, why)| Obstacle::Refused { lock, owner, why }));
        Ok(obstacles)
    }
}

/// The writers of all processes: at `both`, all hold natively what they hold in the tables.
fn writers_of(view: &ScopeView) -> BTreeSet<Writer> {
    view.processes.iter().filter_map(|one| one.writer.clone()).collect()
}

/// Whether the scope's processes lock by these tables, and at this cluster, as far as they have said.
pub(crate) async fn check_ties<N>(
    view: &ScopeView,
    scope: &str,
    scan: &Scan,
    native: &N,
) -> Result<(), MoveError>
where
    for<'b> &'b N: Importer,
{
    OtherTie::check(scope, "recipe", view.recipe.as_deref(), &scan.named())?;
    if view.cluster.is_some() {
        let own = native.cluster().await?;
        OtherTie::check(scope, "cluster", view.cluster.as_deref(), &own)?;
    }
    Ok(())
}

fn all_native(view: &ScopeView) -> Stepped {
    let behind = processes_in(view, LockerMode::Both, LockerMode::Native);
    if behind.is_empty() { Stepped::There } else { Stepped::InTheWay(behind) }
}
