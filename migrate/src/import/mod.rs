//! Sends the planned rows to the native store; it can be stopped at any point and begun again.
//!
//! ```text
//!  news of the scan ─► plan ─► requests ─► importer ─► answers counted, ranges that are done written down
//!        (bounded)             (one lock after the other, its holder first)
//! ```
//!
//! # What it promises
//!
//! - **A live row is one hold, or one place in line** (I25), however often it is imported: the
//!   store answers [`ImportOutcome::Known`] for a row whose import still stands, and changes
//!   nothing. So a request without an answer is sent again, and a run that was killed is begun
//!   again, with or without its checkpoint.
//! - **A hold does not end before its row would have**, because its owner may rely on the row that
//!   long: the import starts from the whole of `TTL(…)`, and subtracts only time that has certainly
//!   passed (`remaining_ttl`, in `requests`).
//! - **An unclaimed hold ends about a second after its row**: up to a second for the rounding of
//!   `TTL(…)`, the delays of the messages, and a tenth of the time between read and import.
//! - **A line keeps its order**: a lock's holder is sent first, then its waiters, in order; in one
//!   request if they fit, otherwise in one after the other.
//!
//! # What safety rests on
//!
//! Not on the import. While it runs, and until its holds are claimed, a client may still lock by
//! the recipe. Two things prevent two holders of one lock: the modes that our clients register in
//! Cassandra (no process is `native` while any is still in `cassandra`), and, for clients that know
//! no modes, the operator, who states that they are stopped (DESIGN §10). [`changed_by_foreign_writer`]
//! is a courtesy: it catches a client that the operator forgot.
//!
//! [`changed_by_foreign_writer`]: crate::plan::changed_by_foreign_writer

mod checkpoint;
mod import_all;
mod preconditions;
mod requests;
mod run;
#[cfg(test)]
mod tests;

use std::future::Future;

use holdfast::{ImportGroup, ImportOutcome};

pub use checkpoint::{Checkpoint, CheckpointError, Job};
pub use import_all::{ImportError, Options, import_all};
pub use preconditions::OtherTie;
use requests::Request;
pub use run::{Import, ImportReport, Pace, SendError, Sum};

/// Why a request has no answers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The request may have taken effect, wholly or in part, or may still. The caller sends it
    /// again.
    #[error("{0}")]
    Unknown(String),
    /// The request has not taken effect, and will not if it is sent again.
    #[error("{0}")]
    Refused(String),
}

/// The native store, as an import uses it.
pub trait Importer {
    /// The cluster's id: unique to the cluster, and never changed.
    fn cluster(&self) -> impl Future<Output = Result<String, Fault>>;

    /// Sends groups once, to be imported in order; returns an outcome for each row of each of them.
    /// Dropping the future leaves open whether the request takes effect.
    fn import(
        &self,
        groups: &[ImportGroup],
    ) -> impl Future<Output = Result<Vec<Vec<ImportOutcome>>, Fault>>;
}
