//! The modes of a hold.

use std::fmt;

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
