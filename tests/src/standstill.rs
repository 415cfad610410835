//! A machine that lets nobody run for a while fails a test that asks for time, and says nothing about what is tested.
#![allow(clippy::print_stdout, reason = "a test that is lived anew says so")]

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use futures_util::FutureExt as _;
use holdfast_seams::Seams;

/// How often a scenario is lived at most.
const TRIES: u32 = 5;
/// Between two looks at the clock.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Lives a scenario that can only go well while everybody is let run: as it ends, it ends, but one that failed while
/// nobody was for longer than `borne` is lived anew. The last of five tries counts in any case.
pub async fn given_time(borne: Duration, scenario: impl AsyncFn()) {
    for _ in 1..TRIES {
        let watch = Watch::begin();
        let Err(failure) = AssertUnwindSafe(scenario()).catch_unwind().await else { return };
        let longest = watch.end();
        if longest <= borne {
            panic::resume_unwind(failure);
        }
        println!("it is lived anew: nobody was let run for {longest:?}");
    }
    scenario().await;
}

/// Looks at the clock all the time, in a thread of its own.
struct Watch {
    over: Arc<AtomicBool>,
    longest: JoinHandle<Duration>,
}

impl Watch {
    fn begin() -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let is_over = over.clone();
        let longest = thread::spawn(move || {
            let clock = Seams::system().clock;
            let (mut longest, mut last) = (Duration::ZERO, clock.now());
            while !is_over.load(Ordering::Relaxed) {
                thread::sleep(LOOK_EVERY);
                let now = clock.now();
                longest = longest.max(now.saturating_since(last).saturating_sub(LOOK_EVERY));
                last = now;
            }
            longest
        });
        Self { over, longest }
    }

    /// How long the thread was not let run at most.
    fn end(self) -> Duration {
        self.over.store(true, Ordering::Relaxed);
        self.longest.join().expect("it only looks at a clock")
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    async fn fails() {
        panic!("it was too late");
    }

    /// A failure is one, unless the machine stood still.
    #[tokio::test]
    #[should_panic(expected = "it was too late")]
    async fn what_fails_although_everybody_was_let_run_has_failed() {
        given_time(Duration::from_mins(1), fails).await;
    }

    #[tokio::test]
    async fn what_failed_while_nobody_was_let_run_is_lived_anew() {
        let lived = Cell::new(0);

        given_time(Duration::ZERO, async || {
            lived.set(lived.get() + 1);
            Seams::system().sleep(LOOK_EVERY * 4).await;
            assert!(lived.get() > 2, "it was too late");
        })
        .await;

        assert_eq!(lived.get(), 3);
    }

    #[tokio::test]
    #[should_panic(expected = "it was too late")]
    async fn what_fails_again_and_again_has_failed() {
        given_time(Duration::ZERO, async || {
            Seams::system().sleep(LOOK_EVERY * 4).await;
            fails().await;
        })
        .await;
    }
}
