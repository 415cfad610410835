//! Which mutant is armed.

use crate::Mutant;

#[cfg(debug_assertions)]
thread_local! {
    static ARMED: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Arms one mutant in this thread, or none, and disarms the previous one.
///
/// Everything that runs in this thread from here on has the bug; other threads do not.
#[cfg(debug_assertions)]
pub fn arm(mutant: Option<Mutant>) {
    ARMED.set(mutant);
}

/// Panics: a build without debug assertions has no mutants.
///
/// # Panics
///
/// Always.
#[cfg(not(debug_assertions))]
#[allow(clippy::panic, reason = "only the tests of the tests call it")]
pub fn arm(_: Option<Mutant>) {
    panic!("no mutant is in a build without debug assertions");
}

/// Runs `run` with that mutant armed in this thread, and disarms it afterwards, even if `run`
/// panics.
///
/// # Panics
///
/// As [`arm`], in a build without debug assertions.
pub fn while_armed<T>(mutant: Mutant, run: impl FnOnce() -> T) -> T {
    struct Disarmed;
    impl Drop for Disarmed {
        fn drop(&mut self) {
            arm(None);
        }
    }
    arm(Some(mutant));
    let _disarmed = Disarmed;
    run()
}

/// Whether that mutant is armed in this thread. Product code uses [`mutant!`](crate::mutant).
#[cfg(debug_assertions)]
pub fn is_armed(mutant: Mutant) -> bool {
    ARMED.get() == Some(mutant)
}

/// Always `false`: a build without debug assertions has no mutants.
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

    #[test]
    fn none_is_armed_after_a_run_that_panicked() {
        let panics = || while_armed(Mutant::BargingTry, || assert!(!mutant!(BargingTry)));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert!(!mutant!(BargingTry));
    }
}
