//! Fencing tokens.

use std::fmt;

/// The number of a grant: larger than that of every grant before it.
///
/// Give it to the resource with every write, and have the resource refuse a token lower than the
/// largest it has seen; then a holder that stalls past its safe deadline cannot overwrite the work
/// of the next one. The top bit is always 0, so the number fits a signed 64-bit column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    pub(crate) const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number itself.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The number as databases have it.
    pub const fn as_i64(self) -> i64 {
        self.0.cast_signed()
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.get()
    }
}

impl From<FencingToken> for i64 {
    fn from(token: FencingToken) -> Self {
        token.as_i64()
    }
}
