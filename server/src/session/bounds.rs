//! How long holds last at least and at most, as the leader of one tenure counts it (DESIGN §16).
//!
//! Around the core's [`HoldTimes`], which knows no clock. It counts on the node's monotonic clock, and not on that of the
//! leases: a least or a most is a time for people, and needs no quorum to pass. What is due is proposed without a
//! quorum round: both commands name a grant, and time that has passed since its leader saw it has passed for good.

use std::time::Duration;

use holdfast_core::{
    BoundHold, ClosedLock, Command, Event, FencingToken, Grant, HoldDue, HoldTimes, LockName,
    LockTable, SessionId, Tenure,
};
use holdfast_runtime::Instant;

use super::Hub;
use super::lead::{Lead, RETRY};
use super::registry::{Registry, State};
use crate::consensus::Committed;
use crate::error::ProposeError;

/// What is proposed at once.
const AT_ONCE: usize = 256;

/// The times of one tenure.
#[derive(Debug, Default)]
pub(super) struct Bounds {
    times: HoldTimes,
    /// What was proposed and has no outcome.
    unsettled: Vec<HoldDue>,
    /// When that is proposed again; set while there is some.
    retry_at: Option<Instant>,
}

fn millis(moment: Instant) -> u64 {
    u64::try_from(moment.since_origin().as_millis()).unwrap_or(u64::MAX)
}

/// When something begins that is counted: rounded up, so that nothing is due a part of a millisecond early.
fn begun(moment: Instant) -> u64 {
    u64::try_from(moment.since_origin().as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

impl Bounds {
    /// A hold with bounds was granted, or is there when the tenure begins.
    pub(super) fn held(&mut self, hold: BoundHold, now: Instant) {
        self.times.held(hold, begun(now));
    }

    /// A hold is over, whether it had bounds or not.
    pub(super) fn hold_over(&mut self, session: SessionId, token: FencingToken) {
        self.times.hold_over(session, token);
    }

    /// A lock was closed, or is closed when the tenure begins.
    pub(super) fn closed(
        &mut self,
        lock: &LockName,
        (token, least_ms): (FencingToken, u32),
        now: Instant,
    ) {
        self.times.closed(lock, token, least_ms, begun(now));
    }

    /// A lock is open again.
    pub(super) fn opened(&mut self, lock: &LockName, token: FencingToken) {
        self.times.opened(lock, token);
    }

    /// How long a lock stays closed.
    pub(super) fn closed_for(
        &self,
        lock: &LockName,
        closed: &ClosedLock,
        now: Instant,
    ) -> Option<Duration> {
        self.times.closed_for(lock, closed.token, millis(now)).map(Duration::from_millis)
    }

    /// A proposal came to nothing. What changes meanwhile puts the next one off no further.
    fn came_to_nothing(&mut self, due: HoldDue, now: Instant) {
        self.unsettled.push(due);
        self.retry_at.get_or_insert(now + RETRY);
    }

    /// When to look again; `None`: when something changes.
    fn next_look(&self) -> Option<Instant> {
        let due = self.times.next().map(|ms| Instant::from_origin(Duration::from_millis(ms)));
        due.into_iter().chain(self.retry_at).min()
    }

    /// What is to be proposed now.
    fn due(&mut self, now: Instant) -> Vec<HoldDue> {
        self.retry_at = None;
        for one in std::mem::take(&mut self.unsettled) {
            self.times.unsettled(one);
        }
        self.times.due(millis(now), AT_ONCE)
    }
}

impl Lead {
    /// Proposes the ends of holds that have lasted their most, and opens locks whose last hold would have lasted its least.
    /// Ends only with the tenure.
    pub(super) async fn keep_bounds(&self, tenure: Tenure) {
        let clock = &*self.registry.runtime.clock;
        loop {
            let look = self.registry.with_leases(tenure, |leases| leases.bounds.next_look());
            let Some(look) = look else { return };
            let changed = self.registry.bounds_changed.notified();
            match look {
                None => {
                    changed.await;
                    continue;
                }
                Some(at) => holdfast_runtime::select! {
                    () = changed => continue,
                    () = clock.sleep_until(at) => {}
                },
            }
            let due = self.registry.with_leases(tenure, |leases| leases.bounds.due(clock.now()));
            for one in due.unwrap_or_default() {
                self.propose_due(tenure, one);
            }
        }
    }

    fn propose_due(&self, tenure: Tenure, due: HoldDue) {
        let command = match due.clone() {
            HoldDue::Most { session, token } => Command::EndLongHold { session, token },
            HoldDue::Least { lock, token } => Command::OpenLock { lock, token },
        };
        let registry = self.registry.clone();
        let done = move |result: Result<Committed, ProposeError>| {
            if result.is_err() {
                let now = registry.runtime.clock.now();
                registry.with_leases(tenure, |leases| leases.bounds.came_to_nothing(due, now));
                registry.bounds_changed.notify_one();
            }
        };
        self.consensus.submit(command, Box::new(done));
    }
}

impl Registry {
    /// Notes what an event says about holds with bounds, and about closed locks.
    pub(super) fn note_bounds(&self, state: &mut State, event: &Event, table: &LockTable) {
        let Some(leases) = state.leases.as_mut() else { return };
        let now = self.runtime.clock.now();
        match event {
            &Event::Granted { session, request, token, .. } => {
                // It may be over again in the same entry.
                let Some(hold) = table.bounds_of(Grant { session, request, token }) else { return };
                leases.bounds.held(hold, now);
            }
            Event::LockClosed { lock, token, hold_at_least_ms } => {
                leases.bounds.closed(lock, (*token, *hold_at_least_ms), now);
            }
            Event::LockOpened { lock, token } => leases.bounds.opened(lock, *token),
            _ => return,
        }
        self.bounds_changed.notify_one();
    }
}

impl Hub {
    /// How long a lock stays closed, as far as this node knows: it has to lead.
    pub(crate) fn closed_for(&self, lock: &LockName, closed: &ClosedLock) -> Option<Duration> {
        let now = self.runtime().clock.now();
        let state = self.registry.lock();
        state.leases.as_ref()?.bounds.closed_for(lock, closed, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The grant came in the middle of a millisecond.
    #[test]
    fn nothing_is_due_a_part_of_a_millisecond_early() {
        let at = |micros| Instant::from_origin(Duration::from_micros(micros));
        let (session, token) = (SessionId::new(1), FencingToken::from_raw(7));
        let hold = BoundHold { session, token, max_hold_ms: 10, hold_at_least_ms: 0 };
        let mut bounds = Bounds::default();
        bounds.held(hold, at(1_900));
        assert_eq!(bounds.due(at(11_899)), []);
        assert_eq!(bounds.due(at(12_000)), [HoldDue::Most { session, token }]);
    }

    /// A lock would stay closed for as long as others with bounds come and go.
    #[test]
    fn what_came_to_nothing_is_proposed_again_in_time_whatever_is_granted_meanwhile() {
        let begin = Instant::from_origin(Duration::from_secs(1));
        let (session, token) = (SessionId::new(1), FencingToken::from_raw(7));
        let mut bounds = Bounds::default();
        bounds.came_to_nothing(HoldDue::Most { session, token }, begin);
        for millis in 1..100 {
            let now = begin + Duration::from_millis(millis);
            let token = FencingToken::from_raw(7 + millis);
            let hold = BoundHold { session, token, max_hold_ms: 9_000, hold_at_least_ms: 0 };
            bounds.held(hold, now);
            bounds.hold_over(session, token);
            assert_eq!(bounds.next_look(), Some(begin + RETRY));
        }
    }
}
