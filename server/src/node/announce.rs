//! Tells people, in the log, what becomes of the node.

use std::sync::Arc;

use crate::consensus::{Consensus, Role};
use crate::raft::{Forming, Replica};

/// Says whenever it changes whether the cluster is formed and who leads. Runs until the replica
/// is gone.
pub(super) async fn announce(replica: Arc<Replica>) {
    let mut role = replica.role();
    let mut forming = replica.forming();
    loop {
        let now = forming.borrow_and_update().clone();
        match now {
            Forming::Waiting { reason } => tracing::info!("forming the cluster: {reason}"),
            Forming::Formed => tell(&replica, &role.borrow_and_update()),
        }
        let open = holdfast_seams::select! {
            changed = forming.changed() => changed.is_ok(),
            changed = role.changed() => changed.is_ok(),
        };
        if !open {
            return;
        }
    }
}

fn tell(replica: &Replica, role: &Role) {
    let cluster = replica.status().cluster.map(|id| id.to_string()).unwrap_or_default();
    match role {
        Role::Leading { tenure } => tracing::info!(cluster, term = tenure.get(), "this node leads"),
        Role::Following { leader: Some(leader) } => tracing::info!(
            cluster,
            "node {} leads; clients are sent to {}",
            leader.node_id,
            leader.advertise
        ),
        Role::Following { leader: None } => tracing::info!(cluster, "no leader is known"),
    }
}
