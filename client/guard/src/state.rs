//! The state of a hold, and why it ended.

use std::fmt;

use holdfast_seams::Moment;

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
        safe_until: Moment,
    },
    /// Still held, but a keepalive has been unanswered for half the TTL: finish or prepare to.
    Jeopardy {
        /// The safe deadline.
        safe_until: Moment,
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
}
