//! The first member of a restored cluster, and those that join it.

use holdfast_core::{Answer, Command, LockTable, LogIndex, RestorePlan, Tenure};

use super::cluster::{Cluster, acquire, commit, member, open};
use super::membership::{add, members, promote};
use crate::consensus::Consensus as _;
use crate::raft::{MemoryStore, ReplicaStore as _, found_restored};
use crate::storage::{ClusterId, Stage};

const NEW: ClusterId = ClusterId([9; 16]);
/// A day of 2026.
const NOW_MS: u64 = 1_790_000_000_000;

fn restored() -> LockTable {
    let plan = RestorePlan { now_ms: NOW_MS, epoch: None, ttl_max_ms: 900_000, now: false };
    LockTable::new().restored(&plan).unwrap()
}

/// Until the command that ends the wait, nothing is granted by any leader, on any member.
#[tokio::test(start_paused = true)]
async fn a_restored_store_begins_a_cluster_that_others_join() {
    let mut cluster = Cluster::stopped(1, |_| ());
    let store = MemoryStore::new(1);
    let table = restored();
    found_restored(&store, NEW, &table, &member(1)).await.unwrap();
    assert_eq!(store.identity().stage, Stage::Initialised);
    let again = found_restored(&store, NEW, &table, &member(1)).await;
    assert_eq!(again.unwrap_err().to_string(), "the store is not empty");

    cluster.start(1, store).await;
    let (_, first) = cluster.leader().await;
    assert!(first > Tenure::new(1));
    assert_eq!(cluster.replica(1).status().cluster, Some(NEW));
    let session = open(cluster.replica(1)).await;
    commit(cluster.replica(1), acquire(session, 1, "jobs")).await;
    for node_id in [2, 3] {
        cluster.start_joining(node_id, MemoryStore::new(node_id)).await;
        add(&cluster, node_id).await.unwrap();
        promote(&cluster, node_id).await.unwrap();
    }
    cluster.level().await;
    assert_eq!(members(&cluster).await, (vec![1, 2, 3], vec![]));
    cluster.restart(1).await;
    let (leader, _) = cluster.leader().await;
    cluster.level().await;
    for node_id in 1..=3 {
        let mut found = (None, 0, LogIndex::new(0));
        cluster.replica(node_id).read(&mut |table, index| {
            found = (table.grants_after_ms(), table.counts().waiting, index);
        });
        assert_eq!((found.0, found.1), (Some(900_000), 1), "node {node_id}");
        assert!(found.2 > holdfast_core::RESTORED_INDEX);
    }
    let granted = commit(cluster.replica(leader), Command::GrantAgain).await;
    assert_eq!(granted.outcome, Ok(Answer::CarriedOn { more: false }));
    cluster.level().await;
    cluster.replica(1).read(&mut |table, _| assert_eq!(table.counts().held, 1));
    let hashes = cluster.hashes();
    assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
    cluster.shutdown().await;
}
