//! The value of a lock: its exclusive holder sets it, and the next holder gets it with the grant.

use std::io;
use std::sync::Arc;

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_mutants::mutant;
use sha2::{Digest, Sha256};

use crate::access::Identity;
use crate::answer::{Answer, Outcome};
use crate::chain::HashWriter;
use crate::event::Event;
use crate::ids::{FencingToken, LockName, RequestId, SessionId, read_bytes, read_grown_bytes};
use crate::lock_set::{Item, Mode};
use crate::quota::{Quantity, Usage};
use crate::session::Record;
use crate::size::REQUEST_BYTES;
use crate::{LockTable, Rejection, VALUE_BYTES_MAX};

/// The count of a value besides its own bytes and those of its lock's name, bytes: about the size
/// of its entries in the table, so that [`Limits::max_value_bytes`](crate::Limits) bounds memory
/// even if values are small.
pub const VALUE_OVERHEAD_BYTES: u64 = 256;

/// The version of commands from which on values have owners. Before it a member of an older release may be
/// there, which keeps none: a table that has been through its snapshot would count otherwise than one that has
/// not (I16).
const OWNERS_SINCE: u16 = 6;

/// A change of a lock's value by its holder.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum ValueChange {
    /// Replaces it whole. An empty value is a value too.
    Set(#[borsh(deserialize_with = "read_grown_bytes")] Vec<u8>),
    /// Removes it. Harmless if there is none.
    Clear,
    /// Vouches for it: it is no longer suspect. Harmless if it was not.
    Confirm,
}

/// The value of a lock. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// At most [`VALUE_BYTES_MAX`].
    pub bytes: Arc<[u8]>,
    /// The grant under which it was set.
    pub set_by: FencingToken,
    /// An exclusive holder was lost without giving the lock back: the next holder has to check
    /// whether the value is still true, and set or confirm it.
    pub suspect: bool,
    /// The identity towards whose quota it counts, as of the session that set it; `None`: it was imported,
    /// or set before there were quotas. Snapshots store it apart: older versions do not know it.
    pub owner: Option<Identity>,
}

impl Value {
    /// Its count towards [`Limits::max_value_bytes`](crate::Limits).
    pub(crate) fn cost(&self, lock: &LockName) -> u64 {
        cost(lock, self.bytes.len())
    }
}

/// What something that is kept by name and counts as a value without bytes counts, bytes.
pub(crate) fn kept_cost(name: &LockName) -> u64 {
    cost(name, 0)
}

fn cost(lock: &LockName, bytes: usize) -> u64 {
    VALUE_OVERHEAD_BYTES + lock.as_str().len() as u64 + bytes as u64
}

impl BorshSerialize for Value {
    fn serialize<W: io::Write>(&self, writer: &mut W) -> io::Result<()> {
        (&*self.bytes, self.set_by, self.suspect).serialize(writer)
    }
}

impl BorshDeserialize for Value {
    fn deserialize_reader<R: io::Read>(reader: &mut R) -> io::Result<Self> {
        Ok(Self {
            bytes: read_bytes(reader, VALUE_BYTES_MAX)?.into(),
            set_by: FencingToken::deserialize_reader(reader)?,
            suspect: bool::deserialize_reader(reader)?,
            owner: None,
        })
    }
}

/// The parts of a `SetValue`.
pub(crate) struct Write<'a> {
    pub(crate) session: SessionId,
    pub(crate) request: RequestId,
    pub(crate) token: FencingToken,
    pub(crate) lock: &'a LockName,
    pub(crate) change: &'a ValueChange,
}

impl Write<'_> {
    /// The part of the payload that is kept to recognise a retry: the value itself may be 4 KiB.
    fn digest(&self) -> [u8; 32] {
        let mut hasher = HashWriter(Sha256::new());
        let fed = (self.token, self.lock, self.change).serialize(&mut hasher);
        // A hasher accepts everything, and the value is short enough.
        debug_assert!(fed.is_ok());
        hasher.0.finalize().into()
    }
}

impl LockTable {
    /// Sets, clears or confirms the value of a lock for its exclusive holder.
    ///
    /// A retry of a write gets its answer again and changes nothing, even if others have set the
    /// value since (I12). A refused write is not recorded.
    ///
    /// # Errors
    ///
    /// [`Rejection::UnknownSession`], [`Rejection::ValueTooLarge`], [`Rejection::RequestGone`],
    /// [`Rejection::RequestReused`], [`Rejection::RequestEnded`], [`Rejection::TooManyRequests`],
    /// [`Rejection::NotHolder`], [`Rejection::NotHeldUnder`], [`Rejection::NotExclusive`],
    /// [`Rejection::TableFull`], [`Rejection::NoValue`], [`Rejection::TooManyValueBytes`],
    /// [`Rejection::OverQuota`]: the state is unchanged.
    pub(crate) fn set_value(&mut self, write: &Write<'_>, events: &mut Vec<Event>) -> Outcome {
        check_size(write.change)?;
        let payload = write.digest();
        let request = write.request;
        let session = self.open(write.session)?;
        match session.seen(request)? {
            None => {}
            Some(Record::Wrote { payload: before }) if *before == payload => {
                return Ok(Answer::ValueSet { request, fresh: false });
            }
            Some(Record::Spent) => return Err(Rejection::RequestEnded { request }),
            Some(Record::Asked { .. } | Record::Wrote { .. }) => {
                return Err(Rejection::RequestReused { request });
            }
        }
        self.check_acts(write.session)?;
        session.may_keep_another(write.session, self.limits.max_requests_per_session)?;
        self.may_write(write)?;
        self.check_table_for(write)?;
        self.change_value(write, events)?;
        self.record(write.session, request, Record::Wrote { payload });
        Ok(Answer::ValueSet { request, fresh: true })
    }

    /// Allows only the holder's session with its token, and only if it holds exclusively (I13).
    fn may_write(&self, write: &Write<'_>) -> Result<(), Rejection> {
        if mutant!(SetValueIgnoresToken) {
            return Ok(());
        }
        let Write { session, token, lock, .. } = *write;
        let found = self.open(session)?;
        let (_, lock_set, part) = found.held_under(session, token)?;
        if !self.is_relied_on((session, token), lock_set) {
            return Err(Rejection::NotHolder { session, token });
        }
        let held = lock_set.position(lock).filter(|&at| part.contains(at));
        match held.and_then(|at| lock_set.get(at)) {
            Some((_, Mode::Exclusive)) => Ok(()),
            Some((_, Mode::Shared | Mode::Permits { .. })) => {
                Err(Rejection::NotExclusive { lock: lock.clone(), token })
            }
            None => Err(Rejection::NotHeldUnder { session, token, lock: lock.clone() }),
        }
    }

    /// A change that leaves the value no larger counts as part of freeing something.
    fn check_table_for(&self, write: &Write<'_>) -> Result<(), Rejection> {
        let growth = match write.change {
            ValueChange::Set(bytes) => self.growth(write.lock, bytes.len()),
            ValueChange::Clear | ValueChange::Confirm => 0,
        };
        match growth {
            0 => self.check_table_to_free(REQUEST_BYTES),
            more => self.check_table(more.saturating_add(REQUEST_BYTES)),
        }
    }

    /// By how many bytes the value of a lock grows when it is set to `bytes` bytes.
    pub(crate) fn growth(&self, lock: &LockName, bytes: usize) -> u64 {
        let before = self.value(lock).map_or(0, |value| value.cost(lock));
        cost(lock, bytes).saturating_sub(before)
    }

    fn change_value(
        &mut self,
        write: &Write<'_>,
        events: &mut Vec<Event>,
    ) -> Result<(), Rejection> {
        let lock = write.lock;
        let before = self.value(lock);
        match (write.change, before) {
            (ValueChange::Set(bytes), before) => {
                self.check_room(lock, before, bytes.len())?;
                let owner = self.open(write.session)?.caller.identity.clone();
                self.check_quota_for(lock, bytes.len(), &owner)?;
                let owner = Some(owner).filter(|_| self.applied_version >= OWNERS_SINCE);
                let bytes = bytes.as_slice().into();
                let value = Value { bytes, set_by: write.token, suspect: false, owner };
                self.put_value(lock, Some(value), events);
            }
            (ValueChange::Clear, Some(_)) => self.put_value(lock, None, events),
            (ValueChange::Confirm, Some(value)) if value.suspect => {
                let sound = Value { suspect: false, ..value.clone() };
                self.put_value(lock, Some(sound), events);
            }
            (ValueChange::Clear, None) | (ValueChange::Confirm, Some(_)) => {}
            (ValueChange::Confirm, None) => {
                return Err(Rejection::NoValue { lock: lock.clone() });
            }
        }
        Ok(())
    }

    /// Accepts every value that takes no more room than the one it replaces, even under limits that
    /// were lowered since.
    pub(crate) fn check_room(
        &self,
        lock: &LockName,
        before: Option<&Value>,
        bytes: usize,
    ) -> Result<(), Rejection> {
        let (freed, taken) = (before.map_or(0, |value| value.cost(lock)), cost(lock, bytes));
        let total = self.counts.value_bytes.saturating_sub(freed).saturating_add(taken);
        let limit = self.limits.max_value_bytes;
        if taken > freed && total > limit {
            return Err(Rejection::TooManyValueBytes { limit });
        }
        Ok(())
    }

    /// Accepts every value by which its owner's take no more room than before.
    fn check_quota_for(
        &self,
        lock: &LockName,
        bytes: usize,
        owner: &Identity,
    ) -> Result<(), Rejection> {
        let before = self.value(lock).filter(|value| value.owner.as_ref() == Some(owner));
        let more = cost(lock, bytes).saturating_sub(before.map_or(0, |value| value.cost(lock)));
        if more == 0 { Ok(()) } else { self.check_quota(owner, Quantity::ValueBytes, more) }
    }

    /// Whether there is room for one more thing that counts as a value without bytes.
    ///
    /// # Errors
    ///
    /// [`Rejection::TooManyValueBytes`], [`Rejection::TableFull`].
    pub(crate) fn check_room_to_keep(&self, name: &LockName) -> Result<(), Rejection> {
        self.check_room_for_kept(kept_cost(name))
    }

    /// Whether there is room for several that cost so much together.
    ///
    /// # Errors
    ///
    /// [`Rejection::TooManyValueBytes`], [`Rejection::TableFull`].
    pub(crate) fn check_room_for_kept(&self, cost: u64) -> Result<(), Rejection> {
        let limit = self.limits.max_value_bytes;
        if self.counts.value_bytes.saturating_add(cost) > limit {
            return Err(Rejection::TooManyValueBytes { limit });
        }
        self.check_table(cost)
    }

    /// Whether an identity may have one more of them.
    ///
    /// # Errors
    ///
    /// [`Rejection::OverQuota`].
    pub(crate) fn check_quota_to_keep(
        &self,
        name: &LockName,
        owner: &Identity,
    ) -> Result<(), Rejection> {
        self.check_quota(owner, Quantity::ValueBytes, kept_cost(name))
    }

    /// The value of a lock, if it carries one.
    pub(crate) fn value(&self, lock: &LockName) -> Option<&Value> {
        self.locks.get(lock)?.value.as_ref()
    }

    /// The values of those of `items` that carry one.
    pub fn values_of(&self, items: &[Item]) -> Vec<(LockName, Value)> {
        let carried = |item: &Item| Some((item.lock.clone(), self.value(&item.lock)?.clone()));
        items.iter().filter_map(carried).collect()
    }

    /// Marks a value whose holder was lost as suspect, until a holder sets or confirms it.
    pub(crate) fn suspect_value(&mut self, lock: &LockName, events: &mut Vec<Event>) {
        if let Some(value) = self.value(lock).filter(|value| !value.suspect) {
            let suspect = Value { suspect: true, ..value.clone() };
            self.put_value(lock, Some(suspect), events);
        }
    }

    pub(crate) fn put_value(
        &mut self,
        lock: &LockName,
        value: Option<Value>,
        events: &mut Vec<Event>,
    ) {
        self.work.charge_value(value.as_ref().map_or(0, |value| value.bytes.len()));
        self.keep_value(lock, value.clone());
        events.push(Event::ValueChanged { lock: lock.clone(), value });
    }

    /// Stores a value in both its places, and counts it.
    pub(crate) fn keep_value(&mut self, name: &LockName, value: Option<Value>) {
        let lock = self.locks.entry(name.clone());
        let name = &lock.key().clone();
        lock.or_default().value.clone_from(&value);
        if let Some(value) = &value {
            self.counts.values += 1;
            self.counts.value_bytes = self.counts.value_bytes.saturating_add(value.cost(name));
            self.counts.table_bytes = self.counts.table_bytes.saturating_add(value.cost(name));
            self.count_for_owner(value, Usage::default(), Usage::of_value(value.cost(name)));
        }
        let before = match value {
            Some(value) => self.values.insert(name.clone(), value),
            None => self.values.remove(name),
        };
        if let Some(before) = before {
            self.counts.values -= 1;
            self.counts.value_bytes = self.counts.value_bytes.saturating_sub(before.cost(name));
            self.counts.table_bytes = self.counts.table_bytes.saturating_sub(before.cost(name));
            self.count_for_owner(&before, Usage::of_value(before.cost(name)), Usage::default());
        }
    }

    fn count_for_owner(&mut self, value: &Value, before: Usage, after: Usage) {
        if let Some(owner) = &value.owner {
            self.usages.change(owner, before, after);
        }
    }
}

fn check_size(change: &ValueChange) -> Result<(), Rejection> {
    match change {
        ValueChange::Set(bytes) => check_length(bytes.len()),
        ValueChange::Clear | ValueChange::Confirm => Ok(()),
    }
}

pub(crate) fn check_length(bytes: usize) -> Result<(), Rejection> {
    if bytes > VALUE_BYTES_MAX {
        let (len, max) = (bytes as u64, VALUE_BYTES_MAX as u64);
        return Err(Rejection::ValueTooLarge { len, max });
    }
    Ok(())
}
