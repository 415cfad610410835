//! The remaining time of a row when it is sent.

use std::time::Duration;

/// How much the rates of two clocks may differ, as a divisor: a tenth (DESIGN §5.4).
const ALLOWANCE: u32 = 10;

/// What is left of a row that had at most `remaining` when it was read, in whole milliseconds; `None`
/// if nothing is. `passed` is the time since the answer came, by this process's own clock.
///
/// `TTL(…)` is the row's end, a whole second, minus the second that the coordinator's clock showed:
/// the true remainder is more than `TTL(…)` less one second, and at most `TTL(…)`. This function
/// takes all of it, and subtracts only the time since the answer *came*, less a tenth for the rates
/// of two clocks. So the result is never below what the row has left by that coordinator's clock,
/// and the imported hold does not end before its row. The result is never more than `remaining`.
pub fn remaining_ttl(remaining: Duration, passed: Duration) -> Option<Duration> {
    let certainly = passed.saturating_sub(passed / ALLOWANCE);
    // A fraction of a millisecond, which an import cannot carry, counts as not passed.
    let passed_ms = u64::try_from(certainly.as_millis()).unwrap_or(u64::MAX);
    let left = remaining.checked_sub(Duration::from_millis(passed_ms))?;
    (!left.is_zero()).then_some(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_certainly_passed_is_taken_off_and_no_more() {
        let ms = Duration::from_millis;
        let cases = [
            (5_000, ms(0), Some(ms(5_000))),
            (5_000, ms(1_000), Some(ms(4_100))),
            (5_000, ms(5_000), Some(ms(500))),
            (5_000, ms(5_555), Some(ms(1))),
            (5_000, ms(5_556), None),
            (0, ms(0), None),
            (5_000, Duration::MAX, None),
        ];
        for (left_ms, passed, expected) in cases {
            assert_eq!(remaining_ttl(ms(left_ms), passed), expected, "{left_ms} {passed:?}");
        }
    }

    /// For every end of the row and instant of the read within their seconds, and for every delay
    /// of the answer: an import sends at least what is left, if its clock runs up to a tenth too
    /// fast.
    #[test]
    fn a_hold_never_ends_before_its_row() {
        for end_ms in [10_000_u64, 11_000, 180_000] {
            for read_ms in (0..10_000).step_by(77) {
                let ttl_ms = end_ms - read_ms / 1_000 * 1_000;
                for (answer_ms, passed_ms) in [(0, 0), (1, 900), (700, 10), (30, 5_000)] {
                    let now_ms = read_ms + answer_ms + passed_ms;
                    let fast = Duration::from_millis(passed_ms * 11 / 10);
                    let ms = Duration::from_millis;
                    let sent = remaining_ttl(ms(ttl_ms), fast).unwrap_or_default();
                    let left = ms(end_ms.saturating_sub(now_ms));
                    assert!(sent >= left, "{end_ms} {read_ms} {passed_ms}");
                    assert!(sent <= ms(ttl_ms));
                }
            }
        }
    }
}
