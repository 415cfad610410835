//! The size of the table: bytes that every replica counts alike, and the limit on them.
//!
//! It is an estimate from the records, never an allocator's figure: every replica has to refuse
//! alike after the same history (I16, I27). So it follows from the sessions' records and the values
//! alone, and is counted again when a snapshot is read.
//!
//! | kept | counts |
//! |---|---|
//! | a session | [`SESSION_BYTES`], its label, and the identity that opened it |
//! | a request of it, until it is confirmed, even if it is over | [`REQUEST_BYTES`] |
//! | each lock that the request names, held, waited for or neither | [`PLACE_BYTES`], and the name |
//! | what the request says besides, if it says anything | [`TERMS_BYTES`](crate::TERMS_BYTES), and its note |
//! | an import's row, beside its request | [`IMPORT_BYTES`], the name and the owner's label once more |
//! | a value; a limit of permits that was set for good | as towards [`Limits::max_value_bytes`](crate::Limits::max_value_bytes) |
//!
//! A name counts for each request that names it, although the table keeps it once for all of them:
//! so the count of a request never changes. Scopes and rules have bounds of their own, and do not count;
//! nor does what ends something from outside, nor what commands leave for later ones, which is a few words
//! for some of the locks that count.
//!
//! # Invariants
//!
//! - [`Counts::table_bytes`](crate::Counts::table_bytes) is the sum of that table (`check.rs`).
//! - The table refuses a command that would make it larger than the limit. A command that is part
//!   of freeing something may go an eighth beyond it: the cancel of a request that was never seen,
//!   a value that is cleared, confirmed, or replaced by one that is no longer.
//! - The table never refuses a command that ends something, and a lowered limit ends nothing.

use holdfast_mutants::mutant;

use crate::answer::{Answer, Outcome};
use crate::ids::{Label, LockName, RequestId, SessionId};
use crate::session::{Record, Session};
use crate::terms::Terms;
use crate::{LockTable, Rejection};

/// Bytes that a session counts beside its label.
///
/// Source: measured (`tests/memory.rs`), 300 bytes, and more than as much again for its first
/// request, which takes room for ten others.
pub const SESSION_BYTES: u64 = 768;
/// Bytes that a request counts beside its locks.
///
/// Source: measured, as [`SESSION_BYTES`].
pub const REQUEST_BYTES: u64 = 192;
/// Bytes that each lock of a request counts beside its name: a place in a queue or among the
/// holders, and the lock itself.
///
/// Source: measured, as [`SESSION_BYTES`].
pub const PLACE_BYTES: u64 = 256;
/// Bytes that an import's row counts for its entry in the index by lock and owner.
///
/// Source: measured, as [`SESSION_BYTES`].
pub const IMPORT_BYTES: u64 = 128;

/// A command that frees something may exceed the limit by this part of it: one eighth.
const BEYOND_PART: u64 = 8;

/// The count of a session without its requests.
pub(crate) fn of_session(label: &Label) -> u64 {
    SESSION_BYTES + label.as_str().len() as u64
}

/// The count of a request for these locks.
pub(crate) fn of_request<'a>(locks: impl Iterator<Item = &'a LockName>) -> u64 {
    REQUEST_BYTES + locks.map(|lock| PLACE_BYTES + lock.as_str().len() as u64).sum::<u64>()
}

/// The count of a row of an import, without its value.
pub(crate) fn of_row(lock: &LockName, owner: &Label) -> u64 {
    of_request(std::iter::once(lock)) + of_index(lock, owner)
}

fn of_index(lock: &LockName, owner: &Label) -> u64 {
    IMPORT_BYTES + (lock.as_str().len() + owner.as_str().len()) as u64
}

impl Session {
    /// The count of one of its requests.
    fn bytes_of(&self, request: RequestId, record: &Record) -> u64 {
        match record {
            Record::Spent | Record::Wrote { .. } => REQUEST_BYTES,
            Record::Asked { lock_set, .. } => {
                let row = lock_set.get(0).filter(|_| self.imported);
                let index = row.map_or(0, |(lock, _)| of_index(lock, &self.label));
                let said = self.said.get(request).map_or(0, Terms::bytes);
                of_request(lock_set.iter().map(|(lock, _)| lock)) + said + index
            }
        }
    }

    /// Counts the session and all its requests one by one.
    pub(crate) fn recount(&self) -> u64 {
        let requests = self.records.iter().map(|(&request, record)| self.bytes_of(request, record));
        of_session(&self.label) + self.caller.identity.bytes() + requests.sum::<u64>()
    }

    /// Keeps a record under an id, in place of an earlier one.
    pub(crate) fn keep(&mut self, request: RequestId, record: Record) {
        let counted = !mutant!(TableBytesNotCounted);
        self.bytes += if counted { self.bytes_of(request, &record) } else { 0 };
        self.load = self.load.plus(record.load());
        self.said.begins(request, &record);
        if let Some(replaced) = self.records.insert(request, record) {
            self.bytes = self.bytes.saturating_sub(self.bytes_of(request, &replaced));
            self.load = self.load.minus(replaced.load());
            self.said.ends(request, &replaced);
            self.records.get(&request).iter().for_each(|kept| self.said.begins(request, kept));
        }
    }

    /// Drops the record under an id.
    pub(crate) fn drop_record(&mut self, request: RequestId) {
        if let Some(dropped) = self.records.remove(&request) {
            self.bytes = self.bytes.saturating_sub(self.bytes_of(request, &dropped));
            self.load = self.load.minus(dropped.load());
            self.said.ends(request, &dropped);
            self.said.forget(request);
        }
    }
}

impl LockTable {
    /// Sets the limit for later commands; nothing that exists ends.
    ///
    /// # Errors
    ///
    /// [`Rejection::UnusableLimits`]: the state is unchanged.
    pub(crate) fn limit_table(&mut self, max_bytes: u64) -> Outcome {
        if max_bytes == 0 {
            let reason = "max_table_bytes is 0; it must be at least 1".to_owned();
            return Err(Rejection::UnusableLimits { reason });
        }
        self.max_table_bytes = Some(max_bytes);
        Ok(Answer::Configured)
    }

    /// Changes an open session, and updates the count of bytes and what its identity has.
    pub(crate) fn change_session<T>(
        &mut self,
        session: SessionId,
        change: impl FnOnce(&mut Session) -> T,
    ) -> Option<T> {
        let found = self.sessions.get_mut(&session)?;
        let (before, load) = (found.bytes, found.load);
        let changed = change(found);
        let after = found.bytes;
        if !found.imported && load != found.load {
            self.usages.change(&found.caller.identity, load.usage(), found.load.usage());
        }
        let others = self.counts.table_bytes.saturating_sub(before);
        self.counts.table_bytes = others.saturating_add(after);
        Some(changed)
    }

    /// Checks that the table may take so many bytes more.
    ///
    /// # Errors
    ///
    /// [`Rejection::TableFull`].
    pub(crate) fn check_table(&self, more: u64) -> Result<(), Rejection> {
        self.check_table_up_to(more, |limit| limit)
    }

    /// As [`check_table`](Self::check_table), for a command that is part of freeing something.
    pub(crate) fn check_table_to_free(&self, more: u64) -> Result<(), Rejection> {
        self.check_table_up_to(more, |limit| limit.saturating_add(limit / BEYOND_PART))
    }

    fn check_table_up_to(&self, more: u64, most: fn(u64) -> u64) -> Result<(), Rejection> {
        let Some(limit) = self.max_table_bytes else { return Ok(()) };
        let total = self.counts.table_bytes.saturating_add(more);
        if total > most(limit) {
            return Err(Rejection::TableFull { limit });
        }
        Ok(())
    }
}
