//! The faults that stop a node: of this node alone, and never a refusal.

use std::sync::Arc;

use holdfast_core::{DecodeError, LogIndex, ReplicaFault};
use tokio::sync::watch;

/// Why this replica must stop. It answers nothing more; the process ends with this message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The state of this node differs from the leader's (I16), or an entry came twice.
    #[error(
        "{0}. Keep the data folder for inspection; replace this node by a new one under a new node id"
    )]
    Diverged(#[from] ReplicaFault),
    /// A committed entry cannot be read: written by a newer release (I29), or damaged.
    #[error(
        "log entry {index} cannot be applied: {source}. Start the release that wrote it, or replace this node by a new one under a new node id"
    )]
    Unreadable {
        /// The entry.
        index: LogIndex,
        /// What is wrong with it.
        source: DecodeError,
    },
    /// A snapshot could not be read or written.
    #[error("snapshot: {message}")]
    Snapshot {
        /// A message that says what happened.
        message: String,
    },
    /// The data folder of this node is empty, and its cluster exists: the folder was lost. Under
    /// its old id the node could vote a second time in one term (I20, I22).
    #[error(
        "node {node_id} has an empty data folder, but its cluster is running (so says node {told_by}). \
         If the node is new, start it with --join and add it. If it was a member, its data is gone, \
         and under this node id it could undo what it once promised: remove this id (holdfast \
         cluster remove {node_id}), give the node a new node id, start it with --join and add it"
    )]
    DataGone {
        /// This node.
        node_id: u64,
        /// The node that reported the cluster as initialised.
        told_by: u64,
    },
    /// The node waits to be added under an id that a member has or had. Ids are never used again:
    /// the member that had it may have voted with a data folder that is gone (I20, I22).
    #[error(
        "node id {node_id} cannot join: ids up to {highest} were used before (so says node \
         {told_by}), and none is used twice. If this node was a member and lost its data, remove \
         the old id (holdfast cluster remove {node_id}); then start it with a node id above \
         {highest} and --join"
    )]
    IdUsed {
        /// This node.
        node_id: u64,
        /// The highest id that was ever a member's.
        highest: u64,
        /// The node that reported it.
        told_by: u64,
    },
    /// This node was removed from its cluster, for ever (I22).
    #[error(
        "node {node_id} was removed from its cluster (so says node {told_by}) and never comes back \
         under this id. To use this machine again, empty its data folder, give it a new node id, \
         start it with --join and add it"
    )]
    Removed {
        /// This node.
        node_id: u64,
        /// The node that reported it; it may be this node itself, by its own log.
        told_by: u64,
    },
    /// A leader gave this node its id and did not add it: it may be gone. Nothing was counted of the node, whose
    /// folder begins anew with the next start.
    #[error(
        "node {node_id} was admitted, and no leader has added it within {waited_s} s; with the next start it asks \
         for a place anew"
    )]
    NotAdded {
        /// This node.
        node_id: u64,
        /// How long it has waited, seconds.
        waited_s: u64,
    },
    /// The replication engine stopped by itself, mostly because storage did.
    #[error("replication stopped: {message}")]
    Stopped {
        /// The engine's message.
        message: String,
    },
}

/// Holds the first fault of a replica. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct FaultSlot(Arc<watch::Sender<Option<Fault>>>);

impl FaultSlot {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }

    /// Keeps the first fault: later ones follow from it.
    pub(super) fn report(&self, fault: Fault) {
        self.0.send_if_modified(|slot| {
            if slot.is_some() {
                return false;
            }
            tracing::error!(%fault, "this replica stops");
            *slot = Some(fault);
            true
        });
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Option<Fault>> {
        self.0.subscribe()
    }
}
