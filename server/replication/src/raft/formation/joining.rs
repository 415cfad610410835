//! How a node becomes a member of an existing cluster.
//!
//! ```text
//! leader                             the new node, started with --join
//! ------                             ---------------------------------
//!                                    asks the members it knows: was my id ever used?
//! cluster add N … from an operator
//! Hello ──────────────────────────▶  its start id; "waiting to be added"
//! a quorum confirms: still leads
//! N above every id ever used?
//! Promise with that start id ─────▶  the same start? the same addresses?
//! answers Hello  ◀─────────────────  do I reach you, are you of that cluster?
//!                ◀─────────────────  promised (guard, synced), and to nothing else
//! appends "N is a learner"
//! snapshot, then the log ─────────▶  applies it
//! ```
//!
//! # Why no node votes twice under one id (I20, I22)
//!
//! - A node votes, and takes entries, only once it has promised itself. With an empty folder it
//!   promises at the first start of its cluster, or on an invitation, and an invitation counts only
//!   for the start of the process that it names.
//! - The leader invites after three steps: the node introduced itself with that start; then a
//!   quorum confirmed the leader, which had applied all that was committed before; and there the id
//!   was above every id ever used ([`Roll`](crate::raft::machine::Roll)).
//! - Suppose a node had voted under this id with a folder that is gone. It voted as a member, so an
//!   entry that names the id was committed before the folder was lost, before this process started
//!   on an empty one, and before the leader was confirmed. Then the leader would not have invited.
//! - A folder that has promised and is lost before the entry is committed leaves nothing behind: as
//!   long as no committed entry names the id, no node counts its votes.
//!
//! So a wiped node comes back only under a new id. Repeating a step changes nothing: a node that
//! has promised gives the same answer again, and the leader adds a member once.

use std::time::Duration;

use holdfast_proto::v1 as proto;

use super::Formation;
use crate::raft::Member;
use crate::raft::fault::Fault;
use crate::raft::wire::member_from_wire;
use crate::storage::ClusterId;

/// How long a node that was admitted waits to be added: a leader gives up after ten seconds, or is gone. From the
/// first message of a leader on it has a vote in its folder, and no longer waits for this.
const ADDED_WITHIN: Duration = Duration::from_secs(30);

impl Formation {
    /// Waits for the invitation, and then for the first entries. Meanwhile it checks whether its id
    /// can still become a member's.
    pub(super) async fn wait_to_be_added(&self) -> Result<(), Fault> {
        let since = self.runtime.clock.now();
        while !self.has_history() {
            let waited = self.runtime.clock.now().saturating_since(since);
            if self.is_admitted && waited >= ADDED_WITHIN {
                let (node_id, waited_s) = (self.peers.me.node_id, waited.as_secs());
                return Err(Fault::NotAdded { node_id, waited_s });
            }
            self.look_for_own_id().await?;
            let reason = match self.peers.me.cluster() {
                _ if self.is_admitted => "admitted; waits for the leader to add it".to_owned(),
                None => format!("waits to be added: run `{}`", self.words_to_add()),
                Some(_) => format!(
                    "promised; waits for the entries of the leader. If none come, run `{}` again",
                    self.words_to_add()
                ),
            };
            self.wait(reason).await;
        }
        Ok(())
    }

    fn words_to_add(&self) -> String {
        let own =
            self.peers.configured.iter().find(|member| member.node_id == self.peers.me.node_id);
        let addresses = own.map(|own| {
            format!(" --advertise {} --peer-advertise {}", own.advertise, own.peer_advertise)
        });
        format!("holdfast cluster add {}{}", self.peers.me.node_id, addresses.unwrap_or_default())
    }

    async fn look_for_own_id(&self) -> Result<(), Fault> {
        for member in self.others() {
            let Ok(hello) = self.hello(member).await else { continue };
            let node_id = self.peers.me.node_id;
            let told_by = member.node_id;
            match self.peers.me.cluster() {
                // The promise comes before the entry: an id that is used without this promise
                // belongs to another node.
                None if hello.highest_node_id >= node_id => {
                    let highest = hello.highest_node_id;
                    return Err(Fault::IdUsed { node_id, highest, told_by });
                }
                Some(own) if own_cluster(&hello, own) && hello.removed => {
                    return Err(Fault::Removed { node_id, told_by });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Considers an invitation: promises this node to the cluster that adds it, or returns why not.
    pub(super) async fn invited(&self, request: &proto::PromiseRequest) -> Result<(), String> {
        let inviter = self.check_invitation(request)?;
        let id: [u8; 16] = (&*request.cluster_id)
            .try_into()
            .map_err(|_| "the cluster id is not 16 bytes long".to_owned())?;
        let wanted = (ClusterId(id), request.incarnation);
        let _one_at_a_time = self.promising.lock().await;
        if let Some(promised) = self.peers.me.cluster() {
            return if promised == wanted {
                Ok(())
            } else {
                let (cluster, incarnation) = promised;
                Err(format!(
                    "this node is promised to cluster {cluster}, incarnation {incarnation}, and \
                     to no other"
                ))
            };
        }
        // This node must reach the one that adds it: votes and questions go this way.
        let hello = self.hello(&inviter).await.map_err(|why| {
            format!(
                "node {} cannot reach the leader ({why}); the leader's peer_advertise must lead \
                 to its peer_listen from here",
                self.peers.me.node_id
            )
        })?;
        if !own_cluster(&hello, wanted) {
            return Err(format!("node {} is not of the cluster that invites", inviter.node_id));
        }
        let members: Vec<Member> = request.members.iter().cloned().map(member_from_wire).collect();
        let (cluster, incarnation) = wanted;
        self.promise_self(cluster, incarnation, &members).await.map_err(|error| error.to_string())
    }

    /// Checks that the invitation is meant for this start of this node, with the addresses it has;
    /// returns the member that invites.
    fn check_invitation(&self, request: &proto::PromiseRequest) -> Result<Member, String> {
        let own_id = self.peers.me.node_id;
        if request.to_node != own_id {
            return Err(format!("this is node {own_id}, not {}", request.to_node));
        }
        if !self.joining {
            return Err(format!(
                "node {own_id} was not started to join a cluster; start it with --join"
            ));
        }
        if request.start_id.as_deref() != Some(&self.start_id) {
            return Err("the invitation was for another start of this node".to_owned());
        }
        let member = |node_id: u64| {
            let found = request.members.iter().find(|member| member.node_id == node_id);
            found.cloned().map(member_from_wire)
        };
        let own = self.peers.configured.iter().find(|member| member.node_id == own_id);
        let theirs = member(own_id);
        if theirs.as_ref() != own {
            let shown = |member: Option<&Member>| {
                member.map_or_else(|| "none".to_owned(), |m| super::names(std::slice::from_ref(m)))
            };
            return Err(format!(
                "its addresses are given differently: in the command {}, in its settings {}",
                shown(theirs.as_ref()),
                shown(own),
            ));
        }
        member(request.from_node)
            .ok_or_else(|| format!("node {} invites and is no member", request.from_node))
    }
}

/// Whether the node that answers belongs to this incarnation of this cluster.
pub(in crate::raft) fn own_cluster(
    hello: &proto::HelloResponse,
    (cluster, incarnation): (ClusterId, u64),
) -> bool {
    hello.cluster_id.as_deref() == Some(&cluster.0) && hello.incarnation == incarnation
}
