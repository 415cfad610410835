//! Our own quorum round: a majority of the voters accepts this leader's vote in answer to calls
//! that were sent after the question (DESIGN §5.1, I6, I18).
//!
//! # Why a round proves that no other leader was elected before the question
//!
//! Each other voter receives one call: an append without entries, which carries this leader's vote.
//! A member answers it with a match only if its own vote is not later than that one. A leader of a
//! later term needs the votes of a majority, and a member never goes back from a vote. A majority
//! that accepts our vote at instants after the question has one member in common with any majority
//! that elects another leader, and that member votes for the other one after it answered. So the
//! other leader is elected after the question, and each lease of its tenure begins after it (§5.3).
//! No clock takes part.
//!
//! # Why only the answers to these calls count
//!
//! What openraft keeps about members (when the last request was sent that a member acknowledged) is
//! no proof. On a log stream one answer acknowledges all requests up to an entry, also requests
//! without entries that were sent long after the answer was given (`InflightAppendQueue`). Such an
//! answer may wait in a connection across an election.
//!
//! An answer here belongs to one call, and the calls of a round are made in that round and dropped
//! with it. The transport cannot mix them up: gRPC answers a call on the HTTP/2 stream of that
//! call, and never uses a stream id twice on a connection. When a library sends a call again, the
//! copy is later than the call, and an answer to it says the same about a later instant. The
//! simulator delivers such copies (`may_come_twice` in `tests/src/sim/port.rs`) and drops the
//! answer to the second copy.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use holdfast_core::Tenure;
use holdfast_proto::v1 as proto;
use holdfast_runtime::{BoxFuture, Runtime};
use openraft::RaftState;
use openraft::raft::AppendEntriesRequest;

use super::Member;
use super::handler::Raft;
use super::peers::{PeerError, Peers};
use super::types::{LogId, Types, Vote};
use super::wire;

/// Calls under way: each ends with the member that was asked and whether it accepted the vote.
///
/// Bounded: a round calls a member five times at most, and the calls end with the round.
pub(super) type Calls = FuturesUnordered<BoxFuture<'static, (u64, bool)>>;

/// How often a member that does not answer is called within the limit of a round.
const ASKED_PER_ROUND: u32 = 5;

/// Runs quorum rounds among the voters.
pub(super) struct QuorumRound {
    raft: Raft,
    peers: Peers,
    runtime: Runtime,
    /// Time between two calls to a member that has not answered: a call may be lost.
    ask_again: Duration,
}

/// Why a round confirmed nothing. A round without an answering majority does not end; its caller
/// sets the limit.
#[derive(Debug)]
pub(super) enum RoundError {
    /// According to openraft this node does not lead that term.
    NotLeader,
    /// openraft has stopped.
    Stopped,
}

/// The state of openraft's core at one instant after the question, if this node leads.
struct Standing {
    vote: Vote,
    committed: Option<LogId>,
    /// One set of voters, or two while the members change.
    configs: Vec<BTreeSet<u64>>,
    others: Vec<Member>,
}

impl QuorumRound {
    /// Rounds that their caller gives up `deadline` after they began.
    pub(super) fn new(raft: Raft, peers: Peers, runtime: Runtime, deadline: Duration) -> Self {
        Self { raft, peers, runtime, ask_again: deadline / ASKED_PER_ROUND }
    }

    /// Ends when a majority of the voters, of both sets of them while the members change, has
    /// accepted the vote of `tenure`. Returns what was committed when the round began.
    ///
    /// Cancel safe: a round that is dropped has confirmed nothing.
    ///
    /// # Errors
    ///
    /// [`RoundError`]
    pub(super) async fn run(
        &self,
        tenure: Tenure,
        calls: &mut Calls,
    ) -> Result<Option<LogId>, RoundError> {
        // The question goes to openraft's core, not to its metrics: those may lag behind a vote
        // that this node has given to another. With one voter this is the whole round.
        let peers = self.peers.clone();
        let standing = self.raft.with_raft_state(move |state| Standing::of(state, tenure, &peers));
        let standing = standing.await.map_err(|_| RoundError::Stopped)?;
        let standing = standing.ok_or(RoundError::NotLeader)?;
        let mut accepted = BTreeSet::from([self.peers.me.node_id]);
        while !is_quorum(&standing.configs, &accepted) {
            for member in &standing.others {
                if !accepted.contains(&member.node_id) {
                    calls.push(self.ask(member, &standing.vote));
                }
            }
            holdfast_runtime::select! {
                () = gather(calls, &standing.configs, &mut accepted) => {}
                () = self.runtime.sleep(self.ask_again) => {}
            }
        }
        Ok(standing.committed)
    }

    /// Makes one call to one member. The call has no entries, names no entry before them and no
    /// commit. So a member whose log lags or differs answers as well, its log does not change, and
    /// it writes nothing once its vote is saved.
    fn ask(&self, member: &Member, vote: &Vote) -> BoxFuture<'static, (u64, bool)> {
        let request = AppendEntriesRequest {
            vote: *vote,
            prev_log_id: None,
            entries: Vec::new(),
            leader_commit: None,
        };
        let member_id = member.node_id;
        let message = wire::append_to_wire(&request, Some(self.peers.me.header(member_id)));
        let answer = self.peers.control(member).append(message);
        Box::pin(async move { (member_id, accepts(answer.await)) })
    }
}

impl Standing {
    fn of(state: &RaftState<Types>, tenure: Tenure, peers: &Peers) -> Option<Self> {
        let node_id = peers.me.node_id;
        let vote = *state.vote_ref();
        let leads = vote.committed
            && vote.leader_id.voted_for == node_id
            && vote.leader_id.term == tenure.get();
        if !leads {
            return None;
        }
        let membership = state.membership_state.effective();
        let configs = membership.get_joint_config().clone();
        let voters: BTreeSet<u64> = configs.iter().flatten().copied().collect();
        let others = membership
            .nodes()
            .filter(|(id, _)| **id != node_id && voters.contains(*id))
            .map(|(id, node)| peers.as_configured(node.member(*id)))
            .collect();
        Some(Self { vote, committed: state.local_committed().copied(), configs, others })
    }
}

/// Takes answers until the members that accepted are a quorum; never ends if no more come.
async fn gather(calls: &mut Calls, configs: &[BTreeSet<u64>], accepted: &mut BTreeSet<u64>) {
    while let Some((member, accepts)) = calls.next().await {
        if accepts {
            accepted.insert(member);
        }
        if is_quorum(configs, accepted) {
            return;
        }
    }
    std::future::pending::<()>().await;
}

/// Whether `accepted` are a majority of each set of voters.
fn is_quorum(configs: &[BTreeSet<u64>], accepted: &BTreeSet<u64>) -> bool {
    let has_majority =
        |config: &BTreeSet<u64>| config.intersection(accepted).count() > config.len() / 2;
    !configs.is_empty() && configs.iter().all(has_majority)
}

/// Whether an answer proves that its member accepted the vote in the call.
///
/// A match does, whatever it names: openraft looks at the vote first. A higher vote proves the
/// opposite. A conflict would also come after the vote was accepted, but nothing can conflict with a
/// request that names no entry, so it does not count.
fn accepts(answer: Result<proto::AppendResponse, PeerError>) -> bool {
    answer.is_ok_and(|answer| matches!(wire::append_result_from_wire(&answer), Ok(Ok(_))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ids: &[u64]) -> BTreeSet<u64> {
        ids.iter().copied().collect()
    }

    #[test]
    fn a_quorum_is_more_than_half_of_the_voters() {
        let three = [set(&[1, 2, 3])];
        assert!(!is_quorum(&three, &set(&[1])));
        assert!(is_quorum(&three, &set(&[1, 3])));
        let four = [set(&[1, 2, 3, 4])];
        assert!(!is_quorum(&four, &set(&[1, 2])));
        assert!(is_quorum(&four, &set(&[1, 2, 4])));
        assert!(is_quorum(&[set(&[1])], &set(&[1])));
    }

    /// A leader that is no voter any more, or a learner, does not count for the majority.
    #[test]
    fn who_is_no_voter_does_not_count() {
        assert!(!is_quorum(&[set(&[2, 3])], &set(&[1, 2])));
        assert!(is_quorum(&[set(&[2, 3])], &set(&[1, 2, 3])));
    }

    #[test]
    fn while_the_members_change_both_sets_of_voters_have_to_accept() {
        let joint = [set(&[1, 2, 3]), set(&[3, 4, 5])];
        assert!(!is_quorum(&joint, &set(&[1, 2, 3])));
        assert!(is_quorum(&joint, &set(&[1, 3, 4])));
    }

    #[test]
    fn without_voters_there_is_no_quorum() {
        assert!(!is_quorum(&[], &set(&[1])));
        assert!(!is_quorum(&[set(&[])], &set(&[1])));
    }

    /// §5.1: only a match proves that the member accepted the vote.
    #[test]
    fn only_a_match_is_taken_for_an_accepted_vote() {
        use proto::append_response::Result as Told;
        let told = |result| Ok(proto::AppendResponse { result, below_disk_reserve: false });
        let vote = proto::VoteState { term: 3, node_id: Some(2), committed: false };
        let matched = proto::Matched { log_id: None, whole: false };
        let entry = proto::LogId::default();

        assert!(accepts(told(Some(Told::Matched(matched)))));
        assert!(!accepts(told(Some(Told::HigherVote(vote)))));
        assert!(!accepts(told(Some(Told::Conflict(entry)))));
        assert!(!accepts(told(None)));
        assert!(!accepts(Err(PeerError::Unreachable("away".to_owned()))));
    }
}
