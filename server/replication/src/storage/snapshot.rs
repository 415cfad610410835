//! Snapshots: separate files, which count only once they were synced and read back (I30).
//!
//! A file is a header (cluster, incarnation, last log id, the caller's meta bytes; checksummed),
//! the body, and a trailer with the body's length and SHA-256. It is written under a temporary
//! name, synced, read back from the disk, renamed, and its folder synced; then the guard file is
//! updated. Bodies of the same state are equal on all nodes, headers need not be.
//!
//! # Invariants
//!
//! - [`Snapshots::newest`] names a file whose bytes were read back and matched. It stays open, as its spare
//!   does, so that reading it takes no descriptor.
//! - A file that counts is never shortened while somebody may read it, nor under its name.
//! - The newest snapshot of the guard file is on disk, or the log reaches from an older one
//!   through it; otherwise the store does not open.

use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::disk::{Disk, DiskFile, Place, read_exact_at};
use super::error::{Fault, OnFault, OpenError, open_error};
use super::guard::{ClusterId, Guard, put_optional_log_id, take_optional_log_id};
use super::record::{DecodeError, Fields, LogId, put_length, seal, unseal};
use super::replica_store::{KeptSnapshot, SnapshotDraft};

const HEADER_MAGIC: [u8; 4] = *b"HFSN";
const TRAILER_MAGIC: [u8; 4] = *b"HFSE";
const VERSION: u32 = 1;
/// Frame of [`seal`] around the trailer's length and hash.
const TRAILER_BYTES: u64 = 16 + 8 + 32;
/// Frame of [`seal`] before its body, which ends with the body's length.
const FRAME_HEAD: usize = 12;
const EXTENSION: &str = "snap";

/// Bytes after which the written part of a snapshot is synced. The log's own syncs wait behind each
/// of these syncs, and no grant is given meanwhile: one sync of a large file at its end would delay
/// them for seconds, and look like a disk that hangs. A slow disk writes a slice in ten
/// milliseconds, and the next one is encoded before it is synced.
const SYNC_SLICE: u64 = 1 << 20;

/// What a file is shortened by before it is removed. The log's own syncs wait behind what the file system
/// has to do for it: a tenth of a second for a file of a gigabyte, if it is freed at once.
const FREED_AT_ONCE: u64 = 16 << 20;

/// Between two such pieces, for the log's syncs.
const FREES_EVERY: Duration = Duration::from_millis(2);

/// Largest piece of a snapshot returned at once, bytes.
pub const SNAPSHOT_CHUNK: usize = 64 << 10;

/// Largest meta of a snapshot, bytes.
pub const MAX_SNAPSHOT_META: usize = 1 << 20;

/// A snapshot that was synced and read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// The last record it contains; `None` for the state before the first.
    pub last: Option<LogId>,
    /// The caller's bytes: the membership and what else belongs to it.
    pub meta: Bytes,
    /// Length of the body.
    pub length: u64,
    /// SHA-256 of the body.
    pub sha256: [u8; 32],
    /// Its file.
    pub(crate) path: PathBuf,
}

/// The snapshots of one store. Methods that touch the disk block: call them off the runtime.
pub struct Snapshots {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    guard: Arc<Guard>,
    on_fault: OnFault,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Good files, oldest first. The last is the newest; the one before it is a spare for as long
    /// as the log reaches back to it.
    good: Vec<Good>,
    next_temporary: u64,
}

/// A good file, open.
struct Good {
    info: SnapshotInfo,
    /// Each reader has a reference of its own.
    file: Arc<dyn DiskFile>,
}

impl Snapshots {
    /// Finds the newest good snapshot in `folder`, which is created if it is missing.
    ///
    /// `log` is the range that the log still holds: (last purged index, last index). A damaged or
    /// missing newest snapshot is tolerated only if the log reaches from an older one through it.
    ///
    /// # Errors
    ///
    /// What is damaged or lost. Nothing was changed, except that left-over temporary files were
    /// removed.
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        folder: PathBuf,
        guard: Arc<Guard>,
        log: (Option<u64>, Option<u64>),
        on_fault: OnFault,
    ) -> Result<Self, OpenError> {
        let files = list(&*disk, &folder).map_err(|e| open_error("read", &folder, e))?;
        let mut good: Vec<Good> = Vec::new();
        let mut damage: Vec<OpenError> = Vec::new();
        for path in files {
            match verify(&*disk, &path, &guard) {
                Ok((info, file)) => good.push(Good { info, file }),
                Err(error @ (OpenError::Damaged { .. } | OpenError::OtherCluster { .. })) => {
                    damage.push(error);
                }
                Err(error) => return Err(error),
            }
        }
        good.sort_by_key(|one| one.info.last.map(|last| last.index));
        let newest = good.last().and_then(|one| one.info.last);
        let reaches_back = log.0 <= newest.map(|last| last.index);
        let mark = guard.state().snapshot;
        let reaches_mark = mark.is_none_or(|mark| {
            newest.is_some_and(|last| last.index >= mark.index) || log.1 >= Some(mark.index)
        });
        if !(reaches_back && reaches_mark) {
            return Err(damage.pop().unwrap_or_else(|| lost(&folder, newest, mark, log.0)));
        }
        for error in &damage {
            tracing::warn!(%error, "a damaged snapshot is passed over: the log reaches past it");
        }
        let state = Mutex::new(State { good, next_temporary: 0 });
        Ok(Self { disk, folder, guard, on_fault, state })
    }

    /// The newest good snapshot.
    pub fn newest(&self) -> Option<SnapshotInfo> {
        self.lock().good.last().map(|newest| newest.info.clone())
    }

    /// Begins a snapshot that ends at `last`. It does not count until it is finished; dropped
    /// before, it leaves nothing behind.
    ///
    /// # Errors
    ///
    /// As from the system; the fault has been reported. [`io::ErrorKind::InvalidInput`] if `meta`
    /// is above [`MAX_SNAPSHOT_META`]; nothing happened then.
    pub fn begin(self: &Arc<Self>, last: Option<LogId>, meta: Bytes) -> io::Result<SnapshotWriter> {
        if meta.len() > MAX_SNAPSHOT_META {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "snapshot meta is too large"));
        }
        let path = self.temporary();
        let identity = self.guard.state().identity;
        let header = encode_header(identity.cluster, identity.incarnation, last, &meta);
        let file = self.disk.create(&path).map_err(|e| self.report("create", &path, e))?;
        let mut writer = SnapshotWriter {
            snapshots: Arc::clone(self),
            temporary: path,
            file: BufWriter::with_capacity(SNAPSHOT_CHUNK, Place::beginning_of(file)),
            hash: Sha256::new(),
            info: SnapshotInfo { last, meta, length: 0, sha256: [0; 32], path: PathBuf::new() },
            synced: 0,
            purged: None,
            finished: false,
        };
        writer.write_raw(&header)?;
        Ok(writer)
    }

    /// A name under which no file counts. The next start removes what is left there.
    fn temporary(&self) -> PathBuf {
        let mut state = self.lock();
        state.next_temporary += 1;
        self.folder.join(format!("{}.tmp", state.next_temporary))
    }

    /// The body of `info` for reading. A file that is replaced meanwhile stays readable.
    ///
    /// # Errors
    ///
    /// As from the system; [`io::ErrorKind::NotFound`] if newer snapshots have replaced it.
    pub fn read(&self, info: &SnapshotInfo) -> io::Result<SnapshotReader> {
        let file = {
            let state = self.lock();
            let found = state.good.iter().find(|one| one.info == *info);
            found.map(|one| Arc::clone(&one.file)).ok_or(io::ErrorKind::NotFound)?
        };
        SnapshotReader::of(file, info.clone())
    }

    /// Removes the spare snapshot once the log no longer reaches back to it. To be called after a
    /// purge up to `purged`; the newest always stays.
    ///
    /// # Errors
    ///
    /// As from the system; the next start removes what is left.
    pub fn remove_older(&self, purged: Option<LogId>) -> io::Result<()> {
        let purged = purged.map(|id| id.index);
        self.remove_where(|info| info.last.map(|last| last.index) < purged)
    }

    /// Removes every snapshot but the newest that is `useless`, and all but one of the others: one
    /// spare is enough, and the latest of them needs the least log.
    ///
    /// The files go after the lock: a disk takes its time to free a large one, and the thread that
    /// serves asks for the newest snapshot.
    fn remove_where(&self, useless: impl Fn(&SnapshotInfo) -> bool) -> io::Result<()> {
        self.forget_where(useless).into_iter().try_for_each(|removed| self.free(removed))
    }

    /// Removes a file that is off the list, piece by piece: nobody begins to read it any more. One that
    /// somebody still reads is freed as a whole, when that ends.
    fn free(&self, removed: Good) -> io::Result<()> {
        let Good { info, file } = removed;
        let mut left = file.length()?;
        if left <= FREED_AT_ONCE || Arc::strong_count(&file) > 1 {
            return self.disk.remove(&info.path);
        }
        // A start after a crash must not find a damaged snapshot.
        let temporary = self.temporary();
        self.disk.rename(&info.path, &temporary)?;
        self.disk.sync_folder(&self.folder)?;
        while left > FREED_AT_ONCE {
            left -= FREED_AT_ONCE;
            file.shorten(left)?;
            file.sync_data()?;
            if self.disk.may_block() {
                thread::sleep(FREES_EVERY);
            }
        }
        self.disk.remove(&temporary)
    }

    /// Takes the same snapshots off the list.
    fn forget_where(&self, useless: impl Fn(&SnapshotInfo) -> bool) -> Vec<Good> {
        let mut state = self.lock();
        let newest = state.good.len().saturating_sub(1);
        let spare = newest.saturating_sub(1);
        let stays =
            |at: usize, info: &SnapshotInfo| at == newest || (at == spare && !useless(info));
        let good = std::mem::take(&mut state.good);
        let (kept, removed): (Vec<_>, Vec<_>) =
            (0..).zip(good).partition(|(at, one)| stays(*at, &one.info));
        state.good = kept.into_iter().map(|(_, one)| one).collect();
        removed.into_iter().map(|(_, one)| one).collect()
    }

    /// Moves a file that was read back to its place. The guard is updated last: it must never name
    /// a snapshot that a power cut can take away.
    fn admit(
        &self,
        temporary: &Path,
        mut info: SnapshotInfo,
        file: Arc<dyn DiskFile>,
    ) -> io::Result<SnapshotInfo> {
        info.path = self.folder.join(file_name(info.last));
        self.disk
            .rename(temporary, &info.path)
            .and_then(|()| self.disk.sync_folder(&self.folder))
            .map_err(|e| self.report("rename", &info.path, e))?;
        let mut state = self.lock();
        state.good.retain(|other| other.info.path != info.path);
        let index = |one: &SnapshotInfo| one.last.map(|last| last.index);
        let at = state.good.partition_point(|other| index(&other.info) <= index(&info));
        state.good.insert(at, Good { info: info.clone(), file });
        let newest = state.good.last().and_then(|newest| newest.info.last);
        drop(state);
        // Another snapshot may be admitted at the same time; the guard keeps the later one.
        self.guard
            .update(|guard| {
                guard.snapshot =
                    std::cmp::max_by_key(guard.snapshot, newest, |id| id.map(|id| id.index));
            })
            .map_err(|fault| fault.to_io())?;
        self.remove_where(|_| false).map_err(|e| self.report("remove from", &self.folder, e))?;
        Ok(info)
    }

    fn report(&self, action: &'static str, path: &Path, error: io::Error) -> io::Error {
        let fault = Fault::new(action, path, error);
        let error = fault.to_io();
        (self.on_fault)(fault);
        error
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Snapshots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshots").field("newest", &self.newest()).finish_non_exhaustive()
    }
}

/// Writes the body of a snapshot, from the state machine or from a peer. Every failed write is a
/// reported [`Fault`].
pub struct SnapshotWriter {
    snapshots: Arc<Snapshots>,
    temporary: PathBuf,
    file: BufWriter<Place>,
    hash: Sha256,
    info: SnapshotInfo,
    /// Bytes of the body that were synced.
    synced: u64,
    /// What the log had purged when it was begun.
    pub(super) purged: Option<LogId>,
    finished: bool,
}

impl SnapshotWriter {
    /// Makes the snapshot durable, reads it back from the disk, and lets it count. Returns a reader of
    /// it, even if newer snapshots have replaced the file meanwhile.
    ///
    /// # Errors
    ///
    /// As from the system, or [`io::ErrorKind::InvalidData`] if it did not read back as written.
    /// The fault has been reported; whether the snapshot is there after a restart is unknown.
    pub fn finish(mut self) -> io::Result<SnapshotReader> {
        self.info.sha256 = std::mem::take(&mut self.hash).finalize().into();
        let mut trailer = self.info.length.to_be_bytes().to_vec();
        trailer.extend_from_slice(&self.info.sha256);
        self.write_raw(&seal(TRAILER_MAGIC, VERSION, &trailer))?;
        let synced = self.file.flush().and_then(|()| self.file.get_ref().file.sync_all());
        synced.map_err(|e| self.report("sync", e))?;
        let file = self.read_back()?;
        let mut reader = SnapshotReader::of(Arc::clone(&file), self.info.clone())?;
        reader.info = self.snapshots.admit(&self.temporary, reader.info, file)?;
        self.finished = true;
        Ok(reader)
    }

    /// I30: reads from the disk, not from the page cache, as far as the kernel heeds the advice.
    fn read_back(&self) -> io::Result<Arc<dyn DiskFile>> {
        self.file.get_ref().file.forget_cached();
        match verify(&*self.snapshots.disk, &self.temporary, &self.snapshots.guard) {
            Ok((read, file))
                if (read.last, read.length, read.sha256)
                    == (self.info.last, self.info.length, self.info.sha256) =>
            {
                return Ok(file);
            }
            // The file was not even read.
            Err(OpenError::NoDescriptors { source, .. }) => {
                return Err(self.report("open", source));
            }
            _ => {}
        }
        let error = io::Error::new(io::ErrorKind::InvalidData, "does not read back as written");
        Err(self.report("verify", error))
    }

    fn write_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes).map_err(|e| self.report("write", e))
    }

    fn sync_slice(&mut self) -> io::Result<()> {
        let synced = self.file.flush().and_then(|()| self.file.get_ref().file.sync_data());
        synced.map_err(|e| self.report("sync", e))?;
        self.synced = self.info.length;
        Ok(())
    }

    fn report(&self, action: &'static str, error: io::Error) -> io::Error {
        self.snapshots.report(action, &self.temporary, error)
    }
}

impl Write for SnapshotWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_raw(bytes)?;
        self.hash.update(bytes);
        self.info.length += bytes.len() as u64;
        if self.info.length - self.synced >= SYNC_SLICE {
            self.sync_slice()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush().map_err(|e| self.report("write", e))
    }
}

impl SnapshotDraft for SnapshotWriter {
    fn is_whole(&self, length: u64, sha256: &[u8]) -> bool {
        self.info.length == length && self.hash.clone().finalize().as_slice() == sha256
    }

    fn finish(self: Box<Self>) -> io::Result<Arc<dyn KeptSnapshot>> {
        let (snapshots, purged) = (Arc::clone(&self.snapshots), self.purged);
        // Built while the disk was slow it may be older than two that came from a leader meanwhile,
        // and removed already.
        let kept = (*self).finish()?;
        snapshots.remove_older(purged)?;
        Ok(Arc::new(kept))
    }
}

impl Drop for SnapshotWriter {
    fn drop(&mut self) {
        if !self.finished {
            // If the file stays, the next start removes it.
            drop(self.snapshots.disk.remove(&self.temporary));
        }
    }
}

impl std::fmt::Debug for SnapshotWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SnapshotWriter").field("info", &self.info).finish_non_exhaustive()
    }
}

/// A finished snapshot, open for reading by position. [`BodyReader`](super::BodyReader) reads it as a
/// stream.
pub struct SnapshotReader {
    info: SnapshotInfo,
    file: Arc<dyn DiskFile>,
    start: u64,
}

impl SnapshotReader {
    /// A reader of an open file.
    fn of(file: Arc<dyn DiskFile>, info: SnapshotInfo) -> io::Result<Self> {
        let whole = file.length()?;
        let start = whole.checked_sub(info.length + TRAILER_BYTES).ok_or_else(cut_off)?;
        Ok(Self { info, file, start })
    }
}

impl KeptSnapshot for SnapshotReader {
    fn info(&self) -> &SnapshotInfo {
        &self.info
    }

    fn chunk(&self, offset: u64) -> io::Result<Bytes> {
        let left = self.info.length.saturating_sub(offset);
        let size = usize::try_from(left).map_or(SNAPSHOT_CHUNK, |left| left.min(SNAPSHOT_CHUNK));
        let mut bytes = vec![0; size];
        read_exact_at(&*self.file, &mut bytes, self.start.saturating_add(offset))?;
        Ok(bytes.into())
    }
}

impl std::fmt::Debug for SnapshotReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SnapshotReader").field("info", &self.info).finish_non_exhaustive()
    }
}

pub(super) fn encode_header(
    cluster: Option<ClusterId>,
    incarnation: u64,
    last: Option<LogId>,
    meta: &[u8],
) -> Vec<u8> {
    let mut body = cluster.map_or([0; 16], |cluster| cluster.0).to_vec();
    body.extend_from_slice(&incarnation.to_be_bytes());
    put_optional_log_id(last, &mut body);
    put_length(meta.len(), &mut body);
    body.extend_from_slice(meta);
    seal(HEADER_MAGIC, VERSION, &body)
}

/// The contents of a header, and its length.
pub(super) struct Header {
    cluster: ClusterId,
    incarnation: u64,
    last: Option<LogId>,
    meta: Bytes,
    bytes: u64,
}

/// Reads the whole file and checks it against its own hash and the identity of this node (I22).
fn verify(
    disk: &dyn Disk,
    path: &Path,
    guard: &Guard,
) -> Result<(SnapshotInfo, Arc<dyn DiskFile>), OpenError> {
    let file = disk.open(path).map_err(|e| open_error("open", path, e))?;
    let identity = guard.state().identity;
    let (header, info) = check_file(Arc::clone(&file), path)?;
    let expected = identity.cluster.unwrap_or(ClusterId([0; 16]));
    if header.cluster != expected {
        let (path, found) = (path.to_path_buf(), header.cluster);
        return Err(OpenError::OtherCluster { path, found, expected });
    }
    if header.incarnation != identity.incarnation {
        let what = format!(
            "it belongs to incarnation {} of the cluster, this is incarnation {}",
            header.incarnation, identity.incarnation
        );
        return Err(OpenError::Damaged { path: path.to_path_buf(), what });
    }
    Ok((info, file))
}

pub(super) fn check_file(
    file: Arc<dyn DiskFile>,
    path: &Path,
) -> Result<(Header, SnapshotInfo), OpenError> {
    let unreadable = |e| open_error("read", path, e);
    let whole = file.length().map_err(unreadable)?;
    let mut file = Place::beginning_of(file);
    let header = read_header(&mut file).map_err(unreadable)?.map_err(|e| damaged(path, e))?;
    let length = whole
        .checked_sub(header.bytes + TRAILER_BYTES)
        .ok_or_else(|| damaged(path, DecodeError::CutOff))?;
    let sha256 = hash(&mut Read::take(&mut file, length)).map_err(unreadable)?;
    let mut trailer = Vec::new();
    file.read_to_end(&mut trailer).map_err(unreadable)?;
    let (stored_length, stored_hash) = decode_trailer(&trailer).map_err(|e| damaged(path, e))?;
    if stored_length != length {
        return Err(damaged(path, DecodeError::CutOff));
    }
    if stored_hash != sha256 {
        return Err(damaged(path, DecodeError::Checksum));
    }
    let (last, meta) = (header.last, header.meta.clone());
    let info = SnapshotInfo { last, meta, length, sha256, path: path.to_path_buf() };
    Ok((header, info))
}

fn read_header(file: &mut Place) -> io::Result<Result<Header, DecodeError>> {
    let mut frame = Vec::new();
    Read::take(&mut *file, FRAME_HEAD as u64).read_to_end(&mut frame)?;
    let length = frame.get(8..).and_then(|bytes| bytes.first_chunk::<4>());
    let length = length.map_or(0, |bytes| u64::from(u32::from_be_bytes(*bytes)));
    if length > (MAX_SNAPSHOT_META + 64) as u64 {
        return Ok(Err(DecodeError::Field { field: "header length", value: length }));
    }
    Read::take(&mut *file, length + 4).read_to_end(&mut frame)?;
    Ok(decode_header(&frame))
}

fn decode_header(frame: &[u8]) -> Result<Header, DecodeError> {
    let mut fields = Fields(unseal(HEADER_MAGIC, VERSION, frame)?);
    Ok(Header {
        cluster: ClusterId(fields.array()?),
        incarnation: fields.u64()?,
        last: take_optional_log_id(&mut fields)?,
        meta: Bytes::copy_from_slice(fields.string()?),
        bytes: frame.len() as u64,
    })
}

fn decode_trailer(bytes: &[u8]) -> Result<(u64, [u8; 32]), DecodeError> {
    let mut fields = Fields(unseal(TRAILER_MAGIC, VERSION, bytes)?);
    Ok((fields.u64()?, fields.array()?))
}

/// The contents in the frame of a head.
#[cfg(test)]
pub(super) fn header_body(head: &[u8]) -> Result<&[u8], DecodeError> {
    unseal(HEADER_MAGIC, VERSION, head)
}

/// A head that contains `body`, with a correct checksum.
#[cfg(test)]
pub(super) fn seal_header(body: &[u8]) -> Vec<u8> {
    seal(HEADER_MAGIC, VERSION, body)
}

/// A whole file with that head and that content.
#[cfg(test)]
pub(super) fn forge(head: &[u8], content: &[u8]) -> Vec<u8> {
    let hash: [u8; 32] = Sha256::digest(content).into();
    let trailer = [&(content.len() as u64).to_be_bytes()[..], &hash].concat();
    [head, content, &seal(TRAILER_MAGIC, VERSION, &trailer)].concat()
}

fn hash(source: &mut impl Read) -> io::Result<[u8; 32]> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; SNAPSHOT_CHUNK];
    loop {
        match source.read(&mut buffer)? {
            0 => return Ok(hash.finalize().into()),
            count => hash.update(buffer.get(..count).unwrap_or_default()),
        }
    }
}

fn damaged(path: &Path, error: DecodeError) -> OpenError {
    let path = path.to_path_buf();
    match error {
        DecodeError::Version { found, known } => OpenError::NewerFormat { path, found, known },
        other => OpenError::Damaged { path, what: other.to_string() },
    }
}

fn lost(
    folder: &Path,
    newest: Option<LogId>,
    mark: Option<LogId>,
    purged: Option<u64>,
) -> OpenError {
    let index = |id: Option<LogId>| id.map_or_else(|| "none".to_owned(), |id| id.index.to_string());
    let what = format!(
        "the newest readable snapshot ends at log index {}, but one up to {} was kept and the log \
         is purged up to {}",
        index(newest),
        index(mark),
        purged.map_or_else(|| "none".to_owned(), |purged| purged.to_string()),
    );
    OpenError::BehindGuard { path: folder.to_path_buf(), what }
}

/// Lists the snapshot files in `folder` and removes left-over temporary files.
fn list(disk: &dyn Disk, folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in disk.list(folder)? {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some(EXTENSION) => files.push(path),
            Some("tmp") => disk.remove(&path)?,
            _ => {}
        }
    }
    Ok(files)
}

fn file_name(last: Option<LogId>) -> String {
    match last {
        None => format!("start.{EXTENSION}"),
        Some(id) => format!("{:020}-{}-{}.{EXTENSION}", id.index, id.term, id.node_id),
    }
}

fn cut_off() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the snapshot file became shorter")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc;

    use super::super::disk::SystemDisk;
    use super::*;

    /// What a test sees of the system's disk.
    #[derive(Default)]
    struct Seen {
        unsynced: AtomicU64,
        /// The most bytes that one sync had to write.
        largest_sync: AtomicU64,
        /// The most bytes that were freed at once.
        most_freed: AtomicU64,
        /// Called before a file is removed.
        on_remove: Mutex<Option<Box<dyn Fn() + Send>>>,
    }

    struct SeenDisk(Arc<Seen>);

    struct SeenFile(Arc<dyn DiskFile>, Arc<Seen>);

    impl SeenFile {
        fn synced(&self) {
            let bytes = self.1.unsynced.swap(0, Ordering::Relaxed);
            self.1.largest_sync.fetch_max(bytes, Ordering::Relaxed);
        }
    }

    impl DiskFile for SeenFile {
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
            self.0.read_at(buffer, offset)
        }

        fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
            self.1.unsynced.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            self.0.write_all_at(bytes, offset)
        }

        fn length(&self) -> io::Result<u64> {
            self.0.length()
        }

        fn shorten(&self, length: u64) -> io::Result<()> {
            let freed = self.0.length()? - length;
            self.1.most_freed.fetch_max(freed, Ordering::Relaxed);
            self.0.shorten(length)
        }

        fn sync_data(&self) -> io::Result<()> {
            self.synced();
            self.0.sync_data()
        }

        fn sync_all(&self) -> io::Result<()> {
            self.synced();
            self.0.sync_all()
        }

        fn forget_cached(&self) {
            self.0.forget_cached();
        }
    }

    impl SeenDisk {
        fn file(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
            Arc::new(SeenFile(file, Arc::clone(&self.0)))
        }
    }

    impl Disk for SeenDisk {
        fn may_block(&self) -> bool {
            true
        }

        fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
            SystemDisk.open(path).map(|file| self.file(file))
        }

        fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
            SystemDisk.create(path).map(|file| self.file(file))
        }

        fn exists(&self, path: &Path) -> io::Result<bool> {
            SystemDisk.exists(path)
        }

        fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
            SystemDisk.list(folder)
        }

        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            SystemDisk.rename(from, to)
        }

        fn remove(&self, path: &Path) -> io::Result<()> {
            if let Some(on_remove) = &*self.0.on_remove.lock().unwrap() {
                on_remove();
            }
            let length = std::fs::metadata(path).map_or(0, |file| file.len());
            self.0.most_freed.fetch_max(length, Ordering::Relaxed);
            SystemDisk.remove(path)
        }

        fn create_folders(&self, folder: &Path) -> io::Result<()> {
            SystemDisk.create_folders(folder)
        }

        fn sync_folder(&self, folder: &Path) -> io::Result<()> {
            SystemDisk.sync_folder(folder)
        }

        fn free_space(&self, folder: &Path) -> io::Result<u64> {
            SystemDisk.free_space(folder)
        }
    }

    fn snapshots(folder: &Path) -> (Arc<Snapshots>, Arc<Seen>) {
        let seen = Arc::new(Seen::default());
        let on_fault: OnFault = Arc::new(|fault| panic!("{fault}"));
        let guard = Guard::create(&SystemDisk, folder, 1, [7; 16], Arc::clone(&on_fault)).unwrap();
        let disk = Arc::new(SeenDisk(Arc::clone(&seen)));
        let folder = folder.to_path_buf();
        let opened = Snapshots::open(disk, folder, Arc::new(guard), (None, None), on_fault);
        (Arc::new(opened.unwrap()), seen)
    }

    fn write(snapshots: &Arc<Snapshots>, index: u64, body: &[u8]) {
        let last = LogId { term: 1, node_id: 1, index };
        let mut writer = snapshots.begin(Some(last), Bytes::new()).unwrap();
        for piece in body.chunks(SNAPSHOT_CHUNK) {
            writer.write_all(piece).unwrap();
        }
        writer.finish().unwrap();
    }

    /// SC4: the log's syncs wait behind those of a snapshot.
    #[test]
    fn no_sync_of_a_snapshot_has_more_to_write_than_a_slice() {
        let folder = tempfile::tempdir().unwrap();
        let (snapshots, seen) = snapshots(folder.path());

        write(&snapshots, 1, &vec![5; 5 << 20]);

        let largest = seen.largest_sync.load(Ordering::Relaxed);
        let most = SYNC_SLICE + 2 * SNAPSHOT_CHUNK as u64;
        assert!((1..=most).contains(&largest), "{largest} bytes at once");
    }

    /// SC4: a disk may take long to remove a large file, and the thread that serves asks meanwhile.
    #[test]
    fn the_newest_snapshot_is_told_while_an_old_one_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (snapshots, seen) = snapshots(folder.path());
        let (tell, told) = mpsc::channel();
        let asked = Arc::clone(&snapshots);
        *seen.on_remove.lock().unwrap() = Some(Box::new(move || {
            let (answer, answered) = mpsc::channel();
            let asked = Arc::clone(&asked);
            thread::spawn(move || answer.send(asked.newest().and_then(|newest| newest.last)));
            tell.send(answered.recv_timeout(Duration::from_secs(5))).unwrap();
        }));

        for index in 1..=3 {
            write(&snapshots, index, b"state");
        }

        let newest = told.try_recv().unwrap().expect("nobody is told while a file is removed");
        assert_eq!(newest.map(|last| last.index), Some(3));
        seen.on_remove.lock().unwrap().take();
    }

    /// SC4: the log's syncs wait while the file system frees a file.
    #[test]
    fn a_large_file_is_freed_in_pieces_unless_somebody_reads_it() {
        const LARGE: usize = 40 << 20;
        for is_read in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let (snapshots, seen) = snapshots(folder.path());
            write(&snapshots, 1, &vec![5; LARGE]);
            let reader = is_read.then(|| snapshots.read(&snapshots.newest().unwrap()).unwrap());
            write(&snapshots, 2, b"state");
            write(&snapshots, 3, b"state");

            let freed = seen.most_freed.load(Ordering::Relaxed);
            assert_eq!(freed <= FREED_AT_ONCE, !is_read, "{freed} bytes at once");
            if let Some(reader) = reader {
                assert_eq!(reader.chunk(LARGE as u64 - 9).unwrap(), [5; 9][..]);
            }
            let files = SystemDisk.list(folder.path()).unwrap();
            let is_left = |path: &&PathBuf| path.extension().is_some_and(|it| it == "tmp");
            assert_eq!(files.iter().find(is_left), None);
        }
    }
}
