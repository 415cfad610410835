//! Who held what, from when to when, under which token, and why it ended: what a node remembers of the log that it
//! applies.
//!
//! Every node keeps its own history, from the same log: it outlives a leader, and it can be read without a quorum. A
//! [`History`] hears each entry right after it was applied ([`Recorder`](holdfast_replication::consensus::Recorder)), makes
//! records of it, and a thread of its own writes them ten times a second. Times are the leader's wall clock as it stands
//! in the log, so all nodes say the same; only the time of a change of the members is each node's own.
//!
//! # Invariants
//!
//! - An entry of the log stands in a history once, or it lies in a gap that the history shows (I39): after a restart, an
//!   installed snapshot, a full disk, a damaged file. Each frame on disk names the entries that it covers, and
//!   what lies between two frames is a gap.
//! - What was synced survives a power cut: all but the last second or so. A process that is killed loses a tenth of one.
//! - Nothing waits for the history, and no fault of it stops the node: what cannot be written is left out.
//! - It takes no more of the disk than it may, and nothing of the reserve that the store needs.
//! - It keeps no secret: no session's secret, no token of an identity, no value of a lock.
//!
//! # Bounds
//!
//! Records that are not written yet take [`UNWRITTEN_BYTES`] at most; entries beyond them are left out. A page of answers has
//! [`PAGE_BYTES`] or a little more, and reading one takes one file at a time into memory.

mod files;
mod frame;
mod keeper;
mod metrics;
mod query;
mod record;
mod tell;
#[cfg(test)]
mod tests;

pub use files::{Bounds, Settings};
pub use keeper::{History, OpenError, UNWRITTEN_BYTES};
pub use metrics::HistoryMetrics;
pub use query::{Cursor, Found, Names, PAGE_BYTES, PAGE_RECORDS_MAX, Page, Query, Stretch};
pub use record::{Act, Hold, Over, Record, What, Why};
