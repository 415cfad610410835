//! A resume, from Opened until the client applies the complete State.
//!
//! If the client asked for State in pages, the server answers with an Opened that moves no deadline
//! (`lease_unmoved`), and with the pages. When the last page has come, the client sends a keepalive
//! at once. Its answer, which comes like any other after a quorum round begun after its receipt,
//! moves the server's deadline and the client's (§5.1, §5.5, I6). So a client that cannot receive
//! its State keeps nothing (I31).
//!
//! The client applies State as a whole or not at all (I23). While the lease is alive it does so at
//! once: holds stay under the deadline that they had, waits go on, and only the deadline waits for
//! the answer. If the deadline has passed, no grant could be handed out before the answer; so State
//! waits for it, with the frames behind it.
//!
//! A server of 0.1 does not know pages: its Opened renews, and its State is one frame.

use holdfast_mutants::mutant;
use holdfast_proto::v1::server_frame::Body;
use holdfast_proto::v1::{self, State};

use super::{Machine, Stream, StreamEnd};

/// Most requests of one State; the largest value of a server's `max_requests_per_session`.
const REQUESTS_MAX: usize = 1_000_000;
/// Most frames behind a State that waits for its lease; past it the client leaves the stream for
/// another. A server keeps 8,192 for a client that does not read, and the answer comes behind them.
const BEHIND_MAX: usize = 65_536;

#[derive(Default)]
pub(super) struct Arriving {
    /// Opened moved no deadline.
    lease_unmoved: bool,
    pages: Vec<v1::RequestState>,
    index: Option<u64>,
    /// The State, once it is complete and waits for the lease.
    whole: Option<(State, u64)>,
    behind: Vec<(u64, Body)>,
}

impl Machine {
    /// Starts to receive State: the session is attached to this stream again.
    pub(super) fn begin_arriving(&mut self, lease_unmoved: bool) {
        self.stream = Stream::Resuming(self.clock.now());
        self.arriving = Arriving { lease_unmoved, ..Arriving::default() };
    }

    /// Handles a page of State, or all of it.
    pub(super) fn state_came(&mut self, page: State, index: u64) -> Option<StreamEnd> {
        if !matches!(self.stream, Stream::Resuming(_)) {
            return Some(StreamEnd::failed("the server sent State where none was asked for"));
        }
        let arriving = &mut self.arriving;
        if *arriving.index.get_or_insert(index) != index {
            return Some(StreamEnd::failed("the server sent pages of two States"));
        }
        if arriving.pages.len().saturating_add(page.requests.len()) > REQUESTS_MAX {
            return Some(StreamEnd::failed("the server sent a State without end"));
        }
        arriving.pages.extend(page.requests);
        if page.more && !mutant!(StateBelievedByPage) {
            self.stream = Stream::Resuming(self.clock.now());
            return None;
        }
        let requests = std::mem::take(&mut arriving.pages);
        let state = State { requests, next_request_id: page.next_request_id, more: false };
        self.state_is_whole(state, index);
        None
    }

    fn state_is_whole(&mut self, state: State, index: u64) {
        if !self.arriving.lease_unmoved {
            return self.synchronise(state, index);
        }
        // The answer renews the lease; the client sends this keepalive before anything else.
        self.lease.hurry(self.clock.now());
        self.keepalives.next_on_stream();
        if self.closing || self.lease.span().is_alive(&*self.clock) {
            return self.synchronise(state, index);
        }
        self.stream = Stream::Renewing;
        self.arriving.whole = Some((state, index));
    }

    /// Returns `body` if it can be handled now; otherwise keeps it until the lease is renewed.
    pub(super) fn keeps_behind(
        &mut self,
        index: u64,
        body: Body,
    ) -> Result<Body, Option<StreamEnd>> {
        let waits = match body {
            Body::Queued(_)
            | Body::Moved(_)
            | Body::Granted(_)
            | Body::Denied(_)
            | Body::Released(_)
            | Body::Cancelled(_)
            | Body::Lost(_)
            | Body::Contended(_)
            | Body::ValueSet(_) => matches!(self.stream, Stream::Renewing),
            Body::Opened(_)
            | Body::KeptAlive(_)
            | Body::HoldsClosed(_)
            | Body::State(_)
            | Body::Refused(_)
            | Body::Redirect(_)
            | Body::GoingAway(_)
            | Body::SessionEnded(_) => false,
        };
        if !waits {
            return Ok(body);
        }
        if self.arriving.behind.len() >= BEHIND_MAX {
            return Err(Some(StreamEnd::failed("the server does not renew the lease")));
        }
        self.arriving.behind.push((index, body));
        Err(None)
    }

    /// Applies a State that waited for the lease, and the frames behind it, now that the lease is
    /// renewed.
    pub(super) fn believe_state(&mut self) -> Option<StreamEnd> {
        // An answer that came too late renews nothing; the next one may.
        let is_renewed = self.lease.span().is_alive(&*self.clock);
        if !matches!(self.stream, Stream::Renewing) || !is_renewed {
            return None;
        }
        let Arriving { whole, behind, .. } = std::mem::take(&mut self.arriving);
        let (state, index) = whole?;
        self.synchronise(state, index);
        behind.into_iter().find_map(|(index, body)| self.handle_one(index, body))
    }
}
