//! The one table from our errors to gRPC codes.
//!
//! `UNAVAILABLE` carries the metadata [`LEADER`] where this node knows that another leads.

use holdfast_core::TextError;
use tonic::Status;
use tonic::metadata::MetadataValue;

use crate::error::ProposeError;
use crate::session::StreamError;

/// Metadata key: where clients reach the leader.
pub const LEADER: &str = "holdfast-leader";

/// How a session stream ends.
pub fn of_stream_error(error: &StreamError) -> Status {
    let message = error.to_string();
    match error {
        StreamError::Protocol(_) => Status::invalid_argument(message),
        StreamError::AttachedElsewhere { .. } => Status::aborted(message),
        StreamError::Limit { .. } => Status::resource_exhausted(message),
        StreamError::Unavailable { leader, .. } => unavailable(message, leader.as_deref()),
        StreamError::ShuttingDown { leader } => {
            with_leader(Status::cancelled(message), leader.as_deref())
        }
    }
}

/// Why a read was not answered.
pub fn of_propose_error(error: &ProposeError) -> Status {
    let message = error.to_string();
    match error {
        ProposeError::NotLeader { leader } => {
            unavailable(message, leader.as_ref().map(|leader| leader.advertise.as_str()))
        }
        ProposeError::Unavailable { .. }
        | ProposeError::OutcomeUnknown { .. }
        | ProposeError::ShuttingDown => unavailable(message, None),
        ProposeError::Overloaded { .. } | ProposeError::DiskReserve => {
            Status::resource_exhausted(message)
        }
        ProposeError::VersionNotKnown { .. } => Status::failed_precondition(message),
    }
}

/// A text in a request is not usable.
pub fn of_text_error(field: &str, error: &TextError) -> Status {
    Status::invalid_argument(format!("the {field} is not usable: {error}"))
}

fn unavailable(message: String, leader: Option<&str>) -> Status {
    with_leader(Status::unavailable(message), leader)
}

fn with_leader(mut status: Status, leader: Option<&str>) -> Status {
    // An address that is no ASCII cannot travel as metadata; the client then asks around.
    if let Some(Ok(leader)) = leader.map(MetadataValue::try_from) {
        status.metadata_mut().insert(LEADER, leader);
    }
    status
}
