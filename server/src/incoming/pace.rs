//! How fast a port accepts connections.

use std::time::Duration;

use holdfast_runtime::Instant;

/// So much of a second's connections may be accepted at once, if there were none before: what comes in one
/// burst keeps the thread from heartbeats for as long.
const BURST: Duration = Duration::from_millis(20);

/// The beginnings of connections, one after the other.
///
/// A connection costs the thread that serves about a tenth of a millisecond. If ten thousand clients connect at the
/// same moment, they wait in the backlog of the port and not in front of everything else that the thread has to do.
///
/// At most `per_second` · (*s* + [`BURST`]) connections and one begin within *s* seconds.
#[derive(Debug)]
pub(super) struct Pace {
    every: Duration,
    /// When the next connection may begin; up to [`BURST`] in the past.
    next: Instant,
}

impl Pace {
    /// `per_second` is 1 to 1 000 000.
    pub(super) fn new(per_second: u64, now: Instant) -> Self {
        let every = Duration::from_micros(1_000_000 / per_second.clamp(1, 1_000_000));
        Self { every, next: now - BURST }
    }

    /// When the next connection may be accepted, if that is later than now.
    pub(super) fn not_before(&self, now: Instant) -> Option<Instant> {
        (self.next > now).then_some(self.next)
    }

    /// A connection begins.
    pub(super) fn begins(&mut self, now: Instant) {
        self.next = self.next.max(now - BURST) + self.every;
    }
}
