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
mod switch;

pub use list::{Mutant, UnknownMutant};
pub use switch::{arm, is_armed, while_armed};

/// Whether a mutant, named by its variant of [`Mutant`], is armed in this thread.
///
/// The constant `false` in a build without debug assertions.
#[macro_export]
macro_rules! mutant {
    ($variant:ident) => {
        $crate::is_armed($crate::Mutant::$variant)
    };
}
