//! The state of one process: its row, the mode that the caller wants, and the guards and attempts in each mode.
//!
//! Every decision that depends on two of these is made here, under one lock.

use std::sync::{Arc, Mutex, PoisonError};

use holdfast_mutants::mutant;
use tokio::sync::watch;
use tokio_util::sync::DropGuard;

use super::LockerMode;
use crate::Error;
use crate::measures::ModeCount;
use holdfast_guard::Safety;

/// The row as its last applied write left it, and how long it is certain.
#[derive(Clone)]
pub(super) struct CertainRow {
    pub(super) mode: LockerMode,
    pub(super) safety: Arc<Safety>,
}

#[derive(Clone)]
pub(super) struct State {
    /// `None`: no row is certain.
    pub(super) row: Option<CertainRow>,
    /// A change of the row to this mode is under way and may or may not be applied.
    pub(super) changing: Option<LockerMode>,
    pub(super) wanted: LockerMode,
    pub(super) asked: u64,
    /// The last request that has completed, and its outcome.
    pub(super) answered: (u64, Option<Error>),
    /// Why there is no row, if that will not pass by itself.
    pub(super) refused: Option<Error>,
    /// The cluster that the scope was tied to when it was last read.
    pub(super) cluster: Option<String>,
    /// The outcome of the last attempt to write the row, for error messages.
    pub(super) trouble: String,
    /// How many guards and attempts there are in each mode.
    in_use: [(LockerMode, usize); 4],
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
            in_use: LockerMode::IN_ORDER.map(|mode| (mode, 0)),
        }
    }

    /// The mode in which locks are requested now; `None` without a row.
    pub(super) fn acting(&self) -> Option<LockerMode> {
        let mode = self.row.as_ref()?.mode;
        if mutant!(ModeActsAhead) {
            return Some(self.wanted);
        }
        // On the way from one mode to another: a mode that the row covers, whichever of the two it
        // has.
        let next = self.changing.or_else(|| mode.towards(self.wanted));
        Some(next.map_or(mode, |next| mode.between(next)))
    }

    /// The next mode of the row, from `row`; `None` while it has to stay as it is.
    pub(super) fn next(&self, row: LockerMode) -> Option<LockerMode> {
        // The way from `cassandra` to `native` leads through `both`, and a row is never weakened below what is in use.
        let next = row.towards(self.wanted);
        next.filter(|next| self.is_covered_by(*next) || mutant!(ModeRowLeavesGuards))
    }

    /// Whether a row with `mode` covers all guards and attempts.
    pub(super) fn is_covered_by(&self, mode: LockerMode) -> bool {
        self.in_use.iter().all(|(used, count)| *count == 0 || mode.covers(*used))
    }

    fn count(&mut self, mode: LockerMode) -> Option<&mut usize> {
        self.in_use.iter_mut().find(|(used, _)| *used == mode).map(|(_, count)| count)
    }
}

#[derive(Clone)]
pub(super) struct Shared(Arc<Told>);

struct Told {
    state: watch::Sender<State>,
    /// The mode as metrics show it. It follows the state outside of its lock: a recorder that takes its time delays
    /// nobody who asks for the state.
    count: Mutex<ModeCount>,
}

impl Shared {
    pub(super) fn new(scope: &str, wanted: LockerMode) -> Self {
        let count = Mutex::new(ModeCount::new(scope));
        Self(Arc::new(Told { state: watch::Sender::new(State::new(wanted)), count }))
    }

    pub(super) fn seen(&self) -> watch::Receiver<State> {
        self.0.state.subscribe()
    }

    pub(super) fn get<T>(&self, of: impl FnOnce(&State) -> T) -> T {
        of(&self.0.state.borrow())
    }

    pub(super) fn change<T: Default>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut result = T::default();
        self.0.state.send_modify(|state| result = change(state));
        let mut count = self.0.count.lock().unwrap_or_else(PoisonError::into_inner);
        // Read under this lock: whoever takes it last sees every change.
        count.is_in(self.get(State::acting));
        result
    }

    /// Registers a use of the current mode; `None` without a row.
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
pub(crate) struct InUse {
    shared: Shared,
    pub(super) mode: LockerMode,
    /// That of the row under which it began.
    pub(super) standing: Arc<Safety>,
    /// Keeps the row for as long as this exists.
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
