//! What this node keeps on disk: the replicated log, its vote, snapshots, and its identity.
//!
//! This is the only module that names sled. It does not name the Raft library either: payloads and
//! metas are opaque bytes, and the adapter in `raft/` translates.
//!
//! # Promises
//!
//! - What was acknowledged survives a loss of power that takes every write that was not synced
//!   (I19), and so does the vote (I20).
//! - A folder that is shorter than, or different from, what its guard file says does not open
//!   (I21). [`OpenError`] says what to do instead.
//! - The log is purged only below a snapshot that was synced and read back (I30).
//! - The first failed write or sync is reported as a [`Fault`]; nothing is retried and nothing is
//!   acknowledged after it. A file that cannot be opened for want of descriptors was not written: opening
//!   it is repeated for a minute.
//!
//! # A data folder
//!
//! ```text
//! LOCK         held while a process has the folder open; its process id
//! guard        what the node is, and the least that the rest must hold
//! log/         the records of the log, in segments
//! sled/        marks: store id, vote, purge mark
//! snapshots/   one file each
//! ```
//!
//! # What the folder cannot know (I22)
//!
//! The store refuses a folder of another node or cluster, a store without its guard, a guard
//! without its store, and a store and guard that were not made together. It cannot tell a folder
//! that was emptied whole from a new one, nor an old copy of a whole folder from the folder itself.
//! So the code that forms a cluster must not let a node at [`Stage::Fresh`] join an initialised
//! cluster under an id that the cluster knows, and backups are restored as a new incarnation, never
//! by copying a folder back.

mod commit_queue;
mod counters;
mod disk;
mod disk_watch;
mod error;
mod files;
#[cfg(test)]
mod fuzz;
mod guard;
mod log_loop;
mod log_store;
#[cfg(any(test, feature = "simulation"))]
mod memory_log;
mod mirror;
mod record;
mod recover;
mod replica_store;
mod segments;
#[cfg(any(test, feature = "simulation"))]
mod simulated;
mod sled_open;
mod snapshot;
mod store;
mod tree;
mod writer;

pub use counters::Counters;
pub use disk::{Disk, DiskFile, system_disk};
pub use error::{Fault, OnFault, OpenError};
pub use files::free_space;
pub use guard::{ClusterId, Identity, Member, PromiseError, Stage};
pub use log_store::{Done, LogIo, LogStore, Operation};
#[cfg(any(test, feature = "simulation"))]
pub use memory_log::{Completion, MemoryLog};
pub use mirror::{LogMirror, Misuse, RECORD_BYTES};
pub use record::{DecodeError, LogId, MAX_PAYLOAD, Record, RecordKind, StoredVote};
pub use replica_store::{BodyReader, KeptSnapshot, Pace, ReplicaStore, SnapshotDraft, Step};
pub use segments::SegmentSizes;
#[cfg(any(test, feature = "simulation"))]
pub use simulated::{Ground, OpenTree};
pub use snapshot::{
    MAX_SNAPSHOT_META, SNAPSHOT_CHUNK, SnapshotInfo, SnapshotReader, SnapshotWriter, Snapshots,
};
pub use store::{Store, StoreOptions};
pub use tree::{Change, Items, Tree};
