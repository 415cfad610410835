//! Who belongs to the cluster, as the layers above replication see it: asked for and changed.
//!
//! `raft/` implements [`Members`]; the port for clients serves it to operators.

mod error;

use std::fmt;

use holdfast_seams::BoxFuture;

pub use self::error::{MembershipError, MembershipRefusal};
use crate::storage::ClusterId;

/// Most members, learners among them. More would make every commit wait for more disks, for
/// nothing: nine voters survive the loss of four.
pub const MEMBERS_MAX: usize = 9;

/// A member of the cluster: who it is, and where it is reached.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// Its node id.
    pub node_id: u64,
    /// Where clients reach it, `host:port`.
    pub advertise: String,
    /// Where other members reach it, `host:port`.
    pub peer_advertise: String,
}

/// A change of the members, or of who leads them, as an operator asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds a member that does not vote.
    AddLearner(Member),
    /// Makes a learner a voter.
    Promote {
        /// The learner.
        node_id: u64,
    },
    /// Removes a member, for ever under this id.
    Remove {
        /// The member.
        node_id: u64,
    },
    /// Hands leadership over.
    TransferLeader {
        /// To whom; `None`: to any voter that has caught up.
        to: Option<u64>,
    },
}

/// Who the members are, and how that changes. Answered by the leader only.
pub trait Members: Send + Sync + 'static {
    /// The members as this node knows them, if it leads. Quick.
    ///
    /// # Errors
    ///
    /// [`MembershipError::NotLeader`].
    fn members(&self) -> Result<ClusterStatus, MembershipError>;

    /// Makes a change, one at a time. That it was made before is no error. Ends in time; cancel
    /// safe: a change that was begun is finished.
    ///
    /// # Errors
    ///
    /// [`MembershipError`] says what is certain.
    fn change(&self, change: Change) -> BoxFuture<'_, Result<(), MembershipError>>;
}

impl fmt::Debug for dyn Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Members")
    }
}

/// A cluster as its leader knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterStatus {
    /// The cluster.
    pub cluster: Option<ClusterId>,
    /// Who leads: the node that answers.
    pub leader: u64,
    /// The term it leads in.
    pub term: u64,
    /// Milliseconds since a quorum last acknowledged it; 0 if it is a quorum alone.
    pub millis_since_quorum: Option<u64>,
    /// Whether a change of the members is under way.
    pub changing: bool,
    /// The highest node id that was ever a member's: a new one's is above it (I22).
    pub highest_node_id: u64,
    /// The members, by rising id.
    pub members: Vec<MemberStatus>,
}

/// A member as its leader knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Who it is and where it is reached.
    pub member: Member,
    /// Whether it votes; a learner does not.
    pub votes: bool,
    /// Milliseconds since it last acknowledged the leader; 0 for the leader itself. `None` if it
    /// never did since this leader leads.
    pub silent_ms: Option<u64>,
    /// Whether that was lately enough to count on it.
    pub answers: bool,
    /// The last entry known to be in its log.
    pub last_log: Option<u64>,
    /// How many of the leader's entries it is short of.
    pub lag: u64,
    /// The last entry it has applied, as of about a second ago.
    pub applied: Option<u64>,
    /// The last entry in its newest snapshot, as of about a second ago.
    pub snapshot: Option<u64>,
    /// Its release; `None` if it was not asked yet.
    pub version: Option<String>,
}
