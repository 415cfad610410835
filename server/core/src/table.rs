//! The lock table: only batches from the log change its state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use holdfast_mutants::mutant;

use crate::access::{Caller, Rules};
use crate::acquire::Asks;
use crate::answer::{Answer, Applied, Outcome};
use crate::chain::{Chain, ReplicaFault};
use crate::command::{Ask, Batch, COMMAND_VERSION_OLDEST, Command, Deed, Witness};
use crate::counters::Counters;
use crate::event::{EndCause, Event};
use crate::freeze::Freezes;
use crate::hold_bounds::ClosedLock;
use crate::ids::{Label, LockName, LogIndex, RequestId, SessionId, Tenure};
use crate::limits::Limits;
use crate::lock::Lock;
use crate::permits::KeptLimit;
use crate::quota::Usages;
use crate::restore::Restored;
use crate::scope::Scopes;
use crate::sequence::{Origin, Sequence};
use crate::session::{Opens, Session};
use crate::shards::{Shards, piece_by_piece};
use crate::terms::Terms;
use crate::value::{Value, Write};
use crate::work::Work;

/// Debug builds check a table with at most so many sessions, held locks and values after every
/// command; the check looks at everything, so larger tables would take too long.
#[cfg(debug_assertions)]
const CHECKED_UP_TO: u64 = 24;

/// All sessions, holds, queues and values, as of one log index.
///
/// The same batches make the same table on every replica, to the byte (I16).
///
/// # Invariants
///
/// [`LockTable::check`] states them as code, each with its number.
#[derive(Clone, Debug)]
pub struct LockTable {
    pub(crate) sessions: Shards<SessionId, Session>,
    pub(crate) values: Shards<LockName, Value>,
    /// The limits that were set for good.
    pub(crate) kept_limits: Shards<LockName, KeptLimit>,
    pub(crate) sequences: Shards<LockName, Sequence>,
    /// From where they count.
    pub(crate) numbers: Origin,
    /// The locks that nobody is granted since their last hold ended.
    pub(crate) closed_locks: Shards<LockName, ClosedLock>,
    /// How many they are. Follows from them; not stored.
    pub(crate) closed_count: usize,
    /// The names of the sequences, in order. Follows from them; not stored.
    pub(crate) sequence_names: BTreeSet<LockName>,
    /// Follows from the sessions' records and the values; not stored.
    pub(crate) locks: BTreeMap<LockName, Lock>,
    /// The locks with a queue. Follows from them; not stored.
    pub(crate) awaited: BTreeSet<LockName>,
    /// The session and request of each imported lock and owner, for as long as the import's session
    /// is open. Follows from the sessions' records; not stored.
    pub(crate) imports: BTreeMap<(LockName, Label), (SessionId, RequestId)>,
    pub(crate) counters: Counters,
    pub(crate) limits: Limits,
    /// How many bytes it may take, as [`Counts::table_bytes`] counts them; `None` before the first
    /// [`Command::LimitTable`].
    pub(crate) max_table_bytes: Option<u64>,
    pub(crate) scopes: Scopes,
    /// The limit of what one command does, and what commands have left.
    pub(crate) work: Work,
    /// What a restore has left to be done.
    pub(crate) restored: Restored,
    /// Shared with frozen tables until they change.
    pub(crate) rules: Arc<Rules>,
    /// Shared as the rules are.
    pub(crate) freezes: Arc<Freezes>,
    pub(crate) stamp_ms: u64,
    /// What has passed at its leaders since its first batch that says so, milliseconds (`rank.rs`).
    pub(crate) age_ms: u64,
    /// The highest version of commands that was ever applied.
    pub(crate) applied_version: u16,
    pub(crate) chain: Chain,
    /// Follows from the sessions and locks; not stored.
    pub(crate) counts: Counts,
    /// Follows from the sessions and values; not stored.
    pub(crate) usages: Usages,
}

/// How much is in the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Open sessions.
    pub sessions: u64,
    /// Held locks, whatever the number of their holders.
    pub held: u64,
    /// Waiting requests; one that waits for several locks counts once.
    pub waiting: u64,
    /// Locks that carry a value.
    pub values: u64,
    /// Bytes that values, limits for good, sequences and closed locks count towards [`Limits::max_value_bytes`].
    pub value_bytes: u64,
    /// Bytes that everything counts towards the limit of [`Command::LimitTable`]: an estimate,
    /// equal on all replicas, of the size of sessions, requests, values and what counts as one.
    pub table_bytes: u64,
}

impl Default for LockTable {
    fn default() -> Self {
        Self::new()
    }
}

impl LockTable {
    /// An empty table: what every replica of a new cluster starts from, with default limits.
    pub fn new() -> Self {
        Self::with_counters(Counters::default())
    }

    /// An empty table that gives out numbers above `counters`: for a cluster that follows another
    /// and must not repeat its tokens (I3). All replicas have to start from the same.
    pub fn with_counters(counters: Counters) -> Self {
        Self {
            sessions: Shards::new(),
            values: Shards::new(),
            kept_limits: Shards::new(),
            sequences: Shards::new(),
            numbers: Origin::default(),
            closed_locks: Shards::new(),
            closed_count: 0,
            sequence_names: BTreeSet::new(),
            locks: BTreeMap::new(),
            awaited: BTreeSet::new(),
            imports: BTreeMap::new(),
            counters,
            limits: Limits::default(),
            max_table_bytes: None,
            scopes: Scopes::default(),
            work: Work::new(),
            restored: Restored::default(),
            rules: Arc::default(),
            freezes: Arc::default(),
            stamp_ms: 0,
            age_ms: 0,
            applied_version: COMMAND_VERSION_OLDEST,
            chain: Chain::new(),
            counts: Counts::default(),
            usages: Usages::default(),
        }
    }

    /// Frees the table piece by piece, one with each step; each step returns how many entries it has
    /// freed.
    ///
    /// Freeing a large table takes a while, and the allocator serves other threads in between only
    /// if somebody pauses.
    pub fn dismantle(self) -> impl Iterator<Item = usize> + Send {
        let Self { sessions, values, kept_limits, sequences, closed_locks, .. } = self;
        let Self { locks, imports, usages, .. } = self;
        let stored = sessions.dismantle(Session::entries).chain(values.dismantle(|_| 1));
        let stored = stored.chain(kept_limits.dismantle(|_| 1)).chain(sequences.dismantle(|_| 1));
        let stored = stored.chain(closed_locks.dismantle(|_| 1));
        let follows = piece_by_piece(locks).chain(piece_by_piece(imports));
        stored.chain(follows).chain(std::iter::once_with(move || {
            drop(usages);
            1
        }))
    }

    /// Applies the log entry at `index`, proposed in `tenure`: each command in order, with one
    /// [`Applied`] for each pushed to `out`. Every batch that decodes gets an outcome (I28).
    ///
    /// # Errors
    ///
    /// [`ReplicaFault`]: this node has to stop. Nothing was applied and nothing pushed.
    pub fn apply_batch(
        &mut self,
        index: LogIndex,
        tenure: Tenure,
        batch: &Batch,
        out: &mut Vec<Applied>,
    ) -> Result<(), ReplicaFault> {
        self.chain.admit(index, batch)?;
        // A new leader's clock may lag the old one's: the stamp stands still rather than go back
        // (I8). It is for people, and decides nothing.
        let lowest_ms = if mutant!(StampGoesBack) { 0 } else { self.stamp_ms };
        self.stamp_ms = lowest_ms.max(batch.stamp_ms);
        self.applied_version = self.applied_version.max(batch.version());
        self.grow_older(batch.aged_ms);
        let before = out.len();
        self.work.begin_batch();
        for command in &batch.commands {
            let mut events = Vec::new();
            self.work.begin();
            let outcome = self.apply(tenure, command, &mut events);
            out.push(Applied { outcome, events });
            self.check_small();
        }
        self.chain.extend(index, tenure, batch, out.get(before..).unwrap_or_default());
        Ok(())
    }

    /// Notes an entry without a batch (blank, membership): it takes an index and does nothing.
    ///
    /// Every replica notes the same entries, and applies the same batches.
    pub fn note_index(&mut self, index: LogIndex) {
        self.chain.note(index);
    }

    /// Asks the rules first (I34): the leader asked before it proposed, and they may have changed since.
    ///
    /// A command that carries a confirmation (`done_below`) has it taken then: whatever the outcome,
    /// unless it was forbidden or the session is unknown.
    #[expect(clippy::too_many_lines, reason = "a table, one arm for each command")]
    fn apply(&mut self, tenure: Tenure, command: &Command, events: &mut Vec<Event>) -> Outcome {
        if !mutant!(ApplyAsksNoRules) {
            self.allows(command)?;
        }
        match *command {
            Command::Configure { limits } => self.configure(limits),
            Command::OpenSession { ttl_ms, ref label, secret_hash } => {
                self.open_for_nobody(ttl_ms, label, secret_hash, events)
            }
            Command::CloseSession { session } => {
                self.end_session(session, EndCause::Closed, events)
            }
            Command::ExpireSession { session, tenure: heard_in } => {
                self.expire_session(session, heard_in, tenure, events)
            }
            Command::Acquire { session, done_below, request, ref items, need, wait } => {
                self.confirm(session, done_below)?;
                let terms = &Terms::default();
                let asks = &Asks { items, need, wait, terms, knows_floors: false };
                self.acquire((session, request), asks, events)
            }
            Command::AcquireOn(ref ask) => self.ask(ask, events),
            Command::Cancel { session, done_below, request } => {
                self.confirm(session, done_below)?;
                self.cancel(session, request, events)
            }
            Command::StopWaiting { session, request } => {
                self.stop_waiting(session, request, events)
            }
            Command::Release { session, done_below, token, ref locks }
            | Command::ReleaseLost { session, done_below, token, ref locks } => {
                let is_lost = matches!(command, Command::ReleaseLost { .. });
                self.confirm(session, done_below)?;
                self.release(session, token, locks, is_lost, events)
            }
            Command::SetValue { session, done_below, request, token, ref lock, ref change } => {
                self.confirm(session, done_below)?;
                self.set_value(&Write { session, request, token, lock, change }, events)
            }
            Command::Import { ref owner, ttl_ms, ref rows } => {
                self.import(owner, ttl_ms, rows, events)
            }
            Command::Claim { session, done_below, request, ref lock, ref owner } => {
                self.confirm(session, done_below)?;
                self.claim((session, request), lock, owner, events)
            }
            Command::SetScope { ref scope } => self.set_scope(scope, events),
            Command::RemoveScope { ref scope } => self.remove_scope(scope, events),
            Command::Suspend { ref scope } => self.suspend(scope, events),
            Command::Resume { ref scope, epoch } => self.resume(scope, epoch, events),
            Command::RaiseEpoch { ref scope, epoch } => self.raise_epoch(scope, epoch, events),
            Command::LimitTable { max_bytes } => self.limit_table(max_bytes),
            Command::By { ref caller, ref deed } => self.do_for(caller, deed, events),
            Command::EndClosed { session, token, tenure: heard_in } => {
                self.end_closed((session, token), (heard_in, tenure), events)
            }
            Command::LimitWork { steps } => self.limit_work(steps),
            Command::CarryOn => Ok(self.carry_on(events)),
            Command::GrantAgain => Ok(self.grant_again(events)),
            Command::BeginTokens { epoch, counter } => self.begin_tokens(epoch, counter),
            Command::EndLongHold { session, token } => self.end_long_hold(session, token, events),
            Command::OpenLock { ref lock, token } => self.open_lock(lock, token, events),
        }
    }

    fn ask(&mut self, ask: &Ask, events: &mut Vec<Event>) -> Outcome {
        let Ask { session, done_below, request, ref items, need, wait, ref terms } = *ask;
        self.confirm(session, done_below)?;
        let asks = &Asks { items, need, wait, terms, knows_floors: true };
        self.acquire((session, request), asks, events)
    }

    fn open_for_nobody(
        &mut self,
        ttl_ms: u64,
        label: &Label,
        secret_hash: [u8; 32],
        events: &mut Vec<Event>,
    ) -> Outcome {
        let caller = &Caller::default();
        let opens = Opens { caller, ttl_ms, label, secret_hash, knows_closed: false };
        self.open_session(&opens, events)
    }

    fn do_for(&mut self, caller: &Caller, deed: &Deed, events: &mut Vec<Event>) -> Outcome {
        match *deed {
            Deed::OpenSession { ttl_ms, ref label, secret_hash, knows_closed } => {
                let opens = Opens { caller, ttl_ms, label, secret_hash, knows_closed };
                self.open_session(&opens, events)
            }
            Deed::Import { ref owner, ttl_ms, ref rows } => {
                self.import(owner, ttl_ms, rows, events)
            }
            Deed::SetScope { ref scope } => self.set_scope(scope, events),
            Deed::RemoveScope { ref scope } => self.remove_scope(scope, events),
            Deed::Rule { ref change } => self.change_rules(caller, change, events),
            Deed::EndSession { session, ref reason, now } => {
                self.end_from_outside(session, reason, now, events)
            }
            Deed::CutOff { ref identity, ref reason, now } => {
                self.cut_off(caller, (identity, reason, now), events)
            }
            Deed::CloseHolds { ref lock, token, ref reason, now } => {
                self.close_holds((lock, token), reason, now, events)
            }
            Deed::OwnSession { session } => self.own_session(caller, session),
            Deed::SetLimit { ref lock, limit } => self.set_limit(caller, (lock, limit), events),
            Deed::Freeze { ref prefix, ref message } => {
                self.freeze_names(caller, (prefix, message), events)
            }
            Deed::Thaw { ref prefix } => self.thaw(prefix, events),
            Deed::Advance { ref sequence, by } => self.advance(caller, sequence, by),
            Deed::BeginSequence { ref sequence, at } => self.begin_sequence(caller, sequence, at),
            Deed::LengthenImports { ref owner, ttl_ms, ref locks } => {
                self.lengthen_imports(owner, ttl_ms, locks, events)
            }
        }
    }

    /// Sets the limits for later commands; nothing that exists ends.
    fn configure(&mut self, limits: Limits) -> Outcome {
        limits.check()?;
        self.limits = limits;
        Ok(Answer::Configured)
    }

    #[cfg(debug_assertions)]
    fn check_small(&self) {
        let Counts { sessions, held, values, .. } = self.counts;
        if sessions + held + values <= CHECKED_UP_TO {
            debug_assert_eq!(self.check(), Ok(()));
        }
    }

    #[cfg(not(debug_assertions))]
    #[expect(clippy::unused_self, reason = "the debug build looks at the table")]
    fn check_small(&self) {}

    /// The rolling hash over everything applied (I16).
    pub fn state_hash(&self) -> [u8; 32] {
        self.chain.hash()
    }

    /// The newest hash at an index divisible by [`WITNESS_EVERY`](crate::WITNESS_EVERY), for a
    /// leader to put into its batches. `None` before the first such index.
    pub fn latest_witness(&self) -> Option<Witness> {
        self.chain.latest_witness()
    }

    /// The last entry applied or noted; 0 before the first.
    pub fn applied_index(&self) -> LogIndex {
        self.chain.index()
    }
}
