//! gRPC: the operators' calls, each on a connection of its own.

use holdfast_proto::v1;
use holdfast_proto::v1::cluster_service_client::ClusterServiceClient;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use super::grpc::{channel, leader_of, tcp};

/// Why a call was not answered with what it asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Nobody is there. Nothing was asked.
    NotConnected {
        /// What the network said.
        detail: String,
    },
    /// The node does not lead, or has no quorum. Nothing was changed.
    Unavailable {
        /// The node's words.
        message: String,
        /// Where clients reach the leader, if the node knows.
        leader: Option<String>,
    },
    /// Nothing was changed, and asking the same again will not help by itself.
    Refused {
        /// The node's words.
        message: String,
    },
    /// No outcome was seen; it may still take effect.
    Unknown {
        /// The node's words, or the network's.
        message: String,
    },
}

type Answer<T> = Result<T, Failure>;

async fn connect(endpoint: String) -> Answer<ClusterServiceClient<Channel>> {
    let channel = channel(&tcp, &endpoint).await;
    let channel = channel.map_err(|error| Failure::NotConnected { detail: error.to_string() })?;
    Ok(ClusterServiceClient::new(channel))
}

fn answer<T>(endpoint: &str, answer: Result<Response<T>, Status>) -> Answer<T> {
    answer.map(Response::into_inner).map_err(|status| failure(endpoint, &status))
}

/// Who the members are.
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

/// Hands leadership over.
pub(crate) async fn transfer_leader(
    endpoint: String,
    request: v1::TransferLeadershipRequest,
) -> Answer<v1::TransferLeadershipResponse> {
    let mut client = connect(endpoint.clone()).await?;
    answer(&endpoint, client.transfer_leader(request).await)
}

/// The one table from gRPC codes to what is certain of a change.
fn failure(endpoint: &str, status: &Status) -> Failure {
    let message = status.message().to_owned();
    match status.code() {
        // tonic makes an UNAVAILABLE of its own when a connection breaks, and only a server's
        // comes without a cause.
        Code::Unavailable if std::error::Error::source(status).is_none() => {
            let message = format!("{endpoint}: {message}");
            Failure::Unavailable { message, leader: leader_of(status) }
        }
        Code::InvalidArgument
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::ResourceExhausted
        | Code::Unimplemented => Failure::Refused { message },
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::Internal
        | Code::DataLoss
        | Code::Unavailable => Failure::Unknown { message: format!("{endpoint}: {message}") },
    }
}
