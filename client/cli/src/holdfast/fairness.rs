//! How evenly the clients shared a resource.

/// Jain's index: (Σx)² / (n·Σx²). 1 is perfect, 1/n means that one client got all.
pub(crate) fn jain(shares: &[u64]) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "counts of grants are far below 2^52")]
    let shares: Vec<f64> = shares.iter().map(|share| *share as f64).collect();
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    let number = f64::from(u32::try_from(shares.len()).unwrap_or(u32::MAX));
    if squares == 0.0 { 0.0 } else { sum * sum / (number * squares) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_with_everything_is_as_unfair_as_it_gets() {
        assert!((jain(&[10, 0, 0, 0]) - 0.25).abs() < 1e-9);
        assert!((jain(&[5, 5]) - 1.0).abs() < 1e-9);
        assert!(jain(&[]).abs() < 1e-9);
    }
}
