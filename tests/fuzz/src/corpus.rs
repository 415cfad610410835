//! The inputs that mutations begin with.

use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;

/// Most inputs beside the seeds; past it a new one takes the place of an old one.
const FOUND_MAX: usize = 512;

pub(crate) struct Corpus {
    seeds: Vec<Vec<u8>>,
    found: Vec<Vec<u8>>,
    /// Where the next one goes once there are enough.
    next: usize,
}

impl Corpus {
    pub(crate) fn new(seeds: Vec<Vec<u8>>) -> Self {
        Self { seeds, found: Vec::new(), next: 0 }
    }

    pub(crate) fn add(&mut self, bytes: Vec<u8>) {
        if self.found.len() < FOUND_MAX {
            self.found.push(bytes);
        } else if let Some(place) = self.found.get_mut(self.next % FOUND_MAX) {
            *place = bytes;
            self.next += 1;
        }
    }

    /// One of them, a seed as often as one that was found.
    pub(crate) fn pick(&self, rng: &mut Xoshiro256PlusPlus) -> &[u8] {
        let from = if self.found.is_empty() || rng.random() { &self.seeds } else { &self.found };
        let at = if from.is_empty() { 0 } else { rng.random_range(0..from.len()) };
        from.get(at).map_or(&[], Vec::as_slice)
    }
}
