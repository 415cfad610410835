//! The lock table again, written as plainly as possible: lists, searched from the front. It shares
//! no code with the core except the contract's types (commands, events, rejections).

mod bounds;
mod freezes;
mod grants;
mod imports;
mod outside;
mod permits;
mod quotas;
mod requests;
mod rules;
mod scopes;
mod sequences;
mod size;
mod terms;
mod values;

use holdfast_core::{
    Answer, Ask, Caller, Command, Counters, EndCause, Event, FencingToken, Grant, Item, Label,
    Limits, LockName, LossCause, Mode, Need, Outcome, Quantity, Rejection, RequestId, ScopePrefix,
    ScopeState, SessionId, Tenure, Terms, Value, ValueChange,
};

pub(crate) use terms::Arrival;
pub(crate) use values::cost;

pub(crate) struct Model {
    pub(crate) limits: Limits,
    pub(crate) max_table_bytes: Option<u64>,
    pub(crate) stamp_ms: u64,
    pub(crate) sessions: Vec<Session>,
    /// Of all sessions, in no order.
    pub(crate) requests: Vec<Request>,
    /// At most one for each lock, in no order.
    pub(crate) values: Vec<(LockName, Value)>,
    /// The limits of permits in force, in no order.
    pub(crate) permit_limits: Vec<(LockName, u32)>,
    /// In no order.
    pub(crate) kept_limits: Vec<permits::Kept>,
    /// Every member knows of the owners of values.
    pub(crate) knows_owners: bool,
    /// Every member knows of terms, and so of the table's age.
    pub(crate) knows_terms: bool,
    pub(crate) age_ms: u64,
    /// In no order.
    pub(crate) freezes: Vec<freezes::Frozen>,
    /// In no order.
    pub(crate) sequences: Vec<sequences::Sequence>,
    /// In no order.
    pub(crate) closed_locks: Vec<bounds::Closed>,
    /// In no order.
    pub(crate) scopes: Vec<(ScopePrefix, ScopeState)>,
    pub(crate) rules: rules::Rules,
    pub(crate) epoch: u16,
    last_token: u64,
    last_session: u64,
    arrivals: u64,
}

pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) ttl_ms: u64,
    /// Of its label and its identity.
    pub(crate) label_bytes: u64,
    pub(crate) caller: Caller,
    pub(crate) done_below: RequestId,
    /// The owner in another store that it stands for, if it was imported.
    pub(crate) stands_for: Option<Label>,
    pub(crate) knows_closed: bool,
    pub(crate) revoked: Option<Label>,
    /// In no order.
    pub(crate) closed: Vec<(FencingToken, Label)>,
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
    pub(crate) terms: Terms,
}

#[derive(Clone, PartialEq)]
pub(crate) enum State {
    Waiting { arrival: Arrival, since_ms: u64 },
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

    /// Its head start, and its note.
    pub(crate) fn said(&self) -> (u32, &str) {
        match &self.what {
            What::Asked(Asked { terms, .. }) => (terms.head_start_ms, terms.note.as_str()),
            What::Nothing | What::Write { .. } => (0, ""),
        }
    }

    pub(crate) fn arrival(&self) -> Option<Arrival> {
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
    /// The locks that it is granted if these are free to it.
    fn takes(&self, free: Vec<Item>) -> Option<Vec<Item>> {
        let enough = match self.need {
            Need::All => free.len() == self.items.len(),
            Need::Any { min } => free.len() >= min.max(1) as usize,
        };
        enough.then_some(free)
    }
}

impl Model {
    pub(crate) fn new(counters: Counters) -> Self {
        Self {
            limits: Limits::default(),
            max_table_bytes: None,
            stamp_ms: 0,
            sessions: Vec::new(),
            requests: Vec::new(),
            values: Vec::new(),
            permit_limits: Vec::new(),
            kept_limits: Vec::new(),
            knows_owners: false,
            knows_terms: false,
            age_ms: 0,
            freezes: Vec::new(),
            sequences: Vec::new(),
            closed_locks: Vec::new(),
            scopes: Vec::new(),
            rules: rules::Rules::default(),
            epoch: counters.epoch,
            last_token: counters.token,
            last_session: counters.session,
            arrivals: 0,
        }
    }

    pub(crate) fn apply(&mut self, tenure: Tenure, command: &Command) -> (Outcome, Vec<Event>) {
        let mut events = Vec::new();
        let outcome = self.outcome(tenure, command.clone(), &mut events);
        self.drop_limits();
        (outcome, events)
    }

    #[expect(clippy::too_many_lines, reason = "a table, one arm for each command")]
    fn outcome(&mut self, tenure: Tenure, command: Command, events: &mut Vec<Event>) -> Outcome {
        self.refuse_forbidden(&command)?;
        match command {
            Command::Configure { limits } => self.configure(limits),
            Command::OpenSession { ttl_ms, label, .. } => {
                self.open(&Caller::default(), ttl_ms, &label, false, events)
            }
            Command::CloseSession { session } => {
                self.end(session, (EndCause::Closed, false), events)
            }
            Command::ExpireSession { session, tenure: heard_in } => {
                if self.session(session).is_some() && heard_in != tenure {
                    return Err(Rejection::OtherTenure { session, heard_in, proposed_in: tenure });
                }
                self.end(session, (EndCause::Expired, false), events)
            }
            Command::Acquire { session, done_below, request, items, need, wait } => {
                let mark = self.confirm(session, done_below)?;
                requests::refuse_floor(items.len(), need)?;
                let asked = requests::in_order(items, need, wait, Terms::default())?;
                self.acquire(mark, session, request, &asked, events)
            }
            Command::AcquireOn(Ask { session, done_below, request, items, need, wait, terms }) => {
                let mark = self.confirm(session, done_below)?;
                let asked = requests::in_order(items, need, wait, terms)?;
                self.acquire(mark, session, request, &asked, events)
            }
            Command::Cancel { session, done_below, request } => {
                let mark = self.confirm(session, done_below)?;
                self.cancel(mark, session, request, events)
            }
            Command::StopWaiting { session, request } => {
                let mark = self.confirm(session, RequestId::new(0))?;
                self.stop_waiting(mark, session, request, events)
            }
            Command::Release { session, done_below, token, ref locks }
            | Command::ReleaseLost { session, done_below, token, ref locks } => {
                self.confirm(session, done_below)?;
                let is_lost = matches!(command, Command::ReleaseLost { .. });
                self.release(session, token, locks, is_lost, events)
            }
            Command::SetValue { session, done_below, request, token, lock, change } => {
                let mark = self.confirm(session, done_below)?;
                values::refuse_long(&change)?;
                self.write(mark, session, request, What::Write { token, lock, change }, events)
            }
            Command::Import { owner, ttl_ms, rows } => self.import(&owner, ttl_ms, &rows, events),
            Command::Claim { session, done_below, request, lock, owner } => {
                let mark = self.confirm(session, done_below)?;
                self.claim(mark, (session, request), &lock, &owner, events)
            }
            Command::SetScope { scope } => self.set_scope(&scope, events),
            Command::RemoveScope { scope } => self.remove_scope(&scope, events),
            Command::By { caller, deed } => self.do_for(&caller, deed, events),
            Command::EndClosed { session, token, tenure: heard_in } => {
                self.end_closed((session, token), (heard_in, tenure), events)
            }
            Command::EndLongHold { session, token } => self.end_long_hold(session, token, events),
            Command::OpenLock { lock, token } => self.open_lock(&lock, token, events),
            Command::Suspend { scope } => self.suspend(&scope, events),
            Command::Resume { scope, epoch } => self.resume(&scope, epoch, events),
            Command::RaiseEpoch { scope, epoch } => self.raise_epoch(&scope, epoch, events),
            Command::LimitTable { max_bytes } => self.limit_table(max_bytes),
            // No history here is in parts, or restored: see `tests/slices.rs` and `tests/restore.rs`.
            _ => Ok(Answer::CarriedOn { more: false }),
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

    fn open(
        &mut self,
        caller: &Caller,
        ttl_ms: u64,
        label: &Label,
        knows_closed: bool,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let Limits { ttl_min_ms: min_ms, ttl_max_ms: max_ms, .. } = self.limits;
        if ttl_ms < min_ms || ttl_ms > max_ms {
            return Err(Rejection::TtlOutOfRange { ttl_ms, min_ms, max_ms });
        }
        self.refuse_over_quota(&caller.identity, Quantity::Sessions, 1)?;
        let session = self.new_session(Some(caller), ttl_ms, label, events)?;
        self.sessions.last_mut().unwrap().knows_closed = knows_closed;
        Ok(Answer::SessionOpened { session })
    }

    fn own(&mut self, caller: &Caller, session: SessionId) -> Outcome {
        let open = self.session(session).filter(|open| open.stands_for.is_none());
        let known = open.map(|open| open.caller.clone());
        let Some(known) = known
            .filter(|known| known.identity.is_anonymous() || known.identity == caller.identity)
        else {
            return Err(Rejection::UnknownSession { session });
        };
        let more = name_bytes(caller) - name_bytes(&known);
        if let Some(full) = self.no_table_room(more) {
            return Err(full);
        }
        let open = self.sessions.iter_mut().find(|open| open.id == session).unwrap();
        open.label_bytes += more;
        open.caller = caller.clone();
        Ok(Answer::SessionOwned)
    }

    /// The session of a caller; of none: an import's.
    fn new_session(
        &mut self,
        caller: Option<&Caller>,
        ttl_ms: u64,
        label: &Label,
        events: &mut Vec<Event>,
    ) -> Result<SessionId, Rejection> {
        let limit = self.limits.max_sessions;
        if self.sessions.len() as u64 >= limit {
            return Err(Rejection::TooManySessions { limit });
        }
        let imported = caller.is_none();
        let caller = caller.cloned().unwrap_or_default();
        let label_bytes = label.as_str().len() as u64 + name_bytes(&caller);
        if let Some(full) = self.no_table_room(size::of_session(label_bytes)) {
            return Err(full);
        }
        let stands_for = imported.then(|| label.clone());
        self.last_session += 1;
        let session = SessionId::new(self.last_session);
        let done_below = RequestId::new(0);
        self.sessions.push(Session {
            id: session,
            ttl_ms,
            label_bytes,
            caller,
            done_below,
            stands_for,
            knows_closed: false,
            revoked: None,
            closed: Vec::new(),
        });
        events.push(Event::SessionOpened { session });
        Ok(session)
    }

    /// Ends a session; `now`: its holds close no locks.
    fn end(
        &mut self,
        session: SessionId,
        (cause, now): (EndCause, bool),
        events: &mut Vec<Event>,
    ) -> Outcome {
        let Some(open) = self.session(session) else {
            return Err(Rejection::UnknownSession { session });
        };
        let cause = if open.revoked.is_some() { EndCause::Revoked } else { cause };
        let least = |request: &Request| {
            let token = request.token()?;
            Some((token, self.least_of(Grant { session, request: request.id, token })))
        };
        let held = self.requests.iter().filter(|request| request.session == session);
        let leasts: Vec<_> = held.filter_map(least).collect();
        self.sessions.retain(|open| open.id != session);
        let own = |request: &&Request| request.session == session;
        let mut waits: Vec<Request> = self.requests.iter().filter(own).cloned().collect();
        waits.retain(|request| request.arrival().is_some());
        waits.sort_by_key(|request| request.arrival().map(|(_, number)| number));
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
            if let Some((_, least)) = leasts.iter().find(|(of, _)| *of == token && !now) {
                self.close(least.clone(), token, lost.holds(), events);
            }
            let why = LossCause::from(cause);
            events.push(Event::Lost { session, request, token, items, over: true, cause: why });
            if cause != EndCause::Closed {
                self.suspect(lost.holds(), events);
            }
            self.hand_on(events);
        }
        events.push(Event::SessionEnded { session, cause });
        Ok(Answer::SessionEnded)
    }

    /// The index of the oldest hold of a session.
    fn first_hold_of(&self, session: SessionId) -> Option<usize> {
        let held = |(_, request): &(usize, &Request)| {
            request.session == session && request.token().is_some()
        };
        let holds = self.requests.iter().enumerate().filter(held);
        holds.min_by_key(|(_, request)| request.token()).map(|(at, _)| at)
    }

    fn confirm(&mut self, id: SessionId, done_below: RequestId) -> Result<RequestId, Rejection> {
        let own = |session: &&mut Session| session.id == id && session.stands_for.is_none();
        let Some(session) = self.sessions.iter_mut().find(own) else {
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

    pub(crate) fn session(&self, id: SessionId) -> Option<&Session> {
        self.sessions.iter().find(|session| session.id == id)
    }

    pub(crate) fn request(&self, session: SessionId, id: RequestId) -> Option<&Request> {
        self.requests.iter().find(|r| r.session == session && r.id == id)
    }

    /// The holders of a lock with their modes, in the order of their grants.
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

    /// The waiters for a lock, in the order of their arrival.
    pub(crate) fn queue(&self, lock: &LockName) -> Vec<&Request> {
        let waits = |r: &&Request| r.arrival().is_some() && asks_for(r, lock);
        let mut queue: Vec<&Request> = self.requests.iter().filter(waits).collect();
        queue.sort_by_key(|request| request.arrival());
        queue
    }

    /// The fewest requests that have to go before it is first in as many queues as it needs.
    pub(crate) fn place(&self, waiting: &Request) -> u64 {
        let before = |item: &Item| {
            let queue = self.queue(&item.lock);
            queue.iter().filter(|other| other.arrival() < waiting.arrival()).count() as u64
        };
        let What::Asked(asked) = &waiting.what else { unreachable!("it waits") };
        let needed = match asked.need {
            Need::All => waiting.items().len(),
            Need::Any { min } => min as usize,
        };
        let places: Vec<u64> = waiting.items().iter().map(before).collect();
        let enough = |most: &u64| places.iter().filter(|place| *place <= most).count() >= needed;
        places.iter().copied().filter(enough).min().unwrap()
    }

    fn kept(&self, session: SessionId) -> u64 {
        self.requests.iter().filter(|request| request.session == session).count() as u64
    }
}

fn asks_for(request: &Request, lock: &LockName) -> bool {
    request.items().iter().any(|item| item.lock == *lock)
}

/// What the identity of a session counts.
fn name_bytes(caller: &Caller) -> u64 {
    if caller.identity.is_anonymous() { 0 } else { caller.identity.as_str().len() as u64 }
}
