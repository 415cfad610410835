//! Members that join by themselves (DESIGN §15): in a `StatefulSet` a node comes back with an empty volume, and nobody is
//! there to add it.
//!
//! ```text
//! a node with an empty folder              a member            the leader
//! ---------------------------              --------            ----------
//! draws a start id
//! Admit ─────────────────────────────────▶ names the leader
//! Admit ─────────────────────────────────────────────────────▶ a quorum confirms: still leads
//!        ◀──────────────────────────────────────────────────── an id above every id ever used
//! makes its folder under that id,
//! starts as one that waits to be added ◀─────────────────────── Hello, invitation, "N is a learner",
//!                                                               as for one that an operator adds
//! snapshot, then the log
//!                                                               caught up: it takes the place of the voter with its
//!                                                               address, if that one is silent; or it is one more voter
//! ```
//!
//! # Why this is safe
//!
//! - The new node is another member, under an id that was never used, invited by the start that it named: `joining.rs` holds as
//!   it stands (I20, I22). Nothing that its folder may have promised under another id is counted for it.
//! - The old voter's place is taken in one joint change, on a membership that a quorum has confirmed. Both majorities agree to
//!   it, so no entry is lost that was committed; if the old voter comes back, it is no member.
//! - A voter that answers is never replaced: somebody who asks under the address of one that lives stays a learner.
//! - One admission in ten seconds: a node that starts and ends again and again uses up few ids.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use holdfast_core::{COMMAND_VERSION, Tenure};
use holdfast_proto::v1 as proto;
use holdfast_runtime::Instant;
use openraft::ChangeMembers;
use openraft::async_runtime::watch::WatchReceiver;

use super::Member;
use super::formation::own_cluster;
use super::membership::{ANSWER_WITHIN, Answer, Changes, LOOK_AGAIN, PROMOTE_LAG_MAX, View};
use super::types::Addresses;
use crate::members::{MEMBERS_MAX, MembershipError, MembershipRefusal};

/// At most one admission begins within this time.
const ONE_IN: Duration = Duration::from_secs(10);
/// A node that has its id has to run under it within this time.
const STARTS_WITHIN: Duration = Duration::from_secs(10);
/// Time between two looks at a node that starts.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);
/// A voter that was silent for so many of the longest election time-outs counts as gone for good.
const TIMEOUTS_UNTIL_GONE: u32 = 10;
/// The longest address that is taken, bytes.
const ADDRESS_MAX: usize = 300;

/// The node that this leader admitted last, and how many voters its cluster is to have.
pub(super) struct Admissions {
    /// How many voters there are to be; `None`: nobody joins by itself.
    up_to: Option<usize>,
    gone_after: Duration,
    last: Mutex<Option<Admission>>,
}

/// An admission of this leader.
#[derive(Clone)]
struct Admission {
    member: Member,
    start_id: Bytes,
    began: Instant,
}

impl Admissions {
    pub(super) fn new(up_to: Option<usize>, election_max_ms: u64) -> Self {
        let gone_after = Duration::from_millis(election_max_ms) * TIMEOUTS_UNTIL_GONE;
        Self { up_to, gone_after, last: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Admission>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a node was not admitted.
enum NotAdmitted {
    Refused(String),
    NotLeader,
}

impl From<MembershipError> for NotAdmitted {
    fn from(error: MembershipError) -> Self {
        match error {
            MembershipError::NotLeader { .. } => Self::NotLeader,
            other => Self::Refused(other.to_string()),
        }
    }
}

impl From<MembershipRefusal> for NotAdmitted {
    fn from(refusal: MembershipRefusal) -> Self {
        Self::Refused(refusal.to_string())
    }
}

impl Changes {
    /// Answers a node that asks for a place, or that has other addresses than before.
    pub(super) async fn admit(
        self: &Arc<Self>,
        request: proto::AdmitRequest,
    ) -> proto::AdmitResponse {
        let admitted = match request.member {
            Some(member) => self.moves(member, &request).await,
            None => self.admits(request).await,
        };
        match admitted {
            Ok(node_id) => proto::AdmitResponse { node_id, ..proto::AdmitResponse::default() },
            Err(NotAdmitted::Refused(refusal)) => {
                proto::AdmitResponse { refusal, ..proto::AdmitResponse::default() }
            }
            Err(NotAdmitted::NotLeader) => proto::AdmitResponse {
                refusal: "this node does not lead".to_owned(),
                leader: self.leader_of_peers(),
                ..proto::AdmitResponse::default()
            },
        }
    }

    fn leader_of_peers(&self) -> Option<String> {
        let leader = self.role.borrow().leader()?.node_id;
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let node = metrics.membership_config.get_node(&leader)?;
        Some(self.peers.as_configured(node.member(leader)).peer_advertise)
    }

    /// Gives a node its id, and brings it in once it runs under that.
    async fn admits(self: &Arc<Self>, request: proto::AdmitRequest) -> Result<u64, NotAdmitted> {
        let refused = |why: &str| Err(NotAdmitted::Refused(why.to_owned()));
        if self.admissions.up_to.is_none() {
            return refused(
                "no node joins this cluster by itself: `join` of the leader is not \"auto\"",
            );
        }
        let proto::AdmitRequest { advertise, peer_advertise, start_id, .. } = request;
        let is_address = |text: &str| !text.is_empty() && text.len() <= ADDRESS_MAX;
        if !is_address(&advertise) || !is_address(&peer_advertise) || start_id.len() != 16 {
            return refused("the request lacks addresses or a start id");
        }
        if request.command_version < u32::from(COMMAND_VERSION) {
            return refused("its release is older than the leader's");
        }
        let view = self.confirmed_view().await?;
        let member = Member { node_id: 0, advertise, peer_advertise };
        self.check_place(&member, &view)?;
        let admission = self.next_admission(member, start_id, view.highest_id)?;
        drop(view);
        let node_id = admission.member.node_id;
        tracing::info!(
            member = node_id,
            address = admission.member.peer_advertise,
            "admits a node"
        );
        let bringing = self.clone().bring_in(admission);
        self.runtime.spawn("raft-admission", bringing).detach();
        Ok(node_id)
    }

    /// Whether a node with these addresses may come in.
    fn check_place(&self, member: &Member, view: &View) -> Result<(), NotAdmitted> {
        let voters = view.voters();
        for other in view.members() {
            if other.peer_advertise == member.peer_advertise {
                if voters.contains(&other.node_id) && self.answers(other.node_id) {
                    let (id, address) = (other.node_id, &other.peer_advertise);
                    let why = format!("node {id} has the address {address}, and answers");
                    return Err(NotAdmitted::Refused(why));
                }
            } else if [&other.advertise, &other.peer_advertise].contains(&&member.advertise) {
                let (address, node_id) = (member.advertise.clone(), other.node_id);
                return Err(MembershipRefusal::AddressTaken { address, node_id }.into());
            }
        }
        let others = view.members().filter(|other| other.peer_advertise != member.peer_advertise);
        if others.count() >= MEMBERS_MAX {
            return Err(MembershipRefusal::TooManyMembers { limit: MEMBERS_MAX }.into());
        }
        Ok(())
    }

    /// The admission of a start: the one that it has, or a new one, if it is time.
    fn next_admission(
        &self,
        member: Member,
        start_id: Bytes,
        highest_id: u64,
    ) -> Result<Admission, NotAdmitted> {
        let now = self.runtime.clock.now();
        let mut last = self.admissions.lock();
        let before = last.as_ref().map_or(0, |last| last.member.node_id);
        match &*last {
            Some(last) if last.start_id == start_id => return Ok(last.clone()),
            Some(last) if now.saturating_since(last.began) < ONE_IN => {
                let why = "another node was admitted a moment ago; one in ten seconds is";
                return Err(NotAdmitted::Refused(why.to_owned()));
            }
            Some(_) | None => {}
        }
        let node_id = highest_id.max(before) + 1;
        let admission = Admission { member: Member { node_id, ..member }, start_id, began: now };
        *last = Some(admission.clone());
        Ok(admission)
    }

    /// Adds a node as a learner once it runs under its id.
    async fn bring_in(self: Arc<Self>, admission: Admission) {
        let Admission { member, start_id, .. } = admission;
        let give_up_at = self.runtime.clock.now() + STARTS_WITHIN;
        loop {
            let added = match self.peers.hello(&member, ANSWER_WITHIN).await {
                Ok(hello) if hello.node_id == member.node_id && hello.start_id == start_id => {
                    self.add_admitted(&member, &hello).await.map_err(|error| error.to_string())
                }
                Ok(hello) => Err(format!("node {} answers there, or another start", hello.node_id)),
                Err(why) => Err(why),
            };
            let Err(why) = added else { return };
            if self.runtime.clock.now() >= give_up_at {
                let node_id = member.node_id;
                tracing::warn!(member = node_id, why, "a node that was admitted was not added");
                return;
            }
            self.runtime.sleep(BETWEEN_LOOKS).await;
        }
    }

    /// Adds it, in the place of learners with its address: those never came to vote.
    async fn add_admitted(&self, member: &Member, hello: &proto::HelloResponse) -> Answer {
        let view = self.confirmed_view().await?;
        if view.member(member.node_id).is_ok() {
            return Ok(());
        }
        if member.node_id <= view.highest_id {
            let (node_id, highest) = (member.node_id, view.highest_id);
            return Err(MembershipRefusal::IdUsed { node_id, highest }.into());
        }
        let voters = view.voters();
        let stale: BTreeSet<u64> = view
            .members()
            .filter(|other| !voters.contains(&other.node_id))
            .filter(|other| other.peer_advertise == member.peer_advertise)
            .map(|other| other.node_id)
            .collect();
        if !stale.is_empty() {
            tracing::info!(?stale, "removes learners whose address has another node now");
            return match self.write(ChangeMembers::RemoveNodes(stale), &view).await {
                // The next attempt adds it.
                Ok(()) => Err(MembershipError::Busy),
                other => other,
            };
        }
        self.invite(member, hello, &view).await?;
        self.heard.note_version(member.node_id, hello.command_version);
        let node = (member.node_id, Addresses::of(member));
        tracing::info!(member = member.node_id, address = member.peer_advertise, "adds a learner");
        self.write(ChangeMembers::AddNodes([node].into()), &view).await
    }

    /// Makes voters of those who were admitted and have caught up. Runs until the task is dropped.
    pub(super) async fn complete_admissions(self: Arc<Self>, up_to: usize) {
        let mut role = self.role.clone();
        let mut leads: Option<(Tenure, Instant)> = None;
        loop {
            let tenure = role.borrow_and_update().tenure();
            leads = tenure.map(|tenure| match leads {
                Some(known) if known.0 == tenure => known,
                _ => (tenure, self.runtime.clock.now()),
            });
            if let Some((_, since)) = leads {
                let led = self.runtime.clock.now().saturating_since(since);
                // What did not go now is tried again.
                let _ = self.promote_admitted(up_to, led).await;
            }
            holdfast_runtime::select! {
                changed = role.changed() => if changed.is_err() { return },
                () = self.runtime.sleep(LOOK_AGAIN) => {}
            }
        }
    }

    /// Whether some learner may have caught up: a look that costs nobody a round.
    fn somebody_caught_up(&self) -> bool {
        let metrics = self.raft.metrics();
        let learners: Vec<u64> = {
            let metrics = metrics.borrow_watched();
            let voters: BTreeSet<u64> = metrics.membership_config.voter_ids().collect();
            let ids = metrics.membership_config.nodes().map(|(id, _)| *id);
            ids.filter(|id| !voters.contains(id)).collect()
        };
        learners.into_iter().any(|id| self.has_caught_up(id))
    }

    fn has_caught_up(&self, node_id: u64) -> bool {
        self.answers(node_id) && self.lag(node_id) <= PROMOTE_LAG_MAX
    }

    async fn promote_admitted(&self, up_to: usize, led: Duration) -> Answer {
        if !self.somebody_caught_up() {
            return Ok(());
        }
        let view = self.confirmed_view().await?;
        let voters = view.voters();
        for learner in view.members().filter(|member| !voters.contains(&member.node_id)) {
            if !self.has_caught_up(learner.node_id) {
                continue;
            }
            let before = view.members().find(|member| {
                voters.contains(&member.node_id) && member.peer_advertise == learner.peer_advertise
            });
            let mut next = voters.clone();
            next.insert(learner.node_id);
            match before {
                Some(before) if self.is_gone(before.node_id, led) => {
                    next.remove(&before.node_id);
                    self.check_majority(&next)?;
                    let (member, place_of) = (learner.node_id, before.node_id);
                    tracing::info!(
                        member,
                        place_of,
                        "a new member takes the place of one that is gone"
                    );
                    return self.write(ChangeMembers::ReplaceAllVoters(next), &view).await;
                }
                None if voters.len() < up_to => {
                    self.check_majority(&next)?;
                    tracing::info!(member = learner.node_id, voters = ?next, "promotes a learner");
                    let ids = [learner.node_id].into();
                    return self.write(ChangeMembers::AddVoterIds(ids), &view).await;
                }
                Some(_) | None => {}
            }
        }
        Ok(())
    }

    /// Whether a voter was silent, under its id, for so long that it counts as gone. `led`: how long this node has led.
    fn is_gone(&self, node_id: u64, led: Duration) -> bool {
        !self.answers(node_id)
            && self.silent_for(node_id).unwrap_or(led) >= self.admissions.gone_after
    }

    /// Notes the new addresses of a member that is called back there.
    async fn moves(&self, node_id: u64, request: &proto::AdmitRequest) -> Result<u64, NotAdmitted> {
        let refused = |why: String| Err(NotAdmitted::Refused(why));
        let view = self.confirmed_view().await?;
        let Some(own) = self.peers.me.cluster() else {
            return refused("this node belongs to no cluster".to_owned());
        };
        if request.cluster_id != own.0.0.as_slice() {
            return refused("it belongs to another cluster".to_owned());
        }
        view.member(node_id)?;
        let (advertise, peer_advertise) =
            (request.advertise.clone(), request.peer_advertise.clone());
        let member = Member { node_id, advertise, peer_advertise };
        let taken = view.members().filter(|other| other.node_id != node_id).any(|other| {
            other.peer_advertise == member.peer_advertise || other.advertise == member.advertise
        });
        if taken {
            return refused("another member has one of these addresses".to_owned());
        }
        let hello = self.peers.hello(&member, ANSWER_WITHIN).await;
        let hello = hello.map_err(NotAdmitted::Refused)?;
        if hello.node_id != node_id || !own_cluster(&hello, own) {
            return refused(format!(
                "node {} of another cluster or start answers there",
                hello.node_id
            ));
        }
        tracing::info!(member = node_id, address = member.peer_advertise, "a member has moved");
        let nodes = [(node_id, Addresses::of(&member))].into();
        self.write(ChangeMembers::SetNodes(nodes), &view).await?;
        Ok(node_id)
    }

    /// Tells the others of this node's addresses while the log has others. Runs until the task is dropped.
    pub(super) async fn tell_own_addresses(self: Arc<Self>) {
        loop {
            self.runtime.sleep(2 * LOOK_AGAIN).await;
            let (Some(own), Some((cluster, _))) = (self.own_configured(), self.peers.me.cluster())
            else {
                continue;
            };
            let members: Vec<Member> = {
                let metrics = self.raft.server_metrics();
                let metrics = metrics.borrow_watched();
                metrics.membership_config.nodes().map(|(id, node)| node.member(*id)).collect()
            };
            let is_known = members.iter().find(|member| member.node_id == self.node_id);
            if is_known.is_none_or(|known| *known == own) {
                continue;
            }
            let request = proto::AdmitRequest {
                advertise: own.advertise.clone(),
                peer_advertise: own.peer_advertise.clone(),
                member: Some(self.node_id),
                cluster_id: Bytes::copy_from_slice(&cluster.0),
                ..proto::AdmitRequest::default()
            };
            if self.role.borrow().tenure().is_some() {
                // What did not go now is tried again.
                let _ = self.moves(self.node_id, &request).await;
                continue;
            }
            for member in members.iter().filter(|member| member.node_id != self.node_id) {
                let asked = self.peers.control(member).admit(request.clone());
                // Only the leader does it, and the next round looks whether it has.
                let _ = self.runtime.timeout(2 * ANSWER_WITHIN, asked).await;
            }
        }
    }

    fn own_configured(&self) -> Option<Member> {
        self.peers.configured.iter().find(|member| member.node_id == self.node_id).cloned()
    }
}
