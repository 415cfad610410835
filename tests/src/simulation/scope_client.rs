//! A client that locks in scopes with fallback: the real library with a session of its own, and, if it falls back, with real
//! lockers on the tables.

use std::sync::Arc;
use std::time::Duration;

use holdfast::{Client, FencingToken};
use holdfast_recipes::{
    Cassandra, FallbackOptions, Lease, LeaseTable, Locker, LockerMode, RemoteLocker,
};
use tokio::sync::oneshot;

use super::locker_client::{AGAIN, LockerClient, options};
use super::scope_plan::ScopeClientPlan;
use crate::draw::Draw;
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

/// Longest pause between two requests, milliseconds.
const PAUSE_MS: u64 = 600;
/// The TTL of rows in the table of modes.
const ROW: Duration = Duration::from_mins(1);

/// One such client.
#[derive(Clone)]
pub(super) struct ScopeClient {
    pub(super) base: LockerClient,
    pub(super) plan: ScopeClientPlan,
}

impl ScopeClient {
    /// Locks in every scope until it is told to stop; then nothing of it is left.
    pub(super) async fn work(self) {
        let base = &self.base;
        let Some(client) = base.connected().await else { return };
        let cassandra = base.cassandra();
        // One client of the history, whichever store and scope it locks in.
        let scribe = RemoteScribe::of(Arc::new(client.clone()), base.id, base.recorder.clone());
        let scribe = scribe.on(base.runtime.clone()).fenced(judged);
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
        self.base.runtime.spawn("scope", work).detach();
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
        let options = options("scopes", self.base.id);
        while !self.base.is_stopped() {
            let lease = Lease::new(cassandra, &options, LeaseTable::default()).ok()?;
            let started = Locker::builder(cassandra, scope, lease)
                .native(client.clone())
                .fallback(FallbackOptions::default().lease(options.clone()))
                .row(options.clone().ttl(ROW))
                .start(LockerMode::Fallback)
                .await;
            match started {
                Ok(locker) => return Some(Arc::new(locker)),
                Err(_) => self.base.runtime.sleep(AGAIN).await,
            }
        }
        None
    }

    async fn lock_in(&self, scope: &str, scribe: &RemoteScribe, locker: Arc<dyn RemoteLocker>) {
        let (base, plan) = (&self.base, &self.plan);
        let mut draw = Draw::new(base.seed ^ u64::from(scope.as_bytes()[0]));
        let scribe = scribe.through(locker);
        let names: Vec<&str> = NAMES.into_iter().filter(|name| name.starts_with(scope)).collect();
        while !base.is_stopped() {
            let name = names[usize::try_from(draw.below(names.len() as u64)).unwrap_or(0)];
            base.lock_once(&scribe, name, (plan.within_ms, plan.hold_ms), &mut draw, |_| ()).await;
            base.runtime.sleep(Duration::from_millis(1 + draw.below(PAUSE_MS))).await;
        }
    }
}
