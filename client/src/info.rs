//! What the store tells about locks and nodes, for people and their tools.

use std::time::Duration;

use holdfast_proto::v1;
use holdfast_seams::Moment;

use crate::{FencingToken, Mode, Value};

/// Who holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The holder's session.
    pub session: u64,
    /// What the session calls itself; proves nothing. May hold any characters: escape it before
    /// it goes to a terminal.
    pub label: String,
    /// The grant's fencing token.
    pub token: FencingToken,
    /// For how long, by the leader's wall clock.
    pub held: Duration,
    /// How it holds it.
    pub mode: Mode,
    /// It was imported from another store, where its owner is called what `label` says, and nobody
    /// has claimed it.
    pub is_imported: bool,
}

/// Where a request stands in its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// How many stand before it; 0 is next. Of a request for all of several locks the largest of
    /// its places, of one for any of them the smallest.
    pub place: u64,
    /// Who holds what it waits for: at most 100.
    pub holders: Vec<Holder>,
    /// It waits for nobody, but for the store to have authority over the lock's scope: the scope is on its
    /// way from one store to the other, or is served by the other one.
    pub awaits_authority: bool,
}

/// A place, and when it was told.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) place: Place,
    pub(crate) at: Moment,
}

impl Told {
    /// The place with its holders as old as they are `now`.
    pub(crate) fn aged(&self, now: Moment) -> Place {
        let mut place = self.place.clone();
        for holder in &mut place.holders {
            holder.held += now.saturating_since(self.at);
        }
        place
    }
}

impl Place {
    pub(crate) fn new(place: u64, holders: Vec<v1::Holder>) -> Self {
        Self { place, holders: self::holders(holders), awaits_authority: false }
    }
}

/// Who waits for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// The waiter's session.
    pub session: u64,
    /// What the session calls itself.
    pub label: String,
    /// For how long, by the leader's wall clock.
    pub waiting: Duration,
    /// How it wants to hold the lock.
    pub mode: Mode,
    /// How many names its request waits for, this one among them.
    pub names: u32,
    /// As of [`Holder::is_imported`].
    pub is_imported: bool,
}

/// A lock as of one linearizable read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockInfo {
    /// Its name.
    pub name: String,
    /// How many hold it in all.
    pub held_by: u64,
    /// Who holds it, in the order of the grants: at most 100 from `inspect`, 4 from `list`.
    pub holders: Vec<Holder>,
    /// How many wait in all.
    pub waiting: u64,
    /// The first of them, the next one first: at most 100 from `inspect`, none from `list`.
    pub queue: Vec<Waiter>,
    /// What a holder left with it; not told by `list`.
    pub value: Option<Value>,
    /// Whether there is a value.
    pub has_value: bool,
    /// The scope with fallback that it is in.
    pub scope: Option<LockScope>,
}

/// A scope with fallback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockScope {
    /// What its names begin with.
    pub prefix: String,
    /// The upper part of the tokens that are given out in it.
    pub epoch: u32,
    /// Nobody is granted anything in it at the moment.
    pub suspended: bool,
}

/// A page of locks, in name order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The locks.
    pub locks: Vec<LockInfo>,
    /// For the page after this one; `None` after the last.
    pub next: Option<String>,
}

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub node: u64,
    /// Where clients reach it.
    pub advertise: String,
}

/// What one node knows of itself and its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// The cluster's id, 16 bytes.
    pub cluster: Vec<u8>,
    /// The node that answered.
    pub node: u64,
    /// Who leads, if the node knows.
    pub leader: Option<u64>,
    /// Where clients reach the leader.
    pub leader_endpoint: Option<String>,
    /// The Raft term.
    pub term: u64,
    /// The last log entry the node has applied.
    pub applied: u64,
    /// The node's version.
    pub version: String,
    /// Every member.
    pub members: Vec<Member>,
    /// Whether the node leads with a quorum, or follows a leader it has heard from lately.
    pub ready: bool,
}

impl From<v1::Holder> for Holder {
    fn from(holder: v1::Holder) -> Self {
        let mode = holder.mode().into();
        Self {
            session: holder.session_id,
            mode,
            label: holder.label,
            token: FencingToken::new(holder.token),
            held: Duration::from_millis(holder.held_ms),
            is_imported: holder.imported,
        }
    }
}

pub(crate) fn holders(holders: Vec<v1::Holder>) -> Vec<Holder> {
    holders.into_iter().map(Holder::from).collect()
}

impl From<v1::WaiterInfo> for Waiter {
    fn from(waiter: v1::WaiterInfo) -> Self {
        Self {
            session: waiter.session_id,
            mode: waiter.mode().into(),
            label: waiter.label,
            waiting: Duration::from_millis(waiter.waiting_ms),
            names: waiter.names,
            is_imported: waiter.imported,
        }
    }
}

impl From<v1::LockInfo> for LockInfo {
    fn from(lock: v1::LockInfo) -> Self {
        let queue = lock.queue.into_iter().map(Waiter::from);
        Self {
            name: lock.name,
            held_by: lock.held_by,
            holders: holders(lock.holders),
            waiting: lock.waiting,
            queue: queue.collect(),
            value: lock.value.map(Value::from),
            has_value: lock.has_value,
            scope: lock.scope.map(|scope| LockScope {
                prefix: scope.prefix,
                epoch: scope.epoch,
                suspended: scope.suspended,
            }),
        }
    }
}

impl From<v1::ListResponse> for Page {
    fn from(response: v1::ListResponse) -> Self {
        Self {
            locks: response.locks.into_iter().map(LockInfo::from).collect(),
            next: Some(response.next_page_token).filter(|token| !token.is_empty()),
        }
    }
}

impl From<v1::StatusResponse> for NodeStatus {
    fn from(status: v1::StatusResponse) -> Self {
        let members = status
            .members
            .into_iter()
            .map(|member| Member { node: member.node_id, advertise: member.advertise });
        Self {
            cluster: status.cluster_id.to_vec(),
            node: status.node_id,
            leader: status.leader_id,
            leader_endpoint: status.leader,
            term: status.term,
            applied: status.applied_index,
            version: status.version,
            members: members.collect(),
            ready: status.ready,
        }
    }
}
