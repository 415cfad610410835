//! The log's writer as a task, for simulations: does what `sled_log.rs` does with a thread.
//!
//! The queue, the commits and the order of steps are the same; only the time of each step comes
//! from outside, so that a crash can fall between any two of them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use holdfast_runtime::{BoxFuture, Runtime, select};
use tokio::sync::Notify;

use super::commit_queue::{Commit, Queue};
use super::disk_watch::DiskWatch;
use super::error::{Fault, OnFault};
use super::log_io::{Done, LogIo, Operation};
use super::sled_log::IDLE;
use super::writer::Writer;

/// The next step of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It writes its changes to the system.
    Write,
    /// It makes them durable. Until then a loss of power may take them away.
    Sync,
    /// It updates the guard file. Nothing is acknowledged before.
    Guard,
}

/// How long a simulated disk takes for a step: the step is done when the future is. A future that
/// never ends is a disk that hangs.
pub type Pace = Arc<dyn Fn(Step) -> BoxFuture<'static, ()> + Send + Sync>;

/// [`LogIo`] on a task. Dropping it lets the task finish what is queued.
pub(super) struct LogTask {
    shared: Arc<Shared>,
}

struct Shared {
    /// Without the bound of `sled_log.rs`: a task cannot wait inside `submit`. openraft bounds its
    /// own operations under way.
    queue: Mutex<Queue>,
    /// Notified when there is work, or the log is being closed.
    work: Notify,
    watch: DiskWatch,
}

impl LogTask {
    pub(super) fn start(
        writer: Writer,
        on_fault: OnFault,
        (pace, watch): (Pace, DiskWatch),
        runtime: &Runtime,
    ) -> Self {
        let shared = Arc::new(Shared { queue: Mutex::default(), work: Notify::new(), watch });
        let write = Arc::clone(&shared).run(writer, on_fault, pace, runtime.clone());
        runtime.spawn("log", write).detach();
        Self { shared }
    }
}

impl LogIo for LogTask {
    fn submit(&self, operation: Operation, done: Done) {
        let refused = self.shared.lock().push(operation, done);
        match refused {
            Some((done, fault)) => done(Err(fault.to_io())),
            None => self.shared.work.notify_one(),
        }
    }
}

impl Drop for LogTask {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.work.notify_one();
    }
}

impl Shared {
    /// Runs commit by commit until the log is closed or the first fault.
    async fn run(
        self: Arc<Self>,
        mut writer: Writer,
        on_fault: OnFault,
        pace: Pace,
        runtime: Runtime,
    ) {
        while let Some((commit, done)) = self.next_commit(writer.has_purge_left(), &runtime).await {
            let path = writer.path().to_owned();
            let watched = self.watch.enter("write", &path);
            let committed = commit_at(&mut writer, &commit, &pace).await;
            drop(watched);
            match committed {
                Ok(()) => done.into_iter().for_each(|done| done(Ok(()))),
                Err(fault) => return self.fail(&fault, done, &on_fault),
            }
        }
        if let Err(fault) = writer.close() {
            self.fail(&fault, Vec::new(), &on_fault);
        }
    }

    /// Waits for work, as the thread does.
    async fn next_commit(
        &self,
        purge_left: bool,
        runtime: &Runtime,
    ) -> Option<(Commit, Vec<Done>)> {
        loop {
            {
                let mut queue = self.lock();
                if !queue.operations.is_empty() {
                    return Some(queue.take_commit());
                }
                if queue.closing {
                    return None;
                }
            }
            if !purge_left {
                self.work.notified().await;
                continue;
            }
            select! {
                () = self.work.notified() => {}
                () = runtime.sleep(IDLE) => return Some((Commit::Changes(Vec::new()), Vec::new())),
            }
        }
    }

    /// Reports the fault to the server, then fails all waiting operations. Later ones are refused.
    fn fail(&self, fault: &Fault, waiting: Vec<Done>, on_fault: &OnFault) {
        let queued = self.lock().fail(fault);
        on_fault(fault.clone());
        waiting.into_iter().chain(queued).for_each(|done| done(Err(fault.to_io())));
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// [`Writer::commit`], step by step.
async fn commit_at(writer: &mut Writer, commit: &Commit, pace: &Pace) -> Result<(), Fault> {
    pace(Step::Write).await;
    let written = writer.write(commit)?;
    pace(Step::Sync).await;
    writer.sync(&written)?;
    pace(Step::Guard).await;
    writer.tell_guard(&written)
}
