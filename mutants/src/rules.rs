//! The switch of a crate's own rules: the same idea for the tests of one crate, without a feature.
//!
//! A crate that argues for what it does by rules with names lists them, and the line that upholds one asks
//! whether it is to be broken. Only a build of that crate's own tests can say yes: the switch is made where
//! the macro stands, so that its `cfg(test)` is that crate's.

/// Makes `lacks` and, in tests, `without`, for the rules of this crate: an enum that is `Copy` and
/// `PartialEq`. The first is for the guarded lines; the second takes one rule away in this thread.
///
/// ```
/// #[derive(Clone, Copy, PartialEq)]
/// enum Rule {
///     WaitsToTheEnd,
/// }
/// holdfast_mutants::switch_of_rules!(Rule);
///
/// let waits = |whole: u32| if lacks(Rule::WaitsToTheEnd) { whole / 2 } else { whole };
/// assert_eq!(waits(4), 4, "in every build but this crate's own tests");
/// ```
#[macro_export]
macro_rules! switch_of_rules {
    ($visible:vis $rule:ty) => {
        #[cfg(test)]
        ::std::thread_local! {
            static BROKEN: ::std::cell::Cell<Option<$rule>> =
                const { ::std::cell::Cell::new(None) };
        }

        /// Whether `rule` is to be broken.
        #[cfg(test)]
        $visible fn lacks(rule: $rule) -> bool {
            BROKEN.get() == Some(rule)
        }

        /// Whether `rule` is to be broken: never.
        #[cfg(not(test))]
        $visible const fn lacks(_rule: $rule) -> bool {
            false
        }

        /// Without `rule` in this thread, as long as `run` runs.
        #[cfg(test)]
        $visible fn without<T>(rule: $rule, run: impl FnOnce() -> T) -> T {
            /// Also when it panics.
            struct Mended;
            impl Drop for Mended {
                fn drop(&mut self) {
                    BROKEN.set(None);
                }
            }
            BROKEN.set(Some(rule));
            let _mended = Mended;
            run()
        }
    };
}

#[cfg(test)]
mod tests {
    #[derive(Clone, Copy, PartialEq)]
    enum Rule {
        One,
        Other,
    }

    switch_of_rules!(Rule);

    #[test]
    fn a_rule_is_broken_in_this_thread_as_long_as_it_is_run_without() {
        assert!(!lacks(Rule::One));
        without(Rule::One, || {
            assert!(lacks(Rule::One) && !lacks(Rule::Other));
            let elsewhere = std::thread::spawn(|| lacks(Rule::One)).join();
            assert!(elsewhere.is_ok_and(|lacks| !lacks));
        });
        assert!(!lacks(Rule::One));
    }

    #[test]
    fn a_rule_holds_again_after_a_panic() {
        let panics = || without(Rule::Other, || assert!(!lacks(Rule::Other)));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert!(!lacks(Rule::Other));
    }
}
