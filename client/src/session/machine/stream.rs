//! The start and end of streams, and the frames sent on them.

use holdfast_proto::v1::{self, client_frame::Body};

use super::apart::Keepalives;
use super::arriving::Arriving;
use super::{FRAMES_MAX, Intent, Machine, Opening, Retries, Stream, StreamEnd};
use crate::session::request::{Phase, fail_all};

impl Machine {
    /// Starts a stream and returns its first frame.
    pub(in crate::session) fn open(&mut self) -> v1::ClientFrames {
        // Read before the frame is queued (DESIGN §5.4): the answer renews from this instant.
        let sent = self.clock.now();
        self.stream = Stream::Opening(sent);
        self.arriving = Arriving::default();
        self.lease.forget_unanswered();
        self.retries = Retries::default();
        self.close_sent = false;
        (self.keepalives, self.listed) = (Keepalives::OnStream, None);
        self.attempts += 1;
        let attempt = self.attempts;
        let resume = self.identity.as_ref().map(|identity| v1::Resume {
            session_id: identity.session,
            secret: identity.secret.clone(),
            cluster_id: identity.cluster.clone(),
            state_in_pages: true,
            attempt,
        });
        let ttl_ms = self.config.ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
        let label = self.config.label.clone();
        let open = v1::Open { ttl_ms, label, resume, knows_closed: true };
        self.message(vec![Body::Open(open)])
    }

    pub(in crate::session) fn detached(&mut self, end: &StreamEnd) {
        self.stream = Stream::None;
        self.arriving = Arriving::default();
        self.lease.forget_unanswered();
        match end {
            StreamEnd::Redirected(Some(leader)) => {
                self.tried.note(format!("redirected to {leader}"), false);
            }
            StreamEnd::Redirected(None) => self.tried.note("no leader is known".into(), true),
            StreamEnd::Unavailable { message, .. } => self.tried.note(message.clone(), true),
            StreamEnd::Failed { message } => self.tried.note(message.clone(), false),
            StreamEnd::SessionOver => {}
            StreamEnd::Refused(error) => {
                self.tried.note(error.to_string(), true);
                fail_all(self.requests.take_unsent(), error);
                self.opening.send_replace(Opening::Refused(error.clone()));
            }
        }
    }

    pub(in crate::session) fn has_output(&self) -> bool {
        let now = self.clock.now();
        let keepalive_due = now >= self.lease.next_due() && self.sends_on_stream();
        let close_due = self.closing && !self.close_sent;
        let retry_due = self.retries.at().is_some_and(|at| now >= at);
        let anything_else = close_due || retry_due || !self.to_send.is_empty();
        self.may_keep_alive() && keepalive_due || self.is_ready() && anything_else
    }

    /// Whether the next keepalive goes out on the stream.
    fn sends_on_stream(&self) -> bool {
        self.keepalives != Keepalives::Apart || !self.is_ready()
    }

    /// The next message to send now; the driver queues it at once and in order.
    pub(in crate::session) fn take_output(&mut self) -> Option<v1::ClientFrames> {
        if !self.may_keep_alive() {
            return None;
        }
        let mut bodies = Vec::new();
        let now = self.clock.now();
        if now >= self.lease.next_due() && self.sends_on_stream() {
            self.keepalives.went_on_stream();
            bodies.push(Body::KeepAlive(v1::KeepAlive { seq: self.lease.send_keepalive(now) }));
        }
        if self.is_ready() {
            self.retry_what_is_due();
        }
        while self.is_ready() && bodies.len() < FRAMES_MAX {
            let Some(intent) = self.to_send.pop_front() else { break };
            bodies.extend(self.carry_out(&intent));
        }
        if self.is_ready() && self.closing && !self.close_sent {
            self.close_sent = true;
            bodies.push(Body::Close(v1::Close {}));
        }
        (!bodies.is_empty()).then(|| self.message(bodies))
    }

    /// The frame for an intent; `None` if the request's phase has changed since.
    fn carry_out(&mut self, intent: &Intent) -> Option<Body> {
        match *intent {
            Intent::Acquire(key) => {
                let request = self.requests.get(key)?;
                if !matches!(request.phase, Phase::Unsent | Phase::Sent) {
                    return None;
                }
                let request_id = self.requests.id_of(key)?;
                let request = self.requests.get_mut(key)?;
                request.phase = Phase::Sent;
                request.sent = request.sent.saturating_add(1);
                Some(Body::Acquire(request.asked.to_wire(request_id)))
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
                let (token, lost) = (giving.token.get(), giving.is_lost);
                Some(Body::Release(v1::Release { token, names: Vec::new(), lost }))
            }
            Intent::ReleaseNames(key, part) => self.release_of_names(key, part),
            Intent::Change(key) => self.change_frame(key),
            Intent::LetGo(token) => {
                let (token, names) = (token.get(), Vec::new());
                Some(Body::Release(v1::Release { token, names, lost: true }))
            }
            Intent::Forget(request_id) => Some(Body::Cancel(v1::Cancel { request_id })),
            Intent::Close => Some(Body::Close(v1::Close {})),
        }
    }

    fn message(&self, bodies: Vec<Body>) -> v1::ClientFrames {
        let done_below = self.requests.done_below();
        let frame = |body| v1::ClientFrame { done_below, body: Some(body) };
        v1::ClientFrames { frames: bodies.into_iter().map(frame).collect() }
    }
}
