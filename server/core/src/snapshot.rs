//! The table as bytes: frozen in microseconds, written by another thread, and checked in full when
//! read.
//!
//! A snapshot stores the sessions with their requests, the values of locks, their limits for good, the sequences, the scopes, the freezes, the
//! counters, limits, stamp and state hash, and what commands have left for later ones. Holders and
//! queues follow from the requests, so they are not stored and cannot contradict them.
//!
//! `"HOLDFAST" ‖ version:u16 ‖ blocks`: all numbers are little-endian; the blocks' bytes, joined,
//! are one borsh stream. There is one way to write a table: export → import → export gives the same
//! bytes (I17).

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::sync::Arc;

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_mutants::mutant;

use crate::LockTable;
use crate::access::{Identity, Rules};
use crate::answer::Grant;
use crate::blocks::{BlockReader, BlockWriter, damaged};
use crate::chain::Chain;
use crate::check::Violation;
use crate::counters::Counters;
use crate::freeze::Freezes;
use crate::hold_bounds::ClosedLock;
use crate::holders::Holder;
use crate::ids::{LockName, LogIndex, RequestId, ScopePrefix, SessionId};
use crate::limits::Limits;
use crate::lock_set::{LockSet, Part};
use crate::permits::KeptLimit;
use crate::queue::Waiter;
use crate::quota::Load;
use crate::rank::Rank;
use crate::restore::Restored;
use crate::scope::{ScopeState, Scopes};
use crate::sequence::{Origin, Sequence};
use crate::session::{Record, Session, State};
use crate::shards::{Sharded, Shards};
use crate::terms::{Said, Terms};
use crate::value::Value;
use crate::work::{Pending, Work};

/// The highest version this build reads. It writes the lowest that has room for the table: a member
/// that does not know the commands for what is in it does not know its version either, and may need
/// the snapshot.
pub const SNAPSHOT_VERSION: u16 = 9;
/// The lowest version this build reads: the first that was released.
const SNAPSHOT_VERSION_OLDEST: u16 = 2;
/// The first version with a flag for imported sessions, and with the highest applied command
/// version.
const SAYS_IMPORTED: u16 = 3;
/// The first version with scopes.
const HAS_SCOPES: u16 = 4;
/// The first version with the limit of the table's bytes.
const SAYS_MAX_BYTES: u16 = 5;
/// The first version with rules, with the caller of each session and what is ending of it, and with the
/// owner of each value.
const HAS_RULES: u16 = 6;
/// The first version with the limit of work and what commands have left.
const HAS_WORK: u16 = 7;
/// The first version with what a restore has left.
const HAS_RESTORED: u16 = 8;
/// The first version with requests for permits, with limits for good, with sequences, with closed locks, with the terms of requests, with freezes, and
/// with the age of the table.
const HAS_PERMITS: u16 = 9;

const MAGIC: [u8; 8] = *b"HOLDFAST";

/// Why bytes were not read as a snapshot. Nothing was built from them.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The bytes are something else altogether.
    #[error("not a snapshot of a lock table")]
    NotASnapshot,
    /// A newer build wrote it. This build never guesses at it.
    #[error("a snapshot of version {found}; this build reads versions up to {known}")]
    UnknownVersion {
        /// The version it carries.
        found: u16,
        /// [`SNAPSHOT_VERSION`].
        known: u16,
    },
    /// A build from before the first release wrote it, in a form this build does not know.
    #[error(
        "a snapshot of version {found}, written by a version before the first release; this \
         build reads versions from {oldest} on"
    )]
    OldVersion {
        /// The version it carries.
        found: u16,
        /// The lowest this build reads.
        oldest: u16,
    },
    /// The bytes end too early.
    #[error("the snapshot is cut off")]
    CutOff,
    /// Its bytes are not those that were written.
    #[error("the snapshot is damaged: {reason}")]
    Damaged {
        /// What is wrong, for people.
        reason: String,
    },
    /// The bytes are intact, but no table wrote them: an invariant does not hold.
    #[error("the snapshot contradicts itself: {0}")]
    Inconsistent(#[source] Violation),
    /// Reading failed.
    #[error("the snapshot cannot be read: {0}")]
    Io(#[source] io::Error),
}

impl From<io::Error> for SnapshotError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::CutOff,
            io::ErrorKind::InvalidData => Self::Damaged { reason: error.to_string() },
            _ => Self::Io(error),
        }
    }
}

/// The table as it was at one index, shared with it until it is written to.
///
/// `Send`, and cheap to clone: another thread writes the bytes while the table goes on. Dropping it
/// frees what the table has replaced since, at once; [`dismantle`](Self::dismantle) in pieces.
#[derive(Clone, Debug)]
pub struct Frozen {
    header: Header,
    applied_version: u16,
    max_table_bytes: Option<u64>,
    scopes: Vec<(ScopePrefix, ScopeState)>,
    rules: Arc<Rules>,
    work_limit: Option<u64>,
    pending: Arc<Pending>,
    restored: Restored,
    age_ms: u64,
    freezes: Arc<Freezes>,
    numbers: Origin,
    sessions: Shards<SessionId, Session>,
    values: Shards<LockName, Value>,
    kept_limits: Shards<LockName, KeptLimit>,
    sequences: Shards<LockName, Sequence>,
    closed_locks: Shards<LockName, ClosedLock>,
}

#[derive(Clone, Debug, BorshSerialize, BorshDeserialize)]
struct Header {
    counters: Counters,
    limits: Limits,
    stamp_ms: u64,
    chain: Chain,
    sessions: u64,
    values: u64,
}

impl LockTable {
    /// The table as it is now, for a snapshot. Costs 4,096 reference counts, whatever the table's
    /// size.
    pub fn freeze(&self) -> Frozen {
        let header = Header {
            counters: self.counters,
            limits: self.limits,
            stamp_ms: self.stamp_ms,
            chain: self.chain.clone(),
            sessions: self.counts.sessions,
            values: self.counts.values,
        };
        let (applied_version, max_table_bytes) = (self.applied_version, self.max_table_bytes);
        let scopes = self.scopes.iter().map(|(scope, state)| (scope.clone(), state)).collect();
        let rules = Arc::clone(&self.rules);
        let (work_limit, pending) = self.work.stored();
        let restored = self.restored.clone();
        let (sessions, values) = (self.sessions.clone(), self.values.clone());
        let (kept_limits, sequences) = (self.kept_limits.clone(), self.sequences.clone());
        let closed_locks = self.closed_locks.clone();
        Frozen {
            header,
            applied_version,
            max_table_bytes,
            scopes,
            rules,
            work_limit,
            pending,
            restored,
            age_ms: self.age_ms,
            freezes: Arc::clone(&self.freezes),
            numbers: self.numbers,
            sessions,
            values,
            kept_limits,
            sequences,
            closed_locks,
        }
    }

    /// Reads what [`Frozen::write_to`] wrote, to the end of `input`, and checks every invariant.
    ///
    /// Allocates no more than a small multiple of what was read, whatever lengths the bytes claim.
    ///
    /// # Errors
    ///
    /// [`SnapshotError`]; nothing was built.
    pub fn read_from(input: &mut impl Read) -> Result<Self, SnapshotError> {
        let version = check_front(input)?;
        let mut blocks = BlockReader::new(input);
        let read = Self::read_content(&mut blocks, version);
        // borsh calls every early end "invalid data"; only the block reader knows whether the input
        // was cut off.
        if read.is_err() && blocks.is_cut_off() {
            return Err(SnapshotError::CutOff);
        }
        let table = read?;
        table.check().map_err(SnapshotError::Inconsistent)?;
        Ok(table)
    }

    fn read_content(
        blocks: &mut BlockReader<'_, impl Read>,
        version: u16,
    ) -> Result<Self, SnapshotError> {
        let header = Header::deserialize_reader(blocks)?;
        let mut table = Self::with_counters(header.counters);
        table.limits = header.limits;
        table.stamp_ms = header.stamp_ms;
        table.chain = header.chain;
        if version >= SAYS_IMPORTED {
            table.applied_version = u16::deserialize_reader(blocks)?;
        }
        if version >= HAS_SCOPES {
            table.scopes = read_scopes(blocks)?;
        }
        match version {
            HAS_RULES.. => {
                if table.applied_version < version {
                    return Err(damaged("it has room for more than there can be").into());
                }
                table.max_table_bytes = Option::deserialize_reader(blocks)?;
                table.rules = read_rules(blocks)?;
                if version >= HAS_WORK {
                    let (limit, pending) = BorshDeserialize::deserialize_reader(blocks)?;
                    table.work = Work::restored(limit, pending);
                }
                table.restored = read_from(HAS_RESTORED, version, blocks)?;
                if version >= HAS_PERMITS {
                    table.age_ms = u64::deserialize_reader(blocks)?;
                    table.freezes = Arc::new(BorshDeserialize::deserialize_reader(blocks)?);
                    let pending = table.work.pending_mut();
                    pending.thaws = BorshDeserialize::deserialize_reader(blocks)?;
                    pending.ends_now = BorshDeserialize::deserialize_reader(blocks)?;
                    table.numbers = Origin::deserialize_reader(blocks)?;
                }
            }
            SAYS_MAX_BYTES => table.max_table_bytes = Some(u64::deserialize_reader(blocks)?),
            _ => {}
        }
        let mut last = None;
        let mut waits = Vec::new();
        for _ in 0..header.sessions {
            let id = SessionId::deserialize_reader(blocks)?;
            let session = Session::read(blocks, version)?;
            let place = (id.shard(), id);
            if last.is_some_and(|last| last >= place) {
                return Err(damaged(format!("session {id} is out of order")).into());
            }
            last = Some(place);
            table.restore(id, session, &mut waits)?;
        }
        table.read_values(blocks, (header.values, version))?;
        if version >= HAS_PERMITS {
            table.read_limits(blocks)?;
            table.read_sequences(blocks)?;
            table.read_closed(blocks)?;
        }
        blocks.finish()?;
        table.restore_queues(waits)?;
        if mutant!(SnapshotForgetsTokens) {
            table.counters.token = table.counters.token.saturating_sub(1);
        }
        Ok(table)
    }

    /// Adds a session with its holds. Collects its waits in `waits`: queues are filled in the order
    /// of tickets, over all sessions.
    fn restore(
        &mut self,
        id: SessionId,
        mut session: Session,
        waits: &mut Vec<Wait>,
    ) -> Result<(), SnapshotError> {
        if mutant!(DedupeLostInSnapshot) {
            session.records.retain(|_, record| record.is_live());
        }
        if mutant!(SnapshotWithoutQueue) {
            session.records.retain(|_, record| record.held().is_some() || !record.is_live());
        }
        for (&request, record) in &mut session.records {
            let Record::Asked { lock_set, state } = record else { continue };
            match *state {
                State::Held { token, part, .. } => {
                    self.restore_hold(Grant { session: id, request, token }, lock_set, part)?;
                    session.holds.insert(token, request);
                }
                State::Waiting { rank, .. } => {
                    for (name, _) in lock_set.iter() {
                        self.lock_or_new(name);
                    }
                    lock_set.share_names(|name| self.kept_name(name));
                    waits.push(Wait { rank, session: id, request, lock_set: lock_set.clone() });
                }
                State::Denied(_) | State::Ended => {}
            }
        }
        self.restore_imports(id, &session)?;
        session.bytes = session.recount();
        session.load = session.recount_load();
        session.caller.identity = self.usages.kept(session.caller.identity);
        self.put_session(id, session);
        Ok(())
    }

    fn restore_imports(&mut self, id: SessionId, session: &Session) -> Result<(), SnapshotError> {
        for (lock, request) in session.imports() {
            let name = self.kept_name(lock).unwrap_or_else(|| lock.clone());
            let key = (name, session.label.clone());
            if self.imports.insert(key, (id, request)).is_some() {
                let what = format!("{lock} was imported twice for {}", session.label.as_str());
                return Err(inconsistent("I25", what));
            }
        }
        Ok(())
    }

    fn restore_hold(
        &mut self,
        grant: Grant,
        lock_set: &mut LockSet,
        part: Part,
    ) -> Result<(), SnapshotError> {
        for (name, mode) in lock_set.iter_part(part) {
            let lock = self.lock_or_new(name);
            lock.note_comer(mode);
            let was_free = lock.holders.is_empty();
            if !lock.holders.insert(Holder { grant, mode }) {
                let what = format!("{name} cannot be held by {grant:?} besides those who hold it");
                return Err(inconsistent("I2", what));
            }
            if was_free {
                self.counts.held += 1;
            }
        }
        lock_set.share_names(|name| self.kept_name(name));
        Ok(())
    }

    fn restore_queues(&mut self, mut waits: Vec<Wait>) -> Result<(), SnapshotError> {
        waits.sort_unstable_by_key(|wait| wait.rank);
        for Wait { rank, session, request, lock_set } in waits {
            let found = self.sessions.get(&session);
            let head_start_ms = found.map_or(0, |found| found.said.head_start_ms(request));
            for (name, mode) in lock_set.iter() {
                let waiter = Waiter { session, request, mode, head_start_ms };
                if !self.put_waiter(name, rank, waiter) {
                    return Err(inconsistent("I9", format!("two wait with {rank:?}")));
                }
            }
            self.counts.waiting += 1;
        }
        Ok(())
    }

    fn read_values(
        &mut self,
        blocks: &mut BlockReader<'_, impl Read>,
        (count, version): (u64, u16),
    ) -> Result<(), SnapshotError> {
        let mut last = None;
        for _ in 0..count {
            let name = LockName::deserialize_reader(blocks)?;
            let read = Value::deserialize_reader(blocks)?;
            let owner: Option<Identity> = read_from(HAS_RULES, version, blocks)?;
            let value = Value { owner: owner.map(|owner| self.usages.kept(owner)), ..read };
            let place = Some((name.shard(), name.clone()));
            if last >= place {
                return Err(damaged(format!("the value of {name} is out of order")).into());
            }
            last = place;
            if !mutant!(SnapshotWithoutValues) {
                self.keep_value(&name, Some(value));
            }
        }
        Ok(())
    }

    fn read_limits(&mut self, input: &mut impl Read) -> Result<(), SnapshotError> {
        self.read_kept(input, "limit of", |table, name, read: KeptLimit| {
            let owner = table.usages.kept(read.owner.clone());
            if !mutant!(SnapshotWithoutLimits) {
                table.keep_limit(name, KeptLimit { owner, ..read });
            }
        })
    }

    fn read_sequences(&mut self, input: &mut impl Read) -> Result<(), SnapshotError> {
        self.read_kept(input, "sequence", |table, name, read: Sequence| {
            let owner = table.usages.kept(read.owner);
            if !mutant!(SnapshotWithoutSequences) {
                table.keep_sequence(name, Sequence { owner, last: read.last });
            }
        })
    }

    fn read_closed(&mut self, input: &mut impl Read) -> Result<(), SnapshotError> {
        self.read_kept(input, "closed lock", |table, name, read: ClosedLock| {
            let identity = table.usages.kept(read.identity.clone());
            if !mutant!(SnapshotWithoutClosed) {
                table.keep_closed(name, ClosedLock { identity, ..read });
            }
        })
    }

    /// Reads what [`write_all`] wrote, whose names have to rise; `what` they name, for errors.
    fn read_kept<V: BorshDeserialize>(
        &mut self,
        input: &mut impl Read,
        what: &str,
        keep: impl Fn(&mut Self, &LockName, V),
    ) -> Result<(), SnapshotError> {
        let mut last = None;
        for _ in 0..u64::deserialize_reader(input)? {
            let name = LockName::deserialize_reader(input)?;
            let read = V::deserialize_reader(input)?;
            let place = Some((name.shard(), name.clone()));
            if last >= place {
                return Err(damaged(format!("the {what} {name} is out of order")).into());
            }
            last = place;
            keep(self, &name, read);
        }
        Ok(())
    }
}

/// A wait that was read, to be put into its queues.
struct Wait {
    rank: Rank,
    session: SessionId,
    request: RequestId,
    lock_set: LockSet,
}

fn inconsistent(invariant: &'static str, what: String) -> SnapshotError {
    SnapshotError::Inconsistent(Violation { invariant, what })
}

impl Session {
    /// Reads what its derived `BorshSerialize` wrote; `holds` and `bytes` follow from the records.
    fn read(input: &mut impl Read, version: u16) -> io::Result<Self> {
        let mut session = Self {
            imported: version >= SAYS_IMPORTED && bool::deserialize_reader(input)?,
            ttl_ms: BorshDeserialize::deserialize_reader(input)?,
            label: BorshDeserialize::deserialize_reader(input)?,
            secret_hash: BorshDeserialize::deserialize_reader(input)?,
            opened_ms: BorshDeserialize::deserialize_reader(input)?,
            done_below: BorshDeserialize::deserialize_reader(input)?,
            records: read_records(input)?,
            caller: read_from(HAS_RULES, version, input)?,
            cut: read_from(HAS_RULES, version, input)?,
            holds: BTreeMap::new(),
            bytes: 0,
            load: Load::default(),
            said: Said::default(),
        };
        let beside: Vec<Beside> = read_from(HAS_PERMITS, version, input)?;
        if !mutant!(SnapshotWithoutTerms) {
            session.take_beside(&beside)?;
        }
        Ok(session)
    }

    /// What older versions do not know of its requests.
    fn beside(&self) -> Vec<Beside> {
        let beside = |(&request, record): (&RequestId, &Record)| {
            let at_ms = match record {
                Record::Asked { state: State::Waiting { rank, .. }, .. } => rank.at_ms,
                Record::Asked { .. } | Record::Wrote { .. } | Record::Spent => 0,
            };
            let terms = self.said.get(request).cloned();
            (at_ms > 0 || terms.is_some()).then_some(Beside { request, at_ms, terms })
        };
        self.records.iter().filter_map(beside).collect()
    }

    /// Adds to its requests what older versions do not know. Takes only what [`Session::beside`] gives.
    fn take_beside(&mut self, all: &[Beside]) -> io::Result<()> {
        for Beside { request, at_ms, terms } in all {
            let Some(record) = self.records.get_mut(request) else { continue };
            if let Record::Asked { state: State::Waiting { rank, .. }, .. } = record {
                rank.at_ms = *at_ms;
            }
            if let (Record::Asked { .. }, Some(terms)) = (&*record, terms) {
                self.said.put(*request, terms.clone());
                self.said.begins(*request, record);
            }
        }
        if self.beside() == all {
            Ok(())
        } else {
            Err(damaged("what requests say is not as a table writes it"))
        }
    }
}

/// What a request says besides its locks, and the part of its rank that is not its ticket.
#[derive(PartialEq, BorshSerialize, BorshDeserialize)]
struct Beside {
    request: RequestId,
    at_ms: u64,
    terms: Option<Terms>,
}

/// Reads what snapshots have from the version `first` on.
fn read_from<T: BorshDeserialize + Default>(
    first: u16,
    version: u16,
    input: &mut impl Read,
) -> io::Result<T> {
    if version < first {
        return Ok(T::default());
    }
    T::deserialize_reader(input)
}

/// Reads a borsh map, whose keys have to rise: a table would not write another order again.
fn read_records(input: &mut impl Read) -> io::Result<BTreeMap<RequestId, Record>> {
    let mut records = BTreeMap::new();
    for _ in 0..u32::deserialize_reader(input)? {
        let request = RequestId::deserialize_reader(input)?;
        if records.last_key_value().is_some_and(|(&last, _)| last >= request) {
            return Err(damaged(format!("request {request} is out of order")));
        }
        records.insert(request, Record::deserialize_reader(input)?);
    }
    Ok(records)
}

/// Reads the rules.
fn read_rules(input: &mut impl Read) -> Result<Arc<Rules>, SnapshotError> {
    let mut rules = Rules::deserialize_reader(input)?;
    rules.restore().map_err(SnapshotError::Inconsistent)?;
    Ok(Arc::new(rules))
}

/// Reads scopes in rising order. The check of the whole table covers their number and overlaps.
fn read_scopes(input: &mut impl Read) -> io::Result<Scopes> {
    let mut scopes = Scopes::default();
    for _ in 0..u32::deserialize_reader(input)? {
        let scope = ScopePrefix::deserialize_reader(input)?;
        if scopes.iter().last().is_some_and(|(last, _)| *last >= scope) {
            return Err(damaged(format!("the scope {scope} is out of order")));
        }
        scopes.put(scope, ScopeState::deserialize_reader(input)?);
    }
    Ok(scopes)
}

impl Frozen {
    /// Frees it piece by piece, as [`LockTable::dismantle`]: what the table has replaced since.
    pub fn dismantle(self) -> impl Iterator<Item = usize> + Send {
        self.sessions
            .dismantle(Session::entries)
            .chain(self.values.dismantle(|_| 1))
            .chain(self.kept_limits.dismantle(|_| 1))
            .chain(self.sequences.dismantle(|_| 1))
            .chain(self.closed_locks.dismantle(|_| 1))
    }

    /// The last entry that is in it.
    pub fn applied_index(&self) -> LogIndex {
        self.header.chain.index()
    }

    /// The rolling hash after that entry (I16).
    pub fn state_hash(&self) -> [u8; 32] {
        self.header.chain.hash()
    }

    /// The largest stamp of a batch so far, Unix milliseconds.
    pub fn stamp_ms(&self) -> u64 {
        self.header.stamp_ms
    }

    /// The last numbers that were given out.
    pub(crate) fn counters(&self) -> Counters {
        self.header.counters
    }

    pub(crate) fn scopes(&self) -> impl Iterator<Item = &(ScopePrefix, ScopeState)> {
        self.scopes.iter()
    }

    /// How many sessions are open, and how many locks carry a value.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.header.sessions, self.header.values)
    }

    /// As [`LockTable::largest_ttl_ms`].
    pub(crate) fn largest_ttl_ms(&self) -> u64 {
        let sessions = self.sessions.iter().map(|(_, session)| session.ttl_ms);
        let waits_ms = self.restored.wait_ms().unwrap_or(0);
        sessions.fold(self.header.limits.ttl_max_ms.max(waits_ms), u64::max)
    }

    /// The lowest version that has room for it.
    fn version(&self) -> u16 {
        // Callers and rules come by commands of the version of the same number, and so do work that is
        // left and what a restore has left.
        match self.max_table_bytes {
            _ if self.applied_version >= HAS_PERMITS => HAS_PERMITS,
            _ if self.applied_version >= HAS_RESTORED => HAS_RESTORED,
            _ if self.applied_version >= HAS_WORK => HAS_WORK,
            _ if self.applied_version >= HAS_RULES => HAS_RULES,
            Some(_) => SAYS_MAX_BYTES,
            None => HAS_SCOPES,
        }
    }

    /// Writes the same bytes for the same table, on every replica (I17). Buffers at most one block
    /// of 64 KiB; does not flush `out`.
    ///
    /// # Errors
    ///
    /// Those of `out`. The bytes written so far are cut off, and reading them fails as such.
    pub fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(&MAGIC)?;
        let version = self.version();
        out.write_all(&version.to_le_bytes())?;
        let mut blocks = BlockWriter::new(out);
        self.header.serialize(&mut blocks)?;
        self.applied_version.serialize(&mut blocks)?;
        self.scopes.serialize(&mut blocks)?;
        match (version, self.max_table_bytes) {
            (HAS_RULES.., max_bytes) => {
                (max_bytes, &*self.rules).serialize(&mut blocks)?;
                if version >= HAS_WORK {
                    (self.work_limit, &*self.pending).serialize(&mut blocks)?;
                }
                if version >= HAS_RESTORED {
                    self.restored.serialize(&mut blocks)?;
                }
                if version >= HAS_PERMITS {
                    (self.age_ms, &*self.freezes).serialize(&mut blocks)?;
                    (&self.pending.thaws, &self.pending.ends_now).serialize(&mut blocks)?;
                    self.numbers.serialize(&mut blocks)?;
                }
            }
            (_, Some(max_bytes)) => max_bytes.serialize(&mut blocks)?,
            (_, None) => {}
        }
        for (id, session) in self.sessions.iter() {
            id.serialize(&mut blocks)?;
            session.serialize(&mut blocks)?;
            if version >= HAS_RULES {
                (&session.caller, &session.cut).serialize(&mut blocks)?;
            }
            if version >= HAS_PERMITS {
                session.beside().serialize(&mut blocks)?;
            }
        }
        for (name, value) in self.values.iter() {
            name.serialize(&mut blocks)?;
            value.serialize(&mut blocks)?;
            if version >= HAS_RULES {
                value.owner.serialize(&mut blocks)?;
            }
        }
        if version >= HAS_PERMITS {
            write_all(&self.kept_limits, &mut blocks)?;
            write_all(&self.sequences, &mut blocks)?;
            write_all(&self.closed_locks, &mut blocks)?;
        }
        blocks.finish()
    }
}

/// Writes how many entries there are, and then each.
fn write_all<V: BorshSerialize + Clone>(
    entries: &Shards<LockName, V>,
    out: &mut impl Write,
) -> io::Result<()> {
    (entries.iter().count() as u64).serialize(out)?;
    entries.iter().try_for_each(|entry| entry.serialize(out))
}

/// Reads the part before the blocks, and returns the version.
fn check_front(input: &mut impl Read) -> Result<u16, SnapshotError> {
    let mut magic = [0; MAGIC.len()];
    input.read_exact(&mut magic)?;
    if magic != MAGIC {
        return Err(SnapshotError::NotASnapshot);
    }
    let mut version = [0; 2];
    input.read_exact(&mut version)?;
    match u16::from_le_bytes(version) {
        found @ SNAPSHOT_VERSION_OLDEST..=SNAPSHOT_VERSION => Ok(found),
        0 => Err(damaged("there never was a version 0").into()),
        found if found < SNAPSHOT_VERSION_OLDEST => {
            Err(SnapshotError::OldVersion { found, oldest: SNAPSHOT_VERSION_OLDEST })
        }
        found => Err(SnapshotError::UnknownVersion { found, known: SNAPSHOT_VERSION }),
    }
}
