//! Events and outcomes as frames for the client.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use holdfast_core::{
    Acquired, Answer, Caller, Contention, EndCause, FencingToken, HolderView, Identity, Item,
    Label, LimitView, LockName, LockTable, LockView, LogIndex, LossCause, MAX_HOLD_REASON, Mode,
    NamePrefix, Rejection, RequestId, SessionId, Value, Was,
};
use holdfast_mutants::mutant;
use holdfast_proto::v1::refused::Subject;
use holdfast_proto::v1::server_frame::Body;
use holdfast_proto::v1::{
    Cancelled, ClosedHold, ClosedLock, Contended, Denied, Freeze, Granted, Holder, LockScope, Lost,
    LostReason, Mode as WireMode, NamedValue, PermitLimit, Queued, Refusal, Refused, Released,
    ServerFrame, SessionEnded, Value as WireValue, ValueSet, cancelled,
};
use holdfast_runtime::Clock;

use super::refusals;
use crate::consensus::Committed;
use crate::error::ProposeError;
use crate::lengths::millis;

/// At most so many holders are listed in a frame or an answer: a lock may be shared by any number.
pub(crate) const HOLDERS_SHOWN: usize = 100;

/// A frame that is true as of `index`.
pub(super) fn frame(index: LogIndex, body: Body) -> ServerFrame {
    ServerFrame { index: index.get(), body: Some(body) }
}

pub(super) fn queued(
    request: RequestId,
    place: u64,
    holders: Vec<Holder>,
    frozen: Option<Freeze>,
) -> Body {
    Body::Queued(Queued { request_id: request.get(), place, holders, frozen })
}

/// The freeze that keeps a request for these locks from being granted, if one does; `now_ms` is [`now_ms`].
pub(super) fn frozen(table: &LockTable, now_ms: u64, items: &[Item]) -> Option<Freeze> {
    let (prefix, freeze) = items.iter().find_map(|item| table.freeze_over(&item.lock))?;
    Some(freeze_of(prefix, freeze, now_ms))
}

/// A freeze in its form on the wire; `now_ms` is [`now_ms`].
pub(crate) fn freeze_of(
    prefix: &NamePrefix,
    freeze: &holdfast_core::Freeze,
    now_ms: u64,
) -> Freeze {
    Freeze {
        prefix: prefix.as_str().to_owned(),
        message: freeze.message.as_str().to_owned(),
        identity: identity_text(&freeze.by),
        frozen_ms: now_ms.saturating_sub(freeze.since_ms),
    }
}

/// A closed lock in its form on the wire; `left` is how long it stays closed, `now_ms` is [`now_ms`].
pub(crate) fn closed_lock(
    closed: &holdfast_core::ClosedLock,
    left: Option<Duration>,
    now_ms: u64,
) -> ClosedLock {
    ClosedLock {
        token: closed.token.get(),
        label: closed.label.as_str().to_owned(),
        identity: identity_text(&closed.identity),
        closed_ms: now_ms.saturating_sub(closed.since_ms),
        left_ms: left.map_or(0, millis),
        hold_at_least_ms: closed.hold_at_least_ms.into(),
    }
}

/// A grant: what is held, with the values of the locks.
pub(super) fn granted(
    request: RequestId,
    token: FencingToken,
    items: &[Item],
    values: &[(LockName, Value)],
) -> Granted {
    Granted {
        request_id: request.get(),
        token: token.get(),
        names: names_of(items),
        values: values.iter().map(named_value).collect(),
    }
}

/// A release of these names; where only the request says which they are, an empty list means all of the
/// grant.
pub(super) fn released(
    request: RequestId,
    token: FencingToken,
    names: Vec<Bytes>,
    over: bool,
) -> Released {
    Released { token: token.get(), request_id: request.get(), names, partly: !over }
}

/// What the holder of a lock is told of those who wait for it.
pub(super) fn contended(
    table: &LockTable,
    request: RequestId,
    token: FencingToken,
    lock: &LockName,
) -> Contended {
    let Contention { waiting, head_start_ms } = table.contention(lock);
    Contended {
        request_id: request.get(),
        token: token.get(),
        name: bytes_of(lock),
        waiting,
        head_start_ms,
    }
}

pub(super) fn value_set(request: RequestId) -> ValueSet {
    ValueSet { request_id: request.get() }
}

pub(super) fn names_of(items: &[Item]) -> Vec<Bytes> {
    items.iter().map(|item| bytes_of(&item.lock)).collect()
}

fn bytes_of(lock: &LockName) -> Bytes {
    Bytes::copy_from_slice(lock.as_str().as_bytes())
}

fn named_value((lock, value): &(LockName, Value)) -> NamedValue {
    NamedValue { name: bytes_of(lock), value: Some(value_of(value)) }
}

/// A value in its form on the wire.
pub(crate) fn value_of(value: &Value) -> WireValue {
    WireValue {
        value: Bytes::copy_from_slice(&value.bytes),
        token: value.set_by.get(),
        suspect: value.suspect,
    }
}

/// The scope of a lock in its form on the wire.
pub(crate) fn scope_of(lock: &LockView<'_>) -> Option<LockScope> {
    lock.scope().map(|scope| LockScope {
        prefix: scope.scope.as_str().to_owned(),
        epoch: scope.state.epoch.into(),
        suspended: scope.state.suspended,
    })
}

/// The mode of a holder or waiter in its form on the wire. Its permits are told beside it.
pub(crate) fn mode_of(mode: Mode) -> WireMode {
    match mode {
        Mode::Exclusive => WireMode::Exclusive,
        Mode::Shared | Mode::Permits { .. } => WireMode::Shared,
    }
}

/// The limit of a lock's permits in its form on the wire.
pub(crate) fn limit_of(lock: &LockView<'_>) -> Option<PermitLimit> {
    lock.limit.map(|LimitView { permits, used, for_good }| PermitLimit { permits, used, for_good })
}

pub(super) fn lost(request: RequestId, token: FencingToken, cause: LossCause) -> Body {
    let reason = lost_reason(cause).into();
    Body::Lost(Lost { request_id: request.get(), token: token.get(), reason })
}

pub(super) fn session_ended(cause: EndCause) -> Body {
    let reason = lost_reason(cause.into()).into();
    Body::SessionEnded(SessionEnded { reason, why: String::new() })
}

/// A session is ending from outside: its client has nothing more to wait for.
pub(super) fn session_revoked(why: &Label) -> Body {
    let reason = LostReason::Revoked.into();
    Body::SessionEnded(SessionEnded { reason, why: why.as_str().to_owned() })
}

/// The closed holds that every answer names which renews the session (I35).
pub(super) fn closed_holds(table: &LockTable, session: SessionId) -> Vec<ClosedHold> {
    let closed = table.closed_holds(session).filter(|_| !mutant!(ClosedNotNamed));
    closed.map(|(token, reason)| closed_hold(token, reason)).collect()
}

pub(super) fn closed_hold(token: FencingToken, reason: &Label) -> ClosedHold {
    let lasted_too_long = reason.as_str() == MAX_HOLD_REASON;
    ClosedHold { token: token.get(), reason: reason.as_str().to_owned(), lasted_too_long }
}

pub(super) fn lost_reason(cause: LossCause) -> LostReason {
    match cause {
        LossCause::Closed => LostReason::SessionClosed,
        LossCause::Expired => LostReason::SessionExpired,
        LossCause::EpochRaised => LostReason::EpochRaised,
        LossCause::Revoked => LostReason::Revoked,
        LossCause::Forced => LostReason::Forced,
    }
}

/// A denial, with the lock's holders as far as the table still knows them.
pub(super) fn denied(
    table: &LockTable,
    now_ms: u64,
    request: RequestId,
    rejection: &Rejection,
) -> Body {
    let refusal = Some(refusal(table, now_ms, rejection));
    Body::Denied(Denied { request_id: request.get(), refusal })
}

/// A refusal, with the lock's holders as far as the table still knows them.
pub(super) fn refusal(table: &LockTable, now_ms: u64, rejection: &Rejection) -> Refusal {
    let mut refusal = refusals::of_rejection(rejection);
    if let Rejection::Frozen { lock } = rejection
        && let Some((_, freeze)) = table.freeze_over(lock)
    {
        refusal.message = frozen_text(lock, freeze);
    }
    if let Rejection::LockHeld { lock, token, .. } = rejection {
        let lock = table.lock(lock);
        let mut holders = lock.into_iter().flat_map(|lock| lock.holders()).take(HOLDERS_SHOWN);
        let current = holders.find(|holder| holder.grant.token == *token);
        let current = current.map(|holder| holder_of(&holder, now_ms));
        refusal.holders.extend(current.or_else(|| in_the_way(rejection)));
    }
    refusal
}

fn frozen_text(lock: &LockName, freeze: &holdfast_core::Freeze) -> String {
    let by = match identity_text(&freeze.by) {
        by if by.is_empty() => by,
        by => format!(" by {by}"),
    };
    let message = match freeze.message.as_str() {
        "" => String::new(),
        message => format!(": {message}"),
    };
    format!("{lock} is frozen{by}, and nobody is granted it at the moment{message}")
}

pub(super) fn refused(subject: Option<Subject>, refusal: Refusal) -> Body {
    Body::Refused(Refused { refusal: Some(refusal), subject })
}

/// The leader's wall clock, fit to be compared with the table's stamps: a leader whose clock lags behind
/// its predecessors' shows no hold from the future.
pub(crate) fn now_ms(table: &LockTable, clock: &dyn Clock) -> u64 {
    table.stamp_ms().max(clock.wall_ms())
}

/// The holders of any of these locks, each grant once and at most [`HOLDERS_SHOWN`], for people;
/// `now_ms` is [`now_ms`].
pub(super) fn holders(table: &LockTable, now_ms: u64, items: &[Item]) -> Vec<Holder> {
    let locks = items.iter().filter_map(|item| table.lock(&item.lock));
    let mut seen = BTreeSet::new();
    locks
        .flat_map(|lock| lock.holders())
        .filter(|holder| items.len() == 1 || seen.insert(holder.grant.token))
        .take(HOLDERS_SHOWN)
        .map(|holder| holder_of(&holder, now_ms))
        .collect()
}

/// A holder in its form on the wire; `now_ms` is [`now_ms`].
pub(crate) fn holder_of(holder: &HolderView<'_>, now_ms: u64) -> Holder {
    Holder {
        session_id: holder.grant.session.get(),
        label: holder.label.as_str().to_owned(),
        token: holder.grant.token.get(),
        held_ms: now_ms.saturating_sub(holder.since_ms),
        mode: mode_of(holder.mode).into(),
        permits: holder.mode.permits(),
        imported: holder.imported,
        ending: holder.is_ending,
        identity: identity_of(holder.caller),
        note: holder.note.to_owned(),
        max_hold_ms: holder.bounds.map_or(0, |bounds| bounds.max_hold_ms.into()),
        hold_at_least_ms: holder.bounds.map_or(0, |bounds| bounds.hold_at_least_ms.into()),
    }
}

/// Who opened a session; empty for one that has proved nothing.
pub(crate) fn identity_of(caller: &Caller) -> String {
    identity_text(&caller.identity)
}

fn identity_text(identity: &Identity) -> String {
    if identity.is_anonymous() { String::new() } else { identity.to_string() }
}

fn holder_unlabelled(session: SessionId, token: FencingToken) -> Holder {
    Holder { session_id: session.get(), token: token.get(), ..Holder::default() }
}

/// The part of an outcome that no event has reported: refusals, answers to retries, answers to Cancel.
/// The events of a fresh command have reported the rest.
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
        Ok(Answer::ValueSet { request, .. }) => Some(Body::ValueSet(value_set(*request))),
        Ok(Answer::Cancelled { request, was }) => Some(Body::Cancelled(cancelled(*request, *was))),
        Ok(
            Answer::Acquired { fresh: true, .. }
            | Answer::Configured
            | Answer::SessionOpened { .. }
            | Answer::SessionEnded
            | Answer::Imported { .. }
            | Answer::Scope { .. }
            | Answer::RulesChanged
            | Answer::Revoked { .. }
            | Answer::HoldsClosed { .. }
            | Answer::SessionOwned
            | Answer::LimitSet
            | Answer::FreezesSet
            | Answer::Advanced { .. }
            | Answer::SequenceBegun
            | Answer::LockOpened
            | Answer::ImportsLengthened { .. }
            | Answer::CarriedOn { .. }
            | Answer::Released { .. },
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

/// The holder that was in the way of a denied request.
pub(super) fn in_the_way(rejection: &Rejection) -> Option<Holder> {
    match rejection {
        Rejection::LockHeld { holder, token, .. } => Some(holder_unlabelled(*holder, *token)),
        _ => None,
    }
}

/// The state of a retried request.
fn stands(request: RequestId, state: &Acquired) -> Body {
    match state {
        Acquired::Granted { token, items, values } => {
            Body::Granted(granted(request, *token, items, values))
        }
        Acquired::Queued { place, holder } => {
            let holder = holder.map(|grant| holder_unlabelled(grant.session, grant.token));
            queued(request, *place, holder.into_iter().collect(), None)
        }
    }
}

pub(super) fn cancelled(request: RequestId, was: Was) -> Cancelled {
    let was = match was {
        Was::Waiting => cancelled::Was::Waiting,
        Was::Held { .. } => cancelled::Was::Held,
        Was::Ended => cancelled::Was::Ended,
        Was::Unknown => cancelled::Was::Unknown,
    };
    Cancelled { request_id: request.get(), was: was.into() }
}
