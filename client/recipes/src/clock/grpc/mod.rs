//! gRPC: the time service, client and server.

mod access;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast::{Bearer, Dialling};
use holdfast_guard::innermost;
use holdfast_proto::v1::time_service_client::TimeServiceClient;
use holdfast_proto::v1::time_service_server::{TimeService, TimeServiceServer};
use holdfast_proto::v1::{NowRequest, NowResponse};
use holdfast_runtime::Runtime;
use tokio::net::TcpListener;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::server::Router;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status};

use crate::{Error, Result};
pub use access::TimeAccess;
use access::{CONNECTIONS_MAX, Doorkeeper, PortTls, connections};

/// A request and its answer are a few bytes.
const MESSAGE_BYTES_MAX: usize = 1 << 10;
const STREAMS_MAX: u32 = 1_000;
/// A half-open connection is detected after one interval and one time-out.
const KEEPALIVE: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoTime {
    /// A retry may succeed.
    NotNow(String),
    /// A retry does not succeed in the replica's present state.
    Refused(String),
}

/// One replica, over one connection that is made at the first request, and again after it broke.
#[derive(Debug)]
pub(crate) struct GrpcReplica {
    described: Endpoint,
    dialling: Option<Dialling>,
    token: Bearer,
    channel: OnceLock<Channel>,
}

impl GrpcReplica {
    /// At `host:port`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] if `endpoint` is no address, or a file of `access` cannot be used.
    pub(crate) fn at(endpoint: &str, access: &TimeAccess, runtime: &Runtime) -> Result<Self> {
        let wrong = |error: tonic::transport::Error| Error::InvalidConfig {
            message: format!("endpoint {}: {}", endpoint.escape_debug(), innermost(&error)),
        };
        let described = described(endpoint).map_err(wrong)?;
        let dialling = access.tls.clone().map(|tls| Dialling::new(tls, runtime)).transpose()?;
        Ok(Self { described, dialling, token: access.token.clone(), channel: OnceLock::new() })
    }

    pub(crate) async fn now_us(&self) -> Result<u64, NoTime> {
        // The channel can be made only inside a runtime.
        let channel = self.channel.get_or_init(|| self.connect_lazy()).clone();
        let line = self.token.clone().over(channel);
        let mut client = TimeServiceClient::new(line).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let answered = client.now(NowRequest {}).await;
        answered.map(|answer| answer.into_inner().now_us).map_err(|status| no_time(&status))
    }

    fn connect_lazy(&self) -> Channel {
        match &self.dialling {
            Some(dialling) => dialling.clone().connect_lazy(self.described.clone()),
            None => self.described.connect_lazy(),
        }
    }
}

fn described(endpoint: &str) -> Result<Endpoint, tonic::transport::Error> {
    Ok(Endpoint::from_shared(format!("http://{endpoint}"))?
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE)
        .keep_alive_while_idle(true))
}

fn no_time(status: &Status) -> NoTime {
    let said = || status.message().to_owned();
    match status.code() {
        Code::FailedPrecondition | Code::Unauthenticated => NoTime::Refused(said()),
        Code::Unimplemented => NoTime::Refused("there is no time service there".into()),
        // The connection's own error is the source of the status.
        _ => NoTime::NotNow(std::error::Error::source(status).map_or_else(said, innermost)),
    }
}

/// A port of a replica.
#[derive(Debug)]
#[must_use = "it answers nothing until a replica has it"]
pub struct TimePort {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<PortTls>,
    doorkeeper: Doorkeeper,
}

impl TimePort {
    /// Listens at `host:port`; port 0 is any free port. It does not answer yet.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] if `at` is no address of this machine, or is in use.
    pub async fn listen(at: &str) -> Result<Self> {
        let wrong = |error: std::io::Error| Error::InvalidConfig {
            message: format!("cannot listen at {}: {error}", at.escape_debug()),
        };
        let listener = TcpListener::bind(at).await.map_err(wrong)?;
        let address = listener.local_addr().map_err(wrong)?;
        Ok(Self { listener, address, tls: None, doorkeeper: Doorkeeper::default() })
    }

    /// Speaks TLS, and only TLS, with this certificate (the CAs between it and the root after it) and its key.
    /// With `clients` it lets in only clients for which a CA in this file vouches. All files are PEM; they are
    /// looked at again with each connection that begins.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`], which names the file that cannot be used.
    pub fn tls(
        mut self,
        cert: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
        clients: Option<PathBuf>,
    ) -> Result<Self> {
        self.tls = Some(PortTls::load(cert.into(), key.into(), clients)?);
        Ok(self)
    }

    /// Answers only clients that show this token.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] for a token that no client can send.
    pub fn token(mut self, token: &str) -> Result<Self> {
        self.doorkeeper = Doorkeeper::demanding(token)?;
        Ok(self)
    }

    /// The local address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers with the result of `now_us` until it is dropped.
    pub(crate) async fn serve(
        self,
        now_us: impl Fn() -> BoxFuture<'static, Result<u64>> + Send + Sync + 'static,
    ) -> Result<()> {
        let router = router(Answering(Box::new(now_us)), self.doorkeeper);
        let served =
            router.serve_with_incoming(connections(self.listener, self.tls, CONNECTIONS_MAX)).await;
        served.map_err(|error| Error::InvalidConfig {
            message: format!("serving at {}: {}", self.address, innermost(&error)),
        })
    }
}

fn router(answering: Answering, doorkeeper: Doorkeeper) -> Router {
    let service = TimeServiceServer::new(answering).max_decoding_message_size(MESSAGE_BYTES_MAX);
    Server::builder()
        .tcp_nodelay(true)
        .max_concurrent_streams(STREAMS_MAX)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .add_service(InterceptedService::new(service, doorkeeper))
}

struct Answering(Box<dyn Fn() -> BoxFuture<'static, Result<u64>> + Send + Sync>);

#[tonic::async_trait]
impl TimeService for Answering {
    async fn now(&self, _request: Request<NowRequest>) -> Result<Response<NowResponse>, Status> {
        match (self.0)().await {
            Ok(now_us) => Ok(Response::new(NowResponse { now_us })),
            Err(Error::Refused { message, .. }) => Err(Status::failed_precondition(message)),
            Err(error) => Err(Status::unavailable(error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(at: &str) -> Result<GrpcReplica> {
        GrpcReplica::at(at, &TimeAccess::default(), &Runtime::system())
    }

    async fn asked(answer: Result<u64>) -> Result<u64, NoTime> {
        let port = TimePort::listen("127.0.0.1:0").await.unwrap();
        let replica = plain(&port.address().to_string()).unwrap();
        let now_us = move || -> BoxFuture<'static, Result<u64>> {
            Box::pin(std::future::ready(answer.clone()))
        };
        let serving = async move {
            let _ = port.serve(now_us).await;
        };
        let _serving = Runtime::system().spawn("replica", serving);
        replica.now_us().await
    }

    #[tokio::test]
    async fn what_a_replica_answers_and_whether_to_ask_again_comes_over_the_wire() {
        assert_eq!(asked(Ok(7)).await, Ok(7));
        let refused = asked(Err(Error::invalid("the cell has no time".into()))).await;
        assert_eq!(refused, Err(NoTime::Refused("the cell has no time".into())));
        let unreachable = Error::Unreachable {
            endpoints: Vec::new(),
            waited: KEEPALIVE,
            last: "down".into(),
            answered: false,
        };
        let not_now = asked(Err(unreachable)).await.unwrap_err();
        assert!(matches!(&not_now, NoTime::NotNow(why) if why.contains("down")), "{not_now:?}");
    }

    #[tokio::test]
    async fn a_port_that_is_taken_and_a_replica_that_is_not_there_are_named() {
        let taken = TimePort::listen("127.0.0.1:0").await.unwrap();
        let at = taken.address().to_string();
        let error = TimePort::listen(&at).await.unwrap_err();
        assert!(error.to_string().contains(&format!("cannot listen at {at}")), "{error}");
        drop(taken);
        let refused = plain(&at).unwrap().now_us().await.unwrap_err();
        assert!(matches!(&refused, NoTime::NotNow(why) if why.contains("refused")), "{refused:?}");
        assert!(plain("no host:1").is_err());
    }
}
