//! The attached streams and the running leases: the state that the streams, the leader's tasks and the
//! events of the log share.
//!
//! # Locking
//!
//! One mutex, held for short, never across an await. It may be taken under the table's lock
//! ([`Consensus::read`](crate::consensus::Consensus::read), [`Listener`]); so its holder must neither
//! read the table nor submit a command.
//!
//! [`Listener`]: crate::consensus::Listener
//!
//! # Invariants
//!
//! - A session is attached to at most one stream, the newest that showed its secret: by the client's own count, where
//!   it counts, else by when they came.
//! - Streams are attached and leases kept only within a tenure; both go when it ends.
//! - The end of a stream changes nothing but this registry (DESIGN §6).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use holdfast_core::{ClosedLock, LEASE_PARTS, LockTable, LogIndex, RequestId, SessionId, Tenure};
use holdfast_proto::v1::server_frame::Body;
use holdfast_proto::v1::{self, GoingAway, Opened, Redirect};
use holdfast_runtime::{Instant, Runtime};
use tokio::sync::{Notify, watch};

use super::admission::Admission;
use super::answers::{frame, now_ms};
use super::busy::heat::Heat;
use super::error::{CallError, StreamError, unavailable};
use super::frames::Request;
use super::leases::{Leases, PendingKeepAlive};
use super::lines::Lines;
use super::metrics::SessionMetrics;
use super::outbox::{Bounds, Outbox, Outboxes};
use super::places::Follows;
use super::settings::SessionSettings;
use super::spans::Spans;
use super::times::Times;
use super::waiting::Waiting;
use super::watch::Watches;
use crate::authority::Board;
use crate::bytes_budget::BytesBudget;

/// Sessions that are entered into the leases of a new tenure under one lock: about a millisecond's
/// worth. In between other tasks run, above all Raft's.
const ENTERED_AT_ONCE: usize = 1_024;

/// The message of a node that accepts no client any more.
const STOPPING: &str = "this node stops";

/// Numbers the streams of this node in the order in which they came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StreamId(u64);

/// The shared state of the session layer.
#[derive(Debug)]
pub(super) struct Registry {
    pub(super) runtime: Runtime,
    pub(super) settings: SessionSettings,
    pub(super) metrics: SessionMetrics,
    pub(super) lines: Arc<Lines>,
    /// The watchers; they have a lock of their own.
    pub(super) watches: Arc<Watches>,
    outboxes: Arc<Outboxes>,
    pub(super) admission: Admission,
    /// The budget for what clients send and no session takes yet.
    pub(super) arriving: Arc<BytesBudget>,
    /// What every answer that renews a lease says about scopes.
    pub(super) board: Arc<Board>,
    /// Events up to this entry are not counted: this node had it when it started.
    counts_after: LogIndex,
    /// The last index applied here, or seen with an answer.
    applied: AtomicU64,
    state: Mutex<State>,
    /// A keepalive waits for a round.
    pub(super) keepalive_waits: Notify,
    /// Something may be due sooner than the expirer knows.
    pub(super) sooner: Notify,
    /// A hold with bounds began, or a lock was closed.
    pub(super) bounds_changed: Notify,
    /// A followed place may have changed.
    pub(super) place_changed: Notify,
    /// A stream has left.
    left: Notify,
    /// Tells of each change of the rules.
    pub(super) rules_changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// Every stream that is served, opened or not.
    streams: BTreeMap<StreamId, Arc<Outbox>>,
    pub(super) attached: BTreeMap<SessionId, Attached>,
    pub(super) follows: Follows,
    pub(super) waiting: Waiting,
    /// `Some` while this node leads.
    pub(super) leases: Option<Leases>,
    /// Since when requests wait and hold, in this tenure.
    pub(super) times: Times,
    /// Spans of what waits and holds, in this tenure.
    pub(super) spans: Spans,
    /// How often locks are granted, while somebody asks.
    pub(super) heat: Heat,
    /// `Some` while this node leads a restored cluster that grants nothing yet: when it does again.
    grants_at: Option<Instant>,
    last_stream: u64,
    /// Set once, when the node stops.
    stopping: Option<Stopping>,
}

/// The stream of a session.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) stream: StreamId,
    /// The number of the attempt that attached it; 0: its client does not count them.
    attempt: u64,
    pub(super) outbox: Arc<Outbox>,
    /// Denials that an event reported to the stream, and whose outcome is still to come.
    pub(super) denied: BTreeSet<RequestId>,
}

impl Attached {
    /// Whether its client asked for it later than for `stream`. Where the client counts its attempts, that
    /// decides: through another member an Open may arrive after the one that the client sent later.
    fn is_newer_than(&self, stream: StreamId, attempt: u64) -> bool {
        if self.attempt == 0 || attempt == 0 {
            return self.stream > stream;
        }
        (self.attempt, self.stream) > (attempt, stream)
    }
}

#[derive(Clone, Debug)]
struct Stopping {
    leader: Option<String>,
}

/// A handle to push frames to a stream; it may outlive the stream, and then has no effect.
#[derive(Clone, Debug)]
pub(super) struct StreamHandle {
    pub(super) registry: Arc<Registry>,
    pub(super) stream: StreamId,
    pub(super) outbox: Arc<Outbox>,
}

/// The registration of a stream; the stream leaves when this is dropped.
#[derive(Debug)]
pub(super) struct Registration {
    pub(super) handle: StreamHandle,
    /// Set once, when it is attached.
    session: OnceLock<SessionId>,
}

impl Registry {
    /// The state of a node that had the entries up to `had_at_start` when it started.
    pub(super) fn new(runtime: Runtime, settings: SessionSettings, had_at_start: LogIndex) -> Self {
        let metrics = SessionMetrics::new(&settings.metrics_prefixes);
        let lines = Arc::new(Lines::new(runtime.clock.clone(), &settings));
        let watches = Watches::new(&settings, metrics.clone(), runtime.clone(), lines.clone());
        let watches = Arc::new(watches);
        let bounds = Bounds { frames: settings.outbox_frames, bytes: settings.outbox_bytes };
        let budget = BytesBudget::new(settings.outbox_bytes_total, metrics.outbox_bytes.clone());
        let outboxes = Outboxes::new(bounds, budget);
        let arriving =
            BytesBudget::new(settings.arriving_bytes_total, metrics.arriving_bytes.clone());
        let admission = Admission::new(settings.resumes_per_second);
        Self {
            runtime,
            settings,
            metrics,
            lines,
            watches,
            outboxes,
            admission,
            arriving,
            board: Arc::default(),
            counts_after: had_at_start,
            applied: AtomicU64::new(0),
            state: Mutex::default(),
            keepalive_waits: Notify::new(),
            sooner: Notify::new(),
            bounds_changed: Notify::new(),
            place_changed: Notify::new(),
            left: Notify::new(),
            rules_changed: watch::Sender::default(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now_ms(&self, table: &LockTable) -> u64 {
        now_ms(table, &*self.runtime.clock)
    }

    /// The last index whose events were dispatched here.
    pub(super) fn applied(&self) -> LogIndex {
        LogIndex::new(self.applied.load(Ordering::Acquire))
    }

    /// Whether the events of an entry are counted: not those that a restart applies again.
    pub(super) fn counts(&self, index: LogIndex) -> bool {
        index > self.counts_after
    }

    pub(super) fn note_applied(&self, index: LogIndex) {
        self.applied.fetch_max(index.get(), Ordering::AcqRel);
    }

    /// Registers a new stream.
    ///
    /// # Errors
    ///
    /// [`StreamError::Limit`]; [`StreamError::Unavailable`] once the node stops.
    pub(super) fn enter(self: &Arc<Self>) -> Result<Registration, StreamError> {
        let mut state = self.lock();
        if let Some(Stopping { leader }) = state.stopping.clone() {
            return Err(StreamError::unavailable(STOPPING, leader.as_deref()));
        }
        let unopened = state.streams.len().saturating_sub(state.attached.len());
        if unopened >= self.settings.max_unopened_streams {
            let limit = self.settings.max_unopened_streams as u64;
            let message = "too many streams wait to be opened; try again later";
            return Err(StreamError::limit("max_unopened_streams", limit, message));
        }
        state.last_stream += 1;
        let stream = StreamId(state.last_stream);
        let outbox = self.outboxes.open();
        state.streams.insert(stream, outbox.clone());
        let handle = StreamHandle { registry: self.clone(), stream, outbox };
        Ok(Registration { handle, session: OnceLock::new() })
    }

    /// Begins a tenure, in which nobody is served yet: [`Registry::enter_sessions`] follows, for all
    /// parts. Call it under the table's lock: what is applied from then on reaches the leases as
    /// events. With so many `sessions` that some clients will be told to wait, leases last longer.
    pub(super) fn begin_tenure(&self, tenure: Tenure, now: Instant, sessions: u64) {
        let since = now + self.admission.longer_by(sessions);
        let leases = Leases::begin(tenure, self.settings.margin_ms, since);
        self.lock().leases = Some(leases);
    }

    /// Enters the sessions that are open in `table` into the leases, from the part `first` on, about
    /// [`ENTERED_AT_ONCE`] of them; returns the first part that is left. After the last one the node
    /// serves. Call it under the table's lock, so that no event falls between that state and this.
    pub(super) fn enter_sessions(&self, tenure: Tenure, table: &LockTable, first: usize) -> usize {
        let now = self.runtime.clock.now();
        let entered = self.with_leases(tenure, |leases| {
            let (mut part, mut count) = (first, 0);
            while part < LEASE_PARTS && count < ENTERED_AT_ONCE {
                for session in table.leases_in(part) {
                    leases.enter(session);
                    count += 1;
                }
                for hold in table.bound_holds_in(part) {
                    leases.bounds.held(hold, now);
                }
                for (lock, closed) in table.closed_locks_in(part) {
                    let ClosedLock { token, hold_at_least_ms, .. } = *closed;
                    leases.bounds.closed(lock, (token, hold_at_least_ms), now);
                    count += 1;
                }
                part += 1;
            }
            if part == LEASE_PARTS {
                leases.all_entered();
            }
            part
        });
        if entered == Some(LEASE_PARTS) {
            self.watches.begin_tenure(tenure);
        }
        // The tenure is over: nothing is left to do.
        entered.unwrap_or(LEASE_PARTS)
    }

    /// Ends a tenure at once: all leases go, no stream is attached any more, and every watch ends.
    /// Returns the outboxes of the streams, each of which has to be sent away, and the times, which may take
    /// a while to free.
    #[must_use]
    pub(super) fn end_tenure(&self, leader: Option<&str>) -> (Vec<Arc<Outbox>>, Times) {
        self.watches.end_tenure(leader);
        self.metrics.locks.show_queues(0, std::iter::repeat(0));
        let mut state = self.lock();
        state.leases = None;
        let times = std::mem::take(&mut state.times);
        // Each ends when it is dropped, which takes a while for many: without the lock.
        let spans = std::mem::take(&mut state.spans);
        state.grants_at = None;
        state.heat.stop();
        state.follows = Follows::default();
        state.waiting.elsewhere(leader);
        let attached = std::mem::take(&mut state.attached);
        self.count_attached(&state);
        drop(state);
        drop(spans);
        (attached.into_values().map(|attached| attached.outbox).collect(), times)
    }

    /// When a restored cluster grants again.
    pub(super) fn set_grants_at(&self, at: Option<Instant>) {
        self.lock().grants_at = at;
    }

    /// In how long a restored cluster that this node leads grants again; `None` if it grants.
    pub(super) fn grants_in(&self) -> Option<Duration> {
        let now = self.runtime.clock.now();
        self.lock().grants_at.map(|at| at.saturating_since(now))
    }

    /// Sends a stream to the leader, because this node leads no more.
    pub(super) fn send_away(&self, outbox: &Outbox, leader: Option<&str>) {
        let redirect = Body::Redirect(Redirect { leader: leader.map(str::to_owned) });
        outbox.finish(Some(frame(self.applied(), redirect)), Ok(()));
    }

    /// Gives access to the leases of `tenure`; `None` if this node does not lead in it any more.
    pub(super) fn with_leases<T>(
        &self,
        tenure: Tenure,
        look: impl FnOnce(&mut Leases) -> T,
    ) -> Option<T> {
        let mut state = self.lock();
        let leases = state.leases.as_mut().filter(|leases| leases.tenure() == tenure)?;
        let seen = look(leases);
        if leases.is_sooner() {
            self.sooner.notify_one();
        }
        Some(seen)
    }

    /// The tenure in which this node leads and serves.
    pub(super) fn tenure(&self) -> Option<Tenure> {
        self.lock().leases.as_ref().filter(|leases| leases.is_whole()).map(Leases::tenure)
    }

    /// A keepalive came in on the session's stream.
    pub(super) fn heard(&self, heard: PendingKeepAlive) {
        self.metrics.keepalives.inc();
        let mut state = self.lock();
        if state.leases.as_mut().is_some_and(|leases| leases.heard(heard)) {
            self.keepalive_waits.notify_one();
        }
    }

    /// A command about a request has its outcome. Returns whether the event reported the denial to this
    /// stream; if the request does not wait, its place is not followed any more.
    pub(super) fn settle(
        &self,
        stream: StreamId,
        session: SessionId,
        request: RequestId,
        waits: bool,
    ) -> bool {
        let mut state = self.lock();
        if !waits {
            state.follows.forget(session, request);
            state.spans.settled(session, request);
        }
        let Some(attached) = state.attached.get_mut(&session) else { return false };
        // Whichever stream asked: the request has no other outcome to come.
        attached.denied.remove(&request) && attached.stream == stream
    }

    /// Begins the span of a request that brings a trace along, where this node leads.
    pub(super) fn trace(&self, session: SessionId, request: &Request) {
        let Request::Acquire { request, items, trace: Some(trace), .. } = request else { return };
        let mut state = self.lock();
        if state.leases.is_some() {
            state.spans.asked((session, *request), trace.clone(), items);
        }
    }

    /// The outcome of a request goes to a call. A stream of the same session to which the event reported
    /// the denial has no outcome to wait for.
    pub(super) fn told_by_a_call(&self, session: SessionId, request: RequestId, waits: bool) {
        let mut state = self.lock();
        if !waits {
            state.spans.settled(session, request);
        }
        if let Some(attached) = state.attached.get_mut(&session) {
            attached.denied.remove(&request);
        }
    }

    /// Sends every stream away for good, naming `leader` as the node to go to; waits until all have
    /// left.
    pub(super) async fn stop(&self, leader: Option<String>) {
        let going = Body::GoingAway(GoingAway { leader: leader.clone() });
        let outboxes: Vec<_> = {
            let mut state = self.lock();
            state.stopping = Some(Stopping { leader: leader.clone() });
            state.waiting.elsewhere(leader.as_deref());
            state.streams.values().cloned().collect()
        };
        for outbox in outboxes {
            let end = Err(StreamError::ShuttingDown { leader: leader.clone() });
            outbox.finish(Some(frame(self.applied(), going.clone())), end);
        }
        while !self.lock().streams.is_empty() {
            self.left.notified().await;
        }
    }

    pub(super) fn count_attached(&self, state: &State) {
        let count = i64::try_from(state.attached.len()).unwrap_or(i64::MAX);
        self.metrics.attached_streams.set(count);
    }

    /// Over how long the clients of this node spread their return if they lose it, milliseconds.
    pub(super) fn spread_ms(&self) -> u64 {
        let streams = u64::try_from(self.metrics.attached_streams.get()).unwrap_or_default();
        self.admission.spread_ms(streams)
    }

    /// Puts a frame into an outbox, and counts a refusal, and the overflow if it did not fit.
    pub(super) fn push(&self, outbox: &Outbox, index: LogIndex, body: Body) {
        self.note_refusal(&body);
        if !outbox.push(frame(index, body)) {
            self.lines.stream_cut();
            self.metrics.outbox_overflows.inc();
        }
        self.make_room();
    }

    /// A frame that refuses something leaves.
    pub(super) fn note_refusal(&self, body: &Body) {
        let refusal = match body {
            Body::Refused(refused) => &refused.refusal,
            Body::Denied(denied) => &denied.refusal,
            _ => return,
        };
        if let Some(refusal) = refusal {
            self.metrics.refusals.note(refusal.reason());
        }
    }

    /// Ends the largest outboxes if all together hold more than their budget.
    fn make_room(&self) {
        let ended = self.outboxes.make_room();
        if ended > 0 {
            self.lines.evicted(ended);
            self.metrics.outbox_evictions.inc_by(ended);
        }
    }
}

impl State {
    /// Whether calls may wait on this node.
    ///
    /// # Errors
    ///
    /// [`CallError`]: this node stops, or no longer leads.
    pub(super) fn serves(&self) -> Result<(), CallError> {
        if let Some(Stopping { leader }) = &self.stopping {
            return Err(unavailable(STOPPING, leader.clone()));
        }
        if !self.leases.as_ref().is_some_and(Leases::is_whole) {
            return Err(unavailable("this node does not lead, or does not serve yet", None));
        }
        Ok(())
    }

    /// Whether one more session may be attached.
    pub(super) fn room_to_attach(&self, settings: &SessionSettings) -> Result<(), StreamError> {
        let limit = settings.max_attached_streams;
        if self.attached.len() < limit {
            return Ok(());
        }
        let message = "too many streams are attached to this node; try again later";
        Err(StreamError::limit("max_attached_streams", limit as u64, message))
    }
}

impl StreamHandle {
    /// Puts a frame into the stream's outbox.
    pub(super) fn push(&self, index: LogIndex, body: Body) {
        self.registry.push(&self.outbox, index, body);
    }

    /// Puts State, or a page of it, into the stream's outbox; Opened goes before the first.
    pub(super) fn show(&self, index: LogIndex, opened: Option<Opened>, page: v1::State) {
        let more = page.more;
        let opened = opened.map(|opened| frame(index, Body::Opened(opened)));
        let page = frame(index, Body::State(page));
        self.outbox.show(opened.into_iter().chain([page]).collect(), more);
        self.registry.make_room();
    }
}

impl Registration {
    /// Whether this may become the session's stream.
    pub(super) fn may_attach(
        &self,
        state: &State,
        session: SessionId,
        attempt: u64,
    ) -> Result<(), StreamError> {
        let StreamHandle { registry, stream, .. } = &self.handle;
        match state.attached.get(&session) {
            // This stream came before one whose confirmation was faster, or lingered on its way.
            Some(now) if now.is_newer_than(*stream, attempt) => {
                Err(StreamError::AttachedElsewhere { session: session.get() })
            }
            Some(_) => Ok(()),
            None => state.room_to_attach(&registry.settings),
        }
    }

    /// Makes this the session's stream. An older stream of the session ends.
    ///
    /// # Errors
    ///
    /// [`StreamError`]: the session is not attached to this stream.
    pub(super) fn attach(
        &self,
        state: &mut State,
        session: SessionId,
        attempt: u64,
    ) -> Result<(), StreamError> {
        self.may_attach(state, session, attempt)?;
        let StreamHandle { registry, stream, outbox } = &self.handle;
        let attached =
            Attached { stream: *stream, attempt, outbox: outbox.clone(), denied: BTreeSet::new() };
        if let Some(older) = state.attached.insert(session, attached) {
            let end = Err(StreamError::AttachedElsewhere { session: session.get() });
            older.outbox.finish(None, end);
            state.follows.forget_session(session);
        }
        // A stream attaches only once.
        let _ = self.session.set(session);
        registry.count_attached(state);
        Ok(())
    }
}

impl Drop for Registration {
    /// The stream leaves. Its session keeps all it has: only its lease decides.
    fn drop(&mut self) {
        let StreamHandle { registry, stream, .. } = &self.handle;
        let mut state = registry.lock();
        state.streams.remove(stream);
        if let Some(&session) = self.session.get()
            && state.attached.get(&session).is_some_and(|now| now.stream == *stream)
        {
            state.attached.remove(&session);
            state.follows.forget_session(session);
            registry.count_attached(&state);
        }
        drop(state);
        registry.left.notify_one();
    }
}
