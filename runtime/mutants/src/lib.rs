//! Deliberate bugs, as switches: the simulator and its judge must find each of them.
//!
//! A suite that never fails proves nothing. So the product carries, at each line that upholds a
//! rule, the one expression that breaks it: `mutant!(ReleaseIgnoresToken)`. In a build with debug
//! assertions the expression checks whether that mutant is armed in this thread; one simulated run
//! is one thread, so the build that all tests use serves for all mutants and any number of runs
//! side by side. In a release, which has no debug assertions, it is the constant `false`, and
//! nothing of this crate is left.
//!
//! ```
//! use holdfast_mutants::{Mutant, mutant};
//!
//! // What the product does at a guarded line.
//! let tokens_match = |held: u64, given: u64| held == given || mutant!(ReleaseIgnoresToken);
//!
//! assert!(!tokens_match(1, 2), "nobody armed anything");
//! assert_eq!("release-ignores-token".parse(), Ok(Mutant::ReleaseIgnoresToken));
//! ```

mod list;

pub use list::{Mutant, UnknownMutant};

/// Whether a mutant, named by its variant of [`Mutant`], is armed in this thread.
///
/// The constant `false` in a build without debug assertions.
#[macro_export]
macro_rules! mutant {
    ($variant:ident) => {
        $crate::is_armed($crate::Mutant::$variant)
    };
}

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
