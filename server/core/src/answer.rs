//! What a command is answered with: part of the replicated outcome, equal on all nodes.

use borsh::BorshSerialize;

use crate::ids::{FencingToken, RequestId, SessionId};
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize)]
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
    /// A request that was denied is answered with [`Rejection::LockHeld`] instead, the first time
    /// and at each retry. The first time [`Event::Denied`] comes with it; a retry carries no event.
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
    /// The request is over, whatever it was.
    Cancelled {
        /// The request.
        request: RequestId,
        /// What it was.
        was: Was,
    },
    /// The grant was given back.
    Released {
        /// The request it had been granted to.
        request: RequestId,
        /// The grant.
        token: FencingToken,
    },
}

/// Where an acquired request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize)]
pub enum Acquired {
    /// It waits.
    Queued {
        /// How many stand before it; 0 is next.
        place: u64,
        /// Who holds the lock meanwhile. `None` only while the fencing tokens are used up
        /// ([`Rejection::TokensExhausted`]): then nobody can be granted.
        holder: Option<Grant>,
    },
    /// It holds the lock.
    Granted {
        /// Under this grant.
        token: FencingToken,
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
    /// It waited, and has left its queue.
    Waiting,
    /// It held; the lock went to the next in line, in the same command.
    Held {
        /// The grant that is over.
        token: FencingToken,
    },
    /// It was over already: denied, cancelled, released. Nothing changed.
    Ended,
    /// It was never seen. Its id is spent: a late `Acquire` under it is refused with
    /// [`Rejection::RequestEnded`].
    Unknown,
}
