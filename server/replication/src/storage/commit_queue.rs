//! Operations that wait for the disk, and the commits they are grouped into.

use std::collections::VecDeque;

use super::error::Fault;
use super::log_store::{Done, Operation};
use super::record::{LogId, Record, StoredVote, encoded_len};

/// Bytes of records after which a commit takes no further operation; one operation always fits.
const COMMIT_BYTES: usize = 256 << 10;

/// What goes to disk together, as a whole or not at all.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Commit {
    /// Records to append.
    Append(Vec<Record>),
    /// The newest vote and purge mark of several, if there was any.
    Mark {
        /// The vote.
        vote: Option<StoredVote>,
        /// The purge mark.
        purged: Option<LogId>,
    },
    /// Removes every record after this one.
    Truncate(Option<LogId>),
}

/// Operations in the order in which they were submitted.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) operations: VecDeque<(Operation, Done)>,
    pub(super) bytes: usize,
    pub(super) closing: bool,
    pub(super) failed: Option<Fault>,
}

impl Queue {
    /// Appends an operation to the queue; returns its `done` with the fault if there was one.
    pub(super) fn push(&mut self, operation: Operation, done: Done) -> Option<(Done, Fault)> {
        if let Some(fault) = &self.failed {
            return Some((done, fault.clone()));
        }
        self.bytes += operation_bytes(&operation);
        self.operations.push_back((operation, done));
        None
    }

    /// Refuses all operations from now on. Returns the callbacks of the waiting ones, for the
    /// caller to fail.
    pub(super) fn fail(&mut self, fault: &Fault) -> Vec<Done> {
        self.failed = Some(fault.clone());
        self.bytes = 0;
        self.operations.drain(..).map(|(_, done)| done).collect()
    }

    /// Takes the operations that go to disk together, if there are any: appends, or marks, or one
    /// truncation, before which the guard file has to be written.
    pub(super) fn take_commit(&mut self) -> Option<(Commit, Vec<Done>)> {
        let (first, done) = self.pop()?;
        let mut waiting = vec![done];
        let commit = match first {
            Operation::Append(records) => Commit::Append(self.take_appends(records, &mut waiting)),
            Operation::Vote(vote) => self.take_marks(Some(vote), None, &mut waiting),
            Operation::Purge(upto) => self.take_marks(None, Some(upto), &mut waiting),
            Operation::TruncateAfter(keep) => Commit::Truncate(keep),
        };
        Some((commit, waiting))
    }

    fn take_appends(&mut self, mut records: Vec<Record>, waiting: &mut Vec<Done>) -> Vec<Record> {
        let mut bytes = records_bytes(&records);
        while let Some((Operation::Append(next), _)) = self.operations.front() {
            bytes += records_bytes(next);
            if bytes > COMMIT_BYTES {
                break;
            }
            if let Some((Operation::Append(more), done)) = self.pop() {
                records.extend(more);
                waiting.push(done);
            }
        }
        records
    }

    fn take_marks(
        &mut self,
        mut vote: Option<StoredVote>,
        mut purged: Option<LogId>,
        waiting: &mut Vec<Done>,
    ) -> Commit {
        while let Some((Operation::Vote(_) | Operation::Purge(_), _)) = self.operations.front() {
            let Some((next, done)) = self.pop() else { break };
            waiting.push(done);
            match next {
                Operation::Vote(new) => vote = Some(new),
                // Purging less than before changes nothing.
                Operation::Purge(upto) if purged.is_none_or(|purged| purged.index < upto.index) => {
                    purged = Some(upto);
                }
                Operation::Purge(_) | Operation::Append(_) | Operation::TruncateAfter(_) => {}
            }
        }
        Commit::Mark { vote, purged }
    }

    fn pop(&mut self) -> Option<(Operation, Done)> {
        let (operation, done) = self.operations.pop_front()?;
        self.bytes = self.bytes.saturating_sub(operation_bytes(&operation));
        Some((operation, done))
    }
}

fn records_bytes(records: &[Record]) -> usize {
    records.iter().map(encoded_len).sum()
}

fn operation_bytes(operation: &Operation) -> usize {
    match operation {
        Operation::Append(records) => records_bytes(records),
        _ => 0,
    }
}
