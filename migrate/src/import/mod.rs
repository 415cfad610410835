//! Sends what a plan says to the native store, and can be ended at any point and begun again.
//!
//! ```text
//!  news of the scan ─► plan ─► requests ─► importer ─► answers counted, ranges that are done written down
//!        (bounded)             (one lock after the other, its holder first)
//! ```
//!
//! # What it promises
//!
//! - **A live row is one hold, or one place in line** (I25), however often it is imported: a row whose
//!   import still stands is answered with [`Answer::AlreadyThere`] and changes nothing. So a request
//!   without an answer is sent again, and a run that was killed is begun again, with or without its
//!   checkpoint.
//! - **A hold does not end before its row would have**, for its owner may believe in it that long: what
//!   is left is counted down from the whole of what `TTL(…)` said, and only by time that has certainly
//!   passed ([`left()`]).
//! - **It ends, if nobody claims it**, at most a second and the time of the answer later than its row.
//! - **A line keeps its order**: a lock's holder is sent first, then who waits, in order; in one request
//!   if one can hold them, otherwise in one after the other.
//!
//! # What safety rests on
//!
//! Not on this. While it runs, and until what it imported is claimed, somebody may still lock by the
//! old way: that no two then hold one lock is seen to by the modes that our clients register in
//! Cassandra (nobody is `native` while anybody is still in `cassandra`), and for clients that know of no
//! modes by the operator, who says that they are stopped (DESIGN §10). [`changed_by_strangers`] is a
//! courtesy: it catches the operator who forgot one.
//!
//! [`changed_by_strangers`]: crate::plan::changed_by_strangers

mod checkpoint;
mod left;
#[cfg(test)]
mod memory;
mod pace;
mod requests;
mod run;
mod strangers;
#[cfg(test)]
mod tests;
mod whole;

use std::future::Future;

use crate::plan::Kind;
pub use checkpoint::{Checkpoint, CheckpointError, Job};
pub use left::left;
pub use pace::Pace;
pub use requests::{GROUPS_MAX, ROWS_MAX, Request};
pub use run::{Import, ImportError, Progress, Sum};
pub use strangers::{Stranger, first_stranger};
pub use whole::{Options, OtherTie, Step, WholeError, import_all, import_watched};

/// An owner with what is left of one lease: the store opens one session for it, with that lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Whose the rows are.
    pub owner: String,
    /// What is left, milliseconds.
    pub left_ms: u64,
    /// What it holds, or waits for: [`ROWS_MAX`] at most.
    pub rows: Vec<GroupRow>,
}

/// One row of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRow {
    /// The lock.
    pub lock: String,
    /// Whether it is held or waited for.
    pub kind: Kind,
}

/// What became of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Its owner holds the lock now.
    Imported {
        /// The fencing token of the hold.
        token: u64,
    },
    /// Its owner is in line now.
    Queued,
    /// It was imported before, and that import still stands: nothing was changed.
    AlreadyThere,
    /// It was not imported.
    Refused {
        /// Why, for people.
        reason: String,
    },
}

/// Why a request has no answers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It may have taken effect, wholly or in part, or may still. To be sent again.
    #[error("{0}")]
    Unknown(String),
    /// Nothing of it has taken effect, and nothing will another time either.
    #[error("{0}")]
    Refused(String),
}

/// The native store, as an import uses it.
pub trait Importer {
    /// Which cluster it is: never the same for two, and the same for one for ever.
    fn cluster(&self) -> impl Future<Output = Result<String, Fault>>;

    /// Imports groups, in order, once: an answer for each row of each of them. Dropping the future leaves
    /// open whether it takes effect.
    fn import(&self, groups: &[Group]) -> impl Future<Output = Result<Vec<Vec<Answer>>, Fault>>;
}
