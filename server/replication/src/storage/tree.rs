//! The store of what is rare and must be found: store id, vote, purge mark; in sled or in a simulation.
//!
//! sled is made durable by our own syncs. Its `flush` writes, but syncs neither metadata nor the device
//! (measured: 60 of 60 simulated power cuts lost acknowledged keys). So each change ends with our own
//! `fdatasync` of sled's one file, through a handle of our own on the same inode (I20).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::files::{is_want_of_descriptors, sync_folder, with_descriptors};
use super::store::FolderLock;

/// A key with its new value; `None` removes it.
pub type Change = (Vec<u8>, Option<Vec<u8>>);

/// Keys with their values, in order of the keys.
pub type Items<'a> = Box<dyn Iterator<Item = io::Result<(Bytes, Bytes)>> + 'a>;

/// An ordered map on disk.
///
/// # Promises
///
/// - The changes of one [`write`](Self::write) survive a crash as a whole or not at all, and only if
///   those of all earlier ones do.
/// - What was written before a [`sync`](Self::sync) that succeeded survives the loss of power.
pub trait Tree: Send + 'static {
    /// The value of a key.
    ///
    /// # Errors
    ///
    /// As from the system, or what is damaged.
    fn get(&self, key: &[u8]) -> io::Result<Option<Bytes>>;

    /// All items whose key begins with `prefix`.
    fn scan(&self, prefix: &[u8]) -> Items<'_>;

    /// Writes changes; an empty list changes nothing.
    ///
    /// # Errors
    ///
    /// As from the system; whether they survive is unknown.
    fn write(&mut self, changes: Vec<Change>) -> io::Result<()>;

    /// Makes everything durable that was written.
    ///
    /// # Errors
    ///
    /// As from the system; what is durable is unknown.
    fn sync(&mut self) -> io::Result<()>;

    /// Gives it up after a fault, without writing anything more.
    fn abandon(self: Box<Self>) {}
}

/// An open sled.
pub(super) struct SledTree {
    pub(super) db: sled::Db,
    pub(super) tree: sled::Tree,
    pub(super) file: DataFile,
    /// Held as long as sled is open, so that no other process opens it. The last field, so that it
    /// is dropped last.
    pub(super) _lock: FolderLock,
}

impl Tree for SledTree {
    fn get(&self, key: &[u8]) -> io::Result<Option<Bytes>> {
        let value = self.tree.get(key).map_err(to_io)?;
        Ok(value.map(|value| Bytes::copy_from_slice(&value)))
    }

    fn scan(&self, prefix: &[u8]) -> Items<'_> {
        let copied = |entry: sled::Result<(sled::IVec, sled::IVec)>| {
            let (key, value) = entry.map_err(to_io)?;
            Ok((Bytes::copy_from_slice(&key), Bytes::copy_from_slice(&value)))
        };
        Box::new(self.tree.scan_prefix(prefix).map(copied))
    }

    fn write(&mut self, changes: Vec<Change>) -> io::Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        let written = self.tree.apply_batch(batch_of(changes));
        written.and_then(|()| self.db.flush()).map(drop).map_err(to_io)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync()
    }

    /// Closing sled would write again. The folder stays locked until the process is gone.
    fn abandon(self: Box<Self>) {
        std::mem::forget(self);
    }
}

fn batch_of(changes: Vec<Change>) -> sled::Batch {
    let mut batch = sled::Batch::default();
    for (key, value) in changes {
        match value {
            Some(value) => batch.insert(key, value),
            None => batch.remove(key),
        }
    }
    batch
}

/// Handles on the files that sled writes, for our own syncs.
pub(super) struct DataFile {
    db: File,
    blobs: PathBuf,
    blobs_changed: (i64, i64),
}

impl DataFile {
    /// # Errors
    ///
    /// As from the system; nothing was changed.
    pub(super) fn open(sled_folder: &Path) -> io::Result<Self> {
        let db = File::open(sled_folder.join("db"))?;
        let blobs = sled_folder.join("blobs");
        let blobs_changed = changed(&blobs)?;
        Ok(Self { db, blobs, blobs_changed })
    }

    /// Makes what sled has written durable.
    ///
    /// Marks are so small that sled keeps them in its file. But sled decides by the size of a page, so
    /// a check of the folder's time stamp, one system call, backs that up.
    fn sync(&mut self) -> io::Result<()> {
        self.db.sync_data()?;
        let now = changed(&self.blobs)?;
        if now == self.blobs_changed {
            return Ok(());
        }
        for entry in with_descriptors(|| fs::read_dir(&self.blobs))? {
            let path = entry?.path();
            match with_descriptors(|| File::open(&path)) {
                Ok(blob) => blob.sync_all()?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        sync_folder(&self.blobs)?;
        self.blobs_changed = now;
        Ok(())
    }
}

fn changed(folder: &Path) -> io::Result<(i64, i64)> {
    let metadata = fs::metadata(folder)?;
    Ok((metadata.mtime(), metadata.mtime_nsec()))
}

/// Returns a system error as it is; of any other only the message remains.
pub(super) fn to_io(error: sled::Error) -> io::Error {
    match error {
        sled::Error::Io(error) => numbered(error, || File::open("/dev/null")),
        other => io::Error::other(other.to_string()),
    }
}

/// sled returns copies of a system error that have lost its number, and a want of descriptors has
/// no kind of its own: so a file is opened to find out.
fn numbered(error: io::Error, open: impl FnOnce() -> io::Result<File>) -> io::Error {
    if error.raw_os_error().is_some() {
        return error;
    }
    open().err().filter(is_want_of_descriptors).unwrap_or(error)
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    /// R3: a process out of descriptors does not have a broken disk.
    #[test]
    fn an_error_without_a_number_is_a_want_of_descriptors_if_no_file_can_be_opened() {
        let lost = || io::Error::other("Too many open files");
        assert!(is_want_of_descriptors(&numbered(lost(), || Err(Errno::MFILE.into()))));
        assert!(!is_want_of_descriptors(&numbered(lost(), || File::open("/dev/null"))));
        assert!(!is_want_of_descriptors(&numbered(lost(), || Err(Errno::ACCESS.into()))));
        let full = numbered(Errno::NOSPC.into(), || Err(Errno::MFILE.into()));
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    }
}
