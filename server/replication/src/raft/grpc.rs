//! The peer protocol over gRPC: the client's side as a [`PeerNetwork`], the server's side around a
//! [`Peer`].

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{BoxStream, StreamExt};
use futures_util::{FutureExt, Stream};
use holdfast_proto::v1 as proto;
use holdfast_proto::v1::peer_service_client::PeerServiceClient;
use holdfast_proto::v1::peer_service_server::{PeerService, PeerServiceServer};
use tonic::transport::server::Router;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Extensions, Request, Response, Status, Streaming};

use super::Member;
use super::peers::{Lane, Peer, PeerAnswer, PeerError, PeerNetwork, PeerStream};

/// Largest message between peers, bytes: an append of 1 MiB and one entry, with room.
const MESSAGE_MAX: usize = 8 << 20;
/// HTTP/2 windows, bytes: h2 ends connections on which much lies unread (DESIGN §6).
const WINDOW: u32 = 16 << 20;
/// Interval of the pings on a silent connection.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(3);
/// A connection is dropped when a ping is not answered within this time.
const KEEPALIVE_WITHIN: Duration = Duration::from_secs(3);
const CONNECT_WITHIN: Duration = Duration::from_secs(1);

/// Reaches members over gRPC, with one connection for each member and lane, kept open and replaced
/// as needed.
pub struct GrpcNetwork {
    channels: Mutex<BTreeMap<(u64, String, Lane), Channel>>,
    dial: Box<Dial>,
}

/// Makes a channel to the endpoint of the member with this node id. The channel connects on first use, and again
/// after a failure.
type Dial = dyn Fn(u64, &Endpoint) -> Channel + Send + Sync;

impl GrpcNetwork {
    /// A network without connections yet, over TCP. Use it inside a tokio runtime.
    pub fn new() -> Self {
        Self::over(|_, endpoint| endpoint.connect_lazy())
    }

    /// As [`new`](Self::new), with the channels that `dial` makes to the endpoint of a member, by its node id:
    /// with TLS, or for simulations, which put their own network beneath HTTP/2.
    pub fn over(dial: impl Fn(u64, &Endpoint) -> Channel + Send + Sync + 'static) -> Self {
        Self { channels: Mutex::default(), dial: Box::new(dial) }
    }
}

impl Default for GrpcNetwork {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for GrpcNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrpcNetwork").field("channels", &self.channels).finish_non_exhaustive()
    }
}

impl PeerNetwork for GrpcNetwork {
    fn peer(&self, member: &Member, lane: Lane) -> Arc<dyn Peer> {
        let key = (member.node_id, member.peer_advertise.clone(), lane);
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        let channel = match channels.get(&key) {
            Some(known) => Ok(known.clone()),
            None => described(&member.peer_advertise).map(|endpoint| {
                let channel = (self.dial)(member.node_id, &endpoint);
                channels.insert(key, channel.clone());
                channel
            }),
        };
        Arc::new(GrpcPeer { client: channel.map(client) })
    }
}

fn described(address: &str) -> Result<Endpoint, PeerError> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|error| PeerError::Unreachable(format!("{address} is no address: {error}")))?;
    Ok(endpoint
        .connect_timeout(CONNECT_WITHIN)
        .tcp_nodelay(true)
        .tcp_keepalive(Some(KEEPALIVE_EVERY))
        .http2_keep_alive_interval(KEEPALIVE_EVERY)
        .keep_alive_timeout(KEEPALIVE_WITHIN)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW))
}

fn client(channel: Channel) -> PeerServiceClient<Channel> {
    PeerServiceClient::new(channel)
        .max_decoding_message_size(MESSAGE_MAX)
        .max_encoding_message_size(MESSAGE_MAX)
}

struct GrpcPeer {
    /// The error if its address is not valid.
    client: Result<PeerServiceClient<Channel>, PeerError>,
}

macro_rules! call {
    ($name:ident, $request:ty, $response:ty) => {
        fn $name(&self, request: $request) -> PeerAnswer<$response> {
            let client = self.client.clone();
            async move {
                client?.$name(request).await.map(Response::into_inner).map_err(|s| from_status(&s))
            }
            .boxed()
        }
    };
}

impl Peer for GrpcPeer {
    call!(promise, proto::PromiseRequest, proto::PromiseResponse);
    call!(admit, proto::AdmitRequest, proto::AdmitResponse);
    call!(hello, proto::HelloRequest, proto::HelloResponse);
    call!(append, proto::AppendRequest, proto::AppendResponse);
    call!(vote, proto::VoteRequest, proto::VoteResponse);
    call!(pre_vote, proto::VoteRequest, proto::VoteResponse);
    call!(transfer_leader, proto::TransferLeaderRequest, proto::TransferLeaderResponse);

    fn install_snapshot(
        &self,
        chunks: BoxStream<'static, proto::SnapshotChunk>,
    ) -> PeerAnswer<proto::SnapshotResponse> {
        let client = self.client.clone();
        async move {
            let answer = client?.install_snapshot(Outgoing(chunks)).await;
            answer.map(Response::into_inner).map_err(|status| from_status(&status))
        }
        .boxed()
    }

    fn stream_append(
        &self,
        requests: BoxStream<'static, proto::AppendRequest>,
    ) -> PeerAnswer<PeerStream<proto::AppendResponse>> {
        let client = self.client.clone();
        async move {
            let responses =
                client?.stream_append(Outgoing(requests)).await.map_err(|s| from_status(&s))?;
            Ok(responses.into_inner().map(|item| item.map_err(|s| from_status(&s))).boxed())
        }
        .boxed()
    }
}

/// Outgoing messages. A type of its own, because the compiler cannot see through a boxed stream
/// here that the call may move between threads.
struct Outgoing<T>(BoxStream<'static, T>);

impl<T> Stream for Outgoing<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        self.0.as_mut().poll_next(context)
    }
}

/// A gRPC server for `peer`, with the limits and windows that peers expect. Pass it a listener with
/// `serve_with_incoming_shutdown`.
///
/// It ends its open streams itself when the replica stops; tonic alone would wait for them. `proven` reads
/// from a call's connection for which node alone it may speak.
pub fn peer_server(peer: Arc<dyn Peer>, proven: Proven) -> Router {
    let service = PeerServiceServer::new(PeerRpc { peer, proven })
        .max_decoding_message_size(MESSAGE_MAX)
        .max_encoding_message_size(MESSAGE_MAX);
    Server::builder()
        .tcp_nodelay(true)
        .tcp_keepalive(Some(KEEPALIVE_EVERY))
        .http2_keepalive_interval(Some(KEEPALIVE_EVERY))
        .http2_keepalive_timeout(Some(KEEPALIVE_WITHIN))
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_concurrent_streams(STREAMS_PER_CONNECTION)
        .add_service(service)
}

/// Open calls of one peer connection.
const STREAMS_PER_CONNECTION: u32 = 1_024;

/// The one node that the other end of a connection has proved to be; `None`: it may be any member, as on
/// connections without TLS.
pub type Proven = fn(&Extensions) -> Option<u64>;

struct PeerRpc {
    peer: Arc<dyn Peer>,
    proven: Proven,
}

impl PeerRpc {
    /// The message, if its sender is the node that the connection has proved to be (I22).
    fn own<T: Sent>(&self, request: Request<T>) -> Result<T, Status> {
        let proven = (self.proven)(request.extensions());
        let message = request.into_inner();
        is_own(proven, &message)?;
        Ok(message)
    }
}

/// A message that names its sender; a stream's in the first.
trait Sent {
    fn sender(&self) -> Option<u64>;
}

macro_rules! sent {
    ($($message:ty: $from:expr;)*) => {
        $(impl Sent for $message {
            fn sender(&self) -> Option<u64> {
                let from: fn(&Self) -> Option<u64> = $from;
                from(self)
            }
        })*
    };
}

sent! {
    proto::PromiseRequest: |message| Some(message.from_node);
    proto::HelloRequest: |message| Some(message.from_node);
    proto::AppendRequest: |message| message.header.as_ref().map(|header| header.from_node);
    proto::VoteRequest: |message| message.header.as_ref().map(|header| header.from_node);
    proto::TransferLeaderRequest: |message| message.header.as_ref().map(|header| header.from_node);
    proto::SnapshotChunk: |message| {
        let header = message.head.as_ref()?.header.as_ref();
        header.map(|header| header.from_node)
    };
}

fn is_own(proven: Option<u64>, message: &impl Sent) -> Result<(), Status> {
    match (proven, message.sender()) {
        (Some(proven), Some(from)) if proven != from => Err(Status::permission_denied(format!(
            "the certificate of this connection is that of node {proven}, and the message one of node {from}"
        ))),
        _ => Ok(()),
    }
}

async fn reply<T>(answer: PeerAnswer<T>) -> Result<Response<T>, Status> {
    answer.await.map(Response::new).map_err(|error| to_status(&error))
}

#[tonic::async_trait]
impl PeerService for PeerRpc {
    async fn promise(
        &self,
        request: Request<proto::PromiseRequest>,
    ) -> Result<Response<proto::PromiseResponse>, Status> {
        reply(self.peer.promise(self.own(request)?)).await
    }

    /// The sender has no id yet, or the leader calls it back under the id that it names.
    async fn admit(
        &self,
        request: Request<proto::AdmitRequest>,
    ) -> Result<Response<proto::AdmitResponse>, Status> {
        reply(self.peer.admit(request.into_inner())).await
    }

    async fn hello(
        &self,
        request: Request<proto::HelloRequest>,
    ) -> Result<Response<proto::HelloResponse>, Status> {
        reply(self.peer.hello(self.own(request)?)).await
    }

    async fn append(
        &self,
        request: Request<proto::AppendRequest>,
    ) -> Result<Response<proto::AppendResponse>, Status> {
        reply(self.peer.append(self.own(request)?)).await
    }

    async fn vote(
        &self,
        request: Request<proto::VoteRequest>,
    ) -> Result<Response<proto::VoteResponse>, Status> {
        reply(self.peer.vote(self.own(request)?)).await
    }

    async fn pre_vote(
        &self,
        request: Request<proto::VoteRequest>,
    ) -> Result<Response<proto::VoteResponse>, Status> {
        reply(self.peer.pre_vote(self.own(request)?)).await
    }

    async fn transfer_leader(
        &self,
        request: Request<proto::TransferLeaderRequest>,
    ) -> Result<Response<proto::TransferLeaderResponse>, Status> {
        reply(self.peer.transfer_leader(self.own(request)?)).await
    }

    type StreamAppendStream = BoxStream<'static, Result<proto::AppendResponse, Status>>;

    async fn stream_append(
        &self,
        request: Request<Streaming<proto::AppendRequest>>,
    ) -> Result<Response<Self::StreamAppendStream>, Status> {
        let proven = (self.proven)(request.extensions());
        let requests = messages(request.into_inner(), proven);
        let responses =
            self.peer.stream_append(requests).await.map_err(|error| to_status(&error))?;
        let responses = responses.map(|item| item.map_err(|error| to_status(&error)));
        Ok(Response::new(responses.boxed()))
    }

    async fn install_snapshot(
        &self,
        request: Request<Streaming<proto::SnapshotChunk>>,
    ) -> Result<Response<proto::SnapshotResponse>, Status> {
        let proven = (self.proven)(request.extensions());
        reply(self.peer.install_snapshot(messages(request.into_inner(), proven))).await
    }
}

/// The messages up to the first failure, or the first of another node than the one `proven`. The reader of
/// the messages finds that the stream ended early.
fn messages<T: Sent + Send + 'static>(
    stream: Streaming<T>,
    proven: Option<u64>,
) -> BoxStream<'static, T> {
    let counts = move |message: &Result<T, Status>| {
        message.as_ref().is_ok_and(|message| is_own(proven, message).is_ok())
    };
    stream
        .take_while(move |message| std::future::ready(counts(message)))
        .filter_map(|message| std::future::ready(message.ok()))
        .boxed()
}

fn to_status(error: &PeerError) -> Status {
    let code = match error {
        PeerError::Unreachable(_) | PeerError::Stopping(_) => Code::Unavailable,
        PeerError::Refused(_) => Code::FailedPrecondition,
    };
    Status::new(code, error.to_string())
}

fn from_status(status: &Status) -> PeerError {
    match status.code() {
        Code::FailedPrecondition | Code::InvalidArgument | Code::Unimplemented => {
            PeerError::Refused(status.message().to_owned())
        }
        _ => PeerError::Unreachable(status.message().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I22: a node's certificate opens no connection in the name of another node.
    #[test]
    fn a_message_counts_only_from_the_node_that_the_connection_has_proved_to_be() {
        let header = |from_node| Some(proto::PeerHeader { from_node, ..Default::default() });
        let head =
            |from_node| proto::SnapshotHead { header: header(from_node), ..Default::default() };
        let of = |from_node: u64| -> [Box<dyn Fn(Option<u64>) -> bool>; 6] {
            let promise = proto::PromiseRequest { from_node, ..Default::default() };
            let hello = proto::HelloRequest { from_node };
            let append = proto::AppendRequest { header: header(from_node), ..Default::default() };
            let vote = proto::VoteRequest { header: header(from_node), ..Default::default() };
            let transfer =
                proto::TransferLeaderRequest { header: header(from_node), ..Default::default() };
            let chunk = proto::SnapshotChunk { head: Some(head(from_node)), ..Default::default() };
            [
                Box::new(move |proven| is_own(proven, &promise).is_ok()),
                Box::new(move |proven| is_own(proven, &hello).is_ok()),
                Box::new(move |proven| is_own(proven, &append).is_ok()),
                Box::new(move |proven| is_own(proven, &vote).is_ok()),
                Box::new(move |proven| is_own(proven, &transfer).is_ok()),
                Box::new(move |proven| is_own(proven, &chunk).is_ok()),
            ]
        };
        for counts in of(2) {
            assert!(counts(None) && counts(Some(2)));
            assert!(!counts(Some(3)));
        }
        // On a stream only the first message names its sender.
        assert!(is_own(Some(3), &proto::AppendRequest::default()).is_ok());
    }
}
