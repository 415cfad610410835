//! Scopes in the model.

use holdfast_core::{
    Answer, Event, Item, LockName, LossCause, Outcome, Rejection, ScopePrefix, ScopeState,
};

use super::{Model, Request};

impl Model {
    pub(super) fn set_scope(&mut self, scope: &ScopePrefix, events: &mut Vec<Event>) -> Outcome {
        if let Some(now) = self.scope(scope) {
            return Ok(Answer::Scope { now: Some(now) });
        }
        self.refuse_frozen_scope(scope)?;
        let set: Vec<ScopePrefix> = self.scopes.iter().map(|(other, _)| other.clone()).collect();
        let begins = |long: &ScopePrefix, short: &ScopePrefix| {
            long.as_str().as_bytes().starts_with(short.as_str().as_bytes())
        };
        let overlapping = |other: &&ScopePrefix| begins(other, scope) || begins(scope, other);
        if let Some(other) = set.iter().filter(overlapping).min() {
            let (scope, other) = (scope.clone(), other.clone());
            return Err(Rejection::ScopesOverlap { scope, other });
        }
        if set.len() >= 16 {
            return Err(Rejection::TooManyScopes { max: 16 });
        }
        if self.epoch > 32_000 {
            return Err(Rejection::EpochTooHigh { epoch: self.epoch, max: 32_000 });
        }
        self.refuse_to_cut(scope)?;
        self.scopes
            .push((scope.clone(), ScopeState { epoch: self.epoch, suspended: true, fresh: true }));
        Ok(self.tell_scope(scope, events))
    }

    /// Refuses a scope that would contain only a part of some request's locks, or whose locks are
    /// held under another epoch: reports the first such lock by its name.
    fn refuse_to_cut(&self, scope: &ScopePrefix) -> Result<(), Rejection> {
        let all = self.requests.iter().flat_map(in_use);
        let mut inside: Vec<LockName> =
            all.map(|item| item.lock).filter(|lock| is_in(scope, lock)).collect();
        let limited = self.permit_limits.iter().map(|(lock, _)| lock.clone());
        inside.extend(limited.filter(|lock| is_in(scope, lock)));
        let closed = self.closed_locks.iter().map(|closed| closed.lock.clone());
        inside.extend(closed.filter(|lock| is_in(scope, lock)));
        inside.sort();
        inside.dedup();
        for lock in inside {
            if self.is_shut(&lock) {
                return Err(Rejection::ScopeHasHoldBounds { scope: scope.clone(), lock });
            }
            if self.limit(&lock).is_some() {
                return Err(Rejection::ScopeHasLimit { scope: scope.clone(), lock });
            }
            let holders = self.holders(&lock).into_iter();
            let holders = holders.map(|(grant, _)| (grant.session, grant.request));
            let waiters = self.queue(&lock).into_iter().map(|r| (r.session, r.id));
            for (session, request) in holders.chain(waiters) {
                let found = self.request(session, request).unwrap();
                if in_use(found).iter().any(|item| !is_in(scope, &item.lock)) {
                    let (scope, lock) = (scope.clone(), lock.clone());
                    return Err(Rejection::ScopeCutsRequest { scope, session, lock });
                }
                if self.is_bound(session, request) {
                    let (scope, lock) = (scope.clone(), lock.clone());
                    return Err(Rejection::ScopeHasHoldBounds { scope, lock });
                }
                if let Some(token) = found.token()
                    && token.epoch() != u64::from(self.epoch)
                {
                    let (scope, lock, epoch) = (scope.clone(), lock.clone(), self.epoch);
                    return Err(Rejection::HeldInOtherEpoch { scope, lock, token, epoch });
                }
                if found.arrival().is_some() && self.has_head_start(session, request) {
                    let (scope, lock) = (scope.clone(), lock.clone());
                    return Err(Rejection::ScopeHasHeadStart { scope, session, lock });
                }
            }
        }
        Ok(())
    }

    pub(super) fn remove_scope(&mut self, scope: &ScopePrefix, events: &mut Vec<Event>) -> Outcome {
        let was = self.known(scope)?;
        self.scopes.retain(|(other, _)| other != scope);
        self.epoch = self.epoch.max(was.epoch + 1);
        let answer = self.tell_scope(scope, events);
        self.hand_on(events);
        Ok(answer)
    }

    pub(super) fn suspend(&mut self, scope: &ScopePrefix, events: &mut Vec<Event>) -> Outcome {
        let was = self.known(scope)?;
        Ok(self.change(scope, ScopeState { suspended: true, ..was }, events))
    }

    pub(super) fn resume(
        &mut self,
        scope: &ScopePrefix,
        epoch: u16,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let was = self.known(scope)?;
        if was.epoch != epoch {
            return Err(Rejection::OtherEpoch { scope: scope.clone(), epoch, now: was.epoch });
        }
        let answer =
            self.change(scope, ScopeState { epoch, suspended: false, fresh: false }, events);
        self.hand_on(events);
        Ok(answer)
    }

    pub(super) fn raise_epoch(
        &mut self,
        scope: &ScopePrefix,
        epoch: u16,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let was = self.known(scope)?;
        if epoch <= was.epoch {
            return Err(Rejection::EpochNotAbove { scope: scope.clone(), epoch, now: was.epoch });
        }
        if epoch > 32_000 {
            return Err(Rejection::EpochTooHigh { epoch, max: 32_000 });
        }
        let answer =
            self.change(scope, ScopeState { epoch, suspended: true, fresh: false }, events);
        let inside = |r: &&Request| r.holds().iter().any(|item| is_in(scope, &item.lock));
        let mut lost: Vec<Request> = self.requests.iter().filter(inside).cloned().collect();
        lost.sort_by_key(Request::token);
        for hold in lost {
            self.finish(hold.session, hold.id);
            events.push(Event::Lost {
                session: hold.session,
                request: hold.id,
                token: hold.token().unwrap(),
                items: hold.holds().iter().cloned().collect(),
                over: true,
                cause: LossCause::EpochRaised,
            });
            self.suspect(hold.holds(), events);
            self.hand_on(events);
        }
        Ok(answer)
    }

    fn scope(&self, scope: &ScopePrefix) -> Option<ScopeState> {
        self.scopes.iter().find(|(other, _)| other == scope).map(|(_, state)| *state)
    }

    fn known(&self, scope: &ScopePrefix) -> Result<ScopeState, Rejection> {
        self.scope(scope).ok_or_else(|| Rejection::UnknownScope { scope: scope.clone() })
    }

    fn change(&mut self, scope: &ScopePrefix, now: ScopeState, events: &mut Vec<Event>) -> Answer {
        let known = self.scopes.iter_mut().find(|(other, _)| other == scope).unwrap();
        if known.1 == now {
            return Answer::Scope { now: Some(now) };
        }
        known.1 = now;
        self.tell_scope(scope, events)
    }

    fn tell_scope(&self, scope: &ScopePrefix, events: &mut Vec<Event>) -> Answer {
        let now = self.scope(scope);
        events.push(Event::ScopeChanged { scope: scope.clone(), now });
        Answer::Scope { now }
    }

    pub(crate) fn scope_of(&self, lock: &LockName) -> Option<&(ScopePrefix, ScopeState)> {
        self.scopes.iter().find(|(scope, _)| is_in(scope, lock))
    }

    /// The epoch for a request of these items, which are all in one scope.
    pub(super) fn epoch_for(&self, items: &[Item]) -> u16 {
        self.scope_of(&items[0].lock).map_or(self.epoch, |(_, state)| state.epoch)
    }

    pub(super) fn is_suspended(&self, items: &[Item]) -> bool {
        self.scope_of(&items[0].lock).is_some_and(|(_, state)| state.suspended)
    }

    pub(super) fn refuse_several_scopes(&self, items: &[Item]) -> Result<(), Rejection> {
        let scope = |item: &Item| self.scope_of(&item.lock).map(|(scope, _)| scope);
        match items.iter().find(|item| scope(item) != scope(&items[0])) {
            Some(other) => {
                let (first, second) = (items[0].lock.clone(), other.lock.clone());
                Err(Rejection::SeveralScopes { first, second })
            }
            None => Ok(()),
        }
    }
}

/// The locks that a request waits for or holds.
fn in_use(request: &Request) -> Vec<Item> {
    let waits = if request.arrival().is_some() { request.items() } else { &[] };
    [waits, request.holds()].concat()
}

fn is_in(scope: &ScopePrefix, lock: &LockName) -> bool {
    lock.as_str().as_bytes().starts_with(scope.as_str().as_bytes())
}
