//! Keeps most threads of sled's pool away from each commit.
//!
//! sled gives every write to a pool of seven threads and wakes all of them for it, one after the
//! other: one writes, six find an empty queue and sleep again. With one acquire per commit that was
//! 44 % of a server's CPU, and it delayed the commit itself. sled has no setting for it. Its
//! interface does offer a future that is woken on a thread of the pool: a waker that does not
//! return keeps that thread away from the queue.
//!
//! # Invariants
//!
//! - [`LEFT`] threads go on serving the queue: one writes, the other does what the first may wait
//!   for (sled truncates its file on the pool, too).
//! - No commit waits for ever for a thread that is kept away: one of those threads checks every
//!   [`LOOK_EVERY`], and if a commit has made no progress since, all of them return for good. They
//!   also return if there are no more to keep away, because the system refused sled some of its
//!   threads.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

/// Threads of the pool, as sled 0.34.7 starts them (`DESIRED_WAITING_THREADS`).
const POOL: usize = 7;
/// Threads that stay in the pool.
const LEFT: usize = 2;
/// How long a commit may make no progress before the pool gets its threads back. Far above any
/// healthy sync of a disk; far below the length of a lease.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Attempts for all threads: one fails when the pool finishes before the waker is registered, on a busy
/// machine hundreds of them in a row. An attempt writes nothing.
const ATTEMPTS: usize = 20_000;

/// The threads that are kept away from the pool of this process.
pub(super) struct Idlers {
    state: Mutex<State>,
    changed: Condvar,
    look_every: Duration,
}

#[derive(Default)]
struct State {
    idle: usize,
    /// All threads return, and no thread is kept away any more.
    dismissed: bool,
    commits: Commits,
}

/// The commits of this process.
#[derive(Clone, Copy, Debug, Default)]
struct Commits {
    begun: u64,
    done: u64,
}

impl Commits {
    /// Whether a commit was under way at `earlier`, and none has finished since.
    fn stand_still_since(self, earlier: Self) -> bool {
        earlier.begun > earlier.done && self.done == earlier.done
    }
}

/// A commit under way; it counts as done when this is dropped.
pub(super) struct Underway(Arc<Idlers>);

impl Drop for Underway {
    fn drop(&mut self) {
        self.0.lock().commits.done += 1;
    }
}

impl Idlers {
    fn new(look_every: Duration) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), changed: Condvar::new(), look_every })
    }

    /// The one of this process: the process has one pool as well.
    pub(super) fn of_process() -> Arc<Self> {
        static IDLERS: OnceLock<Arc<Idlers>> = OnceLock::new();
        Arc::clone(IDLERS.get_or_init(|| Self::new(LOOK_EVERY)))
    }

    /// Keeps all threads but [`LEFT`] away, once per process.
    pub(super) fn thin_out(self: &Arc<Self>, tree: &sled::Tree) {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            let mut attempts = 0;
            while self.wants_more() && attempts < ATTEMPTS {
                self.take_one_out(tree);
                attempts += 1;
            }
        });
    }

    fn wants_more(&self) -> bool {
        let state = self.lock();
        state.idle < POOL - LEFT && !state.dismissed
    }

    /// Makes a thread of the pool call our waker, which keeps the thread. Returns when the thread
    /// is kept, or when it finished its work before the waker was registered.
    fn take_one_out(self: &Arc<Self>, tree: &sled::Tree) {
        let idle = self.lock().idle;
        let waker = Waker::from(Arc::clone(self));
        let flushed = pin!(tree.flush_async());
        if flushed.poll(&mut Context::from_waker(&waker)).is_pending() {
            self.wait_for_one_more_than(idle);
        }
    }

    /// Waits for another thread. If none comes, the pool has fewer threads than it should, and all
    /// of them are kept here: they return.
    fn wait_for_one_more_than(&self, idle: usize) {
        let waiting = |state: &mut State| state.idle == idle && !state.dismissed;
        let waited = self.changed.wait_timeout_while(self.lock(), self.look_every, waiting);
        let (mut state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            self.dismiss(&mut state);
            tracing::warn!(idle, "sled has fewer threads than it starts; it has all of them back");
        }
    }

    fn dismiss(&self, state: &mut State) {
        state.dismissed = true;
        self.changed.notify_all();
    }

    /// To be held while sled works on a commit.
    pub(super) fn underway(self: &Arc<Self>) -> Underway {
        self.lock().commits.begun += 1;
        Underway(Arc::clone(self))
    }

    /// Keeps the calling thread until all are dismissed. The first one monitors the commits.
    fn idle(&self) {
        let mut state = self.lock();
        let is_lookout = state.idle == 0;
        state.idle += 1;
        self.changed.notify_all();
        while !state.dismissed {
            state = if is_lookout { self.look(state) } else { self.wait(state) };
        }
        state.idle -= 1;
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits one interval; dismisses all threads if no commit made progress.
    fn look<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let before = state.commits;
        let waited =
            self.changed.wait_timeout_while(state, self.look_every, |state| !state.dismissed);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.commits.stand_still_since(before) {
            self.dismiss(&mut state);
            let within = self.look_every;
            tracing::warn!(?within, "a commit makes no progress; sled has all its threads back");
        }
        state
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Idlers {
    fn wake(self: Arc<Self>) {
        self.idle();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Otherwise a commit that needs more threads than are left would wait for ever.
    #[test]
    fn a_commit_without_progress_gives_all_threads_back() {
        let idlers = Idlers::new(Duration::from_millis(1));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let waker = Waker::from(Arc::clone(&idlers));
                thread::spawn(move || waker.wake())
            })
            .collect();
        drop(idlers.changed.wait_while(idlers.lock(), |state| state.idle < 3));

        let underway = idlers.underway();
        for thread in threads {
            thread.join().expect("it ends by itself");
        }
        drop(underway);

        assert_eq!(idlers.lock().idle, 0);
    }

    /// As when the system refused sled threads: the pool has two, and both are kept away.
    #[test]
    fn a_pool_with_fewer_threads_than_it_starts_has_all_of_them_back() {
        let idlers = Idlers::new(Duration::from_millis(20));
        let threads: Vec<_> = (0..LEFT)
            .map(|_| {
                let waker = Waker::from(Arc::clone(&idlers));
                thread::spawn(move || waker.wake())
            })
            .collect();
        drop(idlers.changed.wait_while(idlers.lock(), |state| state.idle < LEFT));

        idlers.wait_for_one_more_than(LEFT);

        for thread in threads {
            thread.join().expect("it goes back");
        }
        assert!(!idlers.wants_more());
    }

    #[test]
    fn commits_stand_still_only_if_one_was_underway_and_none_was_done_since() {
        let commits = |begun, done| Commits { begun, done };

        assert!(commits(5, 4).stand_still_since(commits(5, 4)));
        assert!(commits(6, 4).stand_still_since(commits(5, 4)), "others began meanwhile");
        assert!(!commits(4, 4).stand_still_since(commits(4, 4)), "nobody commits");
        assert!(!commits(5, 4).stand_still_since(commits(4, 4)), "it has just begun");
        assert!(!commits(6, 5).stand_still_since(commits(5, 4)), "another one is underway");
    }
}
