//! Which mutant is armed.

use std::cell::Cell;

use crate::Mutant;

thread_local! {
    static ARMED: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Arms one mutant in this thread, in place of whichever was, or none.
///
/// Everything that runs in this thread from here on has the bug; other threads do not.
pub fn arm(mutant: Option<Mutant>) {
    ARMED.set(mutant);
}

/// Whether that mutant is armed in this thread. Product code asks with [`mutant!`](crate::mutant).
pub fn is_armed(mutant: Mutant) -> bool {
    ARMED.get() == Some(mutant)
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
