//! When holds with bounds have lasted their most and their least, as a machine without I/O; only a leader has one (DESIGN
//! §16, I38).
//!
//! Callers pass times in as milliseconds of the leader's monotonic clock. A hold counts from when this leader saw its
//! grant, or from when it began to lead: late, and never early. Every operation is O(log n), and a wrong order of calls
//! can only make something due later.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use holdfast_mutants::mutant;

use crate::hold_bounds::BoundHold;
use crate::ids::{FencingToken, LockName, SessionId};

/// What the leader has to propose.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HoldDue {
    /// A hold has lasted its most: [`Command::EndLongHold`](crate::Command::EndLongHold).
    Most {
        /// The holder.
        session: SessionId,
        /// The grant.
        token: FencingToken,
    },
    /// A closed lock has been closed for long enough: [`Command::OpenLock`](crate::Command::OpenLock).
    Least {
        /// The lock.
        lock: LockName,
        /// The grant that ended.
        token: FencingToken,
    },
}

/// The times of all holds with bounds, and of all closed locks, in one tenure.
///
/// # Promises
///
/// - Nothing is due before its bound has passed since the hold was first reported here.
/// - What is due is reported once, and again after [`HoldTimes::unsettled`].
#[derive(Clone, Debug, Default)]
pub struct HoldTimes {
    /// When each hold that is not over was first reported.
    since_ms: BTreeMap<FencingToken, u64>,
    /// When each is due, whether it has been reported or not.
    due_ms: BTreeMap<HoldDue, u64>,
    /// Invariant: of what is in `due_ms`, what has not been reported.
    order: BTreeSet<(u64, HoldDue)>,
}

impl HoldTimes {
    /// A hold was granted, or was there when the tenure began. A second report changes nothing.
    pub fn held(&mut self, hold: BoundHold, now_ms: u64) {
        let BoundHold { session, token, max_hold_ms, .. } = hold;
        let Entry::Vacant(new) = self.since_ms.entry(token) else { return };
        new.insert(now_ms);
        if max_hold_ms > 0 {
            self.put(HoldDue::Most { session, token }, now_ms.saturating_add(max_hold_ms.into()));
        }
    }

    /// A hold is over.
    pub fn hold_over(&mut self, session: SessionId, token: FencingToken) {
        if self.since_ms.remove(&token).is_some() {
            self.take(&HoldDue::Most { session, token });
        }
    }

    /// A lock was closed by the end of a hold, which is reported as over after that; or it was closed when the tenure
    /// began.
    pub fn closed(&mut self, lock: &LockName, token: FencingToken, least_ms: u32, now_ms: u64) {
        let since_ms = self.since_ms.get(&token).copied().unwrap_or(now_ms);
        let least_ms = if mutant!(LeastNotCounted) { 0 } else { least_ms };
        self.put(
            HoldDue::Least { lock: lock.clone(), token },
            since_ms.saturating_add(least_ms.into()),
        );
    }

    /// A lock is open again.
    pub fn opened(&mut self, lock: &LockName, token: FencingToken) {
        self.take(&HoldDue::Least { lock: lock.clone(), token });
    }

    /// At most `max` of what is due at `now_ms`, the longest due first.
    pub fn due(&mut self, now_ms: u64, max: usize) -> Vec<HoldDue> {
        let due = self.order.iter().take_while(|(due_ms, _)| *due_ms <= now_ms).take(max);
        let due: Vec<_> = due.cloned().collect();
        for one in &due {
            self.order.remove(one);
        }
        due.into_iter().map(|(_, due)| due).collect()
    }

    /// What was proposed came to nothing, or to nothing known: it is due as before, unless it was settled meanwhile.
    pub fn unsettled(&mut self, due: HoldDue) {
        if let Some(&due_ms) = self.due_ms.get(&due) {
            self.order.insert((due_ms, due));
        }
    }

    /// When the next one is due.
    pub fn next(&self) -> Option<u64> {
        self.order.first().map(|(due_ms, _)| *due_ms)
    }

    /// How long a lock stays closed.
    pub fn closed_for(&self, lock: &LockName, token: FencingToken, now_ms: u64) -> Option<u64> {
        let due_ms = self.due_ms.get(&HoldDue::Least { lock: lock.clone(), token })?;
        Some(due_ms.saturating_sub(now_ms))
    }

    fn put(&mut self, due: HoldDue, due_ms: u64) {
        if let Entry::Vacant(new) = self.due_ms.entry(due.clone()) {
            new.insert(due_ms);
            self.order.insert((due_ms, due));
        }
    }

    fn take(&mut self, due: &HoldDue) {
        if let Some(due_ms) = self.due_ms.remove(due) {
            self.order.remove(&(due_ms, due.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(token: u64, max_hold_ms: u32, hold_at_least_ms: u32) -> BoundHold {
        let token = FencingToken::from_raw(token);
        BoundHold { session: SessionId::new(1), token, max_hold_ms, hold_at_least_ms }
    }

    fn most(token: u64) -> HoldDue {
        HoldDue::Most { session: SessionId::new(1), token: FencingToken::from_raw(token) }
    }

    fn lock(name: &str) -> LockName {
        LockName::parse(name).expect("a name")
    }

    fn least(name: &str, token: u64) -> HoldDue {
        HoldDue::Least { lock: lock(name), token: FencingToken::from_raw(token) }
    }

    #[test]
    fn a_hold_is_due_when_its_most_has_passed_since_it_was_first_reported() {
        let mut times = HoldTimes::default();
        times.held(hold(7, 100, 0), 1_000);
        times.held(hold(7, 100, 0), 1_050);
        times.held(hold(8, 0, 60), 1_000);
        assert_eq!((times.next(), times.due(1_099, 9)), (Some(1_100), vec![]));
        assert_eq!(times.due(1_100, 9), [most(7)]);
        assert_eq!((times.next(), times.due(2_000, 9)), (None, vec![]), "it is reported once");

        times.unsettled(most(7));
        assert_eq!(times.due(1_100, 9), [most(7)]);
        times.hold_over(SessionId::new(1), FencingToken::from_raw(7));
        times.unsettled(most(7));
        assert_eq!(times.due(9_999, 9), [], "it is over");
    }

    #[test]
    fn a_lock_is_opened_when_its_least_has_passed_since_the_grant_however_the_hold_ends() {
        let mut times = HoldTimes::default();
        let token = FencingToken::from_raw(8);
        times.held(hold(8, 0, 60), 1_000);
        for (name, at) in [("a", 1_010), ("b", 1_500)] {
            times.closed(&lock(name), token, 60, at);
        }
        times.hold_over(SessionId::new(1), token);
        assert_eq!(times.due(1_059, 9), []);
        assert_eq!(times.closed_for(&lock("a"), token, 1_050), Some(10));
        assert_eq!(times.due(1_060, 1), [least("a", 8)], "one at a time");
        assert_eq!(times.due(1_060, 1), [least("b", 8)]);
        times.opened(&lock("a"), token);
        times.unsettled(least("a", 8));
        times.unsettled(least("b", 8));
        assert_eq!(times.due(1_060, 9), [least("b", 8)]);
    }

    #[test]
    fn a_leader_that_opens_closed_locks_at_once_is_found() {
        let found =
            holdfast_mutants::while_armed(holdfast_mutants::Mutant::LeastNotCounted, || {
                std::panic::catch_unwind(
                a_lock_is_opened_when_its_least_has_passed_since_the_grant_however_the_hold_ends,
            )
            });
        assert!(found.is_err());
    }

    /// Its leader did not see the grant.
    #[test]
    fn a_lock_that_was_closed_before_the_tenure_stays_closed_for_all_of_its_least() {
        let mut times = HoldTimes::default();
        times.closed(&lock("a"), FencingToken::from_raw(3), 60, 1_000);
        assert_eq!((times.due(1_059, 9), times.due(1_060, 9)), (vec![], vec![least("a", 3)]));
    }
}
