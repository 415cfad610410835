//! What the writer thread does with sled: groups, marks, and making them durable.
//!
//! All of it is in one tree, because sled applies a batch to one tree as a whole or not at all, also
//! over a crash: groups of records under `g` and the index of the first one, big-endian; vote, purge
//! mark and store id under `m` and their names. A commit is one batch, or one change.
//!
//! sled's `flush` writes, but syncs neither metadata nor the device (measured: 60 of 60 simulated
//! power cuts lost acknowledged keys). So each commit ends with our own `fdatasync` of sled's one
//! file, through a handle of our own on the same inode (I19).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::error::Fault;
use super::files::sync_folder;
use super::guard::Guard;
use super::log_io::Operation;
use super::record::{
    GROUP_BYTES, LogId, Record, StoredVote, decode_group, encode_record, encoded_len, put_log_id,
    put_vote, seal,
};
use super::sled_log::Counters;
use super::sled_pool::Idlers;
use super::store::FolderLock;

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

/// Groups removed by one commit after a purge. More make the commit slow: purging at one go cost
/// up to 1.1 s of delay at 256 writers, 8 keys a commit at most 50 ms.
const PURGE_SLICE: usize = 8;
/// Commits after which the guard's bound is synced. Until then the unsynced hint says it, which
/// only a power cut can take back.
const BOUND_COMMITS: u32 = 1024;

/// What goes to disk together.
pub(super) enum Commit {
    /// Appends, votes and purges. Empty: a slice of purge alone.
    Changes(Vec<Operation>),
    /// Removes every record after this index.
    Truncate(Option<u64>),
}

/// sled, opened and read, with all that a commit needs to know about it.
pub(super) struct Writer {
    pub(super) db: sled::Db,
    pub(super) tree: sled::Tree,
    pub(super) idlers: Arc<Idlers>,
    pub(super) file: DataFile,
    pub(super) guard: Arc<Guard>,
    /// The last record of each group, by the index of the first. Groups that lie below the purge
    /// mark as a whole are still to be removed.
    pub(super) groups: BTreeMap<u64, LogId>,
    pub(super) purged: Option<LogId>,
    pub(super) since_bound: u32,
    pub(super) counters: Arc<Counters>,
    /// Held as long as sled is open, so that no other process opens it; the last field, for the last
    /// to be dropped.
    pub(super) _lock: FolderLock,
}

/// What one commit does to the tree: keys, with their new values or none.
#[derive(Default)]
struct Changes(Vec<(Vec<u8>, Option<Vec<u8>>)>);

impl Changes {
    fn insert(&mut self, key: impl Into<Vec<u8>>, value: Vec<u8>) {
        self.0.push((key.into(), Some(value)));
    }

    fn remove(&mut self, key: Vec<u8>) {
        self.0.push((key, None));
    }

    /// Hands the changes to sled. One alone needs no batch to be atomic, and most commits are one
    /// group of records; for a batch sled writes a record of its own before the changes, by itself,
    /// and waits for the disk for each.
    fn write(mut self, tree: &sled::Tree) -> sled::Result<()> {
        if self.0.len() > 1 {
            return tree.apply_batch(self.into_batch());
        }
        match self.0.pop() {
            Some((key, Some(value))) => tree.insert(key, value).map(drop),
            Some((key, None)) => tree.remove(key).map(drop),
            None => Ok(()),
        }
    }

    fn into_batch(self) -> sled::Batch {
        let mut batch = sled::Batch::default();
        for (key, value) in self.0 {
            match value {
                Some(value) => batch.insert(key, value),
                None => batch.remove(key),
            }
        }
        batch
    }
}

/// Handles on what sled writes, to be synced by us.
pub(super) struct DataFile {
    path: PathBuf,
    db: File,
    blobs: PathBuf,
    blobs_changed: (i64, i64),
}

impl DataFile {
    /// # Errors
    ///
    /// As from the system; nothing was changed.
    pub(super) fn open(sled_folder: &Path) -> io::Result<Self> {
        let path = sled_folder.join("db");
        let db = File::open(&path)?;
        let blobs = sled_folder.join("blobs");
        let blobs_changed = changed(&blobs)?;
        Ok(Self { path, db, blobs, blobs_changed })
    }

    /// Makes what sled has written durable. Returns whether `blobs/` had to be synced.
    ///
    /// Values are bounded so that sled keeps them in its file; but it decides by the size of a
    /// page, so a look at the folder's time stamp, one system call, backs the bound up.
    fn sync(&mut self) -> io::Result<bool> {
        self.db.sync_data()?;
        let now = changed(&self.blobs)?;
        if now == self.blobs_changed {
            return Ok(false);
        }
        for entry in fs::read_dir(&self.blobs)? {
            match File::open(entry?.path()) {
                Ok(blob) => blob.sync_all()?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        sync_folder(&self.blobs)?;
        self.blobs_changed = now;
        Ok(true)
    }
}

fn changed(folder: &Path) -> io::Result<(i64, i64)> {
    let metadata = fs::metadata(folder)?;
    Ok((metadata.mtime(), metadata.mtime_nsec()))
}

impl Writer {
    pub(super) fn path(&self) -> &Path {
        &self.file.path
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
    /// The fault: whether the commit survives is unknown; it does as a whole or not at all.
    pub(super) fn commit(&mut self, commit: &Commit) -> Result<(), Fault> {
        match commit {
            Commit::Changes(changes) => self.change(changes),
            Commit::Truncate(keep) => self.truncate(*keep),
        }
    }

    fn change(&mut self, changes: &[Operation]) -> Result<(), Fault> {
        let mut batch = Changes::default();
        let mut vote = None;
        let mut records = Vec::new();
        for change in changes {
            match change {
                Operation::Append(appended) => records.extend(appended),
                Operation::Vote(new) => vote = Some(*new),
                Operation::Purge(upto) => self.mark_purged(*upto, &mut batch),
                // Comes as `Commit::Truncate`, by itself.
                Operation::TruncateAfter(_) => {}
            }
        }
        if let Some(vote) = vote {
            batch.insert(VOTE_KEY, encode_vote(vote));
        }
        self.put_groups(&records, &mut batch);
        self.purge_slice(&mut batch);
        self.apply(batch)?;
        self.tell_guard(vote)
    }

    /// Remembers the mark; the groups below it go in slices, with this commit and later ones.
    fn mark_purged(&mut self, upto: LogId, batch: &mut Changes) {
        if self.purged.is_none_or(|purged| purged.index < upto.index) {
            self.purged = Some(upto);
            batch.insert(PURGED_KEY, encode_purged(upto));
        }
    }

    /// Packs records into groups of at most [`GROUP_BYTES`]. A purge beyond the end of the log may
    /// lie between two of them: a group never spans that hole.
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
    /// The guard's bound goes down before, synced: otherwise a crash right after would leave a log
    /// that is rightly shorter and would be refused (I21).
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

    /// Puts the records up to `keep` back under `first`; returns the last of them.
    fn shorten_group(
        &self,
        first: u64,
        keep: Option<u64>,
        batch: &mut Changes,
    ) -> Result<Option<LogId>, Fault> {
        let stored = self.tree.get(group_key(first)).map_err(|e| self.fault("read", e))?;
        let stored = Bytes::copy_from_slice(&stored.unwrap_or_default());
        let records = decode_group(&stored)
            .map_err(|error| Fault::new("read", self.path(), io::Error::other(error)))?;
        let mut group = Vec::new();
        let mut last = None;
        for record in records.iter().take_while(|record| Some(record.log_id.index) <= keep) {
            encode_record(record, &mut group);
            last = Some(record.log_id);
        }
        batch.insert(group_key(first), group);
        Ok(last)
    }

    /// Writes the changes, as a whole or not at all, and makes them durable.
    fn apply(&mut self, changes: Changes) -> Result<(), Fault> {
        let begun = self.counters.now();
        let underway = self.idlers.underway();
        changes
            .write(&self.tree)
            .and_then(|()| self.db.flush())
            .map_err(|error| self.fault("write", error))?;
        drop(underway);
        let blobs = self.file.sync().map_err(|e| Fault::new("sync", self.path(), e))?;
        self.counters.committed(begun, blobs);
        Ok(())
    }

    /// After the commit is durable, never before: see the guard's invariants. A vote is
    /// acknowledged only when the guard holds it as well (I20).
    fn tell_guard(&mut self, vote: Option<StoredVote>) -> Result<(), Fault> {
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

    /// Before sled is closed: the bound stands in a synced slot, so that it holds for whatever
    /// happens to the folder until the next start.
    pub(super) fn close(&mut self) -> Result<(), Fault> {
        self.guard.update(|_| {})
    }

    /// The last record, or what is purged, whichever is later.
    fn last(&self) -> Option<LogId> {
        let last = self.groups.last_key_value().map(|(_, last)| *last);
        std::cmp::max_by_key(last, self.purged, |id| id.map(|id| id.index))
    }

    fn is_purged(&self, last: LogId) -> bool {
        self.purged.is_some_and(|purged| last.index <= purged.index)
    }

    fn fault(&self, action: &'static str, error: sled::Error) -> Fault {
        Fault::new(action, self.path(), to_io(error))
    }
}

pub(super) fn to_io(error: sled::Error) -> io::Error {
    match error {
        sled::Error::Io(error) => error,
        other => io::Error::other(other.to_string()),
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
