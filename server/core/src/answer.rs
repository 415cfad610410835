//! What a command is answered with: part of the replicated outcome, equal on all nodes.

use borsh::BorshSerialize;

use crate::ids::{FencingToken, LockName, RequestId, SessionId};
use crate::import::Fate;
use crate::mode::Items;
use crate::scopes::ScopeState;
use crate::value::Value;
use crate::{Event, Rejection};

/// How a command ended. Both sides are replicated; a fault of one node is never an outcome.
pub type Outcome = Result<Answer, Rejection>;

/// One command's outcome and what happened because of it.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize)]
pub struct Applied {
    /// The answer, or why the command was refused.
    pub outcome: Outcome,
    /// In the order in which they happened; empty when nothing changed for anybody.
    pub events: Vec<Event>,
}

/// What a command that was not refused did.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize)]
pub enum Answer {
    /// The limits are set.
    Configured,
    /// The session is open.
    SessionOpened {
        /// Its id.
        session: SessionId,
    },
    /// The session is over: closed or expired.
    SessionEnded,
    /// The request waits or holds.
    ///
    /// A request that was denied is answered with [`Rejection::LockHeld`],
    /// [`Rejection::LockAwaited`], [`Rejection::NothingFree`] or [`Rejection::Suspended`] instead, the first time and at each
    /// retry. The first time [`Event::Denied`] comes with it; a retry carries no event.
    /// So "fresh" is for a denial what `Applied::events` says.
    Acquired {
        /// The request.
        request: RequestId,
        /// Where it stands now.
        state: Acquired,
        /// `false`: a retry of a request that was there already. Nothing changed and no event was
        /// emitted; `state` may have moved on since the first answer (queued, by now granted).
        fresh: bool,
    },
    /// The request is over, whatever it was; after `StopWaiting` one that was never seen may still
    /// come.
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
    /// The value is as the write left it; others may have changed it since a first copy was done.
    ValueSet {
        /// The write.
        request: RequestId,
        /// `false`: a retry of a write that was done before. Nothing changed.
        fresh: bool,
    },
    /// What became of the rows of an import.
    Imported {
        /// The session that was opened for those that came in; `None` if none did.
        session: Option<SessionId>,
        /// One for each row, in their order.
        fates: Vec<Fate>,
    },
    /// The scope is as it was to be.
    Scope {
        /// What it is; `None` if it was removed.
        now: Option<ScopeState>,
    },
}

/// Where an acquired request stands.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize)]
pub enum Acquired {
    /// It waits.
    Queued {
        /// How many stand before it; 0 is next. As in [`Event::Queued`].
        place: u64,
        /// Who holds meanwhile: the first of those who hold the first of its locks that is held.
        /// `None` if none is: it stands behind a set that waits for another lock, its scope is
        /// suspended, or the fencing tokens are used up ([`Rejection::TokensExhausted`]).
        holder: Option<Grant>,
    },
    /// It holds.
    Granted {
        /// Under this grant.
        token: FencingToken,
        /// These locks: what it was granted, less what it gave back.
        items: Items,
        /// The values of those that carry one, as they are now.
        ///
        /// Left out of the state hash (I16): the event of a fresh grant has them there already,
        /// and 64 values of 4 KiB are long to hash.
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

/// What a cancelled request had been.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize)]
pub enum Was {
    /// It waited, and has left its queues.
    Waiting,
    /// It held; its locks went to the next in line, in the same command.
    Held {
        /// The grant that is over.
        token: FencingToken,
    },
    /// It was over already: denied, cancelled, released, or a write of a value. Nothing changed.
    Ended,
    /// It was never seen. Its id is spent: a late `Acquire` under it is refused with
    /// [`Rejection::RequestEnded`].
    Unknown,
}
