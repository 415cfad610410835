//! The lock table once more, as plainly as it can be written: lists, looked through from the front.
//! It shares no code with the core but the words of the contract (commands, events, rejections).

use holdfast_core::{
    Acquired, Answer, Command, Counters, EndCause, Event, FencingToken, Grant, Item, Items, Limits,
    LockName, Mode, Need, Outcome, Rejection, RequestId, SessionId, Tenure, Value, ValueChange,
    Was,
};

pub(crate) struct Model {
    pub(crate) limits: Limits,
    pub(crate) stamp_ms: u64,
    pub(crate) sessions: Vec<Session>,
    /// Of all sessions, in no order.
    pub(crate) requests: Vec<Request>,
    /// At most one for each lock, in no order.
    pub(crate) values: Vec<(LockName, Value)>,
    epoch: u16,
    last_token: u64,
    last_session: u64,
    arrivals: u64,
}

pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) ttl_ms: u64,
    pub(crate) done_below: RequestId,
}

#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) session: SessionId,
    pub(crate) id: RequestId,
    pub(crate) what: What,
    pub(crate) state: State,
}

#[derive(Clone, PartialEq)]
pub(crate) enum What {
    /// Only a cancel was seen.
    Nothing,
    Asked(Asked),
    Write {
        token: FencingToken,
        lock: LockName,
        change: ValueChange,
    },
}

#[derive(Clone, PartialEq)]
pub(crate) struct Asked {
    /// In the order of their names.
    pub(crate) items: Vec<Item>,
    pub(crate) need: Need,
    pub(crate) wait: bool,
}

#[derive(Clone, PartialEq)]
pub(crate) enum State {
    Waiting { arrival: u64, since_ms: u64 },
    Held { token: FencingToken, since_ms: u64, holds: Vec<Item> },
    Denied(Rejection),
    Over,
}

impl Request {
    pub(crate) fn items(&self) -> &[Item] {
        match &self.what {
            What::Asked(asked) => &asked.items,
            What::Nothing | What::Write { .. } => &[],
        }
    }

    pub(crate) fn arrival(&self) -> Option<u64> {
        match self.state {
            State::Waiting { arrival, .. } => Some(arrival),
            _ => None,
        }
    }

    pub(crate) fn token(&self) -> Option<FencingToken> {
        match self.state {
            State::Held { token, .. } => Some(token),
            _ => None,
        }
    }

    pub(crate) fn holds(&self) -> &[Item] {
        match &self.state {
            State::Held { holds, .. } => holds,
            _ => &[],
        }
    }

    fn is_live(&self) -> bool {
        self.arrival().is_some() || self.token().is_some()
    }
}

impl Asked {
    /// What it is granted if these are free to it.
    fn takes(&self, free: Vec<Item>) -> Option<Vec<Item>> {
        let enough = match self.need {
            Need::All => free.len() == self.items.len(),
            Need::Any { .. } => !free.is_empty(),
        };
        enough.then_some(free)
    }
}

impl Model {
    pub(crate) fn new(counters: Counters) -> Self {
        Self {
            limits: Limits::default(),
            stamp_ms: 0,
            sessions: Vec::new(),
            requests: Vec::new(),
            values: Vec::new(),
            epoch: counters.epoch,
            last_token: counters.token,
            last_session: counters.session,
            arrivals: 0,
        }
    }

    pub(crate) fn apply(&mut self, tenure: Tenure, command: &Command) -> (Outcome, Vec<Event>) {
        let mut events = Vec::new();
        let outcome = self.outcome(tenure, command.clone(), &mut events);
        (outcome, events)
    }

    fn outcome(&mut self, tenure: Tenure, command: Command, events: &mut Vec<Event>) -> Outcome {
        match command {
            Command::Configure { limits } => self.configure(limits),
            Command::OpenSession { ttl_ms, .. } => self.open(ttl_ms, events),
            Command::CloseSession { session } => self.end(session, EndCause::Closed, events),
            Command::ExpireSession { session, tenure: heard_in } => {
                if self.session(session).is_some() && heard_in != tenure {
                    return Err(Rejection::OtherTenure { session, heard_in, proposed_in: tenure });
                }
                self.end(session, EndCause::Expired, events)
            }
            Command::Acquire { session, done_below, request, items, need, wait } => {
                let mark = self.confirm(session, done_below)?;
                let mut items = items;
                items.sort();
                refuse_nonsense(&items, need)?;
                self.acquire(mark, session, request, Asked { items, need, wait }, events)
            }
            Command::Cancel { session, done_below, request } => {
                let mark = self.confirm(session, done_below)?;
                self.cancel(mark, session, request, events)
            }
            Command::Release { session, done_below, token, locks } => {
                self.confirm(session, done_below)?;
                self.release(session, token, &locks, events)
            }
            Command::SetValue { session, done_below, request, token, lock, change } => {
                let mark = self.confirm(session, done_below)?;
                if let ValueChange::Set(bytes) = &change
                    && bytes.len() > 4_096
                {
                    return Err(Rejection::ValueTooLarge { len: bytes.len() as u64, max: 4_096 });
                }
                self.write(mark, session, request, What::Write { token, lock, change }, events)
            }
        }
    }

    fn configure(&mut self, limits: Limits) -> Outcome {
        let day_ms = 24 * 60 * 60 * 1_000;
        if limits.max_sessions == 0
            || limits.max_requests_per_session == 0
            || limits.max_waiters_per_lock == 0
            || limits.ttl_min_ms == 0
            || limits.ttl_min_ms > limits.ttl_max_ms
            || limits.ttl_max_ms > day_ms
        {
            // The text is for people; the test compares the kind only.
            return Err(Rejection::UnusableLimits { reason: String::new() });
        }
        self.limits = limits;
        Ok(Answer::Configured)
    }

    fn open(&mut self, ttl_ms: u64, events: &mut Vec<Event>) -> Outcome {
        let Limits { ttl_min_ms: min_ms, ttl_max_ms: max_ms, max_sessions: limit, .. } =
            self.limits;
        if ttl_ms < min_ms || ttl_ms > max_ms {
            return Err(Rejection::TtlOutOfRange { ttl_ms, min_ms, max_ms });
        }
        if self.sessions.len() as u64 >= limit {
            return Err(Rejection::TooManySessions { limit });
        }
        self.last_session += 1;
        let session = SessionId::new(self.last_session);
        self.sessions.push(Session { id: session, ttl_ms, done_below: RequestId::new(0) });
        events.push(Event::SessionOpened { session });
        Ok(Answer::SessionOpened { session })
    }

    fn end(&mut self, session: SessionId, cause: EndCause, events: &mut Vec<Event>) -> Outcome {
        if self.session(session).is_none() {
            return Err(Rejection::UnknownSession { session });
        }
        self.sessions.retain(|open| open.id != session);
        let own = |request: &&Request| request.session == session;
        let mut waits: Vec<Request> = self.requests.iter().filter(own).cloned().collect();
        waits.retain(|request| request.arrival().is_some());
        waits.sort_by_key(Request::arrival);
        self.requests.retain(|r| r.session != session || r.token().is_some());
        for wait in waits {
            let items = wait.items().iter().cloned().collect();
            events.push(Event::Left { session, request: wait.id, items });
        }
        self.hand_on(events);
        while let Some(at) = self.first_hold_of(session) {
            let lost = self.requests.swap_remove(at);
            let (request, token) = (lost.id, lost.token().unwrap());
            let items = lost.holds().iter().cloned().collect();
            events.push(Event::Lost { session, request, token, items, over: true, cause });
            if cause == EndCause::Expired {
                self.suspect(lost.holds(), events);
            }
            self.hand_on(events);
        }
        events.push(Event::SessionEnded { session, cause });
        Ok(Answer::SessionEnded)
    }

    /// Where the oldest hold of a session is.
    fn first_hold_of(&self, session: SessionId) -> Option<usize> {
        let held = |(_, request): &(usize, &Request)| {
            request.session == session && request.token().is_some()
        };
        let holds = self.requests.iter().enumerate().filter(held);
        holds.min_by_key(|(_, request)| request.token()).map(|(at, _)| at)
    }

    fn suspect(&mut self, lost: &[Item], events: &mut Vec<Event>) {
        for item in lost.iter().filter(|item| item.mode == Mode::Exclusive) {
            let lock = item.lock.clone();
            let Some(value) = self.value_mut(&lock).filter(|value| !value.suspect) else {
                continue;
            };
            value.suspect = true;
            let value = Some(value.clone());
            events.push(Event::ValueChanged { lock, value });
        }
    }

    fn confirm(&mut self, id: SessionId, done_below: RequestId) -> Result<RequestId, Rejection> {
        let Some(session) = self.sessions.iter_mut().find(|session| session.id == id) else {
            return Err(Rejection::UnknownSession { session: id });
        };
        session.done_below = session.done_below.max(done_below);
        let mark = session.done_below;
        self.forget_finished(id, mark);
        Ok(mark)
    }

    fn forget_finished(&mut self, session: SessionId, mark: RequestId) {
        self.requests.retain(|r| r.session != session || r.id >= mark || r.is_live());
    }

    fn acquire(
        &mut self,
        mark: RequestId,
        session: SessionId,
        request: RequestId,
        asked: Asked,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let what = What::Asked(asked.clone());
        if let Some(known) = self.seen(mark, session, request, &what)? {
            return self.again(known);
        }
        let fitting = asked.items.iter().filter(|item| self.fits(item)).cloned().collect();
        if self.next_token().is_none() && asked.takes(fitting).is_some() {
            return Err(Rejection::TokensExhausted { epoch: self.epoch });
        }
        if let Some(holds) = asked.takes(self.free_to(&asked.items, u64::MAX)) {
            self.keep(session, request, what, State::Over);
            let state = self.grant(session, request, holds, events);
            return Ok(Answer::Acquired { request, state, fresh: true });
        }
        if !asked.wait || asked.need == (Need::Any { min: 0 }) {
            let rejection = self.why_denied(&asked);
            self.keep(session, request, what, State::Denied(rejection.clone()));
            let items = asked.items.iter().cloned().collect();
            events.push(Event::Denied { session, request, items, rejection: rejection.clone() });
            return Err(rejection);
        }
        self.wait(session, request, &asked, events)
    }

    fn wait(
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
            if self.queue(lock).is_empty() {
                let holders = self.holders(lock).into_iter();
                contended.extend(holders.map(|(holder, _)| told_contended(holder, lock)));
            }
        }
        self.arrivals += 1;
        let state = State::Waiting { arrival: self.arrivals, since_ms: self.stamp_ms };
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

    /// What is known of an id, if it is used again for the same.
    fn seen(
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
                let limit = self.limits.max_requests_per_session;
                if self.kept(session) >= limit {
                    return Err(Rejection::TooManyRequests { session, limit });
                }
                Ok(None)
            }
        }
    }

    fn again(&self, known: &Request) -> Outcome {
        let request = known.id;
        let state = match &known.state {
            State::Over => return Err(Rejection::RequestEnded { request }),
            State::Denied(rejection) => return Err(rejection.clone()),
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

    fn why_denied(&self, asked: &Asked) -> Rejection {
        if asked.need != Need::All {
            return Rejection::NothingFree;
        }
        for item in &asked.items {
            let lock = item.lock.clone();
            if !self.fits(item) {
                let (Grant { session: holder, token, .. }, _) = self.holders(&lock)[0];
                return Rejection::LockHeld { lock, holder, token };
            }
            if let Some(first) = self.queue(&lock).first() {
                return Rejection::LockAwaited { lock, waiter: first.session };
            }
        }
        unreachable!("nothing was in the way")
    }

    fn cancel(
        &mut self,
        mark: RequestId,
        session: SessionId,
        request: RequestId,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let Some(known) = self.request(session, request).cloned() else {
            self.seen(mark, session, request, &What::Nothing)?;
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
                self.give_back(session, token, &holds, events);
                Was::Held { token }
            }
            State::Denied { .. } | State::Over => Was::Ended,
        };
        Ok(Answer::Cancelled { request, was })
    }

    fn release(
        &mut self,
        session: SessionId,
        token: FencingToken,
        locks: &[LockName],
        events: &mut Vec<Event>,
    ) -> Outcome {
        let held = self.held(session, token)?;
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
        self.give_back(session, token, &given, events);
        Ok(Answer::Released { request, token, over: given.len() == holds.len() })
    }

    fn held(&self, session: SessionId, token: FencingToken) -> Result<&Request, Rejection> {
        let held = self.requests.iter().find(|r| r.session == session && r.token() == Some(token));
        held.ok_or(Rejection::NotHolder { session, token })
    }

    fn give_back(
        &mut self,
        session: SessionId,
        token: FencingToken,
        given: &[Item],
        events: &mut Vec<Event>,
    ) {
        let held = |r: &&mut Request| r.session == session && r.token() == Some(token);
        let found = self.requests.iter_mut().find(held).unwrap();
        let request = found.id;
        let State::Held { holds, .. } = &mut found.state else { unreachable!("it holds") };
        holds.retain(|item| !given.contains(item));
        let over = holds.is_empty();
        if over {
            self.finish(session, request);
        }
        let items = given.iter().cloned().collect();
        events.push(Event::Released { session, request, token, items, over });
        self.hand_on(events);
    }

    fn finish(&mut self, session: SessionId, request: RequestId) {
        let found = self.requests.iter_mut().find(|r| r.session == session && r.id == request);
        found.unwrap().state = State::Over;
        let mark = self.session(session).unwrap().done_below;
        self.forget_finished(session, mark);
    }

    fn write(
        &mut self,
        mark: RequestId,
        session: SessionId,
        request: RequestId,
        what: What,
        events: &mut Vec<Event>,
    ) -> Outcome {
        if self.seen(mark, session, request, &what)?.is_some() {
            return Ok(Answer::ValueSet { request, fresh: false });
        }
        let What::Write { token, lock, change } = what.clone() else { unreachable!("a write") };
        let holds = self.held(session, token)?.holds();
        match holds.iter().find(|item| item.lock == lock).map(|item| item.mode) {
            None => return Err(Rejection::NotHeldUnder { session, token, lock }),
            Some(Mode::Shared) => return Err(Rejection::NotExclusive { lock, token }),
            Some(Mode::Exclusive) => {}
        }
        let before = self.value(&lock).cloned();
        let after = match change {
            ValueChange::Clear => None,
            ValueChange::Confirm => match &before {
                None => return Err(Rejection::NoValue { lock }),
                Some(value) => Some(Value { suspect: false, ..value.clone() }),
            },
            ValueChange::Set(bytes) => {
                let after = Value { bytes: bytes.into(), set_by: token, suspect: false };
                let grows = before.as_ref().is_none_or(|b| b.bytes.len() < after.bytes.len());
                let others = self.values.iter().filter(|(name, _)| *name != lock);
                let total: u64 =
                    others.map(cost).sum::<u64>() + cost(&(lock.clone(), after.clone()));
                let limit = self.limits.max_value_bytes;
                if grows && total > limit {
                    return Err(Rejection::TooManyValueBytes { limit });
                }
                Some(after)
            }
        };
        // A value that is set is news, also if it is the same again.
        if before != after || matches!(what, What::Write { change: ValueChange::Set(_), .. }) {
            self.values.retain(|(name, _)| *name != lock);
            self.values.extend(after.clone().map(|value| (lock.clone(), value)));
            events.push(Event::ValueChanged { lock, value: after });
        }
        self.keep(session, request, what, State::Over);
        Ok(Answer::ValueSet { request, fresh: true })
    }

    /// Grants to whoever came first of those who can be granted, until nobody can.
    fn hand_on(&mut self, events: &mut Vec<Event>) {
        let mut granted = Vec::new();
        while let Some((session, request, holds)) = self.next_to_grant() {
            let names: Vec<LockName> = holds.iter().map(|item| item.lock.clone()).collect();
            let Acquired::Granted { token, .. } = self.grant(session, request, holds, events)
            else {
                unreachable!("it was granted")
            };
            granted.push((Grant { session, request, token }, names));
        }
        for (grant, names) in granted {
            let waited_for = names.iter().filter(|name| !self.queue(name).is_empty());
            events.extend(waited_for.map(|name| told_contended(grant, name)));
        }
    }

    fn next_to_grant(&self) -> Option<(SessionId, RequestId, Vec<Item>)> {
        self.next_token()?;
        let mut waiting: Vec<(u64, &Request)> =
            self.requests.iter().filter_map(|r| Some((r.arrival()?, r))).collect();
        waiting.sort_by_key(|&(arrival, _)| arrival);
        waiting.into_iter().find_map(|(arrival, request)| {
            let What::Asked(asked) = &request.what else { return None };
            let holds = asked.takes(self.free_to(&asked.items, arrival))?;
            Some((request.session, request.id, holds))
        })
    }

    fn grant(
        &mut self,
        session: SessionId,
        request: RequestId,
        holds: Vec<Item>,
        events: &mut Vec<Event>,
    ) -> Acquired {
        let token = self.next_token().unwrap();
        self.last_token += 1;
        let (items, values) = self.with_values(&holds);
        let found = self.requests.iter_mut().find(|r| (r.session, r.id) == (session, request));
        found.unwrap().state = State::Held { token, since_ms: self.stamp_ms, holds };
        let (told, with) = (items.clone(), values.clone());
        events.push(Event::Granted { session, request, token, items: told, values: with });
        Acquired::Granted { token, items, values }
    }

    fn with_values(&self, items: &[Item]) -> (Items, Vec<(LockName, Value)>) {
        let value = |item: &Item| Some((item.lock.clone(), self.value(&item.lock)?.clone()));
        (items.iter().cloned().collect(), items.iter().filter_map(value).collect())
    }

    /// Which of these are free to a request that came when `arrival` says.
    fn free_to(&self, items: &[Item], arrival: u64) -> Vec<Item> {
        let earlier = |item: &Item| {
            self.requests.iter().any(|r| {
                r.arrival().is_some_and(|other| other < arrival) && asks_for(r, &item.lock)
            })
        };
        items.iter().filter(|item| self.fits(item) && !earlier(item)).cloned().collect()
    }

    /// Whether all who hold the lock would share it with that one.
    fn fits(&self, item: &Item) -> bool {
        let mut held = self.requests.iter().flat_map(Request::holds);
        held.all(|held| {
            held.lock != item.lock || (held.mode == Mode::Shared && item.mode == Mode::Shared)
        })
    }

    fn next_token(&self) -> Option<FencingToken> {
        FencingToken::new(self.epoch, self.last_token + 1)
    }

    fn keep(&mut self, session: SessionId, id: RequestId, what: What, state: State) {
        self.requests.push(Request { session, id, what, state });
    }

    pub(crate) fn session(&self, id: SessionId) -> Option<&Session> {
        self.sessions.iter().find(|session| session.id == id)
    }

    pub(crate) fn request(&self, session: SessionId, id: RequestId) -> Option<&Request> {
        self.requests.iter().find(|r| r.session == session && r.id == id)
    }

    pub(crate) fn value(&self, lock: &LockName) -> Option<&Value> {
        self.values.iter().find(|(name, _)| name == lock).map(|(_, value)| value)
    }

    fn value_mut(&mut self, lock: &LockName) -> Option<&mut Value> {
        self.values.iter_mut().find(|(name, _)| name == lock).map(|(_, value)| value)
    }

    /// Who holds a lock, and how, first come first.
    pub(crate) fn holders(&self, lock: &LockName) -> Vec<(Grant, Mode)> {
        let mut holders = Vec::new();
        for r in &self.requests {
            if let Some(held) = r.holds().iter().find(|item| item.lock == *lock) {
                let (session, request, token) = (r.session, r.id, r.token().unwrap());
                holders.push((Grant { session, request, token }, held.mode));
            }
        }
        holders.sort_by_key(|(grant, _)| grant.token);
        holders
    }

    fn first_holder(&self, request: &Request) -> Option<Grant> {
        let mut held = request.items().iter().map(|item| self.holders(&item.lock));
        held.find_map(|holders| Some(holders.first()?.0))
    }

    /// Who waits for a lock, first come first.
    pub(crate) fn queue(&self, lock: &LockName) -> Vec<&Request> {
        let waits = |r: &&Request| r.arrival().is_some() && asks_for(r, lock);
        let mut queue: Vec<&Request> = self.requests.iter().filter(waits).collect();
        queue.sort_by_key(|request| request.arrival());
        queue
    }

    /// The last of its places for one that needs all; the best for one that needs any.
    pub(crate) fn place(&self, waiting: &Request) -> u64 {
        let before = |item: &Item| {
            let queue = self.queue(&item.lock);
            queue.iter().filter(|other| other.arrival() < waiting.arrival()).count() as u64
        };
        let places = waiting.items().iter().map(before);
        let What::Asked(asked) = &waiting.what else { unreachable!("it waits") };
        if asked.need == Need::All { places.max().unwrap() } else { places.min().unwrap() }
    }

    fn kept(&self, session: SessionId) -> u64 {
        self.requests.iter().filter(|request| request.session == session).count() as u64
    }
}

fn asks_for(request: &Request, lock: &LockName) -> bool {
    request.items().iter().any(|item| item.lock == *lock)
}

/// What a value counts: its bytes, its name's, and 256.
pub(crate) fn cost((name, value): &(LockName, Value)) -> u64 {
    256 + name.as_str().len() as u64 + value.bytes.len() as u64
}

fn refuse_nonsense(items: &[Item], need: Need) -> Result<(), Rejection> {
    let names = items.len() as u64;
    if items.is_empty() {
        return Err(Rejection::NoNames);
    }
    if names > 64 {
        return Err(Rejection::TooManyNames { names, max: 64 });
    }
    if let Need::Any { min } = need {
        if u64::from(min) > names {
            return Err(Rejection::MinAboveNames { min, names });
        }
        if min > 1 {
            return Err(Rejection::MinUnsupported { min });
        }
    }
    for (at, item) in items.iter().enumerate() {
        if items[..at].iter().any(|other| other.lock == item.lock) {
            return Err(Rejection::NameTwice { lock: item.lock.clone() });
        }
    }
    Ok(())
}

fn told_contended(holder: Grant, lock: &LockName) -> Event {
    let Grant { session, request, token } = holder;
    Event::Contended { session, request, lock: lock.clone(), token }
}
