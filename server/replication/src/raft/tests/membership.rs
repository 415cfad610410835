//! Members come and go while commands go on: learners, votes, leaders, ids that are never used
//! again.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{LockName, SessionId, WORK_STEPS};
use holdfast_mutants::{Mutant, arm};
use holdfast_proto::v1 as proto;
use openraft::async_runtime::watch::WatchReceiver;

use super::cluster::{
    Cluster, OLDER_VERSION, OlderRelease, acquire, commit, fault_of, has_session, member, open,
};
use crate::consensus::Consensus;
use crate::raft::formation::stored_member;
use crate::raft::types::Membership;
use crate::raft::wire::member_to_wire;
use crate::raft::{
    Change, Fault, Forming, Members, MembershipError, MembershipRefusal, MemoryStore, Replica,
    ReplicaConfig, ReplicaStore,
};
use crate::storage::Stage;

/// Keeps so few entries that every later member needs a snapshot.
fn little_log(config: &mut ReplicaConfig) {
    config.snapshot_log_bytes = 4 << 10;
    config.log_kept = 0;
    config.max_log_bytes = 8 << 10;
}

/// Three formed members with a held lock and one waiter.
struct Held {
    cluster: Cluster,
    holder: SessionId,
    waiter: SessionId,
}

impl Held {
    async fn new(adjust: fn(&mut ReplicaConfig)) -> Self {
        let cluster = Cluster::started(3, adjust).await;
        cluster.formed().await;
        let (leader, _) = cluster.leader().await;
        let leader = cluster.replica(leader);
        let (holder, waiter) = (open(leader).await, open(leader).await);
        for session in [holder, waiter] {
            commit(leader, acquire(session, 1, "jobs")).await;
        }
        Self { cluster, holder, waiter }
    }

    /// Checks on every node that the holder still holds and the waiter still waits.
    async fn assert_kept(&self) {
        self.cluster.level().await;
        for (node_id, node) in &self.cluster.nodes {
            for session in [self.holder, self.waiter] {
                assert!(has_session(&node.replica, session), "node {node_id}, {session}");
            }
            let (mut holders, mut waiters) = (Vec::new(), Vec::new());
            node.replica.read(&mut |table, _| {
                let lock = table.lock(&LockName::parse("jobs").unwrap()).unwrap();
                holders = lock.holders().map(|holder| holder.grant.session).collect();
                waiters = lock.waiters().map(|waiter| waiter.session).collect();
            });
            assert_eq!(
                (holders, waiters),
                (vec![self.holder], vec![self.waiter]),
                "node {node_id}"
            );
        }
        let hashes = self.cluster.hashes();
        assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
    }
}

/// The voters and the learners according to the leader.
pub(super) async fn members(cluster: &Cluster) -> (Vec<u64>, Vec<u64>) {
    let (leader, _) = cluster.leader().await;
    let status = cluster.replica(leader).members().unwrap();
    let (votes, learns): (Vec<_>, Vec<_>) = status.members.iter().partition(|one| one.votes);
    let ids = |all: Vec<&crate::raft::MemberStatus>| {
        all.into_iter().map(|one| one.member.node_id).collect()
    };
    (ids(votes), ids(learns))
}

/// Asks the leader, and retries as long as the certain outcome allows it, as the command line does.
async fn ask<F, R>(cluster: &Cluster, mut change: F) -> Result<(), MembershipError>
where
    F: FnMut(Arc<Replica>) -> R,
    R: Future<Output = Result<(), MembershipError>>,
{
    for _ in 0..50 {
        let (leader, _) = cluster.leader().await;
        match change(cluster.replica(leader).clone()).await {
            Err(
                MembershipError::NotLeader { .. }
                | MembershipError::Busy
                | MembershipError::Unavailable { .. }
                | MembershipError::OutcomeUnknown { .. },
            ) => cluster.runtime.sleep(Duration::from_millis(200)).await,
            other => return other,
        }
    }
    panic!("no answer after fifty questions");
}

pub(super) async fn add(cluster: &Cluster, node_id: u64) -> Result<(), MembershipError> {
    ask(cluster, |leader| async move { leader.change(Change::AddLearner(member(node_id))).await })
        .await
}

pub(super) async fn promote(cluster: &Cluster, node_id: u64) -> Result<(), MembershipError> {
    ask(cluster, |leader| async move { leader.change(Change::Promote { node_id }).await }).await
}

async fn remove(cluster: &Cluster, node_id: u64) -> Result<(), MembershipError> {
    ask(cluster, |leader| async move { leader.change(Change::Remove { node_id }).await }).await
}

async fn join(cluster: &mut Cluster, node_id: u64) {
    cluster.start_joining(node_id, MemoryStore::new(node_id)).await;
    add(cluster, node_id).await.unwrap();
    cluster.level().await;
    cluster.formed().await;
}

fn refusal(answer: Result<(), MembershipError>) -> MembershipRefusal {
    match answer {
        Err(MembershipError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_learner_catches_up_by_snapshot_then_log_and_has_the_same_state() {
    let mut held = Held::new(little_log).await;
    let (leader, _) = held.cluster.leader().await;
    for _ in 0..50 {
        open(held.cluster.replica(leader)).await;
    }
    let first_kept = held.cluster.nodes[&leader].store.log().purged().unwrap().index;
    assert!(first_kept > 1, "the log still begins at its beginning");

    join(&mut held.cluster, 4).await;

    let learner = &held.cluster.nodes[&4];
    let snapshot = learner.store.newest_snapshot().unwrap().unwrap();
    assert!(snapshot.info().last.unwrap().index >= first_kept);
    assert_eq!(members(&held.cluster).await, (vec![1, 2, 3], vec![4]));
    assert_eq!(learner.store.identity().stage, Stage::Initialised);
    open(held.cluster.replica(leader)).await;
    held.assert_kept().await;
    held.cluster.shutdown().await;
}

/// I17, I22: the entries that say so are gone from the log; the snapshot says it too.
#[tokio::test(start_paused = true)]
async fn a_follower_that_takes_a_snapshot_over_knows_who_was_removed() {
    assert!(a_late_follower_knows_who_was_removed().await);
}

/// The rule taken away: it keeps the members that it knew before.
#[tokio::test(start_paused = true)]
async fn without_the_members_of_the_snapshot_it_does_not() {
    arm(Some(Mutant::SnapshotKeepsMembers));
    let knows = a_late_follower_knows_who_was_removed().await;
    arm(None);
    assert!(!knows);
}

/// Node 4 comes and goes while a follower is cut off, and the log is cut off behind that.
async fn a_late_follower_knows_who_was_removed() -> bool {
    let mut held = Held::new(little_log).await;
    let (leader, _) = held.cluster.leader().await;
    let late = leader % 3 + 1;
    held.cluster.network.isolate(late);
    held.cluster.start_joining(4, MemoryStore::new(4)).await;
    add(&held.cluster, 4).await.unwrap();
    remove(&held.cluster, 4).await.unwrap();
    let gone = held.cluster.replica(leader).status().last_log.unwrap();
    drop(held.cluster.kill(4).await);
    let log = held.cluster.nodes[&leader].store.log();
    while log.purged().is_none_or(|purged| purged.index <= gone) {
        open(held.cluster.replica(leader)).await;
    }
    held.cluster.network.heal();
    held.cluster.level().await;

    let asks = proto::HelloRequest { from_node: 4 };
    let told = held.cluster.replica(late).peer().hello(asks).await.unwrap();
    held.cluster.shutdown().await;
    told.removed
}

/// To four voters, to five, and down to three again; the first leader and its successor are among
/// those removed. Holds and waits exist after every step, and commands are accepted.
#[tokio::test(start_paused = true)]
async fn a_cluster_grows_to_five_voters_and_shrinks_to_other_three() {
    let mut held = Held::new(little_log).await;
    for node_id in [4, 5] {
        join(&mut held.cluster, node_id).await;
        promote(&held.cluster, node_id).await.unwrap();
        let (leader, _) = held.cluster.leader().await;
        for _ in 0..30 {
            open(held.cluster.replica(leader)).await;
        }
        held.assert_kept().await;
    }
    assert_eq!(members(&held.cluster).await, (vec![1, 2, 3, 4, 5], vec![]));

    for _ in 0..2 {
        let (leader, _) = held.cluster.leader().await;
        remove(&held.cluster, leader).await.unwrap();
        let fault = fault_of(&held.cluster.runtime, held.cluster.replica(leader)).await;
        assert!(matches!(fault, Fault::Removed { node_id, .. } if node_id == leader), "{fault:?}");
        drop(held.cluster.kill(leader).await);
        let (next, _) = held.cluster.leader().await;
        open(held.cluster.replica(next)).await;
        held.assert_kept().await;
    }
    assert_eq!(members(&held.cluster).await.0.len(), 3);
    held.cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn leadership_goes_to_each_voter_that_is_named_and_nobody_else() {
    let mut held = Held::new(little_log).await;
    join(&mut held.cluster, 4).await;
    promote(&held.cluster, 4).await.unwrap();

    for to in [1, 2, 3, 4, 4] {
        ask(&held.cluster, |leader| async move {
            leader.change(Change::TransferLeader { to: Some(to) }).await
        })
        .await
        .unwrap();
        let (leader, tenure) = held.cluster.leader().await;
        assert_eq!(leader, to);
        open(held.cluster.replica(leader)).await;
        held.cluster.runtime.sleep(Duration::from_secs(5)).await;
        assert_eq!(held.cluster.leader().await, (to, tenure), "it does not stay");
    }
    let (old, tenure) = held.cluster.leader().await;
    held.cluster.replica(old).change(Change::TransferLeader { to: None }).await.unwrap();
    let (next, _) = held.cluster.leader_after(tenure).await;
    assert_ne!(next, old);
    held.assert_kept().await;
    held.cluster.shutdown().await;
}

/// I22: an id whose data folder was emptied may have votes and acknowledgements left, so no empty
/// folder gets that id.
#[tokio::test(start_paused = true)]
async fn a_wiped_member_comes_back_under_a_new_id_only() {
    for join_flag in [false, true] {
        let mut held = Held::new(little_log).await;
        let (leader, _) = held.cluster.leader().await;
        let wiped = leader % 3 + 1;
        drop(held.cluster.kill(wiped).await);
        if join_flag {
            held.cluster.start_joining(wiped, MemoryStore::new(wiped)).await;
        } else {
            held.cluster.start(wiped, MemoryStore::new(wiped)).await;
        }
        let fault = fault_of(&held.cluster.runtime, held.cluster.replica(wiped)).await;
        match fault {
            Fault::IdUsed { node_id, highest: 3, .. } if join_flag => assert_eq!(node_id, wiped),
            Fault::DataGone { node_id, .. } if !join_flag => assert_eq!(node_id, wiped),
            other => panic!("{other:?}"),
        }
        assert!(fault_words(&held, wiped).contains("--join"));
        assert_eq!(held.cluster.nodes[&wiped].store.identity().stage, Stage::Fresh);
        drop(held.cluster.kill(wiped).await);

        // It is still a member, so it is removed first; then the id is spent.
        remove(&held.cluster, wiped).await.unwrap();
        remove(&held.cluster, wiped).await.unwrap();
        let again = add(&held.cluster, wiped).await;
        assert_eq!(refusal(again), MembershipRefusal::IdUsed { node_id: wiped, highest: 3 });
        join(&mut held.cluster, 4).await;
        promote(&held.cluster, 4).await.unwrap();
        held.assert_kept().await;
        held.cluster.shutdown().await;
    }
}

fn fault_words(held: &Held, node_id: u64) -> String {
    let faults = held.cluster.replica(node_id).faults();
    let fault = faults.borrow().clone();
    fault.map(|fault| fault.to_string()).unwrap_or_default()
}

/// A former member is refused, and so is a lower id that was never used. Other addresses for a
/// member are refused with the member as it is.
#[tokio::test(start_paused = true)]
async fn an_id_is_refused_if_it_was_used_or_lies_below_one_that_was() {
    let mut held = Held::new(little_log).await;
    join(&mut held.cluster, 7).await;
    remove(&held.cluster, 7).await.unwrap();
    drop(held.cluster.kill(7).await);
    join(&mut held.cluster, 8).await;

    for id in [4, 7, 8] {
        let mut elsewhere = member(id);
        elsewhere.peer_advertise = "elsewhere:1".to_owned();
        let answer = ask(&held.cluster, |leader| {
            let elsewhere = elsewhere.clone();
            async move { leader.change(Change::AddLearner(elsewhere)).await }
        });
        let expected = match id {
            8 => MembershipRefusal::OtherAddresses { member: member(8) },
            node_id => MembershipRefusal::IdUsed { node_id, highest: 8 },
        };
        assert_eq!(refusal(answer.await), expected);
    }
    held.cluster.shutdown().await;
}

/// The log forgets members that left; the snapshot's meta does not. One member is away and learns
/// of the removal from a snapshot that it receives, the others from their own.
#[tokio::test(start_paused = true)]
async fn an_id_stays_spent_when_the_log_that_named_it_is_gone_and_everybody_was_restarted() {
    let mut held = Held::new(little_log).await;
    join(&mut held.cluster, 8).await;
    let (leader, _) = held.cluster.leader().await;
    let away = leader % 3 + 1;
    let left = held.cluster.kill(away).await;
    remove(&held.cluster, 8).await.unwrap();
    drop(held.cluster.kill(8).await);
    let (leader, _) = held.cluster.leader().await;
    let removed_at = held.cluster.replica(leader).status().last_log.unwrap();
    for _ in 0..100 {
        open(held.cluster.replica(leader)).await;
    }
    let purged = |cluster: &Cluster| {
        let purged = cluster.nodes[&leader].store.log().purged();
        purged.is_some_and(|purged| purged.index > removed_at)
    };
    held.cluster.until("the removal was purged", purged).await;
    held.cluster.start(away, left).await;
    held.cluster.level().await;
    for node_id in 1..=3 {
        held.cluster.restart(node_id).await;
    }

    for leads in 1..=3 {
        ask(&held.cluster, |leader| async move {
            leader.change(Change::TransferLeader { to: Some(leads) }).await
        })
        .await
        .unwrap();
        let (leader, _) = held.cluster.leader().await;
        assert_eq!(held.cluster.replica(leader).members().unwrap().highest_node_id, 8);
        assert_eq!(members(&held.cluster).await, (vec![1, 2, 3], vec![]));
    }
    held.cluster.shutdown().await;
}

/// A late copy of an invitation reaches a node that has lost its folder meanwhile: it names another
/// start.
#[tokio::test(start_paused = true)]
async fn an_invitation_counts_only_for_the_start_it_was_made_for() {
    let mut held = Held::new(little_log).await;
    held.cluster.start_joining(4, MemoryStore::new(4)).await;
    let peer = held.cluster.replica(4).peer();
    let hello = peer.hello(proto::HelloRequest { from_node: 1 }).await.unwrap();
    assert!(hello.joining && hello.cluster_id.is_none());
    let identity = held.cluster.nodes[&1].store.identity();
    let members = held.cluster.members.iter().cloned().chain([member(4)]);
    let invitation = proto::PromiseRequest {
        cluster_id: identity.cluster.unwrap().0.to_vec().into(),
        from_node: 1,
        to_node: 4,
        members: members.map(|member| member_to_wire(&member)).collect(),
        incarnation: identity.incarnation,
        start_id: Some(hello.start_id),
    };
    drop(held.cluster.kill(4).await);

    held.cluster.start_joining(4, MemoryStore::new(4)).await;
    let answer = held.cluster.replica(4).peer().promise(invitation.clone()).await.unwrap();
    assert!(!answer.promised && answer.refusal.contains("another start"), "{answer:?}");

    // Nor may a member form a cluster with it, or invite it under other addresses, or into a
    // cluster other than the inviter's.
    let peer = held.cluster.replica(4).peer();
    let start_id = peer.hello(proto::HelloRequest { from_node: 1 }).await.unwrap().start_id;
    let right = proto::PromiseRequest { start_id: Some(start_id), ..invitation };
    let mut elsewhere = right.clone();
    elsewhere.members.last_mut().unwrap().advertise = "elsewhere:1".to_owned();
    let wrong = [
        ("forms none", proto::PromiseRequest { start_id: None, ..right.clone() }),
        ("given differently", elsewhere),
        ("not of the cluster", proto::PromiseRequest { incarnation: 1, ..right.clone() }),
        (
            "not of the cluster",
            proto::PromiseRequest { cluster_id: vec![1; 16].into(), ..right.clone() },
        ),
        ("no member", proto::PromiseRequest { from_node: 9, ..right.clone() }),
        ("this is node 4", proto::PromiseRequest { to_node: 5, ..right.clone() }),
    ];
    for (words, request) in wrong {
        let answer = peer.promise(request).await.unwrap();
        assert!(!answer.promised && answer.refusal.contains(words), "{words}: {answer:?}");
    }
    assert_eq!(held.cluster.nodes[&4].store.identity().cluster, None);
    assert!(peer.promise(right).await.unwrap().promised);
    held.cluster.shutdown().await;
}

/// A node that was invited and never added must not found a cluster under that cluster's id.
#[tokio::test(start_paused = true)]
async fn an_invited_node_forms_no_cluster_of_its_own_whatever_its_settings_say_later() {
    let mut held = Held::new(little_log).await;
    let identity = held.cluster.nodes[&1].store.identity();
    let store = MemoryStore::new(4);
    let invited = held.cluster.members.iter().cloned().chain([member(4)]);
    let invited = invited.map(|member| stored_member(&member)).collect();
    store.promise(identity.cluster.unwrap(), identity.incarnation, invited).unwrap();

    held.cluster.start_as(ReplicaConfig::new(4, vec![member(4)]), store).await;
    held.cluster.runtime.sleep(Duration::from_secs(30)).await;

    let lonely = held.cluster.replica(4);
    assert_eq!(lonely.status().last_log, None);
    assert!(matches!(*lonely.forming().borrow(), Forming::Waiting { .. }));
    held.cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_endangers_the_cluster_is_refused_by_its_reason() {
    let mut held = Held::new(little_log).await;
    join(&mut held.cluster, 4).await;
    let cluster = &held.cluster;
    let (leader, _) = cluster.leader().await;
    let leader = cluster.replica(leader);

    assert_eq!(refusal(promote(cluster, 9).await), MembershipRefusal::NotAMember { node_id: 9 });
    assert_eq!(refusal(remove(cluster, 9).await), MembershipRefusal::NotAMember { node_id: 9 });
    let to_learner = leader.change(Change::TransferLeader { to: Some(4) }).await;
    assert_eq!(refusal(to_learner), MembershipRefusal::NotAVoter { node_id: 4 });
    let unknown = leader.change(Change::TransferLeader { to: Some(9) }).await;
    assert_eq!(refusal(unknown), MembershipRefusal::NotAMember { node_id: 9 });
    let nobody_there = leader.change(Change::AddLearner(member(5))).await;
    assert!(matches!(refusal(nobody_there), MembershipRefusal::NotReached { node_id: 5, .. }));
    let mut taken = member(5);
    taken.advertise = member(2).peer_advertise;
    let taken = refusal(leader.change(Change::AddLearner(taken)).await);
    assert!(matches!(taken, MembershipRefusal::AddressTaken { node_id: 2, .. }), "{taken:?}");
    // A node that runs and was not started to join.
    let members = cluster.members.iter().cloned().chain([member(5)]).collect();
    let unasked = ReplicaConfig::new(5, members);
    let leader = leader.clone();
    held.cluster.start_as(unasked, MemoryStore::new(5)).await;
    let unasked = refusal(leader.change(Change::AddLearner(member(5))).await);
    let MembershipRefusal::DoesNotJoin { node_id: 5, why } = unasked else {
        panic!("{unasked:?}");
    };
    assert!(why.contains("--join"), "{why}");
    held.cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn voters_that_do_not_answer_are_counted_before_one_is_removed_or_added() {
    let mut held = Held::new(little_log).await;
    join(&mut held.cluster, 4).await;
    let (leader, _) = held.cluster.leader().await;
    let others: Vec<u64> = (1..=3).filter(|id| *id != leader).collect();
    drop(held.cluster.kill(others[0]).await);
    held.cluster.runtime.sleep(Duration::from_secs(5)).await;

    // The leader and a dead voter would be left.
    let refused = refusal(remove(&held.cluster, others[1]).await);
    let expected = MembershipRefusal::NoMajority { voters: 2, answering: 1, needed: 2 };
    assert_eq!(refused, expected);
    let to_the_dead =
        held.cluster.replica(leader).change(Change::TransferLeader { to: Some(others[0]) }).await;
    assert_eq!(refusal(to_the_dead), MembershipRefusal::Silent { node_id: others[0] });
    // The dead one may be removed.
    remove(&held.cluster, others[0]).await.unwrap();
    held.cluster.network.isolate(4);
    held.cluster.runtime.sleep(Duration::from_secs(5)).await;
    let silent = refusal(promote(&held.cluster, 4).await);
    assert_eq!(silent, MembershipRefusal::Silent { node_id: 4 });
    held.cluster.network.heal();
    held.cluster.shutdown().await;
}

/// The learner's disk finishes nothing, so it stays behind during the whole test.
#[tokio::test(start_paused = true)]
async fn a_learner_that_is_far_behind_gets_no_vote() {
    let mut held = Held::new(|_| ()).await;
    join(&mut held.cluster, 4).await;
    held.cluster.network.isolate(4);
    let (leader, _) = held.cluster.leader().await;
    for _ in 0..1_100 {
        open(held.cluster.replica(leader)).await;
    }
    held.cluster.nodes[&4].store.stall();
    held.cluster.network.heal();

    let refused = async {
        loop {
            // It is silent until its next acknowledgement.
            match held.cluster.replica(leader).change(Change::Promote { node_id: 4 }).await {
                Err(MembershipError::Refused(MembershipRefusal::Silent { .. })) => {
                    held.cluster.runtime.sleep(Duration::from_millis(5)).await;
                }
                other => return refusal(other),
            }
        }
    };
    let refused = held.cluster.runtime.timeout(Duration::from_mins(1), refused).await.unwrap();

    let MembershipRefusal::Lags { node_id: 4, lag, bound } = refused else {
        panic!("{refused:?}");
    };
    assert!(lag > bound, "{lag} of {bound}");
    held.cluster.shutdown().await;
}

/// I29: the member would stop at the first entry that it does not know.
#[tokio::test(start_paused = true)]
async fn a_node_that_cannot_read_what_the_leader_writes_is_not_added() {
    let mut held = Held::new(little_log).await;
    held.cluster.start_joining(4, MemoryStore::new(4)).await;
    let own = held.cluster.replica(4).peer();
    held.cluster.network.join(4, Arc::new(OlderRelease(own)));
    let (leader, _) = held.cluster.leader().await;

    let refused = held.cluster.replica(leader).change(Change::AddLearner(member(4))).await;

    let MembershipRefusal::OldRelease { node_id: 4, knows, .. } = refusal(refused) else {
        panic!("not refused for its release");
    };
    assert_eq!(knows, u32::from(OLDER_VERSION));
    assert_eq!(held.cluster.nodes[&4].store.identity().cluster, None, "it was invited");
    held.cluster.shutdown().await;
}

/// I29, I27: the old release does not know these limits. If they were proposed, that member would
/// stop; if the other members had them already, they would refuse what the old one takes, and leave work
/// that it does (I16).
#[tokio::test(start_paused = true)]
async fn bytes_and_work_are_limited_once_the_last_member_knows_those_limits() {
    let mut cluster = Cluster::stopped(3, |config| {
        config.max_table_bytes = 4_242_424;
        config.limits.max_sessions = 7;
    });
    // Each appears to the others as the old release, so each leader learns of two.
    cluster.older = true;
    for node_id in 1..=3 {
        cluster.start(node_id, MemoryStore::new(node_id)).await;
    }
    cluster.formed().await;
    let limits = |cluster: &Cluster| {
        let mut all = Vec::new();
        for node_id in 1..=3 {
            cluster.replica(node_id).read(&mut |table, _| {
                let bytes = table.max_table_bytes();
                all.push((table.limits().max_sessions, bytes, table.work_limit()));
            });
        }
        all
    };
    cluster.until("the old limits", |cluster| limits(cluster) == [(7, None, None); 3]).await;
    let (leader, _) = cluster.leader().await;
    let last = leader % 3 + 1;
    for node_id in (1..=3).filter(|node_id| *node_id != last) {
        cluster.network.join(node_id, cluster.replica(node_id).peer());
    }
    cluster.runtime.sleep(Duration::from_secs(10)).await;
    assert_eq!(limits(&cluster), [(7, None, None); 3]);

    cluster.network.join(last, cluster.replica(last).peer());

    let all = (7, Some(4_242_424), Some(WORK_STEPS));
    cluster.until("the limits", |cluster| limits(cluster) == [all; 3]).await;
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn the_last_voter_stays() {
    let cluster = Cluster::started(1, |_| ()).await;
    cluster.formed().await;
    cluster.leader().await;

    let refused = refusal(remove(&cluster, 1).await);
    let nobody = refusal(cluster.replica(1).change(Change::TransferLeader { to: None }).await);

    assert_eq!(refused, MembershipRefusal::LastVoter { node_id: 1 });
    assert_eq!(nobody, MembershipRefusal::NobodyElse);
    cluster.shutdown().await;
}

/// A cluster grown from one: the first voter hands over and leaves, and the others have the state.
#[tokio::test(start_paused = true)]
async fn a_cluster_of_one_grows_and_outlives_its_first_member() {
    let mut cluster = Cluster::started(1, little_log).await;
    cluster.formed().await;
    let (first, _) = cluster.leader().await;
    let session = open(cluster.replica(first)).await;
    for node_id in [2, 3, 4] {
        join(&mut cluster, node_id).await;
        promote(&cluster, node_id).await.unwrap();
    }

    remove(&cluster, 1).await.unwrap();
    drop(cluster.kill(1).await);
    let (leader, _) = cluster.leader().await;

    assert_ne!(leader, 1);
    assert!(has_session(cluster.replica(leader), session));
    assert_eq!(members(&cluster).await, (vec![2, 3, 4], vec![]));
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_second_change_is_refused_while_one_is_under_way_and_nothing_of_it_happens() {
    let mut held = Held::new(little_log).await;
    for node_id in [4, 5] {
        join(&mut held.cluster, node_id).await;
    }
    let (leader, _) = held.cluster.leader().await;
    let leader = held.cluster.replica(leader).clone();

    let (first, second) = tokio::join!(
        leader.change(Change::Promote { node_id: 4 }),
        leader.change(Change::Promote { node_id: 5 })
    );

    let (done, refused) = if first.is_ok() { (4, second) } else { (5, first) };
    assert_eq!(refused, Err(MembershipError::Busy));
    let (votes, learns) = members(&held.cluster).await;
    assert_eq!((votes, learns), (vec![1, 2, 3, done], vec![9 - done]));
    promote(&held.cluster, 9 - done).await.unwrap();
    held.cluster.shutdown().await;
}

/// The leader dies at many instants of a promotion and of a removal. The next leader finishes what
/// is left, or has none of it, and a retry completes it.
#[tokio::test(start_paused = true)]
async fn a_change_whose_leader_dies_is_finished_by_the_next_or_can_be_asked_for_again() {
    for turns in (0..60).step_by(4) {
        for promotes in [true, false] {
            let mut held = Held::new(little_log).await;
            join(&mut held.cluster, 4).await;
            if !promotes {
                promote(&held.cluster, 4).await.unwrap();
            }
            let (old, tenure) = held.cluster.leader().await;
            let leader = held.cluster.replica(old).clone();
            let other = old % 3 + 1;
            let change = async {
                if promotes {
                    leader.change(Change::Promote { node_id: 4 }).await
                } else {
                    leader.change(Change::Remove { node_id: other }).await
                }
            };
            // No virtual time passes here, so the leader dies after a number of scheduler turns.
            let dies = async {
                for _ in 0..turns {
                    tokio::task::yield_now().await;
                }
            };
            holdfast_runtime::select! { _ = change => {}, () = dies => {} }
            let left = held.cluster.kill(old).await;

            held.cluster.leader_after(tenure).await;
            held.cluster.start(old, left).await;
            let asked = if promotes {
                promote(&held.cluster, 4).await
            } else {
                remove(&held.cluster, other).await
            };

            asked.unwrap();
            let (votes, learns) = members(&held.cluster).await;
            let expected: Vec<u64> = (1..=4).filter(|id| promotes || *id != other).collect();
            assert_eq!((votes, learns), (expected, vec![]), "died after {turns} turns");
            if !promotes {
                drop(held.cluster.kill(other).await);
            }
            held.assert_kept().await;
            held.cluster.shutdown().await;
        }
    }
}

/// Half done: the entry with both sets of voters is committed, the second one is not written. The
/// change removes the leader itself.
#[tokio::test(start_paused = true)]
async fn a_half_done_change_is_finished_by_whoever_leads_even_if_it_is_himself_who_goes() {
    let held = Held::new(little_log).await;
    let (leader, tenure) = held.cluster.leader().await;
    let raft = held.cluster.replica(leader).raft();
    let membership = raft.metrics().borrow_watched().membership_config.clone();
    let nodes: std::collections::BTreeMap<_, _> =
        membership.nodes().map(|(id, node)| (*id, node.clone())).collect();
    let both = vec![(1..=3).collect(), (1..=3).filter(|id| *id != leader).collect()];
    let half = Membership::new(both, nodes).unwrap();
    raft.append_membership(half, openraft::EntryPayload::Blank, []).await.unwrap();

    held.cluster.leader_after(tenure).await;
    let fault = fault_of(&held.cluster.runtime, held.cluster.replica(leader)).await;

    assert!(matches!(fault, Fault::Removed { .. }), "{fault:?}");
    let expected: Vec<u64> = (1..=3).filter(|id| *id != leader).collect();
    assert_eq!(members(&held.cluster).await, (expected, vec![]));
    held.cluster.shutdown().await;
}

/// The member was away when it was removed, and no member sends it anything more.
#[tokio::test(start_paused = true)]
async fn a_removed_member_that_was_away_learns_of_it_and_stops_and_deposes_nobody() {
    let mut held = Held::new(little_log).await;
    let (leader, _) = held.cluster.leader().await;
    let away = leader % 3 + 1;
    let left = held.cluster.kill(away).await;
    held.cluster.runtime.sleep(Duration::from_secs(5)).await;
    let before = held.cluster.leader().await;
    remove(&held.cluster, away).await.unwrap();

    held.cluster.start(away, left).await;
    let fault = fault_of(&held.cluster.runtime, held.cluster.replica(away)).await;

    assert!(matches!(fault, Fault::Removed { node_id, .. } if node_id == away), "{fault:?}");
    held.cluster.runtime.sleep(Duration::from_secs(10)).await;
    assert_eq!(held.cluster.leader().await, before, "the leader was deposed");
    held.cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn without_a_quorum_no_change_is_made_and_that_is_certain() {
    let mut held = Held::new(little_log).await;
    held.cluster.start_joining(4, MemoryStore::new(4)).await;
    let (leader, _) = held.cluster.leader().await;
    let cut_off = held.cluster.replica(leader).clone();
    for other in (1..=3).filter(|id| *id != leader) {
        held.cluster.network.cut(leader, other);
    }

    let answer = cut_off.change(Change::AddLearner(member(4))).await.unwrap_err();

    assert!(answer.is_certainly_not_made(), "{answer:?}");
    assert_eq!(held.cluster.nodes[&4].store.identity().cluster, None, "it was invited");
    held.cluster.network.heal();
    held.cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn the_leader_shows_who_votes_how_far_they_are_and_who_is_silent() {
    let mut held = Held::new(little_log).await;
    join(&mut held.cluster, 4).await;
    let (leader, _) = held.cluster.leader().await;
    let silent = leader % 3 + 1;
    held.cluster.network.isolate(silent);
    held.cluster.runtime.sleep(Duration::from_secs(10)).await;
    for _ in 0..5 {
        open(held.cluster.replica(leader)).await;
    }
    held.cluster.runtime.sleep(Duration::from_secs(3)).await;

    let status = held.cluster.replica(leader).members().unwrap();

    assert_eq!((status.leader, status.highest_node_id, status.changing), (leader, 4, false));
    for one in &status.members {
        let node_id = one.member.node_id;
        assert_eq!(one.votes, node_id != 4);
        assert_eq!(one.member, member(node_id));
        assert_eq!(one.answers, node_id != silent, "{one:?}");
        if node_id == silent {
            assert!(one.lag >= 5 && one.silent_ms > Some(5_000), "{one:?}");
        } else {
            let applied = held.cluster.replica(node_id).status().applied;
            assert_eq!((one.lag, one.applied), (0, applied), "{one:?}");
            assert_eq!(one.version.as_deref(), Some(env!("CARGO_PKG_VERSION")));
        }
    }
    let follower = held.cluster.replica(4).members().unwrap_err();
    let MembershipError::NotLeader { leader: Some(hint) } = follower else {
        panic!("{follower:?}");
    };
    assert_eq!(hint.node_id, leader);
    held.cluster.network.heal();
    held.cluster.shutdown().await;
}
