//! What goes into the core: everything that may stand in the log.

use borsh::{BorshDeserialize, BorshSerialize};

use crate::Limits;
use crate::encoding::COMMAND_VERSION_OLDEST;
use crate::ids::{
    FencingToken, Label, LockName, LogIndex, RequestId, ScopePrefix, SessionId, Tenure,
};
use crate::import::ImportRow;
use crate::mode::Item;
use crate::value::ValueChange;
use crate::wish::Need;

/// A command of the lock table.
///
/// The order of the variants is part of the stored encoding: new ones go to the end, and get a
/// new version in [`Command::version`].
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum Command {
    /// Sets the limits that apply from here on. They travel through the log, because a refusal is
    /// a replicated outcome: nodes with different settings would otherwise diverge.
    Configure {
        /// The limits.
        limits: Limits,
    },
    /// Opens a session.
    OpenSession {
        /// Its lease, milliseconds.
        ttl_ms: u64,
        /// Shown to people.
        label: Label,
        /// SHA-256 of the session's secret; the secret itself never reaches the log.
        secret_hash: [u8; 32],
    },
    /// Its client ends a session: every wait and hold of it, in this command.
    CloseSession {
        /// The session.
        session: SessionId,
    },
    /// The leader found a session's deadline passed.
    ExpireSession {
        /// The session.
        session: SessionId,
        /// The tenure in which the leader heard the session's renewals (DESIGN §5.2). Refused in
        /// an entry of any other tenure.
        tenure: Tenure,
    },
    /// Asks for locks.
    Acquire {
        /// Who asks.
        session: SessionId,
        /// Outcomes of the session's requests below this id are confirmed and dropped; what still
        /// waits or holds lives on. The session's mark is raised to it, never lowered, also when
        /// the command itself is refused. It is the session's own promise and is taken as it is,
        /// also beyond every id seen.
        done_below: RequestId,
        /// The request: the session's choice, in rising order. The same id with the same items,
        /// `need` and `wait` is the same request, however often it comes (I12).
        request: RequestId,
        /// The locks, 1 to [`NAMES_MAX`](crate::NAMES_MAX), each once. Their order means nothing.
        items: Vec<Item>,
        /// How many of them.
        need: Need,
        /// Queue if it cannot be granted at once; otherwise be denied.
        wait: bool,
    },
    /// Ends a request, whatever its state: a waiting one leaves, a held one is given back, one that
    /// was never seen is spent, so that a late `Acquire` of that id is refused. Works below the
    /// session's mark too, as long as the request waits or holds.
    Cancel {
        /// Whose request it is.
        session: SessionId,
        /// As in `Acquire`.
        done_below: RequestId,
        /// The request.
        request: RequestId,
    },
    /// Gives back a grant, or some of its locks. A release that comes twice or late changes
    /// nothing (I13).
    Release {
        /// Who holds it.
        session: SessionId,
        /// As in `Acquire`.
        done_below: RequestId,
        /// The grant.
        token: FencingToken,
        /// Only these of its locks; all that it holds if empty. If one of them is not held under
        /// the token, nothing is given back.
        locks: Vec<LockName>,
    },
    /// Changes the value of a lock that the session holds exclusively. A write that comes twice is
    /// done once (I12).
    SetValue {
        /// Who holds it.
        session: SessionId,
        /// As in `Acquire`.
        done_below: RequestId,
        /// The write's own id, out of the same rising numbers as those of `Acquire`.
        request: RequestId,
        /// The grant.
        token: FencingToken,
        /// The lock.
        lock: LockName,
        /// What to do to its value.
        change: ValueChange,
    },
    /// Ends a wait and nothing else: a request that waits leaves its queues; one that holds, or is
    /// over, stays as it is.
    ///
    /// What a server proposes when the time has passed that a unary call was to wait. That server
    /// cannot know whether the grant came first and was told to another call of the same request,
    /// whose client believes it (I6): only that client may give it back (I13).
    StopWaiting {
        /// Whose request it is.
        session: SessionId,
        /// The request.
        request: RequestId,
    },
    /// Brings in what one owner holds and waits for in another store, as a session of its own whose
    /// lease is what remains there (DESIGN §10, I25). What was brought in for that owner before
    /// and still runs is left as it is.
    Import {
        /// What that store calls the owner; the session's label.
        owner: Label,
        /// What remains of the owner's leases there, milliseconds: 1 to
        /// [`IMPORT_TTL_MAX_MS`](crate::IMPORT_TTL_MAX_MS). Nobody can renew it.
        ttl_ms: u64,
        /// 1 to [`IMPORT_ROWS_MAX`](crate::IMPORT_ROWS_MAX).
        rows: Vec<ImportRow>,
    },
    /// Takes over what was imported of one lock for an owner: its hold, under a new token, or its
    /// place in the queue. Refused if there is nothing of it.
    Claim {
        /// Who takes it over.
        session: SessionId,
        /// As in `Acquire`.
        done_below: RequestId,
        /// The request that holds or waits from then on, out of the same rising numbers as those
        /// of `Acquire`. A copy of it is answered like a retry of an `Acquire` for that lock
        /// alone.
        request: RequestId,
        /// The lock.
        lock: LockName,
        /// Whose it was, as `Import` said.
        owner: Label,
    },
    /// Makes the names that begin with a prefix a scope of their own, with an epoch of its own
    /// (DESIGN §10): suspended, with the cluster's epoch. A scope that is there stays as it is.
    SetScope {
        /// The prefix.
        scope: ScopePrefix,
    },
    /// Lets the names of a scope be names like all others again, and raises the cluster's epoch
    /// above the scope's, so that their tokens go on rising.
    RemoveScope {
        /// The scope.
        scope: ScopePrefix,
    },
    /// From here on nobody is granted anything in the scope: who asks waits, or is denied. Holders
    /// go on, and release, and expire as ever. Harmless if it was suspended before.
    Suspend {
        /// The scope.
        scope: ScopePrefix,
    },
    /// The leader has authority over the scope: who waits and can be granted is granted, in order.
    /// Harmless if it was not suspended.
    Resume {
        /// The scope.
        scope: ScopePrefix,
        /// The epoch that the authority is of; refused if it is not the scope's.
        epoch: u16,
    },
    /// The scope was served elsewhere in between: every hold of before is lost, and tokens go on in
    /// that epoch. Waiters keep their places. The scope is suspended until `Resume`.
    RaiseEpoch {
        /// The scope.
        scope: ScopePrefix,
        /// Above the scope's; at most [`SCOPE_EPOCH_MAX`](crate::SCOPE_EPOCH_MAX).
        epoch: u16,
    },
    /// Sets how many bytes the table may take, from here on. Before the first of these there is no such
    /// limit. A command of its own beside `Configure`, whose stored form all versions know.
    LimitTable {
        /// The limit, as the table counts itself ([`Counts::table_bytes`](crate::Counts::table_bytes)).
        max_bytes: u64,
    },
}

impl Command {
    /// The version of the stored encoding that first knew this command.
    ///
    /// A version is proposed only when every member knows it ([`VersionGate`](crate::VersionGate),
    /// I29).
    pub fn version(&self) -> u16 {
        match self {
            Self::Configure { .. }
            | Self::OpenSession { .. }
            | Self::CloseSession { .. }
            | Self::ExpireSession { .. }
            | Self::Acquire { .. }
            | Self::Cancel { .. }
            | Self::Release { .. }
            | Self::SetValue { .. }
            | Self::StopWaiting { .. } => COMMAND_VERSION_OLDEST,
            Self::Import { .. } | Self::Claim { .. } => 3,
            Self::SetScope { .. }
            | Self::RemoveScope { .. }
            | Self::Suspend { .. }
            | Self::Resume { .. }
            | Self::RaiseEpoch { .. } => 4,
            Self::LimitTable { .. } => 5,
        }
    }
}

/// The commands of one log entry, gathered by the leader while the last entry was on its way.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Batch {
    /// The leader's wall clock, Unix milliseconds. For people; decides nothing (I8).
    pub stamp_ms: u64,
    /// The state hash the leader had at an earlier index; a replica that had another one stops
    /// (I16).
    pub witness: Option<Witness>,
    /// In the order they are applied.
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
