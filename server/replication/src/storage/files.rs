//! Files that survive a power cut: what must be synced, and in which order.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

/// First pause before a retry of opening a file for which there was no descriptor. It doubles each
/// time.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest of these pauses.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Number of retries: about a minute in all.
const TRIES_MORE: u32 = 66;

/// Whether the process, or the machine, had no descriptor left to open a file with.
pub(super) fn is_want_of_descriptors(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// Opens a file or folder, and retries for about a minute while there is no descriptor for it. Blocks
/// meanwhile.
///
/// Only opening is retried, because nothing has happened to the file by then. A write or a sync that
/// failed is never retried: what the disk holds after it is unknown (DESIGN §7).
///
/// A reserve of descriptors for this purpose would not help: the first task to take a returned
/// descriptor gets it, and on a machine without any (ENFILE) a process's own reserve is worth nothing.
/// The code that accepts connections (`open_files`) keeps some descriptors free; this is for when there
/// are none.
///
/// # Errors
///
/// As from the system.
pub(super) fn with_descriptors<T>(open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    with_pauses(open, |pause| {
        WAITING.fetch_add(1, Ordering::Relaxed);
        thread::sleep(pause);
        WAITING.fetch_sub(1, Ordering::Relaxed);
    })
}

/// The number of threads of this process that wait for a descriptor.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Whether a thread waits for a descriptor: then that may be why an operation does not end, not the
/// disk.
pub(super) fn waits_for_descriptor() -> bool {
    WAITING.load(Ordering::Relaxed) > 0
}

fn with_pauses<T>(
    mut open: impl FnMut() -> io::Result<T>,
    mut wait: impl FnMut(Duration),
) -> io::Result<T> {
    let mut pause = FIRST_PAUSE;
    for tries in 0..TRIES_MORE {
        match open() {
            Err(error) if is_want_of_descriptors(&error) => {
                if tries == 0 {
                    tracing::warn!(%error, "a file of the store cannot be opened yet");
                }
                wait(pause);
                pause = (2 * pause).min(LONGEST_PAUSE);
            }
            opened => return opened,
        }
    }
    open()
}

/// Makes the entries of a folder durable: files created, renamed or removed in it.
///
/// # Errors
///
/// As from the system; the entries may or may not survive.
pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    with_descriptors(|| File::open(folder))?.sync_all()
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
            with_descriptors(|| File::open(entry.path()))?.sync_all()?;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The result of opening after `failures` errors, the number of attempts, and the time waited.
    fn open_after(failures: u32, error: Errno) -> (io::Result<()>, u32, Duration) {
        let (mut tries, mut waited) = (0, Duration::ZERO);
        let opened = with_pauses(
            || {
                tries += 1;
                if tries <= failures { Err(error.into()) } else { Ok(()) }
            },
            |pause| waited += pause,
        );
        (opened, tries, waited)
    }

    /// R3: a process out of descriptors does not have a broken disk.
    #[test]
    fn a_file_is_opened_again_while_there_is_no_descriptor_for_it() {
        for error in [Errno::MFILE, Errno::NFILE] {
            let (opened, tries, waited) = open_after(9, error);
            assert!(opened.is_ok(), "{opened:?}");
            assert_eq!((tries, waited), (10, Duration::from_millis(3_270)));
        }
    }

    #[test]
    fn it_is_given_up_after_a_minute() {
        let (opened, tries, waited) = open_after(u32::MAX, Errno::MFILE);
        assert!(is_want_of_descriptors(&opened.unwrap_err()));
        assert_eq!(tries, TRIES_MORE + 1);
        assert!((60..61).contains(&waited.as_secs()), "{waited:?}");
    }

    /// DESIGN §7.
    #[test]
    fn nothing_else_is_tried_again() {
        for error in [Errno::IO, Errno::NOSPC, Errno::ROFS, Errno::NOENT, Errno::ACCESS] {
            let (opened, tries, waited) = open_after(1, error);
            assert_eq!((opened.is_err(), tries, waited), (true, 1, Duration::ZERO), "{error:?}");
        }
    }
}
