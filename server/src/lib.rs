//! holdfastd: the replicated lock server around the pure core.
//!
//! There is one way through, for every command: `frame → session → proposer → Raft log → core.apply →
//! events → dispatch → session streams` (DESIGN §3). Nothing here decides who holds a lock.
//!
//! Dependencies point downwards: `rpc` and `http` → `session` → [`authority`] → [`consensus`] ← `raft` →
//! `storage`; `node` puts the parts together.

pub mod authority;
mod bytes_budget;
#[cfg(test)]
mod captured_log;
mod denials;
pub mod exit;
pub mod http;
pub mod incoming;
mod lengths;
pub mod listen;
pub mod metrics;
pub mod node;
pub mod open_files;
mod process;
mod repeated_lines;
pub mod restore;
pub mod rpc;
pub mod session;
pub mod telemetry;
pub mod tls;
pub mod traces;

pub use holdfast_replication::{consensus, error, members, raft, storage};
pub use holdfast_settings as config;
