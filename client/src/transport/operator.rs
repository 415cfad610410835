//! gRPC: the operators' calls, each on a connection of its own.

use holdfast_proto::v1;
use holdfast_proto::v1::cluster_service_client::ClusterServiceClient;
use holdfast_proto::v1::lock_service_client::LockServiceClient;
use holdfast_proto::v1::scope_service_client::ScopeServiceClient;
use tonic::transport::Channel;
use tonic::{Response, Status};

use super::grpc::{channel, tcp};
use super::verdict::Verdict;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// No connection. Nothing was sent.
    NotConnected {
        /// The network's error.
        detail: String,
    },
    /// The node does not lead, or has no quorum. Nothing was changed.
    Unavailable {
        /// The node's message.
        message: String,
        /// The leader's endpoint for clients, if the node knows it.
        leader: Option<String>,
    },
    /// Nothing was changed, and the same call will not succeed by itself.
    Refused {
        /// The node's message.
        message: String,
    },
    /// The outcome is unknown; the call may still take effect.
    Unknown {
        /// The node's message, or the network's error.
        message: String,
    },
}

type Answer<T> = Result<T, Failure>;

async fn connect(endpoint: String) -> Answer<ClusterServiceClient<Channel>> {
    connected(&endpoint).await.map(ClusterServiceClient::new)
}

async fn connected(endpoint: &str) -> Answer<Channel> {
    let channel = channel(&tcp, endpoint).await;
    channel.map_err(|error| Failure::NotConnected { detail: error.to_string() })
}

fn answer<T>(endpoint: &str, answer: Result<Response<T>, Status>) -> Answer<T> {
    answer.map(Response::into_inner).map_err(|status| failure(endpoint, &status))
}

/// The members.
pub(crate) async fn status(endpoint: String) -> Answer<v1::ClusterStatusResponse> {
    let mut client = connect(endpoint.clone()).await?;
    answer(&endpoint, client.cluster_status(v1::ClusterStatusRequest {}).await)
}

/// Adds a member.
pub(crate) async fn add_learner(
    endpoint: String,
    request: v1::AddLearnerRequest,
) -> Answer<v1::AddLearnerResponse> {
    let mut client = connect(endpoint.clone()).await?;
    answer(&endpoint, client.add_learner(request).await)
}

/// Makes a learner a voter.
pub(crate) async fn promote(
    endpoint: String,
    request: v1::PromoteRequest,
) -> Answer<v1::PromoteResponse> {
    let mut client = connect(endpoint.clone()).await?;
    answer(&endpoint, client.promote(request).await)
}

/// Removes a member.
pub(crate) async fn remove(
    endpoint: String,
    request: v1::RemoveRequest,
) -> Answer<v1::RemoveResponse> {
    let mut client = connect(endpoint.clone()).await?;
    answer(&endpoint, client.remove(request).await)
}

/// Transfers leadership.
pub(crate) async fn transfer_leader(
    endpoint: String,
    request: v1::TransferLeadershipRequest,
) -> Answer<v1::TransferLeadershipResponse> {
    let mut client = connect(endpoint.clone()).await?;
    answer(&endpoint, client.transfer_leader(request).await)
}

/// Sets a scope.
pub(crate) async fn set_scope(
    endpoint: String,
    request: v1::SetScopeRequest,
) -> Answer<v1::SetScopeResponse> {
    let mut client = ScopeServiceClient::new(connected(&endpoint).await?);
    answer(&endpoint, client.set_scope(request).await)
}

/// Removes a scope. The server may take a few seconds.
pub(crate) async fn remove_scope(
    endpoint: String,
    request: v1::RemoveScopeRequest,
) -> Answer<v1::RemoveScopeResponse> {
    let mut client = ScopeServiceClient::new(connected(&endpoint).await?);
    answer(&endpoint, client.remove_scope(request).await)
}

/// Every scope.
pub(crate) async fn list_scopes(endpoint: String) -> Answer<v1::ListScopesResponse> {
    let mut client = ScopeServiceClient::new(connected(&endpoint).await?);
    answer(&endpoint, client.list_scopes(v1::ListScopesRequest {}).await)
}

/// Imports holds and waits.
pub(crate) async fn import(
    endpoint: String,
    request: v1::ImportRequest,
) -> Answer<v1::ImportResponse> {
    let mut client = LockServiceClient::new(connected(&endpoint).await?);
    answer(&endpoint, client.import(request).await)
}

/// One session.
pub(crate) async fn inspect_session(
    endpoint: String,
    request: v1::InspectSessionRequest,
) -> Answer<v1::InspectSessionResponse> {
    let mut client = LockServiceClient::new(connected(&endpoint).await?);
    answer(&endpoint, client.inspect_session(request).await)
}

/// The meaning of a status for a change.
fn failure(endpoint: &str, status: &Status) -> Failure {
    let message = status.message().to_owned();
    match Verdict::of(status) {
        Verdict::NotHere { leader } => {
            Failure::Unavailable { message: format!("{endpoint}: {message}"), leader }
        }
        Verdict::Refused | Verdict::TooSlow => Failure::Refused { message },
        // This call has no session, so no other stream can have resumed one.
        Verdict::Unknown | Verdict::TakenOver => {
            Failure::Unknown { message: format!("{endpoint}: {message}") }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_server_says_was_not_done_may_be_asked_for_again() {
        let of = |status| failure("a:1", &status);

        assert!(matches!(of(Status::unavailable("follows")), Failure::Unavailable { .. }));
        assert!(matches!(of(Status::failed_precondition("busy")), Failure::Refused { .. }));
        assert!(matches!(of(Status::deadline_exceeded("late")), Failure::Unknown { .. }));
        assert!(matches!(of(Status::aborted("over")), Failure::Unknown { .. }));
    }
}
