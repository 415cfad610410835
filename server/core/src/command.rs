//! The commands of the log, the only input of the core, and the stored form of a batch of them: a
//! version, then borsh.

use std::io;
use std::num::NonZeroU32;

use borsh::{BorshDeserialize, BorshSerialize};

use crate::Limits;
use crate::access::{Caller, Identity, NamePrefix, RuleChange};
use crate::ids::{
    FencingToken, Label, LockName, LogIndex, RequestId, ScopePrefix, SessionId, Tenure,
};
use crate::import::ImportRow;
use crate::lock_set::{Item, Need};
use crate::terms::Terms;
use crate::value::ValueChange;

/// A command of the lock table.
///
/// The order of the variants is part of the stored encoding: new ones go to the end, and get a
/// new version in [`Command::version`].
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum Command {
    /// Sets the limits that apply from here on. They travel through the log, because a refusal is a
    /// replicated outcome: nodes with different settings would otherwise diverge.
    Configure {
        /// The limits.
        limits: Limits,
    },
    /// Opens a session.
    OpenSession {
        /// Its lease, milliseconds.
        ttl_ms: u64,
        /// A name for people.
        label: Label,
        /// SHA-256 of the session's secret; the secret itself never reaches the log.
        secret_hash: [u8; 32],
    },
    /// The client closes its session: every wait and hold of it ends in this command.
    CloseSession {
        /// The session.
        session: SessionId,
    },
    /// The leader found a session's deadline passed.
    ExpireSession {
        /// The session.
        session: SessionId,
        /// The tenure in which the leader received the session's renewals (DESIGN §5.2). The table
        /// refuses the command in an entry of any other tenure.
        tenure: Tenure,
    },
    /// Requests locks.
    Acquire {
        /// The session that requests them.
        session: SessionId,
        /// Confirms the outcomes of the session's requests below this id; the table drops them. A
        /// request that still waits or holds stays. The table raises the session's mark to this id
        /// and never lowers it, even if it refuses the command. The session alone answers for this
        /// number, so the table takes it as it is, even beyond every id seen.
        done_below: RequestId,
        /// The request id: the session chooses it, in rising order. The same id with the same
        /// items, `need` and `wait` is the same request, however often it arrives (I12).
        request: RequestId,
        /// The locks, 1 to [`NAMES_MAX`](crate::NAMES_MAX), each once. Their order means nothing.
        items: Vec<Item>,
        /// How many of them.
        need: Need,
        /// Whether a request that cannot be granted at once waits in the queues; otherwise it is
        /// denied.
        wait: bool,
    },
    /// Ends a request, whatever its state: a waiting one leaves, a held one is given back, an
    /// unseen id is spent, so that a late `Acquire` under it is refused. Also works below the
    /// session's mark, as long as the request waits or holds.
    Cancel {
        /// The session of the request.
        session: SessionId,
        /// As in `Acquire`.
        done_below: RequestId,
        /// The request.
        request: RequestId,
    },
    /// Gives back a grant, or some of its locks. A second or late copy changes nothing (I13).
    Release {
        /// The session that holds it.
        session: SessionId,
        /// As in `Acquire`.
        done_below: RequestId,
        /// The grant.
        token: FencingToken,
        /// The locks to give back; empty means all that the grant holds. If one of them is not held
        /// under the token, the command gives back nothing.
        locks: Vec<LockName>,
    },
    /// Changes the value of a lock that the session holds exclusively. A second copy changes
    /// nothing (I12).
    SetValue {
        /// The session that holds it.
        session: SessionId,
        /// As in `Acquire`.
        done_below: RequestId,
        /// The write's own id, from the same rising numbers as those of `Acquire`.
        request: RequestId,
        /// The grant.
        token: FencingToken,
        /// The lock.
        lock: LockName,
        /// The change.
        change: ValueChange,
    },
    /// Ends a wait and nothing else: a waiting request leaves its queues; one that holds, or is
    /// over, stays as it is.
    ///
    /// A server proposes it when the wait limit of a unary call has passed. That server cannot know
    /// whether the grant came first and another call of the same request has reported it to the
    /// client, which relies on it (I6): only that client may give it back (I13).
    StopWaiting {
        /// The session of the request.
        session: SessionId,
        /// The request.
        request: RequestId,
    },
    /// Imports the holds and waits of one owner in another store, as a session of its own whose
    /// lease is the time that remains there (DESIGN §10, I25). An earlier import for that owner
    /// that still runs stays as it is.
    Import {
        /// The owner's name in that store; it becomes the session's label.
        owner: Label,
        /// The time that remains of the owner's leases there, milliseconds: 1 to
        /// [`IMPORT_TTL_MAX_MS`](crate::IMPORT_TTL_MAX_MS). No client can renew it.
        ttl_ms: u64,
        /// 1 to [`IMPORT_ROWS_MAX`](crate::IMPORT_ROWS_MAX).
        rows: Vec<ImportRow>,
    },
    /// Takes over an owner's import of one lock: its hold, under a new token, or its place in the
    /// queue. Denied if no such import waits or holds.
    Claim {
        /// The session that takes it over.
        session: SessionId,
        /// As in `Acquire`.
        done_below: RequestId,
        /// The request that holds or waits from then on, from the same rising numbers as those of
        /// `Acquire`. A retry gets the answer of a retried `Acquire` for that lock alone.
        request: RequestId,
        /// The lock.
        lock: LockName,
        /// The owner that `Import` named.
        owner: Label,
    },
    /// Makes the names that begin with a prefix a scope with an epoch of its own (DESIGN §10):
    /// suspended, and at first in the cluster's epoch. An existing scope stays as it is.
    SetScope {
        /// The prefix.
        scope: ScopePrefix,
    },
    /// Ends a scope: its names are like all others again. Raises the cluster's epoch above the
    /// scope's, so that their tokens go on rising.
    RemoveScope {
        /// The scope.
        scope: ScopePrefix,
    },
    /// Stops grants in the scope: a new request waits or is denied. Holds go on, and holders
    /// release and expire as before. Harmless if it was suspended before.
    Suspend {
        /// The scope.
        scope: ScopePrefix,
    },
    /// The leader has authority over the scope: the table grants the waiters that can be granted,
    /// in order. Harmless if it was not suspended.
    Resume {
        /// The scope.
        scope: ScopePrefix,
        /// The epoch of the authority; refused if it is not the scope's.
        epoch: u16,
    },
    /// The other store may have served the scope meanwhile: every earlier hold is lost, and tokens
    /// go on in that epoch. Waiters keep their places. The scope is suspended until `Resume`.
    RaiseEpoch {
        /// The scope.
        scope: ScopePrefix,
        /// Above the scope's; at most [`SCOPE_EPOCH_MAX`](crate::SCOPE_EPOCH_MAX).
        epoch: u16,
    },
    /// Sets how many bytes the table may take, from here on. Without it there is no such limit. It
    /// is a command of its own because every version knows the stored form of `Configure`.
    LimitTable {
        /// The limit, as the table counts itself ([`Counts::table_bytes`](crate::Counts::table_bytes)).
        max_bytes: u64,
    },
    /// Gives back a grant, or some of its locks, that its client had already lost: the safe
    /// deadline passed before the client released it. As `Release`, and the values of the locks
    /// become suspect as if the lease had expired.
    ReleaseLost {
        /// As in `Release`.
        session: SessionId,
        /// As in `Acquire`.
        done_below: RequestId,
        /// As in `Release`.
        token: FencingToken,
        /// As in `Release`.
        locks: Vec<LockName>,
    },
    /// Does something for a caller who has to have the right to it (DESIGN §14). Commands of a
    /// session need no such form: the session knows its caller.
    By {
        /// The caller that asks for it.
        caller: Caller,
        /// What the caller asks for.
        deed: Deed,
    },
    /// The leader found that the deadline of a hold has passed that was closed from outside
    /// ([`Deed::CloseHolds`]).
    EndClosed {
        /// The holder.
        session: SessionId,
        /// The grant.
        token: FencingToken,
        /// As in `ExpireSession`.
        tenure: Tenure,
    },
    /// Sets how much work one command may do, from here on. What it leaves is carried on by
    /// `CarryOn`. Without it each command does all of its work at once, as members of an older
    /// release do.
    LimitWork {
        /// The limit, in steps ([`WORK_STEPS`](crate::WORK_STEPS)). At least 1.
        steps: u64,
    },
    /// Carries on what earlier commands have left, within the same limit. The leader proposes it for as
    /// long as the table has such work ([`LockTable::has_work_left`](crate::LockTable::has_work_left)).
    /// Harmless if there is none.
    CarryOn,
    /// A restored table grants from here on: nobody relies on a hold of the old cluster any more. The
    /// leader proposes it once it has waited ([`LockTable::grants_after_ms`](crate::LockTable::grants_after_ms)).
    /// Harmless if the table grants.
    GrantAgain,
    /// Has the tokens of a new cluster begin above those of every cluster before it
    /// ([`tokens_begin_at`](crate::tokens_begin_at)). Harmless once there was a token or a scope.
    BeginTokens {
        /// Of names in no scope.
        epoch: u16,
        /// The first token counts one more.
        counter: u64,
    },
    /// An `Acquire` that says something besides its locks. It is a command of its own because every version knows the
    /// stored form of `Acquire` ([`Command::acquire`]).
    AcquireOn(Ask),
    /// A hold has lasted its longest ([`Terms::max_hold_ms`]): it is closed, as by [`Deed::CloseHolds`]. The leader proposes it.
    EndLongHold {
        /// The holder.
        session: SessionId,
        /// The grant.
        token: FencingToken,
    },
    /// A closed lock has stayed closed for as long as it had to ([`Terms::hold_at_least_ms`]): it is granted to who waits.
    /// The leader proposes it.
    OpenLock {
        /// The lock.
        lock: LockName,
        /// The grant since whose end it is closed.
        token: FencingToken,
    },
}

/// A request for locks that says something besides.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Ask {
    /// As in [`Command::Acquire`].
    pub session: SessionId,
    /// As there.
    pub done_below: RequestId,
    /// As there; the same request has the same terms too.
    pub request: RequestId,
    /// As there.
    pub items: Vec<Item>,
    /// As there.
    pub need: Need,
    /// As there.
    pub wait: bool,
    /// What it says besides.
    pub terms: Terms,
}

/// What a command does for its caller.
///
/// The order of the variants is part of the stored encoding, as that of [`Command`]'s.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum Deed {
    /// As [`Command::OpenSession`], for which any right is enough. The session keeps its caller.
    OpenSession {
        /// As there.
        ttl_ms: u64,
        /// As there.
        label: Label,
        /// As there.
        secret_hash: [u8; 32],
        /// Whether the session's client gives up a hold that an answer to it names as closed
        /// ([`Deed::CloseHolds`]).
        knows_closed: bool,
    },
    /// As [`Command::Import`].
    Import {
        /// As there.
        owner: Label,
        /// As there.
        ttl_ms: u64,
        /// As there.
        rows: Vec<ImportRow>,
    },
    /// As [`Command::SetScope`].
    SetScope {
        /// As there.
        scope: ScopePrefix,
    },
    /// As [`Command::RemoveScope`].
    RemoveScope {
        /// As there.
        scope: ScopePrefix,
    },
    /// Changes the rules.
    Rule {
        /// How.
        change: RuleChange,
    },
    /// Ends a session from outside. Its waits leave at once. Nothing renews it any more, and nothing
    /// but its ends is taken from it, so that its holds pass on when the leader's deadline for it has
    /// passed, and not before (I35).
    EndSession {
        /// The session.
        session: SessionId,
        /// For people: the client is told.
        reason: Label,
        /// Ends it in this command, while its client may still rely on its holds: that breaks I6.
        now: bool,
    },
    /// Takes all roles from an identity, its token if it is one of that kind, and ends its sessions as
    /// `EndSession` does. In one command, so that no session opens in between.
    CutOff {
        /// Whom.
        identity: Identity,
        /// As in `EndSession`.
        reason: Label,
        /// As in `EndSession`.
        now: bool,
    },
    /// Closes holds of a lock from outside, each with all locks of its grant. Such a hold stays until
    /// its client has released it, or the leader's deadline for it has passed (I35); nobody but its
    /// session's ends is taken for it meanwhile. The session of a client that does not know closed
    /// holds is ended instead, as by `EndSession`.
    CloseHolds {
        /// The lock.
        lock: LockName,
        /// The one grant that is meant; `None`: every holder of the lock.
        token: Option<FencingToken>,
        /// As in `EndSession`.
        reason: Label,
        /// As in `EndSession`.
        now: bool,
    },
    /// Makes a session the caller's own that nobody in particular has opened: an identified client opened
    /// it while a member of an older release was there, which knows no callers. Of the caller's own session it
    /// brings up to date whether the caller is an administrator. It needs no right: the leader proposes
    /// it for a caller that has shown the session's secret, which no other caller has.
    OwnSession {
        /// The session.
        session: SessionId,
    },
    /// Sets up to how many permits of a lock are held together, for good and from here on. Less than are held
    /// ends nothing.
    SetLimit {
        /// The lock.
        lock: LockName,
        /// `None`: the limit goes once nobody holds permits of the lock or waits for some.
        limit: Option<NonZeroU32>,
    },
    /// Grants nothing of the names that begin with a prefix, until it is thawed. Holds stay, and queues fill.
    Freeze {
        /// The prefix; empty: all names.
        prefix: NamePrefix,
        /// For those who wait.
        message: Label,
    },
    /// Lifts a freeze, and grants to those who wait.
    Thaw {
        /// The prefix, as it was frozen.
        prefix: NamePrefix,
    },
    /// Gives out the next numbers of a sequence. A second copy gives out others.
    Advance {
        /// The sequence; it begins at 1 if there is none of that name.
        sequence: LockName,
        /// How many: 1 to [`SEQUENCE_BY_MAX`](crate::SEQUENCE_BY_MAX).
        by: u32,
    },
    /// Has the next number of a sequence be that one. Refused if it was given out already.
    BeginSequence {
        /// The sequence.
        sequence: LockName,
        /// The number. At least 1.
        at: u64,
    },
    /// Lengthens the leases of imports whose rows were renewed in the other store since they were imported.
    LengthenImports {
        /// Their owner there.
        owner: Label,
        /// What remains there now, milliseconds.
        ttl_ms: u64,
        /// The locks of the rows.
        locks: Vec<LockName>,
    },
}

impl Deed {
    /// The command for a caller. That of nobody in particular has the form that every version knows, if
    /// there is one.
    pub fn by(self, caller: &Caller) -> Command {
        let by = |caller: &Caller, deed| Command::By { caller: caller.clone(), deed };
        let says_more = matches!(self, Self::OpenSession { knows_closed: true, .. });
        if says_more || *caller != Caller::default() {
            return by(caller, self);
        }
        match self.clone().of_nobody() {
            Some(command) => command,
            None => by(caller, self),
        }
    }

    /// The same as a command of nobody in particular, in the form that older versions know; `None`
    /// if they do not know it at all.
    pub fn of_nobody(self) -> Option<Command> {
        Some(match self {
            Self::OpenSession { ttl_ms, label, secret_hash, .. } => {
                Command::OpenSession { ttl_ms, label, secret_hash }
            }
            Self::Import { owner, ttl_ms, rows } => Command::Import { owner, ttl_ms, rows },
            Self::SetScope { scope } => Command::SetScope { scope },
            Self::RemoveScope { scope } => Command::RemoveScope { scope },
            Self::Rule { .. }
            | Self::EndSession { .. }
            | Self::CutOff { .. }
            | Self::CloseHolds { .. }
            | Self::OwnSession { .. }
            | Self::SetLimit { .. }
            | Self::Freeze { .. }
            | Self::Thaw { .. }
            | Self::Advance { .. }
            | Self::BeginSequence { .. }
            | Self::LengthenImports { .. } => return None,
        })
    }
}

impl Command {
    /// An `Acquire`, in the form that every version knows unless it says something besides its locks, or needs some of them.
    pub fn acquire(
        (session, done_below, request): (SessionId, RequestId, RequestId),
        items: Vec<Item>,
        (need, wait): (Need, bool),
        terms: Terms,
    ) -> Self {
        // What older releases refuse comes in a form that they do not know.
        let has_floor = matches!(need, Need::Any { min: 2.. });
        if terms == Terms::default() && !has_floor {
            Self::Acquire { session, done_below, request, items, need, wait }
        } else {
            Self::AcquireOn(Ask { session, done_below, request, items, need, wait, terms })
        }
    }

    /// The version of the stored encoding that first knew this command.
    ///
    /// A leader proposes a version only when every member knows it
    /// ([`VersionGate`](crate::VersionGate), I29).
    pub fn version(&self) -> u16 {
        match self {
            Self::Configure { .. }
            | Self::OpenSession { .. }
            | Self::CloseSession { .. }
            | Self::ExpireSession { .. }
            | Self::Cancel { .. }
            | Self::Release { .. }
            | Self::SetValue { .. }
            | Self::StopWaiting { .. } => COMMAND_VERSION_OLDEST,
            Self::Acquire { items, .. } => {
                let has_permits = items.iter().any(|item| item.mode.is_permits());
                if has_permits { PERMITS_SINCE } else { COMMAND_VERSION_OLDEST }
            }
            Self::Import { .. } | Self::Claim { .. } => 3,
            Self::SetScope { .. }
            | Self::RemoveScope { .. }
            | Self::Suspend { .. }
            | Self::Resume { .. }
            | Self::RaiseEpoch { .. } => 4,
            Self::LimitTable { .. } | Self::ReleaseLost { .. } => 5,
            Self::By { deed: Deed::Rule { change }, .. } => change.version(),
            Self::By { deed: Deed::SetLimit { .. }, .. } => PERMITS_SINCE,
            Self::AcquireOn(_)
            | Self::EndLongHold { .. }
            | Self::OpenLock { .. }
            | Self::By {
                deed: Deed::Freeze { .. } | Deed::Thaw { .. } | Deed::LengthenImports { .. },
                ..
            } => TERMS_SINCE,
            Self::By { deed: Deed::Advance { .. } | Deed::BeginSequence { .. }, .. } => {
                SEQUENCES_SINCE
            }
            Self::By { .. } | Self::EndClosed { .. } => RULES_SINCE,
            Self::LimitWork { .. } | Self::CarryOn => 7,
            Self::GrantAgain | Self::BeginTokens { .. } => RESTORES_SINCE,
        }
    }

    /// The same command in a form that older versions know, for members of an older release;
    /// itself if it has no such form. A lock must come free in a cluster of two releases too: there
    /// a lost grant is released as any other, and its value does not become suspect.
    ///
    /// What an identity does is done by no identity there: no rules can be on, because the
    /// older release does not know them.
    #[must_use]
    pub fn into_older_form(self) -> Self {
        match self {
            Self::ReleaseLost { session, done_below, token, locks } => {
                Self::Release { session, done_below, token, locks }
            }
            Self::By { caller, deed } => match deed.clone().of_nobody() {
                Some(command) => command,
                None => Self::By { caller, deed },
            },
            command => command,
        }
    }
}

/// The commands of one log entry: the leader collects them while the last entry is under way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The leader's wall clock, Unix milliseconds. For people; decides nothing (I8).
    pub stamp_ms: u64,
    /// The leader's state hash at an earlier index; a replica that had another one there stops
    /// (I16).
    pub witness: Option<Witness>,
    /// What has passed on the leader's monotonic clock since its batch before this one in the same tenure,
    /// milliseconds: the table grows older by it. 0 in the first batch of a tenure, and while no member needs
    /// to know [`Terms`](crate::Terms): older releases do not know the field.
    pub aged_ms: u64,
    /// The commands, in the order in which they are applied.
    pub commands: Vec<Command>,
}

/// A state hash and the index after which it was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Witness {
    /// After this entry.
    pub index: LogIndex,
    /// The rolling hash.
    pub hash: [u8; 32],
}

/// The highest version of commands this build knows, and so may apply (I29).
pub const COMMAND_VERSION: u16 = 9;
/// The version of commands from which on there are rules.
pub(crate) const RULES_SINCE: u16 = 6;
/// The version of commands from which on tables are restored from backups.
pub(crate) const RESTORES_SINCE: u16 = 8;
/// The version of commands from which on locks are held by permits.
pub(crate) const PERMITS_SINCE: u16 = 9;
/// The version of commands from which on requests have terms, and tables an age.
pub const TERMS_SINCE: u16 = 9;
/// The version of commands from which on there are sequences.
pub(crate) const SEQUENCES_SINCE: u16 = 9;
/// The lowest version this build knows: the first that was released.
pub const COMMAND_VERSION_OLDEST: u16 = 2;

/// Bytes of the version in front.
const VERSION_BYTES: usize = 2;

/// Why bytes were not read as a batch. A node that finds such bytes in its log stops.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A newer build wrote it. This build never guesses at it (I29).
    #[error("a batch of version {found}; this build knows versions up to {known}")]
    UnknownVersion {
        /// The version in front of the bytes.
        found: u16,
        /// [`COMMAND_VERSION`].
        known: u16,
    },
    /// A build from before the first release wrote it, in a form this build does not know.
    #[error(
        "a batch of version {found}, written by a version before the first release; this build \
         knows versions from {oldest} on"
    )]
    OldVersion {
        /// The version in front of the bytes.
        found: u16,
        /// [`COMMAND_VERSION_OLDEST`].
        oldest: u16,
    },
    /// Not what [`Batch::encode`] writes.
    #[error("a damaged batch: {reason}")]
    Damaged {
        /// What is wrong, for people.
        reason: String,
    },
}

impl Batch {
    /// The version needed to read it: the highest of its commands; without commands, the oldest. Time that
    /// passes needs the version that knows it.
    pub fn version(&self) -> u16 {
        let oldest = if self.aged_ms > 0 { TERMS_SINCE } else { COMMAND_VERSION_OLDEST };
        self.commands.iter().map(crate::Command::version).fold(oldest, u16::max)
    }

    /// The stored form: equal batches give equal bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.version().to_le_bytes().to_vec();
        // A vector accepts everything, and no batch has 2³² commands: a proposer bounds them (§7).
        let written = self.serialize(&mut bytes);
        debug_assert!(written.is_ok());
        bytes
    }

    /// Reads the stored form, and nothing else: left-over bytes, or a version in front that the
    /// commands do not need, are damage. Allocates at most a small multiple of the bytes present.
    ///
    /// # Errors
    ///
    /// [`DecodeError`]; a node that reads a log stops.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let Some((version, body)) = bytes.split_first_chunk::<VERSION_BYTES>() else {
            return Err(damaged("cut off before its version"));
        };
        let found = u16::from_le_bytes(*version);
        if found > COMMAND_VERSION {
            return Err(DecodeError::UnknownVersion { found, known: COMMAND_VERSION });
        }
        // There never was a version 0: it is damage, and falls through.
        if (1..COMMAND_VERSION_OLDEST).contains(&found) {
            return Err(DecodeError::OldVersion { found, oldest: COMMAND_VERSION_OLDEST });
        }
        let batch = Self::read(body, found).map_err(|error| damaged(error.to_string()))?;
        if batch.version() != found {
            let needed = batch.version();
            return Err(damaged(format!("marked as version {found}, but of version {needed}")));
        }
        Ok(batch)
    }

    fn read(mut body: &[u8], version: u16) -> io::Result<Self> {
        let (stamp_ms, witness, commands) = BorshDeserialize::deserialize(&mut body)?;
        let aged_ms = if version >= TERMS_SINCE { u64::deserialize(&mut body)? } else { 0 };
        if body.is_empty() {
            Ok(Self { stamp_ms, witness, aged_ms, commands })
        } else {
            Err(io::Error::new(io::ErrorKind::InvalidData, "not all of it was read"))
        }
    }
}

/// The body of the stored form. What has passed comes last, from the version on that knows it.
impl BorshSerialize for Batch {
    fn serialize<W: io::Write>(&self, writer: &mut W) -> io::Result<()> {
        let Self { stamp_ms, witness, aged_ms, commands } = self;
        (stamp_ms, witness, commands).serialize(writer)?;
        if self.version() >= TERMS_SINCE { aged_ms.serialize(writer) } else { Ok(()) }
    }
}

fn damaged(reason: impl Into<String>) -> DecodeError {
    DecodeError::Damaged { reason: reason.into() }
}
