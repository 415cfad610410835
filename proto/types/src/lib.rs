//! What server and clients agree on without saying it over the wire: what a name is, what a fencing
//! token is made of, which modes a hold can have, how much one request may contain.
//!
//! Pure: no clock, no I/O. With the feature `stored` the types have the encoding of the server's
//! core, whose bytes are kept for ever.

use std::fmt;

mod limits;
mod name;
#[cfg(feature = "stored")]
mod stored;
mod token;

pub use limits::{IMPORT_ROWS_MAX, NAMES_MAX, VALUE_BYTES_MAX};
pub use name::{
    LABEL_BYTES_MAX, Label, LockName, NAME_BYTES_MAX, SCOPE_BYTES_MAX, ScopePrefix, TextError,
};
#[cfg(feature = "stored")]
pub use stored::read_bytes;
pub use token::FencingToken;

/// The mode of a hold. Two fit together only if both are shared (I2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "stored", derive(borsh::BorshSerialize, borsh::BorshDeserialize))]
pub enum Mode {
    /// One holder alone.
    Exclusive,
    /// Beside other holders that share it: readers, as a rule.
    Shared,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
        })
    }
}
