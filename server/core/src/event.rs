//! What the core says happened: everything a session or a watcher may be told.

use borsh::BorshSerialize;

use crate::ids::{LockName, RequestId, SessionId};
use crate::{FencingToken, Rejection};

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
    /// A request stands in a lock's queue.
    Queued {
        /// Whose.
        session: SessionId,
        /// Which.
        request: RequestId,
        /// The lock.
        lock: LockName,
        /// How many stand before it; 0 is next.
        place: u64,
    },
    /// A request holds a lock.
    Granted {
        /// Whose.
        session: SessionId,
        /// Which.
        request: RequestId,
        /// The lock.
        lock: LockName,
        /// The grant's fencing token.
        token: FencingToken,
    },
    /// A request was neither queued nor granted.
    Denied {
        /// Whose.
        session: SessionId,
        /// Which.
        request: RequestId,
        /// The lock.
        lock: LockName,
        /// Why.
        rejection: Rejection,
    },
    /// A waiting request left its queue without a grant: by cancel, or with its session.
    Left {
        /// Whose.
        session: SessionId,
        /// Which.
        request: RequestId,
        /// The lock.
        lock: LockName,
    },
    /// A hold was given back, by release or cancel.
    Released {
        /// Whose.
        session: SessionId,
        /// Which.
        request: RequestId,
        /// The lock.
        lock: LockName,
        /// The grant that is over.
        token: FencingToken,
    },
    /// A hold is over without a release.
    Lost {
        /// Whose it was.
        session: SessionId,
        /// Which.
        request: RequestId,
        /// The lock.
        lock: LockName,
        /// The grant that is over.
        token: FencingToken,
        /// Why.
        cause: EndCause,
    },
    /// The first waiter arrived at a lock: told to its holder, again only after the queue was
    /// empty.
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
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize)]
pub enum EndCause {
    /// Its client closed it.
    Closed,
    /// Its lease ran out.
    Expired,
}
