//! The end of a session that has very many locks, in parts.
//!
//! A session may have a thousand requests for 64 locks each. Within a limit of work such a session is
//! over at once: no command is taken for it, nothing is granted to it, and its lease ends with
//! `SessionEnded`. Its waits and then its holds end by as many commands as that takes. Its locks stay its
//! own until their turn, so nobody holds beside it (I2); no token of it is current any more.
//!
//! A session that is revoked keeps its holds, and leaves its queues in the same way.

use crate::LockTable;
use crate::answer::{Answer, Grant};
use crate::event::{EndCause, Event};
use crate::ids::{RequestId, SessionId};
use crate::lock_set::{LockSet, Part};
use crate::quota::Usage;
use crate::rank::Rank;
use crate::release::Ending;
use crate::session::{Record, Session, State};

/// A session that holds and waits for more locks than this, each counted for each request, ends in
/// parts.
///
/// Source: measured: the end of a session with a thousand locks takes one to two milliseconds. So many
/// requests for one lock each are the default of `max_requests_per_session`.
const END_AT_ONCE: u64 = 1_024;
/// So many records of a session are passed over in one step.
const RECORDS_A_STEP: u64 = 16;

impl LockTable {
    /// Whether a session is over, and only some of its locks have not had their turn.
    pub(crate) fn is_over(&self, session: SessionId) -> bool {
        self.work.pending().ends.get(&session).is_some_and(Option::is_some)
    }

    pub(crate) fn ends_in_parts(&self, session: &Session) -> bool {
        let Usage { holds, .. } = session.load.usage();
        self.work.is_limited() && holds > END_AT_ONCE
    }

    /// Ends a session, and of its waits and holds as many as the command can.
    pub(crate) fn end_in_parts(
        &mut self,
        session: SessionId,
        cause: EndCause,
        events: &mut Vec<Event>,
    ) -> Answer {
        self.work.pending_mut().ends.insert(session, Some(cause));
        events.push(Event::SessionEnded { session, cause });
        self.end_further(events);
        Answer::SessionEnded
    }

    /// Has a revoked session leave as many of its queues as the command can.
    pub(crate) fn leave_in_parts(&mut self, session: SessionId, events: &mut Vec<Event>) {
        self.work.pending_mut().ends.insert(session, None);
        self.end_further(events);
    }

    /// Goes on with the ends that earlier commands have left, as far as the command goes.
    pub(crate) fn end_further(&mut self, events: &mut Vec<Event>) {
        while !self.work.is_spent() {
            let first = self.work.pending().ends.first_key_value();
            let Some((&session, &cause)) = first else { return };
            if !self.end_some_of(session, cause, events) {
                return;
            }
            if cause.is_some() {
                drop(self.drop_session(session));
            } else {
                self.work.pending_mut().ends.remove(&session);
            }
        }
    }

    /// Ends waits of a session, in the order of their tickets, and then holds, in the order of their
    /// tokens, if it is over. Returns whether that is all of them.
    fn end_some_of(
        &mut self,
        session: SessionId,
        cause: Option<EndCause>,
        events: &mut Vec<Event>,
    ) -> bool {
        let Some(found) = self.sessions.get(&session) else { return true };
        self.work.charge(found.records.len() as u64 / RECORDS_A_STEP);
        let now = self.work.pending().ends_now.contains(&session);
        let waits = found.waits().into_iter();
        let waits: Vec<(Rank, RequestId, LockSet)> =
            waits.map(|(rank, request, set)| (rank, request, set.clone())).collect();
        let holds: Vec<Ending> = found
            .holds
            .iter()
            .filter_map(|(&token, &request)| {
                let (lock_set, part) = found.records.get(&request).and_then(Record::held)?;
                let grant = Grant { session, request, token };
                let closes = found.closes(request, token).filter(|_| !now);
                Some(Ending { grant, lock_set: lock_set.clone(), part, closes })
            })
            .filter(|_| cause.is_some())
            .collect();
        self.charge_for(session);
        let mut is_first = true;
        for (rank, request, lock_set) in &waits {
            if self.work.is_spent() && !is_first {
                return false;
            }
            is_first = false;
            self.work.charge(lock_set.len() as u64);
            self.leave_queues(lock_set, *rank);
            self.change_session(session, |found| found.finish(*request, State::Ended));
            events.push(Event::Left { session, request: *request, items: lock_set.items() });
            self.pass_on(lock_set.iter().map(|(name, _)| name), events);
        }
        let Some(cause) = cause else { return true };
        for ending in &holds {
            if self.work.is_spent() && !is_first {
                return false;
            }
            is_first = false;
            let Grant { request, token, .. } = ending.grant;
            let none = Part::default();
            self.change_session(session, |found| found.give_back(request, token, none));
            self.lose(ending, cause.into(), events);
        }
        true
    }
}
