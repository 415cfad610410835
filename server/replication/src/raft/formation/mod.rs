//! First start: how configured members become one cluster, with no further command (DESIGN §7).
//!
//! ```text
//! lowest id                          every other member
//! ---------                          ------------------
//! Hello to all: fresh? ───────────▶  answers what it knows of itself
//! draws a cluster id,
//! promises itself (guard, synced)
//! Promise to all ─────────────────▶  asks back: are you initialised?
//! answers Hello: no ◀──────────────
//!                ◀─────────────────  promised (guard, synced), and to nothing else
//! all promised: "initialised" from
//! here on, writes the first entry
//! appends ────────────────────────▶  its log is no longer empty
//! ```
//!
//! # Why no node votes twice under one id (I20, I22)
//!
//! - A vote is cast only after the lowest id has written the first entry, which it does after it
//!   began to answer Hello with `initialised`.
//! - A member with an empty folder promises itself only after the lowest id answered a Hello with
//!   not `initialised`, and that Hello is later than the request. So when the member promises, no
//!   vote was ever cast in that cluster, not even under its own id from a folder that was lost
//!   since. This holds for any late copy of the request.
//! - A lowest id with an empty folder draws a cluster id only after *every* other member answered
//!   that it belongs to no cluster.
//! - A node with an empty folder that learns of an initialised cluster stops ([`Fault::DataGone`]).
//!
//! A member that is killed at any step restarts with what its guard file says and goes on from
//! there; a repeated request changes nothing.
//!
//! A node that joins an existing cluster takes another way: [`joining`].

mod joining;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use holdfast_mutants::mutant;
use holdfast_proto::v1 as proto;
use holdfast_runtime::Runtime;
use openraft::errors::{InitializeError, RaftError};
use prost::Message;
use tokio::sync::{Mutex, watch};

use super::Member;
use super::fault::{Fault, FaultSlot};
use super::handler::Raft;
use super::machine::off_runtime;
use super::peers::Peers;
use super::types::Addresses;
use super::wire::{member_from_wire, member_to_wire};
use crate::storage::{self, ClusterId, PromiseError, ReplicaStore};
pub(super) use joining::own_cluster;

/// The incarnation of a new cluster; raised when one is restored from a backup.
pub(super) const FIRST_INCARNATION: u64 = 0;
/// How long one member has to answer a request.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Pause between two rounds of requests.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// How far the first start has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Forming {
    /// It waits for something; one line for the operator.
    Waiting {
        /// The member or event that is missing.
        reason: String,
    },
    /// This node belongs to a cluster that is initialised.
    Formed,
}

pub(super) struct Formation {
    store: Arc<dyn ReplicaStore>,
    /// Whether this node waits to be added to an existing cluster, instead of forming one.
    joining: bool,
    /// Whether a leader has promised to add it.
    is_admitted: bool,
    /// Drawn at each start of the process and stored nowhere; an invitation names it.
    start_id: [u8; 16],
    peers: Peers,
    runtime: Runtime,
    faults: FaultSlot,
    /// Set before the first entry is written, and never unset.
    initialising: AtomicBool,
    /// Allows one promise at a time.
    promising: Mutex<()>,
    progress: watch::Sender<Forming>,
}

/// Whether a folder ever belonged to a cluster: it has an entry, a vote, or a note of it. One without may begin
/// anew, under another id: no node has counted anything of it.
pub fn has_history(store: &dyn ReplicaStore) -> bool {
    let log = store.log();
    log.last().is_some()
        || log.vote().is_some()
        || store.identity().stage == storage::Stage::Initialised
}

/// The result of a round of requests.
enum Round {
    Done,
    Again(String),
    /// This node must not go on.
    Stop(Fault),
}

impl Formation {
    pub(super) fn new(
        store: Arc<dyn ReplicaStore>,
        (joining, start_id): (bool, Option<[u8; 16]>),
        peers: Peers,
        runtime: Runtime,
        faults: FaultSlot,
    ) -> Self {
        let identity = store.identity();
        if let Some(cluster) = identity.cluster {
            peers.me.belongs_to(cluster, identity.incarnation);
        }
        let progress = watch::Sender::new(Forming::Waiting { reason: "just started".to_owned() });
        let is_admitted = start_id.is_some();
        let start_id = start_id.unwrap_or_else(|| {
            let mut drawn = [0; 16];
            runtime.rng.fill(&mut drawn);
            drawn
        });
        Self {
            store,
            joining,
            is_admitted,
            start_id,
            peers,
            runtime,
            faults,
            initialising: AtomicBool::new(false),
            promising: Mutex::new(()),
            progress,
        }
    }

    pub(super) fn progress(&self) -> watch::Receiver<Forming> {
        self.progress.subscribe()
    }

    /// The id that was drawn for this start of the process.
    pub(super) fn start_id(&self) -> Bytes {
        Bytes::copy_from_slice(&self.start_id)
    }

    /// Whether this node waits to be added to an existing cluster.
    pub(super) fn is_joining(&self) -> bool {
        self.joining && !self.has_history()
    }

    /// Whether the first entry of the cluster is written, or about to be, as far as this node
    /// knows.
    pub(super) fn is_initialised(&self) -> bool {
        self.initialising.load(Ordering::SeqCst) || self.has_history()
    }

    /// Whether this folder ever belonged to a cluster: it has an entry, a vote, or a note of it.
    fn has_history(&self) -> bool {
        has_history(&*self.store)
    }

    /// Runs until this node belongs to an initialised cluster, or must stop.
    pub(super) async fn run(self: Arc<Self>, raft: Raft) {
        let outcome = self.form(&raft).await;
        match outcome {
            Ok(()) => {
                self.progress.send_replace(Forming::Formed);
            }
            Err(fault) => self.faults.report(fault),
        }
    }

    async fn form(&self, raft: &Raft) -> Result<(), Fault> {
        if self.lost_the_first_entry() {
            self.initialise(raft).await?;
        }
        if !self.has_history() {
            if self.joining {
                self.wait_to_be_added().await?;
            } else if self.leads_formation() {
                if self.peers.me.cluster().is_none() {
                    self.repeat(|| self.found_cluster()).await?;
                }
                self.repeat(|| self.collect_promises()).await?;
                self.initialise(raft).await?;
            } else {
                self.join().await?;
            }
        }
        let store = Arc::clone(&self.store);
        off_runtime(self.store.may_block(), move || {
            store.set_initialised().map_err(std::io::Error::other)
        })
        .await
        .map_err(|error| Fault::Stopped { message: error.to_string() })
    }

    /// Whether this node noted that the cluster is initialised, and was killed before the first entry was on its disk:
    /// openraft answers before it is. It has cast no vote, and nobody can cast one before it has (I20), so it may
    /// write the entry again. Otherwise all members would wait for it for ever.
    fn lost_the_first_entry(&self) -> bool {
        let log = self.store.log();
        let is_noted = self.store.identity().stage == storage::Stage::Initialised;
        let is_empty = log.last().is_none() && log.vote().is_none();
        is_noted && is_empty && !self.joining && self.leads_formation()
    }

    /// Whether this node has the lowest id of the members and may form a cluster with them. A node
    /// that has promised itself together with other members, above all to a cluster that invited
    /// it, forms none.
    fn leads_formation(&self) -> bool {
        let lowest = self
            .peers
            .configured
            .first()
            .is_some_and(|first| first.node_id == self.peers.me.node_id);
        let configured = self.peers.configured.iter().map(stored_member);
        lowest
            && (self.peers.me.cluster().is_none() || configured.eq(self.store.identity().members))
    }

    async fn repeat<F, R>(&self, mut round: F) -> Result<(), Fault>
    where
        F: FnMut() -> R,
        R: Future<Output = Round>,
    {
        loop {
            match round().await {
                Round::Done => return Ok(()),
                Round::Stop(fault) => return Err(fault),
                Round::Again(reason) => self.wait(reason).await,
            }
        }
    }

    async fn wait(&self, reason: String) {
        self.progress.send_if_modified(|progress| {
            let now = Forming::Waiting { reason };
            let changed = *progress != now;
            if changed {
                *progress = now;
            }
            changed
        });
        self.runtime.sleep(ASK_AGAIN).await;
    }

    /// Draws the cluster id, once every other member answered that it belongs to no cluster.
    async fn found_cluster(&self) -> Round {
        for member in self.others() {
            let hello = match self.hello(member).await {
                Ok(hello) => hello,
                Err(reason) => return Round::Again(reason),
            };
            if hello.initialised {
                return Round::Stop(self.data_gone(member.node_id));
            }
            if let Some(cluster) = hello.cluster_id {
                return Round::Again(format!(
                    "node {} is promised to cluster {}, which this node knows nothing of: this \
                     node's data is gone. Nothing was committed yet; empty the data folders of \
                     all members and start again",
                    member.node_id,
                    hex::encode(cluster),
                ));
            }
        }
        let mut id = [0; 16];
        self.runtime.rng.fill(&mut id);
        match self.promise_self(ClusterId(id), FIRST_INCARNATION, &self.peers.configured).await {
            Ok(()) => Round::Done,
            Err(error) => Round::Again(error.to_string()),
        }
    }

    /// Requests the promise of every other member; done when all have promised.
    async fn collect_promises(&self) -> Round {
        let Some((cluster, _)) = self.peers.me.cluster() else {
            return Round::Again("this node belongs to no cluster yet".to_owned());
        };
        for member in self.others() {
            if let Err(reason) = self.ask_for_promise(cluster, member).await {
                return Round::Again(reason);
            }
        }
        Round::Done
    }

    async fn ask_for_promise(&self, cluster: ClusterId, member: &Member) -> Result<(), String> {
        let request = proto::PromiseRequest {
            cluster_id: Bytes::copy_from_slice(&cluster.0),
            from_node: self.peers.me.node_id,
            to_node: member.node_id,
            members: self.peers.configured.iter().map(member_to_wire).collect(),
            incarnation: FIRST_INCARNATION,
            start_id: None,
        };
        // Longer than the member waits for the answer to its own Hello.
        let answer =
            self.runtime.timeout(ANSWER_WITHIN * 2, self.peers.control(member).promise(request));
        match answer.await {
            Ok(Ok(response)) if response.promised => Ok(()),
            Ok(Ok(response)) => Err(format!("node {}: {}", member.node_id, response.refusal)),
            Ok(Err(error)) => Err(away(member, &error)),
            Err(elapsed) => Err(away(member, &elapsed)),
        }
    }

    async fn initialise(&self, raft: &Raft) -> Result<(), Fault> {
        // From here on Hello answers `initialised`, before any vote is possible.
        self.initialising.store(true, Ordering::SeqCst);
        let members: BTreeMap<u64, Addresses> = self
            .peers
            .configured
            .iter()
            .map(|member| (member.node_id, Addresses::of(member)))
            .collect();
        match raft.initialize(members).await {
            Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
            Err(error) => Err(Fault::Stopped { message: error.to_string() }),
        }
    }

    /// Waits for the request to promise itself, and then for the first entry. Before it has
    /// promised, the node also checks whether its cluster exists already.
    async fn join(&self) -> Result<(), Fault> {
        while !self.has_history() {
            if self.peers.me.cluster().is_none() {
                self.look_for_cluster().await?;
                self.wait("waiting for the promise round of the member with the lowest id".into())
                    .await;
            } else {
                self.wait("promised; waiting for the first entry of the leader".into()).await;
            }
        }
        Ok(())
    }

    async fn look_for_cluster(&self) -> Result<(), Fault> {
        for member in self.others() {
            let Ok(hello) = self.hello(member).await else { continue };
            if hello.initialised && self.peers.me.cluster().is_none() {
                if mutant!(WipedNodeJoins) {
                    let told = hello.cluster_id.as_deref().unwrap_or_default();
                    let cluster = ClusterId(told.try_into().unwrap_or_default());
                    // The next round retries.
                    let _ =
                        self.promise_self(cluster, hello.incarnation, &self.peers.configured).await;
                    return Ok(());
                }
                return Err(self.data_gone(member.node_id));
            }
        }
        Ok(())
    }

    fn data_gone(&self, told_by: u64) -> Fault {
        Fault::DataGone { node_id: self.peers.me.node_id, told_by }
    }

    /// Answers whether this node promises itself.
    pub(super) async fn asked(&self, request: proto::PromiseRequest) -> proto::PromiseResponse {
        match self.consider(request).await {
            Ok(()) => proto::PromiseResponse { promised: true, refusal: String::new() },
            Err(refusal) => {
                tracing::warn!(%refusal, "asked to join a cluster, and refused");
                proto::PromiseResponse { promised: false, refusal }
            }
        }
    }

    async fn consider(&self, request: proto::PromiseRequest) -> Result<(), String> {
        if request.start_id.is_some() {
            return self.invited(&request).await;
        }
        let proposer = self.check_request(&request)?;
        let id: [u8; 16] = (&*request.cluster_id)
            .try_into()
            .map_err(|_| "the cluster id is not 16 bytes long".to_owned())?;
        let cluster = ClusterId(id);
        let _one_at_a_time = self.promising.lock().await;
        if let Some((promised, _)) = self.peers.me.cluster() {
            return if promised == cluster {
                Ok(())
            } else {
                Err(format!("this node is promised to cluster {promised}, and to no other"))
            };
        }
        // The request may be a late copy: only the proposer's *present* answer counts.
        let hello = self.hello(proposer).await?;
        if hello.initialised {
            return Err(self.data_gone(proposer.node_id).to_string());
        }
        if hello.cluster_id.as_deref() != Some(&id) {
            return Err(format!("node {} no longer asks for this cluster", proposer.node_id));
        }
        let promised = self.promise_self(cluster, FIRST_INCARNATION, &self.peers.configured).await;
        promised.map_err(|error| error.to_string())
    }

    /// Checks that the request comes from the lowest id, is meant for this node, and lists the
    /// members as configured here.
    fn check_request(&self, request: &proto::PromiseRequest) -> Result<&Member, String> {
        if request.to_node != self.peers.me.node_id {
            return Err(format!("this is node {}, not {}", self.peers.me.node_id, request.to_node));
        }
        if self.joining {
            return Err(format!(
                "node {} waits to be added to a cluster that is there (join = true), and forms none",
                self.peers.me.node_id
            ));
        }
        let theirs: Vec<Member> = request.members.iter().cloned().map(member_from_wire).collect();
        if theirs != *self.peers.configured {
            return Err(format!(
                "the members are configured differently on nodes {} and {}: there {}, here {}",
                request.from_node,
                self.peers.me.node_id,
                names(&theirs),
                names(&self.peers.configured),
            ));
        }
        match self.peers.configured.first() {
            Some(first) if first.node_id == request.from_node && !self.leads_formation() => {
                Ok(first)
            }
            _ => Err(format!("node {} has not the lowest id", request.from_node)),
        }
    }

    async fn promise_self(
        &self,
        cluster: ClusterId,
        incarnation: u64,
        members: &[Member],
    ) -> Result<(), PromiseError> {
        let members = members.iter().map(stored_member).collect();
        let store = Arc::clone(&self.store);
        let promised = off_runtime(self.store.may_block(), move || {
            Ok(store.promise(cluster, incarnation, members))
        });
        promised.await.map_err(PromiseError::Io)??;
        // Only now that the guard file is synced.
        self.peers.me.belongs_to(cluster, incarnation);
        tracing::info!(%cluster, "promised to a cluster");
        Ok(())
    }

    fn others(&self) -> impl Iterator<Item = &Member> {
        self.peers.configured.iter().filter(|member| member.node_id != self.peers.me.node_id)
    }

    async fn hello(&self, member: &Member) -> Result<proto::HelloResponse, String> {
        let answer = self.peers.hello(member, ANSWER_WITHIN).await;
        let hello = answer.map_err(|why| away(member, &why))?;
        if hello.node_id != member.node_id {
            return Err(format!(
                "node {} is expected at {}, but node {} answers there",
                member.node_id, member.peer_advertise, hello.node_id
            ));
        }
        Ok(hello)
    }
}

fn away(member: &Member, why: &dyn std::fmt::Display) -> String {
    format!("waiting for node {} at {}: {why}", member.node_id, member.peer_advertise)
}

fn names(members: &[Member]) -> String {
    let names: Vec<String> = members
        .iter()
        .map(|member| {
            format!("{} ({}, {})", member.node_id, member.advertise, member.peer_advertise)
        })
        .collect();
    names.join(", ")
}

pub(super) fn stored_member(member: &Member) -> storage::Member {
    let address = member_to_wire(member).encode_to_vec();
    storage::Member { id: member.node_id, address }
}
