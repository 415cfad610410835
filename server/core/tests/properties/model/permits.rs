//! Permits in the model: the limits of locks, and whom a lowered limit refuses.

use holdfast_core::{
    Answer, Caller, Event, Identity, Item, Items, LockName, Mode, Outcome, Quantity, Rejection,
    RequestId, SessionId,
};

use super::{Arrival, Model, Request, State};

/// A limit that was set for good.
pub(crate) struct Kept {
    pub(crate) lock: LockName,
    pub(crate) owner: Identity,
    /// It goes when nobody holds the lock or waits for it.
    pub(crate) goes: bool,
}

impl Model {
    /// The limit in force.
    pub(crate) fn limit(&self, lock: &LockName) -> Option<u32> {
        self.permit_limits.iter().find(|(name, _)| name == lock).map(|(_, limit)| *limit)
    }

    pub(super) fn refuse_permits(&self, items: &[Item]) -> Result<(), Rejection> {
        for Item { lock, mode } in items {
            let Mode::Permits { count, limit: asked } = *mode else { continue };
            let lock = lock.clone();
            if self.scope_of(&lock).is_some() {
                return Err(Rejection::PermitsInScope { lock });
            }
            if asked == 0 && self.kept_limits.iter().all(|kept| kept.lock != lock) {
                return Err(Rejection::NoLimit { lock });
            }
            let limit = self.limit(&lock).unwrap_or(asked);
            if asked != 0 && asked != limit {
                return Err(Rejection::LimitDiffers { lock, limit, asked });
            }
            if count == 0 || count > limit {
                return Err(Rejection::PermitsOutOfRange { lock, permits: count, limit });
            }
        }
        Ok(())
    }

    /// The limits that a request which waits or holds brings along.
    pub(super) fn take_limits(&mut self, items: &[Item]) {
        for Item { lock, mode } in items {
            if let Mode::Permits { limit, .. } = *mode
                && self.limit(lock).is_none()
            {
                self.permit_limits.push((lock.clone(), limit));
            }
        }
    }

    pub(super) fn set_limit(
        &mut self,
        caller: &Caller,
        lock: LockName,
        limit: Option<u32>,
    ) -> Outcome {
        let kept = self.kept_limits.iter().position(|kept| kept.lock == lock);
        let Some(limit) = limit else {
            if let Some(at) = kept {
                self.kept_limits[at].goes = true;
            }
            return Ok(Answer::LimitSet);
        };
        if self.scope_of(&lock).is_some() {
            return Err(Rejection::PermitsInScope { lock });
        }
        if kept.is_none() {
            let most = self.limits.max_value_bytes;
            if self.value_bytes() + cost(&lock) > most {
                return Err(Rejection::TooManyValueBytes { limit: most });
            }
            if let Some(full) = self.no_table_room(cost(&lock)) {
                return Err(full);
            }
        }
        if kept.is_none_or(|at| self.kept_limits[at].owner != caller.identity) {
            self.refuse_over_quota(&caller.identity, Quantity::ValueBytes, cost(&lock))?;
        }
        self.kept_limits.retain(|kept| kept.lock != lock);
        self.permit_limits.retain(|(name, _)| *name != lock);
        self.permit_limits.push((lock.clone(), limit));
        self.kept_limits.push(Kept { lock, owner: caller.identity.clone(), goes: false });
        Ok(Answer::LimitSet)
    }

    /// The first waiter that stands first somewhere, and asks for more permits there than the limit.
    pub(super) fn next_above_limit(&self) -> Option<(Arrival, SessionId, RequestId, Rejection)> {
        let above = |request: &Request| {
            let arrival = request.arrival()?;
            let wrong = request.items().iter().find_map(|Item { lock, mode }| {
                let limit = self.limit(lock)?;
                let first = self.queue(lock)[0].arrival() == Some(arrival)
                    && !self.is_frozen(lock)
                    && !self.is_shut(lock);
                let permits = mode.permits();
                (first && permits > limit).then(|| Rejection::PermitsOutOfRange {
                    lock: lock.clone(),
                    permits,
                    limit,
                })
            });
            Some((arrival, request.session, request.id, wrong?))
        };
        self.requests.iter().filter_map(above).min_by_key(|(arrival, ..)| *arrival)
    }

    pub(super) fn refuse_waiter(
        &mut self,
        (session, id): (SessionId, RequestId),
        rejection: Rejection,
        events: &mut Vec<Event>,
    ) {
        let mark = self.session(session).unwrap().done_below;
        let own = |r: &&mut Request| (r.session, r.id) == (session, id);
        let request = self.requests.iter_mut().find(own).unwrap();
        request.state = State::Denied(rejection.clone());
        let items: Items = request.items().iter().cloned().collect();
        let denied = items.clone();
        events.push(Event::Denied { session, request: id, items: denied, rejection });
        events.push(Event::Left { session, request: id, items });
        self.forget_finished(session, mark);
    }

    /// Limits that nobody needs any more go.
    pub(super) fn drop_limits(&mut self) {
        let is_used = |lock: &LockName| {
            let permits = |item: &Item| item.lock == *lock && item.mode.is_permits();
            let live = |r: &Request| match r.arrival() {
                Some(_) => r.items().iter().any(permits),
                None => r.holds().iter().any(permits),
            };
            self.requests.iter().any(live)
        };
        let kept =
            |lock: &LockName| self.kept_limits.iter().any(|kept| kept.lock == *lock && !kept.goes);
        let names = self.permit_limits.iter().map(|(lock, _)| lock.clone());
        let over: Vec<LockName> = names.filter(|lock| !is_used(lock) && !kept(lock)).collect();
        self.permit_limits.retain(|(lock, _)| !over.contains(lock));
        self.kept_limits.retain(|kept| !over.contains(&kept.lock));
    }
}

/// A limit that was set for good counts as a value without bytes.
pub(crate) fn cost(lock: &LockName) -> u64 {
    256 + lock.as_str().len() as u64
}
