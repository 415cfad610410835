//! The port over real connections, with a fake replica behind the hub.

mod acts;
mod arriving;
mod backup;
mod calls;
pub(super) mod cluster;
mod frames;
mod fuzz;
mod one_decision;
pub(super) mod rights;
mod scopes;
mod watching;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use holdfast_core::{Command, Label, LockName, Need, RequestId, SessionId, Tenure};
use holdfast_proto::v1::client_frame::Body as Ask;
use holdfast_proto::v1::lock_service_client::LockServiceClient;
use holdfast_proto::v1::server_frame::Body;
use holdfast_proto::v1::{
    self, Acquire, ClientFrame, ClientFrames, InspectRequest, InspectSessionRequest, Item,
    ListRequest, Open, Resume, ServerFrames, StatusRequest, StatusResponse,
};
use holdfast_runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Status, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ListServiceResponse, ServerReflectionRequest};

use super::*;
use crate::session::SessionSettings;
use crate::session::fake::{Fake, Handle};

pub(super) const CLUSTER: Bytes = Bytes::from_static(b"cluster-of-tests");

/// A node that serves a free port of this machine until it is dropped.
pub(super) struct Node {
    pub(super) fake: Arc<Fake>,
    hub: Arc<Hub>,
    info: Arc<Info>,
    members: Arc<cluster::Operated>,
    pub(super) address: SocketAddr,
    pub(super) services: Services,
    _ports: Vec<Task>,
}

#[derive(Debug)]
pub(super) struct Info {
    pub(super) ready: AtomicBool,
}

impl NodeInfo for Info {
    fn status(&self) -> StatusResponse {
        let ready = self.ready.load(Ordering::Relaxed);
        StatusResponse { node_id: 7, ready, ..StatusResponse::default() }
    }
}

pub(super) async fn node() -> Node {
    node_with(SessionSettings::default()).await
}

pub(super) async fn node_with(settings: SessionSettings) -> Node {
    node_of(settings, &RpcSettings::default()).await
}

async fn node_of(settings: SessionSettings, rpc: &RpcSettings) -> Node {
    let runtime = Runtime::system();
    let fake = Fake::new(runtime.clone());
    fake.lead(1);
    let handle = Arc::new(Handle(fake.clone()));
    let hub = Arc::new(Hub::start(handle, Arc::new(CLUSTER), settings, runtime.clone()));
    let info = Arc::new(Info { ready: AtomicBool::new(true) });
    let members = Arc::new(cluster::Operated::default());
    let services = Services::new(hub.clone(), info.clone(), members.clone(), rpc);
    let port = services.client_port(alone()).unwrap();
    let (address, serve) = serve(port.router);
    // The hub learns its role.
    runtime.sleep(Duration::from_millis(10)).await;
    Node { fake, hub, info, members, address, services, _ports: vec![serve, port.health] }
}

/// Serves a free port of this machine.
pub(super) fn serve(router: Router) -> (SocketAddr, Task) {
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = incoming.local_addr().unwrap();
    let incoming = incoming.with_nodelay(Some(true));
    let serve = async move {
        router.serve_with_incoming(incoming).await.unwrap();
    };
    (address, Runtime::system().spawn("port", serve))
}

/// A node that knows no other.
fn alone() -> Forwarding {
    let peers = Arc::new(forwarding::tests::Others::default());
    Forwarding { peers, links: Links::new(), metrics: ForwardingMetrics::default() }
}

impl Node {
    async fn channel(&self) -> Channel {
        let endpoint = format!("http://{}", self.address);
        let endpoint = Channel::from_shared(endpoint).unwrap();
        // The smallest window: what a client does not read soon stays at the server.
        endpoint.initial_stream_window_size(65_535).connect().await.unwrap()
    }

    pub(super) async fn client(&self) -> LockServiceClient<Channel> {
        LockServiceClient::new(self.channel().await)
    }

    /// A session stream with `first` on its way.
    async fn stream(&self, first: Ask) -> (mpsc::Sender<ClientFrames>, Streaming<ServerFrames>) {
        let (outgoing, frames) = mpsc::channel(16);
        outgoing.send(message(first)).await.unwrap();
        let response = self.client().await.session(ReceiverStream::new(frames)).await.unwrap();
        (outgoing, response.into_inner())
    }

    /// A session with a lock of each name, held.
    fn hold(&self, names: &[&str]) {
        self.open_session("tester");
        for (request, name) in (1..).zip(names) {
            self.acquire(1, request, name);
        }
    }

    pub(super) fn open_session(&self, label: &str) {
        let label = Label::parse(label).unwrap();
        let open = Command::OpenSession { ttl_ms: 60_000, label, secret_hash: [0; 32] };
        self.fake.commit(open, Tenure::new(1));
    }

    /// A session that holds them under one grant.
    fn hold_together(&self, names: &[&str]) {
        self.open_session("tester");
        self.acquire_all(1, 1, names);
    }

    pub(super) fn acquire(&self, session: u64, request: u64, name: &str) {
        self.acquire_all(session, request, &[name]);
    }

    fn acquire_all(&self, session: u64, request: u64, names: &[&str]) {
        let item = |name: &&str| holdfast_core::Item::exclusive(LockName::parse(name).unwrap());
        let acquire = Command::Acquire {
            session: SessionId::new(session),
            done_below: RequestId::new(0),
            request: RequestId::new(request),
            items: names.iter().map(item).collect(),
            need: Need::All,
            wait: true,
        };
        self.fake.commit(acquire, Tenure::new(1));
    }
}

pub(super) fn message(body: Ask) -> ClientFrames {
    ClientFrames { frames: vec![ClientFrame { done_below: 0, body: Some(body) }] }
}

pub(super) fn open() -> Ask {
    Ask::Open(Open { label: "tester".to_owned(), ..Open::default() })
}

pub(super) fn acquire(name: Vec<u8>) -> Ask {
    let items = vec![Item { name: name.into(), ..Item::default() }];
    Ask::Acquire(Acquire { request_id: 1, items, wait: true, ..Acquire::default() })
}

pub(super) async fn next(stream: &mut Streaming<ServerFrames>) -> Result<Body, Status> {
    let message = stream.message().await?.expect("the stream goes on");
    Ok(message.frames.into_iter().next().unwrap().body.unwrap())
}

#[tokio::test]
async fn a_session_opens_and_acquires_over_a_connection() {
    let node = node().await;
    let (outgoing, mut stream) = node.stream(open()).await;
    assert!(matches!(next(&mut stream).await, Ok(Body::Opened(_))));

    outgoing.send(message(acquire(b"jobs".to_vec()))).await.unwrap();
    assert!(matches!(next(&mut stream).await, Ok(Body::Granted(_))));
}

#[tokio::test]
async fn a_protocol_error_is_invalid_argument_and_says_what_was_wrong() {
    let node = node().await;
    let (_outgoing, mut stream) = node.stream(acquire(b"jobs".to_vec())).await;

    let status = stream.message().await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(status.message(), "the first frame of a stream must be Open");
}

#[tokio::test]
async fn a_message_above_the_cap_is_refused_with_the_cap() {
    let node = node().await;
    let (outgoing, mut stream) = node.stream(open()).await;
    next(&mut stream).await.unwrap();
    outgoing.send(message(acquire(vec![b'x'; (1 << 20) + 1]))).await.unwrap();

    let status = stream.message().await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("1048576"), "{status:?}");
}

/// The bytes are a gRPC message whose content is no `ClientFrames`.
#[tokio::test]
async fn bytes_that_do_not_decode_end_the_stream_and_not_the_server() {
    let node = node().await;
    let channel = node.channel().await;
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.unwrap();
    let path = "/holdfast.v1.LockService/Session".parse().unwrap();
    // Any other message type: a prefix of one string reads as frames that do not decode.
    let garbage = InspectRequest { name: "\u{1}\u{2}\u{3} no frames".to_owned() };
    let codec = tonic_prost::ProstCodec::<InspectRequest, ServerFrames>::default();
    let request = tonic::Request::new(tokio_stream::iter([garbage]));
    let response = grpc.streaming(request, path, codec).await.unwrap();

    let status = response.into_inner().message().await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    let (_outgoing, mut stream) = node.stream(open()).await;
    assert!(matches!(next(&mut stream).await, Ok(Body::Opened(_))));
}

/// I27, over a real connection: the pushes fill the windows and then the outbox. The connection lives:
/// the client can read what was sent, then comes the reason, and another stream works.
#[tokio::test]
async fn ten_thousand_unread_pushes_end_their_stream_by_the_name_of_the_limit() {
    let settings = SessionSettings { outbox_frames: 1_024, ..SessionSettings::default() };
    let node = node_with(settings).await;
    // The holder's label makes each push a large one.
    node.open_session(&"x".repeat(256));
    node.acquire(1, 1, "jobs");
    let (_outgoing, mut stream) = node.stream(open()).await;
    assert!(matches!(next(&mut stream).await, Ok(Body::Opened(_))));
    for request in 1..=10_000 {
        node.acquire(2, request, "jobs");
        let (session, request) = (SessionId::new(2), RequestId::new(request));
        node.fake.commit(Command::Cancel { session, done_below: request, request }, Tenure::new(1));
        if request.get() % 500 == 0 {
            Runtime::system().sleep(Duration::from_millis(1)).await;
        }
    }

    let mut read = 0;
    let status = loop {
        match stream.message().await {
            Ok(message) => read += message.expect("no plain end").frames.len(),
            Err(status) => break status,
        }
    };
    assert!(read < 10_000, "all {read} pushes came");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("outbox_frames = 1024"), "{status:?}");
    let (_outgoing, mut stream) = node.stream(open()).await;
    assert!(matches!(next(&mut stream).await, Ok(Body::Opened(_))));
}

#[tokio::test]
async fn a_stream_without_a_quorum_ends_unavailable() {
    let node = node().await;
    let (_first, mut stream) = node.stream(open()).await;
    let Ok(Body::Opened(opened)) = next(&mut stream).await else { panic!("not opened") };
    node.fake.set_quorum(false);
    let resume = Resume {
        session_id: opened.session_id,
        secret: opened.secret,
        cluster_id: opened.cluster_id,
        ..Resume::default()
    };
    let again = Ask::Open(Open { resume: Some(resume), ..Open::default() });
    let (_second, mut stream) = node.stream(again).await;

    assert_eq!(stream.message().await.unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn a_read_on_a_node_that_does_not_lead_names_the_leader_in_its_metadata() {
    let node = node().await;
    node.fake.follow(Some("node-2:7420"));
    let request = InspectRequest { name: "jobs".to_owned() };

    let status = node.client().await.inspect(request).await.unwrap_err();

    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(status.metadata().get(status::LEADER).unwrap(), "node-2:7420");
}

#[tokio::test]
async fn inspect_shows_holder_and_queue_and_nothing_for_a_free_lock() {
    let node = node().await;
    node.hold(&["jobs", "jobs", "jobs"]);
    let mut client = node.client().await;
    let mut inspect = async |name: &str| {
        let response = client.inspect(InspectRequest { name: name.to_owned() }).await;
        response.map(tonic::Response::into_inner)
    };

    let held = inspect("jobs").await.unwrap().lock.unwrap();
    assert_eq!((held.holders[0].label.as_str(), held.waiting), ("tester", 2));
    let waiting: Vec<u64> = held.queue.iter().map(|waiter| waiter.request_id).collect();
    assert_eq!(waiting, [2, 3]);
    assert_eq!(inspect("free").await.unwrap().lock, None);
    let status = inspect("a\nb").await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("U+000A at byte 1"), "{status:?}");
}

/// Nothing is written meanwhile; the age of the hold grows all the same.
#[tokio::test]
async fn inspect_shows_how_long_a_lock_is_held_on_a_store_at_rest() {
    let node = node().await;
    node.hold(&["jobs"]);
    Runtime::system().sleep(Duration::from_millis(50)).await;

    let request = InspectRequest { name: "jobs".to_owned() };
    let answer = node.client().await.inspect(request).await.unwrap().into_inner();
    assert!(answer.lock.unwrap().holders[0].held_ms >= 50);
}

#[tokio::test]
async fn a_session_tells_what_is_left_of_its_lease() {
    let node = node().await;
    node.open_session("tester");
    node.hub.runtime().sleep(Duration::from_millis(60)).await;

    let mut client = node.client().await;
    let request = InspectSessionRequest { session_id: 1 };
    let shown = client.inspect_session(request).await.unwrap().into_inner().session.unwrap();
    let page = client.list_sessions(v1::ListSessionsRequest::default()).await.unwrap().into_inner();

    // The leader adds its margin to the TTL.
    let margin_ms = SessionSettings::default().margin_ms;
    let most = shown.ttl_ms + margin_ms - 50;
    for left in [shown.left_ms.unwrap(), page.sessions[0].left_ms.unwrap()] {
        assert!((shown.ttl_ms / 2..=most).contains(&left), "{left} of {}", shown.ttl_ms);
    }
}

/// R1: a thousand sets of 64 names would make an answer of 33 MB, and a client takes 16 MiB.
#[tokio::test]
async fn a_session_is_shown_with_a_mebibyte_of_names_and_the_number_of_all_its_requests() {
    let node = node().await;
    node.open_session("tester");
    for request in 1..=50 {
        let name = |nth: u64| format!("{request:0>8}{nth:0>504}");
        let names: Vec<String> = (0..64).map(name).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        node.acquire_all(1, request, &names);
    }

    let request = InspectSessionRequest { session_id: 1 };
    let answer = node.client().await.inspect_session(request).await.unwrap().into_inner();
    let session = answer.session.unwrap();

    let names = session.requests.iter().flat_map(|request| &request.names);
    assert_eq!(names.map(String::len).sum::<usize>(), 1 << 20);
    assert_eq!((session.requests.len(), session.request_count), (32, 50));
    assert!(session.requests.iter().all(|request| request.name_count == 64));
}

#[tokio::test]
async fn list_pages_through_a_prefix_in_name_order() {
    let node = node().await;
    node.hold(&["a", "jobs/3", "jobs/1", "jobs/2", "z"]);
    let mut client = node.client().await;
    let mut pages = Vec::new();
    let mut page_token = String::new();
    loop {
        let prefix = "jobs/".to_owned();
        let request = ListRequest { prefix, page_size: Some(2), page_token };
        let page = client.list(request).await.unwrap().into_inner();
        pages.push(page.locks.into_iter().map(|lock| lock.name).collect::<Vec<_>>());
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }

    assert_eq!(pages, [vec!["jobs/1", "jobs/2"], vec!["jobs/3"]]);
}

#[tokio::test]
async fn sequences_are_listed_page_by_page_with_their_last_numbers() {
    let node = node().await;
    let mut client = node.client().await;
    for (name, by) in [("a", 1), ("ids/3", 7), ("ids/1", 1), ("ids/2", 65_536), ("ids/1", 2)] {
        let request = v1::AdvanceRequest { name: name.to_owned(), by };
        client.advance(request).await.unwrap();
    }
    let begun = v1::BeginSequenceRequest { name: "ids/4".to_owned(), at: 1 };
    client.begin_sequence(begun).await.unwrap();
    let mut pages = Vec::new();
    let mut page_token = String::new();
    loop {
        let prefix = "ids/".to_owned();
        let request = v1::ListSequencesRequest { prefix, page_size: Some(3), page_token };
        let page = client.list_sequences(request).await.unwrap().into_inner();
        let shown = |of: v1::Sequence| (of.name, of.last);
        pages.push(page.sequences.into_iter().map(shown).collect::<Vec<_>>());
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }

    let expected = [("ids/1", 3), ("ids/2", 65_536), ("ids/3", 7), ("ids/4", 0)];
    let expected = expected.map(|(name, last)| (name.to_owned(), last));
    assert_eq!(pages, [expected[..3].to_vec(), expected[3..].to_vec()]);
}

#[tokio::test]
async fn a_sequence_refuses_what_it_cannot_give() {
    let node = node().await;
    let mut client = node.client().await;
    let ask = |name: &str, by| v1::AdvanceRequest { name: name.to_owned(), by };
    let begin = |at| v1::BeginSequenceRequest { name: "ids".to_owned(), at };
    client.begin_sequence(begin(u64::MAX - 1)).await.unwrap();
    let cases = [
        (client.advance(ask("ids", 0)).await.unwrap_err(), Code::ResourceExhausted, "not 0"),
        (
            client.advance(ask("ids", 65_537)).await.unwrap_err(),
            Code::ResourceExhausted,
            "1 to 65536",
        ),
        (
            client.advance(ask("ids", 3)).await.unwrap_err(),
            Code::FailedPrecondition,
            "numbers left: 2",
        ),
        (
            client.advance(ask("", 1)).await.unwrap_err(),
            Code::InvalidArgument,
            "name of the sequence is not usable",
        ),
        (
            client.begin_sequence(begin(7)).await.unwrap_err(),
            Code::FailedPrecondition,
            "only above 18446744073709551613",
        ),
        (
            client.begin_sequence(begin(0)).await.unwrap_err(),
            Code::FailedPrecondition,
            "only above 18446744073709551613",
        ),
    ];
    for (status, code, words) in cases {
        assert_eq!(status.code(), code, "{status:?}");
        assert!(status.message().contains(words), "{status:?}");
    }

    let last = client.advance(ask("ids", 2)).await.unwrap().into_inner();
    assert_eq!(last.first, u64::MAX - 1);
}

#[tokio::test]
async fn a_bad_page_size_token_or_prefix_is_refused_by_name() {
    let node = node().await;
    let mut client = node.client().await;
    let page = |page_size, page_token: &str, prefix: &str| ListRequest {
        prefix: prefix.to_owned(),
        page_size,
        page_token: page_token.to_owned(),
    };
    let foreign = reads::token("other/1");
    let cases = [
        (page(Some(0), "", ""), "page_size 0 is outside 1 to 1000"),
        (page(Some(1_001), "", ""), "page_size 1001 is outside 1 to 1000"),
        (page(None, "nonsense", ""), "the page_token is not one"),
        (page(None, "1zz", ""), "the page_token is not one"),
        (page(None, &foreign, "jobs/"), "the page_token is not one"),
        (page(None, "", "a\u{7}"), "the prefix is not usable"),
    ];
    for (request, words) in cases {
        let status = client.list(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains(words), "{status:?}");
    }
}

#[tokio::test]
async fn status_answers_on_any_node() {
    let node = node().await;
    node.fake.follow(None);

    let status = node.client().await.status(StatusRequest {}).await.unwrap().into_inner();

    assert_eq!((status.node_id, status.ready), (7, true));
}

#[tokio::test]
async fn health_is_serving_while_the_node_is_ready() {
    let node = node().await;
    let mut health = HealthClient::new(node.channel().await);
    for ready in [true, false, true] {
        node.info.ready.store(ready, Ordering::Relaxed);
        Runtime::system().sleep(2 * HEALTH_EVERY).await;
        for service in ["", "holdfast.v1.LockService"] {
            let request = HealthCheckRequest { service: service.to_owned() };
            let answer = health.check(request).await.unwrap().into_inner();
            let expected = if ready { ServingStatus::Serving } else { ServingStatus::NotServing };
            assert_eq!(answer.status, expected as i32);
        }
    }
}

#[tokio::test]
async fn reflection_lists_the_services() {
    let node = node().await;
    let mut reflection = ServerReflectionClient::new(node.channel().await);
    let ask = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let answers = reflection.server_reflection_info(tokio_stream::iter([ask])).await.unwrap();
    let answer = answers.into_inner().message().await.unwrap().unwrap();

    let Some(MessageResponse::ListServicesResponse(ListServiceResponse { service })) =
        answer.message_response
    else {
        panic!("not a list");
    };
    let names: Vec<_> = service.iter().map(|service| service.name.as_str()).collect();
    assert!(names.contains(&"holdfast.v1.LockService"), "{names:?}");
    assert!(names.contains(&"holdfast.v1.ClusterService"), "{names:?}");
    assert!(names.contains(&"grpc.health.v1.Health"), "{names:?}");
}

/// I32: tonic alone would wait for the stream without end.
#[tokio::test]
async fn shutdown_ends_open_streams_with_going_away_and_cancelled() {
    let node = node().await;
    let (_outgoing, mut stream) = node.stream(open()).await;
    next(&mut stream).await.unwrap();

    let stopped = tokio::join!(node.hub.shutdown(), async {
        assert!(matches!(next(&mut stream).await, Ok(Body::GoingAway(_))));
        stream.message().await.unwrap_err()
    });

    assert_eq!(stopped.1.code(), Code::Cancelled);
}
