//! Sequences (DESIGN §16): numbers that are given out once, in rising order, by name.
//!
//! A caller gets the next numbers, up to [`SEQUENCE_BY_MAX`] of them in one block, and needs no lock for it. A block
//! whose answer is lost is lost too: the numbers of a sequence have gaps, and none is given out twice.
//!
//! # Invariants
//!
//! - A sequence only rises: each block begins above the last number given out before, and it never wraps.
//! - A restore repeats no number, from whichever backup and however often ([`Origin`], I37).
//!
//! A sequence is never removed, because its name could begin anew then. It counts as a value without bytes, so that
//! quotas and [`Limits::max_value_bytes`](crate::Limits) bound how many there are.

use std::ops::Bound;

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_mutants::mutant;

use crate::access::{Caller, Identity};
use crate::answer::{Answer, Outcome};
use crate::ids::LockName;
use crate::quota::Usage;
use crate::restore::ORIGIN_MS;
use crate::value::kept_cost;
use crate::{LockTable, Rejection};

/// Most numbers of one block.
///
/// Source: DESIGN §16.
pub const SEQUENCE_BY_MAX: u32 = 1 << 16;

/// How many numbers a restore leaves out for each second.
///
/// More than any cluster gives out in a second: at [`SEQUENCE_BY_MAX`] a command, 65,536 commands for one name. All numbers last for
/// 136 years of them.
///
/// Source: DESIGN §16.
const RESTORE_LEAVES_OUT: u64 = 1 << 32;

/// A sequence.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(crate) struct Sequence {
    /// The last number given out; 0 before the first.
    pub(crate) last: u64,
    /// The identity that began it, towards whose quota it counts.
    pub(crate) owner: Identity,
}

/// From where the sequences of a cluster count: all zeros until its first restore.
///
/// A restore leaves out what may have been given out in all the time since the restore before it, or since 2026-01-01, before any cluster had sequences. That
/// is the same time for every backup of one cluster, so numbers follow the time of the restore, whichever backup it
/// is. The time since the backup would not do: of two backups the newer one, restored last, would fall below the other. And a sequence
/// that the backup does not know may have been begun after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(crate) struct Origin {
    /// The last number of a sequence that nobody has begun here.
    last: u64,
    /// When the cluster was restored, seconds since 2026-01-01; 0: never.
    restored_s: u64,
}

impl Origin {
    /// That of a cluster that is restored at `now_ms`.
    pub(crate) fn restored(self, now_ms: u64) -> Self {
        let last = self.after_restore(self.last, now_ms);
        Self { last, restored_s: self.restored_s.saturating_add(self.seconds_until(now_ms)) }
    }

    /// The last number of a sequence in a cluster that is restored at `now_ms` from a backup with this origin. A clock that has not
    /// gone on counts as one second.
    pub(crate) fn after_restore(self, last: u64, now_ms: u64) -> u64 {
        if mutant!(RestoreRepeatsNumbers) {
            return last;
        }
        last.saturating_add(self.seconds_until(now_ms).saturating_mul(RESTORE_LEAVES_OUT))
    }

    fn seconds_until(self, now_ms: u64) -> u64 {
        let since_ms = now_ms.saturating_sub(ORIGIN_MS);
        (since_ms / 1_000).saturating_sub(self.restored_s).max(1)
    }
}

impl LockTable {
    /// Gives out the next `by` numbers of a sequence, which begins at 1 if there is none of that name, or above its origin in a
    /// cluster that was restored.
    ///
    /// A second copy of the command gives out others.
    ///
    /// # Errors
    ///
    /// [`Rejection::SequenceStep`], [`Rejection::SequenceInScope`], [`Rejection::SequenceExhausted`],
    /// [`Rejection::TooManyValueBytes`], [`Rejection::TableFull`], [`Rejection::OverQuota`]: the state is unchanged.
    pub(crate) fn advance(&mut self, caller: &Caller, name: &LockName, by: u32) -> Outcome {
        if !(1..=SEQUENCE_BY_MAX).contains(&by) {
            return Err(Rejection::SequenceStep { by, max: SEQUENCE_BY_MAX });
        }
        let before = self.last_for(caller, name)?;
        let last = before.checked_add(by.into());
        let exhausted =
            || Rejection::SequenceExhausted { sequence: name.clone(), left: u64::MAX - before };
        let last = last.ok_or_else(exhausted)?;
        self.put_sequence(caller, name, last);
        let first = if mutant!(SequenceRepeats) { before.max(1) } else { before + 1 };
        Ok(Answer::Advanced { first })
    }

    /// Has the next number of a sequence be `at`. A second copy changes nothing, unless numbers were given out meanwhile.
    ///
    /// # Errors
    ///
    /// [`Rejection::SequenceNotAbove`], and those of [`LockTable::advance`]: the state is unchanged.
    pub(crate) fn begin_sequence(&mut self, caller: &Caller, name: &LockName, at: u64) -> Outcome {
        let before = self.last_for(caller, name)?;
        let Some(last) = at.checked_sub(1).filter(|&last| last >= before) else {
            return Err(Rejection::SequenceNotAbove { sequence: name.clone(), at, last: before });
        };
        self.put_sequence(caller, name, last);
        Ok(Answer::SequenceBegun)
    }

    /// The last number given out, if the caller may have more.
    fn last_for(&self, caller: &Caller, name: &LockName) -> Result<u64, Rejection> {
        // Another store that may serve the scope would not know how far the sequence is.
        if self.scopes.of(name).is_some() {
            return Err(Rejection::SequenceInScope { sequence: name.clone() });
        }
        if let Some(sequence) = self.sequences.get(name) {
            return Ok(sequence.last);
        }
        self.check_room_to_keep(name)?;
        self.check_quota_to_keep(name, &caller.identity)?;
        Ok(self.numbers.last)
    }

    fn put_sequence(&mut self, caller: &Caller, name: &LockName, last: u64) {
        if let Some(sequence) = self.sequences.get_mut(name) {
            sequence.last = last;
        } else {
            let owner = self.usages.kept(caller.identity.clone());
            self.keep_sequence(name, Sequence { last, owner });
        }
    }

    /// Stores a new sequence, and counts it.
    pub(crate) fn keep_sequence(&mut self, name: &LockName, sequence: Sequence) {
        let cost = kept_cost(name);
        self.counts.value_bytes = self.counts.value_bytes.saturating_add(cost);
        self.counts.table_bytes = self.counts.table_bytes.saturating_add(cost);
        self.usages.change(&sequence.owner, Usage::default(), Usage::of_value(cost));
        self.sequence_names.insert(name.clone());
        self.sequences.insert(name.clone(), sequence);
    }

    /// The last number that was given out of a sequence; `None` if nobody has begun it.
    pub fn sequence(&self, name: &LockName) -> Option<u64> {
        Some(self.sequences.get(name)?.last)
    }

    /// The sequences whose names begin with `prefix` and their last numbers, in the order of their names, from the first
    /// after `after` on. O(log n) for each.
    pub fn sequences_after(
        &self,
        prefix: &str,
        after: Option<&LockName>,
    ) -> impl Iterator<Item = (&LockName, u64)> {
        let from = match after {
            Some(name) if name.as_str() >= prefix => Bound::Excluded(name.as_str()),
            Some(_) | None => Bound::Included(prefix),
        };
        let names = self.sequence_names.range::<str, _>((from, Bound::Unbounded));
        names
            .take_while(move |name| name.as_str().starts_with(prefix))
            .filter_map(|name| Some((name, self.sequence(name)?)))
    }
}
