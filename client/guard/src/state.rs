//! The state of a hold, and why it ended.

use std::fmt;
use std::sync::{Arc, OnceLock};

use holdfast_runtime::Instant;
use tokio::sync::watch;

/// Why a hold ended without a release by its guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// The safe deadline passed without an answer from the store. The store may still count this
    /// session as the holder for a moment, but nothing is certain any more.
    DeadlinePassed,
    /// The store received nothing from the session for its whole TTL and ended it.
    SessionExpired,
    /// The client, or another process with its secret, closed the session.
    SessionClosed,
    /// Another stream resumed the session with its secret.
    AttachedElsewhere,
    /// The store does not know the hold any more.
    Revoked,
    /// The authority of the lock's scope moved to another store, or may have: that store may grant
    /// the lock now.
    AuthorityPassed,
    /// An operator ended the session, or cut off the identity that it belongs to.
    SessionRevoked,
    /// An operator took the lock away.
    Forced,
    /// It was held for as long as its `max_hold` allows.
    HeldTooLong,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DeadlinePassed => "its safe deadline passed without word from the store",
            Self::SessionExpired => "the session expired",
            Self::SessionClosed => "the session was closed",
            Self::AttachedElsewhere => "the session was taken up elsewhere",
            Self::Revoked => "the store does not know the hold any more",
            Self::AuthorityPassed => "the authority that covered it ended",
            Self::SessionRevoked => "an operator ended the session",
            Self::Forced => "an operator took the lock away",
            Self::HeldTooLong => "it was held for as long as its max_hold allows",
        })
    }
}

/// The state of a guard. It moves down this list, or back from [`GuardState::Jeopardy`] to
/// [`GuardState::Held`]; the last two are final.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardState {
    /// The lock is held, certainly until the instant given.
    Held {
        /// The safe deadline; moves on with every answered keepalive.
        safe_until: Instant,
    },
    /// Still held, but a keepalive has been unanswered for half the TTL: finish or prepare to.
    Jeopardy {
        /// The safe deadline.
        safe_until: Instant,
    },
    /// Over without a release, for ever.
    Lost(LostReason),
    /// Released, or the release is under way.
    Released,
}

impl GuardState {
    /// Whether the hold is over.
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::Released)
    }

    /// The safe deadline; `None` if the hold is over.
    pub fn safe_until(&self) -> Option<Instant> {
        match self {
            Self::Held { safe_until } | Self::Jeopardy { safe_until } => Some(*safe_until),
            Self::Lost(_) | Self::Released => None,
        }
    }
}

/// The state of a hold over time, for a task beside the one that has the guard. It keeps nothing
/// held, and outlives the guard. A thread of its own updates the state, so it changes also while the
/// executor stalls.
#[derive(Clone, Debug)]
pub struct GuardStates {
    state: watch::Receiver<GuardState>,
    why: Arc<OnceLock<String>>,
}

impl GuardStates {
    pub(crate) fn of(state: &watch::Sender<GuardState>, why: &Arc<OnceLock<String>>) -> Self {
        Self { state: state.subscribe(), why: why.clone() }
    }

    /// A state that stays as it is: for tests.
    #[doc(hidden)]
    pub fn fixed(state: GuardState) -> Self {
        Self { state: watch::Sender::new(state).subscribe(), why: Arc::default() }
    }

    /// What an operator gave as the reason for taking the hold away. It may contain any characters: escape
    /// it before it goes to a terminal.
    pub fn why_taken(&self) -> Option<String> {
        self.why.get().cloned()
    }

    /// The state now.
    pub fn now(&self) -> GuardState {
        *self.state.borrow()
    }

    /// Waits for a change after the last one that this function has returned, and returns the state
    /// then. Returns at once if the hold is over, because nothing changes after that. Cancel safe.
    pub async fn changed(&mut self) -> GuardState {
        if !self.now().is_over() {
            // An error means that the sender is gone, with the hold.
            let _ = self.state.changed().await;
        }
        *self.state.borrow_and_update()
    }

    /// Waits until the hold is over, and returns how it ended. Cancel safe.
    pub async fn over(&mut self) -> GuardState {
        let over = self.state.wait_for(GuardState::is_over).await.map(|state| *state);
        // The sender outlives a hold that is not over.
        over.unwrap_or(GuardState::Released)
    }
}
