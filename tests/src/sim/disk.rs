//! The virtual disk of a node: files that outlive processes, and what remains of them after a
//! crash.
//!
//! A write lies in the system's memory until its file is synced; a name until its folder is.
//! Killing a process loses none of that. A loss of power does: of each file the first few writes
//! survive, and the next one in part.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use holdfast_runtime::simulated::Process;
use holdfast_runtime::{Instant, Runtime};
use holdfast_server::storage::{Disk, DiskFile, Pace, Step};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::watch;

use super::link::Host;
use super::trace::{Trace, digest_of};

/// One node's disk. Cheap to clone.
#[derive(Clone)]
pub struct VirtualDisk(Arc<Shared>);

struct Shared {
    owner: Host,
    world: Runtime,
    trace: Trace,
    state: Mutex<State>,
    /// Whether it finishes no step for now.
    hangs: watch::Sender<bool>,
}

/// A sync that takes no longer than this counts as one of a healthy disk.
const WELL_WITHIN: Duration = Duration::from_millis(100);
/// The system's error for a process that has as many files open as it may.
const TOO_MANY_OPEN: i32 = 24;

struct State {
    rng: StdRng,
    /// Raised when the process that had the disk is gone, which then writes nothing any more.
    mount: u64,
    folders: BTreeSet<PathBuf>,
    names: BTreeMap<PathBuf, Arc<Mutex<Content>>>,
    /// The names that survive the loss of power.
    durable_names: BTreeMap<PathBuf, Arc<Mutex<Content>>>,
    /// Changes of names that were not synced, oldest first.
    renamed: Vec<Vec<Named>>,
    /// Files as they were when they were last copied, or when the present process began.
    older: BTreeMap<PathBuf, Vec<u8>>,
    free: Option<u64>,
    sync_min: Duration,
    sync_max: Duration,
    stuck: bool,
    /// Steps that wait because the disk finishes nothing, each with its beginning.
    held_up: BTreeMap<u64, Instant>,
    last_held_up: u64,
    ignores_syncs: bool,
    /// Opens and makes no file any more.
    refuses_files: bool,
    injected: DiskFaults,
}

type Named = (PathBuf, Option<Arc<Mutex<Content>>>);

/// The bytes of a file.
#[derive(Clone, Default)]
struct Content {
    current: Vec<u8>,
    durable: Vec<u8>,
    /// Writes that are not synced, oldest first.
    writes: Vec<(usize, Vec<u8>)>,
}

/// The faults that were injected into a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskFaults {
    /// Losses of power.
    pub power_lost: u64,
    /// Writes that were lost with the power.
    pub writes_lost: u64,
    /// Writes of which a part survived.
    pub torn: u64,
    /// Writes refused for want of space.
    pub full: u64,
    /// Damaged files.
    pub damaged: u64,
}

/// How a file is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// One bit of it is flipped.
    FlippedBit,
    /// It ends too early.
    Cut,
    /// It is as it was when it was last copied ([`VirtualDisk::copy_files`]), or when the last
    /// process began.
    Older,
}

impl std::fmt::Debug for VirtualDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VirtualDisk").field("owner", &self.0.owner).finish_non_exhaustive()
    }
}

impl VirtualDisk {
    /// An empty disk. Its random events are drawn from `seed`.
    pub fn new(owner: Host, world: &Process, seed: u64, trace: Trace) -> Self {
        let state = State {
            rng: StdRng::seed_from_u64(seed),
            mount: 0,
            folders: BTreeSet::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            renamed: Vec::new(),
            older: BTreeMap::new(),
            free: None,
            sync_min: Duration::from_micros(100),
            sync_max: Duration::from_millis(1),
            stuck: false,
            held_up: BTreeMap::new(),
            last_held_up: 0,
            ignores_syncs: false,
            refuses_files: false,
            injected: DiskFaults::default(),
        };
        let (state, hangs) = (Mutex::new(state), watch::Sender::new(false));
        Self(Arc::new(Shared { owner, world: world.runtime(), trace, state, hangs }))
    }

    /// How long a sync takes from now on.
    pub fn set_pace(&self, sync_min: Duration, sync_max: Duration) {
        let mut state = self.lock();
        (state.sync_min, state.sync_max) = (sync_min, sync_max);
    }

    /// Finishes no write any more, until its process is gone.
    pub fn stick(&self) {
        self.lock().stuck = true;
    }

    /// `true`: finishes no write any more; `false`: finishes them all.
    pub fn hang(&self, hangs: bool) {
        self.0.hangs.send_replace(hangs);
    }

    /// Opens and makes no file any more, as for a process that has as many open as it may.
    pub fn refuse_files(&self, refuses: bool) {
        self.lock().refuses_files = refuses;
    }

    /// Takes only so many more bytes; `None`: any number.
    pub fn set_free_space(&self, bytes: Option<u64>) {
        self.lock().free = bytes;
    }

    /// Acknowledges syncs without syncing, from now on.
    pub fn ignore_syncs(&self, ignores: bool) {
        self.lock().ignores_syncs = ignores;
    }

    /// Since when the oldest held-up step has waited.
    pub fn held_up_since(&self) -> Option<Instant> {
        self.lock().held_up.values().min().copied()
    }

    /// Whether it finishes nothing for now.
    pub fn hangs(&self) -> bool {
        self.lock().stuck || *self.0.hangs.borrow()
    }

    /// Whether it completes every step, in time.
    pub fn is_well(&self) -> bool {
        let state = self.lock();
        let stalls = state.stuck || *self.0.hangs.borrow();
        !stalls && !state.refuses_files && state.free.is_none() && state.sync_max <= WELL_WITHIN
    }

    /// The number of writes that a loss of power now could lose.
    pub fn unsynced(&self) -> usize {
        self.lock().names.values().map(|content| lock(content).writes.len()).sum()
    }

    /// Whether it contains an unfinished snapshot.
    pub fn has_unfinished_snapshot(&self) -> bool {
        let unfinished = |path: &PathBuf| path.extension().is_some_and(|end| end == "tmp");
        self.lock().names.keys().any(unfinished)
    }

    /// The faults injected so far.
    pub fn injected(&self) -> DiskFaults {
        self.lock().injected
    }

    /// The files on it that are not empty.
    pub fn files(&self) -> Vec<PathBuf> {
        let state = self.lock();
        let filled = state.names.iter().filter(|(_, content)| !lock(content).current.is_empty());
        filled.map(|(path, _)| path.clone()).collect()
    }

    /// What the file holds now; nothing if there is none.
    pub fn content(&self, path: &Path) -> Vec<u8> {
        self.lock().names.get(path).map(|content| lock(content).current.clone()).unwrap_or_default()
    }

    /// Gives the disk to a new process.
    pub(super) fn mount(&self) -> Mount {
        let mut state = self.lock();
        state.mount += 1;
        state.stuck = false;
        state.copy_files();
        Mount { disk: self.clone(), number: state.mount }
    }

    /// Copies every file as it is synced now: [`Damage::Older`] may bring such a copy back.
    pub fn copy_files(&self) {
        self.lock().copy_files();
    }

    /// The process that had the disk is gone.
    pub(super) fn unmount(&self) {
        self.lock().mount += 1;
    }

    /// The power fails, and whatever was not synced is lost, wholly or in part.
    pub(super) fn lose_power(&self) {
        let mut state = self.lock();
        let state = &mut *state;
        state.mount += 1;
        state.injected.power_lost += 1;
        let renamed = std::mem::take(&mut state.renamed);
        let kept = state.rng.random_range(0..=renamed.len());
        for (path, content) in renamed.into_iter().take(kept).flatten() {
            set_name(&mut state.durable_names, path, content);
        }
        state.names = state.durable_names.clone();
        for content in state.names.values() {
            lock(content).lose_unsynced(&mut state.rng, &mut state.injected);
        }
    }

    /// A disk with what this one would have left if the power failed now and nothing unsynced
    /// survived.
    pub(super) fn as_after_a_loss_of_power(&self) -> Self {
        let state = self.lock();
        let left = |(path, content): (&PathBuf, &Arc<Mutex<Content>>)| {
            let durable = lock(content).durable.clone();
            let content = Content { current: durable.clone(), durable, writes: Vec::new() };
            (path.clone(), Arc::new(Mutex::new(content)))
        };
        let names: BTreeMap<_, _> = state.durable_names.iter().map(left).collect();
        let left = State {
            // It has no random events.
            rng: StdRng::seed_from_u64(0),
            mount: 0,
            folders: state.folders.clone(),
            durable_names: names.clone(),
            names,
            renamed: Vec::new(),
            older: BTreeMap::new(),
            free: None,
            refuses_files: false,
            held_up: BTreeMap::new(),
            injected: DiskFaults::default(),
            ..*state
        };
        let (owner, world, trace) = (self.0.owner, self.0.world.clone(), Trace::default());
        let (state, hangs) = (Mutex::new(left), watch::Sender::new(false));
        Self(Arc::new(Shared { owner, world, trace, state, hangs }))
    }

    /// Damages a file while no process has it. Returns whether there was anything to damage.
    pub fn damage(&self, path: &Path, damage: Damage) -> bool {
        let mut state = self.lock();
        let state = &mut *state;
        let Some(content) = state.names.get(path) else { return false };
        let mut content = lock(content);
        let before = content.current.clone();
        match damage {
            Damage::FlippedBit if !content.current.is_empty() => {
                let at = state.rng.random_range(0..content.current.len());
                content.current[at] ^= 1 << state.rng.random_range(0..8_u32);
            }
            Damage::Cut if !content.current.is_empty() => {
                let left = state.rng.random_range(0..content.current.len());
                content.current.truncate(left);
            }
            Damage::Older => {
                if let Some(older) = state.older.get(path) {
                    content.current.clone_from(older);
                }
            }
            Damage::FlippedBit | Damage::Cut => {}
        }
        let Content { current, durable, .. } = &mut *content;
        durable.clone_from(current);
        content.writes.clear();
        let damaged = before != content.current;
        state.injected.damaged += u64::from(damaged);
        damaged
    }

    /// How long the steps of a commit take, on the world's clock.
    pub(super) fn pace(&self) -> Pace {
        let disk = self.clone();
        Arc::new(move |step| {
            let wait = disk.step(step);
            let disk = disk.clone();
            let (world, mut hangs) = (disk.0.world.clone(), disk.0.hangs.subscribe());
            async move {
                let held_up = (wait.is_none() || *hangs.borrow()).then(|| HeldUp::begin(&disk));
                // The disk outlives its processes.
                let _ = hangs.wait_for(|hangs| !*hangs).await;
                match wait {
                    Some(length) => {
                        drop(held_up);
                        world.sleep(length).await;
                    }
                    None => std::future::pending().await,
                }
            }
            .boxed()
        })
    }

    fn step(&self, step: Step) -> Option<Duration> {
        let mut state = self.lock();
        if state.stuck {
            return None;
        }
        let (least, most) = match step {
            Step::Write => (Duration::ZERO, Duration::from_micros(50)),
            Step::Sync | Step::Guard => (state.sync_min, state.sync_max),
        };
        let spread = u64::try_from(most.saturating_sub(least).as_nanos()).unwrap_or(u64::MAX);
        Some(least + Duration::from_nanos(state.rng.random_range(0..=spread)))
    }

    fn note(&self, line: std::fmt::Arguments<'_>) {
        self.0.trace.note(self.0.world.clock.now().since_origin(), line);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A step that waits because the disk finishes nothing.
struct HeldUp {
    disk: VirtualDisk,
    number: u64,
}

impl HeldUp {
    fn begin(disk: &VirtualDisk) -> Self {
        let now = disk.0.world.clock.now();
        let mut state = disk.lock();
        state.last_held_up += 1;
        let number = state.last_held_up;
        state.held_up.insert(number, now);
        Self { disk: disk.clone(), number }
    }
}

impl Drop for HeldUp {
    fn drop(&mut self) {
        self.disk.lock().held_up.remove(&self.number);
    }
}

impl State {
    fn copy_files(&mut self) {
        let copy = |(path, file): (&PathBuf, &Arc<Mutex<Content>>)| {
            (path.clone(), lock(file).durable.clone())
        };
        self.older = self.names.iter().map(copy).collect();
    }
}

impl Content {
    fn write(&mut self, at: usize, bytes: &[u8]) {
        put(&mut self.current, at, bytes);
        self.writes.push((at, bytes.to_vec()));
    }

    fn digest_of_writes(&self) -> u64 {
        let mut bytes = Vec::new();
        for (at, written) in &self.writes {
            bytes.extend_from_slice(&at.to_be_bytes());
            bytes.extend_from_slice(written);
        }
        digest_of(&bytes)
    }

    fn sync(&mut self) {
        for (at, bytes) in self.writes.drain(..) {
            put(&mut self.durable, at, &bytes);
        }
    }

    /// The first few unsynced writes survive, and the beginning of the next one.
    fn lose_unsynced(&mut self, rng: &mut StdRng, injected: &mut DiskFaults) {
        let writes = std::mem::take(&mut self.writes);
        let whole = rng.random_range(0..=writes.len());
        for (at, bytes) in &writes[..whole] {
            put(&mut self.durable, *at, bytes);
        }
        if let Some((at, bytes)) = writes.get(whole) {
            injected.writes_lost += (writes.len() - whole) as u64;
            let part = rng.random_range(0..=bytes.len());
            injected.torn += u64::from(part > 0 && part < bytes.len());
            put(&mut self.durable, *at, &bytes[..part]);
        }
        self.current = self.durable.clone();
    }
}

fn put(into: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let end = at + bytes.len();
    if into.len() < end {
        into.resize(end, 0);
    }
    into[at..end].copy_from_slice(bytes);
}

fn set_name(
    names: &mut BTreeMap<PathBuf, Arc<Mutex<Content>>>,
    path: PathBuf,
    content: Option<Arc<Mutex<Content>>>,
) {
    match content {
        Some(content) => drop(names.insert(path, content)),
        None => drop(names.remove(&path)),
    }
}

/// The disk as one process has it.
#[derive(Clone)]
pub(super) struct Mount {
    disk: VirtualDisk,
    number: u64,
}

impl Mount {
    fn state(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.disk.lock();
        if state.mount == self.number {
            return Ok(state);
        }
        Err(io::Error::other("this process is gone"))
    }

    fn may_open(&self) -> io::Result<()> {
        if self.state()?.refuses_files {
            return Err(io::Error::from_raw_os_error(TOO_MANY_OPEN));
        }
        Ok(())
    }

    fn rename_all(&self, changes: Vec<Named>) -> io::Result<()> {
        let mut state = self.state()?;
        for (path, content) in &changes {
            set_name(&mut state.names, path.clone(), content.clone());
        }
        state.renamed.push(changes);
        Ok(())
    }

    fn content(&self, path: &Path) -> io::Result<Arc<Mutex<Content>>> {
        let state = self.state()?;
        state.names.get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn file(&self, path: &Path, content: Arc<Mutex<Content>>) -> Arc<dyn DiskFile> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Arc::new(VirtualFile { mount: self.clone(), name, content })
    }
}

impl Disk for Mount {
    fn may_block(&self) -> bool {
        false
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.may_open()?;
        Ok(self.file(path, self.content(path)?))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.may_open()?;
        let content = Arc::new(Mutex::new(Content::default()));
        self.rename_all(vec![(path.to_path_buf(), Some(Arc::clone(&content)))])?;
        Ok(self.file(path, content))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let state = self.state()?;
        Ok(state.names.contains_key(path) || state.folders.contains(path))
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let state = self.state()?;
        let inside = |path: &&PathBuf| path.parent() == Some(folder);
        Ok(state.names.keys().chain(&state.folders).filter(inside).cloned().collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let content = self.content(from)?;
        let replaced = self.content(to).map_or(0, |old| lock(&old).current.len() as u64);
        if let Some(free) = &mut self.state()?.free {
            *free += replaced;
        }
        self.rename_all(vec![(to.to_path_buf(), Some(content)), (from.to_path_buf(), None)])
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let Ok(content) = self.content(path) else { return Ok(()) };
        if let Some(free) = &mut self.state()?.free {
            *free += lock(&content).current.len() as u64;
        }
        self.rename_all(vec![(path.to_path_buf(), None)])
    }

    fn create_folders(&self, folder: &Path) -> io::Result<()> {
        let mut state = self.state()?;
        state.folders.extend(folder.ancestors().map(Path::to_path_buf));
        Ok(())
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        let mut state = self.state()?;
        if state.ignores_syncs {
            return Ok(());
        }
        let here =
            |changes: &Vec<Named>| changes.iter().any(|(path, _)| path.parent() == Some(folder));
        let (synced, rest) = std::mem::take(&mut state.renamed).into_iter().partition(here);
        state.renamed = rest;
        let synced: Vec<Vec<Named>> = synced;
        for (path, content) in synced.into_iter().flatten() {
            set_name(&mut state.durable_names, path, content);
        }
        Ok(())
    }

    fn free_space(&self, _folder: &Path) -> io::Result<u64> {
        Ok(self.state()?.free.unwrap_or(u64::MAX))
    }
}

struct VirtualFile {
    mount: Mount,
    name: String,
    content: Arc<Mutex<Content>>,
}

impl DiskFile for VirtualFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let _mounted = self.mount.state()?;
        let content = lock(&self.content);
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(content.current.len());
        let count = buffer.len().min(content.current.len() - from);
        buffer[..count].copy_from_slice(&content.current[from..from + count]);
        Ok(count)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.mount.state()?;
        let mut content = lock(&self.content);
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        let grows = (at + bytes.len()).saturating_sub(content.current.len()) as u64;
        if let Some(free) = &mut state.free {
            if *free < grows {
                state.injected.full += 1;
                return Err(io::ErrorKind::StorageFull.into());
            }
            *free -= grows;
        }
        content.write(at, bytes);
        Ok(())
    }

    fn length(&self) -> io::Result<u64> {
        let _mounted = self.mount.state()?;
        Ok(lock(&self.content).current.len() as u64)
    }

    fn shorten(&self, length: u64) -> io::Result<()> {
        let mut state = self.mount.state()?;
        let mut content = lock(&self.content);
        let length = usize::try_from(length).unwrap_or(usize::MAX).min(content.current.len());
        if let Some(free) = &mut state.free {
            *free += (content.current.len() - length) as u64;
        }
        content.current.truncate(length);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let state = self.mount.state()?;
        let mut content = lock(&self.content);
        let (length, digest) = (content.current.len(), content.digest_of_writes());
        if !state.ignores_syncs {
            content.sync();
        }
        drop((state, content));
        let (owner, name) = (self.mount.disk.0.owner, &self.name);
        self.mount.disk.note(format_args!("{owner} syncs {name} {length} {digest:016x}"));
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn forget_cached(&self) {}
}

fn lock(content: &Mutex<Content>) -> MutexGuard<'_, Content> {
    content.lock().unwrap_or_else(PoisonError::into_inner)
}
