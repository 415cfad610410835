//! Lengths of time as numbers, for the wire and for log lines.

use std::time::Duration;

/// Whole milliseconds.
pub(crate) fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}
