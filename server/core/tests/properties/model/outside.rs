//! Ends from outside in the model: what is ending keeps its locks, and comes to nothing new.

use holdfast_core::{
    Answer, Caller, EndCause, Event, FencingToken, Grant, Identity, Label, LockName, LossCause,
    Outcome, Rejection, RulesError, SessionId, Tenure, Verb,
};

use super::{Model, Request, Session};

impl Model {
    fn session_mut(&mut self, id: SessionId) -> &mut Session {
        self.sessions.iter_mut().find(|session| session.id == id).unwrap()
    }

    pub(super) fn refuse_revoked(&self, session: SessionId) -> Result<(), Rejection> {
        match self.session(session).and_then(|open| open.revoked.clone()) {
            Some(reason) => Err(Rejection::SessionRevoked { session, reason }),
            None => Ok(()),
        }
    }

    pub(crate) fn is_ending(&self, session: SessionId, token: FencingToken) -> bool {
        let closed = |open: &Session| open.closed.iter().any(|(closed, _)| *closed == token);
        self.session(session).is_some_and(|open| open.revoked.is_some() || closed(open))
    }

    pub(super) fn let_go(&mut self, session: SessionId, token: FencingToken) {
        if self.session(session).is_some() {
            self.session_mut(session).closed.retain(|(closed, _)| *closed != token);
        }
    }

    pub(super) fn end_session(
        &mut self,
        session: SessionId,
        reason: &Label,
        now: bool,
        events: &mut Vec<Event>,
    ) -> Outcome {
        match self.session(session) {
            None => return Err(Rejection::UnknownSession { session }),
            Some(open) if open.revoked.is_some() => {}
            Some(_) => self.revoke(session, reason, events),
        }
        if now {
            return self.end(session, (EndCause::Revoked, true), events);
        }
        Ok(Answer::Revoked { sessions: 1 })
    }

    fn revoke(&mut self, session: SessionId, reason: &Label, events: &mut Vec<Event>) {
        self.session_mut(session).revoked = Some(reason.clone());
        events.push(Event::SessionRevoked { session, reason: reason.clone() });
        let own = |r: &&Request| r.session == session && r.arrival().is_some();
        let mut waits: Vec<Request> = self.requests.iter().filter(own).cloned().collect();
        waits.sort_by_key(|request| request.arrival().map(|(_, number)| number));
        for wait in waits {
            self.finish(session, wait.id);
            let items = wait.items().iter().cloned().collect();
            events.push(Event::Left { session, request: wait.id, items });
        }
        self.hand_on(events);
    }

    pub(super) fn cut_off(
        &mut self,
        caller: &Caller,
        identity: &Identity,
        (reason, now): (&Label, bool),
        events: &mut Vec<Event>,
    ) -> Outcome {
        let before = self.rules.clone();
        let could = self.may(caller, Verb::Rules, &[]).is_ok();
        self.rules.identities.retain(|(known, _)| known != identity);
        let token = identity.as_str().strip_prefix("token:");
        self.rules.tokens.retain(|(name, _)| Some(name.as_str()) != token);
        if could && self.may(caller, Verb::Rules, &[]).is_err() {
            self.rules = before;
            let caller = caller.identity.clone();
            return Err(Rejection::Rules(RulesError::LocksOut { caller }));
        }
        if before.identities != self.rules.identities || before.tokens != self.rules.tokens {
            events.push(Event::RulesChanged);
        }
        let own = |open: &&Session| open.caller.identity == *identity && open.stands_for.is_none();
        // In the order in which the table keeps sessions.
        let mut sessions: Vec<SessionId> = self.sessions.iter().filter(own).map(|s| s.id).collect();
        sessions.sort_by_key(|session| (session.get() % 1_024, *session));
        for &session in &sessions {
            self.end_session(session, reason, now, events).unwrap();
        }
        Ok(Answer::Revoked { sessions: sessions.len() as u64 })
    }

    pub(super) fn close_holds(
        &mut self,
        (lock, token): (&LockName, Option<FencingToken>),
        (reason, now): (&Label, bool),
        events: &mut Vec<Event>,
    ) -> Outcome {
        let holders = self.holders(lock).into_iter().map(|(grant, _)| grant);
        let holds: Vec<_> =
            holders.filter(|g| token.is_none_or(|token| g.token == token)).collect();
        if holds.is_empty() {
            return Err(Rejection::NotHeld { lock: lock.clone() });
        }
        for &grant in &holds {
            self.close_hold(grant, reason, events);
            if now {
                self.lose(grant, true, events);
            }
        }
        Ok(Answer::HoldsClosed { holds })
    }

    pub(super) fn close_hold(&mut self, grant: Grant, reason: &Label, events: &mut Vec<Event>) {
        let Grant { session, request, token } = grant;
        if self.is_ending(session, token) {
            return;
        }
        let open = self.session_mut(session);
        if !open.knows_closed && open.stands_for.is_none() {
            return self.revoke(session, reason, events);
        }
        open.closed.push((token, reason.clone()));
        events.push(Event::HoldClosed { session, request, token, reason: reason.clone() });
    }

    pub(super) fn end_closed(
        &mut self,
        (session, token): (SessionId, FencingToken),
        (heard_in, proposed_in): (Tenure, Tenure),
        events: &mut Vec<Event>,
    ) -> Outcome {
        let Some(open) = self.session(session) else {
            return Err(Rejection::UnknownSession { session });
        };
        if heard_in != proposed_in {
            return Err(Rejection::OtherTenure { session, heard_in, proposed_in });
        }
        if open.closed.iter().all(|(closed, _)| *closed != token) {
            return Err(Rejection::NotHolder { session, token });
        }
        let request = self.held(session, token)?.id;
        self.lose(Grant { session, request, token }, false, events);
        Ok(Answer::Released { request, token, over: true })
    }

    fn lose(&mut self, grant: Grant, now: bool, events: &mut Vec<Event>) {
        let Grant { session, request, token } = grant;
        let lost = self.request(session, request).unwrap().holds().to_vec();
        if !now {
            self.close(self.least_of(grant), token, &lost, events);
        }
        self.finish(session, request);
        let items = lost.iter().cloned().collect();
        let cause = LossCause::Forced;
        events.push(Event::Lost { session, request, token, items, over: true, cause });
        self.suspect(&lost, events);
        self.hand_on(events);
    }
}
