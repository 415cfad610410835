//! What goes wrong when tables are read. Nothing was changed, whatever it is.

use crate::layout::Mismatch;

/// Why tables cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// No such keyspace.
    #[error(
        "there is no keyspace \"{keyspace}\"; those of the cluster are: {has}; --keyspace names one"
    )]
    NoKeyspace {
        /// The one that was asked for.
        keyspace: String,
        /// Those that there are.
        has: String,
    },
    /// No such table.
    #[error(
        "keyspace \"{keyspace}\" has no table \"{table}\"; its tables are: {has}; an option names it \
         if it is called otherwise (holdfast-migrate plan --help)"
    )]
    NoTable {
        /// Where it was looked for.
        keyspace: String,
        /// The one that was asked for.
        table: String,
        /// Those that there are.
        has: String,
    },
    /// A table is not the recipe's.
    #[error("table \"{table}\" is not as the recipe has it: {mismatch}")]
    OtherTable {
        /// Its name.
        table: String,
        /// The first difference.
        mismatch: Mismatch,
    },
    /// Its partitions are in another order.
    #[error(
        "the cluster's partitioner is {name}; tables are read in the order of Murmur3Partitioner"
    )]
    Partitioner {
        /// Its name.
        name: String,
    },
    /// The server refuses.
    #[error("table \"{table}\": the server refuses to read it: {message}")]
    Refused {
        /// Its name.
        table: String,
        /// What the server says.
        message: String,
    },
    /// A page was not read.
    #[error("table \"{table}\" could not be read at QUORUM, {attempts} times: {last}")]
    Unreadable {
        /// Its name.
        table: String,
        /// How often it was tried.
        attempts: u32,
        /// The last fault.
        last: String,
    },
}

impl ScanError {
    /// Whether it will be so another time, unless something is changed.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::NoKeyspace { .. }
            | Self::NoTable { .. }
            | Self::OtherTable { .. }
            | Self::Partitioner { .. }
            | Self::Refused { .. } => true,
            Self::Unreadable { .. } => false,
        }
    }
}
