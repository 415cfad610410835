//! openraft's way to other members, over [`PeerNetwork`].
//!
//! Appends travel on one long-lived stream per follower, pipelined; heartbeats and votes are calls
//! of their own, beside it, so that they are not held up by what is on its way.

use std::future::Future;
use std::sync::Arc;

use futures_util::stream::{self, BoxStream, StreamExt};
use futures_util::{Stream, pin_mut};
use holdfast_proto::v1 as proto;
use holdfast_seams::Clock;
use openraft::OptionalSend;
use openraft::base::{BoxFuture, BoxStream as RaftBoxStream};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{
    Backoff, NetBackoff, NetSnapshot, NetStreamAppend, NetTransferLeader, NetVote, RPCOption,
    RaftNetworkFactory,
};
use openraft::raft::{
    AppendEntriesRequest, SnapshotResponse, StreamAppendError, StreamAppendResult,
    TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};

use super::Member;
use super::commit_news;
use super::machine::{SnapshotData, off_runtime, stored_meta};
use super::peers::{Heard, Lane, Me, Peer, PeerError, PeerNetwork};
use super::store::KeptSnapshot;
use super::types::{Addresses, Snapshot, Types, Vote};
use super::wire::{self, Malformed};

type Failure = RPCError<Types>;

/// Makes the ways to other members.
pub(super) struct Network {
    pub(super) peers: Arc<dyn PeerNetwork>,
    pub(super) me: Arc<Me>,
    pub(super) heard: Arc<Heard>,
    /// The members as configured: where their addresses differ from those in the log, somebody
    /// moved a node.
    pub(super) configured: Arc<[Member]>,
    pub(super) may_block: bool,
    pub(super) clock: Arc<dyn Clock>,
}

impl Network {
    fn link(&self, target: u64, node: &Addresses, lane: Lane) -> Link {
        let configured = self.configured.iter().find(|member| member.node_id == target);
        let member = configured.cloned().unwrap_or_else(|| node.member(target));
        Link {
            peer: self.peers.peer(&member, lane),
            control: self.peers.peer(&member, Lane::Control),
            lane,
            target,
            me: Arc::clone(&self.me),
            heard: Arc::clone(&self.heard),
            may_block: self.may_block,
            clock: Arc::clone(&self.clock),
        }
    }
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Link;

    async fn new_client(&mut self, target: u64, node: &Addresses) -> Link {
        self.link(target, node, Lane::Log)
    }

    async fn new_heartbeat_client(&mut self, target: u64, node: &Addresses) -> Link {
        self.link(target, node, Lane::Control)
    }

    async fn new_snapshot_client(&mut self, target: u64, node: &Addresses) -> Link {
        self.link(target, node, Lane::Bulk)
    }
}

/// A way to one member.
pub(super) struct Link {
    peer: Arc<dyn Peer>,
    /// Votes go beside the log in any case: they are needed most when that connection is dead.
    control: Arc<dyn Peer>,
    lane: Lane,
    target: u64,
    me: Arc<Me>,
    heard: Arc<Heard>,
    may_block: bool,
    clock: Arc<dyn Clock>,
}

impl Link {
    fn header(&self) -> proto::PeerHeader {
        self.me.header(self.target)
    }

    /// Reads one answer and keeps what the member says of its disk.
    fn answer(
        heard: &Heard,
        target: u64,
        response: Result<proto::AppendResponse, PeerError>,
    ) -> Result<StreamAppendResult<Types>, Failure> {
        let response = response.map_err(|e| failure(&e))?;
        heard.note_reserve(target, response.below_disk_reserve);
        wire::append_result_from_wire(&response).map_err(malformed)
    }

    /// One call for each request, for heartbeats: each with the header, none waiting for another.
    fn one_by_one<S>(
        &self,
        requests: S,
    ) -> RaftBoxStream<'_, Result<StreamAppendResult<Types>, Failure>>
    where
        S: Stream<Item = AppendEntriesRequest<Types>> + OptionalSend + Unpin + 'static,
    {
        Box::pin(requests.then(move |request| async move {
            let without_prev = request.prev_log_id.is_none();
            let message = wire::append_to_wire(&request, Some(self.header()));
            let response = self.peer.append(message).await;
            let result = Self::answer(&self.heard, self.target, response)?;
            match result {
                // openraft takes for granted that nothing conflicts with the empty log.
                Err(StreamAppendError::Conflict(_)) if without_prev => {
                    Err(malformed(Malformed("a conflict with the empty log")))
                }
                result => Ok(result),
            }
        }))
    }

    async fn streamed<S>(
        &self,
        mut requests: S,
    ) -> Result<RaftBoxStream<'_, Result<StreamAppendResult<Types>, Failure>>, Failure>
    where
        S: Stream<Item = AppendEntriesRequest<Types>> + OptionalSend + Unpin + 'static,
    {
        // openraft backs off after a failure where it hands out the next request, not before it
        // opens the next stream. A way that fails without having taken a request would be tried
        // again at once, for ever.
        let Some(first) = requests.next().await else { return Ok(stream::empty().boxed()) };
        let first = wire::append_to_wire(&first, Some(self.header()));
        let has_entries = |request: &AppendEntriesRequest<Types>| !request.entries.is_empty();
        let later = commit_news::with_next_entry(requests, has_entries, Arc::clone(&self.clock));
        let later = later.map(|request| wire::append_to_wire(&request, None));
        let messages = stream::once(std::future::ready(first)).chain(later).boxed();
        let responses = self.peer.stream_append(messages).await.map_err(|e| failure(&e))?;
        let (heard, target) = (Arc::clone(&self.heard), self.target);
        Ok(Box::pin(responses.map(move |response| Self::answer(&heard, target, response))))
    }
}

impl NetStreamAppend<Types> for Link {
    fn stream_append<S>(
        &mut self,
        input: S,
        _option: RPCOption,
    ) -> BoxFuture<'_, Result<RaftBoxStream<'_, Result<StreamAppendResult<Types>, Failure>>, Failure>>
    where
        S: Stream<Item = AppendEntriesRequest<Types>> + OptionalSend + Unpin + 'static,
    {
        let link = &*self;
        match link.lane {
            Lane::Control => Box::pin(async move { Ok(link.one_by_one(input)) }),
            Lane::Log | Lane::Bulk => Box::pin(link.streamed(input)),
        }
    }
}

impl NetVote<Types> for Link {
    async fn vote(
        &mut self,
        request: VoteRequest<Types>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types>, Failure> {
        let message = wire::vote_request_to_wire(&request, self.header());
        let response = self.control.vote(message).await.map_err(|e| failure(&e))?;
        wire::vote_response_from_wire(&response).map_err(malformed)
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types>, Failure> {
        let message = wire::vote_request_to_wire(&request, self.header());
        let response = self.control.pre_vote(message).await.map_err(|e| failure(&e))?;
        wire::vote_response_from_wire(&response).map_err(malformed)
    }
}

impl NetTransferLeader<Types> for Link {
    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        _option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, Failure> {
        let message = wire::transfer_to_wire(&request, self.header());
        self.control.transfer_leader(message).await.map_err(|e| failure(&e))?;
        Ok(Ok(()))
    }
}

impl NetSnapshot<Types> for Link {
    type SnapshotData = SnapshotData;

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot<SnapshotData>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let SnapshotData::Kept(kept) = snapshot.snapshot else {
            return Err(RPCError::from(malformed_network("a snapshot that is not finished")).into());
        };
        let Ok(meta) = stored_meta(&kept) else {
            return Err(RPCError::from(malformed_network("a snapshot without its head")).into());
        };
        let head = proto::SnapshotHead {
            header: Some(self.header()),
            vote: Some(wire::vote_to_wire(&vote)),
            meta: Some(meta),
            size: kept.length(),
            sha256: kept.sha256().to_vec().into(),
        };
        let sending = self.peer.install_snapshot(chunks(head, kept, self.may_block));
        pin_mut!(cancel);
        holdfast_seams::select! {
            closed = cancel => Err(StreamingError::Closed(closed)),
            response = sending => {
                let response = response.map_err(|e| failure(&e))?;
                let vote = wire::vote_from_wire(response.vote.as_ref()).map_err(malformed)?;
                Ok(SnapshotResponse::new(vote))
            }
        }
    }
}

impl NetBackoff<Types> for Link {
    fn backoff(&self) -> Option<Backoff> {
        None
    }
}

/// The head, then the body in chunks of at most 64 KiB. A chunk that cannot be read ends the
/// stream; the receiver finds it too short.
fn chunks(
    head: proto::SnapshotHead,
    kept: Arc<dyn KeptSnapshot>,
    may_block: bool,
) -> BoxStream<'static, proto::SnapshotChunk> {
    let first = proto::SnapshotChunk { head: Some(head), data: bytes::Bytes::new() };
    let body = stream::unfold((kept, 0_u64), move |(kept, offset)| async move {
        let source = Arc::clone(&kept);
        let data = off_runtime(may_block, move || source.chunk(offset)).await;
        let data = data.inspect_err(|error| tracing::warn!(%error, "a snapshot cannot be sent"));
        let data = data.ok().filter(|data| !data.is_empty())?;
        let next = offset.saturating_add(data.len() as u64);
        Some((proto::SnapshotChunk { head: None, data }, (kept, next)))
    });
    stream::once(std::future::ready(first)).chain(body).boxed()
}

fn failure(error: &PeerError) -> Failure {
    // Also what was refused is not helped by trying at once: backed off like a node that is away.
    RPCError::Unreachable(Unreachable::new(error))
}

fn malformed(error: Malformed) -> Failure {
    RPCError::Network(NetworkError::new(&error))
}

fn malformed_network(what: &'static str) -> NetworkError<Types> {
    NetworkError::new(&Malformed(what))
}
