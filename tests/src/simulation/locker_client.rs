//! What every client of a simulated run has that locks through lockers on Cassandra: a process with clocks of its own, the store and
//! the tables as it reaches them, and a history.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdfast::{Builder, Client, Error};
use holdfast_keyspace::database::Database;
use holdfast_recipes::{Cassandra, LockerOptions, RemoteGuard, Wait};
use holdfast_runtime::Runtime;
use tokio::sync::watch;

use super::stage::{Stage, in_history};
use crate::draw::Draw;
use crate::history::{ClientId, Recorder};
use crate::remote::{RemoteHeld, RemoteScribe};
use crate::sim::Host;
use crate::term::{Held, Term};

/// Between two tries to begin.
pub(super) const AGAIN: Duration = Duration::from_millis(500);
/// The TTL of leases and of items in Cassandra. A client that died leaves its locks for so long.
pub(super) const TTL: Duration = Duration::from_secs(9);
/// By how much the wall clocks of coordinators may differ.
const MAX_SKEW: Duration = Duration::from_secs(3);

/// One such client.
#[derive(Clone)]
pub(super) struct LockerClient {
    /// Makes its session.
    pub(super) builder: Builder,
    /// The tables as it reaches them.
    tables: Arc<dyn Database>,
    pub(super) id: ClientId,
    pub(super) recorder: Recorder,
    pub(super) runtime: Runtime,
    pub(super) seed: u64,
    grants: Arc<AtomicU64>,
    stopped: watch::Receiver<bool>,
}

/// The name and the times of a client's lockers; `kind` tells the clients of one run apart.
pub(super) fn options(kind: &str, id: ClientId) -> LockerOptions {
    LockerOptions::default().service(format!("{kind}-{}", id.0)).ttl(TTL).max_skew(MAX_SKEW)
}

impl LockerClient {
    /// Whether the run asks its clients to finish.
    pub(super) fn is_stopped(&self) -> bool {
        *self.stopped.borrow()
    }

    /// Cassandra, as this client reaches it.
    pub(super) fn cassandra(&self) -> Cassandra {
        Cassandra::on(Arc::clone(&self.tables), self.runtime.clone())
    }

    /// A session with the store; `None` once the run asks its clients to finish.
    pub(super) async fn connected(&self) -> Option<Client> {
        while !self.is_stopped() {
            if let Ok(client) = self.builder.clone().connect().await {
                return Some(client);
            }
            self.runtime.sleep(AGAIN).await;
        }
        None
    }

    /// Asks for one lock, holds it for at most `hold_ms` if it is granted, and releases it. `granted` sees the guard first.
    pub(super) async fn lock_once(
        &self,
        scribe: &RemoteScribe,
        name: &str,
        (within_ms, hold_ms): (u64, u64),
        draw: &mut Draw,
        granted: impl FnOnce(&RemoteHeld) + Send,
    ) {
        let Ok(held) = scribe.acquire(name, wait(within_ms, draw)).await else { return };
        granted(&held);
        self.hold(held, hold_ms, draw, RemoteGuard::release).await;
    }

    /// Holds what was granted for at most `hold_ms`, and releases it.
    pub(super) async fn hold<T: Term, F: Future<Output = Result<(), Error>>>(
        &self,
        held: Held<T>,
        hold_ms: u64,
        draw: &mut Draw,
        release: impl FnOnce(T) -> F,
    ) {
        self.grants.fetch_add(1, Ordering::Relaxed);
        held.keep(Duration::from_millis(draw.below(hold_ms + 1))).await;
        // Some are not released, but dropped.
        if draw.below(4) != 0 {
            let _ = held.give_back(release).await;
        } else {
            held.abandon();
        }
    }
}

/// One request of four does not wait.
pub(super) fn wait(within_ms: u64, draw: &mut Draw) -> Wait {
    match draw.below(4) {
        0 => Wait::No,
        _ => Wait::AtMost(Duration::from_millis(within_ms)),
    }
}

impl Stage<'_> {
    /// Cassandra, as the process of that number reaches it.
    pub(super) fn cassandra_of(&self, number: u64) -> Cassandra {
        Cassandra::on(self.tables_of(number), self.world.client_process(number).runtime())
    }

    fn tables_of(&self, number: u64) -> Arc<dyn Database> {
        self.world.keyspace().reached_by(Host::Client(number))
    }

    /// The client of that number, whose clock has that rate and whose session has that TTL.
    pub(super) fn locker_client(&self, number: u64, rate: i32, ttl: Duration) -> LockerClient {
        let process = self.world.client_process(number);
        process.set_rate(rate);
        LockerClient {
            builder: self.world.client_builder(number).ttl(ttl),
            tables: self.tables_of(number),
            id: in_history(number),
            recorder: self.recorder.of(process.clone()),
            runtime: process.runtime(),
            seed: self.plan.seed ^ number,
            grants: self.grants.clone(),
            stopped: self.ends.stop.subscribe(),
        }
    }
}
