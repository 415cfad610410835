//! The files of a data folder, as a trait: those of the system or of a simulation.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::files::{create_folders, free_space, sync_folder, with_descriptors};

/// Files and folders, and what has to be synced to survive a power cut.
///
/// Every error is as from the system; the operation may or may not have happened.
pub trait Disk: Send + Sync + 'static {
    /// Whether methods wait for a disk: they are called off the runtime then.
    fn may_block(&self) -> bool;

    /// Opens an existing file for reading and writing.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::NotFound`] if there is none.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Creates an empty file, in place of an existing one.
    ///
    /// # Errors
    ///
    /// As from the system.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Whether a file or folder exists.
    ///
    /// # Errors
    ///
    /// As from the system.
    fn exists(&self, path: &Path) -> io::Result<bool>;

    /// The files and folders in `folder`, in any order.
    ///
    /// # Errors
    ///
    /// As from the system.
    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>>;

    /// Renames a file within its folder, in place of an existing file of that name.
    ///
    /// # Errors
    ///
    /// As from the system.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file, if it exists.
    ///
    /// # Errors
    ///
    /// As from the system.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Creates a folder and its missing parents, durably.
    ///
    /// # Errors
    ///
    /// As from the system.
    fn create_folders(&self, folder: &Path) -> io::Result<()>;

    /// Makes durable which files are in `folder`, and under which names.
    ///
    /// # Errors
    ///
    /// As from the system.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;

    /// Bytes that can still be written below `folder`.
    ///
    /// # Errors
    ///
    /// As from the system.
    fn free_space(&self, folder: &Path) -> io::Result<u64>;
}

/// An open file. It stays readable when its name is given to another.
pub trait DiskFile: Send + Sync {
    /// Reads from `offset`; 0 bytes at the end.
    ///
    /// # Errors
    ///
    /// As from the system.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of `bytes` at `offset`. Durable after a sync.
    ///
    /// # Errors
    ///
    /// As from the system; some of it may be written.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Its length, bytes.
    ///
    /// # Errors
    ///
    /// As from the system.
    fn length(&self) -> io::Result<u64>;

    /// Cuts it off at `length`, which it is longer than. Durable after a sync.
    ///
    /// # Errors
    ///
    /// As from the system.
    fn shorten(&self, length: u64) -> io::Result<()>;

    /// Makes what was written durable, and as much of its metadata as reading it needs.
    ///
    /// # Errors
    ///
    /// As from the system; what is durable is unknown then.
    fn sync_data(&self) -> io::Result<()>;

    /// As [`sync_data`](Self::sync_data), with all metadata.
    ///
    /// # Errors
    ///
    /// As from the system; what is durable is unknown then.
    fn sync_all(&self) -> io::Result<()>;

    /// Asks that it be read from the disk again, not from a cache. Advice only.
    fn forget_cached(&self);
}

/// The system's files. Opening one waits while the process has no descriptor for it.
pub(super) struct SystemDisk;

/// The system's files.
pub fn system_disk() -> Arc<dyn Disk> {
    Arc::new(SystemDisk)
}

impl Disk for SystemDisk {
    fn may_block(&self) -> bool {
        true
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let options = OpenOptions::new().read(true).write(true).clone();
        Ok(Arc::new(with_descriptors(|| options.open(path))?))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let options = OpenOptions::new().read(true).write(true).create(true).truncate(true).clone();
        Ok(Arc::new(with_descriptors(|| options.open(path))?))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        fs::exists(path)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        with_descriptors(|| fs::read_dir(folder))?.map(|entry| Ok(entry?.path())).collect()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn create_folders(&self, folder: &Path) -> io::Result<()> {
        create_folders(folder)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        sync_folder(folder)
    }

    fn free_space(&self, folder: &Path) -> io::Result<u64> {
        free_space(folder)
    }
}

impl DiskFile for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        FileExt::write_all_at(self, bytes, offset)
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn shorten(&self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        Self::sync_data(self)
    }

    fn sync_all(&self) -> io::Result<()> {
        Self::sync_all(self)
    }

    fn forget_cached(&self) {
        // Advice only: what is read is compared all the same.
        let _ = rustix::fs::fadvise(self, 0, None, rustix::fs::Advice::DontNeed);
    }
}

/// A place in a file, from which it is read or written in order.
pub(super) struct Place {
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) offset: u64,
}

impl Place {
    pub(super) fn beginning_of(file: Arc<dyn DiskFile>) -> Self {
        Self { file, offset: 0 }
    }
}

impl Read for Place {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.offset)?;
        self.offset = self.offset.saturating_add(count as u64);
        Ok(count)
    }
}

impl Write for Place {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write_all_at(bytes, self.offset)?;
        self.offset = self.offset.saturating_add(bytes.len() as u64);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Fills `buffer` from `offset`.
///
/// # Errors
///
/// [`io::ErrorKind::UnexpectedEof`] if the file ends before.
pub(super) fn read_exact_at(file: &dyn DiskFile, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset.saturating_add(filled as u64))? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => filled += count,
        }
    }
    Ok(())
}
