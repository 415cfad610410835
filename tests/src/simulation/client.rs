//! The clients of a simulated run: processes that use the real library.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use holdfast::{Builder, Client, RefusalReason};
use holdfast_runtime::Runtime;
use holdfast_runtime::simulated::Process;
use tokio::sync::watch;

use super::caller::{Board, Caller, Line};
use super::plan::ClientPlan;
use crate::draw::Draw;
use crate::history::{ClientId, Recorder, What};
use crate::scribe::{Scribe, Wish};
use crate::sim::Calls;
use crate::traffic::{self, Worker};

/// The interval between two attempts to connect.
const AGAIN: Duration = Duration::from_millis(200);
/// How long the final visitor waits for a lock.
const VISIT: Duration = Duration::from_secs(30);

/// A client as the run sees it.
pub(super) struct Actor {
    process: Process,
    id: ClientId,
    recorder: Recorder,
    done: Arc<AtomicBool>,
}

impl Actor {
    /// Whether its process was not killed.
    pub(super) fn is_alive(&self) -> bool {
        self.process.is_alive()
    }

    /// Whether it has finished everything and closed its session.
    pub(super) fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }

    /// Notes that the process is about to be killed.
    pub(super) fn dies(&self) {
        self.recorder.write(self.id, What::Killed);
    }
}

/// The work of a client without a stream.
pub(super) enum Calling {
    /// It locks, like the other clients.
    Locks,
    /// It imports holds of another store.
    Imports(Board),
    /// It claims what was imported.
    Claims(Board),
}

/// Starts a client without a stream in its process, as [`begin_client`] does for one of our
/// library.
pub(super) fn begin_caller(
    process: &Process,
    ways: (Calls, Vec<String>),
    (traffic, calling): (&traffic::Plan, Calling),
    (recorder, grants): (&Recorder, &Arc<AtomicU64>),
    ends: &Ends,
) -> Actor {
    let (id, runtime) = (ClientId(traffic.first), process.runtime());
    let caller = Caller {
        line: Line::new(ways, runtime.clone()),
        label: label_of(id),
        id,
        recorder: recorder.of(process.clone()),
        runtime: runtime.clone(),
        traffic: traffic.clone(),
        draw: Draw::new(traffic.seed),
        grants: Arc::clone(grants),
        stopped: ends.stop.subscribe(),
        next_request: 0,
    };
    match calling {
        Calling::Locks => begin(process, recorder, id, caller.work()),
        Calling::Imports(board) => begin(process, recorder, id, caller.import(board)),
        Calling::Claims(board) => begin(process, recorder, id, caller.claim_all(board)),
    }
}

/// The label of a client's sessions: it shows the observer of their end which client they belonged
/// to.
fn label_of(ClientId(id): ClientId) -> String {
    format!("client {}", id - 1)
}

/// The signals at the end of a run.
#[derive(Default)]
pub(super) struct Ends {
    /// Finish the work in progress.
    pub(super) stop: watch::Sender<bool>,
    /// No client does anything any more.
    pub(super) at_rest: watch::Sender<bool>,
}

/// Some clients watch all names, some a part of them.
fn watched_prefix(client: u64) -> String {
    if client.is_multiple_of(3) { "traffic/0".to_owned() } else { "traffic/".to_owned() }
}

/// Starts a client in its process: it connects, works until it has to stop, and closes its session.
pub(super) fn begin_client(
    builder: &Builder,
    process: &Process,
    (traffic, plan): (&traffic::Plan, &ClientPlan),
    (recorder, grants): (&Recorder, &Arc<AtomicU64>),
    ends: &Ends,
) -> Actor {
    let id = ClientId(traffic.first);
    let work = Work {
        builder: builder.clone().ttl(traffic.ttl),
        id,
        recorder: recorder.of(process.clone()),
        runtime: process.runtime(),
        traffic: traffic.clone(),
        workers: plan.workers,
        watches: plan.watches.then(|| watched_prefix(traffic.first)),
        grants: Arc::clone(grants),
        stopped: ends.stop.subscribe(),
        at_rest: ends.at_rest.subscribe(),
    };
    begin(process, recorder, id, work.all())
}

/// Starts `work` as client `id`, in its process.
pub(super) fn begin(
    process: &Process,
    recorder: &Recorder,
    id: ClientId,
    work: impl Future<Output = ()> + Send + 'static,
) -> Actor {
    let done = Arc::new(AtomicBool::new(false));
    let actor =
        Actor { process: process.clone(), id, recorder: recorder.clone(), done: Arc::clone(&done) };
    let end = async move {
        work.await;
        done.store(true, Ordering::Relaxed);
    };
    process.runtime().spawn("client", end).detach();
    actor
}

struct Work {
    builder: Builder,
    id: ClientId,
    recorder: Recorder,
    runtime: Runtime,
    traffic: traffic::Plan,
    workers: u64,
    watches: Option<String>,
    grants: Arc<AtomicU64>,
    stopped: watch::Receiver<bool>,
    /// No client does anything any more.
    at_rest: watch::Receiver<bool>,
}

impl Work {
    async fn all(self) {
        let Some(client) = self.connected().await else { return };
        let scribe = Scribe::of(client, self.id, self.recorder.clone(), self.runtime.clone());
        scribe.opened(self.traffic.ttl);
        if let Some(prefix) = self.watches {
            let (scribe, at_rest) = (scribe.clone(), self.at_rest);
            let watching = async move { scribe.watch(&prefix, at_rest).await };
            self.runtime.spawn("watching", watching).detach();
        }
        let working: Vec<_> = (0..self.workers)
            .map(|number| {
                let scribe = scribe.clone();
                let worker =
                    Worker::new(scribe, &self.traffic, number, &self.grants, &self.stopped);
                let (tell, told) = tokio::sync::oneshot::channel::<()>();
                let work = async move {
                    worker.work().await;
                    let _ = tell.send(());
                };
                self.runtime.spawn("worker", work).detach();
                told
            })
            .collect();
        for told in working {
            let _ = told.await;
        }
        scribe.close().await;
    }

    /// Tries until it has to stop: the cluster may be down.
    async fn connected(&self) -> Option<Client> {
        loop {
            if let Ok(client) = self.builder.clone().connect().await {
                return Some(client);
            }
            if *self.stopped.borrow() {
                return None;
            }
            self.runtime.sleep(AGAIN).await;
        }
    }
}

/// Repeats a call that was refused for a limit that other clients may make room in.
async fn patiently<T, F>(runtime: &Runtime, ask: impl Fn() -> F) -> holdfast::Result<T>
where
    F: Future<Output = holdfast::Result<T>>,
{
    let give_up = runtime.clock.now() + VISIT;
    loop {
        match ask().await {
            Err(holdfast::Error::Refused { reason: RefusalReason::Limit, .. })
                if runtime.clock.now() < give_up =>
            {
                runtime.sleep(AGAIN).await;
            }
            outcome => return outcome,
        }
    }
}

/// A client that comes after all others have finished: it looks at every name, acquires each, and
/// releases it.
///
/// # Errors
///
/// What it did not get, described.
pub(super) async fn visit(
    builder: Builder,
    process: Process,
    recorder: Recorder,
    id: ClientId,
    names: Vec<String>,
) -> Result<(), String> {
    let runtime = process.runtime();
    let client_runtime = runtime.clone();
    let client =
        patiently(&runtime, || builder.clone().ttl(Duration::from_secs(10)).connect()).await;
    let client = client.map_err(|error| format!("nobody can connect: {error}"))?;
    let scribe = Scribe::of(client, id, recorder.of(process), runtime);
    for name in names {
        let failed = |error: holdfast::Error| format!("{name} cannot be used: {error}");
        scribe.inspect(&name).await.map_err(failed)?;
        let wish = Wish::exclusive(&name);
        let held =
            patiently(&client_runtime, || scribe.acquire(&wish, VISIT)).await.map_err(failed)?;
        held.note();
        scribe.inspect(&name).await.map_err(failed)?;
        held.release().await.map_err(failed)?;
        // The final truth: watches must have reported the same.
        scribe.inspect(&name).await.map_err(failed)?;
    }
    scribe.close().await;
    Ok(())
}
