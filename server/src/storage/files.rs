//! Files that survive a power cut: what must be synced, and in which order.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// Makes the entries of a folder durable: files created, renamed or removed in it.
///
/// # Errors
///
/// As from the system; the entries may or may not survive.
pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Syncs every file and folder below `folder`, and `folder` itself. Follows no links.
///
/// # Errors
///
/// As from the system; some of it may be durable.
pub(super) fn sync_tree(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            sync_tree(&entry.path())?;
        } else if kind.is_file() {
            File::open(entry.path())?.sync_all()?;
        }
    }
    sync_folder(folder)
}

/// Creates `folder` and its missing parents, for this user only, and makes each of them durable in
/// its parent.
///
/// # Errors
///
/// As from the system; some of the folders may exist.
pub(super) fn create_folders(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let parent = match folder.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    create_folders(parent)?;
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    sync_folder(parent)
}

/// Bytes that can still be written on the file system that holds `folder`, by this user.
///
/// One system call; cheap enough to be asked for every few seconds.
///
/// # Errors
///
/// As from the system.
pub fn free_space(folder: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(folder)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}
