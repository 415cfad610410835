//! A worker on a queue of work that records what it receives and believes: an item is a lock by the
//! name of its id, held from its hand-out until it is done. See [`crate::term`] for what the judge
//! reads as a token.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdfast::{Error, GuardState};
use holdfast_recipes::{Wait, WorkItem, WorkQueue};
use holdfast_runtime::Runtime;

use crate::history::{Asked, ClientId, Recorder, What};
use crate::term::{Held, Term};

/// One worker and its recorder.
#[derive(Debug)]
pub struct Worker {
    queue: WorkQueue,
    id: ClientId,
    recorder: Recorder,
    runtime: Runtime,
    next_request: AtomicU64,
}

/// An item that the worker has.
pub type Had = Held<WorkItem>;

impl Worker {
    /// Records the work on items of `queue` as client `id`.
    pub fn of(queue: WorkQueue, id: ClientId, recorder: Recorder) -> Self {
        let runtime = Runtime::system();
        Self { queue, id, recorder, runtime, next_request: AtomicU64::new(1) }
    }

    /// The same for a worker on another runtime.
    #[must_use]
    pub fn on(self, runtime: Runtime) -> Self {
        Self { runtime, ..self }
    }

    fn write(&self, what: What) {
        self.recorder.write(self.id, what);
    }

    /// Takes the next item. Only now is it known which one that is.
    ///
    /// # Errors
    ///
    /// As the queue's `next`.
    pub async fn next(&self, wait: Wait) -> Result<Option<Had>, Error> {
        let Some(item) = self.queue.next(wait).await? else { return Ok(None) };
        let request = self.next_request.fetch_add(1, Ordering::Relaxed);
        let items = vec![Asked::exclusive(item.id().to_string())];
        self.write(What::Acquire { request, items, any: None, wait: false, within_ms: None });
        let (token, of) = (self.recorder.now_ns(), (self.id, request));
        Ok(Some(Held::granted_under(token, item, (&self.recorder, &self.runtime), of)))
    }

    /// Takes items, keeps each for `length` and completes it, until `until` returns true.
    pub async fn work(&self, length: Duration, until: impl Fn() -> bool) {
        while !until() {
            if let Ok(Some(had)) = self.next(Wait::AtMost(Duration::from_secs(1))).await {
                had.keep(length).await;
                let _ = had.done().await;
            }
        }
    }
}

impl Term for WorkItem {
    fn name(&self) -> String {
        self.id().to_string()
    }

    fn state(&self) -> GuardState {
        self.state()
    }

    fn is_safe(&self) -> bool {
        self.is_safe()
    }
}

impl Held<WorkItem> {
    /// The item itself.
    pub fn item(&self) -> &WorkItem {
        self.had()
    }

    /// The work is done.
    ///
    /// # Errors
    ///
    /// As the item's `done`.
    pub async fn done(self) -> Result<(), Error> {
        self.give_back(WorkItem::done).await
    }
}
