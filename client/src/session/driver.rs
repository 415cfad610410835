//! The task that talks to servers: one stream after the other until the session is closed.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use holdfast_guard::part_of;
use holdfast_proto::v1::{ClientFrames, ServerFrames};
use holdfast_runtime::{BoxFuture, Pipe, Renewed, Transport, TransportError, select};
use tokio::sync::mpsc::error::TrySendError;

use super::machine::{Machine, Opening, StreamEnd};
use super::{CLOSE_LIMIT, Ending, Session};
use crate::endpoints::{Over, Route};
use crate::wire;

/// A stream that ran shorter than this counts as a failed attempt for the delays, so that the
/// client does not retry without pause at a server that attaches every session and drops it at
/// once.
const STREAM_LIFE_MIN: Duration = Duration::from_secs(1);

pub(super) async fn drive(
    session: Arc<Session>,
    transport: Arc<dyn Transport>,
    endpoints: Vec<String>,
) {
    let ended = select! {
        () = keep(&session, &*transport, endpoints) => Ending::Closed,
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
async fn keep(session: &Session, transport: &dyn Transport, endpoints: Vec<String>) {
    let ttl = session.ttl();
    let delay_max = (ttl / 20).clamp(Duration::from_millis(100), Duration::from_secs(1));
    let mut route = Route::new(endpoints, delay_max);
    let mut unanswered = 0;
    while !session.with(|machine| machine.is_closing() && !machine.has_session()) {
        let endpoint = route.next();
        let began = session.runtime.clock.now();
        let at = &endpoint;
        let mut stream = Attempt { session, transport, endpoint: at, unanswered, was_ready: false };
        let end = stream.run().await;
        let lived = session.runtime.clock.now().saturating_since(began);
        if stream.was_ready && lived >= STREAM_LIFE_MIN {
            route.succeeded();
        }
        unanswered = stream.unanswered;
        let was_ready = stream.was_ready;
        tracing::debug!(endpoint, ?end, "a session stream is over");
        session.with(|machine| machine.detached(&end));
        let mut waits_for_turn = false;
        let over = match end {
            StreamEnd::Unavailable { after: Some(after), .. } => {
                waits_for_turn = true;
                Over::Later { endpoint: endpoint.clone(), after }
            }
            StreamEnd::Redirected(leader) | StreamEnd::Unavailable { leader, .. } => {
                Over::unavailable(leader)
            }
            // It answered, so it is the next to try.
            StreamEnd::SessionOver => Over::Named(endpoint.clone()),
            StreamEnd::Refused(_) => Over::Unavailable,
            StreamEnd::Failed { .. } if was_ready => Over::Broken,
            StreamEnd::Failed { .. } => Over::Unreached,
        };
        let delay = route.failed(over, &*session.runtime.rng).unwrap_or_default();
        let delay = delay + if was_ready { return_after(session) } else { Duration::ZERO };
        if waits_for_turn && transport.keeps_together() {
            renew_while_away(session, transport, &endpoint, delay).await;
        } else if !delay.is_zero() {
            session.runtime.sleep(delay).await;
        }
    }
}

/// How long a client that has lost its server stays away, so that not all clients of that server come
/// back at once: a random part of the time that the server named, which is nothing where it has few
/// clients, and at most an eighth of the TTL, so that no hold is lost by it.
fn return_after(session: &Session) -> Duration {
    let spread = session.look(Machine::spread).min(session.ttl() / 8);
    if spread.is_zero() { Duration::ZERO } else { part_of(spread, &*session.runtime.rng) }
}

/// Waits until the turn of this session comes at `endpoint`, and renews its lease there meanwhile: the
/// server has no time for a State, but a keepalive costs it next to nothing. So no hold is lost because
/// many clients come back at once.
async fn renew_while_away(
    session: &Session,
    transport: &dyn Transport,
    endpoint: &str,
    delay: Duration,
) {
    let runtime = &session.runtime;
    let until = runtime.clock.now() + delay;
    session.with(Machine::goes_away);
    while runtime.clock.now() < until {
        let Some((key, seq)) = session.with(Machine::keepalive_away) else {
            let due = session.look(Machine::keepalive_due);
            let closing = session.look(Machine::is_closing);
            let wait_until =
                if closing || due <= runtime.clock.now() { until } else { due.min(until) };
            runtime.clock.sleep_until(wait_until).await;
            continue;
        };
        let left = until.saturating_since(runtime.clock.now());
        let renewed = runtime.timeout(left, transport.keep_alive(endpoint, key)).await;
        session.with(|machine| machine.kept_apart(seq, renewed.ok().and_then(Result::ok)));
    }
}

/// The keepalive that is under way beside a stream, and its number.
type Apart = Option<(u64, BoxFuture<'static, Option<Renewed>>)>;

/// Waits for the answer to a keepalive, without end if there is none. Cancel safe.
async fn answer_of(apart: &mut Apart) -> (u64, Option<Renewed>) {
    match apart {
        Some((seq, reply)) => (*seq, reply.await),
        None => std::future::pending().await,
    }
}

struct Attempt<'a> {
    session: &'a Session,
    transport: &'a dyn Transport,
    endpoint: &'a str,
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
        let opening = self.transport.open(self.endpoint);
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
        let reply = self.transport.keep_alive(self.endpoint, key);
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
                if ready {
                    (self.was_ready, self.unanswered) = (true, 0);
                }
                end
            }
            Some(Err(error)) => Some(self.broken(error)),
            None => Some(StreamEnd::failed(format!("{} ended the stream", self.endpoint))),
        }
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
