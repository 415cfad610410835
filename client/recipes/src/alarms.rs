//! One watchdog for all holds of a locker: a thread for each hold would be one for each lock.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use holdfast_runtime::{Clock, Instant, Watchdog};

use crate::{GuardState, LostReason};
use holdfast_guard::Safety;

/// Reports a hold whose safe deadline has passed as lost, even while the executor stalls.
pub(crate) struct Alarms(Arc<Watched>);

struct Watched {
    clock: Arc<dyn Clock>,
    holds: Mutex<Holds>,
    /// Set once, right after construction: the watchdog needs a reference to what it watches.
    watchdog: OnceLock<Watchdog>,
}

#[derive(Default)]
struct Holds {
    last: u64,
    safeties: BTreeMap<u64, Arc<Safety>>,
    /// The deadline that the watchdog was last set to.
    next: Option<Instant>,
}

/// Keeps one hold watched until it is dropped.
pub(crate) struct Alarm {
    watched: Weak<Watched>,
    id: u64,
}

impl Alarms {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        let watched =
            Arc::new(Watched { clock, holds: Mutex::default(), watchdog: OnceLock::new() });
        let weak = Arc::downgrade(&watched);
        let watchdog = watched.clock.watchdog(Arc::new(move || {
            if let Some(watched) = weak.upgrade() {
                watched.look();
            }
        }));
        // Nothing else has set it.
        let _ = watched.watchdog.set(watchdog);
        Self(watched)
    }

    /// Watches `safety`. A deadline that moves later makes the watchdog fire once in vain.
    pub(crate) fn watch(&self, safety: Arc<Safety>) -> Alarm {
        let id = {
            let mut holds = self.0.lock();
            holds.last += 1;
            let id = holds.last;
            holds.safeties.insert(id, safety);
            id
        };
        self.0.look();
        Alarm { watched: Arc::downgrade(&self.0), id }
    }
}

impl Watched {
    /// Ends holds that are no longer safe, and sets the watchdog to the next deadline.
    fn look(&self) {
        // Outside of the lock, and only after a change: a watchdog that has no thread may fire at
        // once, in this call.
        let mut to_set = self.end_and_find_next();
        while let (Some(next), Some(watchdog)) = (to_set, self.watchdog.get()) {
            watchdog.set(Some(next));
            // A concurrent call may have set an earlier deadline before this one.
            to_set = self.lock().next.filter(|current| *current != next);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Holds> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next deadline, if it differs from the one that was last set.
    fn end_and_find_next(&self) -> Option<Instant> {
        let mut holds = self.lock();
        holds.safeties.retain(|_, safety| {
            let safe = safety.is_safe(&*self.clock);
            if !safe {
                safety.end(GuardState::Lost(LostReason::DeadlinePassed));
            }
            safe
        });
        let next = holds.safeties.values().filter_map(|safety| safety.deadline()).min();
        let changed = next != holds.next;
        holds.next = next;
        next.filter(|_| changed)
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if let Some(watched) = self.watched.upgrade() {
            watched.lock().safeties.remove(&self.id);
        }
    }
}
