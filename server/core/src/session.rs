//! Sessions and the records of their requests; how a session opens and ends.

use std::collections::BTreeMap;

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_mutants::mutant;

use crate::access::Caller;
use crate::acquire::Denial;
use crate::answer::{Answer, Grant, Outcome};
use crate::command::TERMS_SINCE;
use crate::cut_off::Cut;
use crate::event::{EndCause, Event};
use crate::ids::{FencingToken, Label, LockName, RequestId, SessionId, Tenure};
use crate::lock_set::{LockSet, Part};
use crate::quota::{Load, Quantity, Usage};
use crate::rank::Rank;
use crate::release::Ending;
use crate::size;
use crate::terms::Said;
use crate::{LockTable, Rejection};

/// A client's liveness, and all its requests.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize)]
pub(crate) struct Session {
    /// Whether it stands for an owner in another store, whose name is the label. No client has its
    /// secret.
    pub(crate) imported: bool,
    pub(crate) ttl_ms: u64,
    pub(crate) label: Label,
    /// The caller that opened it; none of an import.
    ///
    /// Snapshots store it apart: older versions do not know it.
    #[borsh(skip)]
    pub(crate) caller: Caller,
    /// What is ending of it from outside. Stored as its caller is.
    #[borsh(skip)]
    pub(crate) cut: Cut,
    pub(crate) secret_hash: [u8; 32],
    /// The table's stamp when it was opened; for people.
    pub(crate) opened_ms: u64,
    /// Ids below it are confirmed as done.
    ///
    /// Invariant: a record below it waits or holds; a finished one is dropped.
    pub(crate) done_below: RequestId,
    pub(crate) records: BTreeMap<RequestId, Record>,
    /// The record that holds under each token.
    ///
    /// Invariant: exactly the records in [`State::Held`]; so it is not stored in snapshots.
    #[borsh(skip)]
    pub(crate) holds: BTreeMap<FencingToken, RequestId>,
    /// The bytes that it counts with its records (`size.rs`). They follow from the records, so
    /// snapshots do not store them.
    #[borsh(skip)]
    pub(crate) bytes: u64,
    /// What its requests are to its identity (`quota.rs`). It follows from the records, as `bytes`.
    #[borsh(skip)]
    pub(crate) load: Load,
    /// What its requests say besides their locks. Stored as its caller is.
    #[borsh(skip)]
    pub(crate) said: Said,
}

/// The parts of an `OpenSession`.
pub(crate) struct Opens<'a> {
    pub(crate) caller: &'a Caller,
    pub(crate) ttl_ms: u64,
    pub(crate) label: &'a Label,
    pub(crate) secret_hash: [u8; 32],
    pub(crate) knows_closed: bool,
}

/// The record under a request id.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(crate) enum Record {
    /// Cancelled before it was ever seen: the table refuses every later request under this id.
    Spent,
    /// An `Acquire` with this payload.
    Asked {
        /// The requested locks.
        lock_set: LockSet,
        /// Its state.
        state: State,
    },
    /// A `SetValue` that was done.
    Wrote {
        /// SHA-256 of its payload.
        payload: [u8; 32],
    },
}

/// The state of an `Acquire`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(crate) enum State {
    /// It stands in the queue of each of its locks.
    Waiting { rank: Rank, since_ms: u64 },
    /// It holds that part of its locks.
    Held { token: FencingToken, since_ms: u64, part: Part },
    /// It would not wait.
    Denied(Denial),
    /// It left its queues or gave its grant back.
    Ended,
}

impl Record {
    /// The requested locks, and the part of them that is held.
    pub(crate) fn held(&self) -> Option<(&LockSet, Part)> {
        match self {
            Self::Asked { lock_set, state: State::Held { part, .. } } => Some((lock_set, *part)),
            Self::Asked { .. } | Self::Wrote { .. } | Self::Spent => None,
        }
    }

    /// Whether it waits or holds.
    pub(crate) fn is_live(&self) -> bool {
        match self {
            Self::Asked { state: State::Waiting { .. } | State::Held { .. }, .. } => true,
            Self::Asked { state: State::Denied(_) | State::Ended, .. }
            | Self::Wrote { .. }
            | Self::Spent => false,
        }
    }
}

impl Session {
    /// A session without a lease and without a usable secret.
    pub(crate) fn new(opened_ms: u64, label: Label) -> Self {
        Self {
            imported: false,
            ttl_ms: 0,
            bytes: size::of_session(&label),
            label,
            caller: Caller::default(),
            cut: Cut::default(),
            secret_hash: [0; 32],
            opened_ms,
            done_below: RequestId::new(0),
            records: BTreeMap::new(),
            holds: BTreeMap::new(),
            load: Load::default(),
            said: Said::default(),
        }
    }

    /// Itself and its records: what freeing it costs.
    pub(crate) fn entries(&self) -> usize {
        1 + self.records.len()
    }

    /// Its waits, in the order of their tickets.
    pub(crate) fn waits(&self) -> Vec<(Rank, RequestId, &LockSet)> {
        let waiting = |(&request, record)| match record {
            &Record::Asked { ref lock_set, state: State::Waiting { rank, .. } } => {
                Some((rank, request, lock_set))
            }
            Record::Asked { .. } | Record::Wrote { .. } | Record::Spent => None,
        };
        let mut waits: Vec<_> = self.records.iter().filter_map(waiting).collect();
        waits.sort_unstable_by_key(|&(rank, ..)| rank.ticket);
        waits
    }

    /// The lock and request of each row of the import that this session is, ended ones too; empty
    /// for any other session.
    pub(crate) fn imports(&self) -> impl Iterator<Item = (&LockName, RequestId)> {
        let records = self.records.iter().filter(|_| self.imported);
        records.filter_map(|(&request, record)| match record {
            Record::Asked { lock_set, .. } => Some((lock_set.get(0)?.0, request)),
            Record::Wrote { .. } | Record::Spent => None,
        })
    }

    /// Raises the mark and drops what is finished below it. A lower mark changes nothing.
    ///
    /// Looks only at the ids between the old mark and the new: no finished record lies below the
    /// old one, so each record is passed over once.
    fn confirm(&mut self, done_below: RequestId) {
        let finished: Vec<RequestId> = self
            .records
            .range(self.done_below..done_below)
            .filter(|(_, record)| !record.is_live())
            .map(|(&request, _)| request)
            .collect();
        for request in finished {
            self.drop_record(request);
        }
        self.done_below = done_below;
    }

    /// The record under an id.
    ///
    /// # Errors
    ///
    /// [`Rejection::RequestGone`]: the id is confirmed as done.
    pub(crate) fn seen(&self, request: RequestId) -> Result<Option<&Record>, Rejection> {
        let done_below = self.done_below;
        if request < done_below {
            return Err(Rejection::RequestGone { request, done_below });
        }
        Ok(self.records.get(&request))
    }

    /// Whether there is room for one more record; `own` is this session.
    ///
    /// # Errors
    ///
    /// [`Rejection::TooManyRequests`].
    pub(crate) fn may_keep_another(&self, own: SessionId, limit: u64) -> Result<(), Rejection> {
        if self.records.len() as u64 >= limit {
            return Err(Rejection::TooManyRequests { session: own, limit });
        }
        Ok(())
    }

    /// Whether one more of its holds may come to last too long. Each that did is named to its client until that has released
    /// it, whatever became of its record: so both count. `own` is this session.
    ///
    /// # Errors
    ///
    /// [`Rejection::TooManyRequests`].
    pub(crate) fn may_leave_another_closed(
        &self,
        own: SessionId,
        limit: u64,
    ) -> Result<(), Rejection> {
        if (self.records.len() + self.cut.closed.len()) as u64 >= limit {
            return Err(Rejection::TooManyRequests { session: own, limit });
        }
        Ok(())
    }

    /// The request that holds under a token, its locks and the part of them that it holds; `own` is
    /// this session.
    ///
    /// # Errors
    ///
    /// [`Rejection::NotHolder`].
    pub(crate) fn held_under(
        &self,
        own: SessionId,
        token: FencingToken,
    ) -> Result<(RequestId, &LockSet, Part), Rejection> {
        let held = self.holds.get(&token).and_then(|&request| {
            let (lock_set, part) = self.records.get(&request)?.held()?;
            Some((request, lock_set, part))
        });
        held.ok_or(Rejection::NotHolder { session: own, token })
    }

    /// Notes that a recorded request holds `part` under `token` from now on.
    pub(crate) fn hold(
        &mut self,
        request: RequestId,
        token: FencingToken,
        part: Part,
        since_ms: u64,
    ) {
        self.holds.insert(token, request);
        self.put_state(request, State::Held { token, since_ms, part });
    }

    fn put_state(&mut self, request: RequestId, changed: State) {
        let Some(record) = self.records.get_mut(&request) else { return };
        let before = record.load();
        self.said.ends(request, record);
        if let Record::Asked { state, .. } = record {
            *state = changed;
        }
        self.said.begins(request, record);
        self.load = self.load.plus(record.load()).minus(before);
    }

    /// Notes that a hold goes on with `left` alone, or is over if that is empty.
    pub(crate) fn give_back(&mut self, request: RequestId, token: FencingToken, left: Part) {
        if left.is_empty() {
            self.holds.remove(&token);
            self.finish(request, State::Ended);
        } else if let Some(&Record::Asked { state: State::Held { since_ms, .. }, .. }) =
            self.records.get(&request)
        {
            self.put_state(request, State::Held { token, since_ms, part: left });
        }
    }

    /// Marks a live request as over, by that state. Below the mark no client uses its id again, so its record is
    /// dropped.
    pub(crate) fn finish(&mut self, request: RequestId, over: State) {
        if request < self.done_below {
            self.drop_record(request);
        } else {
            self.put_state(request, over);
        }
    }
}

impl LockTable {
    /// Opens a session with the next id, which is never used again.
    ///
    /// # Errors
    ///
    /// [`Rejection::TtlOutOfRange`], [`Rejection::OverQuota`], [`Rejection::TooManySessions`],
    /// [`Rejection::TableFull`]; the state is unchanged.
    pub(crate) fn open_session(&mut self, opens: &Opens<'_>, events: &mut Vec<Event>) -> Outcome {
        let Opens { caller, ttl_ms, label, secret_hash, knows_closed } = *opens;
        let (min_ms, max_ms) = (self.limits.ttl_min_ms, self.limits.ttl_max_ms);
        if !(min_ms..=max_ms).contains(&ttl_ms) {
            return Err(Rejection::TtlOutOfRange { ttl_ms, min_ms, max_ms });
        }
        let unnamed = Session::new(self.stamp_ms, label.clone());
        let cut = Cut { knows_closed, ..Cut::default() };
        let mut opened = Session { ttl_ms, secret_hash, caller: caller.clone(), cut, ..unnamed };
        opened.bytes = opened.recount();
        self.check_quota(&caller.identity, Quantity::Sessions, 1)?;
        let session = self.add_session(opened, events)?;
        Ok(Answer::SessionOpened { session })
    }

    /// Makes a session the caller's that nobody in particular has opened. A second copy changes nothing.
    ///
    /// # Errors
    ///
    /// [`Rejection::UnknownSession`], also if it is somebody else's; [`Rejection::SessionRevoked`] while its owner or the
    /// caller is being cut off; [`Rejection::TableFull`]. The state is unchanged.
    pub(crate) fn own_session(&mut self, caller: &Caller, session: SessionId) -> Outcome {
        let owner = &self.open(session)?.caller.identity;
        if !owner.is_anonymous() && *owner != caller.identity {
            return Err(Rejection::UnknownSession { session });
        }
        // Earlier versions know no such refusal, and each member has to decide alike.
        if self.applied_version >= TERMS_SINCE && !mutant!(OwnedWhileCutOff) {
            self.check_not_cut_off(session, caller)?;
        }
        let more = caller.identity.bytes().saturating_sub(owner.bytes());
        self.check_table(more)?;
        let owner = owner.clone();
        self.change_session(session, |found| {
            found.caller = caller.clone();
            found.bytes = found.bytes.saturating_add(more);
        });
        let usage = self.open(session)?.load.usage();
        self.usages.change(&owner, usage, Usage::default());
        self.usages.change(&caller.identity, Usage::default(), usage);
        Ok(Answer::SessionOwned)
    }

    /// Gives a session its id.
    ///
    /// # Errors
    ///
    /// [`Rejection::TooManySessions`], [`Rejection::TableFull`]; the state is unchanged.
    pub(crate) fn add_session(
        &mut self,
        opened: Session,
        events: &mut Vec<Event>,
    ) -> Result<SessionId, Rejection> {
        let limit = self.limits.max_sessions;
        let full = Rejection::TooManySessions { limit };
        if self.counts.sessions >= limit {
            return Err(full);
        }
        self.check_table(opened.bytes)?;
        let session = self.counters.next_session().ok_or(full)?;
        self.put_session(session, opened);
        events.push(Event::SessionOpened { session });
        Ok(session)
    }

    /// Puts a session in its place, and counts it.
    pub(crate) fn put_session(&mut self, id: SessionId, session: Session) {
        self.counts.sessions += 1;
        self.counts.table_bytes = self.counts.table_bytes.saturating_add(session.bytes);
        if !session.imported {
            self.usages.change(&session.caller.identity, Usage::default(), session.load.usage());
        }
        self.sessions.insert(id, session);
    }

    /// Ends a session whose deadline passed at the leader of `heard_in`.
    ///
    /// The table refuses an entry that outlived its tenure: the next leader received renewals that
    /// this decision does not know of (DESIGN §5.2, I6).
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
        if self.sessions.get(&session).is_none() || self.is_over(session) {
            return Err(Rejection::UnknownSession { session });
        }
        if heard_in != proposed_in && !mutant!(ExpiryFromOtherTenure) {
            return Err(Rejection::OtherTenure { session, heard_in, proposed_in });
        }
        self.end_session(session, EndCause::Expired, events)
    }

    /// Ends a session, whatever the cause if it was revoked before: its waits leave, in ticket order; then its holds are lost, in the order of
    /// their tokens, each passed on before the next is lost; then `SessionEnded` follows. A waiter
    /// behind one of its waits is granted once all of them have left, if nothing else is in the way
    /// (I15).
    ///
    /// The session is removed first, and its waits leave before the first hold is passed on: so
    /// nothing can be granted to it (I5), and nothing of it is left anywhere (I11). One with very many
    /// locks ends in parts (`ending.rs`).
    ///
    /// # Errors
    ///
    /// [`Rejection::UnknownSession`] if it is not open; the state is unchanged. So a second copy of
    /// a close is harmless.
    pub(crate) fn end_session(
        &mut self,
        session: SessionId,
        cause: EndCause,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let found = self.sessions.get(&session).filter(|_| !self.is_over(session));
        let found = found.ok_or(Rejection::UnknownSession { session })?;
        let cause = if found.cut.revoked.is_some() { EndCause::Revoked } else { cause };
        if self.ends_in_parts(found) {
            return Ok(self.end_in_parts(session, cause, events));
        }
        let now = self.work.pending().ends_now.contains(&session);
        let Some(ended) = self.drop_session(session) else {
            return Err(Rejection::UnknownSession { session });
        };
        self.work.charge(ended.records.len() as u64);
        let waits = if mutant!(SessionEndKeepsWaits) { Vec::new() } else { ended.waits() };
        for &(rank, request, lock_set) in &waits {
            self.work.charge(lock_set.len() as u64);
            self.leave_queues(lock_set, rank);
            events.push(Event::Left { session, request, items: lock_set.items() });
        }
        let left = waits.iter().flat_map(|(_, _, lock_set)| lock_set.iter().map(|(name, _)| name));
        self.pass_on(left, events);
        for (&token, &request) in &ended.holds {
            let held = ended.records.get(&request).and_then(Record::held);
            let Some((lock_set, part)) = held else { continue };
            let grant = Grant { session, request, token };
            let closes = ended.closes(request, token).filter(|_| !now);
            let ending = Ending { grant, lock_set: lock_set.clone(), part, closes };
            self.lose(&ending, cause.into(), events);
        }
        events.push(Event::SessionEnded { session, cause });
        Ok(Answer::SessionEnded)
    }

    /// Takes a session out of the table, and out of what the table counts.
    pub(crate) fn drop_session(&mut self, session: SessionId) -> Option<Session> {
        let dropped = self.sessions.remove(&session)?;
        self.counts.sessions -= 1;
        self.counts.table_bytes = self.counts.table_bytes.saturating_sub(dropped.bytes);
        if !dropped.imported {
            self.usages.change(&dropped.caller.identity, dropped.load.usage(), Usage::default());
        }
        self.forget_imports(&dropped);
        if self.work.pending().ends.contains_key(&session) {
            self.work.pending_mut().ends.remove(&session);
        }
        if self.work.pending().ends_now.contains(&session) {
            self.work.pending_mut().ends_now.remove(&session);
        }
        Some(dropped)
    }

    /// Takes the confirmation that came with a command of an open session.
    ///
    /// With `done_below` the session promises never to use ids below it again. The table takes it
    /// as it is, even beyond every id seen: a server may have refused ids before they were
    /// proposed, and a mark held back to the ids seen would let a late copy of such a request in as
    /// new. A senseless mark closes only ids of this session, frees memory, and ends with the
    /// session.
    ///
    /// # Errors
    ///
    /// [`Rejection::UnknownSession`] if it is not open; the state is unchanged.
    pub(crate) fn confirm(
        &mut self,
        session: SessionId,
        done_below: RequestId,
    ) -> Result<(), Rejection> {
        // Write access to the shard only if the mark moves: the first write after a freeze copies
        // the shard.
        if self.open(session)?.done_below < done_below {
            self.change_session(session, |found| found.confirm(done_below));
        }
        Ok(())
    }

    pub(crate) fn record(&mut self, session: SessionId, request: RequestId, record: Record) {
        self.change_session(session, |found| found.keep(request, record));
    }

    /// A session that a client may act for. No client acts for an imported one: its holds and waits
    /// can only be claimed.
    pub(crate) fn open(&self, session: SessionId) -> Result<&Session, Rejection> {
        let found = self.sessions.get(&session).filter(|found| !found.imported);
        let found = found.filter(|_| !self.is_over(session) || mutant!(OverSessionActs));
        found.ok_or(Rejection::UnknownSession { session })
    }
}
