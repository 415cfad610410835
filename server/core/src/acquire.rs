//! The start of a request: the table grants it, queues it, or denies it.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_mutants::mutant;

use crate::answer::{Acquired, Answer, Grant, Outcome};
use crate::event::Event;
use crate::ids::{FencingToken, LockName, RequestId, SessionId, Ticket};
use crate::lock_set::{Item, LockSet, Need, Part};
use crate::queue::Waiter;
use crate::quota::Quantity;
use crate::rank::Rank;
use crate::session::{Record, Session, State};
use crate::terms::Terms;
use crate::{LockTable, Rejection, size};

/// Why a request was denied; `at` is the lock's place among its names.
///
/// Kept under the request's id, so that a retry gets the same answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(crate) enum Denial {
    /// A holder is in the way.
    Held { at: u8, holder: SessionId, token: FencingToken },
    /// No holder is in the way, but others came first.
    Awaited { at: u8, waiter: SessionId },
    /// None of its locks was free to it.
    NothingFree,
    /// The owner named by a claim has no import of the lock, the request's only one.
    NotImported,
    /// The scope of all its locks was suspended.
    Suspended,
    /// The table was restored and granted nothing yet.
    Restored,
    /// It asks for more permits of the lock than its limit.
    AboveLimit { at: u8, limit: u32 },
    /// The lock was frozen.
    Frozen { at: u8 },
    /// The lock was closed.
    Closed { at: u8 },
    /// Fewer of its locks were free to it than it needs.
    TooFewFree { min: u8, free: u8 },
}

impl Denial {
    /// Which of the request's locks was in the way.
    pub(crate) fn at(self) -> Option<usize> {
        match self {
            Self::Held { at, .. }
            | Self::Awaited { at, .. }
            | Self::AboveLimit { at, .. }
            | Self::Frozen { at }
            | Self::Closed { at } => Some(at.into()),
            Self::NotImported | Self::Suspended => Some(0),
            Self::NothingFree | Self::Restored | Self::TooFewFree { .. } => None,
        }
    }

    pub(crate) fn rejection(self, lock_set: &LockSet) -> Rejection {
        let named = self.at().and_then(|at| lock_set.get(at));
        let permits = named.map_or(0, |(_, mode)| mode.permits());
        match (self, named.map(|(lock, _)| lock.clone())) {
            (Self::Restored, _) => Rejection::Restored,
            (Self::TooFewFree { min, free }, _) => {
                Rejection::TooFewFree { min: min.into(), free: free.into() }
            }
            (Self::Held { holder, token, .. }, Some(lock)) => {
                Rejection::LockHeld { lock, holder, token }
            }
            (Self::Awaited { waiter, .. }, Some(lock)) => Rejection::LockAwaited { lock, waiter },
            (Self::NotImported, Some(lock)) => Rejection::NotImported { lock },
            (Self::Suspended, Some(lock)) => Rejection::Suspended { lock },
            (Self::Frozen { .. }, Some(lock)) => Rejection::Frozen { lock },
            (Self::Closed { .. }, Some(lock)) => Rejection::LockClosed { lock },
            (Self::AboveLimit { limit, .. }, Some(lock)) => {
                Rejection::PermitsOutOfRange { lock, permits, limit }
            }
            (Self::NothingFree, _) | (_, None) => Rejection::NothingFree,
        }
    }
}

/// The parts of an `Acquire`.
pub(crate) struct Asks<'a> {
    pub(crate) items: &'a [Item],
    pub(crate) need: Need,
    pub(crate) wait: bool,
    pub(crate) terms: &'a Terms,
    /// Whether every release that knows the command knows floors above one.
    pub(crate) knows_floors: bool,
}

/// What a request is recorded with.
pub(crate) struct Wish {
    pub(crate) lock_set: LockSet,
    pub(crate) terms: Terms,
}

/// A request that says nothing besides.
impl From<LockSet> for Wish {
    fn from(lock_set: LockSet) -> Self {
        Self { lock_set, terms: Terms::default() }
    }
}

impl Session {
    /// Keeps a request in that state.
    fn keep_wish(&mut self, request: RequestId, Wish { lock_set, terms }: Wish, state: State) {
        self.said.put(request, terms);
        self.keep(request, Record::Asked { lock_set, state });
    }
}

impl LockTable {
    /// Grants what is free, or queues the request, or denies it if it would not wait.
    ///
    /// A retry under the same id gets its answer again and changes nothing (I12). A request refused
    /// for a limit is not recorded: the client may retry it under the same id.
    ///
    /// # Errors
    ///
    /// [`Rejection::LockHeld`], [`Rejection::LockAwaited`], [`Rejection::NothingFree`], [`Rejection::Frozen`], [`Rejection::LockClosed`] and
    /// [`Rejection::Suspended`] are recorded under the id; those of [`LockSet::new`],
    /// those of [`LockTable::check_permits`], [`LockTable::check_head_start`], [`LockTable::check_owner`] and
    /// [`LockTable::check_hold_bounds`],
    /// [`Rejection::UnknownSession`], [`Rejection::SeveralScopes`], [`Rejection::RequestGone`],
    /// [`Rejection::RequestReused`], [`Rejection::RequestEnded`], [`Rejection::TooManyRequests`],
    /// [`Rejection::TableFull`], [`Rejection::OverQuota`], [`Rejection::TooManyWaiters`] and [`Rejection::TokensExhausted`]
    /// changed nothing.
    pub(crate) fn acquire(
        &mut self,
        who: (SessionId, RequestId),
        asks: &Asks<'_>,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let Asks { items, need, wait, terms, knows_floors } = *asks;
        let lock_set = if knows_floors {
            LockSet::new(items, need, wait)?
        } else {
            LockSet::as_before(items, need, wait)?
        };
        let mut wish = Wish { lock_set, terms: terms.clone() };
        let limit = self.limits.max_requests_per_session;
        let (session, request) = who;
        let found = self.open(session)?;
        let seen = found.seen(request)?.filter(|_| !mutant!(OutcomeNotKept));
        if let Some(record) = seen {
            if mutant!(RetryGoesToEnd)
                && let Record::Asked { state: State::Waiting { rank, .. }, .. } = *record
            {
                self.leave_queues(&wish.lock_set, rank);
                return self.enqueue(who, wish, events);
            }
            return self.answer_again((session, request), &wish, record);
        }
        self.check_acts(session)?;
        found.may_keep_another(session, limit)?;
        self.check_new(who, &wish.lock_set, terms)?;
        wish.lock_set.share_names(|name| self.kept_name(name));
        let lock_set = &wish.lock_set;
        let barges = mutant!(BargingTry) && !lock_set.waits();
        let free = if barges {
            self.fitting(lock_set)
        } else {
            self.free_to_newcomer(lock_set, terms.head_start_ms)
        };
        match lock_set.takes(free) {
            Some(part) => {
                let (before, passes) = (events.len(), terms.head_start_ms > 0);
                let taken = self.take_free(who, wish, part, events);
                if passes && !mutant!(PassingNotTold) {
                    // Those whom it passed wait on.
                    self.tell_contended(before, events);
                }
                taken
            }
            None if lock_set.waits() => {
                self.check_quota_of(session, Quantity::Waits, 1)?;
                self.enqueue(who, wish, events)
            }
            None => {
                let denial = self.denial(lock_set, terms.head_start_ms);
                self.deny(who, wish, denial, events)
            }
        }
    }

    /// Checks a request that the session has room for.
    fn check_new(
        &self,
        (session, _): (SessionId, RequestId),
        lock_set: &LockSet,
        terms: &Terms,
    ) -> Result<(), Rejection> {
        let bytes = size::of_request(lock_set.iter().map(|(name, _)| name));
        self.check_table(bytes + terms.bytes())?;
        self.check_quota_of(session, Quantity::Holds, lock_set.len() as u64)?;
        self.check_one_scope(lock_set)?;
        self.check_permits(lock_set)?;
        self.check_head_start(lock_set, terms)?;
        self.check_owner(session, lock_set, terms)?;
        self.check_hold_bounds(session, lock_set, terms)?;
        if !self.counters.has_tokens() && lock_set.takes(self.fitting(lock_set)).is_some() {
            // No holder is in its way, and yet there is no token for it.
            return Err(self.tokens_exhausted(lock_set));
        }
        Ok(())
    }

    /// The answer to a request whose id was used before. For a hold it lists the locks that the
    /// request still holds, with their present values.
    pub(crate) fn answer_again(
        &self,
        (session, request): (SessionId, RequestId),
        asked: &Wish,
        record: &Record,
    ) -> Outcome {
        let (lock_set, state) = match record {
            Record::Asked { lock_set, state }
                if *lock_set == asked.lock_set && self.said_by(session, request) == asked.terms =>
            {
                (lock_set, state)
            }
            Record::Asked { .. } | Record::Wrote { .. } => {
                return Err(Rejection::RequestReused { request });
            }
            Record::Spent => return Err(Rejection::RequestEnded { request }),
        };
        let state = match *state {
            State::Held { token, .. } if !self.is_relied_on((session, token), lock_set) => {
                return Err(Rejection::RequestEnded { request });
            }
            State::Held { token, part, .. } => self.acquired(token, lock_set, part),
            State::Waiting { rank, .. } => self.where_it_waits(lock_set, rank),
            State::Denied(denial) => return Err(denial.rejection(lock_set)),
            State::Ended => return Err(Rejection::RequestEnded { request }),
        };
        Ok(Answer::Acquired { request, state, fresh: false })
    }

    pub(crate) fn acquired(&self, token: FencingToken, lock_set: &LockSet, part: Part) -> Acquired {
        let items = lock_set.items_of(part);
        let values = self.values_of(&items);
        Acquired::Granted { token, items, values }
    }

    pub(crate) fn where_it_waits(&self, lock_set: &LockSet, rank: Rank) -> Acquired {
        Acquired::Queued { place: self.place(lock_set, rank), holder: self.in_the_way(lock_set) }
    }

    /// How many requests stand before a waiter: a set has to be first in each of its queues, so its
    /// last place counts; an `any` that needs `n` locks in `n` of them, so its `n`-th best.
    pub(crate) fn place(&self, lock_set: &LockSet, rank: Rank) -> u64 {
        let queues = lock_set.iter().filter_map(|(name, _)| self.locks.get(name));
        let places = queues.map(|lock| lock.queue.place(rank));
        if lock_set.needs_all() {
            return places.max().unwrap_or(0);
        }
        let mut places: Vec<u64> = places.collect();
        places.sort_unstable();
        let needed = lock_set.least().saturating_sub(1) as usize;
        places.get(needed).or(places.last()).copied().unwrap_or(0)
    }

    /// The first holder of the first of these locks that is held.
    fn in_the_way(&self, lock_set: &LockSet) -> Option<Grant> {
        let mut locks = lock_set.iter().filter_map(|(name, _)| self.locks.get(name));
        locks.find_map(|lock| lock.holders.first()).map(|holder| holder.grant)
    }

    pub(crate) fn take_free(
        &mut self,
        (session, request): (SessionId, RequestId),
        wish: Wish,
        part: Part,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let lock_set = &wish.lock_set;
        let epoch = self.epoch_of(lock_set);
        let token = self.counters.next_token(epoch)?;
        let grant = Grant { session, request, token };
        self.charge_for(session);
        self.spoil_checks(&wish);
        let state = self.enter(grant, lock_set, part, events);
        let held = State::Held { token, since_ms: self.stamp_ms, part };
        self.change_session(session, |found| {
            found.keep_wish(request, wish, held);
            found.holds.insert(token, request);
        });
        Ok(Answer::Acquired { request, state, fresh: true })
    }

    /// Gives the request one rank and a place in each of its queues. In a suspended scope the
    /// locks that it waits for may have no holder.
    pub(crate) fn enqueue(
        &mut self,
        (session, request): (SessionId, RequestId),
        wish: Wish,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let lock_set = &wish.lock_set;
        let ticket = self.draw_ticket(lock_set)?;
        let rank = self.rank_now(ticket, wish.terms.head_start_ms);
        let head_start_ms = wish.terms.head_start_ms;
        let news = self.news_to_holders(lock_set, head_start_ms);
        for (name, mode) in lock_set.iter() {
            self.put_waiter(name, rank, Waiter { session, request, mode, head_start_ms });
        }
        self.spoil_checks(&wish);
        self.counts.waiting += 1;
        let place = self.place(lock_set, rank);
        events.push(Event::Queued { session, request, items: lock_set.items(), place });
        for (name, _) in lock_set.iter_part(news) {
            self.tell_all_of(name, events);
        }
        let state = self.where_it_waits(lock_set, rank);
        let waiting = State::Waiting { rank, since_ms: self.stamp_ms };
        self.keep_wish((session, request), wish, waiting);
        Ok(Answer::Acquired { request, state, fresh: true })
    }

    fn draw_ticket(&mut self, lock_set: &LockSet) -> Result<Ticket, Rejection> {
        let limit = self.limits.max_waiters_per_lock;
        let refused = |lock: &LockName| Rejection::TooManyWaiters { lock: lock.clone(), limit };
        let waiting = |name| self.locks.get(name).map_or(0, |lock| lock.queue.len());
        if let Some((full, _)) = lock_set.iter().find(|&(name, _)| waiting(name) >= limit) {
            return Err(refused(full));
        }
        // Without tickets every queue is as good as full.
        let first = || lock_set.get(0).map_or(Rejection::NoNames, |(first, _)| refused(first));
        self.counters.next_ticket().ok_or_else(first)
    }

    /// Keeps a denial under its id, so that a retry gets the same answer.
    pub(crate) fn deny(
        &mut self,
        (session, request): (SessionId, RequestId),
        wish: Wish,
        denial: Denial,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let rejection = denial.rejection(&wish.lock_set);
        let (items, told) = (wish.lock_set.items(), rejection.clone());
        events.push(Event::Denied { session, request, items, rejection: told });
        self.keep_wish((session, request), wish, State::Denied(denial));
        Err(rejection)
    }

    /// What a known request says besides its locks.
    pub(crate) fn said_by(&self, session: SessionId, request: RequestId) -> Terms {
        let said = self.sessions.get(&session).and_then(|found| found.said.get(request));
        said.cloned().unwrap_or_default()
    }

    pub(crate) fn keep_wish(
        &mut self,
        (session, request): (SessionId, RequestId),
        wish: Wish,
        state: State,
    ) {
        self.change_session(session, |found| found.keep_wish(request, wish, state));
    }

    /// What is in the way of a request: the first of its locks that is not free to it.
    pub(crate) fn denial(&self, lock_set: &LockSet, head_start_ms: u32) -> Denial {
        if self.grants_after_ms().is_some() {
            return Denial::Restored;
        }
        if self.is_suspended(lock_set) {
            return Denial::Suspended;
        }
        if let Some(at) = self.frozen_in_the_way(lock_set) {
            return Denial::Frozen { at: u8::try_from(at).unwrap_or(u8::MAX) };
        }
        if let Some(at) = self.closed_in_the_way(lock_set) {
            return Denial::Closed { at: u8::try_from(at).unwrap_or(u8::MAX) };
        }
        if !lock_set.needs_all() && lock_set.least() > 1 {
            let free = self.free_to_newcomer(lock_set, head_start_ms).len();
            let small = |count| u8::try_from(count).unwrap_or(u8::MAX);
            return Denial::TooFewFree { min: small(lock_set.least()), free: small(free) };
        }
        if !lock_set.needs_all() {
            return Denial::NothingFree;
        }
        let rank = self.rank_of_newcomer(head_start_ms);
        let in_the_way = (0_u8..).zip(lock_set.iter()).find_map(|(at, (name, mode))| {
            let lock = self.locks.get(name)?;
            if let Some(held) = lock.holders.first().filter(|_| !lock.fits(mode)) {
                let Grant { session: holder, token, .. } = held.grant;
                return Some(Denial::Held { at, holder, token });
            }
            let (first, waiter) = lock.queue.first()?;
            (first < rank).then_some(Denial::Awaited { at, waiter: waiter.session })
        });
        in_the_way.unwrap_or(Denial::NothingFree)
    }
}
