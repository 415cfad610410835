//! The lock task: one task for each requested lock, which owns what the recipe writes from the
//! first statement to the last.
//!
//! ```text
//!   caller            lock task                            tables
//!   acquire ────────► attempt, pause, attempt, …  ─────────►
//!   guard   ◄──────── held                         ◄─────────
//!   is_safe()         renew, every third of what is certain ►
//!   drop, release ──► leave                        ─────────►
//! ```
//!
//! # Invariants
//!
//! - A caller that gives up never interrupts a statement: the task finishes it, checks the outcome
//!   and undoes it. Only the end of the process leaves anything to the TTL.
//! - The safe deadline counts from the instant before the last renewal that was *answered as
//!   applied* was sent (I6, DESIGN §9). A renewal of unknown outcome never counts.
//! - The task gives back a hold that is no longer safe; it never revives one (DESIGN §5.6).

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, OptionFuture};
use holdfast_mutants::mutant;
use holdfast_runtime::{Clock, Instant, select};
use tokio::sync::{Notify, oneshot, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::Instrument;

use super::database::Fault;
use super::locker::{Held, RemoteGuard, Wait};
use super::locker_base::LockerBase;
use super::measures::{self, Holding};
use super::owner::service_of;
use super::turns::Turn;
use crate::{Error, FencingToken, GuardState, LostReason, Result};
use holdfast_guard::{Backoff, Holder, Safety, Span};

/// The longest pause between two attempts at a lock that another owner holds (DESIGN §9).
const POLL_MAX: Duration = Duration::from_secs(2);
/// How long a caller waits for a release; the task goes on after that.
const RELEASE_LIMIT: Duration = Duration::from_secs(10);

/// What one algorithm does for one lock and one owner. The lock task calls one of these methods
/// at a time and always runs it to completion.
pub(crate) trait Attempt: Send + 'static {
    /// The name of the recipe, for those who watch.
    const RECIPE: &'static str;

    /// Whether tasks of one process that wait for the lock do so in turn ([`Turn`]): for recipes without an order. In those with one each
    /// waiter has to come as early as it can.
    fn takes_turns(&self) -> bool {
        false
    }
    /// Goes as far towards the lock as it can without waiting. The lock task calls it again after
    /// a pause; whatever an earlier call wrote is still in the tables then.
    fn advance(&mut self) -> impl Future<Output = Result<Reached, Fault>> + Send;
    fn renew(&mut self) -> impl Future<Output = Renewal> + Send;
    /// Bounds `safety`, that of the guard about to be handed out, by whatever else the recipe knows. The lock task
    /// hands out nothing that is not safe after this.
    fn begins(&mut self, _safety: &Arc<Safety>) {}
    /// How long the hold lasts when the store receives nothing from its holder: the TTL, unless
    /// something else bounds it.
    fn lasts(&self, ttl: Duration) -> Duration {
        ttl
    }
    fn token(&self) -> Option<FencingToken> {
        None
    }
    /// Takes back everything that this attempt wrote, or may have written, to the tables.
    fn give_back(&mut self) -> impl Future<Output = Result<Left, Fault>> + Send;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    /// The attempt holds the lock, by writes of which the first was sent at `started`.
    Hold { started: Instant },
    /// Another owner holds the lock; `again`, if known, bounds the pause until the next attempt.
    HeldBy { owner: Option<String>, again: Option<Duration> },
    /// Another owner holds or tries for the lock, and the recipe chooses the pause itself.
    TryAgain { owner: Option<String>, after: Duration },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// The renewal is applied; it was sent at this instant.
    Applied(Instant),
    /// The owner certainly no longer holds the lock.
    Gone,
    Unknown,
}

/// Whether there was a hold to take back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// The owner still held the lock.
    Released,
    /// The owner no longer held the lock.
    NotHad,
}

/// How the last attempt ended, for the error of a caller that stops waiting.
#[derive(Clone, Debug, Default)]
pub(crate) enum Progress {
    #[default]
    Begun,
    /// Another owner holds the lock: its id, if the attempt read it.
    HeldBy(Option<String>),
    Failed(String),
}

impl LockerBase {
    /// Acquires the lock by `recipe`. `renew_now` triggers an immediate renewal.
    ///
    /// Dropping the future takes everything back.
    ///
    /// # Errors
    ///
    /// As of [`RemoteLocker::acquire`](super::RemoteLocker::acquire).
    pub(crate) async fn hold<A: Attempt>(
        &self,
        lock_id: &str,
        wait: Wait,
        recipe: A,
        renew_now: Arc<Notify>,
    ) -> Result<RemoteGuard> {
        let began = self.now();
        let asking = measures::asking(A::RECIPE, self.runtime().clock.clone());
        let stop = CancellationToken::new();
        // Dropped with this future, or moved into the guard.
        let stopper = stop.clone().drop_guard();
        let (answer, answered) = oneshot::channel();
        let (ended, end) = oneshot::channel();
        let progress = watch::Sender::new(Progress::default());
        let seen = progress.subscribe();
        let turn = recipe.takes_turns().then(|| self.turns.get(lock_id.to_owned()));
        let task = LockTask {
            _counted: Counted::new(&self.cassandra.tasks),
            base: self.clone(),
            recipe,
            waits: wait.waits(),
            stop,
            progress,
            turn,
            renew_now,
        };
        let span = tracing::info_span!("lock", lock = lock_id, recipe = A::RECIPE);
        self.runtime().spawn("holdfast-lock", task.keep(answer, ended).instrument(span)).detach();
        let limit = wait.limit(self.answer_limit).map(|limit| began + limit);
        let granted = select! {
            granted = answered => granted.unwrap_or(Err(Some(Error::Closed))),
            () = passing(limit, &*self.runtime().clock) => Err(None),
        };
        let given_up = || self.given_up(lock_id, began, wait, &seen.borrow());
        let granted = granted.map_err(|error| error.unwrap_or_else(given_up));
        asking.end(&granted);
        let granted = granted?;
        let hold = Hold { granted, end: Some(end), base: self.clone(), _stopper: stopper };
        Ok(RemoteGuard::new(lock_id, self.signature.service(), Box::new(hold)))
    }

    /// The error for a caller that does not wait, or no longer.
    fn given_up(&self, lock_id: &str, began: Instant, wait: Wait, progress: &Progress) -> Error {
        let last = match progress {
            Progress::HeldBy(owner) => {
                // The tables contain no session, no token, and no time since which the lock is held.
                let holder = |owner: &String| Holder::named(service_of(owner).to_owned());
                return Error::NotGranted {
                    names: vec![lock_id.to_owned()],
                    holders: owner.iter().map(holder).collect(),
                    waited: wait.waits().then(|| self.now().saturating_since(began)),
                };
            }
            Progress::Failed(fault) => fault.clone(),
            Progress::Begun => "no answer yet".into(),
        };
        self.cassandra.unreachable(began, last)
    }
}

/// Completes when a task of this process has given the lock back; never where tasks take no turns.
async fn given_back(turn: Option<&Turn>) {
    match turn {
        Some(turn) => turn.given_back().await,
        None => std::future::pending().await,
    }
}

/// Completes when the limit has passed; never without one.
pub(super) async fn passing(limit: Option<Instant>, clock: &dyn Clock) {
    match limit {
        Some(limit) => clock.sleep_until(limit).await,
        None => std::future::pending().await,
    }
}

/// Counts one running task for as long as it exists.
pub(super) struct Counted(watch::Sender<usize>);

impl Counted {
    pub(super) fn new(tasks: &watch::Sender<usize>) -> Self {
        tasks.send_modify(|tasks| *tasks += 1);
        Self(tasks.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|tasks| *tasks -= 1);
    }
}

struct LockTask<A> {
    _counted: Counted,
    base: LockerBase,
    recipe: A,
    waits: bool,
    stop: CancellationToken,
    progress: watch::Sender<Progress>,
    turn: Option<Arc<Turn>>,
    renew_now: Arc<Notify>,
}

impl<A: Attempt> LockTask<A> {
    async fn keep(
        mut self,
        answer: oneshot::Sender<Result<Granted, Option<Error>>>,
        ended: oneshot::Sender<Result<Left, Fault>>,
    ) {
        match self.acquire().await {
            Ok(Some((safety, started))) => {
                let alarm = self.base.cassandra.alarms.watch(safety.clone());
                let token = self.recipe.token();
                let lasts = self.recipe.lasts(self.base.timing.ttl());
                if answer.send(Ok(Granted { safety: safety.clone(), token, lasts })).is_ok() {
                    tracing::debug!("the lock is held");
                    self.hold(&safety, started).await;
                }
                drop(alarm);
            }
            Ok(None) => {}
            Err(error) => {
                // The caller may no longer be waiting for it.
                let _ = answer.send(Err(error));
            }
        }
        let left = self.give_back().await;
        if let Some(turn) = &self.turn {
            turn.give_back();
        }
        // The receiver is gone if the guard was dropped.
        let _ = ended.send(left);
    }

    /// Attempts until it holds the lock; `None` if the caller has given up, or has to: the progress shows why.
    async fn acquire(&mut self) -> Result<Option<(Arc<Safety>, Instant)>, Option<Error>> {
        let turn = self.turn.clone();
        // Until it holds the lock, or stops waiting for it.
        let _first = match turn.as_ref().filter(|_| self.waits) {
            None => None,
            Some(turn) => match turn.wait(&self.stop, &self.progress).await {
                Some(first) => Some(first),
                None => return Ok(None),
            },
        };
        let rng = self.base.runtime().rng.clone();
        let mut pauses = Backoff::new(POLL_MAX);
        let mut usual = || pauses.next(&*rng);
        while !self.stop.is_cancelled() {
            let attempted = self.recipe.advance().await;
            let pause = match attempted {
                Ok(Reached::Hold { started }) => {
                    if let Some(safety) = self.safe_from(started) {
                        return Ok(Some((safety, started)));
                    }
                    usual()
                }
                Ok(Reached::HeldBy { owner, .. } | Reached::TryAgain { owner, .. })
                    if !self.waits =>
                {
                    self.saw(Progress::HeldBy(owner));
                    return Err(None);
                }
                Ok(Reached::HeldBy { owner, again }) => {
                    self.saw(Progress::HeldBy(owner));
                    // The remaining time of the row bounds the sleep; it decides nothing.
                    again.into_iter().fold(usual(), Duration::min)
                }
                Ok(Reached::TryAgain { owner, after }) => {
                    self.saw(Progress::HeldBy(owner));
                    after
                }
                Err(Fault::Refused(message)) => return Err(Some(Error::invalid(message))),
                Err(fault) => {
                    self.saw(Progress::Failed(fault.message().to_owned()));
                    usual()
                }
            };
            select! {
                () = self.stop.cancelled() => {}
                () = given_back(self.turn.as_deref()) => {}
                () = self.base.runtime().sleep(pause) => {}
            }
        }
        Ok(None)
    }

    fn saw(&self, progress: Progress) {
        if let Some(turn) = &self.turn {
            turn.saw(progress.clone());
        }
        self.progress.send_replace(progress);
    }

    /// `None` if the answer took so long that nothing is certain any more.
    fn safe_from(&mut self, started: Instant) -> Option<Arc<Safety>> {
        let clock = self.base.runtime().clock.clone();
        let span = Span::new(self.base.timing.safe_until(started));
        let safety = Safety::within(span).map(Arc::new)?;
        self.recipe.begins(&safety);
        safety.publish(false);
        safety.is_safe(&*clock).then_some(safety)
    }

    /// Renews until the guard is gone or the lock is lost.
    async fn hold(&mut self, safety: &Safety, started: Instant) {
        let holding = Holding::begin(A::RECIPE, self.base.runtime().clock.clone());
        self.renew_while_held(safety, started, &holding).await;
        if let Some(reason) = safety.lost_reason() {
            holding.lost(reason);
            tracing::warn!(%reason, "the lock is lost");
        }
    }

    async fn renew_while_held(&mut self, safety: &Safety, mut started: Instant, holding: &Holding) {
        let clock = self.base.runtime().clock.clone();
        let mut retries = Backoff::new(POLL_MAX);
        let mut due = self.base.timing.renew_at(started);
        while safety.is_safe(&*clock) {
            select! {
                () = self.stop.cancelled() => return,
                () = safety.cancelled().cancelled() => return,
                () = self.renew_now.notified() => {}
                () = clock.sleep_until(due) => {}
            }
            if !safety.is_safe(&*clock) {
                // The task woke too late. Not every recipe's renewal checks that there is a hold left to renew.
                break;
            }
            let worry_at = self.base.timing.jeopardy_from(started);
            let asked = clock.now();
            match renewed(&mut self.recipe, safety, worry_at, &*clock).await {
                Renewal::Applied(sent) => {
                    holding.renewed(if clock.now() > worry_at { "late" } else { "applied" });
                    started = started.max(sent);
                    safety.extend(self.base.timing.safe_until(started), &*clock);
                    safety.publish(false);
                    retries.reset();
                    due = self.base.timing.renew_at(started);
                }
                Renewal::Gone => {
                    holding.renewed("gone");
                    return safety.end(GuardState::Lost(LostReason::Revoked));
                }
                Renewal::Unknown => {
                    holding.renewed("unknown");
                    tracing::debug!("a renewal has no answer");
                    if mutant!(RecipeUnknownRenewalCounts) {
                        safety.extend(self.base.timing.safe_until(asked), &*clock);
                    }
                    due = clock.now() + retries.next(&*self.base.runtime().rng);
                }
            }
        }
        safety.end(GuardState::Lost(LostReason::DeadlinePassed));
    }

    /// Takes back what the recipe wrote; retries for as long as it can still be there.
    async fn give_back(&mut self) -> Result<Left, Fault> {
        let runtime = self.base.runtime().clone();
        let until = runtime.clock.now() + self.base.timing.ttl();
        let mut retries = Backoff::new(POLL_MAX);
        loop {
            match self.recipe.give_back().await {
                Err(Fault::Unknown(_) | Fault::NotDone(_)) if runtime.clock.now() < until => {
                    runtime.sleep(retries.next(&*runtime.rng)).await;
                }
                left => return left,
            }
        }
    }
}

/// Renews, and reports jeopardy to the holder if that takes too long.
async fn renewed<A: Attempt>(
    recipe: &mut A,
    safety: &Safety,
    worry_at: Instant,
    clock: &dyn Clock,
) -> Renewal {
    let mut renewal = std::pin::pin!(recipe.renew());
    select! {
        renewal = &mut renewal => return renewal,
        () = clock.sleep_until(worry_at) => {
            tracing::warn!("no renewal was answered for two thirds of the time for which the lock is certain");
            safety.publish(true);
        }
    }
    renewal.await
}

struct Granted {
    safety: Arc<Safety>,
    token: Option<FencingToken>,
    lasts: Duration,
}

/// The hold behind a [`RemoteGuard`]. Dropping it makes the hold unsafe and lets the lock task take it back.
struct Hold {
    granted: Granted,
    /// How the lock task took it back.
    end: Option<oneshot::Receiver<Result<Left, Fault>>>,
    base: LockerBase,
    _stopper: DropGuard,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.granted.safety.end(GuardState::Released);
    }
}

impl Held for Hold {
    fn safety(&self) -> &Safety {
        &self.granted.safety
    }

    fn clock(&self) -> &dyn Clock {
        &*self.base.runtime().clock
    }

    fn token(&self) -> Option<FencingToken> {
        self.granted.token
    }

    fn ttl(&self) -> Duration {
        self.granted.lasts
    }

    fn release(mut self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move {
            let (safety, runtime) = (self.granted.safety.clone(), self.base.runtime().clone());
            let end = self.end.take();
            if !safety.is_safe(&*runtime.clock) {
                // The deadline has passed, and no alarm has reported it yet.
                safety.end(GuardState::Lost(LostReason::DeadlinePassed));
            }
            drop(self);
            let left = runtime.timeout(RELEASE_LIMIT, OptionFuture::from(end)).await;
            if let Some(reason) = safety.lost_reason() {
                return Err(Error::Lost { reason });
            }
            match left {
                Ok(Some(Ok(Ok(Left::Released)))) => Ok(()),
                Ok(Some(Ok(Ok(Left::NotHad)))) => Err(Error::Lost { reason: LostReason::Revoked }),
                Ok(Some(Ok(Err(_)) | Err(_)) | None) | Err(_) => {
                    Err(Error::OutcomeUnknown { what: "a release", waited: RELEASE_LIMIT })
                }
            }
        })
    }
}
