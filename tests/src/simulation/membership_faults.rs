//! Faults that change the members: damaged and lost disks, growing, shrinking, handing over.

use std::cmp::Reverse;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use holdfast_server::raft::{
    Change as MemberChange, Fault as NodeFault, Members, MembershipError, Replica,
};

use super::fault::{Damage, Who};
use super::stage::{Stage, lock};
use crate::sim::{self, Crash, Ended, VirtualDisk, World, member};

/// How long the run tries to make one change of the members.
const CHANGE_WITHIN: Duration = Duration::from_secs(40);
/// The interval between two attempts.
const ASK_AGAIN: Duration = Duration::from_millis(300);
/// Most nodes at once.
const CREW_MAX: usize = 6;
/// Of so many voters one may be lost for good.
const VOTERS_LEAST: usize = 3;
/// How long a node that was removed may take to learn of it.
const LEARNS_WITHIN: Duration = Duration::from_secs(20);

/// One change of the members.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    Add(u64),
    Promote(u64),
    Remove(u64),
}

impl Stage<'_> {
    /// Kills a node and damages its disk: it refuses to start, or has lost nothing. If it refuses,
    /// a new node takes its place.
    pub(super) async fn damage(&self, who: Who, damage: Damage, lasts: Duration) -> Option<()> {
        let _crew = self.crew.try_lock().ok()?;
        let id = self.pick(who).filter(|_| self.may_lose_one())?;
        let disk = self.world.disk(id);
        if damage == Damage::OldFile {
            self.grows_older(&disk, lasts).await?;
        }
        // Until it is known whether the node starts, no other fault brings it back.
        lock(&self.lost).insert(id);
        self.world.crash(id, Crash::Process);
        let files = self.to_be_damaged(&disk);
        let damage = match damage {
            Damage::FlippedBit => sim::Damage::FlippedBit,
            Damage::CutFile => sim::Damage::Cut,
            Damage::OldFile => sim::Damage::Older,
        };
        // An older copy may equal the file: then the next file.
        let damaged = files.iter().any(|file| disk.damage(file, damage));
        self.runtime.sleep(lasts).await;
        match self.bring_back(id).await {
            Err(Ended::Refused(_)) => {
                self.counts().refused_stores += 1;
                self.replace(id).await;
            }
            Err(ended @ Ended::Fault(_)) => {
                self.wrong(format!("I21: node {id} did not refuse a damaged disk: {ended:?}"));
            }
            _ => {
                lock(&self.lost).remove(&id);
            }
        }
        damaged.then_some(())
    }

    /// The copy that is put back later. `None` if the power is cut meanwhile: the guard's hint,
    /// which shows that the store is older, is not synced (docs/reliability.md).
    async fn grows_older(&self, disk: &VirtualDisk, lasts: Duration) -> Option<()> {
        let cuts = || disk.injected().power_lost;
        let before = cuts();
        disk.copy_files();
        self.runtime.sleep(lasts).await;
        (cuts() == before).then_some(())
    }

    /// The files of a disk, the one to be damaged first: half of the time the largest, which is the
    /// log or a snapshot.
    fn to_be_damaged(&self, disk: &VirtualDisk) -> Vec<PathBuf> {
        let mut files = disk.files();
        let mut draw = self.draw();
        if draw.below(2) == 0 {
            files.sort_by_key(|file| Reverse(disk.content(file).len()));
        } else {
            let first = usize::try_from(draw.below(files.len() as u64)).unwrap_or(0);
            files.rotate_left(first);
        }
        files
    }

    /// A node comes back with an empty disk, under its old id: no member lets it in (I22). A new
    /// node takes its place.
    pub(super) async fn wipe(&self, who: Who, lasts: Duration) -> Option<()> {
        let _crew = self.crew.try_lock().ok()?;
        let id = self.pick(who).filter(|_| self.may_lose_one())?;
        lock(&self.lost).insert(id);
        self.world.wipe(id);
        self.world.begin_node(id);
        self.runtime.sleep(lasts).await;
        if self.world.is_running(id) {
            // It reaches no member that could tell it to end.
            self.world.crash(id, Crash::Process);
        }
        self.replace(id).await;
        Some(())
    }

    /// A new node joins, learns, and then votes.
    pub(super) async fn grow(&self, lasts: Duration) -> Option<()> {
        let _crew = self.crew.try_lock().ok()?;
        if self.world.nodes().len() >= CREW_MAX || self.plan.nodes == 1 {
            return None;
        }
        let id = self.join().await?;
        self.runtime.sleep(lasts).await;
        // It may not have caught up before the end: then it stays a learner.
        self.change(Change::Promote(id)).await;
        Some(())
    }

    /// A node leaves for good; if few are left, a new one joins first.
    pub(super) async fn shrink_by(&self, who: Who) -> Option<()> {
        let _crew = self.crew.try_lock().ok()?;
        let id = self.pick(who).filter(|_| self.may_lose_one())?;
        if self.world.nodes().len() <= 3 {
            let joined = self.join().await?;
            self.change(Change::Promote(joined)).await.then_some(())?;
        }
        // From here on the node may learn of its removal, also if the answer gets lost.
        lock(&self.lost).insert(id);
        self.change(Change::Remove(id)).await.then_some(())?;
        let learns = async {
            while self.world.is_running(id) {
                self.runtime.sleep(ASK_AGAIN).await;
            }
        };
        // If it is cut off it cannot learn of its removal.
        let _ = self.runtime.timeout(LEARNS_WITHIN, learns).await;
        self.world.remove_node(id);
        Some(())
    }

    /// The leader hands leadership over to a voter that has caught up.
    pub(super) async fn transfer(&self) -> Option<()> {
        let asked = self.world.ask_leader(|leader| async move {
            leader.change(MemberChange::TransferLeader { to: None }).await
        });
        let wait = self.runtime.timeout(CHANGE_WITHIN, asked);
        wait.await.ok()??.ok()
    }

    /// Whether a node may be lost for good: only one at a time, a majority of the voters stays, and clients still know a member.
    fn may_lose_one(&self) -> bool {
        let known = self.world.nodes().into_iter().filter(|id| *id <= self.plan.nodes);
        let alone = known.count() < 2 || self.voters() < VOTERS_LEAST;
        self.plan.nodes > 1 && !alone && lock(&self.lost).is_empty()
    }

    /// How many voters the leader knows of. Without a leader: how many members every running node knows of at least, because a node that
    /// lags may know of one that was removed.
    fn voters(&self) -> usize {
        let leader = self.world.leader().and_then(|leader| self.world.replica(leader));
        if let Some(Ok(known)) = leader.map(|leader| leader.members()) {
            return known.members.iter().filter(|member| member.votes).count();
        }
        let replicas = self.world.nodes().into_iter().filter_map(|id| self.world.replica(id));
        let members = replicas.map(|replica| replica.status().members.len());
        // A node that joins knows of none yet.
        members.filter(|members| *members > 0).min().unwrap_or(0)
    }

    /// Adds a new node in place of `lost`, and removes that. Until both are done, `lost` counts as
    /// lost, and no other node is.
    async fn replace(&self, lost: u64) {
        lock(&self.lost).insert(lost);
        if let Some(joined) = self.join().await {
            self.change(Change::Promote(joined)).await;
        }
        self.remove_lost(lost).await;
    }

    /// Removes a node that will not come back.
    pub(super) async fn remove_lost(&self, lost: u64) -> bool {
        let removed = self.change(Change::Remove(lost)).await;
        if removed {
            self.world.remove_node(lost);
            lock(&self.lost).remove(&lost);
        }
        removed
    }

    /// A new node that is a learner.
    pub(super) async fn join(&self) -> Option<u64> {
        let id = self.world.new_node();
        self.furnish(id);
        self.world.begin_node(id);
        if self.change(Change::Add(id)).await {
            return Some(id);
        }
        // The node may still be added if only the answer was lost. Then it is a member that has to
        // be removed again.
        lock(&self.lost).insert(id);
        self.remove_lost(id).await;
        None
    }

    /// Changes the members of the present world, and counts the change.
    async fn change(&self, change: Change) -> bool {
        let made = until_made(&self.world, change).await;
        if made {
            self.counts().member_changes += 1;
        }
        made
    }

    /// Whether a node may end by itself with this fault.
    pub(super) fn may_end_with(&self, id: u64, fault: &NodeFault) -> bool {
        let lost = lock(&self.lost).contains(&id);
        match fault {
            NodeFault::DataGone { .. } | NodeFault::IdUsed { .. } | NodeFault::Removed { .. } => {
                lost
            }
            NodeFault::Snapshot { .. } | NodeFault::Stopped { .. } => {
                lock(&self.starved).contains(&id)
            }
            _ => false,
        }
    }
}

/// Asks the leader of `world` until the change is made, or cannot be, or the time is over: any
/// message may be lost.
pub(super) async fn until_made(world: &World<'_>, change: Change) -> bool {
    let runtime = world.runtime();
    let asks = async {
        loop {
            match ask(world, change).await {
                Some(Ok(())) => return true,
                Some(Err(MembershipError::Refused(refusal))) if is_final(change, &refusal) => {
                    return matches!(change, Change::Remove(_));
                }
                _ => runtime.sleep(ASK_AGAIN).await,
            }
        }
    };
    runtime.timeout(CHANGE_WITHIN, asks).await.unwrap_or(false)
}

/// Asks the leader of `world` once.
pub(super) async fn ask(world: &World<'_>, change: Change) -> Option<Result<(), MembershipError>> {
    let asked = world.ask_leader(|leader: Arc<Replica>| async move {
        match change {
            Change::Add(id) => leader.change(MemberChange::AddLearner(member(id))).await,
            Change::Promote(id) => leader.change(MemberChange::Promote { node_id: id }).await,
            Change::Remove(id) => leader.change(MemberChange::Remove { node_id: id }).await,
        }
    });
    asked.await
}

/// Whether asking again cannot change the answer.
fn is_final(change: Change, refusal: &holdfast_server::raft::MembershipRefusal) -> bool {
    use holdfast_server::raft::MembershipRefusal as Refusal;
    match change {
        Change::Remove(_) => matches!(refusal, Refusal::NotAMember { .. }),
        Change::Promote(_) => matches!(refusal, Refusal::NotAMember { .. }),
        Change::Add(_) => matches!(refusal, Refusal::IdUsed { .. }),
    }
}
