//! Two nodes over real connections: one leads, the other passes on.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use holdfast_core::{Command, Identity, RequestId, RuleChange, SessionId, Tenure, Verb};
use holdfast_proto::v1::client_frame::Body as Ask;
use holdfast_proto::v1::lock_service_client::LockServiceClient;
use holdfast_proto::v1::server_frame::Body as Said;
use holdfast_proto::v1::{
    ClientFrames, InspectRequest, PeerHeader, ServerFrames, StatusRequest, WatchRequest,
};
use holdfast_runtime::{Runtime, Task};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Streaming};

use super::*;
use crate::members::{Member, PeerView};
use crate::rpc::tests::cluster::Operated;
use crate::rpc::tests::rights::with;
use crate::rpc::tests::{CLUSTER, Info, acquire, message, next, node, node_with, open, serve};
use crate::rpc::{Forwarding, RpcSettings, Services, status};
use crate::session::fake::{Fake, Handle};
use crate::session::{Hub, SessionSettings};

/// The other members, as the test says.
#[derive(Debug, Default)]
pub(in crate::rpc) struct Others {
    leader: Mutex<Option<Member>>,
}

const OWN_ID: u64 = 7;

impl PeerView for Others {
    fn leader(&self) -> Option<Member> {
        self.leader.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn header(&self, to_node: u64) -> PeerHeader {
        PeerHeader { from_node: OWN_ID, to_node, ..PeerHeader::default() }
    }

    fn admit(&self, header: Option<&PeerHeader>) -> Result<(), String> {
        let from = header.map(|header| header.from_node);
        (from == Some(OWN_ID)).then_some(()).ok_or_else(|| "it is no member".to_owned())
    }
}

impl Others {
    fn follow(&self, leader: Option<Member>) {
        *self.leader.lock().unwrap_or_else(PoisonError::into_inner) = leader;
    }
}

/// A node that follows another one, and passes calls on to it.
pub(in crate::rpc) struct Front {
    pub(in crate::rpc) address: SocketAddr,
    /// The leader's port for members.
    peer_address: SocketAddr,
    metrics: ForwardingMetrics,
    taken: ForwardingMetrics,
    others: Arc<Others>,
    fake: Arc<Fake>,
    _tasks: Vec<Task>,
}

/// Where clients are told that the leader is.
const LEADER: &str = "node-1:7420";

fn leader_at(peer_advertise: String) -> Member {
    Member { node_id: 1, advertise: LEADER.to_owned(), peer_advertise }
}

/// Puts a node before the one with these services.
pub(in crate::rpc) async fn before(leader: &Services) -> Front {
    before_with(leader, SessionSettings::default().outbox_bytes_total).await
}

/// The same, where so many bytes may lie unread.
async fn before_with(leader: &Services, outbox_bytes_total: u64) -> Front {
    let taken = ForwardingMetrics::default();
    let gate = Arc::new(Others::default());
    let members = Server::builder().add_routes(tonic::service::Routes::default());
    let members = leader.for_members(members, gate, |_| None, taken.clone());
    let (peer_address, members) = serve(members);

    let runtime = Runtime::system();
    let fake = Fake::new(runtime.clone());
    fake.follow(Some(LEADER));
    let handle = Arc::new(Handle(fake.clone()));
    let settings = SessionSettings { outbox_bytes_total, ..SessionSettings::default() };
    let hub = Hub::start(handle, Arc::new(CLUSTER), settings, runtime.clone());
    let info = Arc::new(Info { ready: true.into() });
    let own = Arc::new(Operated::default());
    let services = Services::new(Arc::new(hub), info, own, &RpcSettings::default());
    let (others, metrics) = (Arc::new(Others::default()), ForwardingMetrics::default());
    others.follow(Some(leader_at(peer_address.to_string())));
    let (peers, metrics_too) = (others.clone(), metrics.clone());
    let forwarding = Forwarding { peers, links: Links::new(), metrics: metrics_too };
    let port = services.client_port(forwarding).unwrap();
    let (address, clients) = serve(port.router);
    runtime.sleep(Duration::from_millis(10)).await;
    let tasks = vec![members, clients, port.health];
    Front { address, peer_address, metrics, taken, others, fake, _tasks: tasks }
}

impl Front {
    async fn client(&self) -> LockServiceClient<Channel> {
        LockServiceClient::new(channel(self.address).await)
    }

    async fn stream(&self, first: Ask) -> (mpsc::Sender<ClientFrames>, Streaming<ServerFrames>) {
        let (outgoing, frames) = mpsc::channel(16);
        outgoing.send(message(first)).await.unwrap();
        let response = self.client().await.session(ReceiverStream::new(frames)).await.unwrap();
        (outgoing, response.into_inner())
    }
}

/// A way for one connection, which breaks when the task is dropped.
async fn way_to(address: SocketAddr) -> (SocketAddr, Task) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let way = listener.local_addr().unwrap();
    let carrying = Runtime::system().spawn("way", async move {
        let (mut from, _) = listener.accept().await.unwrap();
        let mut to = TcpStream::connect(address).await.unwrap();
        copy_bidirectional(&mut from, &mut to).await.unwrap();
    });
    (way, carrying)
}

pub(in crate::rpc) async fn channel(address: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    // The smallest window: what a client does not read soon does not reach it.
    endpoint.initial_stream_window_size(65_535).connect().await.unwrap()
}

fn inspect(name: &str) -> InspectRequest {
    InspectRequest { name: name.to_owned() }
}

#[tokio::test]
async fn calls_streams_and_watches_go_through_a_node_that_does_not_lead() {
    let leader = node().await;
    let front = before(&leader.services).await;
    let (outgoing, mut stream) = front.stream(open()).await;
    assert!(matches!(next(&mut stream).await, Ok(Said::Opened(_))));
    let watch = WatchRequest { prefix: "jobs".to_owned(), resume: None };
    let mut watch = front.client().await.watch(watch).await.unwrap().into_inner();

    outgoing.send(message(acquire(b"jobs".to_vec()))).await.unwrap();

    assert!(matches!(next(&mut stream).await, Ok(Said::Granted(_))));
    let held = front.client().await.inspect(inspect("jobs")).await.unwrap().into_inner();
    assert_eq!(held.lock.unwrap().holders[0].label, "tester");
    assert!(watch.message().await.unwrap().is_some());
    assert_eq!((front.metrics.passed_on.get(), front.taken.taken_in.get()), (3, 3));
    assert_eq!(front.metrics.open.get(), 2, "a stream and a watch");
    drop((outgoing, stream, watch));
    let runtime = Runtime::system();
    while front.metrics.open.get() > 0 {
        runtime.sleep(Duration::from_millis(5)).await;
    }
    // What is about the node itself stays there.
    let status = front.client().await.status(StatusRequest {}).await.unwrap().into_inner();
    assert_eq!((status.node_id, front.metrics.passed_on.get()), (7, 3));
}

/// A client that forges a member's word on its own port stays the caller that its connection shows.
#[tokio::test]
async fn a_members_word_counts_on_the_port_for_members_alone() {
    let leader = node().await;
    let owner = leader.token(1, &[(Verb::Read, "jobs")], None);
    leader.rule(RuleChange::Turn { on: true });
    let front = before(&leader.services).await;
    let shown = Shown::Identity(Identity::parse("token:t1").unwrap());
    let word = Forwarded {
        header: Some(Others::default().header(1)),
        caller: named(&shown),
        from: "somewhere".to_owned(),
    };
    let forged = |word: Forwarded| {
        let mut request = Request::new(inspect("jobs"));
        let value = MetadataValue::from_bytes(&word.encode_to_vec());
        request.metadata_mut().insert_bin(FORWARDED, value);
        request
    };

    for port in [leader.address, front.address] {
        let mut client = LockServiceClient::new(channel(port).await);
        let status = client.inspect(forged(word.clone())).await.unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
        client.inspect(with(inspect("jobs"), Some(owner))).await.unwrap();
    }
    let mut client = LockServiceClient::new(channel(front.peer_address).await);
    client.inspect(forged(word.clone())).await.unwrap();
    let stranger = PeerHeader { from_node: 99, ..PeerHeader::default() };
    for header in [None, Some(stranger)] {
        let status = client.inspect(forged(Forwarded { header, ..word.clone() })).await;
        let status = status.unwrap_err();
        assert_eq!(status.message(), "it is no member");
    }
    let status = client.inspect(with(inspect("jobs"), Some(owner))).await.unwrap_err();
    assert_eq!(status.message(), "on this port only members pass on calls");
}

/// I22: a node's certificate passes on nothing in the name of another node.
#[tokio::test]
async fn a_member_passes_calls_on_in_its_own_name_alone() {
    let leader = node().await;
    let members = Server::builder().add_routes(tonic::service::Routes::default());
    let gate = Arc::new(Others::default());
    let metrics = ForwardingMetrics::default();
    let (address, _members) =
        serve(leader.services.for_members(members, gate, |_| Some(3), metrics));
    let front = before(&leader.services).await;
    front.others.follow(Some(leader_at(address.to_string())));

    let status = front.client().await.inspect(inspect("jobs")).await.unwrap_err();
    assert_eq!(status.message(), "the certificate of this connection is that of node 3");
}

#[tokio::test]
async fn a_leader_that_is_not_reached_has_done_nothing_and_is_named() {
    let leader = node().await;
    let front = before(&leader.services).await;
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    front.others.follow(Some(leader_at(nobody.to_string())));

    let status = front.client().await.inspect(inspect("jobs")).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert_eq!(status.metadata().get(status::LEADER).unwrap(), LEADER);
    assert_eq!(front.metrics.failed.get(), 1);
    assert_eq!(front.metrics.open.get(), 0);
}

/// The leader takes the call, and its connection breaks before the answer.
#[tokio::test]
async fn a_call_whose_connection_breaks_has_an_unknown_outcome() {
    let leader = node().await;
    let front = before(&leader.services).await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    front.others.follow(Some(leader_at(listener.local_addr().unwrap().to_string())));
    let take_and_close = std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        // The preface and the settings of HTTP/2; then the call, or the end of it.
        std::io::Write::write_all(&mut connection, &[0, 0, 0, 4, 0, 0, 0, 0, 0]).unwrap();
        connection.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        while std::io::Read::read(&mut connection, &mut [0; 4096]).is_ok_and(|count| count > 0) {}
    });

    let status = front.client().await.inspect(inspect("jobs")).await.unwrap_err();
    take_and_close.join().unwrap();
    assert_eq!(status.code(), Code::Unknown, "{status:?}");
    assert!(status.message().contains("whether the call took effect is not known"), "{status:?}");
    assert!(status.metadata().get(status::LEADER).is_none());
}

#[tokio::test]
async fn a_stream_whose_leader_goes_ends_with_a_status() {
    let leader = node().await;
    let front = before(&leader.services).await;
    let (way, carrying) = way_to(front.peer_address).await;
    front.others.follow(Some(leader_at(way.to_string())));
    let (_outgoing, mut stream) = front.stream(open()).await;
    assert!(matches!(next(&mut stream).await, Ok(Said::Opened(_))));

    drop(carrying);

    let status = stream.message().await.unwrap_err();
    assert_eq!(status.code(), Code::Unknown, "{status:?}");
}

#[tokio::test]
async fn a_client_that_goes_to_the_leader_itself_is_told_where_it_is_unless_it_failed_there() {
    let leader = node().await;
    let front = before(&leader.services).await;
    let mut client = front.client().await;
    let asked = |failed: &'static str| {
        let mut request = Request::new(inspect("jobs"));
        request.metadata_mut().insert("holdfast-redirect", MetadataValue::from_static(failed));
        request
    };

    for failed in ["", "node-2:7420", "node-1:742"] {
        let status = client.inspect(asked(failed)).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        assert_eq!(status.metadata().get(status::LEADER).unwrap(), LEADER);
    }
    assert_eq!(front.metrics.passed_on.get(), 0);
    for failed in [LEADER, "node-2:7420, node-1:7420"] {
        client.inspect(asked(failed)).await.unwrap();
    }
}

#[tokio::test]
async fn a_call_is_passed_on_once_and_the_answer_of_a_node_that_does_not_lead_names_the_leader() {
    let leader = node().await;
    let front = before(&leader.services).await;
    leader.fake.follow(Some("node-3:7420"));

    let status = front.client().await.inspect(inspect("jobs")).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(status.metadata().get(status::LEADER).unwrap(), "node-3:7420");
    assert_eq!(front.taken.taken_in.get(), 1);
}

/// Until the last node is upgraded, the leader may be one that takes no calls in.
#[tokio::test]
async fn clients_are_sent_to_a_leader_of_an_older_release() {
    let leader = node().await;
    let front = before(&leader.services).await;
    let bare = Server::builder().add_routes(tonic::service::Routes::default());
    let (bare, _members) = serve(bare);
    front.others.follow(Some(leader_at(bare.to_string())));

    for passed_on in [1, 1] {
        let status = front.client().await.inspect(inspect("jobs")).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        assert_eq!(status.metadata().get(status::LEADER).unwrap(), LEADER);
        assert_eq!(front.metrics.passed_on.get(), passed_on);
    }
}

/// Every reason that the leader gives reaches the caller as it was given.
#[tokio::test]
async fn a_refusal_reaches_the_caller_with_its_details() {
    let leader = node().await;
    let front = before(&leader.services).await;
    let direct = leader.client().await.inspect(inspect("a\nb")).await.unwrap_err();
    let through = front.client().await.inspect(inspect("a\nb")).await.unwrap_err();
    assert_eq!(
        (through.code(), through.message(), through.details()),
        (direct.code(), direct.message(), direct.details())
    );
}

#[tokio::test]
async fn a_node_that_leads_or_knows_no_leader_answers_itself() {
    let leader = node().await;
    let front = before(&leader.services).await;
    front.others.follow(None);
    front.fake.lead(2);
    Runtime::system().sleep(Duration::from_millis(10)).await;

    front.client().await.inspect(inspect("jobs")).await.unwrap();
    assert_eq!((front.metrics.passed_on.get(), front.taken.taken_in.get()), (0, 0));
}

/// Until a predicate holds; the test fails by its own time limit otherwise.
async fn until(holds: impl Fn() -> bool) {
    let runtime = Runtime::system();
    let holding = async {
        while !holds() {
            runtime.sleep(Duration::from_millis(5)).await;
        }
    };
    runtime.timeout(Duration::from_secs(20), holding).await.expect("it holds in time");
}

fn attached(leader: &crate::rpc::tests::Node) -> i64 {
    leader.services.hub.metrics().attached_streams.get()
}

#[tokio::test]
async fn hundreds_of_streams_share_one_call_and_end_at_the_leader_with_their_clients() {
    let leader = node().await;
    let front = before(&leader.services).await;
    let mut streams = Vec::new();
    for _ in 0..300 {
        let (outgoing, mut stream) = front.stream(open()).await;
        assert!(matches!(next(&mut stream).await, Ok(Said::Opened(_))));
        streams.push((outgoing, stream));
    }
    assert_eq!((attached(&leader), front.metrics.open.get()), (300, 300));
    for (outgoing, _) in &streams {
        outgoing.send(message(acquire(b"jobs".to_vec()))).await.unwrap();
    }
    let (_, first) = &mut streams[0];
    assert!(matches!(next(first).await, Ok(Said::Granted(_))));

    streams.truncate(100);
    until(|| attached(&leader) == 100 && front.metrics.open.get() == 100).await;
    drop(streams);
    until(|| attached(&leader) == 0 && front.metrics.open.get() == 0).await;
    assert_eq!(front.metrics.unread_bytes.get(), 0);
}

/// I27 through another node: what a client leaves unread ends its stream, and holds up no other.
#[tokio::test]
async fn a_stream_that_is_not_read_ends_by_the_name_of_the_limit_and_holds_up_no_other() {
    let settings = SessionSettings { outbox_frames: 1_024, ..SessionSettings::default() };
    let leader = node_with(settings).await;
    let front = before(&leader.services).await;
    leader.open_session(&"x".repeat(256));
    leader.acquire(1, 1, "jobs");
    let (_slow, mut unread) = front.stream(open()).await;
    assert!(matches!(next(&mut unread).await, Ok(Said::Opened(_))));
    let (quick, mut read) = front.stream(open()).await;
    assert!(matches!(next(&mut read).await, Ok(Said::Opened(_))));

    for request in 1..=10_000 {
        leader.acquire(2, request, "jobs");
        let (session, request) = (SessionId::new(2), RequestId::new(request));
        leader
            .fake
            .commit(Command::Cancel { session, done_below: request, request }, Tenure::new(1));
        if request.get() % 500 == 0 {
            Runtime::system().sleep(Duration::from_millis(1)).await;
        }
    }
    quick.send(message(acquire(b"others".to_vec()))).await.unwrap();
    assert!(matches!(next(&mut read).await, Ok(Said::Granted(_))));

    let mut read = 0;
    let status = loop {
        match unread.message().await {
            Ok(message) => read += message.expect("no plain end").frames.len(),
            Err(status) => break status,
        }
    };
    assert!(read < 10_000, "all {read} pushes came");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("outbox_frames = 1024"), "{status:?}");
}

/// What clients leave unread has a budget at the node that passes it on, too.
#[tokio::test]
async fn what_lies_unread_here_is_bounded_for_all_streams_together() {
    let leader = node().await;
    let front = before_with(&leader.services, 40_000).await;
    leader.open_session(&"x".repeat(256));
    leader.acquire(1, 1, "jobs");
    let mut streams = Vec::new();
    for session in 2..=4 {
        let (outgoing, mut stream) = front.stream(open()).await;
        assert!(matches!(next(&mut stream).await, Ok(Said::Opened(_))));
        streams.push((session, outgoing, stream));
    }
    for request in 1..=2_000 {
        for session in 2..=4 {
            leader.acquire(session, request, "jobs");
            let (session, request) = (SessionId::new(session), RequestId::new(request));
            leader
                .fake
                .commit(Command::Cancel { session, done_below: request, request }, Tenure::new(1));
        }
    }
    let ends = async |stream: &mut Streaming<ServerFrames>| loop {
        if let Err(status) = stream.message().await {
            break status;
        }
    };
    let mut cut = 0;
    for (_, _outgoing, stream) in &mut streams {
        let status = Runtime::system().timeout(Duration::from_secs(3), ends(stream)).await;
        cut += usize::from(status.is_ok_and(|status| status.message().contains("= 40000")));
    }
    assert!(cut >= 1, "{cut}");
    drop(streams);
    until(|| front.metrics.unread_bytes.get() == 0).await;
}

#[tokio::test]
async fn messages_that_are_no_frames_or_too_long_end_their_stream_as_at_the_leader() {
    let leader = node().await;
    let front = before(&leader.services).await;
    for address in [leader.address, front.address] {
        let mut client = LockServiceClient::new(channel(address).await);
        let (outgoing, frames) = mpsc::channel(16);
        outgoing.send(message(open())).await.unwrap();
        outgoing.send(message(acquire(vec![b'x'; (1 << 20) + 1]))).await.unwrap();
        let mut stream = client.session(ReceiverStream::new(frames)).await.unwrap().into_inner();
        let status = loop {
            if let Err(status) = stream.message().await {
                break status;
            }
        };
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        assert!(status.message().contains("1048576"), "{status:?}");

        let mut grpc = tonic::client::Grpc::new(channel(address).await);
        grpc.ready().await.unwrap();
        let path = "/holdfast.v1.LockService/Session".parse().unwrap();
        let garbage = inspect("\u{1}\u{2}\u{3} no frames");
        let codec = tonic_prost::ProstCodec::<InspectRequest, ServerFrames>::default();
        let request = Request::new(tokio_stream::iter([garbage]));
        let mut answer = grpc.streaming(request, path, codec).await.unwrap().into_inner();
        let status = answer.message().await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    }
}
