//! Moves a scope back: `native`, `both`, `cassandra`. It writes rows for native holds, so that
//! clients that know only the recipe are kept out.
//!
//! | at | the move goes back when |
//! |---|---|
//! | `fallback` | no process is in `fallback` |
//! | `native` | no process is in `native` or `fallback` |
//! | `both` | every native hold has a row |
//! | `cassandra` | no further step; rows of native holds that have ended are removed |
//!
//! # Holds without a row
//!
//! A process in `both` has a row, because it holds in Cassandra as well. An imported hold has its
//! old row, with the same end; if that was removed, rollback writes it again, under the same owner
//! and for the time left. A hold of a native client has no row, and no client would renew one: it
//! is an obstacle, by name. With `live_for` rollback writes a row for it that stands that long; old
//! clients do not see a hold that lasts longer. When the hold has ended, the same command removes
//! its row.
//!
//! # What it promises
//!
//! No step is made while rollback sees an obstacle. The step itself checks that no process is in
//! `native`. That no native client takes a lock between the check and the step is up to the
//! operator, as at every stage but `native`. A rollback can be stopped at any point and begun
//! again: an existing row is not written again, and stands until its TTL ends.

mod rows;

use std::pin::pin;
use std::time::Duration;

use futures_util::future::try_join;
use futures_util::{StreamExt, stream};
use holdfast_recipes::{LockerMode, Recipe, ScopeModes, ScopeView, Stage, is_ours};
use holdfast_runtime::Runtime;
use tokio::sync::mpsc;

use crate::cutover::{
    MoveError, MoveReport, Obstacle, Obstacles, OnReport, Stepped, check_ties, walk,
};
use crate::import::{Fault, Importer};
use crate::layout::{ColumnCell, LockRows, Raw, Said};
use crate::scan::{Range, Scan, ScanMessage};
use crate::verify::NativeStore;
pub(crate) use rows::StandIn;
pub use rows::{NewRow, Put, Rows};

/// Locks whose native state is read at once.
const ASKED_AT_ONCE: usize = 32;
/// Messages of the scan that wait for this task.
const MESSAGES_WAITING: usize = 4;
/// The pause before a lock is read again whose two sides do not fit together.
const PAUSE: Duration = Duration::from_secs(3);
/// Passes over all locks in one step: the last one must find no row to write.
const PASSES: usize = 3;

/// The native holder of a lock; the first, if several share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBy {
    /// Its session.
    pub session: u64,
    /// The session's label.
    pub label: String,
    /// The fencing token of its grant.
    pub token: u64,
    /// The hold was imported and not claimed.
    pub is_imported: bool,
}

/// A lock that is held natively.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldLock {
    /// The holder.
    pub by: HeldBy,
    /// A session that was not imported waits for the lock.
    pub has_live_waiters: bool,
    /// The lock's value.
    pub value: Option<Vec<u8>>,
}

/// The native store, as rollback reads it.
pub trait HeldStore: NativeStore {
    /// Reads one lock; `None` if it has no holder.
    fn held(&self, name: &str) -> impl Future<Output = Result<Option<HeldLock>, Fault>>;

    /// What is left of an imported session's lease; `None`: the session has ended.
    fn left(&self, session: u64) -> impl Future<Output = Result<Option<Duration>, Fault>>;
}

/// A move of one scope back towards `cassandra`.
#[derive(Debug)]
pub struct Rollback<'a, N> {
    /// The scope.
    pub modes: &'a ScopeModes,
    /// What its locks' names begin with.
    pub scope: &'a str,
    /// Reads the recipe's tables.
    pub scan: &'a Scan,
    /// Writes the recipe's tables.
    pub rows: &'a Rows,
    /// The store.
    pub native: &'a N,
    /// The number of ranges that the tables are split into, and of those read at once.
    pub ranges: (usize, usize),
    /// How long the row of a native client's hold stands; `None`: such a hold is an obstacle.
    pub live_for: Option<Duration>,
    /// How long to wait, in all, for obstacles to go.
    pub wait: Duration,
    /// Time.
    pub runtime: Runtime,
}

/// The owners that hold a lock by the tables, and what is left of each, seconds.
type InTable = Vec<(String, Option<i32>)>;

/// What one lock needs before the step back.
enum Verdict {
    /// The lock is free, or a row keeps out clients that know only the recipe.
    Covered,
    /// This row has to be written.
    Write(NewRow),
    /// The lock is an obstacle.
    InTheWay(Obstacle),
}

impl<N> Rollback<'_, N>
where
    N: HeldStore,
    for<'b> &'b N: Importer,
{
    /// Moves the scope back to `target`, stage by stage.
    ///
    /// Dropping the future, or ending the process, at any point is harmless: the same call goes on from there.
    ///
    /// # Errors
    ///
    /// [`MoveError`]; the scope is at the stage that was reported last, or one further back if an
    /// answer was lost.
    pub async fn run(
        &self,
        target: Stage,
        tell: &mut OnReport<'_>,
    ) -> Result<ScopeView, MoveError> {
        let waiting = (self.wait, &self.runtime);
        walk(self.modes, self.scope, waiting, tell, async |view, tell| {
            check_ties(view, self.scope, self.scan, self.native).await?;
            if view.stage < target {
                let (scope, stage) = (self.scope.to_owned(), view.stage);
                return Err(MoveError::Beyond { scope, stage, target, back: "cutover" });
            }
            match view.stage {
                Stage::Fallback => {
                    Stepped::of(self.modes.go_back_from(view).await, LockerMode::Native)
                }
                Stage::Native if target == Stage::Native => Ok(Stepped::There),
                Stage::Native => self.go_back(view).await,
                Stage::Both if target == Stage::Both => Ok(Stepped::There),
                Stage::Both => self.cover_and_go_back(view, tell).await,
                Stage::Cassandra => {
                    self.take_back(tell).await?;
                    Ok(Stepped::There)
                }
            }
        })
        .await
    }

    async fn go_back(&self, view: &ScopeView) -> Result<Stepped, MoveError> {
        Stepped::of(self.modes.go_back_from(view).await, LockerMode::Both)
    }

    /// From `both` to `cassandra`: writes the rows first.
    async fn cover_and_go_back(
        &self,
        view: &ScopeView,
        tell: &mut OnReport<'_>,
    ) -> Result<Stepped, MoveError> {
        self.take_back(tell).await?;
        for pass in 1..=PASSES {
            let (written, obstacles) = self.cover(pass == PASSES).await?;
            if written > 0 {
                tell(MoveReport::Rows { written, taken_back: 0 });
            }
            if !obstacles.is_empty() {
                return Ok(Stepped::InTheWay(obstacles));
            }
            if written == 0 {
                break;
            }
        }
        self.go_back(view).await
    }

    /// Checks all native holds, and writes rows for those that have none. On the `last` pass a
    /// missing row is an obstacle: an earlier pass wrote it, and it is gone.
    async fn cover(&self, last: bool) -> Result<(usize, Obstacles), MoveError> {
        let (mut written, mut obstacles, mut after) = (0, Obstacles::default(), None);
        loop {
            let (names, next) = self.native.names(self.scope, after.as_deref()).await?;
            let judged = stream::iter(names).map(|name| self.settle(name, last));
            let mut judged = pin!(judged.buffer_unordered(ASKED_AT_ONCE));
            while let Some(verdict) = judged.next().await {
                match verdict? {
                    Verdict::Covered => {}
                    Verdict::Write(_) => written += 1,
                    Verdict::InTheWay(obstacle) => obstacles.push(obstacle),
                }
            }
            if next.is_none() {
                return Ok((written, obstacles));
            }
            after = next;
        }
    }

    /// Decides about a lock, and writes its row if it needs one.
    async fn settle(&self, name: String, last: bool) -> Result<Verdict, MoveError> {
        let verdict = self.judge(&name).await?;
        let row = match verdict {
            Verdict::Covered | Verdict::InTheWay(_) => return Ok(verdict),
            Verdict::Write(row) => row,
        };
        let not_written = |why: String| {
            let (lock, label) = (row.lock.clone(), row.owner.clone());
            Ok(Verdict::InTheWay(Obstacle::NotWritten { lock, label, why }))
        };
        if last {
            return not_written("it was written, and is not there".to_owned());
        }
        match self.rows.put(&row).await {
            Ok(Put::Written) => Ok(Verdict::Write(row)),
            Ok(Put::Taken { by }) => {
                let (lock, label) = (row.lock, row.owner);
                Ok(Verdict::InTheWay(Obstacle::RowTaken { lock, label, by }))
            }
            Ok(Put::Impossible { why }) => not_written(why),
            Err(why) => Err(MoveError::Row { lock: row.lock, why }),
        }
    }

    /// Reads a lock a second time if its two sides do not fit together, because a process in `both`
    /// takes and gives back its two halves one after the other.
    async fn judge(&self, name: &str) -> Result<Verdict, MoveError> {
        let first = self.look(name).await?;
        let may_be_between = match &first {
            Verdict::Covered => false,
            // An import has no halves.
            Verdict::Write(row) => StandIn::of(&row.owner).is_some(),
            Verdict::InTheWay(_) => true,
        };
        if !may_be_between {
            return Ok(first);
        }
        self.runtime.sleep(PAUSE).await;
        self.look(name).await
    }

    async fn look(&self, name: &str) -> Result<Verdict, MoveError> {
        let Some(held) = self.native.held(name).await? else { return Ok(Verdict::Covered) };
        let rows = self.scan.lock(&Raw::Text(name.to_owned())).await?;
        let there = rows.as_ref().map(in_table).unwrap_or_default();
        if held.by.is_imported {
            self.look_at_import(name, &held, &there).await
        } else {
            Ok(self.look_at_live(name, &held, &there))
        }
    }

    async fn look_at_import(
        &self,
        name: &str,
        held: &HeldLock,
        there: &InTable,
    ) -> Result<Verdict, MoveError> {
        let owner = &held.by.label;
        if there.iter().any(|(row, _)| row == owner) {
            return Ok(Verdict::Covered);
        }
        if let Some((by, _)) = there.first() {
            return Ok(taken(name, held, by));
        }
        let Some(left) = self.native.left(held.by.session).await? else {
            return Ok(Verdict::Covered);
        };
        Ok(Verdict::Write(new_row(name, owner.clone(), left, held)))
    }

    fn look_at_live(&self, name: &str, held: &HeldLock, there: &InTable) -> Verdict {
        let stand_in = StandIn { label: held.by.label.clone(), token: held.by.token };
        let own = there.iter().find(|(row, _)| StandIn::of(row).as_ref() == Some(&stand_in));
        if let Some((_, left_s)) = own {
            let enough = left_s.zip(self.live_for).is_none_or(|(left_s, live_for)| {
                u64::try_from(left_s).unwrap_or(0) >= live_for.as_secs() / 2
            });
            if enough {
                return Verdict::Covered;
            }
        } else if let Some((by, _)) = there.first() {
            // A process in `both` that has both halves: others in `both` wait for it in Cassandra.
            let is_both = is_ours(by) && StandIn::of(by).is_none() && !held.has_live_waiters;
            return if is_both { Verdict::Covered } else { taken(name, held, by) };
        }
        let Some(live_for) = self.live_for else {
            let (lock, label) = (name.to_owned(), held.by.label.clone());
            return Verdict::InTheWay(Obstacle::NativeClient { lock, label });
        };
        let term = (self.rows.recipe() == Recipe::TokensLwt).then_some(live_for);
        Verdict::Write(new_row(name, stand_in.owner(term), live_for, held))
    }

    /// Removes rows that stand in for native holds which have ended.
    async fn take_back(&self, tell: &mut OnReport<'_>) -> Result<(), MoveError> {
        let (send, mut news) = mpsc::channel(MESSAGES_WAITING);
        let (ranges, at_once) = (Range::split(self.ranges.0), self.ranges.1);
        let reading =
            async { self.scan.run(&ranges, at_once, send).await.map_err(MoveError::from) };
        let taking = async {
            let mut taken_back = 0;
            while let Some(news) = news.recv().await {
                let ScanMessage::Locks { locks, .. } = news else { continue };
                for rows in locks {
                    taken_back += self.take_back_of(&rows).await?;
                }
            }
            Ok(taken_back)
        };
        let ((), taken_back) = try_join(reading, taking).await?;
        if taken_back > 0 {
            tell(MoveReport::Rows { written: 0, taken_back });
        }
        Ok(())
    }

    async fn take_back_of(&self, rows: &LockRows) -> Result<usize, MoveError> {
        let lock = rows.lock.to_string();
        if !lock.starts_with(self.scope) {
            return Ok(0);
        }
        let mut taken_back = 0;
        for (owner, _) in in_table(rows) {
            let Some(stand_in) = StandIn::of(&owner) else { continue };
            let held = self.native.held(&lock).await?;
            if held.is_none_or(|held| held.by.token != stand_in.token) {
                let taken = self.rows.take_back(&lock, &owner).await;
                taken.map_err(|why| MoveError::Row { lock: lock.clone(), why })?;
                taken_back += 1;
            }
        }
        Ok(taken_back)
    }
}

fn taken(name: &str, held: &HeldLock, by: &str) -> Verdict {
    let (lock, label) = (name.to_owned(), held.by.label.clone());
    Verdict::InTheWay(Obstacle::RowTaken { lock, label, by: by.to_owned() })
}

/// The TTL is rounded up to whole seconds, plus one: a TTL ends on a whole second of a clock.
fn new_row(name: &str, owner: String, left: Duration, held: &HeldLock) -> NewRow {
    let ttl_s = i32::try_from(left.as_secs().saturating_add(2)).unwrap_or(i32::MAX);
    let value = held.value.clone().and_then(|value| String::from_utf8(value).ok());
    NewRow { lock: name.to_owned(), owner, ttl_s, value }
}

/// The owners that keep others out by the recipe.
fn in_table(rows: &LockRows) -> InTable {
    let of_cells = |cells: &[ColumnCell]| -> InTable {
        let left_s = |cell: &ColumnCell| cell.cell.as_ref().and_then(|cell| cell.left_s);
        cells.iter().map(|cell| (cell.column.to_string(), left_s(cell))).collect()
    };
    match &rows.said {
        Said::Lease(row) => {
            let owner = row.owner.iter();
            owner.map(|cell| (cell.value.to_string(), cell.left_s)).collect()
        }
        Said::Queue { main, .. } | Said::Shadow { main, .. } => of_cells(main),
        Said::Tokens(sessions) => {
            let sessions = sessions.iter().filter_map(|row| row.session.as_ref());
            sessions.map(|cell| (cell.value.to_string(), None)).collect()
        }
        Said::Bakery { numbers, .. } => of_cells(numbers),
    }
}
