//! Members that join by themselves (DESIGN §15).

use std::time::Duration;

use bytes::Bytes;
use holdfast_core::COMMAND_VERSION;
use holdfast_proto::v1 as proto;
use openraft::async_runtime::watch::WatchReceiver;

use super::cluster::{Cluster, member};
use crate::raft::{Fault, MemoryStore, ReplicaConfig};

/// Longer than the longest election time-out, ten times over.
const GONE: Duration = Duration::from_secs(7);
/// Between two admissions.
const TURN: Duration = Duration::from_secs(11);

fn three_by_themselves(config: &mut ReplicaConfig) {
    config.admits_up_to = Some(3);
}

fn asks(address_of: u64, start: u8) -> proto::AdmitRequest {
    let member = member(address_of);
    proto::AdmitRequest {
        advertise: member.advertise,
        peer_advertise: member.peer_advertise,
        start_id: Bytes::copy_from_slice(&[start; 16]),
        command_version: u32::from(COMMAND_VERSION),
        ..proto::AdmitRequest::default()
    }
}

async fn admit(
    cluster: &Cluster,
    node: u64,
    request: proto::AdmitRequest,
) -> Result<u64, proto::AdmitResponse> {
    let answer = cluster.replica(node).peer().admit(request).await.unwrap();
    if answer.node_id == 0 { Err(answer) } else { Ok(answer.node_id) }
}

/// Starts a node under the id that it was given; in memory its address is that id's.
async fn start_admitted(cluster: &mut Cluster, node_id: u64, start: u8) {
    let config = ReplicaConfig {
        join: true,
        start_id: Some([start; 16]),
        ..ReplicaConfig::new(node_id, vec![member(node_id)])
    };
    cluster.start_as(config, MemoryStore::new(node_id)).await;
}

fn voters(cluster: &Cluster, node: u64) -> Vec<u64> {
    let metrics = cluster.replica(node).raft().metrics();
    let metrics = metrics.borrow_watched();
    metrics.membership_config.voter_ids().collect()
}

#[tokio::test(start_paused = true)]
async fn a_node_that_asks_gets_an_id_that_was_never_used_and_votes_once_it_has_caught_up() {
    let mut cluster = Cluster::started(2, three_by_themselves).await;
    let (leader, _) = cluster.leader().await;
    cluster.formed().await;

    let other = 3 - leader;
    let told = admit(&cluster, other, asks(3, 7)).await.unwrap_err();
    assert_eq!(told.leader.as_deref(), Some(&*member(leader).peer_advertise));
    assert_eq!(admit(&cluster, leader, asks(3, 7)).await, Ok(3));
    assert_eq!(admit(&cluster, leader, asks(3, 7)).await, Ok(3), "the same start asks again");
    let told = admit(&cluster, leader, asks(4, 8)).await.unwrap_err();
    assert!(told.refusal.contains("one in ten seconds"), "{}", told.refusal);
    start_admitted(&mut cluster, 3, 7).await;
    cluster.runtime.sleep(GONE).await;
    assert_eq!(voters(&cluster, leader), [1, 2, 3]);

    // There are to be three.
    cluster.runtime.sleep(TURN).await;
    assert_eq!(admit(&cluster, leader, asks(4, 8)).await, Ok(4));
    start_admitted(&mut cluster, 4, 8).await;
    cluster.runtime.sleep(GONE).await;
    assert_eq!(voters(&cluster, leader), [1, 2, 3]);
    cluster.shutdown().await;
}

/// I20, I22: nobody takes the place of a voter by asking under its address.
#[tokio::test(start_paused = true)]
async fn a_voter_that_answers_is_never_replaced() {
    let cluster = Cluster::started(3, three_by_themselves).await;
    let (leader, _) = cluster.leader().await;
    cluster.formed().await;
    cluster.runtime.sleep(GONE).await;

    for voter in 1..=3 {
        let told = admit(&cluster, leader, asks(voter, 7)).await.unwrap_err();
        assert!(told.refusal.contains("and answers"), "{}", told.refusal);
    }
    let mut clients = asks(4, 7);
    clients.advertise = member(2).advertise;
    let told = admit(&cluster, leader, clients).await.unwrap_err();
    assert!(told.refusal.contains("clients-of-2"), "{}", told.refusal);
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_start_that_does_not_run_under_its_id_is_not_added_and_its_id_is_not_given_again() {
    let mut cluster = Cluster::started(2, three_by_themselves).await;
    let (leader, _) = cluster.leader().await;
    cluster.formed().await;

    assert_eq!(admit(&cluster, leader, asks(3, 7)).await, Ok(3));
    // Another start of the machine runs there.
    start_admitted(&mut cluster, 3, 9).await;
    cluster.runtime.sleep(TURN).await;
    assert_eq!(voters(&cluster, leader), [1, 2]);
    assert_eq!(admit(&cluster, leader, asks(4, 10)).await, Ok(4));
    start_admitted(&mut cluster, 4, 10).await;
    cluster.runtime.sleep(GONE).await;
    assert_eq!(voters(&cluster, leader), [1, 2, 4]);
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn nobody_joins_by_himself_where_an_operator_adds_members_nor_with_an_old_release() {
    let cluster = Cluster::started(1, |_| ()).await;
    cluster.leader().await;
    let told = admit(&cluster, 1, asks(2, 7)).await.unwrap_err();
    assert!(told.refusal.contains("is not \"auto\""), "{}", told.refusal);
    cluster.shutdown().await;

    let cluster = Cluster::started(1, three_by_themselves).await;
    cluster.leader().await;
    let old = proto::AdmitRequest { command_version: 1, ..asks(2, 7) };
    let told = admit(&cluster, 1, old).await.unwrap_err();
    assert!(told.refusal.contains("older than the leader's"), "{}", told.refusal);
    let nowhere = proto::AdmitRequest { peer_advertise: String::new(), ..asks(2, 7) };
    assert!(admit(&cluster, 1, nowhere).await.is_err());
    cluster.shutdown().await;
}

/// A member says where it is; it is called back there, and has to be that member.
#[tokio::test(start_paused = true)]
async fn an_address_counts_only_if_the_member_answers_there() {
    let cluster = Cluster::started(3, three_by_themselves).await;
    let (leader, _) = cluster.leader().await;
    cluster.formed().await;
    let own = cluster.replica(leader).cluster().unwrap();
    let follower = leader % 3 + 1;
    let moves = |to: u64| proto::AdmitRequest {
        member: Some(follower),
        cluster_id: Bytes::copy_from_slice(&own.0),
        ..asks(to, 7)
    };

    let told = admit(&cluster, leader, moves(leader)).await.unwrap_err();
    assert!(told.refusal.contains("another member has one of these"), "{}", told.refusal);
    let elsewhere = proto::AdmitRequest { cluster_id: Bytes::from_static(&[9; 16]), ..moves(5) };
    let told = admit(&cluster, leader, elsewhere).await.unwrap_err();
    assert!(told.refusal.contains("another cluster"), "{}", told.refusal);
    cluster.shutdown().await;
}

/// The leader that gave the id is gone, or was too late: the node would otherwise wait for ever.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_admitted_and_not_added_ends_to_begin_anew() {
    let mut cluster = Cluster::started(2, three_by_themselves).await;
    cluster.leader().await;
    cluster.formed().await;
    start_admitted(&mut cluster, 3, 9).await;

    cluster.runtime.sleep(Duration::from_secs(29)).await;
    let faults = cluster.replica(3).faults();
    assert_eq!(*faults.borrow(), None);
    cluster.runtime.sleep(Duration::from_secs(3)).await;
    assert!(matches!(*faults.borrow(), Some(Fault::NotAdded { node_id: 3, .. })));
    cluster.shutdown().await;
}
