//! Why a store does not open, and the fault that stops an open one. Written for the operator.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::files::is_want_of_descriptors;
use super::guard::ClusterId;

/// The end of every refusal to trust a store (I21, I22).
const REPLACE: &str = "Keep the folder as it is for inspection. Remove this node from the cluster \
    and start it again with an empty folder under a new node id: it joins as a learner and is \
    filled from the other nodes. A cluster of one is restored from a backup";

/// Why a data folder was not opened. Nothing in it was changed for the worse.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has the folder open.
    #[error(
        "{} is in use by {}. Stop that process, or give this one another data folder",
        path.display(), holder(*pid)
    )]
    InUse {
        /// The lock file.
        path: PathBuf,
        /// The process that wrote it last, if it can be read.
        pid: Option<u32>,
    },
    /// The operating system refused: permissions, a read-only file system, a broken disk.
    #[error("cannot {action} {}: {source}. Check its owner, its permissions and the disk", path.display())]
    Inaccessible {
        /// The attempted action, as in "cannot read".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The process, or the machine, has no descriptor left to open a file with. Nothing is wrong with
    /// the folder: a process that starts again may have some.
    #[error(
        "cannot {action} {}: {source}. Raise the limit of open files (ulimit -n, LimitNOFILE= in a \
         unit of systemd) and start again; nothing is wrong with the folder", path.display()
    )]
    NoDescriptors {
        /// The attempted action.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file system is full.
    #[error(
        "cannot {action} {}: the file system is full. Free at least {needed} bytes on it and \
         start again; nothing acknowledged is lost", path.display()
    )]
    DiskFull {
        /// The attempted action.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Bytes to free, at least.
        needed: u64,
    },
    /// Written by a newer release.
    #[error(
        "{} has format version {found}, this release reads up to {known}. Start the release that \
         wrote it, or a later one", path.display()
    )]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u64,
        /// The newest version this release reads.
        known: u64,
    },
    /// The folder belongs to another node.
    #[error(
        "{} belongs to node {found}, but this node is configured as node {expected}. Correct the \
         node id or the data folder in the configuration", path.display()
    )]
    OtherNode {
        /// The guard file.
        path: PathBuf,
        /// The node it names.
        found: u64,
        /// The node that should start.
        expected: u64,
    },
    /// The folder belongs to another cluster.
    #[error(
        "{} belongs to cluster {found}, but cluster {expected} is expected. Correct the data \
         folder in the configuration; a folder never moves between clusters", path.display()
    )]
    OtherCluster {
        /// The guard file or snapshot.
        path: PathBuf,
        /// The cluster it names.
        found: ClusterId,
        /// The cluster that was expected.
        expected: ClusterId,
    },
    /// There is a store, but the guard file is gone.
    #[error(
        "the guard file {} is missing, but the folder holds a store. Without it nobody can tell \
         whether the store is whole. {REPLACE}", path.display()
    )]
    GuardMissing {
        /// Where the guard file should be.
        path: PathBuf,
    },
    /// Neither slot of the guard file can be read.
    #[error("the guard file {} is damaged: {what}. {REPLACE}", path.display())]
    GuardDamaged {
        /// The guard file.
        path: PathBuf,
        /// What is wrong with each slot.
        what: String,
    },
    /// The guard file says there was a store, but it is gone or empty.
    #[error(
        "{} is missing or empty, but the guard file says that this node had a store there. \
         {REPLACE}", path.display()
    )]
    Emptied {
        /// What is gone.
        path: PathBuf,
    },
    /// Something in the store is not what was written.
    #[error("{} is damaged: {what}. {REPLACE}", path.display())]
    Damaged {
        /// The file or folder.
        path: PathBuf,
        /// What was found.
        what: String,
    },
    /// The store is consistent but lacks what was acknowledged (I21).
    #[error("{} has lost data that was acknowledged: {what}. {REPLACE}", path.display())]
    BehindGuard {
        /// The store.
        path: PathBuf,
        /// What is missing.
        what: String,
    },
}

/// An I/O error while opening, as the operator should see it.
pub(super) fn open_error(action: &'static str, path: &Path, source: io::Error) -> OpenError {
    let path = path.to_path_buf();
    if is_full(&source) {
        return OpenError::DiskFull { action, path, needed: SPACE_TO_GO_ON };
    }
    if is_want_of_descriptors(&source) {
        return OpenError::NoDescriptors { action, path, source };
    }
    OpenError::Inaccessible { action, path, source }
}

/// Space that a store needs to start and continue: a segment of the log, two of sled, and a guard,
/// bytes.
const SPACE_TO_GO_ON: u64 = 32 << 20;

fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

/// A write or sync that failed while the store was open.
///
/// After it nothing is acknowledged and nothing is retried: what the disk holds is unknown until
/// the store is opened again. The process ends with exit code 74; with 75 if the disk hung; with 70
/// if only descriptors were missing ([`Fault::is_want_of_descriptors`]).
#[derive(Debug, Clone, thiserror::Error)]
#[error("cannot {action} {}: {source}{}", file.display(), space(*space_needed))]
pub struct Fault {
    /// The file that could not be written.
    pub file: PathBuf,
    /// The attempted action, as in "cannot write".
    pub action: &'static str,
    /// What went wrong.
    pub source: Arc<io::Error>,
    /// Bytes to free before the next start, if the file system is full.
    pub space_needed: Option<u64>,
}

impl Fault {
    pub(super) fn new(action: &'static str, file: &Path, source: io::Error) -> Self {
        let space_needed = is_full(&source).then_some(SPACE_TO_GO_ON);
        Self { file: file.to_path_buf(), action, source: Arc::new(source), space_needed }
    }

    /// Whether the disk hung without an error. Nothing is damaged: a node that starts again when
    /// the disk answers continues.
    pub fn is_stall(&self) -> bool {
        self.source.kind() == io::ErrorKind::TimedOut
    }

    /// Whether a file could not be opened for want of descriptors for as long as that was retried.
    /// The disk is not the cause, and a restarted process has descriptors.
    pub fn is_want_of_descriptors(&self) -> bool {
        is_want_of_descriptors(&self.source)
    }

    /// The fault as an error for the callers that wait for an operation.
    pub(super) fn to_io(&self) -> io::Error {
        io::Error::new(self.source.kind(), self.clone())
    }
}

fn space(needed: Option<u64>) -> String {
    needed.map_or_else(String::new, |bytes| format!("; free at least {bytes} bytes"))
}

/// Receives the first [`Fault`], and perhaps others after it, from any thread. The server's
/// callback ends the process.
pub type OnFault = Arc<dyn Fn(Fault) + Send + Sync>;

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn an_operator_is_told_to_free_space_to_raise_a_limit_or_to_look_at_the_disk() {
        for (errno, advice) in [
            (Errno::NOSPC, "Free at least"),
            (Errno::DQUOT, "Free at least"),
            (Errno::MFILE, "Raise the limit of open files"),
            (Errno::NFILE, "Raise the limit of open files"),
            (Errno::ACCESS, "Check its owner, its permissions and the disk"),
            (Errno::IO, "Check its owner, its permissions and the disk"),
        ] {
            let error = open_error("open", Path::new("/data/guard"), errno.into());
            let message = error.to_string();
            assert!(message.contains(advice) && message.contains("/data/guard"), "{message}");
            let is_want = matches!(errno, Errno::MFILE | Errno::NFILE);
            assert_eq!(matches!(error, OpenError::NoDescriptors { .. }), is_want, "{message}");
        }
    }
}
