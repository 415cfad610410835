//! A log without a disk, for simulations and tests on virtual time.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::log_store::{Done, LogIo, Operation};
use super::mirror::LogMirror;

/// Completes one submitted operation: makes it durable and calls its `done`. The hook of
/// [`MemoryLog::delayed`] runs it when the simulated disk has finished. Dropping it unrun simulates
/// a disk that never answers.
pub type Completion = Box<dyn FnOnce() + Send>;

type Hook = Box<dyn Fn(Completion) + Send + Sync>;

/// [`LogIo`] in memory. What is durable survives [`power_cut`](Self::power_cut); what was only
/// submitted does not.
pub struct MemoryLog {
    disk: Arc<Mutex<Disk>>,
    hook: Option<Hook>,
}

#[derive(Default)]
struct Disk {
    durable: LogMirror,
    queue: VecDeque<Pending>,
    next_ticket: u64,
    failed: bool,
}

struct Pending {
    ticket: u64,
    operation: Operation,
    done: Done,
}

impl MemoryLog {
    /// An empty log that completes each operation before `submit` returns.
    pub fn new() -> Self {
        Self::with(LogMirror::default(), None)
    }

    /// A log that already holds `recovered`; completes at once.
    pub fn holding(recovered: LogMirror) -> Self {
        Self::with(recovered, None)
    }

    /// A log that holds `recovered` and passes each completion to `hook`, in order of submission.
    /// Completing an operation completes all before it first, so acknowledgements keep their order
    /// whatever the hook does.
    pub fn delayed(
        recovered: LogMirror,
        hook: impl Fn(Completion) + Send + Sync + 'static,
    ) -> Self {
        Self::with(recovered, Some(Box::new(hook)))
    }

    fn with(recovered: LogMirror, hook: Option<Hook>) -> Self {
        let disk = Disk { durable: recovered, ..Disk::default() };
        Self { disk: Arc::new(Mutex::new(disk)), hook }
    }

    /// What a restart would read: every completed operation and no other.
    pub fn durable(&self) -> LogMirror {
        lock(&self.disk).durable.clone()
    }

    /// Loses what is not durable. Nothing submitted before or after is acknowledged any more: open
    /// a new log over the result, as a restarted process would.
    pub fn power_cut(&self) -> LogMirror {
        let mut disk = lock(&self.disk);
        disk.failed = true;
        let lost = std::mem::take(&mut disk.queue);
        let durable = disk.durable.clone();
        drop(disk);
        drop(lost);
        durable
    }

    /// From now on every operation fails, as on a disk that reported an error.
    pub fn fail(&self) {
        let mut disk = lock(&self.disk);
        disk.failed = true;
        let queue = std::mem::take(&mut disk.queue);
        drop(disk);
        for pending in queue {
            (pending.done)(Err(failed()));
        }
    }
}

impl Default for MemoryLog {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for MemoryLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryLog").finish_non_exhaustive()
    }
}

impl LogIo for MemoryLog {
    fn submit(&self, operation: Operation, done: Done) {
        let mut disk = lock(&self.disk);
        if disk.failed {
            drop(disk);
            return done(Err(failed()));
        }
        let ticket = disk.next_ticket;
        disk.next_ticket += 1;
        disk.queue.push_back(Pending { ticket, operation, done });
        drop(disk);
        let target = Arc::clone(&self.disk);
        let completion: Completion = Box::new(move || complete(&target, ticket));
        match &self.hook {
            Some(hook) => hook(completion),
            None => completion(),
        }
    }
}

/// Makes everything up to `ticket` durable, and acknowledges it in order.
fn complete(disk: &Mutex<Disk>, ticket: u64) {
    loop {
        let mut guard = lock(disk);
        let Some(pending) = guard.queue.pop_front_if(|pending| pending.ticket <= ticket) else {
            return;
        };
        let outcome = guard.durable.check(&pending.operation).map_err(io::Error::other);
        if outcome.is_ok() {
            drop(guard.durable.apply(&pending.operation));
        } else {
            guard.failed = true;
        }
        drop(guard);
        (pending.done)(outcome);
    }
}

fn failed() -> io::Error {
    io::Error::other("the log's storage has failed")
}

fn lock(disk: &Mutex<Disk>) -> MutexGuard<'_, Disk> {
    disk.lock().unwrap_or_else(PoisonError::into_inner)
}
