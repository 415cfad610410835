//! The session as a machine without I/O: frames and calls in, frames out.
//!
//! # Invariants
//!
//! - A hold is handed out only in a span that is alive, and never again once it was lost or its
//!   release was queued; no State revives it (I6, DESIGN §5.6).
//! - A hold of names in a scope with fallback is handed out, and is safe, only while authority of its
//!   token's epoch covers it (DESIGN §10, I24).
//! - A name of a hold that was given back by itself is no part of it from the moment its release was
//!   queued.
//! - What a caller dropped is cancelled or released, however answers and calls cross, until the
//!   server has said that it is over.
//! - A change of a value is sent only under a hold that is alive here, and again only under the id
//!   it had (I12), or under a new one after the old one was spent.
//! - Nothing but keepalives is sent between an Open with resume and the whole of its State: State
//!   decides what has to be sent again, and a State that was cut off changes nothing (I23).

mod answers;
mod arriving;
mod covering;
mod deadlines;
#[cfg(test)]
mod fuzz;
mod holds;
mod retries;
mod stream;
mod synchronise;
mod values;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use holdfast_proto::v1::RefusalReason as Reason;
use holdfast_seams::{Clock, Moment, Rng};
use tokio::sync::{oneshot, watch};

use self::arriving::Arriving;
use self::retries::Retries;
use super::cover::Covers;
use super::request::{GivingBack, Key, Phase, Request, Requests, fail_all};
use crate::hold::Hold;
use crate::info::Told;
use crate::items::{Need, Wanted};
use crate::lease::{Lease, TTL_DEFAULT, Terms};
use crate::{Error, LostReason, RefusalReason, Result};

/// Most requests of one client at a time, those being given back included; past it an acquire is
/// refused. Far above what a server allows a session, so it only bounds what piles up while no
/// server can be reached.
const REQUESTS_MAX: usize = 65_536;
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
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) wanted: Wanted,
    pub(crate) wait: bool,
    pub(crate) follow: bool,
}

/// What an acquire waits on.
pub(crate) struct Asked {
    pub(crate) key: Key,
    pub(crate) answer: oneshot::Receiver<Result<Arc<Hold>>>,
    pub(crate) place: watch::Receiver<Option<Told>>,
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
    /// Attached by a resume; State is not whole yet, and something of it came last at this moment.
    Resuming(Moment),
    /// State is whole and waits for the answer to a keepalive.
    Renewing,
    Ready,
}

/// Something to be sent as soon as the stream is ready. Looked up again when its turn comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Intent {
    Acquire(Key),
    Cancel(Key),
    Release(Key),
    /// Gives back some names of a hold: the request and the part.
    ReleaseNames(Key, Key),
    Change(Key),
    /// Spends an id that no request here has any more.
    Forget(u64),
    /// Ends the session, once more.
    Close,
}

pub(super) struct Machine {
    clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
    wishes: Wishes,
    lease: Lease,
    covers: Covers,
    /// No later than when the first hold is not covered any more; `None`: none is bounded so.
    cover_ends: Option<Moment>,
    identity: Option<Identity>,
    requests: Requests,
    stream: Stream,
    arriving: Arriving,
    /// In order. At most a few for each request, so bounded by [`REQUESTS_MAX`].
    to_send: VecDeque<Intent>,
    /// What a server with too much to do refused, of the stream that there is.
    retries: Retries,
    closing: bool,
    close_sent: bool,
    opening: watch::Sender<Opening>,
    last_error: String,
}

impl Machine {
    pub(super) fn new(wishes: Wishes, clock: Arc<dyn Clock>, rng: Arc<dyn Rng>) -> Self {
        let ttl = wishes.ttl.unwrap_or(TTL_DEFAULT);
        Self {
            clock,
            rng,
            lease: Lease::new(Terms::new(ttl, wishes.allowance)),
            wishes,
            covers: Covers::default(),
            cover_ends: None,
            identity: None,
            requests: Requests::default(),
            stream: Stream::None,
            arriving: Arriving::default(),
            to_send: VecDeque::new(),
            retries: Retries::default(),
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

    /// Whether keepalives may be sent.
    fn may_keep_alive(&self) -> bool {
        matches!(self.stream, Stream::Ready | Stream::Renewing)
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing
    }

    /// Whether there is a session at a server, as far as is known.
    pub(super) fn has_session(&self) -> bool {
        self.identity.is_some()
    }

    /// The cluster that the session is at, as far as is known.
    #[cfg(any(test, feature = "cassandra"))]
    pub(super) fn cluster(&self) -> Option<Vec<u8>> {
        self.identity.as_ref().map(|identity| identity.cluster.to_vec())
    }

    pub(super) fn label(&self) -> &str {
        &self.wishes.label
    }

    pub(super) fn last_error(&self) -> &str {
        &self.last_error
    }

    /// Asks for a lock.
    pub(super) fn ask(&mut self, ask: Ask) -> Result<Asked> {
        self.may_ask()?;
        let (answer, answered) = oneshot::channel();
        let place = watch::Sender::new(None);
        let places = place.subscribe();
        let key = self.requests.insert(Request {
            // What is free now is granted or denied at once.
            wait: ask.wait && ask.wanted.need() != Need::Any { min: 0 },
            wanted: ask.wanted,
            follow: ask.follow,
            id: None,
            sent: 0,
            seen: 0,
            phase: Phase::Unsent,
            answer: Some(answer),
            place,
            parts: Vec::new(),
        });
        self.queue(Intent::Acquire(key));
        Ok(Asked { key, answer: answered, place: places })
    }

    fn may_ask(&self) -> Result<()> {
        if self.closing {
            return Err(Error::Closed);
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
            Phase::Uncovered(uncovered) => {
                request.phase = Phase::GivingBack(GivingBack::unattended(uncovered.token));
                self.queue(Intent::Release(key));
            }
            Phase::Held(_) => self.give_back(key, None),
            Phase::GivingBack(_) | Phase::Cancelling => {}
        }
    }

    /// Ends everything: nothing is safe, nothing waits, and nothing more is asked.
    pub(super) fn close(&mut self) {
        self.closing = true;
        self.to_send.clear();
        self.retries = Retries::default();
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
}

/// Whether a server may refuse so what it does not look at: then the refusal says nothing of a copy
/// that was sent before, on a stream that broke.
fn is_of_one_copy(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::Limit | Reason::DiskReserve | Reason::Unsupported | Reason::Unavailable
    )
}
