//! One watchdog for all holds of a locker: a thread each would be one for every lock.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use holdfast_seams::{Clock, Moment, Watchdog};

use crate::safety::Safety;
use crate::{GuardState, LostReason};

/// Sees to it that a hold whose safe deadline has passed is told to be lost, also while the
/// executor stalls.
pub(crate) struct Alarms(Arc<Watched>);

struct Watched {
    clock: Arc<dyn Clock>,
    holds: Mutex<Holds>,
    /// Set once, right after construction: it needs what it watches.
    watchdog: OnceLock<Watchdog>,
}

#[derive(Default)]
struct Holds {
    last: u64,
    safeties: BTreeMap<u64, Arc<Safety>>,
    /// What the watchdog was set to.
    next: Option<Moment>,
}

/// Watched as long as it lives.
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
        // It is the first.
        let _ = watched.watchdog.set(watchdog);
        Self(watched)
    }

    /// Watches over `safety`. A deadline that moves on later makes it ring once in vain.
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
    /// Ends what is not safe any more, and sets the watchdog to what comes next.
    fn look(&self) {
        // Outside of the lock, and only if it has changed: a watchdog that has no thread rings at
        // once, here.
        let mut to_set = self.end_and_find_next();
        while let (Some(next), Some(watchdog)) = (to_set, self.watchdog.get()) {
            watchdog.set(Some(next));
            // Somebody who looked at the same time may have set an earlier one before us.
            to_set = self.lock().next.filter(|current| *current != next);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Holds> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next deadline, if it is another one than was last set.
    fn end_and_find_next(&self) -> Option<Moment> {
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

impl fmt::Debug for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Alarm").field("id", &self.id).finish_non_exhaustive()
    }
}
