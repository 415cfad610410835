//! The first member of a cluster that is restored from a backup (DESIGN §15).

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write as _};

use holdfast_core::{LockTable, RESTORED_INDEX};
use openraft::storage::RaftLogStorage as _;

use super::Member;
use super::formation::{FIRST_INCARNATION, stored_member};
use super::log::Log;
use super::machine::meta_bytes;
use super::types::{Addresses, Membership, SnapshotMeta, StoredMembership, Vote, log_id};
use super::wire::log_id_to_stored;
use crate::storage::{ClusterId, ReplicaStore};

/// The term in which the restored table counts as written. The node elects itself in a later one.
const RESTORED_TERM: u64 = 1;

/// Makes an empty store that of the only member, `own`, of a new cluster, whose first state is `table`
/// ([`LockTable::restored`]). Other nodes join that cluster as they join any; the log before the table is
/// nowhere, so each of them is sent the table.
///
/// The new cluster has an id of its own: no message and no snapshot of the old one counts in it, and no
/// folder of the old one can join it (I22).
///
/// Blocks on the disk. Interrupted, it leaves a store that is of no use: make it in a folder that counts only
/// when this has returned.
///
/// # Errors
///
/// As from the system, or that the store is not empty.
pub async fn found_restored(
    store: &dyn ReplicaStore,
    cluster: ClusterId,
    table: &LockTable,
    own: &Member,
) -> io::Result<()> {
    let mut log = Log::over(store.log());
    if store.log().last().is_some() || store.newest_snapshot()?.is_some() {
        return Err(io::Error::other("the store is not empty"));
    }
    store
        .promise(cluster, FIRST_INCARNATION, vec![stored_member(own)])
        .map_err(io::Error::other)?;
    let last = log_id(RESTORED_TERM, RESTORED_INDEX.get());
    let voters = BTreeSet::from([own.node_id]);
    let nodes = BTreeMap::from([(own.node_id, Addresses::of(own))]);
    let membership = Membership::new(vec![voters], nodes).map_err(io::Error::other)?;
    let last_membership = StoredMembership::new(Some(last), membership);
    let meta = SnapshotMeta { last_log_id: Some(last), last_membership };
    let meta = meta_bytes(&meta, own.node_id, &store.identity());
    let mut draft = store.begin_snapshot(Some(log_id_to_stored(&last)), meta)?;
    table.freeze().write_to(&mut draft)?;
    draft.flush()?;
    draft.finish()?;
    log.save_vote(&Vote::new(RESTORED_TERM, own.node_id)).await?;
    log.purge(last).await?;
    log.settle().await?;
    store.set_initialised().map_err(io::Error::other)
}
