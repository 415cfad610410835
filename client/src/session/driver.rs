//! The task that talks to servers: one stream after the other until the session is closed.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use holdfast_guard::part_of;
use holdfast_proto::v1::{ClientFrames, ServerFrames, SessionKey};
use holdfast_runtime::{BoxFuture, Pipe, Renewed, Transport, TransportError, select};
use tokio::sync::SemaphorePermit;
use tokio::sync::mpsc::error::TrySendError;

use super::machine::{Machine, Opening, StreamEnd};
use super::{Access, CLOSE_LIMIT, Ending, Session};
use crate::attaching::Attaching;
use crate::endpoints::{Over, Route};
use crate::wire;

/// A stream that ran shorter than this counts as a failed attempt for the delays, so that the
/// client does not retry without pause at a server that attaches every session and drops it at
/// once.
const STREAM_LIFE_MIN: Duration = Duration::from_secs(1);

pub(super) async fn drive(session: Arc<Session>, access: Access) {
    let ended = select! {
        () = keep(&session, &access) => Ending::Closed,
        () = close_limit(&session) => Ending::Unknown,
    };
    session.ending.send_replace(ended);
}

/// Ends when closing has taken too long.
async fn close_limit(session: &Session) {
    let mut closing = session.closing.subscribe();
    // The sender lives as long as the session.
    let _ = closing.wait_for(|closing| *closing).await;
    session.runtime.sleep(CLOSE_LIMIT).await;
}

/// Runs one stream after the other until the session is closed.
async fn keep(session: &Session, access: &Access) {
    let ttl = session.ttl();
    let delay_max = (ttl / 20).clamp(Duration::from_millis(100), Duration::from_secs(1));
    let mut route = Route::new(access.endpoints.clone(), delay_max);
    let mut unanswered = 0;
    loop {
        let turn = turn_to_attach(session, access).await;
        // It may have been closed while it waited.
        if session.with(|machine| machine.is_closing() && !machine.has_session()) {
            return;
        }
        if let Some(serving) = access.attaching.serving() {
            route.lead_to(serving);
        }
        let endpoint = route.next();
        let began = session.runtime.clock.now();
        let (at, was_ready) = (&endpoint, false);
        let mut stream = Attempt { session, access, endpoint: at, turn, unanswered, was_ready };
        let end = stream.run().await;
        let lived = session.runtime.clock.now().saturating_since(began);
        if stream.was_ready && lived >= STREAM_LIFE_MIN {
            route.succeeded();
        }
        unanswered = stream.unanswered;
        let was_ready = stream.was_ready;
        drop(stream);
        tracing::debug!(endpoint, ?end, "a session stream is over");
        session.with(|machine| machine.detached(&end));
        tell_others(&end, &endpoint, &access.attaching);
        let over = over(end, &endpoint, was_ready);
        let delay = route.failed(over, &*session.runtime.rng).unwrap_or_default();
        let delay = delay + if was_ready { return_after(session) } else { Duration::ZERO };
        if !delay.is_zero() {
            away(session, access, session.runtime.sleep(delay)).await;
        }
    }
}

/// What the end of a stream at `endpoint` says to the other sessions of this process.
fn tell_others(end: &StreamEnd, endpoint: &str, others: &Attaching) {
    match end {
        StreamEnd::Unavailable { after: Some(_), .. } => others.served_at(endpoint),
        // That is between the node and this session.
        StreamEnd::SessionOver | StreamEnd::Refused(_) => {}
        StreamEnd::Redirected(_) | StreamEnd::Unavailable { .. } | StreamEnd::Failed { .. } => {
            others.not_served_at(endpoint);
        }
    }
}

/// What it says about the next attempt.
fn over(end: StreamEnd, endpoint: &str, was_ready: bool) -> Over {
    match end {
        StreamEnd::Unavailable { after: Some(after), .. } => {
            Over::Later { endpoint: endpoint.to_owned(), after }
        }
        StreamEnd::Redirected(leader) | StreamEnd::Unavailable { leader, .. } => {
            Over::unavailable(leader)
        }
        // It answered, so it is the next to try.
        StreamEnd::SessionOver => Over::Named(endpoint.to_owned()),
        StreamEnd::Refused(_) => Over::Unavailable,
        StreamEnd::Failed { .. } if was_ready => Over::Broken,
        StreamEnd::Failed { .. } => Over::Unreached,
    }
}

/// Waits until this session may attach.
async fn turn_to_attach<'a>(session: &Session, access: &'a Access) -> Option<SemaphorePermit<'a>> {
    match access.attaching.turn_now() {
        Some(turn) => Some(turn),
        None => away(session, access, access.attaching.turn()).await,
    }
}

/// How long a client that has lost its server stays away, so that not all clients of that server come
/// back at once: a random part of the time that the server named, which is nothing where it has few
/// clients, and at most an eighth of the TTL, so that no hold is lost by it.
fn return_after(session: &Session) -> Duration {
    let spread = session.look(Machine::spread).min(session.ttl() / 8);
    if spread.is_zero() { Duration::ZERO } else { part_of(spread, &*session.runtime.rng) }
}

/// Waits for `over` without a stream, and renews the lease meanwhile at the node that serves sessions of this
/// process: neither the node nor the process has time yet for this session's State, but a keepalive costs
/// both of them next to nothing. So no hold is lost because many sessions come back at once.
async fn away<T>(session: &Session, access: &Access, over: impl Future<Output = T>) -> T {
    if !access.transport.keeps_together() {
        return over.await;
    }
    select! {
        it_is = over => it_is,
        never = renew_away(session, access) => match never {},
    }
}

async fn renew_away(session: &Session, access: &Access) -> Infallible {
    let mut serving = access.attaching.watch();
    loop {
        let endpoint = serving.borrow_and_update().clone();
        select! {
            // Its sender lives as long as the session.
            _ = serving.changed() => {}
            () = renew_at(session, &*access.transport, endpoint) => {}
        }
    }
}

/// Renews the lease of a session without a stream at one node, again and again; ends never.
async fn renew_at(session: &Session, transport: &dyn Transport, endpoint: Option<String>) {
    let Some(endpoint) = endpoint else { return pending().await };
    session.with(Machine::keep_alive_anew);
    while let Some((key, seq)) = next_keepalive_away(session).await {
        let reply = transport.keep_alive(&endpoint, key);
        let renewed = session.runtime.timeout(session.ttl() / 4, reply).await;
        session.with(|machine| machine.kept_apart(seq, renewed.ok().and_then(Result::ok)));
    }
    pending::<()>().await;
}

/// Waits until a keepalive is due; none if there is nothing to keep.
async fn next_keepalive_away(session: &Session) -> Option<(SessionKey, u64)> {
    let due = session.look(Machine::keepalive_due);
    session.runtime.clock.sleep_until(due).await;
    session.with(Machine::keepalive_away)
}

/// The keepalive that is under way beside a stream, and its number.
type Apart = Option<(u64, BoxFuture<'static, Option<Renewed>>)>;

/// Waits for the answer to a keepalive, without end if there is none. Cancel safe.
async fn answer_of(apart: &mut Apart) -> (u64, Option<Renewed>) {
    match apart {
        Some((seq, reply)) => (*seq, reply.await),
        None => pending().await,
    }
}

struct Attempt<'a> {
    session: &'a Session,
    access: &'a Access,
    endpoint: &'a str,
    /// Until the session is attached.
    turn: Option<SemaphorePermit<'a>>,
    /// Streams that timed out before the session was attached, since it last was.
    unanswered: u32,
    was_ready: bool,
}

impl Attempt<'_> {
    /// The time limit for reaching a server.
    fn limit(&self) -> Duration {
        (self.session.ttl() / 5).clamp(Duration::from_millis(500), Duration::from_secs(2))
    }

    /// The time limit for attaching the session then: it doubles after each stream that timed out,
    /// up to the TTL.
    ///
    /// A State of some megabytes takes time on a slow line, and nothing shows that it is on its
    /// way. Every resume renews the lease: a client that always gave up too soon would keep its
    /// locks for ever and never learn that it has them (I31).
    fn attach_limit(&self) -> Duration {
        let limit = self.limit().saturating_mul(2_u32.saturating_pow(self.unanswered));
        limit.min(self.session.ttl().max(self.limit()))
    }

    async fn run(&mut self) -> StreamEnd {
        let opening = self.access.transport.open(self.endpoint);
        let mut pipe = match self.session.runtime.timeout(self.limit(), opening).await {
            Ok(Ok(pipe)) => pipe,
            Ok(Err(error)) => return self.broken(error),
            Err(_) => return self.no_answer(),
        };
        let open = self.session.with(Machine::open);
        // A new pipe has room for one message.
        if pipe.outgoing.try_send(open).is_err() {
            return StreamEnd::failed(format!("{} closed the stream at once", self.endpoint));
        }
        self.converse(&mut pipe).await
    }

    /// Always drains incoming frames first (DESIGN §6, traps of h2).
    async fn converse(&mut self, pipe: &mut Pipe<ClientFrames, ServerFrames>) -> StreamEnd {
        let limit = self.attach_limit();
        let mut writable = true;
        let mut apart: Apart = None;
        loop {
            if apart.is_none() {
                apart = self.keep_apart();
            }
            writable = writable && self.send_what_fits(pipe);
            let (blocked, timer) = self
                .session
                .with(|machine| (writable && machine.has_output(), machine.next_timer(limit)));
            let timer = timer.unwrap_or_else(|| self.session.runtime.clock.now());
            select! {
                frames = pipe.incoming.next() => {
                    if let Some(end) = self.take_in(frames) {
                        return end;
                    }
                }
                (seq, renewed) = answer_of(&mut apart) => {
                    apart = None;
                    self.session.with(|machine| machine.kept_apart(seq, renewed));
                }
                room = pipe.outgoing.reserve(), if blocked => writable = room.is_ok(),
                () = self.session.wake.notified() => {}
                () = self.session.runtime.clock.sleep_until(timer) => {
                    if self.session.with(|machine| machine.is_stalled(limit)) {
                        self.unanswered += u32::from(!self.was_ready);
                        return self.no_answer();
                    }
                }
            }
        }
    }

    /// Sends a keepalive that is due beside the stream. It has half of the time after which a stream
    /// counts as silent: the one that follows on the stream has the rest.
    fn keep_apart(&self) -> Apart {
        let (key, seq) = self.session.with(Machine::keepalive_apart)?;
        let (runtime, limit) = (self.session.runtime.clone(), self.session.ttl() / 8);
        let reply = self.access.transport.keep_alive(self.endpoint, key);
        let reply = async move { runtime.timeout(limit, reply).await.ok().and_then(Result::ok) };
        Some((seq, Box::pin(reply)))
    }

    /// False when the server accepts no more frames; the incoming frames then give the reason.
    fn send_what_fits(&self, pipe: &Pipe<ClientFrames, ServerFrames>) -> bool {
        loop {
            match pipe.outgoing.try_reserve() {
                Err(TrySendError::Full(())) => return true,
                Err(TrySendError::Closed(())) => return false,
                Ok(room) => match self.session.with(Machine::take_output) {
                    Some(message) => room.send(message),
                    None => return true,
                },
            }
        }
    }

    fn take_in(
        &mut self,
        frames: Option<Result<ServerFrames, TransportError>>,
    ) -> Option<StreamEnd> {
        match frames {
            Some(Ok(frames)) => {
                let (end, ready) =
                    self.session.with(|machine| (machine.handle(frames), machine.is_ready()));
                if ready && !self.was_ready {
                    self.attached();
                }
                end
            }
            Some(Err(error)) => Some(self.broken(error)),
            None => Some(StreamEnd::failed(format!("{} ended the stream", self.endpoint))),
        }
    }

    fn attached(&mut self) {
        (self.was_ready, self.unanswered, self.turn) = (true, 0, None);
        self.access.attaching.served_at(self.endpoint);
    }

    fn no_answer(&self) -> StreamEnd {
        StreamEnd::failed(format!("{} does not answer", self.endpoint))
    }

    fn broken(&self, error: TransportError) -> StreamEnd {
        match error {
            TransportError::Unavailable { message, leader } => {
                StreamEnd::Unavailable { message, leader, after: None }
            }
            TransportError::AttachedElsewhere => {
                self.session.with(Machine::attached_elsewhere);
                StreamEnd::SessionOver
            }
            TransportError::Refused { reason, message } if self.never_opened() => {
                StreamEnd::Refused(wire::refused(wire::refusal_reason(reason), message))
            }
            // The node answered, and may take the session later.
            TransportError::Refused { message, .. } => StreamEnd::unavailable(message),
            other @ (TransportError::Unreachable { .. }
            | TransportError::TooSlow
            | TransportError::Compacted) => StreamEnd::failed(other.to_string()),
        }
    }

    fn never_opened(&self) -> bool {
        self.session.look(|machine| matches!(*machine.opening().borrow(), Opening::Trying))
    }
}
