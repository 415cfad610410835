//! Machines in which time is virtual, randomness is seeded and no socket exists.
//!
//! There are two. [`Machine`] is for whole simulated runs of a cluster: processes that pause, die and
//! have clocks of their own, repeatable to the step. [`runtime`] is for tests of one component, on a
//! current-thread tokio runtime with paused time: whenever every task waits, the clock jumps to the next
//! timer that is due.
#![expect(
    clippy::disallowed_methods,
    reason = "this is where the runtime end: virtual time is tokio's paused clock"
)]

mod machine;
mod process;
mod timers;

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::sync::{mpsc, watch};
use tokio::time;

use crate::system::TokioSpawn;
pub use machine::{Machine, current};
pub use process::Process;

use crate::{
    BoxFuture, Clock, Instant, Pipe, Rng, Runtime, Spawn as _, Task, Watchdog, WatchdogHandle,
};

/// A runtime on virtual time. Call it inside tokio's runtime; its clock begins at one hour, so that instants
/// before now can be expressed.
///
/// `wall_ms` is what the wall clock shows at that moment, Unix milliseconds.
pub fn runtime(seed: u64, wall_ms: u64) -> Runtime {
    Runtime {
        clock: Arc::new(VirtualClock { started: time::Instant::now(), wall_ms }),
        spawn: Arc::new(TokioSpawn),
        rng: rng(seed),
    }
}

/// Randomness from a seed.
pub fn rng(seed: u64) -> Arc<dyn Rng> {
    Arc::new(SeededRng(Mutex::new(StdRng::seed_from_u64(seed))))
}

const ORIGIN: Duration = Duration::from_hours(1);

#[derive(Clone)]
struct VirtualClock {
    started: time::Instant,
    wall_ms: u64,
}

impl VirtualClock {
    fn instant_of(&self, at: Instant) -> time::Instant {
        self.started + at.since_origin().saturating_sub(ORIGIN)
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Instant {
        Instant::from_origin(self.started.elapsed() + ORIGIN)
    }

    fn wall_ms(&self) -> u64 {
        let elapsed = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.wall_ms.saturating_add(elapsed)
    }

    fn sleep_until(&self, at: Instant) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep_until(self.instant_of(at)))
    }

    fn watchdog(&self, on_due: Arc<dyn Fn() + Send + Sync>) -> Watchdog {
        let (set, due) = watch::channel(None);
        let clock: Arc<dyn Clock> = Arc::new(self.clone());
        let task = TokioSpawn.spawn("watchdog", Box::pin(ring(due, clock, on_due)));
        Box::new(VirtualWatchdog { set, _task: task })
    }
}

/// Calls `on_due` whenever the instant last set has come, until the watchdog is dropped.
async fn ring(
    mut due: watch::Receiver<Option<Instant>>,
    clock: Arc<dyn Clock>,
    on_due: Arc<dyn Fn() + Send + Sync>,
) {
    loop {
        let at = *due.borrow_and_update();
        let rang = match at {
            None => due.changed().await.is_ok().then_some(false),
            Some(at) => crate::select! {
                changed = due.changed() => changed.is_ok().then_some(false),
                () = clock.sleep_until(at) => Some(true),
            },
        };
        match rang {
            None => return,
            Some(false) => {}
            Some(true) => {
                on_due();
                if due.changed().await.is_err() {
                    return;
                }
            }
        }
    }
}

struct VirtualWatchdog {
    set: watch::Sender<Option<Instant>>,
    _task: Task,
}

impl WatchdogHandle for VirtualWatchdog {
    fn set(&self, at: Option<Instant>) {
        self.set.send_replace(at);
    }
}

thread_local! {
    static DRAWS: RefCell<Option<Arc<dyn Rng>>> = const { RefCell::new(None) };
}

/// From here on, code on this thread that receives no runtime, because a library calls it, draws from
/// `rng`. For simulations on tokio; under a [`Machine`] the current process provides it.
pub fn draw_from(rng: Arc<dyn Rng>) {
    DRAWS.set(Some(rng));
}

/// The randomness for such code on this thread; `None`: the system's.
pub fn draws() -> Option<Arc<dyn Rng>> {
    DRAWS.with_borrow(Clone::clone)
}

struct SeededRng(Mutex<StdRng>);

impl Rng for SeededRng {
    fn fill(&self, bytes: &mut [u8]) {
        let mut rng = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rand::Rng::fill_bytes(&mut *rng, bytes);
    }
}

/// Two ends of one stream in memory; each direction holds at most `capacity` frames.
pub fn pipe<A: Send + 'static, B: Send + 'static>(capacity: usize) -> (Pipe<A, B>, Pipe<B, A>) {
    let (to_right, from_left) = mpsc::channel(capacity);
    let (to_left, from_right) = mpsc::channel(capacity);
    let left = Pipe { outgoing: to_right, incoming: incoming(from_right) };
    let right = Pipe { outgoing: to_left, incoming: incoming(from_left) };
    (left, right)
}

fn incoming<T: Send + 'static>(
    mut frames: mpsc::Receiver<T>,
) -> futures_util::stream::BoxStream<'static, Result<T, crate::TransportError>> {
    futures_util::stream::poll_fn(move |context| frames.poll_recv(context)).map(Ok).boxed()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// An hour passes in no time at all, and both clocks show it.
    #[tokio::test(start_paused = true)]
    async fn virtual_time_passes_while_everybody_waits() {
        let runtime = runtime(1, 5_000);
        let before = runtime.clock.now();

        runtime.sleep(Duration::from_hours(1)).await;

        assert_eq!(runtime.clock.now().saturating_since(before), Duration::from_hours(1));
        assert_eq!(runtime.clock.wall_ms(), 5_000 + 3_600_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_watchdog_rings_once_for_each_instant_set_and_not_for_one_taken_back() {
        let runtime = runtime(1, 0);
        let rings = Arc::new(AtomicU32::new(0));
        let count = rings.clone();
        let watchdog = runtime.clock.watchdog(Arc::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        }));

        watchdog.set(Some(runtime.clock.now() + Duration::from_secs(1)));
        runtime.sleep(Duration::from_secs(2)).await;
        watchdog.set(Some(runtime.clock.now() + Duration::from_secs(1)));
        watchdog.set(None);
        runtime.sleep(Duration::from_secs(2)).await;

        assert_eq!(rings.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn the_same_seed_draws_the_same_numbers() {
        let draw = |seed| SeededRng(Mutex::new(StdRng::seed_from_u64(seed))).next_u64();

        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }
}
