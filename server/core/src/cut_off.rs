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
use crate::ids::{FencingToken, Label, LockName, RequestId, SessionId, Tenure};
use crate::lock_set::{LockSet, Part};
use crate::release::Ending;
use crate::session::{Record, Session};
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
    /// Whether its client may still rely on the hold under `token` once it knows all that was decided.
    pub(crate) fn relies_on(&self, token: FencingToken) -> bool {
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
        match found.cut.revoked.clone().filter(|_| !mutant!(RevokedSessionActs)) {
            Some(reason) => Err(Rejection::SessionRevoked { session, reason }),
            None => Ok(()),
        }
    }

    /// The holds of a lock, or the one under `token`: each with all its locks, and the part of them
    /// that is held.
    pub(crate) fn holds_of(
        &self,
        lock: &LockName,
        token: Option<FencingToken>,
    ) -> impl Iterator<Item = (Grant, &LockSet, Part)> {
        let holders = self.locks.get(lock).into_iter().flat_map(|lock| lock.holders.iter());
        holders
            .filter(move |holder| token.is_none_or(|token| holder.grant.token == token))
            .filter_map(|holder| {
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
        let found = self.sessions.get(&session).ok_or(Rejection::UnknownSession { session })?;
        if found.cut.revoked.is_some() {
            return Ok(());
        }
        let waits: Vec<_> = found
            .waits()
            .into_iter()
            .map(|(ticket, request, lock_set)| (ticket, request, lock_set.clone()))
            .collect();
        self.change_session(session, |found| {
            found.cut.revoked = Some(reason.clone());
            for &(_, request, _) in &waits {
                found.finish(request);
            }
        });
        events.push(Event::SessionRevoked { session, reason: reason.clone() });
        for (ticket, request, lock_set) in &waits {
            self.leave_queues(lock_set, *ticket);
            events.push(Event::Left { session, request: *request, items: lock_set.items() });
        }
        let left = waits.iter().flat_map(|(_, _, lock_set)| lock_set.iter().map(|(name, _)| name));
        self.pass_on(left, events);
        Ok(())
    }

    /// Takes everything from an identity, and ends its sessions. A second copy changes nothing.
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
        let own = |session: &Session| session.caller.identity == *identity && !session.imported;
        let sessions = self.sessions.iter().filter(|(_, session)| own(session));
        let sessions: Vec<SessionId> = sessions.map(|(&session, _)| session).collect();
        for &session in &sessions {
            self.end_from_outside(session, reason, now, events)?;
        }
        Ok(Answer::Revoked { sessions: sessions.len() as u64 })
    }

    /// Closes holds of a lock, or ends them at once. A second copy changes nothing.
    ///
    /// # Errors
    ///
    /// [`Rejection::NotHeld`]: the state is unchanged.
    pub(crate) fn close_holds(
        &mut self,
        (lock, token): (&LockName, Option<FencingToken>),
        reason: &Label,
        now: bool,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let grants: Vec<Grant> = self.holds_of(lock, token).map(|(grant, ..)| grant).collect();
        if grants.is_empty() {
            return Err(Rejection::NotHeld { lock: lock.clone() });
        }
        for &grant in &grants {
            self.close_hold(grant, reason, events)?;
            if now || mutant!(ClosedPassesAtOnce) {
                self.lose_closed(grant, events);
            }
        }
        Ok(Answer::HoldsClosed { holds: grants })
    }

    /// An import's hold has no client that could release it, and is only kept from being claimed.
    fn close_hold(
        &mut self,
        grant: Grant,
        reason: &Label,
        events: &mut Vec<Event>,
    ) -> Result<(), Rejection> {
        let Grant { session, request, token } = grant;
        let Some(found) = self.sessions.get(&session) else { return Ok(()) };
        if !found.relies_on(token) {
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
        let found = self.sessions.get(&session).ok_or(Rejection::UnknownSession { session })?;
        if heard_in != proposed_in {
            return Err(Rejection::OtherTenure { session, heard_in, proposed_in });
        }
        let closed = found.cut.closed.contains(token);
        let held = found.held_under(session, token).map(|(request, ..)| request);
        let request = held.ok().filter(|_| closed);
        let request = request.ok_or(Rejection::NotHolder { session, token })?;
        self.lose_closed(Grant { session, request, token }, events);
        Ok(Answer::Released { request, token, over: true })
    }

    /// Ends a hold without its client, and passes on its locks.
    fn lose_closed(&mut self, grant: Grant, events: &mut Vec<Event>) {
        let Grant { session, request, token } = grant;
        let record = self.sessions.get(&session).and_then(|found| found.records.get(&request));
        let Some((lock_set, part)) = record.and_then(Record::held) else { return };
        let ending = Ending { grant, lock_set: lock_set.clone(), part };
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
