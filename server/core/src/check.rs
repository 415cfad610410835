//! The invariants of the table as code.

use std::collections::BTreeSet;

use crate::LockTable;
use crate::answer::Grant;
use crate::ids::{FencingToken, LockName, RequestId, SessionId};
use crate::lock::Lock;
use crate::session::{Record, Session, State};
use crate::table::Counts;

/// An invariant that does not hold: a flaw of this crate, or a snapshot that no table wrote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{invariant}: {what}")]
pub struct Violation {
    /// The invariant's number in DESIGN §12, or `index` for two parts that contradict each other.
    pub invariant: &'static str,
    /// What was found.
    pub what: String,
}

type Check = Result<(), Violation>;

fn ensure(holds: bool, invariant: &'static str, what: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { Err(Violation { invariant, what: what() }) }
}

impl LockTable {
    /// Whether every invariant that one state can show holds. Looks at everything: O(n log n).
    ///
    /// | invariant | as checked here |
    /// |---|---|
    /// | I2 | a lock has at most one holder: no two records hold one lock |
    /// | I3 | no token of a hold repeats; none lies above the last given out |
    /// | I5, I11 | every holder and waiter is a request of an open session, in that very state |
    /// | I9 | a queue is in ticket order, and no ticket lies above the last given out |
    /// | I10, I12 | every waiting record has exactly one place, every holding one exactly one hold |
    /// | I15 | a lock is waited for only while it is held, or no token can be drawn |
    /// | I33 | a lock is in the table only while it is held or waited for |
    /// | index | counts, holds by token and marks agree with the records |
    ///
    /// What needs two states (stamps, order of grants, answers to retries) is checked by
    /// `tests/properties.rs` against its model.
    ///
    /// # Errors
    ///
    /// [`Violation`]: the first found. This replica must not go on.
    pub fn check(&self) -> Result<(), Violation> {
        let mut counts = Counts::default();
        let mut tokens = BTreeSet::new();
        for (id, session) in self.sessions.iter() {
            counts.sessions += 1;
            ensure(id.get() <= self.counters.session, "index", || {
                format!("session {id} was never given out")
            })?;
            self.check_session(id, session, &mut counts, &mut tokens)?;
        }
        ensure(counts == self.counts, "index", || {
            format!("counted {counts:?}, kept {:?}", self.counts)
        })?;
        for (name, lock) in &self.locks {
            self.check_lock(name, lock)?;
        }
        self.check_counters(tokens.last().copied())
    }

    fn check_counters(&self, largest: Option<FencingToken>) -> Check {
        let counters = self.counters;
        let last = FencingToken::new(counters.epoch, counters.token);
        ensure(last.is_some(), "I3", || format!("{counters:?} makes no token"))?;
        ensure(largest <= last, "I3", || format!("{largest:?} lies above the last, {last:?}"))?;
        ensure(self.limits.check().is_ok(), "I27", || format!("unusable {:?}", self.limits))?;
        ensure(self.chain.is_well_formed(), "I16", || "the witnesses are out of order".into())
    }

    fn check_session(
        &self,
        id: SessionId,
        session: &Session,
        counts: &mut Counts,
        tokens: &mut BTreeSet<FencingToken>,
    ) -> Check {
        let mut held = 0;
        for (&request, record) in &session.records {
            ensure(request >= session.done_below || record.is_live(), "index", || {
                format!("request {request} of session {id} is finished, confirmed and still kept")
            })?;
            match record {
                Record::Asked { lock, state: State::Held { token, .. }, .. } => {
                    held += 1;
                    ensure(tokens.insert(*token), "I3", || format!("token {token} twice"))?;
                    self.check_held(lock, Grant { session: id, request, token: *token })?;
                    ensure(session.holds.get(token) == Some(&request), "index", || {
                        format!("session {id} does not find its token {token}")
                    })?;
                }
                Record::Asked { lock, wait, state: State::Waiting { ticket, .. } } => {
                    counts.waiting += 1;
                    let place = self.locks.get(lock).and_then(|lock| lock.queue.get(*ticket));
                    ensure(*wait && place == Some((id, request)), "I10", || {
                        format!("{request} of session {id} is not in the queue of {lock}")
                    })?;
                }
                Record::Asked { .. } | Record::Spent => {}
            }
        }
        counts.held += held;
        ensure(session.holds.len() as u64 == held, "index", || {
            format!("session {id} lists {} holds, and has {held}", session.holds.len())
        })
    }

    fn check_held(&self, name: &LockName, grant: Grant) -> Check {
        let holder = self.locks.get(name).and_then(|lock| lock.holder);
        ensure(holder == Some(grant), "I2", || {
            format!("{name} is held by {holder:?}, and {grant:?} believes it holds")
        })
    }

    fn check_lock(&self, name: &LockName, lock: &Lock) -> Check {
        ensure(lock.holder.is_some() || !lock.queue.is_empty(), "I33", || {
            format!("{name} is neither held nor waited for")
        })?;
        let granted = lock.holder.is_some() || !self.counters.has_tokens();
        ensure(granted, "I15", || format!("{name} is free, and waited for"))?;
        if let Some(Grant { session, request, token }) = lock.holder {
            let state = self.state_of(session, request, name);
            ensure(
                matches!(state, Some(State::Held { token: own, .. }) if own == token),
                "I5",
                || format!("{name} is held by request {request} of session {session}: {state:?}"),
            )?;
        }
        for (ticket, (session, request)) in lock.queue.iter() {
            let state = self.state_of(session, request, name);
            let waits = matches!(state, Some(State::Waiting { ticket: own, .. }) if own == ticket);
            ensure(waits, "I11", || {
                format!("request {request} of session {session} waits for {name}: {state:?}")
            })?;
            ensure(ticket.get() <= self.counters.ticket, "I9", || {
                format!("ticket {ticket} was never given out")
            })?;
        }
        let in_order = lock.queue.iter().is_sorted_by_key(|(ticket, _)| ticket);
        ensure(in_order, "I9", || format!("the queue of {name} is out of order"))
    }

    fn state_of(&self, session: SessionId, request: RequestId, name: &LockName) -> Option<State> {
        match self.sessions.get(session)?.records.get(&request)? {
            Record::Asked { lock, state, .. } if lock == name => Some(*state),
            Record::Asked { .. } | Record::Spent => None,
        }
    }
}
