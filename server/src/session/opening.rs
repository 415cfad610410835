//! The first frame of a stream: a session is opened, or taken up again.

use holdfast_core::{Answer, Command, Label, LockTable, LogIndex, SessionId, Tenure};
use holdfast_mutants::mutant;
use holdfast_proto::v1::server_frame::Body;
use holdfast_proto::v1::{Opened, Redirect, Refusal, RefusalReason, ScopeAuthority};
use holdfast_seams::Moment;

use super::error::StreamError;
use super::frames::{Opening, Unfit, read_open};
use super::inbox::Received;
use super::proof::{Key, SECRET_BYTES, Secret, hash_of};
use super::registry::{Registry, State, Visit};
use super::{Hub, answers, refusals};
use crate::consensus::propose;
use crate::error::ProposeError;

/// What came of an Open.
pub(super) enum Start {
    /// The session is attached to the stream; Opened is in the outbox.
    Attached(SessionId),
    /// The stream ends with this frame.
    Turned(Body),
}

/// A session that was opened just now.
pub(super) struct Fresh {
    pub(super) session: SessionId,
    pub(super) secret: Secret,
    pub(super) ttl_ms: u64,
    /// The entry that opened it.
    pub(super) index: LogIndex,
}

/// Why no session was opened.
pub(super) enum NotMade {
    NotProposed(ProposeError),
    Refused(Refusal),
}

/// A resume, or the call of a keepalive, as it waits for its round: its session is not due
/// meanwhile (DESIGN §5.2).
pub(super) struct HeldOn<'a> {
    registry: &'a Registry,
    tenure: Tenure,
    session: SessionId,
    marked: bool,
}

impl Hub {
    /// Answers the first frame of a stream.
    ///
    /// # Errors
    ///
    /// [`StreamError`]; a fresh session may be open all the same, without anybody who knows its
    /// secret: it runs out.
    pub(super) async fn open(&self, visit: &Visit, first: Received) -> Result<Start, StreamError> {
        let at = first.at;
        let opening = match read_open(first.frame.body) {
            Ok(opening) => opening,
            Err(Unfit::Refused { subject, refusal }) => {
                return Ok(Start::Turned(answers::refused(subject, refusal)));
            }
            Err(Unfit::Protocol(error)) => return Err(error),
        };
        if let Opening::Resume { cluster_id, .. } = &opening
            && let Some(turned) = self.other_cluster(cluster_id)
        {
            return Ok(turned);
        }
        let Some(tenure) = self.registry.tenure() else { return Ok(self.redirect()) };
        match opening {
            Opening::Fresh { ttl_ms, label } => self.open_fresh(visit, tenure, ttl_ms, label).await,
            Opening::Resume { key, .. } => self.resume(visit, tenure, at, &key).await,
        }
    }

    /// Opens a session. Its entry was proposed after Open came in, so once it is committed in this
    /// tenure the lease may be acknowledged (§5.1).
    async fn open_fresh(
        &self,
        visit: &Visit,
        tenure: Tenure,
        ttl_ms: Option<u64>,
        label: Label,
    ) -> Result<Start, StreamError> {
        // Asked before the session is made: nobody would ever learn its secret.
        self.registry.lock().room_to_attach(&self.registry.settings)?;
        let fresh = match self.make_session(ttl_ms, label).await {
            Ok(fresh) => fresh,
            Err(NotMade::NotProposed(error)) => return self.not_proposed(error),
            Err(NotMade::Refused(refusal)) => {
                return Ok(Start::Turned(answers::refused(None, refusal)));
            }
        };
        let mut state = self.registry.lock();
        if state.leases.as_ref().is_none_or(|leases| leases.tenure() != tenure) {
            drop(state);
            return Ok(self.redirect());
        }
        let Fresh { session, secret, ttl_ms, index } = fresh;
        visit.attach(&mut state, session)?;
        let secret = secret.to_vec().into();
        visit.seat.push(index, self.opened(tenure, session, secret, ttl_ms));
        Ok(Start::Attached(session))
    }

    /// Opens a session with a secret of its own. Its lease runs if this node still leads in the
    /// tenure in which it led before: the caller has to look.
    ///
    /// # Errors
    ///
    /// [`NotMade`]; a session of unknown outcome runs out, because nobody knows its secret.
    pub(super) async fn make_session(
        &self,
        ttl_ms: Option<u64>,
        label: Label,
    ) -> Result<Fresh, NotMade> {
        let mut secret = [0; SECRET_BYTES];
        self.registry.seams.rng.fill(&mut secret);
        let ttl_ms = ttl_ms.unwrap_or(self.registry.settings.ttl_default_ms);
        let command = Command::OpenSession { ttl_ms, label, secret_hash: hash_of(&secret) };
        let committed = propose(&*self.consensus, command).await.map_err(NotMade::NotProposed)?;
        let index = committed.index;
        match committed.outcome {
            Ok(Answer::SessionOpened { session }) => Ok(Fresh { session, secret, ttl_ms, index }),
            Ok(_) => Err(NotMade::Refused(refusals::odd_answer())),
            Err(rejection) => Err(NotMade::Refused(refusals::of_rejection(&rejection))),
        }
    }

    /// Takes a session up: after a quorum round begun after Open came in, if the secret is its own.
    async fn resume(
        &self,
        visit: &Visit,
        tenure: Tenure,
        at: Moment,
        key: &Key,
    ) -> Result<Start, StreamError> {
        let held_on = self.hold_on(tenure, key);
        if !mutant!(ResumeWithoutQuorum) {
            match self.consensus.confirm().await {
                Ok(confirmed) if confirmed.tenure == tenure => {}
                Ok(_) => return Ok(self.redirect()),
                Err(error) => return self.not_proposed(error),
            }
        }
        let mut start = Err(unavailable("the table was not read"));
        self.consensus.read(&mut |table, index| {
            start = self.take_up(visit, tenure, at, key, (table, index));
        });
        drop(held_on);
        start
    }

    /// Checks the secret against the applied state and attaches, under the table's lock: no event
    /// falls between State and what the stream is told after it (I23).
    fn take_up(
        &self,
        visit: &Visit,
        tenure: Tenure,
        at: Moment,
        key: &Key,
        (table, index): (&LockTable, LogIndex),
    ) -> Result<Start, StreamError> {
        let session = key.session;
        let own = key.ttl_if_own(table);
        let requests = answers::state(table, self.registry.now_ms(table), session);
        let (Some(ttl_ms), Some(requests)) = (own, requests) else {
            return Ok(Start::Turned(answers::refused(None, key.unknown_session())));
        };
        let mut state = self.registry.lock();
        let State { leases, .. } = &mut *state;
        let Some(leases) = leases.as_mut().filter(|leases| leases.tenure() == tenure) else {
            drop(state);
            return Ok(self.redirect());
        };
        // Opened acknowledges as KeptAlive does; never while the session's expiry is under way.
        if !leases.renew(session, at) {
            return Err(unavailable("the session's lease has run out and is being ended"));
        }
        visit.attach(&mut state, session)?;
        visit.seat.push(index, self.opened(tenure, session, Vec::new().into(), ttl_ms));
        visit.seat.push(index, requests);
        Ok(Start::Attached(session))
    }

    /// Who shows the secret is heard, even before the round is over.
    pub(super) fn hold_on(&self, tenure: Tenure, key: &Key) -> HeldOn<'_> {
        let session = key.session;
        let mut own = false;
        self.consensus.read(&mut |table, _| own = key.ttl_if_own(table).is_some());
        let marked = own
            && self
                .registry
                .with_leases(tenure, |leases| leases.hold_on(session))
                .unwrap_or_default();
        HeldOn { registry: &self.registry, tenure, session, marked }
    }

    fn opened(
        &self,
        tenure: Tenure,
        session: SessionId,
        secret: bytes::Bytes,
        ttl_ms: u64,
    ) -> Body {
        let cluster_id = self.cluster_id.cluster_id().unwrap_or_default();
        let scopes = self.scopes(tenure);
        Body::Opened(Opened { session_id: session.get(), secret, cluster_id, ttl_ms, scopes })
    }

    /// What whoever is answered now is told of scopes; so late that nothing is counted twice.
    pub(super) fn scopes(&self, tenure: Tenure) -> Vec<ScopeAuthority> {
        self.registry.board.answers(tenure, self.registry.seams.clock.now())
    }

    /// Refuses a session of another cluster, naming both.
    fn other_cluster(&self, theirs: &[u8]) -> Option<Start> {
        let ours = self.cluster_id.cluster_id()?;
        if ours == theirs {
            return None;
        }
        let (ours, theirs) = (hex::encode(ours), hex::encode(theirs));
        let message = format!("the session is of cluster {theirs}; this is cluster {ours}");
        let refusal = refusals::refusal(RefusalReason::Invalid, message);
        Some(Start::Turned(answers::refused(None, refusal)))
    }

    fn redirect(&self) -> Start {
        let leader = self.leader();
        Start::Turned(Body::Redirect(Redirect { leader }))
    }

    fn not_proposed(&self, error: ProposeError) -> Result<Start, StreamError> {
        match error {
            ProposeError::NotLeader { leader } => {
                let leader = leader.map(|leader| leader.advertise).or_else(|| self.leader());
                Ok(Start::Turned(Body::Redirect(Redirect { leader })))
            }
            ProposeError::Overloaded { .. }
            | ProposeError::DiskReserve
            | ProposeError::VersionNotKnown { .. } => {
                let refusal = refusals::of_propose_error(&error);
                Ok(Start::Turned(answers::refused(None, refusal)))
            }
            ProposeError::Unavailable { .. }
            | ProposeError::OutcomeUnknown { .. }
            | ProposeError::ShuttingDown => Err(unavailable(&error.to_string())),
        }
    }
}

impl Drop for HeldOn<'_> {
    fn drop(&mut self) {
        if self.marked {
            self.registry.with_leases(self.tenure, |leases| leases.let_go(self.session));
        }
    }
}

fn unavailable(message: &str) -> StreamError {
    StreamError::Unavailable { message: message.to_owned(), leader: None }
}
