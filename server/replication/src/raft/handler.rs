//! The member's own side of [`Peer`]: checks the sender, then passes the message to openraft.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt};
use futures_util::{FutureExt, TryFutureExt};
use holdfast_core::COMMAND_VERSION;
use holdfast_mutants::mutant;
use holdfast_proto::v1 as proto;
use holdfast_runtime::Clock;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, StreamAppendError};
use prost::Message;
use tokio_util::sync::CancellationToken;

use super::disk_times::DiskTimes;
use super::formation::Formation;
use super::machine::{Machine, Replicated, SnapshotData, off_runtime};
use super::membership::Changes;
use super::peers::{Me, Peer, PeerAnswer, PeerError, PeerStream, refused};
use super::types::{Snapshot, SnapshotMeta, Types, Vote};
use super::wire::{self, Malformed};
use crate::storage::{ReplicaStore, SnapshotDraft, Step};

pub(super) type Raft = openraft::Raft<Types, Machine>;

/// Largest piece of a snapshot taken from a peer, bytes.
const CHUNK_MAX: usize = 64 << 10;

/// The time of the last message of a leader, on this node's clock.
pub(super) struct LeaderContact {
    clock: Arc<dyn Clock>,
    at_ms: AtomicU64,
}

impl LeaderContact {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, at_ms: AtomicU64::new(0) }
    }

    fn note(&self) {
        self.at_ms.store(self.clock.now().as_millis(), Ordering::Relaxed);
    }

    /// Milliseconds since then; `None` before the first message.
    pub(super) fn millis_since(&self) -> Option<u64> {
        let at = self.at_ms.load(Ordering::Relaxed);
        (at != 0).then(|| self.clock.now().as_millis().saturating_sub(at))
    }
}

/// Answers peers. Cheap to clone.
#[derive(Clone)]
pub(super) struct Handler {
    pub(super) me: Arc<Me>,
    pub(super) raft: Raft,
    pub(super) formation: Arc<Formation>,
    pub(super) store: Arc<dyn ReplicaStore>,
    pub(super) shared: Arc<Replicated>,
    pub(super) below_reserve: Arc<AtomicBool>,
    pub(super) contact: Arc<LeaderContact>,
    pub(super) times: Arc<DiskTimes>,
    pub(super) stopping: CancellationToken,
    /// Set once, before the node is reached.
    pub(super) changes: Arc<OnceLock<Arc<Changes>>>,
}

impl Handler {
    pub(super) fn below_reserve(&self) -> bool {
        self.below_reserve.load(Ordering::Relaxed)
    }

    async fn append_one(
        self,
        request: proto::AppendRequest,
    ) -> Result<proto::AppendResponse, PeerError> {
        self.me.admit(request.header.as_ref())?;
        let from = sender(request.header.as_ref());
        let request = wire::append_from_wire(request).map_err(malformed)?;
        speaks_for_itself(from, &request.vote).map_err(malformed)?;
        self.contact.note();
        let prev = request.prev_log_id;
        let last = request.entries.last().map_or(prev, |entry| Some(entry.log_id));
        let response = self.raft.append_entries(request).await.map_err(|e| stopped(&e))?;
        let result = match response {
            AppendEntriesResponse::Success => Ok(last),
            AppendEntriesResponse::PartialSuccess(matched) => Ok(matched),
            AppendEntriesResponse::Conflict => {
                let at = prev.ok_or_else(|| refused("a conflict with the empty log"))?;
                Err(StreamAppendError::Conflict(at))
            }
            AppendEntriesResponse::HigherVote(vote) => Err(StreamAppendError::HigherVote(vote)),
        };
        Ok(wire::append_result_to_wire(&result, self.below_reserve()))
    }

    /// The first message has the header; the rest of the stream is from the same sender.
    async fn append_stream(
        self,
        mut requests: BoxStream<'static, proto::AppendRequest>,
    ) -> Result<PeerStream<proto::AppendResponse>, PeerError> {
        let Some(first) = requests.next().await else { return Ok(stream::empty().boxed()) };
        self.me.admit(first.header.as_ref())?;
        let from = sender(first.header.as_ref());
        let (contact, stopping) = (Arc::clone(&self.contact), self.stopping.clone());
        let requests = stream::once(std::future::ready(first))
            .chain(requests)
            // openraft reads on when the receiver of its answers is gone: this end has to be cut,
            // too.
            .take_until(async move { stopping.cancelled().await })
            .map(move |request| {
                contact.note();
                let request = wire::append_from_wire(request)?;
                speaks_for_itself(from, &request.vote).map(|()| request)
            })
            .take_while(|request| {
                // The stream ends there; its caller sees the end and opens a new one.
                let good = request.as_ref().inspect_err(makes_no_sense).is_ok();
                std::future::ready(good)
            })
            .filter_map(|request: Result<AppendEntriesRequest<Types>, Malformed>| {
                std::future::ready(request.ok())
            });
        let below_reserve = Arc::clone(&self.below_reserve);
        let responses = self.raft.stream_append(requests).map(move |result| {
            let below = below_reserve.load(Ordering::Relaxed);
            result
                .map(|result| match result {
                    Err(StreamAppendError::Conflict(at)) if mutant!(FalseQuorum) => Ok(Some(at)),
                    result => result,
                })
                .map(|result| wire::append_result_to_wire(&result, below))
                .map_err(|e| stopped(&e))
        });
        Ok(responses.boxed())
    }

    async fn receive_snapshot(
        self,
        mut chunks: BoxStream<'static, proto::SnapshotChunk>,
    ) -> Result<proto::SnapshotResponse, PeerError> {
        let first = chunks.next().await.ok_or_else(|| refused("a snapshot without head"))?;
        let head = first.head.ok_or_else(|| refused("a snapshot without head"))?;
        let (vote, meta) = self.admit_snapshot(&head)?;
        self.contact.note();
        let mut draft = self.draft(&meta, &head).await?;
        let mut received = 0_u64;
        let mut next = Some(first.data);
        while let Some(data) = next {
            received = received.saturating_add(data.len() as u64);
            if data.len() > CHUNK_MAX || received > head.size {
                return Err(refused("a snapshot that is longer than announced"));
            }
            draft = self.write_chunk(draft, data).await?;
            next = chunks.next().await.map(|chunk| chunk.data);
        }
        if !draft.is_whole(head.size, &head.sha256) {
            return Err(refused("a snapshot that did not arrive whole"));
        }
        let snapshot = Snapshot { meta, snapshot: SnapshotData::Received(draft) };
        let response =
            self.raft.install_full_snapshot(vote, snapshot).await.map_err(|e| stopped(&e))?;
        Ok(proto::SnapshotResponse { vote: Some(wire::vote_to_wire(&response.vote)) })
    }

    /// I22: refuses a snapshot of another cluster or incarnation before openraft or the disk sees
    /// any of it, and one that would break an assumption of openraft.
    fn admit_snapshot(
        &self,
        head: &proto::SnapshotHead,
    ) -> Result<(Vote, SnapshotMeta), PeerError> {
        self.me.admit(head.header.as_ref())?;
        let vote = wire::vote_from_wire(head.vote.as_ref()).map_err(malformed)?;
        speaks_for_itself(sender(head.header.as_ref()), &vote).map_err(malformed)?;
        let meta = head.meta.clone().ok_or_else(|| refused("a snapshot without meta"))?;
        let belongs = self.me.cluster().is_some_and(|(cluster, incarnation)| {
            meta.cluster_id == cluster.0.as_slice() && meta.incarnation == incarnation
        });
        if !belongs {
            return Err(refused("a snapshot of another cluster, or of another incarnation"));
        }
        let meta = wire::snapshot_meta_from_wire(meta).map_err(malformed)?;
        let last = meta.last_log_id.ok_or_else(|| refused("a snapshot of nothing"))?;
        if !vote.committed || last.leader_id.term > vote.leader_id.term {
            return Err(refused("a snapshot later than its leader"));
        }
        let free = self.store.free_space().unwrap_or(u64::MAX);
        if head.size > free {
            return Err(refused(format!("a snapshot of {} bytes, {free} are free", head.size)));
        }
        Ok((vote, meta))
    }

    async fn draft(
        &self,
        meta: &SnapshotMeta,
        head: &proto::SnapshotHead,
    ) -> Result<Box<dyn SnapshotDraft>, PeerError> {
        let last = meta.last_log_id.as_ref().map(wire::log_id_to_stored);
        // The meta as it was sent: cluster and incarnation were compared, and the rest was decoded.
        let bytes = head.meta.as_ref().map(Message::encode_to_vec).unwrap_or_default().into();
        let store = Arc::clone(&self.store);
        off_runtime(self.store.may_block(), move || store.begin_snapshot(last, bytes))
            .await
            .map_err(|error| PeerError::Stopping(error.to_string()))
    }

    async fn write_chunk(
        &self,
        mut draft: Box<dyn SnapshotDraft>,
        data: bytes::Bytes,
    ) -> Result<Box<dyn SnapshotDraft>, PeerError> {
        self.store.pace(Step::Write).await;
        off_runtime(self.store.may_block(), move || {
            draft.write_all(&data)?;
            Ok(draft)
        })
        .await
        .map_err(|error| PeerError::Stopping(error.to_string()))
    }

    async fn ballot(
        self,
        request: proto::VoteRequest,
        pre_vote: bool,
    ) -> Result<proto::VoteResponse, PeerError> {
        self.me.admit(request.header.as_ref())?;
        let from = sender(request.header.as_ref());
        let request = wire::vote_request_from_wire(&request).map_err(malformed)?;
        speaks_for_itself(from, &request.vote).map_err(malformed)?;
        let response = if pre_vote {
            self.raft.pre_vote(request).await.map_err(|e| stopped(&e))?
        } else {
            self.raft.vote(request).await.map_err(|e| stopped(&e))?
        };
        Ok(wire::vote_response_to_wire(&response))
    }

    async fn take_over(
        self,
        request: proto::TransferLeaderRequest,
    ) -> Result<proto::TransferLeaderResponse, PeerError> {
        self.me.admit(request.header.as_ref())?;
        let from = sender(request.header.as_ref());
        let request = wire::transfer_from_wire(&request).map_err(malformed)?;
        speaks_for_itself(from, request.from_leader()).map_err(malformed)?;
        let answer = self.raft.handle_transfer_leader(request).await.map_err(|e| stopped(&e))?;
        answer.map_err(|error| refused(error.to_string()))?;
        Ok(proto::TransferLeaderResponse {})
    }

    fn introduce(&self, to: u64) -> proto::HelloResponse {
        let identity = self.store.identity();
        let roll = self.shared.roll();
        let metrics = self.raft.data_metrics();
        let metrics = metrics.borrow_watched();
        proto::HelloResponse {
            node_id: identity.node_id,
            cluster_id: identity.cluster.map(|id| bytes::Bytes::copy_from_slice(&id.0)),
            initialised: self.formation.is_initialised(),
            command_version: u32::from(COMMAND_VERSION),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            below_disk_reserve: self.below_reserve(),
            incarnation: identity.incarnation,
            start_id: self.formation.start_id(),
            joining: self.formation.is_joining(),
            highest_node_id: roll.highest(),
            removed: roll.is_spent(to),
            last_log_index: self.store.log().last().map(|id| id.index),
            applied_index: self.shared.applied().borrow().map(|id| id.index),
            snapshot_index: metrics.snapshot.map(|id| id.index),
            append_p99_us: self.times.p99().map(micros),
        }
    }
}

impl Peer for Handler {
    fn promise(&self, request: proto::PromiseRequest) -> PeerAnswer<proto::PromiseResponse> {
        let formation = Arc::clone(&self.formation);
        async move { Ok(formation.asked(request).await) }.boxed()
    }

    fn admit(&self, request: proto::AdmitRequest) -> PeerAnswer<proto::AdmitResponse> {
        let Some(changes) = self.changes.get().cloned() else {
            let starts = PeerError::Unreachable("this node has just begun to start".to_owned());
            return std::future::ready(Err(starts)).boxed();
        };
        async move { Ok(changes.admit(request).await) }.boxed()
    }

    fn hello(&self, request: proto::HelloRequest) -> PeerAnswer<proto::HelloResponse> {
        std::future::ready(Ok(self.introduce(request.from_node))).boxed()
    }

    fn stream_append(
        &self,
        requests: BoxStream<'static, proto::AppendRequest>,
    ) -> PeerAnswer<PeerStream<proto::AppendResponse>> {
        // Returns the stream at once, although its first message may take a while.
        let stopping = self.stopping.clone();
        let responses = self.clone().append_stream(requests).try_flatten_stream();
        let responses = responses.take_until(async move { stopping.cancelled().await });
        std::future::ready(Ok(responses.boxed())).boxed()
    }

    fn append(&self, request: proto::AppendRequest) -> PeerAnswer<proto::AppendResponse> {
        self.clone().append_one(request).boxed()
    }

    fn vote(&self, request: proto::VoteRequest) -> PeerAnswer<proto::VoteResponse> {
        self.clone().ballot(request, false).boxed()
    }

    fn pre_vote(&self, request: proto::VoteRequest) -> PeerAnswer<proto::VoteResponse> {
        self.clone().ballot(request, true).boxed()
    }

    fn install_snapshot(
        &self,
        chunks: BoxStream<'static, proto::SnapshotChunk>,
    ) -> PeerAnswer<proto::SnapshotResponse> {
        self.clone().receive_snapshot(chunks).boxed()
    }

    fn transfer_leader(
        &self,
        request: proto::TransferLeaderRequest,
    ) -> PeerAnswer<proto::TransferLeaderResponse> {
        self.clone().take_over(request).boxed()
    }
}

/// A line about a request that its sender never makes.
fn makes_no_sense(error: &impl std::fmt::Display) {
    tracing::warn!(%error, "a request of another member makes no sense; its stream ends");
}

pub(super) fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

/// Microseconds, as reported to other nodes.
pub(super) fn micros(length: Duration) -> u64 {
    u64::try_from(length.as_micros()).unwrap_or(u64::MAX)
}

fn sender(header: Option<&proto::PeerHeader>) -> Option<u64> {
    header.map(|header| header.from_node)
}

/// Checks that a leader appends in its own name and a candidate asks for its own vote. openraft
/// assumes it: on a message that says this node itself was elected, it would follow itself.
fn speaks_for_itself(from: Option<u64>, vote: &Vote) -> Result<(), Malformed> {
    if from == Some(vote.leader_id.voted_for) {
        Ok(())
    } else {
        Err(Malformed("a message in the name of another node"))
    }
}

fn malformed(error: Malformed) -> PeerError {
    refused(error.to_string())
}

fn stopped(error: &impl ToString) -> PeerError {
    PeerError::Stopping(error.to_string())
}
