//! Why a change of the members was not made, and what is certain then.

use super::Member;
use crate::consensus::LeaderHint;
use crate::error::ProposeError;

/// Why a change of the members, or of the leader, was not made.
///
/// Repeating a change is always harmless: every change is described by its end state, so one that was
/// made already is answered as done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembershipError {
    /// This node does not lead, or handed its leadership over so that the leader can do it. Nothing
    /// was changed; ask the leader.
    #[error("this node does not lead; ask the leader")]
    NotLeader {
        /// The leader, if it is known.
        leader: Option<LeaderHint>,
    },
    /// Another change is not finished: one at a time. Nothing was changed.
    #[error("another change of the members is under way; ask again when it is finished")]
    Busy,
    /// The change is refused. Nothing was changed.
    #[error(transparent)]
    Refused(#[from] MembershipRefusal),
    /// No quorum answered. Nothing was changed.
    #[error("no quorum answers (waited {waited_ms} ms); nothing was changed")]
    Unavailable {
        /// How long the leader waited, milliseconds.
        waited_ms: u64,
    },
    /// The change was begun and not seen to end in time, or leadership was lost meanwhile. It may still
    /// take effect.
    #[error(
        "no outcome within {waited_ms} ms; the change may still take effect, and asking again is \
         harmless"
    )]
    OutcomeUnknown {
        /// How long the leader waited, milliseconds.
        waited_ms: u64,
    },
    /// The node stops. The change may have been begun before.
    #[error("the node stops; the change may still take effect, and asking again is harmless")]
    ShuttingDown,
}

impl MembershipError {
    /// Whether the change is certain never to take effect.
    #[must_use]
    pub fn is_certainly_not_made(&self) -> bool {
        match self {
            Self::NotLeader { .. } | Self::Busy | Self::Refused(_) | Self::Unavailable { .. } => {
                true
            }
            Self::OutcomeUnknown { .. } | Self::ShuttingDown => false,
        }
    }

    /// The error of a question to a quorum that was not answered before anything was changed.
    pub(crate) fn of_question(error: ProposeError) -> Self {
        match error {
            ProposeError::NotLeader { leader } => Self::NotLeader { leader },
            ProposeError::Unavailable { waited_ms }
            | ProposeError::OutcomeUnknown { waited_ms } => Self::Unavailable { waited_ms },
            ProposeError::Overloaded { .. }
            | ProposeError::OverloadedBytes { .. }
            | ProposeError::SessionOverloaded { .. }
            | ProposeError::SessionOverloadedBytes { .. }
            | ProposeError::DiskReserve
            | ProposeError::Forbidden(_)
            | ProposeError::VersionNotKnown { .. } => Self::Unavailable { waited_ms: 0 },
            ProposeError::ShuttingDown => Self::ShuttingDown,
        }
    }
}

/// Why a change of the members is refused, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembershipRefusal {
    /// The id is, or was, a member's, or lies below one that was (I22).
    #[error(
        "node id {node_id} cannot be added: ids up to {highest} were used before, and none is used \
         twice; start the node with id {} or above", highest.saturating_add(1)
    )]
    IdUsed {
        /// The id.
        node_id: u64,
        /// The highest id that was ever a member's.
        highest: u64,
    },
    /// The id belongs to a member with other addresses.
    #[error(
        "node {} is a member already, at {} for clients and {} for members; remove it first, or \
         ask with these addresses", member.node_id, member.advertise, member.peer_advertise
    )]
    OtherAddresses {
        /// The member as it is.
        member: Member,
    },
    /// Another member has the address.
    #[error("the address {address} is node {node_id}'s; every member has its own")]
    AddressTaken {
        /// The address.
        address: String,
        /// The member that has it.
        node_id: u64,
    },
    /// The limit of members is reached.
    #[error("there are {limit} members, the most there may be; remove one first")]
    TooManyMembers {
        /// The limit.
        limit: usize,
    },
    /// The node to be added does not answer at its address.
    #[error(
        "node {node_id} does not answer at {address}: {why}. Start it with --join, and see that \
         its peer port can be reached from here"
    )]
    NotReached {
        /// The node.
        node_id: u64,
        /// The address that was tried.
        address: String,
        /// What happened.
        why: String,
    },
    /// The node to be added answers, but does not join.
    #[error("node {node_id} does not join: {why}")]
    DoesNotJoin {
        /// The node.
        node_id: u64,
        /// Its reason.
        why: String,
    },
    /// The node to be added cannot read what this leader may write (I29).
    #[error(
        "node {node_id} runs release {version}, which knows commands up to version {knows}; this \
         leader writes up to {needed}. Start the node with the leader's release"
    )]
    OldRelease {
        /// The node.
        node_id: u64,
        /// Its release.
        version: String,
        /// The highest command version it knows.
        knows: u32,
        /// The version that it has to know.
        needed: u16,
    },
    /// No member has the id.
    #[error("node {node_id} is no member; `holdfast cluster status` shows who is")]
    NotAMember {
        /// The id.
        node_id: u64,
    },
    /// A learner does not lead.
    #[error("node {node_id} is a learner and cannot lead; promote it first")]
    NotAVoter {
        /// The member.
        node_id: u64,
    },
    /// The member has not answered lately.
    #[error("node {node_id} does not answer; start it, or see why it cannot be reached")]
    Silent {
        /// The member.
        node_id: u64,
    },
    /// The learner is too far behind to vote: until it has caught up it would only delay commits.
    #[error(
        "node {node_id} is {lag} entries behind, and may be at most {bound}; wait until it has \
         caught up (`holdfast cluster status` shows it)"
    )]
    Lags {
        /// The learner.
        node_id: u64,
        /// How far it is behind, entries.
        lag: u64,
        /// How far behind it may be.
        bound: u64,
    },
    /// Without the last voter there is no cluster.
    #[error("node {node_id} is the last voter; promote another member first")]
    LastVoter {
        /// The voter.
        node_id: u64,
    },
    /// After the change, the voters that answer now would be no majority: the cluster would stand still.
    #[error(
        "of the {voters} voters there would be then, only {answering} answer, and {needed} are \
         needed; bring one back, or remove one that does not answer"
    )]
    NoMajority {
        /// The number of voters after the change.
        voters: usize,
        /// How many of them answer.
        answering: usize,
        /// How many have to answer.
        needed: usize,
    },
    /// No other member can lead.
    #[error("there is no other voter that could lead; promote a member first")]
    NobodyElse,
    /// The intended leader had not caught up in time, or no voter had. This node still leads.
    #[error(
        "no voter that could take over had caught up within {waited_ms} ms; this node leads on. \
         Ask again when there is less to do"
    )]
    NobodyCaughtUp {
        /// How long the leader waited, milliseconds.
        waited_ms: u64,
    },
}
