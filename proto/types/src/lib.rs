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

pub use limits::{HEAD_START_MAX_MS, IMPORT_ROWS_MAX, NAMES_MAX, VALUE_BYTES_MAX};
pub use name::{
    LABEL_BYTES_MAX, Label, LockName, NAME_BYTES_MAX, SCOPE_BYTES_MAX, ScopePrefix, TextError,
};
#[cfg(feature = "stored")]
pub use stored::read_bytes;
pub use token::FencingToken;

/// The mode of a hold. Two fit together if both are shared, or both are permits and the limit has room for
/// them (I2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "stored", derive(borsh::BorshSerialize, borsh::BorshDeserialize))]
pub enum Mode {
    /// One holder alone.
    Exclusive,
    /// Beside other holders that share it: readers, as a rule.
    Shared,
    /// Some of the lock's permits, beside other holders of permits: a semaphore.
    Permits {
        /// How many: 1 to the limit.
        count: u32,
        /// How many permits there are. 0 in a request: as many as the limit says that was set for good; of a holder or
        /// waiter that a client is told of: it is told with the lock.
        limit: u32,
    },
}

impl Mode {
    /// Whether it is some permits.
    pub const fn is_permits(self) -> bool {
        matches!(self, Self::Permits { .. })
    }

    /// How many permits; 0 in another mode.
    pub const fn permits(self) -> u32 {
        match self {
            Self::Permits { count, .. } => count,
            Self::Exclusive | Self::Shared => 0,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("exclusive"),
            Self::Shared => f.write_str("shared"),
            Self::Permits { count: 1, .. } => f.write_str("1 permit"),
            Self::Permits { count, .. } => write!(f, "{count} permits"),
        }
    }
}
