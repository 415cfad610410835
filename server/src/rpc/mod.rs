//! The port for clients: gRPC around the session layer.
//!
//! This layer decides nothing: bytes become frames, reads are confirmed and encoded, errors become codes
//! ([`status`] is the one table). [`client_port`] puts together what a port serves.
//!
//! # Bounds
//!
//! [`RpcSettings`] caps messages, streams per connection and headers;
//! [`SessionSettings`](crate::session::SessionSettings) caps messages that have not arrived completely,
//! streams of a node and frames of a stream. Compression is off.

mod access;
mod acts;
mod arriving;
mod auth_service;
mod backup;
#[cfg(any(test, feature = "simulation"))]
mod calls;
mod cluster_service;
mod lock_service;
mod quotas;
mod reads;
mod refused;
mod scope_service;
pub mod status;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

pub use access::Door;
use arriving::Measured;
use auth_service::AuthApi;
use cluster_service::ClusterApi;
use holdfast_core::{Identity, Verb};
use holdfast_proto::v1::StatusResponse;
use holdfast_proto::v1::auth_service_server::AuthServiceServer;
use holdfast_proto::v1::cluster_service_server::ClusterServiceServer;
use holdfast_proto::v1::lock_service_server::LockServiceServer;
use holdfast_proto::v1::scope_service_server::ScopeServiceServer;
use holdfast_runtime::{Runtime, Task};
use lock_service::LockApi;
use refused::Counted;
use scope_service::ScopeApi;
use tonic::metadata::MetadataValue;
use tonic::server::NamedService;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server;
use tonic::transport::server::Router;
use tonic::{Request, Status};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

#[cfg(any(test, feature = "simulation"))]
pub use calls::{LockCalls, lock_calls};

use crate::members::Members;
use crate::session::Hub;

/// Settings of the port for clients. Per node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RpcSettings {
    /// Largest message a client may send, bytes.
    ///
    /// Default: 1 048 576 (1 MiB). Minimum: 65 536. A frame has about 37 KiB at most (64 names, a value)
    /// and seldom 1 KiB; a message may carry many: a client that re-sends a thousand usual requests after
    /// a resume fits.
    pub max_message_bytes: usize,
    /// Streams and calls open at once on one connection.
    ///
    /// Default: 1 024. Minimum: 1. Past it a client's call waits at the client; one stream carries
    /// a session with all its requests, so more are needed only by proxies.
    ///
    /// Source: DESIGN §6; tonic sets no limit by itself.
    pub max_streams_per_connection: u32,
    /// Bytes that may lie unread on one stream.
    ///
    /// Default: 1 048 576 (1 MiB). Maximum: 2³¹ − 1.
    pub stream_window_bytes: u32,
    /// Bytes that may lie unread on one connection.
    ///
    /// Default: 16 777 216 (16 MiB). Minimum: 4 MiB. Maximum: 2³¹ − 1. h2 ends a connection on
    /// which small frames worth half of it lie unread.
    ///
    /// Source: DESIGN §6, traps of h2.
    pub connection_window_bytes: u32,
    /// Largest header list of a request, bytes.
    ///
    /// Default: 16 384. Minimum: 4 096.
    pub max_header_bytes: u32,
    /// How often an idle connection is checked, milliseconds.
    ///
    /// Default: 5 000. Minimum: 100. A dead connection costs memory only: leases decide.
    pub keepalive_interval_ms: u64,
    /// How long the answer may take before the connection is closed, milliseconds.
    ///
    /// Default: 5 000. Minimum: 100.
    pub keepalive_timeout_ms: u64,
    /// The name of the cluster, which its backups carry. Default: empty.
    pub cluster_name: String,
    /// Identities with every right. Default: none. The same on all nodes: a leader goes by its own.
    pub admins: BTreeSet<Identity>,
    /// Whether other members may connect to this node without TLS: a caller that asks for the state of the
    /// rules is told, since everybody who reaches that port acts past all rules. Default: false.
    pub members_without_tls: bool,
}

impl Default for RpcSettings {
    fn default() -> Self {
        Self {
            max_message_bytes: 1 << 20,
            max_streams_per_connection: 1_024,
            stream_window_bytes: 1 << 20,
            connection_window_bytes: 16 << 20,
            max_header_bytes: 16_384,
            keepalive_interval_ms: 5_000,
            keepalive_timeout_ms: 5_000,
            cluster_name: String::new(),
            admins: BTreeSet::new(),
            members_without_tls: false,
        }
    }
}

/// How often the health service checks whether the node is ready.
const HEALTH_EVERY: Duration = Duration::from_millis(250);

/// What a node knows about itself.
pub trait NodeInfo: Debug + Send + Sync + 'static {
    /// The answer to the Status call. Quick: it is called several times a second.
    fn status(&self) -> StatusResponse;
}

/// The port for clients, ready to be served.
///
/// Serve `router` with a listener; keep `health` for as long. To stop, first call [`Hub::shutdown`],
/// which ends the session streams: otherwise tonic would wait for them without end.
#[derive(Debug)]
pub struct ClientPort {
    /// `LockService`, `ClusterService`, `ScopeService`, `AuthService`, health and reflection. All but health
    /// ask the rules.
    pub router: Router,
    /// The task that keeps the health service up to date: SERVING while the node is ready.
    pub health: Task,
}

/// The reflection service could not be built from the descriptors in this binary.
#[derive(Debug, thiserror::Error)]
#[error("the built-in descriptors are not usable: {0}")]
pub struct BadDescriptors(#[from] tonic_reflection::server::Error);

/// Puts the port for clients together. Call it inside the runtime.
///
/// # Errors
///
/// [`BadDescriptors`]: the build is broken.
pub fn client_port(
    hub: Arc<Hub>,
    info: Arc<dyn NodeInfo>,
    members: Arc<dyn Members>,
    settings: &RpcSettings,
) -> Result<ClientPort, BadDescriptors> {
    let runtime = hub.runtime().clone();
    let (arriving, refusals) = (hub.arriving().clone(), hub.refusals().clone());
    let (reporter, health) = tonic_health::server::health_reporter();
    let door = Door::new(hub.clone(), &settings.admins);
    let lock_service =
        LockServiceServer::new(LockApi::new(hub.clone(), info.clone(), door.clone()))
            .max_decoding_message_size(settings.max_message_bytes);
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(holdfast_proto::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()?;
    let reflection = InterceptedService::new(reflection, reflects(door.clone()));
    let cluster_service = ClusterServiceServer::new(ClusterApi::new(
        members,
        hub.clone(),
        door.clone(),
        &settings.cluster_name,
    ))
    .max_decoding_message_size(settings.max_message_bytes);
    let scope_service = ScopeServiceServer::new(ScopeApi::new(hub.clone(), door.clone()))
        .max_decoding_message_size(settings.max_message_bytes);
    let auth_service =
        AuthServiceServer::new(AuthApi::new(hub, door, settings.members_without_tls))
            .max_decoding_message_size(settings.max_message_bytes);
    let router = server(settings)
        .add_service(Counted::new(Measured::new(lock_service, arriving.clone()), refusals.clone()))
        .add_service(Counted::new(
            Measured::new(cluster_service, arriving.clone()),
            refusals.clone(),
        ))
        .add_service(Counted::new(Measured::new(scope_service, arriving.clone()), refusals.clone()))
        .add_service(Counted::new(Measured::new(auth_service, arriving), refusals))
        .add_service(health)
        .add_service(reflection);
    let health = runtime.spawn("health", report_health(runtime.clone(), reporter, info));
    Ok(ClientPort { router, health })
}

/// Lets those reflect who may.
fn reflects(door: Door) -> impl Fn(Request<()>) -> Result<Request<()>, Status> + Clone {
    move |request| {
        let authorization = request.metadata().get("authorization").map(MetadataValue::as_bytes);
        door.admit_now(authorization, request.extensions().get(), Verb::Reflect)?;
        Ok(request)
    }
}

fn server(settings: &RpcSettings) -> Server {
    Server::builder()
        .initial_stream_window_size(settings.stream_window_bytes)
        .initial_connection_window_size(settings.connection_window_bytes)
        .max_concurrent_streams(settings.max_streams_per_connection)
        .http2_max_header_list_size(settings.max_header_bytes)
        .http2_keepalive_interval(Some(Duration::from_millis(settings.keepalive_interval_ms)))
        .http2_keepalive_timeout(Some(Duration::from_millis(settings.keepalive_timeout_ms)))
        .tcp_nodelay(true)
}

/// SERVING while the node is ready, for the whole server and for `LockService`.
async fn report_health(runtime: Runtime, reporter: HealthReporter, info: Arc<dyn NodeInfo>) {
    let mut told = None;
    loop {
        let ready = info.status().ready;
        if told != Some(ready) {
            let status = if ready { ServingStatus::Serving } else { ServingStatus::NotServing };
            for service in ["", LockServiceServer::<LockApi>::NAME] {
                reporter.set_service_status(service, status).await;
            }
            told = Some(ready);
        }
        runtime.sleep(HEALTH_EVERY).await;
    }
}
