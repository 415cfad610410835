//! Event queues that look for events for a while before their thread sleeps.
//!
//! To wake a sleeping thread takes 3 to 30 µs, and longer in a guest whose core has gone to sleep too. A commit
//! has five such wake-ups one after the other. With the setting `spin_us` a thread looks for events that long
//! after it was woken, and so does not sleep while they follow each other. It gives its core to whoever else
//! wants it between two looks.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use holdfast_runtime::Runtime;
use tokio::runtime::Builder;
use tokio::sync::Notify;

/// An event queue for the thread that runs it, which looks for events for `spin` each time that it was woken.
///
/// # Errors
///
/// The system gives no queue.
pub(super) fn new(spin: Duration) -> io::Result<tokio::runtime::Runtime> {
    built(&mut Builder::new_current_thread(), spin)
}

fn built(builder: &mut Builder, spin: Duration) -> io::Result<tokio::runtime::Runtime> {
    builder.enable_all();
    if spin.is_zero() {
        return builder.build();
    }
    let woken = Arc::new(Notify::new());
    let wakes = Arc::clone(&woken);
    let queue = builder.on_thread_unpark(move || wakes.notify_one()).build()?;
    let looks = look_for_events(woken, spin);
    Runtime::on(queue.handle().clone()).spawn("spin", looks).detach();
    Ok(queue)
}

/// While a task yields, its thread looks for events and does not sleep.
async fn look_for_events(woken: Arc<Notify>, spin: Duration) {
    let clock = Runtime::system().clock;
    loop {
        woken.notified().await;
        let until = clock.now() + spin;
        while clock.now() < until {
            thread::yield_now();
            tokio::task::yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// How often the thread of a queue slept while it waited for twenty timers, one after the other.
    fn sleeps(spin: Duration) -> u64 {
        let slept = Arc::new(AtomicU64::new(0));
        let counts = Arc::clone(&slept);
        let mut builder = Builder::new_current_thread();
        builder.on_thread_park(move || {
            counts.fetch_add(1, Ordering::Relaxed);
        });
        let queue = built(&mut builder, spin).unwrap();
        queue.block_on(async {
            for _ in 0..20 {
                Runtime::system().sleep(Duration::from_millis(2)).await;
            }
        });
        slept.load(Ordering::Relaxed)
    }

    #[test]
    fn a_thread_that_spins_sleeps_once_and_not_before_each_event() {
        let (plain, spinning) = (sleeps(Duration::ZERO), sleeps(Duration::from_mins(1)));
        assert!(plain >= 10, "{plain} sleeps");
        assert!(spinning <= 2, "{spinning} sleeps");
    }

    #[test]
    fn a_queue_that_spins_runs_tasks_and_timers_and_sleeps_when_nothing_comes() {
        let queue = new(Duration::from_micros(200)).unwrap();
        let cpu_before = cpu();
        queue.block_on(async { Runtime::system().sleep(Duration::from_millis(300)).await });
        let used = cpu().saturating_sub(cpu_before);
        assert!(used < Duration::from_millis(150), "{used:?} of 300 ms");
    }

    /// What this thread has used.
    fn cpu() -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(u64::try_from(time.tv_sec).unwrap(), u32::try_from(time.tv_nsec).unwrap())
    }
}
