//! The loop that writes the log: a queue, and one writer behind it that makes commit by commit
//! durable.
//!
//! The loop is the same everywhere: a thread drives it where the disk blocks, and a task where a
//! simulation says how long each step takes, so that a crash can fall between any two of them.

use std::future::{Future, ready};
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use futures_util::FutureExt as _;
use tokio::sync::Notify;

use super::commit_queue::{Commit, Queue};
use super::disk_watch::DiskWatch;
use super::error::{Fault, OnFault};
use super::log_store::{Done, LogIo, Operation};
use super::replica_store::{Pace, Step};
use super::segments::Keeper;
use super::sled_open::panic_message;
use super::writer::Writer;

/// Bytes of records that may wait for the writer of a disk that blocks. A caller beyond that waits
/// in `submit` until the disk has caught up: the replica cannot take more than its disk does.
const QUEUE_BYTES: usize = 64 << 20;

/// [`LogIo`] over a [`Writer`].
pub(super) struct LogLoop {
    shared: Arc<Shared>,
    /// Where the disk blocks: the writer's thread, and that of the keeper of its files. Dropping the
    /// loop waits until everything queued is durable and the files are closed.
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    queue: Mutex<Queue>,
    /// Notified when there is work, or the log is being closed.
    work: Notify,
    /// Notified when the queue has become shorter. A task cannot wait inside `submit`: a simulation
    /// has no such bound, openraft bounds its own operations under way.
    room: Option<Condvar>,
    watch: DiskWatch,
    on_fault: OnFault,
}

impl LogLoop {
    /// Starts the loop on threads of its own.
    ///
    /// # Errors
    ///
    /// As from the system, if no thread can be started.
    pub(super) fn on_threads(
        (writer, keeper): (Writer, Keeper),
        on_fault: OnFault,
        watch: DiskWatch,
    ) -> io::Result<Self> {
        let shared = Shared::new(Some(Condvar::new()), on_fault, watch);
        let (commits, files) = (Arc::clone(&shared), Arc::clone(&shared));
        let (path, panicked) = (writer.path().to_owned(), Arc::clone(&shared));
        let keep = async move { files.keep(keeper, at_once()).await };
        // A panic inside sled is a fault like any other.
        let write = async move {
            let run = AssertUnwindSafe(commits.run(writer, &at_once())).catch_unwind().await;
            if let Err(payload) = run {
                let error = io::Error::other(panic_message(payload.as_ref()));
                panicked.fail(&Fault::new("write", &path, error), Vec::new());
            }
        };
        // The keeper first: should the second thread not start, the first ends with the writer.
        let threads =
            vec![on_a_thread("holdfast-files", keep)?, on_a_thread("holdfast-log", write)?];
        Ok(Self { shared, threads })
    }

    /// Starts the loop as tasks of a simulated process. Dropping it lets them finish what is
    /// queued.
    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn as_tasks(
        (writer, keeper): (Writer, Keeper),
        on_fault: OnFault,
        (pace, watch): (Pace, DiskWatch),
        runtime: &holdfast_runtime::Runtime,
    ) -> Self {
        let shared = Shared::new(None, on_fault, watch.clone());
        let (commits, files) = (Arc::clone(&shared), Arc::clone(&shared));
        let of_files = watched(Arc::clone(&pace), watch, writer.path());
        runtime.spawn("log-files", async move { files.keep(keeper, of_files).await }).detach();
        runtime.spawn("log", async move { commits.run(writer, &pace).await }).detach();
        Self { shared, threads: Vec::new() }
    }
}

/// The pace of a disk that takes the time it takes.
fn at_once() -> Pace {
    Arc::new(|_| Box::pin(ready(())))
}

/// As `pace`, with each step under the watchdog.
#[cfg(any(test, feature = "simulation"))]
fn watched(pace: Pace, watch: DiskWatch, path: &std::path::Path) -> Pace {
    let path: Arc<std::path::Path> = Arc::from(path);
    Arc::new(move |step| {
        let (done, watch, path) = (pace(step), watch.clone(), Arc::clone(&path));
        Box::pin(async move {
            let _watched = watch.enter("write", &path);
            done.await;
        })
    })
}

fn on_a_thread(
    name: &str,
    work: impl Future<Output = ()> + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    thread::Builder::new().name(name.to_owned()).spawn(move || runtime.block_on(work))
}

impl LogIo for LogLoop {
    fn submit(&self, operation: Operation, done: Done) {
        let mut queue = self.shared.lock();
        if let Some(room) = &self.shared.room {
            while queue.failed.is_none() && queue.bytes > QUEUE_BYTES {
                queue = room.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
        let refused = queue.push(operation, done);
        drop(queue);
        match refused {
            Some((done, fault)) => done(Err(fault.to_io())),
            None => self.shared.work.notify_one(),
        }
    }
}

impl Drop for LogLoop {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.work.notify_one();
        // A callback may hold the last reference; a thread cannot join itself.
        let this = thread::current().id();
        let others = self.threads.drain(..).filter(|other| other.thread().id() != this);
        others.for_each(|other| drop(other.join()));
    }
}

impl Shared {
    fn new(room: Option<Condvar>, on_fault: OnFault, watch: DiskWatch) -> Arc<Self> {
        let (queue, work) = (Mutex::default(), Notify::new());
        Arc::new(Self { queue, work, room, watch, on_fault })
    }

    /// Runs commit by commit until the log is closed or the first fault.
    async fn run(&self, mut writer: Writer, pace: &Pace) {
        while let Some((commit, done)) = self.next_commit().await {
            match self.commit(&mut writer, &commit, pace).await {
                Ok(()) => done.into_iter().for_each(|done| done(Ok(()))),
                Err(fault) => {
                    writer.abandon();
                    return self.fail(&fault, done);
                }
            }
        }
        if let Err(fault) = writer.close() {
            self.fail(&fault, Vec::new());
        }
    }

    async fn commit(&self, writer: &mut Writer, commit: &Commit, pace: &Pace) -> Result<(), Fault> {
        // Not under the watchdog as a whole: a new file may take longer than one write. Its steps
        // are.
        writer.make_room(commit).await?;
        let path = writer.path().to_owned();
        let _watched = self.watch.enter("write", &path);
        pace(Step::Write).await;
        let written = writer.write(commit)?;
        pace(Step::Sync).await;
        writer.sync(&written)?;
        pace(Step::Guard).await;
        writer.tell_guard(&written)
    }

    /// Waits for work. `None`: the log is being closed and nothing is left to do.
    async fn next_commit(&self) -> Option<(Commit, Vec<Done>)> {
        loop {
            {
                let mut queue = self.lock();
                if let Some(taken) = queue.take_commit() {
                    self.room.iter().for_each(Condvar::notify_all);
                    return Some(taken);
                }
                if queue.closing {
                    return None;
                }
            }
            self.work.notified().await;
        }
    }

    async fn keep(&self, keeper: Keeper, pace: Pace) {
        if let Err(fault) = keeper.run(pace).await {
            (self.on_fault)(fault);
        }
    }

    /// Reports the fault to the server, then fails all waiting operations. Later ones are refused.
    fn fail(&self, fault: &Fault, waiting: Vec<Done>) {
        let queued = self.lock().fail(fault);
        self.room.iter().for_each(Condvar::notify_all);
        (self.on_fault)(fault.clone());
        waiting.into_iter().chain(queued).for_each(|done| done(Err(fault.to_io())));
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
