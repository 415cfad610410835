//! One watchdog for all holds of a locker: a thread each would be one for every lock.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use holdfast_seams::{Clock, Watchdog};

use crate::safety::Safety;
use crate::{GuardState, LostReason};

/// Sees to it that a hold whose safe deadline has passed is told to be lost, also while the
/// executor stalls.
pub(crate) struct Alarms(Arc<Watched>);

struct Watched {
    clock: Arc<dyn Clock>,
    holds: Mutex<Holds>,
}

#[derive(Default)]
struct Holds {
    last: u64,
    safeties: BTreeMap<u64, Arc<Safety>>,
    /// Set once, right after construction: it needs what it watches.
    watchdog: Option<Watchdog>,
}

/// Watched as long as it lives.
pub(crate) struct Alarm {
    watched: Weak<Watched>,
    id: u64,
}

impl Alarms {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        let watched = Arc::new(Watched { clock, holds: Mutex::default() });
        let weak = Arc::downgrade(&watched);
        let watchdog = watched.clock.watchdog(Arc::new(move || {
            if let Some(watched) = weak.upgrade() {
                watched.look();
            }
        }));
        watched.holds.lock().unwrap_or_else(PoisonError::into_inner).watchdog = Some(watchdog);
        Self(watched)
    }

    /// Watches over `safety`. A deadline that moves on later makes it ring once in vain.
    pub(crate) fn watch(&self, safety: Arc<Safety>) -> Alarm {
        let id = {
            let mut holds = self.0.holds.lock().unwrap_or_else(PoisonError::into_inner);
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
        let mut holds = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
        holds.safeties.retain(|_, safety| {
            let safe = safety.is_safe(&*self.clock);
            if !safe {
                safety.end(GuardState::Lost(LostReason::DeadlinePassed));
            }
            safe
        });
        let next = holds.safeties.values().filter_map(|safety| safety.deadline()).min();
        if let Some(watchdog) = &holds.watchdog {
            watchdog.set(next);
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if let Some(watched) = self.watched.upgrade() {
            let mut holds = watched.holds.lock().unwrap_or_else(PoisonError::into_inner);
            holds.safeties.remove(&self.id);
        }
    }
}

impl fmt::Debug for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Alarm").field("id", &self.id).finish_non_exhaustive()
    }
}
