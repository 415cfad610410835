//! Time, waiting, and alarms that ring even while the executor stalls.

use std::ops::{Add, Sub};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::BoxFuture;

/// An instant on one process's [`Clock`]. It has no meaning for any other process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(Duration);

impl Instant {
    /// An instant this long after the clock's origin.
    pub const fn from_origin(length: Duration) -> Self {
        Self(length)
    }

    /// How long after the clock's origin.
    pub const fn since_origin(self) -> Duration {
        self.0
    }

    /// Whole milliseconds since the clock's origin.
    pub fn as_millis(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }

    /// How much later `self` is than `earlier`; zero if it is not.
    pub fn saturating_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    /// Saturates at the end of time.
    fn add(self, length: Duration) -> Self {
        Self(self.0.saturating_add(length))
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    /// Saturates at the clock's origin.
    fn sub(self, length: Duration) -> Self {
        Self(self.0.saturating_sub(length))
    }
}

/// Reads time and waits for it.
pub trait Clock: Send + Sync + 'static {
    /// The instant now. Never goes back; counts the time the machine was suspended.
    fn now(&self) -> Instant;

    /// The wall clock, Unix milliseconds. For people; decides nothing.
    fn wall_ms(&self) -> u64;

    /// The wall clock, to the millisecond, as certificates count time.
    fn wall(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.wall_ms())
    }

    /// Waits until `at`. May return late, never early by the clock it waits on. Cancel safe.
    fn sleep_until(&self, at: Instant) -> BoxFuture<'static, ()>;

    /// A watchdog that calls `on_due` whenever a set instant has come, on a thread of its own: even
    /// while the executor stalls, and at once after a suspension (DESIGN §5.4). All watchdogs of a process
    /// share that thread. Where the system has none left, a task of the runtime does it, and is late
    /// then.
    ///
    /// `on_due` must be quick and must not block: it delays the other watchdogs.
    fn watchdog(&self, on_due: Arc<dyn Fn() + Send + Sync>) -> Watchdog;
}

/// The time limit passed before the future was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the time was over")]
pub struct Elapsed;

/// Sets an alarm again and again; the alarm stops when this is dropped.
pub trait WatchdogHandle: Send + Sync {
    /// Watches for `at` from here on, instead of what was set before; `None` watches for nothing.
    fn set(&self, at: Option<Instant>);
}

/// The alarm of some clock.
pub type Watchdog = Box<dyn WatchdogHandle>;
