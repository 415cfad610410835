//! What the core says happened: everything a session or a watcher may be told.

use borsh::BorshSerialize;

use crate::Rejection;
use crate::ids::{FencingToken, LockName, RequestId, SessionId};

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
    /// A request that would not wait was neither queued nor granted, and that is kept under its
    /// id. A request refused for a limit is not kept and makes no event.
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
    /// Others wait for a held lock: told to its holder once, when the first waiter arrives, and
    /// again only after the queue was empty. A holder to whom the lock passed while others still
    /// wait is told right after its grant: for it, the queue was never empty.
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
