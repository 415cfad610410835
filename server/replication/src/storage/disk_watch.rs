//! The watchdog over the disk: an operation that does not end is a fault of this node.
//!
//! A disk that hangs reports no error. Its node would remain for ever a follower that answers pings
//! and appends nothing, or a leader whose queue to the disk blocks everything else. So each
//! operation on the disk is registered here before it begins. One that takes longer than the limit
//! ends the node, like a failed write: the node acknowledges nothing that is in doubt.
//!
//! # Invariants
//!
//! - The watchdog never waits for a thread that waits for the disk: it has its own thread, and no
//!   thread holds its lock during disk I/O.
//! - It counts its own checks and reads no clock. So it does not take the time for which a machine
//!   or process was suspended for a hang of its disk.
//! - While a thread waits for a descriptor nothing is counted: that wait has a limit of its own
//!   (`files.rs`), and the disk works.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use holdfast_mutants::mutant;

use super::disk::{Disk, DiskFile};
use super::error::{Fault, OnFault};
use super::files::waits_for_descriptor;

/// An operation that is found running at this many checks in a row is a fault; the checks divide
/// the limit evenly.
const LOOKS: u32 = 10;
/// An operation that reads or syncs any amount of data may take this many times the limit.
const PATIENCE: u32 = 60;

/// Watches every registered operation. Cheap to clone.
#[derive(Clone)]
pub(super) struct DiskWatch(Option<Arc<Shared>>);

struct Shared {
    limit: Duration,
    /// Whether a thread waits for something other than the disk.
    is_excused: fn() -> bool,
    on_fault: OnFault,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// One entry for each thread that uses the disk.
    running: BTreeMap<u64, Operation>,
    /// The oldest operation at the last check, and the number of checks that found it.
    oldest: Option<(u64, u32)>,
}

struct Operation {
    action: &'static str,
    path: PathBuf,
    /// How many times the limit the operation may take.
    patience: u32,
}

/// An operation under way; it ends when this is dropped.
pub(super) struct Watched<'a>(Option<(&'a Shared, u64)>);

impl DiskWatch {
    /// Watches nothing: for suites, and simulations without this fault.
    pub(super) fn none() -> Self {
        Self(None)
    }

    /// Reports the first operation that takes `limit` to `on_fault`, from its own thread.
    ///
    /// # Errors
    ///
    /// As from the system, if no thread can be started.
    pub(super) fn on_a_thread(limit: Duration, on_fault: OnFault) -> io::Result<Self> {
        let (watch, shared) = Self::new(limit, waits_for_descriptor, on_fault);
        let looks = move || {
            loop {
                thread::sleep(limit / LOOKS);
                if !look(&shared) {
                    return;
                }
            }
        };
        thread::Builder::new().name("holdfast-disk".to_owned()).spawn(looks)?;
        Ok(watch)
    }

    fn new(limit: Duration, is_excused: fn() -> bool, on_fault: OnFault) -> (Self, Weak<Shared>) {
        let shared = Arc::new(Shared { limit, is_excused, on_fault, state: Mutex::default() });
        let weak = Arc::downgrade(&shared);
        (Self(Some(shared)), weak)
    }

    /// Registers an operation before it begins.
    pub(super) fn enter(&self, action: &'static str, path: &Path) -> Watched<'_> {
        self.enter_for(action, path, 1)
    }

    /// Registers an operation that may take [`PATIENCE`] times the limit. Operations that began
    /// later are not checked until it is over.
    pub(super) fn enter_patiently(&self, action: &'static str, path: &Path) -> Watched<'_> {
        self.enter_for(action, path, PATIENCE)
    }

    fn enter_for(&self, action: &'static str, path: &Path, patience: u32) -> Watched<'_> {
        let entered = |shared: &Shared| shared.enter(action, path, patience);
        Watched(self.0.as_ref().map(|shared| (&**shared, entered(shared))))
    }
}

#[cfg(any(test, feature = "simulation"))]
impl DiskWatch {
    /// As [`on_a_thread`](Self::on_a_thread), as a task of a simulated process.
    pub(super) fn as_a_task(
        limit: Duration,
        on_fault: OnFault,
        runtime: &holdfast_runtime::Runtime,
    ) -> Self {
        // A simulated disk waits for no descriptor.
        Self::as_a_task_unless(limit, || false, on_fault, runtime)
    }

    fn as_a_task_unless(
        limit: Duration,
        is_excused: fn() -> bool,
        on_fault: OnFault,
        runtime: &holdfast_runtime::Runtime,
    ) -> Self {
        let (watch, shared) = Self::new(limit, is_excused, on_fault);
        let clock = runtime.clone();
        let looks = async move {
            loop {
                clock.sleep(limit / LOOKS).await;
                if !look(&shared) {
                    return;
                }
            }
        };
        runtime.spawn("disk-watch", looks).detach();
        watch
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        if let Some((shared, number)) = self.0 {
            shared.lock().running.remove(&number);
        }
    }
}

/// Makes one check; returns whether to continue.
fn look(shared: &Weak<Shared>) -> bool {
    let Some(shared) = shared.upgrade() else { return false };
    let fault = shared.look();
    if let Some(fault) = fault {
        (shared.on_fault)(fault);
        return false;
    }
    true
}

impl Shared {
    fn enter(&self, action: &'static str, path: &Path, patience: u32) -> u64 {
        let mut state = self.lock();
        state.next += 1;
        let number = state.next;
        let path = path.to_owned();
        state.running.insert(number, Operation { action, path, patience });
        number
    }

    fn look(&self) -> Option<Fault> {
        let mut state = self.lock();
        if (self.is_excused)() && !mutant!(WantOfDescriptorsIsADiskFault) {
            state.oldest = None;
            return None;
        }
        let oldest = state.running.first_key_value().map(|(number, _)| *number);
        let before = state.oldest.filter(|(number, _)| Some(*number) == oldest);
        let looks = before.map_or(1, |(_, looks)| looks + 1);
        state.oldest = oldest.map(|number| (number, looks));
        let operation = state.running.get(&oldest?)?;
        let hangs = looks >= LOOKS * operation.patience && !mutant!(DiskHangsForEver);
        let stalled = || stalled(self.limit, operation.patience);
        hangs.then(|| Fault::new(operation.action, &operation.path, stalled()))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn stalled(limit: Duration, patience: u32) -> io::Error {
    let waited = limit.as_millis() * u128::from(patience);
    let times = if patience == 1 { String::new() } else { format!("{patience} times ") };
    let words = format!(
        "the disk has not finished it for {waited} ms ({times}disk_stall_ms). Nothing acknowledged is \
         lost. Look at the disk or volume behind this path (dmesg, the hypervisor, the network it is \
         reached by); when it answers again, start the node again, or let the service manager do it",
    );
    io::Error::new(io::ErrorKind::TimedOut, words)
}

/// A disk whose operations are all watched.
pub(super) struct WatchedDisk {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) watch: DiskWatch,
}

impl WatchedDisk {
    fn file(&self, path: &Path, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(WatchedFile { file, path: path.to_owned(), watch: self.watch.clone() })
    }
}

impl Disk for WatchedDisk {
    fn may_block(&self) -> bool {
        self.disk.may_block()
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let _watched = self.watch.enter("open", path);
        Ok(self.file(path, self.disk.open(path)?))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let _watched = self.watch.enter("create", path);
        Ok(self.file(path, self.disk.create(path)?))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let _watched = self.watch.enter("look for", path);
        self.disk.exists(path)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let _watched = self.watch.enter("list", folder);
        self.disk.list(folder)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let _watched = self.watch.enter("rename", to);
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let _watched = self.watch.enter("remove", path);
        self.disk.remove(path)
    }

    fn create_folders(&self, folder: &Path) -> io::Result<()> {
        let _watched = self.watch.enter("create", folder);
        self.disk.create_folders(folder)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        let _watched = self.watch.enter("sync", folder);
        self.disk.sync_folder(folder)
    }

    fn free_space(&self, folder: &Path) -> io::Result<u64> {
        let _watched = self.watch.enter("ask for the free space of", folder);
        self.disk.free_space(folder)
    }
}

struct WatchedFile {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    watch: DiskWatch,
}

impl DiskFile for WatchedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let _watched = self.watch.enter("read", &self.path);
        self.file.read_at(buffer, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let _watched = self.watch.enter("write", &self.path);
        self.file.write_all_at(bytes, offset)
    }

    fn length(&self) -> io::Result<u64> {
        let _watched = self.watch.enter("read", &self.path);
        self.file.length()
    }

    fn shorten(&self, length: u64) -> io::Result<()> {
        let _watched = self.watch.enter("shorten", &self.path);
        self.file.shorten(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        let _watched = self.watch.enter("sync", &self.path);
        self.file.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        let _watched = self.watch.enter("sync", &self.path);
        self.file.sync_all()
    }

    fn forget_cached(&self) {
        self.file.forget_cached();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use holdfast_mutants::{Mutant, arm};
    use holdfast_runtime::{Runtime, simulated};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(8);

    fn watched() -> (DiskWatch, Arc<AtomicUsize>, Runtime) {
        watched_unless(|| false)
    }

    fn watched_unless(is_excused: fn() -> bool) -> (DiskWatch, Arc<AtomicUsize>, Runtime) {
        let runtime = simulated::runtime(1, 0);
        let faults = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&faults);
        let on_fault: OnFault = Arc::new(move |fault| {
            assert!(fault.is_stall(), "{fault}");
            assert!(fault.to_string().starts_with("cannot sync /data/sled: "), "{fault}");
            counted.fetch_add(1, Ordering::Relaxed);
        });
        (DiskWatch::as_a_task_unless(LIMIT, is_excused, on_fault, &runtime), faults, runtime)
    }

    #[tokio::test(start_paused = true)]
    async fn an_operation_that_does_not_end_within_the_limit_is_a_fault_that_names_it() {
        let (watch, faults, runtime) = watched();
        let _hangs = watch.enter("sync", Path::new("/data/sled"));

        runtime.sleep(LIMIT * 89 / 100).await;
        assert_eq!(faults.load(Ordering::Relaxed), 0);
        runtime.sleep(LIMIT * 12 / 100).await;
        assert_eq!(faults.load(Ordering::Relaxed), 1);
        runtime.sleep(LIMIT * 9).await;
        assert_eq!(faults.load(Ordering::Relaxed), 1, "it is reported once");
    }

    /// The thread is never idle, and none of its operations takes long.
    #[tokio::test(start_paused = true)]
    async fn operations_that_end_are_no_fault_however_many_there_are() {
        let (watch, faults, runtime) = watched();
        for _ in 0..100 {
            let busy = watch.enter("sync", Path::new("/data/sled"));
            runtime.sleep(LIMIT * 7 / 10).await;
            drop(busy);
        }
        assert_eq!(faults.load(Ordering::Relaxed), 0);

        let _hangs = watch.enter("sync", Path::new("/data/sled"));
        runtime.sleep(LIMIT * 5 / 4).await;
        assert_eq!(faults.load(Ordering::Relaxed), 1);
    }

    /// R3 of the safety review: a process out of descriptors does not have a hung disk.
    #[tokio::test(start_paused = true)]
    async fn waiting_for_a_descriptor_does_not_count() {
        static WAITS: AtomicBool = AtomicBool::new(true);
        let (watch, faults, runtime) = watched_unless(|| WAITS.load(Ordering::Relaxed));
        let _opens = watch.enter("sync", Path::new("/data/sled"));

        runtime.sleep(LIMIT * 6).await;
        assert_eq!(faults.load(Ordering::Relaxed), 0);
        WAITS.store(false, Ordering::Relaxed);
        runtime.sleep(LIMIT * 5 / 4).await;
        assert_eq!(faults.load(Ordering::Relaxed), 1);
    }

    /// The rule of the test above taken away.
    #[tokio::test(start_paused = true)]
    async fn without_the_rule_such_a_wait_is_a_hung_disk() {
        let (watch, faults, runtime) = watched_unless(|| true);
        let _opens = watch.enter("sync", Path::new("/data/sled"));

        arm(Some(Mutant::WantOfDescriptorsIsADiskFault));
        runtime.sleep(LIMIT * 5 / 4).await;
        arm(None);
        assert_eq!(faults.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_reads_all_there_is_has_sixty_times_the_limit() {
        let (watch, faults, runtime) = watched();
        let _hangs = watch.enter_patiently("sync", Path::new("/data/sled"));

        runtime.sleep(LIMIT * 59).await;
        assert_eq!(faults.load(Ordering::Relaxed), 0);
        runtime.sleep(LIMIT * 2).await;
        assert_eq!(faults.load(Ordering::Relaxed), 1);
    }
}
