//! The members of the cluster: shown to operators, and changed one at a time, on the leader.
//!
//! A member is added as a *learner*: it gets a snapshot, then the log, and has no vote. When it has
//! caught up it is promoted to a voter. Voters change by joint consensus: for a while a majority of
//! the old voters and one of the new ones must agree, so two disjoint sets of voters cannot elect
//! two leaders. If the leader fails during a change, the next leader finishes it.
//!
//! # Invariants
//!
//! - A change is decided on a membership that a quorum has confirmed to be the latest, and appended
//!   only if that membership still stands.
//! - No node is added under an id that was ever used; `formation/joining.rs` explains why that is
//!   enough (I22).
//! - A member is added only if it knows every command version that this leader may write (I29).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use holdfast_core::{COMMAND_VERSION, Tenure};
use holdfast_proto::v1 as proto;
use holdfast_runtime::Runtime;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ClientWriteError, RaftError};
use openraft::{ChangeMembers, Instant as _, Precondition};
use tokio::sync::{Mutex, OwnedMutexGuard, oneshot, watch};

use super::admitting::Admissions;
use super::confirm::Confirmer;
use super::formation::own_cluster;
use super::hand_over::{HandOver, HandedOver};
use super::handler::{Raft, millis};
use super::machine::Replicated;
use super::peers::{Heard, Peers, Progress};
use super::types::{Addresses, CommittedLeaderId, LogId, StoredMembership, Types};
use super::wire::member_to_wire;
use crate::consensus::{LeaderHint, Role};
use crate::members::{
    Change, ClusterStatus, MEMBERS_MAX, Member, MemberStatus, MembershipError, MembershipRefusal,
};

/// Entries that a learner may lag behind when it is promoted. From then on a commit may have to
/// wait for it, so it must be able to catch up within a heartbeat or two.
pub(super) const PROMOTE_LAG_MAX: u64 = 1_000;

/// How long a node that is being added has to answer. It has twice as long to promise itself,
/// because it first sends a question back.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// Time between two checks for an unfinished change.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(1);

pub(super) type Answer = Result<(), MembershipError>;

/// Makes the changes. Shared: a change continues when its caller is gone.
pub(super) struct Changes {
    pub(super) node_id: u64,
    pub(super) raft: Raft,
    pub(super) heard: Arc<Heard>,
    pub(super) shared: Arc<Replicated>,
    pub(super) role: watch::Receiver<Role>,
    pub(super) confirmer: Arc<Confirmer>,
    pub(super) hand_over: HandOver,
    pub(super) peers: Peers,
    pub(super) runtime: Runtime,
    /// How long a caller waits for the outcome.
    pub(super) deadline: Duration,
    /// A member that has been silent for longer does not count as answering.
    pub(super) patience: Duration,
    pub(super) one_at_a_time: Arc<Mutex<()>>,
    pub(super) admissions: Admissions,
}

/// The state that a change is decided on.
pub(super) struct View {
    pub(super) tenure: Tenure,
    membership: StoredMembership,
    pub(super) highest_id: u64,
    /// Held until the change is finished.
    _one_at_a_time: OwnedMutexGuard<()>,
}

impl View {
    pub(super) fn voters(&self) -> BTreeSet<u64> {
        self.membership.voter_ids().collect()
    }

    pub(super) fn member(&self, node_id: u64) -> Result<Member, MembershipRefusal> {
        let found = self.membership.get_node(&node_id).map(|node| node.member(node_id));
        found.ok_or(MembershipRefusal::NotAMember { node_id })
    }

    pub(super) fn members(&self) -> impl Iterator<Item = Member> {
        self.membership.nodes().map(|(id, node)| node.member(*id))
    }
}

impl Changes {
    /// See [`Change::AddLearner`].
    async fn add_learner(&self, member: Member) -> Answer {
        // Refuses what is impossible before it calls the new node, which may not even run.
        self.check_new(&member, &self.view()?)?;
        let hello = self.introduced(&member).await?;
        let view = self.confirmed_view().await?;
        if !self.check_new(&member, &view)? {
            return Ok(());
        }
        self.invite(&member, &hello, &view).await?;
        // From here on the version gate counts this node, too.
        self.heard.note_version(member.node_id, hello.command_version);
        let node = (member.node_id, Addresses::of(&member));
        tracing::info!(member = member.node_id, address = member.peer_advertise, "adds a learner");
        self.write(ChangeMembers::AddNodes([node].into()), &view).await
    }

    /// Returns whether the member is still to be added; fails if it may not be.
    fn check_new(&self, member: &Member, view: &View) -> Result<bool, MembershipRefusal> {
        let node_id = member.node_id;
        match view.member(node_id) {
            Ok(known) if known == *member || self.peers.as_configured(known.clone()) == *member => {
                return Ok(false);
            }
            Ok(known) => return Err(MembershipRefusal::OtherAddresses { member: known }),
            Err(_) => {}
        }
        if node_id <= view.highest_id {
            return Err(MembershipRefusal::IdUsed { node_id, highest: view.highest_id });
        }
        if view.members().count() >= MEMBERS_MAX {
            return Err(MembershipRefusal::TooManyMembers { limit: MEMBERS_MAX });
        }
        let wanted = [&member.advertise, &member.peer_advertise];
        for other in view.members().map(|other| self.peers.as_configured(other)) {
            let theirs = [&other.advertise, &other.peer_advertise];
            if let Some(address) = wanted.into_iter().find(|address| theirs.contains(address)) {
                let (address, node_id) = (address.clone(), other.node_id);
                return Err(MembershipRefusal::AddressTaken { address, node_id });
            }
        }
        Ok(true)
    }

    /// Asks the node that is to be added for its identity.
    async fn introduced(&self, member: &Member) -> Result<proto::HelloResponse, MembershipRefusal> {
        let Member { node_id, peer_advertise: address, .. } = member.clone();
        let not_reached =
            |why: String| MembershipRefusal::NotReached { node_id, address: address.clone(), why };
        let hello = self.peers.hello(member, ANSWER_WITHIN).await.map_err(not_reached)?;
        if hello.node_id != node_id {
            return Err(not_reached(format!("node {} answers there", hello.node_id)));
        }
        if hello.command_version < u32::from(COMMAND_VERSION) {
            let (version, knows) = (hello.version.clone(), hello.command_version);
            let needed = COMMAND_VERSION;
            return Err(MembershipRefusal::OldRelease { node_id, version, knows, needed });
        }
        Ok(hello)
    }

    /// Has the node promise itself to this cluster, unless it has done so before.
    pub(super) async fn invite(
        &self,
        member: &Member,
        hello: &proto::HelloResponse,
        view: &View,
    ) -> Answer {
        let node_id = member.node_id;
        let refused = |why: String| MembershipRefusal::DoesNotJoin { node_id, why };
        let Some((cluster, incarnation)) = self.peers.me.cluster() else {
            return Err(refused("this node belongs to no cluster yet".to_owned()).into());
        };
        if hello.cluster_id.is_some() && own_cluster(hello, (cluster, incarnation)) {
            return Ok(());
        }
        let members =
            view.members().map(|other| self.peers.as_configured(other)).chain([member.clone()]);
        let request = proto::PromiseRequest {
            cluster_id: Bytes::copy_from_slice(&cluster.0),
            from_node: self.node_id,
            to_node: node_id,
            members: members.map(|member| member_to_wire(&member)).collect(),
            incarnation,
            start_id: Some(hello.start_id.clone()),
        };
        let answer = self.peers.control(member).promise(request);
        match self.runtime.timeout(ANSWER_WITHIN * 2, answer).await {
            Ok(Ok(response)) if response.promised => Ok(()),
            Ok(Ok(response)) => Err(refused(response.refusal).into()),
            Ok(Err(error)) => Err(refused(error.to_string()).into()),
            Err(elapsed) => Err(refused(elapsed.to_string()).into()),
        }
    }

    /// See [`Change::Promote`].
    async fn promote(&self, node_id: u64) -> Answer {
        let view = self.confirmed_view().await?;
        view.member(node_id)?;
        let mut voters = view.voters();
        if !voters.insert(node_id) {
            return Ok(());
        }
        if !self.answers(node_id) {
            return Err(MembershipRefusal::Silent { node_id }.into());
        }
        let (lag, bound) = (self.lag(node_id), PROMOTE_LAG_MAX);
        if lag > bound {
            return Err(MembershipRefusal::Lags { node_id, lag, bound }.into());
        }
        self.check_majority(&voters)?;
        tracing::info!(member = node_id, ?voters, "promotes a learner");
        self.write(ChangeMembers::AddVoterIds([node_id].into()), &view).await
    }

    /// See [`Change::Remove`].
    async fn remove(&self, node_id: u64) -> Answer {
        let view = self.confirmed_view().await?;
        if view.member(node_id).is_err() && node_id <= view.highest_id {
            return Ok(());
        }
        view.member(node_id)?;
        let mut voters = view.voters();
        if !voters.remove(&node_id) {
            tracing::info!(member = node_id, "removes a learner");
            return self.write(ChangeMembers::RemoveNodes([node_id].into()), &view).await;
        }
        if voters.is_empty() {
            return Err(MembershipRefusal::LastVoter { node_id }.into());
        }
        self.check_majority(&voters)?;
        if node_id == self.node_id {
            // The next leader can remove this node without an election in between.
            self.pass_leadership(None).await?;
            return Err(self.not_leader());
        }
        tracing::info!(member = node_id, ?voters, "removes a voter");
        self.write(ChangeMembers::RemoveVoters([node_id].into()), &view).await
    }

    /// See [`Change::TransferLeader`].
    async fn transfer_leader(&self, to: Option<u64>) -> Answer {
        let view = self.confirmed_view().await?;
        let voters = view.voters();
        match to {
            Some(node_id) if node_id == self.node_id => return Ok(()),
            Some(node_id) => {
                view.member(node_id)?;
                if !voters.contains(&node_id) {
                    return Err(MembershipRefusal::NotAVoter { node_id }.into());
                }
                if !self.answers(node_id) {
                    return Err(MembershipRefusal::Silent { node_id }.into());
                }
            }
            None if voters.iter().all(|voter| *voter == self.node_id) => {
                return Err(MembershipRefusal::NobodyElse.into());
            }
            None => {}
        }
        self.pass_leadership(to).await?;
        match (to, self.next_leader().await) {
            (None, _) => Ok(()),
            (Some(to), Some(leader)) if leader.node_id == to => Ok(()),
            // Another node was elected; the caller can ask it.
            (Some(_), leader) => Err(MembershipError::NotLeader { leader }),
        }
    }

    async fn pass_leadership(&self, to: Option<u64>) -> Answer {
        // Clients are refused meanwhile, for no longer than an election would take.
        let within = self.patience;
        let waited_ms = millis(within);
        match self.hand_over.run(to, within).await {
            HandedOver::LeadsNoLonger => Ok(()),
            HandedOver::NobodyCaughtUp => {
                Err(MembershipRefusal::NobodyCaughtUp { waited_ms }.into())
            }
            HandedOver::NotInTime => Err(MembershipError::OutcomeUnknown { waited_ms }),
        }
    }

    /// The next leader, once it is known; waits only for a while.
    async fn next_leader(&self) -> Option<LeaderHint> {
        let mut role = self.role.clone();
        let known = async {
            let known = role.wait_for(|role| role.leader().is_some()).await;
            known.ok().and_then(|role| role.leader())
        };
        self.runtime.timeout(self.patience, known).await.ok().flatten()
    }

    pub(super) fn not_leader(&self) -> MembershipError {
        MembershipError::NotLeader { leader: self.role.borrow().leader() }
    }

    /// The members as this node knows them. Fails if it does not lead, or a change is under way.
    fn view(&self) -> Result<View, MembershipError> {
        let Some(tenure) = self.role.borrow().tenure() else { return Err(self.not_leader()) };
        let lock = Arc::clone(&self.one_at_a_time).try_lock_owned();
        let guard = lock.map_err(|_| MembershipError::Busy)?;
        let membership = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            let settled = metrics.committed_membership_config == metrics.membership_config;
            if !settled || is_joint(&metrics.membership_config) {
                return Err(MembershipError::Busy);
            }
            (*metrics.membership_config).clone()
        };
        let highest_id = self.shared.roll().highest();
        Ok(View { tenure, membership, highest_id, _one_at_a_time: guard })
    }

    /// As [`view`](Self::view), after a quorum has confirmed that this node leads and everything
    /// committed before is applied.
    pub(super) async fn confirmed_view(&self) -> Result<View, MembershipError> {
        let confirmed = self.confirmer.confirm().await.map_err(MembershipError::of_question)?;
        let view = self.view()?;
        if view.tenure == confirmed.tenure { Ok(view) } else { Err(self.not_leader()) }
    }

    /// Checks that a majority of `voters` answers.
    pub(super) fn check_majority(&self, voters: &BTreeSet<u64>) -> Result<(), MembershipRefusal> {
        let answering = voters.iter().filter(|voter| self.answers(**voter)).count();
        let needed = voters.len() / 2 + 1;
        if answering >= needed {
            return Ok(());
        }
        Err(MembershipRefusal::NoMajority { voters: voters.len(), answering, needed })
    }

    /// Whether the member acknowledged this leader lately.
    pub(super) fn answers(&self, node_id: u64) -> bool {
        if node_id == self.node_id {
            return true;
        }
        self.silent_for(node_id).is_some_and(|silent| silent <= self.patience)
    }

    /// How long ago the member last acknowledged this leader; `None` if it never did.
    pub(super) fn silent_for(&self, node_id: u64) -> Option<Duration> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let heard = metrics.heartbeat.as_ref()?.get(&node_id)?.as_ref()?;
        Some(heard.elapsed())
    }

    /// The last entry known to be in the member's log.
    fn matched(&self, node_id: u64) -> Option<u64> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let matched = metrics.replication.as_ref()?.get(&node_id)?.as_ref()?;
        Some(matched.index)
    }

    /// The number of entries that the member's log is known to lack of this leader's.
    pub(super) fn lag(&self, node_id: u64) -> u64 {
        if node_id == self.node_id {
            return 0;
        }
        let behind = |index: Option<u64>| index.map_or(0, |index| index.saturating_add(1));
        let last = self.raft.metrics().borrow_watched().last_log_index;
        behind(last).saturating_sub(behind(self.matched(node_id)))
    }

    /// The members as this node knows them, if it leads.
    pub(super) fn status(&self) -> Result<ClusterStatus, MembershipError> {
        let Some(tenure) = self.role.borrow().tenure() else { return Err(self.not_leader()) };
        let metrics = self.raft.metrics().borrow_watched().clone();
        let membership = &metrics.membership_config;
        let votes: Vec<u64> = membership.voter_ids().collect();
        let members = membership.nodes().map(|(id, node)| {
            let member = self.peers.as_configured(node.member(*id));
            self.member_status(member, votes.contains(id))
        });
        let quorum = metrics.last_quorum_acked.as_ref().map(|acked| millis(acked.elapsed()));
        let alone = votes == [self.node_id];
        let unsettled = metrics.committed_membership_config != metrics.membership_config;
        Ok(ClusterStatus {
            cluster: self.peers.me.cluster().map(|(cluster, _)| cluster),
            leader: self.node_id,
            term: tenure.get(),
            millis_since_quorum: if alone { Some(0) } else { quorum },
            changing: unsettled || is_joint(membership) || self.one_at_a_time.try_lock().is_err(),
            highest_node_id: self.shared.roll().highest(),
            members: members.collect(),
        })
    }

    fn member_status(&self, member: Member, votes: bool) -> MemberStatus {
        let node_id = member.node_id;
        let own = node_id == self.node_id;
        let said = if own { Some(self.own_progress()) } else { self.heard.progress(node_id) };
        let said = said.unwrap_or_default();
        MemberStatus {
            member,
            votes,
            silent_ms: if own { Some(0) } else { self.silent_for(node_id).map(millis) },
            answers: self.answers(node_id),
            last_log: if own { said.last_log } else { self.matched(node_id) },
            lag: self.lag(node_id),
            applied: said.applied,
            snapshot: said.snapshot,
            version: Some(said.version).filter(|version| !version.is_empty()),
        }
    }

    fn own_progress(&self) -> Progress {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        Progress {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            last_log: metrics.last_log_index,
            applied: self.shared.applied().borrow().map(|id| id.index),
            snapshot: metrics.snapshot.map(|id| id.index),
        }
    }

    /// Appends the change, if the members are still those of `view`, and waits until it is applied.
    /// A change of voters takes two entries.
    pub(super) async fn write(&self, change: ChangeMembers<u64, Addresses>, view: &View) -> Answer {
        let leader = CommittedLeaderId::new(view.tenure.get());
        let conditions: [Precondition<Types>; 2] = [
            Precondition::CommittedLeaderId { committed_leader_id: leader },
            Precondition::LastMembershipLogId { last_membership_log_id: *view.membership.log_id() },
        ];
        // Removed voters do not stay as learners.
        let retain = false;
        let begun = self.runtime.clock.now();
        let written = self.raft.change_membership_if(change, retain, conditions).await;
        let waited = self.runtime.clock.now().saturating_since(begun);
        let waited_ms = millis(waited);
        match written {
            Ok(written) => {
                self.until_seen(&written.log_id).await;
                Ok(())
            }
            Err(RaftError::Fatal(_)) => Err(MembershipError::ShuttingDown),
            // Both steps of a change end here; after the first step, the change is made in part.
            Err(RaftError::APIError(
                error @ (ClientWriteError::ForwardToLeader(_)
                | ClientWriteError::LogEntryDiscarded(_)
                | ClientWriteError::PreconditionFailed(_)),
            )) => {
                tracing::warn!(%error, "a change of the members has no outcome");
                Err(MembershipError::OutcomeUnknown { waited_ms })
            }
            Err(RaftError::APIError(ClientWriteError::ChangeMembershipError(error))) => {
                tracing::warn!(%error, "a change of the members was not begun");
                Err(MembershipError::Busy)
            }
        }
    }

    /// Waits until openraft's metrics show the change: they show the new membership a little later
    /// than its entry. The next change is decided on them.
    async fn until_seen(&self, change: &LogId) {
        let seen = async {
            let mut metrics = self.raft.metrics();
            loop {
                let settled = {
                    let metrics = metrics.borrow_watched();
                    metrics.committed_membership_config.log_id().as_ref() >= Some(change)
                };
                if settled || metrics.changed().await.is_err() {
                    return;
                }
            }
        };
        // Otherwise the next change would be refused as too early, which does no harm.
        let _ = self.runtime.timeout(LOOK_AGAIN, seen).await;
    }

    /// Runs a change to its end even if its caller is gone. The caller waits for a limited time.
    pub(super) async fn run(self: &Arc<Self>, change: Change) -> Answer {
        let (tell, told) = oneshot::channel();
        let changes = Arc::clone(self);
        let finish = async move {
            let answer = match change {
                Change::AddLearner(member) => changes.add_learner(member).await,
                Change::Promote { node_id } => changes.promote(node_id).await,
                Change::Remove { node_id } => changes.remove(node_id).await,
                Change::TransferLeader { to } => changes.transfer_leader(to).await,
            };
            // The caller is gone; the change stands all the same.
            let _ = tell.send(answer);
        };
        self.runtime.spawn("raft-change", finish).detach();
        match self.runtime.timeout(self.deadline, told).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(MembershipError::ShuttingDown),
            Err(_) => {
                let waited_ms = millis(self.deadline);
                Err(MembershipError::OutcomeUnknown { waited_ms })
            }
        }
    }

    /// Finishes changes that this leader or an earlier one began and did not finish. Runs until the
    /// task is dropped.
    pub(super) async fn finish_what_was_begun(self: Arc<Self>) {
        let mut role = self.role.clone();
        loop {
            if role.borrow_and_update().tenure().is_some() {
                self.finish_joint().await;
            }
            holdfast_runtime::select! {
                changed = role.changed() => if changed.is_err() { return },
                () = self.runtime.sleep(LOOK_AGAIN) => {}
            }
        }
    }

    async fn finish_joint(&self) {
        let Ok(_one) = Arc::clone(&self.one_at_a_time).try_lock_owned() else { return };
        let unfinished = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            is_joint(&metrics.membership_config)
        };
        if !unfinished {
            return;
        }
        tracing::info!("finishes a change of the voters that was left unfinished");
        // Nothing to add: openraft then writes the second step.
        let second_step = ChangeMembers::AddVoterIds(BTreeSet::new());
        if let Err(error) = self.raft.change_membership(second_step, false).await {
            tracing::debug!(%error, "the change is not finished yet");
        }
    }
}

/// Whether a change of the voters is half done.
fn is_joint(membership: &StoredMembership) -> bool {
    membership.membership().get_joint_config().len() > 1
}
