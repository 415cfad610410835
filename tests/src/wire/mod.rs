//! A client that speaks frames itself, to send what the library would never send.
//!
//! [`Wire`] is one stream with nothing behind it: no keepalives, no retries, no reconnect. The
//! frames can be recorded in a history ([`Wire::recorded`]).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use holdfast_proto::v1::client_frame::Body as Ask;
use holdfast_proto::v1::lock_service_client::LockServiceClient;
use holdfast_proto::v1::request_state::State as Known;
use holdfast_proto::v1::server_frame::Body as Told;
use holdfast_proto::v1::set_value::Change;
use holdfast_proto::v1::{
    Acquire, AnyOf, Cancel, ClientFrame, ClientFrames, Close, Granted, Item, KeepAlive, Mode, Open,
    Opened, Refusal, Release, RequestState, Resume, ServerFrame, ServerFrames, SetValue, State,
    StatusRequest, StatusResponse,
};
use holdfast_runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

use crate::history::{ClientId, Recorder};
use notes::Notes;

mod notes;

/// Longest wait for a frame that must come.
const PATIENCE: Duration = Duration::from_secs(10);

/// Opens a connection to a node's client port.
///
/// # Errors
///
/// The error of tonic: no process listens, or it is no gRPC server.
pub async fn connect(address: &str) -> Result<LockServiceClient<Channel>, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?
        .connect_timeout(Duration::from_secs(2))
        .initial_connection_window_size(16 << 20)
        .initial_stream_window_size(16 << 20);
    endpoint.connect().await.map(LockServiceClient::new)
}

/// The status that a node reports, if it does within `wait`.
pub async fn status(address: &str, wait: Duration) -> Option<StatusResponse> {
    let ask = async {
        let mut client = connect(address).await.ok()?;
        client.status(StatusRequest {}).await.ok().map(tonic::Response::into_inner)
    };
    Runtime::system().timeout(wait, ask).await.ok().flatten()
}

/// What a client needs to resume its session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The session.
    pub session: u64,
    /// Its secret.
    pub secret: Vec<u8>,
    /// The cluster that opened it.
    pub cluster: Vec<u8>,
}

impl Ticket {
    /// The Resume of a client of 0.1, which takes State in one frame.
    pub fn resume(&self) -> Resume {
        Resume {
            session_id: self.session,
            secret: self.secret.clone().into(),
            cluster_id: self.cluster.clone().into(),
            ..Resume::default()
        }
    }
}

/// One session stream, frame by frame.
#[derive(Debug)]
pub struct Wire {
    outgoing: mpsc::Sender<ClientFrames>,
    incoming: Streaming<ServerFrames>,
    waiting: VecDeque<ServerFrame>,
    done_below: u64,
    held: BTreeMap<u64, u64>,
    runtime: Runtime,
    notes: Option<Notes>,
}

impl Wire {
    /// Opens a stream without sending anything.
    ///
    /// # Errors
    ///
    /// The stream's status, or "unavailable" if no process listens.
    pub async fn dial(address: &str) -> Result<Self, Status> {
        let mut client = connect(address)
            .await
            .map_err(|error| Status::unavailable(format!("{address}: {error}")))?;
        let (outgoing, frames) = mpsc::channel(1_024);
        let runtime = Runtime::system();
        let open = client.session(ReceiverStream::new(frames));
        let incoming = runtime
            .timeout(PATIENCE, open)
            .await
            .map_err(|_| Status::deadline_exceeded("the stream was not opened"))??
            .into_inner();
        Ok(Self {
            outgoing,
            incoming,
            waiting: VecDeque::new(),
            done_below: 0,
            held: BTreeMap::new(),
            runtime,
            notes: None,
        })
    }

    /// From here on everything sent and received is recorded in a history.
    #[must_use]
    pub fn recorded(mut self, recorder: Recorder, client: ClientId) -> Self {
        self.notes = Some(Notes::new(recorder, client));
        self
    }

    /// Dials and opens a fresh session.
    pub async fn open(address: &str, ttl_ms: u64) -> (Self, Ticket) {
        let mut wire = Self::dial(address).await.unwrap();
        let ticket = wire.begin(ttl_ms).await;
        (wire, ticket)
    }

    /// Opens a fresh session on this stream.
    pub async fn begin(&mut self, ttl_ms: u64) -> Ticket {
        self.send(Ask::Open(Open {
            ttl_ms: Some(ttl_ms),
            label: "wire".into(),
            ..Open::default()
        }))
        .await;
        let opened = self.opened().await;
        Ticket {
            session: opened.session_id,
            secret: opened.secret.to_vec(),
            cluster: opened.cluster_id.to_vec(),
        }
    }

    /// Resumes a session on this stream; returns State.
    pub async fn resume(&mut self, ticket: &Ticket) -> State {
        let open = Open { resume: Some(ticket.resume()), ..Open::default() };
        self.send(Ask::Open(open)).await;
        self.opened().await;
        self.expect("State", |told| match told {
            Told::State(state) => Some(state.clone()),
            _ => None,
        })
        .await
    }

    /// Resumes the session on a new stream, which becomes this one.
    pub async fn resume_elsewhere(&mut self, address: &str, ticket: &Ticket) -> State {
        let mut wire = Self::dial(address).await.unwrap();
        let state = wire.resume(ticket).await;
        *self = wire;
        state
    }

    async fn opened(&mut self) -> Opened {
        self.expect("Opened", |told| match told {
            Told::Opened(opened) => Some(opened.clone()),
            _ => None,
        })
        .await
    }

    /// Sets `done_below` of the next frames.
    pub fn set_done_below(&mut self, mark: u64) {
        self.done_below = mark;
    }

    /// Sends one frame.
    pub async fn send(&mut self, ask: Ask) {
        self.note_asked(&ask);
        let frame = ClientFrame { done_below: self.done_below, body: Some(ask) };
        // A stream that is over shows it when it is read.
        let _ = self.outgoing.send(ClientFrames { frames: vec![frame] }).await;
    }

    /// Sends frames exactly as they are, unrecorded.
    pub async fn send_raw(&mut self, frames: ClientFrames) {
        let _ = self.outgoing.send(frames).await;
    }

    /// Asks for `name`.
    pub async fn acquire(&mut self, request_id: u64, name: impl AsRef<[u8]>, wait: bool) {
        self.send(acquire(request_id, name, wait)).await;
    }

    /// Asks for all of these, or with `any` for those of them that are free.
    pub async fn acquire_several(
        &mut self,
        request_id: u64,
        items: Vec<Item>,
        any: Option<u32>,
        wait: bool,
    ) {
        self.send(several(request_id, items, any, wait)).await;
    }

    /// Releases a grant.
    pub async fn release(&mut self, token: u64) {
        self.send(Ask::Release(Release { token, ..Release::default() })).await;
    }

    /// Releases these names of a grant.
    pub async fn release_names(&mut self, token: u64, names: &[&str]) {
        let names = names.iter().map(|name| name.as_bytes().to_vec().into()).collect();
        self.send(Ask::Release(Release { token, names, lost: false })).await;
    }

    /// Changes the value of `name`, held under `token`; `None` is a frame without a change.
    pub async fn change_value(
        &mut self,
        request_id: u64,
        token: u64,
        name: &str,
        change: Option<Change>,
    ) {
        let name = name.as_bytes().to_vec().into();
        self.send(Ask::SetValue(SetValue { request_id, token, name, change })).await;
    }

    /// Replaces the value of `name`, held under `token`.
    pub async fn set_value(&mut self, request_id: u64, token: u64, name: &str, value: &[u8]) {
        let change = Change::Value(value.to_vec().into());
        self.change_value(request_id, token, name, Some(change)).await;
    }

    /// Ends a request.
    pub async fn cancel(&mut self, request_id: u64) {
        self.send(Ask::Cancel(Cancel { request_id })).await;
    }

    /// Renews the lease.
    pub async fn keep_alive(&mut self, seq: u64) {
        self.send(Ask::KeepAlive(KeepAlive { seq })).await;
    }

    /// Ends the session.
    pub async fn close(&mut self) {
        self.send(Ask::Close(Close {})).await;
    }

    /// The next frame, or how the stream ended (`Ok(None)`: without an error).
    ///
    /// # Errors
    ///
    /// The stream's status; "deadline exceeded" if nothing came within `limit`.
    pub async fn next_within(&mut self, limit: Duration) -> Result<Option<ServerFrame>, Status> {
        loop {
            if let Some(frame) = self.waiting.pop_front() {
                self.note_told(&frame);
                return Ok(Some(frame));
            }
            let next = self.runtime.timeout(limit, self.incoming.next()).await;
            match next.map_err(|_| Status::deadline_exceeded("no frame came"))? {
                Some(frames) => self.waiting.extend(frames?.frames),
                None => return Ok(None),
            }
        }
    }

    /// Waits for a frame that `pick` takes; other frames are skipped.
    pub async fn expect<T>(&mut self, what: &str, pick: impl Fn(&Told) -> Option<T>) -> T {
        let give_up = self.runtime.clock.now() + PATIENCE;
        let mut passed = Vec::new();
        loop {
            let left = give_up.saturating_since(self.runtime.clock.now());
            let frame = match self.next_within(left).await {
                Ok(Some(frame)) => frame,
                end => panic!("{what} was to come; the stream ended with {end:?} after {passed:?}"),
            };
            if let Some(body) = frame.body {
                if let Some(found) = pick(&body) {
                    return found;
                }
                passed.push(body);
            }
        }
    }

    /// Waits for the grant of `request_id`; returns its token.
    pub async fn granted(&mut self, request_id: u64) -> u64 {
        self.grant(request_id).await.token
    }

    /// Waits for the grant of `request_id`.
    pub async fn grant(&mut self, request_id: u64) -> Granted {
        self.expect("Granted", |told| match told {
            Told::Granted(granted) if granted.request_id == request_id => Some(granted.clone()),
            _ => None,
        })
        .await
    }

    /// Waits until the value is changed.
    pub async fn value_set(&mut self, request_id: u64) {
        self.expect("ValueSet", |told| match told {
            Told::ValueSet(set) if set.request_id == request_id => Some(()),
            _ => None,
        })
        .await;
    }

    /// Waits until `request_id` is in the queue; returns its place.
    pub async fn queued(&mut self, request_id: u64) -> u64 {
        self.expect("Queued", |told| match told {
            Told::Queued(queued) if queued.request_id == request_id => Some(queued.place),
            _ => None,
        })
        .await
    }

    /// Waits until the request is known to be cancelled.
    pub async fn cancelled(&mut self, request_id: u64) {
        self.expect("Cancelled", |told| match told {
            Told::Cancelled(cancelled) if cancelled.request_id == request_id => Some(()),
            _ => None,
        })
        .await;
    }

    /// Waits until the grant was released.
    pub async fn released(&mut self, token: u64) {
        self.expect("Released", |told| match told {
            Told::Released(released) if released.token == token => Some(()),
            _ => None,
        })
        .await;
    }

    /// Waits for a refusal, or for a denial.
    pub async fn refused(&mut self) -> Refusal {
        self.expect("Refused", |told| match told {
            Told::Refused(refused) => refused.refusal.clone(),
            Told::Denied(denied) => denied.refusal.clone(),
            _ => None,
        })
        .await
    }

    /// Waits until the keepalive was acknowledged.
    pub async fn kept_alive(&mut self, seq: u64) {
        self.expect("KeptAlive", |told| match told {
            Told::KeptAlive(kept) if kept.seq == seq => Some(()),
            _ => None,
        })
        .await;
    }

    /// How the stream ends; frames before its end are skipped.
    pub async fn end(&mut self) -> Option<Status> {
        loop {
            match self.next_within(PATIENCE).await {
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(status) => return Some(status),
            }
        }
    }

    fn note_asked(&mut self, ask: &Ask) {
        let Some(notes) = &mut self.notes else { return };
        notes.asked(ask);
    }

    /// The token under which this stream last reported that a request holds its lock.
    pub fn held(&self, request_id: u64) -> Option<u64> {
        self.held.get(&request_id).copied()
    }

    fn note_told(&mut self, frame: &ServerFrame) {
        let Some(body) = &frame.body else { return };
        self.note_held(body);
        if let Some(notes) = &mut self.notes {
            notes.told(frame.index, body);
        }
    }

    fn note_held(&mut self, told: &Told) {
        match told {
            Told::Granted(granted) => {
                self.held.insert(granted.request_id, granted.token);
            }
            Told::State(state) => {
                self.held = state.requests.iter().filter_map(held_in_state).collect();
            }
            _ => {}
        }
    }
}

fn held_in_state(shown: &RequestState) -> Option<(u64, u64)> {
    match &shown.state {
        Some(Known::Granted(granted)) => Some((shown.request_id, granted.token)),
        _ => None,
    }
}

/// An Acquire of one name, exclusive.
pub fn acquire(request_id: u64, name: impl AsRef<[u8]>, wait: bool) -> Ask {
    let item = Item { name: name.as_ref().to_vec().into(), ..Item::default() };
    several(request_id, vec![item], None, wait)
}

/// An Acquire of all of these, or with `any` of those of them that are free.
pub fn several(request_id: u64, items: Vec<Item>, any: Option<u32>, wait: bool) -> Ask {
    let any = any.map(|min| AnyOf { min });
    Ask::Acquire(Acquire { request_id, items, wait, any, ..Acquire::default() })
}

/// One name of a request.
pub fn item(name: &str, mode: Mode) -> Item {
    Item { name: name.as_bytes().to_vec().into(), mode: mode.into(), ..Item::default() }
}
