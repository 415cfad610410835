//! The node's own services, called for whoever looks at the page.

use std::convert::Infallible;
use std::sync::Arc;

use axum::http::{Extensions, StatusCode};
use holdfast_proto::v1;
use holdfast_proto::v1::auth_service_client::AuthServiceClient;
use holdfast_proto::v1::cluster_service_client::ClusterServiceClient;
use holdfast_proto::v1::lock_service_client::LockServiceClient;
use holdfast_proto::v1::scope_service_client::ScopeServiceClient;
use holdfast_runtime::Clock;
use tonic::body::Body;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Status};
use tower::util::BoxCloneSyncService;

use crate::views::Problem;

/// The services of a node, as one that takes requests of gRPC.
pub type Calls =
    BoxCloneSyncService<axum::http::Request<Body>, axum::http::Response<Body>, Infallible>;

/// A browser that asks for the page, as its connection shows it.
#[derive(Clone, Debug, Default)]
pub struct Visitor {
    /// Where it comes from, for the count of failed logins.
    pub address: String,
    /// Whether it comes by TLS.
    pub has_tls: bool,
    /// What the services find of the connection: its certificate.
    pub connection: Extensions,
}

/// The services for one visitor.
#[derive(Clone)]
pub(crate) struct Client {
    calls: Calls,
    visitor: Visitor,
    token: Option<String>,
    clock: Arc<dyn Clock>,
}

/// Who looks, and whether rules count.
#[derive(Clone, Debug, Default)]
pub(crate) struct Who {
    /// Empty: nobody in particular.
    pub(crate) identity: String,
    pub(crate) has_token: bool,
    /// Without rules, everybody may see and do everything: there is nothing to log in for.
    pub(crate) rules: Rules,
}

/// Whether the rules count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Rules {
    On,
    Off,
    /// No leader said so.
    #[default]
    Unknown,
}

/// A call of one of the services.
macro_rules! call {
    ($name:ident, $service:ident, $request:ident => $response:ident) => {
        /// # Errors
        ///
        /// What the service says.
        pub(crate) async fn $name(&self, request: v1::$request) -> Result<v1::$response, Problem> {
            let answer = $service::new(self.calls.clone()).$name(self.request(request)).await;
            answer.map(tonic::Response::into_inner).map_err(Problem::from)
        }
    };
}

impl Client {
    pub(crate) fn new(
        calls: Calls,
        visitor: Visitor,
        token: Option<String>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { calls, visitor, token, clock }
    }

    /// The wall clock of this node, in milliseconds since 1970.
    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.wall_ms()
    }

    /// The token of the cookie.
    pub(crate) fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        *request.extensions_mut() = self.visitor.connection.clone();
        let bearer = self.token.as_ref().map(|token| format!("Bearer {token}"));
        // A cookie that is no header value names nobody: the call is refused as one with a wrong token.
        if let Some(bearer) = bearer.and_then(|bearer| MetadataValue::try_from(bearer).ok()) {
            request.metadata_mut().insert("authorization", bearer);
        }
        request
    }

    /// Who looks, as far as the services say.
    pub(crate) async fn identity(&self) -> Who {
        let status = self.auth_status(v1::AuthStatusRequest {}).await.ok();
        let rules = match &status {
            Some(status) if status.on => Rules::On,
            Some(_) => Rules::Off,
            None => Rules::Unknown,
        };
        let identity = status.map(|status| status.identity).filter(|it| it != "anonymous");
        let has_token = self.token.is_some();
        Who { identity: identity.unwrap_or_default(), has_token, rules }
    }

    call!(auth_status, AuthServiceClient, AuthStatusRequest => AuthStatusResponse);
    call!(close_holds, AuthServiceClient, CloseHoldsRequest => CloseHoldsResponse);
    call!(cluster_status, ClusterServiceClient, ClusterStatusRequest => ClusterStatusResponse);
    call!(busiest, LockServiceClient, BusiestRequest => BusiestResponse);
    call!(list, LockServiceClient, ListRequest => ListResponse);
    call!(inspect, LockServiceClient, InspectRequest => InspectResponse);
    call!(explain, LockServiceClient, ExplainRequest => ExplainResponse);
    call!(list_sessions, LockServiceClient, ListSessionsRequest => ListSessionsResponse);
    call!(inspect_session, LockServiceClient, InspectSessionRequest => InspectSessionResponse);
    call!(list_freezes, LockServiceClient, ListFreezesRequest => ListFreezesResponse);
    call!(history, LockServiceClient, HistoryRequest => HistoryResponse);
    call!(freeze, LockServiceClient, FreezeRequest => FreezeResponse);
    call!(thaw, LockServiceClient, ThawRequest => ThawResponse);
    call!(set_limit, LockServiceClient, SetLimitRequest => SetLimitResponse);
    call!(list_scopes, ScopeServiceClient, ListScopesRequest => ListScopesResponse);
}

impl From<Status> for Problem {
    fn from(status: Status) -> Self {
        let code = match status.code() {
            Code::Unauthenticated => StatusCode::UNAUTHORIZED,
            Code::PermissionDenied => StatusCode::FORBIDDEN,
            Code::InvalidArgument => StatusCode::BAD_REQUEST,
            Code::NotFound => StatusCode::NOT_FOUND,
            Code::FailedPrecondition => StatusCode::CONFLICT,
            Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Code::Unavailable | Code::DeadlineExceeded => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_GATEWAY,
        };
        Self::new(code, status.message())
    }
}
