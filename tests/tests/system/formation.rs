//! First start: three nodes form a cluster from three settings files, whichever node is killed on
//! the way (DESIGN §7; I20, I22).

use std::time::Duration;

use holdfast_runtime::Runtime;
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::wire::Wire;

async fn pause(ms: u64) {
    Runtime::system().sleep(Duration::from_millis(ms)).await;
}

/// A client can take a lock: the nodes form one cluster.
async fn assert_serves(cluster: &Cluster) {
    let leader = cluster.leader().await;
    let (mut wire, _) = Wire::open(&cluster.nodes()[leader].listen, 10_000).await;
    wire.acquire(1, "jobs", true).await;
    wire.granted(1).await;
}

#[tokio::test]
async fn three_nodes_form_one_cluster_from_their_settings_alone() {
    let cluster = Cluster::start(&Setup::nodes(3)).await;
    cluster.all_ready().await;

    let mut ids = Vec::new();
    for index in 0..3 {
        ids.push(cluster.status(index).await.expect("ready nodes answer").cluster_id);
    }

    assert_eq!(ids[0].len(), 16);
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_serves(&cluster).await;
}

/// The kill comes at many instants from before the first written byte until after the first
/// election, at the node that proposes the cluster id and at one that only agrees.
#[tokio::test]
async fn a_node_killed_at_any_step_of_the_first_start_comes_back_and_the_cluster_forms() {
    for (victim, after_ms) in
        [(0, 5), (1, 20), (0, 60), (1, 100), (0, 160), (0, 240), (1, 400), (0, 700)]
    {
        let mut cluster = Cluster::prepare(&Setup::nodes(3));
        for index in 0..3 {
            cluster.start_node(index);
        }
        pause(after_ms).await;
        cluster.kill(victim);
        pause(50).await;
        cluster.start_node(victim);

        cluster.all_ready().await;
        assert_serves(&cluster).await;
    }
}

#[tokio::test]
async fn nodes_all_killed_during_the_first_start_come_back_and_the_cluster_forms() {
    for after_ms in [30, 120, 300] {
        let mut cluster = Cluster::prepare(&Setup::nodes(3));
        for index in 0..3 {
            cluster.start_node(index);
        }
        pause(after_ms).await;
        for index in 0..3 {
            cluster.kill(index);
        }
        for index in 0..3 {
            cluster.start_node(index);
        }

        cluster.all_ready().await;
        assert_serves(&cluster).await;
    }
}

#[tokio::test]
async fn a_node_that_lost_its_data_does_not_come_back_under_its_old_id() {
    let mut cluster = Cluster::start(&Setup::nodes(3)).await;
    cluster.all_ready().await;
    let leader = cluster.leader().await;
    let wiped = (leader + 1) % 3;

    cluster.kill(wiped);
    std::fs::remove_dir_all(&cluster.nodes()[wiped].data).expect("it was there");
    cluster.start_node(wiped);
    let status = cluster.wait_for_exit(wiped).await;

    assert!(!status.success(), "{status:?}");
    let log = cluster.log(wiped);
    assert!(log.contains("new node id"), "{log}");
    assert_serves(&cluster).await;
}
