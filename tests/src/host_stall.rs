//! Timing assertions are void while the host stalls; such scenarios are repeated. Safety violations never are.
#![allow(clippy::print_stdout, reason = "a scenario that is repeated says so")]

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use holdfast_runtime::Runtime;

/// How often a scenario runs at most.
const TRIES: u32 = 5;
/// The interval between two looks at the clock.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Something took longer than it may on a host that does not stall.
#[derive(Debug)]
pub struct TooLate(pub String);

impl TooLate {
    /// An error unless it was `in_time`; `what` describes what was too late.
    ///
    /// # Errors
    ///
    /// [`TooLate`] if it was not.
    pub fn unless(in_time: bool, what: impl FnOnce() -> String) -> Result<(), Self> {
        if in_time { Ok(()) } else { Err(Self(what())) }
    }
}

/// Runs a scenario. One that was [`TooLate`] while the host stalled for longer than `borne` is repeated; the last of five attempts counts
/// in any case. A panic, for example of the judge, is never forgiven: a stall is no reason for two holders.
pub async fn retry_if_host_stalled(
    borne: Duration,
    scenario: impl AsyncFn() -> Result<(), TooLate>,
) {
    for _ in 1..TRIES {
        let watch = Watch::begin();
        let ended = scenario().await;
        let longest = watch.end();
        let Err(TooLate(what)) = ended else { return };
        assert!(longest > borne, "{what}");
        println!("repeated, because the host stalled for {longest:?}: {what}");
    }
    let ended = scenario().await;
    assert!(ended.is_ok(), "{ended:?}");
}

/// Watches the clock until it is ended, in a thread of its own.
struct Watch {
    running: Arc<()>,
    longest: JoinHandle<Duration>,
}

impl Watch {
    fn begin() -> Self {
        let running = Arc::new(());
        let still = Arc::downgrade(&running);
        let longest = thread::spawn(move || {
            let clock = Runtime::system().clock;
            let (mut longest, mut last) = (Duration::ZERO, clock.now());
            while still.strong_count() > 0 {
                thread::sleep(LOOK_EVERY);
                let now = clock.now();
                longest = longest.max(now.saturating_since(last).saturating_sub(LOOK_EVERY));
                last = now;
            }
            longest
        });
        Self { running, longest }
    }

    /// The longest stall of the thread.
    fn end(self) -> Duration {
        drop(self.running);
        self.longest.join().expect("it only looks at a clock")
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Long enough that the thread stalls for some of it.
    async fn late() -> Result<(), TooLate> {
        Runtime::system().sleep(LOOK_EVERY * 4).await;
        Err(TooLate("it was too late".to_owned()))
    }

    #[tokio::test]
    #[should_panic(expected = "it was too late")]
    async fn what_was_too_late_although_everybody_was_let_run_has_failed() {
        retry_if_host_stalled(Duration::from_mins(1), late).await;
    }

    #[tokio::test]
    async fn a_scenario_that_was_late_while_the_host_stalled_is_retried() {
        let tries = Cell::new(0);

        retry_if_host_stalled(Duration::ZERO, async || {
            tries.set(tries.get() + 1);
            if tries.get() > 2 { Ok(()) } else { late().await }
        })
        .await;

        assert_eq!(tries.get(), 3);
    }

    #[tokio::test]
    #[should_panic(expected = "it was too late")]
    async fn what_is_too_late_again_and_again_has_failed() {
        retry_if_host_stalled(Duration::ZERO, late).await;
    }

    /// As when the judge fails.
    #[tokio::test]
    #[should_panic(expected = "two holders")]
    async fn a_violation_is_never_forgiven() {
        let tries = Cell::new(0);

        retry_if_host_stalled(Duration::ZERO, async || {
            tries.set(tries.get() + 1);
            assert!(tries.get() > 1, "two holders");
            Ok(())
        })
        .await;
    }
}
