//! openraft's own conformance suite, over our adapters.

use std::sync::Arc;

use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};
use tempfile::TempDir;

use crate::raft::MemoryStore;
use crate::raft::fault::FaultSlot;
use crate::raft::log::Log;
use crate::raft::machine::Machine;
use crate::raft::store::ReplicaStore;
use crate::raft::types::Types;
use crate::storage::{Store, StoreOptions};

fn machine() -> (Arc<MemoryStore>, Machine) {
    let store = Arc::new(MemoryStore::new(1));
    let machine = Machine::load(store.clone(), FaultSlot::new()).unwrap();
    (store, machine)
}

struct InMemory;

impl StoreBuilder<Types, Log, Machine, ()> for InMemory {
    async fn build(&self) -> Result<((), Log, Machine), StorageError<Types>> {
        let (store, machine) = machine();
        Ok(((), Log(store.log()), machine))
    }
}

struct OnSled;

/// The log on sled; the suite purges without snapshots, which a whole store refuses (I30).
impl StoreBuilder<Types, Log, Machine, TempDir> for OnSled {
    async fn build(&self) -> Result<(TempDir, Log, Machine), StorageError<Types>> {
        let folder = TempDir::new().unwrap();
        let options = StoreOptions {
            node_id: 1,
            cluster: None,
            new_store_id: [7; 16],
            on_fault: Arc::new(|fault| panic!("{fault}")),
        };
        let log = Store::open_log_without_snapshots(folder.path(), options).unwrap();
        let (_, machine) = machine();
        Ok((folder, Log(Arc::new(log)), machine))
    }
}

#[tokio::test]
async fn the_memory_log_passes_the_suite_of_openraft() {
    Suite::test_all(InMemory).await.unwrap();
}

#[tokio::test]
async fn the_sled_log_passes_the_suite_of_openraft() {
    Suite::test_all(OnSled).await.unwrap();
}
