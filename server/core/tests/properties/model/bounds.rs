//! How long holds last at least and at most, in the model.

use holdfast_core::{
    Answer, Event, FencingToken, Grant, Identity, Item, Label, LockName, Mode, Need, Outcome,
    Quantity, Rejection, RequestId, SessionId, Terms,
};

use super::{Asked, Model, What, permits};

/// A lock that is closed since a hold of it ended.
pub(crate) struct Closed {
    pub(crate) lock: LockName,
    pub(crate) token: FencingToken,
    /// Who held it.
    pub(crate) owner: Identity,
}

impl Model {
    pub(super) fn refuse_bounds(&self, session: SessionId, asked: &Asked) -> Result<(), Rejection> {
        let Terms { max_hold_ms, hold_at_least_ms, .. } = asked.terms;
        if max_hold_ms == 0 && hold_at_least_ms == 0 {
            return Ok(());
        }
        let asked_ms = max_hold_ms.max(hold_at_least_ms);
        if asked_ms > 86_400_000 {
            return Err(Rejection::HoldBoundTooLong { asked_ms, max_ms: 86_400_000 });
        }
        if max_hold_ms > 0 && max_hold_ms < hold_at_least_ms {
            return Err(Rejection::HoldBoundsCross { max_hold_ms, hold_at_least_ms });
        }
        let open = self.session(session).unwrap();
        let owner = open.caller.identity.clone();
        let limit = self.limits.max_requests_per_session;
        if max_hold_ms > 0 && self.kept(session) + open.closed.len() as u64 >= limit {
            return Err(Rejection::TooManyRequests { session, limit });
        }
        let mut cost = 0;
        for item in &asked.items {
            let lock = item.lock.clone();
            if self.scope_of(&lock).is_some() {
                return Err(Rejection::HoldBoundsInScope { lock });
            }
            if hold_at_least_ms == 0 {
                continue;
            }
            if item.mode != Mode::Exclusive {
                return Err(Rejection::HoldAtLeastShared { lock });
            }
            cost += permits::cost(&lock);
            let limit = self.limits.max_value_bytes;
            if self.value_bytes() + cost > limit {
                return Err(Rejection::TooManyValueBytes { limit });
            }
            if let Some(full) = self.no_table_room(cost) {
                return Err(full);
            }
            self.refuse_over_quota(&owner, Quantity::ValueBytes, cost)?;
        }
        Ok(())
    }

    /// The identity of a session, and how long its request is to hold at least.
    pub(super) fn least_of(&self, grant: Grant) -> (Identity, u32) {
        let identity = self.session(grant.session).unwrap().caller.identity.clone();
        let request = self.request(grant.session, grant.request).unwrap();
        let least = match &request.what {
            What::Asked(asked) => asked.terms.hold_at_least_ms,
            What::Nothing | What::Write { .. } => 0,
        };
        (identity, least)
    }

    /// Whether a request has a bound of its hold.
    pub(super) fn is_bound(&self, session: SessionId, id: RequestId) -> bool {
        self.request(session, id).is_some_and(|request| match &request.what {
            What::Asked(Asked { terms, .. }) => terms.max_hold_ms.max(terms.hold_at_least_ms) > 0,
            What::Nothing | What::Write { .. } => false,
        })
    }

    /// The hold of these locks ends, that was to last a while at least.
    pub(super) fn close(
        &mut self,
        (owner, hold_at_least_ms): (Identity, u32),
        token: FencingToken,
        holds: &[Item],
        events: &mut Vec<Event>,
    ) {
        for item in holds.iter().filter(|_| hold_at_least_ms > 0) {
            let lock = item.lock.clone();
            events.push(Event::LockClosed { lock: lock.clone(), token, hold_at_least_ms });
            self.closed_locks.push(Closed { lock, token, owner: owner.clone() });
        }
    }

    pub(crate) fn is_shut(&self, lock: &LockName) -> bool {
        self.closed_locks.iter().any(|closed| closed.lock == *lock)
    }

    /// The closed lock that keeps a try from being granted.
    pub(super) fn shut_of(&self, asked: &Asked) -> Option<LockName> {
        in_the_way(asked, |lock| self.is_shut(lock))
    }

    pub(super) fn open_lock(
        &mut self,
        lock: &LockName,
        token: FencingToken,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let before = self.closed_locks.len();
        self.closed_locks.retain(|closed| closed.lock != *lock || closed.token != token);
        if self.closed_locks.len() == before {
            return Err(Rejection::NotClosed { lock: lock.clone(), token });
        }
        events.push(Event::LockOpened { lock: lock.clone(), token });
        self.hand_on(events);
        Ok(Answer::LockOpened)
    }

    pub(super) fn end_long_hold(
        &mut self,
        session: SessionId,
        token: FencingToken,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let open = self.session(session).filter(|open| open.stands_for.is_none());
        if open.is_none() {
            return Err(Rejection::UnknownSession { session });
        }
        let request = self.held(session, token)?.id;
        let grant = Grant { session, request, token };
        let reason = Label::parse("it was held for as long as its max_hold allows").unwrap();
        self.close_hold(grant, &reason, events);
        Ok(Answer::HoldsClosed { holds: vec![grant] })
    }
}

/// The first of those locks that nobody is granted, if a request is left with fewer than it needs.
pub(super) fn in_the_way(
    asked: &Asked,
    is_kept_back: impl Fn(&LockName) -> bool,
) -> Option<LockName> {
    let least = match asked.need {
        Need::All => asked.items.len(),
        Need::Any { min } => min.max(1) as usize,
    };
    let (kept_back, left): (Vec<&Item>, Vec<&Item>) =
        asked.items.iter().partition(|item| is_kept_back(&item.lock));
    kept_back.first().filter(|_| left.len() < least).map(|item| item.lock.clone())
}
