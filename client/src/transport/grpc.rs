//! gRPC: sessions and reads. Only this folder names tonic.

use std::fmt;
use std::sync::Arc;

use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt, TryStreamExt};
use holdfast_guard::innermost;
use holdfast_proto::v1::lock_service_client::LockServiceClient;
use holdfast_proto::v1::{
    AdvanceRequest, AdvanceResponse, CheckTokenRequest, CheckTokenResponse, ClientFrames,
    ExplainRequest, ExplainResponse, InspectRequest, InspectResponse, KeepAliveManyRequest,
    KeepAliveManyResponse, ListRequest, ListResponse, ServerFrames, SessionKey, StatusRequest,
    StatusResponse, WatchRequest,
};
use holdfast_runtime::{
    BoxFuture, Pipe, Renewed, Reply, Runtime, Transport, TransportError, Watched,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

use super::bearer::{Bearer, Line};
use super::dials::{Connecting, Dials, Reach};
use super::kept::Kept;
use super::pool::{Connection, Pool};
use super::shared::{Shared, WATCHES_MAX, Way};
use super::verdict::Verdict;

/// Most messages between the session task and the connection.
const OUTGOING_MAX: usize = 64;
/// Largest message from a server: a State names every request of the session.
const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// How many bytes may lie unread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Windows {
    /// On one stream.
    pub(super) stream: u32,
    /// On a connection, all streams together. h2 closes a connection on which small frames worth half of it
    /// are unread (DESIGN §6).
    pub(super) connection: u32,
}

impl Windows {
    /// Of a connection whose streams are always read, or that has one stream only.
    pub(super) const USUAL: Self = Self { stream: 4 << 20, connection: 4 << 20 };
    /// Of a connection with many watches. Any number of them may be unread, and hold nobody back: it never has
    /// more than [`WATCHES_MAX`] · 128 KiB unread, and h2 counts the smallest frame, of 8 bytes, as up to 256.
    const WATCHES: Self = Self { stream: 128 << 10, connection: 1 << 30 };
}

const _: () = {
    let unread = Windows::WATCHES.stream as usize * WATCHES_MAX;
    assert!(unread / 8 * 256 <= Windows::WATCHES.connection as usize / 2);
};

/// Connects to servers by gRPC; each stream or read has a connection of its own, unless clients share
/// connections for their streams. Numbers of sequences are asked for on one that is kept. Public for simulations, which replace the network beneath it.
#[doc(hidden)]
#[derive(Clone)]
pub struct GrpcTransport {
    dials: Dials,
    shared: Option<Arc<Shared>>,
    /// For calls that a client may make in a loop: a connection each would use up its machine's ports.
    kept: Arc<Kept>,
}

impl GrpcTransport {
    pub(crate) fn new(dials: Dials, shared: Option<Arc<Shared>>) -> Self {
        Self { dials, shared, kept: Arc::default() }
    }

    /// Over the connections of `connect`, which has to keep the endpoint's settings of HTTP/2.
    pub fn over(
        runtime: Runtime,
        connect: impl Fn(Endpoint) -> Connecting + Send + Sync + 'static,
    ) -> Self {
        let connect = Arc::new(move |endpoint: Endpoint, _: Option<&str>| connect(endpoint));
        let reach = Arc::new(Reach::new(runtime));
        Self::new(Dials::new(connect, Bearer::default(), reach), None)
    }

    /// A client with a connection of its own.
    async fn client(self, endpoint: String) -> Result<LockServiceClient<Line>, TransportError> {
        let channel = self.dials.channel(&endpoint, Windows::USUAL).await?;
        Ok(self.over_channel(&endpoint, channel))
    }

    fn over_channel(&self, endpoint: &str, channel: Channel) -> LockServiceClient<Line> {
        let line = self.dials.line(endpoint, channel);
        LockServiceClient::new(line).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// A client for a stream: with a connection of its own, or with one of the pool that it shares for as long
    /// as it keeps it.
    async fn stream_client(
        &self,
        endpoint: &str,
        pool: Option<&Pool>,
        windows: Windows,
    ) -> Result<(LockServiceClient<Line>, Option<Arc<Connection>>), TransportError> {
        let Some(pool) = pool else {
            let dialled = self.dials.channel(endpoint, Windows::USUAL).await?;
            return Ok((self.over_channel(endpoint, dialled), None));
        };
        let dial = self.dials.channel(endpoint, windows);
        let connection = pool.connection(endpoint, dial).await?;
        Ok((self.over_channel(endpoint, connection.channel()), Some(connection)))
    }

    async fn session_client(
        &self,
        endpoint: &str,
    ) -> Result<(LockServiceClient<Line>, Option<Arc<Connection>>), TransportError> {
        let pool = self.shared.as_ref().map(|shared| &shared.sessions);
        self.stream_client(endpoint, pool, Windows::USUAL).await
    }

    async fn watch_client(
        &self,
        endpoint: &str,
    ) -> Result<(LockServiceClient<Line>, Option<Arc<Connection>>), TransportError> {
        let pool = self.shared.as_ref().map(|shared| &shared.watches);
        self.stream_client(endpoint, pool, Windows::WATCHES).await
    }

    /// Makes one call on a connection of its own.
    fn ask<T: Send + 'static, F>(
        &self,
        endpoint: &str,
        call: impl FnOnce(LockServiceClient<Line>) -> F + Send + 'static,
    ) -> BoxFuture<'static, Result<T, TransportError>>
    where
        F: Future<Output = Result<Response<T>, Status>> + Send,
    {
        let (transport, endpoint) = (self.clone(), endpoint.to_owned());
        Box::pin(async move {
            let answer = call(transport.client(endpoint.clone()).await?).await;
            answer.map(Response::into_inner).map_err(|status| told(&endpoint, &status))
        })
    }
}

/// How the keepalives of many sessions reach one server.
struct KeepAliveWay {
    transport: GrpcTransport,
    endpoint: String,
}

impl Way for KeepAliveWay {
    fn dial(&self) -> Reply<Channel> {
        let (dials, endpoint) = (self.transport.dials.clone(), self.endpoint.clone());
        Box::pin(async move { dials.channel(&endpoint, Windows::USUAL).await })
    }

    fn call(&self, channel: Channel, asked: KeepAliveManyRequest) -> Reply<KeepAliveManyResponse> {
        let mut client = self.transport.over_channel(&self.endpoint, channel);
        let endpoint = self.endpoint.clone();
        Box::pin(async move {
            let answer = client.keep_alive_many(asked).await;
            answer.map(Response::into_inner).map_err(|status| told(&endpoint, &status))
        })
    }
}

/// Notes that a connection broke, if a stream over it did.
fn note_break(connection: Option<&Arc<Connection>>, error: &TransportError) {
    if let (Some(connection), TransportError::Unreachable { .. }) = (connection, error) {
        connection.broke();
    }
}

/// A stream that keeps its connection until it ends.
fn kept_on<T: Send + 'static>(
    connection: Option<Arc<Connection>>,
    stream: impl Stream<Item = Result<T, TransportError>> + Send + 'static,
) -> BoxStream<'static, Result<T, TransportError>> {
    stream.inspect_err(move |error| note_break(connection.as_ref(), error)).boxed()
}

impl fmt::Debug for GrpcTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrpcTransport").finish_non_exhaustive()
    }
}

/// Why a call broke off: the deepest reason that the connection gives, else what the server said.
pub(super) fn broken_by(status: &Status) -> String {
    let source = std::error::Error::source(status);
    hinted(source.map_or_else(|| status.message().to_owned(), innermost))
}

/// An answer that is no HTTP/2 is mostly a server's that wants TLS, and h2 does not say so.
pub(super) fn hinted(detail: String) -> String {
    let no_http2 = ["http2 error", "frame with invalid size"];
    if no_http2.iter().any(|words| detail.contains(words)) {
        format!("{detail}: it may want TLS")
    } else {
        detail
    }
}

impl Transport for GrpcTransport {
    fn open(
        &self,
        endpoint: &str,
    ) -> BoxFuture<'static, Result<Pipe<ClientFrames, ServerFrames>, TransportError>> {
        let (transport, endpoint) = (self.clone(), endpoint.to_owned());
        Box::pin(async move {
            let (mut client, connection) = transport.session_client(&endpoint).await?;
            let (outgoing, frames) = mpsc::channel(OUTGOING_MAX);
            // The call starts with the first poll: a server may answer only after the first frame,
            // which the caller sends once it has the pipe.
            let call = async move {
                let response = client.session(ReceiverStream::new(frames)).await?;
                Ok::<_, Status>(response.into_inner())
            };
            let incoming = stream::once(call).try_flatten();
            let incoming = incoming.map_err(move |status| told(&endpoint, &status));
            Ok(Pipe { outgoing, incoming: kept_on(connection, incoming) })
        })
    }

    fn keeps_together(&self) -> bool {
        self.shared.is_some()
    }

    fn keep_alive(&self, endpoint: &str, session: SessionKey) -> Reply<Renewed> {
        let at = endpoint.to_owned();
        let Some(shared) = &self.shared else {
            let detail = "its connection is not shared".to_owned();
            let error = TransportError::Unreachable { endpoint: at, detail };
            return Box::pin(async { Err(error) });
        };
        shared.renew(endpoint, session, KeepAliveWay { transport: self.clone(), endpoint: at })
    }

    fn inspect(
        &self,
        endpoint: &str,
        request: InspectRequest,
    ) -> BoxFuture<'static, Result<InspectResponse, TransportError>> {
        self.ask(endpoint, move |mut client| async move { client.inspect(request).await })
    }

    fn list(
        &self,
        endpoint: &str,
        request: ListRequest,
    ) -> BoxFuture<'static, Result<ListResponse, TransportError>> {
        self.ask(endpoint, move |mut client| async move { client.list(request).await })
    }

    fn check_token(
        &self,
        endpoint: &str,
        request: CheckTokenRequest,
    ) -> BoxFuture<'static, Result<CheckTokenResponse, TransportError>> {
        self.ask(endpoint, move |mut client| async move { client.check_token(request).await })
    }

    fn explain(
        &self,
        endpoint: &str,
        request: ExplainRequest,
    ) -> BoxFuture<'static, Result<ExplainResponse, TransportError>> {
        self.ask(endpoint, move |mut client| async move { client.explain(request).await })
    }

    fn advance(
        &self,
        endpoint: &str,
        request: AdvanceRequest,
    ) -> BoxFuture<'static, Result<AdvanceResponse, TransportError>> {
        let (transport, endpoint) = (self.clone(), endpoint.to_owned());
        Box::pin(async move {
            let dial = transport.dials.channel(&endpoint, Windows::USUAL);
            let call = transport.kept.connection(&endpoint, dial).await?;
            let mut client = transport.over_channel(&endpoint, call.channel());
            let answer = client.advance(request).await;
            let answer = answer.map_err(|status| told(&endpoint, &status));
            if !matches!(answer, Err(TransportError::Unreachable { .. })) {
                call.answered();
            }
            answer.map(Response::into_inner)
        })
    }

    fn watch(
        &self,
        endpoint: &str,
        request: WatchRequest,
    ) -> BoxFuture<'static, Result<Watched, TransportError>> {
        let (transport, endpoint) = (self.clone(), endpoint.to_owned());
        Box::pin(async move {
            let (mut client, connection) = transport.watch_client(&endpoint).await?;
            let watched = client.watch(request).await.map_err(|status| told(&endpoint, &status));
            let watched = watched.inspect_err(|error| note_break(connection.as_ref(), error))?;
            let events = watched.into_inner();
            Ok(kept_on(connection, events.map_err(move |status| told(&endpoint, &status))))
        })
    }

    fn status(
        &self,
        endpoint: &str,
        request: StatusRequest,
    ) -> BoxFuture<'static, Result<StatusResponse, TransportError>> {
        self.ask(endpoint, move |mut client| async move { client.status(request).await })
    }
}

/// The meaning of a status for a session or a read. Public for simulations, whose servers answer
/// like real ones, without a port.
#[doc(hidden)]
pub fn told(endpoint: &str, status: &Status) -> TransportError {
    let message = status.message().to_owned();
    match Verdict::of(status) {
        Verdict::NotHere { leader } => {
            TransportError::Unavailable { message: format!("{endpoint}: {message}"), leader }
        }
        Verdict::TakenOver => TransportError::AttachedElsewhere,
        Verdict::TooSlow => TransportError::TooSlow,
        Verdict::Compacted => TransportError::Compacted,
        Verdict::Refused(reason) => TransportError::Refused { reason, message },
        Verdict::Unknown => {
            TransportError::Unreachable { endpoint: endpoint.to_owned(), detail: broken_by(status) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_learns_who_leads_that_it_was_refused_or_that_it_lost_its_server() {
        let of = |status| told("a:1", &status);

        assert!(matches!(
            of(Status::unavailable("follows")),
            TransportError::Unavailable { leader: None, .. }
        ));
        assert!(matches!(of(Status::not_found("gone")), TransportError::Refused { .. }));
        assert!(matches!(of(Status::cancelled("stops")), TransportError::Unreachable { .. }));
        assert_eq!(of(Status::aborted("over")), TransportError::AttachedElsewhere);
        assert_eq!(of(Status::resource_exhausted("watch_backlog")), TransportError::TooSlow);
    }
}
