//! What happened in the core: everything that a session or a watcher may receive.

use borsh::{BorshDeserialize, BorshSerialize};

use crate::Rejection;
use crate::access::NamePrefix;
use crate::ids::{FencingToken, Label, LockName, RequestId, ScopePrefix, SessionId};
use crate::lock_set::Items;
use crate::scope::ScopeState;
use crate::value::Value;

/// Something that happened, in the order in which it happened.
///
/// The core reports each event exactly once; a retried command reports nothing again.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize)]
pub enum Event {
    /// A session exists.
    SessionOpened {
        /// The session.
        session: SessionId,
    },
    /// A session is over. Its waits and holds ended before this, in the same command; of one that has
    /// very many locks the rest end later (`ending.rs`).
    SessionEnded {
        /// The session.
        session: SessionId,
        /// Why.
        cause: EndCause,
    },
    /// A request stands in the queue of each of its locks.
    Queued {
        /// Its session.
        session: SessionId,
        /// Its id.
        request: RequestId,
        /// The locks it asks for.
        items: Items,
        /// How many requests stand before it; 0 is next. Over its queues this is the last place if
        /// it needs all of its locks, the `n`-th best if it needs `n` of them.
        place: u64,
    },
    /// A request holds locks.
    Granted {
        /// Its session.
        session: SessionId,
        /// Its id.
        request: RequestId,
        /// The grant's fencing token, valid for each of its locks.
        token: FencingToken,
        /// What it holds: all its locks, or the part that an `any` got.
        items: Items,
        /// The values of those locks that carry one, in the order of their names.
        values: Vec<(LockName, Value)>,
    },
    /// A request that would not wait, or a claim without an import, is denied and kept under its
    /// id. A request refused for a limit is not kept and makes no event.
    Denied {
        /// Its session.
        session: SessionId,
        /// Its id.
        request: RequestId,
        /// The locks it asked for.
        items: Items,
        /// Why; names the lock that was in the way.
        rejection: Rejection,
    },
    /// A waiting request left queues without a grant: by its cancel, by its session's end, or,
    /// right after its own grant, because an `any` was granted other locks.
    Left {
        /// Its session.
        session: SessionId,
        /// Its id.
        request: RequestId,
        /// The locks whose queues it left: all of them, or those that an `any` did not get.
        items: Items,
    },
    /// Locks were given back, by release or cancel.
    Released {
        /// The holder.
        session: SessionId,
        /// The holder's request.
        request: RequestId,
        /// Their grant.
        token: FencingToken,
        /// The locks.
        items: Items,
        /// Whether the grant holds nothing more.
        over: bool,
    },
    /// Holds are over without a release.
    Lost {
        /// The former holder.
        session: SessionId,
        /// The former holder's request.
        request: RequestId,
        /// Their grant.
        token: FencingToken,
        /// The lost locks: all that the grant still held.
        items: Items,
        /// Whether the grant holds nothing more.
        over: bool,
        /// Why.
        cause: LossCause,
    },
    /// Others wait for a held lock ([`LockTable::contention`](crate::LockTable::contention) says how many). Each of
    /// its holders receives this when the first waiter arrives, and again when one arrives with a larger head
    /// start than all who wait. While there are more than 64 holders, each receives it once. A new holder of a lock for which others
    /// still wait receives it after all grants of the same command: for that holder the queue was
    /// never empty. A waiting set counts in each of its queues, even while another lock keeps it
    /// waiting.
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
        /// The value now; `None`: the lock carries none.
        value: Option<Value>,
    },
    /// A scope was set, removed, suspended, resumed, or its epoch raised. The events of its holds
    /// and waiters follow in the same command.
    ScopeChanged {
        /// The scope.
        scope: ScopePrefix,
        /// Its state now; `None`: its names are in no scope.
        now: Option<ScopeState>,
    },
    /// The rules changed: what was allowed before may not be any more.
    RulesChanged,
    /// A session was ended from outside: nothing renews it any more. Its waits leave after this, in the
    /// same command.
    SessionRevoked {
        /// The session.
        session: SessionId,
        /// For people.
        reason: Label,
    },
    /// A hold was closed from outside: its client has to give it up.
    HoldClosed {
        /// The holder.
        session: SessionId,
        /// The holder's request.
        request: RequestId,
        /// The grant.
        token: FencingToken,
        /// For people.
        reason: Label,
    },
    /// Names were frozen, or a freeze was lifted.
    FreezeChanged {
        /// What they begin with.
        prefix: NamePrefix,
        /// Whether they are frozen now; otherwise another freeze may still cover some.
        frozen: bool,
    },
    /// The hold of a lock ends before it has lasted its least, as far as the table knows: nobody is granted the lock until the
    /// leader opens it. Comes before the event of that end, in the same command.
    LockClosed {
        /// The lock.
        lock: LockName,
        /// The grant that ends.
        token: FencingToken,
        /// How long the hold was to last at least, milliseconds.
        hold_at_least_ms: u32,
    },
    /// A closed lock is open again.
    LockOpened {
        /// The lock.
        lock: LockName,
        /// The grant that had ended.
        token: FencingToken,
    },
    /// An import was renewed in the other store: its lease lasts so long from here on, or longer.
    ImportLengthened {
        /// The session that stands for its owner.
        session: SessionId,
        /// What remains there, milliseconds.
        ttl_ms: u64,
    },
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum EndCause {
    /// Its client closed it.
    Closed,
    /// Its lease ran out.
    Expired,
    /// It was revoked, and is over now: its client closed it, its lease ran out, or it was to end at
    /// once.
    Revoked,
}

/// Why a hold is over without a release.
///
/// The first two have the same positions as in [`EndCause`]: a state hash is the same with either
/// type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize)]
pub enum LossCause {
    /// The client closed its session.
    Closed,
    /// The session's lease ran out.
    Expired,
    /// The epoch of the lock's scope was raised: others may have held the lock in another store
    /// meanwhile. The session goes on.
    EpochRaised,
    /// The session was revoked.
    Revoked,
    /// The hold was closed from outside. The session goes on.
    Forced,
}

impl From<EndCause> for LossCause {
    fn from(cause: EndCause) -> Self {
        match cause {
            EndCause::Closed => Self::Closed,
            EndCause::Expired => Self::Expired,
            EndCause::Revoked => Self::Revoked,
        }
    }
}
