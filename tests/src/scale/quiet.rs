//! A client that asks for a free lock now and then, beside whatever else the cluster has to do.
//!
//! It has a thread of its own: the process that measures may be busy with a hundred thousand sessions.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use holdfast::Client;
use holdfast_runtime::Runtime;

/// Between two requests.
const EVERY: Duration = Duration::from_millis(10);

/// The client at work.
#[derive(Debug)]
pub struct Quiet {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    waits: Mutex<Vec<Duration>>,
    stopped: AtomicBool,
}

/// How long its requests took, sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waits(Vec<Duration>);

impl Quiet {
    /// Begins to ask the cluster at these endpoints.
    pub fn begin(endpoints: &str) -> Self {
        let shared = Arc::new(Shared::default());
        let asks = Arc::clone(&shared);
        let endpoints: Vec<String> = endpoints.split(',').map(str::to_owned).collect();
        let thread = std::thread::spawn(move || {
            let events = tokio::runtime::Builder::new_current_thread().enable_all().build();
            events.expect("an event queue").block_on(asks.ask(endpoints));
        });
        Self { shared, thread: Some(thread) }
    }

    /// What it waited since the last time. A request under way counts when it is answered.
    pub fn take(&self) -> Waits {
        let mut waits = std::mem::take(&mut *self.shared.lock());
        waits.sort();
        Waits(waits)
    }

    /// Ends its session.
    pub fn end(mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("it asks until it is stopped");
        }
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Duration>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request that fails is asked again, and counts from when it was first asked.
    async fn ask(self: Arc<Self>, endpoints: Vec<String>) {
        let runtime = Runtime::system();
        let client = Client::builder().endpoints(endpoints).connect().await.expect("it connects");
        let mut asked = runtime.clock.now();
        while !self.stopped.load(Ordering::Relaxed) {
            if let Ok(guard) = client.lock("quiet").await {
                self.lock().push(runtime.clock.now().saturating_since(asked));
                // Whether it was freed is seen at the next request.
                let _ = guard.release().await;
                runtime.sleep(EVERY).await;
                asked = runtime.clock.now();
            } else {
                runtime.sleep(EVERY).await;
            }
        }
        let _ = client.close().await;
    }
}

impl Waits {
    /// How many there were.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The wait below which so many percent lie; zero of none.
    pub fn percentile(&self, percent: usize) -> Duration {
        let at = (self.0.len() * percent).div_ceil(100).saturating_sub(1);
        self.0.get(at).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_waits() {
        let waits = Waits((1..=200).map(Duration::from_millis).collect());
        let at = |percent| waits.percentile(percent).as_millis();
        assert_eq!([at(50), at(99), at(100), at(0)], [100, 198, 200, 1]);
        assert_eq!(Waits::default().percentile(99), Duration::ZERO);
    }
}
