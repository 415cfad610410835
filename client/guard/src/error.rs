//! The errors, what is certain after each, and the holder that they name.

use std::fmt;
use std::time::Duration;

use crate::{FencingToken, LostReason, Mode};

/// Most names an error lists.
const LISTED_MAX: usize = 4;

/// The result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What happened, who holds the lock, and whether a retry makes sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another client holds the lock, and the call waits no longer. Certain: the caller does not
    /// hold it and has no place in a queue; the client releases a grant that crosses this answer.
    #[error("{} not granted{}{}", listed(.names), after(.waited.as_ref()), held_by(.holders))]
    NotGranted {
        /// The names of the request.
        names: Vec<String>,
        /// The holder, as far as the store reported.
        holders: Vec<Holder>,
        /// How long the call waited; `None` for a try.
        waited: Option<Duration>,
    },
    /// The store refused the request. Certain: the store did no part of it.
    #[error("refused: {message}")]
    Refused {
        /// Why, for programs.
        reason: RefusalReason,
        /// The store's message: what happened, to which thing, what to do.
        message: String,
        /// The limit that was reached, by the name it has in the server's settings.
        limit: Option<String>,
        /// When it makes sense to try again.
        retry_after: Option<Duration>,
    },
    /// The owner that asks holds one of the locks already. Certain: this call changed nothing, and the first hold goes on as it
    /// was; it is given back with its own guard.
    #[error("not asked for again: {message}")]
    AlreadyHeld {
        /// The token of the first hold.
        token: FencingToken,
        /// The store's message.
        message: String,
    },
    /// The session ended while the request waited. Certain: its place is gone and it does not hold
    /// the lock. The client opens a new session by itself; retry.
    #[error("the session was lost while waiting: {reason}")]
    SessionLost {
        /// Why.
        reason: LostReason,
    },
    /// The hold ended before its release; of a request that waited: it was granted, and the hold ended before the client
    /// heard of it. Certain: it is over, and another client may have held the lock since the guard's safe deadline.
    #[error("the lock was lost before it was given back: {reason}")]
    Lost {
        /// Why.
        reason: LostReason,
    },
    /// No leading server answered in time. Certain: the caller holds nothing through this call. If
    /// its request did arrive, the client cancels it as soon as it reaches a server; otherwise it
    /// ends with the session.
    #[error("{}{} (tried {}): {last}", silence(*.answered), after(Some(.waited)), .endpoints.join(", "))]
    Unreachable {
        /// The endpoints that the client tried.
        endpoints: Vec<String>,
        /// For how long.
        waited: Duration,
        /// The error of the last attempt; of the last that a server answered, if one did.
        last: String,
        /// A server answered, and none of those that did has a leader with a quorum: a majority of the members is
        /// down or cut off, or they are electing a leader.
        answered: bool,
    },
    /// No answer came in time, or none can come any more. The outcome of the operation is unknown;
    /// the state of the lock is not: a guard is unsafe from the start of its release, and the store
    /// ends its hold at the latest with the session's TTL.
    #[error("no answer to {what} within {waited:?}; it may or may not have been done")]
    OutcomeUnknown {
        /// The operation.
        what: &'static str,
        /// How long the call waited.
        waited: Duration,
    },
    /// The client was closed. Certain: the client sent nothing to the store.
    #[error("the client is closed")]
    Closed,
    /// A setting of the client makes no sense. The client sent nothing to the store.
    #[error("{message}")]
    InvalidConfig {
        /// Which, and why.
        message: String,
    },
}

impl Error {
    /// Whether the same call may succeed later without any change by the caller.
    pub fn may_retry(&self) -> bool {
        match self {
            Self::NotGranted { .. } | Self::SessionLost { .. } | Self::Unreachable { .. } => true,
            Self::Refused { reason, .. } => reason.may_pass(),
            Self::Lost { .. }
            | Self::AlreadyHeld { .. }
            | Self::OutcomeUnknown { .. }
            | Self::Closed
            | Self::InvalidConfig { .. } => false,
        }
    }

    /// Who holds the lock, where that is the reason.
    pub fn holders(&self) -> &[Holder] {
        match self {
            Self::NotGranted { holders, .. } => holders,
            _ => &[],
        }
    }

    /// The error for a request that is wrong in itself.
    pub fn invalid(message: String) -> Self {
        Self::Refused { reason: RefusalReason::Invalid, message, limit: None, retry_after: None }
    }
}

/// The holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The holder's session.
    pub session: u64,
    /// The session's label; it proves nothing. It may contain any characters: escape it before it
    /// goes to a terminal.
    pub label: String,
    /// The grant's fencing token.
    pub token: FencingToken,
    /// How long it has held the lock, by the leader's wall clock.
    pub held: Duration,
    /// The mode of the hold.
    pub mode: Mode,
    /// The hold was imported from another store, where its owner has the name in `label`, and no
    /// client has claimed it.
    pub is_imported: bool,
    /// It was ended by an operator: it passes on once its client has released it, or its lease has run out.
    pub is_ending: bool,
    /// Who opened the session, as the store verified it (`token:NAME`, `cn:NAME` and so on); empty if it has
    /// proved nothing.
    pub identity: String,
    /// What its request says for people; it proves nothing, and may contain what [`Holder::label`] may.
    pub note: String,
    /// The store ends the hold when it has lasted so long.
    pub max_hold: Option<Duration>,
    /// Nobody else is granted the lock before it has lasted so long.
    pub hold_at_least: Option<Duration>,
}

impl Holder {
    /// A holder of which the store reports its name and no more.
    pub fn named(label: String) -> Self {
        Self {
            session: 0,
            label,
            token: FencingToken::from_raw(0),
            held: Duration::ZERO,
            mode: Mode::Exclusive,
            is_imported: false,
            is_ending: false,
            identity: String::new(),
            note: String::new(),
            max_hold: None,
            hold_at_least: None,
        }
    }
}

/// Why the store refused, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalReason {
    /// The request itself is wrong: a name, a number.
    Invalid,
    /// A limit of the server is reached.
    Limit,
    /// The TTL lies outside the server's bounds.
    TtlOutOfRange,
    /// No leader with a quorum could be reached in time.
    Unavailable,
    /// The servers' disks are nearly full; they accept only what frees space or ends things.
    DiskReserve,
    /// The server does not do that yet.
    Unsupported,
    /// The fencing tokens of this epoch are used up.
    TokensExhausted,
    /// The request id was used before or has ended: this client and the server disagree.
    Protocol,
    /// The server knows no such session.
    SessionUnknown,
    /// A value can be changed only under an exclusive hold of its lock.
    NotExclusive,
    /// A claim: nothing of that lock was imported for that owner, or it was claimed or has expired.
    NotImported,
    /// An import: the lock that the row waits for has no holder; import its holder first.
    NothingToWaitFor,
    /// Another client holds the lock, or waits for it.
    LockHeld,
    /// The lock's scope grants nothing at the moment, and the request would not wait.
    Suspended,
    /// The cluster was restored from a backup and grants nothing yet, and the request would not wait.
    Restored,
    /// The locks asked for together are not all in one scope.
    SeveralScopes,
    /// The scope cannot be set or removed in its present state; the message names the obstacle.
    Scope,
    /// The caller has no right to it; the message says which verb on which name, or that its token is not valid.
    Forbidden,
    /// The change of the rules cannot be; the message names the obstacle.
    Rules,
    /// An operator ended the session.
    SessionRevoked,
    /// Nobody holds the lock, or not under that token.
    NotHeld,
    /// The permits asked for do not go with the limit of the lock; the message says why.
    Permits,
    /// A head start for a lock in a scope with fallback.
    HeadStart,
    /// The owner that asks waits for one of the locks already, by another request.
    AlreadyAsked,
    /// The lock is frozen, and the request would not wait; the message says why.
    Frozen,
    /// The freeze cannot be set or lifted; the message says why.
    Freeze,
    /// The sequence gives out no such numbers; the message says why.
    Sequence,
    /// The name is in a scope with fallback, and Cassandra knows neither `max_hold` nor `hold_at_least`.
    HoldBounds,
    /// A reason this version of the client does not know.
    Other,
}

impl RefusalReason {
    fn may_pass(self) -> bool {
        match self {
            Self::Limit
            | Self::Unavailable
            | Self::DiskReserve
            | Self::SessionUnknown
            | Self::NothingToWaitFor
            | Self::LockHeld
            | Self::Suspended
            | Self::Frozen
            | Self::Restored => true,
            Self::Invalid
            | Self::TtlOutOfRange
            | Self::Unsupported
            | Self::TokensExhausted
            | Self::Protocol
            | Self::NotExclusive
            | Self::NotImported
            | Self::SeveralScopes
            | Self::Scope
            | Self::Forbidden
            | Self::Rules
            | Self::SessionRevoked
            | Self::NotHeld
            | Self::Permits
            | Self::HeadStart
            | Self::AlreadyAsked
            | Self::Freeze
            | Self::Sequence
            | Self::HoldBounds
            | Self::Other => false,
        }
    }
}

/// The innermost error, without the layers around it.
pub fn innermost(error: &dyn std::error::Error) -> String {
    let mut at = error;
    while let Some(source) = at.source() {
        at = source;
    }
    at.to_string()
}

/// `text` with every character escaped that a terminal might act on.
fn shown(text: &str) -> impl fmt::Display + '_ {
    text.escape_debug()
}

/// Names as an error lists them, and the verb that goes with them.
fn listed(names: &[String]) -> String {
    let listed: Vec<_> =
        names.iter().take(LISTED_MAX).map(|name| shown(name).to_string()).collect();
    let listed = listed.join(", ");
    match names.len() {
        0 | 1 => format!("{listed} is"),
        number if number <= LISTED_MAX => format!("{listed} are"),
        number => format!("{listed} and {} more are", number - LISTED_MAX),
    }
}

/// What [`Error::Unreachable`] says happened.
fn silence(answered: bool) -> &'static str {
    if answered { "no server leads with a quorum" } else { "no server could be reached" }
}

fn after(waited: Option<&Duration>) -> String {
    waited.map(|waited| format!(" after {:.1} s", waited.as_secs_f64())).unwrap_or_default()
}

fn held_by(holders: &[Holder]) -> String {
    let Some(holder) = holders.first() else { return String::new() };
    let note = match &*holder.note {
        "" => String::new(),
        note => format!(" ({})", shown(note)),
    };
    let holder_is = format!(": held by {}{note}", shown(&holder.label));
    // Not every store records since when.
    if holder.held.is_zero() {
        return holder_is;
    }
    format!("{holder_is} for {} s", holder.held.as_secs())
}
