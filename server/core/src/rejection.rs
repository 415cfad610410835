//! Refusals: part of the replicated outcome, equal on all nodes.

use borsh::{BorshDeserialize, BorshSerialize};

use crate::access::{Identity, Missing, NamePrefix, RulesError};
use crate::ids::{FencingToken, Label, LockName, RequestId, ScopePrefix, SessionId, Tenure};
use crate::quota::Quantity;

/// Why the table refused a command. Nothing changed, except what a variant names.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, thiserror::Error)]
pub enum Rejection {
    /// The session does not exist, or has ended.
    #[error("session {session} is not open; open a new one")]
    UnknownSession {
        /// The session named.
        session: SessionId,
    },
    /// The requested lease is outside the limits. It is refused, never clamped.
    #[error("a lease of {ttl_ms} ms is outside {min_ms} to {max_ms} ms")]
    TtlOutOfRange {
        /// The requested lease, milliseconds.
        ttl_ms: u64,
        /// Least allowed.
        min_ms: u64,
        /// Most allowed.
        max_ms: u64,
    },
    /// The number of open sessions has reached the limit (or all 2⁶⁴ session ids are used up).
    #[error("{limit} sessions are open, the limit (max_sessions); try again later")]
    TooManySessions {
        /// The limit.
        limit: u64,
    },
    /// The session has as many requests as allowed: waiting, held, or kept until confirmed. Not
    /// recorded: the client may retry under the same id.
    #[error("session {session} has {limit} requests, the limit (max_requests_per_session)")]
    TooManyRequests {
        /// The session.
        session: SessionId,
        /// The limit.
        limit: u64,
    },
    /// As many requests wait for the lock as allowed (or all 2⁶⁴ tickets are used up). Not
    /// recorded: the client may retry under the same id.
    #[error("{limit} requests wait for {lock}, the limit (max_waiters_per_lock); try again later")]
    TooManyWaiters {
        /// The lock.
        lock: LockName,
        /// The limit.
        limit: u64,
    },
    /// The lock is held, and the request would not wait. Kept under the request's id, as it was
    /// when it was first refused.
    #[error("{lock} is held by session {holder} under token {token}")]
    LockHeld {
        /// The lock.
        lock: LockName,
        /// The holder's session.
        holder: SessionId,
        /// The holder's token.
        token: FencingToken,
    },
    /// No holder is in the request's way, but others wait for the lock and come first; and the
    /// request would not wait. Kept under the request's id.
    #[error("others wait for {lock}, first session {waiter}")]
    LockAwaited {
        /// The lock.
        lock: LockName,
        /// The session of the first waiter.
        waiter: SessionId,
    },
    /// An `any` that would not wait found none of its locks free. Kept under the request's id.
    #[error("none of the locks asked for is free")]
    NothingFree,
    /// A late copy of a request whose outcome was confirmed. Nothing changed; the request of that
    /// id, if it still waits or holds, stays as it is.
    #[error("request {request} lies below {done_below}, confirmed as done")]
    RequestGone {
        /// The request.
        request: RequestId,
        /// The session's mark.
        done_below: RequestId,
    },
    /// The id belongs to a request with another payload, which stays as it is.
    #[error("request id {request} was used before for something else; use a new id")]
    RequestReused {
        /// The id.
        request: RequestId,
    },
    /// The request was cancelled before, or its grant was given back.
    #[error("request {request} has ended")]
    RequestEnded {
        /// The request.
        request: RequestId,
    },
    /// The token is not that of a current hold of the session: released before, lost, or of another
    /// session.
    #[error("session {session} does not hold anything under token {token}")]
    NotHolder {
        /// The session of the command.
        session: SessionId,
        /// The token of the command.
        token: FencingToken,
    },
    /// The session holds the grant, but the lock is not, or no longer, part of it.
    #[error("session {session} does not hold {lock} under token {token}")]
    NotHeldUnder {
        /// The session of the command.
        session: SessionId,
        /// The token of the command.
        token: FencingToken,
        /// The lock.
        lock: LockName,
    },
    /// Only a holder that holds a lock exclusively sets its value.
    #[error("token {token} does not hold {lock} alone; only an exclusive holder sets its value")]
    NotExclusive {
        /// The lock.
        lock: LockName,
        /// The token of the command.
        token: FencingToken,
    },
    /// The lock carries no value that could be confirmed.
    #[error("{lock} has no value to confirm")]
    NoValue {
        /// The lock.
        lock: LockName,
    },
    /// The value is longer than allowed.
    #[error("a value of {len} bytes is larger than the {max} allowed")]
    ValueTooLarge {
        /// The value's length, bytes.
        len: u64,
        /// The most allowed, [`VALUE_BYTES_MAX`](crate::VALUE_BYTES_MAX).
        max: u64,
    },
    /// The values of all locks take as much room as allowed. Not recorded: the client may retry
    /// under the same id.
    #[error(
        "the values of all locks would take more than {limit} bytes, the limit (max_value_bytes); \
         clear others and try again"
    )]
    TooManyValueBytes {
        /// The limit, bytes.
        limit: u64,
    },
    /// A request for no lock.
    #[error("a request names at least one lock")]
    NoNames,
    /// More names than a request may have.
    #[error("{names} names are more than the {max} allowed in one request")]
    TooManyNames {
        /// How many it has.
        names: u64,
        /// How many it may have, [`NAMES_MAX`](crate::NAMES_MAX).
        max: u64,
    },
    /// A request that names a lock twice: it would wait for itself.
    #[error("{lock} is named twice in one request")]
    NameTwice {
        /// The lock.
        lock: LockName,
    },
    /// A request for more locks than it names.
    #[error("at least {min} of {names} locks cannot be granted")]
    MinAboveNames {
        /// The requested minimum.
        min: u32,
        /// How many locks the request names.
        names: u64,
    },
    /// An `any` that needs more than one lock, in the form of a command that older releases know, and refuse.
    #[error("at least {min} locks is not supported by this form of request")]
    MinUnsupported {
        /// The requested minimum.
        min: u32,
    },
    /// An expiry of another tenure than that of its log entry (DESIGN §5.2).
    #[error("session {session} was found expired in tenure {heard_in}, not in {proposed_in}")]
    OtherTenure {
        /// The session, which stays open.
        session: SessionId,
        /// The tenure that the command names.
        heard_in: Tenure,
        /// The tenure of the entry that carried it.
        proposed_in: Tenure,
    },
    /// The counter of tokens, one for all epochs, is used up. Not recorded: the id is not spent.
    #[error("the fencing tokens of epoch {epoch} are used up")]
    TokensExhausted {
        /// The epoch.
        epoch: u16,
    },
    /// Limits that contradict themselves.
    #[error("the limits are not usable: {reason}")]
    UnusableLimits {
        /// Which, and why.
        reason: String,
    },
    /// The owner named by a claim has no import of the lock, or it was claimed before, given back,
    /// or has run out. Kept under the request's id.
    #[error("nothing of {lock} was imported for that owner, or it has run out or was claimed")]
    NotImported {
        /// The lock.
        lock: LockName,
    },
    /// An import would bring in a waiter for a lock without holder or waiter here: it would be
    /// granted at once, beside the holder in the other store.
    #[error("nobody holds {lock} here; import its holder before those who wait for it")]
    NothingToWaitFor {
        /// The lock.
        lock: LockName,
    },
    /// The lock's scope is suspended, and the request would not wait. Kept under the request's id.
    #[error("the scope of {lock} is suspended: nobody is granted anything in it at the moment")]
    Suspended {
        /// The lock.
        lock: LockName,
    },
    /// The cluster was restored from a backup and grants nothing yet: clients of the cluster before it may
    /// still rely on their holds. A request that would not wait gets it, kept under its id; and an
    /// import, which is not recorded.
    #[error(
        "the cluster was restored from a backup, and grants nothing until no client of the old one can \
         rely on a hold any more; try again, or wait for the lock"
    )]
    Restored,
    /// A request for locks of several scopes, or of a scope and none: one token could not rise for
    /// all of them. Not recorded: the id may be used for another request.
    #[error("{first} and {second} are not in the same scope; ask for them one after the other")]
    SeveralScopes {
        /// One of the locks.
        first: LockName,
        /// One that is in another scope, or in none.
        second: LockName,
    },
    /// There is no scope of that prefix.
    #[error("there is no scope {scope}")]
    UnknownScope {
        /// The prefix.
        scope: ScopePrefix,
    },
    /// As many scopes are set as allowed.
    #[error("{max} scopes are set, and no more are allowed; remove one first")]
    TooManyScopes {
        /// How many there may be, [`SCOPES_MAX`](crate::SCOPES_MAX).
        max: u64,
    },
    /// Some name could lie in both scopes.
    #[error("the scope {scope} would overlap with {other}, which is set")]
    ScopesOverlap {
        /// The scope that was to be set.
        scope: ScopePrefix,
        /// The scope that overlaps with it.
        other: ScopePrefix,
    },
    /// A request that waits or holds names locks inside the new scope and outside of it.
    #[error("session {session} asks for {lock} together with locks outside the scope {scope}")]
    ScopeCutsRequest {
        /// The scope that was to be set.
        scope: ScopePrefix,
        /// The session of the request.
        session: SessionId,
        /// One of its locks, in the scope.
        lock: LockName,
    },
    /// A lock of the new scope is held under a token of another epoch: its holder could never learn
    /// that the hold is safe.
    #[error(
        "{lock} is held under token {token}, of an epoch before {epoch}; set the scope {scope} \
         when that hold is over"
    )]
    HeldInOtherEpoch {
        /// The scope that was to be set.
        scope: ScopePrefix,
        /// The lock.
        lock: LockName,
        /// The token of the hold.
        token: FencingToken,
        /// The epoch that the scope would begin with.
        epoch: u16,
    },
    /// The scope is in another epoch than the authority.
    #[error("the scope {scope} is in epoch {now}, not in {epoch}")]
    OtherEpoch {
        /// The scope.
        scope: ScopePrefix,
        /// The epoch that the command names.
        epoch: u16,
        /// The scope's epoch.
        now: u16,
    },
    /// An epoch only rises.
    #[error("the scope {scope} is in epoch {now} already; {epoch} does not lie above it")]
    EpochNotAbove {
        /// The scope.
        scope: ScopePrefix,
        /// The epoch that the command names.
        epoch: u16,
        /// The scope's epoch.
        now: u16,
    },
    /// An epoch above the last that a scope may have. It never wraps.
    #[error("epoch {epoch} is above {max}, the last one of a scope")]
    EpochTooHigh {
        /// The epoch.
        epoch: u16,
        /// The last, [`SCOPE_EPOCH_MAX`](crate::SCOPE_EPOCH_MAX).
        max: u16,
    },
    /// The table takes as many bytes as allowed. Not recorded: the client may retry under the same
    /// id.
    #[error(
        "sessions, requests and values would take more than {limit} bytes, the limit \
         (max_table_bytes); try again when others have ended theirs"
    )]
    TableFull {
        /// The limit, bytes.
        limit: u64,
    },
    /// The caller has no right to it. Not recorded, whatever the table knows of the lock: with the
    /// right the client may retry under the same id.
    #[error("not allowed: {0}")]
    Forbidden(Missing),
    /// A change of the rules that cannot be.
    #[error(transparent)]
    Rules(RulesError),
    /// The session was ended from outside. Its client can only end what it has.
    #[error("session {session} was revoked: {}", reason.as_str())]
    SessionRevoked {
        /// The session.
        session: SessionId,
        /// Why.
        reason: Label,
    },
    /// There is no hold to close.
    #[error("{lock} is not held, or not under that token")]
    NotHeld {
        /// The lock.
        lock: LockName,
    },
    /// The caller has as much as its quota allows. Not recorded: the client may retry under the same id.
    #[error(
        "{identity} has reached its quota of {what}, {limit}; try again when it has less, or have a \
         larger one set (holdfast auth quota)"
    )]
    OverQuota {
        /// The identity.
        identity: Identity,
        /// What it would have too much of.
        what: Quantity,
        /// How much it may have.
        limit: u64,
    },
    /// The command has more to look at than one command may, and did its share
    /// ([`Command::LimitWork`](crate::Command::LimitWork)), or waits for what an earlier one left.
    /// The same command once more goes on from there; it is not refused for good.
    #[error("the scope {scope} is still being changed; try again")]
    Unfinished {
        /// The scope.
        scope: ScopePrefix,
    },
    /// More sessions hold the lock than one command may close. Nothing changed: close them one by one.
    #[error("{lock} has {holders} holders; one command closes {max} at most, or one by its token")]
    TooManyHolders {
        /// The lock.
        lock: LockName,
        /// How many hold it.
        holders: u64,
        /// How many one command closes.
        max: u64,
    },
    /// A request for permits names another limit than the lock has at present. Not recorded: the id may be
    /// used for another request.
    #[error("{lock} has a limit of {limit} permits, and not of {asked}")]
    LimitDiffers {
        /// The lock.
        lock: LockName,
        /// Its limit.
        limit: u32,
        /// The one that the request names.
        asked: u32,
    },
    /// A request for permits names no limit, and none was set for good. Not recorded.
    #[error("{lock} has no limit of permits that was set for good; name one, or have one set")]
    NoLimit {
        /// The lock.
        lock: LockName,
    },
    /// A request for no permits, or for more than the limit. Not recorded, unless it waited: then the
    /// limit was lowered meanwhile, and it is kept under the request's id.
    #[error("{permits} permits of {lock} cannot be granted: its limit is {limit}")]
    PermitsOutOfRange {
        /// The lock.
        lock: LockName,
        /// How many the request wants.
        permits: u32,
        /// The limit.
        limit: u32,
    },
    /// A request for permits of a lock in a scope, or a limit for one: the other store that may serve the
    /// scope knows no permits. Not recorded.
    #[error("{lock} is in a scope, and another store that may serve it knows no permits")]
    PermitsInScope {
        /// The lock.
        lock: LockName,
    },
    /// The lock is frozen, and the request would not wait. Kept under the request's id.
    #[error("{lock} is frozen: nobody is granted it at the moment")]
    Frozen {
        /// The lock.
        lock: LockName,
    },
    /// Names in a scope are not frozen: the other store that may serve it would go on granting.
    #[error(
        "a freeze inside of the scope {scope} would not hold in the other store; suspend the work there itself"
    )]
    FreezeInScope {
        /// The scope.
        scope: ScopePrefix,
    },
    /// A freeze lies inside of the prefix that was to become a scope.
    #[error("names that begin with {prefix} are frozen; set the scope {scope} when they are not")]
    ScopeHasFreeze {
        /// The scope that was to be set.
        scope: ScopePrefix,
        /// The prefix of the freeze.
        prefix: NamePrefix,
    },
    /// There is no freeze of that prefix.
    #[error("names that begin with {prefix:?} are not frozen by that prefix")]
    NotFrozen {
        /// The prefix.
        prefix: NamePrefix,
    },
    /// As many prefixes are frozen as allowed.
    #[error("{max} prefixes are frozen, and no more are allowed; thaw one first")]
    TooManyFreezes {
        /// How many there may be, [`FREEZES_MAX`](crate::FREEZES_MAX).
        max: u64,
    },
    /// A head start beyond the largest. Not recorded.
    #[error("a head start of {head_start_ms} ms is longer than the {max_ms} ms allowed")]
    HeadStartTooLong {
        /// The one asked for, milliseconds.
        head_start_ms: u32,
        /// [`HEAD_START_MAX_MS`](crate::HEAD_START_MAX_MS).
        max_ms: u64,
    },
    /// A request with a head start for a lock in a scope: the other store that may serve the scope knows no head
    /// starts. Not recorded.
    #[error("{lock} is in a scope, and another store that may serve it knows no head starts")]
    HeadStartInScope {
        /// The lock.
        lock: LockName,
    },
    /// A request with a head start waits for a lock of the new scope.
    #[error(
        "session {session} waits for {lock} with a head start, which another store does not know; set the scope \
         {scope} when it waits no more"
    )]
    ScopeHasHeadStart {
        /// The scope that was to be set.
        scope: ScopePrefix,
        /// The session of the request.
        session: SessionId,
        /// The lock.
        lock: LockName,
    },
    /// The owner named by the request holds the lock already. Not recorded: the id may be used for another request.
    #[error("this owner holds {lock} already, under token {token}")]
    AlreadyHeld {
        /// The lock.
        lock: LockName,
        /// The token of the hold.
        token: FencingToken,
    },
    /// The owner named by the request waits for the lock already. Not recorded.
    #[error("this owner waits for {lock} already, by request {request}")]
    AlreadyAsked {
        /// The lock.
        lock: LockName,
        /// The request that waits.
        request: RequestId,
    },
    /// A lock of the new scope has a limit of permits, which the other store does not know.
    #[error("{lock} has a limit of permits; set the scope {scope} when it has none")]
    ScopeHasLimit {
        /// The scope that was to be set.
        scope: ScopePrefix,
        /// The lock.
        lock: LockName,
    },
    /// No numbers of a sequence, or more than one block has.
    #[error("a block has 1 to {max} numbers, not {by}")]
    SequenceStep {
        /// How many were asked for.
        by: u32,
        /// [`SEQUENCE_BY_MAX`](crate::SEQUENCE_BY_MAX).
        max: u32,
    },
    /// A sequence whose name lies in a scope: the other store that may serve the scope would not know how far it is.
    #[error("{sequence} is in a scope, and another store that may serve it knows no sequences")]
    SequenceInScope {
        /// The sequence.
        sequence: LockName,
    },
    /// The sequence has fewer numbers left.
    #[error("the sequence {sequence} is at its end; numbers left: {left}")]
    SequenceExhausted {
        /// The sequence.
        sequence: LockName,
        /// How many.
        left: u64,
    },
    /// A sequence was to begin at a number that was given out already, or at 0.
    #[error("the sequence {sequence} cannot begin at {at}, only above {last}")]
    SequenceNotAbove {
        /// The sequence.
        sequence: LockName,
        /// The number.
        at: u64,
        /// The last one given out; 0 if none was.
        last: u64,
    },
    /// A try for a lock whose last hold has not lasted its least (`hold_at_least`). Recorded.
    #[error("{lock} is closed until its last hold has lasted as long as it was to last at least")]
    LockClosed {
        /// The lock.
        lock: LockName,
    },
    /// A bound of a hold that is longer than a day. Not recorded.
    #[error("a hold is bound to {max_ms} ms at most, not {asked_ms}")]
    HoldBoundTooLong {
        /// The longer bound that was asked for, milliseconds.
        asked_ms: u32,
        /// [`HOLD_BOUND_MAX_MS`](crate::HOLD_BOUND_MAX_MS).
        max_ms: u32,
    },
    /// A hold that was to end before it has lasted its least. Not recorded.
    #[error("max_hold ({max_hold_ms} ms) is shorter than hold_at_least ({hold_at_least_ms} ms)")]
    HoldBoundsCross {
        /// How long it was to last at most, milliseconds.
        max_hold_ms: u32,
        /// How long it was to last at least, milliseconds.
        hold_at_least_ms: u32,
    },
    /// A hold that others have beside them has no least time: who would be granted the lock may hold it already. Not
    /// recorded.
    #[error("{lock} is not asked for exclusively, and only then has a hold a least time")]
    HoldAtLeastShared {
        /// The lock.
        lock: LockName,
    },
    /// A request with bounds for a lock in a scope: the other store that may serve the scope knows none. Not recorded.
    #[error(
        "{lock} is in a scope, and another store that may serve it knows no max_hold and no hold_at_least"
    )]
    HoldBoundsInScope {
        /// The lock.
        lock: LockName,
    },
    /// A lock of the new scope is closed, or is asked for or held with bounds.
    #[error(
        "{lock} is closed, or held or asked for with max_hold or hold_at_least, which another store does not know; set the \
         scope {scope} when it is free"
    )]
    ScopeHasHoldBounds {
        /// The scope that was to be set.
        scope: ScopePrefix,
        /// The lock.
        lock: LockName,
    },
    /// An `any` that would not wait found fewer of its locks free than it needs. Recorded.
    #[error("{free} of the locks asked for are free, and at least {min} are needed")]
    TooFewFree {
        /// How many it needs.
        min: u32,
        /// How many were free to it.
        free: u32,
    },
    /// The lock is not closed since that hold ended: it was opened already, or was never closed.
    #[error("{lock} is not closed since the end of the hold under token {token}")]
    NotClosed {
        /// The lock.
        lock: LockName,
        /// The grant.
        token: FencingToken,
    },
}

impl From<Missing> for Rejection {
    fn from(missing: Missing) -> Self {
        Self::Forbidden(missing)
    }
}

impl Rejection {
    /// Whether it denies a request that would not wait, or a claim. Only these are kept under the
    /// request's id: a retry gets the same one, and [`Event::Denied`](crate::Event::Denied) reports
    /// the first.
    pub fn is_denial(&self) -> bool {
        matches!(
            self,
            Self::LockHeld { .. }
                | Self::LockAwaited { .. }
                | Self::NotImported { .. }
                | Self::Suspended { .. }
                | Self::Frozen { .. }
                | Self::LockClosed { .. }
                | Self::Restored
                | Self::NothingFree
                | Self::TooFewFree { .. }
        )
    }
}
