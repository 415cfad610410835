//! Quorum rounds (DESIGN §5.1, I6, I18) whose answers are held back on open connections and arrive
//! late: after an election, in any order.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::Tenure;
use holdfast_mutants::{Mutant, arm};
use openraft::raft::{TransferLeaderRequest, VoteRequest};

use super::cluster::{Cluster, follows, open_session, submit};
use crate::consensus::{Confirmed, Consensus};
use crate::error::ProposeError;
use crate::raft::peers::Lane;
use crate::raft::types::{Vote, log_id};
use crate::raft::{Leg, MemoryNetwork, Replica, ReplicaConfig};

const AS_IT_IS: fn(&mut ReplicaConfig) = |_| ();
/// Time between the answers of the two followers; two answers at one instant are a separate case.
const GAPS_MS: [u64; 4] = [0, 1, 5, 50];

/// The fixture: a leader whose messages, and the answers to them, can be held back.
struct Stage {
    cluster: Cluster,
    leader: u64,
    others: [u64; 2],
    tenure: Tenure,
}

impl Stage {
    async fn set() -> Self {
        let cluster = Cluster::started(3, AS_IT_IS).await;
        cluster.formed().await;
        let (leader, tenure) = cluster.leader().await;
        cluster.level().await;
        let others: Vec<u64> = (1..=3).filter(|id| *id != leader).collect();
        Self { cluster, leader, others: [others[0], others[1]], tenure }
    }

    fn node(&self) -> &Arc<Replica> {
        self.cluster.replica(self.leader)
    }

    fn each_other(&self, mut act: impl FnMut(&MemoryNetwork, u64)) {
        self.others.iter().for_each(|other| act(&self.cluster.network, *other));
    }

    /// Holds back all answers of the others to the leader.
    fn hold_answers(&self) {
        self.each_other(|network, other| network.hold(self.leader, other, Leg::Back));
    }

    /// From now on, holds back all requests between the leader and the others.
    fn hold_questions(&self) {
        self.each_other(|network, other| {
            network.hold(self.leader, other, Leg::There);
            network.hold(other, self.leader, Leg::There);
        });
    }

    fn release_answers(&self, which: usize) {
        self.cluster.network.release(self.leader, self.others[which], Leg::Back);
    }

    async fn pass(&self, ms: u64) {
        self.cluster.runtime.sleep(Duration::from_millis(ms)).await;
    }

    /// Has another node elected while messages of this one are under way; this one still leads as
    /// far as it knows.
    async fn depose(&self) {
        self.hold_questions();
        let (new, _) = self.cluster.leader_after(self.tenure).await;
        assert_ne!(new, self.leader);
        assert_eq!(self.node().role().borrow().tenure(), Some(self.tenure));
    }

    /// The same without an election time-out: the first of the others takes over, as if this node had
    /// asked it to.
    async fn depose_at_once(&self) {
        self.hold_questions();
        let vote = self.node().raft().with_raft_state(|state| *state.vote_ref()).await.unwrap();
        let next = self.others[0];
        let asked = TransferLeaderRequest::new(vote, next, None);
        let raft = self.cluster.replica(next).raft();
        raft.handle_transfer_leader(asked).await.unwrap().unwrap();
        let (new, _) = self.cluster.leader_after(self.tenure).await;
        assert_eq!(new, next);
        assert_eq!(self.node().role().borrow().tenure(), Some(self.tenure));
    }

    /// Asks the leader whether it leads, then releases the answers under way: those of `first` and,
    /// `gap_ms` later, those of the other one.
    async fn confirm_over(&self, first: usize, gap_ms: u64) -> Result<Confirmed, ProposeError> {
        let confirmed = self.node().confirm();
        self.pass(10).await;
        self.release_answers(first);
        self.pass(gap_ms).await;
        self.release_answers(1 - first);
        confirmed.await
    }

    async fn end(self) {
        self.each_other(|network, other| {
            for (from, to) in [(self.leader, other), (other, self.leader)] {
                network.release(from, to, Leg::There);
                network.release(from, to, Leg::Back);
            }
        });
        self.cluster.until("the old leader follows", |_| follows(self.node())).await;
        self.cluster.shutdown().await;
    }
}

/// Finding S1 of `docs/reliability.md`: openraft took the answer to an earlier request for one to a
/// later request without entries, which no member had seen.
#[tokio::test(start_paused = true)]
async fn a_deposed_leader_is_not_confirmed_by_late_answers_on_its_log_streams() {
    for (first, gap_ms) in [0, 1].into_iter().flat_map(|first| GAPS_MS.map(|gap| (first, gap))) {
        let stage = Stage::set().await;
        stage.hold_answers();
        drop(submit(stage.node(), open_session()));
        stage.pass(20).await;
        stage.depose().await;

        let confirmed = stage.confirm_over(first, gap_ms).await;

        assert!(confirmed.is_err(), "first {first}, {gap_ms} ms apart: {confirmed:?}");
        stage.end().await;
    }
}

/// The calls of a round end with it: a later answer to them proves nothing about a later time.
#[tokio::test(start_paused = true)]
async fn answers_to_the_calls_of_one_round_count_for_no_later_round() {
    for (first, gap_ms) in [0, 1].into_iter().flat_map(|first| GAPS_MS.map(|gap| (first, gap))) {
        let stage = Stage::set().await;
        stage.hold_answers();
        let unanswered = stage.node().confirm().await;
        assert!(matches!(unanswered, Err(ProposeError::Unavailable { .. })), "{unanswered:?}");
        stage.depose().await;

        let confirmed = stage.confirm_over(first, gap_ms).await;

        assert!(confirmed.is_err(), "first {first}, {gap_ms} ms apart: {confirmed:?}");
        stage.end().await;
    }
}

/// The answers of the round under way were given before the question, and before another leader was
/// elected.
#[tokio::test(start_paused = true)]
async fn answers_of_the_round_under_way_count_for_no_question_that_came_after_them() {
    let confirmed = asked_during_a_round().await;
    assert!(confirmed.is_err(), "{confirmed:?}");
}

/// The rule taken away: a read of a deposed leader is answered, as in etcd #20418.
#[tokio::test(start_paused = true)]
async fn a_question_that_joins_the_round_under_way_is_answered_by_a_deposed_leader() {
    arm(Some(Mutant::QuestionJoinsRound));
    let confirmed = asked_during_a_round().await;
    arm(None);
    assert!(confirmed.is_ok(), "{confirmed:?}");
}

/// Asks a leader whose members have answered the round under way, and then elected another.
async fn asked_during_a_round() -> Result<Confirmed, ProposeError> {
    let stage = Stage::set().await;
    stage.hold_answers();
    let before = stage.node().confirm();
    stage.pass(10).await;
    stage.depose_at_once().await;

    let after = stage.node().confirm();
    stage.release_answers(0);

    assert_eq!(before.await.unwrap().tenure, stage.tenure);
    let after = after.await;
    stage.end().await;
    after
}

#[tokio::test(start_paused = true)]
async fn answers_that_come_late_count_for_the_round_in_which_they_were_asked_for() {
    let stage = Stage::set().await;
    stage.hold_answers();
    let confirmed = stage.node().confirm();
    stage.pass(500).await;
    stage.release_answers(0);

    let confirmed = confirmed.await.unwrap();

    assert_eq!(confirmed.tenure, stage.tenure);
    stage.release_answers(1);
    stage.cluster.shutdown().await;
}

/// Calls may be lost, and connections break: the round calls members again.
#[tokio::test(start_paused = true)]
async fn a_round_goes_on_when_members_can_be_reached_again() {
    let stage = Stage::set().await;
    stage.cluster.network.isolate(stage.leader);
    let confirmed = stage.node().confirm();
    // Shorter than the silence after which the others elect a leader.
    stage.pass(300).await;
    stage.cluster.network.heal();

    assert_eq!(confirmed.await.unwrap().tenure, stage.tenure);
    stage.cluster.shutdown().await;
}

/// A member that lacks the leader's entries may still follow it.
#[tokio::test(start_paused = true)]
async fn members_whose_logs_lag_confirm_their_leader() {
    let stage = Stage::set().await;
    stage.each_other(|network, other| {
        network.hold_lane(stage.leader, other, Leg::There, Lane::Log);
    });
    let waits = submit(stage.node(), open_session());
    stage.pass(50).await;

    let confirmed = stage.node().confirm().await;

    assert_eq!(confirmed.unwrap().tenure, stage.tenure);
    stage.each_other(|network, other| network.release(stage.leader, other, Leg::There));
    assert!(waits.await.unwrap().is_ok());
    stage.cluster.shutdown().await;
}

/// A call changes nothing at a member whose vote is saved, so that it writes nothing.
#[tokio::test(start_paused = true)]
async fn a_round_waits_for_no_disk() {
    let stage = Stage::set().await;
    for other in stage.others {
        stage.cluster.nodes[&other].store.stall();
    }

    for _ in 0..3 {
        assert_eq!(stage.node().confirm().await.unwrap().tenure, stage.tenure);
    }

    // The disks do hang: nothing commits.
    let waits = submit(stage.node(), open_session());
    stage.pass(100).await;
    assert!(stage.cluster.runtime.timeout(Duration::from_millis(100), waits).await.is_err());
    stage.cluster.shutdown().await;
}

/// A leader counts for its own majority only until it votes for another node. Here it votes for one
/// while the third member does not know of that, and before any other part notices.
#[tokio::test(start_paused = true)]
async fn a_leader_that_has_voted_for_another_is_none_of_its_own_majority() {
    let stage = Stage::set().await;
    assert!(stage.node().is_confirmed_in(stage.tenure).await);
    let next = Vote::new(stage.tenure.get() + 1, stage.others[0]);
    let mut request = VoteRequest::new(next, Some(log_id(stage.tenure.get(), 10_000)));
    request.leadership_transfer = true;

    let granted = stage.node().raft().vote(request).await.unwrap().vote_granted;

    assert!(granted);
    assert!(!stage.node().is_confirmed_in(stage.tenure).await);
    stage.cluster.shutdown().await;
}

/// More than there was once room for: a refusal would look like a missing quorum, and would end
/// watches and delay expiries although a quorum answers.
#[tokio::test(start_paused = true)]
async fn no_question_is_refused_because_many_ask() {
    let stage = Stage::set().await;

    let asked: Vec<_> = (0..70_000).map(|_| stage.node().confirm()).collect();
    for confirmed in asked {
        assert_eq!(confirmed.await.unwrap().tenure, stage.tenure);
    }
    stage.cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_stops_leaves_nobody_waiting_for_a_round() {
    let stage = Stage::set().await;
    stage.hold_answers();
    let in_a_round = stage.node().confirm();
    stage.pass(10).await;
    let in_the_next = stage.node().confirm();

    stage.node().shutdown().await;

    assert!(in_a_round.await.is_err());
    assert_eq!(in_the_next.await, Err(ProposeError::ShuttingDown));
    assert!(stage.node().confirm().await.is_err());
    stage.cluster.shutdown().await;
}
