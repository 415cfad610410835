//! Who belongs to a cluster: asked for and changed, by operators.

use std::fmt;
use std::time::Duration;

use holdfast_proto::v1;
use holdfast_seams::Seams;

use crate::Result;
use crate::operator::Operator;
use crate::transport::operator as calls;

/// Asks the leader about the members, and changes them. Needs no session.
///
/// Whoever leads is found from any endpoint, and again if that changes. Every change is asked for by
/// its end ("node 4 is a voter"), so asking twice is harmless, and a call that was not answered is
/// asked again within the limit.
///
/// ```no_run
/// # async fn example() -> holdfast::Result<()> {
/// use std::time::Duration;
///
/// let builder = holdfast::Client::builder().endpoints("10.0.0.1:7420,10.0.0.2:7420")?;
/// let admin = builder.cluster_admin(Duration::from_secs(15));
/// // Node 4 was started with --join.
/// admin.add_learner(4, "10.0.0.4:7420", "10.0.0.4:7421").await?;
/// while admin.status().await?.members.iter().any(|member| member.node == 4 && member.lag > 100) {
///     tokio::time::sleep(Duration::from_secs(1)).await;
/// }
/// admin.promote(4).await?;
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// Of every call: [`Error::Refused`](crate::Error::Refused), nothing was changed and the message says what to do;
/// [`Error::Unreachable`](crate::Error::Unreachable), no leader answered within the limit and nothing was changed;
/// [`Error::OutcomeUnknown`](crate::Error::OutcomeUnknown), the change may still take effect.
#[derive(Clone)]
pub struct ClusterAdmin {
    operator: Operator,
}

/// A cluster as its leader knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterStatus {
    /// The cluster's id, 16 bytes.
    pub cluster: Vec<u8>,
    /// Who leads.
    pub leader: u64,
    /// The Raft term.
    pub term: u64,
    /// Since a quorum last acknowledged the leader; `None`: not yet in this term.
    pub quorum: Option<Duration>,
    /// Whether a change of the members is under way.
    pub changing: bool,
    /// The highest node id that was ever a member's. A new member's is above it.
    pub highest_node_id: u64,
    /// The members, by rising id.
    pub members: Vec<ClusterMember>,
}

/// A member as its leader knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterMember {
    /// Its id.
    pub node: u64,
    /// Where clients reach it.
    pub advertise: String,
    /// Where the other members reach it.
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
    /// How many of the leader's entries it is short of.
    pub lag: u64,
    /// Since it last acknowledged the leader; `None`: never since this one leads.
    pub silent: Option<Duration>,
    /// Whether that was lately enough to count on it.
    pub answers: bool,
    /// Its release, if it was asked already.
    pub version: Option<String>,
}

impl ClusterAdmin {
    pub(crate) fn new(endpoints: Vec<String>, seams: Seams, limit: Duration) -> Self {
        Self { operator: Operator::new(endpoints, seams, limit) }
    }

    /// The members as the leader knows them.
    ///
    /// # Errors
    ///
    /// As of [`ClusterAdmin`].
    pub async fn status(&self) -> Result<ClusterStatus> {
        let status = self.operator.ask("the members", false, calls::status).await?;
        Ok(ClusterStatus::from(status))
    }

    /// Adds node `node` as a learner, which does not vote. It has to run, wait for it
    /// (`holdfastd --join`) and have these addresses in its settings.
    ///
    /// # Errors
    ///
    /// As of [`ClusterAdmin`].
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
        let add = |endpoint| calls::add_learner(endpoint, request.clone());
        self.operator.ask("adding a member", true, add).await.map(drop)
    }

    /// Makes a learner that has nearly caught up a voter.
    ///
    /// # Errors
    ///
    /// As of [`ClusterAdmin`].
    pub async fn promote(&self, node: u64) -> Result<()> {
        let request = v1::PromoteRequest { node_id: node };
        self.operator
            .ask("promoting a member", true, |endpoint| calls::promote(endpoint, request))
            .await
            .map(drop)
    }

    /// Removes a member, for ever under this id. A leader hands its leadership over first.
    ///
    /// # Errors
    ///
    /// As of [`ClusterAdmin`].
    pub async fn remove(&self, node: u64) -> Result<()> {
        let request = v1::RemoveRequest { node_id: node };
        self.operator
            .ask("removing a member", true, |endpoint| calls::remove(endpoint, request))
            .await
            .map(drop)
    }

    /// Hands leadership to voter `to`, or to any that has caught up. Without `to`, what is asked
    /// again after an answer was lost hands it over once more.
    ///
    /// # Errors
    ///
    /// As of [`ClusterAdmin`].
    pub async fn transfer_leader(&self, to: Option<u64>) -> Result<()> {
        let request = v1::TransferLeadershipRequest { to };
        let transfer = |endpoint| calls::transfer_leader(endpoint, request);
        self.operator.ask("handing leadership over", true, transfer).await.map(drop)
    }
}

impl fmt::Debug for ClusterAdmin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterAdmin").field("operator", &self.operator).finish()
    }
}

impl From<v1::ClusterStatusResponse> for ClusterStatus {
    fn from(status: v1::ClusterStatusResponse) -> Self {
        Self {
            cluster: status.cluster_id.to_vec(),
            leader: status.leader_id,
            term: status.term,
            quorum: status.quorum_ms.map(Duration::from_millis),
            changing: status.changing,
            highest_node_id: status.highest_node_id,
            members: status.members.into_iter().map(ClusterMember::from).collect(),
        }
    }
}

impl From<v1::ClusterMember> for ClusterMember {
    fn from(member: v1::ClusterMember) -> Self {
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
