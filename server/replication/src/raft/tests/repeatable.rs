//! openraft on a simulated machine: the same seed gives the same run.

use std::sync::Arc;
use std::time::Duration;

use holdfast_runtime::simulated::Machine;

use super::cluster::member;
use crate::consensus::Consensus as _;
use crate::raft::{MemoryNetwork, MemoryStore, Replica, ReplicaConfig};

/// A run: three members form a cluster, lose their leader to a pause, and elect another.
fn life(seed: u64) -> (u64, Vec<u64>) {
    let machine = Machine::new(seed);
    let network = MemoryNetwork::new();
    let world = machine.world().runtime();
    let processes: Vec<_> = (1..=3).map(|_| machine.process("node")).collect();
    let terms = machine.run(async {
        let mut replicas = Vec::new();
        for (node_id, process) in (1..).zip(&processes) {
            let config = ReplicaConfig::new(node_id, (1..=3).map(member).collect());
            let store = Arc::new(MemoryStore::new(node_id));
            let (peers, runtime) = (network.of(node_id), process.runtime());
            let (tell, told) = tokio::sync::oneshot::channel();
            let start = async move {
                let _ = tell.send(Replica::start(config, store, peers, runtime).await);
            };
            process.runtime().spawn("start", start).detach();
            let replica = told.await.unwrap().unwrap();
            network.join(node_id, replica.peer());
            replicas.push(replica);
        }
        for round in 0..4 {
            world.sleep(Duration::from_secs(10)).await;
            let leads = |replica: &Arc<Replica>| replica.role().borrow().tenure().is_some();
            let leader = replicas.iter().position(leads).unwrap();
            processes[leader].pause();
            world.sleep(Duration::from_secs(5 + round)).await;
            processes[leader].resume();
        }
        world.sleep(Duration::from_secs(10)).await;
        replicas.iter().map(|replica| replica.status().term).collect()
    });
    (machine.digest(), terms)
}

/// Election times are random, so another seed gives another run.
#[test]
fn the_same_seed_is_the_same_life_of_three_replicas() {
    let (digest, terms) = life(1);

    assert_eq!(life(1), (digest, terms.clone()));
    assert_ne!(life(2).0, digest);
    assert!(terms.iter().all(|term| *term >= 4), "no leader was replaced: {terms:?}");
}
