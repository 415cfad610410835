//! The one table from errors of this server to gRPC codes.
//!
//! A call that fails carries its [`Refusal`] as a typed detail beside the code and the message: in
//! `grpc-status-details-bin`, as gRPC libraries read it. `UNAVAILABLE` carries the metadata [`LEADER`]
//! where this node knows that another leads.

use futures_util::{Stream, StreamExt, stream};
use holdfast_core::{Rejection, TextError};
use holdfast_proto::v1::{ClusterRefusal, ClusterRefusalReason, Refusal, RefusalReason};
use prost::Message;
use prost_types::Any;
use tokio::sync::oneshot;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use crate::error::ProposeError;
use crate::members::{MembershipError, MembershipRefusal};
use crate::session::error::CallError;
use crate::session::{StreamError, refusals};

/// Metadata key: where clients reach the leader.
pub const LEADER: &str = "holdfast-leader";

/// Metadata key: set if a watch cannot go on. A library's own decoder answers `OUT_OF_RANGE` too.
const COMPACTED: &str = "holdfast-compacted";

/// The type name of a [`Refusal`] among the details of a status.
const REFUSAL_TYPE: &str = "type.googleapis.com/holdfast.v1.Refusal";
/// The type name of a [`ClusterRefusal`].
const CLUSTER_REFUSAL_TYPE: &str = "type.googleapis.com/holdfast.v1.ClusterRefusal";

/// The code of each reason for a refusal; the comments of the wire format repeat it.
const fn code_of(reason: RefusalReason) -> Code {
    match reason {
        RefusalReason::Invalid | RefusalReason::TtlOutOfRange => Code::InvalidArgument,
        RefusalReason::LockHeld
        | RefusalReason::NothingFree
        | RefusalReason::NotHolder
        | RefusalReason::NotExclusive
        | RefusalReason::NotImported
        | RefusalReason::NothingToWaitFor
        | RefusalReason::Suspended
        | RefusalReason::Restored
        | RefusalReason::SeveralScopes
        | RefusalReason::Scope
        | RefusalReason::Rules
        | RefusalReason::SessionRevoked
        | RefusalReason::NotHeld
        | RefusalReason::Permits
        | RefusalReason::HeadStart
        | RefusalReason::Frozen
        | RefusalReason::Freeze
        | RefusalReason::HoldBounds
        | RefusalReason::Sequence
        | RefusalReason::RequestGone => Code::FailedPrecondition,
        RefusalReason::RequestReused | RefusalReason::AlreadyHeld | RefusalReason::AlreadyAsked => {
            Code::AlreadyExists
        }
        RefusalReason::Cancelled => Code::Cancelled,
        RefusalReason::SessionUnknown => Code::NotFound,
        RefusalReason::Compacted => Code::OutOfRange,
        RefusalReason::Limit | RefusalReason::DiskReserve | RefusalReason::TokensExhausted => {
            Code::ResourceExhausted
        }
        RefusalReason::Unavailable => Code::Unavailable,
        RefusalReason::Unsupported => Code::Unimplemented,
        RefusalReason::Forbidden => Code::PermissionDenied,
        RefusalReason::Unspecified => Code::Internal,
    }
}

/// The status at the end of a session stream.
pub fn of_stream_error(error: &StreamError) -> Status {
    let message = error.to_string();
    match error {
        StreamError::Protocol(_) => Status::invalid_argument(message),
        StreamError::AttachedElsewhere { .. } => Status::aborted(message),
        StreamError::Forbidden(missing) => {
            of_refusal(&refusals::of_rejection(&Rejection::Forbidden(missing.clone())))
        }
        StreamError::Compacted(_) => compacted(message),
        StreamError::TokenOver => Status::unauthenticated(message),
        // Every client may come at once: a new one tries again as well, and does not give up.
        StreamError::Limit { limit: "max_unopened_streams", .. } => Status::unavailable(message),
        StreamError::Limit { .. } => Status::resource_exhausted(message),
        StreamError::Unavailable { leader, .. } => {
            with_leader(Status::unavailable(message), leader.as_deref())
        }
        StreamError::ShuttingDown { leader } => {
            with_leader(Status::cancelled(message), leader.as_deref())
        }
    }
}

/// The status that a stream ends with; nothing for a plain end.
pub(super) fn last_word<T: Send + 'static>(
    end: oneshot::Receiver<Result<(), StreamError>>,
) -> impl Stream<Item = Result<T, Status>> + Send {
    let word = async {
        match end.await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(Err(of_stream_error(&error))),
            // The task was dropped with the runtime.
            Err(_) => Some(Err(Status::cancelled("this node stops"))),
        }
    };
    stream::once(word).filter_map(std::future::ready)
}

/// The status of a call that failed.
pub(super) fn of_call_error(error: &CallError) -> Status {
    match error {
        CallError::Refused(refusal) => of_refusal(refusal),
        CallError::Unavailable { refusal, leader } => {
            with_leader(of_refusal(refusal), leader.as_deref())
        }
        CallError::NotInTime(refusal) => with_details(Code::DeadlineExceeded, refusal),
    }
}

/// The status of a read that was not answered.
pub fn of_propose_error(error: &ProposeError) -> Status {
    let status = of_refusal(&refusals::of_propose_error(error));
    match error {
        ProposeError::NotLeader { leader: Some(leader) } => {
            with_leader(status, Some(&leader.advertise))
        }
        _ => status,
    }
}

/// The status of a change of the members that was not made, or of a question about them that was not
/// answered.
pub(super) fn of_membership_error(error: &MembershipError) -> Status {
    let message = error.to_string();
    match error {
        MembershipError::NotLeader { leader } => {
            let leader = leader.as_ref().map(|leader| leader.advertise.as_str());
            with_leader(Status::unavailable(message), leader)
        }
        MembershipError::Unavailable { .. } => Status::unavailable(message),
        MembershipError::Busy => of_cluster_refusal(ClusterRefusalReason::Busy, &message),
        MembershipError::Refused(refusal) => of_cluster_refusal(reason_of(refusal), &message),
        MembershipError::OutcomeUnknown { .. } | MembershipError::ShuttingDown => {
            Status::deadline_exceeded(message)
        }
    }
}

const fn reason_of(refusal: &MembershipRefusal) -> ClusterRefusalReason {
    use ClusterRefusalReason as Reason;
    use MembershipRefusal as Refused;
    match refusal {
        Refused::IdUsed { .. } => Reason::NodeIdUsed,
        Refused::OtherAddresses { .. } | Refused::AddressTaken { .. } => Reason::Address,
        Refused::TooManyMembers { .. } => Reason::Limit,
        Refused::NotReached { .. } | Refused::DoesNotJoin { .. } | Refused::OldRelease { .. } => {
            Reason::NodeNotReady
        }
        Refused::NotAMember { .. } => Reason::NotAMember,
        Refused::NotAVoter { .. } => Reason::NotAVoter,
        Refused::Silent { .. } => Reason::Silent,
        Refused::Lags { .. } | Refused::NobodyCaughtUp { .. } => Reason::Behind,
        Refused::LastVoter { .. } => Reason::LastVoter,
        Refused::NoMajority { .. } => Reason::NoMajority,
        Refused::NobodyElse => Reason::NobodyElse,
    }
}

/// A change of the members was refused; nothing was changed.
pub(super) fn of_cluster_refusal(reason: ClusterRefusalReason, message: &str) -> Status {
    let code = match reason {
        ClusterRefusalReason::Invalid => Code::InvalidArgument,
        _ => Code::FailedPrecondition,
    };
    let refusal = ClusterRefusal { reason: reason.into(), message: message.to_owned() };
    with_detail(code, message, (CLUSTER_REFUSAL_TYPE, refusal.encode_to_vec()))
}

/// A text in a request is invalid.
pub fn of_text_error(field: &str, error: &TextError) -> Status {
    invalid(format!("the {field} is not usable: {error}"))
}

/// A field of a request is invalid.
pub(super) fn invalid(message: String) -> Status {
    of_refusal(&refusals::refusal(RefusalReason::Invalid, message))
}

/// The status of a refusal, by its reason.
pub(super) fn of_refusal(refusal: &Refusal) -> Status {
    with_details(code_of(refusal.reason()), refusal)
}

/// The reason, if a status carries a refusal.
pub(super) fn reason_in(status: &Status) -> Option<RefusalReason> {
    if status.details().is_empty() {
        return None;
    }
    let details = tonic_types::Status::decode(status.details()).ok()?.details;
    let refusal = details.into_iter().find(|detail| detail.type_url == REFUSAL_TYPE)?;
    Some(Refusal::decode(refusal.value.as_slice()).ok()?.reason())
}

/// The changes after the index from which a watch would go on are not all kept.
fn compacted(message: String) -> Status {
    let mut status = of_refusal(&refusals::refusal(RefusalReason::Compacted, message));
    status.metadata_mut().insert(COMPACTED, MetadataValue::from_static("true"));
    status
}

fn with_details(code: Code, refusal: &Refusal) -> Status {
    with_detail(code, &refusal.message, (REFUSAL_TYPE, refusal.encode_to_vec()))
}

fn with_detail(code: Code, message: &str, (type_url, value): (&str, Vec<u8>)) -> Status {
    let status = tonic_types::Status {
        code: code.into(),
        message: message.to_owned(),
        details: vec![Any { type_url: type_url.to_owned(), value }],
    };
    Status::with_details(code, message, status.encode_to_vec().into())
}

pub(super) fn with_leader(mut status: Status, leader: Option<&str>) -> Status {
    // An address that is not ASCII cannot travel as metadata; the client then tries its other endpoints.
    if let Some(Ok(leader)) = leader.map(MetadataValue::try_from) {
        status.metadata_mut().insert(LEADER, leader);
    }
    status
}
