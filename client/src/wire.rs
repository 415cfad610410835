//! What comes over the wire, as the types that callers see.

use std::time::Duration;

use holdfast_proto::v1;

use crate::{Error, FencingToken, Holder, LostReason, Mode, RefusalReason};

pub(crate) fn lost_reason(reason: v1::LostReason) -> LostReason {
    match reason {
        v1::LostReason::SessionClosed => LostReason::SessionClosed,
        v1::LostReason::SessionExpired => LostReason::SessionExpired,
        v1::LostReason::EpochRaised => LostReason::AuthorityPassed,
        v1::LostReason::Revoked => LostReason::SessionRevoked,
        v1::LostReason::Forced => LostReason::Forced,
        v1::LostReason::Unspecified => LostReason::Revoked,
    }
}

/// The mode of a holder or waiter: with permits it is said to be shared.
pub(crate) fn mode(mode: v1::Mode, permits: u32) -> Mode {
    match mode {
        _ if permits > 0 => Mode::Permits { count: permits, limit: 0 },
        v1::Mode::Shared | v1::Mode::Permits => Mode::Shared,
        v1::Mode::Unspecified | v1::Mode::Exclusive => Mode::Exclusive,
    }
}

pub(crate) fn mode_to(mode: Mode) -> v1::Mode {
    match mode {
        Mode::Shared => v1::Mode::Shared,
        Mode::Exclusive => v1::Mode::Exclusive,
        Mode::Permits { .. } => v1::Mode::Permits,
    }
}

pub(crate) fn holder(holder: v1::Holder) -> Holder {
    let (mode, mut known) = (mode(holder.mode(), holder.permits), Holder::named(holder.label));
    known.session = holder.session_id;
    known.token = FencingToken::from_raw(holder.token);
    known.held = Duration::from_millis(holder.held_ms);
    known.mode = mode;
    known.is_imported = holder.imported;
    known.is_ending = holder.ending;
    known.identity = holder.identity;
    known.note = holder.note;
    known.max_hold = bound(holder.max_hold_ms);
    known.hold_at_least = bound(holder.hold_at_least_ms);
    known
}

/// A bound of a hold; 0: it has none.
fn bound(ms: u64) -> Option<Duration> {
    (ms > 0).then(|| Duration::from_millis(ms))
}

pub(crate) fn holders(holders: Vec<v1::Holder>) -> Vec<Holder> {
    holders.into_iter().map(holder).collect()
}

/// A server's refusal of a request for `names`.
pub(crate) fn refusal(refusal: v1::Refusal, names: Vec<String>) -> Error {
    let reason = refusal.reason();
    if matches!(reason, v1::RefusalReason::LockHeld | v1::RefusalReason::NothingFree) {
        return Error::NotGranted { names, holders: holders(refusal.holders), waited: None };
    }
    if let (v1::RefusalReason::AlreadyHeld, Some(own)) = (reason, refusal.holders.first()) {
        let token = FencingToken::from_raw(own.token);
        return Error::AlreadyHeld { token, message: refusal.message };
    }
    Error::Refused {
        reason: refusal_reason(reason),
        message: refusal.message,
        limit: Some(refusal.limit).filter(|limit| !limit.is_empty()),
        retry_after: refusal.retry_after_ms.map(Duration::from_millis),
    }
}

/// A refusal that names no limit and no time at which to try again.
pub(crate) fn refused(reason: RefusalReason, message: impl Into<String>) -> Error {
    Error::Refused { reason, message: message.into(), limit: None, retry_after: None }
}

pub(crate) fn refusal_reason(reason: v1::RefusalReason) -> RefusalReason {
    match reason {
        v1::RefusalReason::Invalid => RefusalReason::Invalid,
        v1::RefusalReason::Limit => RefusalReason::Limit,
        v1::RefusalReason::TtlOutOfRange => RefusalReason::TtlOutOfRange,
        v1::RefusalReason::Unavailable => RefusalReason::Unavailable,
        v1::RefusalReason::DiskReserve => RefusalReason::DiskReserve,
        v1::RefusalReason::Unsupported => RefusalReason::Unsupported,
        v1::RefusalReason::TokensExhausted => RefusalReason::TokensExhausted,
        v1::RefusalReason::SessionUnknown => RefusalReason::SessionUnknown,
        v1::RefusalReason::NotExclusive => RefusalReason::NotExclusive,
        v1::RefusalReason::RequestGone
        | v1::RefusalReason::RequestReused
        | v1::RefusalReason::NotHolder
        | v1::RefusalReason::Cancelled => RefusalReason::Protocol,
        v1::RefusalReason::NotImported => RefusalReason::NotImported,
        v1::RefusalReason::NothingToWaitFor => RefusalReason::NothingToWaitFor,
        v1::RefusalReason::LockHeld => RefusalReason::LockHeld,
        v1::RefusalReason::Suspended => RefusalReason::Suspended,
        v1::RefusalReason::Restored => RefusalReason::Restored,
        v1::RefusalReason::Permits => RefusalReason::Permits,
        v1::RefusalReason::HeadStart => RefusalReason::HeadStart,
        v1::RefusalReason::AlreadyAsked => RefusalReason::AlreadyAsked,
        v1::RefusalReason::Frozen => RefusalReason::Frozen,
        v1::RefusalReason::Freeze => RefusalReason::Freeze,
        v1::RefusalReason::Sequence => RefusalReason::Sequence,
        v1::RefusalReason::HoldBounds => RefusalReason::HoldBounds,
        v1::RefusalReason::SeveralScopes => RefusalReason::SeveralScopes,
        v1::RefusalReason::Scope => RefusalReason::Scope,
        v1::RefusalReason::Forbidden => RefusalReason::Forbidden,
        v1::RefusalReason::Rules => RefusalReason::Rules,
        v1::RefusalReason::SessionRevoked => RefusalReason::SessionRevoked,
        v1::RefusalReason::NotHeld => RefusalReason::NotHeld,
        // A watch begins anew by itself.
        v1::RefusalReason::Compacted
        | v1::RefusalReason::Unspecified
        // Without the token of the hold.
        | v1::RefusalReason::AlreadyHeld
        | v1::RefusalReason::NothingFree => RefusalReason::Other,
    }
}
