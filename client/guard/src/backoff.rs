//! Delays that grow, and differ from client to client.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use holdfast_runtime::Rng;

/// The shortest delay, before jitter.
const DELAY_MIN: Duration = Duration::from_millis(50);

/// How long to wait before the next attempt, each time up to twice as long.
#[derive(Debug)]
pub struct Backoff {
    max: Duration,
    delays: ExponentialBackoff,
}

impl Backoff {
    /// `max` bounds the delays.
    pub fn new(max: Duration) -> Self {
        Self { max, delays: delays(max) }
    }

    /// Starts from the minimum again.
    pub fn reset(&mut self) {
        self.delays = delays(self.max);
    }

    /// The next delay.
    pub fn next(&mut self, rng: &dyn Rng) -> Duration {
        jittered(self.delays.next().unwrap_or(self.max), rng)
    }
}

fn delays(max: Duration) -> ExponentialBackoff {
    ExponentialBuilder::new()
        .with_min_delay(DELAY_MIN.min(max))
        .with_max_delay(max)
        .without_max_times()
        .build()
}

/// A random part of `length`, so that clients that left together do not come back together.
pub fn part_of(length: Duration, rng: &dyn Rng) -> Duration {
    let span = u64::try_from(length.as_micros()).unwrap_or(u64::MAX).saturating_add(1);
    Duration::from_micros(rng.next_u64() % span)
}

/// At least `delay` and up to half as much again: for a pause that the server asked for.
pub fn spread(delay: Duration, rng: &dyn Rng) -> Duration {
    delay + jittered(delay, rng).saturating_sub(delay / 2)
}

/// Between half of `delay` and all of it, so that clients that failed together do not return
/// together.
fn jittered(delay: Duration, rng: &dyn Rng) -> Duration {
    let half = delay / 2;
    half + part_of(half, rng)
}
