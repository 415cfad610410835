//! How long a cluster of real processes grants nothing, measured from outside.
//!
//! A few clients ask for free locks, one after the other, so that each pause shows as one in their
//! grants. Beside them each node is asked what it is, over and over: that is answered by the thread
//! that runs Raft, and shows when a follower stands still. These questions, and a timer that shows
//! how late the machine lets anybody run, are in a thread of their own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::future::{self, FutureExt as _};
use holdfast_proto::v1::StatusRequest;
use holdfast_runtime::{Runtime, Task};

pub use self::reading::{Gauge, Reading};
use crate::many_holds::TTL_MS;
use crate::wire::{self, Wire};

mod reading;

/// Between two questions to a node, and two looks at the timer.
const EVERY: Duration = Duration::from_millis(2);
/// Between two tries to reach a node that does not run.
const AGAIN: Duration = Duration::from_millis(50);
/// An answer that takes longer counts as none; the pause of grants shows it.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// Clients and questions at work.
#[derive(Debug)]
pub struct Pauses {
    shared: Arc<Shared>,
    clients: Vec<Task>,
    questions: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    gauge: Mutex<Gauge>,
    stopped: AtomicBool,
    runtime: Runtime,
}

impl Pauses {
    /// Begins to measure: so many clients of the leader at `leader`, and questions to all `nodes`.
    pub async fn begin(leader: &str, nodes: Vec<String>, clients: u64) -> Self {
        let runtime = Runtime::system();
        let mut wires = Vec::new();
        for _ in 0..clients {
            wires.push(Wire::open(leader, TTL_MS).await.0);
        }
        let gauge = Mutex::new(Gauge::new(nodes.len(), runtime.clock.now()));
        let stopped = AtomicBool::new(false);
        let shared = Arc::new(Shared { gauge, stopped, runtime: runtime.clone() });
        let clients = (0..).zip(wires).map(|(number, wire)| {
            runtime.spawn("client", Arc::clone(&shared).ask_for_a_lock(number, wire))
        });
        let clients = clients.collect();
        let asking = Arc::clone(&shared);
        let questions = Some(std::thread::spawn(move || asking.ask_all(nodes)));
        Self { shared, clients, questions }
    }

    /// What was measured since the last time.
    pub fn take(&self) -> Reading {
        let now = self.shared.runtime.clock.now();
        self.shared.gauge().take(now)
    }

    /// Ends the sessions of the clients.
    pub async fn end(mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        while !self.clients.iter().all(Task::is_finished) {
            self.shared.runtime.sleep(EVERY).await;
        }
        if let Some(questions) = self.questions.take() {
            questions.join().expect("the questions are asked until they are stopped");
        }
    }
}

impl Shared {
    fn gauge(&self) -> MutexGuard<'_, Gauge> {
        self.gauge.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// A client that fails shows as a pause: it asks no more.
    async fn ask_for_a_lock(self: Arc<Self>, number: u64, mut wire: Wire) {
        let name = format!("asked/{number}");
        for request in 1.. {
            if self.is_stopped() {
                break;
            }
            let asked = self.runtime.clock.now();
            wire.set_done_below(request);
            wire.acquire(request, &name, false).await;
            let token = wire.granted(request).await;
            self.gauge().granted(asked, self.runtime.clock.now());
            wire.release(token).await;
            wire.released(token).await;
        }
        wire.close().await;
        wire.end().await;
    }

    fn ask_all(&self, nodes: Vec<String>) {
        let events = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let questions = (0..).zip(nodes).map(|(node, address)| self.ask(node, address).boxed());
        let all = questions.chain([self.watch_a_timer().boxed()]);
        events.expect("an event queue").block_on(future::join_all(all));
    }

    /// Asks a node again and again, also after it was restarted.
    async fn ask(&self, node: usize, address: String) {
        let clock = &self.runtime.clock;
        while !self.is_stopped() {
            let Ok(mut client) = wire::connect(&address).await else {
                self.runtime.sleep(AGAIN).await;
                continue;
            };
            while !self.is_stopped() {
                let asked = clock.now();
                let answer = client.status(StatusRequest {});
                let answer = self.runtime.timeout(ANSWERED_WITHIN, answer).await;
                if !matches!(answer, Ok(Ok(_))) {
                    break;
                }
                self.gauge().answered(node, clock.now().saturating_since(asked));
                self.runtime.sleep(EVERY).await;
            }
        }
    }

    async fn watch_a_timer(&self) {
        let clock = &self.runtime.clock;
        while !self.is_stopped() {
            let due = clock.now() + EVERY;
            clock.sleep_until(due).await;
            self.gauge().late(clock.now().saturating_since(due));
        }
    }
}
