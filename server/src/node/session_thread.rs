//! A thread of their own for sessions: the port for clients, their streams, calls and watches.
//!
//! Raft answers heartbeats and votes within a fraction of an election's time, and sessions come in
//! numbers: on one event queue a heartbeat waits behind every stream that is ready. With a thread of their
//! own, sessions only compete with Raft for cores, which the system shares out fairly (SC1).
//!
//! The price is two changes of thread for each command: to the proposer and back. On two cores, which the
//! members' disks and clients need as well, that is a tenth of a commit's time; so there sessions share
//! Raft's thread, and their admission alone keeps them from filling it.
//!
//! # What both threads share
//!
//! The session layer reaches replication only through [`Consensus`](crate::consensus::Consensus), and
//! replication the session layer only through [`Listener`](crate::consensus::Listener) and the outcomes of
//! commands, both on Raft's thread. Locks are taken in one order on both:
//!
//! ```text
//!   scopes' drivers ─▶ proposer's queue ─▶ table ─▶ registry of sessions ─▶ outboxes
//!                                            └────▶ watches, board of scopes
//! ```
//!
//! So nothing that is called under the table's lock may ask the proposer, and nothing under the registry's
//! the table. Raft itself stays on one thread, as the state machine's `settle` needs it
//! (`server/replication/src/raft/log.rs`).

use std::io;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use holdfast_runtime::Runtime;
use tokio::runtime::{EnterGuard, Handle};
use tokio::sync::oneshot;

use super::event_queue;
use crate::config::SessionThread as Wanted;

/// With so many cores sessions get a thread of their own, if the settings leave the choice to the node.
const CORES_MIN: usize = 4;
/// How long the end of the thread waits for what blocks it.
const LEFT_BEHIND_WITHIN: Duration = Duration::from_millis(500);

/// The event queue on which sessions run.
pub(super) enum SessionQueue {
    /// Raft's, in whose context the node starts its parts.
    Shared,
    Own(Own),
}

/// A thread with an event queue; both end when this is dropped.
pub(super) struct Own {
    queue: Handle,
    /// Dropped to end the thread.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl SessionQueue {
    /// Starts the thread, if there is to be one.
    ///
    /// # Errors
    ///
    /// The system gives no thread or event queue.
    pub(super) fn start(wanted: Wanted, spin: Duration) -> io::Result<Self> {
        if is_own(wanted, cores()) { Own::start(spin).map(Self::Own) } else { Ok(Self::Shared) }
    }

    /// The runtime of the parts that run there; `shared` is that of the node.
    pub(super) fn runtime(&self, shared: &Runtime) -> Runtime {
        match self {
            Self::Shared => shared.clone(),
            Self::Own(own) => Runtime::on(own.queue.clone()),
        }
    }

    /// Makes the caller's thread start ports and timers on this queue, while the guard lives. Not across
    /// an await.
    pub(super) fn enter(&self) -> Option<EnterGuard<'_>> {
        match self {
            Self::Shared => None,
            Self::Own(own) => Some(own.queue.enter()),
        }
    }
}

impl Own {
    fn start(spin: Duration) -> io::Result<Self> {
        let queue = event_queue::new(spin)?;
        let handle = queue.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread =
            thread::Builder::new().name("holdfast-sessions".to_owned()).spawn(move || {
                // Ends when the sender is dropped.
                let _ = queue.block_on(stopped);
                queue.shutdown_timeout(LEFT_BEHIND_WITHIN);
            })?;
        Ok(Self { queue: handle, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // It has no value, and nothing of it outlives its queue.
            let _ = thread.join();
        }
    }
}

fn is_own(wanted: Wanted, cores: usize) -> bool {
    match wanted {
        Wanted::Auto => cores >= CORES_MIN,
        Wanted::Own => true,
        Wanted::Shared => false,
    }
}

/// How many cores this process may use, as far as the system says.
fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn sessions_get_a_thread_of_their_own_where_there_are_cores_or_it_is_wanted() {
        let chosen = |cores| [Wanted::Auto, Wanted::Own, Wanted::Shared].map(|w| is_own(w, cores));
        assert_eq!(chosen(2), [false, true, false]);
        assert_eq!(chosen(4), [true, true, false]);
    }

    #[test]
    fn what_is_started_on_it_runs_on_its_thread_from_wherever_it_was_started_and_ends_with_it() {
        let queue = SessionQueue::start(Wanted::Own, Duration::ZERO).unwrap();
        let runtime = queue.runtime(&Runtime::system());
        let (tell, told) = mpsc::channel();
        let again = runtime.clone();
        let (name, last) = (tell.clone(), tell);
        runtime
            .spawn("first", async move {
                // A timer needs the context of its queue.
                again.sleep(Duration::from_millis(1)).await;
                name.send(thread::current().name().map(str::to_owned)).unwrap();
            })
            .detach();
        let wait = Duration::from_secs(20);
        assert_eq!(told.recv_timeout(wait).unwrap().as_deref(), Some("holdfast-sessions"));

        runtime
            .spawn("endless", async move {
                let _kept = last;
                std::future::pending::<()>().await;
            })
            .detach();
        drop(queue);
        assert!(told.recv_timeout(wait).is_err(), "it is dropped with the queue");
    }

    #[tokio::test]
    async fn without_a_thread_of_their_own_sessions_run_where_the_node_does() {
        let queue = SessionQueue::start(Wanted::Shared, Duration::ZERO).unwrap();
        assert!(queue.enter().is_none());
        let here = thread::current().id();
        let (tell, told) = oneshot::channel();
        let task = queue.runtime(&Runtime::system()).spawn("one", async move {
            let _ = tell.send(thread::current().id());
        });
        assert_eq!(told.await.unwrap(), here);
        drop(task);
    }
}
