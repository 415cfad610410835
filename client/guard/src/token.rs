//! Fencing tokens.

use std::fmt;

/// The number of a grant: larger than that of every grant before it.
///
/// Give it to the resource with every write, and have the resource refuse a token lower than the
/// largest it has seen; then a holder that stalls past its safe deadline cannot overwrite the work
/// of the next one. The top bit is always 0, so the number fits a signed 64-bit column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

/// How many of a token's low bits are the counter's; above them is the epoch.
const COUNTER_BITS: u32 = 48;

impl FencingToken {
    /// The token of this number, as a store or a program was given it; any number is accepted.
    pub const fn from_raw(number: u64) -> Self {
        Self(number)
    }

    /// The token of number `number` in an epoch; `None` if either is too large.
    pub fn of(epoch: u16, number: i64) -> Option<Self> {
        let number = u64::try_from(number).ok().filter(|number| *number < 1 << COUNTER_BITS)?;
        let epoch = Some(u64::from(epoch)).filter(|epoch| *epoch < 1 << (63 - COUNTER_BITS))?;
        Some(Self(epoch << COUNTER_BITS | number))
    }

    /// The epoch: the token's high bits.
    pub const fn epoch(self) -> u64 {
        self.0 >> COUNTER_BITS
    }

    /// The number itself.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The number as a signed database column stores it.
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
