//! Errors of reading tables. A scan never changes anything.

use crate::layout::Mismatch;

/// Why tables cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// The keyspace does not exist.
    #[error(
        "there is no keyspace \"{keyspace}\"; those of the cluster are: {has}; --keyspace names one"
    )]
    NoKeyspace {
        /// The keyspace that was requested.
        keyspace: String,
        /// The keyspaces that exist.
        has: String,
    },
    /// The table does not exist.
    #[error(
        "keyspace \"{keyspace}\" has no table \"{table}\"; its tables are: {has}; an option names it \
         if it is called otherwise (holdfast-migrate plan --help)"
    )]
    NoTable {
        /// The keyspace.
        keyspace: String,
        /// The table that was requested.
        table: String,
        /// The tables that exist.
        has: String,
    },
    /// A table does not fit the recipe.
    #[error("table \"{table}\" is not as the recipe has it: {mismatch}")]
    OtherTable {
        /// Its name.
        table: String,
        /// The first difference.
        mismatch: Mismatch,
    },
    /// The cluster orders its partitions in another way.
    #[error(
        "the cluster's partitioner is {name}; tables are read by the tokens of Murmur3Partitioner or RandomPartitioner"
    )]
    Partitioner {
        /// Its name.
        name: String,
    },
    /// The server refuses the read.
    #[error("table \"{table}\": the server refuses to read it: {message}")]
    Refused {
        /// Its name.
        table: String,
        /// The server's message.
        message: String,
    },
    /// A page could not be read.
    #[error("table \"{table}\" could not be read at QUORUM, {attempts} times: {last}")]
    Unreadable {
        /// Its name.
        table: String,
        /// How often it was requested.
        attempts: u32,
        /// The last fault.
        last: String,
    },
}

impl ScanError {
    /// Whether the error persists until an operator changes something.
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
