//! One scope's authority as its leader keeps it, without I/O: what to do next, and what an answer means
//! (DESIGN §10).
//!
//! Its inputs are what was read, written and confirmed, and when; its outputs are the next step on the
//! row and the next command for the core. The rules are those of `tests/model/src/authority/rule.rs`,
//! cited by their names; each line that upholds one says so.
//!
//! # Invariants
//!
//! - What is known of the row comes from an answer. After anything else the row is read again.
//! - Authority begins at the start of a bump that was answered as applied, in the epoch of the row, and
//!   ends [`Durations::authority`](holdfast_keyspace::authority::Durations::authority) later.
//! - Every rise of the core's epoch comes one wait after the row was seen native above it.
//! - A write of the row, other than a bump, has an epoch above the row's and the core's, and the W and V
//!   that it found. Which W and V a bump writes is in `changing.rs`.
//! - Of a scope that comes from a backup the epoch of the row is raised above that of the core, before there is
//!   any authority: the old cluster may have been further than the backup (DESIGN §15).
//! - Nothing of a machine outlives the tenure.

use std::time::Duration;

use holdfast_core::ScopeState;
use holdfast_keyspace::authority::{AuthorityRow, Buckets, Change, EPOCH_MAX, Look, Mode};
use holdfast_mutants::mutant;
use holdfast_runtime::Instant;

use super::FallbackSettings;
use super::changing::Changing;

/// The next step on the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowStep {
    /// Do nothing before that moment.
    Wait(Instant),
    /// Read it.
    Read,
    /// Ask a quorum whether this node still leads.
    Confirm,
    /// Make this row.
    Create(AuthorityRow),
    /// Change the row.
    Change {
        /// From this row, the last one known.
        from: AuthorityRow,
        /// To this row.
        to: AuthorityRow,
    },
    /// Count the leases in Cassandra.
    Count,
}

/// The next command for the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CoreStep {
    /// Propose nothing before that moment; `None`: before something is learned.
    Wait(Option<Instant>),
    /// Suspend the scope: no request is granted.
    Suspend,
    /// Resume the scope in that epoch: waiters are granted.
    Resume(u16),
    /// Raise the epoch to this one.
    Raise(u16),
}

/// The authority of a leader, for one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Right {
    pub(super) epoch: u16,
    /// On this node's clock.
    pub(super) until: Instant,
}

/// What is wrong with a scope, for people and for the alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// There is no room for another switch.
    EpochsEnd,
    /// The row of a scope that was served before is gone.
    RowGone,
    /// The row cannot be used as it is.
    RowOdd,
}

/// Counters of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Changes of the row's mode that were seen.
    pub(super) switches: u64,
    /// Switches that were due and were refused, each counted once.
    pub(super) refused: u64,
}

/// The status of a scope at its leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorityStatus {
    /// The row as the leader knows it; `None` while it is unknown.
    pub row: Option<AuthorityRow>,
    /// What is left of the leader's authority, if that is of the scope's epoch.
    pub authority: Option<Duration>,
    /// Time since the last bump was sent that was answered as applied.
    pub beat_age: Option<Duration>,
    /// Changes of the row's mode that this leader has seen.
    pub switches: u64,
    /// Switches that it refused, because the epochs are used up.
    pub refused_switches: u64,
    /// What an operator has to repair.
    pub trouble: Option<&'static str>,
}

/// Consecutive bumps without an answer as applied after which the leader yields.
const FAILED_BUMPS: u8 = 2;
/// After this fraction of W, a row that could not be read or changed is tried again.
const RETRY_PARTS: u32 = 40;
/// After this fraction of V, the leases in Cassandra are counted again.
const COUNT_PARTS: u32 = 5;

/// A wait until holds in Cassandra are over, before the core's epoch is raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Due {
    epoch: u16,
    at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Nothing,
    /// There is no row.
    Absent,
    Row(AuthorityRow),
}

/// Keeps one scope in one tenure.
#[derive(Debug)]
pub(super) struct AuthorityMachine {
    terms: FallbackSettings,
    changing: Changing,
    /// From this moment on every client knows of the scope.
    told_at: Instant,
    /// The first beat of a row that is made anew: so that it equals no row that was there before.
    first_beat: i64,
    known: Known,
    authority: Option<Right>,
    due: Option<Due>,
    /// A quorum round that began after the last write has confirmed this node (`RoundBeforeWrite`).
    confirmed: bool,
    /// When the last bump was sent that was answered as applied.
    bumped_at: Option<Instant>,
    failed_bumps: u8,
    /// Until then the row is left alone.
    rest_until: Option<Instant>,
    /// The row's mode and epoch, and when they were first seen.
    seen: Option<(Mode, u16, Instant)>,
    /// No client holds in Cassandra any more.
    drained: bool,
    counted_at: Option<Instant>,
    /// The scope is about to be removed, by this moment at the latest.
    retire_until: Option<Instant>,
    /// The scope comes from a backup, and neither its row nor its epoch was raised since.
    is_behind: bool,
    trouble: Option<Trouble>,
    tally: Tally,
}

impl AuthorityMachine {
    /// Begins a tenure. Every client knows of the scope from `told_at` on.
    pub(super) fn new(terms: FallbackSettings, told_at: Instant, first_beat: i64) -> Self {
        Self {
            terms,
            changing: Changing::new(terms.durations),
            told_at,
            first_beat,
            known: Known::Nothing,
            authority: None,
            due: None,
            confirmed: false,
            bumped_at: None,
            failed_bumps: 0,
            rest_until: None,
            seen: None,
            drained: false,
            counted_at: None,
            retire_until: None,
            is_behind: false,
            trouble: None,
            tally: Tally::default(),
        }
    }

    /// The scope comes from a backup, and its epoch was not raised since: so what the table has of it may be
    /// older than the row.
    pub(super) fn restored(&mut self) {
        self.is_behind = true;
    }

    /// Whether a raise of the row's epoch is still owed because the scope comes from a backup.
    pub(super) fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Some clients may not know of the scope before `told_at`.
    pub(super) fn tells_until(&mut self, told_at: Instant) {
        self.told_at = self.told_at.max(told_at);
    }

    /// The last authority; the caller computes what is left of it.
    pub(super) fn authority(&self) -> Option<Right> {
        self.authority
    }

    /// The row as far as it is known.
    pub(super) fn row(&self) -> Option<AuthorityRow> {
        match self.known {
            Known::Row(row) => Some(row),
            Known::Nothing | Known::Absent => None,
        }
    }

    /// The status for people and for metrics.
    pub(super) fn status(&self, now: Instant, core: Option<ScopeState>) -> AuthorityStatus {
        let of_core = |right: &Right| core.is_some_and(|core| core.epoch == right.epoch);
        let left = self.authority.filter(of_core).map(|right| right.until.saturating_since(now));
        AuthorityStatus {
            row: self.row(),
            authority: left.filter(|left| !left.is_zero()),
            beat_age: self.bumped_at.map(|at| now.saturating_since(at)),
            switches: self.tally.switches,
            refused_switches: self.tally.refused,
            trouble: self.trouble.map(|trouble| match trouble {
                Trouble::EpochsEnd => "its epochs are used up: it stays where it is",
                Trouble::RowGone => "its row in the table authority is gone; put it back as it was",
                Trouble::RowOdd => {
                    "its row in the table authority cannot be used; the leader's log says why"
                }
            }),
        }
    }

    /// What to do to the row now, if nothing is under way.
    pub(super) fn row_step(&mut self, now: Instant, core: ScopeState) -> RowStep {
        if let Some(rest) = self.rest_until.filter(|rest| now < *rest) {
            return RowStep::Wait(rest);
        }
        let step = match self.known {
            Known::Nothing => RowStep::Read,
            Known::Absent => self.make(now, core),
            Known::Row(row) => self.change(now, core, row),
        };
        match step {
            // `RoundBeforeWrite`: a leader that is cut off from its peers writes nothing more.
            RowStep::Create(_) | RowStep::Change { .. }
                if !self.confirmed && !mutant!(RowWrittenWithoutQuorum) =>
            {
                RowStep::Confirm
            }
            step => step,
        }
    }

    /// Makes the row of a fresh scope. A scope that was served before had a row, and only that row could
    /// tell what became of its holds in Cassandra.
    fn make(&mut self, now: Instant, core: ScopeState) -> RowStep {
        if !core.fresh {
            self.trouble = Some(Trouble::RowGone);
            return self.look_again(now);
        }
        // Of a restored scope the epoch has to be raised, whether it had a row or not.
        let epoch = core.epoch.saturating_add(u16::from(self.is_behind));
        let (mode, beat) = (Mode::Preparing, self.first_beat);
        // The driver adds the cluster.
        let (durations, cluster) = (self.terms.durations, None);
        let buckets = self.terms.buckets.unwrap_or(Buckets::OF_NEW_SCOPES);
        RowStep::Create(AuthorityRow { mode, epoch, beat, durations, cluster, buckets })
    }

    fn change(&mut self, now: Instant, core: ScopeState, row: AuthorityRow) -> RowStep {
        let to = |to| RowStep::Change { from: row, to };
        match row.mode {
            // Whoever had authority in the row's epoch has it no more, and the core's rises after the wait.
            Mode::Native | Mode::Preparing if self.is_behind => {
                self.next_epoch(now, core, row, row.mode)
            }
            // `RowIsRaised`: otherwise no authority would ever be of the core's epoch.
            Mode::Native | Mode::Preparing if row.epoch < core.epoch && !mutant!(RowNotRaised) => {
                self.next_epoch(now, core, row, row.mode)
            }
            Mode::Native | Mode::Preparing if self.may_retire(now, core, row) => {
                to(AuthorityRow { mode: Mode::Retired, ..row.bumped() })
            }
            Mode::Native | Mode::Preparing => {
                let at = self.bumped_at.map(|at| at + self.terms.durations.bump_every());
                match at.filter(|at| now < *at) {
                    Some(later) => RowStep::Wait(later),
                    None => to(AuthorityRow {
                        mode: self.bumped_mode(now, core, row),
                        durations: self.changing.in_a_bump(now, core, row),
                        // No lease counts now, and no client takes the scope over by a row that it did not read.
                        buckets: self.terms.buckets.unwrap_or(row.buckets),
                        ..row.bumped()
                    }),
                }
            }
            Mode::Cassandra => {
                let back = self.seen_since(now) + self.terms.switch_every;
                if now < back {
                    RowStep::Wait(back)
                } else {
                    self.next_epoch(now, core, row, Mode::Draining)
                }
            }
            Mode::Draining => self.drain(now, core, row),
            Mode::Retired => {
                if let Some(until) = self.retire_until.filter(|until| now < *until) {
                    return RowStep::Wait(until);
                }
                // No client can have taken over or hold in Cassandra: the epoch need not rise.
                let least = core.epoch.saturating_add(u16::from(self.is_behind));
                let (mode, epoch) = (Mode::Preparing, row.epoch.max(least));
                to(AuthorityRow { mode, epoch, ..row.bumped() })
            }
        }
    }

    /// The mode that a bump writes: native, once all clients know of the scope and it is served. From
    /// then on it may be taken over.
    fn bumped_mode(&self, now: Instant, core: ScopeState, row: AuthorityRow) -> Mode {
        let served = row.epoch == core.epoch && !core.fresh;
        if served && now >= self.told_at { Mode::Native } else { row.mode }
    }

    fn may_retire(&self, now: Instant, core: ScopeState, row: AuthorityRow) -> bool {
        let asked = self.retire_until.is_some_and(|until| now < until);
        // In another epoch there may still be holds in Cassandra.
        asked && row.epoch == core.epoch
    }

    /// While draining no client enters; holders go on until they are done, or until the limit.
    fn drain(&mut self, now: Instant, core: ScopeState, row: AuthorityRow) -> RowStep {
        // The clients that could take over go by the row's W.
        let allowed = self.terms.drain_limit.min(row.durations.take_over_wait() / 2);
        let limit = self.seen_since(now) + allowed;
        if self.drained || now >= limit {
            return self.next_epoch(now, core, row, Mode::Native);
        }
        let again = self.counted_at.map(|at| at + row.durations.hold() / COUNT_PARTS);
        match again.filter(|again| now < *again) {
            Some(again) => RowStep::Wait(again.min(limit)),
            None => RowStep::Count,
        }
    }

    /// `AboveTheCore`: an epoch above the row's and the core's, so that every way back to native ends in
    /// a wait and in `RaiseEpoch`. The epoch never wraps.
    fn next_epoch(
        &mut self,
        now: Instant,
        core: ScopeState,
        row: AuthorityRow,
        mode: Mode,
    ) -> RowStep {
        let epoch = match (mutant!(RowBelowCore), row.mode) {
            (false, _) => row.epoch.max(core.epoch).saturating_add(1),
            (true, Mode::Native) => core.epoch,
            (true, _) => row.epoch.saturating_add(1),
        };
        if epoch > EPOCH_MAX {
            if self.trouble != Some(Trouble::EpochsEnd) {
                self.tally.refused += 1;
            }
            self.trouble = Some(Trouble::EpochsEnd);
            return self.look_again(now);
        }
        RowStep::Change { from: row, to: AuthorityRow { mode, epoch, beat: 0, ..row } }
    }

    /// Reads the row again after one W: an operator may have repaired what is wrong.
    fn look_again(&mut self, now: Instant) -> RowStep {
        let again = now + self.terms.durations.take_over_wait();
        self.rest_until = Some(again);
        self.known = Known::Nothing;
        RowStep::Wait(again)
    }

    fn seen_since(&self, now: Instant) -> Instant {
        self.seen.map_or(now, |(_, _, since)| since)
    }

    /// What to propose to the core now, if nothing is under way.
    pub(super) fn core_step(&self, now: Instant, core: ScopeState) -> CoreStep {
        let due = self.due.filter(|due| due.epoch > core.epoch);
        // `ReturnWaits`, `ReturnWaitsToTheEnd`.
        if let Some(due) = due.filter(|due| now >= due.at) {
            return CoreStep::Raise(due.epoch);
        }
        let until = |right: Right| right.until - self.terms.durations.suspend_before();
        // A grant under the authority of another epoch, or of none, is never safe.
        let serves = self.authority.filter(|right| right.epoch == core.epoch).map(until);
        match (serves.filter(|until| now < *until), core.suspended) {
            (Some(_), true) => CoreStep::Resume(core.epoch),
            (None, false) => CoreStep::Suspend,
            (Some(until), false) => CoreStep::Wait(Some(until)),
            (None, true) => CoreStep::Wait(due.map(|due| due.at)),
        }
    }

    /// A quorum round has ended that began after all earlier writes.
    pub(super) fn confirmed(&mut self, by_quorum: bool, now: Instant) {
        self.confirmed = by_quorum;
        if !by_quorum {
            self.rest_until = Some(self.a_while_after(now));
        }
    }

    /// A write is sent. It uses up the round before it.
    pub(super) fn writes(&mut self) {
        self.confirmed = false;
    }

    /// The row was read.
    pub(super) fn read(&mut self, look: Look, core: ScopeState) {
        // Any process may have written it.
        self.changing.not_alone();
        if let Some(row) = look.row {
            self.learn(row, self.waited_from(look.began, look.ended, row, false), core);
        } else {
            self.known = Known::Absent;
            (self.authority, self.due) = (None, None);
        }
    }

    /// A write of the row was answered. If it was not applied, nothing is known of the row.
    pub(super) fn written(
        &mut self,
        from: Option<AuthorityRow>,
        to: AuthorityRow,
        change: Change,
        now: Instant,
        core: ScopeState,
    ) {
        let Change::Done { began, ended } = change else {
            return self.not_written(from, to, now, core);
        };
        self.learn(to, self.waited_from(began, ended, to, true), core);
        self.is_behind &= to.epoch <= core.epoch;
        if from.is_some_and(|from| is_bump(from, to)) {
            self.failed_bumps = 0;
            self.bumped_at = Some(began);
            self.changing.bumped(ended);
            // `AuthorityFromBumpStart`. Counted by the W of the settings: the row has no shorter one.
            let from = if mutant!(AuthorityFromBumpEnd) { ended } else { began };
            let until = from + self.terms.durations.authority();
            self.authority = Some(Right { epoch: to.epoch, until });
        }
    }

    /// A write was not applied, or its outcome is unknown: it never counts in favour of this leader
    /// (`UnknownBumpFails`, `UnknownReturnFails`). A read after it shows the row, and gives nothing
    /// (`ReadSettlesNoBump`, `ReadGivesNoAuthority`): [`AuthorityMachine::read`] knows of no bump.
    pub(super) fn not_written(
        &mut self,
        from: Option<AuthorityRow>,
        to: AuthorityRow,
        now: Instant,
        core: ScopeState,
    ) {
        let bump = from.is_some_and(|from| is_bump(from, to));
        let back = from.is_some_and(|from| from.mode == Mode::Draining) && to.mode == Mode::Native;
        if bump && mutant!(UnknownBumpCounts) || back && mutant!(UnknownReturnCounts) {
            let change = Change::Done { began: now, ended: now };
            return self.written(from, to, change, now, core);
        }
        self.known = Known::Nothing;
        self.rest_until = Some(self.a_while_after(now));
        if let Some(from) = from.filter(|from| is_bump(*from, to)) {
            self.failed_bumps += 1;
            if self.failed_bumps >= FAILED_BUMPS {
                // Another process may be better off. If this leader went on trying, its late bumps could
                // keep clients from taking over, and it would have no authority all the same.
                self.failed_bumps = 0;
                let theirs = from.durations.take_over_wait().max(to.durations.take_over_wait());
                self.rest_until = Some(now + theirs);
            }
        }
    }

    /// The row could not be read; `odd`: it exists, but is not usable.
    pub(super) fn not_read(&mut self, odd: bool, now: Instant) {
        self.known = Known::Nothing;
        if odd {
            self.trouble = Some(Trouble::RowOdd);
        }
        self.rest_until = Some(self.a_while_after(now));
    }

    /// The leases in Cassandra were counted; `None`: the count failed, and there may be some.
    pub(super) fn counted(&mut self, held: Option<u64>, now: Instant) {
        self.counted_at = Some(now);
        self.drained = held == Some(0);
    }

    /// The scope is to be removed: until `until` no client takes over.
    pub(super) fn retire(&mut self, until: Instant) {
        self.retire_until = Some(until);
        self.rest_until = None;
    }

    /// Whether the row is retired, so that no client takes over any more.
    pub(super) fn is_retired(&self) -> bool {
        self.row().is_some_and(|row| row.mode == Mode::Retired)
    }

    fn a_while_after(&self, now: Instant) -> Instant {
        now + self.terms.durations.take_over_wait() / RETRY_PARTS
    }

    /// The start and the end of the wait that an answer requires. It starts at the end of the answer
    /// (`ReturnWaitFromEnd`), whichever leader wrote the row (`AnyLeaderWaits`), and lasts by the V that
    /// the holds were counted by (`ReturnWaitByTheRow`).
    fn waited_from(
        &self,
        began: Instant,
        ended: Instant,
        row: AuthorityRow,
        own: bool,
    ) -> (Instant, Instant) {
        let by_own = mutant!(ReturnWaitByOwnV);
        let wait = if by_own { self.terms.durations } else { row.durations }.return_wait();
        let until = if mutant!(ReturnAtOnce) || mutant!(OnlyReturnerWaits) && !own {
            ended
        } else if mutant!(ReturnWaitsHalf) {
            ended + wait / 3
        } else if mutant!(ReturnWaitFromStart) {
            began + wait
        } else {
            ended + wait
        };
        (ended, until)
    }

    /// The row is known, as of `ended` at the latest; a wait that it requires is over at `wait_until`.
    fn learn(
        &mut self,
        row: AuthorityRow,
        (ended, wait_until): (Instant, Instant),
        core: ScopeState,
    ) {
        self.known = Known::Row(row);
        self.trouble = None;
        let same = self.seen.is_some_and(|(mode, epoch, _)| (mode, epoch) == (row.mode, row.epoch));
        if !same {
            let switched = self.seen.is_some_and(|(mode, ..)| mode != row.mode);
            self.tally.switches += u64::from(switched);
            self.seen = Some((row.mode, row.epoch, ended));
            (self.drained, self.counted_at) = (false, None);
        }
        let serves = matches!(row.mode, Mode::Native | Mode::Preparing);
        // A wait that is running goes on.
        let owes = serves && row.epoch > core.epoch;
        let running = self.due.filter(|due| due.epoch == row.epoch);
        let due = running.unwrap_or(Due { epoch: row.epoch, at: wait_until });
        self.due = owes.then_some(due);
        self.authority = self.authority.filter(|right| serves && right.epoch == row.epoch);
    }
}

#[cfg(test)]
impl AuthorityMachine {
    pub(super) fn bumped_at(&self) -> Option<Instant> {
        self.bumped_at
    }

    pub(super) fn trouble(&self) -> Option<Trouble> {
        self.trouble
    }

    pub(super) fn tally(&self) -> Tally {
        self.tally
    }
}

/// Whether a write shows only that its writer is alive: within an epoch in which no client has taken
/// over since.
pub(super) fn is_bump(from: AuthorityRow, to: AuthorityRow) -> bool {
    let serves = |row: AuthorityRow| matches!(row.mode, Mode::Native | Mode::Preparing);
    from.epoch == to.epoch && serves(from) && serves(to)
}
