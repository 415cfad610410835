//! Locks: who holds, who waits, and how a hold passes from one to the next.

use crate::answer::{Acquired, Answer, Grant, Outcome, Was};
use crate::event::Event;
use crate::ids::{FencingToken, LockName, RequestId, SessionId, Ticket};
use crate::queue::{Queue, Waiter};
use crate::session::{Record, Session, State};
use crate::{LockTable, Rejection};

/// One lock: in the table only while it is held or waited for (I33).
///
/// Made by the first request and removed with the last; nothing else refers to it, and it is built
/// from the sessions' records when a snapshot is read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lock {
    /// `None` with a queue only while the tokens are used up: nobody can be granted then, and the
    /// waiters keep their places until the epoch is raised.
    pub(crate) holder: Option<Grant>,
    pub(crate) queue: Queue,
}

/// A session's wish to hold a lock: the parts of `Acquire` that make up its payload and id.
pub(crate) struct Ask {
    pub(crate) session: SessionId,
    pub(crate) done_below: RequestId,
    pub(crate) request: RequestId,
    pub(crate) lock: LockName,
    pub(crate) wait: bool,
}

impl LockTable {
    /// Grants a free lock, or queues the request, or denies it if it would not wait.
    ///
    /// A request that comes again under its id gets its answer again and changes nothing (I12). A
    /// request refused for a limit is not recorded: it may be retried under the same id.
    ///
    /// # Errors
    ///
    /// [`Rejection::UnknownSession`]: nothing changed. For each of the others the confirmation
    /// (`done_below`) was taken: [`Rejection::LockHeld`] is recorded under the id;
    /// [`Rejection::RequestGone`], [`Rejection::RequestReused`], [`Rejection::RequestEnded`],
    /// [`Rejection::TooManyRequests`], [`Rejection::TooManyWaiters`] and
    /// [`Rejection::TokensExhausted`] changed nothing else.
    pub(crate) fn acquire(&mut self, ask: Ask, events: &mut Vec<Event>) -> Outcome {
        let limit = self.limits.max_requests_per_session;
        self.confirm(ask.session, ask.done_below)?;
        let session = self.open(ask.session)?;
        if ask.request < session.done_below {
            let done_below = session.done_below;
            return Err(Rejection::RequestGone { request: ask.request, done_below });
        }
        if let Some(record) = session.records.get(&ask.request) {
            return self.answer_again(&ask, record);
        }
        if session.records.len() as u64 >= limit {
            return Err(Rejection::TooManyRequests { session: ask.session, limit });
        }
        match self.locks.get(&ask.lock).map(|lock| lock.holder) {
            None => self.take_free(ask, events),
            // Held by nobody and yet waited for: only while no token can be drawn.
            Some(None) => Err(self.counters.tokens_exhausted()),
            Some(Some(_)) if ask.wait => self.enqueue(ask, events),
            Some(Some(holder)) => self.deny(ask, holder, events),
        }
    }

    /// The answer to a request whose id was used before.
    fn answer_again(&self, ask: &Ask, record: &Record) -> Outcome {
        let request = ask.request;
        let Record::Asked { lock, wait, state } = record else {
            return Err(Rejection::RequestEnded { request });
        };
        if (lock, wait) != (&ask.lock, &ask.wait) {
            return Err(Rejection::RequestReused { request });
        }
        let state = match *state {
            State::Held { token, .. } => Acquired::Granted { token },
            State::Waiting { ticket, .. } => self.where_it_waits(lock, ticket),
            State::Denied { holder, token } => {
                return Err(Rejection::LockHeld { lock: lock.clone(), holder, token });
            }
            State::Ended => return Err(Rejection::RequestEnded { request }),
        };
        Ok(Answer::Acquired { request, state, fresh: false })
    }

    fn where_it_waits(&self, lock: &LockName, ticket: Ticket) -> Acquired {
        let lock = self.locks.get(lock);
        let place = lock.map_or(0, |lock| lock.queue.place(ticket));
        Acquired::Queued { place, holder: lock.and_then(|lock| lock.holder) }
    }

    fn take_free(&mut self, ask: Ask, events: &mut Vec<Event>) -> Outcome {
        let Ask { session, request, lock, wait, .. } = ask;
        let token = self.counters.next_token()?;
        let state = State::Held { token, since_ms: self.stamp_ms };
        self.locks.insert(lock.clone(), Lock::default());
        self.record(session, request, Record::Asked { lock: lock.clone(), wait, state });
        self.hold(&lock, (session, request), token, events);
        Ok(Answer::Acquired { request, state: Acquired::Granted { token }, fresh: true })
    }

    fn enqueue(&mut self, ask: Ask, events: &mut Vec<Event>) -> Outcome {
        let Ask { session, request, lock: name, wait, .. } = ask;
        let limit = self.limits.max_waiters_per_lock;
        let too_many = Rejection::TooManyWaiters { lock: name.clone(), limit };
        let Some(lock) = self.locks.get_mut(&name) else { return Err(too_many) };
        let place = lock.queue.len();
        if place >= limit {
            return Err(too_many);
        }
        let Some(ticket) = self.counters.next_ticket() else { return Err(too_many) };
        lock.queue.push(ticket, (session, request));
        let holder = lock.holder;
        self.counts.waiting += 1;
        let state = State::Waiting { ticket, since_ms: self.stamp_ms };
        self.record(session, request, Record::Asked { lock: name.clone(), wait, state });
        events.push(Event::Queued { session, request, lock: name.clone(), place });
        if let Some(holder) = holder.filter(|_| place == 0) {
            events.push(contended(holder, name));
        }
        Ok(Answer::Acquired { request, state: Acquired::Queued { place, holder }, fresh: true })
    }

    fn deny(&mut self, ask: Ask, holder: Grant, events: &mut Vec<Event>) -> Outcome {
        let Ask { session, request, lock, wait, .. } = ask;
        let Grant { session: holder, token, .. } = holder;
        let rejection = Rejection::LockHeld { lock: lock.clone(), holder, token };
        let state = State::Denied { holder, token };
        self.record(session, request, Record::Asked { lock: lock.clone(), wait, state });
        events.push(Event::Denied { session, request, lock, rejection: rejection.clone() });
        Err(rejection)
    }

    /// Ends a request whatever its state: it leaves its queue, or its hold is passed on, or its id
    /// is spent.
    ///
    /// A live request is ended also below the session's mark: the id still names it and nothing
    /// else. Applying the same cancel twice is harmless.
    ///
    /// # Errors
    ///
    /// [`Rejection::UnknownSession`]: nothing changed. [`Rejection::RequestGone`]: nothing is kept
    /// of the request, it is over. [`Rejection::TooManyRequests`]: the id was never seen and there
    /// is no room to remember it as spent; cancel again after confirming others.
    pub(crate) fn cancel(
        &mut self,
        session: SessionId,
        done_below: RequestId,
        request: RequestId,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let limit = self.limits.max_requests_per_session;
        self.confirm(session, done_below)?;
        let found = self.open(session)?;
        let was = match found.records.get(&request) {
            Some(Record::Asked { lock, state: State::Waiting { ticket, .. }, .. }) => {
                let (lock, ticket) = (lock.clone(), *ticket);
                self.cancel_waiting(session, request, lock, ticket, events);
                Was::Waiting
            }
            Some(Record::Asked { lock, state: State::Held { token, .. }, .. }) => {
                let (lock, token) = (lock.clone(), *token);
                self.give_back(session, request, &lock, token, events);
                Was::Held { token }
            }
            Some(Record::Asked { .. } | Record::Spent) => Was::Ended,
            None => {
                may_spend(found, session, request, limit)?;
                self.record(session, request, Record::Spent);
                Was::Unknown
            }
        };
        Ok(Answer::Cancelled { request, was })
    }

    /// Gives back the grant `token` and passes the lock to its longest waiter.
    ///
    /// The token is compared, not only the session: a release delayed past a re-acquire by the
    /// same session must not free the newer grant (I13). Applying the same release twice is
    /// harmless; the second is refused.
    ///
    /// # Errors
    ///
    /// [`Rejection::UnknownSession`]: nothing changed. [`Rejection::NotHolder`] if the session has
    /// no current hold under that token: nothing changed but the session's mark.
    pub(crate) fn release(
        &mut self,
        session: SessionId,
        done_below: RequestId,
        token: FencingToken,
        events: &mut Vec<Event>,
    ) -> Outcome {
        self.confirm(session, done_below)?;
        let found = self.open(session)?;
        let not_holder = Rejection::NotHolder { session, token };
        let request = *found.holds.get(&token).ok_or_else(|| not_holder.clone())?;
        let Some(Record::Asked { lock, .. }) = found.records.get(&request) else {
            return Err(not_holder);
        };
        let lock = lock.clone();
        self.give_back(session, request, &lock, token, events);
        Ok(Answer::Released { request, token })
    }

    fn cancel_waiting(
        &mut self,
        session: SessionId,
        request: RequestId,
        lock: LockName,
        ticket: Ticket,
        events: &mut Vec<Event>,
    ) {
        self.leave_queue(&lock, ticket);
        if let Some(found) = self.sessions.get_mut(session) {
            found.finish(request);
        }
        events.push(Event::Left { session, request, lock });
    }

    fn give_back(
        &mut self,
        session: SessionId,
        request: RequestId,
        lock: &LockName,
        token: FencingToken,
        events: &mut Vec<Event>,
    ) {
        if let Some(found) = self.sessions.get_mut(session) {
            found.holds.remove(&token);
            found.finish(request);
        }
        events.push(Event::Released { session, request, lock: lock.clone(), token });
        self.end_hold(lock, events);
    }

    /// Takes a waiter out of a queue. The lock goes with its last reason to be there (I33).
    pub(crate) fn leave_queue(&mut self, name: &LockName, ticket: Ticket) {
        let Some(lock) = self.locks.get_mut(name) else { return };
        if lock.queue.remove(ticket).is_some() {
            self.counts.waiting -= 1;
        }
        if lock.holder.is_none() && lock.queue.is_empty() {
            self.locks.remove(name);
        }
    }

    /// Ends the hold of a lock and grants it to the head of its queue, in the same command: nobody
    /// can slip between (I9), and a free lock is never waited for (I15). A lock nobody waits for
    /// leaves the table (I33).
    ///
    /// When no token can be drawn, the waiters keep their places and the lock has no holder (I10):
    /// the next raise of the epoch has to grant it.
    pub(crate) fn end_hold(&mut self, name: &LockName, events: &mut Vec<Event>) {
        let Some(lock) = self.locks.get_mut(name) else { return };
        if lock.holder.take().is_some() {
            self.counts.held -= 1;
        }
        if lock.queue.is_empty() {
            self.locks.remove(name);
            return;
        }
        let Ok(token) = self.counters.next_token() else { return };
        if let Some(next) = lock.queue.pop_first() {
            self.counts.waiting -= 1;
            self.hold(name, next, token, events);
        }
    }

    /// Makes a recorded request the holder of a lock nobody holds.
    ///
    /// A new holder that others already wait for is told so: for it the queue was never empty.
    fn hold(
        &mut self,
        name: &LockName,
        (session, request): Waiter,
        token: FencingToken,
        events: &mut Vec<Event>,
    ) {
        let Some(lock) = self.locks.get_mut(name) else { return };
        let holder = Grant { session, request, token };
        lock.holder = Some(holder);
        self.counts.held += 1;
        if let Some(found) = self.sessions.get_mut(session) {
            found.hold(request, token, self.stamp_ms);
        }
        events.push(Event::Granted { session, request, lock: name.clone(), token });
        if !lock.queue.is_empty() {
            events.push(contended(holder, name.clone()));
        }
    }

    fn record(&mut self, session: SessionId, request: RequestId, record: Record) {
        if let Some(found) = self.sessions.get_mut(session) {
            found.records.insert(request, record);
        }
    }
}

/// Whether an id that nothing is kept under can be remembered as spent.
fn may_spend(
    found: &Session,
    session: SessionId,
    request: RequestId,
    limit: u64,
) -> Result<(), Rejection> {
    let done_below = found.done_below;
    if request < done_below {
        return Err(Rejection::RequestGone { request, done_below });
    }
    if found.records.len() as u64 >= limit {
        return Err(Rejection::TooManyRequests { session, limit });
    }
    Ok(())
}

fn contended(holder: Grant, lock: LockName) -> Event {
    let Grant { session, request, token } = holder;
    Event::Contended { session, request, lock, token }
}
