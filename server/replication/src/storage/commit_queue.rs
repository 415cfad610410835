//! Operations that wait for the disk, and the commits they are grouped into.

use std::collections::VecDeque;

use super::error::Fault;
use super::log_store::{Done, Operation};
use super::record::encoded_len;

/// Bytes of records after which a commit takes no further operation; one operation always fits.
const COMMIT_BYTES: usize = 256 << 10;

/// The operations that go to disk together.
pub(super) enum Commit {
    /// Appends, votes and purges. Empty: a slice of purge alone.
    Changes(Vec<Operation>),
    /// Removes every record after this index.
    Truncate(Option<u64>),
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

    /// Takes the operations that go to disk together, as a whole or not at all: changes in order,
    /// or one truncation, before which the guard file has to be written.
    pub(super) fn take_commit(&mut self) -> (Commit, Vec<Done>) {
        let mut changes = Vec::new();
        let mut waiting = Vec::new();
        let mut bytes = 0;
        while let Some((next, _)) = self.operations.front() {
            let fits = match next {
                Operation::TruncateAfter(_) => changes.is_empty(),
                Operation::Append(_) | Operation::Vote(_) | Operation::Purge(_) => {
                    changes.is_empty() || bytes + operation_bytes(next) <= COMMIT_BYTES
                }
            };
            if !fits {
                break;
            }
            let Some((operation, done)) = self.operations.pop_front() else { break };
            waiting.push(done);
            let size = operation_bytes(&operation);
            bytes += size;
            self.bytes = self.bytes.saturating_sub(size);
            if let Operation::TruncateAfter(keep) = operation {
                return (Commit::Truncate(keep), waiting);
            }
            changes.push(operation);
        }
        (Commit::Changes(changes), waiting)
    }
}

fn operation_bytes(operation: &Operation) -> usize {
    match operation {
        Operation::Append(records) => records.iter().map(encoded_len).sum(),
        _ => 0,
    }
}
