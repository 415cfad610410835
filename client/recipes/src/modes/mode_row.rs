//! The task that keeps a process' row: it enters the row, renews it, changes its mode when allowed, and deletes it.

use std::sync::Arc;
use std::time::Duration;

use holdfast_mutants::mutant;
use holdfast_runtime::{Instant, select};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::scope::{OwnRow, Rows, ScopeView, column};
use super::state::{CertainRow, Shared, State};
use super::{LockerMode, Stage};
use crate::alarms::Alarm;
use crate::database::{Conditional, Fault};
use crate::lock_task::Counted;
use crate::locker_base::LockerBase;
use crate::measures;
use crate::statement::{Action, Cells, Value};
use crate::{Error, GuardState, LostReason};
use holdfast_guard::{Backoff, Safety, Span};

/// The longest pause between two attempts to write the row after no answer.
const PAUSE_MAX: Duration = Duration::from_secs(2);

pub(super) struct ModeRow {
    rows: Rows,
    process: String,
    /// What the process locks by in Cassandra, as the table has it.
    recipe: String,
    base: LockerBase,
    shared: Shared,
    /// The last user of the locker is gone, and nothing is held.
    over: CancellationToken,
    /// The row as an applied write of this process left it; `None`: it has to be read.
    known: Option<OwnRow>,
    written: Option<Instant>,
    /// Grows with every write: no two writes of this process have the same number.
    last_seq: i64,
    alarm: Option<Alarm>,
    _counted: Counted,
}

impl ModeRow {
    /// A task for a process that has no row yet; it ends with `over`.
    pub(super) fn new(
        rows: Rows,
        (process, recipe): (String, String),
        base: LockerBase,
        shared: Shared,
        over: CancellationToken,
    ) -> Self {
        let counted = Counted::new(&base.cassandra.tasks);
        let (known, written, alarm) = (None, None, None);
        Self {
            rows,
            process,
            recipe,
            base,
            shared,
            over,
            known,
            written,
            last_seq: 0,
            alarm,
            _counted: counted,
        }
    }

    pub(super) async fn keep(mut self) {
        let runtime = self.base.runtime().clone();
        let mut seen = self.shared.seen();
        let mut pauses = Backoff::new(PAUSE_MAX);
        while !self.over.is_cancelled() {
            let acted = self.act().await;
            let settled = acted.is_ok() && self.known.is_some();
            if let Err(fault) = acted {
                self.note(fault);
            }
            // Until the row has to be renewed or changed; without an answer, until the next attempt.
            let until = match self.written {
                Some(written) if settled => {
                    pauses.reset();
                    self.base.timing.renew_at(written)
                }
                _ => runtime.clock.now() + pauses.next(&*runtime.rng),
            };
            select! {
                () = self.over.cancelled() => {}
                () = runtime.clock.sleep_until(until) => {}
                () = self.something_to_do(&mut seen), if settled => {}
            }
        }
        self.give_back().await;
    }

    /// Records a fault for the error messages of callers; a refusal also fails the pending request.
    fn note(&mut self, fault: Fault) {
        match fault {
            Fault::Refused(message) => {
                let asked = self.shared.get(|state| state.asked);
                self.refuse(asked, Error::invalid(message));
            }
            Fault::Unknown(message) | Fault::NotDone(message) => {
                self.shared.change(|state| state.trouble = message);
            }
        }
    }

    /// Completes when the row has to change to another mode.
    async fn something_to_do(&self, seen: &mut watch::Receiver<State>) {
        let wants_more =
            |state: &State| self.known.is_some_and(|row| state.next(row.mode).is_some());
        // The sender is in `self`.
        let _ = seen.wait_for(wants_more).await;
    }

    /// Does one step: reads if necessary, then writes what is due.
    async fn act(&mut self) -> Result<(), Fault> {
        self.note_if_over();
        let Some(row) = self.known else { return self.look_and_write().await };
        let (next, asked) = self.shared.get(|state| (state.next(row.mode), state.asked));
        if let Some(next) = next {
            return self.change(row, next, asked).await;
        }
        self.renew(row).await;
        Ok(())
    }

    /// Reads the row, then makes it certain by a write of this process.
    async fn look_and_write(&mut self) -> Result<(), Fault> {
        let Some((scope, own)) = self.look().await? else { return Ok(()) };
        let Some(row) = own else {
            self.lose(LostReason::Revoked);
            return self.enter(scope).await;
        };
        if !self.shared.get(|state| state.is_covered_by(row.mode)) {
            // Another writer changed it.
            self.lose(LostReason::Revoked);
        }
        if self.stands() {
            self.renew(row).await;
        } else {
            self.stand_anew(row, scope).await;
        }
        Ok(())
    }

    /// Reads the scope, tied to what this process locks by. `None` if it is tied to something else: then the process may not
    /// lock here.
    async fn look(&mut self) -> Result<Option<(ScopeView, Option<OwnRow>)>, Fault> {
        let mut seen = self.rows.own(&self.process).await?;
        if seen.0.recipe.is_none() {
            self.rows.tie("recipe", &self.recipe).await?;
            // The writes that depend on the tie compare it.
            seen = self.rows.own(&self.process).await?;
        }
        let tied = seen.0.recipe.clone().unwrap_or_default();
        if let Err(error) = self.rows.check_tie("recipe", &tied, &self.recipe) {
            let asked = self.shared.get(|state| state.asked);
            self.lose(LostReason::Revoked);
            self.refuse(asked, error);
            return Ok(None);
        }
        self.shared.change(|state| state.cluster.clone_from(&seen.0.cluster));
        Ok(Some(seen))
    }

    /// Whether the row has been certain ever since the process entered.
    fn stands(&self) -> bool {
        let clock = &*self.base.runtime().clock;
        self.shared.get(|state| state.row.as_ref().is_some_and(|row| row.safety.is_safe(clock)))
    }

    /// Begins again with a row that exists but was not certain for a while: by the clock of one node it may have expired, and the scope
    /// moved on, while by that of another it still exists. So it counts only from a write that the stage admits.
    async fn stand_anew(&mut self, row: OwnRow, ScopeView { stage, at, .. }: ScopeView) {
        let (wanted, asked, is_covered) =
            self.shared.get(|state| (state.wanted, state.asked, state.is_covered_by(state.wanted)));
        let mode = if stage.admits(row.mode) { row.mode } else { wanted };
        if !stage.admits(mode) {
            self.refuse(asked, self.not_admitted(stage, mode));
        } else if mode == row.mode || is_covered {
            self.begin(mode, [at, as_it_is(row)].concat()).await;
        }
    }

    async fn enter(&mut self, ScopeView { stage, at, .. }: ScopeView) -> Result<(), Fault> {
        let (mode, asked) = self.shared.get(|state| (state.wanted, state.asked));
        if !stage.admits(mode) {
            self.refuse(asked, self.not_admitted(stage, mode));
            return Ok(());
        }
        let only_if = [at, vec![(column("mode"), None), (column("seq"), None)]].concat();
        self.begin(mode, only_if).await;
        Ok(())
    }

    /// Changes the row to `next`, if the scope's stage admits it.
    async fn change(&mut self, row: OwnRow, next: LockerMode, asked: u64) -> Result<(), Fault> {
        let Some((ScopeView { stage, at, .. }, own)) = self.look().await? else { return Ok(()) };
        if own != Some(row) {
            self.known = None;
            return Ok(());
        }
        if !stage.admits(next) {
            self.refuse_change(row.mode, asked, &self.not_admitted(stage, next));
            return Ok(());
        }
        // From here on nothing begins that the change would leave uncovered.
        let begun = self.shared.change(|state| {
            let begun = state.next(row.mode) == Some(next);
            state.changing = begun.then_some(next);
            begun
        });
        if begun {
            self.begin(next, [at, as_it_is(row)].concat()).await;
        }
        Ok(())
    }

    /// Renews the row without comparing the stage, so it may only keep certain what is certain.
    async fn renew(&mut self, row: OwnRow) {
        let Some((row, sent)) = self.write(row.mode, as_it_is(row)).await else { return };
        if self.extend(row, sent).is_none() {
            self.known = None;
            self.lose(LostReason::DeadlinePassed);
        }
    }

    /// Writes the row on condition of a stage that admits the mode.
    async fn begin(&mut self, mode: LockerMode, only_if: Cells) {
        if let Some((row, sent)) = self.write(mode, only_if).await {
            self.stand(row, sent);
        }
    }

    /// Writes the row; returns what was answered as applied, and when it was sent.
    async fn write(&mut self, mode: LockerMode, only_if: Cells) -> Option<(OwnRow, Instant)> {
        self.last_seq += 1;
        let seq = self.last_seq;
        let cells = vec![
            (column("mode"), Some(Value::from(mode.written()))),
            (column("seq"), Some(Value::from(seq))),
        ];
        let action = Action::UpdateIf { cells, ttl_s: Some(self.base.timing.ttl_s()), only_if };
        let statement = self.rows.row(&self.process, action);
        let (sent, answer) = self.base.cassandra.tables().conditional(statement).await;
        match answer {
            Ok(Conditional::Applied) => return Some((OwnRow { mode, seq }, sent)),
            // The row was different: the next step reads it before it concludes anything.
            Ok(Conditional::NotApplied(_)) => self.known = None,
            Err(fault) => {
                self.known = None;
                self.note(fault);
            }
        }
        None
    }

    fn stand(&mut self, row: OwnRow, sent: Instant) {
        if self.extend(row, sent).is_some() {
            return;
        }
        self.lose(LostReason::DeadlinePassed);
        let until = self.base.timing.safe_until(sent);
        let until =
            if mutant!(LapsedModeRowCounts) { until + self.base.timing.ttl() } else { until };
        let span = Span::new(until);
        let alive = span.is_alive(&*self.base.runtime().clock);
        let Some(safety) = alive.then(|| Safety::within(span).map(Arc::new)).flatten() else {
            // The answer took too long.
            self.known = None;
            return;
        };
        self.alarm = Some(self.base.cassandra.alarms.watch(safety.clone()));
        self.note_row(row, sent, safety);
    }

    /// Extends a row that is still certain; `None` if it is not.
    fn extend(&mut self, row: OwnRow, sent: Instant) -> Option<()> {
        let clock = &*self.base.runtime().clock;
        let safety = self.shared.get(|state| state.row.clone())?.safety;
        let extended =
            safety.is_safe(clock) && safety.extend(self.base.timing.safe_until(sent), clock);
        safety.publish(false);
        extended.then(|| self.note_row(row, sent, safety))
    }

    fn note_row(&mut self, row: OwnRow, sent: Instant, safety: Arc<Safety>) {
        (self.known, self.written) = (Some(row), Some(sent));
        measures::row_renewed(&self.rows.scope, &*self.base.runtime().clock, sent);
        let before = self.shared.get(|state| state.row.as_ref().map(|row| row.mode));
        if before != Some(row.mode) {
            tracing::info!(scope = self.rows.scope, mode = %row.mode, "a locker is in this mode");
        }
        self.shared.change(|state| {
            state.row = Some(CertainRow { mode: row.mode, safety });
            state.changing = None;
            state.refused = None;
            if state.wanted == row.mode {
                state.answered = (state.asked, None);
            }
        });
    }

    /// A row whose deadline has passed covers nothing any more.
    fn note_if_over(&mut self) {
        let clock = self.base.runtime().clock.clone();
        let over = self
            .shared
            .get(|state| state.row.as_ref().is_some_and(|row| !row.safety.is_safe(&*clock)));
        if over {
            self.known = None;
            self.lose(LostReason::DeadlinePassed);
        }
    }

    /// Ends the row's safety, and with it all guards under the row.
    fn lose(&mut self, reason: LostReason) {
        self.alarm = None;
        let lost = self.shared.change(|state| {
            state.changing = None;
            state.row.take()
        });
        if let Some(lost) = lost {
            if reason != LostReason::Revoked || !self.over.is_cancelled() {
                tracing::warn!(scope = self.rows.scope, %reason, "the row of modes is lost, and every guard under it");
            }
            lost.safety.end(GuardState::Lost(reason));
        }
    }

    /// Records that there is no row, and that there will be none until something changes.
    fn refuse(&mut self, asked: u64, error: Error) {
        self.known = None;
        self.shared.change(|state| {
            if state.asked == asked {
                state.refused = Some(error.clone());
                state.answered = (asked, Some(error));
            }
        });
    }

    fn refuse_change(&self, mode: LockerMode, asked: u64, error: &Error) {
        self.shared.change(|state| {
            if state.asked == asked {
                state.wanted = mode;
                state.answered = (asked, Some(error.clone()));
            }
        });
    }

    fn not_admitted(&self, stage: Stage, mode: LockerMode) -> Error {
        let scope = self.rows.scope.escape_debug();
        Error::invalid(format!(
            "scope \"{scope}\" is at {stage}, where no process may enter {mode}; move the scope first \
             (holdfast-migrate cutover, or rollback), or take another mode"
        ))
    }

    /// Deletes the row. Without an answer the row ends with its TTL.
    async fn give_back(&mut self) {
        self.lose(LostReason::Revoked);
        for _ in 0..3 {
            let Ok((_, own)) = self.rows.own(&self.process).await else { continue };
            let Some(row) = own else { return };
            let delete = self.rows.row(&self.process, Action::DeleteIf { only_if: as_it_is(row) });
            let _ = self.base.cassandra.tables().conditional(delete).await;
        }
    }
}

/// The condition that the row was not written since.
fn as_it_is(row: OwnRow) -> Cells {
    vec![
        (column("mode"), Some(Value::from(row.mode.written()))),
        (column("seq"), Some(Value::from(row.seq))),
    ]
}
