//! The interface that all lockers share, and the guard they hand out.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast_seams::Clock;
#[cfg(any(test, feature = "cassandra"))]
use holdfast_seams::Moment;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

#[cfg(any(test, feature = "cassandra"))]
use super::owner::Writer;
use crate::safety::Safety;
use crate::{Error, FencingToken, GuardState, LostReason, Result};

/// Gives out locks by name, one holder at a time (thesis, listing 1).
///
/// ```no_run
/// # async fn example(client: holdfast::Client) -> holdfast::Result<()> {
/// use holdfast::compat::RemoteLocker;
///
/// async fn settle(locker: &dyn RemoteLocker, account: &str) -> holdfast::Result<()> {
///     let guard = locker.get_lock(account).await?;
///     // … work, as long as guard.is_safe() …
///     guard.release().await
/// }
/// settle(&client, "accounts/7").await
/// # }
/// ```
///
/// Every call is cancel safe: a future that is dropped takes its request back, and gives back a
/// lock that crosses that. To be called inside the runtime that the locker was made in.
pub trait RemoteLocker: Send + Sync {
    /// Acquires the lock `lock_id`, with as much patience as is said. The calls below say it in
    /// words.
    ///
    /// # Errors
    ///
    /// [`Error::NotGranted`] if somebody else holds the lock and patience is at its end;
    /// [`Error::Unreachable`] if the store did not answer until then; [`Error::Refused`] if it
    /// will not do what was asked. After each, the caller does not hold the lock.
    fn acquire<'a>(
        &'a self,
        lock_id: &'a str,
        patience: Patience,
    ) -> BoxFuture<'a, Result<RemoteGuard>>;

    /// Waits until the lock is had, over outages too.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if the store will not do what was asked.
    fn get_lock<'a>(&'a self, lock_id: &'a str) -> BoxFuture<'a, Result<RemoteGuard>> {
        self.acquire(lock_id, Patience::Endless)
    }

    /// Waits until the lock is had, at most for `limit`, which covers everything.
    ///
    /// # Errors
    ///
    /// As of [`RemoteLocker::acquire`].
    fn get_lock_within<'a>(
        &'a self,
        lock_id: &'a str,
        limit: Duration,
    ) -> BoxFuture<'a, Result<RemoteGuard>> {
        self.acquire(lock_id, Patience::AtMost(limit))
    }

    /// Takes the lock if nobody has it; `None` if somebody has. Waits for the store's answer only,
    /// for as long as the locker's own limit says.
    ///
    /// # Errors
    ///
    /// As of [`RemoteLocker::acquire`], but for [`Error::NotGranted`].
    fn try_get_lock<'a>(&'a self, lock_id: &'a str) -> BoxFuture<'a, Result<Option<RemoteGuard>>> {
        let asked = self.acquire(lock_id, Patience::None);
        Box::pin(async { none_if_held(asked.await) })
    }

    /// The same, and waits at most for `limit` for the store's answer.
    ///
    /// # Errors
    ///
    /// As of [`RemoteLocker::try_get_lock`].
    fn try_get_lock_within<'a>(
        &'a self,
        lock_id: &'a str,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Option<RemoteGuard>>> {
        let asked = self.acquire(lock_id, Patience::NoneButAnswer(limit));
        Box::pin(async { none_if_held(asked.await) })
    }

    /// The recipe on Cassandra that this locker is, for a [`Locker`](super::Locker) to stand on: in the name of `writer`, so that its
    /// rows are known to be that `Locker`'s. A locker that wraps a recipe hands on what that one answers, wrapped.
    ///
    /// Default: `None`, it is none, and no `Locker` can stand on it.
    #[cfg(any(test, feature = "cassandra"))]
    fn on_cassandra(&self, _writer: &Writer) -> Option<OnCassandra> {
        None
    }
}

/// A recipe on Cassandra, in the name of one writer.
#[cfg(any(test, feature = "cassandra"))]
pub struct OnCassandra {
    pub(crate) locker: Arc<dyn RemoteLocker>,
    /// As the table of modes has it.
    pub(crate) recipe: String,
}

#[cfg(any(test, feature = "cassandra"))]
impl OnCassandra {
    pub(crate) fn new(locker: impl RemoteLocker + 'static, recipe: String) -> Self {
        Self { locker: Arc::new(locker), recipe }
    }

    /// The same recipe behind another locker, which locks by this one.
    #[must_use]
    pub fn wrapped(
        self,
        wrap: impl FnOnce(Arc<dyn RemoteLocker>) -> Arc<dyn RemoteLocker>,
    ) -> Self {
        Self { locker: wrap(self.locker), recipe: self.recipe }
    }
}

#[cfg(any(test, feature = "cassandra"))]
impl fmt::Debug for OnCassandra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnCassandra").field("recipe", &self.recipe).finish_non_exhaustive()
    }
}

/// Lockers that are shared, and those whose recipe is chosen at run time.
impl<L: RemoteLocker + ?Sized> RemoteLocker for Arc<L> {
    fn acquire<'a>(
        &'a self,
        lock_id: &'a str,
        patience: Patience,
    ) -> BoxFuture<'a, Result<RemoteGuard>> {
        (**self).acquire(lock_id, patience)
    }

    #[cfg(any(test, feature = "cassandra"))]
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
pub enum Patience {
    /// Until the lock is had.
    Endless,
    /// So long, for everything: reaching the store, retries, the lock.
    AtMost(Duration),
    /// Not for the lock; for the store's answer as long as the locker's own limit says.
    None,
    /// Not for the lock; so long for the store's answer.
    NoneButAnswer(Duration),
}

#[cfg(any(test, feature = "cassandra"))]
impl Patience {
    /// Whether somebody else's hold is waited for.
    pub(crate) fn waits(self) -> bool {
        matches!(self, Self::Endless | Self::AtMost(_))
    }

    /// Whether nothing is left of it.
    pub(crate) fn is_over(self) -> bool {
        match self {
            Self::Endless | Self::None => false,
            Self::AtMost(left) | Self::NoneButAnswer(left) => left.is_zero(),
        }
    }

    /// What is left of it at `now`: one limit covers everything.
    pub(crate) fn until(self, deadline: Option<Moment>, now: Moment) -> Self {
        match deadline.map(|deadline| deadline.saturating_since(now)) {
            None => Self::Endless,
            Some(left) if self.waits() => Self::AtMost(left),
            Some(left) => Self::NoneButAnswer(left),
        }
    }

    /// After how long the call is over; `own` is the locker's limit for an answer.
    pub(crate) fn limit(self, own: Duration) -> Option<Duration> {
        match self {
            Self::Endless => None,
            Self::AtMost(limit) | Self::NoneButAnswer(limit) => Some(limit),
            Self::None => Some(own),
        }
    }
}

/// What stands behind a [`RemoteGuard`]. Dropping it gives the lock back without waiting.
pub(crate) trait Held: Send + Sync {
    fn safety(&self) -> &Safety;
    fn clock(&self) -> &dyn Clock;
    fn is_safe(&self) -> bool {
        self.safety().is_safe(self.clock())
    }
    fn fencing_token(&self) -> Option<FencingToken>;
    /// How long the store keeps the lock without hearing from its holder.
    fn ttl(&self) -> Duration;
    fn release(self: Box<Self>) -> BoxFuture<'static, Result<()>>;
}

/// A lock that is held, for as long as [`RemoteGuard::is_safe`] says so.
///
/// Dropping it gives the lock back without waiting; [`RemoteGuard::release`] waits until that is
/// certain.
#[must_use = "dropping a guard gives its lock back at once"]
pub struct RemoteGuard {
    lock_id: String,
    thread_id: String,
    held: Box<dyn Held>,
}

impl RemoteGuard {
    pub(crate) fn new(lock_id: &str, thread_id: &str, held: Box<dyn Held>) -> Self {
        Self { lock_id: lock_id.to_owned(), thread_id: thread_id.to_owned(), held }
    }

    /// The lock.
    pub fn lock_id(&self) -> &str {
        &self.lock_id
    }

    /// The holder as others see it: what the locker was told to call itself.
    pub fn thread_id(&self) -> &str {
        &self.thread_id
    }

    /// The grant's fencing token, where what stands behind the locker gives one.
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.held.fencing_token()
    }

    /// Whether the lock is certainly held now. One clock read against an atomic: cheap enough for
    /// before every write. Counts time in which the machine was suspended. Once false, it stays
    /// false.
    pub fn is_safe(&self) -> bool {
        self.held.is_safe()
    }

    /// The hold's state, to look at and to wait for changes of.
    ///
    /// Copy the state out at once: while a borrow of it lives, nobody can tell it anything.
    pub fn state(&self) -> watch::Receiver<GuardState> {
        self.held.safety().state()
    }

    /// How long the store keeps the lock without hearing from this process.
    pub fn ttl(&self) -> Duration {
        self.held.ttl()
    }

    /// Waits until the lock is lost. Cancel safe.
    pub async fn lost(&self) -> LostReason {
        self.held.safety().lost().await
    }

    /// A token that is cancelled when the lock is not safe any more, for work that is told that
    /// way. Cancelling it does nothing to the lock.
    pub fn cancellation_token(&self) -> CancellationToken {
        self.held.safety().cancelled().child_token()
    }

    /// Gives the lock back and waits until the store has said so. The guard is unsafe from the
    /// first poll on.
    ///
    /// Dropping the future leaves the release to the background.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`]: the hold was over before; somebody else may have held the lock since.
    /// [`Error::OutcomeUnknown`]: no answer in time; the hold ends at the latest with its lease.
    pub async fn release(self) -> Result<()> {
        self.held.release().await
    }
}

impl fmt::Debug for RemoteGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteGuard")
            .field("lock_id", &self.lock_id)
            .field("thread_id", &self.thread_id)
            .field("state", &*self.state().borrow())
            .finish_non_exhaustive()
    }
}
