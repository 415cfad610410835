//! A native store of two servers as a session sees it, and the server's side of the authority: enough for real clients
//! to open sessions, wait, hold and be cut off.
//!
//! One state that is never lost stands for Raft. The index of the leader is a fact, which the former leader learns
//! late. The core grants at any time: the clients wait for authority to cover a grant.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::StreamExt;
use holdfast_proto::v1::{self, client_frame, server_frame::Body};
use holdfast_runtime::simulated::{self, Machine, Process};
use holdfast_runtime::{BoxFuture, Instant, Pipe, Transport, TransportError, Watched, select};
use tokio::sync::mpsc;

use super::below;

/// The TTL of every session.
pub(super) const TTL: Duration = Duration::from_secs(4);
/// How much longer the store keeps a session, by true time: more than any of its clocks deviates.
const KEPT: Duration = Duration::from_millis(5_200);
/// How long a frame travels, at most.
const LATENCY_MS: u64 = 40;

/// Cheap to clone; all clones share their state.
#[derive(Clone)]
pub(super) struct Cluster {
    pub(super) world: Process,
    state: Arc<Mutex<State>>,
}

struct State {
    servers: [Server; 2],
    /// The leader, even if the other server believes that it leads.
    leader: usize,
    /// Clients and servers do not reach each other.
    cut: bool,
    epochs: BTreeMap<&'static str, u16>,
    counter: u64,
    sessions: BTreeMap<u64, Session>,
    last_session: u64,
    locks: BTreeMap<String, Lock>,
    index: u64,
}

struct Server {
    process: Process,
    believes: bool,
    /// By scope: the epoch, and the deadline by the server's own clock.
    authority: BTreeMap<&'static str, (u16, Instant)>,
}

struct Session {
    /// By the world's clock.
    ends: Instant,
    next_id: u64,
    pushes: Option<mpsc::Sender<Body>>,
    requests: BTreeMap<u64, String>,
}

#[derive(Default)]
struct Lock {
    held: Option<(u64, u64, u64)>,
    waiting: VecDeque<(u64, u64)>,
}

impl Cluster {
    pub(super) fn new(machine: &Machine, scopes: &[&'static str]) -> Self {
        let server = |name: &str| Server {
            process: machine.process(name),
            believes: false,
            authority: BTreeMap::new(),
        };
        let state = State {
            servers: [server("server 0"), server("server 1")],
            leader: 0,
            cut: false,
            epochs: scopes.iter().map(|scope| (*scope, 1)).collect(),
            counter: 0,
            sessions: BTreeMap::new(),
            last_session: 0,
            locks: BTreeMap::new(),
            index: 1,
        };
        Self { world: machine.world(), state: Arc::new(Mutex::new(state)) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn now(&self) -> Instant {
        self.world.runtime().clock.now()
    }

    // ---- for fault injection ------------------------------------------------------------------

    pub(super) fn server(&self, at: usize) -> Process {
        self.lock().servers[at].process.clone()
    }

    pub(super) fn set_cut(&self, cut: bool) {
        self.lock().cut = cut;
    }

    /// Replaces a server by a new process without any memory.
    pub(super) fn replace(&self, at: usize, process: Process) {
        let mut state = self.lock();
        state.servers[at].process.kill();
        state.servers[at] = Server { process, believes: false, authority: BTreeMap::new() };
    }

    /// Makes a server the leader, without authority yet. The former leader does not know it.
    pub(super) fn elect(&self, at: usize) {
        let mut state = self.lock();
        state.leader = at;
        state.servers[at].believes = true;
        state.servers[at].authority.clear();
    }

    // ---- for the keeper of the row ------------------------------------------------------------

    pub(super) fn believes(&self, at: usize) -> bool {
        self.lock().servers[at].believes
    }

    /// A quorum round, at this instant.
    pub(super) fn leads(&self, at: usize) -> bool {
        let state = self.lock();
        state.leader == at && state.servers[at].believes
    }

    pub(super) fn epoch(&self, scope: &str) -> u16 {
        self.lock().epochs[scope]
    }

    pub(super) fn set_authority(&self, at: usize, scope: &'static str, epoch: u16, until: Instant) {
        self.lock().servers[at].authority.insert(scope, (epoch, until));
    }

    /// `RaiseEpoch`: ends every earlier hold of the scope.
    pub(super) fn raise_epoch(&self, scope: &str, epoch: u16) {
        let mut state = self.lock();
        let Some(there) = state.epochs.get_mut(scope) else { return };
        if *there >= epoch {
            return;
        }
        *there = epoch;
        let names: Vec<_> =
            state.locks.keys().filter(|name| name.starts_with(scope)).cloned().collect();
        for name in names {
            let held = state.locks.get_mut(&name).and_then(|lock| lock.held.take());
            if let Some((session, request, token)) = held {
                let lost = v1::Lost { request_id: request, token, reason: 0 };
                state.forget(session, request);
                state.push(session, Body::Lost(lost));
            }
            state.pass_on(&name);
        }
    }

    // ---- sessions -----------------------------------------------------------------------------

    /// Ends the sessions that were not renewed.
    pub(super) async fn expire(self) {
        loop {
            self.world.runtime().sleep(Duration::from_millis(200)).await;
            let now = self.now();
            let mut state = self.lock();
            let over: Vec<_> = state
                .sessions
                .iter()
                .filter(|(_, one)| one.ends <= now)
                .map(|(id, _)| *id)
                .collect();
            for id in over {
                state.end_session(id);
            }
        }
    }

    async fn travel(&self, process: &Process) {
        let length = Duration::from_millis(below(&self.world, LATENCY_MS));
        process.runtime().sleep(length).await;
        while self.lock().cut {
            process.runtime().sleep(Duration::from_millis(100)).await;
        }
    }

    async fn converse(self, at: usize, mut pipe: Pipe<v1::ServerFrames, v1::ClientFrames>) {
        let process = self.server(at);
        let (pushes, mut outbox) = mpsc::channel(1_024);
        let mut session = None;
        loop {
            let said = select! {
                frames = pipe.incoming.next() => {
                    let Some(Ok(frames)) = frames else { return };
                    self.travel(&process).await;
                    if pipe.outgoing.is_closed() {
                        // The client has moved to another stream: this one no longer belongs to the session.
                        return;
                    }
                    let mut said = Vec::new();
                    for body in frames.frames.into_iter().filter_map(|frame| frame.body) {
                        said.extend(self.hear(at, &mut session, &pushes, body));
                    }
                    said
                }
                Some(body) = outbox.recv() => vec![body],
            };
            self.travel(&process).await;
            let over =
                said.iter().any(|body| matches!(body, Body::Redirect(_) | Body::GoingAway(_)));
            let index = self.lock().next_index();
            let frame = |body| v1::ServerFrame { index, body: Some(body) };
            let frames = v1::ServerFrames { frames: said.into_iter().map(frame).collect() };
            if pipe.outgoing.send(frames).await.is_err() || over {
                return;
            }
        }
    }

    /// Handles one frame, at one instant.
    fn hear(
        &self,
        at: usize,
        session: &mut Option<u64>,
        pushes: &mpsc::Sender<Body>,
        body: client_frame::Body,
    ) -> Vec<Body> {
        use client_frame::Body as Asked;
        let server_now = self.server(at).runtime().clock.now();
        let mut state = self.lock();
        if state.leader != at || !state.servers[at].believes {
            let leader = Some(format!("server:{}", state.leader));
            return vec![Body::Redirect(v1::Redirect { leader })];
        }
        let now = self.now();
        let scopes = state.scopes(at, server_now);
        match body {
            Asked::Open(open) => state.open(open, now, scopes, pushes, session),
            body => {
                let Some(id) = session.filter(|id| state.sessions.contains_key(id)) else {
                    let ended = v1::SessionEnded {
                        reason: v1::LostReason::SessionExpired.into(),
                        why: String::new(),
                    };
                    return vec![Body::SessionEnded(ended)];
                };
                state.hear(id, body, now, scopes)
            }
        }
    }
}

impl State {
    fn next_index(&mut self) -> u64 {
        self.index += 1;
        self.index
    }

    fn scopes(&self, at: usize, now: Instant) -> Vec<v1::ScopeAuthority> {
        let authority = &self.servers[at].authority;
        let told = self.epochs.keys().map(|scope| {
            let (epoch, until) = authority.get(scope).copied().unwrap_or((0, now));
            let left = until.saturating_since(now).as_millis();
            v1::ScopeAuthority {
                scope: (*scope).to_owned(),
                // A server without authority knows the core's epoch.
                epoch: u32::from(if left == 0 { self.epochs[scope] } else { epoch }),
                remaining_ms: u64::try_from(left).unwrap(),
            }
        });
        told.collect()
    }

    fn open(
        &mut self,
        open: v1::Open,
        now: Instant,
        scopes: Vec<v1::ScopeAuthority>,
        pushes: &mpsc::Sender<Body>,
        session: &mut Option<u64>,
    ) -> Vec<Body> {
        let resumed = open.resume.map(|resume| resume.session_id);
        let id = if let Some(id) = resumed {
            if !self.sessions.contains_key(&id) {
                let reason = v1::RefusalReason::SessionUnknown.into();
                let refusal = v1::Refusal { reason, ..Default::default() };
                return vec![Body::Refused(v1::Refused { subject: None, refusal: Some(refusal) })];
            }
            id
        } else {
            self.last_session += 1;
            self.last_session
        };
        let there = self.sessions.entry(id).or_insert_with(|| Session {
            ends: now,
            next_id: 1,
            pushes: None,
            requests: BTreeMap::new(),
        });
        there.ends = there.ends.max(now + KEPT);
        there.pushes = Some(pushes.clone());
        *session = Some(id);
        let opened = v1::Opened {
            session_id: id,
            secret: vec![7; 16].into(),
            cluster_id: vec![3; 16].into(),
            ttl_ms: u64::try_from(TTL.as_millis()).unwrap(),
            scopes,
            ..v1::Opened::default()
        };
        let mut said = vec![Body::Opened(opened)];
        if resumed.is_some() {
            said.push(Body::State(self.state_of(id)));
        }
        said
    }

    fn state_of(&self, id: u64) -> v1::State {
        use v1::request_state::State;
        let session = &self.sessions[&id];
        let request = |(request_id, name): (&u64, &String)| {
            let lock = &self.locks[name];
            let state = match lock.held {
                Some((holder, request, token)) if (holder, request) == (id, *request_id) => {
                    State::Granted(granted(*request_id, token, name))
                }
                _ => State::Queued(queued(*request_id)),
            };
            v1::RequestState { request_id: *request_id, state: Some(state), contended: vec![] }
        };
        let requests = session.requests.iter().map(request).collect();
        v1::State { requests, next_request_id: session.next_id, more: false }
    }

    fn hear(
        &mut self,
        id: u64,
        body: client_frame::Body,
        now: Instant,
        scopes: Vec<v1::ScopeAuthority>,
    ) -> Vec<Body> {
        use client_frame::Body as Asked;
        match body {
            Asked::KeepAlive(v1::KeepAlive { seq }) => {
                if let Some(session) = self.sessions.get_mut(&id) {
                    session.ends = session.ends.max(now + KEPT);
                }
                vec![Body::KeptAlive(v1::KeptAlive { seq, scopes, ..v1::KeptAlive::default() })]
            }
            Asked::Acquire(acquire) => self.acquire(id, &acquire),
            Asked::Cancel(v1::Cancel { request_id }) => {
                self.spend(id, request_id);
                self.end(id, request_id);
                let was = v1::cancelled::Was::Ended.into();
                vec![Body::Cancelled(v1::Cancelled { request_id, was })]
            }
            Asked::Release(v1::Release { token, .. }) => self.release(id, token),
            Asked::Close(_) => {
                self.end_session(id);
                let reason = v1::LostReason::SessionClosed.into();
                vec![Body::SessionEnded(v1::SessionEnded { reason, why: String::new() })]
            }
            Asked::Open(_) | Asked::SetValue(_) => panic!("nobody asks that: {body:?}"),
        }
    }

    fn spend(&mut self, session: u64, request: u64) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.next_id = session.next_id.max(request + 1);
        }
    }

    fn acquire(&mut self, id: u64, asked: &v1::Acquire) -> Vec<Body> {
        let request_id = asked.request_id;
        let name = String::from_utf8(asked.items[0].name.to_vec()).unwrap();
        let is_known = self.sessions[&id].requests.contains_key(&request_id);
        if !is_known && request_id < self.sessions[&id].next_id {
            // The request has ended, and this is a copy of it.
            return Vec::new();
        }
        self.spend(id, request_id);
        let lock = self.locks.entry(name.clone()).or_default();
        if !is_known {
            let is_free = lock.held.is_none() && lock.waiting.is_empty();
            if !asked.wait && !is_free {
                let reason = v1::RefusalReason::LockHeld.into();
                let refusal = Some(v1::Refusal { reason, ..Default::default() });
                return vec![Body::Denied(v1::Denied { request_id, refusal })];
            }
            lock.waiting.push_back((id, request_id));
            if let Some(session) = self.sessions.get_mut(&id) {
                session.requests.insert(request_id, name.clone());
            }
            self.pass_on(&name);
        }
        match self.locks[&name].held {
            Some((holder, request, token)) if (holder, request) == (id, request_id) => {
                vec![Body::Granted(granted(request_id, token, &name))]
            }
            _ => vec![Body::Queued(queued(request_id))],
        }
    }

    fn release(&mut self, id: u64, token: u64) -> Vec<Body> {
        let held = self.locks.values().filter_map(|lock| lock.held);
        let found = held.into_iter().find(|held| held.0 == id && held.2 == token);
        let Some((_, request_id, _)) = found else {
            let reason = v1::RefusalReason::NotHolder.into();
            let refusal = Some(v1::Refusal { reason, ..Default::default() });
            let subject = Some(v1::refused::Subject::Token(token));
            return vec![Body::Refused(v1::Refused { subject, refusal })];
        };
        self.end(id, request_id);
        let released = v1::Released { token, request_id, names: Vec::new(), partly: false };
        vec![Body::Released(released)]
    }

    /// Ends a request, whatever its state, and passes its lock on.
    fn end(&mut self, session: u64, request: u64) {
        let Some(name) = self.forget(session, request) else { return };
        if let Some(lock) = self.locks.get_mut(&name) {
            lock.waiting.retain(|waiting| *waiting != (session, request));
            lock.held = lock.held.filter(|held| (held.0, held.1) != (session, request));
        }
        self.pass_on(&name);
    }

    fn forget(&mut self, session: u64, request: u64) -> Option<String> {
        self.sessions.get_mut(&session)?.requests.remove(&request)
    }

    fn end_session(&mut self, id: u64) {
        let Some(session) = self.sessions.get(&id) else { return };
        let requests: Vec<_> = session.requests.keys().copied().collect();
        for request in requests {
            self.end(id, request);
        }
        self.sessions.remove(&id);
    }

    fn pass_on(&mut self, name: &str) {
        let epoch = self.epochs.iter().find(|(scope, _)| name.starts_with(**scope));
        let epoch = epoch.map_or(1, |(_, epoch)| *epoch);
        let Some(lock) = self.locks.get_mut(name) else { return };
        if lock.held.is_some() {
            return;
        }
        let Some((session, request)) = lock.waiting.pop_front() else { return };
        self.counter += 1;
        let token = u64::from(epoch) << 48 | self.counter;
        lock.held = Some((session, request, token));
        self.push(session, Body::Granted(granted(request, token, name)));
    }

    fn push(&mut self, session: u64, body: Body) {
        let pushes = self.sessions.get(&session).and_then(|session| session.pushes.clone());
        if let Some(pushes) = pushes {
            // If the stream does not take it, State reports it after the next resume.
            let _ = pushes.try_send(body);
        }
    }
}

fn granted(request_id: u64, token: u64, name: &str) -> v1::Granted {
    let names = vec![name.as_bytes().to_vec().into()];
    v1::Granted { request_id, token, names, values: Vec::new() }
}

fn queued(request_id: u64) -> v1::Queued {
    v1::Queued { request_id, ..v1::Queued::default() }
}

/// The network: to `server:0` and `server:1`.
impl Transport for Cluster {
    fn open(
        &self,
        endpoint: &str,
    ) -> BoxFuture<'static, Result<Pipe<v1::ClientFrames, v1::ServerFrames>, TransportError>> {
        let (cluster, endpoint) = (self.clone(), endpoint.to_owned());
        Box::pin(async move {
            let at = usize::from(endpoint == "server:1");
            let server = cluster.server(at);
            if !server.is_alive() {
                let detail = "connection refused".to_owned();
                return Err(TransportError::Unreachable { endpoint, detail });
            }
            let (ours, theirs) = simulated::pipe(8);
            server.runtime().spawn("stream", cluster.converse(at, theirs)).detach();
            Ok(ours)
        })
    }

    fn inspect(
        &self,
        _endpoint: &str,
        _request: v1::InspectRequest,
    ) -> BoxFuture<'static, Result<v1::InspectResponse, TransportError>> {
        Box::pin(std::future::pending())
    }

    fn list(
        &self,
        _endpoint: &str,
        _request: v1::ListRequest,
    ) -> BoxFuture<'static, Result<v1::ListResponse, TransportError>> {
        Box::pin(std::future::pending())
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
        _endpoint: &str,
        _request: v1::AdvanceRequest,
    ) -> BoxFuture<'static, Result<v1::AdvanceResponse, TransportError>> {
        Box::pin(std::future::pending())
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
