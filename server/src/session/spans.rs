//! Spans of requests that bring a trace along: one of the wait, and below the caller's too, one of the hold.
//!
//! Only the leader makes them. They end with its tenure, like everything else that it measures.

use std::collections::BTreeMap;

use holdfast_core::{Event, FencingToken, Item, RequestId, SessionId};

use crate::traces::{Span, Trace};

/// Requests and holds with a span at once; others have none.
const SPANS_MAX: usize = 10_000;

/// The spans of what waits and holds.
#[cfg_attr(
    not(feature = "otel"),
    expect(clippy::zero_sized_map_values, reason = "without the feature there is never an entry")
)]
#[derive(Debug, Default)]
pub(super) struct Spans {
    waits: BTreeMap<(SessionId, RequestId), (Trace, Span)>,
    holds: BTreeMap<FencingToken, Span>,
}

impl Spans {
    pub(super) fn is_empty(&self) -> bool {
        self.waits.is_empty() && self.holds.is_empty()
    }

    /// A request came in. One that came in before and has no outcome goes on in the new span.
    pub(super) fn asked(&mut self, request: (SessionId, RequestId), trace: Trace, items: &[Item]) {
        if self.waits.len() + self.holds.len() >= SPANS_MAX {
            return;
        }
        let mut span = trace.request("holdfast.acquire");
        describe(&mut span, request.0, items);
        self.waits.insert(request, (trace, span));
    }

    /// Something happened to what waits or holds.
    pub(super) fn happened(&mut self, event: &Event) {
        match event {
            Event::Queued { session, request, place, .. } => {
                if let Some((_, span)) = self.waits.get_mut(&(*session, *request)) {
                    span.number("holdfast.place", *place);
                    span.happened("queued");
                }
            }
            Event::Granted { session, request, token, items, .. } => {
                if let Some((trace, mut span)) = self.waits.remove(&(*session, *request)) {
                    span.text("holdfast.token", token.get().to_string());
                    let mut hold = trace.below("holdfast.hold");
                    describe(&mut hold, *session, items);
                    hold.text("holdfast.token", token.get().to_string());
                    self.holds.insert(*token, hold);
                }
            }
            Event::Denied { session, request, .. } => {
                self.over(*session, *request, "denied: somebody holds it");
            }
            Event::Left { session, request, .. } => {
                self.over(*session, *request, "left the queue without a grant");
            }
            Event::Released { token, over: true, .. } => drop(self.holds.remove(token)),
            Event::Lost { token, over: true, .. } => {
                if let Some(mut hold) = self.holds.remove(token) {
                    hold.failed("lost");
                }
            }
            _ => {}
        }
    }

    /// A request has an outcome and does not wait. If no event told of it, it was refused, or had been granted
    /// before.
    pub(super) fn settled(&mut self, session: SessionId, request: RequestId) {
        self.over(session, request, "not granted anew");
    }

    fn over(&mut self, session: SessionId, request: RequestId, why: &'static str) {
        if let Some((_, mut span)) = self.waits.remove(&(session, request)) {
            span.failed(why);
        }
    }
}

fn describe(span: &mut Span, session: SessionId, items: &[Item]) {
    if let Some(first) = items.first() {
        span.text("holdfast.lock", first.lock.as_str().to_owned());
    }
    span.number("holdfast.locks", u64::try_from(items.len()).unwrap_or(u64::MAX));
    span.number("holdfast.session", session.get());
}
