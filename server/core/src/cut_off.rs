//! Ending sessions and holds from outside, without a second holder (DESIGN §14, I35).
//!
//! Whatever is ended here, its client may still rely on its locks until the leader's deadline for it has
//! passed. So a revoked session, and a closed hold, stay what they are in the table: nobody else gets
//! their locks. They only come to nothing new, and the leader renews neither any more
//! ([`LeaseTable`](crate::LeaseTable)). They end by what their own client sends, or by the leader's
//! [`ExpireSession`](crate::Command::ExpireSession) or
//! [`EndClosed`](crate::Command::EndClosed) after the deadline.
//!
//! # Invariants
//!
//! - A revoked session waits for nothing.
//! - A closed hold is named to its client with each answer that renews the session, until the client
//!   has released it or the session ends: also after its end here, because the client may learn of
//!   the grant later still.

use std::collections::BTreeMap;
use std::io;

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_mutants::mutant;

use crate::access::{Caller, Identity};
use crate::answer::{Answer, Grant, Outcome};
use crate::event::{EndCause, Event, LossCause};
use crate::holders::Holders;
use crate::ids::{FencingToken, Label, LockName, RequestId, SessionId, Tenure};
use crate::lock_set::{LockSet, Part};
use crate::release::Ending;
use crate::session::{Record, Session, State};
use crate::work::{CLOSED_AT_ONCE, PendingCut};
use crate::{LockTable, Rejection};

/// What is ending of a session, from outside.
#[derive(Clone, Debug, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(crate) struct Cut {
    /// Whether its client gives up a hold that an answer names as closed.
    pub(crate) knows_closed: bool,
    /// Why it was revoked.
    pub(crate) revoked: Option<Label>,
    /// Its closed holds; those too that are over, until its client has released them.
    pub(crate) closed: ClosedHolds,
}

/// Closed holds by their tokens. Hardly a session has any, so they take room only where there are some.
#[expect(clippy::box_collection, reason = "a map without a box takes room in every session")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClosedHolds(Option<Box<BTreeMap<FencingToken, Closed>>>);

impl ClosedHolds {
    pub(crate) fn contains(&self, token: FencingToken) -> bool {
        self.0.as_ref().is_some_and(|closed| closed.contains_key(&token))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |closed| closed.len())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (FencingToken, &Closed)> {
        self.0.iter().flat_map(|closed| closed.iter()).map(|(&token, closed)| (token, closed))
    }

    fn insert(&mut self, token: FencingToken, closed: Closed) {
        self.0.get_or_insert_default().insert(token, closed);
    }

    fn remove(&mut self, token: FencingToken) {
        self.0.as_mut().and_then(|closed| closed.remove(&token));
        self.0.take_if(|closed| closed.is_empty());
    }
}

impl BorshSerialize for ClosedHolds {
    fn serialize<W: io::Write>(&self, writer: &mut W) -> io::Result<()> {
        match &self.0 {
            Some(closed) => closed.serialize(writer),
            None => BTreeMap::<FencingToken, Closed>::new().serialize(writer),
        }
    }
}

impl BorshDeserialize for ClosedHolds {
    fn deserialize_reader<R: io::Read>(reader: &mut R) -> io::Result<Self> {
        let closed = Box::<BTreeMap<_, _>>::deserialize_reader(reader)?;
        Ok(Self(Some(closed).filter(|closed| !closed.is_empty())))
    }
}

/// A hold that was closed from outside.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(crate) struct Closed {
    /// The holder's request.
    pub(crate) request: RequestId,
    /// For people.
    pub(crate) reason: Label,
}

impl Session {
    /// Whether nothing that is noted at the session ends the hold under `token` from outside
    /// ([`LockTable::is_relied_on`]).
    fn relies_on(&self, token: FencingToken) -> bool {
        self.cut.revoked.is_none() && !self.cut.closed.contains(token)
    }
}

impl LockTable {
    /// A session that a client may act for, and that nothing has ended from outside.
    ///
    /// # Errors
    ///
    /// [`Rejection::UnknownSession`], [`Rejection::SessionRevoked`].
    pub(crate) fn check_acts(&self, session: SessionId) -> Result<(), Rejection> {
        let found = self.open(session)?;
        let revoked = found.cut.revoked.as_ref().or_else(|| self.pending_end_of(session, found));
        match revoked.cloned().filter(|_| !mutant!(RevokedSessionActs)) {
            Some(reason) => Err(Rejection::SessionRevoked { session, reason }),
            None => Ok(()),
        }
    }

    /// Whether the client of a session may still rely on its hold under `token` once it knows all that was
    /// decided: neither the hold nor the session was ended from outside, nor the epoch of the hold.
    pub(crate) fn is_relied_on(
        &self,
        (session, token): (SessionId, FencingToken),
        lock_set: &LockSet,
    ) -> bool {
        let Some(found) = self.sessions.get(&session).filter(|_| !self.is_over(session)) else {
            return false;
        };
        let ended = || lock_set.get(0).is_some_and(|(name, _)| self.is_outdated(name, token));
        found.relies_on(token) && self.pending_end_of(session, found).is_none() && !ended()
    }

    /// Why a session is to be revoked that has not had its turn ([`PendingCut`]); `None` if it is not.
    fn pending_end_of(&self, id: SessionId, session: &Session) -> Option<&Label> {
        if session.imported {
            return None;
        }
        self.pending_cut_of(&session.caller.identity, id)
    }

    /// Why the sessions of an identity are to be revoked, if this one would be among them.
    fn pending_cut_of(&self, identity: &Identity, id: SessionId) -> Option<&Label> {
        let cuts = &self.work.pending().cuts;
        // Without a limit all of them end in the one command, and a member of an older release may grant
        // to one of them in between.
        if cuts.is_empty() || !self.work.is_limited() {
            return None;
        }
        let cut = cuts.get(identity).filter(|cut| id <= cut.last)?;
        Some(&cut.reason)
    }

    /// Checks that a session may become the caller's: a cut that is under way finds the sessions of its identity one after the
    /// other, and nothing is granted to one that it has not found yet. A session that came to that identity, or went from
    /// it, would keep its place at the head of a queue that nobody looks at again.
    ///
    /// # Errors
    ///
    /// [`Rejection::SessionRevoked`].
    pub(crate) fn check_not_cut_off(
        &self,
        session: SessionId,
        caller: &Caller,
    ) -> Result<(), Rejection> {
        let owner = &self.open(session)?.caller.identity;
        let cut =
            [owner, &caller.identity].into_iter().find_map(|one| self.pending_cut_of(one, session));
        match cut.cloned() {
            Some(reason) => Err(Rejection::SessionRevoked { session, reason }),
            None => Ok(()),
        }
    }

    /// Whether a session is over, or is to be revoked, and has not had its turn: nothing is granted to it
    /// any more.
    pub(crate) fn is_ending(&self, session: SessionId) -> bool {
        self.work.pending().ends.contains_key(&session)
            || self.sessions.get(&session).is_some_and(|found| {
                found.cut.revoked.is_none() && self.pending_end_of(session, found).is_some()
            })
    }

    /// The holds of a lock, or the one under `token`: each with all its locks, and the part of them
    /// that is held.
    pub(crate) fn holds_of(
        &self,
        lock: &LockName,
        token: Option<FencingToken>,
    ) -> impl Iterator<Item = (Grant, &LockSet, Part)> {
        let holders = self.locks.get(lock).map(|lock| &lock.holders);
        // One of many readers is found without a look at the others.
        let one = holders.and_then(|holders| holders.get(token?));
        let all = holders.filter(|_| token.is_none()).into_iter().flat_map(Holders::iter);
        one.into_iter().chain(all).filter_map(|holder| {
            let found = self.sessions.get(&holder.grant.session)?;
            let (lock_set, part) = found.records.get(&holder.grant.request)?.held()?;
            Some((holder.grant, lock_set, part))
        })
    }

    /// Revokes a session, or ends it at once. A second copy changes nothing.
    ///
    /// # Errors
    ///
    /// [`Rejection::UnknownSession`]: the state is unchanged.
    pub(crate) fn end_from_outside(
        &mut self,
        session: SessionId,
        reason: &Label,
        now: bool,
        events: &mut Vec<Event>,
    ) -> Outcome {
        self.revoke(session, reason, events)?;
        if now || mutant!(RevokedPassesAtOnce) {
            self.work.pending_mut().ends_now.insert(session);
            return self.end_session(session, EndCause::Revoked, events);
        }
        Ok(Answer::Revoked { sessions: 1 })
    }

    /// Marks a session: its waits leave its queues, in the order of their tickets, and its holds stay
    /// (I35).
    fn revoke(
        &mut self,
        session: SessionId,
        reason: &Label,
        events: &mut Vec<Event>,
    ) -> Result<(), Rejection> {
        let found = self.sessions.get(&session).filter(|_| !self.is_over(session));
        let found = found.ok_or(Rejection::UnknownSession { session })?;
        if found.cut.revoked.is_some() {
            return Ok(());
        }
        if self.ends_in_parts(found) {
            self.change_session(session, |found| found.cut.revoked = Some(reason.clone()));
            events.push(Event::SessionRevoked { session, reason: reason.clone() });
            self.leave_in_parts(session, events);
            return Ok(());
        }
        let waits: Vec<_> = found
            .waits()
            .into_iter()
            .map(|(rank, request, lock_set)| (rank, request, lock_set.clone()))
            .collect();
        self.change_session(session, |found| {
            found.cut.revoked = Some(reason.clone());
            for &(_, request, _) in &waits {
                found.finish(request, State::Ended);
            }
        });
        self.charge_for(session);
        events.push(Event::SessionRevoked { session, reason: reason.clone() });
        for (rank, request, lock_set) in &waits {
            self.work.charge(lock_set.len() as u64);
            self.leave_queues(lock_set, *rank);
            events.push(Event::Left { session, request: *request, items: lock_set.items() });
        }
        let left = waits.iter().flat_map(|(_, _, lock_set)| lock_set.iter().map(|(name, _)| name));
        self.pass_on(left, events);
        Ok(())
    }

    /// Takes everything from an identity, and ends its sessions. A second copy changes nothing.
    ///
    /// Looks at every session, so within a limit most of them have their turn later. Until then each is as
    /// good as revoked ([`LockTable::is_relied_on`], [`LockTable::check_acts`]).
    ///
    /// # Errors
    ///
    /// [`Rejection::Rules`] if the caller would lose its own way back; the state is unchanged.
    pub(crate) fn cut_off(
        &mut self,
        caller: &Caller,
        (identity, reason, now): (&Identity, &Label, bool),
        events: &mut Vec<Event>,
    ) -> Outcome {
        self.take_rights(caller, identity, events)?;
        let sessions = self.usages.of(identity).sessions;
        if sessions > 0 {
            let last = SessionId::new(self.counters.session);
            let cut = PendingCut { reason: reason.clone(), now, last, after: None };
            self.work.pending_mut().cuts.insert(identity.clone(), cut);
            self.cut_further(events);
        }
        Ok(Answer::Revoked { sessions })
    }

    /// Ends sessions of identities that were cut off, as far as the command goes.
    pub(crate) fn cut_further(&mut self, events: &mut Vec<Event>) {
        while !self.work.is_spent() {
            let first = self.work.pending().cuts.first_key_value();
            let Some((identity, cut)) = first.map(|(id, cut)| (id.clone(), cut.clone())) else {
                return;
            };
            let looks = self.work.looks_left();
            let own = |session: &Session| session.caller.identity == identity && !session.imported;
            let (mut looked, mut after, mut found) = (0, cut.after, None);
            for (&id, session) in self.sessions.after(cut.after.as_ref()).take(looks) {
                (looked, after) = (looked + 1, Some(id));
                if id <= cut.last && own(session) {
                    found = Some(id);
                    break;
                }
            }
            self.work.charge(looked as u64);
            let cuts = &mut self.work.pending_mut().cuts;
            match found {
                // It was found in the store, so it can be ended.
                Some(session) => {
                    cuts.insert(identity, PendingCut { after, ..cut.clone() });
                    drop(self.end_from_outside(session, &cut.reason, cut.now, events));
                }
                None if looked < looks => drop(cuts.remove(&identity)),
                None => drop(cuts.insert(identity, PendingCut { after, ..cut })),
            }
        }
    }

    /// Closes holds of a lock, or ends them at once. A second copy changes nothing.
    ///
    /// # Errors
    ///
    /// [`Rejection::NotHeld`]; [`Rejection::TooManyHolders`] if all holders are meant, and they are more
    /// than one command may close: the state is unchanged.
    pub(crate) fn close_holds(
        &mut self,
        (lock, token): (&LockName, Option<FencingToken>),
        reason: &Label,
        now: bool,
        events: &mut Vec<Event>,
    ) -> Outcome {
        if let Some(holders) = self.are_too_many_to_close(lock).filter(|_| token.is_none()) {
            let (lock, max) = (lock.clone(), CLOSED_AT_ONCE as u64);
            return Err(Rejection::TooManyHolders { lock, holders, max });
        }
        let grants: Vec<Grant> = self.holds_of(lock, token).map(|(grant, ..)| grant).collect();
        if grants.is_empty() {
            return Err(Rejection::NotHeld { lock: lock.clone() });
        }
        for &grant in &grants {
            self.close_hold(grant, reason, events)?;
            if now || mutant!(ClosedPassesAtOnce) {
                self.lose_closed(grant, true, events);
            }
        }
        Ok(Answer::HoldsClosed { holds: grants })
    }

    /// How many hold a lock, if that is more than one command may close.
    pub(crate) fn are_too_many_to_close(&self, lock: &LockName) -> Option<u64> {
        let holders = self.locks.get(lock).map_or(0, |lock| lock.holders.len());
        (self.work.is_limited() && holders > CLOSED_AT_ONCE).then_some(holders as u64)
    }

    /// An import's hold has no client that could release it, and is only kept from being claimed.
    pub(crate) fn close_hold(
        &mut self,
        grant: Grant,
        reason: &Label,
        events: &mut Vec<Event>,
    ) -> Result<(), Rejection> {
        let Grant { session, request, token } = grant;
        self.charge_for(session);
        let Some(found) = self.sessions.get(&session) else { return Ok(()) };
        if !found.relies_on(token) || self.is_over(session) {
            return Ok(());
        }
        if !found.imported && !found.cut.knows_closed {
            return self.revoke(session, reason, events);
        }
        let closed = Closed { request, reason: reason.clone() };
        self.change_session(session, |found| found.cut.closed.insert(token, closed));
        events.push(Event::HoldClosed { session, request, token, reason: reason.clone() });
        Ok(())
    }

    /// Ends a closed hold whose deadline passed at the leader of `heard_in`.
    ///
    /// # Errors
    ///
    /// [`Rejection::UnknownSession`], [`Rejection::OtherTenure`], as of an expiry;
    /// [`Rejection::NotHolder`] if it is over, or was never closed: the state is unchanged.
    pub(crate) fn end_closed(
        &mut self,
        (session, token): (SessionId, FencingToken),
        (heard_in, proposed_in): (Tenure, Tenure),
        events: &mut Vec<Event>,
    ) -> Outcome {
        let found = self.sessions.get(&session).filter(|_| !self.is_over(session));
        let found = found.ok_or(Rejection::UnknownSession { session })?;
        if heard_in != proposed_in {
            return Err(Rejection::OtherTenure { session, heard_in, proposed_in });
        }
        let closed = found.cut.closed.contains(token);
        let held = found.held_under(session, token).map(|(request, ..)| request);
        let request = held.ok().filter(|_| closed);
        let request = request.ok_or(Rejection::NotHolder { session, token })?;
        self.lose_closed(Grant { session, request, token }, false, events);
        Ok(Answer::Released { request, token, over: true })
    }

    /// Ends a hold without its client, and passes on its locks: `now` even before it has lasted its least.
    fn lose_closed(&mut self, grant: Grant, now: bool, events: &mut Vec<Event>) {
        let Grant { session, request, token } = grant;
        let Some(found) = self.sessions.get(&session) else { return };
        let held = found.records.get(&request).and_then(Record::held);
        let Some((lock_set, part)) = held else { return };
        let closes = found.closes(request, token).filter(|_| !now);
        let ending = Ending { grant, lock_set: lock_set.clone(), part, closes };
        self.change_session(session, |found| found.give_back(request, token, Part::default()));
        self.lose(&ending, LossCause::Forced, events);
    }

    /// The client of a session releases a hold, or cancels its request: it relies on the hold no more,
    /// and need not be told any more that it was closed.
    pub(crate) fn let_go_of_closed(&mut self, session: SessionId, token: FencingToken) {
        if self.sessions.get(&session).is_some_and(|found| found.cut.closed.contains(token)) {
            self.change_session(session, |found| found.cut.closed.remove(token));
        }
    }
}
