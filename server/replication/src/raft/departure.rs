//! How a node learns that it was removed, and stops.
//!
//! No member sends it anything once the change is appended, so it may not see the entry that
//! removes it. Meanwhile it does not disturb the others: before an election it asks whether it
//! would be elected, and a member that receives messages of a leader answers no. So a node without
//! messages of a leader asks the members it knows, once a second, whether it was removed. Each
//! answers from what is committed and applied. A spent id stays spent, so the answer of one member
//! is enough, however far behind it is.

use std::sync::Arc;
use std::time::Duration;

use holdfast_runtime::Runtime;
use openraft::async_runtime::watch::WatchReceiver;
use tokio::sync::watch;

use super::Member;
use super::fault::{Fault, FaultSlot};
use super::formation::own_cluster;
use super::handler::{LeaderContact, Raft, millis};
use super::machine::Replicated;
use super::peers::Peers;
use crate::consensus::Role;

/// Time between two checks.
const EVERY: Duration = Duration::from_secs(1);

pub(super) struct Departure {
    pub(super) raft: Raft,
    pub(super) shared: Arc<Replicated>,
    pub(super) role: watch::Receiver<Role>,
    pub(super) contact: Arc<LeaderContact>,
    pub(super) peers: Peers,
    pub(super) faults: FaultSlot,
    pub(super) runtime: Runtime,
    /// A leader that is silent for longer may have stopped sending to this node.
    pub(super) patience: Duration,
}

impl Departure {
    /// Checks until the node was removed, or the task is dropped.
    pub(super) async fn run(self) {
        loop {
            self.runtime.sleep(EVERY).await;
            if let Some(told_by) = self.removed_by_whose_word().await {
                self.faults.report(Fault::Removed { node_id: self.peers.me.node_id, told_by });
                return;
            }
        }
    }

    async fn removed_by_whose_word(&self) -> Option<u64> {
        // A leader that was removed first hands leadership over.
        if self.role.borrow().tenure().is_some() {
            return None;
        }
        let own = self.peers.me.node_id;
        if self.shared.roll().is_spent(own) {
            return Some(own);
        }
        let cluster = self.peers.me.cluster()?;
        let patience = millis(self.patience);
        if self.contact.millis_since().is_some_and(|silent| silent <= patience) {
            return None;
        }
        for member in self.others() {
            let Ok(hello) = self.peers.hello(&member, EVERY).await else { continue };
            if hello.removed && own_cluster(&hello, cluster) {
                return Some(member.node_id);
            }
        }
        None
    }

    /// All nodes that may know: the members in this node's log, and those in its settings.
    fn others(&self) -> Vec<Member> {
        let mut others: Vec<Member> = self.peers.configured.to_vec();
        let metrics = self.raft.server_metrics();
        for (id, node) in metrics.borrow_watched().membership_config.nodes() {
            if !others.iter().any(|known| known.node_id == *id) {
                others.push(node.member(*id));
            }
        }
        others.retain(|member| member.node_id != self.peers.me.node_id);
        others
    }
}
