//! The members as their leader knows them, for operators.

use openraft::Instant as _;
use openraft::async_runtime::watch::WatchReceiver;

use super::membership::{Changes, is_joint};
use super::peers::Progress;
use crate::members::{ClusterStatus, Member, MemberStatus, MembershipError};

impl Changes {
    /// The members as this node knows them, if it leads.
    pub(super) fn status(&self) -> Result<ClusterStatus, MembershipError> {
        let Some(tenure) = self.role.borrow().tenure() else { return Err(self.not_leader()) };
        let metrics = self.raft.metrics().borrow_watched().clone();
        let membership = &metrics.membership_config;
        let votes: Vec<u64> = membership.voter_ids().collect();
        let members = membership.nodes().map(|(id, node)| {
            let member = self.peers.as_configured(node.member(*id));
            self.member_status(member, votes.contains(id))
        });
        let quorum = metrics.last_quorum_acked.as_ref().map(|acked| millis(acked.elapsed()));
        let alone = votes == [self.node_id];
        let unsettled = metrics.committed_membership_config != metrics.membership_config;
        Ok(ClusterStatus {
            cluster: self.peers.me.cluster().map(|(cluster, _)| cluster),
            leader: self.node_id,
            term: tenure.get(),
            millis_since_quorum: if alone { Some(0) } else { quorum },
            changing: unsettled || is_joint(membership) || self.one_at_a_time.try_lock().is_err(),
            highest_node_id: self.shared.roll().highest(),
            members: members.collect(),
        })
    }

    fn member_status(&self, member: Member, votes: bool) -> MemberStatus {
        let node_id = member.node_id;
        let own = node_id == self.node_id;
        let said = if own { Some(self.own_progress()) } else { self.heard.progress(node_id) };
        let said = said.unwrap_or_default();
        MemberStatus {
            member,
            votes,
            silent_ms: if own { Some(0) } else { self.silent_for(node_id).map(millis) },
            answers: self.answers(node_id),
            last_log: if own { said.last_log } else { self.matched(node_id) },
            lag: self.lag(node_id),
            applied: said.applied,
            snapshot: said.snapshot,
            version: Some(said.version).filter(|version| !version.is_empty()),
        }
    }

    fn own_progress(&self) -> Progress {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        Progress {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            last_log: metrics.last_log_index,
            applied: self.shared.applied().borrow().map(|id| id.index),
            snapshot: metrics.snapshot.map(|id| id.index),
        }
    }
}

fn millis(length: std::time::Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}
