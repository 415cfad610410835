//! A client that locks in a scope that moves: an old one, which speaks the recipe alone, or one of ours, which goes from mode to mode.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdfast::{Client, Error, FencingToken, GuardState};
use holdfast_recipes::{
    Bunch, Cassandra, FallbackOptions, Locker, LockerLeadership, LockerMode, ModesTable,
    RemoteGuard, RemoteLocker, ScopeModes,
};
use holdfast_runtime::Instant;
use tokio::sync::oneshot;

use super::locker_client::{AGAIN, LockerClient, options, wait};
use super::move_plan::MoverPlan;
use super::stage::lock;
use crate::draw::Draw;
use crate::history::ClientId;
use crate::recipe::Recipe;
use crate::remote::{RemoteHeld, RemoteScribe};
use crate::term::Term;

/// The scope that moves, and what is locked in it.
pub(super) const MOVING: &str = "m/";
pub(super) const MOVED: &str = "m/1";

/// Longest pause between two requests, milliseconds.
const PAUSE_MS: u64 = 1_000;
/// Longest pause between two changes of the mode, and how long one is waited for at most, milliseconds.
const MODE_MS: u64 = 6_000;
const CHANGED_MS: u64 = 12_000;
/// What the operator and the clients of a scope that moves know of each other.
#[derive(Debug, Default)]
pub(super) struct Moving {
    /// Whether the operator is on the way to the store, or on the way back.
    pub(super) onward: AtomicBool,
    /// Old clients may be there: the stage is one that no process is native in.
    pub(super) old_may_come: AtomicBool,
    /// The newest token that a guard had that was safe when it was handed out.
    newest: Mutex<Option<u64>>,
    /// When the last old client was ended.
    pub(super) old_ended: Mutex<Option<Instant>>,
    /// Grants to old clients, and to ours.
    pub(super) old_grants: AtomicU64,
    pub(super) our_grants: AtomicU64,
    /// Changes of a process' mode that were made.
    pub(super) changes: AtomicU64,
    /// Of the grants to ours, the elections that were won, and the batches that had the lock among theirs.
    pub(super) leaders: AtomicU64,
    pub(super) bunches: AtomicU64,
    /// Moves of its sequence that were made.
    pub(super) sequence_moves: AtomicU64,
    /// Moves of the scope, and of these the ones to a stage at which processes are native.
    pub(super) moves: AtomicU64,
    pub(super) moves_to_store: AtomicU64,
}

impl Moving {
    /// I3: a guard is handed out under this token, and safe. What is wrong with that: a guard that was safe before had a token that was not
    /// older. (Locks of a recipe have no tokens: what the judge reads as one here is the instant of the grant.)
    fn granted(&self, token: u64) -> Option<String> {
        let mut newest = lock(&self.newest);
        let before = newest.filter(|newest| *newest >= token);
        *newest = Some(token).max(*newest);
        before.map(|before| format!("I3: {MOVED} is granted under token {token}, after {before}"))
    }
}

/// A locker of the scope that moves, in that mode.
pub(super) async fn start(
    cassandra: &Cassandra,
    native: Client,
    (recipe, id): (Recipe, ClientId),
    mode: LockerMode,
) -> holdfast::Result<Locker> {
    let options = options("moving", id);
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
    pub(super) base: LockerClient,
    pub(super) recipe: Recipe,
    pub(super) plan: MoverPlan,
    /// Whether it asks in all ways there are, and whether it draws numbers (`MovesPlan`).
    pub(super) wishes: bool,
    pub(super) numbers: bool,
    pub(super) moving: Arc<Moving>,
    /// What was found wrong.
    pub(super) wrong: Arc<Mutex<Vec<String>>>,
}

impl Mover {
    /// Locks until it is told to stop; then nothing of it is left.
    pub(super) async fn work(self) {
        let cassandra = self.base.cassandra();
        if self.plan.old {
            self.work_as_old(&cassandra).await;
        } else {
            self.work_in_modes(&cassandra).await;
        }
        cassandra.settled().await;
    }

    /// Locks by the recipe alone, once that is safe. The operator ends the process before the scope moves on.
    async fn work_as_old(&self, cassandra: &Cassandra) {
        while !self.moving.old_may_come.load(Ordering::Relaxed) {
            if self.base.is_stopped() {
                return;
            }
            self.base.runtime.sleep(AGAIN).await;
        }
        let locker = self.recipe.locker(cassandra, &options("moving", self.base.id));
        self.lock_by(locker, None, &self.moving.old_grants).await;
    }

    async fn work_in_modes(&self, cassandra: &Cassandra) {
        let Some(client) = self.base.connected().await else { return };
        if let Some(locker) = self.entered(&client, cassandra).await {
            let (tell, told) = oneshot::channel();
            let changing = self.clone().change_modes(locker.clone(), tell);
            self.base.runtime.spawn("modes", changing).detach();
            let drawn = self.begin_numbers(&client, cassandra);
            let by = Arc::new(locker.clone());
            self.lock_by(by, Some(&locker), &self.moving.our_grants).await;
            drop(locker);
            let _ = told.await;
            if let Some(drawn) = drawn {
                let _ = drawn.await;
            }
        }
        // Whether the store was told is the run's business: it looks at the sessions in the end.
        let _ = client.close().await;
    }

    /// `None` once it is told to stop: the stage may admit none of the modes that it asks for.
    async fn entered(&self, client: &Client, cassandra: &Cassandra) -> Option<Locker> {
        const MODES: [LockerMode; 4] =
            [LockerMode::Cassandra, LockerMode::Both, LockerMode::Native, LockerMode::Fallback];
        let mut draw = Draw::new(self.base.seed);
        if self.plan.mistaken.is_some() {
            self.until_tied(cassandra).await;
        }
        while !self.base.is_stopped() {
            let mode = MODES[usize::try_from(draw.below(MODES.len() as u64)).unwrap_or(0)];
            match start(cassandra, client.clone(), (self.recipe, self.base.id), mode).await {
                Ok(locker) => return Some(locker),
                Err(_) => self.base.runtime.sleep(AGAIN).await,
            }
        }
        None
    }

    /// The first process of a scope says which recipe it is tied to: a mistaken one comes later.
    async fn until_tied(&self, cassandra: &Cassandra) {
        let Ok(scope) = ScopeModes::new(cassandra, MOVING, ModesTable::default()) else { return };
        while !self.base.is_stopped() && !scope.view().await.is_ok_and(|view| view.recipe.is_some())
        {
            self.base.runtime.sleep(AGAIN).await;
        }
    }

    /// Mostly the way the operator goes.
    async fn change_modes(self, locker: Locker, tell: oneshot::Sender<()>) {
        let mut draw = Draw::new(!self.base.seed);
        while !self.base.is_stopped() {
            self.base.runtime.sleep(Duration::from_millis(draw.below(MODE_MS))).await;
            let onward = self.moving.onward.load(Ordering::Relaxed);
            let mode = match (draw.below(6), onward) {
                (0, _) => LockerMode::Both,
                (1 | 2, _) => LockerMode::Native,
                (3, true) | (4.., false) => LockerMode::Cassandra,
                (3, false) | (4.., true) => LockerMode::Fallback,
            };
            let limit = Duration::from_millis(draw.below(CHANGED_MS));
            if let Ok(Ok(())) = self.base.runtime.timeout(limit, locker.set_mode(mode)).await {
                self.moving.changes.fetch_add(1, Ordering::Relaxed);
            }
        }
        drop(locker);
        let _ = tell.send(());
    }

    /// `ours` is the same locker, of a process of ours.
    async fn lock_by(
        &self,
        locker: Arc<dyn RemoteLocker>,
        ours: Option<&Locker>,
        count: &AtomicU64,
    ) {
        let (base, plan) = (&self.base, &self.plan);
        let ours = ours.filter(|_| self.wishes);
        let mut draw = Draw::new(base.seed.rotate_left(7));
        let scribe = RemoteScribe::of(locker, base.id, base.recorder.clone());
        let scribe = scribe.on(base.runtime.clone());
        while !base.is_stopped() {
            let way = ours.map_or(Way::Lock, |_| Way::draw(&mut draw));
            match (way, ours) {
                (Way::Lead, Some(locker)) => self.lead_once(&scribe, locker, &mut draw).await,
                (Way::Some, Some(locker)) => self.lock_some(&scribe, locker, &mut draw).await,
                _ => {
                    let times_ms = (plan.within_ms, plan.hold_ms);
                    let granted = |held: &RemoteHeld| self.is_granted(held.guard(), count);
                    base.lock_once(&scribe, MOVED, times_ms, &mut draw, granted).await;
                }
            }
            base.runtime.sleep(Duration::from_millis(1 + draw.below(PAUSE_MS))).await;
        }
    }

    fn is_granted(&self, guard: &RemoteGuard, count: &AtomicU64) {
        count.fetch_add(1, Ordering::Relaxed);
        let token = guard.token().filter(|_| guard.is_safe());
        lock(&self.wrong).extend(token.and_then(|token| self.moving.granted(token.get())));
    }

    /// Stands for election under the name of the lock.
    async fn lead_once(&self, scribe: &RemoteScribe, locker: &Locker, draw: &mut Draw) {
        let wait = wait(self.plan.within_ms, draw);
        let value = format!("led by {}", self.base.id.0);
        let elected = locker.campaign(MOVED, value, wait);
        let Ok(led) = scribe.acquire_by(MOVED, wait, elected).await else { return };
        self.is_granted(led.had().guard(), &self.moving.our_grants);
        self.moving.leaders.fetch_add(1, Ordering::Relaxed);
        if draw.below(3) == 0 {
            // Whether it is seen is for nobody here to say: an observer is told of a leader that is gone already, too.
            let _ = led.had().set_value(None).await;
        }
        self.base.hold(led, self.plan.hold_ms, draw, LockerLeadership::resign).await;
    }

    /// Locks those that are free of several, the lock among them.
    async fn lock_some(&self, scribe: &RemoteScribe, locker: &Locker, draw: &mut Draw) {
        let wait = wait(self.plan.within_ms, draw);
        let mut batch = locker.batch([MOVED, "m/2", "m/3"]);
        let taken = async {
            let bunch = batch.next_with(wait).await?;
            match bunch {
                Some(bunch) if bunch.tokens().iter().any(|name| name == MOVED) => Ok(SomeOf(bunch)),
                // It has others, or an error says why it has none.
                bunch => {
                    drop(bunch);
                    let (names, holders) = (vec![MOVED.to_owned()], Vec::new());
                    Err(Error::NotGranted { names, holders, waited: None })
                }
            }
        };
        let Ok(held) = scribe.acquire_by(MOVED, wait, taken).await else { return };
        for count in [&self.moving.our_grants, &self.moving.bunches] {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.base.hold(held, self.plan.hold_ms, draw, |some| some.0.release()).await;
    }
}

/// A way to ask for the lock.
enum Way {
    Lock,
    Lead,
    Some,
}

impl Way {
    fn draw(draw: &mut Draw) -> Self {
        match draw.below(6) {
            0 => Self::Some,
            1 | 2 => Self::Lead,
            _ => Self::Lock,
        }
    }
}

/// What a batch has locked, the lock among it.
struct SomeOf<'a>(Bunch<'a>);

impl Term for SomeOf<'_> {
    fn name(&self) -> String {
        MOVED.to_owned()
    }

    fn state(&self) -> GuardState {
        self.0.state()
    }

    fn is_safe(&self) -> bool {
        self.0.is_safe()
    }
}

impl Term for LockerLeadership {
    fn name(&self) -> String {
        self.guard().name().to_owned()
    }

    fn state(&self) -> GuardState {
        self.guard().state()
    }

    fn is_safe(&self) -> bool {
        self.guard().is_safe()
    }

    fn token(&self) -> Option<FencingToken> {
        self.guard().token()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_safe_guard_under_a_token_that_is_not_newer_is_found() {
        let moving = Moving::default();

        assert_eq!(moving.granted(4), None);
        assert_eq!(moving.granted(7), None);
        assert!(moving.granted(7).is_some_and(|wrong| wrong.starts_with("I3: m/1")));
        assert!(moving.granted(5).is_some());
        assert_eq!(moving.granted(8), None);
    }
}
