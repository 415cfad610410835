//! A node as a process, from its first line to its last: it serves, reports its state on the admin
//! port, survives garbage, and stops within its time.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a helper that fails ends its test"
)]

mod certificates;
mod left_by_earlier;
mod open_files;
mod session_thread;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_proto::v1::lock_service_client::LockServiceClient;
use holdfast_proto::v1::server_frame::Body as ServerBody;
use holdfast_proto::v1::{
    Acquire, ClientFrame, ClientFrames, Item, KeepAlive, Open, Release, Resume, ServerFrames,
    StatusRequest, client_frame::Body,
};
use nix::sys::signal::Signal;
use support::{Node, PATIENCE, Setup, assert_holds, cluster, cluster_in, eventually, get, leads};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

const SERVICE: &str = "holdfast.v1.LockService";

async fn channel(address: SocketAddr) -> Channel {
    Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

/// A session stream of the generated client, as in another language.
struct Stream {
    outgoing: mpsc::Sender<ClientFrames>,
    incoming: Streaming<ServerFrames>,
}

impl Stream {
    async fn open(address: SocketAddr) -> Self {
        Self::open_for(address, None).await
    }

    async fn open_for(address: SocketAddr, ttl_ms: Option<u64>) -> Self {
        Self::open_as(address, "a test", ttl_ms).await
    }

    async fn open_as(address: SocketAddr, label: &str, ttl_ms: Option<u64>) -> Self {
        Self::begin(address, Open { label: label.to_owned(), ttl_ms, ..Open::default() }).await
    }

    async fn resume(address: SocketAddr, resume: Resume) -> Self {
        Self::begin(address, Open { resume: Some(resume), ..Open::default() }).await
    }

    async fn begin(address: SocketAddr, open: Open) -> Self {
        let (outgoing, frames) = mpsc::channel(16);
        let mut client = LockServiceClient::new(channel(address).await);
        Self::send_on(&outgoing, Body::Open(open)).await;
        let incoming = client.session(ReceiverStream::new(frames)).await.unwrap().into_inner();
        Self { outgoing, incoming }
    }

    async fn send_on(outgoing: &mpsc::Sender<ClientFrames>, body: Body) {
        let frame = ClientFrame { done_below: 0, body: Some(body) };
        outgoing.send(ClientFrames { frames: vec![frame] }).await.unwrap();
    }

    async fn send(&self, body: Body) {
        Self::send_on(&self.outgoing, body).await;
    }

    /// The first answer that satisfies `wanted`; the stream must not end before.
    async fn answer(&mut self, wanted: fn(&ServerBody) -> bool) -> ServerBody {
        loop {
            let frames = self.incoming.message().await.unwrap().expect("the stream ended").frames;
            if let Some(body) = frames.into_iter().filter_map(|frame| frame.body).find(wanted) {
                return body;
            }
        }
    }

    async fn is_opened(&mut self) {
        self.answer(|body| matches!(body, ServerBody::Opened(_))).await;
    }

    async fn keeps_alive(&mut self) {
        self.send(Body::KeepAlive(KeepAlive { seq: 1 })).await;
        self.answer(|body| matches!(body, ServerBody::KeptAlive(_))).await;
    }

    async fn asks_for(&self, name: &str, request_id: u64) {
        self.send(small(name, request_id)).await;
    }

    /// Returns the token.
    async fn acquires(&mut self, name: &str, request_id: u64) -> u64 {
        self.asks_for(name, request_id).await;
        match self.answer(|body| matches!(body, ServerBody::Granted(_))).await {
            ServerBody::Granted(granted) => granted.token,
            other => panic!("{other:?}"),
        }
    }

    /// Sends the request, then reads until a grant or the end of the stream. Returns whether a
    /// grant came, which it releases.
    async fn is_granted(&mut self, acquire: Body) -> bool {
        self.send(acquire).await;
        while let Ok(Some(message)) = self.incoming.message().await {
            for frame in message.frames {
                if let Some(ServerBody::Granted(granted)) = frame.body {
                    self.send(Body::Release(Release {
                        token: granted.token,
                        ..Release::default()
                    }))
                    .await;
                    return true;
                }
            }
        }
        false
    }

    async fn queues(&mut self, name: &str, request_id: u64) {
        self.asks_for(name, request_id).await;
        self.answer(|body| matches!(body, ServerBody::Queued(_))).await;
    }

    async fn releases(&mut self, token: u64) {
        self.send(Body::Release(Release { token, ..Release::default() })).await;
        self.answer(|body| matches!(body, ServerBody::Released(_))).await;
    }
}

/// The pipe holds 64 KiB, which a few requests fill at this level. The reader of the log may hang;
/// the node still serves.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "real processes live in real time")]
async fn a_node_whose_log_nobody_reads_serves_and_stops() {
    let mut node = Setup::new().flags(&["--log-level", "trace,h2=trace"]).starts_unread();
    // It sends no keepalives, and a loaded machine takes longer than the usual TTL for so many log lines.
    let mut stream = Stream::open_for(node.setup.listen, Some(120_000)).await;
    stream.is_opened().await;

    let work = async {
        for request in 1..=300 {
            let token = stream.acquires("jobs", request).await;
            stream.releases(token).await;
        }
    };
    tokio::time::timeout(PATIENCE, work).await.expect("the node stands still");

    node.signal(Signal::SIGTERM);
    assert_eq!(node.ends().code(), Some(0));
}

#[tokio::test]
async fn a_single_node_leads_and_grants_without_any_configuration_of_a_cluster() {
    let node = Setup::new().starts();

    let mut stream = Stream::open(node.setup.listen).await;
    stream.is_opened().await;
    stream.acquires("jobs", 1).await;

    let mut client = LockServiceClient::new(channel(node.setup.listen).await);
    let status = client.status(StatusRequest {}).await.unwrap().into_inner();
    assert!(status.ready);
    assert_eq!((status.node_id, status.leader_id), (1, Some(1)));
    assert_eq!(status.leader, Some(node.setup.listen.to_string()));
    assert_eq!(status.cluster_id.len(), 16);
}

/// Names of locks, values and hashes of secrets are nobody else's; a folder may have been made by hand.
#[test]
fn what_a_node_writes_is_its_users_alone_whatever_the_umask() {
    use std::os::unix::fs::PermissionsExt as _;

    let folder = TempDir::new().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o755)).unwrap();

    let node = Setup::on(&data).starts();

    let limits = std::fs::read_to_string(format!("/proc/{}/limits", node.process_id())).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().filter(|word| *word == "0").count(), 2, "{core}");
    let mut left = vec![data];
    let mut seen = 0;
    while let Some(path) = left.pop() {
        let found = std::fs::metadata(&path).unwrap();
        assert_eq!(found.permissions().mode() & 0o077, 0, "{}", path.display());
        seen += 1;
        if found.is_dir() {
            left.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    assert!(seen > 3, "{seen} files are no data folder");
}

/// Also of those that the system hands to a program, for which no limit of their size counts. The files of such a
/// process in `/proc` are root's.
#[test]
fn a_nodes_memory_gets_into_no_core_dump() {
    use std::os::unix::fs::MetadataExt as _;

    let node = Setup::new().starts_as_another_group();

    let found = std::fs::metadata(format!("/proc/{}/environ", node.process_id())).unwrap();
    assert_eq!((found.uid(), found.gid()), (0, 0), "it can be dumped");
}

/// The output for a person who starts it by hand.
#[test]
fn the_first_lines_say_where_clients_connect_where_data_lies_and_that_it_leads() {
    let node = Setup::new().starts();

    let data = node.setup.data.to_str().unwrap();
    let clients = node.setup.listen.to_string();
    let log = eventually(|| Some(node.log()).filter(|log| log.contains("leads"))).unwrap();
    assert_holds(
        &log,
        &[concat!("holdfastd ", env!("CARGO_PKG_VERSION")), &clients, data, "cluster", "leads"],
    );
}

#[test]
fn log_lines_for_machines_are_json() {
    let node = Setup::new().flags(&["--log-format", "json"]).starts();

    let log = node.log();
    assert_lines_for_machines(&log);
    assert!(log.lines().count() > 2);
}

/// Each line is one object, and has what `docs/log.md` says.
fn assert_lines_for_machines(log: &str) {
    let document = include_str!("../../../docs/log.md");
    for line in log.lines() {
        let parsed: serde_json::Value = serde_json::from_str(line).expect(line);
        for field in ["timestamp", "level", "target", "message"] {
            assert!(parsed[field].is_string(), "{line}");
        }
        for field in parsed.as_object().unwrap().keys() {
            assert!(document.contains(&format!("| `{field}` |")), "{field} in {line}");
        }
    }
}

#[tokio::test]
async fn health_is_answered_over_grpc() {
    let node = Setup::new().starts();
    let mut client = HealthClient::new(channel(node.setup.listen).await);

    for service in ["", SERVICE] {
        let request = HealthCheckRequest { service: service.to_owned() };
        // The health service follows the node's readiness, after a moment.
        let mut updates = client.watch(request).await.unwrap().into_inner();
        while updates.message().await.unwrap().unwrap().status() != ServingStatus::Serving {}
    }
}

#[tokio::test]
async fn reflection_lists_the_lock_service() {
    let node = Setup::new().starts();
    let mut client = ServerReflectionClient::new(channel(node.setup.listen).await);
    let list = MessageRequest::ListServices(String::new());
    let request = ServerReflectionRequest { host: String::new(), message_request: Some(list) };

    let answers = client.server_reflection_info(tokio_stream::once(request)).await.unwrap();
    let answer = answers.into_inner().message().await.unwrap().unwrap();

    let Some(MessageResponse::ListServicesResponse(listed)) = answer.message_response else {
        panic!("{answer:?}");
    };
    assert!(listed.service.iter().any(|service| service.name == SERVICE), "{listed:?}");
}

/// Each metric of a scrape, without the end `_total` of counters, with its kind and meaning.
fn scraped(metrics: &str) -> BTreeMap<String, (String, String)> {
    let about = |what: &str| -> BTreeMap<String, String> {
        let lines = metrics.lines().filter_map(|line| line.strip_prefix(what)?.split_once(' '));
        lines.map(|(name, said)| (name.to_owned(), said.to_owned())).collect()
    };
    let (kinds, meanings) = (about("# TYPE "), about("# HELP "));
    let meaning = |name: &String| meanings[name].trim_end_matches('.').to_owned();
    kinds.into_iter().map(|(name, kind)| (name.clone(), (kind, meaning(&name)))).collect()
}

/// The rows of `docs/metrics.md`, in the same form, and whether each is there from the beginning.
fn documented() -> BTreeMap<String, ((String, String), bool)> {
    let document = include_str!("../../../docs/metrics.md");
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let (name, kind, meaning) = (cells.next()?, cells.next()?, cells.next()?);
        let (name, later) = match name.trim_end_matches('`').strip_suffix("` *") {
            Some(name) => (name, true),
            None => (name.trim_end_matches('`'), false),
        };
        let meaning = meaning.trim_end_matches(" |").to_owned();
        let name = name.trim_end_matches("_total").to_owned();
        Some((name, ((kind.to_owned(), meaning), !later)))
    };
    document.lines().filter_map(row).collect()
}

/// Each is there, and means what the document says, and none is beside it.
#[test]
fn the_document_of_the_metrics_is_that_of_a_scrape() {
    let node = Setup::new().starts();
    let metrics = eventually(|| get(node.setup.admin_listen, "/metrics")).unwrap();

    let (scraped, documented) = (scraped(&metrics), documented());

    for (name, found) in &scraped {
        let said = documented.get(name).map(|(said, _)| said);
        assert_eq!(said, Some(found), "{name} in docs/metrics.md");
        assert!(name.starts_with("holdfast_") || name.starts_with("process_"), "{name}");
    }
    let always = documented.iter().filter(|(_, (_, always))| *always).map(|(name, _)| name);
    for name in always {
        assert!(scraped.contains_key(name), "docs/metrics.md has {name}, which no scrape has");
    }
    assert!(scraped.len() > 60, "{} metrics", scraped.len());
}

/// The metrics that are above 0 on a node after some traffic.
const COUNTED: [&str; 12] = [
    "raft_term",
    "raft_applied_index",
    "raft_log_index",
    "raft_snapshot_index",
    "log_bytes",
    "log_syncs_total",
    "log_sync_seconds_count",
    "batch_commands_count",
    "commit_seconds_count",
    "quorum_rounds_total",
    "disk_free_bytes",
    "table_bytes",
];

/// What the leader has measured of locks after the same traffic, and what was refused.
const OF_LOCKS: [(&str, u64); 9] = [
    ("closed_holds_total", 0),
    ("wait_seconds_count{prefix=\"other\"}", 0),
    ("hold_seconds_count{prefix=\"jo\"}", 60),
    ("hold_seconds_count{prefix=\"other\"}", 1),
    ("grant_seconds_count{prefix=\"jo\"}", 61),
    ("grant_seconds_count{prefix=\"other\"}", 1),
    ("queue_waiters{prefix=\"jo\"}", 1),
    ("longest_queue", 1),
    ("refusals_total{reason=\"limit\"}", 0),
];

/// A metric that is not connected would stay at 0 for ever. So everything that can happen to one
/// node in a few seconds happens here, except a client so slow that it is cut off.
#[tokio::test]
async fn metrics_count_what_happens() {
    let flags = ["--snapshot-log-bytes", "12288", "--metrics-prefixes", "jo"];
    let node = Setup::new().flags(&flags).starts();
    let mut stream = Stream::open(node.setup.listen).await;
    stream.is_opened().await;
    stream.keeps_alive().await;
    for request in 1..=60 {
        let token = stream.acquires("jobs", request).await;
        stream.releases(token).await;
    }
    stream.acquires("jobs", 61).await;
    let mut dying = Stream::open_for(node.setup.listen, Some(1_000)).await;
    dying.is_opened().await;
    dying.acquires("other", 1).await;
    drop(dying);
    let mut waiting = Stream::open(node.setup.listen).await;
    waiting.is_opened().await;
    waiting.queues("jobs", 1).await;

    let metrics = eventually(|| {
        let metrics = get(node.setup.admin_listen, "/metrics")?;
        let happened = ["expiries_total", "snapshot_seconds_count", "table_bytes_limit"];
        happened.iter().all(|name| value_of(&metrics, name) > 0).then_some(metrics)
    });

    let metrics = metrics.expect("no expiry or no snapshot in time");
    let expected = [
        ("sessions", 2),
        ("streams", 2),
        ("locks_held", 1),
        ("waiters", 1),
        ("grants_total", 62),
        ("releases_total", 60),
        ("losses_total", 1),
        ("expiry_lateness_seconds_count", 1),
        ("keepalives_total", 1),
        ("keepalives_acknowledged_total", 1),
        ("outbox_overflows_total", 0),
        ("outbox_evictions_total", 0),
        ("outbox_bytes", 0),
        ("watch_bytes", 0),
        ("watches_waiting", 0),
        ("watches_resumed_total", 0),
        ("watches_compacted_total", 0),
        ("leader", 1),
        ("ready", 1),
        ("raft_members", 1),
        ("disk_below_reserve", 0),
        ("table_bytes_limit", 1 << 30),
        ("work_left", 0),
        ("connections{port=\"clients\"}", 2),
        ("connections_limit{port=\"admin\"}", 32),
        ("connections_limit{port=\"clients\"}", 131_072.min(open_files::left_for_clients())),
    ];
    for (name, value) in expected.into_iter().chain(OF_LOCKS) {
        assert_eq!(value_of(&metrics, name), value, "{name}");
    }
    for name in COUNTED {
        assert!(value_of(&metrics, name) >= 1, "{name} is 0");
    }
    assert!(!metrics.contains("jobs"), "a lock name in the metrics");
}

fn value_of(metrics: &str, name: &str) -> u64 {
    let mut values = metrics.lines().filter_map(|line| {
        line.strip_prefix("holdfast_")?.strip_prefix(name)?.strip_prefix(' ')?.parse().ok()
    });
    values.next().expect(name)
}

/// During this wait the client's end does nothing: its connection stays open, like that of a paused
/// client.
#[tokio::test]
async fn a_node_that_is_asked_to_stop_sends_its_streams_away_and_ends_in_time() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut node = Setup::new().starts();
        let mut stream = Stream::open(node.setup.listen).await;
        stream.is_opened().await;

        node.signal(signal);

        stream.answer(|body| matches!(body, ServerBody::GoingAway(_))).await;
        let status = stream.incoming.message().await.unwrap_err();
        assert_eq!(status.code(), Code::Cancelled, "{status}");
        assert_eq!(node.ends_within(Duration::from_secs(3)).code(), Some(0), "{}", node.log());
    }
}

/// What was granted is still granted: the session outlives its node. The log is applied again for that, and the
/// counters, which begin at 0 with the process, do not count it again.
#[tokio::test]
async fn a_hold_survives_a_graceful_restart_and_is_not_counted_again() {
    let node = Setup::new().starts();
    let mut stream = Stream::open(node.setup.listen).await;
    stream.is_opened().await;
    let token = stream.acquires("other", 1).await;
    stream.releases(token).await;
    stream.acquires("jobs", 2).await;

    let node = node.stop().starts();

    let metrics = get(node.setup.admin_listen, "/metrics").unwrap();
    assert_eq!((value_of(&metrics, "sessions"), value_of(&metrics, "locks_held")), (1, 1));
    let counted = ["grants_total", "releases_total"].map(|name| value_of(&metrics, name));
    assert_eq!(counted, [0, 0]);
    let mut stream = Stream::open(node.setup.listen).await;
    stream.is_opened().await;
    stream.acquires("more", 1).await;
    let metrics = get(node.setup.admin_listen, "/metrics").unwrap();
    assert_eq!(value_of(&metrics, "grants_total"), 1);
}

/// A failed write is followed by no acknowledgement, and nothing acknowledged before is lost.
#[tokio::test]
async fn a_write_that_fails_ends_the_node_which_names_the_file_and_the_space_it_needs() {
    let mut node = Setup::new().starts_short_of_space();
    let mut stream = Stream::open(node.setup.listen).await;
    stream.is_opened().await;
    stream.acquires("kept", 1).await;
    // The first segment of the log fits into the space, and not each of the next ones, which are longer.
    let mut request = 2;
    while stream.is_granted(large(request)).await {
        request += 1;
    }

    assert_eq!(node.ends().code(), Some(74), "{}", node.log());
    assert_holds(&node.log(), &["holdfastd: cannot write", "/log", "free at least"]);

    let node = Setup::on(&node.setup.data).starts();
    let metrics = get(node.setup.admin_listen, "/metrics").unwrap();
    assert!(value_of(&metrics, "locks_held") >= 1);
    assert!(value_of(&metrics, "raft_applied_index") >= request);
}

/// A request for one lock.
fn small(name: &str, request_id: u64) -> Body {
    let items = vec![Item { name: name.as_bytes().to_vec().into(), ..Item::default() }];
    Body::Acquire(Acquire { request_id, items, wait: true, ..Acquire::default() })
}

/// A request for a set of 64 names of 512 bytes.
fn large(request_id: u64) -> Body {
    let name = |number: u64| format!("{request_id:0256}{number:0256}").into_bytes().into();
    let items = (0..64).map(|number| Item { name: name(number), ..Item::default() }).collect();
    Body::Acquire(Acquire { request_id, items, wait: true, ..Acquire::default() })
}

/// R2, I27: otherwise the requests of one session could take gigabytes on every member.
#[tokio::test]
async fn a_full_table_refuses_by_the_limits_name_what_would_make_it_larger_and_nothing_else() {
    let node = Setup::new().flags(&["--max-table-bytes", "1048576"]).starts();
    let metric = |name| value_of(&get(node.setup.admin_listen, "/metrics").unwrap(), name);
    // The leader sets it once it has asked all members for their versions.
    let set = eventually(|| (metric("table_bytes_limit") == 1 << 20).then_some(()));
    assert!(set.is_some(), "{}", node.log());
    let mut stream = Stream::open(node.setup.listen).await;
    stream.is_opened().await;
    let told = |body: &ServerBody| matches!(body, ServerBody::Granted(_) | ServerBody::Refused(_));

    let mut tokens = Vec::new();
    let refusal = loop {
        stream.send(large(tokens.len() as u64 + 1)).await;
        match stream.answer(told).await {
            ServerBody::Granted(granted) => tokens.push(granted.token),
            ServerBody::Refused(refused) => break refused.refusal.unwrap(),
            other => panic!("{other:?}"),
        }
    };

    // 774 bytes for the session, and 192 + 64 · (256 + 512) for each request.
    assert_eq!((refusal.limit.as_str(), tokens.len()), ("max_table_bytes", 21), "{refusal:?}");
    assert_eq!(metric("table_bytes"), 774 + 21 * 49_344);
    stream.keeps_alive().await;
    stream.releases(tokens[0]).await;
    let confirmed = ClientFrame { done_below: 2, body: Some(large(22)) };
    stream.outgoing.send(ClientFrames { frames: vec![confirmed] }).await.unwrap();
    let answer = stream.answer(told).await;
    assert!(matches!(answer, ServerBody::Granted(_)), "{answer:?}");
}

/// The other members never come: no leader, no quorum, and still the node ends on request.
#[test]
fn a_node_that_waits_for_its_members_says_so_and_stops_in_time() {
    let setup = Setup::new();
    let members = format!(
        "1={}/{} 2=127.0.0.1:1/127.0.0.1:2 3=127.0.0.1:3/127.0.0.1:4",
        setup.listen, setup.peer_listen
    );
    let mut node = setup.flags(&["--members", &members]).starts_unready();

    let unready = eventually(|| {
        node.assert_runs();
        get(node.setup.admin_listen, "/readyz").filter(|answer| answer.contains("waiting for"))
    });

    assert_holds(&unready.unwrap(), &["503", "forming: ", "2", "3"]);
    assert_holds(&get(node.setup.admin_listen, "/healthz").unwrap(), &["200"]);
    node.signal(Signal::SIGTERM);
    assert_eq!(node.ends().code(), Some(0), "{}", node.log());
}

#[test]
fn three_nodes_form_a_cluster_and_the_rest_go_on_when_the_leader_stops() {
    let mut nodes = cluster(3);
    let leader = eventually(|| nodes.iter().position(leads)).expect("nobody leads");
    nodes.remove(leader).stop();

    assert!(eventually(|| nodes.iter().position(leads)).is_some(), "nobody leads any more");
    nodes.iter_mut().for_each(Node::becomes_ready);
}

/// A leader without followers cannot hand over; a second signal ends the wait.
#[test]
fn a_second_signal_ends_a_node_at_once() {
    let mut nodes = cluster(2);
    let leader = eventually(|| nodes.iter().position(leads)).expect("nobody leads");
    let mut leader = nodes.swap_remove(leader);
    drop(nodes);

    leader.signal(Signal::SIGTERM);
    assert!(eventually(|| leader.log().contains("stopping").then_some(())).is_some());
    leader.signal(Signal::SIGTERM);

    assert_eq!(leader.ends_within(Duration::from_secs(1)).code(), Some(130), "{}", leader.log());
}

/// Noise of several kinds: refused or ignored at once, never fatal.
#[tokio::test]
async fn garbage_on_any_port_harms_nobody() {
    let mut nodes = cluster(2);
    let leader = eventually(|| nodes.iter().position(leads)).expect("nobody leads");
    let mut node = nodes.swap_remove(leader);

    for port in [node.setup.listen, node.setup.peer_listen, node.setup.admin_listen] {
        for noise in noises() {
            throw(port, &noise);
        }
    }

    node.assert_runs();
    node.becomes_ready();
    let mut stream = Stream::open(node.setup.listen).await;
    stream.is_opened().await;
    stream.acquires("jobs", 1).await;
}

/// Makes the data folders among a release's fixtures (`tests/fixtures/README.md`) in the folder that
/// `HOLDFAST_FIXTURES` names. It is run once, in a build of the release.
#[tokio::test]
#[ignore = "makes fixtures of the release it is built from; only with HOLDFAST_FIXTURES"]
async fn data_folders_of_this_release_are_left() {
    let Some(folder) = std::env::var_os("HOLDFAST_FIXTURES").map(PathBuf::from) else { return };
    let one =
        Setup::on(&folder.join("one-node")).flags(&["--snapshot-log-bytes", "12288"]).starts();
    let kept = left_by_earlier::fill(one.setup.listen).await;
    wait_for_expiry_and_snapshot(std::slice::from_ref(&one));
    write_sessions(&folder.join("one-node.sessions"), &kept);
    one.stop();

    let mut nodes = cluster_in(&folder, 3, &["--snapshot-log-bytes", "12288"]);
    let leader = eventually(|| nodes.iter().position(leads)).expect("nobody leads");
    let kept = left_by_earlier::fill(nodes[leader].setup.listen).await;
    wait_for_expiry_and_snapshot(&nodes);
    write_sessions(&folder.join("three-nodes.sessions"), &kept);
    for node in &mut nodes {
        // As a crash leaves them.
        node.signal(Signal::SIGKILL);
        node.ends();
    }
}

fn write_sessions(path: &Path, sessions: &[left_by_earlier::Client]) {
    let lines: String = sessions.iter().map(left_by_earlier::Client::line).collect();
    std::fs::write(path, lines).unwrap();
}

fn wait_for_expiry_and_snapshot(nodes: &[Node]) {
    let counts = |name: &str, node: &Node| {
        get(node.setup.admin_listen, "/metrics").map_or(0, |metrics| value_of(&metrics, name))
    };
    let left = eventually(|| {
        let expired = nodes.iter().any(|node| counts("expiries_total", node) > 0);
        let frozen = nodes.iter().all(|node| counts("raft_snapshot_index", node) > 50);
        (expired && frozen).then_some(())
    });
    left.expect("no expiry or no snapshot in time");
}

/// The sessions, waits, values and imports of earlier releases are served, and go on (I17, I19).
#[tokio::test]
async fn what_earlier_releases_left_in_the_folder_of_one_node_is_served() {
    for from in left_by_earlier::RELEASES.map(left_by_earlier::fixtures) {
        let folder = TempDir::new().unwrap();
        let data = folder.path().join("data");
        left_by_earlier::copy(&from.join("one-node"), &data);

        let node = Setup::on(&data).starts();

        left_by_earlier::assert_serves_what_was_left(node.setup.listen).await;
        left_by_earlier::assert_goes_on(node.setup.listen, &from.join("one-node.sessions")).await;
    }
}

/// Three members that were killed at the same moment, restarted at other addresses.
#[tokio::test]
async fn what_earlier_releases_left_in_the_folders_of_three_nodes_is_served() {
    for from in left_by_earlier::RELEASES.map(left_by_earlier::fixtures) {
        let folder = TempDir::new().unwrap();
        for node in ["node-1", "node-2", "node-3"] {
            left_by_earlier::copy(&from.join(node), &folder.path().join(node));
        }

        let nodes = cluster_in(folder.path(), 3, &[]);

        let leader = eventually(|| nodes.iter().position(leads)).expect("nobody leads");
        let leader = nodes[leader].setup.listen;
        left_by_earlier::assert_serves_what_was_left(leader).await;
        left_by_earlier::assert_goes_on(leader, &from.join("three-nodes.sessions")).await;
    }
}

fn noises() -> Vec<Vec<u8>> {
    let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = |length: usize| {
        let next = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed.to_le_bytes()[0]
        };
        std::iter::repeat_with(next).take(length).collect::<Vec<u8>>()
    };
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    vec![
        Vec::new(),
        b"\0".to_vec(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        random(64),
        random(100_000),
        preface.clone(),
        [preface.clone(), random(10_000)].concat(),
        [preface, vec![0xFF; 1_000]].concat(),
    ]
}

/// Sends noise, waits for an answer for a moment, and leaves. Any reaction of the node is allowed.
fn throw(port: SocketAddr, noise: &[u8]) {
    let mut stream = TcpStream::connect(port).expect("the port is closed");
    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let _ = stream.write_all(noise);
    let _ = stream.read(&mut [0; 256]);
}
