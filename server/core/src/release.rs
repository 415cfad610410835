//! The end of a request: its grant is given back, in whole or in part, or it is cancelled.

use holdfast_mutants::mutant;

use crate::answer::{Answer, Grant, Outcome, Was};
use crate::event::{Event, LossCause};
use crate::hold_bounds::ClosedLock;
use crate::ids::{FencingToken, LockName, RequestId, SessionId};
use crate::lock_set::{LockSet, Mode, Part, check_count};
use crate::rank::Rank;
use crate::session::{Record, State};
use crate::size::REQUEST_BYTES;
use crate::work::HOLD_STEPS;
use crate::{LockTable, Rejection};

/// A hold, and the part of it that ends.
pub(crate) struct Ending {
    pub(crate) grant: Grant,
    pub(crate) lock_set: LockSet,
    pub(crate) part: Part,
    /// With what its locks are closed; `None`: they are free.
    pub(crate) closes: Option<ClosedLock>,
}

impl LockTable {
    /// Ends a request, whatever its state: a waiting one leaves its queues, a hold is passed on, an
    /// unseen id is spent.
    ///
    /// Also ends a live request below the session's mark: the id still names that request and no
    /// other. Applying the same cancel twice is harmless.
    ///
    /// # Errors
    ///
    /// [`Rejection::UnknownSession`]. [`Rejection::RequestGone`]: the request is over, and the table
    /// keeps nothing of it. [`Rejection::TooManyRequests`], [`Rejection::TableFull`]: the id was
    /// never seen and there is no room to remember it as spent; cancel again after confirming
    /// others.
    pub(crate) fn cancel(
        &mut self,
        session: SessionId,
        request: RequestId,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let limit = self.limits.max_requests_per_session;
        let found = self.open(session)?;
        let was = match found.records.get(&request) {
            Some(Record::Asked { lock_set, state: State::Waiting { rank, .. } }) => {
                let (lock_set, rank) = (lock_set.clone(), *rank);
                self.cancel_waiting(session, request, &lock_set, rank, events);
                Was::Waiting
            }
            Some(Record::Asked { lock_set, state: State::Held { token, part, .. } }) => {
                let (lock_set, token, part) = (lock_set.clone(), *token, *part);
                let closes = found.closes(request, token);
                let grant = Grant { session, request, token };
                let is_lost = !self.is_relied_on((session, token), &lock_set);
                let ending = Ending { grant, lock_set, part, closes };
                self.give_back(&ending, Part::default(), is_lost, events);
                self.let_go_of_closed(session, token);
                Was::Held { token }
            }
            Some(Record::Asked { .. } | Record::Wrote { .. } | Record::Spent) => Was::Ended,
            None => {
                found.seen(request)?;
                found.may_keep_another(session, limit)?;
                self.check_table_to_free(REQUEST_BYTES)?;
                self.record(session, request, Record::Spent);
                Was::Unknown
            }
        };
        Ok(Answer::Cancelled { request, was })
    }

    /// Ends a request that waits. One that was granted keeps its hold, and the answer is that to a
    /// retry (I6).
    ///
    /// # Errors
    ///
    /// [`Rejection::UnknownSession`], [`Rejection::RequestGone`]: nothing changed.
    pub(crate) fn stop_waiting(
        &mut self,
        session: SessionId,
        request: RequestId,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let found = self.open(session)?;
        match found.records.get(&request) {
            Some(Record::Asked { lock_set, state: State::Held { token, part, .. } })
                if !mutant!(StopTakesGrant) =>
            {
                if !self.is_relied_on((session, *token), lock_set) {
                    return Err(Rejection::RequestEnded { request });
                }
                let state = self.acquired(*token, lock_set, *part);
                Ok(Answer::Acquired { request, state, fresh: false })
            }
            Some(_) => self.cancel(session, request, events),
            // No request waits; the id is not spent, because a late Acquire under it may still
            // arrive.
            None => {
                found.seen(request)?;
                Ok(Answer::Cancelled { request, was: Was::Unknown })
            }
        }
    }

    /// Gives back those of a grant's locks that are named, or all of them if none is, and passes them
    /// on at once. If the client had lost the grant before (`is_lost`), or it was ended from outside, the
    /// values of the locks become suspect first.
    ///
    /// The token is compared, not only the session: a release delayed past a re-acquire by the same
    /// session must not free the newer grant (I13). A second copy of a release is refused, and
    /// harmless.
    ///
    /// # Errors
    ///
    /// [`Rejection::NotHolder`] if the session has no current hold under that token;
    /// [`Rejection::NotHeldUnder`] if a lock named is not, or no longer, part of it;
    /// [`Rejection::UnknownSession`], [`Rejection::TooManyNames`], [`Rejection::NameTwice`]. The
    /// state is unchanged, but that a closed hold which is over need not be told any more.
    pub(crate) fn release(
        &mut self,
        session: SessionId,
        token: FencingToken,
        locks: &[LockName],
        is_lost: bool,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let found = self.open(session)?;
        let newest = found.holds.last_key_value().filter(|_| mutant!(ReleaseIgnoresToken));
        let token = newest.map_or(token, |(&newest, _)| newest);
        let (request, lock_set, held) = match found.held_under(session, token) {
            Ok(held) => held,
            Err(rejection) => {
                self.let_go_of_closed(session, token);
                return Err(rejection);
            }
        };
        let named = || named_part(session, token, lock_set, held, locks);
        let part = if locks.is_empty() { held } else { named()? };
        let left = held.without(part);
        let grant = Grant { session, request, token };
        let is_lost = is_lost || !self.is_relied_on((session, token), lock_set);
        let closes = found.closes(request, token);
        let ending = Ending { grant, lock_set: lock_set.clone(), part, closes };
        self.give_back(&ending, left, is_lost, events);
        if left.is_empty() {
            self.let_go_of_closed(session, token);
        }
        Ok(Answer::Released { request, token, over: left.is_empty() })
    }

    fn cancel_waiting(
        &mut self,
        session: SessionId,
        request: RequestId,
        lock_set: &LockSet,
        rank: Rank,
        events: &mut Vec<Event>,
    ) {
        if !mutant!(CancelKeepsPlace) {
            self.leave_queues(lock_set, rank);
        }
        self.change_session(session, |found| found.finish(request, State::Ended));
        events.push(Event::Left { session, request, items: lock_set.items() });
        self.pass_on(lock_set.iter().map(|(name, _)| name), events);
    }

    /// Ends a part of a hold by its holder; `left` is what it goes on to hold.
    fn give_back(&mut self, ending: &Ending, left: Part, is_lost: bool, events: &mut Vec<Event>) {
        let Ending { grant, lock_set, part, .. } = ending;
        let Grant { session, request, token } = *grant;
        self.close_locks(ending, events);
        self.change_session(session, |found| found.give_back(request, token, left));
        let (items, over) = (lock_set.items_of(*part), left.is_empty());
        events.push(Event::Released { session, request, token, items, over });
        if is_lost && !mutant!(LostReleaseIsClean) {
            self.suspect_values(ending, events);
        }
        self.end_hold(ending, events);
    }

    /// Ends a hold without a release: its session ended, its epoch was raised, or it was closed. Passes
    /// on its locks. The caller has removed it from the session's records.
    pub(crate) fn lose(&mut self, ending: &Ending, cause: LossCause, events: &mut Vec<Event>) {
        let Ending { grant, lock_set, part, .. } = ending;
        let Grant { session, request, token } = *grant;
        self.close_locks(ending, events);
        let items = lock_set.items_of(*part);
        events.push(Event::Lost { session, request, token, items, over: true, cause });
        let unclean = match cause {
            LossCause::Closed => false,
            LossCause::Expired
            | LossCause::EpochRaised
            | LossCause::Revoked
            | LossCause::Forced => true,
        };
        if unclean && !mutant!(SuspectNotSet) {
            self.suspect_values(ending, events);
        }
        self.end_hold(ending, events);
    }

    /// Marks the values of a hold as suspect, before the next holder gets them. An exclusive holder
    /// whose lease ran out, or whose scope was served elsewhere, may have been about to set the
    /// value of its lock, or have done half of the work that the value describes.
    fn suspect_values(&mut self, ending: &Ending, events: &mut Vec<Event>) {
        for (name, mode) in ending.lock_set.iter_part(ending.part) {
            if mode == Mode::Exclusive {
                self.suspect_value(name, events);
            }
        }
    }

    fn end_hold(&mut self, ending: &Ending, events: &mut Vec<Event>) {
        let Ending { grant, lock_set, part, .. } = ending;
        self.work.charge(HOLD_STEPS * u64::from(part.len()));
        let kept = mutant!(SetKeepsOneName) && lock_set.iter_part(*part).count() > 1;
        for (name, _) in lock_set.iter_part(*part).skip(usize::from(kept)) {
            self.take_holder(name, grant.token);
        }
        self.pass_on(lock_set.iter_part(*part).map(|(name, _)| name), events);
    }
}

/// The part of a hold that `locks` names.
fn named_part(
    session: SessionId,
    token: FencingToken,
    lock_set: &LockSet,
    held: Part,
    locks: &[LockName],
) -> Result<Part, Rejection> {
    check_count(locks.len())?;
    let mut part = Part::default();
    for lock in locks {
        let at = lock_set.position(lock).filter(|&at| held.contains(at));
        let lock = || lock.clone();
        let at = at.ok_or_else(|| Rejection::NotHeldUnder { session, token, lock: lock() })?;
        if part.contains(at) {
            return Err(Rejection::NameTwice { lock: lock() });
        }
        part = part.with(at);
    }
    Ok(part)
}
