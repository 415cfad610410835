//! Splits the ring of tokens into ranges.

/// A range of tokens: above `after` and up to `upto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Its number among all, from 0.
    pub index: usize,
    /// The last token below the range.
    pub after: i64,
    /// The last token of the range.
    pub upto: i64,
}

impl Range {
    /// Splits the whole ring into this many ranges, at least one, whose lengths differ by one token
    /// at most. No range has the lowest token, because no key has it.
    pub fn split(number: usize) -> Vec<Self> {
        let number = number.max(1);
        let bounds = |at: usize| {
            let (at, of) = (u128::try_from(at).unwrap_or(0), u128::try_from(number).unwrap_or(1));
            let offset = i128::try_from(u128::from(u64::MAX) * at / of).unwrap_or(0);
            i64::try_from(i128::from(i64::MIN) + offset).unwrap_or(i64::MAX)
        };
        let range = |index| Self { index, after: bounds(index), upto: bounds(index + 1) };
        (0..number).map(range).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_the_whole_ring_without_gap_or_overlap() {
        for number in [0, 1, 2, 3, 7, 256, 1_000] {
            let ranges = Range::split(number);
            assert_eq!(ranges.len(), number.max(1));
            assert_eq!(ranges[0].after, i64::MIN);
            assert_eq!(ranges[ranges.len() - 1].upto, i64::MAX);
            for (index, pair) in ranges.windows(2).enumerate() {
                assert_eq!(pair[0].upto, pair[1].after, "{number}");
                assert!(pair[0].after < pair[0].upto && pair[0].index == index, "{number}");
            }
        }
    }
}
