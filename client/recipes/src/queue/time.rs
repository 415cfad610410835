//! A time for places in the queue that never goes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::{BoxFuture, ready};
use holdfast_runtime::Clock;

use crate::Result;

/// Gives out the time for places in the queue. A client that comes later should get no less; how far
/// that holds between processes is how fair the queue is. Safety does not depend on it.
pub trait QueueTime: Send + Sync + 'static {
    /// Microseconds since 1970; never less than an earlier answer of this source.
    ///
    /// # Errors
    ///
    /// Whatever kept the source from answering. Then the attempt has no place and ends without a write.
    /// The lock task retries it after a pause; [`Error::Refused`](crate::Error::Refused) goes to the
    /// caller.
    fn now_us(&self) -> BoxFuture<'_, Result<u64>>;
}

/// The wall clock of this machine, made never to go back.
pub struct LocalTime {
    clock: Arc<dyn Clock>,
    last: AtomicU64,
}

impl LocalTime {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, last: AtomicU64::new(0) }
    }
}

impl QueueTime for LocalTime {
    fn now_us(&self) -> BoxFuture<'_, Result<u64>> {
        let now = self.clock.wall_ms().saturating_mul(1_000);
        Box::pin(ready(Ok(now.max(self.last.fetch_max(now, Ordering::AcqRel)))))
    }
}

impl std::fmt::Debug for LocalTime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalTime").finish_non_exhaustive()
    }
}
