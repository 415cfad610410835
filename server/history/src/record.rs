//! What a history says.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_core::{FencingToken, Identity, Items, Label, LossCause, RequestId, SessionId};

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Record {
    /// The entry of the log in which it happened.
    pub index: u64,
    /// When: Unix milliseconds by the leader's wall clock, as it stands in the log; of a change of the members by this
    /// node's. For people.
    pub at_ms: u64,
    /// What happened.
    pub what: What,
}

/// What happened.
///
/// The order of the variants is part of the stored encoding: new ones go to the end.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum What {
    /// A request was granted locks.
    Held(Hold),
    /// Locks are not held any more under a grant.
    Over(Over),
    /// A hold was closed from outside: its client has to give it up, and it is over later.
    Closed {
        /// The holder.
        session: SessionId,
        /// The grant.
        token: FencingToken,
        /// The locks that it holds.
        items: Items,
        /// For people.
        reason: Label,
    },
    /// An administrative act was done.
    Act(Act),
    /// A leader was elected.
    Elected {
        /// The tenure that begins.
        tenure: u64,
    },
    /// The members of the cluster are these from here on.
    Members {
        /// Node ids of those that vote.
        voters: Vec<u64>,
        /// Of those that do not.
        learners: Vec<u64>,
    },
}

/// A grant of locks.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Hold {
    /// The holder.
    pub session: SessionId,
    /// Its request.
    pub request: RequestId,
    /// The grant.
    pub token: FencingToken,
    /// The locks, and how each is held.
    pub items: Items,
    /// The session's own name for itself; proves nothing.
    pub label: Label,
    /// Who opened the session.
    pub identity: Identity,
    /// What the request says for people; proves nothing.
    pub note: Label,
    /// Whether the session stands for an owner in another store, whose name is its label.
    pub imported: bool,
}

/// Locks that are over.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Over {
    /// The former holder.
    pub session: SessionId,
    /// The grant.
    pub token: FencingToken,
    /// The locks.
    pub items: Items,
    /// Why.
    pub why: Why,
}

/// Why a hold is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum Why {
    /// Its client gave it back, or cancelled the request.
    Released,
    /// Its client closed the session.
    Closed,
    /// The session's lease ran out.
    Expired,
    /// The epoch of the lock's scope was raised.
    EpochRaised,
    /// The session was ended from outside.
    Revoked,
    /// The hold was closed from outside, or lasted its longest, and was not given back in time.
    Forced,
}

impl From<LossCause> for Why {
    fn from(cause: LossCause) -> Self {
        match cause {
            LossCause::Closed => Self::Closed,
            LossCause::Expired => Self::Expired,
            LossCause::EpochRaised => Self::EpochRaised,
            LossCause::Revoked => Self::Revoked,
            LossCause::Forced => Self::Forced,
        }
    }
}

/// An administrative act that was done.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Act {
    /// Who did it; the anonymous identity of nobody in particular, and of what the leader does by itself.
    pub by: Identity,
    /// The right that it took, by its name; see [`Verb`](holdfast_core::Verb).
    pub verb: String,
    /// To which name or prefix of locks, session, role or identity.
    pub on: String,
    /// What was done, for people.
    pub detail: String,
}

impl What {
    /// The session that it is about.
    pub fn session(&self) -> Option<SessionId> {
        match self {
            Self::Held(hold) => Some(hold.session),
            Self::Over(over) => Some(over.session),
            Self::Closed { session, .. } => Some(*session),
            Self::Act(_) | Self::Elected { .. } | Self::Members { .. } => None,
        }
    }

    /// The same with only those of its locks that `keep` keeps; `None` if none is left, or if it is about no locks.
    pub(crate) fn of_locks(self, keep: &dyn Fn(&str) -> bool) -> Option<Self> {
        let kept = |items: &Items| -> Option<Items> {
            let kept = items.iter().filter(|item| keep(item.lock.as_str())).cloned();
            let kept: Items = kept.collect();
            (!kept.is_empty()).then_some(kept)
        };
        match self {
            Self::Held(hold) => kept(&hold.items).map(|items| Self::Held(Hold { items, ..hold })),
            Self::Over(over) => kept(&over.items).map(|items| Self::Over(Over { items, ..over })),
            Self::Closed { session, token, items, reason } => {
                kept(&items).map(|items| Self::Closed { session, token, items, reason })
            }
            Self::Act(_) | Self::Elected { .. } | Self::Members { .. } => None,
        }
    }
}
