//! The real machine behind the runtime.
#![expect(
    clippy::disallowed_methods,
    reason = "this is where the runtime end: the one place that names the system's clock and tokio's tasks"
)]

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::alarms::{OnDue, Watch};
use crate::{BoxFuture, Clock, Instant, Rng, Spawn, Task, TaskHandle, Watchdog, WatchdogHandle};

/// `CLOCK_BOOTTIME`: monotonic, and counts suspended time.
pub(crate) struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::from_origin(boot_time())
    }

    fn wall_ms(&self) -> u64 {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
    }

    fn sleep_until(&self, at: Instant) -> BoxFuture<'static, ()> {
        // tokio's timer stands still while the machine is suspended, so after a suspension it would be
        // late by its length; a deadline that must not be missed uses a watchdog.
        let length = at.saturating_since(self.now());
        Box::pin(tokio::time::sleep(length))
    }

    fn watchdog(&self, on_due: Arc<dyn Fn() + Send + Sync>) -> Watchdog {
        match Watch::start(on_due) {
            Ok(watch) => Box::new(watch),
            Err(on_due) => without_a_thread(on_due),
        }
    }
}

/// The time since the machine was started, with the time for which it was suspended.
pub(crate) fn boot_time() -> Duration {
    duration_of(clock_gettime(ClockId::Boottime))
}

fn duration_of(time: Timespec) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanos)
}

/// Used where there are no threads or descriptors left: a task, which is late while the executor stalls
/// or the machine is suspended. Without an executor the alarm rings at once: a false alarm is better
/// than none.
fn without_a_thread(on_due: OnDue) -> Box<dyn WatchdogHandle> {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => Box::new(TimerTask { on_due, runtime, ringing: Mutex::default() }),
        Err(_) => Box::new(RingsAtOnce(on_due)),
    }
}

/// Rings from a task, never from within `set`: the caller of `set` may hold a lock that `on_due` needs.
struct TimerTask {
    on_due: OnDue,
    runtime: tokio::runtime::Handle,
    ringing: Mutex<Option<tokio::task::AbortHandle>>,
}

impl WatchdogHandle for TimerTask {
    fn set(&self, at: Option<Instant>) {
        let rings = at.map(|at| {
            let on_due = self.on_due.clone();
            let rings = async move {
                SystemClock.sleep_until(at).await;
                on_due();
            };
            self.runtime.spawn(rings).abort_handle()
        });
        let mut ringing = self.ringing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = std::mem::replace(&mut *ringing, rings) {
            before.abort();
        }
    }
}

impl Drop for TimerTask {
    fn drop(&mut self) {
        self.set(None);
    }
}

struct RingsAtOnce(OnDue);

impl WatchdogHandle for RingsAtOnce {
    fn set(&self, at: Option<Instant>) {
        if at.is_some() {
            (self.0)();
        }
    }
}

/// Tasks of the tokio runtime in whose context they are started.
pub(crate) struct TokioSpawn;

impl Spawn for TokioSpawn {
    fn spawn(&self, _name: &'static str, future: BoxFuture<'static, ()>) -> Task {
        Task::new(Box::new(TokioTask(tokio::spawn(future))))
    }
}

/// Tasks of one tokio runtime, in whichever context they are started.
pub(crate) struct SpawnOn(pub(crate) tokio::runtime::Handle);

impl Spawn for SpawnOn {
    fn spawn(&self, _name: &'static str, future: BoxFuture<'static, ()>) -> Task {
        Task::new(Box::new(TokioTask(self.0.spawn(future))))
    }
}

struct TokioTask(tokio::task::JoinHandle<()>);

impl TaskHandle for TokioTask {
    fn abort(&self) {
        self.0.abort();
    }

    fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

/// The system's randomness.
pub(crate) struct SystemRng;

impl Rng for SystemRng {
    fn fill(&self, bytes: &mut [u8]) {
        // Fails only where the system has no source of randomness at all; secrets made without one would
        // be worse than a stop.
        #[expect(clippy::expect_used, reason = "no process can go on without randomness")]
        getrandom::fill(bytes).expect("the system gives no random bytes");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn soon() -> Instant {
        SystemClock.now() + Duration::from_millis(20)
    }

    /// As in a session: the alarm takes the lock under which it was set, and sets it anew.
    #[tokio::test]
    async fn without_a_thread_it_rings_in_time_and_never_from_within() {
        let rings = Arc::new((Mutex::new(0), AtomicUsize::new(0)));
        let rung = rings.clone();
        let watchdog = without_a_thread(Arc::new(move || {
            *rung.0.try_lock().unwrap() += 1;
            rung.1.fetch_add(1, Ordering::Relaxed);
        }));
        let held = rings.0.lock().unwrap();
        watchdog.set(Some(SystemClock.now()));
        drop(held);
        watchdog.set(Some(soon()));
        watchdog.set(Some(soon()));
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(rings.1.load(Ordering::Relaxed), 1, "only what was set last rings");

        watchdog.set(Some(soon()));
        watchdog.set(None);
        watchdog.set(Some(soon()));
        drop(watchdog);
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(rings.1.load(Ordering::Relaxed), 1, "nothing after that");
    }
}
