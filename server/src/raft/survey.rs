//! What the members say of themselves, asked every second: which commands they know (I29), how far
//! they have come, and whether their disks are below the reserve (DESIGN §7).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use holdfast_proto::v1 as proto;
use holdfast_seams::Seams;
use openraft::async_runtime::watch::WatchReceiver;
use tokio::sync::watch;

use super::Member;
use super::handler::Raft;
use super::peers::{Heard, Lane, Me, PeerNetwork, Progress};
use super::proposer::Policy;
use super::store::ReplicaStore;
use crate::consensus::Role;

/// Between two looks.
const EVERY: Duration = Duration::from_secs(1);

pub(super) struct Survey {
    pub(super) me: Arc<Me>,
    pub(super) store: Arc<dyn ReplicaStore>,
    pub(super) reserve_bytes: u64,
    /// Told to peers with every answer.
    pub(super) below_reserve: Arc<AtomicBool>,
    pub(super) heard: Arc<Heard>,
    pub(super) policy: Arc<Policy>,
    pub(super) role: watch::Receiver<Role>,
    pub(super) raft: Raft,
    pub(super) peers: Arc<dyn PeerNetwork>,
    pub(super) configured: Arc<[Member]>,
    pub(super) seams: Seams,
}

impl Survey {
    /// Looks until the task is dropped; at once whenever the role changes.
    pub(super) async fn run(mut self) {
        loop {
            self.look_at_own_disk();
            if self.role.borrow_and_update().tenure().is_some() {
                self.ask_members().await;
            }
            self.decide();
            holdfast_seams::select! {
                changed = self.role.changed() => if changed.is_err() { return },
                () = self.seams.sleep(EVERY) => {}
            }
        }
    }

    fn look_at_own_disk(&self) {
        // A disk that cannot be asked is not taken for full: its writes will tell.
        let below = self.store.free_space().is_ok_and(|free| free < self.reserve_bytes);
        if self.below_reserve.swap(below, Ordering::Relaxed) != below {
            tracing::warn!(below, reserve_bytes = self.reserve_bytes, "disk reserve");
        }
        self.heard.note_reserve(self.me.node_id, below);
    }

    async fn ask_members(&self) {
        let nodes: Vec<Member> = {
            let metrics = self.raft.server_metrics();
            let metrics = metrics.borrow_watched();
            metrics.membership_config.nodes().map(|(id, node)| node.member(*id)).collect()
        };
        let others = nodes.iter().filter(|member| member.node_id != self.me.node_id);
        join_all(others.map(|member| self.ask(member))).await;
        let ids: Vec<u64> = nodes.iter().map(|member| member.node_id).collect();
        self.heard.keep_only(&ids);
    }

    async fn ask(&self, member: &Member) {
        let configured = self.configured.iter().find(|known| known.node_id == member.node_id);
        let peer = self.peers.peer(configured.unwrap_or(member), Lane::Control);
        let request = proto::HelloRequest { from_node: self.me.node_id };
        let Ok(Ok(hello)) = self.seams.timeout(EVERY, peer.hello(request)).await else { return };
        if hello.node_id == member.node_id {
            self.heard.note_version(member.node_id, hello.command_version);
            self.heard.note_reserve(member.node_id, hello.below_disk_reserve);
            let progress = Progress {
                version: hello.version,
                last_log: hello.last_log_index,
                applied: hello.applied_index,
                snapshot: hello.snapshot_index,
            };
            self.heard.note_progress(member.node_id, progress);
        }
    }

    fn decide(&self) {
        let (members, voters) = {
            let metrics = self.raft.server_metrics();
            let metrics = metrics.borrow_watched();
            let membership = &metrics.membership_config;
            let members: Vec<u64> = membership.nodes().map(|(id, _)| *id).collect();
            let voters: Vec<u64> = membership.voter_ids().collect();
            (members, voters)
        };
        let highest = self.heard.highest_version(&members);
        self.policy.highest_version.store(highest, Ordering::Relaxed);
        let own = self.below_reserve.load(Ordering::Relaxed);
        let majority = !voters.is_empty() && self.heard.below_reserve(&voters) * 2 > voters.len();
        self.policy.only_what_frees.store(own || majority, Ordering::Relaxed);
    }
}
