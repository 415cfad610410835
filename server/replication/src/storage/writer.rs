//! A commit of the log: records in segments, marks in a tree, and making them durable.
//!
//! A commit goes to one of the two. So commits are durable in the order in which they were
//! submitted: each one before the next is written.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use holdfast_mutants::mutant;
use holdfast_runtime::Instant;

use super::commit_queue::Commit;
use super::counters::Counters;
use super::error::Fault;
use super::guard::Guard;
use super::record::{LogId, Record, StoredVote, put_log_id, put_vote, seal};
use super::segments::{Entry, Segments};
use super::tree::Tree;

pub(super) const META_MAGIC: [u8; 4] = *b"HFMT";
pub(super) const META_VERSION: u32 = 1;
pub(super) const VOTE_KEY: &[u8] = b"mvote";
pub(super) const PURGED_KEY: &[u8] = b"mpurged";
pub(super) const STORE_ID_KEY: &[u8] = b"mstore";

/// Commits after which the guard's bound is synced. Until then the unsynced hint holds it, which
/// only a power cut can take back.
const BOUND_COMMITS: u32 = 1024;

/// A log that was opened and read, with the state that a commit needs.
pub(super) struct Writer {
    /// The folder of the log, for messages.
    pub(super) folder: PathBuf,
    pub(super) segments: Segments,
    /// Vote, purge mark and store id, under `m` and their names.
    pub(super) marks: Box<dyn Tree>,
    pub(super) guard: Arc<Guard>,
    /// The last record, or the last one purged, whichever is later.
    pub(super) last: Option<LogId>,
    pub(super) purged: Option<LogId>,
    pub(super) since_bound: u32,
    pub(super) counters: Arc<Counters>,
}

/// A commit that was written, and is not durable yet.
pub(super) struct Written {
    begun: Instant,
    place: Place,
    vote: Option<StoredVote>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Segments,
    Marks,
}

impl Writer {
    pub(super) fn path(&self) -> &Path {
        &self.folder
    }

    pub(super) fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Begins a new segment if the commit does not fit into the present one.
    ///
    /// # Errors
    ///
    /// The fault; nothing of the commit was written.
    pub(super) async fn make_room(&mut self, commit: &Commit) -> Result<(), Fault> {
        let entry = match commit {
            Commit::Append(records) => Entry::Append(records),
            Commit::Truncate(keep) => Entry::Truncate(keep.map(|keep| keep.index)),
            Commit::Mark { .. } => return Ok(()),
        };
        if self.segments.fits(entry) {
            return Ok(());
        }
        self.segments.roll(entry).await.map_err(|error| self.fault("write", error))
    }

    /// The first step of a commit: writes it; it need not be on disk yet. There must be room.
    ///
    /// # Errors
    ///
    /// The fault. Whether the commit survives is unknown; it survives as a whole or not at all.
    pub(super) fn write(&mut self, commit: &Commit) -> Result<Written, Fault> {
        let begun = self.counters.now();
        let (place, vote) = match commit {
            Commit::Append(records) => {
                self.append(records)?;
                (Place::Segments, None)
            }
            Commit::Truncate(keep) => {
                if !mutant!(TruncationForgotten) {
                    self.truncate(*keep)?;
                }
                (Place::Segments, None)
            }
            Commit::Mark { vote, purged } => {
                self.mark(*vote, *purged)?;
                (Place::Marks, *vote)
            }
        };
        Ok(Written { begun, place, vote })
    }

    /// The second step: makes what was written durable.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub(super) fn sync(&mut self, written: &Written) -> Result<(), Fault> {
        if mutant!(FlushSkipped) || (written.vote.is_some() && mutant!(VoteNotSynced)) {
            return Ok(());
        }
        match written.place {
            Place::Segments => self.segments.sync(),
            Place::Marks => self.marks.sync(),
        }
        .map_err(|error| self.fault("sync", error))?;
        self.counters.committed(written.begun);
        Ok(())
    }

    /// The last step, after the commit is durable and never before: see the guard's invariants. A
    /// vote is acknowledged only when the guard holds it as well (I20). After a truncation the guard
    /// was updated before.
    ///
    /// # Errors
    ///
    /// The fault, which has been reported.
    pub(super) fn tell_guard(&mut self, written: &Written) -> Result<(), Fault> {
        if written.place == Place::Marks {
            self.purged.into_iter().for_each(|purged| self.segments.release(purged));
        }
        let vote = written.vote.filter(|_| !mutant!(VoteNotSynced));
        if let Some(last) = self.last.filter(|_| self.last != self.guard.durable()) {
            self.guard.hint(last)?;
        }
        self.since_bound += 1;
        if vote.is_none() && self.since_bound < BOUND_COMMITS {
            return Ok(());
        }
        self.since_bound = 0;
        self.guard.update(|guard| guard.vote = vote.or(guard.vote))
    }

    fn append(&mut self, records: &[Record]) -> Result<(), Fault> {
        let written = self.segments.write(Entry::Append(records));
        written.map_err(|error| self.fault("write", error))?;
        self.last = records.last().map(|record| record.log_id).or(self.last);
        Ok(())
    }

    /// The guard's bound is lowered and synced before: otherwise a crash right after would leave a
    /// log that is rightly shorter and would be refused (I21).
    fn truncate(&mut self, keep: Option<LogId>) -> Result<(), Fault> {
        let bound = self.guard.durable();
        if bound.is_some_and(|bound| keep.is_none_or(|keep| keep.index < bound.index)) {
            self.guard.update(|guard| guard.durable = keep)?;
        }
        let written = self.segments.write(Entry::Truncate(keep.map(|keep| keep.index)));
        written.map_err(|error| self.fault("write", error))?;
        self.last = keep;
        Ok(())
    }

    fn mark(&mut self, vote: Option<StoredVote>, purged: Option<LogId>) -> Result<(), Fault> {
        let mut changes = Vec::new();
        if let Some(vote) = vote {
            changes.push((VOTE_KEY.to_vec(), Some(encode_vote(vote))));
        }
        let later = |upto: &LogId| self.purged.is_none_or(|purged| purged.index < upto.index);
        if let Some(upto) = purged.filter(later) {
            changes.push((PURGED_KEY.to_vec(), Some(encode_purged(upto))));
            self.purged = Some(upto);
            self.last = std::cmp::max_by_key(self.last, Some(upto), |id| id.map(|id| id.index));
        }
        self.marks.write(changes).map_err(|error| self.fault("write", error))
    }

    /// Called before the log is closed: writes the bound to a synced slot, so that it holds for any
    /// change of the folder until the next start.
    ///
    /// # Errors
    ///
    /// The fault, which has been reported.
    pub(super) fn close(&mut self) -> Result<(), Fault> {
        self.guard.update(|_| {})
    }

    /// Leaves everything as it is after a fault: nothing is retried, and the folder stays locked until
    /// the process is gone.
    pub(super) fn abandon(self) {
        self.marks.abandon();
    }

    fn fault(&self, action: &'static str, error: io::Error) -> Fault {
        Fault::new(action, self.path(), error)
    }
}

pub(super) fn encode_vote(vote: StoredVote) -> Vec<u8> {
    let mut body = Vec::new();
    put_vote(vote, &mut body);
    seal(META_MAGIC, META_VERSION, &body)
}

fn encode_purged(upto: LogId) -> Vec<u8> {
    let mut body = Vec::new();
    put_log_id(upto, &mut body);
    seal(META_MAGIC, META_VERSION, &body)
}
