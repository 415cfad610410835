//! A watch against servers whose every answer the test writes, on virtual time.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "helpers of tests stop the test when something is not as it must be"
)]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use holdfast::{
    ChangeKind, Client, Error, LostReason, Mode, Reader, RefusalReason, Watch, WatchEvent,
};
use holdfast_mutants::{Mutant, arm};
use holdfast_proto::v1::{self, lock_change::What, watch_event::Body};
use holdfast_runtime::{BoxFuture, Pipe, Runtime, Transport, TransportError, Watched, simulated};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;

/// The longest wait of a test: virtual time would pass for ever.
const PATIENCE: Duration = Duration::from_mins(2);
/// The reader's connect timeout.
const LIMIT: Duration = Duration::from_secs(10);

const CLUSTER: Bytes = Bytes::from_static(b"cluster-of-tests");

type Said = Result<v1::WatchResponse, TransportError>;

/// The network: hands every call to the test, which answers it.
struct Net {
    runtime: Runtime,
    calls: mpsc::Receiver<Call>,
    transport: Arc<Scripted>,
}

struct Scripted(mpsc::Sender<Call>);

/// A call that waits for its answer.
#[derive(Debug)]
struct Call {
    endpoint: String,
    prefix: String,
    resume: Option<v1::WatchResume>,
    answer: oneshot::Sender<Result<mpsc::Receiver<Said>, TransportError>>,
}

/// The server's end of a watch.
struct Server(mpsc::Sender<Said>);

impl Net {
    fn new() -> Self {
        let (calling, calls) = mpsc::channel(64);
        let runtime = simulated::runtime(1, 0);
        Self { runtime, calls, transport: Arc::new(Scripted(calling)) }
    }

    fn reader(&self) -> Reader {
        let builder = Client::builder().endpoints(["a:1", "b:2", "c:3"]);
        builder.runtime(self.runtime.clone()).transport(self.transport.clone()).reader().unwrap()
    }

    /// The next call, while `watch` is polled.
    async fn call(&mut self, watch: &mut Watch) -> Call {
        let runtime = self.runtime.clone();
        let calling = async {
            holdfast_runtime::select! {
                call = self.calls.recv() => call.unwrap(),
                event = watch.next() => panic!("nobody has answered, and yet: {event:?}"),
            }
        };
        runtime.timeout(PATIENCE, calling).await.expect("a server is called")
    }

    /// Serves the next call.
    async fn serve(&mut self, watch: &mut Watch) -> Server {
        self.call(watch).await.serve()
    }
}

impl Call {
    fn serve(self) -> Server {
        let (saying, said) = mpsc::channel(16);
        self.answer.send(Ok(said)).unwrap();
        Server(saying)
    }

    fn refuse(self, error: TransportError) {
        self.answer.send(Err(error)).unwrap();
    }
}

impl Server {
    async fn say(&self, bodies: Vec<Body>) {
        let event = |body| v1::WatchEvent { index: 7, body: Some(body) };
        self.0.send(Ok(v1::WatchResponse::of(bodies.into_iter().map(event)))).await.unwrap();
    }

    /// Events of these indices, and up to where they are complete.
    async fn say_until(&self, bodies: Vec<(u64, Body)>, complete_index: u64) {
        let event = |(index, body)| v1::WatchEvent { index, body: Some(body) };
        let response = v1::WatchResponse {
            complete_index,
            cluster_id: CLUSTER,
            ..v1::WatchResponse::of(bodies.into_iter().map(event))
        };
        self.0.send(Ok(response)).await.unwrap();
    }

    /// The first message of a watch that goes on.
    async fn resume(&self) {
        let resumed = v1::WatchResponse { resumed: true, ..v1::WatchResponse::default() };
        self.0.send(Ok(resumed)).await.unwrap();
    }

    async fn fail(self, error: TransportError) {
        self.0.send(Err(error)).await.unwrap();
    }
}

impl Transport for Scripted {
    fn watch(
        &self,
        endpoint: &str,
        request: v1::WatchRequest,
    ) -> BoxFuture<'static, Result<Watched, TransportError>> {
        let (answer, answered) = oneshot::channel();
        let v1::WatchRequest { prefix, resume } = request;
        let call = Call { endpoint: endpoint.to_owned(), prefix, resume, answer };
        let calling = self.0.clone();
        Box::pin(async move {
            calling.send(call).await.unwrap();
            let said = answered.await.expect("the test answers")?;
            Ok(ReceiverStream::new(said).boxed())
        })
    }

    fn open(
        &self,
        _endpoint: &str,
    ) -> BoxFuture<'static, Result<Pipe<v1::ClientFrames, v1::ServerFrames>, TransportError>> {
        panic!("a watch needs no session")
    }

    fn inspect(
        &self,
        _endpoint: &str,
        _request: v1::InspectRequest,
    ) -> BoxFuture<'static, Result<v1::InspectResponse, TransportError>> {
        panic!("a watch asks nothing else")
    }

    fn list(
        &self,
        _endpoint: &str,
        _request: v1::ListRequest,
    ) -> BoxFuture<'static, Result<v1::ListResponse, TransportError>> {
        panic!("a watch asks nothing else")
    }

    fn explain(
        &self,
        _endpoint: &str,
        _request: v1::ExplainRequest,
    ) -> BoxFuture<'static, Result<v1::ExplainResponse, TransportError>> {
        panic!("a watch asks nothing else")
    }

    fn advance(
        &self,
        _endpoint: &str,
        _request: v1::AdvanceRequest,
    ) -> BoxFuture<'static, Result<v1::AdvanceResponse, TransportError>> {
        panic!("a watch asks nothing else")
    }

    fn check_token(
        &self,
        _endpoint: &str,
        _request: v1::CheckTokenRequest,
    ) -> BoxFuture<'static, Result<v1::CheckTokenResponse, TransportError>> {
        panic!("a watch asks nothing else")
    }

    fn status(
        &self,
        _endpoint: &str,
        _request: v1::StatusRequest,
    ) -> BoxFuture<'static, Result<v1::StatusResponse, TransportError>> {
        panic!("a watch asks nothing else")
    }
}

fn lock(name: &str) -> Body {
    Body::Lock(v1::LockInfo { name: name.to_owned(), held_by: 1, ..Default::default() })
}

fn synced() -> Body {
    Body::Synced(v1::Synced {})
}

fn change(what: What) -> Body {
    Body::Change(v1::LockChange { name: "jobs".into(), what: Some(what), waiting: 2 })
}

fn holder(token: u64) -> v1::Holder {
    v1::Holder {
        session_id: 3,
        label: "worker-7".into(),
        token,
        mode: v1::Mode::Shared.into(),
        ..Default::default()
    }
}

fn unreachable() -> TransportError {
    TransportError::Unreachable { endpoint: "a:1".into(), detail: "connection refused".into() }
}

fn unavailable(leader: Option<&str>) -> TransportError {
    let leader = leader.map(str::to_owned);
    TransportError::Unavailable { message: "this node follows".into(), leader }
}

/// The name of the reported lock, or the kind of another event.
async fn next(net: &Net, watch: &mut Watch) -> String {
    let event = net.runtime.timeout(PATIENCE, watch.next()).await.expect("an event comes");
    match event.expect("the watch goes on").unwrap() {
        WatchEvent::Lock(lock) => lock.name,
        WatchEvent::Synced => "synced".into(),
        WatchEvent::Restarted => "restarted".into(),
        WatchEvent::Interrupted => "interrupted".into(),
        WatchEvent::Resumed => "resumed".into(),
        WatchEvent::Compacted => "compacted".into(),
        WatchEvent::Change(change) => format!("{} changed", change.name),
        other => panic!("{other:?}"),
    }
}

async fn error(net: &Net, watch: &mut Watch) -> Error {
    let event = net.runtime.timeout(PATIENCE, watch.next()).await.expect("an event comes");
    let error = event.expect("the error comes first").unwrap_err();
    assert_eq!(watch.next().await, None, "it is over");
    error
}

#[tokio::test(start_paused = true)]
async fn every_kind_of_event_arrives_as_it_was_said() {
    let mut net = Net::new();
    let mut watch = net.reader().watch("jo");
    let call = net.call(&mut watch).await;
    assert_eq!((call.endpoint.as_str(), call.prefix.as_str()), ("a:1", "jo"));
    let server = call.serve();
    let waiter = v1::WaiterInfo { session_id: 4, names: 2, ..Default::default() };
    let lost =
        v1::HoldLost { holder: Some(holder(8)), reason: v1::LostReason::SessionExpired.into() };
    let value = v1::Value { value: b"x".as_slice().into(), token: 8, suspect: true };
    server
        .say(vec![
            lock("jobs"),
            synced(),
            change(What::Queued(waiter.clone())),
            change(What::Left(waiter)),
            change(What::Granted(holder(8))),
            change(What::Released(holder(8))),
            change(What::Lost(lost)),
            change(What::ValueChanged(v1::ValueChanged { value: Some(value) })),
            change(What::ValueChanged(v1::ValueChanged { value: None })),
        ])
        .await;

    assert_eq!(next(&net, &mut watch).await, "jobs");
    assert_eq!(next(&net, &mut watch).await, "synced");
    let mut kinds = Vec::new();
    for _ in 0..7 {
        let Some(Ok(WatchEvent::Change(change))) = watch.next().await else { panic!("none") };
        assert_eq!((change.name.as_str(), change.waiting, change.index), ("jobs", 2, 7));
        kinds.push(change.what);
    }
    assert!(matches!(&kinds[0], ChangeKind::Queued(waiter) if waiter.names == 2));
    assert!(matches!(&kinds[1], ChangeKind::Left(waiter) if waiter.session == 4));
    let ChangeKind::Granted(granted) = &kinds[2] else { panic!("{kinds:?}") };
    assert_eq!((granted.token.get(), granted.mode), (8, Mode::Shared));
    assert!(matches!(&kinds[3], ChangeKind::Released(holder) if holder.label == "worker-7"));
    assert!(matches!(&kinds[4], ChangeKind::Lost(_, LostReason::SessionExpired)));
    assert!(matches!(&kinds[5], ChangeKind::ValueChanged(Some(value)) if value.is_suspect));
    assert_eq!(kinds[6], ChangeKind::ValueChanged(None));
}

/// The earlier events are out of date at once, not only when a server answers again.
#[tokio::test(start_paused = true)]
async fn a_watch_that_breaks_says_so_once_and_tells_the_state_anew_at_the_new_leader() {
    let mut net = Net::new();
    let mut watch = net.reader().watch("");
    let server = net.serve(&mut watch).await;
    server.say(vec![lock("old"), synced()]).await;
    assert_eq!(next(&net, &mut watch).await, "old");
    assert_eq!(next(&net, &mut watch).await, "synced");
    server.fail(unavailable(Some("c:3"))).await;
    assert_eq!(next(&net, &mut watch).await, "restarted");

    let call = net.call(&mut watch).await;
    assert_eq!(call.endpoint, "c:3");
    call.refuse(unavailable(None));
    net.call(&mut watch).await.refuse(unreachable());
    let server = net.serve(&mut watch).await;
    server.say(vec![lock("new"), synced()]).await;
    assert_eq!(next(&net, &mut watch).await, "new");
    assert_eq!(next(&net, &mut watch).await, "synced");
}

/// Also after a plain end, which proves nothing; also in the middle of the pages.
#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_between_two_pages_begins_anew() {
    let mut net = Net::new();
    let mut watch = net.reader().watch("");
    let server = net.serve(&mut watch).await;
    server.say(vec![lock("first page")]).await;
    assert_eq!(next(&net, &mut watch).await, "first page");
    drop(server);

    assert_eq!(next(&net, &mut watch).await, "restarted");
    // This one reported nothing, so there is no second `Restarted`.
    drop(net.serve(&mut watch).await);
    let server = net.serve(&mut watch).await;
    server.say(vec![synced()]).await;
    assert_eq!(next(&net, &mut watch).await, "synced");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_was_cut_for_reading_slowly_begins_anew_at_the_same_server() {
    let mut net = Net::new();
    let mut watch = net.reader().watch("");
    let call = net.call(&mut watch).await;
    let endpoint = call.endpoint.clone();
    let server = call.serve();
    server.say(vec![lock("old")]).await;
    server.fail(TransportError::TooSlow).await;
    assert_eq!(next(&net, &mut watch).await, "old");
    assert_eq!(next(&net, &mut watch).await, "restarted");

    assert_eq!(net.call(&mut watch).await.endpoint, endpoint);
}

/// A watch that was told all of the state, as of index 7.
async fn synced_watch(net: &mut Net) -> (Watch, Server) {
    let mut watch = net.reader().watch("");
    let server = net.serve(&mut watch).await;
    server.say_until(vec![(6, lock("old")), (7, synced())], 7).await;
    assert_eq!(next(net, &mut watch).await, "old");
    assert_eq!(next(net, &mut watch).await, "synced");
    (watch, server)
}

fn after(index: u64) -> v1::WatchResume {
    v1::WatchResume { after_index: index, cluster_id: CLUSTER }
}

fn released() -> Body {
    change(What::Released(holder(8)))
}

/// Over an outage in which nobody answers: the user learns at once that it is out of date, and once that it is not.
#[tokio::test(start_paused = true)]
async fn a_watch_that_breaks_goes_on_where_it_ended() {
    let mut net = Net::new();
    let (mut watch, server) = synced_watch(&mut net).await;
    server.say_until(vec![(9, released()), (9, released())], 9).await;
    // Nothing happened below its prefix.
    server.say_until(vec![], 12).await;
    for _ in 0..2 {
        assert_eq!(next(&net, &mut watch).await, "jobs changed");
    }
    server.fail(unreachable()).await;
    assert_eq!(next(&net, &mut watch).await, "interrupted");
    for _ in 0..10 {
        net.call(&mut watch).await.refuse(unreachable());
    }
    drop(net.serve(&mut watch).await);

    let call = net.call(&mut watch).await;
    assert_eq!(call.resume, Some(after(12)));
    let server = call.serve();
    server.resume().await;
    server.say_until(vec![(13, released())], 13).await;
    assert_eq!(next(&net, &mut watch).await, "resumed");
    assert_eq!(next(&net, &mut watch).await, "jobs changed");
    server.fail(TransportError::TooSlow).await;
    assert_eq!(next(&net, &mut watch).await, "interrupted");
    assert_eq!(net.call(&mut watch).await.resume, Some(after(13)));
}

/// At the call, or after a part of what it missed.
#[tokio::test(start_paused = true)]
async fn a_watch_that_cannot_go_on_says_so_and_tells_the_state_anew() {
    for at_the_call in [true, false] {
        let mut net = Net::new();
        let (mut watch, server) = synced_watch(&mut net).await;
        server.fail(unreachable()).await;
        assert_eq!(next(&net, &mut watch).await, "interrupted");
        let call = net.call(&mut watch).await;
        let endpoint = call.endpoint.clone();
        if at_the_call {
            call.refuse(TransportError::Compacted);
        } else {
            let server = call.serve();
            server.resume().await;
            server.say_until(vec![(9, released())], 9).await;
            assert_eq!(next(&net, &mut watch).await, "resumed");
            assert_eq!(next(&net, &mut watch).await, "jobs changed");
            server.fail(TransportError::Compacted).await;
        }
        assert_eq!(next(&net, &mut watch).await, "compacted");
        assert_eq!(next(&net, &mut watch).await, "restarted");

        let call = net.call(&mut watch).await;
        assert_eq!((call.endpoint.as_str(), call.resume.as_ref()), (endpoint.as_str(), None));
        call.serve().say(vec![synced()]).await;
        assert_eq!(next(&net, &mut watch).await, "synced");
    }
}

/// The rule of the test above taken away.
#[tokio::test(start_paused = true)]
async fn a_watch_that_does_not_tell_its_restart_looks_as_if_it_went_on() {
    arm(Some(Mutant::WatchRestartUntold));
    let mut net = Net::new();
    let (mut watch, server) = synced_watch(&mut net).await;
    server.fail(unreachable()).await;
    assert_eq!(next(&net, &mut watch).await, "interrupted");
    net.call(&mut watch).await.refuse(TransportError::Compacted);
    assert_eq!(next(&net, &mut watch).await, "compacted");
    net.serve(&mut watch).await.say(vec![lock("new")]).await;

    assert_eq!(next(&net, &mut watch).await, "new");
    arm(None);
}

/// It begins with the state, as if it had been asked for that. The state counts only if it was asked for after all
/// before it was called out of date.
#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_know_how_to_go_on_is_asked_for_the_state() {
    let mut net = Net::new();
    let (mut watch, server) = synced_watch(&mut net).await;
    server.fail(unreachable()).await;
    assert_eq!(next(&net, &mut watch).await, "interrupted");
    let call = net.call(&mut watch).await;
    let endpoint = call.endpoint.clone();
    assert_eq!(call.resume, Some(after(7)));
    call.serve().say(vec![lock("of an old release")]).await;
    assert_eq!(next(&net, &mut watch).await, "restarted");

    let call = net.call(&mut watch).await;
    assert_eq!((call.endpoint.as_str(), call.resume.as_ref()), (endpoint.as_str(), None));
    call.serve().say(vec![lock("new"), synced()]).await;
    assert_eq!(next(&net, &mut watch).await, "new");
    assert_eq!(next(&net, &mut watch).await, "synced");
}

/// The changes of one entry came in part: going on would tell that part twice.
#[tokio::test(start_paused = true)]
async fn a_watch_that_breaks_in_the_middle_of_an_entry_begins_anew() {
    let mut net = Net::new();
    let (mut watch, server) = synced_watch(&mut net).await;
    server.say_until(vec![(8, released()), (9, released())], 8).await;
    server.fail(unreachable()).await;
    for event in ["jobs changed", "jobs changed", "restarted"] {
        assert_eq!(next(&net, &mut watch).await, event);
    }

    assert_eq!(net.call(&mut watch).await.resume, None);
}

#[tokio::test(start_paused = true)]
async fn an_event_that_cannot_be_decoded_breaks_the_watch() {
    let mut net = Net::new();
    let (mut watch, server) = synced_watch(&mut net).await;
    let encoded_events = vec![Bytes::from_static(&[0xFF])];
    let response = v1::WatchResponse { encoded_events, ..v1::WatchResponse::default() };
    server.0.send(Ok(response)).await.unwrap();

    assert_eq!(next(&net, &mut watch).await, "interrupted");
    assert_eq!(net.call(&mut watch).await.resume, Some(after(7)));
}

#[tokio::test(start_paused = true)]
async fn a_prefix_that_a_server_refuses_ends_the_watch_with_its_words() {
    let mut net = Net::new();
    let mut watch = net.reader().watch("a\n");
    let message = "the prefix is not usable".to_owned();
    net.call(&mut watch).await.refuse(TransportError::Refused {
        reason: v1::RefusalReason::Invalid,
        message: message.clone(),
    });

    let error = error(&net, &mut watch).await;
    assert!(
        matches!(&error, Error::Refused { reason: RefusalReason::Invalid, message: words, .. } if *words == message)
    );
}

#[tokio::test(start_paused = true)]
async fn nobody_there_ends_a_watch_that_was_told_nothing_yet_after_the_connect_timeout() {
    let mut net = Net::new();
    let mut watch = net.reader().watch("");
    let began = net.runtime.clock.now();
    let nobody = async {
        while let Some(call) = net.calls.recv().await {
            call.refuse(unreachable());
        }
    };
    let event = holdfast_runtime::select! {
        () = nobody => panic!("the transport lives"),
        event = watch.next() => event,
    };

    let Some(Err(Error::Unreachable { endpoints, waited, last, answered: false })) = event else {
        panic!("{event:?}");
    };
    assert_eq!((endpoints.len(), waited), (3, LIMIT));
    assert!(last.contains("connection refused"), "{last}");
    assert_eq!(net.runtime.clock.now().saturating_since(began), LIMIT);
}

/// After its first event a watch survives every outage. It retries about once a second, not without
/// pause.
#[tokio::test(start_paused = true)]
async fn a_watch_outlives_an_outage_of_an_hour_and_asks_patiently() {
    const OUTAGE: Duration = Duration::from_hours(1);
    let mut net = Net::new();
    let mut watch = net.reader().watch("");
    net.serve(&mut watch).await.say(vec![synced()]).await;
    assert_eq!(next(&net, &mut watch).await, "synced");
    assert_eq!(next(&net, &mut watch).await, "restarted");
    let until = net.runtime.clock.now() + OUTAGE;
    let mut calls = 0_u64;
    while net.runtime.clock.now() < until {
        net.call(&mut watch).await.refuse(unreachable());
        calls += 1;
    }
    assert!(calls <= 3 * 2 * OUTAGE.as_secs(), "{calls} calls");

    net.serve(&mut watch).await.say(vec![synced()]).await;
    assert_eq!(next(&net, &mut watch).await, "synced");
}

/// A dropped future of `next` loses no event.
#[tokio::test(start_paused = true)]
async fn nothing_is_lost_when_waiting_for_the_next_event_is_given_up() {
    let mut net = Net::new();
    let mut watch = net.reader().watch("");
    let server = net.serve(&mut watch).await;
    for name in ["a", "b", "c"] {
        let given_up = net.runtime.timeout(Duration::from_millis(10), watch.next()).await;
        assert!(given_up.is_err(), "{given_up:?}");
        server.say(vec![lock(name)]).await;
        assert_eq!(next(&net, &mut watch).await, name);
    }
    // It is a stream too.
    server.say(vec![synced()]).await;
    assert_eq!(StreamExt::next(&mut watch).await, Some(Ok(WatchEvent::Synced)));
}
