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
        let (id, earlier) = {
            let mut holds = self.0.lock();
            holds.last += 1;
            let (id, deadline) = (holds.last, safety.deadline());
            holds.safeties.insert(id, safety);
            // The others have deadlines of their own: not every new hold looks at all of them.
            let earlier = deadline.filter(|new| holds.next.is_none_or(|next| *new < next));
            holds.next = earlier.or(holds.next);
            (id, earlier)
        };
        self.0.set_to(earlier);
        Alarm { watched: Arc::downgrade(&self.0), id }
    }
}

impl Watched {
    /// Ends holds that are no longer safe, and sets the watchdog to the next deadline.
    fn look(&self) {
        self.set_to(self.end_and_find_next());
    }

    /// Sets the watchdog to this deadline, the earliest one. Outside of the lock, and only after a change: a watchdog that has no
    /// thread may fire at once, in this call.
    fn set_to(&self, mut to_set: Option<Instant>) {
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use futures_util::future::BoxFuture;
    use holdfast_guard::Span;
    use holdfast_runtime::simulated::Machine;

    use super::*;

    struct Counting {
        clock: Arc<dyn Clock>,
        read: AtomicU64,
    }

    impl Clock for Counting {
        fn now(&self) -> Instant {
            self.read.fetch_add(1, Ordering::Relaxed);
            self.clock.now()
        }

        fn wall_ms(&self) -> u64 {
            self.clock.wall_ms()
        }

        fn sleep_until(&self, at: Instant) -> BoxFuture<'static, ()> {
            self.clock.sleep_until(at)
        }

        fn watchdog(&self, on_due: Arc<dyn Fn() + Send + Sync>) -> Watchdog {
            self.clock.watchdog(on_due)
        }
    }

    /// B20. A process with many holds pays no more for the next one. Each of them is reported at its own deadline.
    #[test]
    fn a_new_hold_does_not_look_at_all_others() {
        const HOLDS: u64 = 1_000;
        let machine = Machine::new(1);
        let runtime = machine.world().runtime();
        let clock = Arc::new(Counting { clock: runtime.clock.clone(), read: AtomicU64::new(0) });
        let alarms = Alarms::new(clock.clone());
        let began = runtime.clock.now();
        let hold = |number| {
            // Every other one is earlier than all before it.
            let after = if number % 2 == 0 { 2 * HOLDS + number } else { 2 * HOLDS - number };
            let until = began + Duration::from_secs(after);
            let safety = Safety::within(Span::new(until)).map(Arc::new).unwrap();
            (until, alarms.watch(safety.clone()), safety)
        };
        let mut holds: Vec<_> = (0..HOLDS).map(hold).collect();
        let read = clock.read.load(Ordering::Relaxed);
        assert!(read < 10 * HOLDS, "the clock was read {read} times");

        holds.sort_by_key(|(until, ..)| *until);
        machine.run(async {
            for (until, _, safety) in &holds {
                runtime.clock.sleep_until(*until - Duration::from_millis(1)).await;
                assert_eq!(safety.lost_reason(), None);
                runtime.clock.sleep_until(*until + Duration::from_millis(1)).await;
                assert_eq!(safety.lost_reason(), Some(LostReason::DeadlinePassed));
            }
        });
    }
}
