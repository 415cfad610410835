//! Asks the members every second which commands they know (I29), how far they have come, and how
//! their disks are (DESIGN §7). A leader whose own disk is full or slow hands over to a member that
//! is better off.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use holdfast_core::{COMMAND_VERSION_OLDEST, Tenure};
use holdfast_mutants::mutant;
use holdfast_runtime::{Instant, Runtime};
use openraft::async_runtime::watch::WatchReceiver;
use tokio::sync::watch;

use super::Member;
use super::disk_times::DiskTimes;
use super::hand_over::{HandOver, HandedOver};
use super::handler::Raft;
use super::metrics::ReplicationMetrics;
use super::peers::{Heard, Peers};
use super::proposer::Policy;
use super::relief::{Candidate, DiskHealth, Patience};
use crate::consensus::Role;
use crate::storage::ReplicaStore;

/// Time between two rounds of questions.
const EVERY: Duration = Duration::from_secs(1);
/// A leader does not hand over for the state of its disk before it has led this long, nor within
/// this time after an attempt. So leadership does not move faster than that, whatever the disks do.
const SETTLED: Duration = Duration::from_secs(10);

pub(super) struct Survey {
    pub(super) store: Arc<dyn ReplicaStore>,
    pub(super) reserve_bytes: u64,
    /// Sent to peers with every answer.
    pub(super) below_reserve: Arc<AtomicBool>,
    pub(super) heard: Arc<Heard>,
    pub(super) policy: Arc<Policy>,
    pub(super) role: watch::Receiver<Role>,
    pub(super) raft: Raft,
    pub(super) peers: Peers,
    pub(super) runtime: Runtime,
    pub(super) times: Arc<DiskTimes>,
    pub(super) hand_over: HandOver,
    /// Held during a change of members, and while an operator moves leadership.
    pub(super) one_at_a_time: Arc<tokio::sync::Mutex<()>>,
    /// How long commands are refused at most during a hand-over.
    pub(super) patience: Duration,
    pub(super) metrics: ReplicationMetrics,
    pub(super) relief: Relief,
}

/// What this leader remembers between two checks of its disk.
#[derive(Debug, Default)]
pub(super) struct Relief {
    tenure: Option<Tenure>,
    not_before: Option<Instant>,
    patience: Patience,
}

impl Survey {
    /// Asks until the task is dropped; at once whenever the role changes.
    pub(super) async fn run(mut self) {
        loop {
            self.look_at_own_disk();
            if self.role.borrow_and_update().tenure().is_some() {
                self.ask_members().await;
            }
            self.decide();
            if !mutant!(FullLeaderStays) {
                self.relieve().await;
            }
            holdfast_runtime::select! {
                changed = self.role.changed() => if changed.is_err() { return },
                () = self.runtime.sleep(EVERY) => {}
            }
        }
    }

    fn look_at_own_disk(&self) {
        // A disk whose free space is unknown does not count as full: its writes will show.
        let below = self.store.free_space().is_ok_and(|free| free < self.reserve_bytes);
        if self.below_reserve.swap(below, Ordering::Relaxed) != below {
            tracing::warn!(below, reserve_bytes = self.reserve_bytes, "disk reserve");
        }
        self.heard.note_reserve(self.peers.me.node_id, below);
    }

    async fn ask_members(&self) {
        let nodes: Vec<Member> = {
            let metrics = self.raft.server_metrics();
            let metrics = metrics.borrow_watched();
            let members = metrics.membership_config.nodes();
            members.map(|(id, node)| self.peers.as_configured(node.member(*id))).collect()
        };
        let others = nodes.iter().filter(|member| member.node_id != self.peers.me.node_id);
        join_all(others.map(|member| self.ask(member))).await;
        let ids: Vec<u64> = nodes.iter().map(|member| member.node_id).collect();
        self.heard.keep_only(&ids);
    }

    async fn ask(&self, member: &Member) {
        match self.peers.hello(member, EVERY).await {
            Ok(hello) if hello.node_id == member.node_id => self.heard.note(hello),
            Ok(_) => {}
            Err(_) => self.heard.note_silence(member.node_id),
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
        // Before the cluster is formed there are no members whose version is known: the value
        // stored here counts from the first instant of this node's lead (I29).
        let nobody = members.is_empty();
        let heard = self.heard.highest_version(&members);
        let highest = if nobody { COMMAND_VERSION_OLDEST } else { heard };
        self.policy.highest_version.store(highest, Ordering::Relaxed);
        let own = self.below_reserve.load(Ordering::Relaxed);
        let majority = !voters.is_empty() && self.heard.below_reserve(&voters) * 2 > voters.len();
        self.policy.only_what_frees.store(own || majority, Ordering::Relaxed);
    }
    /// Hands leadership over if this node's disk is full or slow, and another voter is better off.
    async fn relieve(&mut self) {
        let tenure = self.role.borrow().tenure();
        let now = self.runtime.clock.now();
        if self.relief.tenure != tenure {
            self.relief = Relief { tenure, not_before: Some(now + SETTLED), ..Relief::default() };
        }
        if tenure.is_none() {
            return;
        }
        let below_reserve = self.below_reserve.load(Ordering::Relaxed);
        let own = DiskHealth { below_reserve, append_p99: self.times.p99() };
        let candidates = self.candidates();
        let Some((to, why)) = self.relief.patience.look(&own, &candidates) else { return };
        let Ok(_changes_nothing_else) = self.one_at_a_time.try_lock() else { return };
        if self.relief.not_before.is_some_and(|at| now < at) {
            return;
        }
        tracing::warn!(member = to, ?why, ?own, "this leader's disk is in trouble: it hands over");
        let handed = self.hand_over.run(Some(to), self.patience).await;
        self.relief.not_before = Some(self.runtime.clock.now() + SETTLED);
        if handed == HandedOver::LeadsNoLonger {
            self.metrics.relieved.inc();
        } else {
            tracing::warn!(member = to, ?handed, "leadership was not handed over");
        }
    }

    /// The other voters that answered the last question.
    fn candidates(&self) -> Vec<Candidate> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let last = metrics.last_log_index.unwrap_or(0);
        let voters =
            metrics.membership_config.voter_ids().filter(|id| *id != self.peers.me.node_id);
        let candidate = |node_id| {
            let matched = metrics.replication.as_ref()?.get(&node_id)?.as_ref()?;
            let lag = last.saturating_sub(matched.index);
            Some(Candidate { node_id, lag, disk: self.heard.disk(node_id)? })
        };
        voters.filter_map(candidate).collect()
    }
}
