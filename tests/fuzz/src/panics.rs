//! Counts panics, also those that a runtime catches in its tasks.

use std::cell::Cell;
use std::panic;
use std::sync::Once;

thread_local! {
    static PANICS: Cell<u64> = const { Cell::new(0) };
}

/// Begins to count, in front of the hook that is there.
pub fn count() {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            PANICS.set(PANICS.get() + 1);
            hook(info);
        }));
    });
}

/// Panics of this thread since counting began.
pub fn of_this_thread() -> u64 {
    PANICS.get()
}
