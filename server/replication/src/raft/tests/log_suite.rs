//! openraft's own conformance suite, over our adapters.

use std::path::Path;
use std::sync::Arc;

use openraft::testing::log::{StoreBuilder, Suite};
use openraft::{RaftLogReader, StorageError};
use tempfile::TempDir;

use crate::raft::MemoryStore;
use crate::raft::ReplicaStore;
use crate::raft::fault::FaultSlot;
use crate::raft::log::Log;
use crate::raft::machine::Machine;
use crate::raft::types::Types;
use crate::storage::{LogId, LogStore, Record, RecordKind, Store, StoreOptions};

fn machine() -> (Arc<MemoryStore>, Machine) {
    let store = Arc::new(MemoryStore::new(1));
    let machine = Machine::load(store.clone(), FaultSlot::new()).unwrap();
    (store, machine)
}

/// Which log is examined. One builder for both: the suite is large, and is compiled anew for each builder.
enum Examined {
    InMemory,
    OnSled,
}

impl StoreBuilder<Types, Log, Machine, Option<TempDir>> for Examined {
    async fn build(&self) -> Result<(Option<TempDir>, Log, Machine), StorageError<Types>> {
        let (store, machine) = machine();
        if let Self::InMemory = self {
            return Ok((None, Log::over(store.log()), machine));
        }
        let folder = TempDir::new().unwrap();
        let log = log_on_sled(folder.path());
        Ok((Some(folder), Log::over(log), machine))
    }
}

/// The suite purges without snapshots, which a whole store refuses (I30).
fn log_on_sled(folder: &Path) -> Arc<LogStore> {
    let options = StoreOptions {
        node_id: 1,
        cluster: None,
        new_store_id: [7; 16],
        on_fault: Arc::new(|fault| panic!("{fault}")),
        stalls_after: None,
    };
    Arc::new(Store::open_log_without_snapshots(folder, options).unwrap())
}

#[tokio::test]
async fn the_memory_log_passes_the_suite_of_openraft() {
    Suite::test_all(Examined::InMemory).await.unwrap();
}

#[tokio::test]
async fn the_sled_log_passes_the_suite_of_openraft() {
    Suite::test_all(Examined::OnSled).await.unwrap();
}

/// A replication stream that openraft has replaced may read entries that were purged meanwhile.
/// Found by a simulated run over real HTTP/2 (seed 533469298876), as a failed assertion of
/// openraft's.
#[tokio::test]
async fn entries_behind_purged_ones_are_not_read_for_a_member() {
    let (store, _) = machine();
    let id = |index| LogId { term: 1, node_id: 1, index };
    let record =
        |index| Record { log_id: id(index), kind: RecordKind::Blank, payload: bytes::Bytes::new() };
    store.log().append((0..10).map(record).collect(), Box::new(|_| ())).unwrap();
    store.log().purge(id(3), Box::new(|_| ())).unwrap();

    let mut log = Log::over(store.log());
    let mut read = async |start| log.limited_get_log_entries(start, 10).await.unwrap().len();

    assert_eq!(read(2).await, 0, "2 and 3 are gone");
    assert_eq!(read(4).await, 6);
}
