//! Folders in which everything was acknowledged, to be damaged.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a folder that cannot be made ends its test")]

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use holdfast_replication::storage::{
    ClusterId, KeptSnapshot, LogId, Member, OpenError, Record, ReplicaStore, Stage, Store,
    StoreOptions, StoredVote,
};
use tempfile::TempDir;

use super::{options, record, wait};

pub(crate) const CLUSTER: ClusterId = ClusterId([3; 16]);
pub(crate) const VOTE: StoredVote = StoredVote { term: 9, node_id: Some(1), committed: false };
/// Records of the folder that [`filled`] makes; those up to [`PURGED`] are purged.
pub(crate) const RECORDS: u64 = 400;
pub(crate) const PURGED: u64 = 99;
/// The end of an older copy of that folder.
const HALFWAY: u64 = 200;
pub(crate) const RECORDS_BEFORE_VOTE: usize = 390;

/// A closed folder with a log over several segments, a vote, a promise, a purge and a snapshot:
/// everything in it was acknowledged.
pub(crate) fn filled() -> TempDir {
    filled_and_open().0
}

/// As [`filled`], still open: the state that a process leaves if it is killed now.
pub(crate) fn filled_and_open() -> (TempDir, Store) {
    filled_by(options(), |_| ())
}

/// As [`filled_and_open`], for any node; `halfway` gets the folder as it was after the purge.
pub(crate) fn filled_by(options: StoreOptions, halfway: impl Fn(&Path)) -> (TempDir, Store) {
    let folder = TempDir::new().unwrap();
    let store = Store::open(folder.path(), options).unwrap();
    let members = vec![Member { id: 1, address: b"here".to_vec() }];
    store.promise(CLUSTER, 5, members).unwrap();
    store.set_initialised().unwrap();
    let log = store.log();
    let all = expected_records();
    for group in all[..RECORDS_BEFORE_VOTE].chunks(5) {
        wait(|done| log.append(group.to_vec(), done)).unwrap();
        if group[0].log_id.index == PURGED + 1 {
            let last = LogId { term: 1, node_id: 1, index: PURGED };
            snapshot(&store, last, b"state at 99");
            wait(|done| log.purge(last, done)).unwrap();
        }
        if group[0].log_id.index == HALFWAY {
            halfway(folder.path());
        }
    }
    wait(|done| log.save_vote(VOTE, done)).unwrap();
    // After the vote, so that only the guard's hint covers them.
    wait(|done| log.append(all[RECORDS_BEFORE_VOTE..].to_vec(), done)).unwrap();
    (folder, store)
}

/// Enough bytes to span several segments.
pub(crate) fn expected_records() -> Vec<Record> {
    (0..RECORDS).map(|index| record(1 + index / 300, index, 13_000)).collect()
}

pub(crate) fn snapshot(store: &Store, last: LogId, body: &[u8]) {
    let mut writer = store.snapshots().begin(Some(last), Bytes::from("meta")).unwrap();
    writer.write_all(body).unwrap();
    writer.finish().unwrap();
}

pub(crate) fn open(folder: &Path) -> Result<Store, OpenError> {
    Store::open(folder, options())
}

/// Checks that the store has what [`filled`] acknowledged, byte by byte.
pub(crate) fn assert_whole(store: &Store, case: &str) {
    let log = store.log();
    let first = usize::try_from(PURGED).unwrap() + 1;
    assert!(log.entries(0..u64::MAX, usize::MAX) == expected_records()[first..], "{case}: the log");
    assert_eq!(log.vote(), Some(VOTE), "{case}");
    assert_eq!(store.identity().cluster, Some(CLUSTER), "{case}");
    assert_eq!(store.identity().stage, Stage::Initialised, "{case}");
    let newest = store.snapshots().newest().unwrap();
    assert_eq!(newest.last.map(|last| last.index), Some(PURGED), "{case}");
    let body = store.snapshots().read(&newest).unwrap().chunk(0).unwrap();
    assert_eq!(body, "state at 99", "{case}");
}

/// The files below a folder with their bytes, in the order of their names.
fn read(folder: &Path) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let bytes = fs::read(&path)?;
                files.push((path.strip_prefix(folder).unwrap().to_path_buf(), bytes));
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Every file of a folder with its bytes, so that each damage starts from the same state.
pub(crate) struct Image(pub(crate) Vec<(PathBuf, Vec<u8>)>);

impl Image {
    /// The folder once it is at rest: the log of an open store prepares and frees segments in the
    /// background, so a file can go while the folder is read. Two equal readings in a row are one
    /// state; a single one may be a mixture that was never on the disk.
    pub(crate) fn of(folder: &Path) -> Self {
        let mut before = read(folder).ok();
        for _ in 0..1_000 {
            thread::sleep(Duration::from_millis(2));
            let now = read(folder).ok();
            if now.is_some() && now == before {
                return Self(now.unwrap_or_default());
            }
            before = now;
        }
        panic!("the files of {} do not come to rest", folder.display());
    }

    pub(crate) fn restore(&self) -> TempDir {
        let folder = TempDir::new().unwrap();
        for (path, bytes) in &self.0 {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        fs::create_dir_all(folder.path().join("sled/blobs")).unwrap();
        folder
    }

    pub(crate) fn bytes(&self, name: &str) -> &[u8] {
        let found = self.0.iter().find(|(path, _)| path == Path::new(name));
        &found.unwrap_or_else(|| panic!("{name} is in the folder")).1
    }
}
