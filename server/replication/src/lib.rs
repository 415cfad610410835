//! What holdfastd stores and replicates: the lock table of the core on every member, behind a Raft log on disk.
//!
//! [`consensus`] is what the layers above see: propose, confirm, read. [`raft`] implements it with openraft, [`storage`] keeps log,
//! vote and snapshots of one node, [`members`] queries and changes the members of the cluster.

pub mod consensus;
pub mod error;
pub mod members;
pub mod raft;
pub mod storage;
