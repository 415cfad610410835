//! How long a row is certain to stand although clocks differ.

use std::time::Duration;

use holdfast_mutants::mutant;
use holdfast_runtime::Instant;

use crate::{Error, Result};

/// Cassandra takes a TTL in whole seconds and expires a cell at a whole second of a node's clock: a
/// cell written late in a second stands for up to one second less than its TTL.
const GRAIN: Duration = Duration::from_secs(1);
/// For the time between a clock read and the decision that follows from it.
const MARGIN: Duration = Duration::from_millis(20);
/// The largest relative difference of rate between this clock and a node's, both errors together,
/// as a divisor: one in a hundred.
const DRIFT: u32 = 100;
/// Below it no safe time would be left.
const TTL_MIN: Duration = Duration::from_secs(3);
/// Twenty years: the server accepts no more.
const TTL_MAX: Duration = Duration::from_hours(20 * 365 * 24);

/// TTL and skew, and what follows from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowTiming {
    ttl: Duration,
    max_skew: Duration,
}

impl RowTiming {
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] for a TTL that is no whole number of seconds, lies outside the bounds, or
    /// is below three times the skew (DESIGN §9).
    pub(crate) fn new(ttl: Duration, max_skew: Duration) -> Result<Self> {
        let refuse = |message: String| Err(Error::InvalidConfig { message });
        if ttl.subsec_nanos() != 0 {
            return refuse(format!("a TTL is whole seconds in Cassandra, not {ttl:?}"));
        }
        if !(TTL_MIN..=TTL_MAX).contains(&ttl) {
            return refuse(format!("a TTL is {TTL_MIN:?} to {TTL_MAX:?}, not {ttl:?}"));
        }
        if ttl < max_skew * 3 {
            return refuse(format!(
                "a TTL of {ttl:?} is too short for clocks that differ by up to {max_skew:?}: at \
                 least three times as long"
            ));
        }
        Ok(Self { ttl, max_skew })
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// In CQL's unit.
    pub(crate) fn ttl_s(&self) -> i32 {
        i32::try_from(self.ttl.as_secs()).unwrap_or(i32::MAX)
    }

    /// How long a write is certain to stand after it was sent. The writing coordinator computes the
    /// expiry by its own clock, the reading one compares it with its own: if the reader's clock is
    /// ahead, the cell vanishes earlier by the difference.
    fn certain(&self) -> Duration {
        if mutant!(RecipeIgnoresSkew) {
            return self.ttl;
        }
        self.ttl.saturating_sub(self.max_skew + GRAIN + MARGIN + self.ttl / DRIFT)
    }

    /// The safe deadline that a write sent at `started` gives, once the client knows it is applied.
    pub(crate) fn safe_until(&self, started: Instant) -> Instant {
        started + self.certain()
    }

    /// When the next renewal is due after one sent at `started`: two in a row may fail.
    pub(crate) fn renew_at(&self, started: Instant) -> Instant {
        started + self.certain() / 3
    }

    /// When a holder without a renewal is in jeopardy.
    pub(crate) fn jeopardy_from(&self, started: Instant) -> Instant {
        started + self.certain() * 2 / 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_hold_is_safe_for_the_ttl_less_skew_grain_drift_and_margin() {
        let timing = RowTiming::new(secs(180), secs(60)).expect("as short as it may be");

        let safe = timing.safe_until(Instant::from_origin(secs(1_000)));
        let late_by = safe.since_origin() + Duration::from_millis(1_800 + 20);
        assert_eq!(late_by, secs(1_000 + 180 - 60 - 1));
    }

    /// "Processes go on for 9 minutes by default" (`docs/migration.md`): the row of a `Locker` has a TTL of 15.
    #[test]
    fn the_row_of_a_locker_outlives_an_outage_of_nine_minutes() {
        let timing = RowTiming::new(secs(15 * 60), secs(60)).expect("they are the defaults");
        let began = Instant::from_origin(secs(0));

        let [renewed, jeopardy] = [timing.renew_at(began), timing.jeopardy_from(began)];
        assert_eq!(jeopardy.since_origin().as_secs() / 60, 9);
        assert!(renewed.since_origin() * 2 <= jeopardy.since_origin());
    }

    #[test]
    fn a_ttl_that_cannot_be_kept_is_refused() {
        assert!(RowTiming::new(secs(179), secs(60)).is_err(), "below three times the skew");
        assert!(RowTiming::new(secs(2), secs(0)).is_err(), "nothing would be left");
        assert!(
            RowTiming::new(Duration::from_millis(10_500), secs(1)).is_err(),
            "no whole seconds"
        );
        assert!(RowTiming::new(secs(700_000_000), secs(1)).is_err(), "the server takes no more");
        assert!(RowTiming::new(secs(3), secs(1)).is_ok());
    }
}
