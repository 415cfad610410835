//! Refusals in their form on the wire: one table from the reasons of this server to those of the
//! protocol.

use std::time::Duration;

use holdfast_core::{Quantity, Rejection, SessionId};
use holdfast_proto::v1::{Holder, Refusal, RefusalReason};

use super::pages::WHOLE_BYTES_MAX;
use crate::error::ProposeError;
use crate::lengths::millis;

/// When to try again after a limit that other clients may free, milliseconds.
const RETRY_AFTER_LIMIT_MS: u64 = 1_000;
/// When to try again after an overload of this node, milliseconds.
const RETRY_AFTER_LOAD_MS: u64 = 100;

/// The name of a reason in metrics.
pub(super) const fn reason_name(reason: RefusalReason) -> &'static str {
    match reason {
        RefusalReason::Unspecified => "unspecified",
        RefusalReason::Invalid => "invalid",
        RefusalReason::LockHeld => "lock_held",
        RefusalReason::Limit => "limit",
        RefusalReason::RequestGone => "request_gone",
        RefusalReason::RequestReused => "request_reused",
        RefusalReason::NotHolder => "not_holder",
        RefusalReason::SessionUnknown => "session_unknown",
        RefusalReason::TtlOutOfRange => "ttl_out_of_range",
        RefusalReason::Unavailable => "unavailable",
        RefusalReason::DiskReserve => "disk_reserve",
        RefusalReason::Cancelled => "cancelled",
        RefusalReason::Unsupported => "unsupported",
        RefusalReason::TokensExhausted => "tokens_exhausted",
        RefusalReason::NothingFree => "nothing_free",
        RefusalReason::NotExclusive => "not_exclusive",
        RefusalReason::NotImported => "not_imported",
        RefusalReason::NothingToWaitFor => "nothing_to_wait_for",
        RefusalReason::Suspended => "suspended",
        RefusalReason::SeveralScopes => "several_scopes",
        RefusalReason::Scope => "scope",
        RefusalReason::Forbidden => "forbidden",
        RefusalReason::Rules => "rules",
        RefusalReason::SessionRevoked => "session_revoked",
        RefusalReason::NotHeld => "not_held",
        RefusalReason::Compacted => "compacted",
        RefusalReason::Restored => "restored",
        RefusalReason::Permits => "permits",
        RefusalReason::HeadStart => "head_start",
        RefusalReason::AlreadyHeld => "already_held",
        RefusalReason::AlreadyAsked => "already_asked",
        RefusalReason::Frozen => "frozen",
        RefusalReason::Freeze => "freeze",
        RefusalReason::Sequence => "sequence",
        RefusalReason::HoldBounds => "hold_bounds",
    }
}

/// A refusal with only a reason and a message.
pub(crate) fn refusal(reason: RefusalReason, message: impl Into<String>) -> Refusal {
    Refusal { reason: reason.into(), message: message.into(), ..Refusal::default() }
}

/// A limit was reached; trying again is useless unless the caller changes something.
pub(crate) fn limit(name: &str, message: impl Into<String>) -> Refusal {
    Refusal { limit: name.to_owned(), ..refusal(RefusalReason::Limit, message) }
}

/// The refusal for a rejection by the core.
pub(crate) fn of_rejection(rejection: &Rejection) -> Refusal {
    let message = rejection.to_string();
    match rejection {
        Rejection::TooManySessions { .. } => limit_of_others("max_sessions", message),
        Rejection::TooManyRequests { .. } => limit("max_requests_per_session", message),
        Rejection::TooManyWaiters { .. } => limit_of_others("max_waiters_per_lock", message),
        Rejection::TooManyValueBytes { .. } => limit_of_others("max_value_bytes", message),
        Rejection::TableFull { .. } => limit_of_others("max_table_bytes", message),
        Rejection::OverQuota { what, .. } => limit_of_others(quota_name(*what), message),
        Rejection::TooManyNames { .. } => limit("names_per_request", message),
        Rejection::ValueTooLarge { .. } => limit("value_bytes", message),
        Rejection::TooManyScopes { .. } => limit("scopes", message),
        Rejection::TooManyFreezes { .. } => limit("freezes", message),
        Rejection::HeadStartTooLong { .. } => limit("head_start_ms", message),
        Rejection::SequenceStep { .. } => limit("sequence_by", message),
        Rejection::HoldBoundTooLong { .. } => limit("hold_bound_ms", message),
        // The server closes them one by one.
        Rejection::TooManyHolders { .. } => limit("holders", message),
        // The holder is the owner itself.
        Rejection::AlreadyHeld { token, .. } => Refusal {
            holders: vec![Holder { token: token.get(), ..Holder::default() }],
            ..refusal(RefusalReason::AlreadyHeld, message)
        },
        rejection => refusal(reason_of(rejection), message),
    }
}

/// Why the core rejected something.
#[expect(clippy::too_many_lines, reason = "a table, one line for each reason")]
const fn reason_of(rejection: &Rejection) -> RefusalReason {
    match rejection {
        Rejection::UnknownSession { .. } => RefusalReason::SessionUnknown,
        Rejection::TtlOutOfRange { .. } => RefusalReason::TtlOutOfRange,
        Rejection::LockHeld { .. }
        | Rejection::LockAwaited { .. }
        | Rejection::LockClosed { .. } => RefusalReason::LockHeld,
        Rejection::NothingFree | Rejection::TooFewFree { .. } => RefusalReason::NothingFree,
        Rejection::NotImported { .. } => RefusalReason::NotImported,
        Rejection::NothingToWaitFor { .. } => RefusalReason::NothingToWaitFor,
        Rejection::RequestGone { .. } => RefusalReason::RequestGone,
        Rejection::RequestReused { .. } => RefusalReason::RequestReused,
        Rejection::RequestEnded { .. } => RefusalReason::Cancelled,
        Rejection::NotHolder { .. } | Rejection::NotHeldUnder { .. } => RefusalReason::NotHolder,
        Rejection::MinUnsupported { .. } => RefusalReason::Unsupported,
        Rejection::NotExclusive { .. } => RefusalReason::NotExclusive,
        Rejection::NoNames
        | Rejection::NameTwice { .. }
        | Rejection::MinAboveNames { .. }
        | Rejection::NoValue { .. }
        | Rejection::HoldBoundsCross { .. }
        | Rejection::HoldAtLeastShared { .. }
        // No frame of a client leads to these.
        | Rejection::OtherTenure { .. }
        | Rejection::OtherEpoch { .. }
        | Rejection::EpochNotAbove { .. }
        | Rejection::NotClosed { .. }
        | Rejection::UnusableLimits { .. } => RefusalReason::Invalid,
        Rejection::Suspended { .. } => RefusalReason::Suspended,
        Rejection::Restored => RefusalReason::Restored,
        Rejection::SeveralScopes { .. } => RefusalReason::SeveralScopes,
        Rejection::UnknownScope { .. }
        | Rejection::ScopesOverlap { .. }
        | Rejection::ScopeCutsRequest { .. }
        | Rejection::HeldInOtherEpoch { .. }
        | Rejection::EpochTooHigh { .. }
        | Rejection::ScopeHasLimit { .. }
        | Rejection::ScopeHasHeadStart { .. }
        | Rejection::ScopeHasFreeze { .. }
        | Rejection::ScopeHasHoldBounds { .. }
        // The server goes on by itself for a while before it says so.
        | Rejection::Unfinished { .. } => RefusalReason::Scope,
        Rejection::TokensExhausted { .. } => RefusalReason::TokensExhausted,
        Rejection::Forbidden(_) => RefusalReason::Forbidden,
        Rejection::Rules(_) => RefusalReason::Rules,
        Rejection::SessionRevoked { .. } => RefusalReason::SessionRevoked,
        Rejection::NotHeld { .. } => RefusalReason::NotHeld,
        Rejection::LimitDiffers { .. }
        | Rejection::NoLimit { .. }
        | Rejection::PermitsOutOfRange { .. }
        | Rejection::PermitsInScope { .. } => RefusalReason::Permits,
        Rejection::Frozen { .. } => RefusalReason::Frozen,
        Rejection::FreezeInScope { .. } | Rejection::NotFrozen { .. } => RefusalReason::Freeze,
        Rejection::SequenceInScope { .. }
        | Rejection::SequenceExhausted { .. }
        | Rejection::SequenceNotAbove { .. } => RefusalReason::Sequence,
        Rejection::HeadStartInScope { .. } => RefusalReason::HeadStart,
        Rejection::HoldBoundsInScope { .. } => RefusalReason::HoldBounds,
        Rejection::AlreadyHeld { .. } => RefusalReason::AlreadyHeld,
        Rejection::AlreadyAsked { .. } => RefusalReason::AlreadyAsked,
        Rejection::TooManySessions { .. }
        | Rejection::TooManyRequests { .. }
        | Rejection::TooManyWaiters { .. }
        | Rejection::TooManyValueBytes { .. }
        | Rejection::TableFull { .. }
        | Rejection::OverQuota { .. }
        | Rejection::TooManyNames { .. }
        | Rejection::ValueTooLarge { .. }
        | Rejection::TooManyScopes { .. }
        | Rejection::TooManyFreezes { .. }
        | Rejection::HeadStartTooLong { .. }
        | Rejection::SequenceStep { .. }
        | Rejection::HoldBoundTooLong { .. }
        | Rejection::TooManyHolders { .. } => RefusalReason::Limit,
    }
}

/// The name of a quota, as a limit and in `holdfast auth quota`.
const fn quota_name(what: Quantity) -> &'static str {
    match what {
        Quantity::Sessions => "quota_sessions",
        Quantity::Holds => "quota_holds",
        Quantity::Waits => "quota_waits",
        Quantity::ValueBytes => "quota_value_bytes",
        Quantity::Connections => "quota_connections",
    }
}

/// One answer for a session that never was, has ended, or belongs to another client.
pub(crate) fn unknown_session(session: SessionId) -> Refusal {
    let message =
        format!("session {session} is not open, or this is not its secret; open a new session");
    refusal(RefusalReason::SessionUnknown, message)
}

/// The State is too large for a client that does not know pages. The lease was not renewed.
pub(super) fn state_too_large(session: SessionId) -> Refusal {
    let message = format!(
        "what session {session} holds and waits for does not fit into the one message of \
         {WHOLE_BYTES_MAX} bytes that a client of this version takes (state_bytes); its lease was not \
         renewed and runs out; use a newer client, or hold less with large values"
    );
    limit("state_bytes", message)
}

/// Too many clients come back at the same time. The client has this long until its turn.
pub(super) fn come_back(after: Duration) -> Refusal {
    let after_ms = millis(after);
    let message = format!(
        "too many clients come back at the same time (resumes_per_second); this one's turn is in \
         {after_ms} ms"
    );
    Refusal {
        limit: "resumes_per_second".to_owned(),
        retry_after_ms: Some(after_ms),
        ..refusal(RefusalReason::Unavailable, message)
    }
}

/// Only resumes kept the session alive. The lease was not renewed.
pub(super) fn never_taken(session: SessionId) -> Refusal {
    let message = format!(
        "session {session} was resumed for two TTLs, and after no State did its client send anything \
         (resumes_without_a_frame); its lease was not renewed and runs out; use a newer client, or hold \
         less with large values"
    );
    limit("resumes_without_a_frame", message)
}

/// The core's answer does not fit the request. Never reached: the match on its answers has to be
/// complete.
pub(crate) fn odd_answer() -> Refusal {
    let message = "the answer is not one to this question; please report this as a fault";
    refusal(RefusalReason::Unspecified, message)
}

/// The refusal for a command that never reached an outcome.
pub(crate) fn of_propose_error(error: &ProposeError) -> Refusal {
    let message = error.to_string();
    let refused = match error {
        ProposeError::Overloaded { .. } | ProposeError::SessionOverloaded { .. } => {
            load("max_pending_commands", message)
        }
        ProposeError::OverloadedBytes { .. } | ProposeError::SessionOverloadedBytes { .. } => {
            load("max_pending_bytes", message)
        }
        ProposeError::DiskReserve => refusal(RefusalReason::DiskReserve, message),
        ProposeError::VersionNotKnown { .. } => refusal(RefusalReason::Unsupported, message),
        ProposeError::Forbidden(_) => refusal(RefusalReason::Forbidden, message),
        ProposeError::NotLeader { .. }
        | ProposeError::Unavailable { .. }
        | ProposeError::OutcomeUnknown { .. }
        | ProposeError::ShuttingDown => refusal(RefusalReason::Unavailable, message),
    };
    Refusal { outcome_unknown: !error.is_certainly_not_applied(), ..refused }
}

/// This node is overloaded, or the session sends too much at once.
fn load(name: &str, message: String) -> Refusal {
    Refusal { retry_after_ms: Some(RETRY_AFTER_LOAD_MS), ..limit(name, message) }
}

/// A limit was reached that other clients may free.
pub(crate) fn limit_of_others(name: &str, message: String) -> Refusal {
    Refusal { retry_after_ms: Some(RETRY_AFTER_LIMIT_MS), ..limit(name, message) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in the protocol, so that nobody has to learn two lists.
    #[test]
    fn the_name_of_a_reason_is_that_of_the_protocol() {
        for reason in (0..).map_while(|number| RefusalReason::try_from(number).ok()) {
            let name = reason_name(reason).to_ascii_uppercase();
            assert_eq!(format!("REFUSAL_REASON_{name}"), reason.as_str_name());
        }
    }
}
