//! Grants in the model: of the requests that can be granted, the earliest one comes first.

use holdfast_core::{
    Acquired, Event, FencingToken, Grant, Item, Items, LockName, Mode, RequestId, SessionId, Value,
};

use super::{Arrival, Model, Request, State, What, asks_for};

impl Model {
    /// Grants to the earliest request that can be granted, until there is none.
    pub(super) fn hand_on(&mut self, events: &mut Vec<Event>) {
        let mut granted = Vec::new();
        loop {
            let ready = self.next_to_grant();
            let first =
                ready.as_ref().and_then(|&(session, id, _)| self.request(session, id)?.arrival());
            if let Some((arrival, session, request, rejection)) = self.next_above_limit()
                && first.is_none_or(|first| arrival <= first)
            {
                self.refuse_waiter((session, request), rejection, events);
                continue;
            }
            let Some((session, request, holds)) = ready else { break };
            let names: Vec<LockName> = holds.iter().map(|item| item.lock.clone()).collect();
            let asked = self.request(session, request).unwrap().items().to_vec();
            let Acquired::Granted { token, .. } = self.grant(session, request, holds, events)
            else {
                unreachable!("it was granted")
            };
            let elsewhere = asked.into_iter().filter(|item| !names.contains(&item.lock));
            let items: Items = elsewhere.collect();
            if !items.is_empty() {
                events.push(Event::Left { session, request, items });
            }
            granted.push((Grant { session, request, token }, names));
        }
        for (grant, names) in granted {
            let waited_for = names.iter().filter(|name| !self.queue(name).is_empty());
            events.extend(waited_for.map(|name| told_contended(grant, name)));
        }
    }

    pub(super) fn next_to_grant(&self) -> Option<(SessionId, RequestId, Vec<Item>)> {
        if !self.has_tokens() {
            return None;
        }
        let mut waiting: Vec<(Arrival, &Request)> =
            self.requests.iter().filter_map(|r| Some((r.arrival()?, r))).collect();
        waiting.sort_by_key(|&(arrival, _)| arrival);
        waiting.into_iter().find_map(|(arrival, request)| {
            let What::Asked(asked) = &request.what else { return None };
            if self.is_suspended(&asked.items) {
                return None;
            }
            let holds = asked.takes(self.free_to(&asked.items, arrival))?;
            Some((request.session, request.id, holds))
        })
    }

    pub(super) fn grant(
        &mut self,
        session: SessionId,
        request: RequestId,
        holds: Vec<Item>,
        events: &mut Vec<Event>,
    ) -> Acquired {
        let epoch = self.epoch_for(&holds);
        let token = FencingToken::new(epoch, self.last_token + 1).unwrap();
        self.last_token += 1;
        let (items, values) = self.with_values(&holds);
        let found = self.requests.iter_mut().find(|r| (r.session, r.id) == (session, request));
        found.unwrap().state = State::Held { token, since_ms: self.stamp_ms, holds };
        let (told, with) = (items.clone(), values.clone());
        events.push(Event::Granted { session, request, token, items: told, values: with });
        Acquired::Granted { token, items, values }
    }

    pub(super) fn with_values(&self, items: &[Item]) -> (Items, Vec<(LockName, Value)>) {
        let value = |item: &Item| Some((item.lock.clone(), self.value(&item.lock)?.clone()));
        (items.iter().cloned().collect(), items.iter().filter_map(value).collect())
    }

    /// The locks of these that are free to a request that arrived at `arrival`.
    pub(super) fn free_to(&self, items: &[Item], arrival: Arrival) -> Vec<Item> {
        let earlier = |item: &Item| {
            self.requests.iter().any(|r| {
                r.arrival().is_some_and(|other| other < arrival) && asks_for(r, &item.lock)
            })
        };
        let is_kept_back = |lock: &LockName| self.is_frozen(lock) || self.is_shut(lock);
        let free = |item: &&Item| self.fits(item) && !earlier(item) && !is_kept_back(&item.lock);
        items.iter().filter(free).cloned().collect()
    }

    /// Whether all holders of the lock would share it with that item.
    pub(super) fn fits(&self, item: &Item) -> bool {
        let held = self.requests.iter().flat_map(Request::holds);
        let held: Vec<Mode> =
            held.filter(|held| held.lock == item.lock).map(|held| held.mode).collect();
        match item.mode {
            Mode::Exclusive => held.is_empty(),
            Mode::Shared => held.iter().all(|mode| *mode == Mode::Shared),
            Mode::Permits { count, limit } => {
                let used: u64 = held.iter().map(|mode| u64::from(mode.permits())).sum();
                let limit = self.limit(&item.lock).unwrap_or(limit);
                held.iter().all(|mode| mode.is_permits()) && used + u64::from(count) <= limit.into()
            }
        }
    }

    pub(super) fn has_tokens(&self) -> bool {
        self.last_token < FencingToken::COUNTER_MAX
    }

    pub(super) fn keep(&mut self, session: SessionId, id: RequestId, what: What, state: State) {
        self.requests.push(Request { session, id, what, state });
    }
}

pub(super) fn told_contended(holder: Grant, lock: &LockName) -> Event {
    let Grant { session, request, token } = holder;
    Event::Contended { session, request, lock: lock.clone(), token }
}
