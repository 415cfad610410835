//! What a run has done so far.

use std::collections::BTreeMap;
use std::fmt;

use crate::{Outcome, Seen};

/// Most kinds of outcome told apart; past it none counts as new.
const OUTCOMES_MAX: usize = 4_096;

#[derive(Default)]
pub(crate) struct Tally {
    executions: u64,
    outcomes: BTreeMap<Outcome, u64>,
    /// Most memory held at a time, bytes, and the length of that input.
    most: (u64, usize),
}

impl Tally {
    /// Counts one input; says whether its outcome is new.
    pub(crate) fn add(&mut self, bytes: &[u8], seen: Seen) -> bool {
        self.executions += 1;
        self.most = self.most.max((seen.bytes_max, bytes.len()));
        let room = self.outcomes.len() < OUTCOMES_MAX;
        match self.outcomes.get_mut(&seen.outcome) {
            Some(count) => *count += 1,
            None if room => {
                self.outcomes.insert(seen.outcome, 1);
                return true;
            }
            None => {}
        }
        false
    }
}

/// `tests/fuzz/long` reads the first number.
impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (memory, len) = self.most;
        let Self { executions, outcomes, .. } = self;
        write!(
            f,
            "{executions} executions, {} outcomes, at most {memory} bytes allocated (input of \
             {len})",
            outcomes.len()
        )
    }
}
