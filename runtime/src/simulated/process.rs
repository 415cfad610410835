//! A process of a [`Machine`](super::Machine): tasks, a clock and randomness of its own.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::sync::watch;

use super::machine::{Shared, TaskId};
use super::timers::TimerId;
use super::{VirtualWatchdog, ring};
use crate::{BoxFuture, Clock, Instant, Rng, Runtime, Spawn, Task, TaskHandle, Watchdog};

/// Every clock shows at least this at the beginning, so that instants before now can be expressed.
const ORIGIN_NS: u64 = 3_600_000_000_000;
/// A rate of one, in parts of a million.
const MILLION: u64 = 1_000_000;

/// One process. Cheap to clone; all clones are the same process.
#[derive(Clone)]
pub struct Process {
    shared: Arc<Shared>,
    id: usize,
}

/// What the machine knows of a process.
pub(super) struct ProcessState {
    name: String,
    life: Life,
    clock: LocalClock,
    /// Offset of its wall clock from the true one, milliseconds.
    wall_skew_ms: i64,
    rng: StdRng,
}

enum Life {
    Running,
    /// Paused, with the tasks that became ready meanwhile, in order of their ids.
    Paused(Vec<TaskId>),
    Dead,
}

/// A clock that runs at a rate of its own.
struct LocalClock {
    /// The true time at which it showed `shown`.
    since: u64,
    shown: u64,
    /// How many of its microseconds pass in a true second.
    per_million: u64,
}

impl LocalClock {
    fn at(&self, now: u64) -> u64 {
        self.shown.saturating_add(scale(now.saturating_sub(self.since), self.per_million, MILLION))
    }

    /// The true time from which on it shows at least `shown`.
    fn when(&self, shown: u64) -> u64 {
        let Some(ahead) = shown.checked_sub(self.shown).filter(|ahead| *ahead > 0) else {
            return self.since;
        };
        let length = scale(ahead, MILLION, self.per_million);
        let rounded = self.since.saturating_add(length);
        if self.at(rounded) < shown { rounded.saturating_add(1) } else { rounded }
    }
}

fn scale(length: u64, by: u64, of: u64) -> u64 {
    let scaled = u128::from(length) * u128::from(by) / u128::from(of);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

impl ProcessState {
    pub(super) fn new(name: String, origin: u64, seed: u64) -> Self {
        let clock = LocalClock { since: 0, shown: ORIGIN_NS + origin, per_million: MILLION };
        let rng = StdRng::seed_from_u64(seed);
        Self { name, life: Life::Running, clock, wall_skew_ms: 0, rng }
    }

    /// Its clock begins now.
    pub(super) fn born_at(&mut self, now: u64) {
        self.clock.since = now;
    }

    pub(super) fn is_dead(&self) -> bool {
        matches!(self.life, Life::Dead)
    }

    /// Where tasks go that become ready while it is paused; `None` if it is not paused.
    pub(super) fn held_back(&mut self) -> Option<&mut Vec<TaskId>> {
        match &mut self.life {
            Life::Paused(held) => Some(held),
            Life::Running | Life::Dead => None,
        }
    }

    pub(super) fn pause(&mut self, ready: Vec<TaskId>) {
        if matches!(self.life, Life::Running) {
            self.life = Life::Paused(ready);
        }
    }

    /// The tasks that became ready meanwhile.
    pub(super) fn resume(&mut self) -> Vec<TaskId> {
        match std::mem::replace(&mut self.life, Life::Running) {
            Life::Running => Vec::new(),
            Life::Paused(held) => held,
            Life::Dead => {
                self.life = Life::Dead;
                Vec::new()
            }
        }
    }

    pub(super) fn die(&mut self) {
        self.life = Life::Dead;
    }
}

impl Process {
    pub(super) const fn new(shared: Arc<Shared>, id: usize) -> Self {
        Self { shared, id }
    }

    /// Its name.
    pub fn name(&self) -> String {
        self.look(|process, _| process.name.clone())
    }

    /// Its clock, tasks and randomness.
    pub fn runtime(&self) -> Runtime {
        Runtime {
            clock: Arc::new(self.clone()),
            spawn: Arc::new(self.clone()),
            rng: Arc::new(self.clone()),
        }
    }

    /// Pauses the process: none of its tasks runs until it is resumed; its clock goes on. As SIGSTOP, or
    /// a suspended machine.
    pub fn pause(&self) {
        self.shared.lock().pause(self.id);
    }

    /// Resumes the process where it stood; timers that became due meanwhile fire at once.
    pub fn resume(&self) {
        self.shared.lock().resume(self.id);
    }

    /// Drops its tasks at once. It never runs again.
    pub fn kill(&self) {
        self.shared.kill(self.id);
    }

    /// Whether it was not killed.
    pub fn is_alive(&self) -> bool {
        self.look(|process, _| !process.is_dead())
    }

    /// From now on its clock runs faster than true time by so many parts of a million; slower if
    /// negative. A wait on that clock lasts as long by that clock as before.
    pub fn set_rate(&self, faster_by: i32) {
        let mut state = self.shared.lock();
        let now = state.now;
        let Some(process) = state.processes.get_mut(self.id) else { return };
        process.clock.shown = process.clock.at(now);
        process.clock.since = now;
        process.clock.per_million = MILLION.saturating_add_signed(faster_by.into()).max(1);
        let LocalClock { since, shown, per_million } = process.clock;
        let clock = LocalClock { since, shown, per_million };
        state.timers.move_those_of(self.id, |deadline| clock.when(deadline));
    }

    /// From now on its wall clock is ahead of the true one by so many milliseconds, behind it if
    /// negative.
    pub fn set_wall_skew(&self, milliseconds: i64) {
        let mut state = self.shared.lock();
        if let Some(process) = state.processes.get_mut(self.id) {
            process.wall_skew_ms = milliseconds;
        }
    }

    /// What the world's clock shows when this process' clock shows `moment`, if its rate does not
    /// change.
    pub fn on_the_worlds_clock(&self, moment: Instant) -> Instant {
        let when = self.look(|process, _| process.clock.when(nanos(moment)));
        Instant::from_origin(Duration::from_nanos(ORIGIN_NS.saturating_add(when)))
    }

    /// How much true time passes while its clock advances by `length`, if its rate does not change.
    pub fn true_length_of(&self, length: Duration) -> Duration {
        let length = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        let per_million = self.look(|process, _| process.clock.per_million);
        Duration::from_nanos(scale(length, MILLION, per_million))
    }

    fn look<R>(&self, look: impl FnOnce(&ProcessState, u64) -> R) -> R {
        let state = self.shared.lock();
        let process = state.processes.get(self.id);
        #[expect(clippy::expect_used, reason = "processes are never removed")]
        look(process.expect("a process that was made"), state.now)
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("name", &self.name()).finish_non_exhaustive()
    }
}

fn nanos(moment: Instant) -> u64 {
    u64::try_from(moment.since_origin().as_nanos()).unwrap_or(u64::MAX)
}

impl Clock for Process {
    fn now(&self) -> Instant {
        self.shared.lock().look(self.id);
        let shown = self.look(|process, now| process.clock.at(now));
        Instant::from_origin(Duration::from_nanos(shown))
    }

    fn wall_ms(&self) -> u64 {
        let state = self.shared.lock();
        let skew = state.processes.get(self.id).map_or(0, |process| process.wall_skew_ms);
        state.wall_ms().saturating_add_signed(skew)
    }

    fn sleep_until(&self, at: Instant) -> BoxFuture<'static, ()> {
        Box::pin(Sleep { process: self.clone(), deadline: nanos(at), timer: None })
    }

    fn watchdog(&self, on_due: Arc<dyn Fn() + Send + Sync>) -> Watchdog {
        let (set, due) = watch::channel(None);
        let clock: Arc<dyn Clock> = Arc::new(self.clone());
        let task = self.spawn("watchdog", Box::pin(ring(due, Arc::clone(&clock), on_due)));
        Box::new(VirtualWatchdog { set, _task: task })
    }
}

impl Spawn for Process {
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Task {
        let task = self.shared.spawn(self.id, name, future);
        Task::new(Box::new(SimulatedTask { shared: Arc::clone(&self.shared), task }))
    }
}

impl Rng for Process {
    fn fill(&self, bytes: &mut [u8]) {
        let mut state = self.shared.lock();
        if let Some(process) = state.processes.get_mut(self.id) {
            rand::Rng::fill_bytes(&mut process.rng, bytes);
        }
    }
}

struct SimulatedTask {
    shared: Arc<Shared>,
    /// `None` if the process was dead.
    task: Option<TaskId>,
}

impl TaskHandle for SimulatedTask {
    fn abort(&self) {
        if let Some(task) = self.task {
            self.shared.abort(task);
        }
    }

    fn is_finished(&self) -> bool {
        self.task.is_none_or(|task| self.shared.is_finished(task))
    }
}

struct Sleep {
    process: Process,
    /// By the process' clock.
    deadline: u64,
    timer: Option<TimerId>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let shared = Arc::clone(&self.process.shared);
        let mut state = shared.lock();
        let Some(process) = state.processes.get(self.process.id) else { return Poll::Pending };
        if process.clock.at(state.now) >= self.deadline {
            return Poll::Ready(());
        }
        let due = process.clock.when(self.deadline);
        let armed = self.timer.is_some_and(|timer| state.timers.rearm(timer, context.waker()));
        if !armed {
            let waker = context.waker().clone();
            self.timer = Some(state.timers.add(self.process.id, self.deadline, due, waker));
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            self.process.shared.lock().timers.remove(timer);
        }
    }
}
