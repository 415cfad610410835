//! A client that locks in scopes with fallback: the real library with a session of its own, and, if it falls back, with real
//! lockers on the tables.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdfast::compat::{
    Cassandra, FallbackOptions, Lease, LeaseTable, Locker, LockerMode, LockerOptions, Patience,
    RemoteLocker,
};
use holdfast::{Builder, Client, FencingToken};
use holdfast_cassandra::database::Database;
use holdfast_seams::Seams;
use tokio::sync::{oneshot, watch};

use super::scope_plan::ScopeClientPlan;
use crate::draw::Draw;
use crate::history::{ClientId, Recorder};
use crate::remote::RemoteScribe;

/// The scopes of a run, of which neither knows of the other.
pub(super) const SCOPES: [&str; 2] = ["a/", "b/"];
/// What is locked in them.
pub(super) const NAMES: [&str; 3] = ["a/1", "a/2", "b/1"];
/// What the judge reads as the token of a name: in Cassandra each name has numbers of its own, so that two of an epoch may have
/// equal tokens, and one client holds both.
pub(super) fn judged(token: FencingToken, name: &str) -> u64 {
    let place = NAMES.iter().position(|one| *one == name).unwrap_or(0);
    token.get() * NAMES.len() as u64 + place as u64
}

/// The epoch of such a token.
pub(super) const fn epoch_of(judged: u64) -> u64 {
    (judged / NAMES.len() as u64) >> 48
}

/// Between two tries to begin.
const AGAIN: Duration = Duration::from_millis(500);
/// Longest pause between two requests, milliseconds.
const PAUSE_MS: u64 = 600;
/// Of leases in Cassandra, of the row in the table of modes, and by how much wall clocks of coordinators may differ.
const LEASE: Duration = Duration::from_secs(9);
const ROW: Duration = Duration::from_mins(1);
const MAX_SKEW: Duration = Duration::from_secs(3);

/// One such client.
#[derive(Clone)]
pub(super) struct ScopeClient {
    /// Makes its session.
    pub(super) builder: Builder,
    /// The tables as it reaches them.
    pub(super) tables: Arc<dyn Database>,
    pub(super) plan: ScopeClientPlan,
    pub(super) id: ClientId,
    pub(super) recorder: Recorder,
    pub(super) seams: Seams,
    pub(super) seed: u64,
    pub(super) grants: Arc<AtomicU64>,
    pub(super) stopped: watch::Receiver<bool>,
}

impl ScopeClient {
    /// Locks in every scope until it is told to stop; then nothing of it is left.
    pub(super) async fn work(self) {
        let Some(client) = self.connected().await else { return };
        let cassandra = Cassandra::on(Arc::clone(&self.tables), self.seams.clone());
        // One client of the history, whichever store and scope it locks in.
        let scribe = RemoteScribe::of(Arc::new(client.clone()), self.id, self.recorder.clone());
        let scribe = scribe.on(self.seams.clone()).fenced(judged);
        let begin = |scope: &&'static str| self.begin(scope, &client, &cassandra, &scribe);
        let working: Vec<_> = SCOPES.iter().map(begin).collect();
        drop(scribe);
        for told in working {
            let _ = told.await;
        }
        cassandra.settled().await;
        // Whether the store was told is the run's business: it looks at the sessions in the end.
        let _ = client.close().await;
    }

    async fn connected(&self) -> Option<Client> {
        while !*self.stopped.borrow() {
            if let Ok(client) = self.builder.clone().connect().await {
                return Some(client);
            }
            self.seams.sleep(AGAIN).await;
        }
        None
    }

    fn begin(
        &self,
        scope: &'static str,
        client: &Client,
        cassandra: &Cassandra,
        scribe: &RemoteScribe,
    ) -> oneshot::Receiver<()> {
        let (tell, told) = oneshot::channel();
        let (of_scope, client, cassandra) = (self.clone(), client.clone(), cassandra.clone());
        let scribe = scribe.clone();
        let work = async move {
            if let Some(locker) = of_scope.locker(scope, client, &cassandra).await {
                of_scope.lock_in(scope, &scribe, locker).await;
            }
            let _ = tell.send(());
        };
        self.seams.spawn("scope", work).detach();
        told
    }

    /// `None` once it is told to stop: the scope may not be open yet.
    async fn locker(
        &self,
        scope: &str,
        client: Client,
        cassandra: &Cassandra,
    ) -> Option<Arc<dyn RemoteLocker>> {
        if !self.plan.falls_back {
            return Some(Arc::new(client));
        }
        let options = LockerOptions::default().service(format!("scopes-{}", self.id.0));
        let options = options.ttl(LEASE).max_skew(MAX_SKEW);
        while !*self.stopped.borrow() {
            let lease = Lease::new(cassandra, &options, LeaseTable::default()).ok()?;
            let started = Locker::builder(cassandra, scope, lease)
                .native(client.clone())
                .fallback(FallbackOptions::default().lease(options.clone()))
                .row(options.clone().ttl(ROW))
                .start(LockerMode::Fallback)
                .await;
            match started {
                Ok(locker) => return Some(Arc::new(locker)),
                Err(_) => self.seams.sleep(AGAIN).await,
            }
        }
        None
    }

    async fn lock_in(&self, scope: &str, scribe: &RemoteScribe, locker: Arc<dyn RemoteLocker>) {
        let mut draw = Draw::new(self.seed ^ u64::from(scope.as_bytes()[0]));
        let scribe = scribe.through(locker);
        let names: Vec<&str> = NAMES.into_iter().filter(|name| name.starts_with(scope)).collect();
        while !*self.stopped.borrow() {
            let name = names[usize::try_from(draw.below(names.len() as u64)).unwrap_or(0)];
            let patience = match draw.below(4) {
                0 => Patience::None,
                _ => Patience::AtMost(Duration::from_millis(self.plan.within_ms)),
            };
            if let Ok(held) = scribe.acquire(name, patience).await {
                self.grants.fetch_add(1, Ordering::Relaxed);
                held.keep(Duration::from_millis(draw.below(self.plan.hold_ms + 1))).await;
                // Some are not given back, but dropped.
                if draw.below(4) != 0 {
                    let _ = held.release().await;
                } else {
                    held.abandon();
                }
            }
            self.seams.sleep(Duration::from_millis(1 + draw.below(PAUSE_MS))).await;
        }
    }
}
