//! The guided switch of a scope from Cassandra to the native store: `cassandra`, `both`, `native`.
//!
//! | at | a step on is made when |
//! |---|---|
//! | `cassandra` | no process is in `cassandra` |
//! | `both` | nobody locks by the recipe alone any more, and every row that stands is held natively |
//! | `native` | there is none; the end is when no process is in `both` any more |
//!
//! # What it promises
//!
//! - **No step whose precondition does not hold.** What is in the way is named. That no process of ours is
//!   in an earlier mode is asked with the step itself (an LWT on the stage as it was seen; see
//!   [`holdfast::compat`], module of modes), so it is certain. What is left of clients that know of no
//!   modes is not: their rows are read, and that somebody changed one within its last two TTLs is a sign
//!   that he is at work. That none is, is the operator's word (`--writers-stopped`).
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
mod obstacle;
mod walk;

use std::time::Duration;

use holdfast::compat::{LockerMode, ScopeModes, ScopeView, Stage, service_of};
use holdfast_seams::Seams;

use crate::import::{Importer, Options, import_all};
use crate::plan::Rules;
use crate::scan::{Range, Scan};
use crate::verify::{Difference, NativeStore, verify_rows};
use look::Look;
pub use obstacle::{Obstacle, Obstacles};
pub use walk::{MoveError, Tell, Told};
pub(crate) use walk::{Stepped, processes_in, walk};

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
    /// The operator says that nobody writes by the recipe alone any more.
    pub writers_stopped: bool,
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
        walk(self.modes, self.scope, waiting, tell, async |view, tell| {
            if view.stage > target {
                let (scope, stage) = (self.scope.to_owned(), view.stage);
                return Err(MoveError::Beyond { scope, stage, target, back: "rollback" });
            }
            match view.stage {
                Stage::Cassandra if target == Stage::Cassandra => Ok(Stepped::There),
                Stage::Cassandra => self.advance(view).await,
                Stage::Both if target == Stage::Both => Ok(Stepped::There),
                Stage::Both => self.leave_cassandra(view, tell).await,
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
        tell: &mut Tell<'_>,
    ) -> Result<Stepped, MoveError> {
        let behind = processes_in(view, LockerMode::Cassandra, LockerMode::Both);
        if !behind.is_empty() {
            return Ok(Stepped::InTheWay(behind));
        }
        let rules = self.rules(view);
        let ranges = Range::split(self.options.ranges);
        let look = Look {
            scan: self.scan,
            native: self.native,
            rules: &rules,
            ranges: &ranges,
            at_once: self.options.reads_at_once,
            seams: &self.seams,
            writers_stopped: self.writers_stopped,
            leave_out: self.leave_out,
        };
        let mut obstacles = look.obstacles().await?;
        if obstacles.is_empty() {
            obstacles = self.bring_over(rules, &ranges, tell).await?;
        }
        if obstacles.is_empty() {
            self.advance(view).await
        } else {
            Ok(Stepped::InTheWay(obstacles))
        }
    }

    /// Imports what stands, and looks whether it is there.
    async fn bring_over(
        &self,
        rules: Rules,
        ranges: &[Range],
        tell: &mut Tell<'_>,
    ) -> Result<Obstacles, MoveError> {
        tell(Told::Importing);
        let options =
            Options { rules: rules.clone(), writers_stopped: true, ..self.options.clone() };
        let mut step = |step| tell(Told::Import(step));
        let sum =
            import_all(self.scan, self.native, options, self.seams.clone(), &mut step).await?;
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

    /// With the processes that hold natively what they hold in the tables: at `both`, all there are.
    fn rules(&self, view: &ScopeView) -> Rules {
        let services = view.processes.iter().map(|one| service_of(&one.process).to_owned());
        Rules { registered: services.collect(), ..self.options.rules.clone() }
    }
}

fn all_native(view: &ScopeView) -> Stepped {
    let behind = processes_in(view, LockerMode::Both, LockerMode::Native);
    if behind.is_empty() { Stepped::There } else { Stepped::InTheWay(behind) }
}
