//! The answers of a member to messages that are not for it, or that no member writes (I22).

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream;
use holdfast_proto::v1 as proto;

use super::cluster::{Cluster, open};
use crate::raft::{PeerError, ReplicaConfig, ReplicaStore};

const AS_IT_IS: fn(&mut ReplicaConfig) = |_| ();

/// A cluster of three, and a header that node 2 accepts from node 3.
async fn formed() -> (Cluster, proto::PeerHeader) {
    let cluster = Cluster::started(3, AS_IT_IS).await;
    cluster.formed().await;
    let (leader, _) = cluster.leader().await;
    open(cluster.replica(leader)).await;
    let id = cluster.nodes[&2].store.identity().cluster.unwrap();
    let header = proto::PeerHeader {
        cluster_id: Bytes::copy_from_slice(&id.0),
        incarnation: 0,
        from_node: 3,
        to_node: 2,
        group: 0,
    };
    (cluster, header)
}

fn wrong_headers(right: &proto::PeerHeader) -> Vec<(&'static str, Option<proto::PeerHeader>)> {
    let right = || right.clone();
    vec![
        ("no header", None),
        ("another cluster", Some(proto::PeerHeader { cluster_id: vec![1; 16].into(), ..right() })),
        ("an empty cluster id", Some(proto::PeerHeader { cluster_id: Bytes::new(), ..right() })),
        ("another incarnation", Some(proto::PeerHeader { incarnation: 1, ..right() })),
        ("another receiver", Some(proto::PeerHeader { to_node: 1, ..right() })),
        ("itself", Some(proto::PeerHeader { from_node: 2, ..right() })),
        ("another group", Some(proto::PeerHeader { group: 1, ..right() })),
    ]
}

fn vote(term: u64, node_id: u64, committed: bool) -> proto::VoteState {
    proto::VoteState { term, node_id: Some(node_id), committed }
}

fn is_refused<T: std::fmt::Debug>(what: &str, answer: &Result<T, PeerError>) {
    assert!(matches!(answer, Err(PeerError::Refused(_))), "{what}: {answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_message_for_another_cluster_incarnation_or_node_is_refused_and_changes_nothing() {
    let (cluster, right) = formed().await;
    let peer = cluster.replica(2).peer();
    cluster.level().await;
    let log = ReplicaStore::log(&*cluster.nodes[&2].store);
    let before = (log.last(), log.vote(), cluster.hashes());

    for (what, header) in wrong_headers(&right) {
        let ballot = proto::VoteRequest {
            header: header.clone(),
            vote: Some(vote(1_000, 3, false)),
            last_log_id: Some(proto::LogId { term: 999, node_id: 0, index: 9_999 }),
            leadership_transfer: true,
        };
        is_refused(what, &peer.vote(ballot.clone()).await);
        is_refused(what, &peer.pre_vote(ballot).await);
        let append = proto::AppendRequest {
            header: header.clone(),
            vote: Some(vote(1_000, 3, true)),
            ..proto::AppendRequest::default()
        };
        is_refused(what, &peer.append(append.clone()).await);
        let mut answers = peer.stream_append(stream::iter([append]).boxed()).await.unwrap();
        is_refused(what, &answers.next().await.unwrap());
        let head = proto::SnapshotHead {
            header: header.clone(),
            vote: Some(vote(1_000, 3, true)),
            ..proto::SnapshotHead::default()
        };
        let chunk = proto::SnapshotChunk { head: Some(head), data: Bytes::new() };
        is_refused(what, &peer.install_snapshot(stream::iter([chunk]).boxed()).await);
        let transfer = proto::TransferLeaderRequest {
            header,
            from: Some(vote(1_000, 3, true)),
            to_node: 2,
            last_log_id: None,
        };
        is_refused(what, &peer.transfer_leader(transfer).await);
    }

    assert_eq!((log.last(), log.vote(), cluster.hashes()), before);
    cluster.shutdown().await;
}

/// A snapshot from an earlier incarnation of the cluster, or from another cluster, sent by a valid
/// member.
#[tokio::test(start_paused = true)]
async fn a_snapshot_of_another_cluster_or_incarnation_is_refused() {
    let (cluster, header) = formed().await;
    let peer = cluster.replica(2).peer();
    let right = proto::SnapshotMeta {
        last_log_id: Some(proto::LogId { term: 1, node_id: 0, index: 9_999 }),
        membership_log_id: None,
        membership: None,
        cluster_id: header.cluster_id.clone(),
        incarnation: 0,
        highest_node_id: 3,
    };
    let wrong = [
        (
            "another cluster",
            proto::SnapshotMeta { cluster_id: vec![1; 16].into(), ..right.clone() },
        ),
        ("another incarnation", proto::SnapshotMeta { incarnation: 1, ..right.clone() }),
        ("of nothing", proto::SnapshotMeta { last_log_id: None, ..right.clone() }),
        (
            "later than its leader",
            proto::SnapshotMeta {
                last_log_id: Some(proto::LogId { term: 1_001, node_id: 0, index: 9_999 }),
                ..right.clone()
            },
        ),
    ];
    for (what, meta) in wrong {
        let head = proto::SnapshotHead {
            header: Some(header.clone()),
            vote: Some(vote(1_000, 3, true)),
            meta: Some(meta),
            size: 0,
            sha256: Bytes::new(),
        };
        let chunk = proto::SnapshotChunk { head: Some(head), data: Bytes::new() };
        let answer = peer.install_snapshot(stream::iter([chunk]).boxed()).await;
        // Refused for that reason, not for being empty.
        let Err(PeerError::Refused(why)) = answer else { panic!("{what}: {answer:?}") };
        assert!(why.contains(what), "{what}: {why}");
    }
    cluster.shutdown().await;
}

/// Cut off, too long, or with another hash: nothing of it is kept.
#[tokio::test(start_paused = true)]
async fn a_snapshot_that_does_not_arrive_whole_is_refused() {
    let (cluster, header) = formed().await;
    let peer = cluster.replica(2).peer();
    let meta = proto::SnapshotMeta {
        last_log_id: Some(proto::LogId { term: 1, node_id: 0, index: 9_999 }),
        membership_log_id: None,
        membership: None,
        cluster_id: header.cluster_id.clone(),
        incarnation: 0,
        highest_node_id: 3,
    };
    for (size, chunks) in [(10, vec![4]), (10, vec![4, 6]), (10, vec![4, 7]), (9, vec![100_000])] {
        let head = proto::SnapshotHead {
            header: Some(header.clone()),
            vote: Some(vote(1_000, 3, true)),
            meta: Some(meta.clone()),
            size,
            sha256: vec![0; 32].into(),
        };
        let first = proto::SnapshotChunk { head: Some(head), data: Bytes::new() };
        let body = chunks
            .iter()
            .map(|len| proto::SnapshotChunk { head: None, data: vec![7; *len].into() });
        let all: Vec<_> = std::iter::once(first).chain(body).collect();
        is_refused("damaged", &peer.install_snapshot(stream::iter(all).boxed()).await);
    }
    assert!(cluster.nodes[&2].store.newest_snapshot().unwrap().is_none());
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn malformed_messages_are_refused_and_the_member_serves_on() {
    let (cluster, header) = formed().await;
    let peer = cluster.replica(2).peer();
    let entry = |term, index| proto::LogEntry {
        log_id: Some(proto::LogId { term, node_id: 0, index }),
        payload: Some(proto::log_entry::Payload::Blank(proto::Blank {})),
    };
    let append = |vote, entries| proto::AppendRequest {
        header: Some(header.clone()),
        vote,
        prev: None,
        leader_commit: None,
        entries,
    };
    let bare = proto::LogEntry { log_id: None, payload: None };
    let voters = proto::VoterSet { node_ids: vec![1, 2] };
    let lame = proto::Membership { configs: vec![voters], nodes: Vec::new() };
    let membership = proto::LogEntry {
        log_id: Some(proto::LogId { term: 1, node_id: 0, index: 0 }),
        payload: Some(proto::log_entry::Payload::Membership(lame)),
    };
    let bad = [
        ("no vote", append(None, vec![])),
        ("not elected", append(Some(vote(1_000, 3, false)), vec![])),
        ("a hole", append(Some(vote(1_000, 3, true)), vec![entry(1, 0), entry(1, 2)])),
        ("not from the start", append(Some(vote(1_000, 3, true)), vec![entry(1, 5)])),
        ("falling terms", append(Some(vote(1_000, 3, true)), vec![entry(2, 0), entry(1, 1)])),
        ("later than its leader", append(Some(vote(1_000, 3, true)), vec![entry(1_001, 0)])),
        ("an empty entry", append(Some(vote(1_000, 3, true)), vec![bare])),
        ("a lame membership", append(Some(vote(1_000, 3, true)), vec![membership])),
    ];
    for (what, request) in bad {
        is_refused(what, &peer.append(request).await);
    }
    let candidate =
        proto::VoteRequest { header: Some(header.clone()), ..proto::VoteRequest::default() };
    is_refused("a candidate without vote", &peer.vote(candidate).await);

    let (leader, _) = cluster.leader().await;
    open(cluster.replica(leader)).await;
    cluster.level().await;
    cluster.shutdown().await;
}
