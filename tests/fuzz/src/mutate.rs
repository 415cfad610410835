//! What is done to an input: what damage, a forger, or another version would do.

use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;

use crate::corpus::Corpus;

/// Most changes of one input. Few, or nothing of a valid encoding is left.
const CHANGES_MAX: usize = 5;
/// Longest input, bytes.
const BYTES_MAX: usize = 64 << 10;
/// Longest piece that is taken out, put in or repeated at a time, bytes.
const PIECE_MAX: usize = 64;
/// Numbers at which lengths, counts and signs go wrong.
const NUMBERS: [u64; 14] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x10000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    i64::MAX as u64,
    1 << 63,
    u64::MAX,
];

/// A changed copy of one input of the corpus; now and then bytes that are nothing at all.
pub(crate) fn mutate(corpus: &Corpus, rng: &mut Xoshiro256PlusPlus) -> Vec<u8> {
    if rng.random_range(0..100) == 0 {
        return noise(rng, 200);
    }
    let mut bytes = corpus.pick(rng).to_vec();
    for _ in 0..rng.random_range(1..=CHANGES_MAX) {
        change(&mut bytes, corpus, rng);
    }
    bytes.truncate(BYTES_MAX);
    bytes
}

fn change(bytes: &mut Vec<u8>, corpus: &Corpus, rng: &mut Xoshiro256PlusPlus) {
    match rng.random_range(0..10) {
        0 | 1 => on_byte(bytes, rng, |byte, rng| byte ^ (1 << rng.random_range(0..8))),
        2 => on_byte(bytes, rng, |_, rng| rng.random()),
        3 => on_byte(bytes, rng, |byte, rng| {
            byte.wrapping_add(rng.random_range(0..33)).wrapping_sub(16)
        }),
        4 => put_number(bytes, rng),
        5 => {
            let len = rng.random_range(0..=bytes.len());
            bytes.truncate(len);
        }
        6 => {
            let piece = piece(bytes.len(), rng);
            bytes.drain(piece);
        }
        7 => {
            let again = bytes[piece(bytes.len(), rng)].to_vec();
            insert(bytes, &again, rng);
        }
        8 => {
            let noise = noise(rng, 8);
            insert(bytes, &noise, rng);
        }
        _ => splice(bytes, corpus.pick(rng), rng),
    }
}

fn on_byte(
    bytes: &mut [u8],
    rng: &mut Xoshiro256PlusPlus,
    change: impl Fn(u8, &mut Xoshiro256PlusPlus) -> u8,
) {
    if bytes.is_empty() {
        return;
    }
    let at = rng.random_range(0..bytes.len());
    bytes[at] = change(bytes[at], rng);
}

/// A number that breaks things, of any width, in either order.
fn put_number(bytes: &mut [u8], rng: &mut Xoshiro256PlusPlus) {
    let mut number = NUMBERS[rng.random_range(0..NUMBERS.len())];
    if rng.random_range(0..4) == 0 {
        number = bytes.len() as u64;
    }
    let width = [1, 2, 4, 8][rng.random_range(0..4)];
    if bytes.len() < width {
        return;
    }
    let at = rng.random_range(0..=bytes.len() - width);
    let written = if rng.random() {
        number.to_le_bytes()[..width].to_vec()
    } else {
        number.to_be_bytes()[8 - width..].to_vec()
    };
    bytes[at..at + width].copy_from_slice(&written);
}

fn insert(bytes: &mut Vec<u8>, piece: &[u8], rng: &mut Xoshiro256PlusPlus) {
    let at = rng.random_range(0..=bytes.len());
    bytes.splice(at..at, piece.iter().copied());
}

/// The front of the one and the back of the other.
fn splice(bytes: &mut Vec<u8>, other: &[u8], rng: &mut Xoshiro256PlusPlus) {
    let keep = rng.random_range(0..=bytes.len());
    let from = rng.random_range(0..=other.len());
    bytes.truncate(keep);
    bytes.extend_from_slice(&other[from..]);
}

fn piece(len: usize, rng: &mut Xoshiro256PlusPlus) -> std::ops::Range<usize> {
    let from = rng.random_range(0..=len);
    from..(from + rng.random_range(0..=PIECE_MAX)).min(len)
}

fn noise(rng: &mut Xoshiro256PlusPlus, at_most: usize) -> Vec<u8> {
    (0..rng.random_range(0..=at_most)).map(|_| rng.random()).collect()
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    /// All kinds of change on all kinds of small inputs: none of them is ever out of bounds.
    #[test]
    fn every_change_fits_every_input() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        for len in 0..40_u8 {
            let corpus = Corpus::new(vec![(0..len).collect(), Vec::new()]);
            for _ in 0..2_000 {
                mutate(&corpus, &mut rng);
            }
        }
    }

    #[test]
    fn most_mutations_keep_most_of_their_input() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(2);
        let seed: Vec<u8> = (0..200).collect();
        let corpus = Corpus::new(vec![seed.clone()]);
        let begins_alike = |bytes: &Vec<u8>| bytes.iter().zip(&seed).take(20).all(|(a, b)| a == b);
        let alike = (0..1_000).map(|_| mutate(&corpus, &mut rng)).filter(begins_alike).count();
        assert!((400..950).contains(&alike), "{alike}");
    }
}
