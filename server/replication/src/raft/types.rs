//! The types that configure openraft. They stay inside this module: neither the wire nor the disk
//! knows them (`wire.rs` translates).

use std::fmt;

use bytes::Bytes;
use holdfast_core::Outcome;
#[cfg(not(any(test, feature = "simulation")))]
use openraft::impls::TokioRuntime as RaftRuntime;
use openraft::impls::{BoxedErrorSource, InlineBatch, leader_id_std};
use openraft::raft::ClientWriteResult;
use openraft::raft::responder::Responder;
use openraft::{EntryPayload, OptionalSend, RaftTypeConfig, alias};

use super::Member;
#[cfg(any(test, feature = "simulation"))]
use super::runtime::RaftRuntime;

/// Type configuration.
///
/// `leader_id_std`: one leader per term, so that the term alone names a tenure; openraft's default
/// allows several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Types;

impl RaftTypeConfig for Types {
    type D = EncodedBatch;
    type R = Vec<Outcome>;
    type NodeId = u64;
    type Node = Addresses;
    type Term = u64;
    type LeaderId = leader_id_std::LeaderId<u64, u64>;
    type Vote = openraft::Vote<Self::LeaderId>;
    type Payload = EntryPayload<EncodedBatch, u64, Addresses>;
    type Entry = openraft::Entry<CommittedLeaderId, Self::Payload>;
    type AsyncRuntime = RaftRuntime;
    type Responder<T>
        = Callback<T>
    where
        T: OptionalSend + 'static;
    type Batch<T>
        = InlineBatch<T>
    where
        T: OptionalSend + 'static;
    type ErrorSource = BoxedErrorSource;
}

pub(super) type CommittedLeaderId = alias::CommittedLeaderIdOf<Types>;
pub(super) type Entry = alias::EntryOf<Types>;
pub(super) type LogId = alias::LogIdOf<Types>;
pub(super) type Vote = alias::VoteOf<Types>;
pub(super) type Membership = openraft::Membership<u64, Addresses>;
pub(super) type StoredMembership = alias::StoredMembershipOf<Types>;
pub(super) type SnapshotMeta = alias::SnapshotMetaOf<Types>;
pub(super) type Snapshot<Data> = alias::SnapshotOf<Types, Data>;
pub(super) type WriteResult = ClientWriteResult<Types>;

/// The log id at `index` of the entries written in `term`.
pub(super) fn log_id(term: u64, index: u64) -> LogId {
    LogId::new(CommittedLeaderId::new(term), index)
}

/// The addresses of a member, as the membership in the log has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Addresses {
    pub(super) advertise: String,
    pub(super) peer_advertise: String,
}

impl Addresses {
    pub(super) fn of(member: &Member) -> Self {
        let Member { advertise, peer_advertise, .. } = member.clone();
        Self { advertise, peer_advertise }
    }

    pub(super) fn member(&self, node_id: u64) -> Member {
        let Self { advertise, peer_advertise } = self.clone();
        Member { node_id, advertise, peer_advertise }
    }
}

/// A batch as the log holds it: `holdfast_core::Batch::encode`. Cloning shares the bytes.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct EncodedBatch(pub(super) Bytes);

impl fmt::Debug for EncodedBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "batch of {} bytes", self.0.len())
    }
}

impl fmt::Display for EncodedBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Receives the outcome of a write from openraft: a closure that runs where the entry was applied,
/// so that no task has to be woken in between.
pub(super) struct Callback<T>(Box<dyn FnOnce(T) + Send>);

impl<T> Callback<T> {
    pub(super) fn new(call: impl FnOnce(T) + Send + 'static) -> Self {
        Self(Box::new(call))
    }
}

impl<T: OptionalSend + 'static> Responder<Types, T> for Callback<T> {
    fn on_complete(self, result: T) {
        (self.0)(result);
    }
}
