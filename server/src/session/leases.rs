//! The leases of one tenure, as its leader keeps them (DESIGN §5.1–5.3, §5.8).
//!
//! Around the core's [`LeaseTable`], which knows deadlines but no clock, this adds the keepalives that
//! wait for a quorum round, the state of proposed expiries, and a clock that stands still while no
//! quorum can be reached: an outage of the store ends no session by itself (§5.8).
//!
//! # Invariants
//!
//! - Exists only in a tenure that has applied an entry of its own; gone with the tenure.
//! - Once it is whole, a session is in the table exactly while it is open in the applied state: the events
//!   of each entry reach it before any request can (§5.1, "alive in that state"). Before, no session in
//!   the table has ended, and nothing is served.
//! - A session with a keepalive in `waiting` or in a round carries a mark in the table and is not due
//!   (§5.2).
//! - Resumes alone renew a session for at most [`UNPROVEN_TTLS`] TTLs: after that only what its client
//!   sends once it has taken State renews it (I31).

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{FencingToken, LeaseTable, LeaseView, NotRenewed, SessionId, Tenure};
use holdfast_runtime::Instant;

use super::bounds::Bounds;
use super::outbox::Outbox;

/// How long resumes renew a session whose client never shows that it has taken State, TTLs.
///
/// This is for clients that do not know pages. Their Opened has to renew the lease, because they count
/// on that (I6), and nothing distinguishes a client that reads from one whose decoder gives up. A client
/// that reads sends a keepalive a quarter of its TTL after Open. Even if its connection breaks often, it
/// needs only one stream that lasts a quarter of the TTL within two TTLs.
const UNPROVEN_TTLS: u64 = 2;

/// Why a resume does not renew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotResumed {
    /// The session is over, or its expiry is under way.
    Over,
    /// Resumes have renewed it for as long as they may; its lease has to run out.
    Unproven,
}

/// A keepalive that waits for a quorum round.
#[derive(Clone, Debug)]
pub(super) struct PendingKeepAlive {
    pub(super) session: SessionId,
    pub(super) seq: u64,
    /// The moment of its receipt.
    pub(super) at: Instant,
    /// Where its answer goes.
    pub(super) outbox: Arc<Outbox>,
}

/// What the leader of one tenure knows of leases.
#[derive(Debug)]
pub(super) struct Leases {
    tenure: Tenure,
    clock: LeaseClock,
    table: LeaseTable,
    /// From when the leases of sessions that were open before this tenure count, on the lease clock: not
    /// before the tenure's own first entry was applied (§5.3).
    since_ms: u64,
    /// Whether all sessions are in the table. No session is served before.
    is_whole: bool,
    /// The newest keepalive of each session that waits for the next round.
    waiting: BTreeMap<SessionId, PendingKeepAlive>,
    /// Sessions whose expiry was proposed and ended without an outcome.
    unsettled: BTreeSet<SessionId>,
    /// Closed holds whose end was proposed and ended without an outcome.
    unsettled_ends: BTreeSet<(SessionId, FencingToken)>,
    /// Sessions that only resumes have renewed, and since when, on the lease clock.
    unproven: BTreeMap<SessionId, u64>,
    /// The time until which the expirer sleeps.
    alarm_ms: Option<u64>,
    /// How long holds last at least and at most.
    pub(super) bounds: Bounds,
}

impl Leases {
    /// Begins a tenure whose own first entry was applied before `since`. The sessions that are open have
    /// to follow by [`Leases::enter`], before anything is served.
    pub(super) fn begin(tenure: Tenure, margin_ms: u64, since: Instant) -> Self {
        let clock = LeaseClock::default();
        Self {
            tenure,
            since_ms: clock.at(since),
            clock,
            table: LeaseTable::new(margin_ms),
            is_whole: false,
            waiting: BTreeMap::new(),
            unsettled: BTreeSet::new(),
            unsettled_ends: BTreeSet::new(),
            unproven: BTreeMap::new(),
            alarm_ms: None,
            bounds: Bounds::default(),
        }
    }

    pub(super) fn tenure(&self) -> Tenure {
        self.tenure
    }

    /// A session is open in the applied state: it has a full TTL + margin from the instant with which the
    /// tenure began (§5.3, I6). What events reported of it since then stands.
    pub(super) fn enter(&mut self, session: LeaseView) {
        self.table.enter(session, self.since_ms);
    }

    /// Every session that was open has been entered.
    pub(super) fn all_entered(&mut self) {
        self.is_whole = true;
    }

    /// Whether the leases are complete, so that sessions may be served.
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// A session was opened: its Open counts like a keepalive received now, when its entry was applied.
    pub(super) fn opened(&mut self, session: SessionId, ttl_ms: u64, now: Instant) {
        self.table.insert(session, ttl_ms, self.clock.at(now));
    }

    /// The row of an import was renewed in the other store: it lasts so long from now on, or longer.
    pub(super) fn lengthened(&mut self, session: SessionId, ttl_ms: u64, now: Instant) {
        self.table.lengthen(session, self.clock.at(now).saturating_add(ttl_ms));
    }

    /// Whether the session is there and its expiry is not under way; also one that was ended from outside.
    pub(super) fn lasts(&mut self, session: SessionId) -> bool {
        let renewable = self.table.may_be_renewed(session);
        matches!(renewable, Ok(()) | Err(NotRenewed::Revoked))
    }

    /// A session is over. Returns how long ago its deadline passed.
    pub(super) fn ended(&mut self, session: SessionId, now: Instant) -> Option<Duration> {
        let deadline_ms = self.table.deadline_of(session)?;
        self.table.remove(session);
        self.waiting.remove(&session);
        self.unsettled.remove(&session);
        self.unproven.remove(&session);
        Some(Duration::from_millis(self.clock.at(now).saturating_sub(deadline_ms)))
    }

    /// A session was ended from outside: nothing renews it any more (I35).
    pub(super) fn revoked(&mut self, session: SessionId) {
        self.table.revoke(session);
    }

    /// A hold was closed from outside (I35).
    pub(super) fn hold_closed(&mut self, session: SessionId, token: FencingToken) {
        self.table.close_hold(session, token);
    }

    /// A hold is over, closed or not.
    pub(super) fn hold_over(&mut self, session: SessionId, token: FencingToken) {
        self.table.hold_over(session, token);
        self.bounds.hold_over(session, token);
    }

    /// How long a session has at most until its deadline, if nothing renews it.
    pub(super) fn left(&self, session: SessionId, now: Instant) -> Option<Duration> {
        let deadline_ms = self.table.deadline_of(session)?;
        Some(Duration::from_millis(deadline_ms.saturating_sub(self.clock.at(now))))
    }

    /// Takes a keepalive. `false` if it will never be acknowledged: the session is over, or its expiry
    /// is under way (§5.2).
    pub(super) fn heard(&mut self, heard: PendingKeepAlive) -> bool {
        let session = heard.session;
        // One mark per session and round: the newest keepalive answers for those before it.
        if let Some(before) = self.waiting.get_mut(&session) {
            *before = heard;
            return true;
        }
        let marked = self.table.waiting(session).is_ok();
        if marked {
            self.waiting.insert(session, heard);
        }
        marked
    }

    /// Returns the keepalives for the round that begins now: all of them came in before it (§5.1). Their
    /// marks stay until [`Leases::acknowledge`] or [`Leases::put_back`].
    pub(super) fn take_waiting(&mut self) -> Vec<PendingKeepAlive> {
        std::mem::take(&mut self.waiting).into_values().collect()
    }

    /// Renews from the keepalive's receipt: a round begun after it confirmed this tenure. `false`: the
    /// keepalive must not be acknowledged.
    pub(super) fn acknowledge(&mut self, heard: &PendingKeepAlive) -> bool {
        let renewed = self.renew(heard.session, heard.at);
        self.table.answered(heard.session);
        renewed
    }

    /// A round failed: its keepalives wait for the next one, unless a newer one of the session waits
    /// already.
    pub(super) fn put_back(&mut self, round: Vec<PendingKeepAlive>) {
        for heard in round {
            match self.waiting.entry(heard.session) {
                Entry::Occupied(newer) => self.table.answered(*newer.key()),
                Entry::Vacant(none) => {
                    none.insert(heard);
                }
            }
        }
    }

    /// Renews from a message that was received at `at` and confirmed since. `false`: the session is over
    /// or its expiry is under way, and nothing may be acknowledged.
    pub(super) fn renew(&mut self, session: SessionId, at: Instant) -> bool {
        self.table.renew(session, self.clock.at(at)).is_ok()
    }

    /// Renews by a resume, from its receipt: its `Opened` acknowledges as `KeptAlive` does.
    ///
    /// # Errors
    ///
    /// [`NotResumed`]: nothing was renewed, and Opened must not be sent (I6).
    pub(super) fn renew_by_resume(
        &mut self,
        session: SessionId,
        ttl_ms: u64,
        at: Instant,
    ) -> Result<(), NotResumed> {
        let at_ms = self.clock.at(at);
        let since_ms = self.unproven.get(&session).copied().unwrap_or(at_ms);
        if at_ms.saturating_sub(since_ms) > ttl_ms.saturating_mul(UNPROVEN_TTLS) {
            return Err(NotResumed::Unproven);
        }
        self.table.renew(session, at_ms).map_err(|_| NotResumed::Over)?;
        self.unproven.insert(session, since_ms);
        Ok(())
    }

    /// The session's client has shown that it takes State.
    pub(super) fn proven(&mut self, session: SessionId) {
        self.unproven.remove(&session);
    }

    /// Whether a keepalive of the session would renew it: it is not over, and no expiry of it is under
    /// way.
    pub(super) fn may_be_renewed(&mut self, session: SessionId) -> bool {
        self.table.may_be_renewed(session).is_ok()
    }

    /// Delays the session's expiry, by a TTL at most, while a resume or a call that showed its secret is
    /// under way. `false` if nothing was marked; otherwise [`Leases::let_go`] has to follow.
    pub(super) fn hold_on(&mut self, session: SessionId) -> bool {
        self.table.put_off(session).is_ok()
    }

    /// Makes a lease last until `until` at least: its client was told to come back by then.
    pub(super) fn lengthen(&mut self, session: SessionId, until: Instant) {
        self.table.lengthen(session, self.clock.at(until));
    }

    /// Undoes one [`Leases::hold_on`].
    pub(super) fn let_go(&mut self, session: SessionId) {
        self.table.let_go(session);
    }

    /// There is no quorum since `begun`: the lease clock stands still from then on (§5.8). `false` if it
    /// stood still already.
    pub(super) fn stand_still(&mut self, begun: Instant) -> bool {
        self.clock.stop(begun)
    }

    /// Leadership was confirmed: the lease clock goes on.
    pub(super) fn go_on(&mut self, now: Instant) {
        self.clock.go_on(now);
    }

    /// This node did not run for this long, until now: the lease clock did not either (§5.8).
    pub(super) fn leave_out(&mut self, paused: Duration) {
        self.clock.leave_out(paused);
    }

    /// When the expirer has to look again; `None` while nothing can become due. `retry` is when to ask
    /// again for a quorum, or to propose unsettled expiries again.
    ///
    /// [`Leases::is_sooner`] reports when something comes before it.
    pub(super) fn next_look(&mut self, retry: Instant) -> Option<Instant> {
        self.alarm_ms = self.table.next_deadline();
        let is_unsettled = !self.unsettled.is_empty() || !self.unsettled_ends.is_empty();
        if self.clock.stands_still() || is_unsettled {
            return Some(retry);
        }
        self.alarm_ms.map(|deadline_ms| self.clock.moment_of(deadline_ms))
    }

    /// Whether something is due sooner than what the alarm was set for.
    pub(super) fn is_sooner(&self) -> bool {
        match (self.table.next_deadline(), self.alarm_ms) {
            (Some(next_ms), Some(alarm_ms)) => next_ms < alarm_ms,
            (Some(_), None) => true,
            (None, _) => false,
        }
    }

    /// The sessions, at most `max`, whose expiry has to be proposed now. From here on nothing of them is
    /// acknowledged until the outcome is known (§5.2).
    ///
    /// Those proposed before without an outcome come again: only an outcome settles them.
    pub(super) fn begin_expiries(&mut self, now: Instant, max: usize) -> Vec<SessionId> {
        let now_ms = self.clock.at(now);
        let mut begun: Vec<SessionId> = std::mem::take(&mut self.unsettled).into_iter().collect();
        let room = max.saturating_sub(begun.len());
        for session in self.table.due(now_ms, room) {
            if self.table.begin_expiry(session, now_ms) {
                begun.push(session);
            }
        }
        begun
    }

    /// The closed holds, at most `max`, whose end has to be proposed now.
    pub(super) fn begin_ends(
        &mut self,
        now: Instant,
        max: usize,
    ) -> Vec<(SessionId, FencingToken)> {
        for (session, token) in std::mem::take(&mut self.unsettled_ends) {
            self.table.end_unsettled(session, token);
        }
        self.table.begin_ends(self.clock.at(now), max)
    }

    /// The proposed end of a closed hold ended without an outcome: it is proposed again.
    pub(super) fn end_unsettled(&mut self, session: SessionId, token: FencingToken) {
        self.unsettled_ends.insert((session, token));
    }

    /// An expiry's entry was applied and refused: the session lives on.
    pub(super) fn expiry_refused(&mut self, session: SessionId, now: Instant) {
        self.table.expiry_settled(session, true, self.clock.at(now));
    }

    /// An expiry ended without an outcome. Whether or not it can still be applied, the session gets no
    /// acknowledgement and the expiry is proposed again: its deadline has passed.
    pub(super) fn expiry_unsettled(&mut self, session: SessionId) {
        if self.table.deadline_of(session).is_some() {
            self.unsettled.insert(session);
        }
    }
}

/// Time that counts for leases: that of the node's clock, without the time in which no quorum could be
/// reached, or the node did not run.
///
/// A moment before such a time is too early on this clock by as much; a lease renewed from there still
/// ends no earlier than that moment plus the whole lease (I6).
#[derive(Debug, Default)]
struct LeaseClock {
    /// Sum of the outages and pauses that are over.
    stood: Duration,
    /// Since when there is no quorum.
    stopped_at: Option<Instant>,
}

impl LeaseClock {
    /// A moment of the node's clock in milliseconds of this one.
    fn at(&self, moment: Instant) -> u64 {
        let counted = self.stopped_at.map_or(moment, |stopped| moment.min(stopped));
        (counted - self.stood).as_millis()
    }

    /// When this clock will show `at_ms`, if it goes on from now.
    fn moment_of(&self, at_ms: u64) -> Instant {
        Instant::from_origin(Duration::from_millis(at_ms)) + self.stood
    }

    fn stands_still(&self) -> bool {
        self.stopped_at.is_some()
    }

    fn stop(&mut self, at: Instant) -> bool {
        let goes = self.stopped_at.is_none();
        self.stopped_at.get_or_insert(at);
        goes
    }

    /// No time is left out twice: while the clock stands still, a pause is part of the outage.
    fn leave_out(&mut self, paused: Duration) {
        if self.stopped_at.is_none() {
            self.stood += paused;
        }
    }

    fn go_on(&mut self, now: Instant) {
        if let Some(stopped) = self.stopped_at.take() {
            self.stood += now.saturating_since(stopped);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(seconds: u64) -> Instant {
        Instant::from_origin(Duration::from_secs(seconds))
    }

    /// I6, §5.3: the sessions are entered in parts, while entries of the log are applied.
    #[test]
    fn a_session_opened_while_the_leases_are_read_counts_from_its_open_and_an_ended_one_is_gone() {
        let view =
            |session, ttl_ms| LeaseView { session, ttl_ms, is_revoked: false, closed: vec![] };
        let [old, ended, fresh] = [1, 2, 3].map(SessionId::new);
        let mut leases = Leases::begin(Tenure::new(1), 50, second(10));
        leases.enter(view(old, 1_000));
        leases.enter(view(ended, 1_000));
        leases.opened(fresh, 1_000, second(12));
        leases.ended(ended, second(12));
        leases.enter(view(fresh, 1_000));
        assert!(!leases.is_whole());
        leases.all_entered();

        let left = |session| leases.left(session, second(10)).map(|left| left.as_millis());
        assert!(leases.is_whole());
        assert_eq!([left(old), left(ended), left(fresh)], [Some(1_050), None, Some(3_050)]);
    }

    #[test]
    fn the_lease_clock_stands_still_without_a_quorum_and_loses_nothing_else() {
        let mut clock = LeaseClock::default();
        assert!(clock.stop(second(10)));
        assert!(!clock.stop(second(11)));
        assert_eq!(clock.at(second(9)), 9_000);
        assert_eq!(clock.at(second(15)), 10_000);
        assert!(clock.stands_still());

        clock.go_on(second(17));
        assert_eq!(clock.at(second(17)), 10_000);
        assert_eq!(clock.at(second(19)), 12_000);
        assert_eq!(clock.moment_of(12_000), second(19));
    }
}
