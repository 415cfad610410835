//! A look at all locks of a prefix, a page at a time: which have the longest queues, and which are held longest.

use std::collections::BTreeSet;

use holdfast_core::{LockName, LockTable};
use holdfast_runtime::Instant;

use super::{ASKED_WITHIN, FRESH_FOR, Order};

/// Locks of one page: a fraction of a millisecond under the table's lock.
const PAGE: usize = 1_024;
/// How many are kept by each measure.
const KEPT: usize = 256;

/// A look that is under way, and what the last whole one has found.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// When somebody asked last.
    pub(super) asked: Option<Instant>,
    /// A task carries it on.
    pub(super) is_driven: bool,
    /// The last lock that was looked at, while a look is under way.
    after: Option<LockName>,
    /// When the last whole one ended.
    ended: Option<Instant>,
    running: Tops,
    last: Tops,
}

/// The locks that stand out.
#[derive(Debug, Default)]
struct Tops {
    queues: Top,
    holds: Top,
}

/// Those with the largest numbers.
#[derive(Debug, Default)]
struct Top(BTreeSet<(u64, LockName)>);

impl Top {
    fn add(&mut self, number: u64, name: &LockName) {
        let is_small = self.0.first().is_some_and(|(least, _)| *least >= number);
        if self.0.len() >= KEPT && is_small {
            return;
        }
        self.0.insert((number, name.clone()));
        if self.0.len() > KEPT {
            self.0.pop_first();
        }
    }

    fn names(&self) -> impl Iterator<Item = &LockName> {
        self.0.iter().map(|(_, name)| name)
    }
}

impl Survey {
    /// Whether the next page is to be looked at: one look is under way, or the last one is old, and somebody asks.
    pub(super) fn wants_more(&self, now: Instant) -> bool {
        let is_fresh = self.ended.is_some_and(|ended| now.saturating_since(ended) < FRESH_FOR);
        let is_asked = self.asked.is_some_and(|asked| now.saturating_since(asked) < ASKED_WITHIN);
        is_asked && (self.after.is_some() || !is_fresh)
    }

    /// Looks at the next page.
    pub(super) fn go_on(&mut self, table: &LockTable, prefix: &str, now: Instant) {
        let (mut looked, mut last) = (0, None);
        for lock in table.locks_after(prefix, self.after.as_ref(), PAGE) {
            if lock.waiting > 0 {
                self.running.queues.add(lock.waiting, lock.name);
            }
            // The first holder is the one that was granted first.
            if let Some(holder) = lock.holders().next() {
                self.running.holds.add(u64::MAX - holder.since_ms, lock.name);
            }
            (looked, last) = (looked + 1, Some(lock.name));
        }
        self.after = last.filter(|_| looked == PAGE).cloned();
        if self.after.is_none() {
            self.last = std::mem::take(&mut self.running);
            self.ended = Some(now);
        }
    }

    /// All were looked at, at least once.
    pub(super) fn is_whole(&self) -> bool {
        self.ended.is_some()
    }

    /// A look is under way that no task carries on; from now on one does.
    pub(super) fn is_left_unfinished(&mut self) -> bool {
        self.after.is_some() && !std::mem::replace(&mut self.is_driven, true)
    }

    /// The locks that stand out by a measure, in no order.
    pub(super) fn candidates(&self, order: Order) -> Vec<LockName> {
        let tops = [&self.last, &self.running];
        let names: BTreeSet<&LockName> = match order {
            Order::LongestQueue => tops.iter().flat_map(|tops| tops.queues.names()).collect(),
            Order::LongestHeld => tops.iter().flat_map(|tops| tops.holds.names()).collect(),
            // Where nothing moves, what stands still.
            Order::Hottest => {
                let both = tops.iter();
                both.flat_map(|tops| tops.queues.names().chain(tops.holds.names())).collect()
            }
        };
        names.into_iter().cloned().collect()
    }
}
