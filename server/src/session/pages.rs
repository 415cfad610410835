//! State after a resume: all requests of a session as of one index (I23), whole or in pages.
//!
//! The part that must be as of that index is copied at once, under the table's lock: which requests
//! there are, how far each came, its place and its token. That is cheap, because names are shared with
//! the table. The large part is read page by page: the holders of the locks that a request waits for,
//! which are shown to people, and the values of the locks that it holds. Only a request that still holds
//! can have changed these values; for a request that holds no more no values are shown, because the
//! frame that reports this is on its way.
//!
//! So a session with hundreds of megabytes costs this node one page at a time, and the table is never
//! locked for longer than one page takes.

use std::vec;

use holdfast_core::{
    FencingToken, Item, LockName, LockTable, LogIndex, RequestId, RequestState, RequestView,
    SessionId, Value,
};
use holdfast_proto::v1::request_state::State as WireState;
use holdfast_proto::v1::{Denied, Ended, Queued, RequestState as WireRequest, State};
use prost::Message as _;

use super::answers::{self, granted, holders, in_the_way, value_set};
use super::refusals;

/// Largest State that is sent whole, bytes. Clients that do not know pages, those of 0.1, accept 16 MiB
/// in a message; the rest is for Opened and what is around them.
pub(super) const WHOLE_BYTES_MAX: usize = 15 << 20;

/// What an entry takes besides its own bytes: its tag and its length.
const ENTRY_OVERHEAD: usize = 8;

/// The part of a State that is still to be sent.
#[derive(Debug)]
pub(super) struct Pages {
    session: SessionId,
    index: LogIndex,
    requests: vec::IntoIter<RequestView>,
    next_request_id: u64,
}

impl Pages {
    /// The session's State as of `index`, which is the table's; `None` if it is not open.
    pub(super) fn of(table: &LockTable, index: LogIndex, session: SessionId) -> Option<Self> {
        let done_below = table.session(session)?.done_below.get();
        let requests: Vec<RequestView> = table.requests(session).collect();
        // A request that was seen and is not kept lies below the mark.
        let above_kept = requests.last().map_or(0, |last| last.request.get().saturating_add(1));
        let next_request_id = above_kept.max(done_below);
        Some(Self { session, index, requests: requests.into_iter(), next_request_id })
    }

    /// The index that every page is as of.
    pub(super) fn index(&self) -> LogIndex {
        self.index
    }

    /// Whether there is no further page.
    pub(super) fn is_empty(&self) -> bool {
        self.requests.len() == 0
    }

    /// All of it in one piece; `None` if that takes more than [`WHOLE_BYTES_MAX`]. `table` is the one it
    /// was made of, unchanged; `now_ms` is [`now_ms`](super::answers::now_ms).
    pub(super) fn whole(&mut self, table: &LockTable, now_ms: u64) -> Option<State> {
        let state = self.take(table, now_ms, WHOLE_BYTES_MAX);
        let bytes: usize = state.requests.iter().map(bytes_of).sum();
        (self.is_empty() && bytes <= WHOLE_BYTES_MAX).then_some(state)
    }

    /// The next page: it ends once it has `page_bytes`, and has at least one request if any is left.
    pub(super) fn next_page(&mut self, table: &LockTable, now_ms: u64, page_bytes: usize) -> State {
        let mut page = self.take(table, now_ms, page_bytes.max(1));
        page.more = !self.is_empty();
        page
    }

    /// Takes requests until they have `enough` bytes.
    fn take(&mut self, table: &LockTable, now_ms: u64, enough: usize) -> State {
        let (mut requests, mut bytes) = (Vec::new(), 0);
        while bytes < enough {
            let Some(view) = self.requests.next() else { break };
            let shown = self.entry(table, now_ms, &view);
            bytes += bytes_of(&shown);
            requests.push(shown);
        }
        State { requests, next_request_id: self.next_request_id, more: false }
    }

    fn entry(&self, table: &LockTable, now_ms: u64, view: &RequestView) -> WireRequest {
        let request_id = view.request.get();
        let mut contended = Vec::new();
        let state = match &view.state {
            RequestState::Waiting { place, .. } => {
                let holders = holders(table, now_ms, &view.items);
                let frozen = answers::frozen(table, now_ms, &view.items);
                WireState::Queued(Queued { request_id, place: *place, holders, frozen })
            }
            RequestState::Held { token, items, is_ending: false, .. } => {
                let values = self.values(table, view.request, *token);
                let told =
                    |item: &Item| answers::contended(table, view.request, *token, &item.lock);
                contended.extend(items.iter().map(told).filter(|told| told.waiting > 0));
                WireState::Granted(granted(view.request, *token, items, &values))
            }
            RequestState::Denied { rejection } => {
                let mut refusal = refusals::of_rejection(rejection);
                refusal.holders.extend(in_the_way(rejection));
                WireState::Denied(Denied { request_id, refusal: Some(refusal) })
            }
            RequestState::Wrote => WireState::ValueSet(value_set(view.request)),
            // The client must not rely on a hold that is ending, whether it was told before or not (I35).
            RequestState::Held { is_ending: true, token, .. } => {
                WireState::Ended(Ended { token: token.get() })
            }
            RequestState::Ended => WireState::Ended(Ended { token: 0 }),
        };
        WireRequest { request_id, state: Some(state), contended }
    }

    /// The values of the locks that the request holds, if it still holds them.
    fn values(
        &self,
        table: &LockTable,
        request: RequestId,
        token: FencingToken,
    ) -> Vec<(LockName, Value)> {
        match table.request(self.session, request).map(|now| now.state) {
            Some(RequestState::Held { token: now, items, .. }) if now == token => {
                table.values_of(&items)
            }
            _ => Vec::new(),
        }
    }
}

fn bytes_of(shown: &WireRequest) -> usize {
    shown.encoded_len() + ENTRY_OVERHEAD
}
