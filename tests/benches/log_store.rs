//! The log: entries appended and synced, beside a plain preallocated file with fdatasync, which is
//! the least that the same promise costs on this disk.
#![expect(clippy::expect_used, reason = "a log that fails makes the bench worthless")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, mpsc};

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput};
use holdfast_server::storage::{LogId, LogStore, Record, RecordKind, Store, StoreOptions};
use tempfile::TempDir;

const ENTRIES: [u64; 4] = [1, 16, 256, 1_024];
/// An acquire with a short name takes about as much.
const ENTRY_BYTES: usize = 128;
/// Entries that stay in the log; older ones are purged, as a snapshot would have it.
const KEPT: u64 = 20_000;
/// Length of the plain file; written round and round.
const PLAIN_BYTES: u64 = 64 << 20;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let folder = TempDir::with_prefix("holdfast-bench-").expect("there is a temporary folder");
    let mut log = Log::open(&folder.path().join("store"));
    let mut plain = Plain::create(&folder.path().join("plain"));
    let mut group = criterion.benchmark_group("log, append and sync so many entries");
    for entries in ENTRIES {
        group.throughput(Throughput::Elements(entries));
        group.bench_function(BenchmarkId::new("log store", entries), |bencher| {
            bencher.iter(|| log.append(entries));
        });
        group.bench_function(BenchmarkId::new("plain file", entries), |bencher| {
            bencher.iter(|| plain.append(entries));
        });
    }
    group.finish();
    criterion.final_summary();
}

/// The store as a node has it.
struct Log {
    store: LogStore,
    next: u64,
    purged: u64,
}

impl Log {
    fn open(folder: &Path) -> Self {
        let options = StoreOptions {
            node_id: 1,
            cluster: None,
            new_store_id: [7; 16],
            on_fault: Arc::new(|fault| eprintln!("fault: {fault}")),
            stalls_after: None,
        };
        std::fs::create_dir_all(folder).expect("the folder is ours");
        let store = Store::open_log_without_snapshots(folder, options).expect("a new store opens");
        Self { store, next: 0, purged: 0 }
    }

    /// Returns when all of them are synced.
    fn append(&mut self, entries: u64) {
        let records = (self.next..self.next + entries).map(record).collect();
        self.next += entries;
        let (done, synced) = mpsc::channel();
        let tell = Box::new(move |outcome| drop(done.send(outcome)));
        self.store.append(records, tell).expect("the next entry may be appended");
        synced.recv().expect("every append is answered").expect("the disk takes it");
        self.purge();
    }

    fn purge(&mut self) {
        if self.next - self.purged < 2 * KEPT {
            return;
        }
        self.purged = self.next - KEPT;
        let upto = log_id(self.purged - 1);
        self.store.purge(upto, Box::new(|_| ())).expect("what is there may be purged");
    }
}

fn log_id(index: u64) -> LogId {
    LogId { term: 1, node_id: 1, index }
}

fn record(index: u64) -> Record {
    let payload = Bytes::from(vec![7; ENTRY_BYTES]);
    Record { log_id: log_id(index), kind: RecordKind::Batch, payload }
}

/// One file, filled before, so that a sync has no metadata to write.
struct Plain {
    file: File,
    at: u64,
}

impl Plain {
    fn create(path: &Path) -> Self {
        let file = File::create(path).expect("the folder is ours");
        let zeros = vec![0; 1 << 20];
        for at in (0..PLAIN_BYTES).step_by(zeros.len()) {
            file.write_all_at(&zeros, at).expect("there is room");
        }
        file.sync_all().expect("the disk takes it");
        Self { file, at: 0 }
    }

    fn append(&mut self, entries: u64) {
        let bytes = vec![7; ENTRY_BYTES * usize::try_from(entries).unwrap_or(0)];
        let length = u64::try_from(bytes.len()).unwrap_or(0);
        if self.at + length > PLAIN_BYTES {
            self.at = 0;
        }
        self.file.write_all_at(&bytes, self.at).expect("the file is there");
        self.file.sync_data().expect("the disk takes it");
        self.at += length;
    }
}
