//! The members of a cluster: reads and changes, for operators.

use std::time::Duration;

use holdfast_proto::v1;

use crate::transport::operator::Services;
use crate::{Admin, Result};

/// A cluster as its leader reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterStatus {
    /// The cluster's id, 16 bytes.
    pub cluster: Vec<u8>,
    /// The leader.
    pub leader: u64,
    /// The Raft term.
    pub term: u64,
    /// The time since a quorum last acknowledged the leader; `None`: not yet in this term.
    pub quorum: Option<Duration>,
    /// Whether a change of membership is under way.
    pub changing: bool,
    /// The highest node id that any member ever had. A new member needs a higher one.
    pub highest_node_id: u64,
    /// The members, by rising id.
    pub members: Vec<ClusterMember>,
    /// In how long the cluster grants locks again, if it was restored from a backup and grants nothing yet.
    pub grants_in: Option<Duration>,
}

/// A member as its leader reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterMember {
    /// Its id.
    pub node: u64,
    /// Its endpoint for clients.
    pub advertise: String,
    /// Its endpoint for the other members.
    pub peer_advertise: String,
    /// Whether it votes; a learner does not.
    pub votes: bool,
    /// Whether it leads.
    pub leads: bool,
    /// The last entry known to be in its log.
    pub last_log: Option<u64>,
    /// The last entry it has applied, as of about a second ago.
    pub applied: Option<u64>,
    /// The last entry in its newest snapshot, as of about a second ago.
    pub snapshot: Option<u64>,
    /// How many of the leader's entries it still lacks.
    pub lag: u64,
    /// The time since it last acknowledged the leader; `None`: never in this tenure.
    pub silent: Option<Duration>,
    /// Whether that was recent enough for the leader to count on it.
    pub answers: bool,
    /// Its release, if the leader has asked for it already.
    pub version: Option<String>,
}

impl Admin {
    /// The members as the leader reports them.
    ///
    /// # Errors
    ///
    /// As of [`Admin`].
    pub async fn cluster(&self) -> Result<ClusterStatus> {
        let request = v1::ClusterStatusRequest {};
        let ask = |mut at: Services| async move { at.cluster.cluster_status(request).await };
        Ok(ClusterStatus::from_wire(self.ask("the members", false, ask).await?))
    }

    /// Adds node `node` as a learner, which does not vote. The node has to run, wait to be added
    /// (`holdfastd --join`) and have these addresses in its settings.
    ///
    /// # Errors
    ///
    /// As of [`Admin`].
    pub async fn add_learner(
        &self,
        node: u64,
        advertise: &str,
        peer_advertise: &str,
    ) -> Result<()> {
        let request = v1::AddLearnerRequest {
            node_id: node,
            advertise: advertise.to_owned(),
            peer_advertise: peer_advertise.to_owned(),
        };
        let add = |mut at: Services| {
            let request = request.clone();
            async move { at.cluster.add_learner(request).await }
        };
        self.ask("adding a member", true, add).await.map(drop)
    }

    /// Promotes a learner that has nearly caught up to a voter.
    ///
    /// # Errors
    ///
    /// As of [`Admin`].
    pub async fn promote(&self, node: u64) -> Result<()> {
        let request = v1::PromoteRequest { node_id: node };
        let promote = |mut at: Services| async move { at.cluster.promote(request).await };
        self.ask("promoting a member", true, promote).await.map(drop)
    }

    /// Removes a member, for ever under this id. A leader transfers its leadership first.
    ///
    /// # Errors
    ///
    /// As of [`Admin`].
    pub async fn remove_member(&self, node: u64) -> Result<()> {
        let request = v1::RemoveRequest { node_id: node };
        let remove = |mut at: Services| async move { at.cluster.remove(request).await };
        self.ask("removing a member", true, remove).await.map(drop)
    }

    /// Transfers leadership to voter `to`, or to any voter that has caught up. Without `to`, a
    /// retry after a lost answer transfers it once more.
    ///
    /// # Errors
    ///
    /// As of [`Admin`].
    pub async fn transfer_leader(&self, to: Option<u64>) -> Result<()> {
        let request = v1::TransferLeadershipRequest { to };
        let transfer = |mut at: Services| async move { at.cluster.transfer_leader(request).await };
        self.ask("handing leadership over", true, transfer).await.map(drop)
    }
}

impl ClusterStatus {
    pub(crate) fn from_wire(status: v1::ClusterStatusResponse) -> Self {
        Self {
            cluster: status.cluster_id.to_vec(),
            leader: status.leader_id,
            term: status.term,
            quorum: status.quorum_ms.map(Duration::from_millis),
            changing: status.changing,
            highest_node_id: status.highest_node_id,
            members: status.members.into_iter().map(ClusterMember::from_wire).collect(),
            grants_in: status.grants_in_ms.map(Duration::from_millis),
        }
    }
}

impl ClusterMember {
    pub(crate) fn from_wire(member: v1::ClusterMember) -> Self {
        Self {
            node: member.node_id,
            advertise: member.advertise,
            peer_advertise: member.peer_advertise,
            votes: member.votes,
            leads: member.leads,
            last_log: member.last_log_index,
            applied: member.applied_index,
            snapshot: member.snapshot_index,
            lag: member.lag,
            silent: member.silent_ms.map(Duration::from_millis),
            answers: member.answers,
            version: member.version,
        }
    }
}
