//! The history of a node while it runs: what hears the entries, and the thread that writes.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use holdfast_core::LogIndex;
use holdfast_mutants::mutant;
use holdfast_replication::consensus::{AppliedEntry, EntryContent, Recorder};
use holdfast_replication::storage::{Disk, system_disk};
use holdfast_runtime::{Clock, Instant};

use crate::files::{Files, Settings};
use crate::frame::{Cover, Draft};
use crate::metrics::HistoryMetrics;
use crate::query::{self, Page, Query};
use crate::record::{Record, What};
use crate::tell;

/// Bytes of records that may wait to be written. Entries beyond them are left out.
pub const UNWRITTEN_BYTES: usize = 16 << 20;
/// So many bytes are written at once, without a wait for more.
const PRESSING_BYTES: usize = 1 << 20;
/// How long records wait for others that are written with them: what a process that is killed may lose.
const WRITE_EVERY: Duration = Duration::from_millis(100);
/// How long what was written waits to be made durable: what a power cut may take.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// How often an idle history looks for files that are too old.
const PRUNE_EVERY: Duration = Duration::from_mins(10);
/// The pause after a failed write.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// How long a reader, or the end of the node, waits for what is not written yet.
const WRITTEN_WITHIN: Duration = Duration::from_secs(2);

/// The history cannot be opened. The node can do without.
#[derive(Debug, thiserror::Error)]
#[error("the history in {} cannot be opened: {source}", folder.display())]
pub struct OpenError {
    folder: PathBuf,
    source: io::Error,
}

/// The history of this node. When it is dropped, what was heard is written, unless that takes long.
pub struct History {
    shared: Arc<Shared>,
    disk: Arc<dyn Disk>,
    settings: Settings,
    clock: Arc<dyn Clock>,
    metrics: HistoryMetrics,
}

struct Shared {
    state: Mutex<State>,
    /// There is something to do for the thread.
    work: Condvar,
    /// The thread has done what it was asked for.
    done: Condvar,
    metrics: HistoryMetrics,
}

#[derive(Default)]
struct State {
    /// The last entry that was heard, or that the files cover.
    heard: u64,
    /// The tenure of the last entry with commands among them; 0 before the first one. `None`: that was not heard.
    tenure: Option<u64>,
    /// Entries that follow each other, up to `heard`; none if that entry was left out, or all is written.
    open: Option<Draft>,
    /// Others before them, not written yet.
    closed: Vec<Draft>,
    /// Bytes of their records.
    bytes: usize,
    /// How often it was asked that all be written, and up to which of these times it is.
    asked: u64,
    served: u64,
    stops: bool,
}

impl History {
    /// Opens the history in a folder, or begins one, and starts the thread that writes it. Reads files: call it where it may
    /// block.
    ///
    /// # Errors
    ///
    /// [`OpenError`]; the files are as before, but for what a crash had left of a frame.
    pub fn open(settings: &Settings, clock: Arc<dyn Clock>) -> Result<Arc<Self>, OpenError> {
        Self::open_on(system_disk(), settings, clock)
    }

    /// As [`open`](Self::open), on another disk.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn open_on(
        disk: Arc<dyn Disk>,
        settings: &Settings,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>, OpenError> {
        let failed = |source| OpenError { folder: settings.folder.clone(), source };
        let (files, covers) = Files::open(disk.clone(), settings).map_err(failed)?;
        let beginning = Cover { tenure: Some(0), ..Cover::default() };
        let Cover { through: heard, tenure, .. } = covers.unwrap_or(beginning);
        let metrics = HistoryMetrics::default();
        let shared = Arc::new(Shared {
            state: Mutex::new(State { heard, tenure, ..State::default() }),
            work: Condvar::new(),
            done: Condvar::new(),
            metrics: metrics.clone(),
        });
        let (fails, unsynced_since) = (false, None);
        let (shared_too, clock_too) = (shared.clone(), clock.clone());
        let writer = Writer { files, shared: shared_too, clock: clock_too, fails, unsynced_since };
        thread::Builder::new()
            .name("holdfast-history".to_owned())
            .spawn(move || writer.run())
            .map_err(failed)?;
        Ok(Arc::new(Self { shared, disk, settings: settings.clone(), clock, metrics }))
    }

    /// What it counts.
    pub fn metrics(&self) -> HistoryMetrics {
        self.metrics.clone()
    }

    /// A page of what it has, up to what was heard before this call; if the disk hangs, without the last seconds. Blocks.
    ///
    /// # Errors
    ///
    /// As from the system.
    pub fn read(&self, query: &Query) -> io::Result<Page> {
        self.shared.settle(|state| state.asked += 1);
        query::read(self.disk.as_ref(), &self.settings, query)
    }
}

impl History {
    /// Writes what was heard, unless that takes longer than two seconds, and writes nothing that comes later. Blocks.
    pub fn close(&self) {
        self.shared.settle(|state| {
            state.stops = true;
            state.asked += 1;
        });
    }
}

impl std::fmt::Debug for History {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("History").field("folder", &self.settings.folder).finish_non_exhaustive()
    }
}

impl Drop for History {
    fn drop(&mut self) {
        self.close();
    }
}

impl Recorder for History {
    fn restored(&self, index: LogIndex) {
        let mut state = self.shared.lock();
        if index.get() > state.heard {
            // What lies in between was never heard, and shows as a gap.
            state.close();
            state.heard = index.get();
            state.tenure = None;
        }
    }

    fn applied(&self, entry: &AppliedEntry<'_>) {
        let index = entry.index.get();
        let mut state = self.shared.lock();
        if index <= state.heard && !mutant!(HistoryTwice) {
            return;
        }
        let was_idle = state.is_idle();
        if state.bytes >= UNWRITTEN_BYTES {
            state.close();
            state.heard = index;
            state.tenure = None;
            self.shared.metrics.left_out.inc();
            return;
        }
        state.hear(index, entry, self.clock.as_ref());
        // The thread waits for more when it was woken once, until there is much.
        let wakes = was_idle || state.bytes >= PRESSING_BYTES;
        drop(state);
        if wakes {
            self.shared.work.notify_one();
        }
    }
}

impl State {
    /// Nothing waits to be written.
    fn is_idle(&self) -> bool {
        self.open.is_none() && self.closed.is_empty()
    }

    /// The thread is to write without a wait for more.
    fn is_pressing(&self) -> bool {
        self.stops || self.asked > self.served || self.bytes >= PRESSING_BYTES
    }

    fn close(&mut self) {
        self.closed.extend(self.open.take());
    }

    fn hear(&mut self, index: u64, entry: &AppliedEntry<'_>, clock: &dyn Clock) {
        let after = index.saturating_sub(1);
        if self.heard < after {
            self.close();
        }
        let cover = Cover { after, tenure: self.tenure, ..Cover::default() };
        let open = self.open.get_or_insert_with(|| Draft { cover, records: Vec::new() });
        let before = open.records.len();
        let stamp_ms = entry.table.stamp_ms();
        let mut put = |at_ms, what| open.put(&Record { index, at_ms, what });
        match entry.content {
            // It follows the election within moments, and says when it was proposed.
            EntryContent::Batch(commands, applied) => {
                let tenure = entry.tenure.get();
                // Who led meanwhile is not known of what was not heard.
                if self.tenure.is_some_and(|before| before < tenure) {
                    put(stamp_ms, What::Elected { tenure });
                }
                tell::of_batch(commands, applied, entry.table, &mut |what| put(stamp_ms, what));
                self.tenure = Some(tenure);
            }
            // No leader stamps it.
            EntryContent::Members(members) => put(clock.wall_ms(), tell::of_members(members)),
            EntryContent::FirstOfTenure => {}
        }
        open.cover = Cover { through: index, last_ms: stamp_ms, tenure: self.tenure, ..open.cover };
        self.bytes += open.records.len() - before;
        self.heard = index;
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for something, and waits until the thread has written all that was heard before; not for long.
    fn settle(&self, ask: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        ask(&mut state);
        let asked = state.asked;
        self.work.notify_one();
        let waits = |state: &mut State| state.served < asked;
        drop(self.done.wait_timeout_while(state, WRITTEN_WITHIN, waits));
    }

    /// What is to be written next, up to which of the times it was asked for that is all, and whether nothing comes after
    /// it. Waits until there is something, but not longer than that.
    fn next(&self, wait: Duration) -> (Vec<Draft>, u64, bool) {
        let idle = |state: &mut State| state.is_idle() && !state.is_pressing();
        let state = self.work.wait_timeout_while(self.lock(), wait, idle);
        let (state, _) = state.unwrap_or_else(PoisonError::into_inner);
        let calm = |state: &mut State| !state.is_idle() && !state.is_pressing();
        let state = self.work.wait_timeout_while(state, WRITE_EVERY, calm);
        let (mut state, _) = state.unwrap_or_else(PoisonError::into_inner);
        state.close();
        state.bytes = 0;
        (std::mem::take(&mut state.closed), state.asked, state.stops)
    }

    fn served(&self, asked: u64) {
        self.lock().served = asked;
        self.done.notify_all();
    }

    /// Waits, but not beyond the end of the node.
    fn pause(&self) {
        let goes_on = |state: &mut State| !state.stops;
        drop(self.work.wait_timeout_while(self.lock(), TRY_AGAIN_AFTER, goes_on));
    }
}

/// The thread that writes.
struct Writer {
    files: Files,
    shared: Arc<Shared>,
    clock: Arc<dyn Clock>,
    fails: bool,
    /// Since when something is written that is not durable.
    unsynced_since: Option<Instant>,
}

impl Writer {
    fn run(mut self) {
        loop {
            // An idle history looks for files that are too old.
            let wait = if self.unsynced_since.is_some() { SYNC_EVERY } else { PRUNE_EVERY };
            let (drafts, asked, is_last) = self.shared.next(wait);
            let written = self.write(&drafts, is_last);
            self.shared.metrics.bytes.set(i64::try_from(self.files.bytes()).unwrap_or(i64::MAX));
            // Nobody waits for a thread that has ended.
            self.shared.served(if is_last { u64::MAX } else { asked });
            let failed = written.is_err();
            self.tell(written);
            if is_last {
                return;
            }
            if failed {
                self.shared.pause();
            }
        }
    }

    /// Writes all of them, or leaves out the rest, and makes durable what has waited for that.
    fn write(&mut self, drafts: &[Draft], is_last: bool) -> io::Result<()> {
        let metrics = &self.shared.metrics;
        for (nth, draft) in drafts.iter().enumerate() {
            if let Err(error) = self.files.append(draft) {
                let rest = drafts.get(nth..).unwrap_or_default();
                let entries = rest.iter().map(|draft| draft.cover.through - draft.cover.after);
                metrics.left_out.inc_by(entries.sum());
                return Err(error);
            }
            metrics.records.inc_by(draft.cover.records.into());
        }
        let now = self.clock.now();
        if !drafts.is_empty() {
            self.unsynced_since.get_or_insert(now);
        }
        let waited = self.unsynced_since.map(|since| now.saturating_since(since));
        if waited.is_some_and(|waited| waited >= SYNC_EVERY || drafts.is_empty() || is_last) {
            self.unsynced_since = None;
            self.files.sync()?;
        }
        self.files.prune(self.clock.wall_ms())
    }

    /// Logs when it begins to fail, and when it works again.
    fn tell(&mut self, written: io::Result<()>) {
        match written {
            Err(error) if !self.fails => {
                self.fails = true;
                tracing::warn!(%error, "the history cannot be written; the node goes on without it");
            }
            Ok(()) if self.fails => {
                self.fails = false;
                tracing::info!("the history is written again; what was left out shows as a gap");
            }
            _ => {}
        }
        self.shared.metrics.failing.set(self.fails.into());
    }
}
