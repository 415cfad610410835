//! One hold as the client sees it: safe, in jeopardy, over.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use holdfast_seams::{Clock, Moment};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::FencingToken;
use crate::lease::Span;

/// Why a hold is over although its guard did not give it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// The safe deadline passed without word from the store. It may still see this session as the
    /// holder for a moment, but nothing is certain any more.
    DeadlinePassed,
    /// The store heard nothing of the session for its whole TTL and ended it.
    SessionExpired,
    /// The client, or somebody with its secret, closed the session.
    SessionClosed,
    /// The session was taken up on another stream with its secret.
    AttachedElsewhere,
    /// The store does not know the hold any more.
    Revoked,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DeadlinePassed => "its safe deadline passed without word from the store",
            Self::SessionExpired => "the session expired",
            Self::SessionClosed => "the session was closed",
            Self::AttachedElsewhere => "the session was taken up elsewhere",
            Self::Revoked => "the store does not know the hold any more",
        })
    }
}

/// What a guard is worth. Moves down this list, or back from [`GuardState::Jeopardy`] to
/// [`GuardState::Held`]; the last two are final.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardState {
    /// The lock is held, certainly until the instant given.
    Held {
        /// The safe deadline; moves on with every answered keepalive.
        safe_until: Moment,
    },
    /// Still held, but a keepalive has been unanswered for half the TTL: finish or make ready to.
    Jeopardy {
        /// The safe deadline.
        safe_until: Moment,
    },
    /// Over without a release, for ever.
    Lost(LostReason),
    /// Given back, or being given back.
    Released,
}

impl GuardState {
    /// Whether the hold is over.
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::Released)
    }
}

/// Shared by a guard and the session task.
pub(crate) struct Hold {
    pub(crate) name: Arc<str>,
    pub(crate) token: FencingToken,
    span: Arc<Span>,
    over: AtomicBool,
    state: watch::Sender<GuardState>,
    cancelled: CancellationToken,
}

impl Hold {
    /// `None` if `span` is over: what cannot be safe is not handed out.
    pub(crate) fn granted(name: Arc<str>, token: FencingToken, span: Arc<Span>) -> Option<Self> {
        let safe_until = span.deadline()?;
        Some(Self {
            name,
            token,
            span,
            over: AtomicBool::new(false),
            state: watch::Sender::new(GuardState::Held { safe_until }),
            cancelled: CancellationToken::new(),
        })
    }

    /// One clock read against an atomic. Once false, false for ever: both parts only ever fall.
    pub(crate) fn is_safe(&self, clock: &dyn Clock) -> bool {
        !self.over.load(Ordering::Acquire) && self.span.is_alive(clock)
    }

    pub(crate) fn state(&self) -> watch::Receiver<GuardState> {
        self.state.subscribe()
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
        let Some(safe_until) = self.span.deadline() else { return };
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
