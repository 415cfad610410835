//! First start: a node killed at any step restarts and the cluster forms, and no node whose data is
//! gone takes part.

use std::sync::Arc;
use std::time::Duration;

use holdfast_proto::v1 as proto;

use super::cluster::{Cluster, fault_of, member, open};
use crate::consensus::Consensus;
use crate::raft::formation::stored_member;
use crate::raft::wire::member_to_wire;
use crate::raft::{Fault, Forming, MemoryStore, ReplicaConfig, ReplicaStore};
use crate::storage::{ClusterId, PromiseError, Stage};

const AS_IT_IS: fn(&mut ReplicaConfig) = |_| ();
const PROMISED_TO: ClusterId = ClusterId([9; 16]);

fn promised(node_id: u64) -> MemoryStore {
    let store = MemoryStore::new(node_id);
    let members = (1..=3).map(|id| stored_member(&member(id))).collect();
    store.promise(PROMISED_TO, 0, members).unwrap();
    store
}

/// All states of the disks when all three nodes die at some step: the lowest id promises first;
/// each other one has promised or not.
#[tokio::test(start_paused = true)]
async fn killed_after_any_promise_the_cluster_forms_under_the_promised_id() {
    for which in 0..4_u32 {
        let mut cluster = Cluster::stopped(3, AS_IT_IS);
        cluster.start(1, promised(1)).await;
        for (bit, node_id) in [(0, 2), (1, 3)] {
            let has = which & (1 << bit) != 0;
            let store = if has { promised(node_id) } else { MemoryStore::new(node_id) };
            cluster.start(node_id, store).await;
        }
        cluster.formed().await;
        for node in cluster.nodes.values() {
            assert_eq!(node.store.identity().cluster, Some(PROMISED_TO));
            assert_eq!(node.store.identity().stage, Stage::Initialised);
        }
        let (leader, _) = cluster.leader().await;
        open(cluster.replica(leader)).await;
        cluster.shutdown().await;
    }
}

/// The lowest id notes that the cluster is initialised when openraft has taken the first entry, which is not on its disk
/// yet: all are killed in between.
#[tokio::test(start_paused = true)]
async fn killed_before_the_first_entry_is_on_a_disk_the_cluster_forms_all_the_same() {
    let mut cluster = Cluster::stopped(3, AS_IT_IS);
    let noted = promised(1);
    noted.set_initialised().unwrap();
    cluster.start(1, noted).await;
    for node_id in [2, 3] {
        cluster.start(node_id, promised(node_id)).await;
    }
    cluster.formed().await;
    let (leader, _) = cluster.leader().await;
    open(cluster.replica(leader)).await;
    cluster.level().await;
    cluster.shutdown().await;
}

/// Each node in turn is killed after each of the first milliseconds and restarts; the cluster
/// forms, whatever step that hits.
#[tokio::test(start_paused = true)]
async fn a_node_killed_at_any_step_of_the_first_start_comes_back_and_the_cluster_forms() {
    for victim in 1..=3 {
        for after_ms in [0, 1, 2, 3, 5, 10, 100, 499, 500, 501, 600, 1_000, 1_500, 2_000] {
            let mut cluster = Cluster::stopped(3, AS_IT_IS);
            // The others start one after the other, so that the steps are apart.
            for node_id in [1, 2, 3] {
                cluster.start(node_id, MemoryStore::new(node_id)).await;
                cluster.runtime.sleep(Duration::from_millis(400)).await;
                if node_id == victim {
                    cluster.runtime.sleep(Duration::from_millis(after_ms)).await;
                    let left = cluster.kill(victim).await;
                    cluster.runtime.sleep(Duration::from_millis(700)).await;
                    cluster.start(victim, left).await;
                }
            }
            cluster.formed().await;
            let (leader, _) = cluster.leader().await;
            open(cluster.replica(leader)).await;
            cluster.level().await;
            cluster.shutdown().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_leads_before_all_have_promised() {
    let mut cluster = Cluster::stopped(3, AS_IT_IS);
    for node_id in [1, 2] {
        cluster.start(node_id, MemoryStore::new(node_id)).await;
    }
    cluster.runtime.sleep(Duration::from_secs(30)).await;

    let Forming::Waiting { reason } = cluster.replica(1).forming().borrow().clone() else {
        panic!("formed without node 3");
    };
    assert!(reason.contains("node 3"), "{reason}");
    assert!(cluster.nodes.values().all(|node| node.replica.role().borrow().tenure().is_none()));

    cluster.start(3, MemoryStore::new(3)).await;
    cluster.formed().await;
    cluster.shutdown().await;
}

/// I22: an empty folder under a known id could vote a second time in a term.
#[tokio::test(start_paused = true)]
async fn a_node_whose_data_is_gone_stops_and_says_so_whichever_it_is() {
    for victim in 1..=3 {
        let mut cluster = Cluster::started(3, AS_IT_IS).await;
        cluster.formed().await;
        let (leader, _) = cluster.leader().await;
        open(cluster.replica(leader)).await;

        drop(cluster.kill(victim).await);
        cluster.start(victim, MemoryStore::new(victim)).await;
        let fault = fault_of(&cluster.runtime, cluster.replica(victim)).await;

        assert!(matches!(fault, Fault::DataGone { node_id, .. } if node_id == victim), "{fault:?}");
        assert_eq!(cluster.nodes[&victim].store.identity().stage, Stage::Fresh);
        assert_eq!(ReplicaStore::log(&*cluster.nodes[&victim].store).vote(), None);
        cluster.shutdown().await;
    }
}

/// A promise request arrives late, at a node that has lost its folder meanwhile.
#[tokio::test(start_paused = true)]
async fn a_late_copy_of_a_promise_request_is_refused_by_a_node_whose_data_is_gone() {
    let mut cluster = Cluster::started(3, AS_IT_IS).await;
    cluster.formed().await;
    let known = cluster.nodes[&1].store.identity().cluster.unwrap();
    drop(cluster.kill(3).await);
    let request = proto::PromiseRequest {
        cluster_id: bytes::Bytes::copy_from_slice(&known.0),
        from_node: 1,
        to_node: 3,
        members: cluster.members.iter().map(member_to_wire).collect(),
        ..proto::PromiseRequest::default()
    };

    cluster.start(3, MemoryStore::new(3)).await;
    let answer = cluster.replica(3).peer().promise(request).await.unwrap();

    assert!(!answer.promised);
    assert_eq!(cluster.nodes[&3].store.identity().cluster, None);
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_promised_node_agrees_to_nothing_else() {
    let mut cluster = Cluster::stopped(3, AS_IT_IS);
    cluster.start(2, promised(2)).await;
    let request = proto::PromiseRequest {
        cluster_id: vec![1; 16].into(),
        from_node: 1,
        to_node: 2,
        members: cluster.members.iter().map(member_to_wire).collect(),
        ..proto::PromiseRequest::default()
    };

    let answer = cluster.replica(2).peer().promise(request).await.unwrap();

    assert!(!answer.promised);
    assert!(answer.refusal.contains(&PROMISED_TO.to_string()), "{}", answer.refusal);
    let store = Arc::clone(&cluster.nodes[&2].store);
    let taken = store.promise(ClusterId([1; 16]), 0, Vec::new());
    assert!(matches!(taken, Err(PromiseError::Taken { .. })));
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn members_configured_differently_do_not_form_and_are_named() {
    let mut cluster = Cluster::stopped(3, AS_IT_IS);
    cluster.start(1, MemoryStore::new(1)).await;
    cluster.start(3, MemoryStore::new(3)).await;
    cluster.members[2].peer_advertise = "elsewhere:1".to_owned();
    cluster.start(2, MemoryStore::new(2)).await;
    cluster.runtime.sleep(Duration::from_secs(5)).await;

    let Forming::Waiting { reason } = cluster.replica(1).forming().borrow().clone() else {
        panic!("formed although node 2 is configured differently");
    };
    assert!(reason.contains("configured differently"), "{reason}");
    assert!(reason.contains("elsewhere:1"), "{reason}");
    cluster.shutdown().await;
}

/// The lowest id lost its folder before anything was initialised: it cannot know that nothing was,
/// and the others keep their promise.
#[tokio::test(start_paused = true)]
async fn a_lowest_id_whose_promise_is_gone_forms_no_second_cluster() {
    let mut cluster = Cluster::stopped(3, AS_IT_IS);
    cluster.start(1, MemoryStore::new(1)).await;
    cluster.start(2, promised(2)).await;
    cluster.start(3, MemoryStore::new(3)).await;
    cluster.runtime.sleep(Duration::from_secs(10)).await;

    let Forming::Waiting { reason } = cluster.replica(1).forming().borrow().clone() else {
        panic!("formed");
    };
    assert!(reason.contains("promised to cluster"), "{reason}");
    assert_eq!(cluster.nodes[&3].store.identity().cluster, None);
    cluster.shutdown().await;
}
