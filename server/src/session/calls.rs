//! Unary calls: the same as the frames of a stream, one request and one answer at a time.
//!
//! A call is read by the same functions as a frame, shows its session's key, and proposes the same
//! command; no request has a second meaning. It only lacks the stream: a session that lives by calls
//! receives no pushes, and nothing of it ends with a connection.

use std::time::Duration;

use holdfast_core::{
    Acquired, Answer, Caller, Command, FencingToken, Rejection, RequestId, Tenure, Was,
};
use holdfast_proto::v1::client_frame::Body;
use holdfast_proto::v1::refused::Subject;
use holdfast_proto::v1::{
    AcquireRequest, AcquireResponse, CancelRequest, CancelResponse, CloseSessionRequest,
    CloseSessionResponse, ClosedHold, KeepAliveRequest, KeepAliveResponse, OpenSessionRequest,
    OpenSessionResponse, Refusal, RefusalReason, ReleaseRequest, ReleaseResponse, SessionKey,
    SetValueRequest, SetValueResponse,
};
use holdfast_runtime::Instant;
use tokio::sync::oneshot;

use super::error::{CallError, unavailable};
use super::frames::{Request, Wished, read_label, read_request};
use super::leases::Leases;
use super::opening::{Fresh, Key, NotMade};
use super::waiting::{About, Call, Told};
use super::{Hub, answers, refusals, stream};
use crate::consensus::{Committed, propose};
use crate::error::ProposeError;

impl Hub {
    /// Opens a session; answers once its lease runs, as Opened does (DESIGN §5.1).
    ///
    /// # Errors
    ///
    /// [`CallError`]; a session may be open all the same, but no client knows its secret: it runs out.
    pub(crate) async fn open_session(
        &self,
        asked: &OpenSessionRequest,
        caller: &Caller,
    ) -> Result<OpenSessionResponse, CallError> {
        let label = read_label(&asked.label)?;
        let tenure = self.serving()?;
        let OpenSessionRequest { ttl_ms, knows_closed, .. } = *asked;
        let wished = Wished { ttl_ms, label, knows_closed };
        let made = self.make_session(wished, caller).await.map_err(|error| match error {
            NotMade::NotProposed(error) => self.not_applied(&error),
            NotMade::Refused(refusal) => refusal.into(),
        });
        let Fresh { session, secret, ttl_ms, .. } = made?;
        self.still_serving(tenure)?;
        let key = SessionKey { session_id: session.get(), secret: secret.to_vec().into() };
        let cluster_id = self.cluster_id.cluster_id().unwrap_or_default();
        let scopes = self.scopes(tenure);
        Ok(OpenSessionResponse { session: Some(key), cluster_id, ttl_ms, scopes })
    }

    /// Renews a lease, by the rules of DESIGN §5.1: after a quorum round begun after the call came in,
    /// if the session is alive in the state that was applied then and no expiry of it is under way. The
    /// session does not become due before the round is over (§5.2). Cancel safe.
    ///
    /// # Errors
    ///
    /// [`CallError`]; nothing was renewed.
    pub(crate) async fn keep_alive(
        &self,
        asked: &KeepAliveRequest,
    ) -> Result<KeepAliveResponse, CallError> {
        let came_at = self.registry.runtime.clock.now();
        let key = read_key(asked.session.as_ref())?;
        let tenure = self.serving()?;
        self.registry.metrics.keepalives.inc();
        let held_on = self.hold_on(tenure, &key);
        self.confirm(tenure).await?;
        let renewed = self.renew(tenure, &key, came_at);
        drop(held_on);
        let (ttl_ms, closed) = renewed?;
        self.registry.metrics.keepalives_acknowledged.inc();
        let scopes = self.registry.board.answers(tenure, came_at);
        Ok(KeepAliveResponse { ttl_ms, scopes, closed })
    }

    /// Requests locks, and waits for them if the request says so.
    ///
    /// Dropping the future leaves the request alone: it waits or holds until it is cancelled or its
    /// session ends, and a call with the same request id finds it again.
    ///
    /// # Errors
    ///
    /// [`CallError`]; the request may stand in the queue only if the call was unavailable.
    pub(crate) async fn acquire(
        &self,
        asked: AcquireRequest,
    ) -> Result<AcquireResponse, CallError> {
        let came_at = self.registry.runtime.clock.now();
        let frame = asked.acquire.ok_or_else(|| missing("acquire"))?;
        let request = RequestId::new(frame.request_id);
        let reading = read_request(Some(Body::Acquire(frame)))?;
        let key = self.prove(asked.session.as_ref()).await?;
        // The call is registered before its command is proposed: a grant may come before the command's
        // answer.
        let call = self.registry.wait_for(key.session, About::Request(request))?;
        let committed = self.ask(&key, asked.done_below, reading).await?;
        let index = committed.index;
        self.registry.note_grant(came_at, &committed.outcome);
        match self.answer_of(committed)? {
            Answer::Acquired { state: Acquired::Granted { token, items, values }, .. } => {
                let granted = Some(answers::granted(request, token, &items, &values));
                Ok(AcquireResponse { index: index.get(), granted })
            }
            Answer::Acquired { state: Acquired::Queued { .. }, .. } => {
                let give_up_at = asked.wait_ms.map(|ms| came_at + Duration::from_millis(ms));
                self.wait(&key, request, call, give_up_at).await
            }
            _ => Err(refusals::odd_answer().into()),
        }
    }

    /// Ends a request, whatever its state.
    pub(crate) async fn cancel(&self, asked: CancelRequest) -> Result<CancelResponse, CallError> {
        let frame = asked.cancel.ok_or_else(|| missing("cancel"))?;
        let reading = read_request(Some(Body::Cancel(frame)))?;
        let key = self.prove(asked.session.as_ref()).await?;
        let committed = self.ask(&key, asked.done_below, reading).await?;
        match self.answer_of(committed)? {
            Answer::Cancelled { request, was } => {
                let cancelled = Some(answers::cancelled(request, was));
                Ok(CancelResponse { cancelled })
            }
            _ => Err(refusals::odd_answer().into()),
        }
    }

    /// Gives back a grant, or some of its names.
    pub(crate) async fn release(
        &self,
        asked: ReleaseRequest,
    ) -> Result<ReleaseResponse, CallError> {
        let frame = asked.release.ok_or_else(|| missing("release"))?;
        let token = FencingToken::from_raw(frame.token);
        let names = frame.names.clone();
        let reading = read_request(Some(Body::Release(frame)))?;
        let key = self.prove(asked.session.as_ref()).await?;
        let grant = About::Grant(token);
        let whole =
            names.is_empty().then(|| self.registry.wait_for(key.session, grant)).transpose()?;
        let committed = self.ask(&key, asked.done_below, reading).await?;
        let Answer::Released { request, over, .. } = self.answer_of(committed)? else {
            return Err(refusals::odd_answer().into());
        };
        // A part is what was named. Of the whole, the event lists what was left of it. The event comes before the answer, unless the
        // tenure ended in between, which does not undo the release.
        let as_asked = answers::released(request, token, names, over);
        let released = match whole {
            Some(mut call) => match call.told().await {
                Told::Released(released) => released,
                _ => as_asked,
            },
            None => as_asked,
        };
        Ok(ReleaseResponse { released: Some(released) })
    }

    /// Changes the value of a lock.
    pub(crate) async fn set_value(
        &self,
        asked: SetValueRequest,
    ) -> Result<SetValueResponse, CallError> {
        let frame = asked.set_value.ok_or_else(|| missing("set_value"))?;
        let reading = read_request(Some(Body::SetValue(frame)))?;
        let key = self.prove(asked.session.as_ref()).await?;
        let committed = self.ask(&key, asked.done_below, reading).await?;
        match self.answer_of(committed)? {
            Answer::ValueSet { .. } => Ok(SetValueResponse {}),
            _ => Err(refusals::odd_answer().into()),
        }
    }

    /// Ends a session: every wait and hold of it.
    pub(crate) async fn close_session(
        &self,
        asked: &CloseSessionRequest,
    ) -> Result<CloseSessionResponse, CallError> {
        let key = self.prove(asked.session.as_ref()).await?;
        let committed = self.ask(&key, 0, Request::Close).await?;
        match self.answer_of(committed)? {
            Answer::SessionEnded => Ok(CloseSessionResponse {}),
            _ => Err(refusals::odd_answer().into()),
        }
    }
}

/// The way of a call to the log and back.
impl Hub {
    /// Returns the key of the call, if the secret is the session's own.
    ///
    /// A right secret is proof as of any state. Before a secret is reported as wrong, a quorum round
    /// makes sure that the state is not an old one: a deposed node that does not know it yet has not
    /// learned of newer sessions.
    async fn prove(&self, shown: Option<&SessionKey>) -> Result<Key, CallError> {
        let key = read_key(shown)?;
        let tenure = self.serving()?;
        if self.ttl_if_own(&key).is_none() {
            self.confirm(tenure).await?;
            self.ttl_if_own(&key).ok_or_else(|| key.unknown_session())?;
        }
        Ok(key)
    }

    pub(super) fn ttl_if_own(&self, key: &Key) -> Option<u64> {
        let mut ttl_ms = None;
        self.consensus.read(&mut |table, _| ttl_ms = key.ttl_if_own(table));
        ttl_ms
    }

    /// Renews a lease under the table's lock: the session is alive in the applied state, and the closed
    /// holds are those of that state (I35).
    fn renew(
        &self,
        tenure: Tenure,
        key: &Key,
        came_at: Instant,
    ) -> Result<(u64, Vec<ClosedHold>), CallError> {
        let session = key.session;
        let (mut own, mut revoked, mut closed) = (None, None, Vec::new());
        let mut renewed = None;
        self.consensus.read(&mut |table, _| {
            own = key.ttl_if_own(table);
            if own.is_some() {
                let reason = table.session(session).and_then(|view| view.revoked).cloned();
                revoked = reason.map(|reason| Rejection::SessionRevoked { session, reason });
                closed = answers::closed_holds(table, session);
                let renew = |leases: &mut Leases| leases.renew(session, came_at);
                renewed = self.registry.with_leases(tenure, renew);
            }
        });
        let ttl_ms = own.ok_or_else(|| key.unknown_session())?;
        if let Some(revoked) = revoked {
            return Err(refusals::of_rejection(&revoked).into());
        }
        match renewed {
            Some(true) => Ok((ttl_ms, closed)),
            Some(false) => {
                Err(unavailable("the session's lease has run out and is being ended", None))
            }
            None => Err(self.leads_no_more()),
        }
    }

    /// Proposes the command that the same frame would, and waits for its outcome.
    async fn ask(
        &self,
        key: &Key,
        done_below: u64,
        request: Request,
    ) -> Result<Committed, CallError> {
        let (session, subject) = (key.session, request.subject());
        self.registry.trace(session, &request);
        let command = request.command(session, RequestId::new(done_below));
        // A keepalive never comes here: it is no command.
        let command = command.ok_or_else(refusals::odd_answer)?;
        let registry = self.registry.clone();
        let (tell, told) = oneshot::channel();
        let done = move |result| {
            if let Some(Subject::RequestId(request)) = subject {
                let waits = stream::waits(&result);
                registry.told_by_a_call(session, RequestId::new(request), waits);
            }
            // The caller may have gone; the command stands all the same.
            let _ = tell.send(result);
        };
        self.consensus.submit(command, Box::new(done));
        let result = told.await.unwrap_or(Err(ProposeError::ShuttingDown));
        result.map_err(|error| self.not_applied(&error))
    }

    fn answer_of(&self, committed: Committed) -> Result<Answer, CallError> {
        let refuse = |rejection| self.rejected(&rejection).into();
        committed.outcome.map_err(refuse)
    }

    /// A refusal of the core, with the lock's holder where that is the reason.
    fn rejected(&self, rejection: &Rejection) -> Refusal {
        let mut refusal = refusals::of_rejection(rejection);
        self.consensus.read(&mut |table, _| {
            let now_ms = self.registry.now_ms(table);
            refusal = answers::refusal(table, now_ms, rejection);
        });
        refusal
    }

    /// Waits in the queue until the grant, or until `give_up_at`.
    async fn wait(
        &self,
        key: &Key,
        request: RequestId,
        mut call: Call,
        give_up_at: Option<Instant>,
    ) -> Result<AcquireResponse, CallError> {
        let over = async {
            match give_up_at {
                Some(at) => self.registry.runtime.clock.sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        // If grant and deadline come at once, the grant counts.
        let told = holdfast_runtime::select! {
            told = call.told() => told,
            () = over => return self.give_up(key, request).await,
        };
        match told {
            Told::Granted(index, granted) => {
                Ok(AcquireResponse { index: index.get(), granted: Some(granted) })
            }
            Told::Left => Err(cancelled(request)),
            Told::Refused(refusal) => Err(refusal.into()),
            Told::SessionOver => Err(key.unknown_session().into()),
            Told::Released(_) => Err(refusals::odd_answer().into()),
            Told::Elsewhere { leader } => {
                let message = "this node leads no more; the request keeps its place, and the same \
                               request id finds it at the leader";
                Err(unavailable(message, leader))
            }
        }
    }

    /// The wait limit has passed: ends the wait, and answers once that is certain. A grant that came
    /// first stands and is the answer: another call of the same request may have reported it (I6).
    async fn give_up(&self, key: &Key, request: RequestId) -> Result<AcquireResponse, CallError> {
        let stop = Command::StopWaiting { session: key.session, request };
        let committed = propose(&*self.consensus, stop).await;
        let committed = committed.map_err(|error| self.not_applied(&error))?;
        let index = committed.index;
        match self.answer_of(committed)? {
            Answer::Acquired { state: Acquired::Granted { token, items, values }, .. } => {
                let granted = Some(answers::granted(request, token, &items, &values));
                Ok(AcquireResponse { index: index.get(), granted })
            }
            Answer::Cancelled { was: Was::Waiting, .. } => {
                let message =
                    format!("request {request} was not granted within wait_ms and is cancelled");
                let refusal = refusals::refusal(RefusalReason::Cancelled, message);
                Err(CallError::NotInTime(refusal))
            }
            Answer::Cancelled { .. } => Err(cancelled(request)),
            _ => Err(refusals::odd_answer().into()),
        }
    }

    /// The tenure in which this node serves.
    pub(super) fn serving(&self) -> Result<Tenure, CallError> {
        self.registry.tenure().ok_or_else(|| self.leads_no_more())
    }

    pub(super) fn still_serving(&self, tenure: Tenure) -> Result<(), CallError> {
        if self.registry.tenure() == Some(tenure) { Ok(()) } else { Err(self.leads_no_more()) }
    }

    /// Confirms by a quorum round begun now that this node still leads in `tenure`.
    pub(super) async fn confirm(&self, tenure: Tenure) -> Result<(), CallError> {
        let confirmed = self.consensus.confirm().await.map_err(|error| self.not_applied(&error))?;
        if confirmed.tenure == tenure { Ok(()) } else { Err(self.leads_no_more()) }
    }

    pub(super) fn leads_no_more(&self) -> CallError {
        unavailable("this node does not lead", self.leader())
    }

    /// The error of a command that never reached an outcome.
    pub(super) fn not_applied(&self, error: &ProposeError) -> CallError {
        let refusal = refusals::of_propose_error(error);
        if refusal.reason() != RefusalReason::Unavailable {
            return CallError::Refused(refusal);
        }
        let leader = match error {
            ProposeError::NotLeader { leader: Some(leader) } => Some(leader.advertise.clone()),
            _ => self.leader(),
        };
        CallError::Unavailable { refusal, leader }
    }
}

/// Another call, or another end of the request, came first.
fn cancelled(request: RequestId) -> CallError {
    let message = format!("request {request} was cancelled while it waited");
    refusals::refusal(RefusalReason::Cancelled, message).into()
}

fn read_key(shown: Option<&SessionKey>) -> Result<Key, Refusal> {
    let shown = shown.ok_or_else(|| missing("session"))?;
    Key::read(shown.session_id, &shown.secret)
}

fn missing(field: &str) -> Refusal {
    refusals::refusal(RefusalReason::Invalid, format!("the call has no `{field}`"))
}
