//! Answers to commands: part of the replicated outcome, equal on all nodes.

use borsh::BorshSerialize;

use crate::ids::{FencingToken, LockName, RequestId, SessionId};
use crate::import::Fate;
use crate::lock_set::Items;
use crate::scope::ScopeState;
use crate::value::Value;
use crate::{Event, Rejection};

/// The result of a command. Both sides are replicated; a fault of one node is never an outcome.
pub type Outcome = Result<Answer, Rejection>;

/// One command's outcome and its events.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize)]
pub struct Applied {
    /// The answer, or why the command was refused.
    pub outcome: Outcome,
    /// In the order in which they happened; empty if nothing changed.
    pub events: Vec<Event>,
}

/// The effect of a command that was not refused.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize)]
pub enum Answer {
    /// The limits are set.
    Configured,
    /// The session is open.
    SessionOpened {
        /// Its id.
        session: SessionId,
    },
    /// The session is over.
    SessionEnded,
    /// The request waits or holds.
    ///
    /// A denied request gets [`Rejection::LockHeld`], [`Rejection::LockAwaited`],
    /// [`Rejection::NothingFree`] or [`Rejection::Suspended`] instead, the first time and at each
    /// retry. The first time [`Event::Denied`] comes with it, with a retry no event: for a denial,
    /// `Applied::events` says what `fresh` says here.
    Acquired {
        /// The request.
        request: RequestId,
        /// Where it stands now.
        state: Acquired,
        /// `false`: a retry of a known request. Nothing changed and there is no event; `state` may
        /// have moved on since the first answer (queued then, granted by now).
        fresh: bool,
    },
    /// The request is over, whatever its state was. After `StopWaiting` an `Acquire` for an unseen
    /// id may still arrive.
    Cancelled {
        /// The request.
        request: RequestId,
        /// What it was.
        was: Was,
    },
    /// The grant was given back, or some of its locks.
    Released {
        /// The request it had been granted to.
        request: RequestId,
        /// The grant.
        token: FencingToken,
        /// Whether it holds nothing more.
        over: bool,
    },
    /// The write was done; others may have changed the value since its first copy.
    ValueSet {
        /// The write.
        request: RequestId,
        /// `false`: a retry of a write that was done before. Nothing changed.
        fresh: bool,
    },
    /// What became of each row of an import.
    Imported {
        /// The session that was opened for the imported rows; `None` if no row was imported.
        session: Option<SessionId>,
        /// One for each row, in the order of the rows.
        fates: Vec<Fate>,
    },
    /// The scope is as the command wanted it.
    Scope {
        /// Its state; `None` if it was removed.
        now: Option<ScopeState>,
    },
    /// The rules are as the command wanted them.
    RulesChanged,
    /// Sessions are revoked, or over if that was asked for.
    Revoked {
        /// How many; those too that were revoked before.
        sessions: u64,
    },
    /// Holds are closed, or over if that was asked for.
    HoldsClosed {
        /// Each of them; those too that were closed before, or whose session is revoked.
        holds: Vec<Grant>,
    },
    /// The session is its caller's.
    SessionOwned,
    /// Work that earlier commands had left was carried on.
    CarriedOn {
        /// Whether some is left still.
        more: bool,
    },
    /// The limit of the lock is as the command wanted it.
    LimitSet,
    /// The freeze is as the command wanted it.
    FreezesSet,
    /// Numbers of a sequence were given out.
    Advanced {
        /// The first of them; the others follow it without a gap.
        first: u64,
    },
    /// The next number of the sequence is the one that the command wanted.
    SequenceBegun,
    /// The lock is open again.
    LockOpened,
    /// Imports have at least the lease that the command wanted, but for those that need none any more because they were claimed, or
    /// are over.
    ImportsLengthened {
        /// Of each row the session that stands for its owner; `None`: the row is not known (any more).
        imports: Vec<Option<SessionId>>,
    },
}

/// The state of a request that waits or holds.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize)]
pub enum Acquired {
    /// It waits.
    Queued {
        /// How many requests stand before it; 0 is next. As in [`Event::Queued`].
        place: u64,
        /// The first holder of the first of its locks that is held. `None` if none is: it stands
        /// behind a set that waits for another lock, its scope is suspended, or the fencing tokens
        /// are used up ([`Rejection::TokensExhausted`]).
        holder: Option<Grant>,
    },
    /// It holds.
    Granted {
        /// Under this grant.
        token: FencingToken,
        /// The locks that it still holds: the granted ones, less those given back.
        items: Items,
        /// The values of those that carry one, as they are now.
        ///
        /// Left out of the state hash (I16): the event of a fresh grant has them already, and 64
        /// values of 4 KiB take long to hash.
        #[borsh(skip)]
        values: Vec<(LockName, Value)>,
    },
}

/// A hold: which session, by which request, under which token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize)]
pub struct Grant {
    /// The holder.
    pub session: SessionId,
    /// The holder's request.
    pub request: RequestId,
    /// The grant.
    pub token: FencingToken,
}

/// The state of a request before its cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize)]
pub enum Was {
    /// It waited, and has left its queues.
    Waiting,
    /// It held; its locks passed to the next in line, in the same command.
    Held {
        /// The grant that is over.
        token: FencingToken,
    },
    /// It was over already: denied, cancelled, released, or a write of a value. Nothing changed.
    Ended,
    /// Its id was never seen, and is spent now: a late `Acquire` under it is refused with
    /// [`Rejection::RequestEnded`].
    Unknown,
}
