//! One stream from its Open to its end.
//!
//! Reading and sending are two halves of one task: a read never waits for a write, and incoming messages
//! are taken off the transport at once. Commands are submitted in the order of their frames and nothing
//! waits for their outcome, which comes back through the outbox.

use std::time::Duration;

use holdfast_core::{
    Acquired, Answer, Caller, Command, FencingToken, Outcome, RequestId, SessionId,
};
use holdfast_mutants::mutant;
use holdfast_proto::v1::refused::Subject;
use holdfast_proto::v1::server_frame::Body;
use holdfast_proto::v1::{ClientFrames, ServerFrames};
use holdfast_runtime::{Instant, Pipe};

use super::error::StreamError;
use super::frames::{Request, Unfit, read_request};
use super::inbox::{Inbox, Received};
use super::leases::PendingKeepAlive;
use super::opening::{Start, Taking};
use super::outbox::End;
use super::pages::Pages;
use super::registry::{Registration, Registry, StreamHandle};
use super::{Hub, answers};
use crate::consensus::Committed;
use crate::error::ProposeError;

/// A stream that has its session attached.
struct AttachedStream<'a> {
    hub: &'a Hub,
    handle: StreamHandle,
    session: SessionId,
    /// The highest mark of any frame so far.
    done_below: RequestId,
    /// Whether the client takes the State that it is sent.
    taking: Taking<'a>,
}

impl Hub {
    /// Serves one stream of `caller` to its end, which says nothing about the session.
    ///
    /// Dropping the future ends the stream without a last frame.
    ///
    /// # Errors
    ///
    /// [`StreamError`]: what the client receives when the stream ends. `Ok`: its last frame said it, or
    /// the client went away.
    pub async fn serve(
        &self,
        pipe: Pipe<ServerFrames, ClientFrames>,
        caller: &Caller,
    ) -> Result<(), StreamError> {
        let registration = self.registry.enter()?;
        let outbox = registration.handle.outbox.clone();
        let runtime = &self.registry.runtime;
        let frames_per_second = self.registry.settings.frames_per_second;
        let taken = self.registry.arriving.nothing();
        let inbox = Inbox::new(pipe.incoming, runtime.clone(), frames_per_second, taken);
        let reading = async {
            let end = self.read(&registration, inbox, caller).await;
            outbox.finish(None, end);
            std::future::pending::<()>().await;
        };
        // Sending goes first: a client that floods its stream still receives its frames.
        holdfast_runtime::select! {
            end = outbox.deliver(runtime, pipe.outgoing) => end,
            () = reading => Ok(()),
        }
    }

    async fn read(&self, registration: &Registration, mut inbox: Inbox, caller: &Caller) -> End {
        let Some(first) = self.first_frame(&mut inbox).await? else { return Ok(()) };
        let done_below = RequestId::new(first.frame.done_below);
        let opening = self.open(registration, first, caller);
        let Some(start) = filling(&mut inbox, opening).await? else { return Ok(()) };
        match start? {
            Start::Turned(last) => {
                let index = self.registry.applied();
                self.registry.note_refusal(&last);
                registration.handle.outbox.finish(Some(answers::frame(index, last)), Ok(()));
                Ok(())
            }
            Start::Attached { session, pages, taking } => {
                // What comes in has the rights of the session's owner.
                let owning = filling(&mut inbox, self.own(session, caller));
                if owning.await?.is_none() {
                    return Ok(());
                }
                inbox.opened();
                let handle = registration.handle.clone();
                let showing = self.show(&registration.handle, pages);
                let attached = AttachedStream { hub: self, handle, session, done_below, taking };
                holdfast_runtime::select! {
                    end = attached.read(inbox) => end,
                    () = showing => Ok(()),
                    () = self.own_in_time(session, caller) => Ok(()),
                }
            }
        }
    }

    /// Puts the remaining pages of State into the stream's outbox, each once the one before it has left.
    /// Never ends by itself.
    async fn show(&self, handle: &StreamHandle, pages: Option<Pages>) {
        if let Some(mut pages) = pages {
            while !pages.is_empty() && handle.outbox.wants_page().await {
                self.consensus.read(&mut |table, _| {
                    let page_bytes = self.registry.settings.state_page_bytes;
                    let page = pages.next_page(table, self.registry.now_ms(table), page_bytes);
                    handle.show(pages.index(), None, page);
                });
            }
        }
        std::future::pending::<()>().await;
    }

    async fn first_frame(&self, inbox: &mut Inbox) -> Result<Option<Received>, StreamError> {
        let waited_ms = self.registry.settings.open_within_ms;
        let waited = Duration::from_millis(waited_ms);
        let first = self.registry.runtime.timeout(waited, inbox.next()).await;
        first.unwrap_or_else(|_| {
            Err(StreamError::Protocol(format!("no Open came within {waited_ms} ms")))
        })
    }
}

/// Does something while frames come in, and notes when they do. `None`: the client went away.
///
/// # Errors
///
/// Those of the inbox.
async fn filling<T>(
    inbox: &mut Inbox,
    work: impl Future<Output = T>,
) -> Result<Option<T>, StreamError> {
    let mut work = std::pin::pin!(work);
    loop {
        holdfast_runtime::select! {
            done = &mut work => return Ok(Some(done)),
            filled = inbox.fill() => if !filled? { return Ok(None) },
        }
    }
}

impl AttachedStream<'_> {
    async fn read(mut self, mut inbox: Inbox) -> End {
        while let Some(received) = inbox.next().await? {
            // A newer stream took over, or this one was sent away: what still comes in is ignored.
            if self.handle.outbox.is_ended() {
                return Ok(());
            }
            self.handle(received)?;
        }
        if mutant!(StreamEndEndsSession) {
            let now = self.hub.registry.runtime.clock.now();
            self.submit(Command::CloseSession { session: self.session }, None, now);
        }
        Ok(())
    }

    /// Carries out a frame, without waiting for the outcome.
    fn handle(&mut self, received: Received) -> Result<(), StreamError> {
        let Received { frame, at } = received;
        self.note_sign(at);
        self.done_below = self.done_below.max(RequestId::new(frame.done_below));
        match read_request(frame.body) {
            Ok(request) => self.act(request, at),
            Err(Unfit::Refused { subject, refusal }) => {
                let index = self.hub.registry.applied();
                self.handle.push(index, answers::refused(subject, refusal));
            }
            Err(Unfit::Protocol(error)) => return Err(error),
        }
        Ok(())
    }

    /// A frame came in at `at`. After a State that went out whole it shows that the client took it.
    fn note_sign(&mut self, at: Instant) {
        if let Taking::Whole { since } = self.taking
            && at > since
        {
            self.taking = Taking::Done;
            if let Some(leases) = self.hub.registry.lock().leases.as_mut() {
                leases.proven(self.session);
            }
        }
    }

    fn act(&mut self, request: Request, at: Instant) {
        let (session, done_below) = (self.session, self.done_below);
        self.hub.registry.trace(session, &request);
        match request {
            Request::KeepAlive { seq } => {
                let outbox = self.handle.outbox.clone();
                self.hub.registry.heard(PendingKeepAlive { session, seq, at, outbox });
                self.taking.keepalive_is_heard();
            }
            Request::Acquire { request, ref items, .. } if mutant!(GhostPush) => {
                self.hub.consensus.read(&mut |table, index| {
                    let next = table.counters();
                    let token = FencingToken::new(next.epoch, next.token + 1);
                    if let Some(token) = token {
                        let granted = answers::granted(request, token, items, &[]);
                        self.handle.push(index, Body::Granted(granted));
                    }
                });
            }
            Request::Acquire { request, ref items, wait: true, follow_place: true, .. } => {
                let locks = items.iter().map(|item| item.lock.clone()).collect();
                self.hub.registry.lock().follows.follow(session, request, locks);
            }
            Request::Claim { request, ref lock, follow_place: true, .. } => {
                let locks = vec![lock.clone()];
                self.hub.registry.lock().follows.follow(session, request, locks);
            }
            _ => {}
        }
        let subject = request.subject();
        if let Some(command) = request.command(session, done_below) {
            self.submit(command, subject, at);
        }
    }

    /// Proposes a command about `subject`, which came in at `at`; its answer goes to the stream, if that
    /// still lives.
    fn submit(&self, command: Command, subject: Option<Subject>, at: Instant) {
        let (handle, session) = (self.handle.clone(), self.session);
        let done = move |result| {
            if let Ok(Committed { outcome, .. }) = &result {
                handle.registry.note_grant(at, outcome);
            }
            handle.answer(session, subject, &result);
        };
        self.hub.consensus.submit(command, Box::new(done));
    }
}

impl StreamHandle {
    /// Sends the outcome of a command, where no event reported it.
    fn answer(
        &self,
        session: SessionId,
        subject: Option<Subject>,
        result: &Result<Committed, ProposeError>,
    ) {
        let registry = &self.registry;
        let told = match subject {
            Some(Subject::RequestId(id)) => {
                registry.settle(self.stream, session, RequestId::new(id), waits(result))
            }
            Some(Subject::Token(_)) | None => false,
        };
        let index = result.as_ref().map_or_else(|_| registry.applied(), |done| done.index);
        if let Some(body) = answers::of_outcome(subject, result, told) {
            self.push(index, body);
        }
    }
}

impl Registry {
    /// A request that came in at `at` has its outcome. If that is a grant, without a wait, it is measured: it
    /// was put into the outbox when its entry was dispatched, the last one or, as two may be on their way,
    /// the one before it.
    pub(super) fn note_grant(&self, at: Instant, outcome: &Outcome) {
        let Ok(Answer::Acquired { state, fresh: true, .. }) = outcome else { return };
        let Acquired::Granted { items, .. } = state else { return };
        let took = self.lock().times.took_since(at);
        if let Some(took) = took {
            self.metrics.locks.granted(items, took);
        }
    }
}

pub(super) fn waits(result: &Result<Committed, ProposeError>) -> bool {
    let Ok(Committed { outcome: Ok(Answer::Acquired { state, .. }), .. }) = result else {
        return false;
    };
    matches!(state, Acquired::Queued { .. })
}
