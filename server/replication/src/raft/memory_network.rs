//! Members that reach each other without sockets, for simulations and tests on virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use futures_util::stream::{BoxStream, StreamExt};
use holdfast_proto::v1 as proto;
use holdfast_runtime::BoxFuture;
use tokio::sync::watch;

use super::Member;
use super::peers::{Lane, Peer, PeerError, PeerNetwork, PeerStream};

/// A network in memory: messages arrive at once, until a test cuts it or holds them back.
#[derive(Clone, Debug)]
pub struct MemoryNetwork(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    members: Mutex<BTreeMap<u64, Arc<dyn Peer>>>,
    cuts: watch::Sender<BTreeSet<(u64, u64)>>,
    /// The ways on which messages are held back.
    held: watch::Sender<BTreeSet<Way>>,
}

/// A direction: of the requests of one node to another, or of the answers to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Leg {
    /// Requests.
    There,
    /// Answers.
    Back,
}

/// One direction of calls between two nodes, on one lane.
type Way = (u64, u64, Leg, Lane);

impl Default for MemoryNetwork {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryNetwork {
    /// A network without members.
    pub fn new() -> Self {
        let cuts = watch::Sender::new(BTreeSet::new());
        let held = watch::Sender::new(BTreeSet::new());
        Self(Arc::new(Shared { members: Mutex::default(), cuts, held }))
    }

    /// The network as node `from` sees it.
    pub fn of(&self, from: u64) -> Arc<dyn PeerNetwork> {
        Arc::new(FromNode { network: self.clone(), from })
    }

    /// From now on `peer` answers as node `node_id`.
    pub fn join(&self, node_id: u64, peer: Arc<dyn Peer>) {
        self.members().insert(node_id, peer);
    }

    /// From now on no peer answers as node `node_id`. What was under way to it is lost.
    pub fn leave(&self, node_id: u64) {
        self.members().remove(&node_id);
        // Callers that wait for an answer check again.
        self.0.cuts.send_modify(|_| ());
    }

    /// Cuts the two off from each other; what was under way is lost.
    pub fn cut(&self, one: u64, other: u64) {
        self.0.cuts.send_modify(|cuts| cuts.extend([(one, other), (other, one)]));
    }

    /// Cuts `node_id` off from all other members.
    pub fn isolate(&self, node_id: u64) {
        let others: Vec<u64> = self.members().keys().copied().collect();
        others.into_iter().filter(|other| *other != node_id).for_each(|other| {
            self.cut(node_id, other);
        });
    }

    /// Removes all cuts.
    pub fn heal(&self) {
        self.0.cuts.send_modify(BTreeSet::clear);
    }

    /// Holds back one leg of the calls of `from` to `to`, on open connections: messages arrive
    /// after [`release`](Self::release), in order on each stream.
    pub fn hold(&self, from: u64, to: u64, leg: Leg) {
        for lane in Lane::ALL {
            self.hold_lane(from, to, leg, lane);
        }
    }

    /// As [`hold`](Self::hold), for the calls and streams of one lane.
    pub fn hold_lane(&self, from: u64, to: u64, leg: Leg, lane: Lane) {
        self.0.held.send_modify(|held| {
            held.insert((from, to, leg, lane));
        });
    }

    /// Delivers what is held back on that leg.
    pub fn release(&self, from: u64, to: u64, leg: Leg) {
        let stays = |way: &Way| (way.0, way.1, way.2) != (from, to, leg);
        self.0.held.send_modify(|held| held.retain(stays));
    }

    fn members(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<dyn Peer>>> {
        self.0.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct FromNode {
    network: MemoryNetwork,
    from: u64,
}

impl PeerNetwork for FromNode {
    fn peer(&self, member: &Member, lane: Lane) -> Arc<dyn Peer> {
        let (network, from) = (self.network.clone(), self.from);
        Arc::new(Wire { network, from, to: member.node_id, lane })
    }
}

#[derive(Clone)]
struct Wire {
    network: MemoryNetwork,
    from: u64,
    to: u64,
    lane: Lane,
}

impl Wire {
    fn target(&self) -> Result<Arc<dyn Peer>, PeerError> {
        if self.network.0.cuts.borrow().contains(&(self.from, self.to)) {
            return Err(unreachable("cut off"));
        }
        self.network.members().get(&self.to).cloned().ok_or_else(|| unreachable("nobody there"))
    }

    /// Ends when the connection is cut, or another peer answers at the other end.
    async fn until_cut(self, target: Arc<dyn Peer>) {
        let mut cuts = self.network.0.cuts.subscribe();
        loop {
            cuts.borrow_and_update();
            let same = self.target().is_ok_and(|now| Arc::ptr_eq(&now, &target));
            if !same || cuts.changed().await.is_err() {
                return;
            }
        }
    }

    /// Waits until nothing is held back on that leg.
    async fn passes(&self, leg: Leg) {
        let mut held = self.network.0.held.subscribe();
        let way = (self.from, self.to, leg, self.lane);
        // The sender exists as long as the network.
        let _ = held.wait_for(|held| !held.contains(&way)).await;
    }

    fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Peer) -> BoxFuture<'static, Result<T, PeerError>> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, PeerError>> {
        let wire = self.clone();
        async move {
            let target = wire.target()?;
            let asked = {
                let (wire, target) = (wire.clone(), Arc::clone(&target));
                async move {
                    wire.passes(Leg::There).await;
                    let answer = call(&*target).await;
                    wire.passes(Leg::Back).await;
                    answer
                }
            };
            holdfast_runtime::select! {
                () = wire.until_cut(target) => Err(unreachable("cut off meanwhile")),
                answer = asked => answer,
            }
        }
        .boxed()
    }
}

/// Passes each message on once its leg is free. A message that waits delays those behind it.
fn in_order<T: Send + 'static>(
    messages: BoxStream<'static, T>,
    wire: &Wire,
    leg: Leg,
) -> BoxStream<'static, T> {
    let wire = wire.clone();
    messages
        .then(move |message| {
            let wire = wire.clone();
            async move {
                wire.passes(leg).await;
                message
            }
        })
        .boxed()
}

fn unreachable(why: &str) -> PeerError {
    PeerError::Unreachable(why.to_owned())
}

impl Peer for Wire {
    fn promise(
        &self,
        request: proto::PromiseRequest,
    ) -> BoxFuture<'static, Result<proto::PromiseResponse, PeerError>> {
        self.call(move |peer| peer.promise(request))
    }

    fn admit(
        &self,
        request: proto::AdmitRequest,
    ) -> BoxFuture<'static, Result<proto::AdmitResponse, PeerError>> {
        self.call(move |peer| peer.admit(request))
    }

    fn hello(
        &self,
        request: proto::HelloRequest,
    ) -> BoxFuture<'static, Result<proto::HelloResponse, PeerError>> {
        self.call(move |peer| peer.hello(request))
    }

    fn stream_append(
        &self,
        requests: BoxStream<'static, proto::AppendRequest>,
    ) -> BoxFuture<'static, Result<PeerStream<proto::AppendResponse>, PeerError>> {
        let wire = self.clone();
        async move {
            let target = wire.target()?;
            let requests = in_order(requests, &wire, Leg::There);
            let requests = requests.take_until(wire.clone().until_cut(Arc::clone(&target)));
            let responses = target.stream_append(requests.boxed()).await?;
            let responses = in_order(responses, &wire, Leg::Back);
            Ok(responses.take_until(wire.until_cut(target)).boxed())
        }
        .boxed()
    }

    fn append(
        &self,
        request: proto::AppendRequest,
    ) -> BoxFuture<'static, Result<proto::AppendResponse, PeerError>> {
        self.call(move |peer| peer.append(request))
    }

    fn vote(
        &self,
        request: proto::VoteRequest,
    ) -> BoxFuture<'static, Result<proto::VoteResponse, PeerError>> {
        self.call(move |peer| peer.vote(request))
    }

    fn pre_vote(
        &self,
        request: proto::VoteRequest,
    ) -> BoxFuture<'static, Result<proto::VoteResponse, PeerError>> {
        self.call(move |peer| peer.pre_vote(request))
    }

    fn install_snapshot(
        &self,
        chunks: BoxStream<'static, proto::SnapshotChunk>,
    ) -> BoxFuture<'static, Result<proto::SnapshotResponse, PeerError>> {
        self.call(move |peer| peer.install_snapshot(chunks))
    }

    fn transfer_leader(
        &self,
        request: proto::TransferLeaderRequest,
    ) -> BoxFuture<'static, Result<proto::TransferLeaderResponse, PeerError>> {
        self.call(move |peer| peer.transfer_leader(request))
    }
}
