//! How clients reach nodes on the virtual network.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::stream::{Stream, StreamExt as _};
use futures_util::{FutureExt as _, TryStreamExt as _};
use holdfast_core::{Caller, Identity};
use holdfast_proto::v1::server_frame::Body as Told;
use holdfast_proto::v1::watch_event::Body as News;
use holdfast_proto::v1::{
    AcquireRequest, AcquireResponse, AdvanceRequest, AdvanceResponse, CancelRequest,
    CancelResponse, CheckTokenRequest, CheckTokenResponse, ClientFrames, CloseSessionRequest,
    CloseSessionResponse, ExplainRequest, ExplainResponse, ImportRequest, ImportResponse,
    InspectRequest, InspectResponse, KeepAliveManyRequest, KeepAliveManyResponse, KeepAliveRequest,
    KeepAliveResponse, ListRequest, ListResponse, OpenSessionRequest, OpenSessionResponse,
    ReleaseRequest, ReleaseResponse, ServerFrames, SessionKey, SetValueRequest, SetValueResponse,
    StatusRequest, StatusResponse, WatchRequest, WatchResponse,
};
use holdfast_runtime::simulated::Process;
use holdfast_runtime::{Pipe, Renewed, Transport, TransportError, Watched};
use holdfast_server::rpc::LockCalls;
use holdfast_server::rpc::status::of_stream_error;
use holdfast_server::session::StreamError;
use prost::Message;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::connection::{Frame, Reply, pump};
use super::link::Host;
use super::network::{Network, SESSION, WATCH};
use super::port::{Call, Port};
use super::rights::Rights;

/// Messages that a client has handed over and that have not left it.
const AT_HAND: usize = 1;
/// Messages between a node's session layer and a connection, as over gRPC.
const IN_HAND: usize = 4;

/// How many identities clients have.
pub const IDENTITIES: u64 = 3;

type Answered<T> = BoxFuture<'static, Result<T, TransportError>>;
type Asked<T> = BoxFuture<'static, Result<Response<T>, Status>>;

/// The network as one client sees it.
#[derive(Clone)]
pub(super) struct ClientNetwork {
    pub(super) network: Network,
    pub(super) client: u64,
    pub(super) process: Process,
    /// Records what the client's connections promise it.
    pub(super) rights: Rights,
    /// Its keepalives go together with those of others, beside its stream.
    pub(super) keeps_together: bool,
}

/// The address under which clients reach a node.
pub(super) fn endpoint_of(node: u64) -> String {
    format!("node-{node}:7420")
}

/// The label of client `number` at the store.
pub fn label_of(number: u64) -> String {
    format!("client {number}")
}

/// The client with this label.
pub fn client_of(label: &str) -> Option<u64> {
    label.strip_prefix("client ")?.parse().ok()
}

fn node_at(endpoint: &str) -> Result<u64, TransportError> {
    let id = endpoint.strip_prefix("node-").and_then(|rest| rest.strip_suffix(":7420"));
    id.and_then(|id| id.parse().ok()).ok_or_else(|| unreachable(endpoint))
}

fn unreachable(endpoint: &str) -> TransportError {
    let detail = "no answer on the virtual network".to_owned();
    TransportError::Unreachable { endpoint: endpoint.to_owned(), detail }
}

impl ClientNetwork {
    fn host(&self) -> Host {
        Host::Client(self.client)
    }

    /// What the library does with an answer.
    fn ask<Q, A>(
        &self,
        endpoint: &str,
        kind: &'static str,
        request: Q,
        invoke: impl Fn(LockCalls, Request<Q>) -> Asked<A> + Send + Sync + 'static,
    ) -> Answered<A>
    where
        Q: Message + Clone + 'static,
        A: Message + 'static,
    {
        let at = endpoint.to_owned();
        let answer = self.call(endpoint, kind, request, invoke);
        async move {
            match answer.await {
                Some(answer) => answer.map_err(|status| holdfast::told(&at, &status)),
                None => Err(unreachable(&at)),
            }
        }
        .boxed()
    }

    /// One unary call. `None`: no answer came, and the request may have been applied.
    fn call<Q, A>(
        &self,
        endpoint: &str,
        kind: &'static str,
        request: Q,
        invoke: impl Fn(LockCalls, Request<Q>) -> Asked<A> + Send + Sync + 'static,
    ) -> BoxFuture<'static, Option<Result<A, Status>>>
    where
        Q: Message + Clone + 'static,
        A: Message + 'static,
    {
        let (network, from, node) = (self.network.clone(), self.host(), node_at(endpoint));
        async move {
            let bytes = request.encode_to_vec();
            let call = Call { from, to: node.ok()?, kind, bytes, may_come_twice: false };
            let answer = network.ask(call, move |port: Port| {
                let asked = invoke(port.calls, Request::new(request.clone()));
                async move { asked.await.map(Response::into_inner) }.boxed()
            });
            let answer = answer.await;
            if let Some(Err(status)) = &answer {
                network.reached(limit_in(status.message()));
            }
            answer
        }
        .boxed()
    }
}

macro_rules! asked {
    ($name:ident) => {
        |calls: LockCalls, request| async move { calls.$name(request).await }.boxed()
    };
}

/// The unary calls of a client without a stream. Cheap to clone.
#[derive(Clone)]
pub struct Calls(ClientNetwork);

impl std::fmt::Debug for Calls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Calls").field(&self.0.client).finish()
    }
}

macro_rules! calls {
    ($($name:ident: $request:ty => $answer:ty;)*) => {
        impl Calls {
            pub(super) fn of(client: ClientNetwork) -> Self {
                Self(client)
            }

            $(
                /// As the call of that name says; "unavailable" if no answer came.
                ///
                /// # Errors
                ///
                /// The status with which the node answered, or that of the connection.
                pub async fn $name(
                    &self,
                    endpoint: &str,
                    request: $request,
                ) -> Result<$answer, Status> {
                    let answer = self.0.call(endpoint, stringify!($name), request, asked!($name));
                    answer.await.unwrap_or_else(|| Err(Status::unavailable("no answer")))
                }
            )*
        }
    };
}

calls! {
    open_session: OpenSessionRequest => OpenSessionResponse;
    keep_alive: KeepAliveRequest => KeepAliveResponse;
    acquire: AcquireRequest => AcquireResponse;
    cancel: CancelRequest => CancelResponse;
    release: ReleaseRequest => ReleaseResponse;
    set_value: SetValueRequest => SetValueResponse;
    close_session: CloseSessionRequest => CloseSessionResponse;
    import: ImportRequest => ImportResponse;
}

impl Transport for ClientNetwork {
    fn open(&self, endpoint: &str) -> Answered<Pipe<ClientFrames, ServerFrames>> {
        let (network, host, endpoint) = (self.network.clone(), self.host(), endpoint.to_owned());
        let line = self.rights.line(self.client, self.process.clone());
        let client = self.client;
        async move {
            let node = node_at(&endpoint)?;
            let at = (network.clone(), endpoint.clone());
            let caller = caller_of(&network, client);
            let dialled = network.dial(host, node, SESSION, |port, frames, answers| {
                serve_session((port, caller), at, frames, answers).boxed()
            });
            let (to_node, incoming) = dialled.await.ok_or_else(|| unreachable(&endpoint))?;
            let (outgoing, asked) = mpsc::channel(AT_HAND);
            let told = Arc::clone(&line);
            network.spawn("line", async move {
                let asked = ReceiverStream::new(asked).inspect(move |frames| line.asks(frames));
                pump(asked.boxed(), &to_node).await;
            });
            let hearing = network.clone();
            let incoming = decoded(network, host, &endpoint, incoming).inspect(move |frames| {
                if let Ok(frames) = frames {
                    note_limits(&hearing, frames);
                    told.is_told(frames);
                }
            });
            Ok(Pipe { outgoing, incoming: incoming.boxed() })
        }
        .boxed()
    }

    fn keeps_together(&self) -> bool {
        self.keeps_together
    }

    /// A call of its own: how several share one is not simulated.
    fn keep_alive(&self, endpoint: &str, session: SessionKey) -> Answered<Renewed> {
        let (id, at) = (session.session_id, endpoint.to_owned());
        let apart = self.rights.apart(self.client, self.process.clone(), id);
        let request = KeepAliveManyRequest { sessions: vec![session] };
        let answer = self.ask(endpoint, "keep-alive-many", request, asked!(keep_alive_many));
        async move {
            let KeepAliveManyResponse { index, sessions, scopes, spread_ms } = answer.await?;
            let session = sessions.into_iter().next().ok_or_else(|| unreachable(&at))?;
            apart.is_told(&session);
            Ok(Renewed { index, session, scopes, spread_ms })
        }
        .boxed()
    }

    fn inspect(&self, endpoint: &str, request: InspectRequest) -> Answered<InspectResponse> {
        self.ask(endpoint, "inspect", request, asked!(inspect))
    }

    fn list(&self, endpoint: &str, request: ListRequest) -> Answered<ListResponse> {
        self.ask(endpoint, "list", request, asked!(list))
    }

    fn check_token(
        &self,
        endpoint: &str,
        request: CheckTokenRequest,
    ) -> Answered<CheckTokenResponse> {
        self.ask(endpoint, "check-token", request, asked!(check_token))
    }

    fn explain(&self, endpoint: &str, request: ExplainRequest) -> Answered<ExplainResponse> {
        self.ask(endpoint, "explain", request, asked!(explain))
    }

    fn advance(&self, endpoint: &str, request: AdvanceRequest) -> Answered<AdvanceResponse> {
        self.ask(endpoint, "advance", request, asked!(advance))
    }

    fn watch(&self, endpoint: &str, request: WatchRequest) -> Answered<Watched> {
        let (network, host, endpoint) = (self.network.clone(), self.host(), endpoint.to_owned());
        async move {
            let node = node_at(&endpoint)?;
            let at = (network.clone(), endpoint.clone());
            let dialled = network.dial(host, node, WATCH, |port, requests, news| {
                serve_watch(port, at, requests, news).boxed()
            });
            let (asking, mut incoming) = dialled.await.ok_or_else(|| unreachable(&endpoint))?;
            if asking.send(request).await.is_err() {
                return Err(unreachable(&endpoint));
            }
            match incoming.recv().await {
                // The first item only says that the stream began; the events follow it.
                Some(Ok(_)) => Ok(ReceiverStream::new(incoming).boxed()),
                Some(Err(error)) => Err(error),
                None => Err(unreachable(&endpoint)),
            }
        }
        .boxed()
    }

    fn status(&self, endpoint: &str, request: StatusRequest) -> Answered<StatusResponse> {
        self.ask(endpoint, "status", request, asked!(status))
    }
}

/// A client's decoder: it fails on a message that is too long, and reads no further.
fn decoded(
    network: Network,
    host: Host,
    endpoint: &str,
    incoming: mpsc::Receiver<Result<ServerFrames, TransportError>>,
) -> impl Stream<Item = Result<ServerFrames, TransportError>> + use<> {
    let at = endpoint.to_owned();
    let taken = move |failed: &mut bool, frames: Result<ServerFrames, TransportError>| {
        let fits = |frames: &ServerFrames| network.decodes(host, frames.encoded_len());
        let next = match frames {
            _ if *failed => None,
            Ok(frames) if !fits(&frames) => {
                *failed = true;
                let status = Status::out_of_range("decoded message length too large");
                Some(Err(holdfast::told(&at, &status)))
            }
            frames => Some(frames),
        };
        std::future::ready(next)
    };
    ReceiverStream::new(incoming).scan(false, taken)
}

/// Notes which size limits a client's requests were refused for, and that its State comes in pages.
fn note_limits(network: &Network, frames: &ServerFrames) {
    for body in frames.frames.iter().filter_map(|frame| frame.body.as_ref()) {
        let refusal = match body {
            Told::Refused(refused) => refused.refusal.as_ref(),
            Told::Denied(denied) => denied.refusal.as_ref(),
            Told::State(state) if state.more => {
                network.reached("state_page_bytes");
                None
            }
            _ => None,
        };
        if let Some(refusal) = refusal {
            network.reached(&refusal.limit);
        }
    }
}

/// The limit that a status names: in brackets, alone or as `name = value`.
fn limit_in(message: &str) -> &str {
    let brackets = message.split('(').skip(1);
    let inside = brackets.map(|rest| rest.split([')', ' ']).next().unwrap_or_default());
    let is_name = |text: &&str| {
        text.contains('_') && text.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase())
    };
    inside.filter(is_name).last().unwrap_or_default()
}

fn is_synced(told: &WatchResponse) -> bool {
    told.events()
        .unwrap_or_default()
        .iter()
        .any(|event| matches!(event.body, Some(News::Synced(_))))
}

/// Who a client has proved to be on a stream: one of a few identities, where the run has rules.
fn caller_of(network: &Network, client: u64) -> Caller {
    let Ok(identity) = Identity::parse(&identity_of(client)) else { return Caller::default() };
    if network.has_identities() { Caller { identity, is_admin: false } } else { Caller::default() }
}

/// The identity that client `number` proves on its streams. Its calls are anonymous.
pub fn identity_of(number: u64) -> String {
    format!("cn:group-{}", number % IDENTITIES)
}

/// Serves a session as the port for clients does.
async fn serve_session(
    (port, caller): (Port, Caller),
    (network, endpoint): (Network, String),
    frames: mpsc::Receiver<ClientFrames>,
    answers: mpsc::Sender<Result<ServerFrames, TransportError>>,
) {
    let (outgoing, said) = mpsc::channel(IN_HAND);
    let incoming = ReceiverStream::new(frames).map(Ok).boxed();
    let (tell, end) = oneshot::channel();
    let hub = port.hub.clone();
    let serve = async move {
        // A failure here means that the client is gone.
        let _ = tell.send(hub.serve(Pipe { outgoing, incoming }, &caller).await);
    };
    port.runtime.spawn("session-stream", serve).detach();
    pump(ReceiverStream::new(said).map(Ok).boxed(), &answers).await;
    if let Ok(Err(error)) = end.await {
        if let StreamError::Limit { limit, .. } = error {
            network.reached(limit);
        }
        let _ = answers.send(Err(last_word(&endpoint, &error))).await;
    }
}

async fn serve_watch(
    port: Port,
    (network, endpoint): (Network, String),
    mut requests: mpsc::Receiver<WatchRequest>,
    news: mpsc::Sender<Result<WatchResponse, TransportError>>,
) {
    let Some(request) = requests.recv().await else { return };
    match port.calls.watch(Request::new(request)).await {
        Ok(response) => {
            if news.send(Ok(WatchResponse::default())).await.is_ok() {
                let (pages, mut synced) = (network.clone(), false);
                let mut begins = 0_u32;
                let told = response.into_inner().inspect(move |told| {
                    // Each page of the state travels by itself.
                    begins += u32::from(!synced);
                    synced |= told.as_ref().is_ok_and(is_synced);
                    if begins > 1 {
                        pages.reached("watch_page_locks");
                    }
                });
                let told = told.map_err(move |status| {
                    network.reached(limit_in(status.message()));
                    holdfast::told(&endpoint, &status)
                });
                pump(told.boxed(), &news).await;
            }
        }
        Err(status) => {
            network.reached(limit_in(status.message()));
            drop(news.send(Err(holdfast::told(&endpoint, &status))).await);
        }
    }
}

/// The error that a stream ends with over gRPC when its session did not end it by its last frame.
fn last_word(endpoint: &str, error: &StreamError) -> TransportError {
    holdfast::told(endpoint, &of_stream_error(error))
}

macro_rules! frames {
    ($($message:ty),*) => {$(
        impl Frame for $message {
            fn bytes(&self) -> Vec<u8> {
                self.encode_to_vec()
            }
        }
    )*};
}

frames!(ClientFrames, WatchRequest);

impl<T: Message + 'static> Frame for Result<T, TransportError> {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Ok(message) => message.encode_to_vec(),
            Err(error) => error.to_string().into_bytes(),
        }
    }
}

impl<T: Message + 'static> Frame for Result<T, Status> {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Ok(message) => message.encode_to_vec(),
            Err(status) => status.message().as_bytes().to_vec(),
        }
    }
}

impl<T: Message + 'static> Reply for Result<T, TransportError> {
    fn broken() -> Self {
        Err(unreachable("the node"))
    }
}
