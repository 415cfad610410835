//! What the rows of a run's looks were, so that one that was written meanwhile is noticed: then the operator's word is not so.
//!
//! No clock is asked and no time compared: a cell that an earlier look did not see, or saw with another write time, was written
//! in between. A client that writes nothing during the run is not noticed; that is what the word is for.

use std::collections::BTreeSet;

use crate::layout::LockRows;
use crate::plan::{Rules, marks_of};

/// Cells that are remembered, of 8 bytes each and about as much around them. With more a run ends, and says so: it could not tell
/// what is new.
const REMEMBERED_MAX: usize = 10_000_000;

/// A cell that was written during the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Newcomer {
    pub(super) lock: String,
    pub(super) owner: String,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Marks {
    seen: BTreeSet<u64>,
    /// The first look is over: what comes now is new.
    complete: bool,
    pub(super) newcomer: Option<Newcomer>,
    pub(super) too_many: bool,
}

impl Marks {
    /// Notes what a look sees of one lock.
    pub(super) fn note(&mut self, rows: &LockRows, rules: &Rules) {
        let lock = rows.lock.to_string();
        if !lock.starts_with(&rules.prefix) {
            return;
        }
        for (owner, mark) in marks_of(rows, rules) {
            let is_new = !self.seen.contains(&mark);
            if is_new && self.complete {
                let lock = lock.clone();
                self.newcomer.get_or_insert(Newcomer { lock, owner });
            } else if self.seen.len() >= REMEMBERED_MAX {
                self.too_many = true;
            } else {
                self.seen.insert(mark);
            }
        }
    }

    /// A look has seen everything.
    pub(super) fn look_is_over(&mut self) {
        self.complete = true;
    }
}
