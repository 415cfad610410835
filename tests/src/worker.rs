//! A worker on a queue of work that writes down what it is told and believes: an item is a lock by the name of its id, held from
//! when it is handed out until it is done. See [`crate::remote`] for what the judge reads as a token.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdfast::compat::{Patience, WorkItem, WorkQueue};
use holdfast::{Error, GuardState};
use holdfast_seams::Seams;

use crate::history::{Asked, ClientId, Recorder, What};
use crate::scribe::cause;

/// How often a worker looks at its item.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// One worker, and what it writes down.
#[derive(Debug)]
pub struct Worker {
    queue: WorkQueue,
    id: ClientId,
    recorder: Recorder,
    next_request: AtomicU64,
}

/// An item that is had.
#[derive(Debug)]
pub struct Had<'a> {
    item: WorkItem,
    worker: &'a Worker,
    token: u64,
}

impl Worker {
    /// Writes down what is done with items of `queue` as client `id`.
    pub fn of(queue: WorkQueue, id: ClientId, recorder: Recorder) -> Self {
        Self { queue, id, recorder, next_request: AtomicU64::new(1) }
    }

    fn write(&self, what: What) {
        self.recorder.write(self.id, what);
    }

    /// Takes the next item. Which one was asked for is known only now.
    ///
    /// # Errors
    ///
    /// As the queue's `next`.
    pub async fn next(&self, patience: Patience) -> Result<Option<Had<'_>>, Error> {
        let Some(item) = self.queue.next(patience).await? else { return Ok(None) };
        let request = self.next_request.fetch_add(1, Ordering::Relaxed);
        let name = item.id().to_string();
        let items = vec![Asked::exclusive(&name)];
        self.write(What::Acquire { request, items, any: None, wait: false, within_ms: None });
        let (token, values) = (self.recorder.now_ns(), Vec::new());
        self.write(What::Granted { request, token, names: vec![name], values });
        let had = Had { item, worker: self, token };
        had.note();
        Ok(Some(had))
    }

    /// Takes items, has each for `length` and is done with it, until `until` says so.
    pub async fn work(&self, length: Duration, until: impl Fn() -> bool) {
        while !until() {
            if let Ok(Some(had)) = self.next(Patience::AtMost(Duration::from_secs(1))).await {
                had.keep(length).await;
                let _ = had.done().await;
            }
        }
    }
}

impl Had<'_> {
    /// The item itself.
    pub fn item(&self) -> &WorkItem {
        &self.item
    }

    /// Writes down what the item says now, and says whether it is safe.
    pub fn note(&self) -> bool {
        let (token, worker) = (self.token, self.worker);
        let state = *self.item.state().borrow();
        match state {
            GuardState::Held { safe_until } | GuardState::Jeopardy { safe_until } => {
                let until_ns = worker.recorder.ns_of(safe_until);
                worker.write(What::SafeGrant { token, until_ns });
            }
            GuardState::Lost(reason) => worker.write(What::Lost { token, cause: cause(reason) }),
            GuardState::Released => {}
        }
        let at_ns = worker.recorder.now_ns();
        let safe = self.item.is_safe();
        let names = vec![self.item.id().to_string()];
        worker.recorder.write_at(at_ns, worker.id, What::IsSafe { token, safe, names });
        safe
    }

    /// Has it for so long, looking now and then.
    pub async fn keep(&self, length: Duration) {
        let seams = Seams::system();
        let until = seams.clock.now() + length;
        while seams.clock.now() < until && self.note() {
            let left = until.saturating_since(seams.clock.now());
            seams.sleep(left.min(LOOK_EVERY)).await;
        }
    }

    /// The work is done.
    ///
    /// # Errors
    ///
    /// As the item's `done`.
    pub async fn done(self) -> Result<(), Error> {
        let Self { item, worker, token } = self;
        worker.write(What::Release { token, names: Vec::new() });
        let answer = item.done().await;
        worker.write(match &answer {
            Ok(()) => What::Released { token, names: Vec::new() },
            Err(Error::Lost { reason }) => What::Lost { token, cause: cause(*reason) },
            Err(_) => What::ReleaseUnknown { token },
        });
        answer
    }
}
