//! Log lines about what clients can cause any number of times: the first ones are written, the others
//! counted.
//!
//! A thousand sessions may expire at once, or a thousand streams be cut. A line for each would cost the
//! thread that serves, push other lines out of the writer's queue ([`telemetry`](crate::telemetry)), and
//! fill a disk. The number of those without a line is written too, so that nothing happens silently.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_runtime::Instant;

/// Lines about single events in [`EVERY`].
const AT_ONCE: u64 = 10;
/// The time for which they count.
const EVERY: Duration = Duration::from_secs(10);

/// The lines of one kind: at most [`AT_ONCE`] in [`EVERY`], and one with the number of the others.
#[derive(Debug, Default)]
pub(crate) struct RepeatedLines(Mutex<Present>);

/// The lines of the present time.
#[derive(Debug, Default)]
struct Present {
    since: Option<Instant>,
    written: u64,
    untold: u64,
}

/// Whether an event may have a line of its own, and how many before it had none and were not reported
/// yet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Due {
    pub(crate) may_write: bool,
    pub(crate) untold: u64,
}

impl RepeatedLines {
    /// An event happened. The caller writes what is due.
    pub(crate) fn due(&self, now: Instant) -> Due {
        let mut present = self.lock();
        let mut untold = 0;
        if present.since.is_none_or(|since| now >= since + EVERY) {
            (present.since, present.written) = (Some(now), 0);
            untold = std::mem::take(&mut present.untold);
        }
        let may_write = present.written < AT_ONCE;
        if may_write {
            present.written += 1;
        } else {
            present.untold += 1;
        }
        Due { may_write, untold }
    }

    /// How many events had no line, once their time is over: nobody has to wait for the next event to
    /// learn of them. The caller writes the number, which is reported only here.
    pub(crate) fn rest(&self, now: Instant) -> u64 {
        let mut present = self.lock();
        let is_over = present.since.is_none_or(|since| now >= since + EVERY);
        if is_over { std::mem::take(&mut present.untold) } else { 0 }
    }

    fn lock(&self) -> MutexGuard<'_, Present> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_origin(Duration::from_secs(seconds))
    }

    #[test]
    fn a_flood_of_events_writes_a_bounded_number_of_lines() {
        let lines = RepeatedLines::default();
        let written = (0..1_000).filter(|_| lines.due(at(1)).may_write).count();
        assert_eq!(written as u64, AT_ONCE);
        assert_eq!(lines.due(at(10)), Due { may_write: false, untold: 0 });
        assert_eq!(lines.due(at(11)), Due { may_write: true, untold: 991 });
        assert_eq!(lines.due(at(11)), Due { may_write: true, untold: 0 });
    }

    #[test]
    fn the_number_of_events_without_a_line_is_told_though_no_other_event_comes() {
        let lines = RepeatedLines::default();
        let written = (0..1_000).filter(|_| lines.due(at(1)).may_write).count();
        assert_eq!(written as u64, AT_ONCE);
        assert_eq!(lines.rest(at(10)), 0, "their time is not over");
        assert_eq!(lines.rest(at(11)), 1_000 - AT_ONCE);
        assert_eq!(lines.rest(at(12)), 0, "once");
        assert_eq!(lines.due(at(12)), Due { may_write: true, untold: 0 });
    }
}
