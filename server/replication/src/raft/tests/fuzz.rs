//! Everything a peer can send, mutated: conversions alone, and whole sequences at one member of a
//! formed cluster. Nothing panics, openraft included; only a named fault may stop the member.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use holdfast_core::Batch;
use holdfast_fuzz::{Outcome, Target, on_virtual_time, script};
use holdfast_proto::v1 as proto;
use holdfast_proto::v1::log_entry::Payload;
use holdfast_runtime::{Runtime, simulated};
use prost::Message;
use sha2::{Digest, Sha256};

use super::cluster::{Cluster, acquire, commit, member, open, open_session};
use crate::consensus::Consensus;
use crate::raft::wire::{self, Malformed};
use crate::raft::{
    Fault, MemoryNetwork, MemoryStore, Peer, PeerError, Replica, ReplicaConfig, ReplicaStore,
};

/// Longest time for a call or a stop, virtual time.
const PATIENCE: Duration = Duration::from_mins(10);

/// The member under test, and the sender in the headers.
const TARGET: u64 = 2;
const CALLER: u64 = 3;

/// The kinds of step, in the low bits. Fields that a real sender gets right are corrected unless a
/// high bit says otherwise.
const APPEND: u8 = 0;
const STREAM_APPEND: u8 = 1;
const VOTE: u8 = 2;
const PRE_VOTE: u8 = 3;
const SNAPSHOT: u8 = 4;
const TRANSFER: u8 = 5;
const PROMISE: u8 = 6;
const TIME_PASSES: u8 = 7;
const KINDS: u8 = 8;
/// The header stays as decoded.
const HEADER_AS_IS: u8 = 0x80;
/// Size and hash of a snapshot stay as decoded.
const HASH_AS_IS: u8 = 0x40;

fn id(term: u64, index: u64) -> proto::LogId {
    proto::LogId { term, node_id: 0, index }
}

fn vote(term: u64, committed: bool) -> proto::VoteState {
    proto::VoteState { term, node_id: Some(CALLER), committed }
}

fn membership() -> proto::Membership {
    let nodes = (1..=3).map(|id| wire::member_to_wire(&member(id))).collect();
    proto::Membership { configs: vec![proto::VoterSet { node_ids: vec![1, 2, 3] }], nodes }
}

fn entry(term: u64, index: u64, payload: Payload) -> proto::LogEntry {
    proto::LogEntry { log_id: Some(id(term, index)), payload: Some(payload) }
}

fn some_batch() -> Bytes {
    let commands = vec![open_session(), acquire(holdfast_core::SessionId::new(1), 9, "b")];
    Batch { stamp_ms: 1, commands, ..Batch::default() }.encode().into()
}

/// An append of entries after `prev`, by a leader of term 9.
fn append(prev: Option<proto::LogId>, commit: u64) -> proto::AppendRequest {
    let next = prev.as_ref().map_or(0, |prev| prev.index + 1);
    let entries = vec![
        entry(9, next, Payload::Blank(proto::Blank {})),
        entry(9, next + 1, Payload::Batch(some_batch())),
        entry(9, next + 2, Payload::Membership(membership())),
    ];
    proto::AppendRequest {
        header: None,
        vote: Some(vote(9, true)),
        prev,
        leader_commit: Some(id(9, commit)),
        entries,
    }
}

fn ballot(last: proto::LogId) -> proto::VoteRequest {
    proto::VoteRequest {
        header: None,
        vote: Some(vote(9, false)),
        last_log_id: Some(last),
        leadership_transfer: true,
    }
}

fn transfer(last: proto::LogId) -> proto::TransferLeaderRequest {
    proto::TransferLeaderRequest {
        header: None,
        from: Some(vote(9, true)),
        to_node: TARGET,
        last_log_id: Some(last),
    }
}

fn snapshot_of(table: Vec<u8>, last: proto::LogId) -> proto::SnapshotChunk {
    let meta = proto::SnapshotMeta {
        last_log_id: Some(last),
        membership_log_id: Some(id(1, 0)),
        membership: Some(membership()),
        cluster_id: Bytes::new(),
        incarnation: 0,
        highest_node_id: 3,
    };
    let head = proto::SnapshotHead {
        header: None,
        vote: Some(vote(9, true)),
        meta: Some(meta),
        size: table.len() as u64,
        sha256: Bytes::new(),
    };
    proto::SnapshotChunk { head: Some(head), data: table.into() }
}

/// A message of each kind, behind the number of its kind.
fn messages() -> Vec<Vec<u8>> {
    let message = |kind: u8, message: Vec<u8>| [vec![kind], message].concat();
    let matched = proto::Matched { log_id: Some(id(9, 4)), whole: false };
    let result = Some(proto::append_response::Result::Matched(matched));
    let answer = proto::AppendResponse { result, below_disk_reserve: true };
    let voted = proto::VoteResponse {
        vote: Some(vote(9, false)),
        granted: true,
        last_log_id: Some(id(1, 4)),
    };
    let meta = snapshot_of(Vec::new(), id(9, 4)).head.and_then(|head| head.meta);
    vec![
        message(0, append(None, 2).encode_to_vec()),
        message(1, ballot(id(1, 4)).encode_to_vec()),
        message(2, transfer(id(1, 4)).encode_to_vec()),
        message(3, meta.unwrap_or_default().encode_to_vec()),
        message(4, answer.encode_to_vec()),
        message(5, voted.encode_to_vec()),
    ]
}

/// Decodes a message and translates it; translating back must give the same message.
fn translate(kind: u8, bytes: &[u8]) -> Result<(), String> {
    let bad = |error: Malformed| error.to_string();
    match kind % 6 {
        0 => {
            let request = wire::append_from_wire(decode(bytes)?).map_err(bad)?;
            let again = wire::append_to_wire(&request, None);
            assert_eq!(wire::append_from_wire(again).map_err(bad)?.entries, request.entries);
            for entry in request.entries {
                assert_eq!(wire::entry_of(wire::record_of(&entry)), Ok(entry));
            }
        }
        1 => wire::vote_request_from_wire(&decode(bytes)?).map(|_| ()).map_err(bad)?,
        2 => wire::transfer_from_wire(&decode(bytes)?).map(|_| ()).map_err(bad)?,
        3 => {
            let meta = wire::snapshot_meta_from_wire(decode(bytes)?).map_err(bad)?;
            let again = wire::snapshot_meta_to_wire(&meta, 3, (Bytes::new(), 0));
            assert_eq!(wire::snapshot_meta_from_wire(again), Ok(meta));
        }
        4 => wire::append_result_from_wire(&decode(bytes)?).map(|_| ()).map_err(bad)?,
        _ => wire::vote_response_from_wire(&decode(bytes)?).map(|_| ()).map_err(bad)?,
    }
    Ok(())
}

fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M, String> {
    M::decode(bytes).map_err(|error| error.to_string())
}

#[test]
fn no_message_of_a_peer_brings_its_translation_down() {
    Target::new("peer-wire", messages()).memory(64, 16 << 10).run(|bytes| {
        let Some((kind, bytes)) = bytes.split_first() else {
            return Outcome::refused(&"empty");
        };
        Outcome::of(&translate(*kind, bytes))
    });
}

/// The folder of the member before every script, and the fields that a caller of its cluster sends.
struct Ground {
    store: MemoryStore,
    header: proto::PeerHeader,
    last: proto::LogId,
    table: Vec<u8>,
}

/// A cluster of three with a session and a lock, of which only the target remains.
async fn ground() -> Ground {
    let mut cluster = Cluster::started(3, |_| ()).await;
    cluster.formed().await;
    let (leader, _) = cluster.leader().await;
    let session = open(cluster.replica(leader)).await;
    commit(cluster.replica(leader), acquire(session, 1, "a")).await;
    cluster.level().await;
    let mut table = Vec::new();
    cluster.replica(TARGET).read(&mut |held, _| held.freeze().write_to(&mut table).unwrap());
    let store = cluster.kill(TARGET).await;
    let last = ReplicaStore::log(&store).last().unwrap();
    let cluster_id = store.identity().cluster.unwrap();
    let header = proto::PeerHeader {
        cluster_id: Bytes::copy_from_slice(&cluster_id.0),
        incarnation: 0,
        from_node: CALLER,
        to_node: TARGET,
        group: 0,
    };
    cluster.shutdown().await;
    Ground { store, header, last: id(last.term, last.index), table }
}

/// The target alone; only the script sends it messages.
struct Alone<'a> {
    ground: &'a Ground,
    runtime: Runtime,
    replica: Arc<Replica>,
    peer: Arc<dyn Peer>,
    told: Vec<String>,
}

impl<'a> Alone<'a> {
    async fn new(ground: &'a Ground) -> Self {
        let runtime = simulated::runtime(1, 1_000_000);
        let store = Arc::new(ground.store.restarted());
        let config = ReplicaConfig::new(TARGET, (1..=3).map(member).collect());
        let network = MemoryNetwork::new();
        let replica = Replica::start(config, store, network.of(TARGET), runtime.clone()).await;
        let replica = replica.unwrap();
        let peer = replica.peer();
        Self { ground, runtime, replica, peer, told: Vec::new() }
    }

    async fn step(&mut self, kind: u8, bytes: &[u8]) {
        let call = self.call(kind, bytes);
        let answer = self.runtime.timeout(PATIENCE, call).await.expect("a peer is answered");
        let told = match answer {
            Ok(()) => "ok".to_owned(),
            Err(error) => error.chars().filter(char::is_ascii_alphabetic).take(40).collect(),
        };
        self.told.push(told);
    }

    async fn call(&self, kind: u8, bytes: &[u8]) -> Result<(), String> {
        let said = |error: PeerError| error.to_string();
        let header = |decoded| match kind & HEADER_AS_IS {
            0 => Some(self.ground.header.clone()),
            _ => decoded,
        };
        match kind % KINDS {
            which @ (APPEND | STREAM_APPEND) => {
                let mut request: proto::AppendRequest = decode(bytes)?;
                request.header = header(request.header);
                if which == APPEND {
                    return self.peer.append(request).await.map(drop).map_err(said);
                }
                let requests = stream::iter([request]).boxed();
                let answers = self.peer.stream_append(requests).await.map_err(said)?;
                let last = answers.collect::<Vec<_>>().await.pop();
                last.unwrap_or(Err(PeerError::Unreachable(String::new()))).map(drop).map_err(said)
            }
            which @ (VOTE | PRE_VOTE) => {
                let mut request: proto::VoteRequest = decode(bytes)?;
                request.header = header(request.header);
                let answer = match which {
                    VOTE => self.peer.vote(request),
                    _ => self.peer.pre_vote(request),
                };
                answer.await.map(drop).map_err(said)
            }
            SNAPSHOT => {
                let mut chunk: proto::SnapshotChunk = decode(bytes)?;
                if let Some(head) = &mut chunk.head {
                    head.header = header(head.header.take());
                    self.put_right(kind, head, &chunk.data);
                }
                let chunks = stream::iter([chunk]).boxed();
                self.peer.install_snapshot(chunks).await.map(drop).map_err(said)
            }
            TRANSFER => {
                let mut request: proto::TransferLeaderRequest = decode(bytes)?;
                request.header = header(request.header);
                self.peer.transfer_leader(request).await.map(drop).map_err(said)
            }
            PROMISE => self.peer.promise(decode(bytes)?).await.map(drop).map_err(said),
            _ => {
                let millis = bytes.first_chunk().map_or(0, |millis| u16::from_le_bytes(*millis));
                self.runtime.sleep(Duration::from_millis(millis.into())).await;
                Ok(())
            }
        }
    }

    fn put_right(&self, kind: u8, head: &mut proto::SnapshotHead, data: &Bytes) {
        if kind & HEADER_AS_IS == 0
            && let Some(meta) = &mut head.meta
        {
            meta.cluster_id = self.ground.header.cluster_id.clone();
            meta.incarnation = 0;
        }
        if kind & HASH_AS_IS == 0 {
            head.size = data.len() as u64;
            head.sha256 = Sha256::digest(data).to_vec().into();
        }
    }

    /// After any script the replica reports its status, and stops on request. A leader that sends
    /// false messages in its cluster's name can stop it, with a named fault.
    async fn check(self) -> Outcome {
        let _ = self.replica.status();
        let fault = self.replica.faults().borrow().clone();
        let stopped = self.runtime.timeout(PATIENCE, self.replica.shutdown()).await;
        assert!(stopped.is_ok(), "the replica does not stop");
        let fault = match fault {
            None => "serves".to_owned(),
            Some(Fault::Stopped { message }) => panic!("openraft stopped: {message}"),
            Some(fault) => fault.to_string().chars().take(20).collect(),
        };
        let last = self.told.len().saturating_sub(2);
        Outcome::came_to(format!("{fault} {}", self.told[last..].join(" ")))
    }
}

#[test]
fn no_sequence_of_messages_brings_a_member_down() {
    let ground = on_virtual_time(ground());
    let last = ground.last;
    let mut log = Vec::new();
    script::push(&mut log, VOTE, &ballot(last).encode_to_vec());
    script::push(&mut log, APPEND, &append(Some(last), last.index + 2).encode_to_vec());
    script::push(&mut log, STREAM_APPEND, &append(Some(id(9, last.index + 3)), 0).encode_to_vec());
    script::push(&mut log, TIME_PASSES, &5_000_u16.to_le_bytes());
    script::push(&mut log, PRE_VOTE, &ballot(id(9, last.index + 3)).encode_to_vec());
    let mut snapshot = Vec::new();
    let table = snapshot_of(ground.table.clone(), id(last.term, last.index));
    script::push(&mut snapshot, SNAPSHOT, &table.encode_to_vec());
    script::push(&mut snapshot, TRANSFER, &transfer(last).encode_to_vec());
    let promise = proto::PromiseRequest {
        cluster_id: vec![1; 16].into(),
        from_node: 1,
        to_node: TARGET,
        members: (1..=3).map(|id| wire::member_to_wire(&member(id))).collect(),
        incarnation: 0,
        start_id: None,
    };
    script::push(&mut snapshot, PROMISE, &promise.encode_to_vec());
    Target::new("peer-messages", [log, snapshot]).run(|bytes| {
        on_virtual_time(async {
            let mut alone = Alone::new(&ground).await;
            for (kind, bytes) in script::steps(bytes) {
                alone.step(kind, bytes).await;
            }
            alone.check().await
        })
    });
}
