//! The lock table once more, as plainly as it can be written: lists, looked through from the front.
//! It shares no code with the core but the words of the contract (commands, events, rejections).

use holdfast_core::{
    Acquired, Answer, Command, Counters, EndCause, Event, FencingToken, Grant, Item, Items, Limits,
    LockName, Outcome, Rejection, RequestId, SessionId, Tenure, Was,
};

pub(crate) struct Model {
    pub(crate) limits: Limits,
    pub(crate) stamp_ms: u64,
    pub(crate) sessions: Vec<Session>,
    /// Of all sessions, in no order.
    pub(crate) requests: Vec<Request>,
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
    /// What was asked for; nothing if only a cancel was seen.
    pub(crate) asked: Option<(LockName, bool)>,
    pub(crate) state: State,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum State {
    Waiting { arrival: u64, since_ms: u64 },
    Held { token: FencingToken, since_ms: u64 },
    Denied { holder: SessionId, token: FencingToken },
    Over,
}

impl Request {
    pub(crate) fn is_for(&self, lock: &LockName) -> bool {
        self.asked.as_ref().is_some_and(|(asked, _)| asked == lock)
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

    fn is_live(&self) -> bool {
        self.arrival().is_some() || self.token().is_some()
    }
}

impl Model {
    pub(crate) fn new(counters: Counters) -> Self {
        Self {
            limits: Limits::default(),
            stamp_ms: 0,
            sessions: Vec::new(),
            requests: Vec::new(),
            epoch: counters.epoch,
            last_token: counters.token,
            last_session: counters.session,
            arrivals: 0,
        }
    }

    pub(crate) fn apply(&mut self, tenure: Tenure, command: &Command) -> (Outcome, Vec<Event>) {
        let mut events = Vec::new();
        let outcome = match command.clone() {
            Command::Configure { limits } => self.configure(limits),
            Command::OpenSession { ttl_ms, .. } => self.open(ttl_ms, &mut events),
            Command::CloseSession { session } => self.end(session, EndCause::Closed, &mut events),
            Command::ExpireSession { session, tenure: heard_in } => {
                if self.session(session).is_some() && heard_in != tenure {
                    Err(Rejection::OtherTenure { session, heard_in, proposed_in: tenure })
                } else {
                    self.end(session, EndCause::Expired, &mut events)
                }
            }
            Command::Acquire { session, done_below, request, items, wait, .. } => {
                self.confirm(session, done_below).and_then(|mark| {
                    self.acquire(mark, session, request, &items[0].lock, wait, &mut events)
                })
            }
            Command::Cancel { session, done_below, request } => self
                .confirm(session, done_below)
                .and_then(|mark| self.cancel(mark, session, request, &mut events)),
            Command::Release { session, done_below, token, .. } => self
                .confirm(session, done_below)
                .and_then(|_| self.release(session, token, &mut events)),
            Command::SetValue { .. } => unreachable!("not drawn"),
        };
        (outcome, events)
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
        let (mut own, others): (Vec<Request>, Vec<Request>) =
            std::mem::take(&mut self.requests).into_iter().partition(|r| r.session == session);
        self.requests = others;
        self.sessions.retain(|open| open.id != session);

        own.sort_by_key(Request::arrival);
        for request in own.iter().filter(|request| request.arrival().is_some()) {
            let (lock, _) = request.asked.clone().unwrap();
            events.push(Event::Left { session, request: request.id, items: one(&lock) });
        }
        own.sort_by_key(Request::token);
        for request in &own {
            let Some(token) = request.token() else { continue };
            let (lock, _) = request.asked.clone().unwrap();
            let id = request.id;
            let (items, over) = (one(&lock), true);
            events.push(Event::Lost { session, request: id, token, items, over, cause });
            self.hand_on(&lock, events);
        }
        events.push(Event::SessionEnded { session, cause });
        Ok(Answer::SessionEnded)
    }

    /// Takes the confirmation and returns the session's mark.
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
        done_below: RequestId,
        session: SessionId,
        request: RequestId,
        lock: &LockName,
        wait: bool,
        events: &mut Vec<Event>,
    ) -> Outcome {
        if request < done_below {
            return Err(Rejection::RequestGone { request, done_below });
        }
        if let Some(known) = self.request(session, request) {
            return self.again(known, lock, wait);
        }
        let limit = self.limits.max_requests_per_session;
        if self.kept(session) >= limit {
            return Err(Rejection::TooManyRequests { session, limit });
        }
        let queue = self.queue(lock);
        let Some(holder) = self.holder(lock) else {
            let exhausted = Rejection::TokensExhausted { epoch: self.epoch };
            if !queue.is_empty() {
                return Err(exhausted);
            }
            let token = self.draw().ok_or(exhausted)?;
            self.keep(session, request, lock, wait, State::Held { token, since_ms: self.stamp_ms });
            events.push(Event::Granted {
                session,
                request,
                token,
                items: one(lock),
                values: vec![],
            });
            let state = Acquired::Granted { token, items: one(lock), values: vec![] };
            return Ok(Answer::Acquired { request, state, fresh: true });
        };
        if !wait {
            let Grant { session: holder, token, .. } = holder;
            let rejection = Rejection::LockHeld { lock: lock.clone(), holder, token };
            self.keep(session, request, lock, wait, State::Denied { holder, token });
            let items = one(lock);
            events.push(Event::Denied { session, request, items, rejection: rejection.clone() });
            return Err(rejection);
        }
        let limit = self.limits.max_waiters_per_lock;
        let place = queue.len() as u64;
        if place >= limit {
            return Err(Rejection::TooManyWaiters { lock: lock.clone(), limit });
        }
        self.arrivals += 1;
        let state = State::Waiting { arrival: self.arrivals, since_ms: self.stamp_ms };
        self.keep(session, request, lock, wait, state);
        events.push(Event::Queued { session, request, items: one(lock), place });
        if place == 0 {
            events.push(contended(holder, lock));
        }
        let state = Acquired::Queued { place, holder: Some(holder) };
        Ok(Answer::Acquired { request, state, fresh: true })
    }

    fn again(&self, known: &Request, lock: &LockName, wait: bool) -> Outcome {
        let request = known.id;
        if known.asked.as_ref().is_some_and(|asked| *asked != (lock.clone(), wait)) {
            return Err(Rejection::RequestReused { request });
        }
        let state = match known.state {
            State::Over => return Err(Rejection::RequestEnded { request }),
            State::Denied { holder, token } => {
                return Err(Rejection::LockHeld { lock: lock.clone(), holder, token });
            }
            State::Held { token, .. } => {
                Acquired::Granted { token, items: one(lock), values: vec![] }
            }
            State::Waiting { .. } => {
                Acquired::Queued { place: self.place(known), holder: self.holder(lock) }
            }
        };
        Ok(Answer::Acquired { request, state, fresh: false })
    }

    fn cancel(
        &mut self,
        done_below: RequestId,
        session: SessionId,
        request: RequestId,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let Some(known) = self.request(session, request).cloned() else {
            if request < done_below {
                return Err(Rejection::RequestGone { request, done_below });
            }
            let limit = self.limits.max_requests_per_session;
            if self.kept(session) >= limit {
                return Err(Rejection::TooManyRequests { session, limit });
            }
            self.requests.push(Request { session, id: request, asked: None, state: State::Over });
            return Ok(Answer::Cancelled { request, was: Was::Unknown });
        };
        let was = match known.state {
            State::Waiting { .. } => {
                self.finish(session, request);
                let (lock, _) = known.asked.unwrap();
                events.push(Event::Left { session, request, items: one(&lock) });
                Was::Waiting
            }
            State::Held { token, .. } => {
                self.give_back(session, request, token, events);
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
        events: &mut Vec<Event>,
    ) -> Outcome {
        let held = self.requests.iter().find(|r| r.session == session && r.token() == Some(token));
        let Some(request) = held.map(|request| request.id) else {
            return Err(Rejection::NotHolder { session, token });
        };
        self.give_back(session, request, token, events);
        Ok(Answer::Released { request, token, over: true })
    }

    fn give_back(
        &mut self,
        session: SessionId,
        request: RequestId,
        token: FencingToken,
        events: &mut Vec<Event>,
    ) {
        let (lock, _) = self.request(session, request).unwrap().asked.clone().unwrap();
        self.finish(session, request);
        let items = one(&lock);
        events.push(Event::Released { session, request, token, items, over: true });
        self.hand_on(&lock, events);
    }

    fn finish(&mut self, session: SessionId, request: RequestId) {
        let found = self.requests.iter_mut().find(|r| r.session == session && r.id == request);
        found.unwrap().state = State::Over;
        let mark = self.session(session).unwrap().done_below;
        self.forget_finished(session, mark);
    }

    /// Grants a lock nobody holds to whoever came first.
    fn hand_on(&mut self, lock: &LockName, events: &mut Vec<Event>) {
        let Some(next) = self.queue(lock).first().map(|next| (next.session, next.id)) else {
            return;
        };
        let Some(token) = self.draw() else { return };
        let (session, request) = next;
        let since_ms = self.stamp_ms;
        let found = self.requests.iter_mut().find(|r| (r.session, r.id) == next).unwrap();
        found.state = State::Held { token, since_ms };
        events.push(Event::Granted { session, request, token, items: one(lock), values: vec![] });
        if !self.queue(lock).is_empty() {
            events.push(contended(Grant { session, request, token }, lock));
        }
    }

    fn draw(&mut self) -> Option<FencingToken> {
        let token = FencingToken::new(self.epoch, self.last_token + 1)?;
        self.last_token += 1;
        Some(token)
    }

    fn keep(
        &mut self,
        session: SessionId,
        id: RequestId,
        lock: &LockName,
        wait: bool,
        state: State,
    ) {
        self.requests.push(Request { session, id, asked: Some((lock.clone(), wait)), state });
    }

    pub(crate) fn session(&self, id: SessionId) -> Option<&Session> {
        self.sessions.iter().find(|session| session.id == id)
    }

    pub(crate) fn request(&self, session: SessionId, id: RequestId) -> Option<&Request> {
        self.requests.iter().find(|r| r.session == session && r.id == id)
    }

    pub(crate) fn holder(&self, lock: &LockName) -> Option<Grant> {
        self.requests
            .iter()
            .filter(|request| request.is_for(lock))
            .find_map(|r| Some(Grant { session: r.session, request: r.id, token: r.token()? }))
    }

    /// Who waits for a lock, first come first.
    pub(crate) fn queue(&self, lock: &LockName) -> Vec<&Request> {
        let waits = |request: &&Request| request.is_for(lock) && request.arrival().is_some();
        let mut queue: Vec<&Request> = self.requests.iter().filter(waits).collect();
        queue.sort_by_key(|request| request.arrival());
        queue
    }

    pub(crate) fn place(&self, waiting: &Request) -> u64 {
        let earlier = |other: &&Request| {
            other.asked == waiting.asked
                && other.arrival().is_some_and(|arrival| Some(arrival) < waiting.arrival())
        };
        self.requests.iter().filter(earlier).count() as u64
    }

    fn kept(&self, session: SessionId) -> u64 {
        self.requests.iter().filter(|request| request.session == session).count() as u64
    }
}

fn one(lock: &LockName) -> Items {
    Item::exclusive(lock.clone()).into()
}

fn contended(holder: Grant, lock: &LockName) -> Event {
    let Grant { session, request, token } = holder;
    Event::Contended { session, request, lock: lock.clone(), token }
}
