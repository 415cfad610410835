//! Why a unary call failed.

use holdfast_proto::v1::{Refusal, RefusalReason};

use super::frames::Unfit;
use super::refusals;

/// Why a unary call failed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum CallError {
    /// Refused. Nothing was done, unless the refusal says that the outcome is unknown.
    Refused(Refusal),
    /// This node does not serve the call now. Nothing was done, unless the refusal says that the outcome
    /// is unknown.
    Unavailable {
        /// Why.
        refusal: Refusal,
        /// Where clients reach the leader, if another is known.
        leader: Option<String>,
    },
    /// The wait limit passed first; the request has ended.
    NotInTime(Refusal),
}

impl From<Refusal> for CallError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Unfit> for CallError {
    fn from(unfit: Unfit) -> Self {
        match unfit {
            Unfit::Refused { refusal, .. } => Self::Refused(refusal),
            Unfit::Protocol(error) => {
                Self::Refused(refusals::refusal(RefusalReason::Invalid, error.to_string()))
            }
        }
    }
}

/// This node does not serve the call; nothing was done.
pub(super) fn unavailable(message: &str, leader: Option<String>) -> CallError {
    let refusal = refusals::refusal(RefusalReason::Unavailable, message);
    CallError::Unavailable { refusal, leader }
}
