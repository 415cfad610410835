//! Why a proposal or a read failed, and what is certain then.

use holdfast_core::{Missing, SessionId};

use crate::consensus::LeaderHint;

/// Why a proposal ended without an outcome.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// This node does not lead. Nothing was appended; ask the leader.
    #[error("this node does not lead")]
    NotLeader {
        /// The leader when this was answered, if it is known.
        leader: Option<LeaderHint>,
    },
    /// As many commands wait to be proposed as allowed. Nothing was appended.
    #[error(
        "too many commands wait to be proposed (max_pending_commands is {limit}, an eighth of it is kept for what frees); try \
         again later"
    )]
    Overloaded {
        /// The limit.
        limit: usize,
    },
    /// The commands that wait to be proposed take as many bytes as allowed. Nothing was appended.
    #[error(
        "the commands that wait to be proposed take too many bytes (max_pending_bytes is {limit}, an eighth of it is kept for \
         what frees); try again later"
    )]
    OverloadedBytes {
        /// The limit.
        limit: usize,
    },
    /// As many commands of one session wait as it may have in the queue. Nothing was appended.
    #[error(
        "too many commands of session {session} wait to be proposed, {limit} at most, its share of max_pending_commands; \
         send fewer at once"
    )]
    SessionOverloaded {
        /// The session.
        session: SessionId,
        /// How many of its commands may wait.
        limit: usize,
    },
    /// The commands of one session that wait take as many bytes as it may have in the queue. Nothing
    /// was appended.
    #[error(
        "the commands of session {session} that wait to be proposed take too many bytes, {limit} at most, its share of \
         max_pending_bytes; send fewer at once"
    )]
    SessionOverloadedBytes {
        /// The session.
        session: SessionId,
        /// How many bytes of its commands may wait.
        limit: usize,
    },
    /// This node's disk, or those of a majority, are below their reserve; only commands that free or end
    /// something are proposed. Nothing was appended.
    #[error(
        "the disk reserve (reserve_bytes) is reached; only what frees or ends things is accepted"
    )]
    DiskReserve,
    /// A member has not reported that it knows this version of the command (I29). Nothing was appended.
    #[error(
        "no member may be without command version {version}, and one has not said that it knows it: it is down, or of an \
         older build; start or upgrade it, and ask again"
    )]
    VersionNotKnown {
        /// The command's version.
        version: u16,
    },
    /// The caller has no right to it (DESIGN §14). Nothing was appended.
    #[error("not allowed: {0}")]
    Forbidden(Missing),
    /// No quorum answered in time. For a read or a confirmation: nothing happened.
    #[error("no quorum answers (waited {waited_ms} ms)")]
    Unavailable {
        /// How long the caller waited, milliseconds.
        waited_ms: u64,
    },
    /// The command was appended but not seen to commit in time, or leadership was lost meanwhile.
    /// It may still take effect.
    #[error("no outcome within {waited_ms} ms; the command may still take effect")]
    OutcomeUnknown {
        /// How long the caller waited, milliseconds.
        waited_ms: u64,
    },
    /// The node stops. The command may have been appended before.
    #[error("the node stops")]
    ShuttingDown,
}

impl ProposeError {
    /// Whether the command is certain never to take effect.
    #[must_use]
    pub fn is_certainly_not_applied(&self) -> bool {
        match self {
            Self::NotLeader { .. }
            | Self::Overloaded { .. }
            | Self::OverloadedBytes { .. }
            | Self::SessionOverloaded { .. }
            | Self::SessionOverloadedBytes { .. }
            | Self::DiskReserve
            | Self::VersionNotKnown { .. }
            | Self::Forbidden(_)
            | Self::Unavailable { .. } => true,
            Self::OutcomeUnknown { .. } | Self::ShuttingDown => false,
        }
    }
}
