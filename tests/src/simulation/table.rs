//! A table that is large from the beginning: a few clients hold many locks, besides those that the other clients share, until the end of
//! the run.
//!
//! A table of some pages lies below the prefix that is watched, and in the history; a large one lies outside both.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdfast::Builder;
use holdfast_runtime::Runtime;
use tokio::sync::watch;

use super::stage::{Stage, in_history, lock};
use crate::history::{Asked, ClientId, Recorder};
use crate::scribe::{Held, Scribe, Wish};

/// The number of the first of these clients.
pub(super) const FIRST: u64 = 2_200_000;
/// Locks of one request, and of one client.
const OF_A_REQUEST: usize = 64;
const OF_A_CLIENT: usize = 500 * OF_A_REQUEST;
/// A larger table is not watched: every watcher would receive all of it again and again.
const WATCHED_UP_TO: u64 = 10_000;
/// Messages under way to one watcher of the table.
const WATCH_WINDOW: usize = 1;
/// Their lease: no fault of a run lasts as long.
pub(super) const TTL: Duration = Duration::from_mins(10);
/// How long one request may take, whatever faults happen meanwhile.
const WITHIN: Duration = Duration::from_mins(5);
/// The interval between two attempts to connect.
const AGAIN: Duration = Duration::from_millis(200);
/// How long they may take to close their sessions.
const CLOSED_WITHIN: Duration = Duration::from_mins(2);

/// The clients that hold the table.
#[derive(Default)]
pub(super) struct Hoarders {
    all: Vec<Arc<AtomicBool>>,
}

/// One of them at work.
struct Hoarding {
    builder: Builder,
    id: ClientId,
    recorder: Recorder,
    runtime: Runtime,
    names: Vec<String>,
    stopped: watch::Receiver<bool>,
}

impl Stage<'_> {
    /// Starts the clients that hold the plan's table.
    pub(super) fn begin_table(&self) {
        let size = self.plan.table;
        if size > 0 {
            self.world.network().set_watch_window(WATCH_WINDOW);
        }
        let prefix = if size > WATCHED_UP_TO { "bulk" } else { "traffic/bulk" };
        let names: Vec<String> = (0..size).map(|lock| format!("{prefix}/{lock:06}")).collect();
        for (number, names) in (FIRST..).zip(names.chunks(OF_A_CLIENT)) {
            let process = self.world.client_process(number);
            let hoarding = Hoarding {
                builder: self.world.client_builder(number).ttl(TTL),
                id: in_history(number),
                recorder: self.recorder.of(process.clone()),
                runtime: process.runtime(),
                names: names.to_vec(),
                stopped: self.ends.stop.subscribe(),
            };
            let done = Arc::new(AtomicBool::new(false));
            lock(&self.hoarders).all.push(Arc::clone(&done));
            let work = async move {
                hoarding.all().await;
                done.store(true, Ordering::Relaxed);
            };
            process.runtime().spawn("hoarder", work).detach();
        }
    }

    /// Waits until the table is released, after the signal that ends all work (I32).
    pub(super) async fn table_is_given_back(&self) {
        let is_back = || lock(&self.hoarders).all.iter().all(|done| done.load(Ordering::Relaxed));
        let back = async {
            while !is_back() {
                self.runtime.sleep(AGAIN).await;
            }
        };
        if self.runtime.timeout(CLOSED_WITHIN, back).await.is_err() {
            self.wrong("I32: the holders of the large table never give it back".to_owned());
        }
    }
}

impl Hoarding {
    async fn all(mut self) {
        let Some(scribe) = self.connected().await else { return };
        scribe.opened(TTL);
        let mut held: Vec<Held> = Vec::new();
        for names in self.names.chunks(OF_A_REQUEST) {
            if *self.stopped.borrow() {
                break;
            }
            let asked = |name: &String| Asked::exclusive(name.clone());
            let wish = Wish::all(names.iter().map(asked).collect());
            held.extend(scribe.acquire(&wish, WITHIN).await.ok());
        }
        let _ = self.stopped.wait_for(|stopped| *stopped).await;
        scribe.close().await;
        drop(held);
    }

    async fn connected(&self) -> Option<Scribe> {
        while !*self.stopped.borrow() {
            if let Ok(client) = self.builder.clone().connect().await {
                return Some(Scribe::of(
                    client,
                    self.id,
                    self.recorder.clone(),
                    self.runtime.clone(),
                ));
            }
            self.runtime.sleep(AGAIN).await;
        }
        None
    }
}
