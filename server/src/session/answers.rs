//! What happened, as the client is told: events, outcomes and the state after a resume, as frames.

use holdfast_core::{
    Acquired, Answer, EndCause, FencingToken, HolderView, LockName, LockTable, LogIndex, Rejection,
    RequestId, RequestState, RequestView, SessionId, Was,
};
use holdfast_proto::v1::refused::Subject;
use holdfast_proto::v1::request_state::State as WireState;
use holdfast_proto::v1::server_frame::Body;
use holdfast_proto::v1::{
    Cancelled, Contended, Denied, Ended, Granted, Holder, Lost, LostReason, Queued, Refusal,
    Refused, Released, RequestState as WireRequest, ServerFrame, SessionEnded, State, cancelled,
};
use holdfast_seams::Clock;

use super::refusals;
use crate::consensus::Committed;
use crate::error::ProposeError;

/// A frame true as of `index`.
pub(super) fn frame(index: LogIndex, body: Body) -> ServerFrame {
    ServerFrame { index: index.get(), body: Some(body) }
}

pub(super) fn queued(request: RequestId, place: u64, holders: Vec<Holder>) -> Body {
    Body::Queued(Queued { request_id: request.get(), place, holders })
}

pub(super) fn granted(request: RequestId, token: FencingToken) -> Body {
    Body::Granted(Granted { request_id: request.get(), token: token.get() })
}

pub(super) fn released(request: RequestId, token: FencingToken) -> Body {
    Body::Released(Released { token: token.get(), request_id: request.get() })
}

pub(super) fn contended(request: RequestId, token: FencingToken) -> Body {
    Body::Contended(Contended { request_id: request.get(), token: token.get() })
}

pub(super) fn lost(request: RequestId, token: FencingToken, cause: EndCause) -> Body {
    let reason = lost_reason(cause).into();
    Body::Lost(Lost { request_id: request.get(), token: token.get(), reason })
}

pub(super) fn session_ended(cause: EndCause) -> Body {
    Body::SessionEnded(SessionEnded { reason: lost_reason(cause).into() })
}

fn lost_reason(cause: EndCause) -> LostReason {
    match cause {
        EndCause::Closed => LostReason::SessionClosed,
        EndCause::Expired => LostReason::SessionExpired,
    }
}

/// A denial, with who holds the lock as far as the table still knows.
pub(super) fn denied(
    table: &LockTable,
    now_ms: u64,
    request: RequestId,
    rejection: &Rejection,
) -> Body {
    let mut refusal = refusals::of_rejection(rejection);
    if let Rejection::LockHeld { lock, holder, token } = rejection {
        let current =
            holders(table, now_ms, lock).into_iter().find(|held| held.token == token.get());
        refusal.holders.push(current.unwrap_or_else(|| holder_unlabelled(*holder, *token)));
    }
    Body::Denied(Denied { request_id: request.get(), refusal: Some(refusal) })
}

pub(super) fn refused(subject: Option<Subject>, refusal: Refusal) -> Body {
    Body::Refused(Refused { refusal: Some(refusal), subject })
}

/// The leader's wall clock as the table's stamps are to be compared with it: a leader whose clock
/// lags those before it does not show holds from the future.
pub(crate) fn now_ms(table: &LockTable, clock: &dyn Clock) -> u64 {
    table.stamp_ms().max(clock.wall_ms())
}

/// Who holds a lock, for people; `now_ms` is [`now_ms`].
pub(crate) fn holders(table: &LockTable, now_ms: u64, lock: &LockName) -> Vec<Holder> {
    let holder = table.lock(lock).and_then(|lock| lock.holders().next());
    holder.map(|holder| holder_of(&holder, now_ms)).into_iter().collect()
}

/// A holder as the wire has it; `now_ms` is [`now_ms`].
pub(crate) fn holder_of(holder: &HolderView<'_>, now_ms: u64) -> Holder {
    Holder {
        session_id: holder.grant.session.get(),
        label: holder.label.as_str().to_owned(),
        token: holder.grant.token.get(),
        held_ms: now_ms.saturating_sub(holder.since_ms),
    }
}

fn holder_unlabelled(session: SessionId, token: FencingToken) -> Holder {
    Holder { session_id: session.get(), token: token.get(), ..Holder::default() }
}

/// What an outcome says that no event said: refusals, answers to retries, answers to Cancel. The
/// events of a fresh command have told the rest.
///
/// `denial_told`: the event of this very denial reached the stream.
pub(super) fn of_outcome(
    subject: Option<Subject>,
    result: &Result<Committed, ProposeError>,
    denial_told: bool,
) -> Option<Body> {
    let committed = match result {
        Ok(committed) => committed,
        Err(error) => return Some(refused(subject, refusals::of_propose_error(error))),
    };
    match &committed.outcome {
        Ok(Answer::Acquired { request, state, fresh: false }) => Some(stands(*request, state)),
        Ok(Answer::Cancelled { request, was }) => Some(cancelled(*request, *was)),
        Ok(
            Answer::Acquired { fresh: true, .. }
            | Answer::Configured
            | Answer::SessionOpened { .. }
            | Answer::SessionEnded
            | Answer::Released { .. }
            | Answer::ValueSet { .. },
        ) => None,
        Err(rejection) if rejection.is_denial() && denial_told => None,
        Err(rejection) => Some(of_rejection(subject, rejection)),
    }
}

fn of_rejection(subject: Option<Subject>, rejection: &Rejection) -> Body {
    let mut refusal = refusals::of_rejection(rejection);
    match &subject {
        Some(Subject::RequestId(request_id)) if rejection.is_denial() => {
            refusal.holders.extend(in_the_way(rejection));
            Body::Denied(Denied { request_id: *request_id, refusal: Some(refusal) })
        }
        _ => refused(subject, refusal),
    }
}

/// Who was in the way of a denied request.
fn in_the_way(rejection: &Rejection) -> Option<Holder> {
    match rejection {
        Rejection::LockHeld { holder, token, .. } => Some(holder_unlabelled(*holder, *token)),
        _ => None,
    }
}

/// Where a retried request stands.
fn stands(request: RequestId, state: &Acquired) -> Body {
    match *state {
        Acquired::Granted { token, .. } => granted(request, token),
        Acquired::Queued { place, holder } => {
            let holder = holder.map(|grant| holder_unlabelled(grant.session, grant.token));
            let holders = holder.into_iter().collect();
            Body::Queued(Queued { request_id: request.get(), place, holders })
        }
    }
}

fn cancelled(request: RequestId, was: Was) -> Body {
    let was = match was {
        Was::Waiting => cancelled::Was::Waiting,
        Was::Held { .. } => cancelled::Was::Held,
        Was::Ended => cancelled::Was::Ended,
        Was::Unknown => cancelled::Was::Unknown,
    };
    Body::Cancelled(Cancelled { request_id: request.get(), was: was.into() })
}

/// All that is known of a session's requests: the truth as of the table's index (I23). `None` if
/// the session is not open.
pub(super) fn state(table: &LockTable, now_ms: u64, session: SessionId) -> Option<Body> {
    let done_below = table.session(session)?.done_below.get();
    let requests: Vec<WireRequest> =
        table.requests(session).map(|request| request_state(table, now_ms, &request)).collect();
    // What was seen and is not kept lies below the mark.
    let above_kept = requests.last().map_or(0, |last| last.request_id.saturating_add(1));
    Some(Body::State(State { requests, next_request_id: above_kept.max(done_below) }))
}

fn request_state(table: &LockTable, now_ms: u64, request: &RequestView) -> WireRequest {
    let request_id = request.request.get();
    let state = match &request.state {
        RequestState::Waiting { place, .. } => {
            let locks = request.items.iter().map(|item| &item.lock);
            let holders = locks.flat_map(|lock| holders(table, now_ms, lock)).collect();
            WireState::Queued(Queued { request_id, place: *place, holders })
        }
        RequestState::Held { token, .. } => {
            WireState::Granted(Granted { request_id, token: token.get() })
        }
        RequestState::Denied { rejection } => {
            let mut refusal = refusals::of_rejection(rejection);
            refusal.holders.extend(in_the_way(rejection));
            WireState::Denied(Denied { request_id, refusal: Some(refusal) })
        }
        RequestState::Wrote | RequestState::Ended => WireState::Ended(Ended {}),
    };
    WireRequest { request_id, state: Some(state) }
}
