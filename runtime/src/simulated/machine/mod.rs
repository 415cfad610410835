//! An executor for whole simulated runs of a cluster: many processes, one thread, one seed.
//!
//! tokio's paused clock knows one process that never stops. Here there are many: each can be paused,
//! killed at any point, and has a clock that runs at a rate of its own.
//!
//! # Invariants
//!
//! - The same seed is the same run, step by step ([`Machine::digest`]). The next task to be polled is
//!   drawn from those that are ready, kept in order of their ids; so it does not depend on the order of
//!   the wake-ups (tokio's watch channel wakes in a random order).
//! - Time passes only while every task waits.
//! - No task of a paused or dead process is polled.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::process::{Process, ProcessState};
use super::timers::Timers;
use crate::BoxFuture;

/// The wall clock at the beginning of every simulated run, Unix milliseconds.
const WALL_MS: u64 = 1_700_000_000_000;
/// Polls at one instant after which a run counts as hung.
const POLLS_AT_ONE_INSTANT: u64 = 5_000_000;
/// The future given to [`Machine::run`].
const ROOT: TaskId = TaskId(0);
/// The process of the network, the disks, and the observers.
const WORLD: usize = 0;

/// One simulated run: processes and their tasks, on virtual time. Dropping it drops everything in it.
pub struct Machine(Arc<Shared>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TaskId(u64);

pub(super) struct Shared(Mutex<State>);

pub(super) struct State {
    /// True time, nanoseconds since the beginning.
    pub(super) now: u64,
    pub(super) timers: Timers,
    pub(super) processes: Vec<ProcessState>,
    rng: StdRng,
    tasks: BTreeMap<TaskId, Slot>,
    /// Tasks to be polled, in order of their ids.
    ready: Vec<TaskId>,
    last_task: u64,
    polls_at_now: u64,
    /// How much time one reading of a process's clock takes, nanoseconds.
    look_takes: u64,
    digest: u64,
}

struct Slot {
    process: usize,
    name: &'static str,
    /// `None` while the task is polled.
    future: Option<BoxFuture<'static, ()>>,
    aborted: bool,
}

/// The next step.
enum Next {
    Root,
    Poll(TaskId, usize, BoxFuture<'static, ()>),
    /// The task was aborted: drop it, as the process it belongs to.
    Drop(usize, BoxFuture<'static, ()>),
}

thread_local! {
    static CURRENT: RefCell<Option<Process>> = const { RefCell::new(None) };
}

/// The simulated process whose task is being polled on this thread; `None` on a real machine.
///
/// For code that receives no runtime because a library calls it: openraft's runtime.
pub fn current() -> Option<Process> {
    CURRENT.with_borrow(Clone::clone)
}

/// Makes a process the current one while it lives.
struct Inside(Option<Process>);

impl Inside {
    fn of(process: Process) -> Self {
        Self(CURRENT.replace(Some(process)))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

impl Machine {
    /// A machine without any task. All random numbers in it come from `seed`.
    pub fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let world = ProcessState::new("world".to_owned(), 0, rng.random());
        Self(Arc::new(Shared(Mutex::new(State {
            now: 0,
            timers: Timers::default(),
            processes: vec![world],
            rng,
            tasks: BTreeMap::new(),
            ready: Vec::new(),
            last_task: ROOT.0,
            polls_at_now: 0,
            look_takes: 0,
            digest: seed,
        }))))
    }

    /// The process on true time, never paused: for the network, the disks, and the observers.
    pub fn world(&self) -> Process {
        Process::new(Arc::clone(&self.0), WORLD)
    }

    /// Starts a new process. Its clock has an origin of its own, so that code that compares the clocks
    /// of two processes visibly fails.
    pub fn process(&self, name: &str) -> Process {
        let mut state = self.0.lock();
        let (seed, origin) = (state.rng.random(), state.rng.random_range(0..86_400_000_000_000));
        let born = state.now;
        let mut process = ProcessState::new(name.to_owned(), origin, seed);
        process.born_at(born);
        state.processes.push(process);
        let id = state.processes.len() - 1;
        drop(state);
        Process::new(Arc::clone(&self.0), id)
    }

    /// From now on time passes while a process reads its clock: two readings show two times, as on a
    /// real machine, where work between them takes a while. Readings by the world take none.
    ///
    /// Default: zero.
    pub fn set_look_takes(&self, length: Duration) {
        self.0.lock().look_takes = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
    }

    /// True time since the beginning.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.0.lock().now)
    }

    /// A digest of every step so far: which task was polled when. Equal runs have equal digests.
    pub fn digest(&self) -> u64 {
        self.0.lock().digest
    }

    /// Drives every task until `future`, which runs as a task of the world, is done.
    ///
    /// # Panics
    ///
    /// If a task panics; if nothing can ever happen again; if time stands still because some task never
    /// waits.
    pub fn run<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let root = self.0.waker(ROOT);
        self.0.wake(ROOT);
        loop {
            match self.0.next() {
                Next::Root => {
                    let _inside = Inside::of(self.world());
                    let polled = future.as_mut().poll(&mut Context::from_waker(&root));
                    if let Poll::Ready(output) = polled {
                        return output;
                    }
                }
                Next::Poll(id, process, task) => self.0.poll(id, process, task),
                Next::Drop(process, task) => self.0.drop_inside(process, task),
            }
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Tasks own the machine and the machine owns the tasks: this breaks the cycle.
        let processes = self.0.lock().processes.len();
        (0..processes).rev().for_each(|id| self.0.kill(id));
    }
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine").field("now", &self.now()).finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waker(self: &Arc<Self>, task: TaskId) -> Waker {
        Waker::from(Arc::new(TaskWaker { task, shared: Arc::downgrade(self) }))
    }

    fn wake(&self, task: TaskId) {
        self.lock().wake(task);
    }

    /// Starts a task; `None` if the process is dead.
    pub(super) fn spawn(
        &self,
        process: usize,
        name: &'static str,
        future: BoxFuture<'static, ()>,
    ) -> Option<TaskId> {
        let mut state = self.lock();
        if state.processes.get(process).is_none_or(ProcessState::is_dead) {
            drop(state);
            drop(future);
            return None;
        }
        state.last_task += 1;
        let id = TaskId(state.last_task);
        let slot = Slot { process, name, future: Some(future), aborted: false };
        state.tasks.insert(id, slot);
        state.wake(id);
        Some(id)
    }

    /// Aborts a task. It is dropped when its turn comes, not here: the caller may hold locks that the
    /// task's end takes.
    pub(super) fn abort(&self, task: TaskId) {
        let mut state = self.lock();
        if let Some(slot) = state.tasks.get_mut(&task) {
            slot.aborted = true;
            state.wake(task);
        }
    }

    pub(super) fn is_finished(&self, task: TaskId) -> bool {
        !self.lock().tasks.contains_key(&task)
    }

    /// Drops every task of a process at once, in order of their ids.
    pub(super) fn kill(self: &Arc<Self>, process: usize) {
        let mut state = self.lock();
        let Some(killed) = state.processes.get_mut(process) else { return };
        killed.die();
        let doomed: Vec<TaskId> = state
            .tasks
            .iter()
            .filter(|(_, slot)| slot.process == process)
            .map(|(id, _)| *id)
            .collect();
        state.ready.retain(|id| !doomed.contains(id));
        let futures: Vec<_> =
            doomed.iter().filter_map(|id| state.tasks.remove(id)?.future).collect();
        drop(state);
        for future in futures {
            self.drop_inside(process, future);
        }
    }

    fn drop_inside(self: &Arc<Self>, process: usize, future: BoxFuture<'static, ()>) {
        let _inside = Inside::of(Process::new(Arc::clone(self), process));
        drop(future);
    }

    /// Draws the next step; lets time pass if there is none.
    fn next(&self) -> Next {
        loop {
            let mut state = self.lock();
            if let Some(next) = state.draw() {
                return next;
            }
            let due = state.advance();
            drop(state);
            due.into_iter().for_each(Waker::wake);
        }
    }

    fn poll(self: &Arc<Self>, id: TaskId, process: usize, mut task: BoxFuture<'static, ()>) {
        let waker = self.waker(id);
        let inside = Inside::of(Process::new(Arc::clone(self), process));
        let polled = task.as_mut().poll(&mut Context::from_waker(&waker));
        let mut state = self.lock();
        if polled.is_pending()
            && let Some(slot) = state.tasks.get_mut(&id)
        {
            slot.future = Some(task);
            return;
        }
        // The task is done, or was killed while it was polled.
        state.tasks.remove(&id);
        drop(state);
        drop(task);
        drop(inside);
    }
}

impl State {
    pub(super) fn wake(&mut self, task: TaskId) {
        let process = match self.tasks.get(&task) {
            Some(slot) => slot.process,
            None if task == ROOT => WORLD,
            None => return,
        };
        let held_back = self.processes.get_mut(process).and_then(ProcessState::held_back);
        insert_in_order(held_back.unwrap_or(&mut self.ready), task);
    }

    pub(super) fn pause(&mut self, process: usize) {
        let (held, ready): (Vec<TaskId>, Vec<TaskId>) = std::mem::take(&mut self.ready)
            .into_iter()
            .partition(|id| self.tasks.get(id).is_some_and(|slot| slot.process == process));
        self.ready = ready;
        if let Some(paused) = self.processes.get_mut(process) {
            paused.pause(held);
        }
    }

    pub(super) fn resume(&mut self, process: usize) {
        let Some(resumed) = self.processes.get_mut(process) else { return };
        let held = resumed.resume();
        for id in held {
            self.wake(id);
        }
    }

    fn draw(&mut self) -> Option<Next> {
        while !self.ready.is_empty() {
            let chosen = self.rng.random_range(0..self.ready.len());
            let id = self.ready.remove(chosen);
            self.note(id);
            if id == ROOT {
                return Some(Next::Root);
            }
            // A task may have woken itself and then ended.
            let Some(slot) = self.tasks.get_mut(&id) else { continue };
            let Some(future) = slot.future.take() else { continue };
            let (process, aborted) = (slot.process, slot.aborted);
            if aborted {
                self.tasks.remove(&id);
                return Some(Next::Drop(process, future));
            }
            return Some(Next::Poll(id, process, future));
        }
        None
    }

    fn note(&mut self, id: TaskId) {
        self.polls_at_now += 1;
        self.digest = mix(mix(self.digest, self.now), id.0);
        let name = self.tasks.get(&id).map_or("the world", |slot| slot.name);
        assert!(
            self.polls_at_now < POLLS_AT_ONE_INSTANT,
            "time stands still at {} ns: '{name}' and others never wait",
            self.now
        );
    }

    /// Lets time pass until a timer is due; returns the wakers of those tasks.
    #[expect(clippy::panic, reason = "a life in which nothing can happen would never end")]
    fn advance(&mut self) -> Vec<Waker> {
        let Some(due) = self.timers.next_due() else {
            let names: Vec<_> = self.tasks.values().map(|slot| slot.name).collect();
            panic!("nothing can ever happen again; these wait: {names:?}");
        };
        if due > self.now {
            self.now = due;
            self.polls_at_now = 0;
        }
        // Timers that became due while a process read a clock are due now.
        self.timers.take_due(self.now)
    }

    /// A process reads its clock.
    pub(super) const fn look(&mut self, process: usize) {
        if process != WORLD {
            self.now = self.now.saturating_add(self.look_takes);
        }
    }

    pub(super) const fn wall_ms(&self) -> u64 {
        WALL_MS + self.now / 1_000_000
    }
}

/// Inserts `id` into `ids`, which stays in order and has each id once.
fn insert_in_order(ids: &mut Vec<TaskId>, id: TaskId) {
    if let Err(place) = ids.binary_search(&id) {
        ids.insert(place, id);
    }
}

/// One step of `SplitMix64` over the digest so far and the new value.
const fn mix(before: u64, new: u64) -> u64 {
    let mut mixed = (before ^ new).wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

struct TaskWaker {
    task: TaskId,
    shared: Weak<Shared>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(shared) = self.shared.upgrade() {
            shared.wake(self.task);
        }
    }
}

#[cfg(test)]
mod tests;
