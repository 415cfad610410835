//! The deadlines of sessions as a machine without I/O; only a leader has one (DESIGN §5.1–5.3).
//!
//! Callers pass times in as milliseconds of the leader's monotonic clock, and the machine compares
//! them with no other clock. Every operation is O(log n), and a wrong order of calls is harmless:
//! it can only make an expiry later, never earlier (I6).

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use holdfast_mutants::mutant;

use crate::ids::{FencingToken, SessionId};
use crate::view::LeaseView;

/// Why a keepalive does not renew: it must not be acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRenewed {
    /// The session is not in the table: never opened, or ended.
    #[error("the session is not open")]
    Unknown,
    /// The leader has proposed its expiry, and does not know the outcome yet (§5.2). If the session
    /// stays open, the next keepalive renews it.
    #[error("the session's expiry is under way")]
    Expiring,
    /// The session was ended from outside: nothing renews it any more (I35).
    #[error("the session was revoked")]
    Revoked,
}

/// The deadlines of all sessions in one tenure.
///
/// # Promises
///
/// - A session is due only after the receipt of its last acknowledged keepalive + TTL + margin
///   (§5.2), or its start in this tenure + TTL + margin (§5.3), whichever is later (I6).
/// - A session with a keepalive waiting for its quorum round is not due (§5.2).
/// - A session that is being resumed is due a TTL later, and no later than that, however many
///   resumes there are: a resume alone does not keep a session open (I31).
/// - [`LeaseTable::lengthen`] makes a deadline later and never earlier.
/// - From [`LeaseTable::begin_expiry`] until [`LeaseTable::expiry_settled`] nothing renews it
///   (§5.2).
/// - From [`LeaseTable::revoke`] on nothing renews a session, and neither a keepalive that waits nor a
///   resume puts off that it is due (I35).
/// - A closed hold is due only after the deadline that its session had when [`LeaseTable::close_hold`]
///   was called, which no later renewal moves (I35).
/// - Every other session is due once its deadline has passed (I7).
#[derive(Clone, Debug)]
pub struct LeaseTable {
    margin_ms: u64,
    leases: BTreeMap<SessionId, Lease>,
    /// Invariant: exactly the sessions that [count](Lease::counts), by [`Lease::due_ms`].
    order: BTreeSet<(u64, SessionId)>,
    /// The deadline of each closed hold that is not over.
    closed: BTreeMap<(SessionId, FencingToken), u64>,
    /// Invariant: exactly the closed holds whose end is not proposed, by their deadlines.
    closed_order: BTreeSet<(u64, SessionId, FencingToken)>,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    ttl_ms: u64,
    deadline_ms: u64,
    phase: Phase,
    /// Resumes under way: while there are any, the session is due a TTL later.
    resumes: u64,
    is_revoked: bool,
}

impl Lease {
    /// The last instant at which it is not due yet.
    fn due_ms(self) -> u64 {
        let put_off_ms = if self.resumes > 0 && !self.is_revoked { self.ttl_ms } else { 0 };
        self.deadline_ms.saturating_add(put_off_ms)
    }

    /// Whether it is due once [`Lease::due_ms`] has passed.
    fn counts(self) -> bool {
        match self.phase {
            Phase::Running => true,
            Phase::Waiting(_) => self.is_revoked,
            Phase::Expiring => false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The deadline counts.
    Running,
    /// So many keepalives wait for a quorum round; at least one.
    Waiting(u64),
    /// Its expiry is proposed.
    Expiring,
}

impl LeaseTable {
    /// An empty table. It adds `margin_ms` to every TTL: the margin covers the time between the
    /// client's reading of its clock and the leader's, beyond the allowance for drift (§5.4).
    pub fn new(margin_ms: u64) -> Self {
        Self {
            margin_ms,
            leases: BTreeMap::new(),
            order: BTreeSet::new(),
            closed: BTreeMap::new(),
            closed_order: BTreeSet::new(),
        }
    }

    /// Adds a session whose Open the leader received at `now_ms`: Open renews like a keepalive
    /// (§5.1).
    ///
    /// For a known session this is only a renewal, under the same rules.
    pub fn insert(&mut self, session: SessionId, ttl_ms: u64, now_ms: u64) {
        if self.leases.contains_key(&session) {
            // Refused while its expiry is under way; the end of the expiry sets the deadline then.
            let _ = self.renew(session, now_ms);
            return;
        }
        let deadline_ms = now_ms.saturating_add(ttl_ms).saturating_add(self.margin_ms);
        let (phase, resumes, is_revoked) = (Phase::Running, 0, false);
        let lease = Lease { ttl_ms, deadline_ms, phase, resumes, is_revoked };
        self.leases.insert(session, lease);
        self.order.insert((deadline_ms, session));
    }

    /// Removes a session that ended; `false` if it was not there.
    pub fn remove(&mut self, session: SessionId) -> bool {
        let Some(lease) = self.leases.remove(&session) else { return false };
        self.order.remove(&(lease.due_ms(), session));
        let closed =
            (session, FencingToken::from_raw(0))..=(session, FencingToken::from_raw(u64::MAX));
        let closed: Vec<_> = self.closed.range(closed).map(|(&(_, token), _)| token).collect();
        for token in closed {
            self.hold_over(session, token);
        }
        true
    }

    /// Marks a session as ended from outside: nothing renews it from here on (I35).
    pub fn revoke(&mut self, session: SessionId) {
        if let Some(lease) = self.leases.get_mut(&session) {
            let before = *lease;
            lease.is_revoked = true;
            let after = *lease;
            self.put_in_order(session, before, after);
        }
    }

    /// Notes that a hold of a session was closed from outside: it is due after the deadline that the
    /// session has now. Every answer that renews the session from here on has to name the hold (I35).
    pub fn close_hold(&mut self, session: SessionId, token: FencingToken) {
        let Some(deadline_ms) = self.deadline_of(session) else { return };
        if let Entry::Vacant(new) = self.closed.entry((session, token)) {
            new.insert(deadline_ms);
            self.closed_order.insert((deadline_ms, session, token));
        }
    }

    /// Notes that a hold is over, closed or not.
    pub fn hold_over(&mut self, session: SessionId, token: FencingToken) {
        if let Some(deadline_ms) = self.closed.remove(&(session, token)) {
            self.closed_order.remove(&(deadline_ms, session, token));
        }
    }

    /// At most `max` closed holds whose deadline lies before `now_ms`; their ends have to be proposed
    /// now. A hold comes again only after [`LeaseTable::end_unsettled`].
    pub fn begin_ends(&mut self, now_ms: u64, max: usize) -> Vec<(SessionId, FencingToken)> {
        let due = self.closed_order.iter().take_while(|&&(deadline_ms, ..)| deadline_ms < now_ms);
        let due: Vec<_> = due.take(max).copied().collect();
        for one in &due {
            self.closed_order.remove(one);
        }
        due.into_iter().map(|(_, session, token)| (session, token)).collect()
    }

    /// Reports that a proposed end came to nothing, or to nothing known: the hold is due as before.
    pub fn end_unsettled(&mut self, session: SessionId, token: FencingToken) {
        if let Some(&deadline_ms) = self.closed.get(&(session, token)) {
            self.closed_order.insert((deadline_ms, session, token));
        }
    }

    /// Renews by an acknowledged keepalive that was *received* at `heard_at_ms`: the deadline is
    /// that plus TTL and margin, and never earlier than it was. Returns the deadline.
    ///
    /// # Errors
    ///
    /// [`NotRenewed`]: nothing changed, and the keepalive must not be acknowledged.
    pub fn renew(&mut self, session: SessionId, heard_at_ms: u64) -> Result<u64, NotRenewed> {
        let margin_ms = self.margin_ms;
        let lease = self.renewable(session)?;
        let before = *lease;
        let renewed_ms = heard_at_ms.saturating_add(lease.ttl_ms).saturating_add(margin_ms);
        // Keepalives are acknowledged in whatever order their rounds end.
        lease.deadline_ms = renewed_ms.max(before.deadline_ms);
        let after = *lease;
        self.put_in_order(session, before, after);
        Ok(after.deadline_ms)
    }

    /// Marks a resume of the session as under way, until its client has taken State. While there
    /// are marks the session is due a TTL later, whatever their number. Take each mark back by one
    /// [`LeaseTable::let_go`].
    ///
    /// # Errors
    ///
    /// [`NotRenewed`]: there is no mark to take back.
    pub fn put_off(&mut self, session: SessionId) -> Result<(), NotRenewed> {
        let lease = self.renewable(session)?;
        let before = *lease;
        lease.resumes = lease.resumes.saturating_add(1);
        let after = *lease;
        self.put_in_order(session, before, after);
        Ok(())
    }

    /// Makes a session's deadline `until_ms` if it is earlier, because the leader has told its client to
    /// come back by then. It makes no deadline earlier and answers nothing, so no client believes in it
    /// (I6). Without effect where nothing may renew: the session is revoked (I35), or its expiry is
    /// under way (§5.2).
    pub fn lengthen(&mut self, session: SessionId, until_ms: u64) {
        let Ok(lease) = self.renewable(session) else { return };
        let before = *lease;
        lease.deadline_ms = before.deadline_ms.max(until_ms);
        let after = *lease;
        self.put_in_order(session, before, after);
    }

    /// Takes one mark of [`LeaseTable::put_off`] back. Without a mark nothing changes.
    pub fn let_go(&mut self, session: SessionId) {
        let Some(lease) = self.leases.get_mut(&session) else { return };
        let before = *lease;
        lease.resumes = lease.resumes.saturating_sub(1);
        let after = *lease;
        self.put_in_order(session, before, after);
    }

    /// Whether a renewal would succeed.
    ///
    /// # Errors
    ///
    /// [`NotRenewed`] if not.
    pub fn may_be_renewed(&mut self, session: SessionId) -> Result<(), NotRenewed> {
        self.renewable(session).map(|_| ())
    }

    /// Moves a session to its new place in the order, or out of it.
    fn put_in_order(&mut self, session: SessionId, before: Lease, after: Lease) {
        self.order.remove(&(before.due_ms(), session));
        if after.counts() {
            self.order.insert((after.due_ms(), session));
        }
    }

    /// Marks that a keepalive of the session waits for a quorum round: the session is not due
    /// meanwhile. Take each mark back by one [`LeaseTable::answered`], even if the round fails.
    ///
    /// # Errors
    ///
    /// [`NotRenewed`]: there is no mark to take back.
    pub fn waiting(&mut self, session: SessionId) -> Result<(), NotRenewed> {
        let lease = self.renewable(session)?;
        let before = *lease;
        lease.phase = match lease.phase {
            Phase::Waiting(count) => Phase::Waiting(count.saturating_add(1)),
            Phase::Running | Phase::Expiring => Phase::Waiting(1),
        };
        let after = *lease;
        self.put_in_order(session, before, after);
        Ok(())
    }

    /// Takes one mark back: the round has ended. Call [`LeaseTable::renew`] first if it succeeded.
    /// Without a mark nothing changes.
    pub fn answered(&mut self, session: SessionId) {
        let Some(lease) = self.leases.get_mut(&session) else { return };
        let Phase::Waiting(count) = lease.phase else { return };
        let before = *lease;
        lease.phase = if count > 1 { Phase::Waiting(count - 1) } else { Phase::Running };
        let after = *lease;
        self.put_in_order(session, before, after);
    }

    /// Marks that the leader is about to propose the session's expiry: nothing renews it from here
    /// on.
    ///
    /// `false`, and nothing changes, if the leader must not propose it: the session is unknown, not
    /// due at `now_ms`, waits for a quorum round, or is expiring already.
    pub fn begin_expiry(&mut self, session: SessionId, now_ms: u64) -> bool {
        let Some(lease) = self.leases.get_mut(&session) else { return false };
        let before = *lease;
        if !before.counts() || now_ms <= before.due_ms() {
            return false;
        }
        lease.phase = Phase::Expiring;
        let after = *lease;
        self.put_in_order(session, before, after);
        true
    }

    /// Reports the outcome of a proposed expiry. A session that stays open (the entry was refused,
    /// or will certainly never be applied) gets a full TTL + margin from `now_ms`, because its
    /// keepalives were refused meanwhile. Without an expiry under way nothing changes.
    ///
    /// Do not call it while the outcome is unknown: the entry may still be applied.
    pub fn expiry_settled(&mut self, session: SessionId, still_alive: bool, now_ms: u64) {
        let Some(lease) = self.leases.get(&session) else { return };
        if lease.phase != Phase::Expiring {
            return;
        }
        let Lease { ttl_ms, is_revoked, .. } = *lease;
        if !still_alive {
            self.remove(session);
            return;
        }
        self.leases.remove(&session);
        self.insert(session, ttl_ms, now_ms);
        if is_revoked {
            self.revoke(session);
        }
    }

    /// The first instant at which a session or a closed hold is due, unless a renewal comes first;
    /// `None` if no deadline counts. Those of waiting and expiring sessions do not count: call it
    /// again when their round or proposal ends.
    pub fn next_deadline(&self) -> Option<u64> {
        let session = self.order.first().map(|&(deadline_ms, _)| deadline_ms);
        let hold = self.closed_order.first().map(|&(deadline_ms, ..)| deadline_ms);
        session.into_iter().chain(hold).min().map(|deadline_ms| deadline_ms.saturating_add(1))
    }

    /// At most `max` sessions whose deadline lies before `now_ms`, the longest due first; they stay
    /// due until [`LeaseTable::begin_expiry`].
    ///
    /// *Before*, not *at*: both readings were rounded down to whole milliseconds, so the real
    /// difference may be up to one millisecond smaller than theirs (I6).
    pub fn due(&self, now_ms: u64, max: usize) -> Vec<SessionId> {
        self.order
            .iter()
            .take_while(|&&(deadline_ms, _)| deadline_ms < now_ms)
            .take(max)
            .map(|&(_, session)| session)
            .collect()
    }

    /// Adds a session that was open before this tenure: it gets a full TTL + margin from `since_ms`,
    /// not before the tenure's own first entry was applied (§5.3). Its closed holds have as long.
    ///
    /// For a session that was opened in this tenure, this is a renewal from `since_ms`, which makes no
    /// deadline earlier. So sessions may be added while others are opened and ended, as long as those
    /// that have ended are not added.
    pub fn enter(&mut self, view: LeaseView, since_ms: u64) {
        if mutant!(TenureForgetsSessions) {
            return;
        }
        let LeaseView { session, ttl_ms, is_revoked, closed } = view;
        let cut_ms = if mutant!(NoFullTtl) { ttl_ms } else { 0 };
        self.insert(session, ttl_ms, since_ms.saturating_sub(cut_ms));
        if is_revoked {
            self.revoke(session);
        }
        for token in closed {
            self.close_hold(session, token);
        }
    }

    /// The session's deadline; `None` if it is unknown.
    pub fn deadline_of(&self, session: SessionId) -> Option<u64> {
        self.leases.get(&session).map(|lease| lease.deadline_ms)
    }

    /// How many sessions are in the table.
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// Whether there is no session.
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    fn renewable(&mut self, session: SessionId) -> Result<&mut Lease, NotRenewed> {
        match self.leases.get_mut(&session) {
            None => Err(NotRenewed::Unknown),
            Some(Lease { phase: Phase::Expiring, .. }) if !mutant!(KeepaliveWhileExpiring) => {
                Err(NotRenewed::Expiring)
            }
            Some(Lease { is_revoked: true, .. }) => Err(NotRenewed::Revoked),
            Some(lease) => Ok(lease),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARGIN: u64 = 100;
    const TTL: u64 = 1_000;
    const A: SessionId = SessionId::new(1);
    const B: SessionId = SessionId::new(2);

    /// Session A, opened at 0: its deadline is 1,100.
    fn with_a() -> LeaseTable {
        let mut leases = LeaseTable::new(MARGIN);
        leases.insert(A, TTL, 0);
        leases
    }

    /// I31: resumes without a keepalive put an expiry off by one TTL, however many there are.
    #[test]
    fn resumes_put_an_expiry_off_by_one_ttl_and_no_more() {
        let mut leases = with_a();
        leases.put_off(A).expect("it is open");
        leases.put_off(A).expect("it is open");
        assert_eq!((leases.due(2_100, 9), leases.begin_expiry(A, 2_100)), (vec![], false));
        leases.let_go(A);
        assert_eq!(leases.due(2_100, 9), [], "one resume is left");
        assert_eq!(leases.due(2_101, 9), [A]);

        leases.let_go(A);
        leases.let_go(A);
        assert_eq!(leases.due(1_101, 9), [A], "none is left");
        assert!(leases.begin_expiry(A, 1_101));
        assert_eq!(leases.put_off(A), Err(NotRenewed::Expiring));
    }

    /// A keepalive of a session that is being resumed counts as usual, from its receipt.
    #[test]
    fn a_session_that_is_resumed_is_renewed_by_its_keepalive() {
        let mut leases = with_a();
        leases.put_off(A).expect("it is open");
        leases.waiting(A).expect("it is open");
        assert_eq!(leases.due(9_000, 9), [], "its keepalive waits");
        assert_eq!(leases.renew(A, 2_000), Ok(3_100));
        leases.answered(A);
        assert_eq!(leases.next_deadline(), Some(4_101), "still put off");
        leases.let_go(A);
        assert_eq!(leases.next_deadline(), Some(3_101));
        assert!(leases.remove(A) && leases.next_deadline().is_none());
    }

    #[test]
    fn a_session_is_due_only_after_receipt_plus_ttl_plus_margin() {
        let leases = with_a();
        assert_eq!(leases.due(1_100, 9), []);
        assert_eq!(leases.due(1_101, 9), [A]);
        assert_eq!(leases.next_deadline(), Some(1_101));
    }

    #[test]
    fn a_renewal_counts_from_when_the_keepalive_was_heard() {
        let mut leases = with_a();
        assert_eq!(leases.renew(A, 500), Ok(1_600));
        assert_eq!(leases.due(1_600, 9), []);
        assert_eq!(leases.next_deadline(), Some(1_601));
    }

    /// Two keepalives are acknowledged in the reverse order of their receipt.
    #[test]
    fn a_renewal_never_makes_the_deadline_earlier() {
        let mut leases = with_a();
        assert_eq!(leases.renew(A, 500), Ok(1_600));
        assert_eq!(leases.renew(A, 200), Ok(1_600));
        leases.insert(A, TTL, 100);
        assert_eq!(leases.deadline_of(A), Some(1_600));
    }

    #[test]
    fn a_session_whose_keepalive_waits_for_its_round_is_not_due() {
        let mut leases = with_a();
        assert_eq!(leases.waiting(A), Ok(()));
        assert_eq!(leases.due(9_999, 9), []);
        assert_eq!(leases.next_deadline(), None);
        assert!(!leases.begin_expiry(A, 9_999));
        leases.answered(A);
        assert_eq!(leases.due(9_999, 9), [A]);
    }

    #[test]
    fn a_session_is_not_due_until_every_waiting_keepalive_is_answered() {
        let mut leases = with_a();
        assert_eq!((leases.waiting(A), leases.waiting(A)), (Ok(()), Ok(())));
        leases.answered(A);
        assert_eq!(leases.due(9_999, 9), []);
        assert_eq!(leases.renew(A, 9_000), Ok(10_100));
        leases.answered(A);
        assert_eq!(leases.due(9_999, 9), []);
        assert_eq!(leases.next_deadline(), Some(10_101));
    }

    #[test]
    fn nothing_renews_a_session_whose_expiry_is_proposed() {
        let mut leases = with_a();
        assert!(leases.begin_expiry(A, 1_101));
        assert_eq!(leases.renew(A, 1_102), Err(NotRenewed::Expiring));
        assert_eq!(leases.waiting(A), Err(NotRenewed::Expiring));
        leases.insert(A, TTL, 1_103);
        assert_eq!(leases.deadline_of(A), Some(1_100));
        assert_eq!(leases.due(9_999, 9), []);
        assert!(!leases.begin_expiry(A, 9_999));
    }

    /// A keepalive arrived between `due` and the proposal.
    #[test]
    fn an_expiry_does_not_begin_before_the_deadline() {
        let mut leases = with_a();
        assert_eq!(leases.due(1_101, 9), [A]);
        assert_eq!(leases.renew(A, 1_101), Ok(2_201));
        assert!(!leases.begin_expiry(A, 1_101));
        assert_eq!(leases.renew(A, 1_102), Ok(2_202));
    }

    #[test]
    fn a_session_that_outlives_its_expiry_gets_a_full_lease_and_may_be_renewed() {
        let mut leases = with_a();
        assert!(leases.begin_expiry(A, 1_101));
        leases.expiry_settled(A, true, 5_000);
        assert_eq!(leases.deadline_of(A), Some(6_100));
        assert_eq!(leases.renew(A, 5_500), Ok(6_600));
    }

    #[test]
    fn a_session_that_expired_is_forgotten() {
        let mut leases = with_a();
        assert!(leases.begin_expiry(A, 1_101));
        leases.expiry_settled(A, false, 1_200);
        assert!(leases.is_empty());
        assert_eq!(leases.renew(A, 1_201), Err(NotRenewed::Unknown));
        assert_eq!(leases.next_deadline(), None);
    }

    #[test]
    fn settling_an_expiry_that_never_began_changes_nothing() {
        let mut leases = with_a();
        leases.expiry_settled(A, false, 2_000);
        leases.answered(A);
        assert_eq!(leases.due(1_101, 9), [A]);
    }

    fn lease(session: SessionId, ttl_ms: u64) -> LeaseView {
        LeaseView { session, ttl_ms, is_revoked: false, closed: vec![] }
    }

    #[test]
    fn a_new_tenure_gives_everybody_a_full_lease() {
        let mut leases = LeaseTable::new(MARGIN);
        leases.enter(lease(A, TTL), 5_000);
        leases.enter(lease(B, 3_000), 5_000);
        assert_eq!(leases.due(6_100, 9), []);
        assert_eq!(leases.due(6_101, 9), [A]);
        assert_eq!(leases.due(8_101, 9), [A, B]);
        assert_eq!(leases.renew(B, 6_000), Ok(9_100));
    }

    /// I35: the keepalive that waits, and the resume, came before it was revoked; neither counts.
    #[test]
    fn nothing_renews_a_revoked_session_or_puts_its_end_off() {
        let mut leases = with_a();
        assert_eq!((leases.waiting(A), leases.put_off(A)), (Ok(()), Ok(())));
        assert_eq!(leases.next_deadline(), None);
        leases.revoke(A);
        assert_eq!(leases.next_deadline(), Some(1_101));
        assert_eq!(leases.renew(A, 500), Err(NotRenewed::Revoked));
        assert_eq!(leases.waiting(A), Err(NotRenewed::Revoked));
        assert_eq!((leases.due(1_100, 9), leases.due(1_101, 9)), (vec![], vec![A]));
        leases.answered(A);
        leases.let_go(A);
        assert_eq!(leases.due(1_101, 9), [A], "once, and at the same time");
        assert!(leases.begin_expiry(A, 1_101));

        leases.expiry_settled(A, true, 2_000);
        assert_eq!(leases.renew(A, 2_001), Err(NotRenewed::Revoked), "it stays revoked");
        assert_eq!(leases.next_deadline(), Some(3_101));
    }

    /// I35: later renewals name the hold, so none of them makes it any safer.
    #[test]
    fn a_closed_hold_is_due_when_its_session_was_to_end_as_it_was_closed() {
        let mut leases = with_a();
        let token = FencingToken::from_raw(7);
        leases.close_hold(A, token);
        assert_eq!(leases.renew(A, 900), Ok(2_000));
        leases.close_hold(A, token);
        assert_eq!(leases.next_deadline(), Some(1_101));
        assert_eq!(leases.begin_ends(1_100, 9), []);
        assert_eq!(leases.begin_ends(1_101, 9), [(A, token)]);
        assert_eq!(leases.begin_ends(1_101, 9), [], "its end is proposed");
        leases.end_unsettled(A, token);
        assert_eq!(leases.begin_ends(1_101, 9), [(A, token)]);
        leases.hold_over(A, token);
        leases.end_unsettled(A, token);
        assert_eq!(leases.next_deadline(), Some(2_001), "only the session is left");

        leases.close_hold(A, token);
        assert!(leases.remove(A) && leases.next_deadline().is_none());
    }

    /// §5.3: the leader before may have acknowledged a keepalive just before its tenure ended.
    #[test]
    fn a_new_tenure_gives_what_is_ending_a_full_lease_too() {
        let mut leases = LeaseTable::new(MARGIN);
        let token = FencingToken::from_raw(7);
        let revoked = LeaseView { session: A, ttl_ms: TTL, is_revoked: true, closed: vec![] };
        let closed = LeaseView { session: B, ttl_ms: 500, is_revoked: false, closed: vec![token] };
        leases.enter(revoked, 5_000);
        leases.enter(closed, 5_000);
        assert_eq!(leases.renew(A, 5_001), Err(NotRenewed::Revoked));
        assert_eq!(leases.renew(B, 5_900), Ok(6_500));
        assert_eq!(leases.begin_ends(5_600, 9), []);
        assert_eq!(leases.begin_ends(5_601, 9), [(B, token)]);
        assert_eq!(leases.due(6_101, 9), [A]);
    }

    /// I6, §5.2, I35.
    #[test]
    fn a_lease_is_only_made_longer_and_only_where_it_may_be_renewed() {
        let mut leases = with_a();
        leases.lengthen(A, 3_000);
        leases.lengthen(A, 2_000);
        assert_eq!((leases.deadline_of(A), leases.due(3_000, 9)), (Some(3_000), vec![]));
        assert_eq!(leases.renew(A, 500), Ok(3_000), "no renewal makes it shorter");
        leases.insert(B, TTL, 0);
        leases.revoke(B);
        leases.lengthen(B, 9_000);
        assert_eq!(leases.due(1_101, 9), [B]);
        assert!(leases.begin_expiry(A, 3_001));
        leases.lengthen(A, 9_000);
        assert_eq!(leases.deadline_of(A), Some(3_000));
        leases.lengthen(SessionId::new(3), 9_000);
        assert_eq!(leases.len(), 2);
    }

    /// Its Open was received after the tenure began, and its client counts from there (I6).
    #[test]
    fn a_session_that_was_opened_before_it_is_entered_keeps_the_later_deadline() {
        let mut leases = LeaseTable::new(MARGIN);
        leases.insert(A, TTL, 5_200);
        leases.enter(lease(A, TTL), 5_000);
        assert_eq!(leases.deadline_of(A), Some(6_300));
        assert_eq!(leases.due(6_300, 9), []);
        assert_eq!(leases.due(6_301, 9), [A], "once");
    }

    #[test]
    fn the_longest_due_come_first_and_no_more_than_asked_for() {
        let mut leases = LeaseTable::new(MARGIN);
        leases.insert(A, 2 * TTL, 0);
        leases.insert(B, TTL, 0);
        assert_eq!(leases.due(9_999, 1), [B]);
        assert_eq!(leases.due(9_999, 9), [B, A]);
        assert!(leases.remove(B));
        assert!(!leases.remove(B));
        assert_eq!(leases.due(9_999, 9), [A]);
        assert_eq!(leases.len(), 1);
    }

    #[test]
    fn times_near_the_end_of_the_clock_do_not_overflow() {
        let mut leases = LeaseTable::new(u64::MAX);
        leases.insert(A, u64::MAX, u64::MAX);
        assert_eq!(leases.renew(A, u64::MAX), Ok(u64::MAX));
        assert_eq!(leases.due(u64::MAX, 9), []);
        assert_eq!(leases.next_deadline(), Some(u64::MAX));
    }
}
