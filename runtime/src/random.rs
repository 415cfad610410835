//! Randomness.

/// Draws random numbers.
pub trait Rng: Send + Sync + 'static {
    /// Fills `bytes`. The bytes of the system's implementation are fit for secrets.
    fn fill(&self, bytes: &mut [u8]);

    /// A number; all have the same probability.
    fn next_u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }
}
