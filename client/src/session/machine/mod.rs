//! The session as a machine without I/O: frames and calls in, frames out.
//!
//! # Invariants
//!
//! - The machine hands a hold out only in a span that is alive, and never again once the hold was
//!   lost or its release was queued; no State revives it (I6, DESIGN §5.6).
//! - It hands a hold of names in a scope with fallback out only while authority of its token's
//!   epoch covers it, and the hold is safe only as long (DESIGN §10, I24).
//! - A hold that an answer names as closed is lost before anything else of that answer counts, and is
//!   never handed out, also if its grant comes later (I35).
//! - A name that was released by itself is no part of its hold from the moment the release was
//!   queued.
//! - The machine cancels or releases a request that its caller dropped, however answers and calls
//!   cross, until the server has reported its end.
//! - It sends a change of a value only under a hold that is alive here, and again only under the
//!   same id (I12), or under a new one after the old one was spent.
//! - It sends only keepalives between an Open with resume and the whole of its State: State decides
//!   what has to be sent again, and an incomplete State changes nothing (I23).

mod answers;
mod apart;
mod arriving;
mod closing;
mod covering;
mod deadlines;
#[cfg(test)]
mod fuzz;
mod holds;
mod retries;
mod stream;
mod synchronise;
mod values;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use holdfast_proto::v1::RefusalReason as Reason;
use holdfast_runtime::{Clock, Instant, Rng};
use tokio::sync::{oneshot, watch};

use self::apart::{Keepalives, Listed};
use self::arriving::Arriving;
use self::retries::Retries;
use super::cover::Covers;
use super::request::{GivingBack, Key, Phase, Request, Requests, fail_all};
use crate::endpoints::Tried;
use crate::hold::Hold;
use crate::info::PlaceReport;
use crate::items::{AcquireRequest, past_limit};
use crate::lease::{Lease, LeaseTiming, TTL_DEFAULT};
use crate::{Error, FencingToken, LostReason, Result};

/// Most requests of one client at a time, including those being released; past it an acquire is
/// refused. It is far above a server's limit for a session, so it only bounds the backlog while no
/// server can be reached.
const REQUESTS_MAX: usize = 65_536;
/// Most frames of one message: they stay far below any server's message size.
const FRAMES_MAX: usize = 64;

/// The settings that a session sends with its Open.
#[derive(Clone, Debug)]
pub(crate) struct SessionConfig {
    /// `None`: the server's default.
    pub(crate) ttl: Option<Duration>,
    pub(crate) label: String,
    pub(crate) allowance: f64,
    /// Whether keepalives may go together with those of other sessions.
    pub(crate) keeps_together: bool,
}

/// A caller's ends of an acquire: its answer and its place.
pub(crate) struct PendingAcquire {
    pub(crate) key: Key,
    pub(crate) answer: oneshot::Receiver<Result<Arc<Hold>>>,
    pub(crate) place: watch::Receiver<Option<PlaceReport>>,
}

/// Whether the session was ever open; `connect` waits for it.
#[derive(Clone, Debug)]
pub(crate) enum Opening {
    Trying,
    Open,
    Refused(Error),
}

/// Why a stream cannot be used any more.
#[derive(Debug, PartialEq)]
pub(super) enum StreamEnd {
    /// This node does not lead, or stops; the leader, if it named one.
    Redirected(Option<String>),
    /// The node answered that it cannot serve this session now: the leader, if it named one, and when
    /// the turn of this session comes, if it named that.
    Unavailable { message: String, leader: Option<String>, after: Option<Duration> },
    /// It broke, stalled, or said what no server says.
    Failed { message: String },
    /// The session is over; the next stream opens a new one.
    SessionOver,
    /// The server refuses to open a session.
    Refused(Error),
}

impl StreamEnd {
    pub(super) fn failed(message: impl Into<String>) -> Self {
        Self::Failed { message: message.into() }
    }

    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self::Unavailable { message: message.into(), leader: None, after: None }
    }
}

/// The ids of this client's session at the cluster.
struct Identity {
    session: u64,
    secret: Bytes,
    cluster: Bytes,
}

/// The state of the stream.
#[derive(Clone, Copy)]
enum Stream {
    None,
    /// Open was sent at this instant; no answer yet.
    Opening(Instant),
    /// Attached by a resume. State is incomplete, and its last page came at this instant.
    Resuming(Instant),
    /// State is complete and waits for the answer to a keepalive.
    Renewing,
    Ready,
}

/// A frame to send as soon as the stream is ready. Its contents are looked up again at that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Intent {
    Acquire(Key),
    Cancel(Key),
    Release(Key),
    /// Releases some names of a hold: the request and the part.
    ReleaseNames(Key, Key),
    Change(Key),
    /// Spends an id that no request of this client has any more.
    Forget(u64),
    /// Releases a closed hold that no guard of this client has.
    LetGo(FencingToken),
    /// Ends the session, in a retry.
    Close,
}

pub(crate) struct Machine {
    clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
    config: SessionConfig,
    lease: Lease,
    covers: Covers,
    /// No later than when the first hold loses its cover; `None`: no authority bounds any hold.
    cover_ends: Option<Instant>,
    identity: Option<Identity>,
    /// Streams that were begun. A server goes by it where one of them overtakes another.
    attempts: u64,
    requests: Requests,
    stream: Stream,
    arriving: Arriving,
    /// In order. At most a few for each request, so bounded by [`REQUESTS_MAX`].
    to_send: VecDeque<Intent>,
    /// Over how long the clients of the last server spread their return.
    spread: Duration,
    keepalives: Keepalives,
    /// What the last answer that came beside this stream listed.
    listed: Option<Listed>,
    /// What an overloaded server refused on the present stream.
    retries: Retries,
    /// The holds of the session that were closed, and why: the client never hands one out.
    closed: BTreeMap<FencingToken, LostReason>,
    closing: bool,
    close_sent: bool,
    opening: watch::Sender<Opening>,
    tried: Tried,
}

impl Machine {
    pub(super) fn new(config: SessionConfig, clock: Arc<dyn Clock>, rng: Arc<dyn Rng>) -> Self {
        let ttl = config.ttl.unwrap_or(TTL_DEFAULT);
        Self {
            clock,
            rng,
            lease: Lease::new(LeaseTiming::new(ttl, config.allowance)),
            config,
            covers: Covers::default(),
            cover_ends: None,
            identity: None,
            attempts: 0,
            requests: Requests::default(),
            stream: Stream::None,
            arriving: Arriving::default(),
            to_send: VecDeque::new(),
            spread: Duration::ZERO,
            keepalives: Keepalives::OnStream,
            listed: None,
            retries: Retries::default(),
            closed: BTreeMap::new(),
            closing: false,
            close_sent: false,
            opening: watch::Sender::new(Opening::Trying),
            tried: Tried::default(),
        }
    }

    pub(crate) fn opening(&self) -> watch::Receiver<Opening> {
        self.opening.subscribe()
    }

    pub(super) fn timing(&self) -> LeaseTiming {
        self.lease.timing()
    }

    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.stream, Stream::Ready)
    }

    /// Whether keepalives may be sent.
    fn may_keep_alive(&self) -> bool {
        matches!(self.stream, Stream::Ready | Stream::Renewing)
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing
    }

    /// Whether there is a session at a server, as far as the client knows.
    pub(super) fn has_session(&self) -> bool {
        self.identity.is_some()
    }

    /// Over how long the clients of the last server spread their return.
    pub(super) fn spread(&self) -> Duration {
        self.spread
    }

    /// The cluster of the session, as far as the client knows.
    pub(crate) fn cluster(&self) -> Option<Vec<u8>> {
        self.identity.as_ref().map(|identity| identity.cluster.to_vec())
    }

    pub(crate) fn label(&self) -> &str {
        &self.config.label
    }

    /// Why no server has served the session since the last one did.
    pub(crate) fn tried(&self) -> &Tried {
        &self.tried
    }

    /// Makes a request.
    pub(super) fn ask(&mut self, asked: AcquireRequest) -> Result<PendingAcquire> {
        self.may_ask()?;
        let (answer, answered) = oneshot::channel();
        let place = watch::Sender::new(None);
        let places = place.subscribe();
        let key = self.requests.insert(Request {
            asked,
            id: None,
            sent: 0,
            seen: 0,
            phase: Phase::Unsent,
            answer: Some(answer),
            place,
            parts: Vec::new(),
        });
        self.queue(Intent::Acquire(key));
        Ok(PendingAcquire { key, answer: answered, place: places })
    }

    fn may_ask(&self) -> Result<()> {
        if self.closing {
            return Err(Error::Closed);
        }
        if self.requests.len() >= REQUESTS_MAX {
            let message = format!("{REQUESTS_MAX} requests of this client are not over yet");
            return Err(past_limit("requests of one client", message));
        }
        Ok(())
    }

    /// Undoes an acquire whose caller is gone, whatever its state.
    pub(super) fn abandon(&mut self, key: Key) {
        let Some(request) = self.requests.get_mut(key) else { return };
        request.answer = None;
        match &request.phase {
            Phase::Unsent => drop(self.requests.remove(key)),
            Phase::Sent | Phase::Queued => {
                request.phase = Phase::Cancelling;
                self.queue(Intent::Cancel(key));
            }
            Phase::Uncovered(uncovered) => {
                request.phase = Phase::GivingBack(GivingBack::sound(uncovered.token, None));
                self.queue(Intent::Release(key));
            }
            Phase::Held(_) | Phase::Closed(_) => self.give_back(key, None),
            Phase::GivingBack(_) | Phase::Cancelling => {}
        }
    }

    /// Ends everything: no hold is safe, no request waits, and the machine sends no further
    /// request.
    pub(super) fn close(&mut self) {
        self.closing = true;
        self.to_send.clear();
        self.retries = Retries::default();
        self.end_requests(LostReason::SessionClosed, &Error::Closed);
        fail_all(self.requests.take_unsent(), &Error::Closed);
        self.lease.end();
    }

    /// Queues nothing without a ready stream: when one becomes ready, the machine derives what to
    /// send from the requests.
    fn queue(&mut self, intent: Intent) {
        if self.is_ready() {
            self.to_send.push_back(intent);
        }
    }
}

/// Whether a server may refuse with this reason before it checks the request, or for what is there at the
/// moment. Such a refusal proves nothing about an earlier copy, sent on a stream that broke.
fn is_of_one_copy(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::Limit
            | Reason::DiskReserve
            | Reason::Unsupported
            | Reason::Unavailable
            | Reason::Permits
    )
}
