//! A server whose every frame the test writes, on virtual time and without a socket.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use holdfast::{Builder, Client};
use holdfast_proto::v1::{self, client_frame, server_frame};
use holdfast_runtime::{
    BoxFuture, Pipe, Renewed, Reply, Runtime, Transport, TransportError, Watched, simulated,
};
use tokio::sync::{mpsc, oneshot};

/// TTL of every scripted session: keepalives each 2.5 s, safe for 8.98 s.
pub const TTL: Duration = Duration::from_secs(10);
/// How long after its send time an answered keepalive keeps a hold safe.
pub const SAFE: Duration = Duration::from_millis(8_980);
/// The longest wait of a test: virtual time would pass for ever.
pub const PATIENCE: Duration = Duration::from_mins(2);

pub fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The network: hands every stream a client opens to the test.
pub struct Net {
    pub runtime: Runtime,
    streams: mpsc::Receiver<(String, Pipe<v1::ServerFrames, v1::ClientFrames>)>,
    apart: mpsc::Receiver<Apart>,
    numbers: mpsc::Receiver<AskedNumbers>,
    transport: Arc<ScriptedTransport>,
    /// The index of the next frame, over all streams.
    index: Arc<AtomicU64>,
}

/// A keepalive that a client sent beside its stream.
pub struct Apart {
    pub endpoint: String,
    pub key: v1::SessionKey,
    pub answer: oneshot::Sender<Result<Renewed, TransportError>>,
}

/// Numbers of a sequence that a client asked for.
pub struct AskedNumbers {
    pub endpoint: String,
    pub request: v1::AdvanceRequest,
    pub answer: oneshot::Sender<Result<v1::AdvanceResponse, TransportError>>,
}

struct ScriptedTransport {
    streams: mpsc::Sender<(String, Pipe<v1::ServerFrames, v1::ClientFrames>)>,
    apart: mpsc::Sender<Apart>,
    numbers: mpsc::Sender<AskedNumbers>,
    keeps_together: AtomicBool,
    down: Mutex<BTreeSet<String>>,
}

impl Net {
    pub fn new() -> Self {
        let (opened, streams) = mpsc::channel(64);
        let (sent, apart) = mpsc::channel(64);
        let (asked, numbers) = mpsc::channel(64);
        let (down, keeps_together) = (Mutex::default(), AtomicBool::new(false));
        let transport = ScriptedTransport {
            streams: opened,
            apart: sent,
            numbers: asked,
            keeps_together,
            down,
        };
        Self {
            runtime: simulated::runtime(1, 0),
            streams,
            apart,
            numbers,
            transport: Arc::new(transport),
            index: Arc::new(AtomicU64::new(10)),
        }
    }

    /// Makes `endpoint` unreachable.
    pub fn take_down(&self, endpoint: &str) {
        self.transport.down.lock().unwrap().insert(endpoint.to_owned());
    }

    /// From here on clients may send their keepalives together.
    pub fn keep_together(&self) {
        self.transport.keeps_together.store(true, Ordering::Relaxed);
    }

    /// The next keepalive that a client sends beside its stream.
    pub async fn apart(&mut self) -> Apart {
        let sent = self.runtime.timeout(PATIENCE, self.apart.recv()).await;
        sent.expect("a client sends one").expect("the net is up")
    }

    /// The next numbers that a client asks for.
    pub async fn asked_numbers(&mut self) -> AskedNumbers {
        let asked = self.runtime.timeout(PATIENCE, self.numbers.recv()).await;
        asked.expect("a client asks for some").expect("the net is up")
    }

    /// Whether no client sends a keepalive beside its stream for `length`.
    pub async fn is_apart_quiet_for(&mut self, length: Duration) -> bool {
        self.runtime.timeout(length, self.apart.recv()).await.is_err()
    }

    pub fn builder(&self) -> Builder {
        Client::builder()
            .endpoints(["a:1", "b:2", "c:3"])
            .ttl(TTL)
            .label("tester")
            .runtime(self.runtime.clone())
            .transport(self.transport.clone())
    }

    /// A client whose session is open, and the server's end of its stream.
    pub async fn connected(&mut self) -> (Client, Server) {
        let builder = self.builder();
        let (client, server) = tokio::join!(builder.connect(), self.accept_fresh());
        (client.unwrap(), server)
    }

    /// The next stream that a client opens and still keeps open.
    pub async fn accept(&mut self) -> Server {
        loop {
            let opened = self.runtime.timeout(PATIENCE, self.streams.recv()).await;
            let (endpoint, pipe) = opened.expect("a client opens a stream").expect("the net is up");
            if !pipe.outgoing.is_closed() {
                let (heard, index) = (VecDeque::new(), self.index.clone());
                let runtime = self.runtime.clone();
                let (keepalives, scopes) = (Vec::new(), Vec::new());
                return Server { endpoint, pipe, heard, index, runtime, keepalives, scopes };
            }
        }
    }

    /// Whether no client opens a stream for `length`.
    pub async fn is_quiet_for(&mut self, length: Duration) -> bool {
        self.runtime.timeout(length, self.streams.recv()).await.is_err()
    }

    /// The next stream, on which a new session is opened.
    pub async fn accept_fresh(&mut self) -> Server {
        let mut server = self.accept().await;
        let open = server.open().await;
        assert_eq!(open.resume, None, "a new session is asked for");
        server.say(opened(7)).await;
        server
    }

    /// The next stream; resumes session 7 on it with `requests` and `next_request_id`.
    pub async fn accept_resume(
        &mut self,
        requests: Vec<v1::RequestState>,
        next_request_id: u64,
    ) -> Server {
        let mut server = self.accept().await;
        let open = server.open().await;
        let resume = open.resume.expect("the session is resumed");
        assert_eq!((resume.session_id, resume.secret.as_ref()), (7, &[9; 16][..]));
        let state = v1::State { requests, next_request_id, more: false };
        server.say_all(vec![opened(7), server_frame::Body::State(state)]).await;
        server
    }
}

impl Transport for ScriptedTransport {
    fn open(
        &self,
        endpoint: &str,
    ) -> BoxFuture<'static, Result<Pipe<v1::ClientFrames, v1::ServerFrames>, TransportError>> {
        let endpoint = endpoint.to_owned();
        if self.down.lock().unwrap().contains(&endpoint) {
            let detail = "connection refused".to_owned();
            return Box::pin(async { Err(TransportError::Unreachable { endpoint, detail }) });
        }
        let streams = self.streams.clone();
        Box::pin(async move {
            let (client, server) = simulated::pipe(4);
            streams.send((endpoint, server)).await.expect("the test runs on");
            Ok(client)
        })
    }

    fn keeps_together(&self) -> bool {
        self.keeps_together.load(Ordering::Relaxed)
    }

    fn keep_alive(&self, endpoint: &str, key: v1::SessionKey) -> Reply<Renewed> {
        let (answer, answered) = oneshot::channel();
        let (sender, endpoint) = (self.apart.clone(), endpoint.to_owned());
        Box::pin(async move {
            let detail = "cut".to_owned();
            let cut = TransportError::Unreachable { endpoint: endpoint.clone(), detail };
            sender.send(Apart { endpoint, key, answer }).await.expect("the test runs on");
            answered.await.unwrap_or(Err(cut))
        })
    }

    fn inspect(
        &self,
        _endpoint: &str,
        _request: v1::InspectRequest,
    ) -> BoxFuture<'static, Result<v1::InspectResponse, TransportError>> {
        Box::pin(std::future::pending())
    }

    /// `a:1` knows that `b:2` leads; `b:2` has two pages.
    fn list(
        &self,
        endpoint: &str,
        request: v1::ListRequest,
    ) -> BoxFuture<'static, Result<v1::ListResponse, TransportError>> {
        let lock = |name: &str| v1::LockInfo { name: name.to_owned(), ..Default::default() };
        let answer = match (endpoint, request.page_token.as_str()) {
            ("b:2", "") => Ok(v1::ListResponse {
                index: 1,
                locks: vec![lock("one")],
                next_page_token: "more".into(),
            }),
            ("b:2", "more") => Ok(v1::ListResponse {
                index: 2,
                locks: vec![lock("two")],
                next_page_token: String::new(),
            }),
            _ => Err(TransportError::Unavailable {
                message: "this node follows".into(),
                leader: Some("b:2".into()),
            }),
        };
        Box::pin(async { answer })
    }

    fn explain(
        &self,
        _endpoint: &str,
        _request: v1::ExplainRequest,
    ) -> BoxFuture<'static, Result<v1::ExplainResponse, TransportError>> {
        Box::pin(std::future::pending())
    }

    fn advance(
        &self,
        endpoint: &str,
        request: v1::AdvanceRequest,
    ) -> BoxFuture<'static, Result<v1::AdvanceResponse, TransportError>> {
        let (answer, answered) = oneshot::channel();
        let asked = AskedNumbers { endpoint: endpoint.to_owned(), request, answer };
        let sender = self.numbers.clone();
        Box::pin(async move {
            let detail = "no answer came".to_owned();
            let lost = TransportError::Unreachable { endpoint: asked.endpoint.clone(), detail };
            if sender.send(asked).await.is_err() {
                return Err(lost);
            }
            answered.await.unwrap_or(Err(lost))
        })
    }

    fn check_token(
        &self,
        _endpoint: &str,
        _request: v1::CheckTokenRequest,
    ) -> BoxFuture<'static, Result<v1::CheckTokenResponse, TransportError>> {
        Box::pin(std::future::pending())
    }

    fn watch(
        &self,
        _endpoint: &str,
        _request: v1::WatchRequest,
    ) -> BoxFuture<'static, Result<Watched, TransportError>> {
        Box::pin(std::future::pending())
    }

    fn status(
        &self,
        _endpoint: &str,
        _request: v1::StatusRequest,
    ) -> BoxFuture<'static, Result<v1::StatusResponse, TransportError>> {
        Box::pin(std::future::pending())
    }
}

/// The server's end of one stream.
pub struct Server {
    pub endpoint: String,
    pipe: Pipe<v1::ServerFrames, v1::ClientFrames>,
    heard: VecDeque<v1::ClientFrame>,
    index: Arc<AtomicU64>,
    runtime: Runtime,
    /// The seqs of all keepalives received, answered or not.
    pub keepalives: Vec<u64>,
    /// The scopes in the answers to keepalives.
    pub scopes: Vec<v1::ScopeAuthority>,
}

impl Server {
    /// The next frame, keepalives among them; `None` if the client ended the stream.
    pub async fn frame(&mut self) -> Option<v1::ClientFrame> {
        while self.heard.is_empty() {
            let frames = self.runtime.timeout(PATIENCE, self.pipe.incoming.next()).await;
            let frames = frames.expect("the client says something")?;
            self.heard.extend(frames.expect("simulated pipes do not fail").frames);
        }
        self.heard.pop_front()
    }

    /// The body of the next frame that is no keepalive; answers keepalives at once.
    pub async fn hear(&mut self) -> client_frame::Body {
        self.hear_frame().await.body.expect("a frame says something")
    }

    /// The next frame that is no keepalive; answers keepalives at once.
    pub async fn hear_frame(&mut self) -> v1::ClientFrame {
        let until = self.runtime.clock.now() + PATIENCE;
        loop {
            assert!(self.runtime.clock.now() < until, "the client says nothing but keepalives");
            let frame = self.frame().await.expect("the stream is open");
            match frame.body.as_ref().expect("a frame says something") {
                client_frame::Body::KeepAlive(keepalive) => {
                    self.keepalives.push(keepalive.seq);
                    let scopes = self.scopes.clone();
                    self.say(kept_alive_in(keepalive.seq, scopes)).await;
                }
                _ => return frame,
            }
        }
    }

    /// Answers keepalives for `length`; no other frame may come.
    pub async fn keep_alive_for(&mut self, length: Duration) {
        let runtime = self.runtime.clone();
        let heard = runtime.timeout(length, self.hear()).await;
        assert!(heard.is_err(), "only keepalives are expected, not {heard:?}");
    }

    pub async fn open(&mut self) -> v1::Open {
        match self.hear().await {
            client_frame::Body::Open(open) => open,
            other => panic!("not Open: {other:?}"),
        }
    }

    pub async fn acquire(&mut self) -> v1::Acquire {
        match self.hear().await {
            client_frame::Body::Acquire(acquire) => acquire,
            other => panic!("not Acquire: {other:?}"),
        }
    }

    pub async fn cancel(&mut self) -> u64 {
        match self.hear().await {
            client_frame::Body::Cancel(cancel) => cancel.request_id,
            other => panic!("not Cancel: {other:?}"),
        }
    }

    pub async fn release(&mut self) -> u64 {
        match self.hear().await {
            client_frame::Body::Release(release) if !release.lost => release.token,
            other => panic!("not Release: {other:?}"),
        }
    }

    /// The next frame, which is a release of a lost hold: its token.
    pub async fn release_lost(&mut self) -> u64 {
        match self.hear().await {
            client_frame::Body::Release(release) if release.lost => release.token,
            other => panic!("no Release of a lost hold: {other:?}"),
        }
    }

    /// The next frame, which is a release.
    pub async fn release_frame(&mut self) -> v1::Release {
        match self.hear().await {
            client_frame::Body::Release(release) => release,
            other => panic!("not Release: {other:?}"),
        }
    }

    /// The next frame, which is a release: its token, and its names in order.
    pub async fn release_of_names(&mut self) -> (u64, Vec<String>) {
        let release = self.release_frame().await;
        (release.token, texts(&release.names))
    }

    pub async fn set_value(&mut self) -> v1::SetValue {
        match self.hear().await {
            client_frame::Body::SetValue(set) => set,
            other => panic!("not SetValue: {other:?}"),
        }
    }

    pub async fn close(&mut self) {
        match self.hear().await {
            client_frame::Body::Close(_) => {}
            other => panic!("not Close: {other:?}"),
        }
    }

    /// The next keepalive; no other frame may come before. It is not answered.
    pub async fn keepalive(&mut self) -> u64 {
        match self.frame().await.expect("the stream is open").body {
            Some(client_frame::Body::KeepAlive(keepalive)) => {
                self.keepalives.push(keepalive.seq);
                keepalive.seq
            }
            other => panic!("not KeepAlive: {other:?}"),
        }
    }

    pub async fn say(&mut self, body: server_frame::Body) {
        self.say_all(vec![body]).await;
    }

    pub async fn say_at(&mut self, index: u64, body: server_frame::Body) {
        self.index.store(index, Ordering::Relaxed);
        self.say(body).await;
    }

    /// Several in one message, at the same index.
    pub async fn say_all_at(&mut self, index: u64, bodies: Vec<server_frame::Body>) {
        self.index.store(index, Ordering::Relaxed);
        self.say_all(bodies).await;
    }

    pub async fn say_all(&mut self, bodies: Vec<server_frame::Body>) {
        let index = self.index.fetch_add(1, Ordering::Relaxed);
        let frame = |body| v1::ServerFrame { index, body: Some(body) };
        let frames = bodies.into_iter().map(frame).collect();
        // A client that is gone receives nothing.
        let _ = self.pipe.outgoing.send(v1::ServerFrames { frames }).await;
        // Lets the client handle it before the test goes on.
        self.runtime.sleep(Duration::from_micros(1)).await;
    }

    /// Answers the next acquire with a grant.
    pub async fn grant_next(&mut self, token: u64) -> u64 {
        let acquire = self.acquire().await;
        self.say(granted(acquire.request_id, token)).await;
        acquire.request_id
    }

    /// Puts the next acquire into the queue.
    pub async fn queue_next(&mut self, place: u64) -> u64 {
        let acquire = self.acquire().await;
        self.say(queued(acquire.request_id, place)).await;
        acquire.request_id
    }
}

pub fn opened(session_id: u64) -> server_frame::Body {
    server_frame::Body::Opened(v1::Opened {
        session_id,
        secret: vec![9; 16].into(),
        cluster_id: vec![3; 16].into(),
        ttl_ms: 10_000,
        ..Default::default()
    })
}

pub fn kept_alive(seq: u64) -> server_frame::Body {
    kept_alive_in(seq, Vec::new())
}

/// An answer with these scopes.
pub fn kept_alive_in(seq: u64, scopes: Vec<v1::ScopeAuthority>) -> server_frame::Body {
    server_frame::Body::KeptAlive(v1::KeptAlive { seq, scopes, ..v1::KeptAlive::default() })
}

pub fn granted(request_id: u64, token: u64) -> server_frame::Body {
    granted_names(request_id, token, &["jobs"])
}

/// A grant of several names.
pub fn granted_names(request_id: u64, token: u64, names: &[&str]) -> server_frame::Body {
    server_frame::Body::Granted(grant(request_id, token, names))
}

pub fn grant(request_id: u64, token: u64, names: &[&str]) -> v1::Granted {
    let names = names.iter().map(|name| name.as_bytes().to_vec().into()).collect();
    v1::Granted { request_id, token, names, ..Default::default() }
}

/// Names as text.
pub fn texts(names: &[Bytes]) -> Vec<String> {
    names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

pub fn holder() -> v1::Holder {
    v1::Holder {
        session_id: 3,
        label: "other:1".into(),
        token: 5,
        held_ms: 12_000,
        ..Default::default()
    }
}

pub fn queued(request_id: u64, place: u64) -> server_frame::Body {
    server_frame::Body::Queued(v1::Queued {
        request_id,
        place,
        holders: vec![holder()],
        frozen: None,
    })
}

pub fn refusal(reason: v1::RefusalReason, message: &str) -> v1::Refusal {
    v1::Refusal { reason: reason.into(), message: message.into(), ..Default::default() }
}

pub fn refused(
    subject: Option<v1::refused::Subject>,
    reason: v1::RefusalReason,
) -> server_frame::Body {
    let refusal = Some(refusal(reason, "the server's words"));
    server_frame::Body::Refused(v1::Refused { subject, refusal })
}

pub fn released(request_id: u64, token: u64) -> server_frame::Body {
    server_frame::Body::Released(v1::Released { token, request_id, ..Default::default() })
}

pub fn cancelled(request_id: u64, was: v1::cancelled::Was) -> server_frame::Body {
    server_frame::Body::Cancelled(v1::Cancelled { request_id, was: was.into() })
}

pub fn state_queued(request_id: u64, place: u64) -> v1::RequestState {
    let queued = v1::Queued { request_id, place, holders: vec![holder()], frozen: None };
    v1::RequestState {
        request_id,
        state: Some(v1::request_state::State::Queued(queued)),
        contended: vec![],
    }
}

pub fn released_names(request_id: u64, token: u64, names: &[&str]) -> server_frame::Body {
    let names = names.iter().map(|name| name.as_bytes().to_vec().into()).collect();
    server_frame::Body::Released(v1::Released { token, request_id, names, partly: true })
}

pub fn value_set(request_id: u64) -> server_frame::Body {
    server_frame::Body::ValueSet(v1::ValueSet { request_id })
}

pub fn state_granted(request_id: u64, token: u64) -> v1::RequestState {
    state_granted_names(request_id, token, &["jobs"])
}

pub fn state_value_set(request_id: u64) -> v1::RequestState {
    let set = v1::request_state::State::ValueSet(v1::ValueSet { request_id });
    v1::RequestState { request_id, state: Some(set), contended: vec![] }
}

pub fn state_granted_names(request_id: u64, token: u64, names: &[&str]) -> v1::RequestState {
    let granted = grant(request_id, token, names);
    v1::RequestState {
        request_id,
        state: Some(v1::request_state::State::Granted(granted)),
        contended: vec![],
    }
}
