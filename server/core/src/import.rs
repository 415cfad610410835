//! Imports from another store: what its owners hold and wait for there, and how clients take it
//! over (DESIGN §10, I25).
//!
//! # Invariants
//!
//! - An import is a session of its own, whose lease is the time that remained in the other store,
//!   and whose secret no client has: what is not claimed runs out as it would have there. A row that is renewed there
//!   and imported again lengthens it.
//! - The table keeps its requests until it ends, even claimed and ended ones. So it knows a second
//!   copy of a row for as long as the row could be in the other store, and changes nothing.
//! - An imported hold needs a free lock, and an imported wait one that is not free. No hold comes
//!   into a suspended scope: a client may hold in the other store what is free here. A claim there
//!   succeeds: it only moves a hold or a place.

use std::collections::BTreeSet;
use std::io::{self, Read};

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_mutants::mutant;

use crate::acquire::Denial;
use crate::answer::{Acquired, Answer, Outcome};
use crate::event::Event;
use crate::ids::{FencingToken, Label, LockName, RequestId, SessionId, read_grown_bytes};
use crate::lock_set::{Item, LockSet, Mode, Need, Part};
use crate::queue::Waiter;
use crate::quota::Quantity;
use crate::rank::Rank;
use crate::session::{Record, Session, State};
use crate::value::{Value, check_length};
use crate::{IMPORT_ROWS_MAX, LockTable, Rejection, size};

/// The longest imported lease: 366 days, milliseconds.
pub const IMPORT_TTL_MAX_MS: u64 = 366 * 86_400_000;

/// One lock of an owner in the other store.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct ImportRow {
    /// The lock.
    pub lock: LockName,
    /// Whether the owner holds it or waits for it.
    pub has: Has,
}

/// A hold or a wait of an owner in the other store.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum Has {
    /// It holds the lock, with this value; without one the lock keeps the value that it has here.
    Hold(#[borsh(deserialize_with = "read_value")] Option<Vec<u8>>),
    /// It waits, behind all that were imported before it.
    Place,
}

/// The result of one row.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize)]
pub enum Fate {
    /// It holds the lock under this token.
    Held {
        /// The grant.
        token: FencingToken,
    },
    /// It waits for the lock.
    Queued {
        /// How many stand before it; 0 is next.
        place: u64,
    },
    /// An import that still runs has the row already. Nothing changed.
    Known,
    /// The row was not imported; nothing of it changed the table.
    Refused(Rejection),
}

impl LockTable {
    /// Imports rows, in their order, each by itself: a refused row leaves the others alone. A
    /// second copy changes nothing (I25).
    ///
    /// # Errors
    ///
    /// [`Rejection::NoNames`], [`Rejection::TooManyNames`], [`Rejection::TtlOutOfRange`],
    /// [`Rejection::TooManySessions`]: the state is unchanged.
    pub(crate) fn import(
        &mut self,
        owner: &Label,
        ttl_ms: u64,
        rows: &[ImportRow],
        events: &mut Vec<Event>,
    ) -> Outcome {
        check_import(ttl_ms, rows.len())?;
        if self.grants_after_ms().is_some() {
            return Err(Rejection::Restored);
        }
        let mut opened = None;
        let mut fates = Vec::new();
        for (request, row) in (1..).map(RequestId::new).zip(rows) {
            let fate = if let Some(fate) = self.in_the_way_of(owner, row, opened) {
                fate
            } else {
                let session = match opened {
                    Some(session) => session,
                    None => *opened.insert(self.open_import(owner, ttl_ms, events)?),
                };
                self.bring_in((session, request), owner, row, events)
            };
            fates.push(fate);
        }
        Ok(Answer::Imported { session: opened, fates })
    }

    /// Makes the leases of an owner's imports of these locks at least `ttl_ms` long from here on. The leader counts; a later one begins
    /// with as much.
    ///
    /// # Errors
    ///
    /// [`Rejection::NoNames`], [`Rejection::TooManyNames`], [`Rejection::TtlOutOfRange`]: the state is unchanged.
    pub(crate) fn lengthen_imports(
        &mut self,
        owner: &Label,
        ttl_ms: u64,
        locks: &[LockName],
        events: &mut Vec<Event>,
    ) -> Outcome {
        check_import(ttl_ms, locks.len())?;
        let mut lengthened = BTreeSet::new();
        let mut imports = Vec::with_capacity(locks.len());
        for lock in locks {
            let import =
                self.imports.get(&(lock.clone(), owner.clone())).map(|&(session, _)| session);
            imports.push(import);
            let Some((session, _, State::Held { .. } | State::Waiting { .. })) =
                self.imported(lock, owner)
            else {
                continue;
            };
            if lengthened.insert(session) && !mutant!(ImportKeepsItsLease) {
                self.change_session(session, |import| import.ttl_ms = import.ttl_ms.max(ttl_ms));
                events.push(Event::ImportLengthened { session, ttl_ms });
            }
        }
        Ok(Answer::ImportsLengthened { imports })
    }

    /// The session that stands for the owner of an imported row, and its lease: what a leader that comes begins with.
    pub fn import_lease(&self, lock: &LockName, owner: &Label) -> Option<(SessionId, u64)> {
        let &(session, _) = self.imports.get(&(lock.clone(), owner.clone()))?;
        Some((session, self.sessions.get(&session)?.ttl_ms))
    }

    fn open_import(
        &mut self,
        owner: &Label,
        ttl_ms: u64,
        events: &mut Vec<Event>,
    ) -> Result<SessionId, Rejection> {
        // No client can find a secret with a hash of zeros: none can renew or resume the session.
        let unclaimed = Session::new(self.stamp_ms, owner.clone());
        let opened = Session { imported: true, ttl_ms, ..unclaimed };
        self.add_session(opened, events)
    }

    /// Why a row is not imported; `None` if it can be. `opened` is the session of this import, once
    /// it is open.
    fn in_the_way_of(
        &self,
        owner: &Label,
        row: &ImportRow,
        opened: Option<SessionId>,
    ) -> Option<Fate> {
        let key = (row.lock.clone(), owner.clone());
        if self.imports.contains_key(&key) && !mutant!(ImportRepeats) {
            return Some(Fate::Known);
        }
        let (fits, value) = match &row.has {
            Has::Hold(value) => {
                (self.may_come_to_hold(&row.lock, value.as_deref()), value.as_ref())
            }
            Has::Place => (self.may_come_to_wait(&row.lock), None),
        };
        let session = if opened.is_some() { 0 } else { size::of_session(owner) };
        let growth = value.map_or(0, |value| self.growth(&row.lock, value.len()));
        let more = session + size::of_row(&row.lock, owner) + growth;
        fits.and_then(|()| self.check_table(more)).err().map(Fate::Refused)
    }

    /// Checks that a hold may be imported: the lock has no holder and no waiter here.
    fn may_come_to_hold(&self, lock: &LockName, value: Option<&[u8]>) -> Result<(), Rejection> {
        let lock_set = wish_for(lock)?;
        if !self.is_free_to_enter(&lock_set) {
            return Err(self.denial(&lock_set, 0).rejection(&lock_set));
        }
        if !self.counters.has_tokens() {
            return Err(self.tokens_exhausted(&lock_set));
        }
        let Some(value) = value else { return Ok(()) };
        check_length(value.len())?;
        self.check_room(lock, self.value(lock), value.len())
    }

    fn is_free_to_enter(&self, lock_set: &LockSet) -> bool {
        lock_set.takes(self.free_to_newcomer(lock_set, 0)).is_some()
    }

    /// Checks that a wait may be imported. A waiter in the other store waits for a holder there: on
    /// a lock that is free here it would be granted at once, while that holder, not imported yet,
    /// still holds.
    fn may_come_to_wait(&self, lock: &LockName) -> Result<(), Rejection> {
        let limit = self.limits.max_waiters_per_lock;
        let found = self.locks.get(lock);
        let found = found.filter(|lock| !lock.holders.is_empty() || !lock.queue.is_empty());
        if mutant!(ImportedWaiterEnters) && found.is_none() {
            return Ok(());
        }
        match found.map(|lock| lock.queue.len()) {
            None => Err(Rejection::NothingToWaitFor { lock: lock.clone() }),
            Some(waiting) if waiting >= limit => {
                Err(Rejection::TooManyWaiters { lock: lock.clone(), limit })
            }
            Some(_) => Ok(()),
        }
    }

    /// Makes a row a request of the import's session. The caller has checked that nothing is in its
    /// way.
    fn bring_in(
        &mut self,
        who: (SessionId, RequestId),
        owner: &Label,
        row: &ImportRow,
        events: &mut Vec<Event>,
    ) -> Fate {
        let entered = wish_for(&row.lock).and_then(|mut lock_set| {
            lock_set.share_names(|name| self.kept_name(name));
            match row.has {
                Has::Hold(_) => self.take_free(who, lock_set.into(), Part::whole(1), events),
                Has::Place if mutant!(ImportedWaiterEnters) && self.is_free_to_enter(&lock_set) => {
                    self.take_free(who, lock_set.into(), Part::whole(1), events)
                }
                Has::Place => self.enqueue(who, lock_set.into(), events),
            }
        });
        let fate = match entered {
            Ok(Answer::Acquired { state: Acquired::Granted { token, .. }, .. }) => {
                Fate::Held { token }
            }
            Ok(Answer::Acquired { state: Acquired::Queued { place, .. }, .. }) => {
                Fate::Queued { place }
            }
            // Unreachable: both calls answer with nothing else.
            Ok(_) => return Fate::Known,
            // Only after all 2⁶⁴ tickets are used up.
            Err(rejection) => return Fate::Refused(rejection),
        };
        let name = self.kept_name(&row.lock).unwrap_or_else(|| row.lock.clone());
        self.imports.insert((name, owner.clone()), who);
        if let (Has::Hold(Some(value)), &Fate::Held { token }) = (&row.has, &fate) {
            let value = Value {
                bytes: value.as_slice().into(),
                set_by: token,
                suspect: false,
                owner: None,
            };
            self.put_value(&row.lock, Some(value), events);
        }
        fate
    }

    /// Moves an owner's import of a lock to the session that claims it: its place, or its hold
    /// under a new token. No other request comes in between, and no third session gets an event.
    ///
    /// # Errors
    ///
    /// [`Rejection::NotImported`] is recorded under the id; [`Rejection::UnknownSession`],
    /// [`Rejection::RequestGone`], [`Rejection::RequestReused`], [`Rejection::RequestEnded`],
    /// [`Rejection::TooManyRequests`], [`Rejection::TableFull`] and [`Rejection::TokensExhausted`]
    /// changed nothing.
    pub(crate) fn claim(
        &mut self,
        who: (SessionId, RequestId),
        lock: &LockName,
        owner: &Label,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let (session, request) = who;
        let mut lock_set = wish_for(lock)?;
        let claimer = self.open(session)?;
        if let Some(record) = claimer.seen(request)? {
            return self.answer_again(who, &lock_set.into(), record);
        }
        self.check_acts(session)?;
        claimer.may_keep_another(session, self.limits.max_requests_per_session)?;
        self.check_table(size::of_request(std::iter::once(lock)))?;
        self.check_quota_of(session, Quantity::Holds, 1)?;
        lock_set.share_names(|name| self.kept_name(name));
        match self.imported(lock, owner) {
            Some((_, _, State::Held { .. })) if !self.counters.has_tokens() => {
                Err(self.tokens_exhausted(&lock_set))
            }
            Some((session, request, State::Held { token, .. })) => {
                self.claim_hold(who, lock_set, (session, request, token), events)
            }
            Some((session, request, State::Waiting { rank, .. })) => {
                self.check_quota_of(who.0, Quantity::Waits, 1)?;
                self.claim_place(who, lock_set, (session, request, rank), events)
            }
            Some((_, _, State::Denied(_) | State::Ended)) | None => {
                self.deny(who, lock_set.into(), Denial::NotImported, events)
            }
        }
    }

    /// The imported request, and its state; `None` too if it holds what was ended from outside.
    fn imported(&self, lock: &LockName, owner: &Label) -> Option<(SessionId, RequestId, State)> {
        let &(session, request) = self.imports.get(&(lock.clone(), owner.clone()))?;
        let import = self.sessions.get(&session)?;
        match *import.records.get(&request)? {
            Record::Asked { state: State::Held { token, .. }, ref lock_set }
                if !self.is_relied_on((session, token), lock_set) =>
            {
                None
            }
            Record::Asked { state, .. } => Some((session, request, state)),
            Record::Wrote { .. } | Record::Spent => None,
        }
    }

    /// Grants a new token: the holder under the old one may still write, and a resource refuses it
    /// once it has seen the new one (I1).
    fn claim_hold(
        &mut self,
        who: (SessionId, RequestId),
        lock_set: LockSet,
        (session, request, token): (SessionId, RequestId, FencingToken),
        events: &mut Vec<Event>,
    ) -> Outcome {
        let before = events.len();
        let none = Part::default();
        self.change_session(session, |import| import.give_back(request, token, none));
        for (name, _) in lock_set.iter() {
            self.take_holder(name, token);
        }
        events.push(Event::Released {
            session,
            request,
            token,
            items: lock_set.items(),
            over: true,
        });
        let answer = self.take_free(who, lock_set.into(), Part::whole(1), events)?;
        self.tell_contended(before, events);
        Ok(answer)
    }

    fn claim_place(
        &mut self,
        (session, request): (SessionId, RequestId),
        lock_set: LockSet,
        (import, imported, rank): (SessionId, RequestId, Rank),
        events: &mut Vec<Event>,
    ) -> Outcome {
        if mutant!(ClaimLosesPlace) {
            self.leave_queues(&lock_set, rank);
            self.finish_import(import, imported);
            return self.enqueue((session, request), lock_set.into(), events);
        }
        let waiter = Waiter { session, request, mode: Mode::Exclusive, head_start_ms: 0 };
        for (name, _) in lock_set.iter() {
            let replaced = self.lock_or_new(name).queue.replace(rank, waiter);
            debug_assert!(replaced, "I10: {imported} of {import} waits for {name}");
        }
        self.finish_import(import, imported);
        let (items, place) = (lock_set.items(), self.place(&lock_set, rank));
        let left = Event::Left { session: import, request: imported, items: items.clone() };
        events.extend([left, Event::Queued { session, request, items, place }]);
        let state = self.where_it_waits(&lock_set, rank);
        let waiting = State::Waiting { rank, since_ms: self.stamp_ms };
        self.keep_wish((session, request), lock_set.into(), waiting);
        Ok(Answer::Acquired { request, state, fresh: true })
    }

    fn finish_import(&mut self, session: SessionId, request: RequestId) {
        self.change_session(session, |import| import.finish(request, State::Ended));
    }

    /// Drops the index entries of an import whose session ended.
    pub(crate) fn forget_imports(&mut self, ended: &Session) {
        for (lock, _) in ended.imports() {
            self.imports.remove(&(lock.clone(), ended.label.clone()));
        }
    }
}

/// One lock, exclusively, and willing to wait.
fn wish_for(lock: &LockName) -> Result<LockSet, Rejection> {
    LockSet::new(&[Item::exclusive(lock.clone())], Need::All, true)
}

fn check_import(ttl_ms: u64, rows: usize) -> Result<(), Rejection> {
    if rows == 0 {
        return Err(Rejection::NoNames);
    }
    if rows > IMPORT_ROWS_MAX {
        return Err(Rejection::TooManyNames { names: rows as u64, max: IMPORT_ROWS_MAX as u64 });
    }
    if !(1..=IMPORT_TTL_MAX_MS).contains(&ttl_ms) {
        return Err(Rejection::TtlOutOfRange { ttl_ms, min_ms: 1, max_ms: IMPORT_TTL_MAX_MS });
    }
    Ok(())
}

/// Reads a value of any length, with memory for the bytes that arrive and not for the length they
/// claim.
fn read_value<R: Read>(reader: &mut R) -> io::Result<Option<Vec<u8>>> {
    let there = bool::deserialize_reader(reader)?;
    there.then(|| read_grown_bytes(reader)).transpose()
}
