//! What the core says happened: everything a session or a watcher may be told.

use borsh::BorshSerialize;

use crate::Rejection;
use crate::ids::{FencingToken, LockName, RequestId, ScopePrefix, SessionId};
use crate::mode::Items;
use crate::scopes::ScopeState;
use crate::value::Value;

/// Something that happened, in the order in which it happened.
///
/// Each is said exactly once, when it happens; a retry of a command says nothing again.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize)]
pub enum Event {
    /// A session exists.
    SessionOpened {
        /// The session.
        session: SessionId,
    },
    /// A session is over. Its waits and holds ended before this, in the same command.
    SessionEnded {
        /// The session.
        session: SessionId,
        /// Why.
        cause: EndCause,
    },
    /// A request stands in the queue of each of its locks.
    Queued {
        /// Whose.
        session: SessionId,
        /// Which.
        request: RequestId,
        /// What it asked for.
        items: Items,
        /// How many stand before it; 0 is next. Of its places the last if it needs all of its
        /// locks, the best if it needs any.
        place: u64,
    },
    /// A request holds locks.
    Granted {
        /// Whose.
        session: SessionId,
        /// Which.
        request: RequestId,
        /// The grant's fencing token, valid for each of its locks.
        token: FencingToken,
        /// What it holds: all it asked for, or of an `any` what it got.
        items: Items,
        /// The values of those locks that carry one, in the order of their names.
        values: Vec<(LockName, Value)>,
    },
    /// A request that would not wait was neither queued nor granted, and that is kept under its
    /// id. A request refused for a limit is not kept and makes no event.
    Denied {
        /// Whose.
        session: SessionId,
        /// Which.
        request: RequestId,
        /// What it asked for.
        items: Items,
        /// Why; names the lock that was in the way.
        rejection: Rejection,
    },
    /// A waiting request left queues without a grant: by cancel, with its session, or, right after
    /// the grant, because an `any` got what it needs elsewhere.
    Left {
        /// Whose.
        session: SessionId,
        /// Which.
        request: RequestId,
        /// The locks whose queues it left: all it asked for, or of an `any` those it did not get.
        items: Items,
    },
    /// Locks were given back, by release or cancel.
    Released {
        /// Whose.
        session: SessionId,
        /// Which.
        request: RequestId,
        /// Their grant.
        token: FencingToken,
        /// What is given back.
        items: Items,
        /// Whether the grant holds nothing more.
        over: bool,
    },
    /// Holds are over without a release.
    Lost {
        /// Whose it was.
        session: SessionId,
        /// Which.
        request: RequestId,
        /// Their grant.
        token: FencingToken,
        /// What is lost: all that the grant still held.
        items: Items,
        /// Whether the grant holds nothing more.
        over: bool,
        /// Why.
        cause: LossCause,
    },
    /// Others wait for a held lock: told to each of its holders once, when the first waiter
    /// arrives, and again only after the queue was empty. A holder to whom the lock passed while
    /// others still wait is told after the grants made with its own: for it, the queue was never
    /// empty. A waiting set counts in each of its queues, also while it waits for another lock.
    Contended {
        /// The holder.
        session: SessionId,
        /// The holder's request.
        request: RequestId,
        /// The lock.
        lock: LockName,
        /// The holder's grant.
        token: FencingToken,
    },
    /// The value of a lock was set, cleared, confirmed after it was suspect, or became suspect.
    ValueChanged {
        /// The lock.
        lock: LockName,
        /// What it is now; `None`: there is none.
        value: Option<Value>,
    },
    /// A scope was set, removed, suspended, resumed, or its epoch raised. What follows from that
    /// for holds and waiters is said after it, in the same command.
    ScopeChanged {
        /// The scope.
        scope: ScopePrefix,
        /// What it is now; `None`: its names are in no scope.
        now: Option<ScopeState>,
    },
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize)]
pub enum EndCause {
    /// Its client closed it.
    Closed,
    /// Its lease ran out.
    Expired,
}

/// Why a hold is over without a release.
///
/// The first two stand where they stand in [`EndCause`]: state hashes do not tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize)]
pub enum LossCause {
    /// The client closed its session.
    Closed,
    /// The session's lease ran out.
    Expired,
    /// The epoch of the lock's scope was raised: others may have held the lock in another store
    /// meanwhile. The session goes on.
    EpochRaised,
}

impl From<EndCause> for LossCause {
    fn from(cause: EndCause) -> Self {
        match cause {
            EndCause::Closed => Self::Closed,
            EndCause::Expired => Self::Expired,
        }
    }
}
