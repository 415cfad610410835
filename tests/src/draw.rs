//! Repeatable random choices.

/// Small numbers from a seed (`SplitMix64`): the same seed makes the same choices.
#[derive(Clone, Debug)]
pub struct Draw(u64);

impl Draw {
    /// Draws from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound.max(1)
    }

    /// A number from `least` to `most`, both included.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most.saturating_sub(least) + 1)
    }

    /// One of several; `None` if there is none.
    pub fn one_of<T: Copy>(&mut self, several: &[T]) -> Option<T> {
        several.get(usize::try_from(self.below(several.len() as u64)).ok()?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_draws_the_same_numbers_again_and_within_the_bounds() {
        let numbers = |seed| {
            let mut draw = Draw::new(seed);
            [(); 100].map(|()| draw.between(3, 9))
        };

        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
        assert!(numbers(7).iter().all(|number| (3..=9).contains(number)));
        assert_eq!(Draw::new(1).one_of::<u8>(&[]), None);
    }
}
