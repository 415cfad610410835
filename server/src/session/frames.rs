//! Frames read off the wire: checked once, here, into what the rest can trust.

use std::collections::BTreeSet;

use holdfast_core::{Command, FencingToken, Label, LockName, RequestId, SessionId, TextError};
use holdfast_proto::v1::client_frame::Body;
use holdfast_proto::v1::refused::Subject;
use holdfast_proto::v1::{Acquire, Item, Open, Refusal, RefusalReason};

use super::error::StreamError;
use super::proof::Key;
use super::refusals;

/// Names one request may carry (DESIGN §6). Sets come later; the limit stands already.
const NAMES_PER_REQUEST: usize = 64;

/// A frame after the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    KeepAlive { seq: u64 },
    Acquire { request: RequestId, lock: LockName, wait: bool, follow_place: bool },
    Cancel { request: RequestId },
    Release { token: FencingToken },
    Close,
}

impl Request {
    /// The command that a request of `session` is, however it came; `None` for a keepalive, which
    /// is not replicated.
    pub(super) fn command(self, session: SessionId, done_below: RequestId) -> Option<Command> {
        Some(match self {
            Self::KeepAlive { .. } => return None,
            Self::Acquire { request, lock, wait, .. } => {
                Command::Acquire { session, done_below, request, lock, wait }
            }
            Self::Cancel { request } => Command::Cancel { session, done_below, request },
            Self::Release { token } => Command::Release { session, done_below, token },
            Self::Close => Command::CloseSession { session },
        })
    }

    /// What an answer to it is about.
    pub(super) fn subject(&self) -> Option<Subject> {
        match *self {
            Self::Acquire { request, .. } | Self::Cancel { request } => {
                Some(Subject::RequestId(request.get()))
            }
            Self::Release { token } => Some(Subject::Token(token.get())),
            Self::KeepAlive { .. } | Self::Close => None,
        }
    }
}

/// The first frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    Fresh { ttl_ms: Option<u64>, label: Label },
    Resume { key: Key, cluster_id: Vec<u8> },
}

/// Why a frame was not taken.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Unfit {
    /// The frame is answered with Refused; the stream goes on.
    Refused { subject: Option<Subject>, refusal: Refusal },
    /// The stream ends.
    Protocol(StreamError),
}

/// Reads a frame after the first.
///
/// # Errors
///
/// [`Unfit`]; nothing was done of what the frame asked for.
pub(super) fn read_request(body: Option<Body>) -> Result<Request, Unfit> {
    match body {
        Some(Body::KeepAlive(frame)) => Ok(Request::KeepAlive { seq: frame.seq }),
        Some(Body::Acquire(frame)) => read_acquire(&frame),
        Some(Body::Cancel(frame)) => {
            read_request_id(frame.request_id).map(|request| Request::Cancel { request })
        }
        Some(Body::Release(frame)) => {
            Ok(Request::Release { token: FencingToken::from_raw(frame.token) })
        }
        Some(Body::SetValue(frame)) => Err(unsupported(frame.request_id, "values")),
        Some(Body::Close(_)) => Ok(Request::Close),
        Some(Body::Open(_)) => Err(protocol("Open can only be the first frame of a stream")),
        None => Err(protocol("a frame has no body, or one this server does not know")),
    }
}

/// Reads the first frame of a stream.
///
/// # Errors
///
/// [`Unfit`]; no session was opened or touched.
pub(super) fn read_open(body: Option<Body>) -> Result<Opening, Unfit> {
    let Some(Body::Open(open)) = body else {
        return Err(protocol("the first frame of a stream must be Open"));
    };
    match open.resume {
        None => read_fresh(&open),
        Some(resume) => {
            let key = Key::read(resume.session_id, &resume.secret)
                .map_err(|refusal| Unfit::Refused { subject: None, refusal })?;
            Ok(Opening::Resume { key, cluster_id: resume.cluster_id.to_vec() })
        }
    }
}

fn read_fresh(open: &Open) -> Result<Opening, Unfit> {
    let label =
        read_label(&open.label).map_err(|refusal| Unfit::Refused { subject: None, refusal })?;
    Ok(Opening::Fresh { ttl_ms: open.ttl_ms, label })
}

/// Reads what a session is to be called.
///
/// # Errors
///
/// A refusal; no session was opened.
pub(super) fn read_label(label: &str) -> Result<Label, Refusal> {
    Label::parse(label).map_err(|error| {
        refusals::refusal(RefusalReason::Invalid, format!("the label is not usable: {error}"))
    })
}

fn read_acquire(frame: &Acquire) -> Result<Request, Unfit> {
    let request = read_request_id(frame.request_id)?;
    let subject = Some(Subject::RequestId(frame.request_id));
    let lock =
        read_only_name(&frame.items).map_err(|refusal| Unfit::Refused { subject, refusal })?;
    Ok(Request::Acquire { request, lock, wait: frame.wait, follow_place: frame.follow_place })
}

/// The one name of a request: sets come later, but each way in which a set can be wrong has its
/// own answer already.
fn read_only_name(items: &[Item]) -> Result<LockName, Refusal> {
    if items.len() > NAMES_PER_REQUEST {
        let message =
            format!("{} names in one request; {NAMES_PER_REQUEST} are allowed", items.len());
        return Err(refusals::limit("names_per_request", message));
    }
    let mut names = BTreeSet::new();
    for item in items {
        let name =
            LockName::parse_bytes(&item.name).map_err(|error| bad_name(&item.name, &error))?;
        if let Some(twice) = names.replace(name) {
            let message = format!("{twice} is named twice in one request");
            return Err(refusals::refusal(RefusalReason::Invalid, message));
        }
    }
    if names.len() > 1 {
        let message = format!("{} names in one request; this server takes one", names.len());
        return Err(refusals::refusal(RefusalReason::Unsupported, message));
    }
    names
        .pop_first()
        .ok_or_else(|| refusals::refusal(RefusalReason::Invalid, "the request names no lock"))
}

/// Names the name as far as that is fit to be shown.
fn bad_name(name: &[u8], error: &TextError) -> Refusal {
    const SHOWN: usize = 64;
    let shown = name.get(..SHOWN).unwrap_or(name).escape_ascii();
    let cut = if name.len() > SHOWN { "…" } else { "" };
    let message = format!("the lock name \"{shown}{cut}\" is not usable: {error}");
    refusals::refusal(RefusalReason::Invalid, message)
}

/// Ids run from 1: 0 is what a forgotten field looks like, and above the last there would be no
/// next one for State to name.
fn read_request_id(id: u64) -> Result<RequestId, Unfit> {
    if id == 0 || id == u64::MAX {
        let message =
            format!("the request id {id} is not usable; ids run from 1 to {}", u64::MAX - 1);
        return Err(invalid(Some(Subject::RequestId(id)), message));
    }
    Ok(RequestId::new(id))
}

fn unsupported(request_id: u64, what: &str) -> Unfit {
    let message = format!("this server does not know {what}");
    let refusal = refusals::refusal(RefusalReason::Unsupported, message);
    Unfit::Refused { subject: Some(Subject::RequestId(request_id)), refusal }
}

fn invalid(subject: Option<Subject>, message: String) -> Unfit {
    Unfit::Refused { subject, refusal: refusals::refusal(RefusalReason::Invalid, message) }
}

fn protocol(message: &str) -> Unfit {
    Unfit::Protocol(StreamError::Protocol(message.to_owned()))
}
