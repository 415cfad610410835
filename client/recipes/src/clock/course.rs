//! The course of the time while it is ahead of all clocks.

use std::time::Duration;

use holdfast_runtime::Instant;

/// What one replica knows of the cell: one of its values, at an instant of this process' monotonic
/// clock.
///
/// # Invariant
///
/// - By that instant the time had come so far: the value was in the cell, or was computed for that
///   instant and is there now. So [`Course::goes_on`] runs at half a clock's rate from a value that was
///   the time: however many replicas go on from each other's values, together they are no faster than
///   that.
/// - And no slower: of all values that were seen it is the one that takes the time farthest. A replica
///   that started again from each larger value of another replica would be slowed by it, and would slow
///   the other.
#[derive(Debug, Default)]
pub(super) struct Course(Option<(u64, Instant)>);

impl Course {
    /// Records that the replica read or wrote this value; the answer came at `now`. The value counts if the time would
    /// not have come so far by itself.
    pub(super) fn saw(&mut self, value: u64, now: Instant) {
        if self.goes_on(now).is_none_or(|expected| value > expected) {
            self.0 = Some((value, now));
        }
    }

    /// The time at `now` if no clock is ahead of it: half of the time passed since is added.
    pub(super) fn goes_on(&self, now: Instant) -> Option<u64> {
        let (known, since) = self.0?;
        Some(known.saturating_add(micros(now.saturating_since(since) / 2)))
    }
}

pub(super) fn micros(length: Duration) -> u64 {
    u64::try_from(length.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_origin(Duration::from_millis(ms))
    }

    #[test]
    fn it_goes_on_at_half_the_rate_from_where_the_value_was_first_seen() {
        let mut course = Course::default();
        assert_eq!(course.goes_on(at(5)), None);
        course.saw(1_000_000, at(100));
        course.saw(1_000_000, at(900));
        course.saw(999_999, at(900));
        assert_eq!(course.goes_on(at(1_100)), Some(1_500_000));
        course.saw(2_000_000, at(1_100));
        assert_eq!(course.goes_on(at(1_100)), Some(2_000_000));
    }

    /// Each sees the other's value a moment before it goes on itself. If it restarted there, each turn would gain a
    /// microsecond.
    #[test]
    fn two_that_see_each_others_values_go_on_at_half_the_rate() {
        let (mut courses, mut cell) = ([Course::default(), Course::default()], 1_000_000);
        let after = |us| at(0) + Duration::from_micros(us);
        for turn in 0..2_000 {
            let (course, began) = (&mut courses[turn % 2], 50_000 * turn as u64);
            course.saw(cell, after(began));
            cell = course.goes_on(after(began + 2)).unwrap().max(cell);
        }
        let (passed, went_on) = (50_000 * 1_999, cell - 1_000_000);
        assert!((passed / 2 - 100_000..=passed / 2 + 2).contains(&went_on), "{went_on}");
    }
}
