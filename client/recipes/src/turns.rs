//! Tasks of one process that wait for the same lock, by a recipe that promises no order.
//!
//! Every waiter polls. Fifty tasks of one process would look at a lock fifty times as often as one does, and when it is free
//! forty-nine of them would send a write that is bound to fail; while lightweight transactions take seconds, nothing else of this
//! process gets through to the lock's partition (B9). So they line up in the process, first come, first served, and the first of them
//! looks for all. When a task of the same process gives the lock back, the first looks at once.
//!
//! This takes nothing from other processes: they meet one competitor in place of fifty, and the row is free between two holders of one
//! process as between any two. A call that does not wait looks for itself.

use holdfast_runtime::select;
use tokio::sync::{Mutex, MutexGuard, Notify, watch};
use tokio_util::sync::CancellationToken;

use super::lock_task::Progress;

/// Whose turn it is to look at one lock.
#[derive(Default)]
pub(crate) struct Turn {
    first: Mutex<()>,
    /// A task of this process gave the lock back.
    given_back: Notify,
    /// What the first saw.
    seen: watch::Sender<Progress>,
}

impl Turn {
    /// Waits until it is the caller's turn, and tells `progress` what the first of the others sees meanwhile. `None` if `stop`
    /// comes first. Cancel safe.
    pub(crate) async fn wait(
        &self,
        stop: &CancellationToken,
        progress: &watch::Sender<Progress>,
    ) -> Option<MutexGuard<'_, ()>> {
        if let Ok(first) = self.first.try_lock() {
            return Some(first);
        }
        let mut seen = self.seen.subscribe();
        progress.send_replace(seen.borrow_and_update().clone());
        let mut first = std::pin::pin!(self.first.lock());
        loop {
            select! {
                () = stop.cancelled() => return None,
                first = &mut first => return Some(first),
                // `self` owns the sender, so it cannot close.
                _ = seen.changed() => {
                    progress.send_replace(seen.borrow_and_update().clone());
                }
            }
        }
    }

    /// The first tells the others what it saw.
    pub(crate) fn saw(&self, progress: Progress) {
        self.seen.send_replace(progress);
    }

    pub(crate) fn give_back(&self) {
        self.given_back.notify_one();
    }

    /// Waits until a task of this process has given the lock back. May end in vain, once. Cancel safe.
    pub(crate) async fn given_back(&self) {
        self.given_back.notified().await;
    }
}
