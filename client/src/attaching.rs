//! The sessions of one process that attach at the same time, and where its sessions are served.
//!
//! After a change of leader all sessions of a process come back at once. Each costs the process up to half a
//! millisecond, so the last of 50,000 would be back after their leases, and would have renewed nothing
//! before. So they come back in a line: at most [`ATTACH_AT_ONCE`] have a stream that is not open yet. The
//! others renew their leases meanwhile, many of them in one call, at the node that serves sessions of this
//! process; and they go there when their turn comes, so that a process finds its new leader once and not
//! once for each session.
//!
//! Sessions that share connections share this too; any other session has one of its own, and never waits.

use std::fmt;

use tokio::sync::{Semaphore, SemaphorePermit, watch};

/// Sessions that attach at once: enough to keep a distant server busy, as each takes two round trips and a
/// commit, and few enough for all of them to be answered within moments.
const ATTACH_AT_ONCE: usize = 256;

/// See the module's text.
pub(crate) struct Attaching {
    line: Semaphore,
    /// The node that serves sessions of this process, as far as they know.
    serving: watch::Sender<Option<String>>,
}

impl Attaching {
    pub(crate) fn new() -> Self {
        Self { line: Semaphore::new(ATTACH_AT_ONCE), serving: watch::Sender::new(None) }
    }

    /// A session may attach while it has this. `None` if its turn has not come.
    pub(crate) fn turn_now(&self) -> Option<SemaphorePermit<'_>> {
        self.line.try_acquire().ok()
    }

    /// Waits for the turn of a session, first in, first out. Cancel safe.
    pub(crate) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        // The line is never closed.
        self.line.acquire().await.ok()
    }

    /// A session was served at `endpoint`, or was told there when its turn comes.
    pub(crate) fn served_at(&self, endpoint: &str) {
        self.serving.send_if_modified(|serving| {
            let is_news = serving.as_deref() != Some(endpoint);
            if is_news {
                *serving = Some(endpoint.to_owned());
            }
            is_news
        });
    }

    /// A session was not served at `endpoint`, or is not served there any more.
    pub(crate) fn not_served_at(&self, endpoint: &str) {
        self.serving.send_if_modified(|serving| {
            let was_it = serving.as_deref() == Some(endpoint);
            if was_it {
                *serving = None;
            }
            was_it
        });
    }

    /// The node that serves sessions of this process, if one is known to.
    pub(crate) fn serving(&self) -> Option<String> {
        self.serving.borrow().clone()
    }

    /// The same, and its changes.
    pub(crate) fn watch(&self) -> watch::Receiver<Option<String>> {
        self.serving.subscribe()
    }
}

impl fmt::Debug for Attaching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attaching").field("serving", &self.serving()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn one_more_than_may_attach_waits_until_one_has() {
        let attaching = Attaching::new();
        let mut turns: Vec<_> = (0..ATTACH_AT_ONCE).map(|_| attaching.turn_now()).collect();
        assert!(turns.iter().all(Option::is_some) && attaching.turn_now().is_none());

        let mut waits = Box::pin(attaching.turn());
        assert!(waits.as_mut().now_or_never().is_none());
        turns.pop();
        assert!(attaching.turn_now().is_none(), "the turn is the waiting one's");
        assert!(waits.now_or_never().is_some());
    }

    #[test]
    fn the_news_that_a_node_serves_no_more_says_nothing_about_another() {
        let attaching = Attaching::new();
        let mut watch = attaching.watch();
        attaching.served_at("a:1");
        attaching.not_served_at("b:2");
        assert_eq!(attaching.serving().as_deref(), Some("a:1"));
        watch.mark_unchanged();
        attaching.served_at("a:1");
        assert!(!watch.has_changed().unwrap(), "it is no news");
        attaching.not_served_at("a:1");
        assert!(watch.has_changed().unwrap() && attaching.serving().is_none());
    }
}
