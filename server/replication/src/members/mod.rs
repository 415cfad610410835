//! The members of the cluster, as the layers above replication see them: queried and changed.
//!
//! `raft/` implements [`Members`]; the port for clients serves it to operators.

mod error;

use std::fmt;

use holdfast_proto::v1::PeerHeader;
use holdfast_runtime::BoxFuture;

pub use self::error::{MembershipError, MembershipRefusal};
use crate::storage::ClusterId;

/// Most members, learners among them. With more, every commit would wait for more disks, for nothing:
/// nine voters survive the loss of four.
pub const MEMBERS_MAX: usize = 9;

/// A member of the cluster: its id, and where it is reached.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// Its node id.
    pub node_id: u64,
    /// Where clients reach it, `host:port`.
    pub advertise: String,
    /// Where other members reach it, `host:port`.
    pub peer_advertise: String,
}

/// A change of the members, or of the leader, requested by an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds a member as a learner: it gets a snapshot, then the log, and does not vote. The node must
    /// run and wait for it (`join` in its settings). Done when the entry is applied here; the learner
    /// catches up in the background.
    AddLearner(Member),
    /// Makes a learner that has nearly caught up a voter.
    Promote {
        /// The learner.
        node_id: u64,
    },
    /// Removes a member for ever: its id is never used again. A leader that is asked to remove itself
    /// hands leadership over and answers [`MembershipError::NotLeader`]: the next leader removes it.
    Remove {
        /// The member.
        node_id: u64,
    },
    /// Hands leadership over, and waits until the new leader leads. Meanwhile commands are refused as by
    /// a node that does not lead, for no longer than an election takes. [`MembershipError::NotLeader`]
    /// also if another node than intended leads now.
    TransferLeader {
        /// The new leader; `None`: any voter that has caught up.
        to: Option<u64>,
    },
}

/// The members, and how they change. Only the leader answers.
pub trait Members: Send + Sync + 'static {
    /// The members as this node knows them, if it leads. Quick.
    ///
    /// # Errors
    ///
    /// [`MembershipError::NotLeader`].
    fn members(&self) -> Result<ClusterStatus, MembershipError>;

    /// Makes a change, one at a time. Repeating a change is no error. Ends in bounded time; cancel safe:
    /// a change that was begun is finished.
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

/// What a node has to know of the others to pass clients' calls on to the one that leads (DESIGN §15).
pub trait PeerView: Send + Sync + 'static {
    /// The leader, if another member leads and this node knows it. Quick.
    fn leader(&self) -> Option<Member>;

    /// What a message to a member has to carry first.
    fn header(&self, to: u64) -> PeerHeader;

    /// Checks that a message comes from a member of this cluster and is meant for this node (I22).
    ///
    /// # Errors
    ///
    /// What differs, in words.
    fn admit(&self, header: Option<&PeerHeader>) -> Result<(), String>;
}

impl fmt::Debug for dyn PeerView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerView")
    }
}

/// A cluster as its leader knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterStatus {
    /// The cluster.
    pub cluster: Option<ClusterId>,
    /// The leader: the node that answers.
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
    /// Its id and where it is reached.
    pub member: Member,
    /// Whether it votes; a learner does not.
    pub votes: bool,
    /// Milliseconds since it last acknowledged the leader; 0 for the leader itself. `None` if it has not
    /// done so in this leader's tenure.
    pub silent_ms: Option<u64>,
    /// Whether that was recent enough to rely on the member.
    pub answers: bool,
    /// The last entry known to be in its log.
    pub last_log: Option<u64>,
    /// How many of the leader's entries it lacks.
    pub lag: u64,
    /// The last entry it has applied, as of about a second ago.
    pub applied: Option<u64>,
    /// The last entry in its newest snapshot, as of about a second ago.
    pub snapshot: Option<u64>,
    /// Its release; `None` if the leader has not asked it yet.
    pub version: Option<String>,
}
