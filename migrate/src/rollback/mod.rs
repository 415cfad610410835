//! The way back of a scope: `native`, `both`, `cassandra`; with rows for what is held natively, so that clients that
//! know only the recipe are kept out by it.
//!
//! | at | a step back is made when |
//! |---|---|
//! | `native` | no process is in `native` |
//! | `both` | whatever is held natively has a row |
//! | `cassandra` | there is none; rows of native holds that have ended are taken back |
//!
//! # What has no row
//!
//! What a process in `both` holds has one: it holds in Cassandra as well. What was imported has its old one,
//! for it ends when that does; if somebody has removed it, it is written again, under the same owner and for what is
//! left. What a native client holds by itself has none, and nobody would renew one: it is in the way, by name. If it
//! has to be, a row is written for it that stands for so long (`live_for`): whoever holds natively for longer than
//! that is not seen by old clients after it. When the hold has ended, the same command takes its row back.
//!
//! # What it promises
//!
//! No step is made while something is in its way, as far as it was seen: that no process is in `native` is asked
//! with the step itself; that no native client takes a lock by itself between the look and the step is the
//! operator's to see to, as it is at every stage but `native`. It may be ended anywhere and begun again: a row
//! that is there is not written again, and stands until its time is over.

mod owner;
mod rows;

use std::pin::pin;
use std::time::Duration;

use futures_util::future::try_join;
use futures_util::{StreamExt, stream};
use holdfast::compat::{LockerMode, ScopeModes, ScopeView, Stage, is_ours};
use holdfast_seams::Seams;
use tokio::sync::mpsc;

use crate::cutover::{MoveError, Obstacle, Obstacles, Stepped, Tell, Told, check_ties, walk};
use crate::import::{Fault, Importer};
use crate::layout::{ColumnCell, LockRows, Raw, Recipe, Said};
use crate::scan::{News, Range, Scan};
use crate::verify::NativeStore;
pub(crate) use owner::StandIn;
pub use rows::{NewRow, Put, Rows};

/// Locks that are looked at natively at once.
const ASKED_AT_ONCE: usize = 32;
/// News that wait to be looked at.
const NEWS_WAITING: usize = 4;
/// Between two looks at a lock whose two sides do not go together.
const PAUSE: Duration = Duration::from_secs(3);
/// Looks at all locks in one step: the last has to find nothing to be written.
const PASSES: usize = 3;

/// Who holds a lock natively: the first, if several share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBy {
    /// Its session.
    pub session: u64,
    /// What that calls itself.
    pub label: String,
    /// The grant.
    pub token: u64,
    /// It was imported, and nobody has claimed it.
    pub is_imported: bool,
}

/// A lock that is held natively.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldLock {
    /// By whom.
    pub by: HeldBy,
    /// Somebody waits for it who was not imported.
    pub has_live_waiters: bool,
    /// What a holder left.
    pub value: Option<Vec<u8>>,
}

/// The native store, as its holds are looked at.
pub trait HeldStore: NativeStore {
    /// One lock; `None` if nobody holds it.
    fn held(&self, name: &str) -> impl Future<Output = Result<Option<HeldLock>, Fault>>;

    /// What is left of the lease of an import's session; `None`: it has ended.
    fn left(&self, session: u64) -> impl Future<Output = Result<Option<Duration>, Fault>>;
}

/// How a scope goes back.
#[derive(Debug)]
pub struct Rollback<'a, N> {
    /// The scope.
    pub modes: &'a ScopeModes,
    /// What its locks' names begin with.
    pub scope: &'a str,
    /// The recipe's tables, to be read.
    pub scan: &'a Scan,
    /// And to be written.
    pub rows: &'a Rows,
    /// The store.
    pub native: &'a N,
    /// Into how many ranges the tables are cut, and how many are read at once.
    pub ranges: (usize, usize),
    /// For how long the row of a live native client's hold stands; `None`: such a hold is in the way.
    pub live_for: Option<Duration>,
    /// How long to wait, in all, for what is in the way.
    pub wait: Duration,
    /// Time.
    pub seams: Seams,
}

/// Who holds a lock by the tables, and how much is left of that, seconds.
type InTable = Vec<(String, Option<i32>)>;

/// What becomes of one lock.
enum Verdict {
    /// Whoever knows only the recipe is kept out.
    Covered,
    /// A row is to be written.
    Write(NewRow),
    /// Neither.
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
    /// [`MoveError`]; the scope is at the stage that was told last, or one further back if an answer was lost.
    pub async fn run(&self, target: Stage, tell: &mut Tell<'_>) -> Result<ScopeView, MoveError> {
        let waiting = (self.wait, &self.seams);
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

    /// From `both` to `cassandra`: rows first.
    async fn cover_and_go_back(
        &self,
        view: &ScopeView,
        tell: &mut Tell<'_>,
    ) -> Result<Stepped, MoveError> {
        self.take_back(tell).await?;
        for pass in 1..=PASSES {
            let (written, obstacles) = self.cover(pass == PASSES).await?;
            if written > 0 {
                tell(Told::Rows { written, taken_back: 0 });
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

    /// Looks at all that is held natively, and writes rows for what has none. On the `last` pass one that is still
    /// to be written is in the way: it was written, and is not there.
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

    /// What becomes of a lock, with its row written if it is to be.
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

    /// A process in `both` takes and gives back the two halves one after the other: what does not go together
    /// is looked at once more.
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
        self.seams.sleep(PAUSE).await;
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
            // A process in `both`, with both its halves: others of its kind wait in Cassandra.
            let is_both = is_ours(by) && StandIn::of(by).is_none() && !held.has_live_waiters;
            return if is_both { Verdict::Covered } else { taken(name, held, by) };
        }
        let Some(live_for) = self.live_for else {
            let (lock, label) = (name.to_owned(), held.by.label.clone());
            return Verdict::InTheWay(Obstacle::NativeClient { lock, label });
        };
        let term = (self.rows.recipe() == Recipe::Tokens).then_some(live_for);
        Verdict::Write(new_row(name, stand_in.owner(term), live_for, held))
    }

    /// Rows that stand in for native holds which have ended are taken back.
    async fn take_back(&self, tell: &mut Tell<'_>) -> Result<(), MoveError> {
        let (send, mut news) = mpsc::channel(NEWS_WAITING);
        let (ranges, at_once) = (Range::split(self.ranges.0), self.ranges.1);
        let reading =
            async { self.scan.run(&ranges, at_once, send).await.map_err(MoveError::from) };
        let taking = async {
            let mut taken_back = 0;
            while let Some(news) = news.recv().await {
                let News::Locks { locks, .. } = news else { continue };
                for rows in locks {
                    taken_back += self.take_back_of(&rows).await?;
                }
            }
            Ok(taken_back)
        };
        let ((), taken_back) = try_join(reading, taking).await?;
        if taken_back > 0 {
            tell(Told::Rows { written: 0, taken_back });
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

/// Whole seconds, and one more: a TTL ends on a whole second of a clock.
fn new_row(name: &str, owner: String, left: Duration, held: &HeldLock) -> NewRow {
    let ttl_s = i32::try_from(left.as_secs().saturating_add(2)).unwrap_or(i32::MAX);
    let value = held.value.clone().and_then(|value| String::from_utf8(value).ok());
    NewRow { lock: name.to_owned(), owner, ttl_s, value }
}

/// Those who keep others out, as the recipe looks for them.
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
