//! The runtime of Holdfast: time, tasks, randomness and transport as traits.
//!
//! The session code of client and server knows only what is declared here. [`Runtime::system`] implements
//! it with the real machine; `simulated`, behind the feature `simulation`, with a machine in which time is
//! virtual, randomness is seeded and no socket exists. The same code then runs a whole cluster in one thread, and a seed determines
//! the run.
//!
//! # Invariants
//!
//! - [`Clock::now`] counts suspended time. Every right, a safe deadline above all, is measured on it
//!   (DESIGN §5.4).
//! - Nothing here compares the clocks of two processes; an [`Instant`] has no meaning outside the process
//!   that took it.

mod clock;
pub mod loopback;
mod random;
#[cfg(any(test, feature = "simulation"))]
pub mod simulated;
mod spawn;
mod system;
mod transport;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

pub use clock::{Clock, Elapsed, Instant, Watchdog, WatchdogHandle};
pub use random::Rng;
pub use spawn::{Spawn, Task, TaskHandle};
pub use transport::{Pipe, Transport, TransportError, Watched};

/// A boxed future, as trait objects need it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Time, tasks and randomness, handed down from `main` or from a test. Cheap to clone.
#[derive(Clone)]
pub struct Runtime {
    /// Reads time and waits for it.
    pub clock: Arc<dyn Clock>,
    /// Starts tasks.
    pub spawn: Arc<dyn Spawn>,
    /// Draws random numbers.
    pub rng: Arc<dyn Rng>,
}

impl Runtime {
    /// The real machine: `CLOCK_BOOTTIME`, the tokio runtime of the caller, the system's
    /// randomness.
    pub fn system() -> Self {
        Self {
            clock: Arc::new(system::SystemClock),
            spawn: Arc::new(system::TokioSpawn),
            rng: Arc::new(system::SystemRng),
        }
    }

    /// Waits for `length`. Cancel safe.
    pub fn sleep(&self, length: Duration) -> BoxFuture<'static, ()> {
        self.clock.sleep_until(self.clock.now() + length)
    }

    /// Waits for `future`, at most for `length`; then drops it.
    ///
    /// # Errors
    ///
    /// [`Elapsed`] if the limit passed first; the future was dropped where it stood.
    pub async fn timeout<F: Future>(
        &self,
        length: Duration,
        future: F,
    ) -> Result<F::Output, Elapsed> {
        select! {
            output = future => Ok(output),
            () = self.sleep(length) => Err(Elapsed),
        }
    }

    /// Starts `future` as a task. The task ends when the returned handle is dropped, unless it is
    /// detached.
    pub fn spawn<F>(&self, name: &'static str, future: F) -> Task
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.spawn.spawn(name, Box::pin(future))
    }
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime").finish_non_exhaustive()
    }
}

/// `tokio::select!`, always biased: branches are polled in the order in which they stand, so that
/// a run can be repeated.
#[macro_export]
macro_rules! select {
    ($($branches:tt)*) => {
        $crate::__tokio::select! { biased; $($branches)* }
    };
}

#[doc(hidden)]
pub use tokio as __tokio;
