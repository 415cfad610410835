//! The log lines about single sessions, streams and watches. Of each kind only the first have a line of
//! their own; the others are counted, and their number is written ([`RepeatedLines`]).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{Item, LockTable, SessionId};
use holdfast_runtime::Clock;

use super::answers;
use super::settings::SessionSettings;
use crate::lengths::millis;
use crate::repeated_lines::RepeatedLines;

pub(super) struct Lines {
    clock: Arc<dyn Clock>,
    /// The longest wait and the longest hold without a line; `None`: none has a line.
    wait_max: Option<Duration>,
    hold_max: Option<Duration>,
    waits: RepeatedLines,
    holds: RepeatedLines,
    expiries: RepeatedLines,
    cut_streams: RepeatedLines,
    evictions: RepeatedLines,
    cut_watches: RepeatedLines,
}

/// A request or hold that a line is about.
pub(super) struct OfLock<'a> {
    pub(super) session: SessionId,
    /// Its locks.
    pub(super) items: &'a [Item],
    /// The state after it.
    pub(super) table: &'a LockTable,
}

impl OfLock<'_> {
    /// The first of its locks.
    fn lock(&self) -> &str {
        self.items.first().map_or("", |item| item.lock.as_str())
    }

    /// The session's name for itself and who opened it, where there is such a thing and the session is not
    /// over.
    fn whose(&self) -> (Option<&str>, Option<String>) {
        let Some(view) = self.table.session(self.session) else { return (None, None) };
        let (label, identity) = (view.label.as_str(), answers::identity_of(view.caller));
        (
            Some(label).filter(|text| !text.is_empty()),
            Some(identity).filter(|text| !text.is_empty()),
        )
    }
}

impl Lines {
    pub(super) fn new(clock: Arc<dyn Clock>, settings: &SessionSettings) -> Self {
        let over = |millis: u64| (millis > 0).then(|| Duration::from_millis(millis));
        Self {
            clock,
            wait_max: over(settings.log_waits_over_ms),
            hold_max: over(settings.log_holds_over_ms),
            waits: RepeatedLines::default(),
            holds: RepeatedLines::default(),
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

    /// A request was granted after so long a wait.
    pub(super) fn waited(&self, of: &OfLock<'_>, waited: Duration) {
        if self.wait_max.is_none_or(|max| waited <= max) {
            return;
        }
        let due = self.waits.due(self.clock.now());
        waited_too(due.untold);
        if due.may_write {
            let (lock, locks, session) = (of.lock(), of.items.len(), of.session.get());
            let ((label, identity), waited_ms) = (of.whose(), millis(waited));
            tracing::info!(
                lock,
                locks,
                session,
                label,
                identity,
                waited_ms,
                "a request waited long"
            );
        }
    }

    /// A hold ended after so long.
    pub(super) fn held(&self, of: &OfLock<'_>, held: Duration) {
        if self.hold_max.is_none_or(|max| held <= max) {
            return;
        }
        let due = self.holds.due(self.clock.now());
        held_too(due.untold);
        if due.may_write {
            let (lock, locks, session) = (of.lock(), of.items.len(), of.session.get());
            let ((label, identity), held_ms) = (of.whose(), millis(held));
            tracing::info!(lock, locks, session, label, identity, held_ms, "a hold lasted long");
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
        waited_too(self.waits.rest(now));
        held_too(self.holds.rest(now));
    }
}

fn waited_too(times: u64) {
    if times > 0 {
        tracing::info!(times, "as many times more a request waited long");
    }
}

fn held_too(times: u64) {
    if times > 0 {
        tracing::info!(times, "as many times more a hold lasted long");
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
