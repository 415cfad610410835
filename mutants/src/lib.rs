//! Deliberate bugs, as switches: the simulator and its judge must find each of them.
//!
//! A suite that never fails proves nothing. So the product carries, at each line that upholds a
//! rule, the one expression that breaks it: `mutant!(ReleaseIgnoresToken)`. In every default build
//! that is the constant `false`, and nothing of this crate is left. With the feature `on` it asks
//! whether that mutant is armed in this thread; one simulated life is one thread, so one build
//! serves for all mutants and any number of lives side by side.
//!
//! The feature cannot reach a release: without debug assertions it does not compile.
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

#[cfg(all(feature = "on", not(debug_assertions)))]
compile_error!("deliberate bugs are never built without debug assertions: leave out `mutants`");

mod list;
mod rules;
#[cfg(feature = "on")]
mod switch;

pub use list::{Mutant, UnknownMutant};
#[cfg(feature = "on")]
pub use switch::{arm, is_armed};

/// Whether a mutant, named by its variant of [`Mutant`], is armed in this thread.
///
/// The constant `false` unless the feature `on` is set.
#[cfg(feature = "on")]
#[macro_export]
macro_rules! mutant {
    ($variant:ident) => {
        $crate::is_armed($crate::Mutant::$variant)
    };
}

/// Whether a mutant, named by its variant of [`Mutant`], is armed in this thread.
///
/// The constant `false` unless the feature `on` is set.
#[cfg(not(feature = "on"))]
#[macro_export]
macro_rules! mutant {
    ($variant:ident) => {{
        const _: $crate::Mutant = $crate::Mutant::$variant;
        false
    }};
}
