//! Where the time is that nobody's clock has reached, and where it goes from there.

use std::time::Duration;

use holdfast_seams::Moment;

/// What one replica knows of the cell: its value, at an instant of this process' own watch.
///
/// # Invariant
///
/// - By that instant the time had come so far: the value was in the cell, or was worked out for that
///   instant and is there now. So whatever [`Course::goes_on`] says is half a watch's rate from a value
///   that was the time: however many replicas go on from each other's values, together they are no faster
///   than that.
#[derive(Debug, Default)]
pub(super) struct Course(Option<(u64, Moment)>);

impl Course {
    /// The cell was seen, or written, with this value; the answer came at `now`. One that is known stays
    /// where it is known from, and one that is less was read on its way to some replicas only.
    pub(super) fn saw(&mut self, value: u64, now: Moment) {
        if self.0.is_none_or(|(known, _)| value > known) {
            self.0 = Some((value, now));
        }
    }

    /// How far the time is at `now` if no clock is ahead of it: half of what has passed since.
    pub(super) fn goes_on(&self, now: Moment) -> Option<u64> {
        let (known, since) = self.0?;
        Some(known.saturating_add(micros(now.saturating_since(since) / 2)))
    }
}

/// Whole microseconds.
pub(super) fn micros(length: Duration) -> u64 {
    u64::try_from(length.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::from_origin(Duration::from_millis(ms))
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
}
