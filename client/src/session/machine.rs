//! The session as a machine without I/O: frames and calls in, frames out.
//!
//! # Invariants
//!
//! - A hold is handed out only in a span that is alive, and never again once it was lost or its
//!   release was queued; no State revives it (S3, I6, DESIGN §5.6).
//! - What a caller dropped is cancelled or released, however answers and calls cross, until the
//!   server has said that it is over.
//! - Nothing is sent between an Open with resume and its State: State decides what has to be sent
//!   again (I23).

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use holdfast_proto::v1::{self, client_frame::Body};
use holdfast_seams::{Clock, Moment};
use tokio::sync::{oneshot, watch};

use super::request::{GivingBack, Key, Phase, Request, Requests, fail_all};
use crate::hold::{GuardState, Hold};
use crate::lease::{Lease, Terms};
use crate::{Error, FencingToken, LostReason, Place, RefusalReason, Result};

/// Most requests of one client at a time, those being given back included; past it an acquire is
/// refused. Far above what a server allows a session, so it only bounds what piles up while no
/// server can be reached.
const REQUESTS_MAX: usize = 65_536;
/// Longest lock name, bytes. The server decides what a name is; this only keeps a stream from
/// breaking over the size of one frame.
const NAME_BYTES_MAX: usize = 512;
/// Most frames of one message: they stay far below any server's message size.
const FRAMES_MAX: usize = 64;

/// What a session asks the server for.
#[derive(Clone, Debug)]
pub(crate) struct Wishes {
    /// `None`: the server's default.
    pub(crate) ttl: Option<Duration>,
    pub(crate) label: String,
    pub(crate) allowance: f64,
}

/// How an acquire is to be made.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) name: Arc<str>,
    pub(crate) wait: bool,
    pub(crate) follow: bool,
}

/// What an acquire waits on.
pub(crate) struct Asked {
    pub(crate) key: Key,
    pub(crate) answer: oneshot::Receiver<Result<Arc<Hold>>>,
    pub(crate) place: watch::Receiver<Option<Place>>,
}

/// Whether the session was ever open; what `connect` waits for.
#[derive(Clone, Debug)]
pub(crate) enum Opening {
    Trying,
    Open,
    Refused(Error),
}

/// Why a stream is of no use any more.
#[derive(Debug, PartialEq)]
pub(super) enum StreamEnd {
    /// This node does not lead, or stops; the leader, if it named one.
    Redirected(Option<String>),
    /// It broke, stalled, or its node cannot serve now.
    Failed { message: String, leader: Option<String> },
    /// The session is over; the next stream opens a new one.
    SessionOver,
    /// The server will not open a session.
    Refused(Error),
}

impl StreamEnd {
    pub(super) fn failed(message: impl Into<String>) -> Self {
        Self::Failed { message: message.into(), leader: None }
    }
}

/// Who this client is to the cluster.
struct Identity {
    session: u64,
    secret: Bytes,
    cluster: Bytes,
}

/// The stream, as far as the machine cares.
#[derive(Clone, Copy)]
enum Stream {
    None,
    /// Open went out at this moment; no answer yet.
    Opening(Moment),
    /// Attached by a resume that went out at this moment; State has not come yet.
    Resuming(Moment),
    Ready,
}

/// Something to be sent as soon as the stream is ready. Looked up again when its turn comes.
enum Intent {
    Acquire(Key),
    Cancel(Key),
    Release(Key),
    /// Spends an id that no request here has any more.
    Forget(u64),
}

pub(super) struct Machine {
    clock: Arc<dyn Clock>,
    wishes: Wishes,
    lease: Lease,
    identity: Option<Identity>,
    requests: Requests,
    stream: Stream,
    /// In order. At most a few for each request, so bounded by [`REQUESTS_MAX`].
    to_send: VecDeque<Intent>,
    closing: bool,
    close_sent: bool,
    opening: watch::Sender<Opening>,
    last_error: String,
}

impl Machine {
    pub(super) fn new(wishes: Wishes, clock: Arc<dyn Clock>) -> Self {
        let ttl = wishes.ttl.unwrap_or(crate::builder::TTL_DEFAULT);
        Self {
            clock,
            lease: Lease::new(Terms::new(ttl, wishes.allowance)),
            wishes,
            identity: None,
            requests: Requests::default(),
            stream: Stream::None,
            to_send: VecDeque::new(),
            closing: false,
            close_sent: false,
            opening: watch::Sender::new(Opening::Trying),
            last_error: "nobody answered yet".into(),
        }
    }

    pub(super) fn opening(&self) -> watch::Receiver<Opening> {
        self.opening.subscribe()
    }

    pub(super) fn terms(&self) -> Terms {
        self.lease.terms()
    }

    pub(super) fn is_ready(&self) -> bool {
        matches!(self.stream, Stream::Ready)
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing
    }

    /// Whether there is a session at a server, as far as is known.
    pub(super) fn has_session(&self) -> bool {
        self.identity.is_some()
    }

    pub(super) fn last_error(&self) -> &str {
        &self.last_error
    }

    // ---- what callers do ------------------------------------------------------------------

    /// Asks for a lock.
    pub(super) fn ask(&mut self, ask: Ask) -> Result<Asked> {
        self.may_ask(&ask.name)?;
        let (answer, answered) = oneshot::channel();
        let place = watch::Sender::new(None);
        let places = place.subscribe();
        let key = self.requests.insert(Request {
            name: ask.name,
            wait: ask.wait,
            follow: ask.follow,
            id: None,
            seen: 0,
            phase: Phase::Unsent,
            answer: Some(answer),
            place,
        });
        self.queue(Intent::Acquire(key));
        Ok(Asked { key, answer: answered, place: places })
    }

    fn may_ask(&self, name: &str) -> Result<()> {
        if self.closing {
            return Err(Error::Closed);
        }
        if name.len() > NAME_BYTES_MAX {
            return Err(Error::Refused {
                reason: RefusalReason::Invalid,
                message: format!(
                    "a lock name has at most {NAME_BYTES_MAX} bytes, this one has {}",
                    name.len()
                ),
                limit: None,
                retry_after: None,
            });
        }
        if self.requests.len() >= REQUESTS_MAX {
            return Err(Error::Refused {
                reason: RefusalReason::Limit,
                message: format!("{REQUESTS_MAX} requests of this client are not over yet"),
                limit: Some("requests of one client".into()),
                retry_after: None,
            });
        }
        Ok(())
    }

    /// The caller of an acquire is gone: whatever it came to is undone.
    pub(super) fn abandon(&mut self, key: Key) {
        let Some(request) = self.requests.get_mut(key) else { return };
        request.answer = None;
        match &request.phase {
            Phase::Unsent => drop(self.requests.remove(key)),
            Phase::Asked | Phase::Queued => {
                request.phase = Phase::Cancelling;
                self.queue(Intent::Cancel(key));
            }
            Phase::Held(_) => self.give_back(key, None),
            Phase::GivingBack(_) | Phase::Cancelling => {}
        }
    }

    /// Gives a hold back. `done` hears what became of it.
    /// What was lost before is not given back any more: `done` is dropped unheard.
    pub(super) fn give_back(&mut self, key: Key, done: Option<oneshot::Sender<Result<()>>>) {
        self.lose_overdue();
        let Some(request) = self.requests.get_mut(key) else { return };
        let Phase::Held(hold) = &request.phase else { return };
        let token = hold.token;
        // Unsafe before anything can be queued (S3).
        hold.end(GuardState::Released);
        request.phase = Phase::GivingBack(GivingBack { token, sent: 0, done });
        self.queue(Intent::Release(key));
    }

    /// Ends everything: nothing is safe, nothing waits, and nothing more is asked.
    pub(super) fn close(&mut self) {
        self.closing = true;
        self.to_send.clear();
        self.end_requests(LostReason::SessionClosed, &Error::Closed);
        fail_all(self.requests.take_unsent(), &Error::Closed);
        self.lease.end();
    }

    /// Without a stream that is ready nothing is queued: what there is to send then is found anew
    /// when one is.
    fn queue(&mut self, intent: Intent) {
        if self.is_ready() {
            self.to_send.push_back(intent);
        }
    }

    // ---- time -----------------------------------------------------------------------------

    /// Looks at the deadlines. To be called when [`Machine::next_alarm`] has come; called early
    /// or late it is harmless.
    pub(super) fn alarm(&mut self) {
        self.lose_overdue();
        let in_jeopardy = self.lease.in_jeopardy(self.clock.now());
        for (_, hold) in self.requests.holds() {
            hold.publish(in_jeopardy);
        }
    }

    pub(super) fn next_alarm(&self) -> Option<Moment> {
        self.lease.next_alarm(self.clock.now())
    }

    /// When the stream is to be given up, if nothing comes before.
    fn given_up_at(&self, attempt: Duration) -> Option<Moment> {
        match self.stream {
            Stream::None => None,
            Stream::Opening(sent) | Stream::Resuming(sent) => Some(sent + attempt),
            // A keepalive that cannot even be sent is as unanswered as one that was.
            Stream::Ready => Some(self.lease.silent_from()),
        }
    }

    /// When the driver has to look again: a keepalive is due, or the stream is given up.
    pub(super) fn next_timer(&self, attempt: Duration) -> Option<Moment> {
        let give_up = self.given_up_at(attempt)?;
        let due = self.lease.next_due();
        let waits_for_due = self.is_ready() && self.clock.now() < due;
        Some(if waits_for_due { due.min(give_up) } else { give_up })
    }

    /// Whether the stream has been silent for too long.
    pub(super) fn is_stalled(&self, attempt: Duration) -> bool {
        self.given_up_at(attempt).is_some_and(|at| self.clock.now() >= at)
    }

    /// Every hold whose safe deadline has passed is lost, for ever (DESIGN §5.6).
    fn lose_overdue(&mut self) {
        if !self.lease.span().is_alive(&*self.clock) {
            self.lose_holds(LostReason::DeadlinePassed);
        }
    }

    /// The holds are over here; the server is told to end them too.
    fn lose_holds(&mut self, reason: LostReason) {
        let keys: Vec<_> = self.requests.holds().map(|(key, _)| key).collect();
        for key in keys {
            let Some(request) = self.requests.get_mut(key) else { continue };
            let Phase::Held(hold) = &request.phase else { continue };
            hold.end(GuardState::Lost(reason));
            request.phase = Phase::GivingBack(GivingBack::unattended(hold.token));
            self.queue(Intent::Release(key));
        }
    }

    fn renew(&mut self, sent: Moment) {
        let before = self.lease.span().clone();
        self.lease.renew(sent, &*self.clock);
        if !Arc::ptr_eq(&before, self.lease.span()) {
            self.lose_holds(LostReason::DeadlinePassed);
        }
        self.alarm();
    }

    // ---- the stream -----------------------------------------------------------------------

    /// The first frame of a stream that is about to be sent.
    pub(super) fn open(&mut self) -> v1::ClientFrames {
        // Read before the frame is queued (S2): the answer renews from here.
        let sent = self.clock.now();
        self.stream = Stream::Opening(sent);
        self.lease.forget_unanswered();
        self.close_sent = false;
        let resume = self.identity.as_ref().map(|identity| v1::Resume {
            session_id: identity.session,
            secret: identity.secret.clone(),
            cluster_id: identity.cluster.clone(),
        });
        let ttl_ms = self.wishes.ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
        let open = v1::Open { ttl_ms, label: self.wishes.label.clone(), resume };
        self.message(vec![Body::Open(open)])
    }

    /// The stream is gone.
    pub(super) fn detached(&mut self, end: &StreamEnd) {
        self.stream = Stream::None;
        self.lease.forget_unanswered();
        match end {
            StreamEnd::Redirected(Some(leader)) => {
                self.last_error = format!("redirected to {leader}");
            }
            StreamEnd::Redirected(None) => self.last_error = "no leader is known".into(),
            StreamEnd::Failed { message, .. } => self.last_error.clone_from(message),
            StreamEnd::SessionOver => {}
            StreamEnd::Refused(error) => {
                self.last_error = error.to_string();
                fail_all(self.requests.take_unsent(), error);
                self.opening.send_replace(Opening::Refused(error.clone()));
            }
        }
    }

    pub(super) fn has_output(&self) -> bool {
        let keepalive_due = self.clock.now() >= self.lease.next_due();
        let close_due = self.closing && !self.close_sent;
        self.is_ready() && (keepalive_due || close_due || !self.to_send.is_empty())
    }

    /// What is to be sent now, at most one message; it has to be queued after this and in order.
    pub(super) fn take_output(&mut self) -> Option<v1::ClientFrames> {
        if !self.is_ready() {
            return None;
        }
        let mut bodies = Vec::new();
        let now = self.clock.now();
        if now >= self.lease.next_due() {
            bodies.push(Body::KeepAlive(v1::KeepAlive { seq: self.lease.send_keepalive(now) }));
        }
        while bodies.len() < FRAMES_MAX {
            let Some(intent) = self.to_send.pop_front() else { break };
            bodies.extend(self.carry_out(&intent));
        }
        if self.closing && !self.close_sent {
            self.close_sent = true;
            bodies.push(Body::Close(v1::Close {}));
        }
        (!bodies.is_empty()).then(|| self.message(bodies))
    }

    /// The frame for an intent, unless things have moved on.
    fn carry_out(&mut self, intent: &Intent) -> Option<Body> {
        match *intent {
            Intent::Acquire(key) => {
                let request = self.requests.get(key)?;
                if !matches!(request.phase, Phase::Unsent | Phase::Asked) {
                    return None;
                }
                let request_id = self.requests.id_of(key)?;
                let request = self.requests.get_mut(key)?;
                request.phase = Phase::Asked;
                let name = Bytes::copy_from_slice(request.name.as_bytes());
                let items = vec![v1::Item { name, ..v1::Item::default() }];
                let (wait, follow_place) = (request.wait, request.follow);
                let acquire = v1::Acquire { request_id, items, wait, follow_place, any: None };
                Some(Body::Acquire(acquire))
            }
            Intent::Cancel(key) => {
                let request_id = self.requests.get(key)?.id?;
                Some(Body::Cancel(v1::Cancel { request_id }))
            }
            Intent::Release(key) => {
                let Phase::GivingBack(giving) = &mut self.requests.get_mut(key)?.phase else {
                    return None;
                };
                giving.sent += 1;
                let token = giving.token.get();
                Some(Body::Release(v1::Release { token, names: Vec::new() }))
            }
            Intent::Forget(request_id) => Some(Body::Cancel(v1::Cancel { request_id })),
        }
    }

    fn message(&self, bodies: Vec<Body>) -> v1::ClientFrames {
        let done_below = self.requests.done_below();
        let frame = |body| v1::ClientFrame { done_below, body: Some(body) };
        v1::ClientFrames { frames: bodies.into_iter().map(frame).collect() }
    }

    // ---- answers --------------------------------------------------------------------------

    /// Takes in what the server sent. `Some` if the stream is of no use any more.
    pub(super) fn handle(&mut self, frames: v1::ServerFrames) -> Option<StreamEnd> {
        self.lose_overdue();
        frames.frames.into_iter().find_map(|frame| self.handle_one(frame.index, frame.body?))
    }

    fn handle_one(&mut self, index: u64, body: v1::server_frame::Body) -> Option<StreamEnd> {
        use v1::server_frame::Body as Said;
        match body {
            Said::Opened(opened) => return self.opened(opened),
            Said::KeptAlive(kept) => {
                if let Some(sent) = self.lease.answered(kept.seq) {
                    self.renew(sent);
                }
            }
            Said::Queued(queued) => {
                let place = Place::new(queued.place, queued.holders);
                self.queued(queued.request_id, index, place);
            }
            Said::Moved(moved) => {
                let place = Place::new(moved.place, moved.holders);
                self.queued(moved.request_id, index, place);
            }
            Said::Granted(granted) => self.granted(&granted, index),
            Said::Denied(denied) => {
                self.denied(denied.request_id, index, denied.refusal.unwrap_or_default());
            }
            Said::Released(released) => self.released(FencingToken::new(released.token)),
            Said::Cancelled(cancelled) => self.cancelled(cancelled.request_id),
            Said::Lost(lost) => self.lost(&lost),
            // Told for holders that lend their lock out; this client has none yet. Nor does it set
            // values.
            Said::Contended(_) | Said::ValueSet(_) => {}
            Said::State(state) => self.synchronise(state, index),
            Said::Refused(refused) => return self.refused(refused),
            Said::Redirect(v1::Redirect { leader }) | Said::GoingAway(v1::GoingAway { leader }) => {
                return Some(StreamEnd::Redirected(leader));
            }
            Said::SessionEnded(ended) => {
                self.session_over(lost_reason(ended.reason()));
                return Some(StreamEnd::SessionOver);
            }
        }
        None
    }

    fn opened(&mut self, opened: v1::Opened) -> Option<StreamEnd> {
        let Stream::Opening(sent) = self.stream else {
            return Some(StreamEnd::failed("the server answered Open twice"));
        };
        match &self.identity {
            Some(known) if known.session != opened.session_id => {
                return Some(StreamEnd::failed("the server resumed another session"));
            }
            Some(_) => self.stream = Stream::Resuming(sent),
            None => {
                self.identity = Some(Identity {
                    session: opened.session_id,
                    secret: opened.secret,
                    cluster: opened.cluster_id,
                });
                self.lease.set_ttl(Duration::from_millis(opened.ttl_ms));
                self.stream = Stream::Ready;
                self.to_send = self.requests.keys().into_iter().map(Intent::Acquire).collect();
            }
        }
        self.lease.opened(sent);
        self.renew(sent);
        self.opening.send_replace(Opening::Open);
        None
    }

    /// Whether a frame of this index about the request is news; notes that it was seen.
    fn is_news(&mut self, key: Key, index: u64) -> bool {
        let Some(request) = self.requests.get_mut(key) else { return false };
        let news = index >= request.seen;
        request.seen = request.seen.max(index);
        news
    }

    fn queued(&mut self, id: u64, index: u64, place: Place) {
        let Some(key) = self.requests.with_id(id).filter(|key| self.is_news(*key, index)) else {
            return;
        };
        self.requests.answered(key);
        let Some(request) = self.requests.get_mut(key) else { return };
        if matches!(request.phase, Phase::Asked | Phase::Queued) {
            request.phase = Phase::Queued;
            request.place.send_replace(Some(place));
        }
    }

    fn granted(&mut self, granted: &v1::Granted, index: u64) {
        let Some(key) = self.requests.with_id(granted.request_id) else {
            // Nobody here remembers it: it is not to stay held (I13 makes a late one harmless).
            self.queue(Intent::Forget(granted.request_id));
            return;
        };
        if !self.is_news(key, index) {
            return;
        }
        self.requests.answered(key);
        let phase = self.requests.get(key).map(|request| &request.phase);
        if matches!(phase, Some(Phase::Asked | Phase::Queued)) {
            self.hand_out(key, FencingToken::new(granted.token));
        }
    }

    /// Hands a grant to its caller, if it is safe to (DESIGN §5.6); otherwise it is released.
    fn hand_out(&mut self, key: Key, token: FencingToken) {
        let span = self.lease.span().clone();
        let safe = span.is_alive(&*self.clock);
        self.requests.holds_under(key, token);
        let Some(request) = self.requests.get_mut(key) else { return };
        let hold = if safe { Hold::granted(request.name.clone(), token, span) } else { None };
        if let Some(hold) = hold.map(Arc::new) {
            request.phase = Phase::Held(hold.clone());
            if request.answer(Ok(hold)) {
                return;
            }
        } else {
            request.answer(Err(Error::SessionLost { reason: LostReason::DeadlinePassed }));
        }
        request.phase = Phase::GivingBack(GivingBack::unattended(token));
        self.queue(Intent::Release(key));
    }

    fn denied(&mut self, id: u64, index: u64, refusal: v1::Refusal) {
        let Some(key) = self.requests.with_id(id).filter(|key| self.is_news(*key, index)) else {
            return;
        };
        self.deny(key, refusal);
    }

    fn deny(&mut self, key: Key, refusal: v1::Refusal) {
        let Some(request) = self.requests.get(key) else { return };
        match request.phase {
            Phase::Asked | Phase::Queued => {
                let error = Error::from_refusal(refusal, &request.name);
                if let Some(mut request) = self.requests.remove(key) {
                    request.answer(Err(error));
                }
            }
            // The answer to its Cancel is still to come and says that it is over.
            Phase::Cancelling => self.requests.answered(key),
            Phase::Unsent | Phase::Held(_) | Phase::GivingBack(_) => {}
        }
    }

    fn released(&mut self, token: FencingToken) {
        self.ended(token, Ok(()), LostReason::Revoked);
    }

    fn lost(&mut self, lost: &v1::Lost) {
        let reason = lost_reason(lost.reason());
        self.ended(FencingToken::new(lost.token), Err(Error::Lost { reason }), reason);
    }

    /// The server says that a hold is over: `outcome` is what a release that waits is told,
    /// `reason` what a hold that nobody gave back is.
    fn ended(&mut self, token: FencingToken, outcome: Result<()>, reason: LostReason) {
        let Some(key) = self.requests.with_token(token) else { return };
        let Some(request) = self.requests.remove(key) else { return };
        match request.phase {
            Phase::GivingBack(giving) => giving.finish(outcome),
            Phase::Held(hold) => hold.end(GuardState::Lost(reason)),
            Phase::Unsent | Phase::Asked | Phase::Queued | Phase::Cancelling => {}
        }
    }

    /// Whatever the request was, the server says that it is over (DESIGN §4, Cancel).
    fn cancelled(&mut self, id: u64) {
        let Some(key) = self.requests.with_id(id) else { return };
        let cancelling = |request: &Request| matches!(request.phase, Phase::Cancelling);
        if self.requests.get(key).is_some_and(cancelling) {
            self.requests.remove(key);
        }
    }

    fn refused(&mut self, refused: v1::Refused) -> Option<StreamEnd> {
        use v1::refused::Subject;
        let refusal = refused.refusal.unwrap_or_default();
        if matches!(self.stream, Stream::Opening(_)) {
            return Some(self.open_refused(refusal));
        }
        match refusal.reason() {
            v1::RefusalReason::SessionUnknown => {
                self.session_over(LostReason::SessionExpired);
                return Some(StreamEnd::SessionOver);
            }
            // State after a resume says what became of it, and a resume needs a quorum: one way
            // to heal all.
            v1::RefusalReason::Unavailable => return Some(StreamEnd::failed(refusal.message)),
            _ => {}
        }
        match refused.subject {
            Some(Subject::RequestId(id)) => self.request_refused(id, refusal),
            Some(Subject::Token(token)) => self.release_refused(FencingToken::new(token), refusal),
            None => None,
        }
    }

    /// An Acquire or a Cancel was refused.
    fn request_refused(&mut self, id: u64, refusal: v1::Refusal) -> Option<StreamEnd> {
        let key = self.requests.with_id(id)?;
        let cancelling = matches!(self.requests.get(key)?.phase, Phase::Cancelling);
        match refusal.reason() {
            v1::RefusalReason::RequestGone if cancelling => drop(self.requests.remove(key)),
            // It must not stay: back off, resume, cancel again.
            v1::RefusalReason::Limit | v1::RefusalReason::DiskReserve if cancelling => {
                return Some(StreamEnd::failed(refusal.message));
            }
            _ => self.deny(key, refusal),
        }
        None
    }

    fn release_refused(&mut self, token: FencingToken, refusal: v1::Refusal) -> Option<StreamEnd> {
        let key = self.requests.with_token(token)?;
        if refusal.reason() != v1::RefusalReason::NotHolder {
            return Some(StreamEnd::failed(refusal.message));
        }
        if let Phase::GivingBack(giving) = &self.requests.get(key)?.phase {
            let outcome = if giving.sent > 1 {
                Ok(())
            } else {
                Err(Error::Lost { reason: LostReason::Revoked })
            };
            self.ended(token, outcome, LostReason::Revoked);
        }
        None
    }

    fn open_refused(&mut self, refusal: v1::Refusal) -> StreamEnd {
        let resuming = self.identity.is_some();
        match refusal.reason() {
            v1::RefusalReason::SessionUnknown if resuming => {
                self.session_over(LostReason::SessionExpired);
                StreamEnd::SessionOver
            }
            v1::RefusalReason::Unavailable => StreamEnd::failed(refusal.message),
            // One node of another cluster must not end a session that others still know; when
            // nothing of it is safe any more, there is nothing to lose.
            _ if resuming && self.lease.span().is_alive(&*self.clock) => {
                StreamEnd::failed(refusal.message)
            }
            v1::RefusalReason::Invalid if resuming => {
                self.session_over(LostReason::Revoked);
                StreamEnd::SessionOver
            }
            _ => StreamEnd::Refused(Error::from_refusal(refusal, "")),
        }
    }

    // ---- the session's end and the truth after a resume -----------------------------------

    /// The session was taken up elsewhere; this client does not take it up again.
    pub(super) fn attached_elsewhere(&mut self) {
        self.session_over(LostReason::AttachedElsewhere);
    }

    /// Nothing of the session is left. The next stream opens a new one for what was never sent.
    fn session_over(&mut self, reason: LostReason) {
        self.end_requests(reason, &Error::SessionLost { reason });
        self.identity = None;
        self.stream = Stream::None;
        self.lease.end();
        self.to_send.clear();
    }

    /// Ends whatever was sent in this session.
    fn end_requests(&mut self, reason: LostReason, waits: &Error) {
        for mut request in self.requests.take_sent() {
            match request.phase {
                Phase::Held(hold) => hold.end(GuardState::Lost(reason)),
                Phase::GivingBack(giving) => giving.finish(Err(Error::Lost { reason })),
                Phase::Asked | Phase::Queued => {
                    request.answer(Err(waits.clone()));
                }
                Phase::Unsent | Phase::Cancelling => {}
            }
        }
    }

    /// Everything the session has, as of `index`: what differs here is mended, what the server
    /// does not know is sent again under the same id (I23).
    fn synchronise(&mut self, state: v1::State, index: u64) {
        self.stream = Stream::Ready;
        self.to_send.clear();
        let mut known = BTreeSet::new();
        for entry in state.requests {
            known.insert(entry.request_id);
            match self.requests.with_id(entry.request_id) {
                Some(key) => self.synchronise_one(key, entry, index),
                // Nobody here waits for it or would ever release it.
                None => self.forget_stray(&entry),
            }
        }
        for key in self.requests.keys() {
            let id = self.requests.get(key).and_then(|request| request.id);
            if id.is_none_or(|id| !known.contains(&id)) {
                self.unknown_to_server(key, id.is_some_and(|id| id < state.next_request_id));
            }
        }
    }

    fn forget_stray(&mut self, entry: &v1::RequestState) {
        use v1::request_state::State;
        if let Some(State::Queued(_) | State::Granted(_)) = entry.state {
            self.queue(Intent::Forget(entry.request_id));
        }
    }

    fn synchronise_one(&mut self, key: Key, entry: v1::RequestState, index: u64) {
        use v1::request_state::State;
        let id = entry.request_id;
        let phase = self.requests.get(key).map(|request| &request.phase);
        let again = match phase {
            Some(Phase::Cancelling) => Some(Intent::Cancel(key)),
            Some(Phase::GivingBack(_)) => Some(Intent::Release(key)),
            _ => None,
        };
        match entry.state {
            Some(State::Queued(queued)) => {
                self.queued(id, index, Place::new(queued.place, queued.holders));
            }
            Some(State::Granted(granted)) => self.granted(&granted, index),
            Some(State::Denied(denied)) => {
                self.denied(id, index, denied.refusal.unwrap_or_default());
            }
            Some(State::Ended(_) | State::ValueSet(_)) | None => return self.found_ended(key),
        }
        // What this client wanted before the stream broke, once more.
        if let Some(intent) = again {
            self.queue(intent);
        }
    }

    /// The server has no trace of the request; `passed` if it has seen higher ids.
    fn unknown_to_server(&mut self, key: Key, passed: bool) {
        let Some(request) = self.requests.get(key) else { return };
        match (&request.phase, passed) {
            (Phase::Unsent, _) | (Phase::Asked, false) => {
                self.queue(Intent::Acquire(key));
            }
            // Refused before it was proposed, and the refusal was lost. The old id is spent, so
            // that no copy under way can take a place, and the request asked anew.
            (Phase::Asked, true) => {
                if let Some(id) = self.requests.renumber(key) {
                    self.queue(Intent::Forget(id));
                }
                if let Some(request) = self.requests.get_mut(key) {
                    request.phase = Phase::Unsent;
                }
                self.queue(Intent::Acquire(key));
            }
            // A copy of its Acquire may still be under way: the Cancel spends the id.
            (Phase::Cancelling, false) => self.queue(Intent::Cancel(key)),
            (Phase::Cancelling, true)
            | (Phase::Queued | Phase::Held(_) | Phase::GivingBack(_), _) => self.found_ended(key),
        }
    }

    /// The request has ended at the server, and the frame that said so never came.
    fn found_ended(&mut self, key: Key) {
        let Some(mut request) = self.requests.remove(key) else { return };
        let reason = LostReason::Revoked;
        match request.phase {
            Phase::Held(hold) => hold.end(GuardState::Lost(reason)),
            // The session lives, so nothing but the release can have ended the hold.
            Phase::GivingBack(giving) => giving.finish(Ok(())),
            Phase::Asked | Phase::Queued => {
                request.answer(Err(Error::SessionLost { reason }));
            }
            Phase::Unsent | Phase::Cancelling => {}
        }
    }
}

fn lost_reason(reason: v1::LostReason) -> LostReason {
    match reason {
        v1::LostReason::SessionClosed => LostReason::SessionClosed,
        v1::LostReason::SessionExpired => LostReason::SessionExpired,
        v1::LostReason::Unspecified => LostReason::Revoked,
    }
}
