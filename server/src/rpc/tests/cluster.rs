//! The operators' calls over a real connection.

use std::sync::{Mutex, PoisonError};

use holdfast_proto::v1::cluster_service_client::ClusterServiceClient;
use holdfast_proto::v1::{
    AddLearnerRequest, ClusterRefusal, ClusterRefusalReason as Reason, ClusterStatusRequest,
    PromoteRequest, RemoveRequest, TransferLeadershipRequest,
};
use holdfast_runtime::BoxFuture;
use prost::Message;

use super::*;
use crate::consensus::LeaderHint;
use crate::members::{
    Change, ClusterStatus, Member, MemberStatus, Members, MembershipError, MembershipRefusal,
};

/// Gives the answers that the test sets, and records the requests.
#[derive(Default)]
pub(in crate::rpc) struct Operated {
    asked: Mutex<Vec<Change>>,
    answer: Mutex<Option<MembershipError>>,
}

impl Operated {
    fn answers(&self, error: MembershipError) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    fn answer(&self) -> Result<(), MembershipError> {
        match &*self.answer.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }
    }
}

impl Members for Operated {
    fn members(&self) -> Result<ClusterStatus, MembershipError> {
        self.answer()?;
        let member = |node_id: u64| Member {
            node_id,
            advertise: format!("c{node_id}:1"),
            peer_advertise: format!("p{node_id}:1"),
        };
        let status = |node_id| MemberStatus {
            member: member(node_id),
            votes: node_id == 1,
            silent_ms: Some(node_id),
            answers: true,
            last_log: Some(10),
            lag: 0,
            applied: Some(9),
            snapshot: None,
            version: None,
        };
        Ok(ClusterStatus {
            cluster: None,
            leader: 1,
            term: 3,
            millis_since_quorum: Some(0),
            changing: false,
            highest_node_id: 2,
            members: vec![status(1), status(2)],
        })
    }

    fn change(&self, change: Change) -> BoxFuture<'_, Result<(), MembershipError>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(change);
        Box::pin(std::future::ready(self.answer()))
    }
}

async fn operator(node: &Node) -> ClusterServiceClient<Channel> {
    ClusterServiceClient::new(node.channel().await)
}

fn refusal(status: &Status) -> ClusterRefusal {
    let whole = tonic_types::Status::decode(status.details()).unwrap();
    let detail = whole.details.into_iter().next().expect("a detail");
    assert_eq!(detail.type_url, "type.googleapis.com/holdfast.v1.ClusterRefusal");
    ClusterRefusal::decode(&*detail.value).unwrap()
}

#[tokio::test]
async fn an_operator_asks_for_each_change_and_for_the_members() {
    let node = node().await;
    let mut client = operator(&node).await;
    let add = AddLearnerRequest {
        node_id: 4,
        advertise: "node-4:7420".to_owned(),
        peer_advertise: "node-4:7421".to_owned(),
    };

    client.add_learner(add).await.unwrap();
    client.promote(PromoteRequest { node_id: 4 }).await.unwrap();
    client.remove(RemoveRequest { node_id: 1 }).await.unwrap();
    client.transfer_leader(TransferLeadershipRequest { to: Some(2) }).await.unwrap();
    client.transfer_leader(TransferLeadershipRequest { to: None }).await.unwrap();
    let status = client.cluster_status(ClusterStatusRequest {}).await.unwrap().into_inner();

    let added = Member {
        node_id: 4,
        advertise: "node-4:7420".to_owned(),
        peer_advertise: "node-4:7421".to_owned(),
    };
    let expected = vec![
        Change::AddLearner(added),
        Change::Promote { node_id: 4 },
        Change::Remove { node_id: 1 },
        Change::TransferLeader { to: Some(2) },
        Change::TransferLeader { to: None },
    ];
    assert_eq!(*node.members.asked.lock().unwrap(), expected);
    let seen: Vec<_> =
        status.members.iter().map(|one| (one.node_id, one.leads, one.votes)).collect();
    assert_eq!(seen, [(1, true, true), (2, false, false)]);
    assert_eq!(
        (status.term, status.highest_node_id, status.members[0].applied_index),
        (3, 2, Some(9))
    );
}

#[tokio::test]
async fn ids_and_addresses_that_are_none_are_refused_before_anybody_is_asked() {
    let node = node().await;
    let mut client = operator(&node).await;
    let good = AddLearnerRequest {
        node_id: 4,
        advertise: "node-4:7420".to_owned(),
        peer_advertise: "node-4:7421".to_owned(),
    };
    let cases = [
        (AddLearnerRequest { node_id: 0, ..good.clone() }, "0 is no node id"),
        (AddLearnerRequest { node_id: u64::MAX, ..good.clone() }, "is no node id"),
        (AddLearnerRequest { advertise: "0.0.0.0:1".to_owned(), ..good.clone() }, "advertise"),
        (AddLearnerRequest { peer_advertise: String::new(), ..good.clone() }, "peer_advertise"),
        (AddLearnerRequest { peer_advertise: "node-4".to_owned(), ..good.clone() }, "`node-4`"),
        (AddLearnerRequest { peer_advertise: "node-4:7420".to_owned(), ..good }, "an address each"),
    ];
    for (request, words) in cases {
        let status = client.add_learner(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains(words), "{status:?}");
        assert_eq!(refusal(&status).reason(), Reason::Invalid);
    }
    let status = client.promote(PromoteRequest { node_id: 0 }).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);

    assert_eq!(*node.members.asked.lock().unwrap(), []);
}

#[tokio::test]
async fn what_is_certain_when_a_change_was_not_made_is_in_the_code() {
    let node = node().await;
    let mut client = operator(&node).await;
    let leader = Some(LeaderHint { node_id: 2, advertise: "node-2:7420".to_owned() });
    let last = MembershipRefusal::LastVoter { node_id: 1 };
    let cases = [
        (MembershipError::NotLeader { leader }, Code::Unavailable, None),
        (MembershipError::Unavailable { waited_ms: 9 }, Code::Unavailable, None),
        (MembershipError::Busy, Code::FailedPrecondition, Some(Reason::Busy)),
        (MembershipError::Refused(last), Code::FailedPrecondition, Some(Reason::LastVoter)),
        (MembershipError::OutcomeUnknown { waited_ms: 9 }, Code::DeadlineExceeded, None),
        (MembershipError::ShuttingDown, Code::DeadlineExceeded, None),
    ];
    for (error, code, reason) in cases {
        let names_leader = matches!(error, MembershipError::NotLeader { .. });
        let words = error.to_string();
        node.members.answers(error);
        let status = client.remove(RemoveRequest { node_id: 1 }).await.unwrap_err();
        assert_eq!(status.code(), code, "{words}");
        assert_eq!(status.message(), words);
        assert_eq!(status.metadata().get(status::LEADER).is_some(), names_leader, "{words}");
        if let Some(reason) = reason {
            assert_eq!(refusal(&status).reason(), reason);
        }
    }
}
