//! Concurrent questions share a read, and none shares one that began before it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::BoxFuture;
use holdfast_runtime::Runtime;
use tokio::sync::oneshot;

use crate::database::Fault;

type Answer = Result<u64, Fault>;
type Read = dyn Fn() -> BoxFuture<'static, Answer> + Send + Sync;

/// One read at a time, in a task of its own: questions that come while one is under way share the next
/// one. An answer of a read that began before the question could be less than an answer that another
/// question got meanwhile.
pub(super) struct Asking {
    runtime: Runtime,
    read: Box<Read>,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    is_reading: bool,
    /// The questions for the read that has not begun.
    askers: Vec<oneshot::Sender<Answer>>,
}

impl Asking {
    pub(super) fn new(
        runtime: Runtime,
        read: impl Fn() -> BoxFuture<'static, Answer> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { runtime, read: Box::new(read), waiting: Mutex::default() })
    }

    /// Returns the answer of a read that begins after this call. Cancel safe: the read goes on for the
    /// others.
    pub(super) async fn ask(self: &Arc<Self>) -> Answer {
        let (answer, answered) = oneshot::channel();
        let begins = {
            let mut waiting = self.lock();
            waiting.askers.push(answer);
            !std::mem::replace(&mut waiting.is_reading, true)
        };
        if begins {
            let asking = self.clone();
            self.runtime.spawn("time", async move { asking.read_on().await }).detach();
        }
        answered.await.unwrap_or_else(|_| Err(Fault::NotDone("the process ends".into())))
    }

    async fn read_on(&self) {
        loop {
            let askers = {
                let mut waiting = self.lock();
                waiting.askers.retain(|asker| !asker.is_closed());
                waiting.is_reading = !waiting.askers.is_empty();
                if !waiting.is_reading {
                    return;
                }
                std::mem::take(&mut waiting.askers)
            };
            let answer = (self.read)().await;
            for asker in askers {
                // The caller may have gone.
                let _ = asker.send(answer.clone());
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use futures_util::future::join_all;
    use holdfast_runtime::simulated::Machine;

    use super::*;

    /// Each read returns its number, and takes a second.
    #[test]
    fn who_asks_while_a_read_is_on_its_way_shares_the_next_one() {
        let machine = Machine::new(1);
        let runtime = machine.process("replica").runtime();
        let reads = Arc::new(AtomicU64::new(0));
        let (clock, counted) = (runtime.clone(), reads.clone());
        let asking = Asking::new(runtime, move || {
            let (runtime, reads) = (clock.clone(), counted.clone());
            Box::pin(async move {
                let nth = reads.fetch_add(1, Ordering::Relaxed) + 1;
                runtime.sleep(Duration::from_secs(1)).await;
                Ok(nth)
            })
        });
        let world = machine.world().runtime();
        machine.run(async {
            let ask = async |after_ms: u64| {
                world.sleep(Duration::from_millis(after_ms)).await;
                asking.ask().await
            };
            let gone = world.timeout(Duration::from_millis(200), asking.ask());
            let (answers, gone) =
                futures_util::join!(join_all([100, 500, 900, 1_500].map(ask)), gone);
            assert_eq!(answers, [Ok(2), Ok(2), Ok(2), Ok(3)]);
            assert!(gone.is_err());
            assert_eq!(ask(5_000).await, Ok(4), "a read begins again after a while without");
        });
        assert_eq!(reads.load(Ordering::Relaxed), 4);
    }
}
