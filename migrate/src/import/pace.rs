//! Limits the rows that are sent per second.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use holdfast_runtime::{Instant, Runtime};

/// A rate that all clones share. Unused time is not saved up.
#[derive(Clone, Debug)]
pub struct Pace {
    rows_per_s: Option<NonZeroU32>,
    free_at: Arc<Mutex<Instant>>,
}

impl Pace {
    /// At most this many rows per second; `None`: no limit.
    pub fn new(rows_per_s: Option<NonZeroU32>) -> Self {
        let free_at = Arc::new(Mutex::new(Instant::from_origin(Duration::ZERO)));
        Self { rows_per_s, free_at }
    }

    /// Waits until this many rows may be sent; callers are served in the order of their calls.
    /// Dropping the future does not return the rows to the budget.
    pub(super) async fn wait(&self, rows: usize, runtime: &Runtime) {
        let now = runtime.clock.now();
        let from = self.take(rows, now);
        if from > now {
            runtime.clock.sleep_until(from).await;
        }
    }

    /// The instant at which this many rows may be sent: after the rows before them have had their
    /// time.
    fn take(&self, rows: usize, now: Instant) -> Instant {
        let Some(rows_per_s) = self.rows_per_s else { return now };
        let rows = u32::try_from(rows).unwrap_or(u32::MAX);
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        let from = now.max(*free_at);
        *free_at = from + Duration::from_secs(1) * rows / rows_per_s.get();
        from
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_go_at_their_rate_and_idle_time_is_not_saved_up() {
        let pace = Pace::new(NonZeroU32::new(1_000));
        let at = |ms| Instant::from_origin(Duration::from_millis(ms));

        assert_eq!(pace.take(500, at(0)), at(0));
        assert_eq!(pace.take(100, at(1)), at(500));
        assert_eq!(pace.take(1, at(2)), at(600));
        assert_eq!(pace.take(10, at(9_000)), at(9_000));
        assert_eq!(pace.take(10, at(9_000)), at(9_010));
        assert_eq!(Pace::new(None).take(usize::MAX, at(5)), at(5));
    }
}
