//! The log in sled: a queue, and one writer thread behind it.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use holdfast_seams::{Clock, Moment, Seams};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use super::error::{Fault, OnFault};
use super::log_io::{Done, LogIo, Operation};
use super::record::encoded_len;
use super::sled_open::panic_message;
use super::sled_writer::{Commit, Writer};

/// Bytes of records that may wait for the writer. A caller that comes on top of them waits in
/// `submit` until the disk has caught up: the replica cannot take more than its disk does.
const QUEUE_BYTES: usize = 64 << 20;
/// Bytes of records after which a commit takes no further operation; one operation always fits.
const COMMIT_BYTES: usize = 256 << 10;
/// How long the writer lets the disk rest before it purges a slice without being asked to commit.
const IDLE: Duration = Duration::from_millis(20);

/// [`LogIo`] on sled. Dropping it waits until everything queued is durable and the files are
/// closed.
pub struct SledLog {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    queue: Mutex<Queue>,
    /// Rung when there is work, or the log is being closed.
    work: Condvar,
    /// Rung when the queue has become shorter.
    room: Condvar,
    counters: Arc<Counters>,
}

#[derive(Default)]
struct Queue {
    operations: VecDeque<(Operation, Done)>,
    bytes: usize,
    closing: bool,
    failed: Option<Fault>,
}

/// What the writer has done since the log was opened, for metrics.
pub struct Counters {
    commits: AtomicU64,
    pub(super) groups: AtomicU64,
    pub(super) groups_purged: AtomicU64,
    blob_syncs: AtomicU64,
    sync_seconds: Histogram,
    /// The machine's own: what this thread does, no simulation repeats.
    clock: Arc<dyn Clock>,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            commits: AtomicU64::default(),
            groups: AtomicU64::default(),
            groups_purged: AtomicU64::default(),
            blob_syncs: AtomicU64::default(),
            // A twentieth of a millisecond to about two seconds.
            sync_seconds: Histogram::new(exponential_buckets(0.000_05, 2.0, 16)),
            clock: Seams::system().clock,
        }
    }
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counters").field("commits", &self.commits()).finish_non_exhaustive()
    }
}

impl Counters {
    /// When a commit begins, for [`committed`](Self::committed).
    pub(super) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// A commit that began at `begun` is durable.
    pub(super) fn committed(&self, begun: Moment, synced_blobs: bool) {
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.blob_syncs.fetch_add(u64::from(synced_blobs), Ordering::Relaxed);
        self.sync_seconds.observe(self.now().saturating_since(begun).as_secs_f64());
    }

    /// Seconds from handing a commit to sled until it is on stable storage.
    pub fn sync_seconds(&self) -> Histogram {
        self.sync_seconds.clone()
    }

    /// Flushes with fdatasync.
    pub fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// Groups of records written.
    pub fn groups(&self) -> u64 {
        self.groups.load(Ordering::Relaxed)
    }

    /// Groups removed after a purge.
    pub fn groups_purged(&self) -> u64 {
        self.groups_purged.load(Ordering::Relaxed)
    }

    /// Commits in which sled wrote outside its one file, so that `blobs/` had to be synced too.
    /// Expected to stay 0; each costs a sync per file.
    pub fn blob_syncs(&self) -> u64 {
        self.blob_syncs.load(Ordering::Relaxed)
    }
}

impl SledLog {
    /// Starts the writer thread.
    ///
    /// # Errors
    ///
    /// As from the system, if no thread can be had.
    pub(super) fn start(writer: Writer, on_fault: OnFault) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue::default()),
            work: Condvar::new(),
            room: Condvar::new(),
            counters: writer.counters(),
        });
        let theirs = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("holdfast-log".to_owned())
            .spawn(move || theirs.run(writer, &on_fault))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// What the writer has done, for metrics.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.shared.counters)
    }
}

impl LogIo for SledLog {
    fn submit(&self, operation: Operation, done: Done) {
        let bytes = operation_bytes(&operation);
        let mut queue = self.shared.lock();
        while queue.failed.is_none() && queue.bytes > QUEUE_BYTES {
            queue = self.shared.room.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        if let Some(fault) = &queue.failed {
            let error = fault.to_io();
            drop(queue);
            return done(Err(error));
        }
        queue.bytes += bytes;
        queue.operations.push_back((operation, done));
        drop(queue);
        self.shared.work.notify_one();
    }
}

impl Drop for SledLog {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.work.notify_one();
        let Some(thread) = self.thread.take() else { return };
        // A callback may hold the last reference; a thread cannot wait for itself.
        if thread.thread().id() != thread::current().id() {
            drop(thread.join());
        }
    }
}

impl std::fmt::Debug for SledLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SledLog").field("counters", &self.shared.counters).finish_non_exhaustive()
    }
}

impl Shared {
    /// The writer thread: commit by commit until the log is closed or the first fault.
    fn run(&self, mut writer: Writer, on_fault: &OnFault) {
        while let Some((commit, done)) = self.next_commit(writer.has_purge_left()) {
            match guarded(&mut writer, |writer| writer.commit(&commit)) {
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
    /// is a slice of purge that nobody waits for.
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

    /// Tells the server, then everybody who waits. Whoever submits from now on is refused.
    fn fail(&self, fault: &Fault, waiting: Vec<Done>, on_fault: &OnFault) {
        let queued = {
            let mut queue = self.lock();
            queue.failed = Some(fault.clone());
            queue.bytes = 0;
            std::mem::take(&mut queue.operations)
        };
        self.room.notify_all();
        on_fault(fault.clone());
        let queued = queued.into_iter().map(|(_, done)| done);
        waiting.into_iter().chain(queued).for_each(|done| done(Err(fault.to_io())));
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// What goes to disk together, as a whole or not at all: changes in order, or one truncation,
    /// before which the guard file has to be written.
    fn take_commit(&mut self) -> (Commit, Vec<Done>) {
        let mut changes = Vec::new();
        let mut waiting = Vec::new();
        let mut bytes = 0;
        while let Some((next, _)) = self.operations.front() {
            let fits = match next {
                Operation::TruncateAfter(_) => changes.is_empty(),
                Operation::Append(_) | Operation::Vote(_) | Operation::Purge(_) => {
                    changes.is_empty() || bytes + operation_bytes(next) <= COMMIT_BYTES
                }
            };
            if !fits {
                break;
            }
            let Some((operation, done)) = self.operations.pop_front() else { break };
            waiting.push(done);
            let size = operation_bytes(&operation);
            bytes += size;
            self.bytes = self.bytes.saturating_sub(size);
            if let Operation::TruncateAfter(keep) = operation {
                return (Commit::Truncate(keep), waiting);
            }
            changes.push(operation);
        }
        (Commit::Changes(changes), waiting)
    }
}

fn operation_bytes(operation: &Operation) -> usize {
    match operation {
        Operation::Append(records) => records.iter().map(encoded_len).sum(),
        _ => 0,
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
