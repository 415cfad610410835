//! Delivers the events of the log to the streams, leases and watches that they concern.
//!
//! Runs under the table's lock, on every node; where no stream is attached and the node does not lead,
//! it costs a look at an empty map. Pushes never wait: a full outbox ends its stream.

use std::time::Duration;

use holdfast_core::{
    EndCause, Event, FencingToken, Item, Label, LockTable, LogIndex, NamePrefix, Rejection,
    RequestId, SessionId,
};
use holdfast_proto::v1::server_frame::Body;
use holdfast_proto::v1::{HoldsClosed, ServerFrame};

use holdfast_runtime::Instant;

use super::lines::OfLock;
use super::registry::{Registry, State};
use super::waiting::{About, Told};
use super::{answers, refusals};
use crate::consensus::Listener;

impl Listener for Registry {
    fn applied(&self, index: LogIndex, events: &[Event], table: &LockTable) {
        self.note_applied(index);
        if events.is_empty() {
            return;
        }
        self.watches.applied(index, events, table);
        let mut state = self.lock();
        let measures = state.leases.is_some() && events.iter().any(is_measured);
        let leads_at = measures.then(|| self.runtime.clock.now());
        state.times.dispatched(leads_at);
        for event in events {
            if self.counts(index) {
                self.count(event);
            }
            if !state.spans.is_empty() {
                state.spans.happened(event);
            }
            if state.heat.is_on() {
                state.heat.count(event, self.runtime.clock.now());
            }
            if let Some(now) = leads_at {
                self.measure(&mut state, now, event, table);
            }
            self.note_bounds(&mut state, event, table);
            self.dispatch(&mut state, index, event, table);
        }
        if state.leases.as_ref().is_some_and(super::leases::Leases::is_sooner) {
            self.sooner.notify_one();
        }
    }

    /// Only a follower receives a snapshot. Should a stream be attached all the same, what it was sent
    /// may be out of date, and a resume corrects that.
    fn restored(&self, index: LogIndex, table: &LockTable) {
        self.note_applied(index);
        self.board.restart(table.scopes());
        self.rules_changed.send_modify(|()| {});
        let (outboxes, _times) = self.end_tenure(None);
        for outbox in outboxes {
            self.send_away(&outbox, None);
        }
        self.watches.restored(index);
    }
}

impl Registry {
    fn dispatch(&self, state: &mut State, index: LogIndex, event: &Event, table: &LockTable) {
        match event {
            Event::SessionOpened { session } => self.opened(state, *session, table),
            Event::SessionEnded { session, cause } => self.ended(state, index, *session, *cause),
            Event::Queued { session, request, items, place } => {
                self.queued(state, index, (*session, *request, items, *place), table);
            }
            Event::Granted { session, request, token, items, values } => {
                self.left(state, *session, *request, items);
                let granted = || answers::granted(*request, *token, items, values);
                let about = About::Request(*request);
                state.waiting.tell(*session, about, || Told::Granted(index, granted()));
                self.tell(state, index, *session, || Body::Granted(granted()));
            }
            Event::Denied { session, request, rejection, .. } => {
                note_denied(state, (*session, *request), rejection);
                self.tell(state, index, *session, || {
                    answers::denied(table, self.now_ms(table), *request, rejection)
                });
            }
            // Streams learn of it by the answer to the cancel, or by their session's end.
            Event::Left { session, request, items } => {
                self.left(state, *session, *request, items);
                // Waiting calls: a request that left because its session ended is answered with that
                // end, and one that left because another of its locks was granted was answered with
                // the grant right before this.
                if table.session(*session).is_some() {
                    state.waiting.tell(*session, About::Request(*request), || Told::Left);
                }
            }
            Event::Released { session, request, token, items, over } => {
                self.moved(state, items);
                let names = || answers::names_of(items);
                let released = || answers::released(*request, *token, names(), *over);
                // A call that gives back the whole waits for its end, and names of a part are another call's.
                if *over {
                    let about = About::Grant(*token);
                    state.waiting.tell(*session, about, || Told::Released(released()));
                }
                self.tell(state, index, *session, || Body::Released(released()));
                hold_over(state, *session, *token, *over);
            }
            Event::Lost { session, request, token, items, cause, over } => {
                self.moved(state, items);
                hold_over(state, *session, *token, *over);
                self.tell(state, index, *session, || answers::lost(*request, *token, *cause));
            }
            Event::Contended { session, request, lock, token } => {
                self.tell(state, index, *session, || {
                    Body::Contended(answers::contended(table, *request, *token, lock))
                });
            }
            // The answer to the change reports it, and the grant to the next holder.
            Event::ValueChanged { .. }
            // The leader counts ([`Registry::note_bounds`]).
            | Event::LockClosed { .. }
            | Event::LockOpened { .. } => {}
            Event::FreezeChanged { prefix, .. } => self.names_moved(state, prefix),
            Event::RulesChanged => self.rules_changed.send_modify(|()| {}),
            Event::ImportLengthened { session, ttl_ms } => self.lengthened(state, *session, *ttl_ms),
            Event::SessionRevoked { session, reason } => {
                self.revoked(state, index, *session, reason);
            }
            Event::HoldClosed { session, token, reason, .. } => {
                self.hold_closed(state, index, (*session, *token), reason);
            }
            // Streams learn of it with the answers to their keepalives.
            Event::ScopeChanged { scope, now } => self.board.applied(scope, *now),
        }
    }

    /// Whether this node leads, the session is there, and its expiry is not under way.
    pub(super) fn lasts(&self, session: SessionId) -> bool {
        self.lock().leases.as_mut().is_some_and(|leases| leases.lasts(session))
    }

    /// As of [`Hub::lease_left`](super::Hub::lease_left).
    pub(super) fn lease_left(&self, session: SessionId) -> Option<Duration> {
        let now = self.runtime.clock.now();
        self.lock().leases.as_ref()?.left(session, now)
    }

    /// Makes the lease of an import last so long from now on, or longer; `false` as of [`Registry::lasts`].
    pub(super) fn lengthen(&self, session: SessionId, ttl_ms: u64) -> bool {
        self.lengthened(&mut self.lock(), session, ttl_ms);
        self.lasts(session)
    }

    /// A session opened while this node leads: it has a lease from here on (DESIGN §5.1).
    fn opened(&self, state: &mut State, session: SessionId, table: &LockTable) {
        let Some(leases) = state.leases.as_mut() else { return };
        // It may have ended again in the same entry.
        if let Some(view) = table.session(session) {
            leases.opened(session, view.ttl_ms, self.runtime.clock.now());
        }
    }

    fn lengthened(&self, state: &mut State, session: SessionId, ttl_ms: u64) {
        if let Some(leases) = state.leases.as_mut() {
            leases.lengthened(session, ttl_ms, self.runtime.clock.now());
        }
    }

    /// A session is over: its lease goes and its stream ends.
    fn ended(&self, state: &mut State, index: LogIndex, session: SessionId, cause: EndCause) {
        let now = self.runtime.clock.now();
        let late = state.leases.as_mut().and_then(|leases| leases.ended(session, now));
        if let (EndCause::Expired, Some(late)) = (cause, late) {
            self.metrics.expiry_lateness.0.observe(late.as_secs_f64());
            self.lines.expired(session, late);
        }
        self.leave(state, session, answers::frame(index, answers::session_ended(cause)));
    }

    /// A session was ended from outside: its client is told at once, and nothing renews it (I35).
    fn revoked(&self, state: &mut State, index: LogIndex, session: SessionId, why: &Label) {
        if let Some(leases) = state.leases.as_mut() {
            leases.revoked(session);
        }
        self.leave(state, session, answers::frame(index, answers::session_revoked(why)));
    }

    /// A hold was closed from outside: its client is told at once, and it has a deadline of its own (I35).
    fn hold_closed(
        &self,
        state: &mut State,
        index: LogIndex,
        (session, token): (SessionId, FencingToken),
        why: &Label,
    ) {
        if let Some(leases) = state.leases.as_mut() {
            leases.hold_closed(session, token);
        }
        self.tell(state, index, session, || {
            let closed = vec![answers::closed_hold(token, why)];
            Body::HoldsClosed(HoldsClosed { closed })
        });
    }

    /// Nothing of a session is waited for any more, and its stream ends with `last`.
    fn leave(&self, state: &mut State, session: SessionId, last: ServerFrame) {
        state.follows.forget_session(session);
        state.waiting.session_over(session);
        if let Some(attached) = state.attached.remove(&session) {
            attached.outbox.finish(Some(last), Ok(()));
            self.count_attached(state);
        }
    }

    fn queued(
        &self,
        state: &mut State,
        index: LogIndex,
        (session, request, items, place): (SessionId, RequestId, &[Item], u64),
        table: &LockTable,
    ) {
        let now_ms = self.now_ms(table);
        let frozen = answers::frozen(table, now_ms, items);
        state.follows.told((session, request), (place, frozen.is_some()));
        self.came_before_others(state, items, place, table);
        self.tell(state, index, session, || {
            let holders = answers::holders(table, now_ms, items);
            answers::queued(request, place, holders, frozen)
        });
    }

    /// Those who wait for these names are told whether they are frozen.
    fn names_moved(&self, state: &mut State, prefix: &NamePrefix) {
        if state.follows.moved_below(prefix) {
            self.place_changed.notify_one();
        }
    }

    /// A request with a head start moves the places of those whom it came before.
    fn came_before_others(&self, state: &mut State, items: &[Item], place: u64, table: &LockTable) {
        let waiting = |item: &Item| table.lock(&item.lock).map_or(0, |lock| lock.waiting);
        if !state.follows.is_empty() && items.iter().any(|item| waiting(item) > place + 1) {
            self.moved(state, items);
        }
    }

    fn left(&self, state: &mut State, session: SessionId, request: RequestId, items: &[Item]) {
        state.follows.forget(session, request);
        self.moved(state, items);
    }

    fn moved(&self, state: &mut State, items: &[Item]) {
        for item in items {
            if state.follows.moved(&item.lock) {
                self.place_changed.notify_one();
            }
        }
    }

    /// Pushes a frame to the session's stream, if it has one on this node; only then the frame is made.
    fn tell(
        &self,
        state: &State,
        index: LogIndex,
        session: SessionId,
        body: impl FnOnce() -> Body,
    ) {
        if let Some(attached) = state.attached.get(&session) {
            self.push(&attached.outbox, index, body());
        }
    }

    /// Measures how long requests wait and holds last, while this node leads.
    fn measure(&self, state: &mut State, now: Instant, event: &Event, table: &LockTable) {
        match event {
            Event::Queued { session, request, .. } => state.times.queued((*session, *request), now),
            Event::Left { session, request, .. } => state.times.left((*session, *request)),
            Event::Granted { session, request, token, items, .. } => {
                if let Some(waited) = state.times.granted((*session, *request), *token, now) {
                    self.metrics.locks.waited(items, waited);
                    self.lines.waited(&OfLock { session: *session, items, table }, waited);
                }
            }
            Event::Released { session, token, items, over: true, .. }
            | Event::Lost { session, token, items, over: true, .. } => {
                if let Some(held) = state.times.over(*token, now) {
                    self.metrics.locks.held(items, held);
                    self.lines.held(&OfLock { session: *session, items, table }, held);
                }
            }
            _ => {}
        }
    }

    fn count(&self, event: &Event) {
        match event {
            Event::Granted { .. } => self.metrics.grants.inc(),
            Event::Released { .. } => self.metrics.releases.inc(),
            Event::Lost { .. } => self.metrics.losses.inc(),
            Event::SessionEnded { cause: EndCause::Expired, .. } => self.metrics.expiries.inc(),
            Event::HoldClosed { .. } => self.metrics.closed_holds.inc(),
            _ => return,
        };
    }
}

/// Whether a wait or a hold begins or ends with it.
fn is_measured(event: &Event) -> bool {
    matches!(
        event,
        Event::Queued { .. }
            | Event::FreezeChanged { .. }
            | Event::Left { .. }
            | Event::Granted { .. }
            | Event::Released { over: true, .. }
            | Event::Lost { over: true, .. }
    )
}

/// The outcome of its own command tells of a denial, and must not do so twice. One that waited has none: a call
/// that waits for it is told here.
fn note_denied(
    state: &mut State,
    (session, request): (SessionId, RequestId),
    rejection: &Rejection,
) {
    state.follows.forget(session, request);
    if !rejection.is_denial() {
        let refused = || Told::Refused(refusals::of_rejection(rejection));
        state.waiting.tell(session, About::Request(request), refused);
    } else if let Some(attached) = state.attached.get_mut(&session) {
        attached.denied.insert(request);
    }
}

/// A closed hold that is over needs no end any more.
fn hold_over(state: &mut State, session: SessionId, token: FencingToken, over: bool) {
    if let Some(leases) = state.leases.as_mut().filter(|_| over) {
        leases.hold_over(session, token);
    }
}
