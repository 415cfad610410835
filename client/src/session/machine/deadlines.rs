//! Time-driven actions of a session: alarms, streams that time out, holds that are lost.

use std::sync::Arc;
use std::time::Duration;

use holdfast_proto::v1::ScopeAuthority;
use holdfast_runtime::Instant;

use super::{Intent, Machine, Stream};
use crate::hold::Hold;
use crate::session::request::{GivingBack, Key, Phase};
use crate::{GuardState, LostReason};

impl Machine {
    /// Checks the deadlines. Call it when [`Machine::next_alarm`] has come; an early or late call
    /// is harmless.
    pub(in crate::session) fn alarm(&mut self) {
        self.lose_overdue();
        let in_jeopardy = self.lease.in_jeopardy(self.clock.now());
        for (_, hold) in self.requests.holds() {
            hold.safety.publish(in_jeopardy);
        }
    }

    pub(in crate::session) fn next_alarm(&self) -> Option<Instant> {
        let lease = self.lease.next_alarm(self.clock.now());
        self.cover_ends.map_or(lease, |ends| Some(lease.map_or(ends, |lease| lease.min(ends))))
    }

    /// When the stream times out, if nothing comes before.
    fn given_up_at(&self, attempt: Duration) -> Option<Instant> {
        match self.stream {
            Stream::None => None,
            Stream::Opening(since) | Stream::Resuming(since) => Some(since + attempt),
            // A keepalive that could not be sent counts as unanswered too.
            Stream::Ready | Stream::Renewing => Some(self.lease.silent_from()),
        }
    }

    /// When the driver has to check again: a keepalive or a retry is due, or the stream times out.
    pub(in crate::session) fn next_timer(&self, attempt: Duration) -> Option<Instant> {
        let give_up = self.given_up_at(attempt)?;
        let now = self.clock.now();
        let keepalive = self.may_keep_alive().then(|| self.lease.next_due());
        let retry = self.retries.at().filter(|_| self.is_ready());
        // Frames that are due already wait for room on the stream, not for time.
        let ahead = [keepalive, retry].into_iter().flatten().filter(|due| now < *due);
        Some(ahead.fold(give_up, Instant::min))
    }

    /// Whether the stream has been silent for too long.
    pub(in crate::session) fn is_stalled(&self, attempt: Duration) -> bool {
        self.given_up_at(attempt).is_some_and(|at| self.clock.now() >= at)
    }

    /// Ends every hold whose safe deadline has passed, for ever (DESIGN §5.6).
    pub(super) fn lose_overdue(&mut self) {
        if !self.lease.span().is_alive(&*self.clock) {
            self.lose_holds(LostReason::DeadlinePassed);
        }
        self.lose_uncovered();
    }

    /// Ends the holds here and queues their releases.
    fn lose_holds(&mut self, reason: LostReason) {
        self.lose_holds_that(|_, _| true, reason);
        for key in self.requests.uncovered() {
            self.give_up_uncovered(key, reason);
        }
    }

    pub(super) fn lose_holds_that(
        &mut self,
        are_over: impl Fn(&Self, &Hold) -> bool,
        reason: LostReason,
    ) {
        let holds = self.requests.holds().filter(|(_, hold)| are_over(self, hold));
        let keys: Vec<_> = holds.map(|(key, _)| key).collect();
        for key in keys {
            self.lose_hold(key, reason);
        }
    }

    pub(super) fn lose_hold(&mut self, key: Key, reason: LostReason) {
        let Some(request) = self.requests.get_mut(key) else { return };
        let Phase::Held(hold) = &request.phase else { return };
        hold.safety.end(GuardState::Lost(reason));
        request.phase = Phase::GivingBack(GivingBack::lost(hold.token));
        self.end_changes(Some(key), reason);
        self.queue(Intent::Release(key));
    }

    /// Applies an answer to a frame sent at `sent`; `scopes` are all scopes of the store.
    pub(super) fn renew(&mut self, sent: Instant, scopes: &[ScopeAuthority]) {
        let before = self.lease.span().clone();
        self.lease.renew(sent, &*self.clock);
        if !Arc::ptr_eq(&before, self.lease.span()) {
            self.lose_holds(LostReason::DeadlinePassed);
        }
        self.cover(sent, scopes);
        self.alarm();
    }
}
