//! A stretch of time in which holds are safe, and its end.
//!
//! # Invariants
//!
//! - A [`Span`] whose deadline was once seen to have passed is over for ever: no later answer
//!   lengthens it, so no caller reads "safe" after any caller has read "unsafe" (DESIGN §5.6).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdfast_runtime::{Clock, Instant};

/// A stretch of time without a gap in which holds are safe. Shared by the holds granted in it.
#[derive(Debug)]
pub struct Span {
    /// Nanoseconds since the clock's origin; 0: over.
    deadline: AtomicU64,
}

impl Span {
    /// A span up to `deadline`.
    pub fn new(deadline: Instant) -> Arc<Self> {
        Arc::new(Self { deadline: AtomicU64::new(nanos(deadline)) })
    }

    /// A span without a deadline yet.
    pub fn unbounded() -> Self {
        Self { deadline: AtomicU64::new(UNBOUNDED) }
    }

    /// Whether the span has no deadline.
    pub fn is_unbounded(&self) -> bool {
        self.deadline.load(Ordering::Acquire) == UNBOUNDED
    }

    /// A span that is over from the start.
    pub fn ended() -> Arc<Self> {
        Arc::new(Self { deadline: AtomicU64::new(0) })
    }

    /// Whether the deadline lies ahead. A caller that finds it passed ends the span, so the result
    /// changes only from true to false.
    pub fn is_alive(&self, clock: &dyn Clock) -> bool {
        loop {
            let deadline = self.deadline.load(Ordering::Acquire);
            if deadline == 0 {
                return false;
            }
            if deadline == UNBOUNDED {
                return true;
            }
            // Read after the load: a thread that was stopped in between sees the later time.
            if nanos(clock.now()) < deadline {
                return true;
            }
            if self.replace(deadline, 0) {
                return false;
            }
        }
    }

    /// Moves the deadline to `to`, if that is later; false if the span is over.
    pub fn extend(&self, to: Instant, clock: &dyn Clock) -> bool {
        self.change(clock, |deadline| deadline.max(nanos(to)))
    }

    /// Moves the deadline to `to`, later or earlier, or removes it; false if the span is over.
    pub fn bound(&self, to: Option<Instant>, clock: &dyn Clock) -> bool {
        self.change(clock, |_| to.map_or(UNBOUNDED, nanos))
    }

    fn change(&self, clock: &dyn Clock, new: impl Fn(u64) -> u64) -> bool {
        loop {
            let deadline = self.deadline.load(Ordering::Acquire);
            if deadline == 0 {
                return false;
            }
            // The answer is valid, but it came too late: a caller may have read "unsafe" already.
            let replacement = if nanos(clock.now()) < deadline { new(deadline) } else { 0 };
            if self.replace(deadline, replacement) {
                return replacement != 0;
            }
        }
    }

    /// Ends the span now.
    pub fn end(&self) {
        self.deadline.store(0, Ordering::Release);
    }

    /// The deadline; `None` if the span is known to be over.
    pub fn deadline(&self) -> Option<Instant> {
        match self.deadline.load(Ordering::Acquire) {
            0 => None,
            deadline => Some(Instant::from_origin(Duration::from_nanos(deadline))),
        }
    }

    fn replace(&self, current: u64, new: u64) -> bool {
        self.deadline.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// A deadline that never comes.
const UNBOUNDED: u64 = u64::MAX;

fn nanos(at: Instant) -> u64 {
    u64::try_from(at.since_origin().as_nanos()).unwrap_or(UNBOUNDED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Safety;

    fn at(ms: u64) -> Instant {
        Instant::from_origin(Duration::from_millis(ms))
    }

    struct SetClock(AtomicU64);

    impl Clock for SetClock {
        fn now(&self) -> Instant {
            at(self.0.load(Ordering::Relaxed))
        }
        fn wall_ms(&self) -> u64 {
            0
        }
        fn sleep_until(&self, _at: Instant) -> holdfast_runtime::BoxFuture<'static, ()> {
            Box::pin(std::future::pending())
        }
        fn watchdog(&self, _on_due: Arc<dyn Fn() + Send + Sync>) -> holdfast_runtime::Watchdog {
            unreachable!("no test here needs one")
        }
    }

    fn clock(ms: u64) -> SetClock {
        SetClock(AtomicU64::new(ms))
    }

    /// I6: the server sent the answer in time, yet it came after the deadline it would have moved,
    /// and a caller may have read "unsafe" already.
    #[test]
    fn a_span_whose_deadline_passed_is_over_for_ever_even_if_nobody_looked() {
        let clock = clock(100);
        let span = Span::new(at(100));

        assert!(!span.extend(at(5_000), &clock));
        assert!(!span.is_alive(&clock));
        clock.0.store(50, Ordering::Relaxed);
        assert!(!span.is_alive(&clock), "not even a clock that went back revives it");
    }

    /// The executor stalls: no alarm came, and the guard's state still shows the lock as held (I6).
    #[test]
    fn a_hold_looks_at_the_clock_itself() {
        let clock = clock(99);
        let safety = Safety::within(Span::new(at(100))).expect("its span is alive");

        assert!(safety.is_safe(&clock));
        clock.0.store(100, Ordering::Relaxed);
        assert!(!safety.is_safe(&clock));
    }
}
