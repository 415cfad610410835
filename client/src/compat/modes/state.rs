//! What one process is doing: its row, the mode it was told to be in, and what it has in hand in which mode.
//!
//! Everything that is decided from two of these at once is decided here, under one lock.

use std::sync::Arc;

use holdfast_mutants::mutant;
use tokio::sync::watch;
use tokio_util::sync::DropGuard;

use super::LockerMode;
use crate::Error;
use crate::safety::Safety;

/// The row as its last applied write left it, and how long that is certain.
#[derive(Clone)]
pub(super) struct Standing {
    pub(super) mode: LockerMode,
    pub(super) safety: Arc<Safety>,
}

/// See the module.
#[derive(Clone)]
pub(super) struct State {
    /// `None`: no row is certain.
    pub(super) row: Option<Standing>,
    /// A change of the row to this is on its way, and may or may not have been made.
    pub(super) changing: Option<LockerMode>,
    pub(super) wanted: LockerMode,
    /// Counts what was wanted.
    pub(super) asked: u64,
    /// The last of them that came to its end, and how.
    pub(super) answered: (u64, Option<Error>),
    /// Why there is no row, if that will not pass by itself.
    pub(super) refused: Option<Error>,
    /// The cluster that the scope was tied to when it was last read.
    pub(super) cluster: Option<String>,
    /// What the last attempt at the row came to, for people.
    pub(super) trouble: String,
    cassandra: usize,
    native: usize,
    fallback: usize,
}

impl State {
    pub(super) fn new(wanted: LockerMode) -> Self {
        Self {
            row: None,
            changing: None,
            wanted,
            asked: 0,
            answered: (0, None),
            refused: None,
            cluster: None,
            trouble: "no answer yet".into(),
            cassandra: 0,
            native: 0,
            fallback: 0,
        }
    }

    /// In which mode locks are asked for now; `None` without a row.
    pub(super) fn acting(&self) -> Option<LockerMode> {
        let mode = self.row.as_ref()?.mode;
        if mutant!(ModeActsAhead) {
            return Some(self.wanted);
        }
        // On the way from one mode to another: what the row covers, whichever of the two it says.
        let next = self.changing.or_else(|| mode.towards(self.wanted));
        Some(next.map_or(mode, |next| mode.between(next)))
    }

    /// Whether something is in hand that only a row of `mode` covers.
    fn needs(&self, mode: LockerMode) -> bool {
        match mode {
            LockerMode::Cassandra => self.cassandra > 0,
            LockerMode::Native => self.native > 0,
            LockerMode::Fallback => self.fallback > 0,
            LockerMode::Both => false,
        }
    }

    /// What the row is to say next, from `row`; `None` while it has to stay as it is.
    pub(super) fn next(&self, row: LockerMode) -> Option<LockerMode> {
        // Nobody goes from `cassandra` to `native` but through `both`, and nobody leaves what he needs.
        let next = row.towards(self.wanted);
        next.filter(|next| self.is_covered_by(*next) || mutant!(ModeRowLeavesGuards))
    }

    /// Whether a row that says `mode` stands for all that is in hand.
    pub(super) fn is_covered_by(&self, mode: LockerMode) -> bool {
        LockerMode::IN_ORDER.into_iter().all(|needed| !self.needs(needed) || mode.covers(needed))
    }

    fn count(&mut self, mode: LockerMode) -> Option<&mut usize> {
        match mode {
            LockerMode::Cassandra => Some(&mut self.cassandra),
            LockerMode::Native => Some(&mut self.native),
            LockerMode::Fallback => Some(&mut self.fallback),
            LockerMode::Both => None,
        }
    }
}

/// A state that many look at.
#[derive(Clone)]
pub(super) struct Shared(Arc<watch::Sender<State>>);

impl Shared {
    pub(super) fn new(wanted: LockerMode) -> Self {
        Self(Arc::new(watch::Sender::new(State::new(wanted))))
    }

    pub(super) fn seen(&self) -> watch::Receiver<State> {
        self.0.subscribe()
    }

    pub(super) fn get<T>(&self, of: impl FnOnce(&State) -> T) -> T {
        of(&self.0.borrow())
    }

    pub(super) fn change<T: Default>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut result = T::default();
        self.0.send_modify(|state| result = change(state));
        result
    }

    /// Begins to use the mode that locks are asked for in now; `None` without a row.
    pub(super) fn enter(&self, life: &Arc<DropGuard>) -> Option<InUse> {
        self.change(|state| {
            let mode = state.acting()?;
            let standing = state.row.clone()?.safety;
            if let Some(count) = state.count(mode) {
                *count += 1;
            }
            Some(InUse { shared: self.clone(), mode, standing, _life: life.clone() })
        })
    }
}

/// An attempt or a guard in a mode: the row covers it until this is dropped.
pub(super) struct InUse {
    shared: Shared,
    pub(super) mode: LockerMode,
    /// That of the row it began under.
    pub(super) standing: Arc<Safety>,
    /// The row is kept for as long as anybody has this.
    _life: Arc<DropGuard>,
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.shared.change(|state| {
            if let Some(count) = state.count(self.mode) {
                *count = count.saturating_sub(1);
            }
        });
    }
}
