//! Locks that are held.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use holdfast_seams::{Clock, select};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::client::Handle;
use crate::hold::Hold;
use crate::safety::Safety;
use crate::session::Key;
use crate::value::Change;
use crate::{FencingToken, GuardState, LostReason, Mode, Result, Value};

/// A lock that is held, for as long as [`Guard::is_safe`] says so; or several that were granted
/// together, under one token.
///
/// Dropping it gives back what it holds without waiting; [`Guard::release`] waits until that is
/// certain. A guard outlives broken connections, changes of leader and every clone of its client.
///
/// Safe means: no other client holds the lock or is granted it (other than shared, if it is shared
/// here) before this guard's safe deadline, which moves on as keepalives are answered. A guard that stopped being safe never is again. What
/// a process does after it looked (a write on its way, a pause of the whole machine) no lock can
/// hold back: give the resource the [`Guard::token`] and let it refuse older ones.
#[must_use = "dropping a guard gives its lock back at once"]
pub struct Guard {
    hold: Arc<Hold>,
    key: Key,
    handle: Arc<Handle>,
}

impl Guard {
    pub(crate) fn new(hold: Arc<Hold>, key: Key, handle: Arc<Handle>) -> Self {
        Self { hold, key, handle }
    }

    /// The lock's name; of several the one that was named first among those granted, and that also
    /// after it was given back by itself.
    pub fn name(&self) -> &str {
        self.hold.first().map(|lock| &*lock.name).unwrap_or_default()
    }

    /// The names of all locks it holds, in the order in which they were asked for. Those that were
    /// given back by [`Guard::release_names`] are left out.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.hold.held().map(|lock| &*lock.name)
    }

    /// Whether the lock `name` is one of its locks, and certainly held now.
    pub fn holds(&self, name: &str) -> bool {
        self.is_safe() && self.hold.lock(name).is_some()
    }

    /// How the lock `name` is held; `None` if it is none of this guard's.
    pub fn mode_of(&self, name: &str) -> Option<Mode> {
        self.hold.lock(name).map(|lock| lock.mode)
    }

    /// The grant's fencing token.
    pub fn token(&self) -> FencingToken {
        self.hold.token
    }

    /// Whether the lock, or all of several, is certainly held now. One clock read against an atomic: cheap enough for
    /// before every write. Counts time in which the machine was suspended. Once false, it stays
    /// false.
    pub fn is_safe(&self) -> bool {
        self.safety().is_safe(self.clock())
    }

    pub(crate) fn safety(&self) -> &Safety {
        self.hold.safety()
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.handle.session.seams().clock
    }

    /// The hold's state, to look at and to wait for changes of. Brought up to date by a thread of
    /// its own, so also while the executor stalls; [`Guard::is_safe`] is ahead of it by the time
    /// that takes.
    ///
    /// Copy the state out at once (`*guard.state().borrow()`): while a borrow of it lives, nobody
    /// can tell it anything, and dropping the guard in the same thread waits for ever.
    pub fn state(&self) -> watch::Receiver<GuardState> {
        self.hold.safety().state()
    }

    /// How much longer the lock is certainly held, if nothing is heard from the store; zero if it
    /// is not.
    pub fn safe_for(&self) -> std::time::Duration {
        if !self.is_safe() {
            return std::time::Duration::ZERO;
        }
        let state = *self.hold.safety().state().borrow();
        match state {
            GuardState::Held { safe_until } | GuardState::Jeopardy { safe_until } => {
                safe_until.saturating_since(self.handle.session.seams().clock.now())
            }
            GuardState::Lost(_) | GuardState::Released => std::time::Duration::ZERO,
        }
    }

    /// Waits until the lock is lost. Cancel safe.
    pub async fn lost(&self) -> LostReason {
        self.hold.safety().lost().await
    }

    /// A token that is cancelled when the lock is not safe any more, for work that is told that
    /// way. Cancelling it does nothing to the lock.
    pub fn cancellation_token(&self) -> CancellationToken {
        self.hold.safety().cancelled().child_token()
    }

    /// Runs `work` as long as the lock is safe, and drops it where it stands when it is not.
    ///
    /// Dropping the returned future drops `work`; the lock stays held.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`](crate::Error::Lost) if the lock was not safe any more before `work` was
    /// done. How far it came is for the caller to find out.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output> {
        let mut work = pin!(work);
        let mut lost = pin!(self.lost());
        poll_fn(|context| {
            if let Poll::Ready(reason) = lost.as_mut().poll(context) {
                return Poll::Ready(Err(crate::Error::Lost { reason }));
            }
            // The watchdog tells a moment later than the clock.
            if !self.is_safe() {
                return Poll::Ready(Err(crate::Error::Lost { reason: LostReason::DeadlinePassed }));
            }
            work.as_mut().poll(context).map(Ok)
        })
        .await
    }

    /// Waits until somebody waits for one of the locks, and says for which; at once if somebody has
    /// come to wait since the grant. `None` when the hold is over. For holders that finish early,
    /// or lend the lock out.
    ///
    /// A hint: word of it that was under way on a connection that broke is not repeated.
    ///
    /// Cancel safe.
    pub async fn contended(&self) -> Option<&str> {
        let mut contended = self.hold.contended();
        let mut state = self.hold.safety().state();
        select! {
            _ = state.wait_for(GuardState::is_over) => None,
            names = contended.wait_for(|names| !names.is_empty()) => {
                let name = names.ok().and_then(|names| names.first().cloned())?;
                self.hold.lock(&name).map(|lock| &*lock.name)
            }
        }
    }

    /// What the last holder left with the lock [`Guard::name`], as it came with the grant, or as
    /// this guard has set it since.
    ///
    /// ```no_run
    /// # async fn example(client: holdfast::Client) -> holdfast::Result<()> {
    /// let guard = client.lock("import").await?;
    /// let done: u64 = match guard.value() {
    ///     Some(value) if !value.is_suspect => {
    ///         String::from_utf8_lossy(&value.bytes).parse().unwrap_or(0)
    ///     }
    ///     // Nobody left a value, or its holder died: look at the work itself.
    ///     _ => 0,
    /// };
    /// // … import what comes after `done` …
    /// guard.set_value((done + 1).to_string()).await?;
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn value(&self) -> Option<Value> {
        self.value_of(self.name())
    }

    /// The same for one of several locks; `None` too if `name` is none of this guard's.
    pub fn value_of(&self, name: &str) -> Option<Value> {
        self.hold.lock(name)?.value()
    }

    /// Replaces the value of the lock [`Guard::name`]: at most 4 KiB; no bytes at all are a value
    /// too. Answers when that is committed. The value outlives the hold and goes to the next
    /// holder with the grant; if this hold ends without a release, it is marked as suspect.
    ///
    /// Outages and changes of leader are outlived as a hold outlives them: it is sent again, and
    /// made once.
    ///
    /// Dropping the future leaves open whether it is made.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`](crate::Error::Lost): the hold was over before it was sent; the value is as
    /// it was. [`Error::OutcomeUnknown`](crate::Error::OutcomeUnknown): the hold ended while it
    /// was on its way, or no answer came within the session's TTL; the next holder will see.
    /// [`Error::Refused`](crate::Error::Refused): it is too large, at a limit of the store, or the
    /// lock is shared; the value is as it was.
    pub async fn set_value(&self, bytes: impl Into<Bytes>) -> Result<()> {
        self.set_value_of(self.name(), bytes).await
    }

    /// The same for one of several locks.
    ///
    /// # Errors
    ///
    /// As of [`Guard::set_value`]; [`Error::Refused`](crate::Error::Refused) too if `name` is none
    /// of this guard's.
    pub async fn set_value_of(&self, name: &str, bytes: impl Into<Bytes>) -> Result<()> {
        self.change_value(name, Change::set(bytes.into())?).await
    }

    /// Removes the value of the lock [`Guard::name`]; that there is none is no error.
    ///
    /// # Errors
    ///
    /// As of [`Guard::set_value`].
    pub async fn clear_value(&self) -> Result<()> {
        self.clear_value_of(self.name()).await
    }

    /// The same for one of several locks.
    ///
    /// # Errors
    ///
    /// As of [`Guard::set_value_of`].
    pub async fn clear_value_of(&self, name: &str) -> Result<()> {
        self.change_value(name, Change::Clear).await
    }

    /// Leaves a suspect value of the lock [`Guard::name`] as it is, and no longer suspect: this
    /// holder has looked, and vouches for it.
    ///
    /// # Errors
    ///
    /// As of [`Guard::set_value`]; [`Error::Refused`](crate::Error::Refused) too if there is none.
    pub async fn confirm_value(&self) -> Result<()> {
        self.confirm_value_of(self.name()).await
    }

    /// The same for one of several locks.
    ///
    /// # Errors
    ///
    /// As of [`Guard::set_value_of`].
    pub async fn confirm_value_of(&self, name: &str) -> Result<()> {
        self.change_value(name, Change::Confirm).await
    }

    async fn change_value(&self, name: &str, change: Change) -> Result<()> {
        self.handle.session.change_value(self.key, &self.hold, name, change).await
    }

    /// Gives back some of several locks and waits until the store has said so; the others stay
    /// held. No name at all gives back nothing, all names are the same as [`Guard::release`].
    /// The locks named are none of this guard's from the first poll on.
    ///
    /// ```no_run
    /// # async fn example(client: holdfast::Client) -> holdfast::Result<()> {
    /// let guard = client.lock_all(["a", "b", "c"]).await?;
    /// // … done with two of them …
    /// guard.release_names(["a", "b"]).await?;
    /// assert!(guard.names().eq(["c"]));
    /// # Ok(()) }
    /// ```
    ///
    /// Dropping the future leaves the release to the background.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`](crate::Error::Refused) if one of the names is none of this guard's;
    /// nothing is given back then. Otherwise as of [`Guard::release`].
    pub async fn release_names(&self, names: impl IntoIterator<Item: AsRef<str>>) -> Result<()> {
        let names: Vec<Arc<str>> = names.into_iter().map(|name| name.as_ref().into()).collect();
        if names.is_empty() {
            return Ok(());
        }
        self.handle.session.release_names(self.key, &self.hold, &names).await
    }

    /// Gives back everything it holds and waits until the store has said so. The guard is unsafe
    /// from the first moment on.
    ///
    /// Dropping the future leaves the release to the background.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`](crate::Error::Lost): the hold was over before; somebody else may have held
    /// the lock since. [`Error::OutcomeUnknown`](crate::Error::OutcomeUnknown): no answer within
    /// the session's TTL; the client goes on releasing it in the background.
    pub async fn release(self) -> Result<()> {
        self.handle.session.release(self.key, &self.hold).await
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // After a release this finds nothing left to give back.
        self.handle.session.give_back(self.key, None);
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("names", &self.names().collect::<Vec<_>>())
            .field("token", &self.token().get())
            .field("state", &*self.hold.safety().state().borrow())
            .finish_non_exhaustive()
    }
}
