//! The start and the end of requests in the model.

use holdfast_core::{
    Acquired, Answer, Event, FencingToken, Grant, Item, LockName, Need, Outcome, Quantity,
    Rejection, RequestId, SessionId, Terms, Was,
};

use super::grants::told_contended;
use super::{Asked, Model, Request, State, What};

impl Model {
    pub(super) fn acquire(
        &mut self,
        mark: RequestId,
        session: SessionId,
        request: RequestId,
        asked: &Asked,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let what = What::Asked(asked.clone());
        if let Some(known) = self.seen(mark, session, request, &what)? {
            return self.again(known);
        }
        if let Some(full) = self.no_table_room_for(&what) {
            return Err(full);
        }
        self.refuse_over_quota_of(session, Quantity::Holds, asked.items.len() as u64)?;
        self.refuse_several_scopes(&asked.items)?;
        self.refuse_permits(&asked.items)?;
        self.refuse_head_start(asked)?;
        self.refuse_owner(session, asked)?;
        self.refuse_bounds(session, asked)?;
        let fitting = asked.items.iter().filter(|item| self.fits(item)).cloned().collect();
        if !self.has_tokens() && asked.takes(fitting).is_some() {
            return Err(Rejection::TokensExhausted { epoch: self.epoch_for(&asked.items) });
        }
        let arrival = self.arrival_now(asked.terms.head_start_ms, u64::MAX);
        let free = asked.takes(self.free_to(&asked.items, arrival));
        if let Some(holds) = free.filter(|_| !self.is_suspended(&asked.items)) {
            self.take_limits(&asked.items);
            self.keep(session, request, what, State::Over);
            let names: Vec<LockName> = holds.iter().map(|item| item.lock.clone()).collect();
            let state = self.grant(session, request, holds, events);
            if let Acquired::Granted { token, .. } = &state
                && asked.terms.head_start_ms > 0
            {
                let grant = Grant { session, request, token: *token };
                let waited_for = names.iter().filter(|name| !self.queue(name).is_empty());
                events.extend(waited_for.map(|name| told_contended(grant, name)));
            }
            return Ok(Answer::Acquired { request, state, fresh: true });
        }
        if !asked.wait || asked.need == (Need::Any { min: 0 }) {
            let rejection = self.why_denied(asked);
            self.keep(session, request, what, State::Denied(rejection.clone()));
            let items = asked.items.iter().cloned().collect();
            events.push(Event::Denied { session, request, items, rejection: rejection.clone() });
            return Err(rejection);
        }
        self.refuse_over_quota_of(session, Quantity::Waits, 1)?;
        self.wait(session, request, asked, events)
    }

    pub(super) fn wait(
        &mut self,
        session: SessionId,
        request: RequestId,
        asked: &Asked,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let limit = self.limits.max_waiters_per_lock;
        for Item { lock, .. } in &asked.items {
            if self.queue(lock).len() as u64 >= limit {
                return Err(Rejection::TooManyWaiters { lock: lock.clone(), limit });
            }
        }
        let mut contended = Vec::new();
        for Item { lock, .. } in &asked.items {
            if self.is_news_to_holders(lock, asked.terms.head_start_ms) {
                let holders = self.holders(lock).into_iter();
                contended.extend(holders.map(|(holder, _)| told_contended(holder, lock)));
            }
        }
        self.arrivals += 1;
        self.take_limits(&asked.items);
        let arrival = self.arrival_now(asked.terms.head_start_ms, self.arrivals);
        let state = State::Waiting { arrival, since_ms: self.stamp_ms };
        self.keep(session, request, What::Asked(asked.clone()), state);
        let known = self.request(session, request).unwrap();
        let place = self.place(known);
        let holder = self.first_holder(known);
        let items = asked.items.iter().cloned().collect();
        events.push(Event::Queued { session, request, items, place });
        events.extend(contended);
        let state = Acquired::Queued { place, holder };
        Ok(Answer::Acquired { request, state, fresh: true })
    }

    /// The request known under an id, if the id is used again for the same payload.
    pub(super) fn seen(
        &self,
        mark: RequestId,
        session: SessionId,
        request: RequestId,
        what: &What,
    ) -> Result<Option<&Request>, Rejection> {
        if request < mark {
            return Err(Rejection::RequestGone { request, done_below: mark });
        }
        match self.request(session, request) {
            Some(Request { what: What::Nothing, .. }) => Err(Rejection::RequestEnded { request }),
            Some(known) if known.what != *what => Err(Rejection::RequestReused { request }),
            Some(known) => Ok(Some(known)),
            None => {
                if *what != What::Nothing {
                    self.refuse_revoked(session)?;
                }
                let limit = self.limits.max_requests_per_session;
                if self.kept(session) >= limit {
                    return Err(Rejection::TooManyRequests { session, limit });
                }
                Ok(None)
            }
        }
    }

    pub(super) fn again(&self, known: &Request) -> Outcome {
        let request = known.id;
        let state = match &known.state {
            State::Over => return Err(Rejection::RequestEnded { request }),
            State::Denied(rejection) => return Err(rejection.clone()),
            State::Held { token, .. } if self.is_ending(known.session, *token) => {
                return Err(Rejection::RequestEnded { request });
            }
            State::Held { token, holds, .. } => {
                let (items, values) = self.with_values(holds);
                Acquired::Granted { token: *token, items, values }
            }
            State::Waiting { .. } => {
                Acquired::Queued { place: self.place(known), holder: self.first_holder(known) }
            }
        };
        Ok(Answer::Acquired { request, state, fresh: false })
    }

    pub(super) fn why_denied(&self, asked: &Asked) -> Rejection {
        if self.is_suspended(&asked.items) {
            return Rejection::Suspended { lock: asked.items[0].lock.clone() };
        }
        if let Some(lock) = self.frozen_of(asked) {
            return Rejection::Frozen { lock };
        }
        if let Some(lock) = self.shut_of(asked) {
            return Rejection::LockClosed { lock };
        }
        if let Need::Any { min } = asked.need {
            let arrival = self.arrival_now(asked.terms.head_start_ms, u64::MAX);
            let free = u32::try_from(self.free_to(&asked.items, arrival).len()).unwrap();
            return match min {
                0 | 1 => Rejection::NothingFree,
                min => Rejection::TooFewFree { min, free },
            };
        }
        for item in &asked.items {
            let lock = item.lock.clone();
            if !self.fits(item) {
                let (Grant { session: holder, token, .. }, _) = self.holders(&lock)[0];
                return Rejection::LockHeld { lock, holder, token };
            }
            let own = Some(self.arrival_now(asked.terms.head_start_ms, u64::MAX));
            if let Some(first) = self.queue(&lock).first().filter(|first| first.arrival() < own) {
                return Rejection::LockAwaited { lock, waiter: first.session };
            }
        }
        unreachable!("nothing was in the way")
    }

    pub(super) fn cancel(
        &mut self,
        mark: RequestId,
        session: SessionId,
        request: RequestId,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let Some(known) = self.request(session, request).cloned() else {
            self.seen(mark, session, request, &What::Nothing)?;
            if let Some(full) = self.no_table_room_for(&What::Nothing) {
                return Err(full);
            }
            self.keep(session, request, What::Nothing, State::Over);
            return Ok(Answer::Cancelled { request, was: Was::Unknown });
        };
        let was = match known.state {
            State::Waiting { .. } => {
                self.finish(session, request);
                let items = known.items().iter().cloned().collect();
                events.push(Event::Left { session, request, items });
                self.hand_on(events);
                Was::Waiting
            }
            State::Held { token, holds, .. } => {
                let is_lost = self.is_ending(session, token);
                self.let_go(session, token);
                self.give_back(session, token, &holds, is_lost, events);
                Was::Held { token }
            }
            State::Denied { .. } | State::Over => Was::Ended,
        };
        Ok(Answer::Cancelled { request, was })
    }

    pub(super) fn stop_waiting(
        &mut self,
        mark: RequestId,
        session: SessionId,
        request: RequestId,
        events: &mut Vec<Event>,
    ) -> Outcome {
        match self.request(session, request).cloned() {
            Some(known) if matches!(known.state, State::Waiting { .. }) => {
                self.cancel(mark, session, request, events)
            }
            Some(known) if known.is_live() => self.again(&known),
            Some(_) => Ok(Answer::Cancelled { request, was: Was::Ended }),
            None if request < mark => Err(Rejection::RequestGone { request, done_below: mark }),
            None => Ok(Answer::Cancelled { request, was: Was::Unknown }),
        }
    }

    pub(super) fn release(
        &mut self,
        session: SessionId,
        token: FencingToken,
        locks: &[LockName],
        is_lost: bool,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let held = match self.held(session, token) {
            Ok(held) => held,
            Err(rejection) => {
                self.let_go(session, token);
                return Err(rejection);
            }
        };
        let (request, holds) = (held.id, held.holds().to_vec());
        if locks.len() > 64 {
            return Err(Rejection::TooManyNames { names: locks.len() as u64, max: 64 });
        }
        for (at, lock) in locks.iter().enumerate() {
            if holds.iter().all(|item| item.lock != *lock) {
                return Err(Rejection::NotHeldUnder { session, token, lock: lock.clone() });
            }
            if locks[..at].contains(lock) {
                return Err(Rejection::NameTwice { lock: lock.clone() });
            }
        }
        let given = |item: &&Item| locks.is_empty() || locks.contains(&item.lock);
        let given: Vec<Item> = holds.iter().filter(given).cloned().collect();
        let is_lost = is_lost || self.is_ending(session, token);
        let over = given.len() == holds.len();
        if over {
            self.let_go(session, token);
        }
        self.give_back(session, token, &given, is_lost, events);
        Ok(Answer::Released { request, token, over })
    }

    pub(super) fn held(
        &self,
        session: SessionId,
        token: FencingToken,
    ) -> Result<&Request, Rejection> {
        let held = self.requests.iter().find(|r| r.session == session && r.token() == Some(token));
        held.ok_or(Rejection::NotHolder { session, token })
    }

    pub(super) fn give_back(
        &mut self,
        session: SessionId,
        token: FencingToken,
        given: &[Item],
        is_lost: bool,
        events: &mut Vec<Event>,
    ) {
        let held = |r: &&mut Request| r.session == session && r.token() == Some(token);
        let request = self.held(session, token).unwrap().id;
        self.close(self.least_of(Grant { session, request, token }), token, given, events);
        let found = self.requests.iter_mut().find(held).unwrap();
        let State::Held { holds, .. } = &mut found.state else { unreachable!("it holds") };
        holds.retain(|item| !given.contains(item));
        let over = holds.is_empty();
        if over {
            self.finish(session, request);
        }
        let items = given.iter().cloned().collect();
        events.push(Event::Released { session, request, token, items, over });
        if is_lost {
            self.suspect(given, events);
        }
        self.hand_on(events);
    }

    pub(super) fn finish(&mut self, session: SessionId, request: RequestId) {
        let found = self.requests.iter_mut().find(|r| r.session == session && r.id == request);
        found.unwrap().state = State::Over;
        let mark = self.session(session).unwrap().done_below;
        self.forget_finished(session, mark);
    }
}

/// The request, in the order of its names, if it makes sense.
pub(super) fn in_order(
    mut items: Vec<Item>,
    need: Need,
    wait: bool,
    terms: Terms,
) -> Result<Asked, Rejection> {
    items.sort();
    refuse_nonsense(&items, need)?;
    Ok(Asked { items, need, wait, terms })
}

/// What the older form of the command does not know; a request that makes no sense is refused for that.
pub(super) fn refuse_floor(names: usize, need: Need) -> Result<(), Rejection> {
    match need {
        Need::Any { min: min @ 2.. } if min as usize <= names && names <= 64 => {
            Err(Rejection::MinUnsupported { min })
        }
        _ => Ok(()),
    }
}

fn refuse_nonsense(items: &[Item], need: Need) -> Result<(), Rejection> {
    let names = items.len() as u64;
    if items.is_empty() {
        return Err(Rejection::NoNames);
    }
    if names > 64 {
        return Err(Rejection::TooManyNames { names, max: 64 });
    }
    if let Need::Any { min } = need
        && u64::from(min) > names
    {
        return Err(Rejection::MinAboveNames { min, names });
    }
    for (at, item) in items.iter().enumerate() {
        if items[..at].iter().any(|other| other.lock == item.lock) {
            return Err(Rejection::NameTwice { lock: item.lock.clone() });
        }
    }
    Ok(())
}
