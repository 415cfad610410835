//! Fencing tokens.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

/// The number of a grant: larger than that of every grant before it (I3).
///
/// Give it to the resource with every write, and have the resource refuse a token lower than the
/// largest it has seen; then a holder that stalls past its safe deadline cannot overwrite the work
/// of the next one.
///
/// It is `epoch:15 ‖ counter:48`, and the top bit is always 0, so that the number fits a signed
/// 64-bit column. Tokens strictly increase for every name, and over all grants of one scope; names
/// without one are one scope. No two grants of a cluster have the same counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "stored", derive(borsh::BorshSerialize, borsh::BorshDeserialize))]
pub struct FencingToken(u64);

impl FencingToken {
    const COUNTER_BITS: u32 = 48;
    /// Largest counter.
    pub const COUNTER_MAX: u64 = (1 << Self::COUNTER_BITS) - 1;
    /// Largest epoch.
    pub const EPOCH_MAX: u16 = (1 << 15) - 1;

    /// Builds a token; `None` if the epoch or the counter does not fit.
    pub const fn new(epoch: u16, counter: u64) -> Option<Self> {
        if epoch > Self::EPOCH_MAX || counter > Self::COUNTER_MAX {
            return None;
        }
        Some(Self(((epoch as u64) << Self::COUNTER_BITS) | counter))
    }

    /// Wraps a number that a store or a program was given, whether it was ever a token or not.
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// The upper part: raised when a cluster is restored or an authority changes (DESIGN §7, §10).
    pub const fn epoch(self) -> u64 {
        self.0 >> Self::COUNTER_BITS
    }

    /// The lower part: counts the grants of the cluster, across all epochs.
    pub const fn counter(self) -> u64 {
        self.0 & Self::COUNTER_MAX
    }

    /// The number that resources compare.
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

/// The number in decimal digits, as `HOLDFAST_TOKEN` has it.
impl FromStr for FencingToken {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        text.parse().map(Self)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_shows_its_epoch_and_counter_and_fits_a_signed_column() {
        let token = FencingToken::new(FencingToken::EPOCH_MAX, FencingToken::COUNTER_MAX);
        let token = token.expect("both parts fit");
        assert_eq!((token.epoch(), token.counter()), (32_767, (1 << 48) - 1));
        assert_eq!(i64::try_from(token.get()), Ok(i64::MAX));
        assert_eq!(FencingToken::new(1 << 15, 0), None);
        assert_eq!(FencingToken::new(0, 1 << 48), None);
    }

    #[test]
    fn a_token_is_read_as_it_is_shown() {
        let token = FencingToken::from_raw(u64::MAX);
        assert_eq!(token.to_string().parse(), Ok(token));
        for wrong in ["", "-1", "1.5", "0x1", "18446744073709551616", " 1"] {
            assert!(wrong.parse::<FencingToken>().is_err(), "{wrong:?}");
        }
    }
}
