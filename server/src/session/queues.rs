//! How long the queues are: the leader looks at all of them in turn, some at a time, and its metrics show what
//! the last whole look has found. A scrape looks at none.
//!
//! A look costs nothing while a request comes or goes, and counts what waited before the tenure as well. With
//! more than [`LOOKED_AT_ONCE`] queues it takes a pulse of the leader for each so many: four minutes with a
//! million of them, and the numbers are as old.

use holdfast_core::{LockName, LockTable};

use super::lead::Lead;
use super::metrics::LockMetrics;

/// Queues that are looked at under one lock of the table: less than a millisecond.
const LOOKED_AT_ONCE: usize = 1_024;

/// A look at all queues that is under way.
#[derive(Debug, Default)]
pub(super) struct Look {
    /// The last lock that was looked at.
    after: Option<LockName>,
    longest: u64,
    /// Waiters by prefix.
    waiters: Vec<u64>,
}

impl Lead {
    /// Goes on with a look at the queues. The metrics change once it has come to the end.
    pub(super) fn look_at_queues(&self, look: &mut Look) {
        let metrics = &self.registry.metrics.locks;
        let mut is_whole = false;
        self.consensus.read(&mut |table, _| is_whole = look.go_on(table, metrics));
        if is_whole {
            std::mem::take(look).show(metrics);
        }
    }
}

impl Look {
    /// Looks at the next queues; `true` if those were the last.
    fn go_on(&mut self, table: &LockTable, metrics: &LockMetrics) -> bool {
        let (mut looked, mut last) = (0, None);
        for (name, waiting) in table.queues_after(self.after.as_ref()).take(LOOKED_AT_ONCE) {
            self.longest = self.longest.max(waiting);
            let at = metrics.place_of(name);
            if self.waiters.len() <= at {
                self.waiters.resize(at + 1, 0);
            }
            if let Some(sum) = self.waiters.get_mut(at) {
                *sum += waiting;
            }
            (looked, last) = (looked + 1, Some(name));
        }
        self.after = last.cloned();
        looked < LOOKED_AT_ONCE
    }

    fn show(self, metrics: &LockMetrics) {
        let sums = self.waiters.into_iter().chain(std::iter::repeat(0));
        metrics.show_queues(self.longest, sums);
    }
}
