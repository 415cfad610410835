//! Which mutant is armed.

use crate::Mutant;

#[cfg(debug_assertions)]
thread_local! {
    static ARMED: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Arms one mutant in this thread, in place of whichever was, or none.
///
/// Everything that runs in this thread from here on has the bug; other threads do not.
#[cfg(debug_assertions)]
pub fn arm(mutant: Option<Mutant>) {
    ARMED.set(mutant);
}

/// No mutant is in a build without debug assertions.
///
/// # Panics
///
/// Always: who looks for one there would find none.
#[cfg(not(debug_assertions))]
#[allow(clippy::panic, reason = "only the tests of the tests call it")]
pub fn arm(_: Option<Mutant>) {
    panic!("no mutant is in a build without debug assertions");
}

/// Whether that mutant is armed in this thread. Product code asks with [`mutant!`](crate::mutant).
#[cfg(debug_assertions)]
pub fn is_armed(mutant: Mutant) -> bool {
    ARMED.get() == Some(mutant)
}

/// Whether that mutant is armed: none is in a build without debug assertions.
#[cfg(not(debug_assertions))]
#[inline]
pub const fn is_armed(_: Mutant) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutant;

    #[test]
    fn one_mutant_is_armed_in_one_thread() {
        assert!(!mutant!(BargingTry));
        arm(Some(Mutant::BargingTry));
        assert!(mutant!(BargingTry) && !mutant!(LastInQueueFirst));
        let elsewhere = std::thread::spawn(|| mutant!(BargingTry)).join();
        assert!(!elsewhere.expect("the thread ends"));
        arm(None);
        assert!(!mutant!(BargingTry));
    }
}
