//! The log in sled: a queue, and one writer thread behind it.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::commit_queue::{Commit, Queue};
use super::disk_watch::DiskWatch;
use super::error::{Fault, OnFault};
use super::log_store::{Done, LogIo, Operation};
use super::sled_open::panic_message;
use super::writer::Writer;

/// Bytes of records that may wait for the writer. A caller beyond that waits in `submit` until the
/// disk has caught up: the replica cannot take more than its disk does.
const QUEUE_BYTES: usize = 64 << 20;
/// How long the writer is idle before it purges a slice without a commit.
pub(super) const IDLE: Duration = Duration::from_millis(20);

/// [`LogIo`] on sled. Dropping it waits until everything queued is durable and the files are
/// closed.
pub(super) struct SledLog {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    queue: Mutex<Queue>,
    /// Notified when there is work, or the log is being closed.
    work: Condvar,
    /// Notified when the queue has become shorter.
    room: Condvar,
    watch: DiskWatch,
}

impl SledLog {
    /// Starts the writer thread.
    ///
    /// # Errors
    ///
    /// As from the system, if no thread can be started.
    pub(super) fn start(writer: Writer, on_fault: OnFault, watch: DiskWatch) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue::default()),
            work: Condvar::new(),
            room: Condvar::new(),
            watch,
        });
        let theirs = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("holdfast-log".to_owned())
            .spawn(move || theirs.run(writer, &on_fault))?;
        Ok(Self { shared, thread: Some(thread) })
    }
}

impl LogIo for SledLog {
    fn submit(&self, operation: Operation, done: Done) {
        let mut queue = self.shared.lock();
        while queue.failed.is_none() && queue.bytes > QUEUE_BYTES {
            queue = self.shared.room.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        let refused = queue.push(operation, done);
        drop(queue);
        match refused {
            Some((done, fault)) => done(Err(fault.to_io())),
            None => self.shared.work.notify_one(),
        }
    }
}

impl Drop for SledLog {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.work.notify_one();
        let Some(thread) = self.thread.take() else { return };
        // A callback may hold the last reference; a thread cannot join itself.
        if thread.thread().id() != thread::current().id() {
            drop(thread.join());
        }
    }
}

impl Shared {
    /// The writer thread: commit by commit until the log is closed or the first fault.
    fn run(&self, mut writer: Writer, on_fault: &OnFault) {
        while let Some((commit, done)) = self.next_commit(writer.has_purge_left()) {
            let watched = self.watch.enter("write", writer.path());
            let committed = guarded(&mut writer, |writer| writer.commit(&commit));
            drop(watched);
            match committed {
                Ok(()) => done.into_iter().for_each(|done| done(Ok(()))),
                Err(fault) => {
                    // Closing sled would write again; nothing is retried after a fault. The folder
                    // stays locked until the process is gone.
                    std::mem::forget(writer);
                    return self.fail(&fault, done, on_fault);
                }
            }
        }
        if let Err(fault) = guarded(&mut writer, Writer::close) {
            self.fail(&fault, Vec::new(), on_fault);
        }
    }

    /// Waits for work. `None`: the log is being closed and nothing is left to do. An empty commit
    /// is a slice of purge, without a caller.
    fn next_commit(&self, purge_left: bool) -> Option<(Commit, Vec<Done>)> {
        let mut queue = self.lock();
        loop {
            if !queue.operations.is_empty() {
                let taken = queue.take_commit();
                self.room.notify_all();
                return Some(taken);
            }
            if queue.closing {
                return None;
            }
            if !purge_left {
                queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let rested = self.work.wait_timeout(queue, IDLE);
            let (woken, rest) = rested.unwrap_or_else(PoisonError::into_inner);
            if rest.timed_out() && woken.operations.is_empty() {
                return Some((Commit::Changes(Vec::new()), Vec::new()));
            }
            queue = woken;
        }
    }

    /// Reports the fault to the server, then fails all waiting operations. Later ones are refused.
    fn fail(&self, fault: &Fault, waiting: Vec<Done>, on_fault: &OnFault) {
        let queued = self.lock().fail(fault);
        self.room.notify_all();
        on_fault(fault.clone());
        waiting.into_iter().chain(queued).for_each(|done| done(Err(fault.to_io())));
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs one step of the writer; a panic inside sled is a fault like any other.
fn guarded(
    writer: &mut Writer,
    step: impl FnOnce(&mut Writer) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let path = writer.path().to_path_buf();
    catch_unwind(AssertUnwindSafe(|| step(writer))).unwrap_or_else(|payload| {
        let error = io::Error::other(panic_message(payload.as_ref()));
        Err(Fault::new("write", &path, error))
    })
}
