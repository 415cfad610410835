//! The alarms of this process: one thread that blocks on one timer of `CLOCK_BOOTTIME`, for all watchdogs.
//!
//! Each session has a watchdog, and a process may have a hundred thousand sessions: a thread and a
//! descriptor for each would be more than it may have.
//!
//! The thread calls what is due one after the other, outside its own lock: a caller of
//! [`set`](WatchdogHandle::set) may hold a lock that the call needs. A call that panics ends no other
//! alarm; one that blocks delays the others, so none may.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::system::boot_time;
use crate::{Instant, WatchdogHandle};

/// What a watchdog calls.
pub(crate) type OnDue = Arc<dyn Fn() + Send + Sync>;

/// How often the thread looks, should the timer ever stop working.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Those of this process, once there was a first watchdog.
static ALARMS: Mutex<Option<Arc<Alarms>>> = Mutex::new(None);

struct Alarms {
    timer: OwnedFd,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    alarms: BTreeMap<u64, Alarm>,
    /// Invariant: exactly the alarms that are set, by their times.
    order: BTreeSet<(Duration, u64)>,
    last: u64,
}

struct Alarm {
    on_due: OnDue,
    at: Option<Duration>,
}

/// A watchdog of the process's thread; its alarm goes with it.
pub(crate) struct Watch {
    alarms: Arc<Alarms>,
    number: u64,
}

impl Watch {
    /// A watchdog; the first one starts the thread.
    ///
    /// # Errors
    ///
    /// `on_due`: the system has no thread or no timer left.
    pub(crate) fn start(on_due: OnDue) -> Result<Self, OnDue> {
        let mut present = lock(&ALARMS);
        let alarms = match present.clone().or_else(Alarms::start) {
            Some(alarms) => present.insert(alarms).clone(),
            None => return Err(on_due),
        };
        drop(present);
        let mut state = lock(&alarms.state);
        state.last += 1;
        let number = state.last;
        state.alarms.insert(number, Alarm { on_due, at: None });
        drop(state);
        Ok(Self { alarms, number })
    }
}

impl Alarms {
    fn start() -> Option<Arc<Self>> {
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC).ok()?;
        let alarms = Arc::new(Self { timer, state: Mutex::default() });
        let watching = alarms.clone();
        let thread = thread::Builder::new().name("holdfast-watch".into());
        thread.spawn(move || watching.run()).ok()?;
        Some(alarms)
    }

    /// Blocks until the timer rings, again and again, for as long as the process lives.
    fn run(&self) {
        let mut expirations = [0; 8];
        loop {
            match rustix::io::read(&self.timer, &mut expirations) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => thread::sleep(LOOK_EVERY),
            }
            for on_due in self.take_due() {
                let _ = catch_unwind(AssertUnwindSafe(|| on_due()));
            }
        }
    }

    /// What is due, the longest due first; the timer is set to what is next.
    fn take_due(&self) -> Vec<OnDue> {
        let mut state = lock(&self.state);
        let now = boot_time();
        let mut due = Vec::new();
        while let Some(&(at, number)) = state.order.first().filter(|(at, _)| *at <= now) {
            state.order.remove(&(at, number));
            if let Some(alarm) = state.alarms.get_mut(&number) {
                alarm.at = None;
                due.push(alarm.on_due.clone());
            }
        }
        self.arm(&state);
        due
    }

    /// Sets the timer to the first alarm, or to none.
    fn arm(&self, state: &State) {
        let first = state.order.first().map(|&(at, _)| at);
        // All zeros disarm a timer, so an instant at the origin becomes one nanosecond.
        let at = first.map_or(Duration::ZERO, |at| at.max(Duration::from_nanos(1)));
        let spec = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec {
                tv_sec: i64::try_from(at.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(at.subsec_nanos()),
            },
        };
        // Fails only for a bad descriptor or value, which cannot occur here.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &spec);
    }
}

impl State {
    /// Sets an alarm anew. Returns whether the first one is another now.
    fn set(&mut self, number: u64, at: Option<Duration>) -> bool {
        let Some(alarm) = self.alarms.get_mut(&number) else { return false };
        let first = self.order.first().copied();
        if let Some(before) = std::mem::replace(&mut alarm.at, at) {
            self.order.remove(&(before, number));
        }
        self.order.extend(at.map(|at| (at, number)));
        self.order.first().copied() != first
    }
}

impl WatchdogHandle for Watch {
    fn set(&self, at: Option<Instant>) {
        let mut state = lock(&self.alarms.state);
        if state.set(self.number, at.map(Instant::since_origin)) {
            self.alarms.arm(&state);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut state = lock(&self.alarms.state);
        state.set(self.number, None);
        // Dropped behind the lock: what it holds may have a watchdog too.
        let alarm = state.alarms.remove(&self.number);
        drop(state);
        drop(alarm);
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    fn after(begun: Duration, millis: u64) -> Instant {
        Instant::from_origin(begun + Duration::from_millis(millis))
    }

    /// A watchdog that tells its number.
    fn telling(number: usize, tell: &Sender<usize>) -> Watch {
        let tell = tell.clone();
        Watch::start(Arc::new(move || tell.send(number).unwrap())).ok().unwrap()
    }

    fn threads() -> usize {
        let name = |task: &std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(Result::unwrap);
        tasks.filter(|task| name(task).is_ok_and(|name| name.trim() == "holdfast-watch")).count()
    }

    #[test]
    fn thousands_of_watchdogs_share_a_thread_and_each_rings_once_at_its_time() {
        let (tell, told) = channel();
        let watches: Vec<_> = (0..3_000).map(|number| telling(number, &tell)).collect();
        let begun = boot_time();
        let set = |number: usize, millis| watches[number].set(Some(after(begun, millis)));
        set(3, 0);
        assert_eq!(told.recv_timeout(LONG), Ok(3));
        set(1, 1_000);
        set(2, 500);
        set(4, 800);
        watches[4].set(None);
        set(5, 40_000);
        set(5, 1_500);

        let rung: Vec<_> = (0..3).map(|_| told.recv_timeout(LONG).unwrap()).collect();
        assert_eq!(rung, [2, 1, 5]);
        assert_eq!(threads(), 1);
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err(), "each once, and no other");
    }

    #[test]
    fn a_watchdog_that_is_gone_rings_no_more_and_one_that_panics_stops_no_other() {
        let (tell, told) = channel();
        let (gone, last) = (telling(1, &tell), telling(2, &tell));
        let panics = Watch::start(Arc::new(|| panic!("a bug of the caller"))).ok().unwrap();
        let begun = boot_time();
        gone.set(Some(after(begun, 400)));
        drop(gone);
        panics.set(Some(after(begun, 10)));
        last.set(Some(after(begun, 500)));
        assert_eq!(told.recv_timeout(LONG).unwrap(), 2);
        // As in a session: the alarm sets itself anew from where it rings, and from a lock of its own.
        last.set(Some(after(begun, 0)));
        assert_eq!(told.recv_timeout(LONG).unwrap(), 2);
    }
}
