//! Spans of requests that bring a trace along, as a collector of OpenTelemetry gets them.
#![allow(clippy::unwrap_used, reason = "helpers of these tests")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdfast::Client;
use holdfast_proto::v1::lock_service_client::LockServiceClient;
use holdfast_proto::v1::{Acquire, AcquireRequest, Item, OpenSessionRequest};
use holdfast_runtime::Runtime;
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::program::Program;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

const LIMIT: Duration = Duration::from_secs(30);
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// A header of the trace, with these flags.
fn header(flags: &str) -> String {
    format!("00-{TRACE}-{PARENT}-{flags}")
}

/// A collector that keeps what it gets.
#[derive(Clone, Debug, Default)]
struct Collector(Arc<Mutex<Vec<Span>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let resources = request.into_inner().resource_spans.into_iter();
        let scopes = resources.flat_map(|resource| resource.scope_spans);
        self.0.lock().unwrap().extend(scopes.flat_map(|scope| scope.spans));
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    async fn start() -> (Self, String) {
        let collector = Self::default();
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", port.local_addr().unwrap());
        let service = TraceServiceServer::new(collector.clone());
        let serving = Server::builder().add_service(service);
        let serving = serving.serve_with_incoming(TcpListenerStream::new(port));
        Runtime::system().spawn("collector", async move { serving.await.unwrap() }).detach();
        (collector, address)
    }

    /// The spans of this name for this lock, once there are so many.
    async fn spans(&self, name: &str, lock: &str, count: usize) -> Vec<Span> {
        let runtime = Runtime::system();
        let until = runtime.clock.now() + LIMIT;
        loop {
            let spans = self.0.lock().unwrap().clone();
            let is_meant = |span: &&Span| span.name == name && text(span, "holdfast.lock") == lock;
            let meant: Vec<_> = spans.iter().filter(is_meant).cloned().collect();
            if meant.len() >= count {
                return meant;
            }
            assert!(runtime.clock.now() < until, "{count} of {name} for {lock}: {spans:?}");
            runtime.sleep(Duration::from_millis(50)).await;
        }
    }
}

fn text(span: &Span, key: &str) -> String {
    let value = span.attributes.iter().find(|attribute| attribute.key == key);
    match value.and_then(|attribute| attribute.value.as_ref()?.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        _ => String::new(),
    }
}

fn lasted(span: &Span) -> Duration {
    Duration::from_nanos(span.end_time_unix_nano - span.start_time_unix_nano)
}

fn has_failed(span: &Span) -> bool {
    span.status.as_ref().is_some_and(|status| status.code == i32::from(StatusCode::Error))
}

async fn one_node(endpoint: &str) -> Cluster {
    let setup = Setup::nodes(1).node("otlp_endpoint", format!("{endpoint:?}"));
    let cluster = Cluster::start(&setup).await;
    cluster.leader().await;
    cluster
}

#[tokio::test]
async fn a_traced_request_has_a_span_of_its_wait_and_one_of_its_hold_below_the_callers() {
    let (collector, endpoint) = Collector::start().await;
    let cluster = one_node(&endpoint).await;
    let client = Client::connect(cluster.endpoints().split(',')).await.unwrap();
    let other = Client::connect(cluster.endpoints().split(',')).await.unwrap();
    let first = client.lock("jobs/1").await.unwrap();
    let waiting = other.lock("jobs/1").traceparent(&header("01")).enqueue();
    Runtime::system().sleep(Duration::from_millis(300)).await;
    first.release().await.unwrap();
    let second = waiting.await.unwrap();
    let token = second.token().to_string();
    Runtime::system().sleep(Duration::from_millis(200)).await;
    second.release().await.unwrap();

    let wait = collector.spans("holdfast.acquire", "jobs/1", 1).await.remove(0);
    let hold = collector.spans("holdfast.hold", "jobs/1", 1).await.remove(0);
    for span in [&wait, &hold] {
        assert_eq!(hex::encode(&span.trace_id), TRACE);
        assert_eq!(hex::encode(&span.parent_span_id), PARENT);
        assert_eq!(text(span, "holdfast.token"), token);
        assert!(!has_failed(span), "{span:?}");
    }
    assert!(lasted(&wait) >= Duration::from_millis(250), "{wait:?}");
    assert!(lasted(&hold) >= Duration::from_millis(200), "{hold:?}");
    assert_eq!(wait.events.first().map(|event| event.name.as_str()), Some("queued"));
}

#[tokio::test]
async fn a_request_that_is_denied_or_lost_has_a_span_that_failed() {
    let (collector, endpoint) = Collector::start().await;
    let cluster = one_node(&endpoint).await;
    let client = Client::connect(cluster.endpoints().split(',')).await.unwrap();
    let held = client.lock("jobs/2").traceparent(&header("01")).await.unwrap();
    client.try_lock("jobs/2").traceparent(&header("01")).await.unwrap_err();
    client.close().await.unwrap();
    drop(held);

    let asked = collector.spans("holdfast.acquire", "jobs/2", 2).await;
    assert_eq!(asked.iter().map(has_failed).collect::<Vec<_>>(), [false, true]);
    let lost = collector.spans("holdfast.hold", "jobs/2", 1).await;
    assert!(has_failed(&lost[0]), "its session ended: {lost:?}");
}

/// By the variable of the command line, and by the metadata of a call.
#[tokio::test]
async fn a_trace_comes_from_the_command_line_and_with_calls_too_and_only_if_it_is_sampled() {
    let (collector, endpoint) = Collector::start().await;
    let cluster = one_node(&endpoint).await;
    let endpoints = cluster.endpoints();
    for (lock, traceparent) in [
        ("cli", header("01")),
        ("unsampled", header("00")),
        ("broken", "00-xyz-01".to_owned()),
        ("long", format!("{}{}", header("01"), "-0".repeat(10_000))),
    ] {
        let arguments = ["--endpoints", &endpoints, "lock", lock, "--", "true"];
        let variables = [("TRACEPARENT", traceparent.as_str())];
        let ended = Program::start_in("holdfast", &arguments, &variables).end(LIMIT).await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
    call(&format!("http://{endpoints}"), "called").await;

    for lock in ["cli", "called"] {
        let spans = collector.spans("holdfast.acquire", lock, 1).await;
        assert_eq!(hex::encode(&spans[0].trace_id), TRACE);
    }
    // What came later is there: the others would be, too.
    let all = collector.0.lock().unwrap().clone();
    let untraced =
        |span: &&Span| ["unsampled", "broken", "long"].contains(&&*text(span, "holdfast.lock"));
    assert_eq!(all.iter().find(untraced), None);
}

/// Takes a lock by calls, with the trace as metadata.
async fn call(endpoint: &str, lock: &str) {
    let mut calls = LockServiceClient::connect(endpoint.to_owned()).await.unwrap();
    let opened = calls.open_session(OpenSessionRequest::default()).await.unwrap().into_inner();
    let item = Item { name: lock.as_bytes().to_vec().into(), ..Item::default() };
    let acquire = Acquire { request_id: 1, items: vec![item], ..Acquire::default() };
    let asked = AcquireRequest {
        session: opened.session,
        acquire: Some(acquire),
        ..AcquireRequest::default()
    };
    let mut request = Request::new(asked);
    request.metadata_mut().insert("traceparent", header("01").parse().unwrap());
    calls.acquire(request).await.unwrap();
}

/// A collector that is away, or never answers, costs nobody a lock.
#[tokio::test]
async fn without_a_collector_locks_are_granted_as_ever() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    for endpoint in
        ["http://127.0.0.1:1".to_owned(), format!("http://{}", silent.local_addr().unwrap())]
    {
        let mut cluster = one_node(&endpoint).await;
        let client = Client::connect(cluster.endpoints().split(',')).await.unwrap();
        for _ in 0..1_200 {
            client.lock("jobs").traceparent(&header("01")).await.unwrap().release().await.unwrap();
        }
        cluster.signal(0, nix::sys::signal::Signal::SIGTERM);
        assert!(cluster.wait_for_exit(0).await.success());
    }
}
