//! The log lines about single sessions, streams and watches. Of each kind only the first have a line of
//! their own; the others are counted, and their number is written ([`RepeatedLines`]).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::SessionId;
use holdfast_runtime::Clock;

use crate::lengths::millis;
use crate::repeated_lines::RepeatedLines;

pub(super) struct Lines {
    clock: Arc<dyn Clock>,
    expiries: RepeatedLines,
    cut_streams: RepeatedLines,
    evictions: RepeatedLines,
    cut_watches: RepeatedLines,
}

impl Lines {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            expiries: RepeatedLines::default(),
            cut_streams: RepeatedLines::default(),
            evictions: RepeatedLines::default(),
            cut_watches: RepeatedLines::default(),
        }
    }

    /// A session expired, so long after its deadline.
    pub(super) fn expired(&self, session: SessionId, late: Duration) {
        let due = self.expiries.due(self.clock.now());
        expired_too(due.untold);
        if due.may_write {
            tracing::info!(session = session.get(), late_ms = millis(late), "a session expired");
        }
    }

    /// A stream ended because its outbox was full.
    pub(super) fn stream_cut(&self) {
        let due = self.cut_streams.due(self.clock.now());
        cut_too(due.untold);
        if due.may_write {
            tracing::info!("a stream was not read fast enough, and is cut");
        }
    }

    /// So many streams ended because all outboxes together were full.
    pub(super) fn evicted(&self, ended: u64) {
        let due = self.evictions.due(self.clock.now());
        evicted_too(due.untold);
        if due.may_write {
            tracing::warn!(
                streams = ended,
                "the outboxes together were full, and the largest are cut"
            );
        }
    }

    /// A watch ended because it was too far behind.
    pub(super) fn watch_cut(&self, prefix: &str) {
        let due = self.cut_watches.due(self.clock.now());
        watches_too(due.untold);
        if due.may_write {
            tracing::info!(prefix, "a watch was not read, and is cut");
        }
    }

    /// Writes how many events had no line, once it is clear that no event of their time comes any more.
    pub(super) fn tell_rest(&self) {
        let now = self.clock.now();
        expired_too(self.expiries.rest(now));
        cut_too(self.cut_streams.rest(now));
        evicted_too(self.evictions.rest(now));
        watches_too(self.cut_watches.rest(now));
    }
}

fn expired_too(sessions: u64) {
    if sessions > 0 {
        tracing::info!(sessions, "as many sessions more expired");
    }
}

fn cut_too(streams: u64) {
    if streams > 0 {
        tracing::info!(streams, "as many streams more were not read fast enough, and are cut");
    }
}

fn evicted_too(times: u64) {
    if times > 0 {
        tracing::warn!(times, "as many times more the outboxes together were full");
    }
}

fn watches_too(watches: u64) {
    if watches > 0 {
        tracing::info!(watches, "as many watches more were not read, and are cut");
    }
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines").finish_non_exhaustive()
    }
}
