//! Whether something that was granted is safe: its span, its end, and who is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use holdfast_mutants::mutant;
use holdfast_seams::{Clock, Moment};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::lease::Span;
use crate::{GuardState, LostReason};

/// Shared by a guard and by whoever keeps what it holds.
pub(crate) struct Safety {
    span: Arc<Span>,
    /// What else bounds it: the authority of the scope that its names are in (DESIGN §10).
    cover: Span,
    over: AtomicBool,
    state: watch::Sender<GuardState>,
    cancelled: CancellationToken,
}

impl Safety {
    /// `None` if `span` is over: what cannot be safe is not handed out.
    pub(crate) fn within(span: Arc<Span>) -> Option<Self> {
        let safe_until = span.deadline()?;
        Some(Self {
            span,
            cover: Span::unbounded(),
            over: AtomicBool::new(false),
            state: watch::Sender::new(GuardState::Held { safe_until }),
            cancelled: CancellationToken::new(),
        })
    }

    /// A clock read against an atomic or two. Once false, false for ever: all parts only ever fall.
    pub(crate) fn is_safe(&self, clock: &dyn Clock) -> bool {
        let in_time = mutant!(IsSafeIgnoresClock) || self.is_in_time(clock);
        in_time && !self.over.load(Ordering::Acquire)
    }

    /// Whether no deadline of it has passed.
    pub(crate) fn is_in_time(&self, clock: &dyn Clock) -> bool {
        self.span.is_alive(clock) && self.cover.is_alive(clock)
    }

    /// The safe deadline; `None` if it is known to have passed.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        Some(self.span.deadline()?.min(self.cover.deadline()?))
    }

    /// Until when authority covers it; `None` if nothing of the kind bounds it, or it has passed.
    pub(crate) fn covered_until(&self) -> Option<Moment> {
        if self.cover.is_unbounded() { None } else { self.cover.deadline() }
    }

    /// Bounds it by an authority, later or earlier than before, or not at all any more; false if the one
    /// before is over, which is for ever.
    pub(crate) fn cover(&self, until: Option<Moment>, clock: &dyn Clock) -> bool {
        self.cover.bound(until, clock)
    }

    /// Moves the safe deadline on; false if it is over.
    #[cfg(any(test, feature = "cassandra"))]
    pub(crate) fn extend(&self, to: Moment, clock: &dyn Clock) -> bool {
        self.span.extend(to, clock)
    }

    pub(crate) fn state(&self) -> watch::Receiver<GuardState> {
        self.state.subscribe()
    }

    /// Waits until it is lost. Cancel safe.
    pub(crate) async fn lost(&self) -> LostReason {
        let mut state = self.state();
        let over = state.wait_for(GuardState::is_over).await.map(|state| *state);
        match over {
            Ok(GuardState::Lost(reason)) => reason,
            // The sender outlives this borrow, and nobody releases a borrowed guard.
            _ => LostReason::Revoked,
        }
    }

    /// Why it was lost, if it was.
    pub(crate) fn lost_reason(&self) -> Option<LostReason> {
        match *self.state.borrow() {
            GuardState::Lost(reason) => Some(reason),
            _ => None,
        }
    }

    pub(crate) fn cancelled(&self) -> &CancellationToken {
        &self.cancelled
    }

    /// Unsafe from here on, whoever still looks.
    pub(crate) fn end(&self, last: GuardState) {
        self.over.store(true, Ordering::Release);
        self.state.send_if_modified(|state| {
            let changes = !state.is_over();
            if changes {
                *state = last;
            }
            changes
        });
        self.cancelled.cancel();
    }

    /// Publishes the deadline as it is now.
    pub(crate) fn publish(&self, in_jeopardy: bool) {
        let Some(safe_until) = self.deadline() else { return };
        let now = if in_jeopardy {
            GuardState::Jeopardy { safe_until }
        } else {
            GuardState::Held { safe_until }
        };
        self.state.send_if_modified(|state| {
            let changes = !state.is_over() && *state != now;
            if changes {
                *state = now;
            }
            changes
        });
    }
}
