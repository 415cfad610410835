//! Three nodes over loopback sockets, with data folders, in real time.

use std::sync::Arc;
use std::time::Duration;

use holdfast_runtime::Runtime;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;

use super::cluster::{has_session, open};
use crate::consensus::Consensus;
use crate::raft::{GrpcNetwork, Member, Replica, ReplicaConfig, ReplicaStore, peer_server};
use crate::storage::{Store, StoreOptions};

struct Node {
    replica: Arc<Replica>,
    server: holdfast_runtime::Task,
    stop: CancellationToken,
}

async fn start(runtime: &Runtime, members: &[Member], node_id: u64, folder: &TempDir) -> Node {
    let options = StoreOptions {
        node_id,
        cluster: None,
        new_store_id: [7; 16],
        on_fault: Arc::new(|fault| panic!("{fault}")),
        stalls_after: None,
    };
    let store: Arc<dyn ReplicaStore> = Arc::new(Store::open(folder.path(), options).unwrap());
    let mut config = ReplicaConfig::new(node_id, members.to_vec());
    config.snapshot_log_bytes = 10 << 10;
    config.log_kept = 0;
    config.max_log_bytes = 16 << 10;
    config.reserve_bytes = 0;
    let network = Arc::new(GrpcNetwork::new());
    let replica = Replica::start(config, store, network, runtime.clone()).await.unwrap();
    let member = members.iter().find(|member| member.node_id == node_id).unwrap();
    let listener = TcpListener::bind(&member.peer_advertise).await.unwrap();
    let router = peer_server(replica.peer(), |_| None);
    let stop = CancellationToken::new();
    let stopping = stop.clone().cancelled_owned();
    let server = runtime.spawn("peers", async move {
        let incoming = TcpListenerStream::new(listener);
        router.serve_with_incoming_shutdown(incoming, stopping).await.unwrap();
    });
    Node { replica, server, stop }
}

fn free_address() -> String {
    format!("127.0.0.1:{}", holdfast_runtime::loopback::free_port().unwrap())
}

async fn stop(node: Node) {
    node.stop.cancel();
    node.replica.shutdown().await;
    let runtime = Runtime::system();
    let ended = runtime.timeout(Duration::from_secs(5), async {
        while !node.server.is_finished() {
            runtime.sleep(Duration::from_millis(10)).await;
        }
    });
    assert!(ended.await.is_ok(), "the peer server did not end with its streams");
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let runtime = Runtime::system();
    let wait = async {
        while !holds() {
            runtime.sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(runtime.timeout(Duration::from_secs(30), wait).await.is_ok(), "never happened: {what}");
}

#[tokio::test]
async fn three_nodes_on_sockets_and_disks_form_commit_and_fill_a_follower_that_was_away() {
    let runtime = Runtime::system();
    let mut members = Vec::new();
    let mut folders = Vec::new();
    for node_id in 1..=3 {
        let peer_advertise = free_address();
        members.push(Member { node_id, advertise: format!("c{node_id}:1"), peer_advertise });
        folders.push(TempDir::new().unwrap());
    }
    let mut nodes = Vec::new();
    for (member, folder) in members.iter().zip(&folders) {
        nodes.push(start(&runtime, &members, member.node_id, folder).await);
    }
    let leads = |node: &Node| node.replica.role().borrow().tenure().is_some();
    until("somebody leads", || nodes.iter().any(leads)).await;
    let leader = nodes.iter().position(leads).unwrap();
    let first = open(&nodes[leader].replica).await;
    nodes[leader].replica.confirm().await.unwrap();

    // A follower is away until the log below a snapshot is purged.
    let away = (leader + 1) % 3;
    stop(nodes.remove(away)).await;
    let leader = nodes.iter().position(leads).unwrap();
    for _ in 0..200 {
        open(&nodes[leader].replica).await;
    }
    until("a snapshot", || nodes[leader].replica.status().snapshot > Some(100)).await;
    let node_id = members[away].node_id;
    nodes.push(start(&runtime, &members, node_id, &folders[away]).await);
    let last = nodes[leader].replica.status().last_log;
    until("the follower is level", || nodes[2].replica.status().applied >= last).await;

    assert!(has_session(&nodes[2].replica, first));
    assert!(nodes[leader].replica.hand_over(Duration::from_secs(5)).await);
    for node in nodes {
        stop(node).await;
    }
}
