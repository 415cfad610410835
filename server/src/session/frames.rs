//! Frames from the wire, checked once, here, and turned into types that the rest can trust.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::{
    Command, FencingToken, HEAD_START_MAX_MS, HOLD_BOUND_MAX_MS, Item, Label, LockName, Mode,
    NAMES_MAX, Need, Rejection, RequestId, SessionId, Terms, TextError, VALUE_BYTES_MAX,
    ValueChange,
};
use holdfast_proto::v1::client_frame::Body;
use holdfast_proto::v1::refused::Subject;
use holdfast_proto::v1::set_value::Change;
use holdfast_proto::v1::{self, Acquire, AnyOf, Refusal, RefusalReason, Release, SetValue};

use super::error::StreamError;
use super::opening::Key;
use super::refusals;
use crate::traces::Trace;

/// A frame after the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    KeepAlive {
        seq: u64,
    },
    Acquire {
        request: RequestId,
        items: Vec<Item>,
        need: Need,
        wait: bool,
        terms: Terms,
        follow_place: bool,
        /// The caller's trace, if spans are made of it.
        trace: Option<Trace>,
    },
    Claim {
        request: RequestId,
        lock: LockName,
        owner: Label,
        follow_place: bool,
    },
    Cancel {
        request: RequestId,
    },
    /// `is_lost`: the client had lost the grant before.
    Release {
        token: FencingToken,
        locks: Vec<LockName>,
        is_lost: bool,
    },
    SetValue {
        request: RequestId,
        token: FencingToken,
        lock: LockName,
        change: ValueChange,
    },
    Close,
}

impl Request {
    /// The command of this request of `session`, whether it came as a frame or a call; `None` for a
    /// keepalive, which is not replicated.
    pub(super) fn command(self, session: SessionId, done_below: RequestId) -> Option<Command> {
        Some(match self {
            Self::KeepAlive { .. } => return None,
            Self::Acquire { request, items, need, wait, terms, .. } => {
                Command::acquire((session, done_below, request), items, (need, wait), terms)
            }
            Self::Claim { request, lock, owner, .. } => {
                Command::Claim { session, done_below, request, lock, owner }
            }
            Self::Cancel { request } => Command::Cancel { session, done_below, request },
            Self::Release { token, locks, is_lost: false } => {
                Command::Release { session, done_below, token, locks }
            }
            Self::Release { token, locks, is_lost: true } => {
                Command::ReleaseLost { session, done_below, token, locks }
            }
            Self::SetValue { request, token, lock, change } => {
                Command::SetValue { session, done_below, request, token, lock, change }
            }
            Self::Close => Command::CloseSession { session },
        })
    }

    /// What an answer to this request is about.
    pub(super) fn subject(&self) -> Option<Subject> {
        match *self {
            Self::Acquire { request, .. }
            | Self::Claim { request, .. }
            | Self::Cancel { request }
            | Self::SetValue { request, .. } => Some(Subject::RequestId(request.get())),
            Self::Release { token, .. } => Some(Subject::Token(token.get())),
            Self::KeepAlive { .. } | Self::Close => None,
        }
    }
}

/// The session that a client wants to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wished {
    pub(super) ttl_ms: Option<u64>,
    pub(super) label: Label,
    /// The client gives up a hold that an answer names as closed.
    pub(super) knows_closed: bool,
}

/// The first frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    Fresh(Wished),
    Resume {
        key: Key,
        cluster_id: Vec<u8>,
        /// The client takes State in pages.
        in_pages: bool,
        /// The number of the client's attempt; 0: it does not count them.
        attempt: u64,
    },
}

/// Why a frame was not accepted.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Unfit {
    /// The frame is answered with Refused; the stream goes on.
    Refused { subject: Option<Subject>, refusal: Refusal },
    /// The stream ends.
    Protocol(StreamError),
}

impl From<Refusal> for Unfit {
    fn from(refusal: Refusal) -> Self {
        Self::Refused { subject: None, refusal }
    }
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
        Some(Body::Release(frame)) => read_release(&frame),
        Some(Body::SetValue(frame)) => read_set_value(&frame),
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
        None => Ok(Opening::Fresh(Wished {
            ttl_ms: open.ttl_ms,
            label: read_label(&open.label)?,
            knows_closed: open.knows_closed,
        })),
        Some(resume) => {
            let key = Key::read(resume.session_id, &resume.secret)?;
            let (cluster_id, in_pages) = (resume.cluster_id.to_vec(), resume.state_in_pages);
            Ok(Opening::Resume { key, cluster_id, in_pages, attempt: resume.attempt })
        }
    }
}

/// Reads the label of a session.
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
    let about = |refusal| about_request(request, refusal);
    let (items, terms) = read_asked(frame).map_err(about)?;
    let need = read_need(frame.any, items.len()).map_err(about)?;
    if let Some(owner) = &frame.claim_owner {
        if terms != Terms::default() {
            let message = "a claim has the terms of what was imported, and none of its own";
            return Err(about(refusals::refusal(RefusalReason::Invalid, message)));
        }
        let lock = claimed_lock(items, need, frame.wait).map_err(about)?;
        let owner = read_owner(owner).map_err(about)?;
        return Ok(Request::Claim { request, lock, owner, follow_place: frame.follow_place });
    }
    Ok(Request::Acquire {
        request,
        items,
        need,
        wait: frame.wait,
        terms,
        follow_place: frame.follow_place,
        trace: Trace::read(&frame.traceparent),
    })
}

/// The items of a request, and what it says besides.
fn read_asked(frame: &Acquire) -> Result<(Vec<Item>, Terms), Refusal> {
    let Some(on) = &frame.on else { return Ok((read_items(&frame.items)?, Terms::default())) };
    if !frame.items.is_empty() {
        let message = "a request has its items beside what it says besides, or alone, and not both";
        return Err(refusals::refusal(RefusalReason::Invalid, message));
    }
    let items = read_items(&on.items)?;
    let head_start_ms = u32::try_from(on.head_start_ms).unwrap_or(u32::MAX);
    if on.head_start_ms > HEAD_START_MAX_MS {
        let max_ms = HEAD_START_MAX_MS;
        let rejection = Rejection::HeadStartTooLong { head_start_ms, max_ms };
        return Err(refusals::of_rejection(&rejection));
    }
    let note = Label::parse(&on.note).map_err(|error| {
        refusals::refusal(RefusalReason::Invalid, format!("the note is not usable: {error}"))
    })?;
    let (max_hold_ms, hold_at_least_ms) =
        (bound_of(on.max_hold_ms)?, bound_of(on.hold_at_least_ms)?);
    Ok((items, Terms { head_start_ms, owner: on.owner, note, max_hold_ms, hold_at_least_ms }))
}

/// A bound of a hold, as the core knows it.
fn bound_of(ms: u64) -> Result<u32, Refusal> {
    let asked_ms = u32::try_from(ms).unwrap_or(u32::MAX);
    let max_ms = HOLD_BOUND_MAX_MS;
    let too_long = Rejection::HoldBoundTooLong { asked_ms, max_ms };
    if asked_ms > max_ms { Err(refusals::of_rejection(&too_long)) } else { Ok(asked_ms) }
}

/// The lock of a claim, which names one lock, in exclusive mode, and waits.
fn claimed_lock(items: Vec<Item>, need: Need, wait: bool) -> Result<LockName, Refusal> {
    if let (Ok([Item { lock, mode: Mode::Exclusive }]), Need::All, true) =
        (<[Item; 1]>::try_from(items), need, wait)
    {
        Ok(lock)
    } else {
        let message = "a claim names one lock, exclusively, and waits; claim each by itself";
        Err(refusals::refusal(RefusalReason::Invalid, message))
    }
}

/// Reads the owner of a hold as the other store names it.
///
/// # Errors
///
/// A refusal, if it is empty or could not be a session's label.
pub(super) fn read_owner(owner: &str) -> Result<Label, Refusal> {
    let unusable = |problem: String| {
        let message = format!("the owner is not usable: {problem}");
        refusals::refusal(RefusalReason::Invalid, message)
    };
    if owner.is_empty() {
        return Err(unusable("it is empty".to_owned()));
    }
    Label::parse(owner).map_err(|error| unusable(error.to_string()))
}

fn read_release(frame: &Release) -> Result<Request, Unfit> {
    let subject = Some(Subject::Token(frame.token));
    let locks = read_names(frame.names.iter().map(|name| &name[..]))
        .map_err(|refusal| Unfit::Refused { subject, refusal })?;
    let (token, is_lost) = (FencingToken::from_raw(frame.token), frame.lost);
    Ok(Request::Release { token, locks, is_lost })
}

fn read_set_value(frame: &SetValue) -> Result<Request, Unfit> {
    let request = read_request_id(frame.request_id)?;
    let about = |refusal| about_request(request, refusal);
    let lock = read_name(&frame.name).map_err(about)?;
    let change = read_change(frame.change.as_ref()).map_err(about)?;
    let token = FencingToken::from_raw(frame.token);
    Ok(Request::SetValue { request, token, lock, change })
}

/// The locks of a request, in any order.
fn read_items(items: &[v1::Item]) -> Result<Vec<Item>, Refusal> {
    let locks = parse_names(items.iter().map(|item| &item.name[..]))?;
    if locks.is_empty() {
        return Err(refusals::of_rejection(&Rejection::NoNames));
    }
    let items = locks.into_iter().zip(items).map(|(lock, item)| read_item(lock, item));
    let items = items.collect::<Result<Vec<_>, _>>()?;
    each_in_one_mode(&items)?;
    Ok(items)
}

/// A request that names one lock in two modes gets a message of its own: it is hardly a typing error,
/// and one of the two modes would do.
fn each_in_one_mode(items: &[Item]) -> Result<(), Refusal> {
    let mut modes = BTreeMap::new();
    for Item { lock, mode } in items {
        let Some(before) = modes.insert(lock, mode) else { continue };
        if before == mode {
            return Err(named_twice(lock));
        }
        let message = format!("{lock} is asked for both {before} and {mode}; ask for it once");
        return Err(refusals::refusal(RefusalReason::Invalid, message));
    }
    Ok(())
}

fn named_twice(lock: &LockName) -> Refusal {
    refusals::of_rejection(&Rejection::NameTwice { lock: lock.clone() })
}

fn read_item(lock: LockName, item: &v1::Item) -> Result<Item, Refusal> {
    let v1::Item { permits: count, limit, .. } = *item;
    let mode = match v1::Mode::try_from(item.mode) {
        Ok(v1::Mode::Permits) => Mode::Permits { count, limit },
        Ok(_) if (count, limit) != (0, 0) => {
            let message = format!("{lock} is asked for in mode {}, and has permits", item.mode);
            return Err(refusals::refusal(RefusalReason::Invalid, message));
        }
        Ok(v1::Mode::Unspecified | v1::Mode::Exclusive) => Mode::Exclusive,
        Ok(v1::Mode::Shared) => Mode::Shared,
        Err(_) => {
            let message = format!("mode {} of {lock} is not one that this server knows", item.mode);
            return Err(refusals::refusal(RefusalReason::Invalid, message));
        }
    };
    Ok(Item { lock, mode })
}

/// Names of one request, each once.
fn read_names<'a>(
    names: impl ExactSizeIterator<Item = &'a [u8]>,
) -> Result<Vec<LockName>, Refusal> {
    let locks = parse_names(names)?;
    let mut seen = BTreeSet::new();
    match locks.iter().find(|lock| !seen.insert(*lock)) {
        Some(twice) => Err(named_twice(twice)),
        None => Ok(locks),
    }
}

/// At most [`NAMES_MAX`] names (DESIGN §6).
fn parse_names<'a>(
    names: impl ExactSizeIterator<Item = &'a [u8]>,
) -> Result<Vec<LockName>, Refusal> {
    let count = names.len();
    if count > NAMES_MAX {
        let too_many = Rejection::TooManyNames { names: count as u64, max: NAMES_MAX as u64 };
        return Err(refusals::of_rejection(&too_many));
    }
    names.map(read_name).collect()
}

pub(super) fn read_name(name: &[u8]) -> Result<LockName, Refusal> {
    LockName::parse_bytes(name).map_err(|error| bad_name(name, &error))
}

fn read_need(any: Option<AnyOf>, names: usize) -> Result<Need, Refusal> {
    let Some(AnyOf { min }) = any else { return Ok(Need::All) };
    if min as usize > names {
        let above = Rejection::MinAboveNames { min, names: names as u64 };
        return Err(refusals::of_rejection(&above));
    }
    Ok(Need::Any { min })
}

fn read_change(change: Option<&Change>) -> Result<ValueChange, Refusal> {
    match change {
        Some(Change::Value(value)) if value.len() > VALUE_BYTES_MAX => {
            let (len, max) = (value.len() as u64, VALUE_BYTES_MAX as u64);
            Err(refusals::of_rejection(&Rejection::ValueTooLarge { len, max }))
        }
        Some(Change::Value(value)) => Ok(ValueChange::Set(value.to_vec())),
        Some(Change::Clear(_)) => Ok(ValueChange::Clear),
        Some(Change::Confirm(_)) => Ok(ValueChange::Confirm),
        None => {
            let message = "the change of a value names none: set, clear or confirm it";
            Err(refusals::refusal(RefusalReason::Invalid, message))
        }
    }
}

/// Quotes the name as far as it can be shown.
fn bad_name(name: &[u8], error: &TextError) -> Refusal {
    const SHOWN: usize = 64;
    let shown = name.get(..SHOWN).unwrap_or(name).escape_ascii();
    let cut = if name.len() > SHOWN { "…" } else { "" };
    let message = format!("the lock name \"{shown}{cut}\" is not usable: {error}");
    refusals::refusal(RefusalReason::Invalid, message)
}

/// Ids run from 1: 0 is what a forgotten field looks like, and the largest id would leave no next one
/// for State to name.
fn read_request_id(id: u64) -> Result<RequestId, Unfit> {
    if id == 0 || id == u64::MAX {
        let message =
            format!("the request id {id} is not usable; ids run from 1 to {}", u64::MAX - 1);
        let refusal = refusals::refusal(RefusalReason::Invalid, message);
        return Err(about_request(RequestId::new(id), refusal));
    }
    Ok(RequestId::new(id))
}

fn about_request(request: RequestId, refusal: Refusal) -> Unfit {
    Unfit::Refused { subject: Some(Subject::RequestId(request.get())), refusal }
}

fn protocol(message: &str) -> Unfit {
    Unfit::Protocol(StreamError::Protocol(message.to_owned()))
}
