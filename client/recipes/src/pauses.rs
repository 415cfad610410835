//! Pauses of a random length, as the articles have them.

use std::time::Duration;

use holdfast_runtime::Rng;

/// A length up to `max`, uniformly distributed.
pub(super) fn drawn_up_to(max: Duration, rng: &dyn Rng) -> Duration {
    let span = u64::try_from(max.as_micros()).unwrap_or(u64::MAX).saturating_add(1);
    Duration::from_micros(rng.next_u64() % span)
}
