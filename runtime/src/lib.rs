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

mod alarms;
mod clock;
pub mod core_dumps;
pub mod loopback;
#[cfg(any(test, feature = "simulation"))]
pub mod simulated;
mod system;
mod transport;
#[cfg(feature = "version")]
pub mod version;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

pub use clock::{Clock, Elapsed, Instant, Watchdog, WatchdogHandle};
pub use transport::{Pipe, Renewed, Reply, Transport, TransportError, Watched};

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

    /// The same, with its tasks on that tokio runtime, whichever thread starts them: for a component with
    /// an event queue of its own.
    pub fn on(queue: tokio::runtime::Handle) -> Self {
        Self { spawn: Arc::new(system::SpawnOn(queue)), ..Self::system() }
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

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").finish_non_exhaustive()
    }
}

/// Starts tasks.
pub trait Spawn: Send + Sync + 'static {
    /// Starts `future`. `name` is for people who inspect a running process.
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Task;
}

/// The implementation of a [`Task`].
pub trait TaskHandle: Send + Sync {
    /// Ends the task at its next await, if it has not ended.
    fn abort(&self);
    /// Whether it has ended.
    fn is_finished(&self) -> bool;
}

/// A running task; it is ended when this is dropped.
#[must_use = "dropping a task ends it; detach it if it is to run on"]
pub struct Task(Option<Box<dyn TaskHandle>>);

impl Task {
    /// Wraps an implementation.
    pub fn new(handle: Box<dyn TaskHandle>) -> Self {
        Self(Some(handle))
    }

    /// Lets the task run on by itself.
    pub fn detach(mut self) {
        self.0 = None;
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.0.as_ref().is_none_or(|handle| handle.is_finished())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(handle) = &self.0 {
            handle.abort();
        }
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("finished", &self.is_finished()).finish()
    }
}

/// Draws random numbers.
pub trait Rng: Send + Sync + 'static {
    /// Fills `bytes`. The bytes of the system's implementation are fit for secrets.
    fn fill(&self, bytes: &mut [u8]);

    /// A number; all have the same probability.
    fn next_u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_le_bytes(bytes)
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
