//! A commit of the log: groups, marks, and making them durable.
//!
//! All of it is in one tree, because a tree takes changes as a whole or not at all, also across a
//! crash. Groups of records are under `g` and the index of the first one, big-endian; vote, purge
//! mark and store id are under `m` and their names. A commit is one list of changes.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use holdfast_mutants::mutant;
use holdfast_runtime::Instant;

use super::commit_queue::Commit;
use super::counters::Counters;
use super::error::Fault;
use super::guard::Guard;
use super::log_store::Operation;
use super::record::{
    GROUP_BYTES, LogId, Record, StoredVote, decode_group, encode_record, encoded_len, put_log_id,
    put_vote, seal,
};
use super::tree::{Change, Tree};

pub(super) const META_MAGIC: [u8; 4] = *b"HFMT";
pub(super) const META_VERSION: u32 = 1;
pub(super) const GROUP_PREFIX: &[u8] = b"g";
pub(super) const VOTE_KEY: &[u8] = b"mvote";
pub(super) const PURGED_KEY: &[u8] = b"mpurged";
pub(super) const STORE_ID_KEY: &[u8] = b"mstore";

/// The key of the group that begins at `first`.
pub(super) fn group_key(first: u64) -> Vec<u8> {
    [GROUP_PREFIX, &first.to_be_bytes()].concat()
}

/// Groups removed by one commit after a purge. More make the commit slow: with 256 writers, purging
/// everything at once delayed commits by up to 1.1 s, 8 keys a commit by at most 50 ms.
const PURGE_SLICE: usize = 8;
/// Commits after which the guard's bound is synced. Until then the unsynced hint holds it, which
/// only a power cut can take back.
const BOUND_COMMITS: u32 = 1024;

/// A tree that was opened and read, with the state that a commit needs.
pub(super) struct Writer {
    pub(super) tree: Box<dyn Tree>,
    pub(super) guard: Arc<Guard>,
    /// The last record of each group, by the index of the first. Groups wholly below the purge mark
    /// are still to be removed.
    pub(super) groups: BTreeMap<u64, LogId>,
    pub(super) purged: Option<LogId>,
    pub(super) since_bound: u32,
    pub(super) counters: Arc<Counters>,
}

/// A commit that was written, and is not durable yet.
pub(super) struct Written {
    begun: Instant,
    /// What the guard takes over when the commit is durable; after a truncation nothing, because
    /// the guard was updated before.
    news: Option<News>,
}

impl Written {
    fn has_vote(&self) -> bool {
        self.news.is_some_and(|news| news.vote.is_some())
    }
}

#[derive(Clone, Copy)]
struct News {
    vote: Option<StoredVote>,
}

/// The changes of one commit to the tree.
#[derive(Default)]
struct Changes(Vec<Change>);

impl Changes {
    fn insert(&mut self, key: impl Into<Vec<u8>>, value: Vec<u8>) {
        self.0.push((key.into(), Some(value)));
    }

    fn remove(&mut self, key: Vec<u8>) {
        self.0.push((key, None));
    }
}

impl Writer {
    pub(super) fn path(&self) -> &Path {
        self.tree.path()
    }

    pub(super) fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Whether groups below the purge mark are still on disk.
    pub(super) fn has_purge_left(&self) -> bool {
        self.groups.first_key_value().is_some_and(|(_, last)| self.is_purged(*last))
    }

    /// Makes one commit durable.
    ///
    /// # Errors
    ///
    /// The fault. Whether the commit survives is unknown; it survives as a whole or not at all.
    pub(super) fn commit(&mut self, commit: &Commit) -> Result<(), Fault> {
        let written = self.write(commit)?;
        self.sync(&written)?;
        self.tell_guard(&written)
    }

    /// The first step of [`commit`](Self::commit): writes to the tree, which need not be on disk
    /// yet.
    pub(super) fn write(&mut self, commit: &Commit) -> Result<Written, Fault> {
        let begun = self.counters.now();
        let news = match commit {
            Commit::Changes(changes) => Some(self.change(changes)?),
            Commit::Truncate(keep) => {
                if !mutant!(TruncationForgotten) {
                    self.truncate(*keep)?;
                }
                None
            }
        };
        Ok(Written { begun, news })
    }

    /// The second step: makes what was written durable.
    pub(super) fn sync(&mut self, written: &Written) -> Result<(), Fault> {
        if mutant!(FlushSkipped) || (written.has_vote() && mutant!(VoteNotSynced)) {
            return Ok(());
        }
        let blobs = self.tree.sync().map_err(|e| self.fault("sync", e))?;
        self.counters.committed(written.begun, blobs);
        Ok(())
    }

    /// The last step, after the commit is durable and never before: see the guard's invariants. A
    /// vote is acknowledged only when the guard holds it as well (I20).
    pub(super) fn tell_guard(&mut self, written: &Written) -> Result<(), Fault> {
        let Some(News { vote }) = written.news else { return Ok(()) };
        let vote = vote.filter(|_| !mutant!(VoteNotSynced));
        let last = self.last();
        if let Some(last) = last.filter(|_| last != self.guard.durable()) {
            self.guard.hint(last)?;
        }
        self.since_bound += 1;
        if vote.is_none() && self.since_bound < BOUND_COMMITS {
            return Ok(());
        }
        self.since_bound = 0;
        self.guard.update(|guard| guard.vote = vote.or(guard.vote))
    }

    fn change(&mut self, changes: &[Operation]) -> Result<News, Fault> {
        let mut batch = Changes::default();
        let mut vote = None;
        let mut records = Vec::new();
        for change in changes {
            match change {
                Operation::Append(appended) => records.extend(appended),
                Operation::Vote(new) => vote = Some(*new),
                Operation::Purge(upto) => self.mark_purged(*upto, &mut batch),
                // Comes separately as `Commit::Truncate`.
                Operation::TruncateAfter(_) => {}
            }
        }
        if let Some(vote) = vote {
            batch.insert(VOTE_KEY, encode_vote(vote));
        }
        self.put_groups(&records, &mut batch);
        self.purge_slice(&mut batch);
        self.apply(batch)?;
        Ok(News { vote })
    }

    /// Writes the purge mark. This commit and later ones remove the groups below it in slices.
    fn mark_purged(&mut self, upto: LogId, batch: &mut Changes) {
        if self.purged.is_none_or(|purged| purged.index < upto.index) {
            self.purged = Some(upto);
            batch.insert(PURGED_KEY, encode_purged(upto));
        }
    }

    /// Packs records into groups of at most [`GROUP_BYTES`]. After a purge beyond the end of the
    /// log there may be a hole between two records: a group never spans it.
    fn put_groups(&mut self, records: &[&Record], batch: &mut Changes) {
        let mut group = Vec::new();
        let mut ids: Option<(u64, LogId)> = None;
        for record in records {
            let index = record.log_id.index;
            let full = group.len() + encoded_len(record) > GROUP_BYTES;
            if full || ids.is_some_and(|(_, last)| last.index.checked_add(1) != Some(index)) {
                self.put_group(ids.take(), &mut group, batch);
            }
            encode_record(record, &mut group);
            let first = ids.map_or(index, |(first, _)| first);
            ids = Some((first, record.log_id));
        }
        self.put_group(ids, &mut group, batch);
    }

    fn put_group(&mut self, ids: Option<(u64, LogId)>, group: &mut Vec<u8>, batch: &mut Changes) {
        if let Some((first, last)) = ids {
            batch.insert(group_key(first), std::mem::take(group));
            self.groups.insert(first, last);
            self.counters.groups.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn purge_slice(&mut self, batch: &mut Changes) {
        for _ in 0..PURGE_SLICE {
            if !self.has_purge_left() {
                return;
            }
            if let Some((first, _)) = self.groups.pop_first() {
                batch.remove(group_key(first));
                self.counters.groups_purged.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Rewrites the group that holds `keep` and drops the later ones, in one batch.
    ///
    /// The guard's bound is lowered and synced before: otherwise a crash right after would leave a
    /// log that is rightly shorter and would be refused (I21).
    fn truncate(&mut self, keep: Option<u64>) -> Result<(), Fault> {
        let mut batch = Changes::default();
        let from = keep.map_or(0, |keep| keep.saturating_add(1));
        for (first, _) in self.groups.split_off(&from) {
            batch.remove(group_key(first));
        }
        if let Some((first, last)) = self.groups.pop_last() {
            let last = if Some(last.index) > keep {
                self.shorten_group(first, keep, &mut batch)?
            } else {
                Some(last)
            };
            if let Some(last) = last {
                self.groups.insert(first, last);
            }
        }
        let last = self.last();
        let bound = self.guard.durable();
        if bound.is_some_and(|bound| last.is_none_or(|last| last.index < bound.index)) {
            self.guard.update(|guard| guard.durable = last)?;
        }
        self.apply(batch)
    }

    /// Writes the records up to `keep` back under `first`; returns the last of them.
    fn shorten_group(
        &self,
        first: u64,
        keep: Option<u64>,
        batch: &mut Changes,
    ) -> Result<Option<LogId>, Fault> {
        let stored = self.tree.get(&group_key(first)).map_err(|e| self.fault("read", e))?;
        let records = decode_group(&stored.unwrap_or_default())
            .map_err(|error| self.fault("read", io::Error::other(error)))?;
        let mut group = Vec::new();
        let mut last = None;
        for record in records.iter().take_while(|record| Some(record.log_id.index) <= keep) {
            encode_record(record, &mut group);
            last = Some(record.log_id);
        }
        batch.insert(group_key(first), group);
        Ok(last)
    }

    /// Writes the changes, as a whole or not at all.
    fn apply(&mut self, changes: Changes) -> Result<(), Fault> {
        self.tree.write(changes.0).map_err(|error| self.fault("write", error))
    }

    /// Called before the tree is closed: writes the bound to a synced slot, so that it holds for
    /// any change of the folder until the next start.
    pub(super) fn close(&mut self) -> Result<(), Fault> {
        self.guard.update(|_| {})
    }

    /// The last record, or the last one purged, whichever is later.
    fn last(&self) -> Option<LogId> {
        let last = self.groups.last_key_value().map(|(_, last)| *last);
        std::cmp::max_by_key(last, self.purged, |id| id.map(|id| id.index))
    }

    fn is_purged(&self, last: LogId) -> bool {
        self.purged.is_some_and(|purged| last.index <= purged.index)
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
