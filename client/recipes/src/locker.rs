//! The interface that all lockers share, the guard they hand out, and the native client as a locker.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast::{Client, Guard};
use holdfast_runtime::{Clock, Instant, select};
use tokio_util::sync::CancellationToken;

use super::lease::Lease;
use super::owner::Writer;
use crate::{Error, FencingToken, GuardState, GuardStates, LostReason, Result};
use holdfast_guard::{Safety, run_while};

/// Grants locks by name, each to one holder at a time (thesis, listing 1).
///
/// ```no_run
/// # async fn example(client: holdfast::Client) -> holdfast::Result<()> {
/// use holdfast_recipes::RemoteLocker;
///
/// async fn settle(locker: &dyn RemoteLocker, account: &str) -> holdfast::Result<()> {
///     let guard = locker.lock(account).await?;
///     // … work, as long as guard.is_safe() …
///     guard.release().await
/// }
/// settle(&client, "accounts/7").await
/// # }
/// ```
///
/// Every call is cancel safe: dropping a future withdraws its request, and gives the lock back if a
/// grant crosses that. Call it inside the runtime that the locker was made in.
pub trait RemoteLocker: Send + Sync {
    /// Acquires the lock `name`, waiting as `wait` says. The calls below are shorthands
    /// for it.
    ///
    /// # Errors
    ///
    /// [`Error::NotGranted`] if another client holds the lock and its time is up;
    /// [`Error::Unreachable`] if the store did not answer until then; [`Error::Refused`] if the
    /// store refuses the request. After each, the caller does not hold the lock.
    fn acquire<'a>(&'a self, name: &'a str, wait: Wait) -> BoxFuture<'a, Result<RemoteGuard>>;

    /// Waits until the caller holds the lock, also during outages.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if the store refuses the request.
    fn lock<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<RemoteGuard>> {
        self.acquire(name, Wait::Forever)
    }

    /// Waits for the lock for at most `limit`, which covers everything.
    ///
    /// # Errors
    ///
    /// As of [`RemoteLocker::acquire`].
    fn lock_within<'a>(
        &'a self,
        name: &'a str,
        limit: Duration,
    ) -> BoxFuture<'a, Result<RemoteGuard>> {
        self.acquire(name, Wait::AtMost(limit))
    }

    /// Takes the lock if it is free; returns `None` if another client holds it. It waits only for
    /// the store's answer, up to the locker's own limit.
    ///
    /// # Errors
    ///
    /// As of [`RemoteLocker::acquire`], but for [`Error::NotGranted`].
    fn try_lock<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<RemoteGuard>>> {
        let asked = self.acquire(name, Wait::No);
        Box::pin(async { none_if_held(asked.await) })
    }

    /// Like [`RemoteLocker::try_lock`], waiting at most `limit` for the store's answer.
    ///
    /// # Errors
    ///
    /// As of [`RemoteLocker::try_lock`].
    fn try_lock_within<'a>(
        &'a self,
        name: &'a str,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Option<RemoteGuard>>> {
        let asked = self.acquire(name, Wait::NoAnsweredWithin(limit));
        Box::pin(async { none_if_held(asked.await) })
    }

    /// Returns the recipe on Cassandra that this locker implements, in the name of `writer`, for a [`Locker`](super::Locker) to build
    /// on: so the recipe's rows are known to be that `Locker`'s. A locker that wraps a recipe forwards the recipe's answer, wrapped.
    ///
    /// Default: `None`; this locker is no recipe, and no `Locker` can build on it.
    fn on_cassandra(&self, _writer: &Writer) -> Option<OnCassandra> {
        None
    }
}

/// A recipe on Cassandra, in the name of one writer.
pub struct OnCassandra {
    pub(crate) locker: Arc<dyn RemoteLocker>,
    /// The recipe's name in the table of modes.
    pub(crate) recipe: String,
    /// `None`: the recipe's rows keep no value.
    pub(crate) elections: Option<Lease>,
}

impl OnCassandra {
    /// The same recipe behind another locker, which locks by this one. Elections go past it.
    #[must_use]
    pub fn wrapped(
        self,
        wrap: impl FnOnce(Arc<dyn RemoteLocker>) -> Arc<dyn RemoteLocker>,
    ) -> Self {
        Self { locker: wrap(self.locker), ..self }
    }
}

impl fmt::Debug for OnCassandra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnCassandra").field("recipe", &self.recipe).finish_non_exhaustive()
    }
}

/// For shared lockers, and for lockers whose recipe is chosen at run time.
impl<L: RemoteLocker + ?Sized> RemoteLocker for Arc<L> {
    fn acquire<'a>(&'a self, name: &'a str, wait: Wait) -> BoxFuture<'a, Result<RemoteGuard>> {
        (**self).acquire(name, wait)
    }

    fn on_cassandra(&self, writer: &Writer) -> Option<OnCassandra> {
        (**self).on_cassandra(writer)
    }
}

fn none_if_held(asked: Result<RemoteGuard>) -> Result<Option<RemoteGuard>> {
    match asked {
        Ok(guard) => Ok(Some(guard)),
        Err(Error::NotGranted { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// How long a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Until the lock is granted.
    Forever,
    /// For so long, including reaching the store, retries and the wait for the lock.
    AtMost(Duration),
    /// Not for the lock; for the store's answer up to the locker's own limit.
    No,
    /// Not for the lock; for so long for the store's answer.
    NoAnsweredWithin(Duration),
}

impl Wait {
    /// Whether the call waits while another client holds the lock.
    pub(crate) fn waits(self) -> bool {
        matches!(self, Self::Forever | Self::AtMost(_))
    }

    /// Whether its limit is used up.
    pub(crate) fn is_over(self) -> bool {
        match self {
            Self::Forever | Self::No => false,
            Self::AtMost(left) | Self::NoAnsweredWithin(left) => left.is_zero(),
        }
    }

    /// What is left of it at `now`: one limit covers everything.
    pub(crate) fn until(self, deadline: Option<Instant>, now: Instant) -> Self {
        match deadline.map(|deadline| deadline.saturating_since(now)) {
            None => Self::Forever,
            Some(left) if self.waits() => Self::AtMost(left),
            Some(left) => Self::NoAnsweredWithin(left),
        }
    }

    /// After how long the call ends; `own` is the locker's limit for an answer.
    pub(crate) fn limit(self, own: Duration) -> Option<Duration> {
        match self {
            Self::Forever => None,
            Self::AtMost(limit) | Self::NoAnsweredWithin(limit) => Some(limit),
            Self::No => Some(own),
        }
    }
}

/// The hold behind a [`RemoteGuard`]. Dropping it gives the lock back without waiting.
pub(crate) trait Held: Send + Sync {
    fn safety(&self) -> &Safety;
    fn clock(&self) -> &dyn Clock;
    fn is_safe(&self) -> bool {
        self.safety().is_safe(self.clock())
    }
    fn token(&self) -> Option<FencingToken>;
    /// How long the store keeps the lock when it receives nothing from the holder.
    fn ttl(&self) -> Duration;
    fn release(self: Box<Self>) -> BoxFuture<'static, Result<()>>;
}

/// Where the holder of a lock tells others a value.
pub(crate) trait Publishes: Send + Sync {
    /// Changes the value, and waits until the store has it; `None` removes it.
    fn publish(&self, value: Option<String>) -> BoxFuture<'_, Result<()>>;
}

/// A held lock, valid for as long as [`RemoteGuard::is_safe`] returns true.
///
/// Dropping it gives the lock back without waiting; [`RemoteGuard::release`] waits until the
/// release is certain.
#[must_use = "dropping a guard gives its lock back at once"]
pub struct RemoteGuard {
    name: String,
    owner: String,
    held: Box<dyn Held>,
}

impl RemoteGuard {
    pub(crate) fn new(name: &str, owner: &str, held: Box<dyn Held>) -> Self {
        Self { name: name.to_owned(), owner: owner.to_owned(), held }
    }

    /// The lock's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The holder as other clients see it: the name that the locker's options give.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// The fencing token of the grant, if the store behind the locker issues one.
    pub fn token(&self) -> Option<FencingToken> {
        self.held.token()
    }

    /// Whether the lock is certainly held now. It compares one clock read with an atomic: cheap
    /// enough to call before every write. It counts time in which the machine was suspended. Once
    /// false, it stays false.
    pub fn is_safe(&self) -> bool {
        self.held.is_safe()
    }

    /// The state of the hold.
    pub fn state(&self) -> GuardState {
        self.held.safety().state()
    }

    /// Waits for the next change of the state, and returns the state then. Returns at once if the
    /// hold is over. Cancel safe.
    pub async fn changed(&self) -> GuardState {
        self.states().changed().await
    }

    /// The state of the hold over time, for a task beside this one.
    pub fn states(&self) -> GuardStates {
        self.held.safety().states()
    }

    /// How much longer the lock is certainly held if no further answer of the store arrives; zero
    /// if it is not safe now.
    pub fn safe_for(&self) -> Duration {
        let until = if self.is_safe() { self.state().safe_until() } else { None };
        let now = self.held.clock().now();
        until.map(|until| until.saturating_since(now)).unwrap_or_default()
    }

    /// Runs `work` while the lock is safe, and drops it at its current await point when the lock is
    /// not. Dropping the returned future drops `work`; the lock stays held.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lock stopped being safe before `work` was done.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output> {
        run_while(|| self.is_safe(), self.lost(), work).await
    }

    /// Waits for `publishing` while the lock is held.
    pub(crate) async fn while_held(
        &self,
        publishing: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        select! {
            reason = self.lost() => Err(Error::Lost { reason }),
            done = publishing => done,
        }
    }

    /// How long the store keeps the lock when it receives nothing from this process.
    pub fn ttl(&self) -> Duration {
        self.held.ttl()
    }

    /// Waits until the lock is lost. Cancel safe.
    pub async fn lost(&self) -> LostReason {
        self.held.safety().lost().await
    }

    /// A token that is cancelled when the lock is no longer safe, for work that takes such a token.
    /// Cancelling it does not affect the lock.
    pub fn cancellation_token(&self) -> CancellationToken {
        self.held.safety().cancelled().child_token()
    }

    /// Gives the lock back and waits until the store has confirmed it. The guard is unsafe from the
    /// first poll on.
    ///
    /// Dropping the future leaves the release to a background task.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`]: the hold ended earlier; another client may have held the lock since.
    /// [`Error::OutcomeUnknown`]: no answer in time; the hold ends at the latest with its lease.
    pub async fn release(self) -> Result<()> {
        self.held.release().await
    }
}

impl fmt::Debug for RemoteGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteGuard")
            .field("name", &self.name)
            .field("owner", &self.owner)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

/// The native client: the owner is the session's label. A waiting call has a place in the lock's queue; a release is
/// [`Guard::release`].
impl RemoteLocker for Client {
    fn acquire<'a>(&'a self, name: &'a str, wait: Wait) -> BoxFuture<'a, Result<RemoteGuard>> {
        Box::pin(acquire_natively(self, NativeTerms::default(), name, wait))
    }
}

/// What a request to the native store says besides its name.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NativeTerms<'a> {
    /// The scope that the name is granted under, if the caller knows of one.
    pub(crate) scope: Option<&'a str>,
    /// The note of the hold.
    pub(crate) note: Option<&'a str>,
}

/// Acquires a lock of the native store.
pub(crate) async fn acquire_natively(
    client: &Client,
    terms: NativeTerms<'_>,
    name: &str,
    wait: Wait,
) -> Result<RemoteGuard> {
    let guard = Arc::new(ask_natively(client, terms, name, wait).await?);
    Ok(native_guard(client, name, guard))
}

/// Leads an election of the native store.
pub(crate) async fn lead_natively(
    client: &Client,
    terms: NativeTerms<'_>,
    (name, value): (&str, String),
    wait: Wait,
) -> Result<(RemoteGuard, Arc<dyn Publishes>)> {
    let guard = Arc::new(ask_natively(client, terms, name, wait).await?);
    let published = NativeValue(Arc::downgrade(&guard));
    let guard = native_guard(client, name, guard);
    published.publish(Some(value)).await?;
    Ok((guard, Arc::new(published)))
}

async fn ask_natively(
    client: &Client,
    NativeTerms { scope, note }: NativeTerms<'_>,
    name: &str,
    wait: Wait,
) -> Result<Guard> {
    let lock = || {
        let lock = scope.iter().fold(client.lock(name), |lock, scope| lock.in_scope(scope));
        note.iter().fold(lock, |lock, note| lock.note(*note))
    };
    let attempt = || {
        let lock = scope.iter().fold(client.try_lock(name), |lock, scope| lock.in_scope(scope));
        note.iter().fold(lock, |lock, note| lock.note(*note))
    };
    match wait {
        Wait::Forever => lock().await,
        Wait::AtMost(limit) => lock().wait(limit).await,
        Wait::No => attempt().await,
        Wait::NoAnsweredWithin(limit) => attempt().answered_within(limit).await,
    }
}

fn native_guard(client: &Client, name: &str, guard: Arc<Guard>) -> RemoteGuard {
    let held = NativeHold { guard, ttl: client.ttl() };
    RemoteGuard::new(name, &client.label(), Box::new(held))
}

/// The value of a native lock that is held.
struct NativeValue(Weak<Guard>);

impl Publishes for NativeValue {
    fn publish(&self, value: Option<String>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let Some(guard) = self.0.upgrade() else {
                return Err(Error::Lost { reason: LostReason::Revoked });
            };
            match value {
                Some(value) => guard.set_value(value).await,
                None => guard.clear_value().await,
            }
        })
    }
}

struct NativeHold {
    /// Others have it only while they change the lock's value.
    guard: Arc<Guard>,
    ttl: Duration,
}

impl Held for NativeHold {
    fn safety(&self) -> &Safety {
        self.guard.safety()
    }

    fn clock(&self) -> &dyn Clock {
        self.guard.clock()
    }

    fn token(&self) -> Option<FencingToken> {
        Some(self.guard.token())
    }

    fn ttl(&self) -> Duration {
        self.ttl
    }

    fn release(self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move {
            match Arc::try_unwrap(self.guard) {
                Ok(guard) => guard.release().await,
                // A change of the value still has the guard, and gives it back at its end.
                Err(_) => Err(Error::OutcomeUnknown { what: "a release", waited: Duration::ZERO }),
            }
        })
    }
}
