//! Where a cluster's partitioner places keys on its ring. Reads of ranges count in the 64 bits of `Murmur3Partitioner`, the default since
//! Cassandra 1.2. The ring of `RandomPartitioner`, which older clusters keep for ever, has 2¹²⁷ places: it is divided in the same
//! proportions, so that a range is as large a part of either.

use scylla::value::{CqlValue, CqlVarint};

/// A partitioner whose ring can be read in ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partitioner {
    /// Tokens of 64 bits.
    Murmur3,
    /// Tokens up to 2¹²⁷.
    Random,
}

/// Places of the large ring to one of the small: 2⁶³.
const PLACES_BITS: u32 = 63;
/// The sign bit of a 64-bit number, which makes its order that of an unsigned one.
const SIGN: u64 = 1 << 63;

impl Partitioner {
    /// By the name of its class; `None` for those that keep the order of keys, of which no part is known to be as large as another.
    pub fn named(class: &str) -> Option<Self> {
        match class.rsplit('.').next() {
            Some("Murmur3Partitioner") => Some(Self::Murmur3),
            Some("RandomPartitioner") => Some(Self::Random),
            _ => None,
        }
    }

    /// The bound of a range, as a token.
    pub fn token(self, at: i64) -> CqlValue {
        if self == Self::Murmur3 {
            return CqlValue::BigInt(at);
        }
        let bytes = match at {
            // Below the first place and at the last one: a range of the whole ring leaves nothing out.
            i64::MIN => vec![0xff],
            i64::MAX => unsigned(1 << 127),
            _ => unsigned(u128::from(at.cast_unsigned() ^ SIGN) << PLACES_BITS),
        };
        CqlValue::Varint(CqlVarint::from_signed_bytes_be(bytes))
    }

    /// Where a token lies. Tokens that lie beside each other on the large ring may share a place.
    pub fn place(self, token: Option<&CqlValue>) -> i64 {
        match token {
            Some(CqlValue::BigInt(token)) => *token,
            Some(CqlValue::Varint(token)) => {
                let bytes = token.as_signed_bytes_be_slice().iter();
                let token = bytes.fold(0_u128, |sum, byte| sum << 8 | u128::from(*byte));
                let place = u64::try_from(token >> PLACES_BITS).unwrap_or(u64::MAX);
                (place ^ SIGN).cast_signed()
            }
            _ => i64::MIN,
        }
    }
}

/// A number that is not negative, as the bytes of a varint.
fn unsigned(number: u128) -> Vec<u8> {
    [&[0][..], &number.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statement::TokenRange;

    fn varint(value: &CqlValue) -> Vec<u8> {
        let CqlValue::Varint(varint) = value else { panic!("{value:?}") };
        varint.as_signed_bytes_be_slice().to_vec()
    }

    #[test]
    fn partitioners_are_known_by_their_class() {
        let named = |name: &str| Partitioner::named(&format!("org.apache.cassandra.dht.{name}"));
        assert_eq!(named("Murmur3Partitioner"), Some(Partitioner::Murmur3));
        assert_eq!(named("RandomPartitioner"), Some(Partitioner::Random));
        assert_eq!(named("ByteOrderedPartitioner"), None);
    }

    #[test]
    fn the_ranges_of_a_ring_leave_out_nothing_of_the_large_ring() {
        let ranges = TokenRange::split(3);
        let bound = |at| varint(&Partitioner::Random.token(at));
        assert_eq!(bound(ranges[0].after), [0xff], "-1: no key has it");
        assert_eq!(bound(ranges[2].upto), unsigned(1 << 127));
        for (one, next) in ranges.iter().zip(&ranges[1..]) {
            assert_eq!(bound(one.upto), bound(next.after));
            assert!(bound(one.after) != bound(one.upto));
        }
        assert_eq!(bound(0), unsigned(1 << 126), "the middle");
    }

    #[test]
    fn tokens_keep_their_order_as_places() {
        let place = |bytes: &[u8]| {
            let token = CqlVarint::from_signed_bytes_be_slice(bytes);
            Partitioner::Random.place(Some(&CqlValue::Varint(token)))
        };
        let tokens = [0, 1, 1 << 62, 1 << 63, (1 << 63) + 1, 1 << 100, (1 << 127) - 1, 1 << 127];
        let places: Vec<i64> = tokens.iter().map(|token| place(&unsigned(*token))).collect();
        assert!(places.is_sorted(), "{places:?}");
        assert_eq!((places[0], places[3], places[7]), (i64::MIN, i64::MIN + 1, i64::MAX));
        assert_eq!(place(&[5]), i64::MIN, "short ones are small");
        assert_eq!(Partitioner::Murmur3.place(Some(&CqlValue::BigInt(-7))), -7);
    }
}
