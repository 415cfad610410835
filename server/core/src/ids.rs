//! Parsed names and numbers: a value of one of these types was checked once, at the edge.

use std::fmt;
use std::io::{self, Read};

use borsh::{BorshDeserialize, BorshSerialize};
pub(crate) use holdfast_types::read_bytes;
pub use holdfast_types::{
    FencingToken, LABEL_BYTES_MAX, Label, LockName, NAME_BYTES_MAX, SCOPE_BYTES_MAX, ScopePrefix,
    TextError,
};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, BorshSerialize, BorshDeserialize,
        )]
        pub struct $name(u64);

        impl $name {
            /// Wraps the number.
            pub const fn new(number: u64) -> Self {
                Self(number)
            }

            /// The number itself.
            pub const fn get(self) -> u64 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// A session. The core assigns ids in rising order, and never again during the life of the
    /// cluster.
    SessionId
}
number! {
    /// A request within its session. Chosen by the client, used in rising order.
    RequestId
}
number! {
    /// A request's place in time: one counter for all queues; smaller is earlier.
    Ticket
}
number! {
    /// One term led by one process from start to end (DESIGN §7): the Raft term.
    Tenure
}
number! {
    /// Index of a log entry.
    LogIndex
}

/// Reads borsh bytes of any length, with memory for the bytes that arrive and not for the length
/// they claim: borsh itself first allocates up to a mebibyte.
pub(crate) fn read_grown_bytes<R: io::Read>(reader: &mut R) -> io::Result<Vec<u8>> {
    let claimed = u64::from(u32::deserialize_reader(reader)?);
    let mut bytes = Vec::new();
    reader.by_ref().take(claimed).read_to_end(&mut bytes)?;
    if (bytes.len() as u64) < claimed {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}
