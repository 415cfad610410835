//! The lock table of Holdfast: a deterministic state machine. Commands in, events out.
//!
//! Every replica applies the same batches in the same order and reaches the same state, to the
//! byte. So nothing here reads a clock, draws a random number, does I/O, waits, or iterates a hash
//! map. A session expires by a command: the leader keeps the deadlines in a [`LeaseTable`], to
//! which its caller passes the time as a number, and proposes the expiry.
//!
//! ```
//! use holdfast_core::{
//!     Batch, Command, Item, Label, LockName, LockTable, LogIndex, Need, RequestId, SessionId,
//!     Tenure,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let session = SessionId::new(1);
//! let acquire = |request| Command::Acquire {
//!     session,
//!     done_below: RequestId::new(0),
//!     request: RequestId::new(request),
//!     items: vec![Item::exclusive(LockName::parse("orders/42").unwrap())],
//!     need: Need::All,
//!     wait: true,
//! };
//! let open = Command::OpenSession {
//!     ttl_ms: 10_000,
//!     label: Label::parse("worker-7")?,
//!     secret_hash: [0; 32],
//! };
//! let commands = vec![open, acquire(1), acquire(2)];
//! let batch = Batch { commands, ..Batch::default() };
//!
//! let mut table = LockTable::new();
//! let mut applied = Vec::new();
//! table.apply_batch(LogIndex::new(1), Tenure::new(1), &batch, &mut applied)?;
//!
//! // The first request holds; the second waits, though it is of the same session.
//! assert_eq!(table.counts().held, 1);
//! assert_eq!(table.counts().waiting, 1);
//! # Ok(())
//! # }
//! ```
//!
//! # Invariants
//!
//! [`LockTable::check`] is this list as code. The numbers are those of DESIGN §12.
//!
//! - The holders of a lock fit together: one, or readers, or as many permits as its limit (I2). Two requests of one session
//!   exclude each other like any others.
//! - Fencing tokens never repeat; they rise for every name over the life of the cluster, and over
//!   all grants of one scope. Over grants of several scopes they do not: each has its own epoch
//!   (I3).
//! - A grant goes to the smallest rank of the queue (`rank.rs`), in the command that made room (I9, I15), and
//!   only to a session that is open at that command (I5). A set is granted whole (I14). A suspended
//!   scope grants nothing; its waiters that can be granted are granted when it is resumed. Where a
//!   command could make more grants than its limit allows, later commands make the rest, in the same
//!   order (`work.rs`).
//! - A waiter leaves its queues by its grant, its own cancel, its session's end, or a limit set below what it wants (I10).
//! - After a session's end the table keeps nothing of it (I11).
//! - One request id has at most one place or hold; a retry receives the same token (I12).
//! - Only the holder's session and token, or its own cancel, ends a hold; a second copy of a
//!   release changes nothing (I13).
//! - A session or hold that was ended from outside keeps its locks until its own client has given them
//!   up, or the leader's deadline for it has passed (I35).
//! - What needs a right is done only if the rules grant it at the command's own place in the log
//!   (I34).
//! - `stamp_ms` never decreases, and decides nothing (I8).
//! - A sequence gives out no number twice (`sequence.rs`).
//! - A lock is in the table only while it is held, waited for, closed, or carries a value (I33).
//! - Only the exclusive holder changes a value; the loss of such a holder makes it suspect.
//! - Every batch that decodes gets an outcome: nothing overflows, nothing panics (I28).
//!
//! # Known limits
//!
//! - The end of one session looks at all of its requests, up to
//!   [`Limits::max_requests_per_session`], with each of its parts.
//! - All epochs share one counter: once its 2⁴⁸ tokens are used up, the table grants nothing any
//!   more. Waiters keep their places.

mod access;
mod acquire;
mod answer;
mod backup;
mod blocks;
mod chain;
mod check;
mod command;
mod contention;
mod counters;
mod cut_off;
mod ending;
mod event;
mod freeze;
mod gate;
mod hold_bounds;
mod hold_times;
mod holders;
mod ids;
mod import;
mod lease;
mod limits;
mod lock;
mod lock_set;
mod owner;
mod pass_on;
mod permits;
mod queue;
mod quota;
mod rank;
mod rejection;
mod release;
mod restore;
mod scope;
mod scope_check;
mod sequence;
mod session;
mod shards;
mod size;
mod snapshot;
mod table;
mod terms;
mod value;
mod view;
mod work;

pub use access::{
    ACCESS_NAME_BYTES_MAX, AccessName, AccessNameError, Caller, IDENTITIES_MAX, IDENTITY_BYTES_MAX,
    Identity, Missing, NamePrefix, QUOTAS_MAX, RIGHTS_MAX, ROLES_MAX, ROLES_OF_ONE_MAX, Right,
    RuleChange, Rules, RulesError, TOKENS_MAX, Token, Verb,
};
pub use answer::{Acquired, Answer, Applied, Grant, Outcome, Was};
pub use backup::{BACKUP_VERSION, Backup, BackupError, BackupHeader, BackupOrigin};
pub use chain::{ReplicaFault, WITNESS_EVERY};
pub use check::Violation;
pub use command::{
    Ask, Batch, COMMAND_VERSION, COMMAND_VERSION_OLDEST, Command, DecodeError, Deed, TERMS_SINCE,
    Witness,
};
pub use contention::Contention;
pub use counters::Counters;
pub use event::{EndCause, Event, LossCause};
pub use freeze::{FREEZES_MAX, Freeze};
pub use gate::{GateClosed, VersionGate};
pub use hold_bounds::{BoundHold, ClosedLock, HOLD_BOUND_MAX_MS, MAX_HOLD_REASON};
pub use hold_times::{HoldDue, HoldTimes};
pub use holdfast_types::{IMPORT_ROWS_MAX, NAMES_MAX, VALUE_BYTES_MAX};
pub use ids::{
    FencingToken, LABEL_BYTES_MAX, Label, LockName, LogIndex, NAME_BYTES_MAX, RequestId,
    SCOPE_BYTES_MAX, ScopePrefix, SessionId, Tenure, TextError, Ticket,
};
pub use import::{Fate, Has, IMPORT_TTL_MAX_MS, ImportRow};
pub use lease::{LeaseTable, NotRenewed};
pub use limits::{Limits, TTL_CEILING_MS};
pub use lock_set::{Item, Items, Mode, Need};
pub use quota::{Quantity, Quota, Usage};
pub use rank::HEAD_START_MAX_MS;
pub use rejection::Rejection;
pub use restore::{RESTORED_INDEX, RestoreError, RestorePlan, tokens_begin_at};
pub use scope::{SCOPE_EPOCH_MAX, SCOPES_MAX, ScopeState};
pub use sequence::SEQUENCE_BY_MAX;
pub use size::{IMPORT_BYTES, PLACE_BYTES, REQUEST_BYTES, SESSION_BYTES};
pub use snapshot::{Frozen, SNAPSHOT_VERSION, SnapshotError};
pub use table::{Counts, LockTable};
pub use terms::{TERMS_BYTES, Terms};
pub use value::{VALUE_OVERHEAD_BYTES, Value, ValueChange};
pub use view::{
    HolderView, LEASE_PARTS, LeaseView, LimitView, LockView, RequestState, RequestView, ScopeView,
    SessionView, WaiterView,
};
pub use work::WORK_STEPS;
