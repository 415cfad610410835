//! The unpurged log in memory: what readers see, and the effect of each operation.

use std::collections::VecDeque;
use std::ops::Range;

use super::log_store::Operation;
use super::record::{LogId, MAX_PAYLOAD, Record, StoredVote};

/// What a record takes in memory beside its payload, bytes: itself, its place in the list, and the
/// rounding of its allocation.
pub const RECORD_BYTES: u64 = 128;

/// An operation that the log cannot take in its present state. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Misuse {
    /// The record would leave a hole, or stand where another one stands.
    #[error("append of log index {found} where {expected} comes next")]
    Gap {
        /// The index that comes next.
        expected: u64,
        /// The index of the record.
        found: u64,
    },
    /// The payload is above [`MAX_PAYLOAD`].
    #[error("record of {bytes} bytes at log index {index}, at most {MAX_PAYLOAD} are stored")]
    TooLarge {
        /// Where the record would stand.
        index: u64,
        /// Its payload, bytes.
        bytes: usize,
    },
    /// Truncation below what was purged: those records are in a snapshot and committed.
    #[error("truncation after log index {keep:?}, but {purged:?} is purged")]
    TruncatesPurged {
        /// The last index to keep.
        keep: Option<u64>,
        /// What is purged.
        purged: Option<LogId>,
    },
    /// The vote would take back an earlier one (I20).
    #[error("vote {new:?} after {old:?}")]
    VoteGoesBack {
        /// The vote that stands.
        old: StoredVote,
        /// The vote that was refused.
        new: StoredVote,
    },
    /// Purge above the newest snapshot that was synced and read back (I30).
    #[error("purge up to log index {upto}, but the newest good snapshot ends at {snapshot:?}")]
    PurgesBeyondSnapshot {
        /// What the caller wanted to purge.
        upto: u64,
        /// Where the newest snapshot ends.
        snapshot: Option<LogId>,
    },
}

/// The unpurged log, the purge mark and the vote.
///
/// # Invariants
///
/// - The records' indices follow each other without a gap.
/// - The first record, if any, follows `purged` directly.
/// - `ends` has one number for each record, and they rise.
#[derive(Debug, Clone, Default)]
pub struct LogMirror {
    records: VecDeque<Record>,
    /// Bytes of all records up to and including each one, counted from an arbitrary origin.
    ends: VecDeque<u64>,
    /// The same, for the last record that was purged.
    before: u64,
    purged: Option<LogId>,
    vote: Option<StoredVote>,
}

impl LogMirror {
    /// A log that was read back. `records` must follow `purged` without a gap.
    pub(super) fn recovered(
        records: VecDeque<Record>,
        purged: Option<LogId>,
        vote: Option<StoredVote>,
    ) -> Self {
        let mut mirror = Self { purged, vote, ..Self::default() };
        mirror.extend(records);
        mirror
    }

    /// The last record purged, if any was.
    pub fn purged(&self) -> Option<LogId> {
        self.purged
    }

    /// The vote.
    pub fn vote(&self) -> Option<StoredVote> {
        self.vote
    }

    /// The last record; if none is left, the last one purged.
    pub fn last(&self) -> Option<LogId> {
        self.records.back().map(|record| record.log_id).or(self.purged)
    }

    /// Records held in memory.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether no record is held in memory.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// What the records take in memory, bytes: their payloads, and [`RECORD_BYTES`] for each.
    pub fn bytes(&self) -> u64 {
        self.ends.back().map_or(0, |last| last.saturating_sub(self.before))
    }

    /// As [`bytes`](Self::bytes), of the records after `index` alone.
    pub fn bytes_after(&self, index: Option<u64>) -> u64 {
        let Some(index) = index else { return self.bytes() };
        let upto = self.records.partition_point(|record| record.log_id.index <= index);
        let end = upto.checked_sub(1).and_then(|at| self.ends.get(at)).unwrap_or(&self.before);
        self.ends.back().map_or(0, |last| last.saturating_sub(*end))
    }

    /// The last record to remove so that those after it take at most `max_bytes`; `None` if all of
    /// them do.
    pub fn last_beyond(&self, max_bytes: u64) -> Option<u64> {
        let excess = self.bytes().checked_sub(max_bytes).filter(|excess| *excess > 0)?;
        let enough = self.before.saturating_add(excess);
        let at = self.ends.partition_point(|end| *end < enough);
        self.records.get(at).map(|record| record.log_id.index)
    }

    /// The record at `index`, unless it is purged or not there yet.
    pub fn get(&self, index: u64) -> Option<&Record> {
        let first = self.records.front()?.log_id.index;
        let offset = usize::try_from(index.checked_sub(first)?).ok()?;
        self.records.get(offset)
    }

    /// The existing records of `range`, in order: the first always, further ones while their
    /// payloads together stay within `max_bytes`.
    pub fn entries(&self, range: Range<u64>, max_bytes: usize) -> Vec<Record> {
        let Some(first) = self.records.front().map(|record| record.log_id.index) else {
            return Vec::new();
        };
        let from = usize::try_from(range.start.saturating_sub(first)).unwrap_or(usize::MAX);
        let mut bytes = 0_usize;
        self.records
            .range(from.min(self.records.len())..)
            .take_while(|record| record.log_id.index < range.end)
            .enumerate()
            .take_while(|(position, record)| {
                bytes = bytes.saturating_add(record.payload.len());
                *position == 0 || bytes <= max_bytes
            })
            .map(|(_, record)| record.clone())
            .collect()
    }

    /// Whether `operation` can be applied.
    ///
    /// # Errors
    ///
    /// Why it cannot. An empty log that was never purged takes a first record of any index; Raft
    /// begins at 0, and a store that begins elsewhere is refused when it is opened.
    pub fn check(&self, operation: &Operation) -> Result<(), Misuse> {
        match operation {
            Operation::Append(records) => self.check_append(records),
            Operation::Vote(new) => match self.vote {
                Some(old) if !new.covers(&old) => Err(Misuse::VoteGoesBack { old, new: *new }),
                _ => Ok(()),
            },
            Operation::TruncateAfter(keep) => self.kept(keep.map(|keep| keep.index)).map(drop),
            Operation::Purge(_) => Ok(()),
        }
    }

    /// The last record that a truncation after `keep` leaves.
    ///
    /// # Errors
    ///
    /// [`Misuse::TruncatesPurged`] if purged records would have to come back.
    pub(super) fn kept(&self, keep: Option<u64>) -> Result<Option<LogId>, Misuse> {
        if let Some(purged) =
            self.purged.filter(|purged| keep.is_none_or(|keep| keep < purged.index))
        {
            return Err(Misuse::TruncatesPurged { keep, purged: Some(purged) });
        }
        let left = self.records.partition_point(|record| Some(record.log_id.index) <= keep);
        let last = left.checked_sub(1).and_then(|at| self.records.get(at));
        Ok(last.map(|record| record.log_id).or(self.purged))
    }

    fn check_append(&self, records: &[Record]) -> Result<(), Misuse> {
        let mut expected = self.last().map(|last| last.index.saturating_add(1));
        for record in records {
            let found = record.log_id.index;
            if let Some(expected) = expected.filter(|expected| *expected != found) {
                return Err(Misuse::Gap { expected, found });
            }
            if record.payload.len() > MAX_PAYLOAD {
                return Err(Misuse::TooLarge { index: found, bytes: record.payload.len() });
            }
            expected = Some(found.saturating_add(1));
        }
        Ok(())
    }

    /// Applies `operation`, which [`check`](Self::check) has allowed. Returns the records that it
    /// removed, so that the caller can free them outside its lock.
    pub fn apply(&mut self, operation: &Operation) -> VecDeque<Record> {
        match operation {
            Operation::Append(records) => {
                self.extend(records.iter().cloned());
                VecDeque::new()
            }
            Operation::Vote(vote) => {
                self.vote = Some(*vote);
                VecDeque::new()
            }
            Operation::TruncateAfter(keep) => {
                let keep = keep.map(|keep| keep.index);
                let kept = self.records.partition_point(|r| Some(r.log_id.index) <= keep);
                self.ends.truncate(kept);
                self.records.split_off(kept)
            }
            Operation::Purge(upto) => self.purge(*upto),
        }
    }

    /// Purging again, or less than before, changes nothing.
    fn purge(&mut self, upto: LogId) -> VecDeque<Record> {
        if self.purged.is_some_and(|purged| purged.index >= upto.index) {
            return VecDeque::new();
        }
        self.purged = Some(upto);
        let dropped = self.records.partition_point(|r| r.log_id.index <= upto.index);
        self.before = self.ends.drain(..dropped).next_back().unwrap_or(self.before);
        // Moves the records that go, and not those that stay, which may be many more.
        self.records.drain(..dropped).collect()
    }

    fn extend(&mut self, records: impl IntoIterator<Item = Record>) {
        for record in records {
            let end = self.ends.back().copied().unwrap_or(self.before);
            let bytes = RECORD_BYTES.saturating_add(record.payload.len() as u64);
            self.ends.push_back(end.saturating_add(bytes));
            self.records.push_back(record);
        }
    }
}

/// Two mirrors of one log are equal, whatever the origin of their byte counts.
impl PartialEq for LogMirror {
    fn eq(&self, other: &Self) -> bool {
        (&self.records, self.purged, self.vote) == (&other.records, other.purged, other.vote)
    }
}

impl Eq for LogMirror {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::RecordKind;

    fn record(index: u64, bytes: usize) -> Record {
        let log_id = LogId { term: 1, node_id: 1, index };
        Record { log_id, kind: RecordKind::Batch, payload: vec![7; bytes].into() }
    }

    fn of(sizes: &[usize]) -> LogMirror {
        let mut log = LogMirror::default();
        let records = (0..).zip(sizes).map(|(index, bytes)| record(index, *bytes)).collect();
        log.apply(&Operation::Append(records));
        log
    }

    #[test]
    fn the_bytes_of_the_log_are_those_of_the_records_it_has() {
        let mut log = of(&[10, 20, 30, 40]);
        assert_eq!(log.bytes(), 100 + 4 * RECORD_BYTES);
        assert_eq!(log.bytes_after(Some(1)), 70 + 2 * RECORD_BYTES);

        log.apply(&Operation::Purge(record(1, 0).log_id));
        assert_eq!(log.bytes(), 70 + 2 * RECORD_BYTES);
        assert_eq!(log.bytes_after(Some(0)), log.bytes());
        assert_eq!(log.bytes_after(Some(3)), 0);
        log.apply(&Operation::TruncateAfter(Some(record(2, 0).log_id)));
        assert_eq!(log.bytes(), 30 + RECORD_BYTES);
        log.apply(&Operation::Append(vec![record(3, 5)]));
        assert_eq!(log.bytes(), 35 + 2 * RECORD_BYTES);
        log.apply(&Operation::Purge(record(9, 0).log_id));
        assert_eq!((log.bytes(), log.bytes_after(None)), (0, 0));
    }

    #[test]
    fn the_last_record_beyond_a_bound_is_the_first_whose_going_is_enough() {
        let log = of(&[10, 20, 30, 40]);
        let rest = |index| log.bytes_after(Some(index));

        assert_eq!(log.last_beyond(log.bytes()), None);
        assert_eq!(log.last_beyond(log.bytes() - 1), Some(0));
        assert_eq!(log.last_beyond(rest(0)), Some(0));
        assert_eq!(log.last_beyond(rest(1) - 1), Some(2));
        assert_eq!(log.last_beyond(0), Some(3));
    }
}
