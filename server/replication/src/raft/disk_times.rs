//! How long this node's disk has taken lately to make entries durable.
//!
//! Every member measures the same span, from handing entries to the log store until they are
//! durable, and the members append the same entries. So their results can be compared.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_runtime::{Clock, Instant};

/// Appends are counted in windows of this length; the present one and the one before it count.
const WINDOW: Duration = Duration::from_secs(5);
/// With fewer appends there is no percentile: a single slow one proves nothing about the disk.
const ENOUGH: u64 = 20;
/// The n-th bucket counts appends of at most 64 µs · 2ⁿ; the last about half a minute.
const BUCKETS: usize = 20;

/// An append under way for this long counts as slow, even alone.
const MUCH: Duration = Duration::from_secs(1);

pub(super) struct DiskTimes {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

struct State {
    present: [u64; BUCKETS],
    before: [u64; BUCKETS],
    /// When the present window began.
    began: Instant,
    /// Appends that are not durable yet; openraft bounds how many there are.
    pending: BTreeMap<u64, Instant>,
    next: u64,
}

impl DiskTimes {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        let state = State {
            present: [0; BUCKETS],
            before: [0; BUCKETS],
            began: clock.now(),
            pending: BTreeMap::new(),
            next: 0,
        };
        Self { clock, state: Mutex::new(state) }
    }

    /// Begins an append; returns its number, for [`end`](Self::end).
    pub(super) fn begin(&self) -> u64 {
        let now = self.clock.now();
        let mut state = self.lock();
        state.next += 1;
        let number = state.next;
        state.pending.insert(number, now);
        number
    }

    /// The append is durable.
    pub(super) fn end(&self, number: u64) {
        let now = self.clock.now();
        let mut state = self.lock();
        let Some(begun) = state.pending.remove(&number) else { return };
        state.turn(now);
        let bucket = bucket_of(now.saturating_since(begun));
        if let Some(count) = state.present.get_mut(bucket) {
            *count += 1;
        }
    }

    /// The 99th percentile of appends in the last 5 to 10 s; more, if one under way takes longer.
    /// `None`: there were too few.
    pub(super) fn p99(&self) -> Option<Duration> {
        let now = self.clock.now();
        let mut state = self.lock();
        state.turn(now);
        let oldest = state.pending.first_key_value().map(|(_, begun)| now.saturating_since(*begun));
        let told = state.p99();
        // An append that has just begun proves nothing, and a disk that hangs finishes none.
        told.max(oldest.filter(|age| *age >= MUCH))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn turn(&mut self, now: Instant) {
        let age = now.saturating_since(self.began);
        if age < WINDOW {
            return;
        }
        let present = std::mem::replace(&mut self.present, [0; BUCKETS]);
        self.before = if age < WINDOW * 2 { present } else { [0; BUCKETS] };
        self.began = now;
    }

    fn p99(&self) -> Option<Duration> {
        let counts = || self.present.iter().zip(&self.before).map(|(one, other)| one + other);
        let total: u64 = counts().sum();
        if total < ENOUGH {
            return None;
        }
        let wanted = total - total / 100;
        let mut seen = 0;
        let bucket = counts().position(|count| {
            seen += count;
            seen >= wanted
        });
        bucket.map(upper_bound)
    }
}

fn bucket_of(took: Duration) -> usize {
    (0..BUCKETS).find(|bucket| took <= upper_bound(*bucket)).unwrap_or(BUCKETS - 1)
}

fn upper_bound(bucket: usize) -> Duration {
    Duration::from_micros(64 << bucket)
}

#[cfg(test)]
mod tests {
    use holdfast_runtime::{Runtime, simulated};

    use super::*;

    async fn append(times: &DiskTimes, runtime: &Runtime, takes: Duration, count: u32) {
        for _ in 0..count {
            let number = times.begin();
            runtime.sleep(takes).await;
            times.end(number);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_percentile_is_that_of_the_last_seconds_and_of_enough_appends() {
        let runtime = simulated::runtime(1, 0);
        let times = DiskTimes::new(Arc::clone(&runtime.clock));
        let millis = Duration::from_millis;
        append(&times, &runtime, millis(1), 19).await;
        assert_eq!(times.p99(), None, "too few");
        append(&times, &runtime, millis(1), 181).await;
        assert_eq!(times.p99(), Some(Duration::from_micros(1_024)));

        append(&times, &runtime, millis(100), 3).await;
        assert!(times.p99() >= Some(millis(100)), "{:?}", times.p99());

        runtime.sleep(WINDOW * 2).await;
        assert_eq!(times.p99(), None, "that is long ago");
    }

    #[tokio::test(start_paused = true)]
    async fn an_append_that_hangs_counts_while_it_hangs() {
        let runtime = simulated::runtime(1, 0);
        let times = DiskTimes::new(Arc::clone(&runtime.clock));
        let number = times.begin();
        assert_eq!(times.p99(), None);

        runtime.sleep(Duration::from_secs(3)).await;

        assert_eq!(times.p99(), Some(Duration::from_secs(3)));
        times.end(number);
        assert_eq!(times.p99(), None);
    }
}
