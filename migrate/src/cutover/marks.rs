//! Remembers the cells that the passes of a run have seen, and finds those written during the run,
//! which contradict `--writers-stopped`.
//!
//! No clock is read and no times are compared: a cell that an earlier pass did not see, or saw with
//! another write time, was written in between. A client that writes nothing during the run is not
//! noticed; that is what the operator's statement is for.

use std::collections::BTreeSet;

use crate::layout::LockRows;
use crate::plan::{Rules, marks_of};

/// Cells that are remembered, of 8 bytes each and about as much around them. A run with more ends
/// with an error, because it could not distinguish new cells.
const REMEMBERED_MAX: usize = 10_000_000;

/// A cell that was written during the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Newcomer {
    pub(super) lock: String,
    pub(super) owner: String,
}

/// The marks of one run; see the module.
#[derive(Debug, Default)]
pub(super) struct Marks {
    seen: BTreeSet<u64>,
    /// The first pass is over: every mark from here on is new.
    complete: bool,
    pub(super) newcomer: Option<Newcomer>,
    pub(super) too_many: bool,
}

impl Marks {
    /// Records the cells of one lock.
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

    /// A pass has read every row.
    pub(super) fn look_is_over(&mut self) {
        self.complete = true;
    }
}
