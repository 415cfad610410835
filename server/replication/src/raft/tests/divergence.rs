//! A member whose state is not the leader's (I16).

use bytes::Bytes;
use holdfast_core::{Batch, Command, Label, ReplicaFault};

use super::cluster::{Cluster, commit, fault_of, open_session, submit};
use crate::raft::ReplicaStore;
use crate::raft::{Fault, MemoryStore};
use crate::storage::{Record, RecordKind};

/// A log as a bug or a broken machine could leave it: it can be read, but contains one label that
/// no client ever sent.
async fn tampered(store: MemoryStore) -> MemoryStore {
    let log = store.log();
    let mut records = log.entries(0..u64::MAX, usize::MAX);
    let (position, mut batch) = records
        .iter()
        .enumerate()
        .filter(|(_, record)| record.kind == RecordKind::Batch)
        .filter_map(|(position, record)| Some((position, Batch::decode(&record.payload).ok()?)))
        .find(|(_, batch)| matches!(batch.commands[..], [Command::OpenSession { .. }, ..]))
        .unwrap();
    let Some(Command::OpenSession { label, .. }) = batch.commands.first_mut() else {
        panic!("the batch opens no session: {batch:?}");
    };
    *label = Label::parse("somebody else").unwrap();
    let changed = records[position].clone();
    records[position] = Record { payload: Bytes::from(batch.encode()), ..changed };
    let (tell, told) = tokio::sync::oneshot::channel();
    let kept = records[position].log_id.index - 1;
    log.truncate_after(Some(kept), Box::new(|done| done.unwrap())).unwrap();
    let done = Box::new(move |done| tell.send(done).unwrap());
    log.append(records.split_off(position), done).unwrap();
    told.await.unwrap().unwrap();
    store.restarted()
}

/// The leader's state hash reaches the other two in a batch. The member with the changed log has
/// another hash and stops; the cluster continues without it.
#[tokio::test(start_paused = true)]
async fn a_member_whose_state_differs_from_the_leaders_stops_and_the_others_go_on() {
    let mut cluster = Cluster::started(3, |_| ()).await;
    let (leader, _) = cluster.leader().await;
    for _ in 0..10 {
        commit(cluster.replica(leader), open_session()).await;
    }
    cluster.level().await;
    let odd = cluster.nodes.keys().copied().find(|id| *id != leader).unwrap();
    let store = tampered(cluster.kill(odd).await).await;
    cluster.start(odd, store).await;

    for _ in 0..1_100 {
        assert!(submit(cluster.replica(leader), open_session()).await.unwrap().is_ok());
    }
    let fault = fault_of(&cluster.runtime, cluster.replica(odd)).await;

    assert!(matches!(fault, Fault::Diverged(ReplicaFault::Diverged { .. })), "{fault:?}");
    commit(cluster.replica(leader), open_session()).await;
    for (id, node) in &cluster.nodes {
        assert_eq!(node.replica.faults().borrow().is_some(), *id == odd, "node {id}");
    }
    cluster.shutdown().await;
}
