//! One task for each lock that is asked for: it owns what the recipe writes, from the first
//! statement to the last.
//!
//! ```text
//!   caller            keeper's task                          tables
//!   acquire ────────► attempt, pause, attempt, …  ─────────►
//!   guard   ◄──────── had                          ◄─────────
//!   is_safe()         renew, every third of what is certain ►
//!   drop, release ──► leave                        ─────────►
//! ```
//!
//! # Invariants
//!
//! - A statement is never dropped half way by a caller who gives up: the task ends it, looks at
//!   what came of it, and undoes it. Only the end of the process leaves anything to the TTL.
//! - The safe deadline counts from before the last renewal that was *answered as applied* was sent
//!   (I6, DESIGN §9). One of unknown outcome never counts.
//! - What is not safe any more is given back, not revived (DESIGN §5.6).

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast_mutants::mutant;
use holdfast_seams::{Clock, Moment, Seams, select};
use tokio::sync::{Notify, oneshot, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::alarms::Alarms;
use super::database::Fault;
use super::locker::{Held, Patience, RemoteGuard};
use super::owner::thread_id;
use super::terms::Terms;
use crate::backoff::Backoff;
use crate::lease::Span;
use crate::safety::Safety;
use crate::{Error, FencingToken, GuardState, Holder, LostReason, Mode, RefusalReason, Result};

/// The longest pause between two looks at a lock that somebody else has (DESIGN §9).
const POLL_MAX: Duration = Duration::from_secs(2);
/// How long a caller waits for a release; the task goes on after that.
const RELEASE_LIMIT: Duration = Duration::from_secs(10);

/// What one algorithm does for one lock and one owner. The keeper calls one of these at a time,
/// and always until it is done.
pub(crate) trait Recipe: Send + 'static {
    /// Goes as far towards the lock as it can go without waiting. Called again after a pause, with
    /// whatever an earlier call left behind still there.
    fn attempt(&mut self) -> impl Future<Output = Result<Attempt, Fault>> + Send;
    /// Lengthens what it has.
    fn renew(&mut self) -> impl Future<Output = Renewal> + Send;
    /// It has the lock, and this is the safety of the guard that is about to be handed out: to bound it
    /// by whatever else the recipe knows of. Nothing is handed out that is not safe after this.
    fn begins(&mut self, _safety: &Arc<Safety>) {}
    /// How long the hold lasts without word from its holder: the TTL, where nothing else bounds it.
    fn lasts(&self, ttl: Duration) -> Duration {
        ttl
    }
    /// The token that the lock is had under, where the recipe has one.
    fn fencing_token(&self) -> Option<FencingToken> {
        None
    }
    /// Takes everything back that it has, or may have, in the tables.
    fn leave(&mut self) -> impl Future<Output = Result<Left, Fault>> + Send;
}

/// How far an attempt came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// It has the lock, by writes of which the first was sent at `started`.
    Had { started: Moment },
    /// Somebody else has it; nothing is gained by a look before `again`, if that is known.
    HeldBy { owner: Option<String>, again: Option<Duration> },
    /// Somebody else has it or tries for it, and the recipe says itself how long to pause.
    TryAgain { owner: Option<String>, after: Duration },
}

/// What a renewal came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// It is applied, and was sent at this instant.
    Applied(Moment),
    /// The lock is certainly not had any more.
    Gone,
    /// No answer.
    Unknown,
}

/// What was there to be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// The lock was still had.
    Released,
    /// It was not had any more.
    NotHad,
}

/// What all locks of one locker share.
#[derive(Clone)]
pub(crate) struct Keeping {
    pub(crate) seams: Seams,
    pub(crate) terms: Terms,
    pub(crate) alarms: Arc<Alarms>,
    /// How many tasks there are.
    pub(crate) keepers: watch::Sender<usize>,
    /// How long a call that does not wait may take to get an answer.
    pub(crate) answer_limit: Duration,
    /// Where the database is, for errors.
    pub(crate) endpoints: Arc<[String]>,
}

/// What a caller who waits can be told: how the last attempt ended.
#[derive(Clone, Debug, Default)]
enum Progress {
    /// There was none yet.
    #[default]
    Begun,
    /// Somebody else has the lock; its owner, where it was shown.
    HeldBy(Option<String>),
    /// Without an answer.
    Failed(String),
}

impl Keeping {
    /// Acquires the lock for `service` by `recipe`. `renew_now` has it renewed at once.
    ///
    /// Dropping the future takes everything back.
    ///
    /// # Errors
    ///
    /// As of [`RemoteLocker::acquire`](super::RemoteLocker::acquire).
    pub(crate) async fn acquire<R: Recipe>(
        &self,
        lock_id: &str,
        service: &str,
        patience: Patience,
        recipe: R,
        renew_now: Arc<Notify>,
    ) -> Result<RemoteGuard> {
        let began = self.seams.clock.now();
        let stop = CancellationToken::new();
        // Dropped with this future, or moved into the guard.
        let stopper = stop.clone().drop_guard();
        let (answer, answered) = oneshot::channel();
        let (ended, end) = oneshot::channel();
        let progress = watch::Sender::new(Progress::default());
        let seen = progress.subscribe();
        let keeper = Keeper {
            _counted: Counted::new(&self.keepers),
            keeping: self.clone(),
            recipe,
            waits: patience.waits(),
            stop,
            progress,
            renew_now,
        };
        self.seams.spawn("holdfast-keeper", keeper.keep(answer, ended)).detach();
        let limit = patience.limit(self.answer_limit).map(|limit| began + limit);
        let granted = select! {
            granted = answered => granted.unwrap_or(Err(Error::Closed)),
            () = passing(limit, &*self.seams.clock) => {
                Err(self.given_up(lock_id, began, patience, &seen.borrow()))
            }
        };
        let granted = granted.map_err(|error| self.named(error, lock_id, began, patience))?;
        let Granted { safety, token, lasts } = granted;
        let hold = Hold { safety, token, lasts, keeping: self.clone(), _stopper: stopper };
        Ok(RemoteGuard::new(lock_id, service, Box::new(RowHold { hold, end })))
    }

    /// Why nothing was had until the limit.
    fn given_up(
        &self,
        lock_id: &str,
        began: Moment,
        patience: Patience,
        progress: &Progress,
    ) -> Error {
        let waited = self.seams.clock.now().saturating_since(began);
        let last = match progress {
            Progress::HeldBy(owner) => {
                let waited = patience.waits().then_some(waited);
                return not_granted(lock_id, owner.as_deref(), waited);
            }
            Progress::Failed(fault) => fault.clone(),
            Progress::Begun => "no answer yet".into(),
        };
        Error::Unreachable { endpoints: self.endpoints.to_vec(), waited, last }
    }

    /// The keeper knows neither what the lock is called nor how long was waited.
    fn named(&self, error: Error, lock_id: &str, began: Moment, patience: Patience) -> Error {
        let Error::NotGranted { holders, .. } = error else { return error };
        let waited = self.seams.clock.now().saturating_since(began);
        let waited = patience.waits().then_some(waited);
        Error::NotGranted { names: vec![lock_id.to_owned()], holders, waited }
    }
}

/// Ends when the call waits no longer.
pub(super) async fn passing(limit: Option<Moment>, clock: &dyn Clock) {
    match limit {
        Some(limit) => clock.sleep_until(limit).await,
        None => std::future::pending().await,
    }
}

fn not_granted(lock_id: &str, owner: Option<&str>, waited: Option<Duration>) -> Error {
    // The tables know neither a session nor a token, nor since when.
    let holder = |owner: &str| Holder {
        session: 0,
        label: thread_id(owner).to_owned(),
        token: FencingToken::new(0),
        held: Duration::ZERO,
        mode: Mode::Exclusive,
        is_imported: false,
    };
    let holders = owner.map(holder).into_iter().collect();
    Error::NotGranted { names: vec![lock_id.to_owned()], holders, waited }
}

/// One of the tasks there are.
pub(super) struct Counted(watch::Sender<usize>);

impl Counted {
    pub(super) fn new(keepers: &watch::Sender<usize>) -> Self {
        keepers.send_modify(|keepers| *keepers += 1);
        Self(keepers.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|keepers| *keepers -= 1);
    }
}

/// The task.
struct Keeper<R> {
    _counted: Counted,
    keeping: Keeping,
    recipe: R,
    waits: bool,
    stop: CancellationToken,
    progress: watch::Sender<Progress>,
    renew_now: Arc<Notify>,
}

impl<R: Recipe> Keeper<R> {
    async fn keep(
        mut self,
        answer: oneshot::Sender<Result<Granted>>,
        ended: oneshot::Sender<Result<Left, Fault>>,
    ) {
        match self.acquire().await {
            Ok(Some((safety, started))) => {
                let alarm = self.keeping.alarms.watch(safety.clone());
                let token = self.recipe.fencing_token();
                let lasts = self.recipe.lasts(self.keeping.terms.ttl());
                if answer.send(Ok(Granted { safety: safety.clone(), token, lasts })).is_ok() {
                    self.hold(&safety, started).await;
                }
                drop(alarm);
            }
            Ok(None) => {}
            Err(error) => {
                // Nobody waits for it any more.
                let _ = answer.send(Err(error));
            }
        }
        let left = self.leave().await;
        // The guard was dropped.
        let _ = ended.send(left);
    }

    /// Attempts until the lock is had; `None` if it is not wanted any more.
    async fn acquire(&mut self) -> Result<Option<(Arc<Safety>, Moment)>> {
        let rng = self.keeping.seams.rng.clone();
        let mut pauses = Backoff::new(POLL_MAX);
        let mut usual = || pauses.next(&*rng);
        while !self.stop.is_cancelled() {
            let attempted = self.recipe.attempt().await;
            let pause = match attempted {
                Ok(Attempt::Had { started }) => {
                    if let Some(safety) = self.safe_from(started) {
                        return Ok(Some((safety, started)));
                    }
                    usual()
                }
                Ok(Attempt::HeldBy { owner, .. } | Attempt::TryAgain { owner, .. })
                    if !self.waits =>
                {
                    return Err(not_granted("", owner.as_deref(), None));
                }
                Ok(Attempt::HeldBy { owner, again }) => {
                    self.progress.send_replace(Progress::HeldBy(owner));
                    // What the row has left bounds the sleep; it decides nothing.
                    again.into_iter().fold(usual(), Duration::min)
                }
                Ok(Attempt::TryAgain { owner, after }) => {
                    self.progress.send_replace(Progress::HeldBy(owner));
                    after
                }
                Err(Fault::Refused(message)) => return Err(refused(message)),
                Err(fault) => {
                    self.progress.send_replace(Progress::Failed(fault.message().to_owned()));
                    usual()
                }
            };
            select! {
                () = self.stop.cancelled() => {}
                () = self.keeping.seams.sleep(pause) => {}
            }
        }
        Ok(None)
    }

    /// `None` if the answer took so long that nothing is certain any more.
    fn safe_from(&mut self, started: Moment) -> Option<Arc<Safety>> {
        let clock = self.keeping.seams.clock.clone();
        let span = Span::new(self.keeping.terms.safe_until(started));
        let safety = Safety::within(span).map(Arc::new)?;
        self.recipe.begins(&safety);
        safety.publish(false);
        safety.is_safe(&*clock).then_some(safety)
    }

    /// Renews until the guard is gone or the lock is lost.
    async fn hold(&mut self, safety: &Safety, mut started: Moment) {
        let clock = self.keeping.seams.clock.clone();
        let mut retries = Backoff::new(POLL_MAX);
        let mut due = self.keeping.terms.renew_at(started);
        while safety.is_safe(&*clock) {
            select! {
                () = self.stop.cancelled() => return,
                () = safety.cancelled().cancelled() => return,
                () = self.renew_now.notified() => {}
                () = clock.sleep_until(due) => {}
            }
            if !safety.is_safe(&*clock) {
                // Woken too late. Not every recipe's renewal asks whether there is something left to renew.
                break;
            }
            let worry_at = self.keeping.terms.jeopardy_from(started);
            let asked = clock.now();
            match renewed(&mut self.recipe, safety, worry_at, &*clock).await {
                Renewal::Applied(sent) => {
                    started = started.max(sent);
                    safety.extend(self.keeping.terms.safe_until(started), &*clock);
                    safety.publish(false);
                    retries.reset();
                    due = self.keeping.terms.renew_at(started);
                }
                Renewal::Gone => return safety.end(GuardState::Lost(LostReason::Revoked)),
                Renewal::Unknown => {
                    if mutant!(RecipeUnknownRenewalCounts) {
                        safety.extend(self.keeping.terms.safe_until(asked), &*clock);
                    }
                    due = clock.now() + retries.next(&*self.keeping.seams.rng);
                }
            }
        }
        safety.end(GuardState::Lost(LostReason::DeadlinePassed));
    }

    /// Takes back what is there to take back, for as long as it can be there.
    async fn leave(&mut self) -> Result<Left, Fault> {
        let seams = self.keeping.seams.clone();
        let until = seams.clock.now() + self.keeping.terms.ttl();
        let mut retries = Backoff::new(POLL_MAX);
        loop {
            match self.recipe.leave().await {
                Err(Fault::Unknown(_) | Fault::NotDone(_)) if seams.clock.now() < until => {
                    seams.sleep(retries.next(&*seams.rng)).await;
                }
                left => return left,
            }
        }
    }
}

/// Renews, and tells the holder to worry if that takes too long.
async fn renewed<R: Recipe>(
    recipe: &mut R,
    safety: &Safety,
    worry_at: Moment,
    clock: &dyn Clock,
) -> Renewal {
    let mut renewal = std::pin::pin!(recipe.renew());
    select! {
        renewal = &mut renewal => return renewal,
        () = clock.sleep_until(worry_at) => safety.publish(true),
    }
    renewal.await
}

fn refused(message: String) -> Error {
    Error::Refused { reason: RefusalReason::Invalid, message, limit: None, retry_after: None }
}

/// What a keeper hands out.
struct Granted {
    safety: Arc<Safety>,
    token: Option<FencingToken>,
    lasts: Duration,
}

/// Dropping it makes the hold unsafe, and has the keeper take it back.
struct Hold {
    safety: Arc<Safety>,
    token: Option<FencingToken>,
    lasts: Duration,
    keeping: Keeping,
    _stopper: DropGuard,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.safety.end(GuardState::Released);
    }
}

/// What a guard has in hand.
struct RowHold {
    hold: Hold,
    end: oneshot::Receiver<Result<Left, Fault>>,
}

impl Held for RowHold {
    fn safety(&self) -> &Safety {
        &self.hold.safety
    }

    fn clock(&self) -> &dyn Clock {
        &*self.hold.keeping.seams.clock
    }

    fn fencing_token(&self) -> Option<FencingToken> {
        self.hold.token
    }

    fn ttl(&self) -> Duration {
        self.hold.lasts
    }

    fn release(self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move {
            let Self { hold, end } = *self;
            let (safety, seams) = (hold.safety.clone(), hold.keeping.seams.clone());
            if !safety.is_safe(&*seams.clock) {
                // Passed, and nobody noticed yet.
                safety.end(GuardState::Lost(LostReason::DeadlinePassed));
            }
            drop(hold);
            let left = seams.timeout(RELEASE_LIMIT, end).await;
            if let Some(reason) = safety.lost_reason() {
                return Err(Error::Lost { reason });
            }
            match left {
                Ok(Ok(Ok(Left::Released))) => Ok(()),
                Ok(Ok(Ok(Left::NotHad))) => Err(Error::Lost { reason: LostReason::Revoked }),
                Ok(Ok(Err(_)) | Err(_)) | Err(_) => {
                    Err(Error::OutcomeUnknown { what: "a release", waited: RELEASE_LIMIT })
                }
            }
        })
    }
}
