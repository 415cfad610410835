//! The ring of tokens, in pieces.

/// Some of the tokens: those above one and up to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Its number among all, from 0.
    pub index: usize,
    /// Above this one.
    pub after: i64,
    /// Up to this one, and with it.
    pub upto: i64,
}

impl Range {
    /// The whole ring in so many ranges, equally long but for a token; one at least. No key has the
    /// lowest token, which is no range's.
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
