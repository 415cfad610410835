//! Reports the node's progress to people, in the log.

use std::sync::Arc;

use crate::consensus::{Consensus, Role};
use crate::raft::{Forming, Replica};

/// Logs each change of what the first start waits for, and later each change of the leader. Runs until
/// the replica is gone.
pub(super) async fn announce(replica: Arc<Replica>) {
    let mut role = replica.role();
    let mut forming = replica.forming();
    let mut leader_was_known = false;
    loop {
        let open = holdfast_runtime::select! {
            changed = forming.changed() => changed.is_ok(),
            changed = role.changed() => changed.is_ok(),
        };
        if !open {
            return;
        }
        if let Forming::Waiting { reason } = &*forming.borrow_and_update() {
            tracing::info!("forming the cluster: {reason}");
            continue;
        }
        let role = role.borrow_and_update();
        let leader_is_known = !matches!(*role, Role::Following { leader: None });
        // At the start there is never a leader: not worth a line.
        if leader_is_known || leader_was_known {
            tell(&replica, &role);
        }
        leader_was_known = leader_is_known;
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
