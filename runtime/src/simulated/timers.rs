//! Timers in virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::task::Waker;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TimerId(u64);

/// Timers by the true time at which they are due. Those of one process move when the rate of its clock
/// changes.
#[derive(Default)]
pub(super) struct Timers {
    last: u64,
    armed: BTreeMap<TimerId, Timer>,
    queue: BTreeSet<(u64, TimerId)>,
}

struct Timer {
    process: usize,
    /// By the clock of its process, nanoseconds.
    deadline: u64,
    due: u64,
    waker: Waker,
}

impl Timers {
    /// Wakes `waker` at the true time `due`, which is `deadline` on the process' own clock.
    pub(super) fn add(&mut self, process: usize, deadline: u64, due: u64, waker: Waker) -> TimerId {
        self.last += 1;
        let id = TimerId(self.last);
        self.armed.insert(id, Timer { process, deadline, due, waker });
        self.queue.insert((due, id));
        id
    }

    /// Whether the timer is still pending; if so it wakes `waker` from now on.
    pub(super) fn rearm(&mut self, id: TimerId, waker: &Waker) -> bool {
        self.armed.get_mut(&id).map(|timer| timer.waker.clone_from(waker)).is_some()
    }

    pub(super) fn remove(&mut self, id: TimerId) {
        if let Some(timer) = self.armed.remove(&id) {
            self.queue.remove(&(timer.due, id));
        }
    }

    pub(super) fn next_due(&self) -> Option<u64> {
        self.queue.first().map(|(due, _)| *due)
    }

    /// The wakers of all timers that are due at `now`.
    pub(super) fn take_due(&mut self, now: u64) -> Vec<Waker> {
        let mut wakers = Vec::new();
        while let Some((due, id)) = self.queue.first().copied() {
            if due > now {
                break;
            }
            self.queue.pop_first();
            wakers.extend(self.armed.remove(&id).map(|timer| timer.waker));
        }
        wakers
    }

    /// The clock of `process` changed: `due_at` maps one of its deadlines to the true time at which it
    /// is due now.
    pub(super) fn move_those_of(&mut self, process: usize, due_at: impl Fn(u64) -> u64) {
        for (id, timer) in &mut self.armed {
            if timer.process == process {
                self.queue.remove(&(timer.due, *id));
                timer.due = due_at(timer.deadline);
                self.queue.insert((timer.due, *id));
            }
        }
    }
}
