//! Compares what members promised to keep with what their disks would show if the power failed.
//!
//! A vote and an append answered with "it is in my log" are pledges: other members rely on them for
//! ever. So when a member makes one, its disk has it, synced (I19, I20); a process that starts on a
//! data folder finds all that was pledged from it (I21); and a node that has lost its folder
//! pledges nothing more under that id (I22).

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_proto::v1 as proto;
use holdfast_proto::v1::append_response::Result as Answer;
use holdfast_runtime::{BoxFuture, Instant, Runtime, Spawn, Task, TaskHandle};
use holdfast_server::storage::{Ground, LogId, ReplicaStore, Store, StoreOptions, StoredVote};

use super::disk::VirtualDisk;
use super::node::{DATA, SEGMENTS};
use super::tree::FileTree;

/// A node's disk is read back at most so often for the entries that it pledged; for votes, each
/// time.
const APPENDS_LOOKED_AT_EVERY: Duration = Duration::from_secs(4);

/// The pledges of every member so far.
pub(super) struct DurabilityProbe {
    runtime: Runtime,
    said: Mutex<Said>,
}

#[derive(Default)]
struct Said {
    members: BTreeMap<u64, Member>,
    broken: Vec<String>,
}

/// The pledges of one member.
struct Member {
    disk: VirtualDisk,
    /// Its folder was lost: later answers of it are no pledges.
    wiped: bool,
    vote: Option<StoredVote>,
    /// The last entry that it acknowledged, and the term of the leader that it acknowledged it to.
    has: Option<(u64, LogId)>,
    looked: Option<Instant>,
}

impl DurabilityProbe {
    /// `runtime` is the world's.
    pub(super) fn new(runtime: Runtime) -> Self {
        Self { runtime, said: Mutex::default() }
    }

    /// Node `id` exists, with this disk.
    pub(super) fn stands_on(&self, id: u64, disk: VirtualDisk) {
        let member = Member { disk, wiped: false, vote: None, has: None, looked: None };
        self.lock().members.insert(id, member);
    }

    /// The folder of node `id` is lost.
    pub(super) fn is_wiped(&self, id: u64) {
        if let Some(member) = self.lock().members.get_mut(&id) {
            member.wiped = true;
        }
    }

    /// `voter` votes in `term` for `candidate`.
    pub(super) fn voted(&self, voter: u64, term: u64, candidate: u64) {
        let vote = StoredVote { term, node_id: Some(candidate), committed: false };
        let disk = self.lock().pledges(voter, "votes", |member| {
            // `votes.rs` reports two votes that contradict each other.
            if member.vote.is_none_or(|before| vote.covers(&before)) {
                member.vote = Some(vote);
            }
        });
        let Some(disk) = disk else { return };
        match self.left_on(voter, &disk) {
            Ok(store) if store.log().vote().is_some_and(|kept| kept.covers(&vote)) => {}
            Ok(store) => self.wrong(format!(
                "I20: node {voter} says that it votes for {candidate} in term {term}; without power \
                 its disk would show {:?}",
                store.log().vote()
            )),
            Err(error) => self.wrong(format!("I21: node {voter} votes, and {error}")),
        }
    }

    /// `member` answers an append of the leader of `term`.
    pub(super) fn answered(&self, member: u64, term: u64, answer: &proto::AppendResponse) {
        let Some(Answer::Matched(proto::Matched { log_id: Some(id), .. })) = &answer.result else {
            return;
        };
        let id = LogId { term: id.term, node_id: id.node_id, index: id.index };
        let now = self.runtime.clock.now();
        let mut due = false;
        let disk = self.lock().pledges(member, "has entries", |said| {
            if said.has.is_none_or(|(before, has)| (before, has.index) <= (term, id.index)) {
                said.has = Some((term, id));
            }
            due = said.looked.is_none_or(|at| now.saturating_since(at) >= APPENDS_LOOKED_AT_EVERY);
            if due {
                said.looked = Some(now);
            }
        });
        let Some(disk) = disk.filter(|_| due) else { return };
        match self.left_on(member, &disk) {
            Ok(store) => {
                if let Some(lack) = lacks(&store, (term, id)) {
                    self.wrong(format!(
                        "I19: node {member} says that it has {id:?}; without power {lack}"
                    ));
                }
            }
            Err(error) => self.wrong(format!("I21: node {member} has entries, and {error}")),
        }
    }

    /// A process of node `id` has opened its data folder.
    pub(super) fn opened(&self, id: u64, store: &Store) {
        let log = store.log();
        let mut said = self.lock();
        let Some(member) = said.members.get(&id).filter(|member| !member.wiped) else { return };
        let votes = member.vote.filter(|vote| log.vote().is_none_or(|kept| !kept.covers(vote)));
        let lack = member.has.and_then(|has| lacks(store, has));
        let has = member.has.map(|(_, id)| id);
        if let Some(vote) = votes {
            let kept = log.vote();
            let broken = format!("I20: node {id} had said {vote:?}, and starts with {kept:?}");
            said.broken.push(broken);
        }
        if let Some(lack) = lack {
            let broken =
                format!("I21: node {id} had said that it has {has:?}; it starts, and {lack}");
            said.broken.push(broken);
        }
    }

    /// The violations so far.
    pub(super) fn broken(&self) -> Vec<String> {
        self.lock().broken.clone()
    }

    fn wrong(&self, what: String) {
        self.lock().broken.push(what);
    }

    /// The store that a start would find if the power failed now and everything unsynced were lost.
    fn left_on(&self, node_id: u64, disk: &VirtualDisk) -> Result<Store, impl Display + use<>> {
        let mount = disk.as_after_a_loss_of_power().mount();
        let tree = mount.clone();
        let ground = Ground {
            disk: Arc::new(mount),
            open_tree: Box::new(move |path| Ok(Box::new(FileTree::open(&tree, path)?))),
            segments: SEGMENTS,
            pace: Arc::new(|_| Box::pin(std::future::pending())),
            runtime: Runtime { spawn: Arc::new(Nobody), ..self.runtime.clone() },
        };
        let on_fault = Arc::new(|_| ());
        let stalls_after = None;
        let options =
            StoreOptions { node_id, cluster: None, new_store_id: [0; 16], on_fault, stalls_after };
        Store::open_simulated(Path::new(DATA), options, ground)
    }

    fn lock(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Said {
    /// Notes a pledge of `member`; returns its disk, if it may make one.
    fn pledges(
        &mut self,
        member: u64,
        what: &str,
        note: impl FnOnce(&mut Member),
    ) -> Option<VirtualDisk> {
        let said = self.members.get_mut(&member)?;
        if said.wiped {
            let broken = format!("I22: node {member} {what}, and its data folder had been lost");
            if !self.broken.contains(&broken) {
                self.broken.push(broken);
            }
            return None;
        }
        note(said);
        Some(said.disk.clone())
    }
}

/// What a store lacks, in its log or in a snapshot, of what its node acknowledged to the leader of
/// `term`. A later leader may have replaced it: then the vote is of a later term.
fn lacks(store: &Store, (term, id): (u64, LogId)) -> Option<String> {
    let log = store.log();
    let vote = log.vote();
    if vote.is_some_and(|vote| vote.term > term) {
        return None;
    }
    if vote.is_none_or(|vote| vote.term < term) {
        return Some(format!("it knows nothing of term {term}: {vote:?}"));
    }
    let snapshot = store.snapshots().newest().and_then(|newest| newest.last);
    if log.purged().max(snapshot).is_some_and(|kept| kept.index >= id.index) {
        return None;
    }
    let found = log.entries(id.index..id.index + 1, 1).first().map(|record| record.log_id);
    let last = log.last();
    (found != Some(id)).then(|| format!("{found:?} stands in its place, and last {last:?}"))
}

/// The source for a store that is only read.
struct Nobody;

impl Spawn for Nobody {
    fn spawn(&self, _name: &'static str, _future: BoxFuture<'static, ()>) -> Task {
        Task::new(Box::new(Self))
    }
}

impl TaskHandle for Nobody {
    fn abort(&self) {}

    fn is_finished(&self) -> bool {
        true
    }
}
