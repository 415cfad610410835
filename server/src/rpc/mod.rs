//! The port for clients: gRPC around the session layer.
//!
//! This layer decides nothing: bytes become frames, reads are confirmed and encoded, errors become codes
//! ([`status`] is the one table). [`Services`] puts together what a port serves.
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
mod explain;
mod forwarding;
mod lock_service;
mod past;
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
use forwarding::{CarriedApi, Gate, Passage, PassesOn, TakesIn};
pub use forwarding::{Dial, ForwardingMetrics, Links, REDIRECT};
use holdfast_core::{Identity, Verb};
use holdfast_proto::v1::StatusResponse;
use holdfast_proto::v1::auth_service_server::AuthServiceServer;
use holdfast_proto::v1::cluster_service_server::ClusterServiceServer;
use holdfast_proto::v1::lock_service_server::LockServiceServer;
use holdfast_proto::v1::relay_service_server::RelayServiceServer;
use holdfast_proto::v1::scope_service_server::ScopeServiceServer;
use holdfast_runtime::{Runtime, Task};
use lock_service::LockApi;
use refused::Counted;
use scope_service::ScopeApi;
use tonic::metadata::MetadataValue;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server;
use tonic::transport::server::Router;
use tonic::{Request, Status};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

#[cfg(any(test, feature = "simulation"))]
pub use calls::{LockCalls, lock_calls};

use crate::members::{Members, PeerView};
use crate::raft::Proven;
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
    /// The same services but health and reflection, for callers in this process.
    pub calls: Routes,
    /// The task that keeps the health service up to date: SERVING while the node is ready.
    pub health: Task,
}

/// The reflection service could not be built from the descriptors in this binary.
#[derive(Debug, thiserror::Error)]
#[error("the built-in descriptors are not usable: {0}")]
pub struct BadDescriptors(#[from] tonic_reflection::server::Error);

/// The services of a node: for clients on their port, and on the port for members for the clients of those.
#[derive(Clone, Debug)]
pub struct Services {
    lock: Arc<LockApi>,
    cluster: Arc<ClusterApi>,
    scope: Arc<ScopeApi>,
    auth: Arc<AuthApi>,
    hub: Arc<Hub>,
    info: Arc<dyn NodeInfo>,
    door: Door,
    settings: RpcSettings,
}

impl Services {
    /// The services of the node with these parts.
    pub fn new(
        hub: Arc<Hub>,
        info: Arc<dyn NodeInfo>,
        members: Arc<dyn Members>,
        settings: &RpcSettings,
    ) -> Self {
        let door = Door::new(hub.clone(), &settings.admins);
        let name = &settings.cluster_name;
        Self {
            lock: Arc::new(LockApi::new(hub.clone(), info.clone(), door.clone())),
            cluster: Arc::new(ClusterApi::new(members, hub.clone(), door.clone(), name)),
            scope: Arc::new(ScopeApi::new(hub.clone(), door.clone())),
            auth: Arc::new(AuthApi::new(hub.clone(), door.clone(), settings.members_without_tls)),
            hub,
            info,
            door,
            settings: settings.clone(),
        }
    }

    /// Puts the port for clients together, which passes calls on while another node leads. Call it inside the
    /// runtime.
    ///
    /// # Errors
    ///
    /// [`BadDescriptors`]: the build is broken.
    pub fn client_port(&self, forwarding: Forwarding) -> Result<ClientPort, BadDescriptors> {
        let runtime = self.hub.runtime().clone();
        let bounds = (self.settings.max_message_bytes, self.hub.unread_max());
        let passage = Passage::new(forwarding, self.door.clone(), runtime.clone(), bounds);
        let passage = Arc::new(passage);
        let (reporter, health) = tonic_health::server::health_reporter();
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(holdfast_proto::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .build_v1()?;
        let reflection = InterceptedService::new(reflection, reflects(self.door.clone()));
        let calls = Routes::new(PassesOn::new(self.lock(), passage.clone()))
            .add_service(PassesOn::new(self.cluster(), passage.clone()))
            .add_service(PassesOn::new(self.scope(), passage.clone()))
            .add_service(PassesOn::new(self.auth(), passage.clone()));
        let router = server(&self.settings)
            .add_service(PassesOn::new(self.lock(), passage.clone()))
            .add_service(PassesOn::new(self.cluster(), passage.clone()))
            .add_service(PassesOn::new(self.scope(), passage.clone()))
            .add_service(PassesOn::new(self.auth(), passage))
            .add_service(health)
            .add_service(reflection);
        let info = self.info.clone();
        let health = runtime.spawn("health", report_health(runtime.clone(), reporter, info));
        Ok(ClientPort { router, calls, health })
    }

    /// Adds the services to the port for members, for the calls that `peers` pass on. `proven` is the node that a
    /// connection has proved to be.
    pub fn for_members(
        &self,
        router: Router,
        peers: Arc<dyn PeerView>,
        proven: Proven,
        metrics: ForwardingMetrics,
    ) -> Router {
        let gate = Gate { peers, proven, metrics };
        let (hub, door) = (self.hub.clone(), self.door.clone());
        let carried = RelayServiceServer::new(CarriedApi { hub, door, gate: gate.clone() })
            .max_decoding_message_size(forwarding::BATCH_MAX)
            .max_encoding_message_size(forwarding::BATCH_MAX);
        router
            .add_service(carried)
            .add_service(TakesIn::new(self.lock(), gate.clone()))
            .add_service(TakesIn::new(self.cluster(), gate.clone()))
            .add_service(TakesIn::new(self.scope(), gate.clone()))
            .add_service(TakesIn::new(self.auth(), gate))
    }

    fn lock(&self) -> Guarded<LockServiceServer<LockApi>> {
        let service = LockServiceServer::from_arc(self.lock.clone());
        self.guarded(service.max_decoding_message_size(self.settings.max_message_bytes))
    }

    fn cluster(&self) -> Guarded<ClusterServiceServer<ClusterApi>> {
        let service = ClusterServiceServer::from_arc(self.cluster.clone());
        self.guarded(service.max_decoding_message_size(self.settings.max_message_bytes))
    }

    fn scope(&self) -> Guarded<ScopeServiceServer<ScopeApi>> {
        let service = ScopeServiceServer::from_arc(self.scope.clone());
        self.guarded(service.max_decoding_message_size(self.settings.max_message_bytes))
    }

    fn auth(&self) -> Guarded<AuthServiceServer<AuthApi>> {
        let service = AuthServiceServer::from_arc(self.auth.clone());
        self.guarded(service.max_decoding_message_size(self.settings.max_message_bytes))
    }

    fn guarded<S>(&self, service: S) -> Guarded<S> {
        let (arriving, refusals) = (self.hub.arriving().clone(), self.hub.refusals().clone());
        Counted::new(Measured::new(service, arriving), refusals)
    }
}

/// A service with bounds on what arrives, whose refusals are counted.
type Guarded<S> = Counted<Measured<S>>;

/// What a node needs to pass calls on.
#[derive(Debug)]
pub struct Forwarding {
    /// The other members.
    pub peers: Arc<dyn PeerView>,
    /// The connections to the leader.
    pub links: Links,
    /// What is counted.
    pub metrics: ForwardingMetrics,
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
