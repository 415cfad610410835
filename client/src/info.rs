//! What the store reports about locks and nodes, for people and their tools.

use std::time::Duration;

use holdfast_proto::v1;
use holdfast_runtime::Instant;

use crate::{FencingToken, Freeze, Holder, Mode, Value, wire};

/// The place of a request in its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// How many requests stand before it; 0 is next. For all of several locks it is the largest of
    /// the request's places, for at least `n` of them the `n`-th smallest.
    pub place: u64,
    /// The holders of the locks that it waits for: at most 100.
    pub holders: Vec<Holder>,
    /// The request waits for no holder, but for the store to get authority over the lock's scope:
    /// the scope is moving from one store to the other, or the other store serves it.
    pub awaits_authority: bool,
    /// One of the locks is frozen: nobody is granted it until an operator thaws it.
    pub frozen: Option<Freeze>,
}

/// A place, and when the store reported it.
#[derive(Clone, Debug)]
pub(crate) struct PlaceReport {
    pub(crate) place: Place,
    pub(crate) at: Instant,
}

impl PlaceReport {
    /// The place, with the ages of its holders as of `now`.
    pub(crate) fn aged(&self, now: Instant) -> Place {
        let mut place = self.place.clone();
        for holder in &mut place.holders {
            holder.held += now.saturating_since(self.at);
        }
        if let Some(freeze) = &mut place.frozen {
            freeze.frozen += now.saturating_since(self.at);
        }
        place
    }
}

impl Place {
    pub(crate) fn new(place: u64, holders: Vec<v1::Holder>, frozen: Option<v1::Freeze>) -> Self {
        let (holders, frozen) = (wire::holders(holders), frozen.map(Freeze::from_wire));
        Self { place, holders, awaits_authority: false, frozen }
    }
}

/// A waiter of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiter {
    /// The waiter's session.
    pub session: u64,
    /// The session's label.
    pub label: String,
    /// How long it has waited, by the leader's wall clock.
    pub waiting: Duration,
    /// The mode that it requests.
    pub mode: Mode,
    /// How many names its request waits for, this one among them.
    pub names: u32,
    /// As of [`Holder::is_imported`].
    pub is_imported: bool,
    /// As of [`Holder::identity`].
    pub identity: String,
    /// As of [`Holder::note`].
    pub note: String,
    /// So much earlier than it came its request counts as having come.
    pub head_start: Duration,
}

/// A lock as of one linearizable read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// Its name.
    pub name: String,
    /// How many sessions hold it in all.
    pub held_by: u64,
    /// The holders in the order of the grants: at most 100 from `inspect`, 4 from `list`.
    pub holders: Vec<Holder>,
    /// How many requests wait in all.
    pub waiting: u64,
    /// The first waiters, the next one first: at most 100 from `inspect`, none from `list`.
    pub queue: Vec<Waiter>,
    /// The value that a holder left with it; `list` leaves it out.
    pub value: Option<Value>,
    /// Whether there is a value.
    pub has_value: bool,
    /// The scope with fallback that contains its name.
    pub scope: Option<LockScope>,
    /// The limit of its permits, if it has one.
    pub limit: Option<PermitLimit>,
    /// The freeze over it, if nothing of it is granted for that.
    pub frozen: Option<Freeze>,
    /// Why nobody is granted it although nobody holds it: its last hold ended before it had lasted its least
    /// ([`Acquire::hold_at_least`](crate::Acquire::hold_at_least)). Always `None` in watches.
    pub closed: Option<ClosedLock>,
}

/// A lock that is closed since its last hold ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClosedLock {
    /// The token of the grant that ended.
    pub token: FencingToken,
    /// The label of the session that held it; it proves nothing, and may contain what [`Holder::label`] may.
    pub label: String,
    /// As of [`Holder::identity`].
    pub identity: String,
    /// For how long it has been closed, by the leader's wall clock.
    pub closed: Duration,
    /// How long it stays closed, as its leader counts it. A new leader counts anew.
    pub left: Duration,
    /// How long the hold was to last at least.
    pub hold_at_least: Duration,
}

impl ClosedLock {
    fn from_wire(closed: v1::ClosedLock) -> Self {
        Self {
            token: FencingToken::from_raw(closed.token),
            label: closed.label,
            identity: closed.identity,
            closed: Duration::from_millis(closed.closed_ms),
            left: Duration::from_millis(closed.left_ms),
            hold_at_least: Duration::from_millis(closed.hold_at_least_ms),
        }
    }
}

/// Up to how many permits of a lock are held together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PermitLimit {
    /// The limit in force.
    pub permits: u32,
    /// How many are held; more than the limit only if it was lowered since.
    pub used: u64,
    /// It was set for good. Otherwise it goes once nobody holds permits or waits for some.
    pub is_for_good: bool,
}

/// A scope with fallback.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockScope {
    /// The prefix of its names.
    pub prefix: String,
    /// The upper part of its tokens.
    pub epoch: u32,
    /// The scope grants nothing at the moment.
    pub suspended: bool,
}

/// A page of locks, in name order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Page {
    /// The locks.
    pub locks: Vec<LockInfo>,
    /// The name to continue from; `None` after the last page.
    pub next: Option<String>,
}

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// Its id.
    pub node: u64,
    /// The endpoint for clients.
    pub advertise: String,
}

/// What one node reports about itself and its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeStatus {
    /// The cluster's id, 16 bytes.
    pub cluster: Vec<u8>,
    /// The node that answered.
    pub node: u64,
    /// The leader, if the node knows it.
    pub leader: Option<u64>,
    /// The leader's endpoint for clients.
    pub leader_endpoint: Option<String>,
    /// The Raft term.
    pub term: u64,
    /// The last log entry the node has applied.
    pub applied: u64,
    /// The node's version.
    pub version: String,
    /// Every member.
    pub members: Vec<Member>,
    /// Whether the node leads with a quorum, or follows a leader that has contacted it lately.
    pub ready: bool,
}

impl Waiter {
    pub(crate) fn from_wire(waiter: v1::WaiterInfo) -> Self {
        Self {
            session: waiter.session_id,
            mode: wire::mode(waiter.mode(), waiter.permits),
            label: waiter.label,
            waiting: Duration::from_millis(waiter.waiting_ms),
            names: waiter.names,
            is_imported: waiter.imported,
            identity: waiter.identity,
            note: waiter.note,
            head_start: Duration::from_millis(waiter.head_start_ms),
        }
    }
}

impl LockInfo {
    pub(crate) fn from_wire(lock: v1::LockInfo) -> Self {
        let queue = lock.queue.into_iter().map(Waiter::from_wire);
        Self {
            name: lock.name,
            held_by: lock.held_by,
            holders: wire::holders(lock.holders),
            waiting: lock.waiting,
            queue: queue.collect(),
            value: lock.value.map(Value::from_wire),
            has_value: lock.has_value,
            scope: lock.scope.map(|scope| LockScope {
                prefix: scope.prefix,
                epoch: scope.epoch,
                suspended: scope.suspended,
            }),
            limit: lock.limit.map(|limit| PermitLimit {
                permits: limit.permits,
                used: limit.used,
                is_for_good: limit.for_good,
            }),
            frozen: lock.frozen.map(Freeze::from_wire),
            closed: lock.closed.map(ClosedLock::from_wire),
        }
    }
}

impl Page {
    pub(crate) fn from_wire(response: v1::ListResponse) -> Self {
        Self {
            locks: response.locks.into_iter().map(LockInfo::from_wire).collect(),
            next: Some(response.next_page_token).filter(|token| !token.is_empty()),
        }
    }
}

impl NodeStatus {
    pub(crate) fn from_wire(status: v1::StatusResponse) -> Self {
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
