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
//! A process in `both` has a row, because it holds in Cassandra as well; the note of its native hold says whose. An imported hold has its
//! old row, with the same end; if that was removed, rollback writes it again, under the same owner
//! and for the time left. A hold of a native client has no row, and no client would renew one: it
//! is an obstacle, by name. With `live_for` rollback writes a row for it that stands that long; old
//! clients do not see a hold that lasts longer. Such a row stands for one hold: a native client that shares the
//! lock is an obstacle, and so is one that waits, whoever holds the lock. When the hold has ended, the same command removes
//! its row, unless another native client has the lock by then.
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

use futures_util::{StreamExt, stream};
use holdfast_mutants::mutant;
use holdfast_recipes::{LockerMode, Recipe, ScopeView, Stage, Writer, is_ours};

use crate::cutover::{
    MoveError, MoveReport, MovingScope, Obstacle, Obstacles, OnReport, PlannedRows, Preview,
    Stepped,
};
use crate::layout::{LockRows, OwnedCell, Raw};
use crate::native::Native;
use crate::scan::Range;
use crate::verify::{NativeLock, NativeStore as _, Party};
pub(crate) use rows::StandIn;
pub use rows::{NewRow, Put, Rows};

/// Locks whose native state is read at once.
const ASKED_AT_ONCE: usize = 32;
/// The pause before a lock is read again whose two sides do not fit together.
const PAUSE: Duration = Duration::from_secs(3);
/// Passes over all locks in one step: the last one must find no row to write.
const PASSES: usize = 3;

/// A move of one scope back towards `cassandra`.
#[derive(Debug)]
pub struct Rollback<'a> {
    /// The scope.
    pub scope: MovingScope<'a, Native>,
    /// Writes the recipe's tables.
    pub rows: &'a Rows,
    /// The number of ranges that the tables are split into, and of those read at once.
    pub ranges: (usize, usize),
    /// How long the row of a native client's hold stands; `None`: such a hold is an obstacle.
    pub live_for: Option<Duration>,
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

impl Rollback<'_> {
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
        let step = async |view: &ScopeView, tell: &mut OnReport<'_>| {
            if view.stage < target {
                return Err(self.scope.beyond(view.stage, target, "cutover"));
            }
            match view.stage {
                Stage::Fallback => self.go_back(view, LockerMode::Native).await,
                Stage::Native if target == Stage::Native => Ok(Stepped::There),
                Stage::Native => self.go_back(view, LockerMode::Both).await,
                Stage::Both if target == Stage::Both => Ok(Stepped::There),
                Stage::Both => self.cover_and_go_back(view, tell).await,
                Stage::Cassandra => {
                    self.take_back(view.stage, tell).await?;
                    Ok(Stepped::There)
                }
            }
        };
        self.scope.walk(tell, step).await
    }

    /// What the next step would be, and what is in its way. Reads all native holds of a scope at `both`, and the recipe's rows from
    /// there on; changes nothing.
    ///
    /// # Errors
    ///
    /// [`MoveError`]; never [`MoveError::InTheWay`].
    pub async fn preview(&self, target: Stage) -> Result<Preview, MoveError> {
        let view = self.scope.view().await?;
        if view.stage < target {
            return Err(self.scope.beyond(view.stage, target, "cutover"));
        }
        let step = view.step_back();
        let next = step.to.filter(|_| view.stage > target);
        let (mut rows, mut obstacles) = (PlannedRows::default(), Obstacles::default());
        if next.is_some() {
            let to =
                if view.stage == Stage::Fallback { LockerMode::Native } else { LockerMode::Both };
            obstacles.extend(step.in_the_way.into_iter().map(|one| Obstacle::left_behind(one, to)));
        }
        if target == Stage::Cassandra && view.stage <= Stage::Both {
            rows.to_take_back = self.each_ended(view.stage, async |_, _| Ok(())).await?;
        }
        if next == Some(Stage::Cassandra) {
            let (to_write, uncovered) =
                self.each_lock(async |name| self.judge(&name).await, &mut |_| {}).await?;
            rows.to_write = to_write;
            obstacles.append(uncovered);
        }
        Ok(Preview { view, next, rows, obstacles })
    }

    async fn go_back(&self, view: &ScopeView, to: LockerMode) -> Result<Stepped, MoveError> {
        Stepped::of(self.scope.modes.go_back_from(view).await, to)
    }

    /// From `both` to `cassandra`: writes the rows first.
    async fn cover_and_go_back(
        &self,
        view: &ScopeView,
        tell: &mut OnReport<'_>,
    ) -> Result<Stepped, MoveError> {
        self.take_back(view.stage, tell).await?;
        for pass in 1..=PASSES {
            let is_last = pass == PASSES;
            let cover = async |name| self.settle(name, is_last).await;
            let (written, obstacles) = self.each_lock(cover, tell).await?;
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
        self.go_back(view, LockerMode::Both).await
    }

    /// Decides about all native holds; returns how many rows that takes, and what is in the way.
    async fn each_lock(
        &self,
        decide: impl AsyncFn(String) -> Result<Verdict, MoveError>,
        tell: &mut OnReport<'_>,
    ) -> Result<(usize, Obstacles), MoveError> {
        let (mut written, mut obstacles, mut after) = (0, Obstacles::default(), None);
        let mut locks = 0;
        loop {
            let (names, next) = self.scope.native.names(self.scope.name, after.as_deref()).await?;
            let judged = stream::iter(names).map(|name| decide(name));
            let mut judged = pin!(judged.buffer_unordered(ASKED_AT_ONCE));
            while let Some(verdict) = judged.next().await {
                match verdict? {
                    Verdict::Covered => {}
                    Verdict::Write(_) => written += 1,
                    Verdict::InTheWay(obstacle) => obstacles.push(obstacle),
                }
                locks += 1;
                tell(MoveReport::Looked { locks, written });
            }
            if next.is_none() {
                return Ok((written, obstacles));
            }
            after = next;
        }
    }

    /// Decides about a lock, and writes its row if it needs one. On the `last` pass a missing row is an obstacle: an earlier pass
    /// wrote it, and it is gone.
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
        self.scope.runtime.sleep(PAUSE).await;
        self.look(name).await
    }

    async fn look(&self, name: &str) -> Result<Verdict, MoveError> {
        let lock = self.scope.native.lock(name).await?.unwrap_or_default();
        let rows = self.scope.scan.lock(&Raw::Text(name.to_owned())).await?;
        let there = rows.as_ref().map(in_table).unwrap_or_default();
        // The first, if several share it.
        let verdict = match lock.holders.first() {
            // Frozen, closed, or one of several names that are waited for together: a waiter gets it later.
            None => native_waiter(name, &lock, &there).map_or(Verdict::Covered, Verdict::InTheWay),
            Some(holder) if holder.is_imported => {
                self.look_at_import(name, (&lock, holder), &there)
            }
            Some(holder) => self.look_at_live(name, (&lock, holder), &there),
        };
        Ok(verdict)
    }

    fn look_at_import(
        &self,
        name: &str,
        (held, holder): (&NativeLock, &Party),
        there: &InTable,
    ) -> Verdict {
        if let Some(waiter) = native_waiter(name, held, there) {
            return Verdict::InTheWay(waiter);
        }
        if there.iter().any(|(row, _)| *row == holder.label) {
            return Verdict::Covered;
        }
        if let Some((by, _)) = there.first() {
            return taken(name, holder, by);
        }
        let Some(left) = holder.left else { return Verdict::Covered };
        self.new_row(name, (holder, holder.label.clone()), left, held)
    }

    fn look_at_live(
        &self,
        name: &str,
        (held, holder): (&NativeLock, &Party),
        there: &InTable,
    ) -> Verdict {
        let waiter = native_waiter(name, held, there);
        let stand_in = StandIn { label: holder.label.clone(), token: holder.token };
        let own = there.iter().find(|(row, _)| StandIn::of(row).as_ref() == Some(&stand_in));
        if own.is_some() || there.is_empty() && self.live_for.is_some() {
            // The row stands for this hold alone.
            if let Some(beside) = held.holders.iter().skip(1).find(|one| !one.is_imported) {
                let (lock, label) = (name.to_owned(), beside.label.clone());
                return Verdict::InTheWay(Obstacle::NativeClient { lock, label });
            }
            if let Some(waiter) = waiter {
                return Verdict::InTheWay(waiter);
            }
        }
        if let Some((_, left_s)) = own {
            let enough = left_s.zip(self.live_for).is_none_or(|(left_s, live_for)| {
                u64::try_from(left_s).unwrap_or(0) >= live_for.as_secs() / 2
            });
            if enough {
                return Verdict::Covered;
            }
        } else if let Some((by, _)) = there.first() {
            // Of a process in `both` that has both halves: others in `both` wait for it in Cassandra. Any other row of ours may be a dead
            // process', or of one that is refused the native half, and ends or is given back before this hold.
            let is_both = is_of(by, holder) && waiter.is_none();
            return if is_both { Verdict::Covered } else { taken(name, holder, by) };
        }
        let Some(live_for) = self.live_for else {
            let (lock, label) = (name.to_owned(), holder.label.clone());
            return Verdict::InTheWay(Obstacle::NativeClient { lock, label });
        };
        let term = (self.rows.recipe() == Recipe::TokensLwt).then_some(live_for);
        self.new_row(name, (holder, stand_in.owner(term)), live_for, held)
    }

    /// The row that stands for a hold: its TTL is rounded up to whole seconds, plus one, because a TTL ends on a whole second
    /// of a clock. A value that the recipe's table cannot have keeps the scope from moving: nobody would notice that it is gone.
    fn new_row(
        &self,
        name: &str,
        (holder, owner): (&Party, String),
        left: Duration,
        held: &NativeLock,
    ) -> Verdict {
        let lock = name.to_owned();
        let value = held.value.clone().filter(|_| self.rows.recipe() == Recipe::Lease);
        let Ok(value) = value.map(String::from_utf8).transpose() else {
            let why = "its value is not UTF-8, and the table's is text".to_owned();
            return Verdict::InTheWay(Obstacle::NotWritten {
                lock,
                label: holder.label.clone(),
                why,
            });
        };
        let ttl_s = i32::try_from(left.as_secs().saturating_add(2)).unwrap_or(i32::MAX);
        Verdict::Write(NewRow { lock, owner, ttl_s, value })
    }

    /// Removes rows that stand in for native holds which have ended.
    async fn take_back(&self, at: Stage, tell: &mut OnReport<'_>) -> Result<(), MoveError> {
        let take = async |lock: &str, owner: &str| {
            let taken = self.rows.take_back(lock, owner).await;
            taken.map_err(|why| MoveError::Row { lock: lock.to_owned(), why })
        };
        let taken_back = self.each_ended(at, take).await?;
        if taken_back > 0 {
            tell(MoveReport::Rows { written: 0, taken_back });
        }
        Ok(())
    }

    /// Does something to each row that stands in for a native hold which has ended, by lock and owner; returns how many there are.
    async fn each_ended(
        &self,
        at: Stage,
        act: impl AsyncFn(&str, &str) -> Result<(), MoveError>,
    ) -> Result<usize, MoveError> {
        let mut ended = 0;
        let look = async |rows: LockRows| {
            let lock = rows.lock.to_string();
            for owner in self.ended_in(at, &lock, &rows).await? {
                act(&lock, &owner).await?;
                ended += 1;
            }
            Ok::<_, MoveError>(())
        };
        self.scope.scan.each((&Range::split(self.ranges.0), self.ranges.1), look).await?;
        Ok(ended)
    }

    /// At `cassandra` a native client that got the lock after the hold has no row, and gets none: the one that is there stays, and
    /// keeps old clients out for as long as it was to stand.
    async fn ended_in(
        &self,
        at: Stage,
        lock: &str,
        rows: &LockRows,
    ) -> Result<Vec<String>, MoveError> {
        let mut ended = Vec::new();
        if !lock.starts_with(self.scope.name) {
            return Ok(ended);
        }
        for (owner, _) in in_table(rows) {
            let Some(stand_in) = StandIn::of(&owner) else { continue };
            let held = self.scope.native.lock(lock).await?.unwrap_or_default();
            let holds_on = held.holders.iter().any(|holder| holder.token == stand_in.token);
            let is_others = held.holders.iter().any(|holder| !holder.is_imported);
            if !holds_on && (at != Stage::Cassandra || !is_others) {
                ended.push(owner);
            }
        }
        Ok(ended)
    }
}

/// A native client that waits for the lock and has no row of it is in the way: it gets the lock after the present holder, and then
/// no row may keep the recipe's clients out.
fn native_waiter(name: &str, held: &NativeLock, there: &InTable) -> Option<Obstacle> {
    if mutant!(NativeWaitersOverlooked) {
        return None;
    }
    let has_row = |party: &Party| there.iter().any(|(row, _)| is_of(row, party));
    let next = held.line.iter().find(|one| !one.is_imported && !has_row(one));
    // Live waiters stand behind imported ones, so one that is not shown may be live.
    let label = match next {
        Some(next) => next.label.clone(),
        None if held.has_more => "another client".to_owned(),
        None => return None,
    };
    Some(Obstacle::NativeWaiter { lock: name.to_owned(), label })
}

/// Whether the row's owner is the process that holds the lock natively, or waits for it, as its note says.
fn is_of(row: &str, party: &Party) -> bool {
    if mutant!(AnyRowCoversTheHold) {
        return is_ours(row) && StandIn::of(row).is_none();
    }
    Writer::of(row).is_some_and(|writer| Writer::of_note(&party.note) == Some(writer))
}

fn taken(name: &str, holder: &Party, by: &str) -> Verdict {
    let (lock, label) = (name.to_owned(), holder.label.clone());
    Verdict::InTheWay(Obstacle::RowTaken { lock, label, by: by.to_owned() })
}

/// The owners that keep others out by the recipe. A token stands as long as its session.
fn in_table(rows: &LockRows) -> InTable {
    let holders = rows.owned().into_iter().filter(|one| one.is_holders);
    let left_s = |one: &OwnedCell<'_>| one.cell.filter(|_| one.heartbeat.is_none())?.left_s;
    holders.map(|one| (one.column.clone(), left_s(&one))).collect()
}

#[cfg(test)]
mod tests {
    use holdfast_mutants::{Mutant, while_armed};

    use super::*;

    #[test]
    fn a_row_covers_the_hold_whose_note_names_its_writer_and_no_other() {
        const WRITER: &str = "0123456789abcdef";
        let row = format!("hf1:billing@{WRITER}/7:180");
        let noted = |note: &str| Party { note: note.to_owned(), ..Party::default() };
        let own = noted(&format!("in Cassandra too, as @{WRITER}"));
        let covered = |row: &str, holder: &Party| is_of(row, holder);

        assert!(covered(&row, &own));
        for other in
            ["", WRITER, "in Cassandra too, as @0123456789abcdee", "nightly @0123456789abcdef"]
        {
            assert!(!covered(&row, &noted(other)), "{other:?}");
        }
        // Of version 0.1, of a client of others, and of a native hold.
        for row in ["hf1:billing/7", "client_1", "hf1:billing@0123456789abcdef/native-7"] {
            assert!(!covered(row, &noted("")), "{row}");
        }
        while_armed(Mutant::AnyRowCoversTheHold, || assert!(covered(&row, &noted(""))));
    }

    #[test]
    fn a_native_client_that_waits_is_in_the_way_whoever_holds_the_lock() {
        let row = "hf1:billing@0123456789abcdef/7".to_owned();
        let party = |label: &str, note: &str, is_imported| Party {
            label: label.to_owned(),
            note: note.to_owned(),
            is_imported,
            ..Party::default()
        };
        let waited_for = |line, has_more| NativeLock { line, has_more, ..NativeLock::default() };
        let waiter = |lock: &NativeLock, there: &[&String]| {
            let there = there.iter().map(|row| ((*row).clone(), Some(170))).collect();
            native_waiter("x", lock, &there)
        };
        let in_the_way =
            |label: &str| Some(Obstacle::NativeWaiter { lock: "x".into(), label: label.into() });

        let imported = party("client_1", "", true);
        let live = waited_for(vec![imported.clone(), party("vm:7", "", false)], false);
        assert_eq!(waiter(&live, &[]), in_the_way("vm:7"));
        assert_eq!(while_armed(Mutant::NativeWaitersOverlooked, || waiter(&live, &[])), None);
        assert_eq!(waiter(&waited_for(vec![imported.clone()], false), &[]), None);
        assert_eq!(waiter(&waited_for(vec![imported], true), &[]), in_the_way("another client"));
        // A process in both, that has the row, and only that one.
        let both =
            waited_for(vec![party("vm:8", "in Cassandra too, as @0123456789abcdef", false)], false);
        assert_eq!(waiter(&both, &[&row]), None);
        assert_eq!(waiter(&both, &[]), in_the_way("vm:8"));
    }
}
