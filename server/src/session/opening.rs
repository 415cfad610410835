//! The first frame of a stream: it opens a session, or resumes one.

use std::fmt;
use std::time::Duration;

use holdfast_core::{Answer, Caller, Command, Deed, LockTable, LogIndex, SessionId, Tenure};
use holdfast_mutants::mutant;
use holdfast_proto::v1::server_frame::Body;
use holdfast_proto::v1::{Opened, Redirect, Refusal, RefusalReason, ScopeAuthority, SessionKey};
use holdfast_runtime::Instant;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::admission::{Turn, wait_of};
use super::error::StreamError;
use super::frames::{Opening, Unfit, Wished, read_open};
use super::inbox::Received;
use super::leases::NotResumed;
use super::pages::Pages;
use super::registry::{Registration, Registry};
use super::{Hub, answers, refusals};
use crate::consensus::propose;
use crate::error::ProposeError;

/// Length of a session's secret, bytes.
pub(super) const SECRET_BYTES: usize = 16;

/// The pause before a session is offered to its caller again.
const OWN_AGAIN: Duration = Duration::from_secs(5);

/// A session's secret. The log holds only its hash.
pub(super) type Secret = [u8; SECRET_BYTES];

/// A session and the secret that was shown for it; not yet compared.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) session: SessionId,
    pub(super) secret: Secret,
}

/// Without the secret.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("session", &self.session).finish_non_exhaustive()
    }
}

impl Key {
    /// Reads a key from the wire.
    ///
    /// # Errors
    ///
    /// A refusal, if the secret has a length that no secret has.
    pub(super) fn read(session_id: u64, secret: &[u8]) -> Result<Self, Refusal> {
        let read = Secret::try_from(secret).map_err(|_| {
            let found = secret.len();
            let message = format!("the secret has {found} bytes; it must have {SECRET_BYTES}");
            refusals::refusal(RefusalReason::Invalid, message)
        })?;
        Ok(Self { session: SessionId::new(session_id), secret: read })
    }

    /// The session's TTL, if it is open and the secret is its own. Takes equally long for every secret.
    pub(super) fn ttl_if_own(&self, table: &LockTable) -> Option<u64> {
        let view = table.session(self.session)?;
        let own: bool = view.secret_hash.ct_eq(&hash_of(&self.secret)).into();
        own.then_some(view.ttl_ms)
    }

    /// One answer for a session that never was, has ended, or belongs to another client.
    pub(super) fn unknown_session(&self) -> Refusal {
        refusals::unknown_session(self.session)
    }
}

/// The form in which the log keeps a secret.
pub(super) fn hash_of(secret: &Secret) -> [u8; 32] {
    Sha256::digest(secret).into()
}

/// The result of an Open.
pub(super) enum Start<'a> {
    /// The session is attached to the stream; Opened is in the outbox.
    Attached {
        session: SessionId,
        /// The pages of its State that are still to be sent.
        pages: Option<Pages>,
        taking: Taking<'a>,
    },
    /// The stream ends with this frame.
    Turned(Body),
}

impl Start<'_> {
    fn refused(refusal: Refusal) -> Self {
        Self::Turned(answers::refused(None, refusal))
    }
}

/// Whether the client has shown that it takes its State, and what ends once it has.
pub(super) enum Taking<'a> {
    /// It has, or there is no State to take.
    Done,
    /// The resume renewed nothing: the session is not due while the client takes State (§5.2), until its
    /// first keepalive comes in.
    Pages(HeldOn<'a>),
    /// The resume renewed the lease. What the client sends later shows that this was right.
    Whole { since: Instant },
}

impl Taking<'_> {
    /// A keepalive of the session waits for its round: the session need not be held on otherwise.
    pub(super) fn keepalive_is_heard(&mut self) {
        match std::mem::replace(self, Self::Done) {
            Self::Pages(held_on) => drop(held_on),
            other => *self = other,
        }
    }
}

/// A resume: its key, its stream, and when it came in.
#[derive(Clone, Copy)]
struct Resume<'a> {
    registration: &'a Registration,
    tenure: Tenure,
    at: Instant,
    key: &'a Key,
    in_pages: bool,
    attempt: u64,
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

/// Keeps a session from becoming due, for one TTL at most however many there are (DESIGN §5.2, I31): a
/// resume until its client takes State, or a keepalive call while it waits for its round.
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
    /// [`StreamError`]; a fresh session may be open all the same, but no client knows its secret: it
    /// runs out.
    pub(super) async fn open(
        &self,
        registration: &Registration,
        first: Received,
        caller: &Caller,
    ) -> Result<Start<'_>, StreamError> {
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
            Opening::Fresh(wished) => self.open_fresh(registration, tenure, wished, caller).await,
            Opening::Resume { key, .. } if self.is_anothers(key.session, caller) => {
                Ok(Start::refused(key.unknown_session()))
            }
            Opening::Resume { key, in_pages, attempt, .. } => {
                let key = &key;
                self.resume(Resume { registration, tenure, at, key, in_pages, attempt }).await
            }
        }
    }

    /// Opens a session. Its entry was proposed after Open came in, so once it is committed in this
    /// tenure the lease may be acknowledged (§5.1).
    async fn open_fresh(
        &self,
        registration: &Registration,
        tenure: Tenure,
        wished: Wished,
        caller: &Caller,
    ) -> Result<Start<'_>, StreamError> {
        // Checked before the session is made: otherwise no client would ever learn its secret.
        self.registry.lock().room_to_attach(&self.registry.settings)?;
        let fresh = match self.make_session(wished, caller).await {
            Ok(fresh) => fresh,
            Err(NotMade::NotProposed(error)) => return self.not_proposed(error),
            Err(NotMade::Refused(refusal)) => return Ok(Start::refused(refusal)),
        };
        let Fresh { session, secret, ttl_ms, index } = fresh;
        let secret = secret.to_vec().into();
        let opened = Opened { secret, ..self.opened(tenure, session, ttl_ms) };
        let mut state = self.registry.lock();
        if state.leases.as_ref().is_none_or(|leases| leases.tenure() != tenure) {
            drop(state);
            return Ok(self.redirect());
        }
        registration.attach(&mut state, session, 0)?;
        registration.handle.push(index, Body::Opened(opened));
        Ok(Start::Attached { session, pages: None, taking: Taking::Done })
    }

    /// Opens a session with a secret of its own. Its lease runs if this node still leads in the tenure
    /// in which it led before; the caller has to check that.
    ///
    /// # Errors
    ///
    /// [`NotMade`]; a session of unknown outcome runs out, because no client knows its secret.
    pub(super) async fn make_session(
        &self,
        wished: Wished,
        caller: &Caller,
    ) -> Result<Fresh, NotMade> {
        let mut secret = [0; SECRET_BYTES];
        self.registry.runtime.rng.fill(&mut secret);
        let Wished { ttl_ms, label, knows_closed } = wished;
        let ttl_ms = ttl_ms.unwrap_or(self.registry.settings.ttl_default_ms);
        let deed = Deed::OpenSession { ttl_ms, label, secret_hash: hash_of(&secret), knows_closed };
        let command = deed.by(caller);
        let committed = propose(&*self.consensus, command).await.map_err(NotMade::NotProposed)?;
        let index = committed.index;
        match committed.outcome {
            Ok(Answer::SessionOpened { session }) => Ok(Fresh { session, secret, ttl_ms, index }),
            Ok(_) => Err(NotMade::Refused(refusals::odd_answer())),
            Err(rejection) => Err(NotMade::Refused(refusals::of_rejection(&rejection))),
        }
    }

    /// Whether a session is somebody else's, while that counts (DESIGN §14). A session that is somebody's
    /// stays theirs, so this may be asked of any state.
    pub(crate) fn is_anothers(&self, session: SessionId, caller: &Caller) -> bool {
        let mut anothers = false;
        self.consensus.read(&mut |table, _| anothers = is_anothers(table, session, caller));
        anothers
    }

    /// Whether the table does not have a session as its caller's own, and would take it.
    fn is_to_own(&self, session: SessionId, caller: &Caller) -> bool {
        let mut is_to_own = false;
        self.consensus.read(&mut |table, _| {
            is_to_own = table.session(session).is_some_and(|view| {
                let owner = &view.caller.identity;
                *view.caller != *caller && (owner.is_anonymous() || *owner == caller.identity)
            });
        });
        is_to_own
    }

    /// Makes a session without an owner its caller's own: it was opened while an older member was there, and
    /// the log had no place for its owner. The caller has shown the session's secret. Whether it
    /// succeeds decides only what the session may do from then on; false: it is to be tried again.
    pub(super) async fn own(&self, session: SessionId, caller: &Caller) -> bool {
        if !self.is_to_own(session, caller) {
            return true;
        }
        let command = Command::By { caller: caller.clone(), deed: Deed::OwnSession { session } };
        let owned = propose(&*self.consensus, command).await;
        owned.is_ok_and(|committed| committed.outcome.is_ok())
    }

    /// As [`Hub::own`], if the key is the session's.
    pub(crate) async fn own_by_key(&self, key: &SessionKey, caller: &Caller) {
        let Ok(key) = Key::read(key.session_id, &key.secret) else { return };
        if self.is_to_own(key.session, caller) && self.ttl_if_own(&key).is_some() {
            let _ = self.own(key.session, caller).await;
        }
    }

    /// As [`Hub::own`], until it succeeds. Then it waits without end.
    pub(super) async fn own_in_time(&self, session: SessionId, caller: &Caller) {
        while !self.own(session, caller).await {
            self.registry.runtime.sleep(OWN_AGAIN).await;
        }
        std::future::pending::<()>().await;
    }

    /// Resumes a session: after a quorum round begun after Open came in, if the secret is its own.
    async fn resume(&self, resume: Resume<'_>) -> Result<Start<'_>, StreamError> {
        let Resume { tenure, key, in_pages, .. } = resume;
        let held_on = self.hold_on(tenure, key);
        if let Some(turned) = self.wait_for_turn(&held_on).await {
            return Ok(turned);
        }
        if !mutant!(ResumeWithoutQuorum) {
            match self.consensus.confirm().await {
                Ok(confirmed) if confirmed.tenure == tenure => {}
                Ok(_) => return Ok(self.redirect()),
                Err(error) => return self.not_proposed(error),
            }
        }
        let mut start = Err(StreamError::unavailable("the table was not read", None));
        self.consensus.read(&mut |table, index| start = self.take_up(resume, table, index));
        if in_pages && let Ok(Start::Attached { taking, .. }) = &mut start {
            *taking = Taking::Pages(held_on);
        }
        start
    }

    /// Waits for the turn of a resume, so that many that come at once leave time for everything else.
    /// `Some` if the client has to come back for it: the session does not end before (§5.2).
    async fn wait_for_turn(&self, held_on: &HeldOn<'_>) -> Option<Start<'static>> {
        let Registry { runtime, admission, .. } = &*self.registry;
        let now = runtime.clock.now();
        match admission.turn(now, self.without_stream()) {
            Turn::At(turn) if turn <= now => None,
            Turn::At(turn) => {
                runtime.clock.sleep_until(turn).await;
                None
            }
            Turn::Back(after) => {
                self.registry.metrics.resumes_put_off.inc();
                held_on.lengthen(now + wait_of(after));
                Some(Start::refused(refusals::come_back(after)))
            }
        }
    }

    /// How many sessions have no stream at this node.
    fn without_stream(&self) -> u64 {
        let mut sessions = 0;
        self.consensus.read(&mut |table, _| sessions = table.counts().sessions);
        let attached = u64::try_from(self.registry.metrics.attached_streams.get());
        sessions.saturating_sub(attached.unwrap_or_default())
    }

    /// Checks the secret against the applied state and attaches, under the table's lock: no event falls
    /// between State and what the stream is sent after it (I23).
    fn take_up<'a>(
        &'a self,
        resume: Resume<'_>,
        table: &LockTable,
        index: LogIndex,
    ) -> Result<Start<'a>, StreamError> {
        let Resume { key, in_pages, .. } = resume;
        let session = key.session;
        let (Some(ttl_ms), Some(mut pages)) =
            (key.ttl_if_own(table), Pages::of(table, index, session))
        else {
            return Ok(Start::refused(key.unknown_session()));
        };
        if let Some(why) = table.session(session).and_then(|view| view.revoked) {
            return Ok(Start::Turned(answers::session_revoked(why)));
        }
        let now_ms = self.registry.now_ms(table);
        let state = if in_pages {
            pages.next_page(table, now_ms, self.registry.settings.state_page_bytes)
        } else {
            let Some(whole) = pages.whole(table, now_ms) else {
                return Ok(Start::refused(refusals::state_too_large(session)));
            };
            whole
        };
        if let Some(turned) = self.attach(resume, ttl_ms)? {
            return Ok(turned);
        }
        let Resume { registration, tenure, .. } = resume;
        let lease_unmoved = in_pages;
        let closed = answers::closed_holds(table, session);
        let opened = Opened { lease_unmoved, closed, ..self.opened(tenure, session, ttl_ms) };
        registration.handle.show(index, Some(opened), state);
        let taking = Taking::Whole { since: self.registry.runtime.clock.now() };
        let pages = Some(pages).filter(|pages| !pages.is_empty());
        Ok(Start::Attached { session, pages, taking })
    }

    /// Makes the stream the session's; `Some` if it is turned away instead.
    ///
    /// The Opened of a client that knows pages moves no deadline, neither on the leader nor on the
    /// client: the keepalive moves both that the client sends once it has all of State. So a client that
    /// cannot take its State loses its session at the deadline that it had (I31). Every other client
    /// counts its lease from sending its Open as soon as it has Opened, which comes with all of State;
    /// so the lease is renewed first in that case, or Opened is not sent (§5.1, I6).
    fn attach(&self, resume: Resume<'_>, ttl_ms: u64) -> Result<Option<Start<'_>>, StreamError> {
        let Resume { registration, tenure, at, key, in_pages, attempt } = resume;
        let session = key.session;
        let mut state = self.registry.lock();
        registration.may_attach(&state, session, attempt)?;
        let Some(leases) = state.leases.as_mut().filter(|leases| leases.tenure() == tenure) else {
            drop(state);
            return Ok(Some(self.redirect()));
        };
        let renewed = if in_pages {
            let lives = if mutant!(ResumeRenewsAtOnce) {
                leases.renew(session, at)
            } else {
                leases.may_be_renewed(session)
            };
            lives.then_some(()).ok_or(NotResumed::Over)
        } else {
            leases.renew_by_resume(session, ttl_ms, at)
        };
        match renewed {
            Ok(()) => registration.attach(&mut state, session, attempt).map(|()| None),
            Err(NotResumed::Over) => {
                let message = "the session's lease has run out and is being ended";
                Err(StreamError::unavailable(message, None))
            }
            Err(NotResumed::Unproven) => Ok(Some(Start::refused(refusals::never_taken(session)))),
        }
    }

    /// Delays the expiry of a session whose secret was shown, even before the round is over.
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

    fn opened(&self, tenure: Tenure, session: SessionId, ttl_ms: u64) -> Opened {
        let cluster_id = self.cluster_id.cluster_id().unwrap_or_default();
        let (session_id, scopes) = (session.get(), self.scopes(tenure));
        Opened {
            session_id,
            cluster_id,
            ttl_ms,
            scopes,
            spread_ms: self.registry.spread_ms(),
            keeps_many: true,
            ..Opened::default()
        }
    }

    /// The scopes for an answer that is sent now; read so late that no authority is overstated.
    pub(super) fn scopes(&self, tenure: Tenure) -> Vec<ScopeAuthority> {
        self.registry.board.answers(tenure, self.registry.runtime.clock.now())
    }

    /// Refuses a session of another cluster, naming both.
    fn other_cluster(&self, theirs: &[u8]) -> Option<Start<'_>> {
        let ours = self.cluster_id.cluster_id()?;
        if ours == theirs {
            return None;
        }
        let (ours, theirs) = (hex::encode(ours), hex::encode(theirs));
        let message = format!("the session is of cluster {theirs}; this is cluster {ours}");
        let refusal = refusals::refusal(RefusalReason::Invalid, message);
        Some(Start::refused(refusal))
    }

    fn redirect(&self) -> Start<'_> {
        let leader = self.leader();
        Start::Turned(Body::Redirect(Redirect { leader }))
    }

    fn not_proposed(&self, error: ProposeError) -> Result<Start<'_>, StreamError> {
        match error {
            ProposeError::NotLeader { leader } => {
                let leader = leader.map(|leader| leader.advertise).or_else(|| self.leader());
                Ok(Start::Turned(Body::Redirect(Redirect { leader })))
            }
            ProposeError::Overloaded { .. }
            | ProposeError::OverloadedBytes { .. }
            | ProposeError::SessionOverloaded { .. }
            | ProposeError::SessionOverloadedBytes { .. }
            | ProposeError::DiskReserve
            | ProposeError::Forbidden(_)
            | ProposeError::VersionNotKnown { .. } => {
                Ok(Start::refused(refusals::of_propose_error(&error)))
            }
            ProposeError::Unavailable { .. }
            | ProposeError::OutcomeUnknown { .. }
            | ProposeError::ShuttingDown => Err(StreamError::unavailable(error.to_string(), None)),
        }
    }
}

/// Whether a session is somebody else's in this state, while that counts (DESIGN §14).
pub(super) fn is_anothers(table: &LockTable, session: SessionId, caller: &Caller) -> bool {
    let owner = table.session(session).map(|view| &view.caller.identity);
    let owner = owner.filter(|owner| !owner.is_anonymous() || mutant!(NobodysIsAnothers));
    table.rules().are_on() && owner.is_some_and(|owner| *owner != caller.identity)
}

impl HeldOn<'_> {
    /// Makes the lease last until then at least, if the secret was the session's.
    fn lengthen(&self, until: Instant) {
        if self.marked {
            self.registry.with_leases(self.tenure, |leases| leases.lengthen(self.session, until));
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
