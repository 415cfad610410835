//! A minimal gRPC server for tests of the command line on real sockets.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::{Stream, StreamExt, stream};
use holdfast_proto::v1::lock_service_server::{LockService, LockServiceServer};
use holdfast_proto::v1::{self, client_frame, server_frame::Body};
use tokio::net::TcpListener;
use tonic::{Request, Response, Status, Streaming};

/// The token of every grant.
pub const TOKEN: u64 = 77;
/// Acquires of locks whose names begin like this are not granted.
pub const HELD: &str = "held";
/// The lock of this name is shared.
pub const SHARED: &str = "shared";

/// Grants free locks, queues requests for held ones, answers keepalives.
#[derive(Clone, Default)]
pub struct FakeServer {
    heard: Arc<Mutex<Vec<client_frame::Body>>>,
}

impl FakeServer {
    /// Starts it on a thread of its own; it runs as long as the test's process.
    pub fn start() -> (Self, SocketAddr) {
        Self::start_at("127.0.0.1:0")
    }

    /// The same at an address that another process may have for a moment.
    pub fn start_at(address: &'static str) -> (Self, SocketAddr) {
        let server = Self::default();
        let serving = server.clone();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let listener = TcpListener::bind(address).await.unwrap();
                tell.send(listener.local_addr().unwrap()).unwrap();
                let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
                let service = LockServiceServer::new(serving);
                let server = tonic::transport::Server::builder().add_service(service);
                server.serve_with_incoming(incoming).await.unwrap();
            });
        });
        (server, told.recv().unwrap())
    }

    /// Waits until a frame has come for which `is_it` is true.
    pub fn wait_for(&self, what: &str, is_it: impl Fn(&client_frame::Body) -> bool) {
        let until = now() + Duration::from_secs(10);
        while !self.heard.lock().unwrap().iter().any(&is_it) {
            assert!(now() < until, "{what} was not heard");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn answer(&self, frame: client_frame::Body) -> Vec<Body> {
        self.heard.lock().unwrap().push(frame.clone());
        match frame {
            client_frame::Body::Open(open) => vec![Body::Opened(v1::Opened {
                session_id: 1,
                secret: vec![9; 16].into(),
                cluster_id: vec![3; 16].into(),
                ttl_ms: open.ttl_ms.unwrap_or(10_000),
                ..Default::default()
            })],
            client_frame::Body::KeepAlive(keepalive) => {
                vec![Body::KeptAlive(v1::KeptAlive {
                    seq: keepalive.seq,
                    ..v1::KeptAlive::default()
                })]
            }
            client_frame::Body::Acquire(acquire) => vec![acquired(&acquire)],
            client_frame::Body::Cancel(cancel) => vec![Body::Cancelled(v1::Cancelled {
                request_id: cancel.request_id,
                was: v1::cancelled::Was::Waiting.into(),
            })],
            client_frame::Body::Release(release) => {
                vec![Body::Released(v1::Released {
                    token: release.token,
                    request_id: 1,
                    ..Default::default()
                })]
            }
            client_frame::Body::SetValue(set) => {
                vec![Body::ValueSet(v1::ValueSet { request_id: set.request_id })]
            }
            client_frame::Body::Close(_) => vec![Body::SessionEnded(v1::SessionEnded {
                reason: v1::LostReason::SessionClosed.into(),
                ..v1::SessionEnded::default()
            })],
        }
    }
}

fn acquired(acquire: &v1::Acquire) -> Body {
    let request_id = acquire.request_id;
    let is_held = |item: &&v1::Item| item.name.starts_with(HELD.as_bytes());
    let free: Vec<_> =
        acquire.items.iter().filter(|item| !is_held(item)).map(|item| item.name.clone()).collect();
    let needed = if acquire.any.is_some() { 1 } else { acquire.items.len() };
    if free.len() >= needed {
        let granted = v1::Granted { request_id, token: TOKEN, names: free, values: Vec::new() };
        return Body::Granted(granted);
    }
    let holder = v1::Holder {
        session_id: 9,
        label: "other\u{1b}:1".into(),
        token: 5,
        held_ms: 12_000,
        ..Default::default()
    };
    if acquire.wait {
        return Body::Queued(v1::Queued {
            request_id,
            place: 2,
            holders: vec![holder],
            frozen: None,
        });
    }
    let refusal = v1::Refusal {
        reason: v1::RefusalReason::LockHeld.into(),
        holders: vec![holder],
        ..Default::default()
    };
    Body::Denied(v1::Denied { request_id, refusal: Some(refusal) })
}

/// A lock that two sessions share, with a value that is not UTF-8.
fn shared_lock(name: String) -> v1::LockInfo {
    let reader = |label: &str, token| v1::Holder {
        label: label.into(),
        token,
        held_ms: 3_000,
        mode: v1::Mode::Shared.into(),
        ..Default::default()
    };
    let waiter = v1::WaiterInfo { label: "writer".into(), names: 3, ..Default::default() };
    let value = v1::Value { value: vec![0xff, b'a'].into(), token: 4, suspect: true };
    v1::LockInfo {
        name,
        holders: vec![reader("one", 5), reader("two", 6)],
        waiting: 1,
        queue: vec![waiter],
        value: Some(value),
        has_value: true,
        held_by: 3,
        scope: None,
        limit: None,
        frozen: None,
        closed: None,
    }
}

#[expect(clippy::disallowed_methods, reason = "real processes live in real time")]
pub fn now() -> Instant {
    Instant::now()
}

#[tonic::async_trait]
impl LockService for FakeServer {
    type SessionStream =
        Pin<Box<dyn Stream<Item = Result<v1::ServerFrames, Status>> + Send + 'static>>;
    type WatchStream =
        Pin<Box<dyn Stream<Item = Result<v1::WatchResponse, Status>> + Send + 'static>>;

    async fn session(
        &self,
        request: Request<Streaming<v1::ClientFrames>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let server = self.clone();
        let answers = request.into_inner().filter_map(move |message| {
            let bodies: Vec<_> = message
                .into_iter()
                .flat_map(|message| message.frames)
                .filter_map(|frame| frame.body)
                .flat_map(|frame| server.answer(frame))
                .collect();
            let frames =
                bodies.into_iter().map(|body| v1::ServerFrame { index: 1, body: Some(body) });
            let message = v1::ServerFrames { frames: frames.collect() };
            std::future::ready((!message.frames.is_empty()).then_some(Ok(message)))
        });
        Ok(Response::new(Box::pin(answers.chain(stream::pending()))))
    }

    async fn inspect(
        &self,
        request: Request<v1::InspectRequest>,
    ) -> Result<Response<v1::InspectResponse>, Status> {
        let name = request.into_inner().name;
        if name == SHARED {
            let lock = Some(shared_lock(name));
            return Ok(Response::new(v1::InspectResponse { index: 1, lock }));
        }
        let lock = v1::LockInfo {
            name,
            holders: vec![v1::Holder {
                session_id: 1 << 60,
                label: "a\u{1b}[2Jb".into(),
                token: u64::MAX >> 1,
                held_ms: 61_000,
                ..Default::default()
            }],
            waiting: 1,
            queue: vec![v1::WaiterInfo { label: "next".into(), ..Default::default() }],
            ..Default::default()
        };
        Ok(Response::new(v1::InspectResponse { index: 1, lock: Some(lock) }))
    }

    async fn list(
        &self,
        _request: Request<v1::ListRequest>,
    ) -> Result<Response<v1::ListResponse>, Status> {
        Err(Status::invalid_argument("page_size is 0, it must be 1 to 1000"))
    }

    async fn status(
        &self,
        _request: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusResponse>, Status> {
        Err(Status::unimplemented("no test asks"))
    }

    /// One lock, and its changes.
    async fn watch(
        &self,
        _request: Request<v1::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        use v1::lock_change::What;
        use v1::watch_event::Body;
        let holder = |label: &str, mode: v1::Mode| v1::Holder {
            session_id: 1 << 60,
            label: label.into(),
            token: u64::MAX >> 1,
            mode: mode.into(),
            ..Default::default()
        };
        let name = || "orders/\u{ad}42".to_owned();
        let change =
            |what| Body::Change(v1::LockChange { name: name(), what: Some(what), waiting: 2 });
        let bodies = [
            Body::Lock(v1::LockInfo {
                name: name(),
                holders: vec![
                    holder("a\u{1b}[2Jb", v1::Mode::Shared),
                    holder("c", v1::Mode::Exclusive),
                ],
                waiting: 2,
                ..Default::default()
            }),
            Body::Synced(v1::Synced {}),
            change(What::Queued(v1::WaiterInfo { label: "\u{7}w".into(), ..Default::default() })),
            change(What::Left(v1::WaiterInfo { session_id: 8, ..Default::default() })),
            change(What::Lost(v1::HoldLost {
                holder: Some(holder("", v1::Mode::Exclusive)),
                reason: v1::LostReason::SessionExpired.into(),
            })),
            change(What::ValueChanged(v1::ValueChanged { value: None })),
        ];
        let events = bodies.map(|body| v1::WatchEvent { index: 9, body: Some(body) });
        let message = v1::WatchResponse::of(events);
        Ok(Response::new(Box::pin(stream::iter([Ok(message)]).chain(stream::pending()))))
    }

    async fn explain(
        &self,
        _request: Request<v1::ExplainRequest>,
    ) -> Result<Response<v1::ExplainResponse>, Status> {
        Err(Status::unimplemented("no test asks"))
    }

    async fn set_limit(
        &self,
        _request: Request<v1::SetLimitRequest>,
    ) -> Result<Response<v1::SetLimitResponse>, Status> {
        Err(Status::unimplemented("no test asks"))
    }

    async fn freeze(
        &self,
        _request: Request<v1::FreezeRequest>,
    ) -> Result<Response<v1::FreezeResponse>, Status> {
        Err(Status::unimplemented("no test asks"))
    }

    async fn thaw(
        &self,
        _request: Request<v1::ThawRequest>,
    ) -> Result<Response<v1::ThawResponse>, Status> {
        Err(Status::unimplemented("no test asks"))
    }

    async fn advance(
        &self,
        _request: Request<v1::AdvanceRequest>,
    ) -> Result<Response<v1::AdvanceResponse>, Status> {
        Err(Status::unimplemented("no test asks"))
    }

    async fn begin_sequence(
        &self,
        _request: Request<v1::BeginSequenceRequest>,
    ) -> Result<Response<v1::BeginSequenceResponse>, Status> {
        Err(Status::unimplemented("no test asks"))
    }

    async fn list_sequences(
        &self,
        _request: Request<v1::ListSequencesRequest>,
    ) -> Result<Response<v1::ListSequencesResponse>, Status> {
        Err(Status::unimplemented("no test asks"))
    }

    async fn list_freezes(
        &self,
        _request: Request<v1::ListFreezesRequest>,
    ) -> Result<Response<v1::ListFreezesResponse>, Status> {
        Err(Status::unimplemented("no test asks"))
    }

    async fn busiest(
        &self,
        _request: Request<v1::BusiestRequest>,
    ) -> Result<Response<v1::BusiestResponse>, Status> {
        Err(Status::unimplemented("no test asks"))
    }

    async fn list_sessions(
        &self,
        _request: Request<v1::ListSessionsRequest>,
    ) -> Result<Response<v1::ListSessionsResponse>, Status> {
        Err(Status::unimplemented("no test asks"))
    }

    async fn history(
        &self,
        _request: Request<v1::HistoryRequest>,
    ) -> Result<Response<v1::HistoryResponse>, Status> {
        Err(Status::unimplemented("no test asks"))
    }

    async fn check_token(
        &self,
        request: Request<v1::CheckTokenRequest>,
    ) -> Result<Response<v1::CheckTokenResponse>, Status> {
        let current = request.into_inner().token == TOKEN;
        Ok(Response::new(v1::CheckTokenResponse { index: 1, current }))
    }

    async fn open_session(
        &self,
        _request: Request<v1::OpenSessionRequest>,
    ) -> Result<Response<v1::OpenSessionResponse>, Status> {
        Err(Status::unimplemented("no test asks"))
    }

    async fn keep_alive(
        &self,
        _request: Request<v1::KeepAliveRequest>,
    ) -> Result<Response<v1::KeepAliveResponse>, Status> {
        Err(Status::unimplemented("no test asks"))
    }

    async fn keep_alive_many(
        &self,
        _request: Request<v1::KeepAliveManyRequest>,
    ) -> Result<Response<v1::KeepAliveManyResponse>, Status> {
        Err(Status::unimplemented("no test asks"))
    }

    async fn acquire(
        &self,
        _request: Request<v1::AcquireRequest>,
    ) -> Result<Response<v1::AcquireResponse>, Status> {
        Err(Status::unimplemented("no test asks"))
    }

    async fn cancel(
        &self,
        _request: Request<v1::CancelRequest>,
    ) -> Result<Response<v1::CancelResponse>, Status> {
        Err(Status::unimplemented("no test asks"))
    }

    async fn release(
        &self,
        _request: Request<v1::ReleaseRequest>,
    ) -> Result<Response<v1::ReleaseResponse>, Status> {
        Err(Status::unimplemented("no test asks"))
    }

    async fn set_value(
        &self,
        _request: Request<v1::SetValueRequest>,
    ) -> Result<Response<v1::SetValueResponse>, Status> {
        Err(Status::unimplemented("no test asks"))
    }

    async fn close_session(
        &self,
        _request: Request<v1::CloseSessionRequest>,
    ) -> Result<Response<v1::CloseSessionResponse>, Status> {
        Err(Status::unimplemented("no test asks"))
    }

    async fn import(
        &self,
        _request: Request<v1::ImportRequest>,
    ) -> Result<Response<v1::ImportResponse>, Status> {
        Err(Status::unimplemented("no test asks"))
    }

    /// Session 7 was imported, session 8 was not, and there are no others.
    async fn inspect_session(
        &self,
        request: Request<v1::InspectSessionRequest>,
    ) -> Result<Response<v1::InspectSessionResponse>, Status> {
        use v1::session_request::State;
        let asked = |request_id, name: &str, state| v1::SessionRequest {
            request_id,
            names: vec![name.to_owned()],
            name_count: 1,
            since_ms: 4_000,
            state: Some(state),
            ..v1::SessionRequest::default()
        };
        let session_id = request.into_inner().session_id;
        let session = v1::SessionInfo {
            session_id,
            label: "a\u{1b}[2Jb".into(),
            ttl_ms: 90_000,
            age_ms: 5_000,
            left_ms: Some(80_000),
            imported: session_id == 7,
            requests: vec![
                asked(1, "jobs", State::Held(u64::MAX >> 1)),
                asked(2, "orders", State::Place(1)),
            ],
            request_count: 3,
            ..v1::SessionInfo::default()
        };
        let session = Some(session).filter(|_| [7, 8].contains(&session_id));
        Ok(Response::new(v1::InspectSessionResponse { index: 1, session }))
    }
}
