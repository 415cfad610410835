//! Converts between openraft's types and those of the wire and the disk.
//!
//! Input is foreign: every conversion from the wire checks what openraft asserts (entries that
//! follow each other, a vote that is present, a membership that can elect).

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use holdfast_proto::v1 as proto;
use openraft::EntryPayload;
use openraft::raft::{
    AppendEntriesRequest, StreamAppendError, StreamAppendResult, TransferLeaderRequest,
    VoteRequest, VoteResponse,
};
use prost::Message;

use super::Member;
use super::types::{
    Addresses, EncodedBatch, Entry, LogId, Membership, SnapshotMeta, StoredMembership, Types, Vote,
    log_id,
};
use crate::storage::{self, Record, RecordKind, StoredVote};

/// Bytes or a message that no member of this version writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed message of a peer: {0}")]
pub(super) struct Malformed(pub(super) &'static str);

/// With one leader per term, the term determines which node led. The field is reserved for the case
/// that it does not.
const NODE_ID_UNUSED: u64 = 0;

pub(super) fn log_id_to_wire(id: &LogId) -> proto::LogId {
    proto::LogId { term: id.leader_id.term, node_id: NODE_ID_UNUSED, index: id.index }
}

pub(super) fn log_id_from_wire(id: &proto::LogId) -> LogId {
    log_id(id.term, id.index)
}

pub(super) fn log_id_to_stored(id: &LogId) -> storage::LogId {
    storage::LogId { term: id.leader_id.term, node_id: NODE_ID_UNUSED, index: id.index }
}

pub(super) fn log_id_from_stored(id: storage::LogId) -> LogId {
    log_id(id.term, id.index)
}

pub(super) fn vote_to_wire(vote: &Vote) -> proto::VoteState {
    proto::VoteState {
        term: vote.leader_id.term,
        node_id: Some(vote.leader_id.voted_for),
        committed: vote.committed,
    }
}

pub(super) fn vote_from_wire(vote: Option<&proto::VoteState>) -> Result<Vote, Malformed> {
    let vote = vote.ok_or(Malformed("no vote"))?;
    let node_id = vote.node_id.ok_or(Malformed("a vote for nobody"))?;
    Ok(vote_of(vote.term, node_id, vote.committed))
}

pub(super) fn vote_to_stored(vote: &Vote) -> StoredVote {
    StoredVote {
        term: vote.leader_id.term,
        node_id: Some(vote.leader_id.voted_for),
        committed: vote.committed,
    }
}

pub(super) fn vote_from_stored(vote: StoredVote) -> Result<Vote, Malformed> {
    let node_id = vote.node_id.ok_or(Malformed("a stored vote for nobody"))?;
    Ok(vote_of(vote.term, node_id, vote.committed))
}

fn vote_of(term: u64, node_id: u64, committed: bool) -> Vote {
    if committed { Vote::new_committed(term, node_id) } else { Vote::new(term, node_id) }
}

pub(super) fn member_to_wire(member: &Member) -> proto::PeerMember {
    proto::PeerMember {
        node_id: member.node_id,
        advertise: member.advertise.clone(),
        peer_advertise: member.peer_advertise.clone(),
    }
}

pub(super) fn member_from_wire(member: proto::PeerMember) -> Member {
    let proto::PeerMember { node_id, advertise, peer_advertise } = member;
    Member { node_id, advertise, peer_advertise }
}

pub(super) fn membership_to_wire(membership: &Membership) -> proto::Membership {
    let configs = membership
        .get_joint_config()
        .iter()
        .map(|voters| proto::VoterSet { node_ids: voters.iter().copied().collect() })
        .collect();
    let nodes = membership.nodes().map(|(id, node)| member_to_wire(&node.member(*id))).collect();
    proto::Membership { configs, nodes }
}

pub(super) fn membership_from_wire(wire: proto::Membership) -> Result<Membership, Malformed> {
    let configs = wire
        .configs
        .into_iter()
        .map(|voters| voters.node_ids.into_iter().collect::<BTreeSet<_>>())
        .collect();
    let nodes: BTreeMap<u64, Addresses> = wire
        .nodes
        .into_iter()
        .map(member_from_wire)
        .map(|member| (member.node_id, Addresses::of(&member)))
        .collect();
    Membership::new(configs, nodes).map_err(|_| Malformed("a membership that cannot elect"))
}

pub(super) fn record_of(entry: &Entry) -> Record {
    let (kind, payload) = match &entry.payload {
        EntryPayload::Blank => (RecordKind::Blank, Bytes::new()),
        EntryPayload::Normal(batch) => (RecordKind::Batch, batch.0.clone()),
        EntryPayload::Membership(membership) => {
            (RecordKind::Membership, membership_to_wire(membership).encode_to_vec().into())
        }
    };
    Record { log_id: log_id_to_stored(&entry.log_id), kind, payload }
}

pub(super) fn entry_of(record: Record) -> Result<Entry, Malformed> {
    let payload = match record.kind {
        RecordKind::Blank => EntryPayload::Blank,
        RecordKind::Batch => EntryPayload::Normal(EncodedBatch(record.payload)),
        RecordKind::Membership => {
            let wire = proto::Membership::decode(record.payload)
                .map_err(|_| Malformed("a stored membership that does not decode"))?;
            EntryPayload::Membership(membership_from_wire(wire)?)
        }
    };
    Ok(Entry { log_id: log_id_from_stored(record.log_id), payload })
}

fn entry_to_wire(entry: &Entry) -> proto::LogEntry {
    use proto::log_entry::Payload;
    let payload = match &entry.payload {
        EntryPayload::Blank => Payload::Blank(proto::Blank {}),
        EntryPayload::Normal(batch) => Payload::Batch(batch.0.clone()),
        EntryPayload::Membership(membership) => Payload::Membership(membership_to_wire(membership)),
    };
    proto::LogEntry { log_id: Some(log_id_to_wire(&entry.log_id)), payload: Some(payload) }
}

fn entry_from_wire(entry: proto::LogEntry) -> Result<Entry, Malformed> {
    use proto::log_entry::Payload;
    let log_id = entry.log_id.as_ref().map(log_id_from_wire).ok_or(Malformed("no log id"))?;
    let payload = match entry.payload.ok_or(Malformed("an entry without payload"))? {
        Payload::Blank(_) => EntryPayload::Blank,
        Payload::Batch(bytes) => EntryPayload::Normal(EncodedBatch(bytes)),
        Payload::Membership(wire) => EntryPayload::Membership(membership_from_wire(wire)?),
    };
    Ok(Entry { log_id, payload })
}

pub(super) fn append_to_wire(
    request: &AppendEntriesRequest<Types>,
    header: Option<proto::PeerHeader>,
) -> proto::AppendRequest {
    proto::AppendRequest {
        header,
        vote: Some(vote_to_wire(&request.vote)),
        prev: request.prev_log_id.as_ref().map(log_id_to_wire),
        leader_commit: request.leader_commit.as_ref().map(log_id_to_wire),
        entries: request.entries.iter().map(entry_to_wire).collect(),
    }
}

pub(super) fn append_from_wire(
    request: proto::AppendRequest,
) -> Result<AppendEntriesRequest<Types>, Malformed> {
    let vote = vote_from_wire(request.vote.as_ref())?;
    if !vote.committed {
        return Err(Malformed("an append by a node that was not elected"));
    }
    let prev_log_id = request.prev.as_ref().map(log_id_from_wire);
    let entries: Vec<Entry> =
        request.entries.into_iter().map(entry_from_wire).collect::<Result<_, _>>()?;
    check_order(prev_log_id.as_ref(), &entries, &vote)?;
    let leader_commit = request.leader_commit.as_ref().map(log_id_from_wire);
    Ok(AppendEntriesRequest { vote, prev_log_id, entries, leader_commit })
}

/// Checks that entries follow each other and the one before them, by index and by term, and none is
/// later than the leader's own term.
fn check_order(prev: Option<&LogId>, entries: &[Entry], vote: &Vote) -> Result<(), Malformed> {
    let mut term = prev.map_or(0, |id| id.leader_id.term);
    let mut next = prev.map_or(Some(0), |id| id.index.checked_add(1));
    for entry in entries {
        let id = &entry.log_id;
        if next != Some(id.index) || id.leader_id.term < term {
            return Err(Malformed("entries that do not follow each other"));
        }
        next = id.index.checked_add(1);
        term = id.leader_id.term;
    }
    if term > vote.leader_id.term {
        return Err(Malformed("an entry of a later term than its leader's"));
    }
    Ok(())
}

pub(super) fn append_result_to_wire(
    result: &StreamAppendResult<Types>,
    below_disk_reserve: bool,
) -> proto::AppendResponse {
    use proto::append_response::Result as Wire;
    let result = match result {
        Ok(matched) => Wire::Matched(proto::Matched {
            log_id: matched.as_ref().map(log_id_to_wire),
            whole: false,
        }),
        Err(StreamAppendError::Conflict(id)) => Wire::Conflict(log_id_to_wire(id)),
        Err(StreamAppendError::HigherVote(vote)) => Wire::HigherVote(vote_to_wire(vote)),
    };
    proto::AppendResponse { result: Some(result), below_disk_reserve }
}

pub(super) fn append_result_from_wire(
    response: &proto::AppendResponse,
) -> Result<StreamAppendResult<Types>, Malformed> {
    use proto::append_response::Result as Wire;
    let result = match response.result.as_ref().ok_or(Malformed("an append without result"))? {
        Wire::Matched(matched) => Ok(matched.log_id.as_ref().map(log_id_from_wire)),
        Wire::Conflict(id) => Err(StreamAppendError::Conflict(log_id_from_wire(id))),
        Wire::HigherVote(vote) => Err(StreamAppendError::HigherVote(vote_from_wire(Some(vote))?)),
    };
    Ok(result)
}

pub(super) fn vote_request_to_wire(
    request: &VoteRequest<Types>,
    header: proto::PeerHeader,
) -> proto::VoteRequest {
    proto::VoteRequest {
        header: Some(header),
        vote: Some(vote_to_wire(&request.vote)),
        last_log_id: request.last_log_id.as_ref().map(log_id_to_wire),
        leadership_transfer: request.leadership_transfer,
    }
}

pub(super) fn vote_request_from_wire(
    request: &proto::VoteRequest,
) -> Result<VoteRequest<Types>, Malformed> {
    let vote = vote_from_wire(request.vote.as_ref())?;
    if vote.committed {
        return Err(Malformed("a candidate that was elected already"));
    }
    let mut converted = VoteRequest::new(vote, request.last_log_id.as_ref().map(log_id_from_wire));
    converted.leadership_transfer = request.leadership_transfer;
    Ok(converted)
}

pub(super) fn vote_response_to_wire(response: &VoteResponse<Types>) -> proto::VoteResponse {
    proto::VoteResponse {
        vote: Some(vote_to_wire(&response.vote)),
        granted: response.vote_granted,
        last_log_id: response.last_log_id.as_ref().map(log_id_to_wire),
    }
}

pub(super) fn vote_response_from_wire(
    response: &proto::VoteResponse,
) -> Result<VoteResponse<Types>, Malformed> {
    let vote = vote_from_wire(response.vote.as_ref())?;
    let last = response.last_log_id.as_ref().map(log_id_from_wire);
    Ok(VoteResponse::new(vote, last, response.granted))
}

pub(super) fn transfer_to_wire(
    request: &TransferLeaderRequest<Types>,
    header: proto::PeerHeader,
) -> proto::TransferLeaderRequest {
    proto::TransferLeaderRequest {
        header: Some(header),
        from: Some(vote_to_wire(request.from_leader())),
        to_node: *request.to_node_id(),
        last_log_id: request.last_log_id().map(log_id_to_wire),
    }
}

pub(super) fn transfer_from_wire(
    request: &proto::TransferLeaderRequest,
) -> Result<TransferLeaderRequest<Types>, Malformed> {
    let from = vote_from_wire(request.from.as_ref())?;
    let last = request.last_log_id.as_ref().map(log_id_from_wire);
    Ok(TransferLeaderRequest::new(from, request.to_node, last))
}

/// `identity` is the cluster id and incarnation that the snapshot belongs to (I22).
pub(super) fn snapshot_meta_to_wire(
    meta: &SnapshotMeta,
    highest_node_id: u64,
    identity: (Bytes, u64),
) -> proto::SnapshotMeta {
    let membership = &meta.last_membership;
    proto::SnapshotMeta {
        last_log_id: meta.last_log_id.as_ref().map(log_id_to_wire),
        membership_log_id: membership.log_id().as_ref().map(log_id_to_wire),
        membership: Some(membership_to_wire(membership.membership())),
        cluster_id: identity.0,
        incarnation: identity.1,
        highest_node_id,
    }
}

pub(super) fn snapshot_meta_from_wire(
    meta: proto::SnapshotMeta,
) -> Result<SnapshotMeta, Malformed> {
    let last_log_id = meta.last_log_id.as_ref().map(log_id_from_wire);
    let at = meta.membership_log_id.as_ref().map(log_id_from_wire);
    let last_membership = match (at, meta.membership) {
        (Some(at), Some(wire)) => StoredMembership::new(Some(at), membership_from_wire(wire)?),
        (Some(_), None) => return Err(Malformed("a membership without voters")),
        (None, _) => StoredMembership::default(),
    };
    Ok(SnapshotMeta { last_log_id, last_membership })
}
