//! gRPC: the operators' calls, each on a connection of its own.

use holdfast_proto::v1::auth_service_client::AuthServiceClient;
use holdfast_proto::v1::cluster_service_client::ClusterServiceClient;
use holdfast_proto::v1::lock_service_client::LockServiceClient;
use holdfast_proto::v1::scope_service_client::ScopeServiceClient;
use holdfast_proto::v1::{BackupResponse, RefusalReason};
use tonic::{Response, Status, Streaming};

use super::bearer::Line;
use super::dials::Dials;
use super::grpc::{Windows, broken_by};
use super::verdict::Verdict;
use crate::endpoints::{NoAnswer, Over};

/// The services of one server, over one connection.
pub(crate) struct Services {
    pub(crate) cluster: ClusterServiceClient<Line>,
    pub(crate) scopes: ScopeServiceClient<Line>,
    pub(crate) auth: AuthServiceClient<Line>,
    pub(crate) locks: LockServiceClient<Line>,
}

/// A service's answer.
pub(crate) type Said<T> = Result<Response<T>, Status>;

/// The bytes of a backup.
pub(crate) struct Chunks(Streaming<BackupResponse>);

impl Chunks {
    pub(crate) fn new(stream: Streaming<BackupResponse>) -> Self {
        Self(stream)
    }

    /// The next bytes; `None` at the end. Cancel safe.
    ///
    /// # Errors
    ///
    /// What the server said, or what broke the connection.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<u8>>, String> {
        let next = self.0.message().await.map_err(|status| broken_by(&status))?;
        Ok(next.map(|response| response.chunk.into()))
    }
}

/// Makes one call at one server.
pub(crate) async fn ask<T, F>(
    dials: Dials,
    endpoint: String,
    call: impl FnOnce(Services) -> F,
) -> Result<T, NoAnswer>
where
    F: Future<Output = Said<T>>,
{
    let line = dials.line(&endpoint, dials.channel(&endpoint, Windows::USUAL).await?);
    let services = Services {
        cluster: ClusterServiceClient::new(line.clone()),
        scopes: ScopeServiceClient::new(line.clone()),
        auth: AuthServiceClient::new(line.clone()),
        locks: LockServiceClient::new(line),
    };
    let answer = call(services).await;
    answer.map(Response::into_inner).map_err(|status| no_answer(&endpoint, &status))
}

/// The meaning of a status for a change.
fn no_answer(endpoint: &str, status: &Status) -> NoAnswer {
    let message = status.message().to_owned();
    let why = format!("{endpoint}: {}", broken_by(status));
    match Verdict::of(status) {
        Verdict::NotHere { leader } => {
            NoAnswer::Elsewhere { why, next: Over::unavailable(leader), may_be_done: false }
        }
        Verdict::Refused(reason) => NoAnswer::Refused { reason, message },
        Verdict::TooSlow => NoAnswer::Refused { reason: RefusalReason::Limit, message },
        // This call has no session, so no other stream can have resumed one, and is no watch.
        Verdict::Unknown | Verdict::TakenOver | Verdict::Compacted => {
            NoAnswer::Elsewhere { why, next: Over::Unreached, may_be_done: true }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_server_says_was_not_done_may_be_asked_for_again() {
        let of = |status| no_answer("a:1", &status);

        let may_be_done = |status| match of(status) {
            NoAnswer::Refused { .. } => None,
            NoAnswer::Elsewhere { may_be_done, .. } => Some(may_be_done),
        };
        assert_eq!(may_be_done(Status::unavailable("follows")), Some(false));
        assert_eq!(may_be_done(Status::failed_precondition("busy")), None);
        assert_eq!(may_be_done(Status::deadline_exceeded("late")), Some(true));
        assert_eq!(may_be_done(Status::aborted("over")), Some(true));
    }
}
