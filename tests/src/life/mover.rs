//! A client that locks in a scope that moves: an old one, which speaks the recipe alone, or one of ours, which goes from mode to mode.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdfast::compat::{
    Cassandra, FallbackOptions, Locker, LockerMode, LockerOptions, ModesTable, Patience,
    RemoteLocker, ScopeModes,
};
use holdfast::{Builder, Client, FencingToken};
use holdfast_cassandra::database::Database;
use holdfast_seams::{Moment, Seams};
use tokio::sync::{oneshot, watch};

use super::move_plan::MoverPlan;
use super::stage::lock;
use crate::draw::Draw;
use crate::history::{ClientId, Recorder};
use crate::recipe::Recipe;
use crate::remote::{RemoteHeld, RemoteScribe};

/// The scope that moves, and what is locked in it.
pub(super) const MOVING: &str = "m/";
pub(super) const MOVED: &str = "m/1";

/// Between two tries to begin.
const AGAIN: Duration = Duration::from_millis(500);
/// Longest pause between two requests, milliseconds.
const PAUSE_MS: u64 = 1_000;
/// Longest pause between two changes of the mode, and how long one is waited for at most, milliseconds.
const MODE_MS: u64 = 6_000;
const CHANGED_MS: u64 = 12_000;
/// Of leases in Cassandra and of rows in the table of modes, and by how much wall clocks of coordinators may differ.
pub(super) const TTL: Duration = Duration::from_secs(9);
const MAX_SKEW: Duration = Duration::from_secs(3);

/// What everybody in a scope that moves sees of the others.
#[derive(Debug, Default)]
pub(super) struct Moving {
    /// Whether the operator is on the way to the store, or on the way back.
    pub(super) onward: AtomicBool,
    /// Old clients may be there: the stage is one that no process is native in.
    pub(super) old_may_come: AtomicBool,
    /// The newest token that a guard had that was safe when it was handed out.
    newest: Mutex<Option<FencingToken>>,
    /// When the last old client was ended.
    pub(super) old_ended: Mutex<Option<Moment>>,
    /// Grants to old clients, and to ours.
    pub(super) old_grants: AtomicU64,
    pub(super) our_grants: AtomicU64,
    /// Changes of a process' mode that were made.
    pub(super) changes: AtomicU64,
    /// Moves of the scope.
    pub(super) moves: AtomicU64,
}

/// What the lockers of a process are called, and their times.
pub(super) fn options(id: ClientId) -> LockerOptions {
    LockerOptions::default().service(format!("moving-{}", id.0)).ttl(TTL).max_skew(MAX_SKEW)
}

/// A locker of the scope that moves, in that mode.
pub(super) async fn start(
    cassandra: &Cassandra,
    native: Client,
    (recipe, id): (Recipe, ClientId),
    mode: LockerMode,
) -> holdfast::Result<Locker> {
    let options = options(id);
    Locker::builder(cassandra, MOVING, recipe.locker(cassandra, &options))
        .native(native)
        .fallback(FallbackOptions::default().lease(options.clone()))
        .row(options)
        .start(mode)
        .await
}

/// One such client.
#[derive(Clone)]
pub(super) struct Mover {
    /// Makes its session.
    pub(super) builder: Builder,
    /// The tables as it reaches them.
    pub(super) tables: Arc<dyn Database>,
    pub(super) recipe: Recipe,
    pub(super) plan: MoverPlan,
    pub(super) id: ClientId,
    pub(super) recorder: Recorder,
    pub(super) seams: Seams,
    pub(super) seed: u64,
    pub(super) moving: Arc<Moving>,
    pub(super) grants: Arc<AtomicU64>,
    pub(super) stopped: watch::Receiver<bool>,
    /// What was found wrong.
    pub(super) wrong: Arc<Mutex<Vec<String>>>,
}

impl Mover {
    /// Locks until it is told to stop; then nothing of it is left.
    pub(super) async fn work(self) {
        let cassandra = Cassandra::on(Arc::clone(&self.tables), self.seams.clone());
        if self.plan.old {
            self.work_as_old(&cassandra).await;
        } else {
            self.work_in_modes(&cassandra).await;
        }
        cassandra.settled().await;
    }

    fn is_stopped(&self) -> bool {
        *self.stopped.borrow()
    }

    /// Until the operator, who sees to it that no old client is there when the scope moves on, ends the process.
    async fn work_as_old(&self, cassandra: &Cassandra) {
        while !self.moving.old_may_come.load(Ordering::Relaxed) {
            if self.is_stopped() {
                return;
            }
            self.seams.sleep(AGAIN).await;
        }
        let locker = self.recipe.locker(cassandra, &options(self.id));
        self.lock_by(locker, &self.moving.old_grants).await;
    }

    async fn work_in_modes(&self, cassandra: &Cassandra) {
        let Some(client) = self.connected().await else { return };
        if let Some(locker) = self.entered(&client, cassandra).await {
            let (tell, told) = oneshot::channel();
            let changing = self.clone().change_modes(locker.clone(), tell);
            self.seams.spawn("modes", changing).detach();
            self.lock_by(Arc::new(locker), &self.moving.our_grants).await;
            let _ = told.await;
        }
        // Whether the store was told is the run's business: it looks at the sessions in the end.
        let _ = client.close().await;
    }

    async fn connected(&self) -> Option<Client> {
        while !self.is_stopped() {
            if let Ok(client) = self.builder.clone().connect().await {
                return Some(client);
            }
            self.seams.sleep(AGAIN).await;
        }
        None
    }

    /// `None` once it is told to stop: the stage may admit none of the modes that it asks for.
    async fn entered(&self, client: &Client, cassandra: &Cassandra) -> Option<Locker> {
        const MODES: [LockerMode; 4] =
            [LockerMode::Cassandra, LockerMode::Both, LockerMode::Native, LockerMode::Fallback];
        let mut draw = Draw::new(self.seed);
        if self.plan.mistaken.is_some() {
            self.until_tied(cassandra).await;
        }
        while !self.is_stopped() {
            let mode = MODES[usize::try_from(draw.below(MODES.len() as u64)).unwrap_or(0)];
            match start(cassandra, client.clone(), (self.recipe, self.id), mode).await {
                Ok(locker) => return Some(locker),
                Err(_) => self.seams.sleep(AGAIN).await,
            }
        }
        None
    }

    /// The first process of a scope says which recipe it is tied to: a mistaken one comes later.
    async fn until_tied(&self, cassandra: &Cassandra) {
        let Ok(scope) = ScopeModes::new(cassandra, MOVING, ModesTable::default()) else { return };
        while !self.is_stopped() && !scope.view().await.is_ok_and(|view| view.recipe.is_some()) {
            self.seams.sleep(AGAIN).await;
        }
    }

    /// Mostly the way the operator goes.
    async fn change_modes(self, locker: Locker, tell: oneshot::Sender<()>) {
        let mut draw = Draw::new(!self.seed);
        while !self.is_stopped() {
            self.seams.sleep(Duration::from_millis(draw.below(MODE_MS))).await;
            let onward = self.moving.onward.load(Ordering::Relaxed);
            let mode = match (draw.below(6), onward) {
                (0, _) => LockerMode::Both,
                (1 | 2, _) => LockerMode::Native,
                (3, true) | (4.., false) => LockerMode::Cassandra,
                (3, false) | (4.., true) => LockerMode::Fallback,
            };
            let limit = Duration::from_millis(draw.below(CHANGED_MS));
            if let Ok(Ok(())) = self.seams.timeout(limit, locker.set_mode(mode)).await {
                self.moving.changes.fetch_add(1, Ordering::Relaxed);
            }
        }
        drop(locker);
        let _ = tell.send(());
    }

    async fn lock_by(&self, locker: Arc<dyn RemoteLocker>, granted: &AtomicU64) {
        let mut draw = Draw::new(self.seed.rotate_left(7));
        let scribe = RemoteScribe::of(locker, self.id, self.recorder.clone());
        let scribe = scribe.on(self.seams.clone());
        while !self.is_stopped() {
            let patience = match draw.below(4) {
                0 => Patience::None,
                _ => Patience::AtMost(Duration::from_millis(self.plan.within_ms)),
            };
            if let Ok(held) = scribe.acquire(MOVED, patience).await {
                for count in [&*self.grants, granted] {
                    count.fetch_add(1, Ordering::Relaxed);
                }
                self.look_at_token(&held);
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

    /// I3: no guard is safe when it is handed out under a token that is not newer than that of another one that was. (Locks of a recipe
    /// have no tokens: what the judge reads as one here is the instant of the grant.)
    fn look_at_token(&self, held: &RemoteHeld) {
        let Some(token) = held.guard().fencing_token().filter(|_| held.guard().is_safe()) else {
            return;
        };
        let mut newest = lock(&self.moving.newest);
        if *newest >= Some(token) {
            let id = self.id.0;
            let wrong =
                format!("I3: {MOVED} is granted to client {id} under {token}, after {newest:?}");
            lock(&self.wrong).push(wrong);
        }
        *newest = Some(token).max(*newest);
    }
}
