//! Why a session stream ended, or a unary call failed.

use holdfast_core::Missing;
use holdfast_proto::v1::{Refusal, RefusalReason};

use super::frames::Unfit;
use super::refusals;

/// Why a stream ended other than by its last frame. It says nothing about the session, which lives on
/// until its lease runs out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The client broke the protocol; sending the same again will not help.
    #[error("{0}")]
    Protocol(String),
    /// A newer stream showed the session's secret.
    #[error("attached-elsewhere: a newer stream took session {session} up")]
    AttachedElsewhere {
        /// The session.
        session: u64,
    },
    /// A limit of this node was reached.
    #[error("{message} ({limit} = {value})")]
    Limit {
        /// The limit's name, for the most part that in the settings.
        limit: &'static str,
        /// Its value.
        value: u64,
        /// What reached it.
        message: &'static str,
    },
    /// This node is not a leader with a quorum at the moment. The last request on the stream may have
    /// taken effect.
    #[error("{message}")]
    Unavailable {
        /// What was not available.
        message: String,
        /// Where clients reach the leader, if this node knows another.
        leader: Option<String>,
    },
    /// A watch cannot go on: some of the changes since then are not kept any more.
    #[error("{0}; begin the watch with the state")]
    Compacted(String),
    /// The caller has no right to it.
    #[error("not allowed: {0}")]
    Forbidden(Missing),
    /// The token that the caller showed was revoked, or has ended.
    #[error("the bearer token was revoked, or has ended")]
    TokenOver,
    /// This node stops. Its last frame was `GoingAway`.
    #[error("this node stops")]
    ShuttingDown {
        /// Where clients reach the leader, if this node knows another.
        leader: Option<String>,
    },
}

impl StreamError {
    /// A limit of that name and value was reached.
    pub(crate) fn limit(limit: &'static str, value: u64, message: &'static str) -> Self {
        Self::Limit { limit, value, message }
    }

    /// This node does not serve; where clients reach the leader, if it is known.
    pub(crate) fn unavailable(message: impl Into<String>, leader: Option<&str>) -> Self {
        Self::Unavailable { message: message.into(), leader: leader.map(str::to_owned) }
    }
}

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
