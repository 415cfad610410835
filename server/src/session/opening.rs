//! The first frame of a stream: a session is opened, or taken up again.

use holdfast_core::{Answer, Command, Label, LockTable, LogIndex, SessionId, Tenure};
use holdfast_proto::v1::server_frame::Body;
use holdfast_proto::v1::{Opened, Redirect, RefusalReason};
use holdfast_seams::Moment;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::error::StreamError;
use super::frames::{Opening, SECRET_BYTES, Unfit, read_open};
use super::inbox::Received;
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

/// A resume as it waits for its round: its session is not due meanwhile (DESIGN §5.2).
struct HeldOn<'a> {
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
            Opening::Resume { session, secret, .. } => {
                self.resume(visit, tenure, at, session, &secret).await
            }
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
        let mut secret = [0; SECRET_BYTES];
        self.registry.seams.rng.fill(&mut secret);
        let ttl_ms = ttl_ms.unwrap_or(self.registry.settings.ttl_default_ms);
        let command = Command::OpenSession { ttl_ms, label, secret_hash: hash_of(&secret) };
        let committed = match propose(&*self.consensus, command).await {
            Ok(committed) => committed,
            Err(error) => return self.not_proposed(error),
        };
        let session = match committed.outcome {
            Ok(Answer::SessionOpened { session }) => session,
            Ok(_) => return Err(unavailable("the session was not opened; try again")),
            Err(rejection) => {
                let refusal = refusals::of_rejection(&rejection);
                return Ok(Start::Turned(answers::refused(None, refusal)));
            }
        };
        let mut state = self.registry.lock();
        if state.leases.as_ref().is_none_or(|leases| leases.tenure() != tenure) {
            drop(state);
            return Ok(self.redirect());
        }
        visit.attach(&mut state, session)?;
        let secret = secret.to_vec().into();
        visit.seat.push(committed.index, self.opened(session, secret, ttl_ms));
        Ok(Start::Attached(session))
    }

    /// Takes a session up: after a quorum round begun after Open came in, if the secret is its own.
    async fn resume(
        &self,
        visit: &Visit,
        tenure: Tenure,
        at: Moment,
        session: SessionId,
        secret: &[u8; SECRET_BYTES],
    ) -> Result<Start, StreamError> {
        let held_on = self.hold_on(tenure, session, secret);
        let confirmed = match self.consensus.confirm().await {
            Ok(confirmed) => confirmed,
            Err(error) => return self.not_proposed(error),
        };
        if confirmed.tenure != tenure {
            return Ok(self.redirect());
        }
        let mut start = Err(unavailable("the table was not read"));
        self.consensus.read(&mut |table, index| {
            start = self.take_up(visit, tenure, at, session, secret, (table, index));
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
        session: SessionId,
        secret: &[u8; SECRET_BYTES],
        (table, index): (&LockTable, LogIndex),
    ) -> Result<Start, StreamError> {
        let own = ttl_if_own(table, session, secret);
        let requests = answers::state(table, self.registry.now_ms(table), session);
        let (Some(ttl_ms), Some(requests)) = (own, requests) else {
            return Ok(Start::Turned(unknown_session(session)));
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
        visit.seat.push(index, self.opened(session, Vec::new().into(), ttl_ms));
        visit.seat.push(index, requests);
        Ok(Start::Attached(session))
    }

    /// Who shows the secret is heard, even before the round is over.
    fn hold_on<'a>(
        &'a self,
        tenure: Tenure,
        session: SessionId,
        secret: &[u8; SECRET_BYTES],
    ) -> HeldOn<'a> {
        let mut own = false;
        self.consensus.read(&mut |table, _| own = ttl_if_own(table, session, secret).is_some());
        let marked = own
            && self
                .registry
                .with_leases(tenure, |leases| leases.hold_on(session))
                .unwrap_or_default();
        HeldOn { registry: &self.registry, tenure, session, marked }
    }

    fn opened(&self, session: SessionId, secret: bytes::Bytes, ttl_ms: u64) -> Body {
        let cluster_id = self.cluster_id.cluster_id().unwrap_or_default();
        Body::Opened(Opened { session_id: session.get(), secret, cluster_id, ttl_ms })
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

/// The session's TTL, if it is open and the secret is its own. Takes as long for any secret.
fn ttl_if_own(table: &LockTable, session: SessionId, secret: &[u8; SECRET_BYTES]) -> Option<u64> {
    let view = table.session(session)?;
    let own: bool = view.secret_hash.ct_eq(&hash_of(secret)).into();
    own.then_some(view.ttl_ms)
}

fn hash_of(secret: &[u8; SECRET_BYTES]) -> [u8; 32] {
    Sha256::digest(secret).into()
}

/// One answer for a session that never was, has ended, or is somebody else's.
fn unknown_session(session: SessionId) -> Body {
    let message =
        format!("session {session} is not open, or this is not its secret; open a new session");
    answers::refused(None, refusals::refusal(RefusalReason::SessionUnknown, message))
}

fn unavailable(message: &str) -> StreamError {
    StreamError::Unavailable { message: message.to_owned(), leader: None }
}
