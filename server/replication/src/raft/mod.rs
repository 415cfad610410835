//! Replication: the one module that names openraft.
//!
//! ```text
//!  Consensus            Proposer ──batches──▶ openraft ──entries──▶ Machine ──▶ LockTable
//!  (sessions, calls) ─▶ Confirmer ─round─▶ Peers │  ▲                  └─events─▶ Listener
//!        ▲                                       │  │
//!        └── Role ◀── Tenures ◀──metrics─────────┘  └── Handler ◀── Peer (gRPC, memory)
//!                                                │
//!                                  Log ──▶ storage::LogStore
//!                                  Network ──▶ Peer of another member
//! ```
//!
//! openraft's types are in neither the wire nor the disk formats nor the public API (DESIGN §7).
//!
//! # Invariants
//!
//! - A tenure is one term led by one process from start to end. It begins with an entry of its own,
//!   applied; nothing is proposed, confirmed or expired before.
//! - A batch that was submitted in one tenure is appended in no other.
//! - A leader is confirmed by a quorum round begun after the question, and only by answers to calls
//!   of that round: never by a clock, nor by what openraft remembers of earlier requests (I18).
//! - One place checks every message of a peer for cluster, incarnation and receiver, before other
//!   code reads it (I22).
//! - No node votes under an id whose data is gone (I20, I22): see `formation.rs`.

mod admission;
mod admitting;
mod confirm;
mod departure;
mod disk_times;
mod fault;
mod formation;
mod freeing;
mod grpc;
mod hand_over;
mod handler;
mod log;
mod log_keeper;
mod machine;
mod membership;
#[cfg(test)]
mod memory_network;
#[cfg(any(test, feature = "simulation"))]
mod memory_store;
mod metrics;
mod network;
mod peers;
mod proposer;
mod quorum_round;
mod relief;
mod replica;
mod restored;
#[cfg(any(test, feature = "simulation"))]
mod runtime;
mod sending;
mod survey;
mod tenure;
mod types;
mod wire;
mod work_left;

pub use crate::members::{
    Change, ClusterStatus, Member, MemberStatus, Members, MembershipError, MembershipRefusal,
};
pub use crate::storage::{KeptSnapshot, ReplicaStore, SnapshotDraft};
pub use fault::Fault;
pub use formation::{Forming, has_history};
pub use freeing::free_with_pauses;
pub use grpc::{GrpcNetwork, Proven, peer_server};
#[cfg(test)]
pub use memory_network::{Leg, MemoryNetwork};
#[cfg(any(test, feature = "simulation"))]
pub use memory_store::MemoryStore;
pub use metrics::ReplicationMetrics;
pub use peers::{Lane, Peer, PeerAnswer, PeerError, PeerNetwork, PeerStream};
pub use replica::{Replica, ReplicaConfig, ReplicaStatus, StartError};
pub use restored::found_restored;

#[cfg(test)]
mod tests;
