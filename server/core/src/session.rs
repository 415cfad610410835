//! Sessions and what is kept of their requests; how a session opens and ends.

use std::collections::BTreeMap;

use borsh::{BorshDeserialize, BorshSerialize};

use crate::answer::{Answer, Outcome};
use crate::event::{EndCause, Event};
use crate::ids::{FencingToken, Label, LockName, RequestId, SessionId, Tenure, Ticket};
use crate::{LockTable, Rejection};

/// A client's liveness, and all it asked for.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize)]
pub(crate) struct Session {
    pub(crate) ttl_ms: u64,
    pub(crate) label: Label,
    pub(crate) secret_hash: [u8; 32],
    /// The table's stamp when it was opened; for people.
    pub(crate) opened_ms: u64,
    /// Ids below it are confirmed as done.
    ///
    /// Invariant: a record below it waits or holds; a finished one is dropped.
    pub(crate) done_below: RequestId,
    pub(crate) records: BTreeMap<RequestId, Record>,
    /// Which record holds under which token.
    ///
    /// Invariant: exactly the records in [`State::Held`]; so it is not stored in snapshots.
    #[borsh(skip)]
    pub(crate) holds: BTreeMap<FencingToken, RequestId>,
}

/// What is kept under a request id.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(crate) enum Record {
    /// Cancelled before it was ever seen: whatever comes under this id is refused.
    Spent,
    /// An `Acquire` with this payload.
    Asked {
        /// The lock.
        lock: LockName,
        /// Whether it would wait.
        wait: bool,
        /// How far it came.
        state: State,
    },
}

/// How far an `Acquire` came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(crate) enum State {
    /// It stands in the lock's queue.
    Waiting { ticket: Ticket, since_ms: u64 },
    /// It holds the lock.
    Held { token: FencingToken, since_ms: u64 },
    /// It would not wait, and the lock was held so.
    Denied { holder: SessionId, token: FencingToken },
    /// It left its queue or gave its grant back.
    Ended,
}

impl Record {
    /// Whether it waits or holds.
    pub(crate) fn is_live(&self) -> bool {
        match self {
            Self::Asked { state: State::Waiting { .. } | State::Held { .. }, .. } => true,
            Self::Asked { state: State::Denied { .. } | State::Ended, .. } | Self::Spent => false,
        }
    }
}

impl Session {
    /// Raises the mark and drops what is finished below it. A lower mark changes nothing.
    ///
    /// Only the ids between the old mark and the new are looked at: below the old one nothing is
    /// finished, so each record is passed over once in its life.
    fn confirm(&mut self, done_below: RequestId) {
        let finished: Vec<RequestId> = self
            .records
            .range(self.done_below..done_below)
            .filter(|(_, record)| !record.is_live())
            .map(|(&request, _)| request)
            .collect();
        for request in finished {
            self.records.remove(&request);
        }
        self.done_below = done_below;
    }

    /// Notes that a recorded request holds under `token`.
    pub(crate) fn hold(&mut self, request: RequestId, token: FencingToken, since_ms: u64) {
        self.holds.insert(token, request);
        if let Some(Record::Asked { state, .. }) = self.records.get_mut(&request) {
            *state = State::Held { token, since_ms };
        }
    }

    /// Marks a live request as over. Below the mark nobody will ask for it again: it is dropped.
    pub(crate) fn finish(&mut self, request: RequestId) {
        if request < self.done_below {
            self.records.remove(&request);
        } else if let Some(Record::Asked { state, .. }) = self.records.get_mut(&request) {
            *state = State::Ended;
        }
    }
}

impl LockTable {
    /// Opens a session with the next number, which is never used again.
    ///
    /// # Errors
    ///
    /// [`Rejection::TtlOutOfRange`], [`Rejection::TooManySessions`]; the state is unchanged.
    pub(crate) fn open_session(
        &mut self,
        ttl_ms: u64,
        label: Label,
        secret_hash: [u8; 32],
        events: &mut Vec<Event>,
    ) -> Outcome {
        let (min_ms, max_ms) = (self.limits.ttl_min_ms, self.limits.ttl_max_ms);
        if !(min_ms..=max_ms).contains(&ttl_ms) {
            return Err(Rejection::TtlOutOfRange { ttl_ms, min_ms, max_ms });
        }
        let limit = self.limits.max_sessions;
        if self.counts.sessions >= limit {
            return Err(Rejection::TooManySessions { limit });
        }
        let Some(session) = self.counters.next_session() else {
            return Err(Rejection::TooManySessions { limit });
        };
        let opened = Session {
            ttl_ms,
            label,
            secret_hash,
            opened_ms: self.stamp_ms,
            done_below: RequestId::new(0),
            records: BTreeMap::new(),
            holds: BTreeMap::new(),
        };
        self.sessions.insert(session, opened);
        self.counts.sessions += 1;
        events.push(Event::SessionOpened { session });
        Ok(Answer::SessionOpened { session })
    }

    /// Ends a session whose deadline passed at the leader of `heard_in`.
    ///
    /// An entry that outlived its tenure is refused: the next leader heard renewals that this
    /// decision does not know of (DESIGN §5.2, I6).
    ///
    /// # Errors
    ///
    /// [`Rejection::UnknownSession`], [`Rejection::OtherTenure`]; the state is unchanged.
    pub(crate) fn expire_session(
        &mut self,
        session: SessionId,
        heard_in: Tenure,
        proposed_in: Tenure,
        events: &mut Vec<Event>,
    ) -> Outcome {
        self.open(session)?;
        if heard_in != proposed_in {
            return Err(Rejection::OtherTenure { session, heard_in, proposed_in });
        }
        self.end_session(session, EndCause::Expired, events)
    }

    /// Ends a session: its waits leave, in ticket order; then its holds are lost, in grant order,
    /// each going to the next in line at once; then the session's end is said.
    ///
    /// The session is taken out first and its waits leave before the first hold is passed on: so
    /// nothing can be granted to it (I5), and nothing of it is left anywhere (I11).
    ///
    /// # Errors
    ///
    /// [`Rejection::UnknownSession`] if it is not open; the state is unchanged. So a close that
    /// arrives twice is harmless.
    pub(crate) fn end_session(
        &mut self,
        session: SessionId,
        cause: EndCause,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let Some(mut ended) = self.sessions.remove(session) else {
            return Err(Rejection::UnknownSession { session });
        };
        self.counts.sessions -= 1;
        self.leave_queues(session, &ended, events);
        for (token, request) in std::mem::take(&mut ended.holds) {
            let Some(Record::Asked { lock, .. }) = ended.records.remove(&request) else {
                continue;
            };
            events.push(Event::Lost { session, request, lock: lock.clone(), token, cause });
            self.end_hold(&lock, events);
        }
        events.push(Event::SessionEnded { session, cause });
        Ok(Answer::SessionEnded)
    }

    fn leave_queues(&mut self, session: SessionId, ended: &Session, events: &mut Vec<Event>) {
        let mut waits: Vec<(Ticket, RequestId, &LockName)> = ended
            .records
            .iter()
            .filter_map(|(&request, record)| match record {
                Record::Asked { lock, state: State::Waiting { ticket, .. }, .. } => {
                    Some((*ticket, request, lock))
                }
                Record::Asked { .. } | Record::Spent => None,
            })
            .collect();
        waits.sort_unstable();
        for (ticket, request, lock) in waits {
            self.leave_queue(lock, ticket);
            events.push(Event::Left { session, request, lock: lock.clone() });
        }
    }

    /// Takes the confirmation that came with a command of an open session.
    ///
    /// `done_below` is the session's own promise that it will never ask again for ids below it. It
    /// is taken as it is, also beyond every id seen: ids may have been refused before they were
    /// proposed, and a mark held back to the ids seen would let a late copy of such a request in
    /// as new. A senseless mark closes ids of this session only, frees memory, and is undone by a
    /// new session.
    ///
    /// # Errors
    ///
    /// [`Rejection::UnknownSession`] if it is not open; the state is unchanged.
    pub(crate) fn confirm(
        &mut self,
        session: SessionId,
        done_below: RequestId,
    ) -> Result<(), Rejection> {
        // The shard is opened for writing only when the mark moves: a write after a freeze copies
        // the shard.
        if self.open(session)?.done_below < done_below
            && let Some(found) = self.sessions.get_mut(session)
        {
            found.confirm(done_below);
        }
        Ok(())
    }

    pub(crate) fn open(&self, session: SessionId) -> Result<&Session, Rejection> {
        self.sessions.get(session).ok_or(Rejection::UnknownSession { session })
    }
}
